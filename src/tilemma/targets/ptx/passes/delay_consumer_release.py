"""Delayed consumer release in a software pipeline: a slot is released one iteration later, so that the tensor
cores stay busy.

A `trigger` after multiplies releases their operands' slot to the producer, so that it has to wait until wgmma has
read the slot.  A wait for the multiplies just issued would leave the tensor cores idle; with two slots or more,
the release of an iteration can follow the multiplies of the next one::

    for k:                                   prev = -1
        wait full[k % S]                     for k:
        mma ...                                  wait full[k % S]
        mma.commit                               mma ...
        trigger empty[k % S]                     mma_wait 1          # the previous one has finished
                                                 if prev >= 0: trigger empty[prev]
                                                 prev = k % S
                                             mma_wait 0
                                             if prev >= 0: trigger empty[prev]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from tilemma.dtypes import s32
from tilemma.ir import tile as t
from tilemma.ir.effects import written_views
from tilemma.ir.expr import Binary, Cast, Const, Dim, Expr, Index, Scalar, Var, binary, const, value_of
from tilemma.ir.types import GROUP, EventRef, View
from tilemma.ir.walk import bodies, jumps, rewrite, touched, walk, with_fields
from tilemma.passes.decision import Decision
from tilemma.records import record
from tilemma.targets.ptx.passes.accesses import is_wgmma
from tilemma.targets.ptx.passes.unify_ring_parity import is_next_slot, is_step

Loop = t.For | t.While


@record(slots=False)
class DelayConsumerRelease:
    """Moves triggers after the multiplies of the next iteration, and inserts the waits that this needs.

    Only if the next iteration is proved to wait for another slot: the event has two slots or more, each iteration
    triggers another one, and the threads that wait for it are in another role.
    """

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        if not any(is_wgmma(op) for op in walk(kernel.body)):
            # mma.sync is synchronous: there is nothing to wait for.
            return replace(kernel, body=rewrite(kernel.body, lambda op: () if isinstance(op, t.MmaWait) else op))
        roles = list(_roles(kernel.body))
        loads = {op.fragment.name: op.src for op in walk(kernel.body) if isinstance(op, t.Load)}
        return replace(kernel, body=_Releases(roles, loads, log, itertools.count()).body(kernel.body, None))


def _roles(body: t.Body, role: t.InThreads | None = None) -> Iterator[tuple[t.InThreads | None, t.Op]]:
    """Every operation with the outermost asynchronous role around it."""
    for op in body:
        yield role, op
        inside = role or (op if isinstance(op, t.InThreads) and op.asynchronous else None)
        for _, inner in bodies(op):
            yield from _roles(inner, inside)


@record(slots=False)
class _Releases:
    roles: list[tuple[t.InThreads | None, t.Op]]
    loads: dict[str, View]
    log: list[Decision]
    numbers: Iterator[int]

    def body(self, body: t.Body, role: t.InThreads | None) -> t.Body:
        out: list[t.Op] = []
        body = _trusted(body)
        for op in body:
            inside = role or (op if isinstance(op, t.InThreads) and op.asynchronous else None)
            changes = {name: self.body(inner, inside) for name, inner in bodies(op)}
            new = with_fields(op, changes)
            if isinstance(new, (t.For, t.While)) and inside is not None:
                out += self._loop(new, inside)
            else:
                out.append(new)
        return tuple(out)

    def _loop(self, loop: Loop, role: t.InThreads) -> t.Body:
        last = max((i for i, op in enumerate(loop.body) if _multiplies_here(op)), default=None)
        if last is None:
            return (loop,)
        read = {v.base.name for op in walk(loop.body[: last + 1]) for v in self._operands(op)}
        end = last + 1
        while end < len(loop.body) and isinstance(loop.body[end], (t.Commit, t.TriggerEvent)):
            end += 1
        deferred = [
            op
            for op in loop.body[last + 1 : end]
            if isinstance(op, t.TriggerEvent) and self._releases(op, read, role) and self._may_wait(op, loop, role)
        ]
        if not deferred:
            return (loop,)
        fenced = self._fenced(loop, last, read)
        if fenced is not loop:
            loop, last, end = fenced, last + 2, end + 2
        return _deferred(loop, last, end, deferred, self.numbers)

    def _fenced(self, loop: Loop, last: int, read: set[str]) -> Loop:
        """``loop`` with a proxy fence after the last statement whose threads access a buffer in ``read``
        themselves: the copies that overwrite it are of the async proxy, and only multiplies need no fence.  One
        thread releases the buffer for its warp, whose threads therefore meet there."""

        def by_threads(op: t.Op) -> bool:
            if isinstance(op, (t.Mma, t.Alloc)) or (isinstance(op, t.Copy) and op.engine == "tma"):
                return False
            if isinstance(op, t.Load) and op.plan is not None and op.plan.method == "descriptor":
                return False  # the multiplies read it
            return any(v.base.name in read for v in touched(op))

        found = (i for i, op in enumerate(loop.body[: last + 1]) if any(map(by_threads, walk((op,)))))
        at = max(found, default=None)
        if at is None:
            return loop
        span = loop.body[at].span
        meet = (t.ProxyFence(span=span), t.Sync("barrier", GROUP, span=span))
        return replace(loop, body=(*loop.body[: at + 1], *meet, *loop.body[at + 1 :]))

    def _operands(self, op: t.Op) -> Iterator[View]:
        if isinstance(op, t.Mma):
            for x in (op.a, op.b):
                if isinstance(x, View):
                    yield x
                elif isinstance(x, t.FragmentRef) and x.name in self.loads:
                    yield self.loads[x.name]

    def _releases(self, op: t.TriggerEvent, read: set[str], role: t.InThreads) -> bool:
        """Whether the roles that wait for the event write buffers that the multiplies read."""
        name = op.event.event.name
        waiting = [r for r, w in self.roles if isinstance(w, t.WaitEvent) and w.event.event.name == name]
        if role in waiting or None in waiting:
            return False
        written = {v.base.name for r, o in self.roles if r in waiting for v in written_views(o)}
        return bool(written & read)

    def _may_wait(self, op: t.TriggerEvent, loop: Loop, role: t.InThreads) -> bool:
        name = op.event.event.name
        why = ""
        if op.event.event.slots < 2:
            why = "the event has one slot"
        elif jumps(loop):
            why = "a `break` or `continue` may end an iteration before its multiplies"
        elif not advances(op.event, loop):
            why = "it is not certain that each iteration releases another slot"
        text = why or "while the next iteration's multiplies run (at most 1 batch in flight)"
        how = "waits for 0" if why else "waits for 1"
        self.log.append(Decision("releases", name, f"{how}: {text}", {"pending": 0 if why else 1}, span=op.span))
        return not why


def _trusted(body: t.Body) -> t.Body:
    """Marks triggers directly after a `mma_wait` of the program with pending batches: the program orders them."""
    out: list[t.Op] = []
    after = False
    for op in body:
        waits = isinstance(op, t.MmaWait) and op.pending > 0
        trusted = _ordered(op) if after and not waits else None
        after = waits or trusted is not None
        out.append(trusted or op)
    return tuple(out)


def _ordered(op: t.Op) -> t.Op | None:
    """``op``, a trigger or a condition around triggers alone, marked as ordered; None for other operations."""
    if isinstance(op, t.TriggerEvent):
        return replace(op, ordered=True)
    if isinstance(op, t.If) and not op.otherwise and all(isinstance(x, t.TriggerEvent) for x in op.then):
        return replace(op, then=tuple(replace(x, ordered=True) for x in op.then if isinstance(x, t.TriggerEvent)))
    return None


def _multiplies_here(op: t.Op) -> bool:
    """Whether ``op`` issues wgmma for the role's own instance."""
    inside = list(walk((op,)))
    return any(is_wgmma(x) for x in inside) and not any(
        isinstance(x, (t.Parallel, t.InThreads, t.If)) for x in inside
    )


