"""One phase parity for a ring of mbarriers: waits that go through the ring's slots in order share one parity bit.

A waiting thread keeps the phase parity of its next generation of each slot.  If it waits for slot 0, 1, .. S - 1,
0, 1, .., all slots have the same parity between two waits for slot 0: a single parity bit, flipped after the last
slot, replaces a bit for each slot and the shifts that select it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tilemma.ir.effects import assigned
from tilemma.ir.expr import Binary, Const, Expr, Index, Select, Var, value_of
from tilemma.ir.tile import Assign, Body, Break, Continue, Declare, For, Kernel, Op, WaitEvent, While
from tilemma.ir.walk import bodies, rewrite, walk
from tilemma.passes.decision import Decision
from tilemma.records import record


@record(slots=False)
class UnifyRingParity:
    """Marks the waits by slot that start at slot 0 and take the next slot each time.

    Only if the event has one wait, and the slot advances exactly once for each wait.
    """

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        waits = Counter(op.event.event.name for op in walk(kernel.body) if isinstance(op, WaitEvent))
        marked = {
            id(wait)
            for wait, around, loops in _waits(kernel.body)
            if waits[wait.event.event.name] == 1
            and wait.event.event.slots > 1
            and _in_ring_order(wait, around, loops, kernel.body)
        }
        if not marked:
            return kernel

        def mark(op: Op) -> Op:
            return replace(op, one_parity=True) if isinstance(op, WaitEvent) and id(op) in marked else op

        return replace(kernel, body=rewrite(kernel.body, mark))


def _waits(body: Body, loops: tuple[Op, ...] = ()) -> Iterator[tuple[WaitEvent, Body, tuple[Op, ...]]]:
    """Every wait, the operations it stands among, and the loops around it, outermost first."""
    for op in body:
        if isinstance(op, WaitEvent):
            yield op, body, loops
        inside = (*loops, op) if isinstance(op, (For, While)) else loops
        for _, inner in bodies(op):
            yield from _waits(inner, inside)


def _in_ring_order(wait: WaitEvent, around: Body, loops: tuple[Op, ...], kernel: Body) -> bool:
    if any(isinstance(op, (Break, Continue)) for op in walk(around)):
        return False
    slot, slots = wait.event.slot, wait.event.event.slots
    match slot:
        case Var():
            return _steps_on(slot, slots, around, wait) and _starts_once(slot, kernel)
        case Binary(op="mod" | "floormod", a=Index(name=name), b=by) if value_of(by) == slots:
            # The slot is the loop's counter: each iteration waits once.
            return (
                len(loops) == 1
                and isinstance(loops[0], For)
                and loops[0].body is around
                and loops[0].index.name == name
                and value_of(loops[0].start) == 0
                and value_of(loops[0].step) == 1
            )
    return False


def _steps_on(slot: Var, slots: int, around: Body, wait: WaitEvent) -> bool:
    """Whether exactly one of the operations that change ``slot`` follows ``wait``, and advances to the next
    slot."""
    behind = around[next(i for i, op in enumerate(around) if op is wait) + 1 :]
    steps = [op for op in behind if isinstance(op, Assign) and op.var == slot]
    return len(steps) == 1 and is_next_slot(steps[0].value, slot, slots)


def _starts_once(slot: Var, kernel: Body) -> bool:
    """Whether ``slot`` starts as 0, outside of all loops, and is changed in one place."""

    def declared(body: Body) -> bool:
        return any(
            (isinstance(op, Declare) and op.var == slot and value_of(op.value) == 0)
            or (not isinstance(op, (For, While)) and any(declared(inner) for _, inner in bodies(op)))
            for op in body
        )

    changes = [op for op in walk(kernel) if slot in assigned(op)]
    return len(changes) == 1 and declared(kernel)


def is_step(e: Expr, slot: Var) -> bool:
    """Whether ``e`` is ``slot + 1``."""
    return isinstance(e, Binary) and e.op == "add" and e.a == slot and value_of(e.b) == 1


def is_next_slot(e: Expr, slot: Var, slots: int) -> bool:
    """``(slot + 1) % slots``, or a choice between 0 and ``slot + 1`` by a comparison with the last slot."""
    match e:
        case Binary(op="mod" | "floormod", a=a, b=by):
            return is_step(a, slot) and value_of(by) == slots
        case Select(cond=Binary(op=op, a=x, b=Const() as limit), a=first, b=second):
            last = value_of(limit) == (slots - 1 if x == slot else slots) and (x == slot or is_step(x, slot))
            back, on = (first, second) if op in ("eq", "ge") else (second, first)
            return last and op in ("eq", "ge", "ne", "lt") and value_of(back) == 0 and is_step(on, slot)
    return False
