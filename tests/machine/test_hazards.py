"""Each hazard: a program that has it, reported with the right code, and its correct twin without a report."""

# PTX is easier to read with an instruction group on a line.
# ruff: noqa: E501
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kernels import without
from ptx_programs import (
    BULK_LOAD,
    barrier,
    bulk_load,
    bulk_store,
    bulk_twice,
    change,
    cluster,
    cp_async,
    ctas_apart,
    drop,
    exchange,
    global_flag,
    insert,
    plain,
    read_then_give,
    tma,
    wgmma,
    wgmma_cp_async,
    with_registers,
)

from tilemma import machine
from tilemma.machine.hazards import HazardError


@dataclass(frozen=True)
class Case:
    """A correct program, how to break it, and the hazard that must be among those found."""

    code: str
    build: Callable[..., Any]
    edit: Callable[[str], str]
    strict: bool = False
    launch: dict[str, Any] = field(default_factory=dict)
    assembles: bool = True
    schedules: int = 8


# One thread lets a copy overwrite the operands after its own warp's wait.
COPY_OVER = """  setp.eq.u32 %p0, %t, 0; .shared .align 8 .b64 later; mov.u32 %r7, later;
  @%p0 mbarrier.init.shared.b64 [%r7], 1; @%p0 fence.proxy.async.shared::cta;
  @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r7], 16;
  @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 16, [%r7]; bar.sync 0;
LATER: mbarrier.try_wait.parity.shared.b64 %p1, [%r7], 0; @!%p1 bra LATER;"""

# Each thread overwrites the word that its own copy reads.
SOURCE_IN_FLIGHT = """  mov.u32 %r0, smem; shl.b32 %r1, %t, 2; add.s32 %r0, %r0, %r1;
  mov.b32 %r7, 4; cp.async.ca.shared.global [%r0], [%Y], 4, %r7; cp.async.commit_group;
  cp.async.wait_group 0; // @wait
  st.global.b32 [%Y], %t;"""

# A copy of 16 bytes is awaited before its source is overwritten.
SOURCE_OF_BULK = """  .shared .align 16 .b8 copied[16]; .shared .align 8 .b64 filled; setp.eq.u32 %p0, %t, 0;
  mov.u32 %r0, copied; mov.u32 %r7, filled; @%p0 mbarrier.init.shared.b64 [%r7], 1;
  @%p0 fence.proxy.async.shared::cta; bar.sync 0;
  @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r7], 16;
  @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%Y], 16, [%r7];
LATER: mbarrier.try_wait.parity.shared.b64 %p1, [%r7], 0;
  @!%p1 bra LATER; // @seen
  st.global.b32 [%Y], %t;"""
source_of_bulk = plain(SOURCE_OF_BULK)

