"""Bugs planted in kernels of other compilers by an edit of their text: the hazard that names each by default."""

from __future__ import annotations

import re

import pytest
from test_corpus import CASES, PTX

from tilemma import machine

KERNELS = {c.name: c for c in CASES}
EXIT = r"{ .reg .pred %gone; .reg .b32 %own; mov.u32 %own, %laneid; setp.ge.u32 %gone, %own, 20; @%gone exit; } "
ONE_STAGE = "tilelang_matmul_one_stage_sm_80-main_kernel"
SWAPPED_A = (r"(mma\.sync\.\S+\s*\{[^}]*\},\s*\{)([^,}]+),([^,}]+)", r"\1\3,\2")
SWAPPED_B = (r"(mma\.sync\.\S+\s*\{[^}]*\},\s*\{[^}]*\},\s*\{)([^,}]+),([^,}]+)\}", r"\1\3,\2}")

# Kernel, the pattern whose first match in it is replaced, its replacement, and the hazard.
PLANTED = {
    "fence of a CTA before a ticket": ("basics-last_block_sum", r"membar\.gl", "membar.cta", "race"),
    "ticket of a CTA": ("basics-last_block_sum", r"atom\.global\.", "atom.relaxed.cta.global.", "race"),
    "acquire of a CTA": ("sync-flags_chain", r"ld\.acquire\.gpu", "ld.acquire.cta", "race"),
    "release of a CTA": ("sync-flags_chain", r"st\.release\.gpu", "st.release.cta", "race"),
    "lock of a CTA": ("triton_lock-lock", r"acq_rel\.gpu\.cas", "acq_rel.cta.cas", "race"),
    "count of a CTA": ("triton_last_block-last_block", r"atom\.global\.gpu", "atom.global.cta", "race"),
    "sum of a CTA": ("tilelang_split_k_sm_90a-main_kernel", r"atom\.global", "atom.relaxed.cta.global", "race"),
    "no warp barrier": ("sync-warp_exchange", r"bar\.warp\.sync\s+-1;", "", "race"),
    "no warp barrier behind cp.async": (
        "matrix-mma_pipelined",
        r"bar\.warp\.sync\s+-1;",
        "",
        "read-before-arrival",
    ),
    "shuffle down after lanes left": ("basics-shuffle_sum", r"shfl\.", rf"{EXIT}\g<0>", "shuffle-inactive-lane"),
    "butterfly after lanes left": ("library-tile_reduce", r"shfl\.", rf"{EXIT}\g<0>", "shuffle-inactive-lane"),
    "ldmatrix without .trans": (ONE_STAGE, r"\.trans", "", "operand-layout"),
    "ldmatrix without .trans of single halves": (
        "triton_matmul_f16_sm80_1-matmul",
        r"(ldmatrix\S*)\.trans",
        r"\1",
        "operand-layout",
    ),
    "registers of A swapped": (ONE_STAGE, *SWAPPED_A, "operand-layout"),
    "registers of B swapped": (ONE_STAGE, *SWAPPED_B, "operand-layout"),
    "descriptor in the next tile": (
        "tilelang_split_k_sm_90a-main_kernel",
        r"(wgmma\.mma_async[^;]*?\}, *)(%rd\d+)([^;]*;)",
        r"{ .reg .b64 %off; add.s64 %off, \2, 64; \1%off\3 }",
        "read-before-arrival",
    ),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_named(bug: str) -> None:
    name, pattern, replacement, code = PLANTED[bug]
    case = KERNELS[name]
    ptx = (PTX / f"{case.file}.ptx").read_text(encoding="utf-8")
    found = re.search(rf"\.entry\s+{case.entry}\b", ptx)
    assert found is not None
    edited, count = re.subn(pattern, replacement, ptx[found.start() :], count=1)
    assert count
    args, _ = case.build()
    launch = {"entry": case.entry, "grid": case.grid, "block": case.block, **case.launch}
    verdict = machine.check(ptx[: found.start()] + edited, launch, args, schedules=4, max_steps=100_000)
    assert code in {h.code for h in verdict.hazards}, str(verdict)
