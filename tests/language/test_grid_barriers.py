"""Barriers of all blocks: the launch is divided, and nothing but global memory crosses over."""

from __future__ import annotations

import numpy as np
import pytest

import tilemma as tm
from tilemma import croqtile, if_, parallel, sync
from tilemma.kernels import Kernel

FOLLOWED = ("grid-barrier-inside", "kept-over-grid-barrier")


def loaded(co: str) -> Kernel:
    return Kernel(croqtile.load(co, "t.co", {}).sources["k"])


def refused(body: str, code: str, text: str) -> None:
    co = f"__co__ void k(global s32 [4] x, global s32 [4] y) {{ parallel b by 4 : block<cooperative> {{ {body} }} }}"
    with pytest.raises(tm.CompileError, match=text) as found:
        loaded(co).compile("sm_80")
    assert found.value.code == code


@tm.kernel
def rounds(x: tm.Global["s32", "N"], y: tm.Global["s32", "N"]):
    (N,) = x.shape
    for b in parallel(N, level="block", cooperative=True):
        for n in range(3):
            for t in parallel(32, level="thread"):
                with if_(t == 0):
                    y[b] = x[b] + x[N - 1 - b]
            sync.barrier("block")
            x[b] = y[b] + n
            sync.barrier("block")


@pytest.mark.parametrize("target", ["cpu", "machine"])
def test_each_phase_sees_the_writes_of_all_blocks(target: str) -> None:
    x = np.arange(5, dtype=np.int32)
    wanted = x.copy()
    for n in range(3):
        wanted = wanted + wanted[::-1] + n
    rounds.on(target)(x, np.zeros_like(x))
    assert np.array_equal(x, wanted)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("v = x.at(b);", "y.at(b) = v;"),
        ("mutable int v = 1;", "v = 2;"),
        ("shared s32 [4] v {0};", "y.at(b) = v.at(0);"),
        ("v = dma.copy x => shared;", "dma.copy v.data => y;"),
        ("v = dma.copy.async x => shared;", "wait v;"),
        ("shared event v; trigger v;", "wait v;"),
    ],
)
def test_what_a_launch_declares_ends_with_it(before: str, after: str) -> None:
    refused(f"{before} sync.barrier : block; {after}", "kept-over-grid-barrier", "`v` is used after")


@pytest.mark.parametrize(
    "around", ["foreach i in 3", "if (x.at(0) == 0)", "inthreads (b == 0)", "mutable int n = 0; while (n < 2)"]
)
def test_every_block_reaches_it_once(around: str) -> None:
    refused(f"{around} {{ y.at(b) = 1; sync.barrier : block; }}", "grid-barrier-inside", "a loop or a branch")


def test_a_barrier_inside_the_threads_of_the_blocks() -> None:
    co = """
    __co__ void k(global s32 [N] x, global s32 [N] y) {
      parallel b by cdiv(N, 32) : block<cooperative>, t by 32 : thread {
        i = b # t;
        if (i < N) y.at(i) = x.at(i) * 2;
        sync.barrier : block;
        if (i < N) x.at(i) = y.at(N - 1 - i);
      }
    }
    """
    k = loaded(co)
    for arch in ("sm_80", "sm_90a"):
        x = np.arange(70, dtype=np.int32)
        k.on("machine", arch=arch)(x, np.zeros_like(x))
        assert np.array_equal(x, 2 * np.arange(70)[::-1])


def test_a_value_is_read_again_after_the_barrier() -> None:
    @tm.kernel
    def k(x: tm.Global["s32", 4], y: tm.Global["s32", 4]):
        for b in parallel(4, level="block", cooperative=True):
            y[b] = x[b]
            sync.barrier("block")
            x[3 - b] += 10
            sync.barrier("block")
            y[b] += x[b]

    x, y = np.arange(4, dtype=np.int32), np.zeros(4, np.int32)
    k(x, y)
    assert np.array_equal(y, 2 * np.arange(4) + 10)


@pytest.mark.parametrize(
    "body",
    [
        # move it out; one `parallel` for each phase
        "if (x.at(0) == 0) { y.at(b) = 1; } sync.barrier : block; x.at(b) = y.at(3 - b);",
        "y.at(b) = 1; } parallel b by 4 : block { x.at(b) = y.at(3 - b);",
        # declare and fill it again; keep it in global memory
        "v = x.at(b); y.at(b) = v; sync.barrier : block; w = x.at(b); y.at(b) = w;",
        "y.at(b) = x.at(b); sync.barrier : block; x.at(3 - b) = y.at(b);",
    ],
)
def test_the_advice_leads_to_programs_that_compile(body: str) -> None:
    co = f"__co__ void k(global s32 [4] x, global s32 [4] y) {{ parallel b by 4 : block<cooperative> {{ {body} }} }}"
    assert loaded(co).compile("sm_80").ptx
