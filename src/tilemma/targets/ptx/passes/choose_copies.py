"""Instruction selection for copies and stores: TMA, cp.async, stmatrix or plain accesses; vector width
(vectorisation) and the threads that execute them."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from tilemma.atoms import MmaAtom, catalogue
from tilemma.errors import CompileError
from tilemma.ir.expr import Expr, Index, value_of
from tilemma.ir.plans import CopyPlan, FragmentPlan, SharedLayoutPlan, StorePlan
from tilemma.ir.tile import Alloc, ArrayFacts, Copy, DeclareFragment, Kernel, Op, Parallel, Store
from tilemma.ir.types import BLOCK, THREAD, Buffer, Level, Space, View
from tilemma.ir.walk import rewrite, walk
from tilemma.passes.contraction import divisor, matrix
from tilemma.passes.decision import Decision
from tilemma.passes.infer_levels import described
from tilemma.passes.scope import Dependence, Site, block_threads, control, count, kind, sites, span_threads
from tilemma.records import record
from tilemma.targets.ptx import tensor_copies
from tilemma.targets.ptx.passes.shared_views import ldmatrix_rule
from tilemma.targets.ptx.target import Target


class ClashingCopies(CompileError):
    code = "copy-clash"
    found = "every instance of `parallel {names}` copies a different part of `{src}` to the same place in `{dst}`"
    expected = "a destination that depends on the index as the source does, or a source that does not"
    fix = "give each instance its own part of `{dst}`, or move the copy out of the `parallel`"


class MulticastRefused(CompileError):
    code = "multicast-outside-cluster"
    found = "a `.multicast` that is no load by TMA inside `parallel ... : cluster`"
    expected = "a `tma.copy` into shared memory, in the blocks of a cluster: they share the loaded tile"
    fix = "put the block inside `parallel ... : cluster`, or leave `.multicast` out"
    python_fix = 'put the block inside `for ... in parallel(..., level="cluster"):`, or leave `multicast=True` out'


class MulticastDepends(CompileError):
    code = "multicast-depends"
    found = "a `.multicast` of a tile of `{src}` that differs in each block of the cluster, by {names}"
    expected = "a source that does not depend on every index of the blocks of a cluster: those blocks share it"
    fix = "leave `.multicast` out, or take a tile that the blocks of a cluster share"
    python_fix = "leave `multicast=True` out, or take a tile that the blocks of a cluster share"


class CopyOutsideBlock(CompileError):
    code = "copy-outside-block"
    found = "a copy outside every `parallel ... : block`"
    expected = "copies that the threads of a block execute"
    fix = "move it into the `parallel ... : block` that needs the data"
    python_fix = 'move it into the `for ... in parallel(..., level="block"):` that needs the data'


@record(slots=False)
class ChooseCopies:
    """Fills `Copy.plan` and `Store.plan`.

    A copy that does not depend on inner indices is executed once, by all threads that reach it; a copy that does
    is executed by each instance of the level whose index it depends on.  The vector is the widest of 16, 8, 4, 2
    and 1 bytes that contiguity, alignment and the shared-memory layout allow.
    """

    arch: str

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises ClashingCopies or CopyOutsideBlock."""
        layouts = {
            op.buffer.name: op.layout
            for op in walk(kernel.body)
            if isinstance(op, Alloc) and op.layout is not None
        }
        facts = {p.buffer.name: p.facts or default_facts(p.buffer) for p in kernel.arrays}
        memory = _Memory(layouts, facts)
        dependence = Dependence(kernel.body)
        fragments = {op.name: op.plan for op in walk(kernel.body) if isinstance(op, DeclareFragment)}
        plans: dict[int, Op] = {}
        for site in sites(kernel.body):
            op = site.op
            if isinstance(op, Copy):
                plan = self._copy(op, site, memory, dependence)
                if plan.engine == "tma":
                    box = "x".join(map(str, plan.box))
                    text = f"tma, boxes of {box} elements, by one thread of the {plan.level}"
                else:
                    executors = f"{plan.threads} threads of the {plan.level}"
                    text = f"{plan.engine}, {plan.vector} bytes at a time, by {executors}"
                subject = f"{op.src.base.name} => {op.dst.base.name}"
                data = {"engine": plan.engine, "vector": plan.vector, "threads": plan.threads}
                log.append(Decision("copies", subject, text, data, span=op.span))
                plans[id(op)] = replace(op, plan=plan)
            elif isinstance(op, Store):
                store = _store_plan(op, memory, fragments, Target.of(self.arch))
                how = "stmatrix" if store.method == "stmatrix" else f"{store.vector} bytes a lane"
                log.append(Decision("copies", f"{op.fragment.name} => {op.dst.base.name}", how))
                plans[id(op)] = replace(op, plan=store)
        return replace(kernel, body=rewrite(kernel.body, lambda op: plans.get(id(op), op)))

    def _copy(self, op: Copy, site: Site, memory: _Memory, dependence: Dependence) -> CopyPlan:
        block = site.block
        if block is None:
            raise CopyOutsideBlock(op.span)
        level, threads = _executors(op, site, block, dependence)
        if op.engine == "tma":
            return _by_tma(op, self.arch, memory, level, threads, _peers(op, site, dependence))
        vector = min(memory.vector(op.src, op.dst), memory.vector(op.dst, op.src))
        spaces = op.src.base.space, op.dst.base.space
        asynchronous = (
            spaces == (Space.GLOBAL, Space.SHARED) and vector >= 4 and Target.of(self.arch).has("cp.async")
        )
        return CopyPlan("cp.async" if asynchronous else "ldst", vector, level, threads)


