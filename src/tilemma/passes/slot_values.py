"""Value analysis of ring slots: the values that the variable or the loop index of an event's slot takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilemma.ir.effects import assigned
from tilemma.ir.expr import Binary, Const, Expr, Select, Var, const, substitute, value_of
from tilemma.ir.expr import walk as parts
from tilemma.ir.tile import Assign, Body, Break, Continue, Declare, For, If, Op, While
from tilemma.ir.walk import bodies, trip_count, walk


def increases_without_bound(slot: Expr, body: Body) -> bool:
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
    changes = [op for op in walk(body) if slot in assigned(op)]
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
            inner_count = trip_count(op)
            often = None if count is None or inner_count is None else count * inner_count
        for _, inner in bodies(op):
            yield from _steadily(slot, inner, often)


def _changes(slot: Var, body: Body, endless: bool) -> Iterator[tuple[Op, bool]]:
    """The operations that change ``slot``, and whether each is in a loop of unknown trip count."""
    for op in body:
        if slot in assigned(op):
            yield op, endless
        if isinstance(op, While):
            loop = slot not in parts(op.cond)
        else:
            loop = isinstance(op, For) and None in (value_of(op.start), value_of(op.stop))
        for _, inner in bodies(op):
            yield from _changes(slot, inner, endless or loop)


def _increases(op: Op) -> bool:
    match op:
        case Assign(value=Binary(op="add", a=a, b=b)):
            return a == op.var and (value_of(b) or 0) > 0
    return False
