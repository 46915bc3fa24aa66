"""Scalar arguments of every type at the ends of its range, on the CPU and on the PTX machine."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tilemma as tm
from tilemma import dtypes, parallel
from tilemma.arithmetic.integers import bounds

FLOATS = ["f64", "f32", "f16", "bf16"]
INTEGERS = [t.name for t in dtypes.BY_NAME.values() if t.is_integer and t.bits >= 8]


@tm.kernel
def pass_on(x: tm.Scalar["T"], out: tm.Global["T", 1], *, T="f32"):
    for _ in parallel(1, level="block"):
        out[0] = x


def passed(target: str, x: Any, t: str) -> np.ndarray[Any, Any]:
    out = np.zeros(1, dtypes.dtype(t).numpy)
    pass_on.on(target)(x, out, T=t)
    return out


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(FLOATS),
    st.one_of(st.floats(width=64), st.floats(width=16), st.integers(-(2**80), 2**80), st.fractions()),
)
@example("f32", float("inf"))
@example("f32", -float("inf"))
@example("f64", float("nan"))
@example("f16", 1e300)
@example("f32", 1e300)
@example("f64", 10**400)
@example("bf16", 1 + 2.0**-8 + 2.0**-40)  # just above a tie, which float32 does not show
@example("f32", (1 << 60) + (1 << 36) + 1)
def test_floats(t: str, x: float | Fraction) -> None:
    largest = dtypes.dtype(t).floating.largest
    try:
        passed("cpu", x, t)
    except tm.LaunchError:
        # A number that is no infinity would become one.
        assert abs(x) > largest and x not in (float("inf"), -float("inf"))
        with pytest.raises(tm.LaunchError):
            passed("machine", x, t)
        return
    on_cpu, on_machine = passed("cpu", x, t), passed("machine", x, t)
    assert on_cpu.tobytes() == on_machine.tobytes() or (np.isnan(float(on_cpu[0])) and x != x)
    if np.isfinite(on_cpu.astype(np.float64)[0]) and not isinstance(x, float):
        unit = abs(float(np.nextafter(on_cpu.astype(np.float64), np.inf)[0]) - float(on_cpu[0]))
        unit = max(unit * 2 ** (53 - {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}[t]), 2.0**-24)
        assert abs(Fraction(float(on_cpu[0])) - Fraction(x)) <= Fraction(unit)


@pytest.mark.parametrize("t", INTEGERS)
def test_integers(t: str) -> None:
    low, high = bounds(dtypes.dtype(t))
    for x in (low, -1, 0, 1, high):
        if x >= low:
            assert passed("cpu", x, t)[0] == passed("machine", x, t)[0] == x
    for x in (low - 1, high + 1, 1.5, float("inf"), float("nan")):
        for target in ("cpu", "machine"):
            with pytest.raises(tm.LaunchError):
                passed(target, x, t)
