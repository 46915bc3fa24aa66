"""Interval analysis against execution: bounds hold for every value, and are the best where a rule says so."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import examples
from tilemma import dtypes
from tilemma.arithmetic import integers
from tilemma.ir.expr import (
    ARITHMETIC,
    BITWISE,
    COMPARISON,
    Binary,
    Cast,
    Const,
    Dim,
    Expr,
    Index,
    Select,
    Unary,
    Var,
    promote,
    substitute,
)
from tilemma.ir.ranges import Known, below, count_check, enters, factors, interval, loop_index, wraps
from tilemma.ir.tile import Assign, Declare
from tilemma.ir.variables import variable_ranges
from tilemma.launch import MAX_EXTENT

WIDE = (dtypes.s32, dtypes.u32, dtypes.s64, dtypes.u64)
OPERATIONS = (*ARITHMETIC, *BITWISE, *COMPARISON)
# Operations whose bounds are attained, whatever the ranges of the operands, unless the result may wrap.
TIGHT = ("add", "sub", "mul", "min", "max", "floordiv", "cdiv", "div", "shr")


def around(t: dtypes.DType) -> st.SearchStrategy[tuple[int, int]]:
    """A short range, often at an edge of the type."""
    low, high = integers.bounds(t)
    starts = [low, low + 1, -9, -3, -1, 0, 1, 5, 29, 30, 31, 33, 62, high // 2, high - 4, high - 1]
    start = st.one_of(st.sampled_from([x for x in starts if low <= x <= high]), st.integers(low, high))
    return st.tuples(start, st.integers(0, 6)).map(lambda r: (r[0], min(r[0] + r[1], high)))


@settings(deadline=None, max_examples=examples(1500))
@given(st.data(), st.sampled_from(OPERATIONS), st.sampled_from(WIDE))
def test_bounds_of_every_operation(data: st.DataObject, op: str, t: dtypes.DType) -> None:
    """All results are within the bounds; those of monotonic operations are attained."""
    ranges = {"a": data.draw(around(t)), "b": data.draw(around(t))}
    e = Binary(op, Var("a", t), Var("b", t))
    low, high = Known(variables=ranges).interval(e)
    operate, exact = integers.binary(op, t), integers.exact(op, t)
    pairs = [(a, b) for a in range(*half_open(ranges["a"])) for b in range(*half_open(ranges["b"]))]
    results = [operate(a, b) for a, b in pairs]
    assert low <= min(results) and max(results) <= high, (op, ranges)
    wrapped = [operate(a, b) != exact(a, b) for a, b in pairs]
    if op in TIGHT and not any(wrapped) and (op != "shr" or ranges["b"][0] >= 0):
        assert (low, high) == (min(results), max(results)), (op, ranges)
    if any(wrapped):
        assert (low, high) == integers.bounds(t)


def half_open(r: tuple[int, int]) -> tuple[int, int]:
    return r[0], r[1] + 1


A, B = Var("a", dtypes.s32), Var("b", dtypes.s32)


@pytest.mark.parametrize(
    ("op", "a", "b", "bounds"),
    [
        ("mod", (0, 100), (7, 7), (0, 6)), ("mod", (-100, 100), (7, 7), (-6, 6)),
        ("mod", (-100, -1), (-7, -7), (-6, 0)),
        ("mod", (0, 100), (3, 7), (0, 6)), ("mod", (0, 4), (7, 7), (0, 4)), ("mod", (8, 12), (7, 7), (1, 5)),
        ("mod", (0, 4), (5, 9), (0, 4)), ("mod", (0, 5), (5, 9), (0, 5)), ("mod", (0, 100), (0, 16), (0, 15)),
        ("mod", (0, 100), (0, 0), (0, 0)), ("mod", (-12, -8), (7, 7), (-5, -1)),
        ("floormod", (-100, 100), (7, 7), (0, 6)), ("floormod", (-100, 100), (-7, -7), (-6, 0)),
        ("floormod", (0, 4), (7, 7), (0, 4)), ("floormod", (-6, -2), (7, 7), (1, 5)),
        ("floormod", (-100, 100), (0, 7), (0, 6)), ("floormod", (-100, 100), (-3, 7), (-2, 6)),
        ("floormod", (0, 100), (5, 101), (0, 100)), ("floormod", (0, 100), (101, 200), (0, 100)),
        ("and", (0, 100), (-5, 15), (0, 100)), ("and", (0, 100), (5, 15), (0, 15)),
        ("and", (-8, -1), (-4, -1), (-8, 7)), ("or", (4, 6), (0, 3), (4, 7)),
        ("xor", (0, 5), (0, 2), (0, 7)), ("or", (-8, 3), (0, 3), (-8, 7)),
        ("shl", (1, 3), (0, 4), (1, 48)), ("shl", (0, 0), (0, 99), (0, 0)), ("shr", (-9, 9), (1, 40), (-5, 4)),
        ("shl", (1, 1), (31, 31), (-(2**31), 2**31 - 1)), ("shr", (5, 9), (-1, 3), (0, 9)),
        ("div", (-(2**31), 0), (-1, 1), (-(2**31), 2**31 - 1)), ("floordiv", (0, 9), (0, 4), (0, 9)),
        ("cdiv", (1, 9), (0, 4), (0, 9)), ("div", (-9, 9), (2, 4), (-4, 4)),
        ("floordiv", (-9, 9), (2, 4), (-5, 4)),
    ],
)  # fmt: skip
def test_bounds_of_operations_that_are_not_monotonic(
    op: str, a: tuple[int, int], b: tuple[int, int], bounds: tuple[int, int]
) -> None:
    """One more or less at either end is wrong: too wide, or a result left out."""
    assert Known(variables={"a": a, "b": b}).interval(Binary(op, A, B)) == bounds


def test_bounds_of_leaves() -> None:
    n = Dim("N")
    assert interval(n) == (0, MAX_EXTENT)
    assert Known(frozenset("N")).interval(n) == (1, MAX_EXTENT)
    assert interval(Index("i", Const(9))) == (0, 8)
    assert interval(Index("i", n)) == (0, MAX_EXTENT - 1)
    assert interval(loop_index("i", Const(9), Var("s", dtypes.s32), Const(9))) == (-(2**31), 8)
    assert interval(loop_index("i", Const(9), Const(2), Var("s", dtypes.s32))) == (2, 2**31 - 2)
    assert interval(loop_index("i", Const(9), Const(2), Const(8))) == (0, 8)
    for t in (*WIDE, dtypes.s8, dtypes.u16):
        assert interval(Var("x", t)) == integers.bounds(t)
    assert interval(Cast(Var("x", dtypes.s64), dtypes.u8)) == (0, 255)
    assert interval(Unary("neg", Var("x", dtypes.s8))) == (-127, 128)
    assert interval(Unary("neg", Var("x", dtypes.s32))) == integers.bounds(dtypes.s32)
    assert interval(Unary("not", Var("x", dtypes.u8))) == (-256, -1)
    assert Known(variables={"x": (0, 9)}).interval(Unary("not", Var("x", dtypes.u32))) == (2**32 - 10, 2**32 - 1)


def test_the_first_of_a_group_is_not_beyond_its_members() -> None:
    """``a // (c * d) * c`` does not wrap where a does not, however large a / (c * d) may be by itself."""
    i, n = Index("i", Binary("mul", Dim("M"), Dim("N"))), Binary("cdiv", Dim("N"), Const(256))
    first = Binary("mul", Binary("floordiv", i, Binary("mul", Const(16), n)), Const(16))
    assert interval(first) == (0, 2**31 - 16)
    other = Binary("mul", Binary("floordiv", i, Binary("mul", Const(15), n)), Const(16))
    assert interval(other) == integers.bounds(dtypes.s32)


