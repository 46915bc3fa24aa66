"""Persistent blocks (tile scheduler): a grid of tiles as a loop of fewer blocks, rasterised in an order that
reuses the L2 cache.

The tiles are taken in bands of rows.  Within a band consecutive tiles go down its rows, and every other band goes
from right to left: what was read last is read again.  Blocks of a cluster take neighbouring rows, and multicast
the tiles that they share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from tilemma.errors import Span
from tilemma.ir.effects import Effect, element_reads, touched_as
from tilemma.ir.expr import (
    COMPARISON,
    Binary,
    Const,
    Element,
    Expr,
    Index,
    Select,
    add,
    binary,
    cdiv,
    const,
    floordiv,
    maximum,
    minimum,
    mod,
    mul,
    sub,
    value_of,
)
from tilemma.ir.expr import walk as parts
from tilemma.ir.ranges import interval, loop_index
from tilemma.ir.substitution import Substitution
from tilemma.ir.tile import Assign, Atomic, Body, Declare, For, Kernel, Op, Parallel, While
from tilemma.ir.types import BLOCK, CLUSTER, Space, View
from tilemma.ir.walk import expressions, jumps, walk
from tilemma.records import record
from tilemma.targets.ptx.passes.pipeline_model import RASTER
from tilemma.targets.ptx.passes.warp_program import FreshNames


def clustered(block: Parallel, row: int, cluster: int, fresh: FreshNames, body: Body) -> Parallel:
    """The launch of ``block`` with ``body`` in clusters of ``cluster`` blocks, which differ in index ``row``."""
    index = block.indices[row]
    team = Index(fresh(index.name), cdiv(index.extent, cluster))
    rank = Index(fresh("rank"), const(cluster))
    teams = tuple(team if i is index else i for i in block.indices)
    body = Substitution({index.name: add(mul(team, cluster), rank)}).body(body)
    inner = replace(block, indices=(rank,), body=body, overlap=False)
    return Parallel(teams, (inner,), CLUSTER, overlap=block.overlap, span=block.span)


def in_bands(block: Parallel, first: Index, last: Index, rows: int) -> Parallel:
    """``block``, a grid of rows and columns, whose tiles are taken in bands of ``rows``; ``first`` and ``last``
    are other names for its indices.

    The grid stays as it is.  Blocks start row by row: the position of a block in its band of rows is the number of
    the tile that it computes, which goes down the band.
    """
    old = block.indices
    band = floordiv(first, rows)
    at = add(mul(mod(first, rows), last.extent), last)
    row, column = _in_band(band, at, first.extent, rows)
    # The bounds of the column, which range analysis does not find.
    column = maximum(minimum(column, sub(last.extent, 1)), 0)
    body = Substitution({old[0].name: row, old[1].name: column}).body(block.body)
    return replace(block, indices=(first, last), body=body)


def _in_band(band: Expr, at: Expr, of_rows: Expr, most: int) -> tuple[Expr, Expr]:
    """Row and column of tile number ``at`` of a band of ``most`` rows: the last band may have fewer."""
    short = binary("gt", mul(add(band, 1), most), of_rows)
    rows = Select(short, mod(of_rows, most), const(most))
    return add(mul(band, most), mod(at, rows)), floordiv(at, rows)


def _teams(tiles: Expr, most: int) -> Expr:
    """The number of blocks or clusters that compute ``tiles``: at most ``most``, each about as many tiles."""
    return cdiv(tiles, cdiv(tiles, most))


@record
class FewerBlocks:
    """``kernel`` with ``fewer`` persistent blocks (clusters, where it has them) at most in place of ``most``.

    ``tiles``: the number of tiles that the blocks or clusters compute, of each loop over them.
    """

    kernel: Kernel
    most: int
    fewer: int
    tiles: tuple[Expr, ...]


def fewer_blocks(kernel: Kernel) -> FewerBlocks | None:
    """``kernel`` with so few persistent blocks that small grids give each several tiles.

    A loop of persistent blocks is one that the compiler made, or that starts at the index of its block or cluster
    and whose step is the number of these: a constant, the smaller of a constant and the tiles, or as many as give
    each about as many tiles.  None if there is no such loop, loops with different numbers, or one whose block does
    something else with its index.  None too if the program may count its blocks: it compares with the number that
    it states, or with one less, or a loop waits for other blocks.  The number stays a power of two, or none:
    divisions by either kind have different code.
    """
    grid = _grid(kernel)
    loops = _tile_loops(kernel, grid)
    taken = [_tiles_of(op.step, op.stop) for op in loops]
    found = {x[1] for x in taken if x is not None}
    own = {op.start.name for op in loops if isinstance(op.start, Index) and not op.blocks}
    if len(found) != 1 or None in taken or own & set(_used_elsewhere(kernel, loops)):
        return None
    (most,) = found
    fewer = 2 if most & (most - 1) == 0 else 3
    if most <= fewer or waits_for_blocks(kernel) or (own and _counts_to(kernel, {most, most - 1})):
        return None
    tiles = {op.step: x[0] for op, x in zip(loops, taken, strict=True) if x is not None}
    table = {step: _number(step, fewer) for step in tiles}
    constant = {n: replace(i, extent=table[i.extent]) for n, i in grid.items() if n in own and i.extent in table}
    whole = {e: x for e, x in table.items() if not isinstance(e, Const)}
    # A constant means other things elsewhere; this is the index of the next tile.
    whole |= {add(op.index, op.step): add(op.index, table[op.step]) for op in loops}
    body = _Replacement(whole, constant, table).body(kernel.body)
    return FewerBlocks(replace(kernel, body=body), most, fewer, tuple(dict.fromkeys(tiles.values())))


def persistent_tiles(kernel: Kernel) -> tuple[int, tuple[Expr, ...]] | None:
    """(the most persistent blocks or clusters, the number of tiles of each of their loops) of ``kernel``; None if
    it has no such loop, or loops with different numbers."""
    taken = [_tiles_of(op.step, op.stop) for op in _tile_loops(kernel, _grid(kernel))]
    found = {x[1] for x in taken if x is not None}
    if len(found) != 1 or None in taken:
        return None
    return found.pop(), tuple(dict.fromkeys(x[0] for x in taken if x is not None))


def _tile_loops(kernel: Kernel, grid: Mapping[str, Index]) -> list[For]:
    return [op for op in walk(kernel.body) if isinstance(op, For) and (op.blocks or _strides(op, grid))]


def _grid(kernel: Kernel) -> dict[str, Index]:
    """The indices of the clusters, in a kernel without them of the blocks."""
    levels = [op for op in walk(kernel.body) if isinstance(op, Parallel) and op.level in (CLUSTER, BLOCK)]
    level = CLUSTER if any(op.level == CLUSTER for op in levels) else BLOCK
    return {i.name: i for op in levels if op.level == level for i in op.indices}


def _strides(loop: For, grid: Mapping[str, Index]) -> bool:
    """Whether ``loop`` starts at an index of ``grid`` and skips as many iterations as the grid has."""
    start = loop.start
    return isinstance(start, Index) and start.name in grid and grid[start.name].extent == loop.step


def _tiles_of(number: Expr, all_of_them: Expr) -> tuple[Expr, int] | None:
    """(the tiles, the most blocks) where ``number`` blocks share them; None for other expressions."""
    match number:
        case Const(value=int(most)):
            return all_of_them, most
        case Binary("max", inner, Const(value=1)):
            return _tiles_of(inner, all_of_them)
        case Binary("min", tiles, Const(value=int(most))) | Binary("min", Const(value=int(most)), tiles):
            return tiles, most
        case Binary("cdiv", tiles, Binary("cdiv", again, Const(value=int(most)))) if tiles == again:
            return tiles, most
    return None


def _number(number: Expr, fewer: int) -> Expr:
    """``number``, of which `_tiles_of` knows the parts, with ``fewer`` blocks at most."""
    match number:
        case Binary("cdiv", tiles, _):
            return _teams(tiles, fewer)
        case Binary("max", inner, _):
            return replace(number, a=_number(inner, fewer))
        case Binary("min", Const() as most, _):
            return replace(number, a=replace(most, value=fewer))
        case Binary("min", _, most):
            return replace(number, b=_number(most, fewer))
    assert isinstance(number, Const), number
    return replace(number, value=fewer)


def waits_for_blocks(kernel: Kernel) -> bool:
    """Whether a `while`, or a loop with `break`, reads a global array that the kernel changes."""
    operations = list(walk(kernel.body))
    written = (x.base for op in operations for x in touched_as(op, Effect.WRITE) if isinstance(x, View))
    changed = {buffer.name for buffer in written if buffer.space == Space.GLOBAL}
    loops = (op for op in operations if isinstance(op, While) or (isinstance(op, For) and jumps(op)))
    return any(x.base.name in changed for loop in loops for op in walk((loop,)) for x in _read(op))


def _read(op: Op) -> Iterator[View]:
    yield from (x for x in touched_as(op, Effect.READ) if isinstance(x, View))
    yield from (x.view for x in element_reads(op) if isinstance(x, Element))


def _counts_to(kernel: Kernel, numbers: Set[int]) -> bool:
    """Whether the program compares a value with one of ``numbers``, keeps it, or passes it to an atomic."""

    def named(e: object) -> bool:
        return isinstance(e, Const) and e.value in numbers

    for op in walk(kernel.body):
        if isinstance(op, (Declare, Assign, Atomic)) and (named(op.value) or named(getattr(op, "compare", None))):
            return True
        found = (x for e in expressions(op) for x in parts(e))
        if any(isinstance(x, Binary) and x.op in COMPARISON and (named(x.a) or named(x.b)) for x in found):
            return True
    return False


def _used_elsewhere(kernel: Kernel, loops: Sequence[For]) -> Iterator[str]:
    """The names of indices that operations use other than as the start of one of ``loops``."""
    starts = {id(op): op.start for op in loops}
    for op in walk(kernel.body):
        declared = op.indices if isinstance(op, Parallel) else ()
        for e in expressions(op):
            if e is not starts.get(id(op)) and e not in declared:
                yield from (x.name for x in parts(e) if isinstance(x, Index))


class _Replacement(Substitution):
    """Replaces whole expressions of ``table``, indices, and the ``steps`` of loops that start at such an index."""

    def __init__(
        self, table: Mapping[Expr, Expr], indices: Mapping[str, Index], steps: Mapping[Expr, Expr]
    ) -> None:
        super().__init__(indices)
        self._table, self._steps = table, steps

    def operation(self, op: Op) -> Op:
        if isinstance(op, For) and isinstance(op.start, Index) and op.start.name in self._values:
            op = replace(op, step=self._steps.get(op.step, op.step))
        return super().operation(op)

    def _new(self, e: Expr) -> Expr:
        return self._table[e] if e in self._table else super()._new(e)


class TileLoop:
    """The loop of persistent blocks over the tiles of a grid with ``indices``.

    ``blocks``: how many there are at most.  ``row``: which index counts the rows of a band; blocks of a cluster of
    ``cluster`` differ in it.
    """

    def __init__(
        self,
        indices: tuple[Index, ...],
        blocks: int,
        row: int,
        cluster: int,
        fresh: FreshNames,
        span: Span | None = None,
    ) -> None:
        self.indices, self.row, self.cluster, self.fresh, self.span = indices, row, cluster, fresh, span
        # A launch of a negative extent has no blocks.
        extents = [i.extent if interval(i.extent)[0] >= 0 else maximum(i.extent, 0) for i in self.indices]
        others = [d for d in range(len(extents)) if d != self.row]
        self.column = others[-1] if others else None
        self.rows = cdiv(extents[self.row], self.cluster)
        self.columns: Expr = const(1) if self.column is None else extents[self.column]
        # An extent of 1 needs no division by the tiles of a plane.
        self.outer = [d for d in others if d != self.column and value_of(extents[d]) != 1]
        total = mul(self.rows, self.columns)
        for d in self.outer:
            total = mul(total, extents[d])
        self.total = total
        self.teams = _teams(maximum(total, 1), max(1, blocks // self.cluster))
        self.team = Index(self.fresh("team"), self.teams)
        self.rank = Index(self.fresh("rank"), const(self.cluster))

    def around(self, block: Parallel, body: Body) -> Parallel:
        """The launch of the persistent blocks with ``body``."""
        if self.cluster == 1:
            return replace(block, indices=(self.team,), body=body)
        inner = replace(block, indices=(self.rank,), body=body, overlap=False)
        return Parallel((self.team,), (inner,), CLUSTER, overlap=block.overlap, span=block.span)

    def loop(self, body: Body, t: Index) -> For:
        return For(t, self.team, self.total, self.teams, body, blocks=True, span=self.span)

    def index(self) -> Index:
        """A fresh index of the loop."""
        return loop_index(self.fresh("tile"), self.total, self.team, self.total)

    def backward(self, t: Index) -> Expr:
        """1 in every other pass over the grid, else 0."""
        return mod(floordiv(t, self.teams), 2)

    def place(self, t: Index) -> dict[str, Expr]:
        """The indices of tile ``t``."""
        found: dict[str, Expr] = {i.name: const(0) for i in self.indices}
        plane = mul(self.rows, self.columns)
        rest: Expr = t
        if self.outer:
            number, rest = floordiv(t, plane), mod(t, plane)
            for d in reversed(self.outer):
                i = self.indices[d]
                found[i.name] = mod(number, i.extent) if d != self.outer[0] else number
                number = floordiv(number, i.extent)
        row, column = self._raster(rest)
        if self.cluster > 1:
            row = add(mul(row, self.cluster), self.rank)
        found[self.indices[self.row].name] = row
        if self.column is not None:
            found[self.indices[self.column].name] = column
        return found

    def _raster(self, t: Expr) -> tuple[Expr, Expr]:
        if self.column is None:
            return t, const(0)
        size = mul(self.columns, RASTER)
        band = floordiv(t, size)
        row, column = _in_band(band, mod(t, size), self.rows, RASTER)
        from_right = binary("eq", mod(band, 2), 1)
        return row, Select(from_right, sub(sub(self.columns, 1), column), column)
