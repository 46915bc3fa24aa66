"""Range analysis of mutable scalars: the least ranges that every assignment preserves."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tilemma.arithmetic import integers
from tilemma.arithmetic.integers import Range, bounds
from tilemma.dtypes import s32
from tilemma.ir.effects import assigned
from tilemma.ir.expr import (
    Binary,
    Const,
    Dim,
    Expr,
    Index,
    Scalar,
    Select,
    Unary,
    Var,
    const,
    sub,
    value_of,
    walk,
    with_operands,
)
from tilemma.ir.ranges import Known, interval
from tilemma.ir.tile import Assign, Body, Declare, For, Op, While
from tilemma.ir.walk import bodies

# Rounds in which ranges grow by the assigned values, before they grow to the next constant of the program at once.
_EXACT_ROUNDS = 4
# The largest number of values of an expression that are enumerated.
_CASES = 4


def variable_ranges(ops: Iterable[Op], nonzero: frozenset[str] = frozenset()) -> dict[str, Range]:
    """Bounds on each integer variable that hold wherever it is read, whatever the loops around it do.

    A range holds if the initial values and all assigned values lie in it, provided that the variables read
    keep to their ranges (induction over the assignments executed).
    """
    values: dict[str, tuple[Var, list[Expr]]] = {}
    free: set[str] = set()
    operations = list(ops)
    for op in operations:
        if isinstance(op, (Declare, Assign)):
            values.setdefault(op.var.name, (op.var, []))[1].append(op.value)
        else:
            free |= {v.name for v in assigned(op)}
    wanted = {n: v for n, v in values.items() if v[0].dtype.is_integer and n not in free}
    mentioned = {n for _, es in wanted.values() for e in es for x in walk(e) if (n := value_of(x)) is not None}
    constants = sorted({n + d for n in mentioned for d in (-1, 0, 1)})
    counters = {n: r for n, r in _counters(operations, Known(nonzero)) if n in wanted}
    wanted = {n: v for n, v in wanted.items() if n not in counters}
    reads = {name: {n for e in es for n in _read(e)} for name, (_, es) in wanted.items()}
    ranges, changed = dict(counters), set(wanted)
    for step in range(_EXACT_ROUNDS + 2 * len(constants) * len(wanted) + 2 * len(wanted) + 1):
        known, before = Known(nonzero, ranges), ranges
        ranges = dict(before)
        for name, (v, es) in wanted.items():
            if (step and changed.isdisjoint(reads[name])) or (r := _assigned(v, es, wanted, known)) is None:
                continue
            grown = _join(before.get(name, r), r)
            ranges[name] = grown if step < _EXACT_ROUNDS else _widened(before.get(name), grown, v, constants)
        changed = {n for n, r in ranges.items() if before.get(n) != r}
        if not changed:
            return ranges
    raise AssertionError("ranges of variables grow for ever")


def _read(e: Expr) -> set[str]:
    """The variables on which the bounds of ``e`` depend, those in the bounds of its indices included."""
    found: set[str] = set()
    for x in walk(e):
        if isinstance(x, Var):
            found.add(x.name)
        elif isinstance(x, Index):
            found.update(*map(_read, (x.extent, *(x.limits or ()))))
    return found


def _counters(ops: list[Op], known: Known) -> Iterable[tuple[str, Range]]:
    """Bounds of variables that one loop counts up or down.

    Each is declared beside the loop and assigned at one place, in its iterations, to itself plus an amount that
    does not change; so it moves from its initial value by at most that amount for each iteration.
    """
    around: dict[int, Op | None] = {}
    for op in ops:
        if isinstance(op, (For, While)):
            around.update((id(inner), op) for inner in _within(op.body))
    declared: dict[str, list[Declare]] = {}
    assignments: dict[str, list[Assign]] = {}
    for op in ops:
        if isinstance(op, Declare):
            declared.setdefault(op.var.name, []).append(op)
        elif isinstance(op, Assign):
            assignments.setdefault(op.var.name, []).append(op)
    for name, (first, *others) in declared.items():
        if others or len(found := assignments.get(name, [])) != 1:
            continue
        loop = around.get(id(found[0]))
        if not isinstance(loop, For) or around.get(id(loop)) is not around.get(id(first)):
            continue
        r = _counted(first, found[0], loop, known)
        if r is not None:
            yield name, r


def _within(body: Body) -> Iterable[Op]:
    """The operations of ``body``, without those of loops in it."""
    for op in body:
        yield op
        if not isinstance(op, (For, While)):
            for _, inner in bodies(op):
                yield from _within(inner)


def _counted(first: Declare, again: Assign, loop: For, known: Known) -> Range | None:
    e, var = again.value, again.var
    if not (isinstance(e, Binary) and e.op in ("add", "sub") and e.a == var and e.type == var.dtype == s32):
        return None
    start, step = value_of(loop.start), value_of(loop.step)
    fixed = all(isinstance(x, (Const, Dim, Scalar, Index, Binary, Unary, Select)) for x in walk(e.b))
    if not fixed or {e.b.type, first.value.type} != {s32} or start is None or not step or step < 0:
        return None
    if any(isinstance(x, Index) and x.name == loop.index.name for x in walk(e.b)):
        return None
    most = -(-max(0, known.interval(loop.stop)[1] - start) // step)
    found: Range | None = None
    for begin, by in _cases(first.value, e.b if e.op == "add" else sub(0, e.b)):
        (low, high), (least, greatest) = known.interval(begin), known.interval(by)
        r = low + min(0, most * least), high + max(0, most * greatest)
        found = r if found is None else _join(found, r)
    assert found is not None
    low, high = bounds(var.dtype)
    return found if low <= found[0] and found[1] <= high else None


def _cases(a: Expr, b: Expr) -> Iterable[tuple[Expr, Expr]]:
    """Both, for each value of a remainder of few values that both depend on."""
    mine = {x for x in walk(a) if isinstance(x, Binary) and x.op in ("mod", "floormod")}
    for x in walk(b):
        if x in mine and interval(x)[1] - interval(x)[0] < _CASES:
            for n in range(interval(x)[0], interval(x)[1] + 1):
                yield _with(a, x, n), _with(b, x, n)
            return
    yield a, b


def _with(e: Expr, part: Expr, n: int) -> Expr:
    return const(n) if e == part else with_operands(e, lambda x: _with(x, part, n))


def _assigned(var: Var, values: list[Expr], wanted: Collection[str], known: Known) -> Range | None:
    """The values of ``values`` for variables in their ranges; None while none of them can be computed."""
    found: Range | None = None
    for e in values:
        if any(isinstance(x, Var) and x.name in wanted and x.name not in known.variables for x in walk(e)):
            continue
        r = known.interval(e) if not e.type.is_float else bounds(var.dtype)
        # An assignment converts as stores do.
        r = integers.saturate(r[0], var.dtype), integers.saturate(r[1], var.dtype)
        found = r if found is None else _join(found, r)
    return found


def _join(a: Range, b: Range) -> Range:
    return min(a[0], b[0]), max(a[1], b[1])


def _widened(old: Range | None, new: Range, var: Var, constants: list[int]) -> Range:
    """``new``, its ends that moved set to the next of ``constants``, or to the end of the type."""
    if old is None or old == new:
        return new
    least, most = bounds(var.dtype)
    low, high = new
    if low < old[0]:
        low = max((c for c in constants if least <= c <= low), default=least)
    if high > old[1]:
        high = min((c for c in constants if high <= c <= most), default=most)
    return low, high
