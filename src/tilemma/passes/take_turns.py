"""Waits that go through a ring slot by slot, so that one bit tells the generation of whichever slot is next.

A waiter keeps the parity of its next generation of each slot.  One that waits for slot 0, 1, .. S - 1, 0, 1, ..
waits for the same generation of all slots between two passes by slot 0: a single parity, turned over at the last
slot, takes the place of a bit for each slot and of the shifts that pick it.
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
class TakeTurns:
    """Marks the waits by slot that start at slot 0 and take the next one each time.

    Only where a thread has one place at which it waits for the event, and the slot steps on as often as it waits.
    """

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        waits = Counter(op.event.event.name for op in walk(kernel.body) if isinstance(op, WaitEvent))
        marked = {
            id(wait)
            for wait, around, loops in _waits(kernel.body)
            if waits[wait.event.event.name] == 1
            and wait.event.event.slots > 1
            and _in_turn(wait, around, loops, kernel.body)
        }
        if not marked:
            return kernel

        def mark(op: Op) -> Op:
            return replace(op, in_turn=True) if isinstance(op, WaitEvent) and id(op) in marked else op

        return replace(kernel, body=rewrite(kernel.body, mark))


def _waits(body: Body, loops: tuple[Op, ...] = ()) -> Iterator[tuple[WaitEvent, Body, tuple[Op, ...]]]:
    """Every wait, the operations it stands among, and the loops around it, outermost first."""
    for op in body:
        if isinstance(op, WaitEvent):
            yield op, body, loops
        inside = (*loops, op) if isinstance(op, (For, While)) else loops
        for _, inner in bodies(op):
            yield from _waits(inner, inside)


def _in_turn(wait: WaitEvent, around: Body, loops: tuple[Op, ...], kernel: Body) -> bool:
    if any(isinstance(op, (Break, Continue)) for op in walk(around)):
        return False
    slot, slots = wait.event.slot, wait.event.event.slots
    match slot:
        case Var():
            return _steps_on(slot, slots, around, wait) and _starts_once(slot, kernel)
        case Binary(op="mod", a=Index(name=name), b=by) if value_of(by) == slots:
            # The loop's own counter: each of its turns waits once.
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
    """Whether, of all operations that change ``slot``, one stands behind ``wait``, and takes the next slot."""
    behind = around[next(i for i, op in enumerate(around) if op is wait) + 1 :]
    steps = [op for op in behind if isinstance(op, Assign) and op.var == slot]
    return len(steps) == 1 and _next_slot(steps[0].value, slot, slots)


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
    """Whether ``slot`` is a variable that loops of unknown length only ever increase: it leaves every ring."""
    changes = list(_changes(slot, body, False)) if isinstance(slot, Var) else []
    return bool(changes) and all(endless and _increases(op) for op, endless in changes)


def values_taken(slot: Var, body: Body) -> list[int]:
    """The values, in their order, that ``slot`` certainly goes through.

    Only of a variable that starts from a constant and is changed in one place, in `foreach` loops and under no
    condition, by what depends on itself alone.
    """
    starts = [op.value for op in walk(body) if isinstance(op, Declare) and op.var == slot]
    first = value_of(starts[0]) if len(starts) == 1 else None
    changes = [op for op in walk(body) if isinstance(op, (Assign, Atomic)) and slot in (_changed(op),)]
    steps = list(_steadily(slot, body, 1))
    if first is None or len(changes) != 1 or len(steps) != 1:
        return []
    change, turns = steps[0]
    found = [first]
    while turns is None or len(found) < turns:
        following = value_of(_chosen(substitute(change, {slot.name: const(found[-1])})))
        if following is None or following in found or len(found) > _MOST_VALUES:
            break
        found.append(following)
    return found


def first_values(loop: For) -> Sequence[int]:
    """The first values of a loop's index, where it starts at a constant and goes on by another."""
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


def _steadily(slot: Var, body: Body, turns: int | None) -> Iterator[tuple[Expr, int | None]]:
    """What `slot` becomes in ``body``, and how often: None for as often as one likes."""
    if any(isinstance(op, (Break, Continue)) for op in body):
        return
    for op in body:
        if isinstance(op, Assign) and op.var == slot:
            yield op.value, turns
        if isinstance(op, (If, While)):
            continue
        often = turns
        if isinstance(op, For):
            start, stop, step = (value_of(e) for e in (op.start, op.stop, op.step))
            often = None
            if turns is not None and start is not None and stop is not None and step:
                often = turns * trips(start, stop, step)
        for _, inner in bodies(op):
            yield from _steadily(slot, inner, often)


def _changes(slot: Var, body: Body, endless: bool) -> Iterator[tuple[Assign | Atomic, bool]]:
    """What changes ``slot``, and whether it stands in a loop of unknown length."""
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


def _next_slot(e: Expr, slot: Var, slots: int) -> bool:
    """``(slot + 1) % slots``, or a choice between 0 and ``slot + 1`` by a comparison with the last slot."""

    def one_on(x: Expr) -> bool:
        return isinstance(x, Binary) and x.op == "add" and x.a == slot and value_of(x.b) == 1

    match e:
        case Binary(op="mod", a=a, b=by):
            return one_on(a) and value_of(by) == slots
        case Select(cond=Binary(op=op, a=x, b=Const() as limit), a=first, b=second):
            last = value_of(limit) == (slots - 1 if x == slot else slots) and (x == slot or one_on(x))
            back, on = (first, second) if op in ("eq", "ge") else (second, first)
            return last and op in ("eq", "ge", "ne", "lt") and value_of(back) == 0 and one_on(on)
    return False
