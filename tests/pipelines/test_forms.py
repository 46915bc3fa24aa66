"""Forms of copies, events and roles, each in the smallest kernel that needs it."""

from __future__ import annotations

import pytest
from pipeline_runs import check, from_co

from tilemma.ir.tile import InThreads
from tilemma.ir.walk import walk

HEAD = """
#define TILE_M 64
#define TILE_N 64
#define TILE_K 64
#define STAGES 2
__co__ void k(global f16 [M, K] lhs, global f16 [N, K] rhs, global f16 [M, N] output) {
  parallel {block_m, block_n} by [cdiv(M, TILE_M), cdiv(N, TILE_N)] : block {
"""
LHS = "lhs.subspan(TILE_M, TILE_K).at(block_m, k)"
RHS = "rhs.subspan(TILE_N, TILE_K).at(block_n, k)"
OUT = "output.subspan(TILE_M, TILE_N).at(block_m, block_n)"
ONE = """
    shared f16 [TILE_M, TILE_K] a;
    shared f16 [TILE_N, TILE_K] b;
"""
RING = """
    shared f16 [TILE_M, TILE_K] a[STAGES];
    shared f16 [TILE_N, TILE_K] b[STAGES];
"""
SYNCHRONOUS = f"""
    mc = mma.fill.f32 0.0f;
    foreach k in cdiv(K, TILE_K) {{
      tma.copy {LHS} => a;
      tma.copy {RHS} => b;
      parallel p by 1 : group-4 {{ mma.row.row mc, a, b; }}
    }}
    parallel p by 1 : group-4 {{ mma.store mc, {OUT}; }}
"""
# The dialect with completion events bound by `after`, generations by `.at`, and free slots at first.
AFTER = f"""
    shared event full[STAGES], empty[STAGES] = ready;
    parallel p by 2 : group-4 {{
      inthreads.async (p == 0) {{
        foreach k in cdiv(K, TILE_K) {{
          wait empty.at(k);
          fa = tma.load.async.evict_first.swiz<128> {LHS} => a[k % STAGES];
          fb = tma.load.async.evict_last.promote<256>.swiz<128> {RHS} => b[k % STAGES];
          trigger full.at(k) after fa, fb;
        }}
      }}
      inthreads.async (p == 1) {{
        mc = mma.fill.f32 0.0f;
        foreach k in cdiv(K, TILE_K) {{
          wait full.at(k);
          mma.row.row mc, a[k % STAGES], b[k % STAGES];
          trigger empty.at(k);
        }}
        mma.store mc, {OUT};
      }}
    }}
"""
# Asynchronous copies by cp.async whose futures a trigger names.
AFTER_DMA = AFTER.replace("tma.load.async.evict_first.swiz<128>", "dma.copy.async").replace(
    "tma.load.async.evict_last.promote<256>.swiz<128>", "dma.copy.async"
)
# Copies that complete the event by themselves.
BYTES_ALONE = f"""
    shared event full;
    mc = mma.fill.f32 0.0f;
    foreach k in cdiv(K, TILE_K) {{
      tma.copy.async<full> {LHS} => a;
      tma.copy.async<full> {RHS} => b;
      wait full;
      parallel p by 1 : group-4 {{ mma.row.row mc, a, b; }}
    }}
    parallel p by 1 : group-4 {{ mma.store mc, {OUT}; }}
"""
# Copies in a loop of their own: the trigger cannot count their bytes.
BYTES_IN_A_LOOP = f"""
    shared event full;
    mc = mma.fill.f32 0.0f;
    foreach k in cdiv(K, TILE_K) {{
      foreach h in 2 {{
        tma.copy.async<full> lhs.subspan(32, TILE_K).at(block_m * 2 + h, k) => a.subspan(32, TILE_K).at(h, 0);
        tma.copy.async<full> rhs.subspan(32, TILE_K).at(block_n * 2 + h, k) => b.subspan(32, TILE_K).at(h, 0);
      }}
      trigger full;
      wait full;
      parallel p by 1 : group-4 {{ mma.row.row mc, a, b; }}
    }}
    parallel p by 1 : group-4 {{ mma.store mc, {OUT}; }}
"""
FUTURES = f"""
    mc = mma.fill.f32 0.0f;
    foreach k in cdiv(K, TILE_K) {{
      fa = tma.copy.async {LHS} => a;
      fb = dma.copy.async {RHS} => b;
      wait fa, fb;
      parallel p by 1 : group-4 {{ mma.row.row mc, a, b; }}
    }}
    parallel p by 1 : group-4 {{ mma.store mc, {OUT}; }}
"""
# One slot: every release waits for its own multiplies.
ONE_SLOT = f"""
    shared event full[1], empty[1] = ready;
    parallel p by 2 : group-4 {{
      inthreads.async (p == 0) {{
        foreach k in cdiv(K, TILE_K) {{
          wait empty[0];
          tma.copy.async<full[0]> {LHS} => a;
          tma.copy.async<full[0]> {RHS} => b;
          trigger full[0];
        }}
      }}
      inthreads.async (p == 1) {{
        mc = mma.fill.f32 0.0f;
        foreach k in cdiv(K, TILE_K) {{
          wait full[0];
          mma.row.row mc, a, b;
          mma.commit;
          trigger empty[0];
        }}
        mma.store mc, {OUT};
      }}
    }}
"""
# Events that count threads.
THREADS = ONE_SLOT.replace("empty[1] = ready", "empty2[1]").replace("shared event full[1], empty2[1];",
    "shared event full[1];\n    shared event<128> empty[1];").replace(
    "mc = mma.fill.f32 0.0f;", "mc = mma.fill.f32 0.0f;\n        trigger empty[0];"
)  # fmt: skip
# Multiplies with futures of their own; batches that the program waits for itself.
FUTURE_MULTIPLIES = AFTER.replace(
    "mma.row.row mc, a[k % STAGES], b[k % STAGES];",
    "f = mma.row.row.async mc, a[k % STAGES], b[k % STAGES];\n          wait f;",
)
PRODUCER = f"""inthreads.async (p == 0) {{
        foreach k in cdiv(K, TILE_K) {{
          wait empty.at(k);
          tma.copy.async<full.at(k)> {LHS} => a[k % STAGES];
          tma.copy.async<full.at(k)> {RHS} => b[k % STAGES];
          trigger full.at(k);
        }}
      }}"""
