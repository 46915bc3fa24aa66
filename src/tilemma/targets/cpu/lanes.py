"""SIMT execution in the reference executor: a `: thread` level runs as one, its values arrays over lanes and its
control a mask.

A collective statement there acts at the enclosing group.  Its operands and the control around it must not depend
on the lane: the operands are scalars, and the mask is full.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tilemma.arithmetic.convert import Array
from tilemma.errors import TilemmaError
from tilemma.ir import tile as t
from tilemma.ir import walk
from tilemma.ir.effects import Execution, assigned, declared, written_views
from tilemma.ir.expr import Element, Index, Scalar, Var
from tilemma.ir.expr import walk as walk_expr
from tilemma.ir.types import THREAD, Buffer, Space
from tilemma.targets.cpu import control
from tilemma.targets.cpu.expressions import INSTANCE, MASK, Diverged, Evaluate, Frame
from tilemma.targets.cpu.faults import LaneDependent, NotInReference
from tilemma.targets.cpu.steps import BREAK, Compiler, Scope, Step
from tilemma.targets.cpu.storage import Storage
from tilemma.targets.cpu.tasks import Coroutine, Instance, Transfer


def parallel(c: Compiler, op: t.Parallel, scope: Scope) -> Step:
    """All lanes of a `: thread` level at once."""
    if scope.lanes:
        raise NotInReference(op.span, what="a `: thread` level inside another")
    extents = [c.value(i.extent) for i in op.indices]
    slots = [c.slot("scalar", i.name) for i in op.indices]
    inner = control.body(c, op.body, replace(scope, level=THREAD, lanes=True))
    spread, collect = lane_state(c, op)

    def start(f: Frame) -> Frame | None:
        shape = tuple(max(0, e(f)) for e in extents)
        lanes = math.prod(shape)
        if not lanes:
            return None
        outer: Instance = f[INSTANCE]
        g = f.copy()
        g[INSTANCE] = instance = Instance(outer.block, outer.threads, outer, (), outer.siblings)
        instance.lanes, instance.role = lanes, outer.role
        for slot, values in zip(slots, np.unravel_index(np.arange(lanes), shape), strict=True):
            g[slot] = values.astype(np.int32)
        spread(f, g, lanes)
        return g

    def run(f: Frame) -> None:
        g = start(f)
        if g is not None:
            inner.run(g)
            collect(f, g)

    def coroutine(f: Frame) -> Coroutine:
        g = start(f)
        if g is not None:
            yield from inner.run(g)
            collect(f, g)

    return Step(coroutine, True) if inner.blocking else Step(run)


def lane_state(
    c: Compiler, op: t.Parallel
) -> tuple[Callable[[Frame, Frame, int], None], Callable[[Frame, Frame], None]]:
    """As `control.outer_state`: local buffers of the enclosing scope become one for each lane."""
    ops = list(walk.walk(op.body))
    inside = {x.name for op in ops for x in declared(op) if isinstance(x, (Var, Buffer))}
    changed = {x.name for op in ops for x in assigned(op)}
    variables = [(n, c.slot("scalar", n)) for n in sorted(changed - inside)]
    targets = [v for x in ops for v in written_views(x)]
    buffers = [
        c.slot("buffer", n) for n in sorted({v.base.name for v in targets if v.base.space is Space.LOCAL} - inside)
    ]

    def spread(f: Frame, g: Frame, lanes: int) -> None:
        for slot in buffers:
            key = (f[INSTANCE].threads[0], -lanes)
            kept = f[slot].children.get(key) if f[slot].diverged else None
            g[slot] = kept or f[slot].per_lane(lanes)
        for slot in (c.slot("scalar", n) for n in c.names.diverging):
            value = f[slot]
            if type(value) is Diverged:
                g[slot] = value.values.get((f[INSTANCE].threads[0], -lanes), value)

    def collect(f: Frame, g: Frame) -> None:
        for name, slot in variables:
            value = g[slot]
            if isinstance(value, np.ndarray):
                if (value == value[0]).all():
                    value = value[0].item() if value.dtype.kind in "iub" else value[0]
                else:
                    value = Diverged(name, {(f[INSTANCE].threads[0], -len(value)): value})
            f[slot] = value
        for slot in buffers:
            lanes: Storage = g[slot]
            if all((lanes.data[0].tobytes() == x.tobytes()) for x in lanes.data):
                f[slot] = lane_storage(lanes, 0)
            else:
                f[slot].diverged = True
                f[slot].children[f[INSTANCE].threads[0], -lanes.lanes] = lanes

    return spread, collect


def body(steps: list[Step]) -> Step:
    """Statements in order, until no lane is left."""
    pairs = [(s.run, s.span) for s in steps]

    def run(f: Frame) -> None:
        for step, span in pairs:
            try:
                step(f)
            except TilemmaError as e:
                e.span = e.span or span
                raise
            mask = f[MASK]
            if mask is not None and not mask.any():
                return

    return Step(run)


# ---- control -----------------------------------------------------------------------------------------------


def _narrowed(outer: Array | None, to: Array) -> Array:
    return to if outer is None else outer & to


def if_(op: t.If | t.InThreads, cond: Evaluate, then: Step, other: Step) -> Step:
    def run(f: Frame) -> None:
        value = cond(f)
        if not isinstance(value, np.ndarray):
            (then if value else other).run(f)
            return
        entry, holds = f[MASK], value != 0
        left: list[Array] = []
        whole = True
        for step, lanes in ((then, _narrowed(entry, holds)), (other, _narrowed(entry, ~holds))):
            f[MASK] = lanes
            if lanes.any():
                step.run(f)
            whole = whole and f[MASK] is lanes
            left.append(f[MASK])
        f[MASK] = entry if whole else left[0] | left[1]

    return Step(run)


def leave(kind: str) -> Step:
    """`Break` or `Continue` by the active lanes."""

    def run(f: Frame) -> None:
        instance: Instance = f[INSTANCE]
        mask = np.ones(instance.lanes, bool) if f[MASK] is None else f[MASK]
        if kind is BREAK:
            instance.broken = mask if instance.broken is None else instance.broken | mask
        f[MASK] = np.zeros(instance.lanes, bool)

    return Step(run)


def _leaves(op: t.For | t.While) -> bool:
    return any(isinstance(x, (t.Break, t.Continue)) for x in walk.walk(op.body))


def _iterate(f: Frame, condition: Callable[[Frame], Any], iteration: Callable[[Frame], None]) -> None:
    """``iteration`` for the lanes for which ``condition`` holds, until there are none."""
    instance: Instance = f[INSTANCE]
    entry, outer_broken = f[MASK], instance.broken
    instance.broken = None
    alive = entry
    try:
        while True:
            if instance.broken is not None:
                alive = ~instance.broken if entry is None else entry & ~instance.broken
            f[MASK] = alive
            holds = condition(f)
            if isinstance(holds, np.ndarray):
                alive = _narrowed(alive, holds != 0)
            elif not holds:
                return
            if alive is not None and not alive.any():
                return
            f[MASK] = alive
            iteration(f)
    finally:
        f[MASK], instance.broken = entry, outer_broken


def for_(op: t.For, slot: int, start: Evaluate, stop: Evaluate, step: Evaluate, inner: Step) -> Step:
    leaves = _leaves(op)

    def run(f: Frame) -> None:
        first, last, pace = start(f), stop(f), step(f)
        if np.any(np.asarray(pace) == 0):
            raise NotInReference(what="a loop with step 0")
        if not leaves and not any(isinstance(x, np.ndarray) for x in (first, last, pace)):
            for i in range(first, last, pace):
                f[slot] = i
                inner.run(f)
            return
        current = first

        def more(f: Frame) -> Any:
            return ((pace > 0) & (current < last)) | ((pace < 0) & (current > last))

        def iteration(f: Frame) -> None:
            nonlocal current
            f[slot] = current
            inner.run(f)
            current = current + pace

        _iterate(f, more, iteration)

    return Step(run)


def while_(op: t.While, cond: Evaluate, inner: Step) -> Step:
    return Step(lambda f: _iterate(f, cond, inner.run))


# ---- collective statements -----------------------------------------------------------------------------------


def mentioned(c: Compiler, op: t.Op) -> list[tuple[str, int]]:
    """Names and slots of the values and local buffers that ``op`` reads in its expressions."""
    ops = [op, *walk.walk(op.body)] if isinstance(op, t.Apply) else [op]
    found: dict[str, int] = {}
    for x in ops:
        for e in walk.expressions(x):
            for part in walk_expr(e):
                if isinstance(part, (Index, Var, Scalar)):
                    found[part.name] = c.slot("scalar", part.name)
                elif isinstance(part, Element) and part.view.base.space is Space.LOCAL:
                    found[part.view.base.name] = c.slot("buffer", part.view.base.name)
    return sorted(found.items())


def lane_dependence(f: Frame, names: list[tuple[str, int]]) -> str | None:
    """The cause of the statement's dependence on the lane; None if it does not depend on it."""
    if f[MASK] is not None and not f[MASK].all():
        return "the control around it"
    for name, slot in names:
        value = f[slot]
        if isinstance(value, np.ndarray) or (isinstance(value, Storage) and value.lanes):
            return f"`{name}`"
    return None


