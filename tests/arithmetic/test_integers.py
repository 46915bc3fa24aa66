"""Integer arithmetic by its definition, and the same on arrays."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.sampling import examples
from tilemma import dtypes
from tilemma.arithmetic import integers, lanes
from tilemma.dtypes import DType
from tilemma.ir.expr import ARITHMETIC, BITWISE, COMPARISON, Const, binary, promote

INTEGERS = [t for t in dtypes.BY_NAME.values() if t.is_integer and t.bits >= 8]
OPERATIONS = (*ARITHMETIC, *BITWISE, *COMPARISON)


def edges(t: DType) -> list[int]:
    low, high = integers.bounds(t)
    near = {
        low,
        low + 1,
        low // 2,
        high // 2,
        high - 1,
        high,
        -2,
        -1,
        0,
        1,
        2,
        3,
        7,
        t.bits - 1,
        t.bits,
        t.bits + 1,
    }
    return sorted(x for x in near if low <= x <= high)


def values(t: DType) -> st.SearchStrategy[int]:
    return st.one_of(st.sampled_from(edges(t)), st.integers(*integers.bounds(t)))


def defined(op: str, a: int, b: int, t: DType) -> int | bool:
    """What the language's page says, in exact arithmetic."""
    low, high = integers.bounds(t)
    if op in COMPARISON:
        return {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[op]
    if op in integers.DIVISIONS and b == 0:
        return 0
    if op in ("shl", "shr") and not 0 <= b < t.bits:
        return -1 if op == "shr" and a < 0 else 0
    quotient = Fraction(a, b) if b else Fraction(0)
    exact = {
        "add": a + b, "sub": a - b, "mul": a * b, "min": min(a, b), "max": max(a, b),
        "floordiv": math.floor(quotient), "cdiv": math.ceil(quotient), "div": math.trunc(quotient),
        "mod": a - b * math.trunc(quotient), "floormod": a - b * math.floor(quotient),
        "and": a & b, "or": a | b, "xor": a ^ b,
        "shl": a << b if 0 <= b < t.bits else 0, "shr": a >> b if 0 <= b < t.bits else 0,
    }[op]  # fmt: skip
    return (exact - low) % (high - low + 1) + low


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("t", INTEGERS, ids=str)
def test_operations_are_what_the_language_says(op: str, t: DType) -> None:
    """On all pairs of edges, alone and as lanes, without a warning of NumPy's."""
    pairs = [(a, b) for a in edges(t) for b in edges(t)]
    wanted = [defined(op, a, b, t) for a, b in pairs]
    assert [integers.binary(op, t)(a, b) for a, b in pairs] == wanted
    first, second = (np.array(x, lanes.numpy_type(t)) for x in zip(*pairs, strict=True))
    with np.errstate(all="raise"):
        got = lanes.binary(op, t)(first, second)
    assert got.tolist() == wanted
    assert got.dtype == (np.bool_ if op in COMPARISON else lanes.numpy_type(t))


@pytest.mark.parametrize("op", [*BITWISE[:3], *COMPARISON, "min", "max"])
def test_operations_on_conditions(op: str) -> None:
    """As on the integers 0 and 1, alone and as lanes."""
    pairs = [(a, b) for a in (False, True) for b in (False, True)]
    wanted = [bool(defined(op, int(a), int(b), dtypes.s32)) for a, b in pairs]
    first, second = (np.array(x) for x in zip(*pairs, strict=True))
    got = lanes.binary(op, dtypes.boolean)(first, second)
    assert got.dtype == np.bool_ and got.tolist() == wanted


@settings(deadline=None, max_examples=examples(300))
@given(st.data(), st.sampled_from(OPERATIONS), st.sampled_from(INTEGERS), st.sampled_from(INTEGERS))
def test_folding_is_the_operation(data: st.DataObject, op: str, s: DType, t: DType) -> None:
    """Operands of two types are converted to that of the operation, modulo its size."""
    a, b = data.draw(values(s)), data.draw(values(t))
    both = promote(s, t)
    folded = binary(op, Const(a, s), Const(b, t))
    wanted = defined(op, integers.wrap(a, both), integers.wrap(b, both), both)
    assert isinstance(folded, Const)
    assert (folded.value, folded.dtype) == (wanted, dtypes.boolean if op in COMPARISON else both)


@settings(deadline=None, max_examples=examples(200))
@given(st.integers(-(2**70), 2**70), st.sampled_from(INTEGERS))
@example(2**63, dtypes.s64)
def test_wrapping_and_stopping(x: int, t: DType) -> None:
    low, high = integers.bounds(t)
    assert low <= integers.wrap(x, t) <= high
    assert (integers.wrap(x, t) - x) % 2**t.bits == 0
    assert integers.saturate(x, t) == sorted((low, x, high))[1]
    assert integers.fits(x, t) == (low <= x <= high)


@pytest.mark.parametrize("t", INTEGERS, ids=str)
def test_signs_and_bits_turned_over(t: DType) -> None:
    for a in edges(t):
        assert integers.unary("neg", a, t) == defined("sub", 0, a, t)
        assert integers.unary("not", a, t) == defined("sub", -1, a, t)