WAITS_ITSELF = f"""
    shared event full[STAGES], empty[STAGES] = ready;
    parallel p by 2 : group-4 {{
      {PRODUCER}
      inthreads.async (p == 1) {{
        mc = mma.fill.f32 0.0f;
        foreach k in cdiv(K, TILE_K) {{
          wait full.at(k);
          mma.row.row mc, a[k % STAGES], b[k % STAGES];
          mma.commit;
          mma.wait<1>;
          if (k > 0) {{ trigger empty.at(k - 1); }}
        }}
        mma.wait<0>;
        mma.store mc, {OUT};
      }}
    }}
"""
# Registers: A comes through ldmatrix, so each warp reads the slot itself.
THROUGH_REGISTERS = f"""
    shared event full[STAGES], empty[STAGES] = ready;
    parallel p by 2 : group-4 {{
      {PRODUCER}
      inthreads.async (p == 1) {{
        parallel w by 4 : group {{
          mc = mma.fill.f32 0.0f;
          foreach k in cdiv(K, TILE_K) {{
            wait full.at(k);
            ma = mma.load a[k % STAGES].subspan(16, TILE_K).at(w, 0);
            mb = mma.load b[k % STAGES];
            mma.row.row mc, ma, mb;
            trigger empty.at(k);
          }}
          mma.store mc, output.subspan(16, TILE_N).at(block_m * 4 + w, block_n);
        }}
      }}
    }}
"""


def kernel(body: str, buffers: str = RING):
    return from_co(HEAD + buffers + body + "  }\n}\n")


@pytest.mark.parametrize(
    ("body", "buffers"),
    [
        (SYNCHRONOUS, ONE),
        (AFTER, RING),
        (AFTER_DMA, RING),
        (BYTES_ALONE, ONE),
        (BYTES_IN_A_LOOP, ONE),
        (FUTURES, ONE),
        (ONE_SLOT, ONE),
        (THREADS, ONE),
        (FUTURE_MULTIPLIES, RING),
        (WAITS_ITSELF, RING),
        (THROUGH_REGISTERS, RING),
    ],
    ids=[
        "synchronous",
        "after",
        "after-dma",
        "bytes-alone",
        "bytes-in-a-loop",
        "futures",
        "one-slot",
        "threads",
        "mma-futures",
        "mma-wait",
        "registers",
    ],
)
def test_form(body, buffers):
    check(kernel(body, buffers), "sm_90a", (72, 72, 200))


