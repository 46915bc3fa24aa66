"""Element work on tiles of 16-bit floats: two values of a register are rounded and packed by one instruction."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilemma as tm
from tilemma import apply, mma, parallel

ROWS, COLUMNS = 16, 16
# Values of a tile that a lane of a warp holds, two to a register.
REGISTERS = ROWS * COLUMNS // 32 // 2
TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


@tm.kernel
def narrowed(x: tm.Global["f32", 16, 16], y: tm.Global["T", 16, 16], *, T="f16"):
    for p in parallel(1, level="block"):
        for g in parallel(1, level="group"):
            t = mma.load(x)
            h = mma.frag(T, 16, 16, init=0.0)
            h.set(t)
            mma.store(h, y)


@tm.kernel
def scaled(x: tm.Global["T", 16, 16], y: tm.Global["T", 16, 16], *, T="f16"):
    for p in parallel(1, level="block"):
        for g in parallel(1, level="group"):
            h = mma.load(x)
            h *= 0.3
            mma.store(h, y)


@tm.kernel
def counted(y: tm.Global["f16", 16, 16]):
    for p in parallel(1, level="block"):
        for g in parallel(1, level="group"):
            h = mma.frag("f16", 16, 16, init=0.0)
            for i, j in apply(h):
                n = tm.var(i * 16.0)
                n += j
                h[i, j] = n
            mma.store(h, y)


@tm.kernel
def placed(y: tm.Global["f16", 16, 16]):
    for p in parallel(1, level="block"):
        for g in parallel(1, level="group"):
            h = mma.frag("f16", 16, 16, init=0.0)
            for i, j in apply(h):
                h[i, j] = tm.select(i == j, -1.0, i * 16 + j)
            mma.store(h, y)


def random():
    return np.random.default_rng(7).standard_normal((ROWS, COLUMNS)).astype(np.float32)


@pytest.mark.parametrize("name", TYPES)
def test_the_old_values_are_not_taken_apart_where_nothing_reads_them(name):
    x, y = random(), np.zeros((ROWS, COLUMNS), TYPES[name])
    narrowed.on("machine", arch="sm_80")(x, y, T=name)
    assert np.array_equal(y, x.astype(TYPES[name]))
    ptx = narrowed.compile("sm_80", T=name).ptx
    assert ptx.count(f"cvt.rn.{name}x2.f32") == REGISTERS
    assert "mov.b32 {" not in ptx and f"cvt.rn.{name}.f32" not in ptx


@pytest.mark.parametrize("name", TYPES)
def test_values_that_are_read_are_rounded_together_too(name):
    x = random().astype(TYPES[name])
    y = np.zeros_like(x)
    scaled.on("machine", arch="sm_80")(x, y, T=name)
    factor = np.float32(TYPES[name](0.3))
    assert np.array_equal(y, (x.astype(np.float32) * factor).astype(TYPES[name]))
    ptx = scaled.compile("sm_80", T=name).ptx
    assert ptx.count(f"cvt.rn.{name}x2.f32") == REGISTERS and f"cvt.rn.{name}.f32" not in ptx


def test_a_variable_of_each_element_has_the_value_of_its_turn():
    y = np.zeros((ROWS, COLUMNS), np.float16)
    counted.on("machine", arch="sm_80")(y)
    assert np.array_equal(y, np.arange(256).reshape(16, 16))


def test_halves_know_their_places():
    y = np.zeros((ROWS, COLUMNS), np.float16)
    placed.on("machine", arch="sm_80")(y)
    i, j = np.indices(y.shape)
    assert np.array_equal(y, np.where(i == j, -1, i * 16 + j).astype(np.float16))


@tm.kernel
def elsewhere(x: tm.Global["f32", 16, 16], y: tm.Global["f32", 16, 16]):
    for p in parallel(1, level="block"):
        for g in parallel(1, level="group"):
            t, u = mma.load(x), mma.frag("f32", 16, 16, init=0.0)
            for i, j in apply(t):
                u[i, j] = t[i, j] * 2.0
            mma.store(u, y)


def test_another_tile_of_the_shape_is_written():
    x, y = random(), np.zeros((ROWS, COLUMNS), np.float32)
    elsewhere.on("machine", arch="sm_80")(x, y)
    assert np.array_equal(y, 2 * x)
