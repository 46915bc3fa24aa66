"""Bugs planted in kernels of other compilers by an edit of their text: the hazard that names each by default."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from test_corpus import CASES, PTX

from tilemma import machine

KERNELS = {c.name: c for c in CASES}
EXIT = r"{ .reg .pred %gone; .reg .b32 %own; mov.u32 %own, %laneid; setp.ge.u32 %gone, %own, 20; @%gone exit; } "
ONE_STAGE = "tilelang_matmul_one_stage_sm_80-main_kernel"
BAR, CLUSTER = r"bar\.sync\s+0;", r"barrier\.cluster\.arrive;\s*barrier\.cluster\.wait;"
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
    "columns of A read twice": (
        "triton_matmul_nt_f16_sm80_1-matmul_nt",
        r"(ldmatrix\S+ \{[^}]*\}, )\[%r43\]",
        r"\1[%r41]",
        "operand-layout",
    ),
    "columns of B read twice": (
        "triton_matmul_f16_sm80_1-matmul",
        r"(ldmatrix\S+ \{[^}]*\}, )\[%r46\]",
        r"\1[%r48]",
        "operand-layout",
    ),
    "descriptor in the next tile": (
        "tilelang_split_k_sm_90a-main_kernel",
        r"(wgmma\.mma_async[^;]*?\}, *)(%rd\d+)([^;]*;)",
        r"{ .reg .b64 %off; add.s64 %off, \2, 64; \1%off\3 }",
        "read-before-arrival",
    ),
    # Of kernels that hold one mechanism each.
    "no barrier behind cp.async": ("features-own_stages", BAR, "", "read-before-arrival"),
    "a stage too many pending": ("features-own_stages", r"wait_group 1;", "wait_group 2;", "read-before-arrival"),
    "a count of arrivals too few": (
        "features-split_arrival",
        r"(mbarrier\.init\S+ \[%r11\]), %r12",
        r"\1, 63",
        "mbarrier-arrivals",
    ),
    "fewer bytes expected of a bulk copy": (
        "features-bulk_ring",
        r"(mbarrier\.expect_tx\S+ \[\S+\]), %r19",
        r"\1, 256",
        "mbarrier-bytes",
    ),
    "no proxy fence before a tensor store": (
        "features-tensor_tile",
        r"fence\.proxy\.async\S*;",
        "",
        "missing-proxy-fence",
    ),
    "the other parity of a tensor copy": (
        "features-tensor_tile",
        r"mov\.u32\s+%r13, 0;",
        "mov.u32 %r13, 1;",
        "read-before-arrival",
    ),
    "no wait before the exit": (
        "features-tensor_tile",
        r"cp\.async\.bulk\.wait_group\S* 0;",
        "",
        "exit-with-pending",
    ),
    "a bulk copy in place of a reduction": (
        "features-reduce_bulk",
        r"cp\.reduce\.async\.bulk(\S*)\.add\.s32",
        r"cp.async.bulk\1",
        "overwrite-in-flight",
    ),
    "relaxed wait in a cluster": (
        "features-pass_on",
        r"acquire\.cluster",
        "relaxed.cluster",
        "read-before-arrival",
    ),
    "no cluster barrier": ("features-shared_histogram", CLUSTER, "", "race"),
    "relaxed turn of a queue": ("features-ticket_queue", r"ld\.acquire\.gpu", "ld.relaxed.gpu", "race"),
    "no barrier between uses of a union": ("features-merge_sort", BAR, "", "race"),
    "registers of A swapped in attention": ("triton_paged-paged", *SWAPPED_A, "operand-layout"),
    "no wait between products": (
        "triton_attention_backward-attention_backward",
        r"wgmma\.wait_group\S+ 0;",
        "",
        "register-in-flight",
    ),
    "exchanged coordinates of a descriptor": (
        "triton_descriptors-descriptors",
        r"(cp\.async\.bulk\.tensor\.2d\.shared[^{]*\{)(%r\d+), (%r\d+)\}",
        r"\1\3, \2}",
        "operand-layout",
    ),
    "another swizzle of a changed map": (
        "triton_descriptors-descriptors",
        r"(tensormap\.replace\.tile\.swizzle_mode[^;]*), 0x3;",
        r"\1, 0x2;",
        "tensor-map-inadmissible",
    ),
    "stores to shared memory not fenced before TMA": (
        "engines-specialised",
        r"fence\.proxy\.async\.shared::cta;",
        "",
        "missing-proxy-fence",
    ),
    "a slot released before its products are complete": (
        "engines-specialised",
        r"wgmma\.wait_group\.sync\.aligned 0;",
        "",
        "overwrite-in-flight",
    ),
    "rows of a descriptor too far apart": (
        "engines-specialised",
        r"(or\.b64\s+%rd6, %rd14), 4611686293305360384;",
        r"\1, 4611686568183267328;",
        "operand-layout",
    ),
    "registers that the pool does not have": (
        "engines-specialised",
        r"setmaxnreg\.inc\.sync\.aligned\.u32 232",
        "setmaxnreg.inc.sync.aligned.u32 248",
        "setmaxnreg-pool",
    ),
    "a lock read without acquire": (
        "engines-quantised",
        r"ld\.global\.acquire\.gpu",
        "ld.global.relaxed.gpu",
        "race",
    ),
    "a lock passed on without release": (
        "engines-quantised",
        r"red\.release\.gpu",
        "red.relaxed.gpu",
        "race",
    ),
    "a stage of cp.async too many pending": (
        "engines-quantised",
        r"cp\.async\.wait_group 1;",
        "cp.async.wait_group 2;",
        "read-before-arrival",
    ),
    "a turn that is not passed on": ("engines-ping_pong", r"bar\.arrive 2, 256;", "", "deadlock"),
    "a ring entry read after its release": (
        "engines-scheduler",
        r"(ld\.shared\.u32\s+[^;]*;)((?:[^;]*;){1,4}?[^;]*mbarrier\.arrive[^;]*;)",
        r"\2 \1",
        "race",
    ),
    "a second wait for a cluster barrier": (
        "engines-ring_sum",
        r"(?s)(mbarrier\.try_wait.*?)barrier\.cluster\.arrive;",
        r"\1",
        "barrier-count",
    ),
    "a slot of a pair released too early": (
        "engines-pair_copy",
        r"bar\.sync\s+0;",
        "",
        "read-before-arrival",
    ),
    "results of a transform read without a warp barrier": (
        "engines-fourier",
        r"bar\.warp\.sync\s+-1;",
        "",
        "race",
    ),
    "offsets of another lane": ("engines-route", r"bar\.warp\.sync\s+-1;", "", "race"),
    "a count that is cleared while it is read": (
        "engines-largest",
        r"(?s)(atom\.shared.*?bar\.sync\s+0;.*?)bar\.sync\s+0;",
        r"\1",
        "race",
    ),
    "slices added before they are complete": (
        "engines-stream_k",
        r"atom\.add\.acq_rel\.gpu|atom\.acq_rel\.gpu\.global\.add|atom\.add\.acq_rel\.gpu\.u32",
        "atom.add.relaxed.gpu",
        "race",
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


# Kernel, the instruction that is deleted (the first match), and a part of the advice.
ADVISED = {
    "bytes that others send": ("features-pass_on", r"mbarrier\.arrive\.expect_tx[^;]*;", "expect_tx"),
    "bytes of a bulk copy": ("features-bulk_ring", r"mbarrier\.expect_tx[^;]*;", "expect_tx"),
    "the fence of a changed map": (
        "triton_descriptors-descriptors",
        r"@%p\d+ fence\.proxy\.tensormap[^;]*;",
        "fence.proxy.tensormap",
    ),
    "the init of a stage": ("features-staged", r"mbarrier\.init\S* \[%r59\][^;]*;", "mbarrier.init"),
    "the init of the only mbarrier": ("features-split_arrival", r"mbarrier\.init[^;]*;", "mbarrier.init"),
    "the init that another instruction names": (
        "triton_descriptors-descriptors",
        r"@%p11 mbarrier\.init[^;]*;",
        "mbarrier.init",
    ),
    "the arrival of copies": (
        "sync-block_pipeline",
        r"cp\.async\.mbarrier\.arrive[^;]*;",
        "cp.async.mbarrier.arrive",
    ),
    "the turn that is not passed on": ("engines-ping_pong", r"bar\.arrive 1, 256;", "bar.arrive 1, 256;"),
    "the init of the first stage": ("features-bulk_ring", r"mbarrier\.init[^;]*;", "full+0]"),
    "an arrival whose state is waited for": (
        "sync-bulk_copy",
        r"mbarrier\.arrive\.shared::cta\.b64[^;]*;",
        "mbarrier.arrive",
    ),
    "the arrival at a stage that is full": (
        "sync-producer_consumer",
        r"mbarrier\.arrive\S*\s+%rd25[^;]*;",
        "mbarrier.arrive",
    ),
    "the guard of a tensor store": (
        "triton_descriptors_persistent-descriptors",
        r"@%p48(?= cp\.async\.bulk\.tensor)",
        "@%p48",
    ),
    "the barrier behind a run of stores": (
        "triton_matmul_nt_f16_sm90_3-matmul_nt",
        r"bar\.sync\s+0;(?=\s+selp\.b32\s+%r225)",
        "bar.sync 0;",
    ),
}


# Cases that take several seconds; others have the same advice.
LONG = "bytes of a bulk copy", "the init of a stage"


@pytest.mark.parametrize("bug", [pytest.param(b, marks=pytest.mark.slow if b in LONG else ()) for b in ADVISED])
def test_the_advice_for_a_deleted_instruction_cures(bug: str) -> None:
    name, pattern, said = ADVISED[bug]
    case = KERNELS[name]
    ptx = (PTX / f"{case.file}.ptx").read_text(encoding="utf-8")
    at = ptx.index(f".entry {case.entry}(")
    edited, count = re.subn(pattern, "", ptx[at:], count=1)
    assert count
    launch = {"entry": case.entry, "grid": case.grid, "block": case.block, **case.launch}
    verdict = machine.check(ptx[:at] + edited, launch, case.build()[0], schedules=4, max_steps=100_000)
    assert not verdict.ok
    advice = machine.advise(ptx[:at] + edited, launch, case.build()[0], verdict, schedules=3)
    assert advice is not None and said in advice.text, advice
    args, wanted = case.build()
    assert machine.check(advice.ptx, launch, args, schedules=3).ok
    ((out, want),) = wanted.items()
    assert np.allclose(args[out], np.asarray(want).reshape(args[out].shape), rtol=1e-2, atol=1e-2)


WGMMA = r"(wgmma\.mma_async[^;{]*\{[^}]*\},\s*)(%rd\d+)(,\s*)(%rd\d+)([^;]*;)"
# Kernels whose A, or both operands, step through K by 32 bytes of a row: units of 16 bytes added to a descriptor.
K_STEPS = {
    "triton_matmul_f16_sm90_3-matmul": (("A", 2), ("A", -2), ("A", 64)),
    "triton_matmul_nt_f16_sm90_3-matmul_nt": (
        ("A", 2),
        ("A", -2),
        ("A", 64),
        ("B", 2),
        ("B", -2),
        ("AB", -2),
    ),
    "tilelang_matmul_f16_sm_90a-main_kernel": (("A", -2),),
    "tilelang_matmul_bf16_nt_sm_90a-main_kernel": tuple(
        (x, step) for x in ("A", "B", "AB") for step in (2, -2) if (x, step) != ("AB", 2)
    ),
}


@pytest.mark.parametrize(
    ("name", "operands", "step"), [(name, *bug) for name, bugs in K_STEPS.items() for bug in bugs]
)
def test_a_wrong_step_of_a_descriptor_is_named(name: str, operands: str, step: int) -> None:
    """The second wgmma of a tile takes slices of other columns than the ones that are due."""
    case = KERNELS[name]
    ptx = (PTX / f"{case.file}.ptx").read_text(encoding="utf-8")
    moved_descriptor(case, ptx, list(re.finditer(WGMMA, ptx))[1], operands, step)


@pytest.mark.parametrize(
    "name", ["triton_matmul_nt_f16_sm90_3-matmul_nt", "tilelang_matmul_bf16_nt_sm_90a-main_kernel"]
)
def test_a_first_slice_that_is_left_out_is_named(name: str) -> None:
    """The first wgmma of a tile takes the slices of the second one."""
    case = KERNELS[name]
    ptx = (PTX / f"{case.file}.ptx").read_text(encoding="utf-8")
    moved_descriptor(case, ptx, re.search(WGMMA, ptx), "AB", 2)


def moved_descriptor(case: Any, ptx: str, found: Any, operands: str, step: int) -> None:
    """The wgmma ``found``, with ``step`` added to descriptors, is reported."""
    before, a, comma, b, rest = found.groups()
    moved = [f"%off_{x}" if x in operands else d for x, d in (("A", a), ("B", b))]
    adds = [f"add.s64 %off_{x}, {d}, {step};" for x, d in (("A", a), ("B", b)) if x in operands]
    text = f"{{ .reg .b64 %off_A, %off_B; {' '.join(adds)} {before}{moved[0]}{comma}{moved[1]}{rest} }}"
    args, _ = case.build()
    launch = {"entry": case.entry, "grid": case.grid, "block": case.block, **case.launch}
    verdict = machine.check(ptx[: found.start()] + text + ptx[found.end() :], launch, args, schedules=1)
    assert "operand-layout" in {h.code for h in verdict.hazards}, str(verdict)


COORDINATES = r"(cp\.async\.bulk\.tensor[^;]*?\{)\s*(%\w+),\s*(%\w+)\s*\}"


# The first copies of A and B, before the loop, and those in it.
EXCHANGED = [
    *(("tilelang_matmul_f16_sm_90a-main_kernel", copy) for copy in range(4)),
    *(("tilelang_split_k_sm_90a-main_kernel", copy) for copy in (2, 3)),
]


@pytest.mark.parametrize(("name", "copy"), EXCHANGED)
def test_exchanged_coordinates_of_a_tensor_copy_are_named(name: str, copy: int) -> None:
    case = KERNELS[name]
    ptx = (PTX / f"{case.file}.ptx").read_text(encoding="utf-8")
    found = list(re.finditer(COORDINATES, ptx))[copy]
    edited = ptx[: found.start()] + found.expand(r"\1\3, \2}") + ptx[found.end() :]
    args, _ = case.build()
    launch = {"entry": case.entry, "grid": case.grid, "block": case.block, **case.launch}
    verdict = machine.check(edited, launch, args, schedules=4)
    assert "operand-layout" in {h.code for h in verdict.hazards}, str(verdict)