def collective(c: Compiler, op: t.Op, scope: Scope, step: Step) -> Step:
    """``step`` as a statement of the enclosing group; refused where it depends on the lane.

    A wait for copies is also a statement of fewer lanes: the lanes of a level wait for the copies of the level.
    """
    names = mentioned(c, op)
    whole = not isinstance(op, t.WaitFuture)

    def check(f: Frame) -> None:
        through = lane_dependence(f, names)
        instance: Instance = f[INSTANCE]
        count = instance.threads[1]
        if through is None and whole and instance.lanes < count < control.ALL_THREADS[1]:
            through = f"a `: thread` level that covers {instance.lanes} of {count} lanes"
        if through is not None:
            raise LaneDependent(op.span, through=through)

    def run(f: Frame) -> Any:
        check(f)
        return step.run(f)

    def coroutine(f: Frame) -> Coroutine:
        check(f)
        return (yield from step.run(f))

    return Step(coroutine, True, op.span) if step.blocking else Step(run, False, op.span)


def lane_storage(s: Storage, lane: int) -> Storage:
    """The part of ``s`` that belongs to ``lane``, sharing its memory."""
    one = Storage(s.name, s.dtype, s.space, s.data[lane], s.copies, 0, s.tracked)
    one.complete = s.complete
    if not s.complete:
        one.written = s.written_mask()[lane]
    return one


