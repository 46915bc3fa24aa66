"""Descriptions of multiplies: the input and the result of instruction selection."""

from __future__ import annotations

from dataclasses import replace

from tilemma.atoms import MmaAtom
from tilemma.dtypes import DType
from tilemma.ir.tile import FragmentRef, Kernel, Mma, Op, Operand
from tilemma.ir.types import Level
from tilemma.passes.check_element_tiles import linked
from tilemma.passes.contraction import Fragments, Stored, stored
from tilemma.records import record


@record
class Work:
    """One multiply: M, N, K of the tile of an instance of ``level``, and the storage of its operands (none for an
    A that was computed in registers)."""

    mma: Mma
    level: Level
    m: int
    n: int
    k: int
    a: DType
    b: DType
    d: DType
    a_stored: Stored | None
    b_stored: Stored
    a_stale: Op | None
    b_stale: Op | None
    # Each executing unit must hold whole rows: of A, which was computed in registers, or of a tile to be reduced.
    whole_rows: bool


@record
class Choice:
    """An instruction, the arrangement of the executing units along M and N, and how often each unit issues it
    along M, N and K."""

    atom: MmaAtom
    grid: tuple[int, int]
    tiles: tuple[int, int, int]


def work_of(m: Mma, level: Level, fragments: Fragments, stale: dict[str, Op]) -> Work:
    """The multiply of an instance of ``level``; ``stale``: by fragment, the operation that changes its memory
    after the load (`snapshot`)."""
    b_view = fragments.view(m.b)
    assert b_view is not None
    b = stored(b_view, m.contract.b_transposed)
    assert b is not None
    a_view, a_dtype = fragments.view(m.a), fragments.dtype(m.a)
    a = None if a_view is None else stored(a_view, m.contract.a_transposed)
    d, b_dtype = fragments.declared[m.acc.name].dtype, fragments.dtype(m.b)
    assert d is not None and a_dtype is not None and b_dtype is not None
    if a is None:
        assert isinstance(m.a, FragmentRef)
        shape = fragments.declared[m.a.name].shape
        assert shape is not None, m.a
        rows = shape[0]
    else:
        rows = a.rows
    # Where memory holds packed elements, K counts those of the instruction.
    b = replace(b, k=b.k * fragments.packed(m.b))
    a = None if a is None else replace(a, k=a.k * fragments.packed(m.a))
    return Work(
        m, level, rows, b.rows, b.k, a_dtype, b_dtype, d, a, b, _stale(m.a, stale), _stale(m.b, stale), False
    )  # fmt: skip


def _stale(x: Operand, stale: dict[str, Op]) -> Op | None:
    return stale.get(x.name) if isinstance(x, FragmentRef) else None


def components(works: list[Work], kernel: Kernel) -> list[tuple[list[Work], set[str]]]:
    """Groups of multiplies that share a fragment, or whose fragments element work combines, with the names of
    these: each group needs one kind of instruction."""
    groups: list[tuple[set[str], list[Work]]] = [(names, []) for names in linked(kernel.body)]
    for w in works:
        names = {x.name for x in (w.mma.acc, w.mma.a, w.mma.b) if isinstance(x, FragmentRef)}
        joined = [g for g in groups if g[0] & names]
        groups = [g for g in groups if not g[0] & names]
        groups.append((names.union(*(g[0] for g in joined)), [*(x for g in joined for x in g[1]), w]))
    return [(members, names) for names, members in groups if members]
