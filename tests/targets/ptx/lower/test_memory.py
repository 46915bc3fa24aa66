"""Symbolic shared-memory addresses against the layouts' own integer function."""

from __future__ import annotations

import functools
import itertools
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import Lane, runtime, shared_buffer

from tests.sampling import examples
from tilemma import dtypes
from tilemma.ir.expr import const
from tilemma.ir.lane import Reg
from tilemma.ir.plans import SharedLayoutPlan
from tilemma.ir.types import View
from tilemma.layouts import plain_layout, shared_layout
from tilemma.targets.ptx.lower.emitter import Emitter
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.memory import _possible_bits, matrix, place, shared_address, swizzled

SHARED = 4096


def plan_of(t: dtypes.DType, rows: int, cols: int, atom: int) -> SharedLayoutPlan:
    size = rows * cols * t.bytes
    if atom == 0:
        return SharedLayoutPlan(0, cols * t.bytes, rows, size, 16)
    return SharedLayoutPlan(atom, atom, rows, size, 8 * atom)


@st.composite
def coordinates(draw, limit: int):
    """(digits as (largest value, factor), constant) of a coordinate below ``limit``, by mixed radix."""
    digits, factor, rest = [], 1, limit
    while rest > 1 and draw(st.booleans()):
        step = draw(st.sampled_from([d for d in (2, 3, 4, 8, 16) if rest % d == 0] or [1]))
        if step == 1:
            break
        if draw(st.booleans()):
            digits.append((step - 1, factor))
        factor, rest = factor * step, rest // step
    const_ = draw(st.integers(0, limit - 1 - sum(top * f for top, f in digits)))
    return digits, const_


@st.composite
def accesses(draw):
    t = draw(st.sampled_from([dtypes.f16, dtypes.f32, dtypes.u8, dtypes.f64]))
    atom = draw(st.sampled_from([0, 16, 32, 64, 128]))
    rows = 8 * draw(st.integers(1, 16))
    span = max(atom, 16) // t.bytes
    cols = span * draw(st.integers(1, 4))
    return t, atom, rows, cols, draw(coordinates(rows)), draw(coordinates(cols))


@settings(max_examples=examples(300), deadline=None)
@given(accesses(), st.data())
def test_address_of_an_element_is_the_layouts_offset(access, data) -> None:
    t, atom, rows, cols, row, col = access
    plan = plan_of(t, rows, cols, atom)
    layout = (
        plain_layout(t, rows, cols) if atom == 0 else shared_layout(t, rows, cols, "K", atom if atom > 16 else 0)
    )
    lo, buffer = shared_buffer(plan, rows, cols, t, offset=2048)
    special = {"shared": SHARED}
    linears, at = [], []
    for axis, (digits, fixed) in (("r", row), ("c", col)):
        total, value = Linear(const=fixed), fixed
        for i, (top, factor) in enumerate(digits):
            total = total + Linear.of(runtime(lo, f"{axis}{i}", 0, top)) * factor
            digit = data.draw(st.integers(0, top))
            special[f"%{axis}{i}"] = digit
            value += digit * factor
        linears.append(total)
        at.append(value)
    spot = place(lo, buffer.whole(), linears)
    lane = Lane(special)
    lane.run(lo.e.regions[0].ops)
    assert lane.get(spot.address) == SHARED + 2048 + layout.offset(*at)


@pytest.mark.parametrize("atom", [32, 64, 128])
def test_known_columns_cost_one_xor_each(atom: int) -> None:
    """Rows by lane, columns known: one base, and one XOR for each distinct constant in bits 4 to 6."""
    plan = plan_of(dtypes.f16, 64, 128, atom)
    lo, _ = shared_buffer(plan, 64, 128)
    row = Linear.of(runtime(lo, "lane", 0, 7))
    before = len(lo.e.regions[0].ops)
    spots = [
        shared_address(lo, plan, Linear(), row + 8 * i, Linear(const=32 * k)) for i in range(8) for k in range(8)
    ]
    added = len(lo.e.regions[0].ops) - before
    distinct = len({32 * k % atom for k in range(8)})
    assert added <= 6 + distinct, "base, swizzle, and one register a constant"
    assert len({(s.base, s.offset) for s in spots}) == len(spots)


def test_a_slot_chosen_at_run_time_is_added_after_the_swizzle() -> None:
    plan = plan_of(dtypes.f16, 64, 64, 128)
    lo, _ = shared_buffer(plan, 64, 64)
    slot = runtime(lo, "slot", 0, 3)
    lane = runtime(lo, "lane", 0, 63)
    spot = shared_address(lo, plan, Linear.of(slot) * plan.size, Linear.of(lane), Linear(const=48))
    layout = shared_layout("f16", 64, 64, "K", 128)
    for s in range(4):
        for row in (0, 1, 7, 63):
            values = Lane({"shared": SHARED, "%slot": s, "%lane": row})
            values.run(lo.e.regions[0].ops)
            assert values.get(spot) == SHARED + s * plan.size + layout.offset(row, 24)


def test_views_compose_into_rows_and_columns() -> None:
    plan = plan_of(dtypes.f16, 128, 64, 128)
    lo, buffer = shared_buffer(plan, 128, 64)
    view = View(buffer, (const(64), const(16)), buffer.whole().axes[:1])
    found = matrix(lo, view)
    assert found.position((Linear(const=3),)) == (Linear(const=67), Linear(const=16))


@given(st.integers(0, 2**20 - 1), st.sampled_from([16, 32, 64, 128]))
def test_swizzle_of_a_constant(line: int, atom: int) -> None:
    total, flip, offset = swizzled(Emitter(), atom, Linear(const=line))
    bits = {16: 0, 32: 1, 64: 2, 128: 3}[atom]
    assert total.const + flip + offset == line ^ (line >> 3 & ((1 << bits) - 1) << 4)


class Ranges:
    """The ranges of registers, and of sums of their multiples."""

    def __init__(self, tops: list[int]) -> None:
        self.registers = [Reg(f"r{i}", "b32") for i in range(len(tops))]
        self.tops = dict(zip(self.registers, tops, strict=True))

    def range_of(self, x: Linear | Reg) -> tuple[int, int]:
        if isinstance(x, Reg):
            return 0, self.tops[x]
        return x.const, x.const + sum(f * self.tops[r] for r, f in x.terms)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, 2, 3, 4, 6, 8, 16, 48])), min_size=1, max_size=3),
    st.booleans(),
)
def test_bits_that_may_be_set(terms: list[tuple[int, int]], apart: bool) -> None:
    """No value of the sum has another bit; where the terms share none, every bit is in some value."""
    if apart:
        terms = [(top % 8, 8**n) for n, (top, _) in enumerate(terms)]
    ranges = Ranges([top for top, _ in terms])
    x = Linear(tuple(zip(ranges.registers, (f for _, f in terms), strict=True)))
    values = [sum(v) for v in itertools.product(*([f * n for n in range(top + 1)] for top, f in terms))]
    every = functools.reduce(operator.or_, values)
    found = _possible_bits(ranges, x)
    assert every & ~found == 0
    if apart:
        assert found.bit_length() == every.bit_length() and found & -found == every & -every
