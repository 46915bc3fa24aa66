"""Folding, common subexpressions, and code moved out of loops."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lanes import Lane

from tilemma.ir.lane import AtomInstr, Imm, Instr, LaneFor, LaneIf, Reg, Special, Vec
from tilemma.targets.ptx.lower.emitter import Emitter
from tilemma.targets.ptx.lower.linear import Linear


def source(e: Emitter, name: str, low: int = 0, high: int = 1000) -> Reg:
    return e.bounded(e.pure("mov.u32", "s32", Special(f"%{name}"), hint=name), low, high)


def mnemonics(ops) -> list[str]:
    return [op.mnemonic for op in ops if isinstance(op, Instr)]


small = st.integers(-8, 8)


@given(st.lists(st.tuples(small, small), min_size=1, max_size=4), small, st.lists(small, min_size=4, max_size=4))
def test_a_sum_is_computed_as_it_is_written(terms, const, values) -> None:
    e = Emitter()
    regs = [source(e, f"x{i}", -8, 8) for i in range(len(terms))]
    total = Linear(const=const)
    for reg, (a, b) in zip(regs, terms, strict=True):
        total = total + Linear.of(reg) * a - Linear.of(reg) * b
    result = e.value(total)
    lane = Lane({f"%x{i}": v for i, v in enumerate(values)})
    lane.run(e.regions[0].ops)
    expected = const + sum((a - b) * v for (a, b), v in zip(terms, values, strict=False))
    assert lane.get(result) == expected
    low, high = e.range_of(total)
    assert low <= expected <= high
    known = e.range_of(result)
    assert low <= known[0] <= expected <= known[1] <= high, "the register forgets the bounds of its sum"


@given(st.integers(0, 500), st.integers(1, 40), st.integers(0, 3), st.integers(0, 60))
def test_division_by_a_constant(value: int, by: int, factor: int, const: int) -> None:
    e = Emitter()
    x = Linear.of(source(e, "x", 0, 500)) * factor + const
    quotient, rest = e.divide(x, by)
    q, r = e.value(quotient), e.value(rest)
    lane = Lane({"%x": value})
    lane.run(e.regions[0].ops)
    assert (lane.get(q), lane.get(r)) == divmod(value * factor + const, by)
    for part, got in ((quotient, q), (rest, r)):
        low, high = e.range_of(part)
        assert low <= lane.get(got) <= high


@given(st.integers(0, 2**31 - 1), st.integers(1, 2**31 - 1), st.integers(-2, 2))
def test_division_of_a_uniform_number_by_a_constant(value: int, by: int, near: int) -> None:
    """By a multiplication, exact up to the largest number, and next to the multiples of the divisor."""
    value = min(max(0, value // by * by + near), 2**31 - 1)
    e = Emitter()
    quotient, rest = e.divide(Linear.of(source(e, "x", 0, 2**31 - 1)), by)
    q, r = e.value(quotient), e.value(rest)
    lane = Lane({"%x": value})
    lane.run(e.regions[0].ops)
    assert (lane.get(q), lane.get(r)) == divmod(value, by)
    assert by == 1 or not [x for x in mnemonics(e.regions[0].ops) if x.startswith(("div", "rem"))]


@given(st.integers(0, 60), st.integers(1, 40), st.integers(-5, 5), st.integers(-5, 5), st.integers(0, 100))
def test_division_of_a_sum_that_is_never_negative(value: int, by: int, first: int, second: int, more: int) -> None:
    """Terms with negative factors make the part that ``by`` does not divide negative, not the sum."""
    e = Emitter()
    least = sum(min(0, 60 * factor) for factor in (first, second))
    x, y = Linear.of(source(e, "x", 0, 60)), Linear.of(source(e, "y", 0, 60))
    total = x * first + y * second + (more - least)
    quotient, rest = e.divide(total, by)
    q, r = e.value(quotient), e.value(rest)
    lane = Lane({"%x": value, "%y": 60 - value})
    lane.run(e.regions[0].ops)
    assert (lane.get(q), lane.get(r)) == divmod(value * first + (60 - value) * second + more - least, by)


COMPARE = {
    "lt": int.__lt__,
    "le": int.__le__,
    "gt": int.__gt__,
    "ge": int.__ge__,
    "eq": int.__eq__,
    "ne": int.__ne__,
}


@given(st.sampled_from(sorted(COMPARE)), small, small, small, small, st.booleans())
def test_comparisons(op: str, x: int, a: int, b: int, c: int, swap: bool) -> None:
    e = Emitter()
    reg = source(e, "x", -8, 8)
    left, right = Linear.of(reg) * a + b, Linear(const=c)
    if swap:
        left, right = right, left
    found = e.compare(op, left, right)
    lane = Lane({"%x": x})
    lane.run(e.regions[0].ops)
    got = found if isinstance(found, bool) else bool(lane.get(found))
    values = (a * x + b, c)
    assert got == COMPARE[op](*(reversed(values) if swap else values))


def test_what_is_known_costs_nothing() -> None:
    e = Emitter()
    x = source(e, "x", 0, 31)
    before = len(e.regions[0].ops)
    assert e.compare("lt", Linear.of(x), Linear(const=32)) is True
    assert e.compare("ge", Linear.of(x), Linear(const=32), unsigned=True) is False
    assert e.value(Linear.of(x) - x + 5) == Imm(5)
    assert e.divide(Linear.of(x) * 64 + 3, 64) == (Linear.of(x), Linear(const=3))
    assert len(e.regions[0].ops) == before


def test_the_same_computation_is_made_once() -> None:
    e = Emitter()
    x = source(e, "x")
    assert e.value(Linear.of(x) * 3 + 1) == e.value(Linear.of(x) * 3 + 1)
    assert mnemonics(e.regions[0].ops) == ["mov.u32", "mul.lo.s32", "add.s32"]


def test_what_a_loop_does_not_change_stands_before_it() -> None:
    e = Emitter()
    x, n = source(e, "x"), source(e, "n")
    with e.loop("i", Imm(0), n, Imm(1)) as i:
        e.do("use", (), (e.value(Linear.of(x) * 3 + Linear.of(i) * 5),))
    loop = e.regions[0].ops[-1]
    assert isinstance(loop, LaneFor)
    assert mnemonics(e.regions[0].ops) == ["mov.u32", "mov.u32", "mul.lo.s32"]
    assert mnemonics(loop.body) == ["mad.lo.s32", "use"]


def test_out_of_nested_loops_as_far_as_it_goes() -> None:
    e = Emitter()
    x, n = source(e, "x"), source(e, "n")
    with e.loop("i", Imm(0), n, Imm(1)) as i, e.loop("j", Imm(0), n, Imm(1)) as j:
        e.do("use", (), (e.value(Linear.of(i) * 5 + Linear.of(j) * 7 + Linear.of(x) * 3),))
    outer = e.regions[0].ops[-1]
    assert isinstance(outer, LaneFor)
    inner = outer.body[-1]
    assert isinstance(inner, LaneFor)
    assert mnemonics(outer.body) == ["mad.lo.s32"] and mnemonics(inner.body) == ["mad.lo.s32", "use"]


def test_branches_keep_what_they_alone_need() -> None:
    e = Emitter()
    x, p = source(e, "x"), e.reg("p", "pred")
    with e.branch(p):
        e.do("use", (), (e.value(Linear.of(x) * 3),))
    branch = e.regions[0].ops[-1]
    assert isinstance(branch, LaneIf)
    assert mnemonics(branch.then) == ["mul.lo.s32", "use"]


def test_variables_are_read_where_they_stand() -> None:
    """After an assignment the same expression is another value."""
    e = Emitter()
    x = e.reg("x", "s32", mutable=True)
    first = e.value(Linear.of(x) * 3)
    e.do("mov.b32", (x,), (Imm(7),))
    assert e.value(Linear.of(x) * 3) != first
    with e.loop("i", Imm(0), Imm(4), Imm(1)):
        e.do("use", (), (e.value(Linear.of(x) * 3),))
    loop = e.regions[0].ops[-1]
    assert isinstance(loop, LaneFor) and mnemonics(loop.body) == ["mul.lo.s32", "use"]


def test_variables_inside_a_vector_too() -> None:
    e = Emitter()
    low, high = e.reg("low", "b16", mutable=True), e.reg("high", "b16")
    first = e.pure("mov.b32", "b32", Vec((low, high)))
    e.do("mov.b16", (low,), (Imm(7),))
    assert e.pure("mov.b32", "b32", Vec((low, high))) != first


def test_names_are_unique_and_no_special_registers() -> None:
    e = Emitter()
    names = [e.reg(hint, "s32").name for hint in ("a", "a", "a_1", "tid", "tid", "p1.1", "p1.1", "")]
    assert len(set(names)) == len(names) and not {"tid", "laneid"} & set(names)


@pytest.mark.parametrize("uniform", [True, False])
def test_uniform_is_what_all_operands_are(uniform: bool) -> None:
    e = Emitter()
    x = e.reg("x", "s32", uniform=uniform)
    assert e.pure("add.s32", "s32", x, Imm(1)).uniform is uniform


def test_cse_computes_a_result_once_while_its_region_is_open() -> None:
    e = Emitter()
    x, moving = source(e, "x"), e.reg("moving", "s32", mutable=True)
    calls: list[str] = []

    def sum_of(name: str, *regs: Reg) -> Reg:
        def make() -> Reg:
            calls.append(name)
            return e.register(Linear.of(regs[0]) + 1 if len(regs) == 1 else Linear.of(regs[0]) + regs[1])

        return e.cse((name, regs), make)

    with e.branch(e.pure("setp", "pred", x)):
        inner = sum_of("inside", x)
        with e.branch(e.pure("setp.other", "pred", x)):
            assert sum_of("inside", x) is inner
    assert calls == ["inside"]
    assert sum_of("inside", x) is not inner  # that one was written where not every way comes by
    first, second = sum_of("moving", x, moving), sum_of("moving", x, moving)
    assert first == second and calls == ["inside", "inside", "moving", "moving"]
    e.do("mov.b32", (moving,), (Imm(0),))
    assert sum_of("moving", x, moving) != first


def test_what_changes_is_computed_anew_where_it_may_have_changed() -> None:
    """In each iteration of a loop, after an assignment anywhere before, and where paths with and without it
    meet."""
    e = Emitter()
    moving = e.reg("moving", "s32", mutable=True)

    def now() -> Reg:
        return e.register(Linear.of(moving) + 1)

    outside = now()
    with e.loop("i", Imm(0), Imm(4), Imm(1)):
        first = now()
        assert first != outside
        with e.branch(e.pure("setp", "pred", Imm(0))):
            assert now() == first
            e.do("mov.b32", (moving,), (Imm(0),))
            inside = now()
            assert inside != first
        assert now() not in (first, inside)
    e.add(AtomInstr("SM80_16x8x8_F16F16F16F16_TN", (moving,), (), ()))
    assert now() != outside
