"""Roles inside a `: thread` level: run by the selected lanes, on the reference and on the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pipeline_runs import from_co

import tilemma as tm
from tilemma.compiler import compile_kernel
from tilemma.errors import CompileError
from tilemma.testing import random_array, reference


def loaded(text: str, folder: Path) -> tm.Kernel:
    (folder / "roles.co").write_text(text)
    return tm.load(folder / "roles.co").k


HEAD = """
__co__ void k(global f16 [M, K] lhs, global f16 [N, K] rhs, global f32 [M, N] out) {
  parallel {bm, bn} by [cdiv(M, 128), cdiv(N, 32)] : block {
    shared f16 [128, 32] ls[3];
    shared f16 [32, 32] rs[3];
    shared event full[3], empty[3] = ready;
    parallel wg by 3 : group-4, t by 128 : thread {
      inthreads.async (PICK) {
        foreach k in cdiv(K, 32) {
          wait empty[k % 3];
          tma.copy.async<full[k % 3]> lhs.subspan(128, 32).at(bm, k) => ls[k % 3];
          tma.copy.async<full[k % 3]> rhs.subspan(32, 32).at(bn, k) => rs[k % 3];
          trigger full[k % 3];
        }
      }
      inthreads.async (wg >= 1) {
        mc = mma.fill.f32 0.0f;
        foreach k in cdiv(K, 32) {
          wait full[k % 3];
          ma = mma.load ls[k % 3].subspan(64, 32).at(wg - 1, 0);
          mb = mma.load rs[k % 3];
          mma.row.row mc, ma, mb;
          trigger empty[k % 3];
        }
        mma.store mc, out.subspan(64, 32).at(bm * 2 + wg - 1, bn);
      }
    }
  }
}
"""


@pytest.mark.parametrize(
    "pick",
    [
        "wg == 0 && t == 0",
        "t == 127 && wg == 0",
        "wg == 0 && t < 1",
        "wg # t == 5",
        "wg == 0 && t / 32 == 2",
        "wg == 0 && t < 64",
        "wg == 0 && t < 5",
        "wg == 0 && t % 32 == 7",
        "wg == 0",
        "wg * 128 + t < 128",
    ],
)
def test_any_lanes_produce(pick: str, tmp_path: Path) -> None:
    kernel = loaded(HEAD.replace("PICK", pick), tmp_path)
    a, b = random_array((130, 96), "f16", 0), random_array((40, 96), "f16", 1)
    wanted = reference("mk,nk->mn", a, b)
    for target in ("cpu", "machine"):
        out = np.zeros((130, 40), np.float32)
        kernel.on(target)(a, b, out)
        assert np.abs(out - wanted).max() <= tm.testing.error_bound(a, b.T, acc="f32", out="f32").max()


def rows(text: str) -> str:
    return "__co__ void k(global f32 [N] x, global f32 [N] y) {\n" + text + "\n}"


# Each: y = 2 x + 1, by lanes that other lanes hand x to.
PROGRAMS = {
    "a role of one warp, and one of the next": rows("""
  parallel b by [cdiv(N, 128)] : block {
    shared f32 [128] s[2];
    shared event full, done;
    parallel wg by 2 : group-4, t by 128 : thread {
      inthreads.async (wg == 0 && t < 32) { dma.copy x.subspan(128).at(b) => s[0]; trigger full; }
      inthreads.async (wg == 1) { wait full; s[1].at(t) = s[0].at(t) * 2.0f; trigger done; }
      inthreads.async (wg == 0 && t >= 32 && t < 64) {
        wait done;
        foreach i in 4 {
          n = i * 32 + t - 32;
          if (b * 128 + n < N) { y.at(b * 128 + n) = s[1].at(n) + 1.0f; }
        }
      }
    }
  }"""),
    "threads directly in a block": rows("""
  parallel b by [cdiv(N, 128)] : block {
    shared f32 [128] s;
    shared event full;
    parallel t by 160 : thread {
      inthreads.async (t == 0) { dma.copy x.subspan(128).at(b) => s; trigger full; }
      inthreads.async (t >= 32) {
        wait full;
        if (b * 128 + t - 32 < N) { y.at(b * 128 + t - 32) = s.at(t - 32) * 2.0f + 1.0f; }
      }
    }
  }"""),
    "some lanes of a warp": rows("""
  parallel b by [cdiv(N, 64)] : block {
    shared f32 [64] s;
    shared event full;
    parallel w by 2 : group, t by 32 : thread {
      inthreads.async (w == 0 && t < 5) {
        foreach j in 13 {
          n = t * 13 + j;
          if (n < 64) { if (b * 64 + n < N) { s.at(n) = x.at(b * 64 + n); } }
        }
        trigger full;
      }
      inthreads.async (w == 1) {
        wait full;
        foreach j in 2 {
          n = b * 64 + j * 32 + t;
          if (n < N) { y.at(n) = s.at(j * 32 + t) * 2.0f + 1.0f; }
        }
      }
    }
  }"""),
    "a loop around the roles, and a variable of each": rows("""
  parallel b by 1 : block {
    shared f32 [64] s[2];
    shared event full[2], empty[2] = ready;
    parallel w by 3 : group, t by 32 : thread {
      mutable given = 0;
      mutable taken = 0;
      foreach i in cdiv(N, 64) {
        inthreads.async (w == 0 && t == 31) {
          wait empty[given % 2];
          dma.copy x.subspan(64).at(i) => s[given % 2];
          trigger full[given % 2];
          given = given + 1;
        }
        inthreads.async (w >= 1) {
          wait full[taken % 2];
          n = (w - 1) * 32 + t;
          if (i * 64 + n < N) { y.at(i * 64 + n) = s[taken % 2].at(n) * 2.0f + 1.0f; }
          trigger empty[taken % 2];
          taken = taken + 1;
        }
      }
    }
  }"""),
    "a branch of one lane": rows("""
  parallel b by [cdiv(N, 32)] : block {
    shared f32 [32] s;
    shared event full;
    parallel w by 2 : group, t by 32 : thread {
      if (w == 0) {
        if (b * 32 + t < N) { s.at(t) = x.at(b * 32 + t) * 2.0f; }
        if (t == 0) { trigger full; }
      }
      inthreads.async (w == 1) {
        wait full;
        if (b * 32 + t < N) { y.at(b * 32 + t) = s.at(t) + 1.0f; }
      }
    }
  }"""),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_lanes_hand_over(name: str, tmp_path: Path) -> None:
    kernel = loaded(PROGRAMS[name], tmp_path)
    x = np.random.default_rng(0).integers(-9, 10, 300).astype(np.float32)
    y = np.zeros_like(x)
    kernel.on("cpu")(x, y)
    assert np.array_equal(y, 2 * x + 1)
    compiled = kernel.compile(arch="sm_90a")
    (launch,) = compiled.launches
    for seed in range(4):
        y = np.zeros_like(x)
        schedule = "starve" if seed % 2 else "random"
        tm.machine.run(compiled.ptx, launch, {"x": x, "y": y}, seed=seed, schedule=schedule, strict=True)
        assert np.array_equal(y, 2 * x + 1)


@pytest.mark.parametrize(("pick", "lanes"), [("wg >= 1 && t == 0", 1), ("wg >= 1 && t < 40", 40)])
def test_a_multiply_needs_whole_warps(pick: str, lanes: int) -> None:
    text = HEAD.replace("PICK", "wg == 0").replace("wg >= 1)", pick + ")")
    with pytest.raises(CompileError, match=f"role of {lanes} of the 128 lanes of `group-4`") as found:
        compile_kernel(from_co(text), "sm_90a")
    assert found.value.code == "role-of-lanes"
    assert found.value.span is not None