CASES = [
    Case("race", exchange, drop("barrier")),
    Case("race", ctas_apart, change("store", "[%Y]", "[%Z]")),
    Case("read-before-arrival", cp_async, change("barrier", "bar.sync 0", "bar.warp.sync 0xffffffff")),
    Case("race", global_flag, change("release", "release.gpu", "relaxed.gpu")),
    Case("race", global_flag, change("acquire", "acquire.gpu", "relaxed.gpu")),
    Case("read-before-arrival", cp_async, drop("wait")),
    Case("read-before-arrival", cp_async, drop("commit")),
    Case("read-before-arrival", bulk_load, drop("loop")),
    Case("uninitialised-register", bulk_load, drop("wait")),
    Case("overwrite-in-flight", bulk_store, drop("wait")),
    Case("overwrite-in-flight", plain(SOURCE_IN_FLIGHT), drop("wait")),
    Case("overwrite-in-flight", plain(SOURCE_IN_FLIGHT.replace("%r7, 4", "%r7, 3")), drop("wait")),
    Case("overwrite-in-flight", source_of_bulk, drop("seen")),
    Case("overwrite-in-flight", tma, change("wait-group", " 0;", " 1;")),
    Case("race-equal-values", exchange, insert("barrier", "  .shared .align 4 .b8 eq[4]; mov.b32 %r7, eq; st.shared.b32 [%r7], 5;"), strict=True),
    Case("overwrite-in-flight-store", wgmma, insert("wait", "  st.shared.b32 [%r1], %r6;")),
    Case("overwrite-in-flight-warps", wgmma, insert("wait", COPY_OVER), strict=True),
    Case("shuffle-inactive-lane", exchange, insert("barrier", "  setp.gt.u32 %p0, %t, 20; @%p0 exit;\n  shfl.sync.down.b32 %r0, %r0, 8, 31, -1;")),
    Case("missing-proxy-fence-read", bulk_twice, drop("proxy"), strict=True),
    Case("race", bulk_twice, drop("read")),
    Case("race-lanes", read_then_give, drop("warp"), strict=True),
    Case("missing-proxy-fence-cp-async", wgmma_cp_async, drop("proxy"), strict=True),
    Case("operand-layout", wgmma_cp_async, change("fill", "[%r1]", "[%r7]")),
    Case("missing-proxy-fence", bulk_store, drop("proxy")),
    Case("missing-proxy-fence", wgmma, drop("proxy")),
    Case("missing-proxy-fence", tma, drop("fence-store")),
    Case("uninitialised-shared", wgmma, drop("fill-b")),
    Case("uninitialised-shared", plain("  mov.u32 %r0, smem; // @nothing"), insert("nothing", "  ld.shared.b32 %r1, [%r0]; st.global.b32 [%Y], %r1;")),
    Case("uninitialised-shared", plain("  mov.u32 %r0, smem; // @nothing"), insert("nothing", "  ld.shared.b32 %r1, [%r0];"), strict=True),
    Case("uninitialised-register", plain("  mov.b32 %r7, 1; // @set\n  st.global.b32 [%Y], %r7;"), drop("set")),
    Case("uninitialised-register", plain("  mov.b32 %r7, 1; // @set\n  st.global.b32 [%Y], %r7;"), change("set", "mov", "@%p5 mov")),
    Case("out-of-bounds", plain("  st.global.b32 [%Y], %t; // @store"), change("store", "[%Y]", "[%Y+1024]")),
    Case("out-of-bounds", exchange, lambda p: p, launch={"shared": 128}),
    Case("misaligned", plain("  st.global.b32 [%Y], %t; // @store"), change("store", "[%Y]", "[%Y+2]")),
    Case("write-to-read-only", plain("  st.global.b32 [%Y], %t; // @store"), change("store", "[%Y]", "[%X]")),
    Case("register-in-flight", wgmma, drop("wait")),
    Case("missing-wgmma-fence", wgmma, drop("fence")),
    Case("missing-wgmma-fence", wgmma, insert("fence", "  add.s32 %r8, %r8, 1;")),
    Case("missing-wgmma-fence-after-move", wgmma, insert("fence", "  mov.b32 %r8, 0;"), strict=True),
    Case("inadmissible-descriptor", wgmma, change("descriptor", "0x1000080000", "0x4000001000080000")),
    Case("swizzle-mismatch", tma, change("descriptor-a", "0x4000004000010000", "0x8000004000010000")),
    Case("wgmma-not-uniform", wgmma, change("descriptor", "or.b64", "cvt.u64.u32 %d3, %w; shl.b64 %d3, %d3, 7; add.s64 %d1, %d1, %d3; or.b64")),
    Case("mbarrier-before-init", barrier, drop("init")),
    Case("mbarrier-before-init", barrier, drop("barrier")),
    Case("mbarrier-init-not-visible", lambda edit: tma(edit, cluster=2), drop("fence-init")),
    Case("mbarrier-init-not-visible-cta", tma, drop("fence-init"), strict=True),
    Case("mbarrier-reinit", barrier, insert("init", "  @!%p0 mbarrier.init.shared.b64 [%r0], 64;")),
    Case("mbarrier-reinit", barrier, insert("barrier", "  st.shared.b32 [%r0], %t;")),
    Case("mbarrier-reinit", barrier, change("init", "@!%p0 ", "")),
    Case("mbarrier-arrivals", barrier, change("init", ", 64", ", 8")),
    Case("mbarrier-bytes", bulk_load, change("expect", ", 256", ", 128")),
    Case("deadlock", bulk_load, change("expect", ", 256", ", 512")),
    Case("deadlock", barrier, change("init", ", 64", ", 65")),
    Case("deadlock", exchange, change("barrier", "bar.sync 0", "setp.lt.u32 %p0, %t, 32; @%p0 bar.sync 0, 64; @!%p0 bar.sync 1, 64")),
    Case("aligned-under-divergence", exchange, change("barrier", "bar.sync", "setp.lt.u32 %p0, %l, 7; @%p0 bar.sync")),
    Case("barrier-count", exchange, change("barrier", "bar.sync 0", "setp.lt.u32 %p0, %t, 32; @%p0 bar.sync 0, 64; @!%p0 bar.sync 0")),
    Case("setmaxnreg-pool", with_registers, change("count", "dec.sync.aligned.u32 40", "inc.sync.aligned.u32 128")),
    Case("exit-before-cluster", cluster, lambda p: without(without(p, "end-arrive"), "end-wait"), schedules=30),
    Case("exit-with-pending", tma, drop("wait-store")),
    Case("exit-with-pending", wgmma, lambda p: without(without(p, "wait"), "use")),
    Case("not-in-target", wgmma, lambda p: p.replace("sm_90a", "sm_90"), assembles=False),
    Case("tensor-map-inadmissible", tma, change("load-a", "[%r14]", "[%r14+16]")),
    Case("copy-by-many", bulk_store, lambda p: p.replace("setp.ne.u32 %p0, %t, 0; @%p0 bra SYNC", "setp.ge.u32 %p0, %t, 32; @%p0 bra SYNC")),
    Case("step-limit", plain("L: add.s32 %r0, %r0, 1; // @loop"), insert("loop", "  bra L;"), schedules=1),
    Case("trap", plain("  mov.b32 %r0, 1; // @here"), insert("here", "  trap;")),
]  # fmt: skip


