"""Data that one block passes to another through an atomic, when the warps of a block arrive in any order."""

from __future__ import annotations

import numpy as np
import pytest

import tilemma as tm
from tilemma import atomic, foreach, if_, parallel, sync, var
from tilemma.machine import HazardError

pytestmark = pytest.mark.usefixtures("engine")


@tm.kernel
def last_adds(
    x: tm.Global["f32", "N", 2, 128],
    part: tm.Global["f32", "N", 2, 128],
    count: tm.Global["s32", 2],
    y: tm.Global["f32", 2, 128],
    *,
    FENCE="device",
):
    n = x.shape[0]
    for b in parallel(n, level="block"):
        for g in parallel(2, level="group-4"):
            for t in parallel(128, level="thread"):
                part[b, g, t] = x[b, g, t] * 2.0
            sync.barrier("group-4")
            sync.fence(FENCE)
            before = atomic.add(count[g], 1)
            with if_(before == n - 1):
                sync.fence(FENCE)
                sync.barrier("group-4")
                for t in parallel(128, level="thread"):
                    total = var(0.0)
                    for i in foreach(n):
                        total += part[i, g, t]
                    y[g, t] = total


def added(seed: int, **options: str) -> np.ndarray:
    x = np.arange(4 * 256, dtype=np.float32).reshape(4, 2, 128)
    part, count, y = np.zeros_like(x), np.zeros(2, np.int32), np.zeros((2, 128), np.float32)
    last_adds.on("machine", seed=seed)(x, part, count, y, **options)
    return y - 2 * x.sum(0)


@pytest.mark.parametrize("seed", range(6))
def test_a_barrier_passes_on_what_one_of_its_warps_has_acquired(seed: int) -> None:
    assert not added(seed).any()


def test_a_fence_of_the_block_does_not_reach_other_blocks() -> None:
    with pytest.raises(HazardError, match="race"):
        added(0, FENCE="block")
