"""Rows rounded to 8 bits, each with a scale of its own."""

from __future__ import annotations

import tilemma as tm
from tilemma import cdiv, foreach, if_, parallel, shared, var

# The largest magnitude of each type.
LARGEST = {"f8_e4m3": 448.0, "s8": 127.0}
# The smallest magnitude that is a row's largest: scales of smaller ones would be close to the smallest numbers.
LEAST = 1e-12


@tm.kernel
def rounded_rows(
    x: tm.Global["T", "R", "C"],
    values: tm.Global["TV", "R", "C"],
    scales: tm.Global["f32", "R"],
    *,
    T="f16",
    TV="f8_e4m3",
    LARGEST=448.0,
    WARPS=8,
    EACH=4,
):
    """values * scales = x, where the largest element of a row of ``values`` is LARGEST.

    The scale of a row with NaN or infinity is NaN.
    """
    R, C = x.shape
    THREADS = 32 * WARPS
    for row in parallel(R, level="block", overlap=True):
        part = shared("f32", WARPS)
        for t in parallel(THREADS, level="thread"):
            # `max` ignores NaN: `other` is 0, or NaN if an element is not finite.
            largest, other = var(0.0, "f32"), var(0.0, "f32")
            for step in foreach(cdiv(C, THREADS * EACH)):
                # Elements beyond the row are 0.
                some = [var(x[row, (step * EACH + i) * THREADS + t].astype("f32")) for i in range(EACH)]
                for value in some:
                    largest.set(tm.math.max(largest, tm.math.abs(value)))
                    other.set(tm.math.fma(value, 0.0, other))
            for h in foreach(5, unroll=True):
                largest.set(tm.math.max(largest, tm.lane.shfl_xor(largest, 16 >> h)))
                other += tm.lane.shfl_xor(other, 16 >> h)
            with if_(t % 32 == 0):
                part[t // 32] = largest + other
            largest.set(LEAST)
            other.set(0.0)
            for i in range(WARPS):
                largest.set(tm.math.max(largest, part[i]))
                other.set(tm.math.fma(part[i], 0.0, other))
            scale = var(largest / LARGEST + other)
            factor = var(1.0 / scale)
            with if_(t == 0):
                scales[row] = scale
            for step in foreach(cdiv(C, THREADS * EACH)):
                places = [(step * EACH + i) * THREADS + t for i in range(EACH)]
                some = [var(x[row, at].astype("f32")) for at in places]
                for at, value in zip(places, some, strict=True):
                    values[row, at] = (value * factor).astype(TV)