def ids(case: Case) -> str:
    return case.code


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_convicts(case: Case, assembles: Callable[[str, str], None], with_either_engine: Any) -> None:
    ptx, *_ = case.build(case.edit)
    if case.assembles:
        assembles(ptx, "sm_90a")
    # Without what is left out, a loop may have no end.
    limit = 5_000 if case.code in ("step-limit", "uninitialised-register") else 5_000_000

    def checked() -> Any:
        ptx, launch, args = case.build(case.edit)
        return machine.check(
            ptx, {**launch, **case.launch}, args, schedules=case.schedules, strict=case.strict, max_steps=limit
        )

    try:
        verdict, other = with_either_engine(checked)
    except HazardError as hazard:
        assert hazard.code == case.code
        return
    assert [h.render() for h in verdict.hazards] == [h.render() for h in other.hazards]
    codes = [h.code for h in verdict.hazards]
    assert case.code in codes, str(verdict)
    for hazard in verdict.hazards:
        assert hazard.exit_status == 1
        assert hazard.facts["ptx_line"] > 0
        assert hazard.span is not None
        assert hazard.render() and hazard.to_json()["ptx_line"]


BUILDERS = [
    exchange,
    cp_async,
    barrier,
    bulk_store,
    bulk_load,
    wgmma,
    wgmma_cp_async,
    tma,
    cluster,
    with_registers,
    global_flag,
    ctas_apart,
    read_then_give,
    bulk_twice,
    source_of_bulk,
]


@pytest.mark.parametrize("build", BUILDERS, ids=range(len(BUILDERS)))
def test_acquits_the_correct_twin(
    build: Callable[..., Any], assembles: Callable[[str, str], None], with_either_engine: Any
) -> None:
    assembles(build()[0], "sm_90a")
    for verdict in with_either_engine(lambda: machine.check(*build(), schedules=20, strict=True)):
        assert verdict.ok, verdict.render()[:3000]


@pytest.mark.parametrize("schedule", ["early", "late"])
def test_what_is_over_by_luck_was_not_waited_for(schedule: str) -> None:
    """A bulk store that happens to have read its source when the CTA exits, and a load without a wait."""
    unread = bulk_store(lambda p: without(p, "wait").replace("st.shared.b32 [%r1], %r2;\n", "\n"))
    unseen = bulk_load(lambda p: p[: p.index("WAIT:")] + "  ret;\n}")
    for ptx, launch, args in (unread, unseen):
        report = machine.run(ptx, launch, args, schedule=schedule, collect=True)
        assert [h.code for h in report.hazards] == ["exit-with-pending"]


def test_a_copy_to_an_mbarrier_of_the_same_block_of_a_cluster() -> None:
    """As outside clusters: CuTe's tutorial for Hopper has a barrier of the cluster between init and copy."""
    init = "mbarrier.init.shared.b64 [%r0], 1;"
    unfenced = BULK_LOAD.replace(init, "").replace("fence.mbarrier_init.release.cluster;", "")
    barrier = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    unfenced = unfenced.replace("@%p0 bra READY;", f"@!%p0 {init} {barrier} @%p0 bra READY;")
    ptx, launch, args = plain(unfenced, grid=2)()
    ptx = ptx.replace(")\n{", ")\n.explicitcluster\n.reqnctapercluster 2, 1, 1\n{", 1)
    ptx = ptx.replace("%Y, %t, 4, %Y;", "%Y, %t, 4, %Y; mov.u32 %r9, %ctaid.x; mad.wide.u32 %Y, %r9, 256, %Y;", 1)
    for strict in (False, True):
        found = machine.check(ptx, {**launch, "cluster": (2, 1, 1)}, args, schedules=5, strict=strict).hazards
        assert {h.code for h in found} == ({"mbarrier-init-not-visible-cta"} if strict else set())


def test_every_hazard_has_a_case() -> None:
    from tilemma.machine import catalogue

    known = {
        c.code
        for c in vars(catalogue).values()
        if isinstance(c, type) and issubclass(c, HazardError) and c is not HazardError
    }
    elsewhere = {
        "no-such-form": "test_matrix.py",
        "sparse-metadata": "test_matrix.py",
        "missing-tensor-map-fence": "test_changed_tensor_maps.py",
        "race-tensor-map-copy": "test_changed_tensor_maps.py",
        "race-unused-value": "test_dead_values.py",
        "mbarrier-elsewhere": "test_instructions.py",
        "missing-proxy-fence-global": "test_proxied_litmus.py",
        "mbarrier-complete": "test_filled_ranges.py",
        "race-rounded-values": "corpus/test_compilers_habits.py",
        "register-in-flight-before-wait": "corpus/test_compilers_habits.py",
    }
    for code, name in elsewhere.items():
        text = (Path(__file__).parent / name).read_text(encoding="utf-8")
        assert f'"{code}"' in text
    assert known - {c.code for c in CASES} - set(elsewhere) == set()
