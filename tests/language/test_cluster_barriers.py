"""`sync.barrier` of a cluster: its blocks see what the others wrote to global memory before."""

from __future__ import annotations

import numpy as np
import pytest

import tilemma as tm
from tilemma import parallel, sync


@tm.kernel
def exchanged(a: tm.Global["f32", "R", 64], room: tm.Global["f32", "R", 64], out: tm.Global["f32", "R", 64]):
    R = a.shape[0]
    for pair in parallel(R // 2, level="cluster"):
        for rank in parallel(2, level="block"):
            for lane in parallel(64, level="thread"):
                room[pair * 2 + rank, lane] = 2 * a[pair * 2 + rank, lane]
            sync.barrier("cluster")
            for lane in parallel(64, level="thread"):
                out[pair * 2 + rank, lane] = room[pair * 2 + 1 - rank, lane]


@pytest.mark.parametrize("where", ["cpu", "machine"])
def test_blocks_of_a_cluster_see_each_others_writes(where: str) -> None:
    a = np.arange(256, dtype=np.float32).reshape(4, 64)
    room, out = np.full_like(a, np.nan), np.full_like(a, np.nan)
    exchanged.on(where, **({"arch": "sm_90a"} if where == "machine" else {}))(a, room, out)
    np.testing.assert_array_equal(out, 2 * a[[1, 0, 3, 2]])


def test_it_is_a_barrier_of_the_cluster() -> None:
    ptx = exchanged.compile("sm_90a").ptx
    assert "barrier.cluster.arrive.release" in ptx and "barrier.cluster.wait.acquire" in ptx


@tm.kernel
def in_a_loop(a: tm.Global["f32", 2, 64]):
    for pair in parallel(1, level="cluster"):
        for rank in parallel(2, level="block"):
            for _ in tm.foreach(2):
                sync.barrier("cluster")
            for lane in parallel(64, level="thread"):
                a[pair * 2 + rank, lane] = 1.0


def test_the_reference_refuses_one_in_a_loop() -> None:
    with pytest.raises(tm.errors.TilemmaError, match="a barrier of a cluster inside a loop"):
        in_a_loop.on("cpu")(np.zeros((2, 64), np.float32))
