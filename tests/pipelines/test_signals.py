"""The order established by a trigger and its acknowledgement: accesses of arriving threads to buffers of both
roles."""

from __future__ import annotations

import numpy as np
import pytest
from pipeline_runs import from_co

from tilemma import machine
from tilemma.compiler import compile_kernel
from tilemma.ir.tile import Kernel
from tilemma.kernels import facts_of
from tilemma.targets.cpu import execute

SEEDS = range(8)


def gives(kernel: Kernel, rows: int, want: np.ndarray) -> None:
    """``y`` becomes ``want`` on the CPU, and on the machine however far one warp lags."""
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 10, (rows, 64)).astype(np.float32)
    want = want(x)
    y = np.zeros_like(x)
    execute(kernel, {"x": x, "y": y}, {}, dims={"K": rows, "N": 64})
    assert np.array_equal(y, want)
    compiled = compile_kernel(kernel, "sm_90a", facts_of({"x": x, "y": y}))
    (launch,) = compiled.launches
    for seed in SEEDS:
        for schedule in ("starve", "random"):
            y = np.zeros_like(x)
            machine.run(compiled.ptx, launch, {"x": x, "y": y}, seed=seed, schedule=schedule, strict=True)
            assert np.array_equal(y, want)


# `go` and `back` go to and fro between two roles; `own` is used by the second alone, `both` is read by the first.
QUESTION = """
__co__ void k(global f32 [K, N] x, global f32 [K, N] y) {
  parallel cta by 1 : block {
    shared event go[2], back[2];
    shared f32 [4, 64] own;
    shared f32 [4, 64] both;
    parallel p by 2 : group-4 {
      inthreads.async (p == 0) {
        foreach k in cdiv(K, 4) {
          FIRST_ROLE
        }
      }
      inthreads.async (p == 1) {
        foreach k in cdiv(K, 4) {
          parallel w by 4 : group {
            parallel t by 32 : thread {
              BUFFER.at(w, t) = x.at(4 * k + w, t);
              BUFFER.at(w, t + 32) = x.at(4 * k + w, t + 32);
            }
          }
          trigger go[k % 2];
          wait back[k % 2];
          parallel w by 4 : group {
            parallel t by 32 : thread {
              y.at(4 * k + w, t) = BUFFER.at(3 - w, t);
              y.at(4 * k + w, t + 32) = BUFFER.at(3 - w, t + 32);
            }
          }
          AFTER
        }
      }
    }
  }
}
"""
READS = """
          parallel w by 4 : group {
            parallel t by 32 : thread { if (both.at(w, t) > 99.0f) y.at(0, 0) = 1.0f; }
          }
"""
QUESTIONS = {
    "the first role knows nothing of the buffer": ("own", "wait go[k % 2]; trigger back[k % 2];"),
    "the first role answers too early": ("own", "trigger back[k % 2]; wait go[k % 2];"),
    "the first role reads another buffer": ("own", f"wait go[k % 2]; {READS} trigger back[k % 2];"),
    "the first role reads it": ("both", f"wait go[k % 2]; {READS} trigger back[k % 2];"),
    # Two that only read do not have to be ordered: the answer is no answer for those.
    "the first role reads it and answers too early": (
        "both",
        f"trigger back[k % 2]; wait go[k % 2]; {READS} trigger done[k % 2];",
    ),
}


@pytest.mark.parametrize("form", QUESTIONS)
def test_an_answer_orders_only_what_the_other_role_was_told_of(form):
    """One thread arrives for its role, whatever the other warps have done."""
    buffer, role = QUESTIONS[form]
    text = QUESTION.replace("FIRST_ROLE", role).replace("BUFFER", buffer)
    text = text.replace("AFTER", "wait done[k % 2];" if "done" in role else "")
    text = text.replace("back[2];", "back[2], done[2];" if "done" in role else "back[2];")
    gives(
        from_co(text.replace("both;", "both {0};")), 16, lambda x: x.reshape(-1, 4, 64)[:, ::-1].reshape(x.shape)
    )


SOME_RELEASE = """
__co__ void k(global f32 [K, N] x, global f32 [K, N] y) {
  parallel cta by 1 : block {
    shared event full[2];
    shared event COUNT empty[2] = ready;
    shared f32 [8, 64] a[2];
    parallel p by 3 : group-4 {
      inthreads.async (p == 0) {
        foreach k in cdiv(K, 8) {
          wait empty[k % 2];
          FILL
          trigger full[k % 2];
        }
      }
      inthreads.async (p > 0) {
        foreach k in cdiv(K, 8) {
          wait full[k % 2];
          dma.copy a[k % 2].subspan(4, 64).at(p - 1, 0)
              => y.subspan(8, 64).at(k, 0).subspan(4, 64).at(p - 1, 0);
          TRIGGER
        }
      }
    }
  }
}
"""
FILLS = {
    "by the copy engine": "tma.copy.async<full[k % 2]> x.subspan(8, 64).at(k, 0) => a[k % 2];",
    "by threads": "dma.copy x.subspan(8, 64).at(k, 0) => a[k % 2];",
}
TRIGGERS = {
    "each group": ("", "trigger empty[k % 2];"),
    "the second group": ("", "inthreads (p == 2) { trigger empty[k % 2]; }"),
    "the first threads of each group": (
        "<64>", "parallel t by 128 : thread { inthreads (t < 32) { trigger empty[k % 2]; } }",
    ),
    "a few threads of the first group": (
        "<32>",
        "parallel t by 128 : thread { inthreads (t < 32 && p == 1) { trigger empty[k % 2]; } }",
    ),
    "all threads of the second group": (
        "<128>", "parallel t by 128 : thread { inthreads (p == 2) { trigger empty[k % 2]; } }",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_slot_is_released_when_all_have_read_it(fill, trigger):
    """Threads that read the slot and do not arrive are done before those that do."""
    count, text = TRIGGERS[trigger]
    text = SOME_RELEASE.replace("COUNT", count).replace("TRIGGER", text).replace("FILL", FILLS[fill])
    gives(from_co(text.replace("event  ", "event ")), 40, lambda x: x)
