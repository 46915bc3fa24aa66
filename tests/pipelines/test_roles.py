"""Several producers and consumers: registers that the warpgroups of a block share out, outputs of other types."""

from __future__ import annotations

import numpy as np
import pytest
from pipeline_runs import from_co

from tilemma import machine
from tilemma.compiler import compile_kernel, with_facts
from tilemma.ir.tile import Kernel
from tilemma.kernels import facts_of
from tilemma.targets.cpu import execute

# The loaders of A and of B are separate warpgroups; OUT is the way the result is stored.
TWO_PRODUCERS = """
__co__ void k(global f16 [K, M] a, global f16 [N, K] b, global TYPE [M, N] c) {
  parallel {m, n} by [cdiv(M, CONSUMERS * 64), cdiv(N, 32)] : block {
    shared event full_a[2], full_b[2], empty_a[2] = ready, empty_b[2] = ready;
    shared f16 [64, CONSUMERS * 64] a_s[2];
    shared f16 [32, 64] b_s[2];
    shared TYPE [CONSUMERS * 64, 32] c_s;
    parallel wg by CONSUMERS + 2 : group-4 {
      inthreads.async (wg == CONSUMERS) {
        foreach k in cdiv(K, 64) {
          wait empty_a.at(k);
          tma.copy.async<full_a.at(k)> a.subspan(64, CONSUMERS * 64).at(k, m) => a_s[k % 2];
          trigger full_a.at(k);
        }
      }
      inthreads.async (wg == CONSUMERS + 1) {
        foreach k in cdiv(K, 64) {
          wait empty_b.at(k);
          tma.copy.async<full_b.at(k)> b.subspan(32, 64).at(n, k) => b_s[k % 2];
          trigger full_b.at(k);
        }
      }
      inthreads.async (wg < CONSUMERS) {
        mc = mma.fill.f32 0.0f;
        foreach k in cdiv(K, 64) {
          wait full_a.at(k);
          wait full_b.at(k);
          mma.col.row mc, a_s[k % 2].subspan(64, 64).at(0, wg), b_s[k % 2];
          trigger empty_a.at(k);
          trigger empty_b.at(k);
        }
        mma.store mc, c_s.subspan(64, 32).at(wg, 0);
        tma.copy c_s.subspan(64, 32).at(wg, 0) => c.subspan(64, 32).at(m * CONSUMERS + wg, n);
      }
    }
  }
}
"""


def product(kernel: Kernel, shape: tuple[int, int, int], seeds: tuple[int, ...] = (0, 1)) -> None:
    """Small integers, so that every sum is exact: on the CPU before and after the passes, and on the machine."""
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, s).astype(np.float16) for s in ((k, m), (n, k)))
    want = a.astype(np.float64).T @ b.astype(np.float64).T
    dtype = kernel.arrays[2].buffer.dtype.numpy
    compiled = compile_kernel(
        with_facts(kernel, facts_of({"a": a, "b": b, "c": np.empty((m, n), dtype)})), "sm_90a"
    )
    for run in ("language", "decided", *seeds):
        arrays = {"a": a.copy(), "b": b.copy(), "c": np.full((m, n), 7, dtype)}
        if isinstance(run, int):
            (launch,) = compiled.launches
            schedule = "late" if run == 0 else "random"
            report = machine.run(compiled.ptx, launch, arrays, seed=run, schedule=schedule, strict=True)
            assert report.ok and not report.letter
        else:
            ir = kernel if run == "language" else compiled.kernel
            execute(ir, arrays, {}, dims={"M": m, "N": n, "K": k})
        assert np.array_equal(arrays["c"], want.astype(dtype)), run


@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_registers_come_from_what_the_block_was_launched_with(consumers):
    """640 threads start with 96 registers each: what the SM has beyond 640 * 96 cannot be handed out."""
    product(from_co(TWO_PRODUCERS, TYPE="f16", CONSUMERS=str(consumers)), (200, 40, 136))