def _deferred(loop: Loop, last: int, end: int, triggers: list[t.TriggerEvent], numbers: Iterator[int]) -> t.Body:
    span = triggers[0].span
    before: list[t.Op] = []
    after: list[t.Op] = [t.MmaWait(0, span=span)]
    delayed: list[t.Op] = [t.MmaWait(1, span=span)]
    assigned: list[t.Op] = []
    if any(trigger.cluster for trigger in triggers):
        # One thread arrives on the other blocks' events for all warps of the group, which therefore have to
        # synchronise first.
        meet = t.Sync("barrier", GROUP, span=span)
        delayed.append(meet)
        after.append(meet)
    for trigger in triggers:
        ref = trigger.event
        now = ref.slot if ref.order is None else binary("floormod", ref.order, ref.event.slots)
        assert now is not None
        # Signed, whatever the program counts in: -1 is no slot.
        now = now if now.type == s32 else Cast(now, s32)
        prev = Var(f"{ref.event.name}.held{next(numbers)}", s32)
        held = EventRef(ref.event, slot=prev)
        release = t.If(binary("ge", prev, 0), (replace(trigger, event=held, ordered=True),), span=trigger.span)
        before.append(t.Declare(prev, const(-1), span=trigger.span))
        delayed.append(release)
        assigned.append(t.Assign(prev, now, span=trigger.span))
        after.append(release)
    kept = [op for op in loop.body[last + 1 : end] if op not in triggers]
    body = (*loop.body[: last + 1], *kept, *delayed, *assigned, *loop.body[end:])
    waited = next(
        (i for i, op in enumerate(loop.body[:last]) if isinstance(op, t.MmaWait) and not op.pending), None
    )
    if waited is not None:
        # The program waits for the multiplies of the iteration before.
        early = (*loop.body[: waited + 1], *delayed[1:], *loop.body[waited + 1 : last + 1])
        body = (*early, *kept, *assigned, *loop.body[end:])
    return (*before, replace(loop, body=body), *after)