SWAPPED = f"""
    mc = mma.fill.f32 0.0f;
    with k in cdiv(K, TILE_K) {{
      fa = tma.copy.async {LHS} => shared;
      fb = ENGINE.copy.async {RHS} => shared;
      foreach k(1:) {{
        ga = tma.copy.async {LHS} => shared;
        gb = ENGINE.copy.async {RHS} => shared;
        wait fa, fb;
        parallel p by 1 : group-4 {{ mma.row.row mc, fa.data, fb.data; }}
        swap(fa, ga);
        swap(fb, gb);
      }}
      wait fa, fb;
      parallel p by 1 : group-4 {{ mma.row.row mc, fa.data, fb.data; }}
    }}
    parallel p by 1 : group-4 {{ mma.store mc, {OUT}; }}
"""
# Three buffers in turn, `dma.any` for the name that is filled later, the first copies synchronous.
ROTATED = f"""
    mc = mma.fill.f32 0.0f;
    hb = dma.any;
    with k in cdiv(K, TILE_K) {{
      fb = dma.copy rhs.subspan(TILE_N, TILE_K).at(block_n, 0) => shared;
      gb = dma.copy rhs.subspan(TILE_N, TILE_K).at(block_n, 1) => shared;
      foreach k {{
        hb = dma.copy.async rhs.subspan(TILE_N, TILE_K).at(block_n, k + 2) => shared;
        dma.copy {LHS} => a;
        wait hb;
        parallel p by 1 : group-4 {{ mma.row.row mc, a, fb.data; }}
        rotate(fb, gb, hb);
      }}
    }}
    parallel p by 1 : group-4 {{ mma.store mc, {OUT}; }}
"""


@pytest.mark.parametrize("engine", ["tma", "dma"])
def test_swapped_futures(engine):
    check(kernel(SWAPPED.replace("ENGINE", engine), ""), "sm_90a", (72, 72, 328), seeds=(0, 1))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_rotated_buffers(arch):
    check(kernel(ROTATED, ONE), arch, (72, 72, 328))


def test_a_transposed_operand_through_tma():
    text = HEAD.replace("[N, K] rhs", "[K, N] rhs") + ONE + SYNCHRONOUS + "  }\n}\n"
    text = text.replace("[TILE_N, TILE_K] b", "[TILE_K, TILE_N] b").replace("row.row", "row.col")
    text = text.replace(RHS, "rhs.subspan(TILE_K, TILE_N).at(k, block_n)")
    check(from_co(text), "sm_90a", (72, 72, 200), turned=True)


def test_a_tile_larger_than_a_box_is_split():
    """128 columns are two swizzle widths, 512 rows two boxes."""
    text = HEAD.replace("TILE_M 64", "TILE_M 512").replace("TILE_K 64", "TILE_K 128") + ONE + SYNCHRONOUS
    compiled = check(from_co(text + "  }\n}\n"), "sm_90a", (200, 72, 200), seeds=(0,))
    assert compiled.ptx.count("cp.async.bulk.tensor") == 4 + 2


def test_batches_that_the_program_waits_for_itself_stay_in_flight():
    compiled = check(kernel(WAITS_ITSELF), "sm_90a", (64, 64, 200), seeds=(0,))
    assert [line.split()[-1] for line in compiled.ptx.splitlines() if "wgmma.wait_group" in line] == ["1;", "0;"]


def test_roles_that_only_move_data_are_played_by_one_thread():
    decided = check(kernel(AFTER), "sm_90a", (64, 64, 64), seeds=(0,)).kernel
    roles = [op for op in walk(decided.body) if isinstance(op, InThreads)]
    assert [r.solo for r in roles] == [True, False]
    decided = check(kernel(AFTER_DMA), "sm_90a", (64, 64, 64), seeds=(0,)).kernel
    assert not any(r.solo for r in walk(decided.body) if isinstance(r, InThreads))


AFTER_A_COPY = f"""
    mc = mma.fill.f32 0.0f;
    foreach k in cdiv(K, TILE_K) {{
      fa = ENGINE.copy.async {LHS} => a;
      ga = dma.copy.async a => c after fa;
      fb = dma.copy.async {RHS} => b after ga;
      wait fa, ga;
      wait fa;
      parallel p by 1 : group-4 {{
        wait fb;
        mma.row.row mc, c, b;
      }}
    }}
    parallel p by 1 : group-4 {{ mma.store mc, {OUT}; }}
"""


@pytest.mark.parametrize("engine", ["tma", "dma"])
def test_copies_after_copies_and_second_waits(engine):
    buffers = ONE + "    shared f16 [TILE_M, TILE_K] c;\n"
    check(kernel(AFTER_A_COPY.replace("ENGINE", engine), buffers), "sm_90a", (72, 72, 200))
