"""Conversions between all types: by definition, in folding, on the CPU reference and on the PTX machine."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numbers_at_edges import FLOATS, INTEGERS, Array, drawn, edges, limits, nearest, same, whole

import tilemma as tm
from tests.sampling import examples
from tilemma import dtypes, parallel
from tilemma.arithmetic.convert import constant, load, store
from tilemma.dtypes import DType
from tilemma.ir.builder import Builder
from tilemma.ir.expr import Const

TYPES = [*FLOATS, *INTEGERS, dtypes.boolean]


def defined(x: float | int, target: DType) -> float | int | bool:
    """The conversion as docs/language.md states it, in exact arithmetic."""
    if target.kind == "bool":
        return x != 0
    if target.is_float:
        if math.isnan(x):
            return x if target.floating.nan else nearest(Fraction(10**9), target)
        if math.isinf(x) and target.bits > 8:
            return x
        if math.isinf(x):
            return math.copysign(nearest(Fraction(10**9), target), x)
        return nearest(Fraction(x), target, math.copysign(1.0, x))
    low, high = limits(target)
    if math.isnan(x):
        return 0
    if math.isinf(x):
        return high if x > 0 else low
    return min(max(whole(Fraction(x)), low), high)


def number(x: Any) -> float | int:
    return int(x) if np.asarray(x).dtype.kind in "iub" else float(x)


@cache
def values(source: DType) -> Array:
    found = np.concatenate([edges(source), drawn(source, 1, 300)])
    # A constant of an 8-bit float is never infinite: it stops at the largest number.
    return found[~np.isinf(found.astype(np.float64))] if source == dtypes.e5m2 else found


@cache
def expected(source: DType, target: DType) -> Array:
    if source == target:
        return values(source)
    with np.errstate(all="ignore"):
        found = [defined(number(x), target) for x in values(source)]
        return elements(found, target)


def elements(found: list[Any], t: DType) -> Array:
    with np.errstate(all="ignore"):
        return np.array(found, np.float64).astype(t.numpy) if t.is_float else np.array(found, t.numpy)


def report(source: DType, target: DType, got: Array) -> None:
    wrong = np.flatnonzero(~same(got, expected(source, target)))
    shown = [(values(source)[i], got[i], expected(source, target)[i]) for i in wrong[:4]]
    assert not wrong.size, f"{source} -> {target}: (value, got, defined) {shown}, {wrong.size} in all"


@pytest.mark.parametrize("target", TYPES, ids=str)
@pytest.mark.parametrize("source", TYPES, ids=str)
def test_arrays(source: DType, target: DType) -> None:
    with np.errstate(all="ignore"):
        report(source, target, store(load(values(source), source), source, target))


@pytest.mark.parametrize("source", TYPES, ids=str)
def test_constants(source: DType) -> None:
    """What the front ends fold, and what lowering makes of constants."""
    for target in TYPES:
        with np.errstate(all="ignore"):
            numbers = [bool(x) if source.kind == "bool" else number(x) for x in values(source)]
            report(source, target, elements([constant(constant(x, source), target) for x in numbers], target))
            folded = [Builder.converted(Const(x, source), target) for x in numbers]
            assert all(isinstance(x, Const) and x.dtype == target for x in folded)
            report(source, target, elements([constant(x.value, target) for x in folded], target))


@settings(deadline=None, max_examples=examples(300))
@given(st.integers(-(2**70), 2**70), st.sampled_from(FLOATS))
def test_integers_of_any_size(x: int, target: DType) -> None:
    assert constant(x, target) == defined(x, target)


@tm.kernel
def convert_all(
    x: tm.Global["S", "N"], f64: tm.Global["f64", "N"], f32: tm.Global["f32", "N"], tf32: tm.Global["tf32", "N"],
    f16: tm.Global["f16", "N"], bf16: tm.Global["bf16", "N"], f8_e4m3: tm.Global["f8_e4m3", "N"],
    f8_e5m2: tm.Global["f8_e5m2", "N"], f6_e2m3: tm.Global["f6_e2m3", "N"], f6_e3m2: tm.Global["f6_e3m2", "N"],
    f4_e2m1: tm.Global["f4_e2m1", "N"], s64: tm.Global["s64", "N"], s32: tm.Global["s32", "N"],
    s16: tm.Global["s16", "N"], s8: tm.Global["s8", "N"], u64: tm.Global["u64", "N"], u32: tm.Global["u32", "N"],
    u16: tm.Global["u16", "N"], u8: tm.Global["u8", "N"], bool: tm.Global["bool", "N"], *, S="f32",
):  # fmt: skip
    floats = (f64, f32, tf32, f16, bf16, f8_e4m3, f8_e5m2, f6_e2m3, f6_e3m2, f4_e2m1)
    everything = (*floats, s64, s32, s16, s8, u64, u32, u16, u8, bool)
    for b in parallel(tm.cdiv(x.shape[0], 32), level="block"):
        for t in parallel(32, level="thread"):
            with tm.if_(b * 32 + t < x.shape[0]):
                for array in everything:
                    array[b * 32 + t] = x[b * 32 + t].astype(array.dtype.name)


@pytest.mark.parametrize("arch", ["cpu", "sm_80", "sm_90a"])
@pytest.mark.parametrize("source", TYPES, ids=str)
def test_kernels(source: DType, arch: str) -> None:
    x = values(source)
    out = {t.name: np.zeros(x.size, t.numpy) for t in TYPES}
    runner = convert_all.on("cpu") if arch == "cpu" else convert_all.on("machine", arch=arch)
    with np.errstate(all="ignore"):
        runner(x, **out, S=source.name)
    for target in TYPES:
        report(source, target, out[target.name])
