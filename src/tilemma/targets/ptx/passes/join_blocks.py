"""Thread-block coarsening: two neighbouring blocks of a product by mma.sync become one, which reads the operand
that they share once.

Two blocks whose indices differ by 1 along one axis of the grid copy the same tile of one operand, and neighbouring
ones of the other.  The joined block copies the first once, a tile of twice the width of the second, and has the
groups of both blocks::

    parallel (m, n) : block              parallel (m, n') : block
        copy a[m * TM +: TM] => a_s          copy a[m * TM +: TM] => a_s
        copy b[n * TN +: TN] => b_s          copy b[n' * 2 TN +: 2 TN] => b_s
        parallel (p, q) : group        =>    parallel (j, p, q) : group
            multiply a_s[p], b_s[q]              multiply a_s[p], b_s[j * TN + q]
            store c[m, n, p, q]                  store c[m, 2 n' + j, p, q]

Where the axis has an odd number of tiles, the last block computes one outside the arrays: loads read zeros there,
and stores write nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from tilemma.ir import tile as t
from tilemma.ir.effects import element_reads, old_values, written_views
from tilemma.ir.expr import Element, Expr, Index, add, cdiv, const, mul, sub, substitute, value_of
from tilemma.ir.pipeline import PipelineSettings
from tilemma.ir.substitution import Substitution
from tilemma.ir.types import Buffer, Space, View
from tilemma.ir.walk import bodies, expressions, touched, walk, with_bodies
from tilemma.passes.decision import Decision
from tilemma.passes.scope import Dependence, block_threads, count, kind, names, span_threads
from tilemma.records import record
from tilemma.targets.ptx.passes.accesses import is_wgmma
from tilemma.targets.ptx.passes.double_buffer_fragments import registers_of_block
from tilemma.targets.ptx.passes.names import Names
from tilemma.targets.ptx.passes.persistent_grid import waits_for_blocks
from tilemma.targets.ptx.passes.pipeline_model import joined_is_faster
from tilemma.targets.ptx.passes.promote_copies import coefficient
from tilemma.targets.ptx.passes.warp_program import outermost
from tilemma.targets.ptx.target import Target

# What the body of a block may consist of: no events, futures, roles, atomics, or barriers of the program.
_INSIDE = (
    t.Parallel, t.For, t.If, t.Declare, t.Assign, t.SetElement, t.Alloc, t.Copy, t.DeclareFragment, t.Fill, t.Load,
    t.Mma, t.ScaleMma, t.Store, t.Apply, t.SetFragmentElement,
)  # fmt: skip


@record
class _Join:
    """Blocks that are neighbours along ``index``.  ``widened``: for each shared buffer of twice the extent, its
    axis and the old extent; ``shared``: the buffers that both fill with the same tile."""

    index: Index
    widened: Mapping[str, tuple[int, int]]
    shared: tuple[str, ...]
    bytes: int


@record(slots=False)
class JoinBlocks:
    """Joins pairs of blocks where the block has few warps, and the larger one fits the multiprocessor."""

    arch: str

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        if is_left(kernel.pipeline) or not Target.of(self.arch).has("cp.async") or waits_for_blocks(kernel):
            return kernel
        taken, dependence = Names.of(kernel.body), Dependence(kernel.body)

        def settle(op: t.Op) -> t.Op:
            if not (isinstance(op, t.Parallel) and kind(op) == "block"):
                return op
            found = self._best(op, kernel, dependence)
            if found is None:
                return op
            tiles = mul(op.indices[0].extent, op.indices[1].extent)
            faster = joined_is_faster(self.arch, registers_of_block(op), block_threads(op), tiles, _steps(op))
            return op if faster is None else _joined(op, found, faster, taken, kernel, log)

        body = tuple(map(settle, kernel.body))
        return (
            kernel if all(a is b for a, b in zip(body, kernel.body, strict=True)) else replace(kernel, body=body)
        )

    def _best(self, block: t.Parallel, kernel: t.Kernel, dependence: Dependence) -> _Join | None:
        """The join that copies the fewest bytes; of equal ones that along the last index, whose tiles neighbours
        in a band of rows share."""
        plain = not (block.cooperative or block.asynchronous or block.min_blocks or block.max_registers)
        if len(block.indices) != 2 or not plain or block.apart or not is_product(block):
            return None
        joins = [j for i in reversed(block.indices) if (j := _join(block, i, dependence)) is not None]
        limit = Target.of(self.arch).shared_limit
        stages = max(2, _stages(block, kernel))
        joins = [j for j in joins if stages * j.bytes <= limit]
        return min(joins, key=lambda j: j.bytes, default=None)


def _steps(block: t.Parallel) -> Expr | None:
    """The iterations of its first loop that copies; None where they differ between blocks."""
    loops = (op for op in walk(block.body) if isinstance(op, t.For))
    main = next((op for op in loops if any(isinstance(x, t.Copy) for x in walk(op.body))), None)
    steps = None if main is None else cdiv(sub(main.stop, main.start), main.step)
    return None if steps is None or names(steps) else steps


def is_left(asked: PipelineSettings | None) -> bool:
    """Whether the program asks that nothing be pipelined."""
    return asked is not None and (asked.off or asked.stages == 1)


def _stages(block: t.Parallel, kernel: t.Kernel) -> int:
    """The most stages that the program asks for."""
    asked = [kernel.pipeline, *(op.pipeline for op in walk(block.body) if isinstance(op, t.For))]
    return max((x.stages or 0 for x in asked if x is not None), default=0)


def is_product(block: t.Parallel) -> bool:
    """Whether ``block`` consists of copies and of groups of one number of threads, which multiply by mma.sync in a
    loop that may be pipelined."""
    operations = list(walk(block.body))
    groups = list(outermost(block.body))
    if any(type(op) not in _INSIDE for op in operations) or any(old_values(op) for op in operations):
        return False
    if not groups or any(kind(p) != "group" or p.asynchronous or count(p) is None for p in groups):
        return False
    loops = (op for op in operations if isinstance(op, t.For) and not is_left(op.pipeline))
    multiplies = [x for op in loops for x in walk(op.body) if isinstance(x, t.Mma)]
    # Blocks that multiply by wgmma share tiles by multicast, and their producer has registers of its own.
    return bool(multiplies) and not any(map(is_wgmma, multiplies)) and len({span_threads(p) for p in groups}) == 1


def _join(block: t.Parallel, index: Index, dependence: Dependence) -> _Join | None:
    """The join along ``index``; None where something differs between its blocks by other than its place."""
    extent = value_of(index.extent)
    if extent is not None and extent < 2:
        return None
    inside = {i.name for op in walk(block.body) if isinstance(op, t.Parallel) for i in op.indices}
    widened: dict[str, tuple[int, int]] = {}
    common: dict[str, None] = {}
    for op in walk(block.body):
        if not isinstance(op, t.Copy):
            continue
        used = {n for e in expressions(op) for n in dependence.of(e)}
        spaces = op.src.base.space, op.dst.base.space
        if used & inside or spaces not in ((Space.GLOBAL, Space.SHARED), (Space.SHARED, Space.GLOBAL)):
            return None
        tile = op.dst.base if spaces[1] is Space.SHARED else op.src.base
        if index.name not in used:
            if spaces[1] is not Space.SHARED:
                return None
            common[tile.name] = None
        elif (axis := _neighbours(op, index, dependence)) is None or widened.get(tile.name, axis) != axis:
            return None
        else:
            widened[tile.name] = axis
    sizes = {op.buffer.name: op for op in walk(block.body) if isinstance(op, t.Alloc)}
    loaded = {op.dst.base.name for op in walk(block.body) if isinstance(op, t.Copy)} & {*sizes}
    if not widened or not common or common.keys() & widened.keys():
        return None
    if not _Check(block, index.name, widened, common, dependence).body(block.body):
        return None
    total = sum(_bytes(sizes[n]) * (2 if n in widened else 1) for n in loaded)
    return _Join(index, widened, tuple(common), total)


def _bytes(alloc: t.Alloc) -> int:
    elements = 1
    for e in alloc.buffer.shape:
        elements *= value_of(e) or 0
    return elements * alloc.buffer.dtype.bits // 8


def _neighbours(op: t.Copy, index: Index, dependence: Dependence) -> tuple[int, int] | None:
    """The axis of the shared buffer along which the tiles of consecutive values of ``index`` follow each other in
    the array, and its extent; None if ``op`` is not such a copy."""
    load = op.dst.base.space is Space.SHARED
    array, tile = (op.src, op.dst) if load else (op.dst, op.src)
    rest = op.asynchronous or op.event or op.future or op.after or op.transpose or op.pad or op.pad_counts
    if rest or not tile.is_whole or tile.base.copies or tile.slot is not None or array.slot is not None:
        return None
    moving = [d for d, e in enumerate(array.offsets) if index.name in dependence.of(e)]
    steps = (e for a in array.axes for e in (a.extent, a.step))
    fixed = not any(index.name in dependence.of(e) for e in steps)
    if array.reshape is not None or len(moving) != 1 or not fixed or len(array.axes) != len(tile.axes):
        return None
    at = next((i for i, a in enumerate(array.axes) if a.dim == moving[0]), None)
    if at is None or op.rearranges or op.multicast:
        return None
    extent = value_of(tile.axes[at].extent)
    same = value_of(array.axes[at].extent) == extent and value_of(array.axes[at].step) == 1
    if extent is None or not same or coefficient(array.offsets[moving[0]], index.name) != extent:
        return None
    return at, extent


class _Check:
    """Whether what depends on index ``name``, apart from the copies of ``tiles``, is in groups, and valid for a
    tile outside the arrays."""

    def __init__(
        self, block: t.Parallel, name: str, widened: Iterable[str], common: Iterable[str], dependence: Dependence
    ) -> None:
        self.name, self.widened, self.common, self.dependence = name, {*widened}, {*common}, dependence
        self.own = {op.buffer.name for op in _outside_groups(block.body) if isinstance(op, t.Alloc)}

    def body(self, body: t.Body, in_group: bool = False, in_apply: bool = False) -> bool:
        """``in_apply``: element work, which computes with the zeros that arrays have outside their bounds."""
        return all(self._operation(op, in_group, in_apply) for op in body)

    def _operation(self, op: t.Op, in_group: bool, in_apply: bool) -> bool:
        if isinstance(op, t.Copy):
            return True
        if isinstance(op, t.Alloc):
            tile = op.buffer.name in self.widened or op.buffer.name in self.common
            return tile and op.init is None if op.buffer.space is Space.SHARED else in_group
        if self._depends(op) and not (in_group and (in_apply or self._may_depend(op))):
            return False
        written = written_views(op)
        names = {v.base.name for v in written}
        if any(v.base.space is Space.GLOBAL for v in written) and not isinstance(op, t.Store):
            return False
        if names & self.common or (names & self.widened) - self.own:
            return False
        for v in touched(op):
            odd = v.base.name in self.widened and (v.reshape is not None or v.slot is not None)
            if v.base.space is Space.SHARED and (odd or not in_group):
                return False
        inner = in_group or isinstance(op, t.Parallel)
        in_apply = in_apply or isinstance(op, t.Apply)
        return all(self.body(b, inner, in_apply) for _, b in bodies(op))

    def _may_depend(self, op: t.Op) -> bool:
        """Whether ``op`` of a group is also valid where the tile lies outside the arrays."""
        if isinstance(op, (t.For, t.If)):
            return not any(isinstance(x, t.Copy) for x in walk((op,)))
        return isinstance(op, (t.Store, t.Load)) or not _reads_arrays(op)

    def _depends(self, op: t.Op) -> bool:
        return any(self.name in self.dependence.of(e) for e in expressions(op))


def _outside_groups(body: t.Body) -> Iterator[t.Op]:
    for op in body:
        yield op
        if not isinstance(op, t.Parallel):
            for _, inner in bodies(op):
                yield from _outside_groups(inner)


def _reads_arrays(op: t.Op) -> bool:
    return any(isinstance(x, Element) and x.view.base.space is Space.GLOBAL for x in element_reads(op))


# ---- the transformation ------------------------------------------------------------------------------------


class _Joined:
    """The body of ``block`` for two neighbours along the index of ``join``: the first of them has ``number``."""

    def __init__(self, join: _Join, first: Expr, names: Names) -> None:
        self.join, self.first, self.names = join, first, names
        self.buffers: dict[str, Buffer] = {}

    def body(self, body: t.Body) -> t.Body:
        return tuple(self._operation(op) for op in body)

    def _operation(self, op: t.Op) -> t.Op:
        if isinstance(op, t.Alloc) and op.buffer.name in self.join.widened:
            return replace(op, buffer=self._wide(op.buffer))
        if isinstance(op, t.Copy):
            return self._copy(op)
        if isinstance(op, t.Parallel):
            which = self.names.fresh(Index(self.join.index.name, const(2)))
            return replace(op, indices=(which, *op.indices), body=_Group(self, which).body(op.body))
        return with_bodies(op, self.body)

    def _copy(self, op: t.Copy) -> t.Copy:
        load = op.dst.base.space is Space.SHARED
        array, tile = (op.src, op.dst) if load else (op.dst, op.src)
        found = self.join.widened.get(tile.base.name)
        if found is None:
            return op
        at, extent = found
        axes = tuple(replace(a, extent=const(2 * extent)) if i == at else a for i, a in enumerate(array.axes))
        array = replace(array, axes=axes).map(lambda e: substitute(e, {self.join.index.name: self.first}))
        tile = self._wide(tile.base).whole()
        return replace(op, src=array, dst=tile) if load else replace(op, src=tile, dst=array)

    def _wide(self, buffer: Buffer) -> Buffer:
        at, extent = self.join.widened[buffer.name]
        shape = tuple(const(2 * extent) if i == at else e for i, e in enumerate(buffer.shape))
        return replace(buffer, shape=shape)


class _Group(Substitution):
    """The body of a group of the joined block, of those that compute tile ``which``."""

    def __init__(self, joined: _Joined, which: Index) -> None:
        self.joined, self.which = joined, which
        super().__init__({joined.join.index.name: add(joined.first, which)}, self._moved)

    def operation(self, op: t.Op) -> t.Op:
        if isinstance(op, t.Copy):
            return self.joined._copy(op)
        if isinstance(op, t.Alloc):
            return self.joined._operation(op)
        return super().operation(op)

    def _moved(self, view: View) -> View:
        found = self.joined.join.widened.get(view.base.name)
        if found is None:
            return view
        at, extent = found
        by = mul(self.which, extent)
        offsets = tuple(add(by, e) if d == at else e for d, e in enumerate(view.offsets))
        return replace(view, base=self.joined._wide(view.base), offsets=offsets)


def _joined(
    block: t.Parallel, join: _Join, faster: Expr, names: Names, kernel: t.Kernel, log: list[Decision]
) -> t.Parallel:
    """``block`` for two neighbours, and the decision."""
    index = join.index
    pair = names.fresh(replace(index, extent=cdiv(index.extent, 2)))
    body = _Joined(join, mul(pair, 2), names).body(block.body)
    indices = tuple(pair if i is index else i for i in block.indices)
    common = ", ".join(f"`{x}`" for x in join.shared)
    text = (
        f"two blocks that are neighbours along `{index.source_name}` are one, which copies {common} once "
        "(another variant for launches of few blocks)"
    )
    log.append(Decision("pipeline", kernel.name, text, {"index": index.source_name}, span=block.span))
    return replace(block, indices=indices, body=body, joined=faster)
