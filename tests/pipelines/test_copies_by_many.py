"""Copies that every instance of a level issues run once, and all instances have the data afterwards."""

from __future__ import annotations

import pytest
from pipeline_runs import check, from_co
from test_forms import HEAD, LHS, ONE, RHS

SYNCHRONOUS = f"ENGINE.copy {LHS} => a; ENGINE.copy {RHS} => b;"
FUTURES = f"fa = ENGINE.copy.async {LHS} => a; fb = ENGINE.copy.async {RHS} => b; wait fa, fb;"
CONDITIONAL = f"if (k < 1000) {{ {SYNCHRONOUS} }}"
# Each its own part of one tile, and all of the other.
PARTS = f"""
  ENGINE.copy rhs.subspan(32, TILE_K).at(block_n # w, k) => b.subspan(32, TILE_K).at(w, 0);
  ENGINE.copy {LHS} => a;
"""


def program(copies: str, around: str = "parallel w by 2 : group-4 { BODY }") -> str:
    body = f"""
      mc = mma.fill.f32 0.0f;
      foreach k in cdiv(K, TILE_K) {{
        {copies}
        mma.row.row mc, a, b.subspan(32, TILE_K).at(w, 0);
      }}
      mma.store mc, output.subspan(TILE_M, 32).at(block_m, block_n # w);
"""
    return HEAD + ONE + around.replace("BODY", body) + "  }\n}\n"


@pytest.mark.parametrize("engine", ["tma", "dma"])
@pytest.mark.parametrize(
    "copies", [SYNCHRONOUS, FUTURES, CONDITIONAL, PARTS], ids=["synchronous", "futures", "conditional", "parts"]
)
def test_two_warpgroups(copies, engine):
    check(from_co(program(copies).replace("ENGINE", engine)), "sm_90a", (72, 72, 200), seeds=(0, 1))


@pytest.mark.parametrize("engine", ["tma", "dma"])
@pytest.mark.parametrize("copies", [SYNCHRONOUS, FUTURES], ids=["synchronous", "futures"])
def test_a_role_of_two_warpgroups(copies, engine):
    role = "parallel p by 3 : group-4 { inthreads.async (p == 0) { } inthreads.async (p > 0) { w = p - 1; BODY } }"
    text = program(copies, role).replace("block_n # w", "block_n * 2 + w")
    check(from_co(text.replace("ENGINE", engine)), "sm_90a", (72, 72, 200), seeds=(0, 1))


NESTED = f"""
    parallel p by 2 : group-4 {{ parallel x by 4 : group {{
      mc = mma.fill.f32 0.0f;
      foreach k in cdiv(K, TILE_K) {{
        {SYNCHRONOUS}
        ma = mma.load a.subspan(16, TILE_K).at(x, 0);
        mb = mma.load b.subspan(32, TILE_K).at(p, 0);
        mma.row.row mc, ma, mb;
      }}
      mma.store mc, output.subspan(16, 32).at(block_m * 4 + x, block_n * 2 + p);
    }} }}
"""


@pytest.mark.parametrize("engine", ["tma", "dma"])
def test_nested_levels(engine):
    """A turn's copy waits for the warps of both warpgroups, on the reference too."""
    compiled = check(from_co(HEAD + ONE + NESTED.replace("ENGINE", engine) + "  }\n}\n"), "sm_90a", (72, 72, 200))
    assert compiled.ptx.count("cp.async.bulk.tensor") == (2 if engine == "tma" else 0)


# One warpgroup copies, both multiply: they meet behind `inthreads`.
ADMITTED = f"""
    parallel w by 2 : group-4 {{
      mc = mma.fill.f32 0.0f;
      foreach k in cdiv(K, TILE_K) {{
        inthreads (w == 0) {{ dma.copy {LHS} => a; dma.copy {RHS} => b; }}
        mma.row.row mc, a, b.subspan(32, TILE_K).at(w, 0);
      }}
      mma.store mc, output.subspan(TILE_M, 32).at(block_m, block_n # w);
    }}
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_all_meet_behind_those_who_copy(arch):
    check(from_co(HEAD + ONE + ADMITTED + "  }\n}\n"), arch, (72, 72, 200))


# The operand is a snapshot in registers: its buffer is overwritten by TMA before the multiply.
SNAPSHOT = f"""
    parallel p by 1 : group-4 {{
      mc = mma.fill.f32 0.0f;
      foreach k in cdiv(K, TILE_K) {{
        tma.copy {LHS} => a;
        ma = mma.load a;
        tma.copy {RHS} => a;
        mma.row.row mc, ma, a;
      }}
      mma.store mc, output.subspan(TILE_M, TILE_N).at(block_m, block_n);
    }}
"""


def test_a_copy_over_what_ldmatrix_has_read_stands_behind_a_proxy_fence():
    text = (HEAD + ONE + SNAPSHOT + "  }\n}\n").replace("__co__", "[[pipeline(off)]] __co__")
    compiled = check(from_co(text), "sm_90a", (72, 72, 200), seeds=(0, 1))
    assert "ldmatrix" in compiled.ptx and "fence.proxy.async" in compiled.ptx
