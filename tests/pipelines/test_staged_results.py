"""Results that a pipelined kernel stores from registers: by TMA through shared memory, if nothing prevents it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pipeline_runs import check, from_co

from tilemma.compiler import Compiled, compile_kernel, default_facts
from tilemma.ir.pipeline import PipelineSettings
from tilemma.ir.tile import ArrayFacts, Copy, Kernel
from tilemma.ir.types import Space
from tilemma.ir.walk import walk

KERNEL = """
__co__ void kernel(global f16 [M, K] lhs, global f16 [N, K] rhs, global TYPE [M, N] output) {
  parallel {m, n} by [cdiv(M, 128), cdiv(N, 32)] : block {
    shared f16 [128, DEEP] lhs_s;
    shared f16 [32, DEEP] rhs_s;
    mc = mma.fill.f32 0.0f;
    foreach k in cdiv(K, DEEP) {
      dma.copy lhs.subspan(128, DEEP).at(m, k) => lhs_s;
      dma.copy rhs.subspan(32, DEEP).at(n, k) => rhs_s;
      parallel p by 2 : group-4 {
        ma = mma.load lhs_s.subspan(64, DEEP).at(p, 0);
        mb = mma.load rhs_s;
        mma.row.row mc, ma, mb;
      }
    }
    parallel p by 2 : group-4 {
      STORE
    }
  }
}
"""
STORE = "mma.store mc, output.subspan(64, 32).at(m # p, n);"
TWICE = STORE + "mma.store mc, output.subspan(64, 32).at(m # p, n);"
INTO_ITSELF = (
    "apply {i, j} in mc.span { mc.at(i, j) = mc.at(i, j) + output.at((m # p) * 64 + i, n * 32 + j); }" + STORE
)
LOOPS = """
    foreach r in 2 {
      mc = mma.fill.f32 0.0f;
      foreach k in cdiv(K, DEEP) {
        dma.copy lhs.subspan(128, DEEP).at(m, k) => lhs_s;
        dma.copy rhs.subspan(32, DEEP).at(n * 2 + r, k) => rhs_s;
        parallel p by 2 : group-4 {
          ma = mma.load lhs_s.subspan(64, DEEP).at(p, 0);
          mb = mma.load rhs_s;
          mma.row.row mc, ma, mb;
        }
      }
      parallel p by 2 : group-4 {
        mma.store mc, output.subspan(64, 32).at(m # p, PLACE);
      }
    }
"""
LEFT = "int left = M - (m # p) * 64; mma.store.mask mc, output.subspan(64, 32).at(m # p, n), left, N - n * 32;"
HALF = "mma.store.mask mc, output.subspan(64, 32).at(m # p, n), 40, 32;"


def kernel_of(store: str = STORE, dtype: str = "f16", deep: int = 64, stages: int | None = 4) -> Kernel:
    text = KERNEL.replace("STORE", store).replace("TYPE", dtype)
    return replace(from_co(text, DEEP=deep), pipeline=PipelineSettings(stages=stages))


def is_staged(compiled: Compiled) -> bool:
    said = any("staged through shared memory" in d.text for d in compiled.decisions)
    copies = [op for op in walk(compiled.kernel.body) if isinstance(op, Copy)]
    stored = any(op.engine == "tma" and op.dst.base.space is Space.GLOBAL for op in copies)
    assert said == stored
    return said


def test_results_stay() -> None:
    assert is_staged(check(kernel_of(), "sm_90a", (264, 80, 200), seeds=(0,)))


@pytest.mark.parametrize("dtype", ["bf16", "e4m3"])
def test_narrow_results_are_staged(dtype: str) -> None:
    kernel = kernel_of(dtype=dtype)
    assert is_staged(compile_kernel(kernel, "sm_90a", facts=default_facts(kernel)))


def test_several_stores_into_one_array() -> None:
    assert is_staged(check(kernel_of(TWICE), "sm_90a", (136, 72, 200), seeds=(0,)))


def test_stores_of_as_many_rows_as_there_are() -> None:
    """Whole tiles go through shared memory; those of fewer rows or columns are stored directly."""
    assert is_staged(check(kernel_of(LEFT), "sm_90a", (264, 80, 200), seeds=(0, 1)))


def test_a_whole_tile_and_then_a_part_of_it() -> None:
    kernel = kernel_of("mc = mc * 2.0f;" + STORE + "mc = mc * 0.5f;" + LEFT)
    check(kernel, "sm_90a", (136, 72, 200), seeds=(0, 1))


def looped(place: str, extent: str) -> Kernel:
    """A kernel whose blocks compute two tiles each, one after the other, at ``place``."""
    head, _, rest = KERNEL.partition("    mc = ")
    tail = rest[rest.index("  }\n}\n") :] if rest.endswith("  }\n}\n") else ""
    text = (head + LOOPS + tail).replace("PLACE", place).replace("cdiv(N, 32)", extent).replace("TYPE", "f16")
    return replace(from_co(text, DEEP=64), pipeline=PipelineSettings(stages=4))


def test_stores_of_a_loop_to_different_places() -> None:
    assert is_staged(check(looped("n * 2 + r", "cdiv(N, 64)"), "sm_90a", (136, 136, 200), seeds=(0,)))


def test_stores_of_a_loop_to_one_place() -> None:
    """TMA might write the first tile after the second."""
    kernel = looped("n * 2 + 1", "cdiv(N, 64)")
    assert not is_staged(compile_kernel(kernel, "sm_90a", facts=default_facts(kernel)))


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(kernel_of(dtype="f32"), id="wide elements"),
        pytest.param(kernel_of(INTO_ITSELF), id="an array that is read too"),
        pytest.param(kernel_of(HALF), id="some rows only"),
        pytest.param(kernel_of(deep=240, stages=None), id="no room"),
        pytest.param(kernel_of(deep=64, stages=10), id="stages that take all memory"),
    ],
)
def test_stored_directly(kernel: Kernel) -> None:
    compiled = compile_kernel(kernel, "sm_90a", facts=default_facts(kernel))
    assert not is_staged(compiled)


def test_rows_that_TMA_cannot_store() -> None:
    kernel = kernel_of()
    facts = {**default_facts(kernel), "output": ArrayFacts(1, 16, ragged=True)}
    assert not is_staged(compile_kernel(kernel, "sm_90a", facts=facts))
