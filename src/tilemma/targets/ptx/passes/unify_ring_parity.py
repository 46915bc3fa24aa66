"""One phase parity for a ring of mbarriers: waits that go through the ring's slots in order share one parity bit.

A waiting thread keeps the phase parity of its next generation of each slot.  If it waits for slot 0, 1, .. S - 1,
0, 1, .., all slots have the same parity between two waits for slot 0: a single parity bit, flipped after the last
slot, replaces a bit for each slot and the shifts that select it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilemma.ir.expr import Binary, Const, Expr, Index, Select, Var, const, substitute, trips, value_of
from tilemma.ir.expr import walk as parts
from tilemma.ir.tile import Assign, Atomic, Body, Break, Continue, Declare, For, If, Kernel, Op, WaitEvent, While
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

    changes = [
        op
        for op in walk(kernel)
        if (isinstance(op, Assign) and op.var == slot) or (isinstance(op, Atomic) and op.result == slot)
    ]
    return len(changes) == 1 and declared(kernel)


def grows_for_good(slot: Expr, body: Body) -> bool:
    """Whether ``slot`` is a variable that loops of unknown trip count only increase: it exceeds every ring."""
    changes = list(_changes(slot, body, False)) if isinstance(slot, Var) else []
    return bool(changes) and all(endless and _increases(op) for op, endless in changes)


def values_taken(slot: Var, body: Body) -> list[int]:
    """The values that ``slot`` takes in every run, in order.

    Only of a variable that starts from a constant and is changed in one place, in `foreach` loops and under no
    condition, by what depends on itself alone.
    """
    starts = [op.value for op in walk(body) if isinstance(op, Declare) and op.var == slot]
    first = value_of(starts[0]) if len(starts) == 1 else None
    changes = [op for op in walk(body) if isinstance(op, (Assign, Atomic)) and slot in (_changed(op),)]
    steps = list(_steadily(slot, body, 1))
    if first is None or len(changes) != 1 or len(steps) != 1:
        return []
    change, count = steps[0]
    found = [first]
    while count is None or len(found) < count:
        following = value_of(_chosen(substitute(change, {slot.name: const(found[-1])})))
        if following is None or following in found or len(found) > _MOST_VALUES:
            break
        found.append(following)
    return found


def first_values(loop: For) -> Sequence[int]:
    """The first values of a loop's index, if its start and step are constants."""
    start, stop, step = (value_of(e) for e in (loop.start, loop.stop, loop.step))
    if start is None or step is None:
        return ()
    return range(start, start + step * _MOST_VALUES if stop is None else stop, step)[:_MOST_VALUES]


_MOST_VALUES = 64


def _chosen(e: Expr) -> Expr:
    """``e``, or the side of a choice that a constant condition takes."""
    while isinstance(e, Select) and isinstance(e.cond, Const):
        e = e.a if e.cond.value else e.b
    return e


def _changed(op: Assign | Atomic) -> Var | None:
    return op.var if isinstance(op, Assign) else op.result


def _steadily(slot: Var, body: Body, count: int | None) -> Iterator[tuple[Expr, int | None]]:
    """The values assigned to ``slot`` in ``body``, and the number of times: None if it is not bounded."""
    if any(isinstance(op, (Break, Continue)) for op in body):
        return
    for op in body:
        if isinstance(op, Assign) and op.var == slot:
            yield op.value, count
        if isinstance(op, (If, While)):
            continue
        often = count
        if isinstance(op, For):
            start, stop, step = (value_of(e) for e in (op.start, op.stop, op.step))
            often = None
            if count is not None and start is not None and stop is not None and step:
                often = count * trips(start, stop, step)
        for _, inner in bodies(op):
            yield from _steadily(slot, inner, often)


def _changes(slot: Var, body: Body, endless: bool) -> Iterator[tuple[Assign | Atomic, bool]]:
    """The operations that change ``slot``, and whether each is in a loop of unknown trip count."""
    for op in body:
        if (isinstance(op, Assign) and op.var == slot) or (isinstance(op, Atomic) and op.result == slot):
            yield op, endless
        if isinstance(op, While):
            loop = slot not in parts(op.cond)
        else:
            loop = isinstance(op, For) and None in (value_of(op.start), value_of(op.stop))
        for _, inner in bodies(op):
            yield from _changes(slot, inner, endless or loop)


def _increases(op: Assign | Atomic) -> bool:
    match op:
        case Assign(value=Binary(op="add", a=a, b=b)):
            return a == op.var and (value_of(b) or 0) > 0
    return False


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
