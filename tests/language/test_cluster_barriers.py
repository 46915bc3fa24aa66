"""`sync.barrier` of a cluster: its blocks see what the others wrote to global memory before."""

from __future__ import annotations

import numpy as np
import pytest

import tilemma as tm
from tilemma import foreach, if_, parallel, shared, sync


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


# In each iteration a block hands its row to the next in the ring, through an array or in its own shared memory.
@tm.kernel
def around(a: tm.Global["f32", 4, 64], room: tm.Global["f32", 8, 64], out: tm.Global["f32", 4, 64], *, WARPS=0):
    for pair in parallel(1, level="cluster"):
        for rank in parallel(4, level="block"):
            own = shared("f32", 64)
            for lane in parallel(64, level="thread"):
                own[lane] = a[rank, lane]
            for i in foreach(3):
                for lane in parallel(64, level="thread"):
                    room[i % 2 * 4 + rank, lane] = own[63 - lane] + 1
                if WARPS:
                    for _ in parallel(2, level="group"):
                        sync.barrier("cluster")
                else:
                    with if_(i < 3):
                        sync.barrier("cluster")
                for lane in parallel(64, level="thread"):
                    own[lane] = room[i % 2 * 4 + (rank + 1) % 4, lane]
            for lane in parallel(64, level="thread"):
                out[rank, lane] = own[lane]


@pytest.mark.parametrize("warps", [0, 1])
@pytest.mark.parametrize("where", ["cpu", "machine"])
def test_in_a_loop_a_branch_and_a_level(where: str, warps: int) -> None:
    a = np.arange(256, dtype=np.float32).reshape(4, 64)
    for seed in range(5 if where == "machine" else 1):
        room, out = np.full((8, 64), np.nan, np.float32), np.full_like(a, np.nan)
        options = {"arch": "sm_90a", "seed": seed, "strict": True} if where == "machine" else {}
        around.on(where, **options)(a, room, out, WARPS=warps)
        np.testing.assert_array_equal(out, np.roll(a, -3, axis=0)[:, ::-1] + 3)


@tm.kernel
def of_some(a: tm.Global["f32", 2, 64]):
    for pair in parallel(1, level="cluster"):
        for rank in parallel(2, level="block"):
            with if_(rank == 0):
                sync.barrier("cluster")
            for lane in parallel(64, level="thread"):
                a[rank, lane] = 1.0


def test_one_that_some_blocks_skip_is_a_deadlock() -> None:
    with pytest.raises(tm.errors.TilemmaError, match="waits for the other blocks of its cluster"):
        of_some.on("cpu")(np.zeros((2, 64), np.float32))