def _peers(op: Copy, site: Site, dependence: Dependence) -> tuple[Index, ...]:
    """The indices of blocks within the cluster that a multicast does not depend on."""
    if not op.multicast:
        return ()
    if not any(kind(p) == "cluster" for p in site.parallels) or not tensor_copies.is_load(op):
        raise MulticastRefused(op.span)
    assert site.block is not None
    on = _depends(op.src, dependence)
    extents = [i for i in site.block.indices if value_of(i.extent) != 1]
    if extents and all(i.name in on for i in extents):
        raise MulticastDepends(
            op.span, src=op.src.base.name, names=", ".join(f"`{i.source_name}`" for i in extents)
        )
    return tuple(i for i in site.block.indices if i.name not in on and value_of(i.extent) != 1)


def _by_tma(
    op: Copy, arch: str, memory: _Memory, level: Level, threads: int, peers: tuple[Index, ...]
) -> CopyPlan:
    there, here = tensor_copies.sides(op)
    if not Target.of(arch).tma:
        raise tensor_copies.TmaRefused(
            op.span,
            src=op.src.base.name,
            dst=op.dst.base.name,
            what=f"{arch} has no tensor memory accelerator",
            rule="sm_90 or later (PTX ISA, cp.async.bulk.tensor)",
            remedy="use `dma.copy`, or compile for sm_90a",
        )
    facts = memory.facts.get(there.base.name) or default_facts(there.base)
    shares = prod(value_of(i.extent) or 1 for i in peers)
    box = tensor_copies.boxes(op, memory.layouts.get(here.base.name), facts, shares)
    return CopyPlan("tma", 16, level, threads, box, peers=tuple(i.name for i in peers))


def _store_plan(
    op: Store, memory: _Memory, fragments: dict[str, FragmentPlan | None], target: Target
) -> StorePlan:
    """stmatrix for 16-bit elements in shared memory whose rows start on 16 bytes, else lane by lane."""
    vector = memory.store_vector(op)
    plan = fragments.get(op.fragment.name)
    shape = (0, 0) if plan is None else plan.shape if op.part is None else (plan.shape[0], op.part[1])
    view, layout = op.dst, memory.layouts.get(op.dst.base.name)
    fits = (
        target.has("stmatrix")
        and plan is not None
        and plan.dtype.bits in (16, 32)
        and plan.dtype.is_float
        and _holds_pairs(plan)
        and op.rows is None
        and op.columns is None
        and layout is not None
        and (layout.swizzle_atom or layout.pitch % 16 == 0)
        and view.static_shape == (shape[::-1] if op.transpose else shape)
        and 2 * view.dtype.bits == 32  # a lane holds two values of a row side by side
        and ldmatrix_rule(view) is None
    )
    return StorePlan("stmatrix", 16) if fits else StorePlan("direct", vector)


def _holds_pairs(plan: FragmentPlan) -> bool:
    """Whether a lane's values are pairs of neighbouring columns, as stmatrix takes them from its lanes."""
    atom = catalogue[plan.atom]
    assert isinstance(atom, MmaAtom)
    operand, lane = atom.operands[plan.role], np.arange(32)
    first = lane // 4 + operand.shape[0] * 2 * (lane % 4)
    if operand.values % 2:
        return False
    table = operand.coordinates_table[:32].reshape(32, -1, 2)
    pair = np.stack((first, first + operand.shape[0]), axis=1)[:, None]
    return bool((table - table[0, :, 0][None, :, None] == pair).all())


def default_facts(buffer: Buffer) -> ArrayFacts:
    """The default facts of an array: contiguous rows, aligned to 16 bytes."""
    return ArrayFacts(buffer.rank - 1 if buffer.rank else None, 16)


