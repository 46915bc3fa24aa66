"""Clusters by rank: the inner level is the whole grid, neighbours form a cluster, surplus blocks write nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilemma as tm
from tilemma import atomic, inthreads, parallel

COUNTS = """
__co__ void k(global s32 [M, N] x, global s32 [M, N] y, global s32 [1] total) {
  parallel {r, q} by [2, 2] : LEVEL {
    parallel {i, j} by [M, N] : block {
      shared event e;
      parallel w by 2 : group {
        inthreads.async (w == 0) { trigger.cluster e; }
        inthreads.async (w == 1) {
          wait e;
          y.at(i, j) = x.at(i, j) * 100 + r * 10 + q;
          __atomic_add(total.at(0), 1);
        }
      }
    }
  }
}
"""


@tm.kernel
def counts(x: tm.Global["s32", "M", "N"], y: tm.Global["s32", "M", "N"], total: tm.Global["s32", 1]):
    for r, q in parallel(2, 2, level="cluster-rank"):
        for i, j in parallel(*x.shape, level="block"):
            e = tm.event()
            for w in parallel(2, level="group"):
                with inthreads(w == 0, async_=True):
                    tm.trigger(e, cluster=True)
                with inthreads(w == 1, async_=True):
                    tm.wait(e)
                    y[i, j] = x[i, j] * 100 + r * 10 + q
                    atomic.add(total[0], 1)


def croqtile(tmp_path: Path, text: str) -> tm.Kernel:
    (tmp_path / "k.co").write_text(text)
    return tm.load(tmp_path / "k.co").k


@pytest.mark.parametrize("language", ["cluster", "cluster-rank", "python"])
def test_ranks_and_surplus_blocks(tmp_path: Path, language: str) -> None:
    """3 x 5 blocks in clusters of 2 x 2: 24 blocks signal, 15 write."""
    kernel = counts if language == "python" else croqtile(tmp_path, COUNTS.replace("LEVEL", language))
    i, j = np.indices((3, 5), dtype=np.int32)
    for target in ("cpu", "machine"):
        y, total = np.zeros((3, 5), np.int32), np.zeros(1, np.int32)
        kernel.on(target)(i + 7 * j, y, total)
        assert np.array_equal(y, (i + 7 * j) * 100 + i % 2 * 10 + j % 2) and total[0] == 15


def test_the_other_reading(tmp_path: Path) -> None:
    """`cluster-grid`: the blocks of one cluster are inside; Python's `cluster` is the same."""
    text = """
__co__ void k(global s32 [6] y) {
  parallel c by 3 : cluster-grid { parallel b by 2 : block { y.at(c # b) = c * 10 + b; } }
}
"""

    @tm.kernel
    def same(y: tm.Global["s32", 6]):
        for c in parallel(3, level="cluster"):
            for b in parallel(2, level="block"):
                y[tm.compose(c, b)] = c * 10 + b

    for kernel in (croqtile(tmp_path, text), same):
        for target in ("cpu", "machine"):
            y = np.zeros(6, np.int32)
            kernel.on(target)(y)
            assert np.array_equal(y, [0, 1, 10, 11, 20, 21])


BROKEN = """
__co__ void k(global f16 [M, K] a, global s32 [M] y) {
  parallel r by 2 : cluster {
    BODY
  }
}
"""
GRID = "parallel m by cdiv(M, 64) : block { shared f16 [64, 64] s; parallel w by 2 : group { STATEMENTS } }"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("parallel t by 32 : thread { y.at(t) = 1; }", "cluster-without-grid"),
        (
            "parallel b by 2 : block { y.at(b) = 1; } parallel b by 2 : block { y.at(b) = 1; }",
            "cluster-without-grid",
        ),
        ("", "cluster-without-grid"),
        (
            "parallel m by M : block { parallel c by 2 : cluster { parallel n by 2 : block { } } }",
            "cluster-without-grid",
        ),
        (
            GRID.replace(
                "parallel w by 2 : group { STATEMENTS }", "tma.copy.multicast a.subspan(64, 64).at(m, 0) => s;"
            ),
            "multicast-depends",
        ),
        (
            GRID.replace(
                "STATEMENTS", "inthreads.async (w == 0) { tma.copy.multicast a.subspan(64, 64).at(0, 0) => s; }"
            ),
            "multicast-apart",
        ),
        (
            GRID.replace("STATEMENTS", "tma.copy.multicast a.subspan(64, 64).at(0, 0) => s;").replace(
                "parallel w by 2 : group", "if (m > 0)"
            ),
            "multicast-apart",
        ),
    ],
)
def test_misuse(tmp_path: Path, body: str, code: str) -> None:
    with pytest.raises(tm.CompileError) as refused:
        croqtile(tmp_path, BROKEN.replace("BODY", body)).compile("sm_90a")
    assert refused.value.code == code


