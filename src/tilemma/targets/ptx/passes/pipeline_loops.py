"""Software pipelining with cp.async: a loop that copies tiles into shared memory and multiplies them issues the
copies of later iterations ahead.

With S stages each copied tile has S buffers, whose names rotate.  An iteration waits for its own tiles, issues the
copies of iteration k + S - 1, and multiplies, with one barrier::

    for k in a..b:                       copy (tile a) => s0 .. copy (tile a + S - 2) => s{S-2}
        copy (tile k) => s               for k in a..b:
        multiply s             =>            wait s0
                                             copy (tile k + S - 1) => s{S-1}
                                             multiply s0
                                             rotate s0, .., s{S-1}
                                         wait s0, .., s{S-2}

A tile after the last may lie outside its array, where copies fill with zeros; if the program does not show that
the copy is valid there, it repeats the tile of the last iteration.  Its destination is never read.

The branches around a copy are around the copy ahead as well, with the conditions of its iteration.  The tile is
used in them only; a wait for a copy that no branch has issued ends at once.

If the loop is inside a `parallel` over warps, the `parallel` is distributed over the parts of its body first, so
that all threads of the block execute the copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import prod
from operator import itemgetter

from tilemma.ir import tile as t
from tilemma.ir.expr import Expr, add, binary, const, mul, value_of
from tilemma.ir.pipeline import PipelineSettings, effective
from tilemma.ir.types import Space
from tilemma.ir.walk import (
    rewrite_blocks,
    substituted,
    touched,
    trip_count,
    walk,
    with_bodies,
    with_fields,
)
from tilemma.passes.decision import Decision
from tilemma.passes.pipeline_legality import LoopCopies, Obstacle, by_hand, loop_copies
from tilemma.passes.scope import Dependence, block_threads, kind
from tilemma.passes.split_tiles import of_program, split_tiles
from tilemma.records import record
from tilemma.targets.ptx.passes.copies_ahead import (
    Branches,
    block_wide,
    blocking,
    branches,
    in_branch,
    is_total,
    may_overrun,
    multiplies,
    multiplies_by_warps,
)
from tilemma.targets.ptx.passes.double_buffer_fragments import registers_of_block
from tilemma.targets.ptx.passes.names import Names
from tilemma.targets.ptx.passes.persistent_grid import in_bands, waits_for_blocks
from tilemma.targets.ptx.passes.pipeline_model import (
    STAGES_BESIDE_WGMMA,
    resident_blocks,
    rows_of_bands,
    stages_of_cp_async,
    waits_alone,
)
from tilemma.targets.ptx.passes.plan_roles import result_elements
from tilemma.targets.ptx.target import Target


@record
class _Plan:
    """``stages`` of each buffer that ``copies`` fill; ``between``: the branches around each of them.

    ``group``: the `parallel` to distribute; ``clamped``: the copies after the last iteration repeat its tiles;
    ``added``: bytes of all stages but one.
    """

    loop: t.For
    copies: tuple[t.Copy, ...]
    between: tuple[Branches, ...]
    stages: int
    group: t.Parallel | None
    clamped: bool
    added: int


@record(slots=False)
class PipelineLoops:
    """Pipelines the loops that the program asks for, and those that multiply by mma.sync."""

    arch: str

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        if not Target.of(self.arch).has("cp.async"):
            log += _without_cp_async(kernel, self.arch)
            return kernel
        said, refused, done, before, rounds = list[Decision](), list[Decision](), list[t.For](), kernel, 0
        kernel, origin = split_tiles(kernel)
        while plans := self._plans(kernel, said, refused, done):
            kernel = replace(kernel, body=_Rewriter(kernel, plans).body(kernel.body))
            done += [plan.loop for plan in plans.values()]
            rounds += 1
        log.extend({(str(d), d.span): d for d in (of_program(d, origin) for d in (*said, *refused))}.values())
        kernel = self._in_bands(rewrite_blocks(kernel, _sunk), log) if rounds else before
        if kernel.pipeline is not None and kernel is not before:
            kernel = replace(kernel, pipeline=replace(kernel.pipeline, stages=None))
        return kernel

    def _in_bands(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        """``kernel`` with its blocks in bands of rows of tiles, where neighbours in both directions share some."""
        if waits_for_blocks(kernel):
            return kernel
        names, dependence = Names.of(kernel.body), Dependence(kernel.body)

        def settle(op: t.Op) -> t.Op:
            sides = _sides(op, dependence) if isinstance(op, t.Parallel) and kind(op) == "block" else None
            if sides is None:
                return op
            assert isinstance(op, t.Parallel)
            rows = rows_of_bands(resident_blocks(self.arch, registers_of_block(op), block_threads(op)), *sides)
            text = f"blocks in bands of {rows} rows of tiles, whose operands stay in the L2 cache"
            log.append(Decision("pipeline", kernel.name, text, {"rows": rows}, span=op.span))
            first, last = map(names.fresh, op.indices)
            return in_bands(op, first, last, rows)

        return replace(kernel, body=tuple(map(settle, kernel.body)))

    def _plans(
        self, kernel: t.Kernel, log: list[Decision], refused: list[Decision], done: list[t.For]
    ) -> dict[int, _Plan]:
        """Plans by the identity of the operation to replace: of several loops in one `parallel` the first has one.
        The next call finds the others in a `parallel` of their own.

        ``done``: loops of earlier calls.  ``refused`` becomes why the other loops stay as they are."""
        plans: dict[int, _Plan] = {}
        refused.clear()
        # Loops inside others, which run more often, come first: the stages of both are in memory together.
        for found in sorted(loop_copies(kernel), key=lambda x: -len(x.parents)):
            said: list[Decision] = []
            nested = (p.added for p in plans.values() if p.loop in walk((found.loop,)))
            plan = self._plan(found, kernel, sum(nested), said)
            place = None if plan is None else id(plan.group or plan.loop)
            if plan is None:
                # A pipelined loop with another copy left has events like those of a program.
                again = any(found.loop.span == x.span for x in done) and by_hand(found.loop.body)
                refused += () if again else said
            elif place is not None and place not in plans:
                log += said
                plans[place] = plan
        return plans

    def _plan(self, found: LoopCopies, kernel: t.Kernel, nested: int, log: list[Decision]) -> _Plan | None:
        """The plan for a loop; None, with a decision that says why, where it stays as it is.

        ``nested``: bytes that the plans of loops inside it add.
        """
        loop = found.loop
        asked = effective(loop.pipeline if isinstance(loop, t.For) else None, kernel.pipeline)
        if asked is not None and (asked.off or asked.stages == 1):
            return None
        wanted = asked is not None or multiplies_by_warps(loop) or is_alone(loop, found.parents)
        group = next((p for p in reversed(found.parents) if isinstance(p, t.Parallel)), None)
        group = None if group is None or kind(group) == "block" else group
        obstacles = list(found.obstacles)
        copies, more = block_wide(found, group)
        if asked is None:
            # An iteration that skips them would still wait for all threads: a branch that is seldom taken loses.
            skipped = [c for c in copies if branches(c, loop)]
            copies, more = tuple(c for c in copies if c not in skipped), [*more, *map(in_branch, skipped)]
        obstacles += more
        if copies and asked is None and (against := blocking(loop, copies)) is not None:
            copies, obstacles = (), [*obstacles, against]
        trips = trip_count(loop) if isinstance(loop, t.For) else None
        if isinstance(loop, t.For) and wanted and copies and trips not in (0, 1):
            block = next(p for p in found.parents if isinstance(p, t.Parallel) and kind(p) == "block")
            fixed, stage = _shared_bytes(block, group, loop, copies)
            stages = self._stages(loop, asked, block, fixed + nested, stage, trips, log)
            if stages >= 2:
                self._report(loop, copies, stages, obstacles, log)
                between = tuple(branches(c, loop) for c in copies)
                whole = all(may_overrun(c, loop.index) for c in copies)
                clamped = not (whole and all(is_total(op.cond) for around in between for op, _ in around))
                return _Plan(loop, copies, between, stages, group, clamped, (stages - 1) * stage)
        elif wanted and obstacles and (asked or any(o.rule != "hand-written" for o in obstacles)):
            self._refuse(loop, obstacles, log)
        return None

    def _stages(
        self,
        loop: t.For,
        asked: PipelineSettings | None,
        block: t.Parallel,
        fixed: int,
        stage: int,
        trips: int | None,
        log: list[Decision],
    ) -> int:
        """The stages of ``stage`` bytes that are asked for, else those that suit the target, as far as shared
        memory suffices beside ``fixed`` bytes."""
        given = asked.stages if asked is not None else None
        registers = registers_of_block(block)
        most = given or (
            stages_of_cp_async(self.arch, registers, block_threads(block), stage, fixed)
            if multiplies_by_warps(loop) or not multiplies(loop)
            else STAGES_BESIDE_WGMMA
        )
        limit = Target.of(self.arch).shared_limit
        most = min(most, trips) if trips is not None else most
        stages = most
        while stages > 1 and fixed + stages * stage > limit:
            stages -= 1
        if stages < most and (given or stages < 2):
            have = f"{most} stages of {stage} bytes and {fixed} bytes of other buffers"
            text = f"{stages} stage{'s' * (stages > 1)}: {have} do not fit in the {limit} bytes of {self.arch}"
            fix = "make the tiles smaller along the loop"
            data = {"stages": stages, "asked": most}
            log.append(Decision("pipeline", _subject(loop), f"{text}; {fix}", data, warning=True, span=loop.span))
        return stages

    def _report(
        self, loop: t.For, copies: tuple[t.Copy, ...], stages: int, obstacles: list[Obstacle], log: list[Decision]
    ) -> None:
        tiles = ", ".join(f"`{c.dst.base.name}`" for c in copies)
        text = (
            f"{stages} stages: the copies into {tiles} are issued {stages - 1} iteration{'s' * (stages > 2)} ahead"
        )
        data = {"stages": stages, "buffers": [c.dst.base.name for c in copies]}
        log.append(Decision("pipeline", _subject(loop), text, data, span=loop.span))
        for o in obstacles:
            log.append(_obstacle(loop, o, "one copy stays where it is: "))

    def _refuse(self, loop: t.Op, obstacles: list[Obstacle], log: list[Decision]) -> None:
        log.extend(_obstacle(loop, o, "not pipelined: ") for o in dict.fromkeys(obstacles))


def is_alone(loop: t.Op, parents: Sequence[t.Op]) -> bool:
    """Whether the warpgroups of the block multiply so large a tile in ``loop``, which lies in ``parents``, that no
    other block fills their waits, and nothing else copies ahead for them."""
    block = next((p for p in parents if isinstance(p, t.Parallel) and kind(p) == "block"), None)
    if block is None or any(isinstance(p, t.InThreads) and p.asynchronous for p in parents):
        return False
    bounded = block.cooperative or block.min_blocks is not None or block.max_registers is not None
    return multiplies(loop) and not bounded and waits_alone(result_elements(block))


def _sides(block: t.Parallel, dependence: Dependence) -> tuple[int, int] | None:
    """The bytes of the tiles that ``block``, which has two indices, takes by the first of them alone, and by the
    last; None if there are none of one kind."""
    if len(block.indices) != 2 or block.cooperative:
        return None
    first, last = (i.name for i in block.indices)
    taken: Counter[tuple[bool, bool]] = Counter()
    for op in walk(block.body):
        if isinstance(op, t.Copy) and op.src.base.space is Space.GLOBAL:
            used = {name for e in op.src.expressions() for name in dependence.of(e)}
            elements = prod(op.src.static_shape or (1,))
            taken[first in used, last in used] += elements * op.src.dtype.bits // 8
    rows, columns = taken[True, False], taken[False, True]
    return (rows, columns) if rows and columns else None


def _subject(loop: t.Op) -> str:
    return f"loop over `{loop.index.name}`" if isinstance(loop, t.For) else "loop"


def _obstacle(loop: t.Op, o: Obstacle, prefix: str) -> Decision:
    data = {"rule": o.rule, "found": o.found, "change": o.change}
    return Decision("pipeline", _subject(loop), f"{prefix}{o}", data, warning=True, span=o.span or loop.span)


def _without_cp_async(kernel: t.Kernel, arch: str) -> Iterator[Decision]:
    """For the loops that would be pipelined on another target."""
    for found in loop_copies(kernel):
        if found.ahead and multiplies_by_warps(found.loop):
            text = f"left as written: {arch} has no cp.async, which copies tiles ahead"
            yield Decision("pipeline", _subject(found.loop), text, span=found.loop.span)


# ---- which copies, how many stages -----------------------------------------------------------------------------


def _shared_bytes(
    block: t.Parallel, group: t.Parallel | None, loop: t.For, copies: tuple[t.Copy, ...]
) -> tuple[int, int]:
    """Bytes of shared memory that are live together with ``loop`` besides the tiles of ``copies``, and bytes of a
    stage of these."""
    sizes = {
        op.buffer.name: op.layout.total(op.buffer.copies)
        for op in walk(block.body)
        if isinstance(op, t.Alloc) and op.buffer.space is Space.SHARED and op.layout is not None
    }
    staged = {c.dst.base.name for c in copies}
    top = [x for op in block.body for x in (group.body if group is not None and op is group else (op,))]
    at = next(i for i, op in enumerate(top) if any(x is loop for x in walk((op,))))

    def used(body: Iterable[t.Op]) -> set[str]:
        return {v.base.name for op in walk(tuple(body)) for v in touched(op) if not isinstance(op, t.Alloc)}

    # Buffers that are not used until after the loop, or no longer, share the memory of its tiles, if need be after
    # a barrier.
    later = {op.buffer.name for op in top if isinstance(op, t.Alloc) and op.init is None} - used(top[: at + 1])
    earlier = set(sizes) - used(top[at:])
    apart = later | earlier | staged
    return sum(n for name, n in sizes.items() if name not in apart), sum(sizes[n] for n in staged)


def _sunk(block: t.Parallel) -> t.Parallel:
    """``block`` with the declaration of each shared buffer at its first use: buffers that are used one after the
    other can share memory."""
    body = list(block.body)
    for alloc in [op for op in body if isinstance(op, t.Alloc) and op.init is None]:
        name, at = alloc.buffer.name, body.index(alloc)
        used = (
            i
            for i in range(at + 1, len(body))
            if any(v.base.name == name for x in walk((body[i],)) for v in touched(x))
        )
        first = next(used, None)
        if first is not None and alloc.buffer.space is Space.SHARED:
            body.insert(first, alloc)
            del body[at]
    return block if tuple(body) == block.body else replace(block, body=tuple(body))


# ---- the transformation ------------------------------------------------------------------------------------


class _Rewriter:
    """Replaces the operations of ``plans``, which are keyed by the identity of the loop or of its `parallel`."""

    def __init__(self, kernel: t.Kernel, plans: dict[int, _Plan]) -> None:
        self.plans = plans
        self.indices = Names.of(kernel.body)
        self.allocs = {op.buffer.name: op for op in walk(kernel.body) if isinstance(op, t.Alloc)}
        self.moved = {c.dst.base.name for plan in plans.values() for c in plan.copies}
        self.taken = {*self.allocs, *(p.buffer.name for p in kernel.arrays)}
        self.taken |= {op.future for op in walk(kernel.body) if isinstance(op, t.Copy) and op.future is not None}

    def body(self, body: t.Body) -> t.Body:
        out: list[t.Op] = []
        for op in body:
            plan = self.plans.get(id(op))
            if plan is None:
                # An initial value of a tile is never read.
                moved = isinstance(op, t.Alloc) and op.init is not None and op.buffer.name in self.moved
                op = with_fields(op, {"init": None} if moved else {})
                out.append(with_bodies(op, self.body))
            elif plan.group is None:
                out += self._pipelined(plan, plan.loop.body)
            else:
                out += self._distributed(plan, plan.group)
        return tuple(out)

    def _distributed(self, plan: _Plan, group: t.Parallel) -> t.Body:
        """The parts of ``group`` before, in and after the loop, each under a `parallel` of its own."""
        at = next(i for i, op in enumerate(group.body) if op is plan.loop)
        parts = group.body[:at], group.body[at + 1 :]
        outside = tuple(op for part in parts for op in part if isinstance(op, (t.DeclareFragment, t.Alloc)))
        moved = {c.dst.base.name for c in plan.copies}
        allocs = tuple(op for op in outside if not (isinstance(op, t.Alloc) and op.buffer.name in moved))
        before, after = (tuple(op for op in part if op not in outside) for part in parts)
        inside = replace(group, body=_without(plan.copies, moved, plan.loop.body))
        loop = self._pipelined(plan, (*plan.copies, self.indices.renamed(inside)))
        return (
            *allocs,
            *((replace(group, body=before),) if before else ()),
            *loop,
            *((self.indices.renamed(replace(group, body=after)),) if after else ()),
        )

    def _pipelined(self, plan: _Plan, body: t.Body) -> t.Body:
        """The loop with ``body``, and the copies around it."""
        loop, count = plan.loop, plan.stages
        moved = [c.dst.base.name for c in plan.copies]
        inside = {op.buffer.name for op in walk((plan.group or loop,)) if isinstance(op, t.Alloc)}
        buffers = {name: [self.allocs[name], *(self._another(name) for _ in range(count - 1))] for name in moved}
        futures = {name: [self._fresh(f"{a.buffer.name}.future") for a in buffers[name]] for name in moved}

        def copies(stage: int, index: Expr) -> t.Body:
            made: list[t.Op] = []
            for around, run in groupby(zip(plan.between, plan.copies, strict=True), itemgetter(0)):
                inner: list[t.Op] = []
                for _, c in run:
                    name = c.dst.base.name
                    to, future = buffers[name][stage].buffer.whole(), futures[name][stage]
                    inner.append(replace(c, dst=to, asynchronous=True, future=future))
                for op, branch in reversed(around):
                    inner = [replace(op, **{**dict.fromkeys(op.body_fields, ()), branch: tuple(inner)})]
                made += inner
            return substituted(tuple(made), {loop.index.name: index})

        def wait(*stages: int) -> t.WaitFuture:
            return t.WaitFuture(
                tuple(futures[c.dst.base.name][s] for s in stages for c in plan.copies), span=loop.span
            )

        def later(base: Expr, stages: int) -> Expr:
            found = add(base, mul(loop.step, const(stages)))
            return binary("min", found, _last(loop)) if plan.clamped else found

        allocs = tuple(a for name in moved for a in buffers[name][0 if name in inside else 1 :])
        first = tuple(x for s in range(count - 1) for x in copies(s, later(loop.start, s)))
        work = _without(plan.copies, moved, body)
        rotations = tuple(t.SwapFutures(tuple(futures[name]), span=loop.span) for name in futures)
        inner = (wait(0), *copies(count - 1, later(loop.index, count - 1)), *work, *rotations)
        left = loop.pipeline
        if left is not None:
            left = replace(left, stages=None)
        run = (*first, replace(loop, body=inner, pipeline=left), wait(*range(count - 1)))
        if plan.clamped and (trip_count(loop) or 0) < 1:
            run = (t.If(binary("lt", loop.start, loop.stop), run, span=loop.span),)
        return (*allocs, *run)

    def _another(self, name: str) -> t.Alloc:
        alloc = self.allocs[name]
        return replace(alloc, buffer=replace(alloc.buffer, name=self._fresh(name)), init=None)

    def _fresh(self, stem: str) -> str:
        name = next(n for i in range(len(self.taken) + 1) if (n := f"{stem}.{i}" if i else stem) not in self.taken)
        self.taken.add(name)
        return name


def _without(copies: tuple[t.Copy, ...], buffers: Iterable[str], body: t.Body) -> t.Body:
    """``body`` without ``copies`` and the declarations of ``buffers``, also in its branches."""
    rest = (op for op in body if op not in copies and not _allocates(op, buffers))
    return tuple(
        with_bodies(op, lambda b: _without(copies, buffers, b)) if isinstance(op, t.If) else op for op in rest
    )


def _allocates(op: t.Op, buffers: Iterable[str]) -> bool:
    return isinstance(op, t.Alloc) and op.buffer.name in buffers


def _last(loop: t.For) -> Expr:
    """The index of the last iteration of ``loop``, which has one."""
    if value_of(loop.step) == 1:
        return binary("sub", loop.stop, const(1))
    behind = binary("sub", binary("sub", loop.stop, const(1)), loop.start)
    return add(loop.start, mul(binary("div", behind, loop.step), loop.step))
