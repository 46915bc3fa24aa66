"""Numbers of threads, and which of them take a branch."""

from __future__ import annotations

from itertools import combinations, product

from tilemma.ir.expr import Const, Index, const, substitute, value_of
from tilemma.ir.tile import Parallel
from tilemma.ir.types import THREAD
from tilemma.passes.split_thread_levels import _among, _numbered


def test_instances_are_numbered_row_by_row() -> None:
    """The indices of all numbers are all combinations, the last index fastest."""
    number = Index("number", const(48))
    for extents in ((1,), (8,), (2, 3), (3, 1), (1, 5), (1, 1, 2), (2, 3, 4)):
        indices = tuple(Index(f"i{n}", const(e)) for n, e in enumerate(extents))
        found = _numbered(Parallel(indices, (), THREAD), number)
        total = 1
        for e in extents:
            total *= e
        places = [
            tuple(value_of(substitute(found[i.name], {"number": Const(n)})) for i in indices) for n in range(total)
        ]
        assert places == list(product(*map(range, extents)))


def test_an_index_among_values() -> None:
    index = Index("w", const(5))
    for count in range(1, 6):
        for values in combinations(range(5), count):
            found = _among(index, list(values))
            held = [n for n in range(5) if value_of(substitute(found, {"w": Const(n)}))]
            assert held == list(values)