def test_a_grid_inside_clusters_of_blocks(tmp_path: Path) -> None:
    """What is unknown is the number of the inner blocks, and the level that is meant has another name."""
    text = BROKEN.replace(": cluster", ": cluster-grid").replace(
        "BODY", GRID.replace("STATEMENTS", "y.at(m) = w;")
    )
    with pytest.raises(tm.CompileError, match=r"its blocks, `parallel m by cdiv\(M, 64\)`") as refused:
        croqtile(tmp_path, text).compile("sm_90a")
    assert refused.value.code == "cluster-refused" and "`: cluster-rank`" in refused.value.render()
    assert croqtile(tmp_path, text.replace("cluster-grid", "cluster-rank")).compile("sm_90a").ptx


def test_a_refusal_names_the_ranks_of_the_program(tmp_path: Path) -> None:
    text = "__co__ void k(f32 [M] y) { parallel r by N : cluster { parallel b by M : block { y.at(b) = 1.0f; } } }"
    for count, found in (("M", "`parallel r by M`: the number"), ("16", "`parallel r by 16`: it has 16 blocks")):
        with pytest.raises(tm.CompileError) as refused:
            croqtile(tmp_path, text.replace("by N", f"by {count}")).compile("sm_90a")
        assert refused.value.code == "cluster-refused" and found in refused.value.message
        assert "_cluster" not in refused.value.render().replace("test_", "")


def test_old_values_in_surplus_blocks(tmp_path: Path) -> None:
    """An atomic that a surplus block skips leaves its variable 0: it bounds loops and reaches shared memory."""
    text = """
__co__ void k(global s32 [M] y, global s32 [4] total) {
  parallel r by 2 : cluster { parallel b by M : block {
    shared s32 [4] s;
    parallel w by 1 : group, t by 1 : thread {
      int old = __atomic_add(total.at(b % 2), 3);
      s.at(0) = old;
      foreach i in old { s.at(1) = i; __atomic_add(total.at(2), 1); }
      int last = __atomic_exch(s.at(0), 9);
      y.at(b) = (b % 2 == 1 ? total.at(3) : 5) + last * 0;
    }
  } }
}
"""
    kernel = croqtile(tmp_path, text)
    found = []
    for target in ("cpu", "machine"):
        y, total = np.zeros(5, np.int32), np.array([0, 0, 0, 7], np.int32)
        kernel.on(target)(y, total)
        assert y.tolist() == [5, 7, 5, 7, 5] and total[:2].tolist() == [9, 6]
        found.append(int(total[2]))
    # Which block adds first is open, the sum of old values is not.
    assert found == [9 + 3, 9 + 3]


def test_surplus_blocks_read_no_memory(tmp_path: Path) -> None:
    """A value that such a block reads outside its accesses to memory is 0, and the place is not touched."""
    text = """
__co__ void k(global s32 [M] x, global f32 [M] z, global s32 [M] y) {
  parallel r by 4 : cluster { parallel b by M : block {
    shared s32 [5] s;
    s.at(0) = x.at(b) + __to<s32>(z.at(b));
    parallel t by 4 : thread { int v = x.at(b); s.at(t + 1) = s.at(0) + v; }
    y.at(b) = s.at(4);
  } }
}
"""
    kernel = croqtile(tmp_path, text)
    for target in ("cpu", "machine"):
        x, y = np.arange(5, dtype=np.int32) + 7, np.zeros(5, np.int32)
        kernel.on(target)(x, x.astype(np.float32), y)
        assert np.array_equal(y, 3 * x)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("parallel m by M : block { y.at(m) = 1; }", "with fewer indices inside"),
        ("parallel g by 2 : group { y.at(0) = 1; }", "with another level directly inside"),
        (
            "parallel {m, n} by [M, 2] : block { } parallel {m, n} by [M, 2] : block { }",
            "with a second level inside",
        ),
        ("", "without a grid inside"),
    ],
)
def test_what_is_inside_the_ranks_is_told(tmp_path: Path, body: str, problem: str) -> None:
    text = BROKEN.replace("parallel r by 2", "parallel {r, q} by [2, 2]").replace("BODY", body)
    with pytest.raises(tm.CompileError, match=problem) as refused:
        croqtile(tmp_path, text).compile("sm_90a")
    assert refused.value.code == "cluster-without-grid"


def test_asynchronous_stores_of_surplus_blocks(tmp_path: Path) -> None:
    """A copy to global memory that goes on after its block is not guarded: whole clusters are required."""
    text = BROKEN.replace(
        "BODY",
        "parallel m by cdiv(M, 64) : block { shared f16 [64, 64] s {1};"
        " f = tma.copy.async s => a.subspan(64, 64).at(m, 0); wait f; }",
    )
    kernel = croqtile(tmp_path, text)
    for rows in (128, 64):
        a, y = np.zeros((rows, 64), np.float16), np.zeros(rows, np.int32)
        if rows == 128:
            kernel.on("machine")(a, y)
            assert np.all(a == 1)
            continue
        with pytest.raises(tm.LaunchError, match="blocks without work in a cluster"):
            kernel.on("machine")(a, y)
