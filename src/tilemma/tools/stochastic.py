"""Monte Carlo arithmetic for the reference executor: results that a correct target could also have computed.

A target may add the products of a multiply in any order and with the guard bits of its own units, evaluate
functions of the math library by other polynomials, and execute atomic additions in any order.  Each such result
is moved by as much as its error bound allows, and the run continues with it: what the results of several runs
differ by is the bound, propagated through everything that the kernel computes after it.  (Parker: Monte Carlo
Arithmetic, 1997.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilemma import dtypes
from tilemma.arithmetic import floats
from tilemma.arithmetic.convert import carrier, rounded
from tilemma.arithmetic.integers import bounds
from tilemma.dtypes import DType
from tilemma.targets.cpu.values import Value
from tilemma.testing import accumulation_bound, grain_of, half_ulp

F64 = NDArray[np.float64]

# Errors of the others: relative, and absolute where a result may cancel.
RELATIVE = {32: 2.0**-20, 64: 2.0**-45}
ABSOLUTE = {"gelu": 2.0**-20, "sin": 2.0**-23, "cos": 2.0**-23, "tan": 2.0**-23, "acos": 2.0**-20}
# Sums of multiples of a unit below this many units are exact in any order, with room for the partial sums.
_EXACT_ATOMIC = {"f64": 2.0**48, "f32": 2.0**20, "f16": 2.0**9, "bf16": 2.0**6}
# A change that no rounding to the types of the language hides, to find the dependents of a result.
LARGE = 1 / 16


class StochasticArithmetic:
    """A `tilemma.targets.cpu.Perturbation`.

    ``direction``: +1 or -1 moves every result the same way, as a unit that truncates does; 0 draws the
    direction of each element.  ``large`` moves inexact results by a sixteenth, and leaves conversions alone:
    it shows which results depend on inexact ones.  ``inexact``: some result so far was.
    """

    def __init__(self, seed: int, direction: int = 0, *, large: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.direction, self.large = direction, large
        self.inexact = False

    def contraction(self, p: Any, before: Any, x: Any, y: Any, factors: Any, acc: DType, operands: DType) -> Any:
        if acc.is_integer:
            return p
        total = np.abs(x).astype(np.float64) @ np.abs(y).astype(np.float64)
        grain = grain_of(x) * grain_of(y)
        if factors is not None:
            total, grain = total * np.abs(factors), grain * grain_of(factors)
        total, grain = total + np.abs(before), min(grain, grain_of(before))
        depth = max(x.shape[1], 1)
        if acc.name in ("f64", "f32", "f16"):
            bound = accumulation_bound(total, depth, acc, operands.name, grain)
        else:
            bound = total * (depth + 4) * 2 * float(half_ulp(np.ones(()), acc))
        return self._moved(p, bound, total).astype(p.dtype)

    def scaling(self, p: Any, before: Any, acc: DType) -> Any:
        total = np.abs(p).astype(np.float64) + np.abs(before)
        bound = accumulation_bound(total, 1, acc, acc.name, min(grain_of(p), grain_of(before)))
        return self._moved(p, bound, total).astype(p.dtype)

    def function(self, name: str, result: Value, t: DType) -> Value:
        if not t.is_float or name in floats.EXACT_FUNCTIONS:
            return result
        size = np.abs(np.asarray(result, np.float64))
        bound = size * RELATIVE[64 if t.bits == 64 else 32] + ABSOLUTE.get(name, 0.0) + 1e-44
        if t.bits < 32:
            bound = bound + 2 * half_ulp(np.where(np.isfinite(size), size, 0.0), t)
        return self._value(self._moved(result, bound, size), result, t)

    def conversion(self, value: Value, result: Value, source: DType, target: DType) -> Value:
        """Where an inexact value is rounded, its neighbour may be rounded the other way."""
        if self.large or not self.inexact or not source.is_float or target.kind in ("bool", "bits"):
            return result
        before, after = np.asarray(value, np.float64), np.asarray(result, np.float64)
        step = np.ones_like(after)
        if target.is_float:
            step = 2 * half_ulp(np.where(np.isfinite(after), np.abs(after), 0.0), target)
        turned = np.isfinite(before) & np.isfinite(after) & (before != after)
        turned &= (np.abs(before - after) < step) & (self.random.random(after.shape) < 0.5)
        moved = np.where(turned, after + np.sign(before - after) * step, after)
        return self._value(moved, result, target)

    def atomic(self, name: str, new: Value, old: Value, given: Value, t: DType) -> Value:
        if not t.is_float or name not in ("add", "sub"):
            return new
        total = np.abs(np.asarray(old, np.float64)) + np.abs(np.asarray(given, np.float64))
        exact = total < _EXACT_ATOMIC[t.name] * min(grain_of(old), grain_of(given))
        size = np.where(np.isfinite(total), total, 0.0)
        bound = np.where(exact, 0.0, 8 * half_ulp(size, t))
        return self._value(self._moved(new, bound, total), new, t)

    def _moved(self, value: Any, bound: F64, size: F64) -> F64:
        """``value`` moved by up to ``bound``; ``size`` is the scale of the values it was computed from."""
        exact = bound == 0
        if exact.all():
            return np.asarray(value)
        self.inexact = True
        if self.large:
            bound = np.where(exact, 0.0, bound + LARGE * size)
        if self.direction:
            way: Any = np.float64(self.direction)
        else:
            way = self.random.uniform(0.5, 1.0, bound.shape) * self.random.choice([-1.0, 1.0], bound.shape)
        with np.errstate(invalid="ignore", over="ignore"):
            moved = np.asarray(value, np.float64) + way * bound
        result: F64 = np.where(exact, value, moved)
        return result

    @staticmethod
    def _value(moved: Any, like: Value, t: DType) -> Value:
        """``moved`` as a value of type ``t``, an array where ``like`` is one."""
        x = np.asarray(moved, np.float64)
        if t.is_integer:
            low, high = bounds(t)
            clipped = np.clip(x, low, high)
            return clipped.astype(carrier(t)) if isinstance(like, np.ndarray) else int(clipped)
        with np.errstate(over="ignore"):
            out = rounded(x.reshape(-1), dtypes.f64, t).reshape(x.shape)
        return out if isinstance(like, np.ndarray) else carrier(t).type(out[()])
