"""`sync.barrier` of a cluster: its blocks see what the others wrote to global memory before."""

from __future__ import annotations

from pathlib import Path

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


@tm.kernel
def signalled(out: tm.Global["s32", 2, 32], *, WAITS=1):
    for _ in parallel(1, level="cluster", drained=True):
        for rank in parallel(2, level="block"):
            done = tm.event()
            for lane in parallel(32, level="thread"):
                out[rank, lane] = rank
            for _ in parallel(1, level="group"):
                tm.trigger(done, cluster=True)
                if WAITS:
                    tm.wait(done)


SIGNALLED = """
__co__ void signalled(global s32 [2, 32] out) {
  [[drained]] parallel by 1 : cluster-grid { parallel rank by 2 : block {
    shared event done;
    parallel lane by 32 : thread { out.at(rank, lane) = rank; }
    parallel by 1 : group { trigger.cluster done; wait done; }
  } }
}
"""


@pytest.mark.parametrize("language", ["python", "croqtile"])
def test_blocks_that_have_waited_for_the_others_end_without_a_barrier(language: str, tmp_path: Path) -> None:
    """There the barrier would wait for all writes; the one at the start waits for the events alone."""
    (tmp_path / "signalled.co").write_text(SIGNALLED)
    kernel = signalled if language == "python" else tm.load(tmp_path / "signalled.co")["signalled"]
    ptx = kernel.compile("sm_90a").ptx
    assert [x.strip() for x in ptx.splitlines() if "barrier.cluster" in x] == [
        "barrier.cluster.arrive.relaxed;",
        "barrier.cluster.wait.acquire;",
    ]
    explained = kernel.compile("sm_90a").explain().inserted
    assert [x["detail"] for x in explained if x["operation"] == "cluster barrier"] == ["at the start"]
    for seed in range(4):
        out = np.full((2, 32), -1, np.int32)
        kernel.on("machine", arch="sm_90a", seed=seed, strict=True)(out)
        np.testing.assert_array_equal(out, np.repeat([[0], [1]], 32, axis=1))


def test_the_machine_reports_those_that_have_not_waited() -> None:
    with pytest.raises(tm.errors.TilemmaError) as error:
        for seed in range(20):
            signalled.on("machine", arch="sm_90a", seed=seed)(np.zeros((2, 32), np.int32), WAITS=0)
    assert error.value.code == "exit-before-cluster"


@tm.kernel
def drained_blocks(out: tm.Global["s32", 2]):
    for rank in parallel(2, level="block", drained=True):
        out[rank] = 1


@pytest.mark.parametrize("language", ["python", "croqtile"])
def test_only_clusters_are_drained(language: str, tmp_path: Path) -> None:
    (tmp_path / "k.co").write_text(
        "__co__ void k(global s32 [2] out) { [[drained]] parallel p by 2 : block { out.at(p) = 1; } }"
    )
    with pytest.raises(tm.errors.TilemmaError, match="a level of clusters"):
        (drained_blocks if language == "python" else tm.load(tmp_path / "k.co")["k"]).compile("sm_90a")


def test_the_error_of_another_attribute_names_this_one(tmp_path: Path) -> None:
    (tmp_path / "k.co").write_text("__co__ void k() { [[drain]] parallel p by 2 : block {} }")
    with pytest.raises(tm.errors.TilemmaError, match="or `drained`"):
        tm.load(tmp_path / "k.co")["k"].compile("sm_90a")
