"""Synchronous loops that the compiler divides into a producer and consumers: same results, no hazards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pipeline_runs import check, from_co, problem

from tilemma.compiler import compile_kernel
from tilemma.ir.pipeline import OFF, PipelineSettings
from tilemma.ir.tile import ArrayFacts, Kernel
from tilemma.kernels import facts_of
from tilemma.targets.cpu import execute
from tilemma.targets.ptx.passes import persistent_grid

HEAD = """
__co__ void kernel(global f16 [M, K] lhs, global f16 [N, K] rhs, global f16 [M, N] output) {
  parallel {block_m, block_n} by [cdiv(M, ROWS), cdiv(N, COLUMNS)] : block {
    shared f16 [ROWS, 64] lhs_s;
    shared f16 [COLUMNS, 64] rhs_s;
    shared f16 [ROWS, COLUMNS] output_s;
    mc = mma.fill.f32 0.0f;
"""
COPIES = """
      dma.copy lhs.subspan(ROWS, 64).at(block_m, k) => lhs_s;
      dma.copy rhs.chunkat(block_n, k) => rhs_s;
"""
MULTIPLY = """
      parallel p by ROWS / 64 : group-4 {
        foreach i in [4] {
          ma = mma.load lhs_s.subspan(64, 64).at(p, 0).chunkat(_, i);
          mb = mma.load rhs_s.chunkat(_, i);
          mma.row.row mc, ma, mb;
        }
      }
"""
STORE = """
    parallel p by ROWS / 64 : group-4
      mma.store mc, output_s.subspan(64, COLUMNS).at(p, 0);
    dma.copy output_s => output.subspan(ROWS, COLUMNS).at(block_m, block_n);
  }
}
"""
LOOP = "foreach k in [cdiv(K, 64)] {" + COPIES + MULTIPLY + "}"
ELEMENTS = """
    parallel t by 2 * ROWS : thread {
      foreach i in [COLUMNS / 2] {
        output_s.at((i * 2 * ROWS + t) / COLUMNS, (i * 2 * ROWS + t) % COLUMNS) =
          output_s.at((i * 2 * ROWS + t) / COLUMNS, (i * 2 * ROWS + t) % COLUMNS) * 1.0f;
      }
    }
    dma.copy output_s => output"""
TWO_RINGS = (
    HEAD.replace("mc = mma", "shared f16 [COLUMNS, 64] b_s; md = mma.fill.f32 0.0f; mc = mma")
    + "foreach k in [cdiv(K, 64)] {"
    + COPIES
    + MULTIPLY.replace("p by", "q by").replace("p, 0", "q, 0")
    + "dma.copy rhs.subspan(COLUMNS, 64).at(block_n, k) => b_s;"
    + MULTIPLY.replace("rhs_s", "b_s").replace("mc, ma", "md, ma")
    + "}"
    + STORE
)
KERNELS = {
    "listing 3": (HEAD + LOOP + STORE, 128, 64),
    "one warpgroup": (HEAD + LOOP + STORE, 64, 32),
    "three warpgroups": (HEAD + LOOP + STORE, 192, 32),
    "two loops": (
        HEAD.replace("mc = mma", "shared f16 [ROWS, 64] a_s; shared f16 [COLUMNS, 64] b_s; mc = mma")
        + LOOP.replace("cdiv(K, 64)", "cdiv(K, 128)")
        + LOOP.replace("cdiv(K, 64)", "cdiv(K, 128)").replace("lhs_s", "a_s").replace("rhs_s", "b_s")
        .replace("k) =>", "k + cdiv(K, 128)) =>").replace("rhs.chunkat", "rhs.subspan(COLUMNS, 64).at") + STORE,
        128, 32,
    ),
    "two rings in a loop": (TWO_RINGS, 64, 32),
    "elements of the result": (HEAD + LOOP + STORE.replace("dma.copy output_s => output", ELEMENTS), 128, 32),
    "stored directly": (
        HEAD + LOOP + """parallel p by ROWS / 64 : group-4
          mma.store mc, output.subspan(64, COLUMNS).at(block_m * (ROWS / 64) + p, block_n);
        }}""", 128, 32,
    ),
}  # fmt: skip


def kernel_of(name: str, settings: PipelineSettings | None) -> Kernel:
    text, rows, columns = KERNELS[name]
    return replace(from_co(text, ROWS=rows, COLUMNS=columns), pipeline=settings)


def said(compiled, word: str) -> bool:
    return any(d.pass_name == "pipeline" and word in d.text for d in compiled.decisions)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str) -> None:
    compiled = check(kernel_of(name, PipelineSettings(stages=2)), "sm_90a", (264, 72, 200), seeds=(0,))
    assert said(compiled, "copied ahead by TMA") and not said(compiled, "not pipelined"), compiled.decisions


SETTINGS = {
    "automatic": PipelineSettings(),
    "three stages": PipelineSettings(stages=3, persistent=False),
    "one block a tile": PipelineSettings(persistent=False),
    "no clusters": PipelineSettings(cluster=1, order="keep"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name: str) -> None:
    compiled = check(kernel_of("listing 3", SETTINGS[name]), "sm_90a", (136, 72, 328), seeds=(1,))
    assert said(compiled, "copied ahead by TMA")


@pytest.mark.parametrize("shape", [(0, 8, 8), (8, 8, 0), (8, 8, 8), (128, 64, 64)], ids=str)
def test_small_shapes(shape) -> None:
    check(kernel_of("listing 3", PipelineSettings()), "sm_90a", shape, seeds=(0,))


def test_the_same_bits_in_the_same_order() -> None:
    """With ``order="keep"`` the reference gives the bits of the kernel as written."""
    plain = kernel_of("listing 3", None)
    piped = replace(plain, pipeline=PipelineSettings(order="keep"))
    results = []
    for kernel in (plain, piped):
        arrays, _ = problem(kernel, (264, 200, 328))
        execute(compile_kernel(kernel, "sm_90a").kernel, arrays, {}, dims={"M": 264, "N": 200, "K": 328})
        results.append(arrays["output"].tobytes())
    assert results[0] == results[1]


def test_arrays_that_tma_cannot_reach_keep_the_written_kernel() -> None:
    """Rows that are no multiple of 16 bytes."""
    compiled = check(kernel_of("listing 3", PipelineSettings()), "sm_90a", (40, 33, 70), seeds=(0,))
    assert said(compiled, "TMA cannot copy") and "cp.async.bulk" not in compiled.ptx


def test_a_ragged_row_is_no_tma_store() -> None:
    """TMA stores whole units of 16 bytes: a part of a wider array must not be written beyond its columns."""
    wide = np.zeros((64, 72), np.float16)
    assert facts_of({"x": wide[:, :70]})["x"] == ArrayFacts(1, 16, True, True)
    assert facts_of({"x": wide})["x"] == ArrayFacts(1, 16, True)
    kernel = kernel_of("listing 3", PipelineSettings())
    facts = {p.buffer.name: ArrayFacts(1, 16, ragged=p.buffer.name == "output") for p in kernel.arrays}
    assert "cp.async.bulk.tensor.2d.global" not in compile_kernel(kernel, "sm_90a", facts).ptx


def test_stages_that_do_not_fit_are_said() -> None:
    compiled = compile_kernel(kernel_of("listing 3", PipelineSettings(stages=32)), "sm_90a")
    assert said(compiled, "not pipelined")


@pytest.mark.parametrize(
    ("columns", "settings", "expected"), [(128, None, True), (64, None, False), (128, OFF, False)]
)
def test_a_kernel_without_settings(columns: int, settings: PipelineSettings | None, expected: bool) -> None:
    """Large tiles are pipelined; smaller ones, of which a multiprocessor holds several, are not."""
    text, rows, _ = KERNELS["listing 3"]
    kernel = replace(from_co(text, ROWS=rows, COLUMNS=columns), pipeline=settings)
    compiled = compile_kernel(kernel, "sm_90a")
    assert ("setmaxnreg" in compiled.ptx) == expected
    assert not any(d.warning for d in compiled.decisions)


def test_too_many_sums_for_the_registers() -> None:
    text, _, _ = KERNELS["listing 3"]
    kernel = replace(from_co(text, ROWS=192, COLUMNS=256), pipeline=PipelineSettings())
    assert said(compile_kernel(kernel, "sm_90a"), "too few registers")


def test_a_loop_with_another_copy_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer may go backward along K only if it issues all copies of the loop."""
    monkeypatch.setattr(persistent_grid, "MULTIPROCESSORS", 1)
    text = HEAD + LOOP[:-1] + "dma.copy lhs.subspan(ROWS, 64).at(block_m, 0) => lhs_s; }" + STORE
    kernel = replace(from_co(text, ROWS=64, COLUMNS=32), pipeline=PipelineSettings(cluster=1))
    compiled = check(kernel, "sm_90a", (64, 96, 200), seeds=(0,))
    assert said(compiled, "persistent") and said(compiled, "copied ahead by TMA")
