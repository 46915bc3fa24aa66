"""Stores to views whose extents a call decides: they are at most those of the register tile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilemma.ir.expr import Const, Expr, binary, value_of
from tilemma.ir.tile import Assert, Op, Store
from tilemma.ir.tiles import describe
from tilemma.ir.usage import is_size
from tilemma.passes.contraction import matrix


def launch_checks(ops: Iterable[Op], tiles: Mapping[str, tuple[int, int]]) -> tuple[Assert, ...]:
    """Assertions that the launch checks for the stores among ``ops``, which every call executes; ``tiles``: the
    shapes of register tiles."""
    found: dict[tuple[Expr, int], Assert] = {}
    for op in ops:
        if not isinstance(op, Store) or op.fragment.name not in tiles:
            continue
        name, base = op.fragment.name, op.dst.base.name
        tile = tiles[name][:: -1 if op.transpose else 1]
        for extent, limit in zip(matrix(op.dst).shape, tile, strict=True):
            if value_of(extent) is None and is_size(extent):
                text = f"mma.store: {describe(extent)} of `{base}` is at most {limit}, as `{name}` has"
                condition = binary("le", extent, Const(limit, extent.type))
                found.setdefault((extent, limit), Assert(condition, text, span=op.span))
    return tuple(found.values())