# ---- whole expressions -----------------------------------------------------------------------------------


def variables(t: dtypes.DType) -> st.SearchStrategy[Expr]:
    return st.sampled_from("xyz").map(lambda n: Var(f"{n}_{t.name}", t))


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> Expr:
    t = draw(st.sampled_from((*WIDE, dtypes.s8, dtypes.u16)))
    kind = draw(st.sampled_from(["leaf", "binary", "binary", "binary", "select", "cast", "unary"]))
    if depth == 0 or kind == "leaf":
        edge = st.sampled_from([*integers.bounds(t), 0, 1, 2, 7, 31])
        return draw(st.one_of(variables(t), edge.map(lambda v: Const(v, t))))
    sub = expressions(depth - 1)
    match kind:
        case "binary":
            return Binary(draw(st.sampled_from(OPERATIONS)), draw(sub), draw(sub))
        case "select":
            v = draw(variables(t))
            limit = Const(draw(st.integers(*integers.bounds(t))), t)
            cond = Binary(draw(st.sampled_from(COMPARISON)), v, limit)
            return Select(cond, draw(st.one_of(st.just(v), sub)), draw(st.one_of(st.just(v), sub)))
        case "cast":
            return Cast(draw(sub), t)
    a = draw(sub)
    return Unary(draw(st.sampled_from(["neg", "not"])), a)