@pytest.mark.parametrize("shape", [(72, 40, 136), (64, 32, 64)])
def test_single_precision_leaves_by_the_copy_engine(shape):
    """A buffer that accumulators are staged through and TMA reads has no gaps between its rows."""
    product(from_co(TWO_PRODUCERS, TYPE="f32", CONSUMERS="1"), shape)


def test_nothing_to_sum_up():
    """K = 0: A[0, M] of NumPy has strides of 0, and is as good as any other."""
    product(from_co(TWO_PRODUCERS, TYPE="f32", CONSUMERS="1"), (72, 40, 0))


CONSUMER = """
      inthreads.async (wg == {role}) {{
        mc = mma.fill.f32 0.0f;
        foreach k in cdiv(K, 64) {{
          wait full.at(k);
          mma.col.row mc, a_s[k % 2], b_s[k % 2].subspan(32, 64).at({role} - 1, 0);
          trigger empty.at(k);
        }}
        mma.store mc, c.subspan(64, 32).at(m, n * 2 + {role} - 1);
      }}
"""
TWO_CONSUMERS = f"""
__co__ void k(global f16 [K, M] a, global f16 [N, K] b, global f32 [M, N] c) {{
  parallel {{m, n}} by [cdiv(M, 64), cdiv(N, 64)] : block {{
    shared event full[2];
    shared event COUNT empty[2] = ready;
    shared f16 [64, 64] a_s[2];
    shared f16 [64, 64] b_s[2];
    parallel wg by 3 : group-4 {{
      inthreads.async (wg == 0) {{
        foreach k in cdiv(K, 64) {{
          wait empty.at(k);
          tma.copy.async<full.at(k)> a.subspan(64, 64).at(k, m) => a_s[k % 2];
          tma.copy.async<full.at(k)> b.subspan(64, 64).at(n, k) => b_s[k % 2];
          trigger full.at(k);
        }}
      }}
      {CONSUMER.format(role=1)}
      {CONSUMER.format(role=2)}
    }}
  }}
}}
"""


@pytest.mark.parametrize("count", ["", "<256>"])
def test_roles_that_release_a_slot_together_are_counted_together(count: str):
    """The arrivals of both roles complete a generation, with a count of threads and without."""
    product(from_co(TWO_CONSUMERS.replace("event COUNT", f"event{count}")), (72, 72, 328))


def test_credits_outside_the_roles():
    """A trigger outside every role gives a whole generation, however many instances give it."""
    plain = TWO_CONSUMERS.replace("event COUNT", "event").replace(" = ready", "")
    for place in ("parallel wg by 3 : group-4 {", "shared f16 [64, 64] b_s[2];"):
        product(from_co(plain.replace(place, place + " foreach s in 2 { trigger empty[s]; }")), (72, 72, 328))


def test_a_slot_of_its_own_role():
    """Roles that trigger different slots of a ring share no generation."""
    text = """
__co__ void k(global f32 [N] x, global f32 [N] y) {
  parallel b by 1 : block {
    shared event turn[2];
    shared f32 [32] s;
    parallel w by 2 : group {
      inthreads.async (w == 0) {
        foreach i in cdiv(N, 32) {
          dma.copy x.subspan(32).at(i) => s;
          trigger turn[1];
          wait turn[0];
        }
      }
      inthreads.async (w == 1) {
        foreach i in cdiv(N, 32) {
          wait turn[1];
          dma.copy s => y.subspan(32).at(i);
          trigger turn[0];
        }
      }
    }
  }
}
"""
    kernel = from_co(text)
    compiled = compile_kernel(kernel, "sm_90a")
    x = np.arange(100, dtype=np.float32)
    for run in ("cpu", *range(4)):
        y = np.zeros_like(x)
        if run == "cpu":
            execute(kernel, {"x": x, "y": y}, {}, dims={"N": 100})
        else:
            machine.run(
                compiled.ptx, compiled.launches[0], {"x": x, "y": y}, seed=run, schedule="random", strict=True
            )
        assert np.array_equal(x, y)