def _executors(op: Copy, site: Site, block: Parallel, dependence: Dependence) -> tuple[Level, int]:
    """The level whose instances each execute the copy, and the number of participating threads of an instance."""
    if Space.LOCAL in (op.dst.base.space, op.src.base.space):
        # Each thread has its own local buffer: every thread of the instance executes the copy.
        level = site.inner[-1].level if site.inner else None
        return (BLOCK, block_threads(block)) if level is None else (level, level.threads)
    src, dst = _depends(op.src, dependence), _depends(op.dst, dependence)
    inner = [p for p in site.inner if count(p) != 1 or p.level == THREAD]
    on: list[Parallel] = []
    for p in inner:
        indices = {i.name for i in p.indices}
        inside = site.parents[site.parents.index(p) + 1 :]
        decided = set().union(*(dependence.closure(control(q)) for q in inside))
        if indices & src and not indices & (dst | decided) and op.dst.base.space is not Space.GLOBAL:
            raise ClashingCopies(op.span, names=described(p), src=op.src.base.name, dst=op.dst.base.name)
        if indices & (src | dst | decided):
            on.append(p)
    if on:
        level = on[-1].level
        assert level is not None
        below = site.inner[site.inner.index(on[-1]) + 1 :]
        return level, min(level.threads, span_threads(below[0])) if below else level.threads
    outer = [p for p in site.inner if p.level is not None and p.level.kind in ("group", "thread")]
    return BLOCK, span_threads(outer[0]) if outer else block_threads(block)


def _depends(view: View, dependence: Dependence) -> set[str]:
    found: set[str] = set()
    for e in view.expressions():
        found |= dependence.of(e)
    return found


@record(slots=False)
class _Memory:
    """The facts of arrays and the layouts of buffers that copies access."""

    layouts: dict[str, SharedLayoutPlan]
    facts: dict[str, ArrayFacts]

    def vector(self, view: View, other: View) -> int:
        """The widest access of ``view``'s side of a copy, in bytes; one element at least."""
        size = max(view.dtype.bits // 8, 1)
        pair = _innermost(view, other)
        if pair is None or view.reshape is not None or other.reshape is not None:
            return size
        axis, extent = pair
        if axis != len(view.offsets) - 1 and view.base.space is not Space.GLOBAL:
            return size
        limit = 16
        facts = self.facts.get(view.base.name)
        if facts is not None:
            if facts.contiguous != axis:
                return size
            limit = facts.alignment
        layout = self.layouts.get(view.base.name)
        if layout is not None and layout.swizzle_atom == 0:
            limit = _power(limit, layout.pitch)
        if view.base.space is Space.LOCAL:
            # Dense, and on 16 bytes as a whole.
            limit = _power(limit, (value_of(view.base.shape[-1]) or 0) * size)
        limit = _power(limit, divisor(view.offsets[axis]) * size)
        return max(size, _power(limit, _extent_divisor(extent) * size))

    def store_vector(self, op: Store) -> int:
        """Bytes that a lane stores at a time: it holds two neighbouring columns of an accumulator."""
        size = max(op.dst.dtype.bits // 8, 1)
        view = matrix(op.dst)
        last = len(view.offsets) - 1
        if (
            op.transpose
            or view.reshape is not None
            or view.axes[-1].dim != last
            or value_of(view.axes[-1].step) != 1
        ):
            return size
        facts = self.facts.get(view.base.name)
        if facts is not None and (facts.contiguous != last or facts.alignment % (2 * size)):
            return size
        layout = self.layouts.get(view.base.name)
        if layout is not None and layout.swizzle_atom == 0 and layout.pitch % (2 * size):
            return size
        return 2 * size if divisor(view.offsets[last]) % 2 == 0 else size


def _innermost(view: View, other: View) -> tuple[int, Expr] | None:
    """(dimension, extent) of the last axis of ``view`` that is longer than 1, stepping by 1, as in ``other``."""
    mine = [a for a in view.axes if value_of(a.extent) != 1]
    theirs = [a for a in other.axes if value_of(a.extent) != 1]
    if not mine or not theirs or value_of(mine[-1].step) != 1 or value_of(theirs[-1].step) != 1:
        return None
    known = [a.extent for a in (mine[-1], theirs[-1]) if value_of(a.extent) is not None]
    return mine[-1].dim, known[0] if known else mine[-1].extent


def _extent_divisor(extent: Expr) -> int:
    n = value_of(extent)
    return 1 if n is None else n


def _power(limit: int, n: int) -> int:
    """The largest power of two up to ``limit`` that divides ``n`` (0 is divided by all)."""
    while limit > 1 and n % limit:
        limit //= 2
    return limit