def lane_frame(f: Frame, lane: int) -> Frame:
    """The frame as one lane sees it.

    Values per lane of a `: thread` level around an `apply` are left out: the `apply` does not read them.
    """
    lanes: int = f[INSTANCE].lanes
    g = f.copy()
    g[MASK] = None
    for slot in range(MASK + 1, len(g)):
        value = g[slot]
        if isinstance(value, np.ndarray) and len(value) == lanes:
            g[slot] = value[lane].item() if value.dtype.kind in "iub" else value[lane]
        elif isinstance(value, Storage) and value.lanes == lanes:
            g[slot] = lane_storage(value, lane)
    return g


def each_lane(c: Compiler, op: t.Op, scope: Scope, step: Step) -> Step:
    """``step`` once if it does not depend on the lane, else once for each active lane."""
    names = mentioned(c, op)
    if isinstance(op, t.Copy):
        for view in (op.src, op.dst):
            if view.base.space is Space.LOCAL:
                names.append((view.base.name, c.slot("buffer", view.base.name)))
    assert not step.blocking, op
    future = c.slot("future", op.future) if isinstance(op, t.Copy) and op.future is not None else None

    def run(f: Frame) -> None:
        if lane_dependence(f, names) is None:
            step.run(f)
            return
        mask = f[MASK]
        issued: list[Transfer] = []
        for lane in range(f[INSTANCE].lanes):
            if mask is None or mask[lane]:
                own = lane_frame(f, lane)
                step.run(own)
                if future is not None and isinstance(own[future], Transfer):
                    issued.append(own[future])
        if future is not None and issued:
            if mask is not None and isinstance(f[future], Transfer):
                issued.append(f[future])  # of the lanes that do not execute this copy
            issued[0].joint.extend(issued[1:])
            f[future] = issued[0]

    return Step(run, False, op.span)


# Operations of an instance that lanes may execute by themselves, and those that passes insert.
_ANYWHERE = (t.Alloc, t.DeclareFragment, t.TriggerEvent, t.Barrier, t.MmaFence, t.MmaCommit, t.MmaWait)
_TOGETHER = (Execution.COLLECTIVE, Execution.INSTANCE)
COLLECTIVE: dict[type[t.Op], Callable[[Compiler, Any, Scope, Step], Step]] = {
    **{c: collective for c in t.OPERATIONS if c.execution in _TOGETHER and c not in _ANYWHERE},
    t.Copy: each_lane,
}
