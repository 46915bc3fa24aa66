"""Operands that threads convert in registers, from tiles that a producer copies: the threads release the tiles."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilemma as tm
from tilemma import cdiv, dma, event, foreach, inthreads, mma, parallel, select, shared, tma, trigger, var, wait

M, N, K = 72, 72, 384
X = np.random.default_rng(0).integers(-2, 3, (M, K)).astype(np.float16)
Q = np.random.default_rng(1).integers(-8, 8, (N, K)).astype(np.int8)


def plain(settings: tm.Pipeline, slices: int, T: str) -> Any:
    """Y' = Q X' with Q as operand A, loaded in ``slices`` by a loop around the multiplies, or before them."""
    width = 128 // slices

    @tm.kernel(pipeline=settings)
    def product(x: tm.Global["f16", "M", "K"], q: tm.Global[T, "N", "K"], y: tm.Global["f16", "M", "N"]):
        (M, K), N = x.shape, q.shape[0]
        for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
            xs, qs = shared("f16", 64, 128), shared(T, 64, 128)
            acc = mma.fill(0.0, "f32")
            for k in foreach(cdiv(K, 128)):
                dma.copy(x.subspan(64, 128).at(i, k), xs)
                dma.copy(q.subspan(64, 128).at(j, k), qs)
                for g in parallel(1, level="group-4"):
                    for h in foreach(slices):
                        part = mma.load(qs.subspan(64, width).at(0, h), dtype="f16")
                        mma.row.row(acc, part, xs.subspan(64, width).at(0, h))
            for g in parallel(1, level="group-4"):
                mma.store(acc, y.subspan(64, 64).at(i, j), transp=True)

    return product


@tm.kernel
def by_hand(x: tm.Global["f16", "M", "K"], q: tm.Global["s8", "N", "K"], y: tm.Global["f16", "M", "N"]):
    """The same with events and roles."""
    (M, K), N = x.shape, q.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        full, empty = event(2), event(2, ready=True)
        xs, qs = shared("f16", 64, 128, copies=2), shared("s8", 64, 128, copies=2)
        for p in parallel(2, level="group-4"):
            with inthreads(p == 0, async_=True):
                slot = var(0)
                for k in foreach(cdiv(K, 128)):
                    wait(empty[slot])
                    tma.copy(x.subspan(64, 128).at(i, k), xs[slot], async_=full[slot])
                    tma.copy(q.subspan(64, 128).at(j, k), qs[slot], async_=full[slot])
                    trigger(full[slot])
                    slot.set(select(slot == 1, 0, slot + 1))
            with inthreads(p == 1, async_=True):
                slot = var(0)
                acc = mma.fill(0.0, "f32")
                for k in foreach(cdiv(K, 128)):
                    wait(full[slot])
                    mma.row.row(acc, mma.load(qs[slot], dtype="f16"), xs[slot])
                    mma.commit()
                    trigger(empty[slot])
                    slot.set(select(slot == 1, 0, slot + 1))
                mma.store(acc, y.subspan(64, 64).at(i, j), transp=True)


def check(kernel: Any, q: Any) -> None:
    for seed, schedule in enumerate(("random", "starve", "random")):
        y = np.zeros((M, N), np.float16)
        kernel.on("machine", arch="sm_90a", seed=seed, schedule=schedule, strict=True)(X, q, y)
        np.testing.assert_array_equal(y, (X.astype(np.float32) @ Q.T).astype(np.float16))


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("cluster", [1, 2])
def test_the_compilers_ring(slices: int, cluster: int) -> None:
    settings = tm.Pipeline(stages=2, producer=True, cluster=cluster, blocks=2)
    check(plain(settings, slices, "s8" if cluster == 1 else "s4"), Q if cluster == 1 else Q.astype(ml_dtypes.int4))


def test_a_ring_of_the_program() -> None:
    check(by_hand, Q)
