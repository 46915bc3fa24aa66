"""A delayed warp misses no generation of an event, for any delay."""

from __future__ import annotations

import numpy as np
import pytest
from pipeline_runs import close, from_co, problem

from tilemma import machine
from tilemma.compiler import compile_kernel
from tilemma.ir.tile import InThreads
from tilemma.ir.walk import walk
from tilemma.kernels import facts_of
from tilemma.targets.ptx.passes.order_event_waits import EventWaitersApart

TILES = """
#define TILE 64
#define STAGES 2
__co__ void k(global f16 [M, K] lhs, global f16 [N, K] rhs, global f16 [M, N] output) {
  parallel cta by 1 : block {
    shared event full[STAGES], empty[STAGES] = ready;
    shared f16 [TILE, TILE] a[STAGES];
    shared f16 [TILE, TILE] b[STAGES];
    parallel p by 2 : group-4 {
      OUTSIDE
      foreach n in cdiv(N, TILE) {
        CONDITION
        inthreads.async (p == 0) {
          INSIDE
          foreach k in cdiv(K, TILE) {
            wait empty[SLOT];
            SAY
            SOME {
              tma.copy.async<full[SLOT]> lhs.subspan(TILE, TILE).at(cta, k) => a[SLOT];
              tma.copy.async<full[SLOT]> rhs.subspan(TILE, TILE).at(n, k) => b[SLOT];
              trigger full[SLOT];
            }
            STEP
          }
        }
        inthreads.async (p == 1) {
          INSIDE
          mc = mma.fill.f32 0.0f;
          foreach k in cdiv(K, TILE) {
            wait full[SLOT];
            mma.row.row mc, a[SLOT], b[SLOT];
            trigger empty[SLOT];
            STEP
          }
          mma.store mc, output.subspan(TILE, TILE).at(cta, n);
        }
        END
      }
    }
  }
}
"""
COUNTER = "mutable int slot = 0;"
FORMS = {
    "a counter for all tiles": {
        "OUTSIDE": COUNTER, "SLOT": "slot", "STEP": "slot = (slot + 1) % STAGES;",
    },
    "a counter for each tile": {
        "INSIDE": "mutable int slot = n * cdiv(K, TILE) % STAGES;", "SLOT": "slot",
        "STEP": "slot = slot == STAGES - 1 ? 0 : slot + 1;",
    },
    "the loops' own counters": {"SLOT": "((n * cdiv(K, TILE) + k) % STAGES)"},
    "under a condition": {
        "OUTSIDE": COUNTER, "SLOT": "slot", "STEP": "slot = (slot + 1) % STAGES;",
        "CONDITION": "if (K > 0) {", "END": "}",
    },
    "copies under a condition of their own": {
        "SLOT": "((n * cdiv(K, TILE) + k) % STAGES)", "SOME": "inthreads (K > 0)",
    },
}  # fmt: skip
# The first warp of each role, and another.
WARPS = (0, 3, 4, 6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("solo", [True, False])
def test_no_warp_misses_a_generation(form: str, solo: bool) -> None:
    """One warp of the block at a time is starved; a role that prints is not played by one thread."""
    text = TILES
    parts = {"SOME": "if (K > 0)", "SAY": "" if solo else 'if (K < 0) println("none");', **FORMS[form]}
    for name in ("OUTSIDE", "CONDITION", "INSIDE", "SOME", "SAY", "SLOT", "STEP", "END"):
        text = text.replace(name, parts.get(name, ""))
    kernel = from_co(text)
    shape = (64, 128, 136)
    compiled = compile_kernel(kernel, "sm_90a", facts_of(problem(kernel, shape)[0]))
    roles = [op.solo for op in walk(compiled.kernel.body) if isinstance(op, InThreads) and op.asynchronous]
    assert roles == [solo, False]
    (launch,) = compiled.launches
    for seed in WARPS:
        arrays, want = problem(kernel, shape)
        assert machine.run(compiled.ptx, launch, arrays, seed=seed, schedule="starve", strict=True).ok
        assert close(arrays["output"], want)


APART = """
__co__ void k(global f32 [K, N] x, global f32 [K, N] y) {
  parallel cta by 1 : block {
    shared event full[2], empty[2] = ready;
    shared f32 [4, 64] a[2];
    parallel p by 3 : group-4 {
      inthreads.async (p < 2) {
        WAITS
      }
      inthreads.async (p == 2) {
        foreach k in cdiv(K, 4) {
          wait full[k % 2];
          dma.copy a[k % 2] => y.subspan(4, 64).at(k, 0);
          trigger empty[k % 2];
        }
      }
    }
  }
}
"""
COPY = """
          tma.copy.async<full[k % 2]> x.subspan(4, 64).at(k, 0) => a[k % 2];
          trigger full[k % 2];
"""
TOGETHER = f"foreach k in cdiv(K, 4) {{ wait empty[k % 2]; inthreads (p == 0) {{ {COPY} }} }}"
SEVERAL = {
    "all wait for what one group fills": TOGETHER,
    "the last of them": TOGETHER.replace("p == 0", "p == 1"),
    "only that group waits": f"inthreads (p == 1) {{ foreach k in cdiv(K, 4) {{ wait empty[k % 2]; {COPY} }} }}",
}


@pytest.mark.parametrize("form", SEVERAL)
@pytest.mark.parametrize("say", ["", 'if (K < 0) println("none");'])
def test_groups_that_only_wait_stay_in_step(form: str, say: str) -> None:
    """Of a role's groups one fills the slots, and its first thread arrives for all."""
    kernel = from_co(APART.replace("WAITS", say + SEVERAL[form]))
    x = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
    compiled = compile_kernel(kernel, "sm_90a", facts_of({"x": x, "y": x}))
    (launch,) = compiled.launches
    for seed in range(12):
        y = np.zeros_like(x)
        assert machine.run(compiled.ptx, launch, {"x": x, "y": y}, seed=seed, schedule="starve", strict=True).ok
        assert np.array_equal(y, x)


def test_groups_that_wait_on_their_own_are_refused() -> None:
    """In a loop of their own they never meet those on which the next generation depends."""
    alone = "inthreads (p == 1) { foreach k in cdiv(K, 4) { wait empty[k % 2]; } }"
    other = f"inthreads (p == 0) {{ foreach k in cdiv(K, 4) {{ wait empty[k % 2]; {COPY} }} }}"
    for text in (alone + other, other + alone):
        with pytest.raises(EventWaitersApart, match="`empty`"):
            compile_kernel(from_co(APART.replace("WAITS", text)), "sm_90a")


TURNS = """
__co__ void k(global f16 [M, K] lhs, global f16 [N, K] rhs, global f16 [M, N] output) {
  CLUSTER parallel cta by BLOCKS : block {
    shared event full[2], empty[2] = ready;
    shared event<128> go;
    shared f16 [64, 64] a[2];
    shared f16 [64, 64] b[2];
    parallel p by 2 : group-4 {
      inthreads.async (p == 0) {
        ONCE
        foreach n in cdiv(N, 64) {
          EACH
          foreach k in cdiv(K, 64) {
            slot = (n * cdiv(K, 64) + k) % 2;
            wait empty[slot];
            tma.copy.async<full[slot]> lhs.subspan(64, 64).at(cta, k) => a[slot];
            tma.copy.async<full[slot]>SHARED rhs.subspan(64, 64).at(n, k) => b[slot];
            trigger full[slot];
          }
        }
      }
      inthreads.async (p == 1) {
        AWAIT_ONCE
        foreach n in cdiv(N, 64) {
          AWAIT_EACH
          mc = mma.fill.f32 0.0f;
          foreach k in cdiv(K, 64) {
            slot = (n * cdiv(K, 64) + k) % 2;
            wait full[slot];
            mma.row.row mc, a[slot], b[slot];
            triggerOF_CLUSTER empty[slot];
          }
          mma.store mc, output.subspan(64, 64).at(cta, n);
        }
      }
    }
  } END
}
"""
BLOCK = {"CLUSTER": "", "END": "", "BLOCKS": "1", "SHARED": "", "OF_CLUSTER": ""}
PAIR = {
    "CLUSTER": "parallel pair by 1 : cluster-grid {", "END": "}", "BLOCKS": "2", "SHARED": ".multicast",
    "OF_CLUSTER": ".cluster",
}  # fmt: skip
ARRIVE = "parallel u by 128 : thread { trigger go; }"


@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize("when", ["ONCE", "EACH"])
def test_an_arrival_outside_the_loop_keeps_no_warp_in_step(when: str, cluster: bool) -> None:
    """All warps of the producer arrive on `go`, before a tile or before all: no step of the loop depends on it."""
    text = TURNS
    parts = {when: ARRIVE, f"AWAIT_{when}": "wait go;", **(PAIR if cluster else BLOCK)}
    for name in ("AWAIT_ONCE", "AWAIT_EACH", "ONCE", "EACH", "OF_CLUSTER", "CLUSTER", "BLOCKS", "SHARED", "END"):
        text = text.replace(name, parts.get(name, ""))
    kernel = from_co(text)
    shape = (64 * (1 + cluster), 128, 200)
    compiled = compile_kernel(kernel, "sm_90a", facts_of(problem(kernel, shape)[0]))
    assert not any(op.solo for op in walk(compiled.kernel.body) if isinstance(op, InThreads))
    (launch,) = compiled.launches
    for seed in range(4):
        arrays, want = problem(kernel, shape)
        assert machine.run(compiled.ptx, launch, arrays, seed=seed, schedule="starve", strict=True).ok
        assert close(arrays["output"], want)
