"""Synchronous loops that the compiler divides into a producer and consumers: same results, no hazards."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from configurations import EXAMPLES
from pipeline_runs import check, from_co, problem

import tilemma as tm
from tilemma import apply, cdiv, dma, foreach, mma, parallel, shared, var
from tilemma.compiler import compile_kernel, default_facts, with_facts
from tilemma.ir.pipeline import OFF, PipelineSettings
from tilemma.ir.tile import ArrayFacts, Barrier, For, Kernel, Mma
from tilemma.ir.walk import walk
from tilemma.kernels import facts_of
from tilemma.launch import evaluate
from tilemma.modules import load_python
from tilemma.targets.cpu import execute

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
    assert said(compiled, "do not fit in") and said(compiled, "copied ahead by TMA")


@pytest.mark.parametrize(
    ("columns", "settings", "expected"), [(64, None, True), (32, None, True), (16, None, False), (128, OFF, False)]
)
def test_a_kernel_without_settings(columns: int, settings: PipelineSettings | None, expected: bool) -> None:
    """Large tiles are pipelined; smaller ones, of which a multiprocessor holds several, are not."""
    text, rows, _ = KERNELS["listing 3"]
    kernel = replace(from_co(text, ROWS=rows, COLUMNS=columns), pipeline=settings)
    compiled = compile_kernel(kernel, "sm_90a")
    assert ("setmaxnreg" in compiled.ptx) == expected
    assert not any(d.warning for d in compiled.decisions)


ON_TILES = "parallel q by 2 : group-4 { apply {r, c} in mc.span mc.at(r, c) = __relu(mc.at(r, c)); }"
ON_ELEMENTS = "parallel q by 32 : thread { lhs_s.at(q, 0) = 0.0f; }"


@pytest.mark.parametrize(
    ("work", "columns", "expected"),
    [(ON_TILES, 64, True), (ON_TILES, 32, False), (ON_ELEMENTS, 128, True), (ON_ELEMENTS, 64, False)],
)
def test_loops_that_do_more_than_multiply(work: str, columns: int, expected: bool) -> None:
    """A block that also computes, with others beside it, needs a larger tile for a producer to pay."""
    kernel = from_co(HEAD + LOOP[:-1] + work + "}" + STORE, ROWS=128, COLUMNS=columns)
    assert ("setmaxnreg" in compile_kernel(kernel, "sm_90a").ptx) == expected


def test_too_many_sums_for_the_registers() -> None:
    text, _, _ = KERNELS["listing 3"]
    kernel = replace(from_co(text, ROWS=192, COLUMNS=256), pipeline=PipelineSettings())
    assert said(compile_kernel(kernel, "sm_90a"), "too few registers")


def test_a_loop_with_another_copy_keeps_its_order() -> None:
    """The producer may go backward along K only if it issues all copies of the loop."""
    text = HEAD + LOOP[:-1] + "dma.copy lhs.subspan(ROWS, 64).at(block_m, 0) => lhs_s; }" + STORE
    kernel = replace(from_co(text, ROWS=64, COLUMNS=32), pipeline=PipelineSettings(cluster=1, blocks=1))
    compiled = check(kernel, "sm_90a", (64, 96, 200), seeds=(0,))
    assert said(compiled, "persistent") and said(compiled, "copied ahead by TMA")


def launch_of(compiled) -> tuple[tuple[int, ...], int]:
    """(the grid, blocks of a cluster) of the launch for M = 264, N = 72."""
    (launch,) = compiled.launches
    sizes = {"M": 264, "N": 72, "K": 200}
    cluster = launch.cluster or (1, 1, 1)
    return tuple(evaluate(x, sizes) for x in launch.grid), int(np.prod(cluster))


def test_the_program_says_how_many_blocks_are_persistent() -> None:
    kernel = kernel_of("one warpgroup", PipelineSettings(stages=2, cluster=2, blocks=4))
    compiled = check(kernel, "sm_90a", (264, 72, 200), seeds=(0, 1))
    # 5 x 2 pairs of tiles, which share the tile of lhs.
    assert launch_of(compiled) == ((4, 1, 1), 2)


def test_clusters_of_blocks_that_compute_one_tile() -> None:
    kernel = kernel_of("one warpgroup", PipelineSettings(stages=2, cluster=2, persistent=False))
    compiled = check(kernel, "sm_90a", (264, 72, 200), seeds=(0, 1))
    grid, cluster = launch_of(compiled)
    assert np.prod(grid) == 20 and cluster == 2 and ".multicast::cluster" in compiled.ptx


def test_no_cluster_along_an_index_of_one() -> None:
    """All tiles are equal for blocks that differ in it, but there is one such block."""
    text, rows, columns = KERNELS["one warpgroup"]
    text = text.replace("{block_m, block_n} by [", "{z, block_m, block_n} by [1, ")
    kernel = replace(
        from_co(text, ROWS=rows, COLUMNS=columns), pipeline=PipelineSettings(stages=2, cluster=2, blocks=64)
    )
    grid, cluster = launch_of(check(kernel, "sm_90a", (264, 72, 200), seeds=(0,)))
    assert (np.prod(grid), cluster) == (20, 2)


@pytest.mark.parametrize(
    "rows, cluster, found",
    [("", None, 2), ("K", None, 2), ("K * M", None, 1), ("K * M", 2, 2)],
)
def test_no_cluster_of_its_own_where_several_indices_count_rows(
    rows: str, cluster: int | None, found: int
) -> None:
    """Beyond a batch, the index in which neighbours differ may have one tile; the program may know better."""
    text = HEAD + LOOP + STORE
    if rows:
        text = text.replace("{block_m, block_n} by [", "{z, block_m, block_n} by [" + rows + ", ")
        text = text.replace("(block_m, k)", "(block_m, (k + z) % K)")
    kernel = from_co(text, ROWS=64, COLUMNS=128)
    settings = PipelineSettings(cluster=cluster, producer=True, persistent=True)
    compiled = compile_kernel(replace(kernel, pipeline=settings), "sm_90a")
    assert launch_of(compiled)[1] == found
    assert said(compiled, "there may be one tile along `block_m` only") == (found == 1)


def test_the_producer_knows_the_bounds_of_its_loops() -> None:
    """A trip count in a variable, and one in another variable that only bounds the index."""

    @tm.kernel(pipeline=tm.Pipeline(stages=2, producer=True, persistent=False))
    def kernel(
        lhs: tm.Global["f16", "M", "K"], rhs: tm.Global["f16", "N", "K"], output: tm.Global["f16", "M", "N"]
    ):
        (M, K), N = lhs.shape, rhs.shape[0]
        for i, j in parallel(cdiv(M, 64), cdiv(N, 32), level="block"):
            a, b = shared("f16", 64, 64), shared("f16", 32, 64)
            mc = mma.fill(0.0, "f32")
            most, end = var(cdiv(K, 64)), var(cdiv(K, 64))
            for k in foreach(most, start=0, stop=end):
                dma.copy(lhs.subspan(64, 64).at(i, k), a)
                dma.copy(rhs.subspan(32, 64).at(j, k), b)
                for _ in parallel(1, level="group-4"):
                    mma.row.row(mc, mma.load(a), mma.load(b))
            for _ in parallel(1, level="group-4"):
                mma.store(mc, output.subspan(64, 32).at(i, j))

    compiled = check(
        with_facts(kernel.build(), default_facts(kernel.build())), "sm_90a", (72, 40, 200), seeds=(0,)
    )
    assert said(compiled, "copied ahead by TMA")


def test_a_slot_is_released_where_the_program_waits_for_its_multiplies() -> None:
    """Two sums in turns: each is added while the other is multiplied, and no wait follows a multiply at once."""

    @tm.kernel(pipeline=tm.Pipeline(stages=2, producer=True, blocks=2))
    def kernel(
        lhs: tm.Global["f16", "M", "K"], rhs: tm.Global["f16", "N", "K"], output: tm.Global["f16", "M", "N"]
    ):
        (M, K), N = lhs.shape, rhs.shape[0]
        for i, j in parallel(cdiv(M, 64), cdiv(N, 32), level="block"):
            stages = [(shared("f16", 64, 64), shared("f16", 32, 64)) for _ in range(2)]
            total = mma.frag("f32", 64, 32, init=0.0)
            sums = [mma.frag("f32", 64, 32) for _ in range(2)]
            for _ in parallel(1, level="group-4"):
                mma.fill(sums[1], 0.0)
            for pair in foreach(cdiv(K, 128)):
                for now in range(2):
                    a, b = stages[now]
                    dma.copy(lhs.subspan(64, 64).at(i, 2 * pair + now), a)
                    dma.copy(rhs.subspan(32, 64).at(j, 2 * pair + now), b)
                    for _ in parallel(1, level="group-4"):
                        mma.wait(0)
                        mma.fill(sums[now], 0.0)
                        mma.row.row(sums[now], mma.load(a), mma.load(b))
                        for x, y in apply(total):
                            total[x, y] += sums[1 - now][x, y]
            for _ in parallel(1, level="group-4"):
                for x, y in apply(total):
                    total[x, y] += sums[1][x, y]
                mma.store(total, output.subspan(64, 32).at(i, j))

    built = kernel.build()
    compiled = check(with_facts(built, default_facts(built)), "sm_90a", (136, 40, 456), seeds=(0, 1))
    lines = [x.strip() for x in compiled.ptx.splitlines()]
    ends = [i for i, x in enumerate(lines) if x.startswith("wgmma.commit_group")]
    assert len(ends) == 2 and not any(lines[i + 1].startswith("wgmma.wait_group") for i in ends)


def test_consumers_of_a_cluster_do_not_wait_for_each_other() -> None:
    """Each releases a slot behind a barrier of its own threads, also where it waits for all its multiplies."""
    kernel = load_python(EXAMPLES / "gallery" / "dequantized.py").only()
    compiled = kernel.compile("sm_90a")
    loops = [
        x for x in walk(compiled.kernel.body) if isinstance(x, For) and any(isinstance(y, Mma) for y in x.body)
    ]
    barriers = [op for loop in loops for op in walk(loop.body) if isinstance(op, Barrier)]
    assert barriers and all(op.threads == 128 for op in barriers)
    # A scaled product is added by one instruction.
    assert compiled.ptx.count("fma.rn.f32") >= 64 and not re.search(r"add(\.rn)?\.f32", compiled.ptx)
