"""Numbers at both sides of each limit: of indices, of operands in errors, of arrivals, of truth values."""

from __future__ import annotations

import pytest

from tilemma import dtypes
from tilemma.arithmetic.integers import bounds, fits
from tilemma.dtypes import BY_NAME
from tilemma.ir.checks import checked_index
from tilemma.ir.constructs import OPERANDS
from tilemma.ir.expr import Const
from tilemma.ir.generations import Disagreement, TriggerSite, arrivals
from tilemma.ir.refusals import WrongValue


@pytest.mark.parametrize("value", [-(2**31), -(2**30) - 1, -1, 0, 2**31 - 1])
def test_an_index_has_32_bits(value: int) -> None:
    e = Const(value, dtypes.s64)
    assert checked_index(e, "an index", None) == e


@pytest.mark.parametrize("value", [-(2**31) - 1, 2**31, 2**40])
def test_no_index_is_larger(value: int) -> None:
    with pytest.raises(WrongValue, match=str(value)):
        checked_index(Const(value, dtypes.s64), "an index", None)


@pytest.mark.parametrize("name", OPERANDS)
def test_limits_of_operands(name: str) -> None:
    """Both ends are taken, and the value of the advice; an error shows other values as they are, up to 64 bits."""
    operand = OPERANDS[name]
    ends = operand.choices or [n for n in (operand.low, operand.high) if n is not None]
    for value in (*ends, operand.usual):
        assert operand.checked(value, None) == value
    beyond = [min(ends) - 1, 3 if operand.choices else ends[-1] + 1 if len(ends) == 2 else -1]
    for value in beyond if 3 not in operand.choices else beyond[:1]:
        with pytest.raises(WrongValue, match=f"got `?{value}`?"):
            operand.checked(value, None)
    if operand.high is not None or operand.choices:
        for value, text in ((2**64 - 1, f"got {2**64 - 1}"), (2**64, f"got {2**64} (an int)")):
            with pytest.raises(WrongValue) as refused:
                operand.checked(value, None)
            assert text in refused.value.message


@pytest.mark.parametrize("name", [n for n, t in BY_NAME.items() if not t.is_float])
def test_bounds_are_the_values_of_the_bits(name: str) -> None:
    t = BY_NAME[name]
    low, high = bounds(t)
    bits = 1 if t.kind == "bool" else t.bits
    assert high - low == 2**bits - 1 and (low < 0) == (t.kind == "int") and low in (0, -(high + 1))
    assert fits(low, t) and fits(high, t) and not fits(low - 1, t) and not fits(high + 1, t)


def site(arrivals: int, *slots: int, role: int = 0) -> TriggerSite:
    return TriggerSite(frozenset([role]), frozenset(slots), arrivals)


@pytest.mark.parametrize("wrong", [1, 2, 3])
def test_the_slot_that_disagrees_is_named(wrong: int) -> None:
    """Each role triggers its own slot; the first one's number is compared with that of the others."""
    sites = [site(3 if n == wrong else 2, n, role=n) for n in range(4)]
    with pytest.raises(Disagreement) as found:
        arrivals(sites)
    e = found.value
    assert (e.here, e.there, e.site, e.other) == (3, 2, wrong, 0)


def test_the_roles_of_a_slot_add_up() -> None:
    assert arrivals([site(2, 0, 1, role=1), site(3, 1, 0, role=2)]) == 5
    assert arrivals([site(2, 0, role=1), site(2, 1, role=1)]) == 2 and arrivals([]) == 0