# ---- does every iteration release another slot? ------------------------------------------------------------


def advances(ref: EventRef, loop: Loop) -> bool:
    """Whether two consecutive iterations of ``loop`` never name the same slot."""
    slots = ref.event.slots
    if ref.order is not None:
        d = _step(ref.order, loop)
        return d is not None and d % slots != 0
    slot = ref.slot
    if isinstance(slot, Binary) and slot.op in ("mod", "floormod") and value_of(slot.b) == slots:
        d = _step(slot.a, loop)
        return d is not None and d % slots != 0
    return isinstance(slot, Var) and _is_cyclic(slot, slots, loop)


def _assignments(var: Var, loop: Loop) -> list[tuple[t.Op | None, t.Assign]]:
    """(the operation around it, None for the loop itself; the assignment)."""
    found: list[tuple[t.Op | None, t.Assign]] = [
        (None, op) for op in loop.body if isinstance(op, t.Assign) and op.var == var
    ]
    for op in loop.body:
        for inner in walk(tuple(x for _, b in bodies(op) for x in b)):
            if isinstance(inner, t.Assign) and inner.var == var:
                found.append((op, inner))
    return found


def _step(e: Expr, loop: Loop) -> int | None:
    """The constant by which ``e`` grows from one iteration to the next; None if it is not constant."""
    match e:
        case Const() | Dim() | Scalar():
            return 0
        case Index(name=name):
            return value_of(loop.step) if isinstance(loop, t.For) and loop.index.name == name else 0
        case Var():
            found = _assignments(e, loop)
            if not found:
                return 0
            if len(found) == 1 and found[0][0] is None:
                value = found[0][1].value
                if isinstance(value, Binary) and value.op == "add" and value.a == e:
                    return value_of(value.b)
            return None
        case Binary(op="add" | "sub" as op, a=a, b=b):
            x, y = _step(a, loop), _step(b, loop)
            return None if x is None or y is None else x + y if op == "add" else x - y
        case Binary(op="mul", a=a, b=b):
            for factor, c in ((a, value_of(b)), (b, value_of(a))):
                if c is not None:
                    d = _step(factor, loop)
                    return None if d is None else d * c
            x, y = _step(a, loop), _step(b, loop)
            return 0 if x == 0 and y == 0 else None
    return None


def _is_cyclic(slot: Var, slots: int, loop: Loop) -> bool:
    """``slot = (slot + c) % S``, ``select(slot == S - 1, 0, slot + 1)``, or a step and a reset at ``S``."""
    found = _assignments(slot, loop)
    if len(found) == 1 and found[0][0] is None:
        match found[0][1].value:
            case Binary(op="mod" | "floormod", a=Binary(op="add", a=a, b=c), b=s):
                return a == slot and value_of(s) == slots and (value_of(c) or 0) % slots != 0
            case value:
                return is_next_slot(value, slot, slots)
    match found:
        case [(None, t.Assign(value=step)), (t.If(cond=Binary(op="eq" | "ge", a=a, b=b)), t.Assign(value=reset))]:
            ends = a == slot and value_of(b) == slots
            return ends and is_step(step, slot) and value_of(reset) == 0
    return False
