"""Sums of registers in lane code: equal to their value, and in normal form."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import examples
from tilemma.ir.lane import Reg
from tilemma.targets.ptx.lower.linear import Linear, in_32_bits, in_s32

REGISTERS = [Reg(name, "s32", uniform=name < "c") for name in "abcd"]
VALUES = dict(zip(REGISTERS, (3, -7, 1000, 2**31 - 1), strict=True))
TOP = 2**31
SMALL = st.integers(-9, 9)
sums = st.builds(
    lambda factors, const: sum(
        (Linear.of(r) * f for r, f in zip(REGISTERS, factors, strict=False)), Linear.of(const)
    ),
    st.lists(SMALL, max_size=4),
    st.one_of(SMALL, st.sampled_from((TOP, -TOP, 2**32 + 5))),
)


def value(x: Linear) -> int:
    return sum(VALUES[r] * f for r, f in x.terms) + x.const


def is_canonical(x: Linear) -> bool:
    names = [r.name for r, _ in x.terms]
    return names == sorted(set(names)) and all(f for _, f in x.terms)


@settings(max_examples=examples(100), deadline=None)
@given(sums, sums, SMALL, st.integers(1, 6))
def test_sums(x: Linear, y: Linear, factor: int, by: int) -> None:
    high, low = x.split(by)
    results = [
        (x + y, value(x) + value(y)),
        (x - y, value(x) - value(y)),
        (x * factor, value(x) * factor),
        (factor * x, value(x) * factor),
        (x + factor, value(x) + factor),
        (x + REGISTERS[1], value(x) + VALUES[REGISTERS[1]]),
        (high + low, value(x)),
        (x.variable + x.const, value(x)),
    ]
    for found, wanted in results:
        assert value(found) == wanted and is_canonical(found)
    assert high.divisible(by) and value(high.divided(by)) * by == value(high)
    assert 0 <= low.const < by and all(f % by for _, f in low.terms)
    assert x.divisible(by) == (all(f % by == 0 for _, f in x.terms) and x.const % by == 0)


@settings(max_examples=examples(60), deadline=None)
@given(sums, st.sampled_from((1, 2**30, 2**31, 2**32)))
def test_reduced_to_32_bits(x: Linear, factor: int) -> None:
    x = x * factor
    found = x.reduced
    assert (value(found) - value(x)) % 2**32 == 0 and is_canonical(found)
    assert all(-TOP <= n < TOP for n in (found.const, *(f for _, f in found.terms)))
    in_range = all(-TOP <= n < TOP for n in (x.const, *(f for _, f in x.terms)))
    assert (found is x) == in_range


def test_equal_sums_are_one() -> None:
    a, b, c, _ = (Linear.of(r) for r in REGISTERS)
    assert a + b + a == b + 2 * a == Linear(((REGISTERS[0], 2), (REGISTERS[1], 1)))
    assert c + a + b == a + b + c and (a + b) - (b + a) == Linear() and a + (b - a) == b
    assert (a + b).uniform and not (a + c).uniform and Linear.of(5).uniform
    assert Linear.of(5).known == 5 and a.known is None and (a - a + 3).known == 3
    assert a + 0 is a and Linear() + a == a and a * 1 is a and (a * 0).known == 0


def test_ranges_of_32_bits() -> None:
    assert in_s32((-TOP, TOP - 1)) and not in_s32((-TOP - 1, 0)) and not in_s32((0, TOP))
    assert in_32_bits((0, 2**32 - 1)) and not in_32_bits((0, 2**32))
    assert in_32_bits((-1, 5)) and not in_32_bits((-1, TOP)) and in_32_bits((-TOP, TOP - 1))
