"""Control statements: bodies, levels, loops, branches, roles.

Each has two forms: a plain function if nothing inside can wait, a coroutine otherwise.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tilemma.errors import TilemmaError
from tilemma.ir import tile as t
from tilemma.ir import walk
from tilemma.ir.effects import assigned, declared, rotated, written_views
from tilemma.ir.expr import Var, value_of
from tilemma.ir.types import BLOCK, CLUSTER, GROUP, THREAD, Buffer, Level, Space
from tilemma.passes.scope import block_threads, count
from tilemma.targets.cpu import lanes
from tilemma.targets.cpu.expressions import INSTANCE, Diverged, Frame
from tilemma.targets.cpu.faults import LaneDependent, NotInReference
from tilemma.targets.cpu.steps import BREAK, CONTINUE, Compiler, Scope, Step
from tilemma.targets.cpu.tasks import Block, Coroutine, Instance, Join, Rendezvous, Siblings, Task, run_cluster


def body(c: Compiler, ops: t.Body, scope: Scope) -> Step:
    """Statements one after the other; errors without a place get that of their statement."""
    steps = [c.compile(op, scope) for op in ops]
    if not any(s.blocking for s in steps):
        if scope.lanes:
            return lanes.body(steps)
        pairs = [(s.run, s.span) for s in steps]

        def run(f: Frame) -> Any:
            span = None
            try:
                for step, span in pairs:  # noqa: B007
                    signal = step(f)
                    if signal is not None:
                        return signal
            except TilemmaError as e:
                e.span = e.span or span
                raise
            return None

        return Step(run)

    def coroutine(f: Frame) -> Coroutine:
        for step in steps:
            try:
                signal = (yield from step.run(f)) if step.blocking else step.run(f)
            except TilemmaError as e:
                e.span = e.span or step.span
                raise
            if signal is not None:
                return signal
        return None

    return Step(coroutine, True)


def uniform(value: Any, what: str) -> Any:
    """``value``, which must not differ between lanes."""
    if isinstance(value, np.ndarray):
        raise LaneDependent(through=what)
    return value


# ---- levels ------------------------------------------------------------------------------------------------


def inferred_level(op: t.Parallel, scope: Scope) -> Level:
    """The level of a `Parallel` that names none: outermost block (cluster around one), innermost thread."""
    if op.level is not None:
        return op.level
    inner = [x for x in walk.walk(op.body) if isinstance(x, t.Parallel)]
    if scope.level is None or scope.level.kind == "cluster":
        return CLUSTER if any(x.level == BLOCK for x in inner) else BLOCK
    return GROUP if inner else THREAD


def parallel(c: Compiler, op: t.Parallel, scope: Scope) -> Step:
    level = inferred_level(op, scope)
    if level.kind == "thread":
        return lanes.parallel(c, op, scope)
    if scope.lanes:
        raise NotInReference(op.span, what=f"`parallel : {level}` inside `: thread`")
    if level.kind == "cluster":
        return clusters(c, op, scope)
    return blocks(c, op, scope) if level.kind == "block" else groups(c, op, scope, level)


def combinations(c: Compiler, op: t.Parallel) -> Callable[[Frame], Any]:
    """The index tuples of ``op``, the last index fastest."""
    extents = [c.value(i.extent) for i in op.indices]
    return lambda f: itertools.product(*(range(max(0, e(f))) for e in extents))


def clusters(c: Compiler, op: t.Parallel, scope: Scope) -> Step:
    """Clusters one after the other; their blocks as `blocks` has it."""
    indices = [c.slot("scalar", i.name) for i in op.indices]
    each, inner = combinations(c, op), body(c, op.body, replace(scope, level=op.level))

    def run(f: Frame) -> None:
        for combination in each(f):
            g = f.copy()
            for slot, value in zip(indices, combination, strict=True):
                g[slot] = value
            inner.run(g)

    return Step(run)


def blocks(c: Compiler, op: t.Parallel, scope: Scope) -> Step:
    """Run the blocks one after the other; only blocks of a cluster can communicate.

    With barriers of their cluster, each runs up to the next barrier in turn, with shared memory of its own.
    """
    indices = [c.slot("scalar", i.name) for i in op.indices]
    names = [i.name for i in op.indices]
    each = combinations(c, op)
    inner = body(c, op.body, Scope(BLOCK))
    meets = any(is_cluster_barrier(x) for x in walk.walk(op.body))
    launched = _launched(op)

    def started(f: Frame) -> Iterator[Frame]:
        host: Instance = f[INSTANCE]
        for number, combination in enumerate(each(f)):
            g = f.copy()
            block = Block({} if meets else host.block.pool, host.block.seed + number, launched)
            g[INSTANCE] = Instance(block, ALL_THREADS, None, tuple(zip(names, combination, strict=True)))
            for slot, value in zip(indices, combination, strict=True):
                g[slot] = value
            yield g

    def run(f: Frame) -> None:
        each_alone = ([g] for g in started(f))
        for together in [list(started(f))] if meets else each_alone:
            if inner.blocking:
                run_cluster([Task(g[INSTANCE], inner.run(g)) for g in together])
            else:
                inner.run(together[0])
            for g in together:
                g[INSTANCE].block.finish()

    return Step(run)


def _launched(block: t.Parallel) -> int:
    """The threads of ``block``; those that no block exceeds while levels are not inferred."""
    levels = [x for x in walk.walk(block.body) if isinstance(x, t.Parallel)]
    known = all(x.level is not None and count(x) is not None for x in levels)
    return block_threads(block) if known else ALL_THREADS[1]


def is_cluster_barrier(op: t.Op) -> bool:
    if isinstance(op, t.Barrier):
        return op.cluster
    return isinstance(op, t.Sync) and op.what == "barrier" and op.level is not None and op.level.kind == "cluster"


ALL_THREADS = (0, 1 << 20)


def groups(c: Compiler, op: t.Parallel, scope: Scope, level: Level) -> Step:
    """Instances of a group level: concurrent if one can wait for another, else in order."""
    indices = [c.slot("scalar", i.name) for i in op.indices]
    names = [i.name for i in op.indices]
    each, threads = combinations(c, op), level.threads
    one = all(value_of(i.extent) == 1 for i in op.indices)
    siblings = scope.siblings if one else op
    around = scope.around if one else (*scope.around, op)
    inner = body(c, op.body, Scope(level, siblings=siblings, around=around, roles=scope.roles if one else ()))
    spawn, join = outer_state(c, op)

    def instances(f: Frame) -> list[Frame]:
        outer: Instance = f[INSTANCE]
        found: list[Frame] = []
        group = Siblings(op)
        for number, combination in enumerate(each(f)):
            g = f.copy()
            place = (outer.threads[0] + number * threads, threads)
            g[INSTANCE] = instance = Instance(
                outer.block,
                place,
                outer,
                tuple(zip(names, combination, strict=True)),
                outer.siblings if one else group,
            )
            if one:
                instance.role = outer.role  # the same list: an only instance runs in its parent's coroutine
            for slot, value in zip(indices, combination, strict=True):
                g[slot] = value
            spawn(f, g)
            found.append(g)
        if not one and len(found) == 1:
            found[0][INSTANCE].siblings = None
        return found

    def run(f: Frame) -> None:
        frames = instances(f)
        for g in frames:
            inner.run(g)
        join(f, frames)

    def coroutine(f: Frame) -> Coroutine:
        frames = instances(f)
        tasks = [Task(g[INSTANCE], inner.run(g)) for g in frames]
        if len(tasks) == 1:
            yield from tasks[0].run
        else:
            f[INSTANCE].block.tasks.extend(tasks)
            yield Join(tasks)
        join(f, frames)

    return Step(coroutine, True) if inner.blocking else Step(run)


def outer_state(
    c: Compiler, op: t.Parallel
) -> tuple[Callable[[Frame, Frame], None], Callable[[Frame, list[Frame]], None]]:
    """Copies variables of the enclosing scope that the body changes to the instances, and back from them.

    Where the instances leave different values in a variable, and in a local buffer, each has its own; an equal
    `Parallel` later finds it as it was left.
    """
    ops = list(walk.walk(op.body))
    inside = {x.name for op in ops for x in declared(op) if isinstance(x, (Var, Buffer))}
    changed = {x.name for op in ops for x in assigned(op)}
    variables = [(n, c.slot("scalar", n)) for n in sorted(changed - inside)]
    diverging = [c.slot("scalar", n) for n in sorted(c.names.diverging)]
    futures = {x.future for x in ops if isinstance(x, t.Copy) and x.future is not None}
    futures |= {n for x in ops for n in rotated(x)}
    handles = [c.slot("future", n) for n in sorted(futures)]
    targets = [v for x in ops for v in written_views(x)]
    locals_ = {v.base.name for v in targets if v.base.space is Space.LOCAL} - inside
    buffers = [c.slot("buffer", n) for n in sorted(locals_)]

    def spawn(f: Frame, g: Frame) -> None:
        for slot in buffers:
            kept = f[slot].children.get(g[INSTANCE].threads) if f[slot].diverged else None
            g[slot] = kept or f[slot].twin()
        for slot in diverging:
            value = f[slot]
            if type(value) is Diverged:
                g[slot] = value.values.get(g[INSTANCE].threads, value)

    def join(f: Frame, frames: list[Frame]) -> None:
        if not frames:
            return
        for name, slot in variables:
            values = [g[slot] for g in frames]
            apart = any(v != values[0] and not (v != v and values[0] != values[0]) for v in values[1:])
            f[slot] = Diverged(name, {g[INSTANCE].threads: g[slot] for g in frames}) if apart else values[0]
        for slot in handles:
            f[slot] = frames[-1][slot]
        for slot in buffers:
            first = frames[0][slot]
            if all(first.same(g[slot]) for g in frames[1:]):
                f[slot] = first
            else:
                f[slot].diverged = True
                f[slot].children.update({g[INSTANCE].threads: g[slot] for g in frames})

    return spawn, join


# ---- loops and branches ------------------------------------------------------------------------------------


def for_(c: Compiler, op: t.For, scope: Scope) -> Step:
    start, stop, step = c.value(op.start), c.value(op.stop), c.value(op.step)
    slot = c.slot("scalar", op.index.name)
    inner = body(c, op.body, scope)
    if scope.lanes and not inner.blocking:
        return lanes.for_(op, slot, start, stop, step, inner)

    def iterations(f: Frame) -> range:
        first, last, pace = (uniform(x(f), "loop bounds") for x in (start, stop, step))
        if pace == 0:
            raise NotInReference(what="a loop with step 0")
        return range(first, last, pace)

    def run(f: Frame) -> None:
        for i in iterations(f):
            f[slot] = i
            if inner.run(f) is BREAK:
                break

    def coroutine(f: Frame) -> Coroutine:
        for i in iterations(f):
            f[slot] = i
            if (yield from inner.run(f)) is BREAK:
                break

    return Step(coroutine, True) if inner.blocking else Step(run)


def while_(c: Compiler, op: t.While, scope: Scope) -> Step:
    cond, inner = c.value(op.cond), body(c, op.body, scope)
    if scope.lanes and not inner.blocking:
        return lanes.while_(op, cond, inner)

    def run(f: Frame) -> None:
        while cond(f):
            if inner.run(f) is BREAK:
                break

    def coroutine(f: Frame) -> Coroutine:
        while uniform(cond(f), "a loop's condition"):
            if (yield from inner.run(f)) is BREAK:
                break

    return Step(coroutine, True) if inner.blocking else Step(run)


def if_(c: Compiler, op: t.If, scope: Scope) -> Step:
    cond, then, other = c.value(op.cond), body(c, op.then, scope), body(c, op.otherwise, scope)
    if scope.lanes and not (then.blocking or other.blocking):
        return lanes.if_(op, cond, then, other)
    if not (then.blocking or other.blocking):
        return Step(lambda f: then.run(f) if cond(f) else other.run(f))

    def coroutine(f: Frame) -> Coroutine:
        chosen = then if uniform(cond(f), "a condition") else other
        return (yield from chosen.run(f)) if chosen.blocking else chosen.run(f)

    return Step(coroutine, True)


def in_threads(c: Compiler, op: t.InThreads, scope: Scope) -> Step:
    """A role; siblings synchronise after it unless it is asynchronous."""
    cond = c.value(op.cond)
    role = id(op) if op.asynchronous else -id(op)
    inner = body(c, op.body, replace(scope, roles=(*scope.roles, role)))
    rendezvous = not op.asynchronous and scope.siblings is not None
    if scope.lanes and not inner.blocking and not rendezvous:
        return lanes.if_(op, cond, inner, Step(lambda f: None))
    if not inner.blocking and not rendezvous:
        return Step(lambda f: inner.run(f) if cond(f) else None)
    if scope.lanes and not inner.blocking:
        # Some lanes of each instance; all instances synchronise afterwards.
        some = lanes.if_(op, cond, inner, Step(lambda f: None))

        def then_synchronise(f: Frame) -> Coroutine:
            some.run(f)
            if f[INSTANCE].siblings is not None:
                yield Rendezvous()

        return Step(then_synchronise, True)

    def coroutine(f: Frame) -> Coroutine:
        instance: Instance = f[INSTANCE]
        if uniform(cond(f), "a role's condition"):
            instance.role.append(role)
            if inner.blocking:
                yield from inner.run(f)
            else:
                inner.run(f)
            instance.role.pop()
        if rendezvous and instance.siblings is not None:
            yield Rendezvous()

    return Step(coroutine, True)


def break_(c: Compiler, op: t.Break, scope: Scope) -> Step:
    return lanes.leave(BREAK) if scope.lanes else Step(lambda f: BREAK)


def continue_(c: Compiler, op: t.Continue, scope: Scope) -> Step:
    return lanes.leave(CONTINUE) if scope.lanes else Step(lambda f: CONTINUE)


TABLE = {
    t.Parallel: parallel,
    t.For: for_,
    t.While: while_,
    t.If: if_,
    t.InThreads: in_threads,
    t.Break: break_,
    t.Continue: continue_,
}