def value(e: Expr, names: dict[str, int]) -> int:
    match e:
        case Const():
            return int(e.value)
        case Var() | Dim() | Index():
            return names[e.name]
        case Cast():
            return integers.saturate(value(e.a, names), e.dtype)
        case Select():
            chosen = e.a if value(e.cond, names) else e.b
            return integers.wrap(value(chosen, names), e.type)
        case Unary():
            a = value(e.a, names)
            return (1 - a) if e.type.kind == "bool" else integers.unary(e.op, integers.wrap(a, e.type), e.type)
        case Binary():
            t = promote(e.a.type, e.b.type)
            a, b = (integers.wrap(value(x, names), t) for x in (e.a, e.b))
            return integers.binary(e.op, t)(a, b)
    raise AssertionError(e)


@settings(deadline=None, max_examples=examples(600))
@given(st.data(), expressions())
def test_bounds_of_expressions(data: st.DataObject, e: Expr) -> None:
    """At random values of the variables within random ranges; the ends more often than their share."""
    ranges: dict[str, tuple[int, int]] = {}
    chosen: dict[str, list[int]] = {}
    for name in (f"{n}_{t.name}" for t in (*WIDE, dtypes.s8, dtypes.u16) for n in "xyz"):
        low, high = ranges[name] = data.draw(around(dtypes.dtype(name.split("_")[1])))
        chosen[name] = [low, high, (low + high) // 2]
    low, high = Known(variables=ranges).interval(e)
    for seed in range(12):
        r = random.Random(seed)
        names = {n: r.choice(v) for n, v in chosen.items()}
        got = value(e, names)
        assert low <= got <= high, (e, names)
        if isinstance(e, Binary) and e.type.is_integer and not wraps(e) and e.a.type == e.b.type == e.type:
            a, b = value(e.a, names), value(e.b, names)
            assert integers.exact(e.op, e.type)(a, b) == got


@settings(deadline=None, max_examples=examples(300))
@given(st.data(), expressions(2), expressions(2))
def test_certainly_below(data: st.DataObject, a: Expr, b: Expr) -> None:
    for low, high in ((a, b), (a, Binary("add", a, b)), (a, Binary("add", a, Const(1)))):
        if below(low, high):
            for seed in range(8):
                r = random.Random(seed)
                names = {
                    f"{n}_{t.name}": r.choice([*integers.bounds(t), 0, 1])
                    for t in (*WIDE, dtypes.s8, dtypes.u16)
                    for n in "xyz"
                }
                assert value(low, names) < value(high, names), (low, high, names)


def test_loops_that_are_entered() -> None:
    i, n = Index("i", Const(2**31 - 1)), Dim("N")
    far = Binary("add", i, Const(2))
    assert below(Index("i", Const(9)), Binary("add", Index("i", Const(9)), Const(1)))
    assert not below(i, far), "it may wrap"
    assert enters(Index("k", far, checked=True), i, far)
    assert not enters(Index("k", far), i, far)
    assert not enters(Index("k", n, checked=True), i, Binary("add", i, n))
    assert enters(Index("k", n, checked=True), i, Binary("add", i, n), Known(frozenset("N")))


def test_dimensions_that_an_extent_needs() -> None:
    m, n = Dim("M"), Dim("N")
    assert factors(Binary("mul", Binary("cdiv", m, Const(4)), n)) == {"M", "N"}
    assert factors(Binary("add", m, n)) == factors(Const(4)) == frozenset()


# ---- variables -------------------------------------------------------------------------------------------


def test_rings_and_counters() -> None:
    """A ring keeps to its slots; a counter may wrap, so nothing is known of it."""
    slot, count, kept = (Var(n, dtypes.s32) for n in ("slot", "count", "kept"))
    one_on = Binary("add", slot, Const(1))
    ring = Select(Binary("eq", slot, Const(6)), Const(0), one_on)
    ops = [
        Declare(slot, Const(0)), Assign(slot, ring),
        Declare(count, Const(0)), Assign(count, Binary("add", count, Const(1000000000))),
        Declare(kept, Const(3)), Assign(kept, Binary("max", Binary("min", count, Const(9)), Const(-2))),
    ]  # fmt: skip
    found = variable_ranges(ops)
    assert found == {"slot": (0, 6), "count": integers.bounds(dtypes.s32), "kept": (-2, 9)}
    wrong = Select(Binary("eq", slot, Const(6)), Const(0), Binary("add", slot, Const(2)))
    assert variable_ranges([Declare(slot, Const(0)), Assign(slot, wrong)])["slot"][1] > 6


@settings(deadline=None, max_examples=examples(300))
@given(st.data())
def test_ranges_of_variables_hold(data: st.DataObject) -> None:
    """Whatever the order in which assignments are executed."""
    names = {f"{n}_{t.name}": Var(f"{n}_{t.name}", t) for t in (*WIDE, dtypes.s8, dtypes.u16) for n in "xyz"}
    start = {n: data.draw(st.sampled_from([0, 1, integers.bounds(v.dtype)[1]])) for n, v in names.items()}
    declared = [Declare(v, Const(start[n], v.dtype)) for n, v in names.items()]
    chosen = data.draw(st.lists(st.tuples(st.sampled_from(sorted(names)), expressions(2)), min_size=1, max_size=5))
    assigned = [Assign(names[n], e) for n, e in chosen]
    ranges = variable_ranges([*declared, *assigned])
    r = random.Random(data.draw(st.integers(0, 2**32)))
    now = dict(start)
    for _ in range(40):
        op = r.choice(assigned)
        now[op.var.name] = integers.saturate(value(op.value, now), op.var.dtype)
        low, high = ranges[op.var.name]
        assert low <= now[op.var.name] <= high, (op, now)


def test_substitution_folds_as_execution_computes() -> None:
    x = Var("x", dtypes.s32)
    e = Binary("floordiv", Binary("mul", x, Const(1500000000)), Const(4))
    assert substitute(e, {"x": Const(2)}) == Const(-323741824)


# Of all pairs of ranges of small numbers: by how much the bounds of an operation go beyond its results, together.
EXCESS = {"add": 0, "sub": 0, "mul": 0, "min": 0, "max": 0, "floordiv": 0, "cdiv": 0, "div": 0, "mod": 492,
          "floormod": 1718, "and": 13941, "or": 37556, "xor": 17526, "shl": 0, "shr": 0}  # fmt: skip


@pytest.mark.parametrize("op", EXCESS)
def test_bounds_are_as_narrow_as_they_were(op: str) -> None:
    """A rule that gives up more often than it has to makes no wrong code, but slower code."""
    least = 0 if op in ("shl", "shr") else -5
    ends = [(low, high) for low in range(-5, 7) for high in range(low, 7)]
    operate = integers.binary(op, dtypes.s32)
    results = {(a, b): operate(a, b) for a in range(-5, 7) for b in range(least, 7)}
    excess = 0
    for a in ends:
        for b in ends:
            if b[0] < least:
                continue
            e = Binary(op, Var("a", dtypes.s32), Var("b", dtypes.s32))
            low, high = Known(variables={"a": a, "b": b}).interval(e)
            found = [results[x, y] for x in range(*half_open(a)) for y in range(*half_open(b))]
            assert low <= min(found) and max(found) <= high, (op, a, b)
            excess += min(found) - low + high - max(found)
    assert excess <= EXCESS[op]


EDGES = [
    (low + n, low + n + size) for t in WIDE for low in integers.bounds(t) for n in (-3, -1, 0) for size in (0, 2)
]
SHORT = sorted({(max(low, -(2**63)), high) for low, high in [*EDGES, (-2, 2), (0, 3), (1, 1), (2**30, 2**30 + 1)]})


@pytest.mark.parametrize("op", ["add", "sub", "mul", "floordiv"])
def test_what_may_wrap_wraps_for_some_values(op: str) -> None:
    """Also where an operand is converted, and changes by that."""
    for s in WIDE:
        for t in WIDE:
            both = promote(s, t)
            e = Binary(op, Var("a", s), Var("b", t))
            inside = [[r for r in SHORT if integers.fits(r[0], u) and integers.fits(r[1], u)] for u in (s, t)]
            for a in inside[0]:
                for b in inside[1]:
                    if op == "floordiv" and b[0] <= 0 <= b[1]:
                        continue
                    ends = [(x, y) for x in a for y in b]
                    operate, exact = integers.binary(op, both), integers.exact(op, both)
                    wrong = any(
                        operate(integers.wrap(x, both), integers.wrap(y, both)) != exact(x, y)
                        or not integers.fits(x, both)
                        or not integers.fits(y, both)
                        for x, y in ends
                    )
                    assert wraps(e, Known(variables={"a": a, "b": b})) == wrong, (e, a, b)


@pytest.mark.parametrize("op", COMPARISON)
def test_a_choice_knows_its_condition(op: str) -> None:
    """Bounds on a variable, chosen where it compares with a constant: those of the values that remain."""
    x = Var("x", dtypes.s32)
    for low, high in ((0, 0), (0, 1), (2, 6), (-3, 3)):
        for at in range(low - 2, high + 3):
            holds = integers.binary(op, dtypes.s32)
            sides = [[v for v in range(low, high + 1) if bool(holds(v, at)) == side] for side in (True, False)]
            for n, values in enumerate(sides):
                chosen = (x, Const(values[0])) if n == 0 and values else (Const(values[0]), x) if values else None
                if chosen is None:
                    continue
                e = Select(Binary(op, x, Const(at)), *chosen)
                found = Known(variables={"x": (low, high)}).interval(e)
                assert found == (values[0], values[-1]), (op, at, low, high)


def test_loops_that_stay_inside_their_extent() -> None:
    """Only they have no limits of their own."""
    n, m, zero = Dim("N"), Dim("M"), Const(0)
    for c in (-2, -1, 0, 1, 2):
        for stop, inside in (
            (Binary("add", n, Const(c)), c <= 0),
            (Binary("sub", n, Const(c)), c >= 0),
            (Binary("min", n, Const(c)), True),
            (Binary("min", Const(c), n), True),
            (Binary("max", n, Const(c)), False),
            (Binary("add", m, Const(c)), False),
        ):
            assert (loop_index("i", n, zero, stop).limits is None) == inside, stop
            assert loop_index("i", n, Const(-1), stop).limits == (Const(-1), stop)
            assert (loop_index("i", n, Const(-1), stop, checked=True).limits is None) == inside
    assert loop_index("i", n, zero, n).limits is None
    for last, inside in ((7, True), (8, True), (9, False)):
        assert (loop_index("i", Const(8), zero, Const(last)).limits is None) == inside
    start = Index("k", Const(4))
    assert loop_index("i", n, start, n).start == start and loop_index("i", n, zero, n).start is None


def test_conditions_on_the_count_of_a_loop() -> None:
    """`start + count` may wrap for some sizes only where a condition says for which."""
    n, m, i = Dim("N"), Dim("M"), Index("i", Dim("M"))
    for start, stop in (
        (n, Binary("add", n, m)), (i, Binary("add", i, n)), (i, Binary("add", n, i)),
        (n, Binary("add", n, Const(5))), (n, Binary("add", n, Binary("mul", m, Const(1000)))),
        (n, Binary("add", n, Binary("cdiv", m, Const(7)))), (n, Binary("add", n, Binary("floordiv", m, Const(2)))),
    ):  # fmt: skip
        condition = count_check(start, stop)
        assert condition is not None or not wraps(stop)
        for names in (
            {"N": a, "M": b} for a in (0, 1, 2**30, MAX_EXTENT) for b in (0, 1, 6, 2**21, 2**30, MAX_EXTENT)
        ):
            last = {**names, "i": max(0, names["M"] - 1)}
            operands = [value(x, last) for x in (stop.a, stop.b)]
            if condition is not None and value(condition, names):
                assert sum(operands) < 2**31, (stop, names)
            if sum(operands) + 1 < 2**31 and condition is not None and "mul" not in str(stop):
                assert value(condition, names), (stop, names)
    assert count_check(n, Binary("add", m, Const(5))) is None and count_check(n, Binary("sub", n, m)) is None
