"""Each hazard: a program that has it, convicted with the right code, and its correct twin, acquitted."""

# PTX is easier to read with an instruction group on a line.
# ruff: noqa: E501
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from kernels import gemm_tma, gemm_tma_bytes, header, replace, without

from tilemma import machine
from tilemma.machine.hazards import HazardError

Build = Callable[[], tuple[str, dict[str, Any], dict[str, Any]]]


def small(
    body: str, *, arch: str = "sm_90a", block: int = 64, shared: int = 1024, grid: Any = 1, **args: Any
) -> Any:
    """A kernel with a few registers, and arrays ``x`` (read) and ``y`` (written) of 256 words unless given."""
    values = {"x": np.arange(256, dtype=np.uint32), "y": np.zeros(256, np.uint32)} | args
    ptx = (
        header("8.0", arch)
        + f""".extern .shared .align 128 .b8 smem[];
.visible .entry k({", ".join(f".param .u64 {n}" for n in values)})
{{
  .reg .b32 %t, %w, %l, %r<16>; .reg .b64 %X, %Y, %d<8>; .reg .pred %p<8>; .reg .b16 %h<4>;
  mov.u32 %t, %tid.x; shr.u32 %w, %t, 5; and.b32 %l, %t, 31;
  ld.param.u64 %X, [x]; ld.param.u64 %Y, [y];
  mad.wide.u32 %X, %t, 4, %X; mad.wide.u32 %Y, %t, 4, %Y;
{body}
  ret;
}}"""
    )
    return ptx, {"grid": grid, "block": block, "shared": shared, "read_only": ["x"]}, values


# A 64 x 8 x 16 product of one warpgroup: operands as 8 x 8 core matrices, without swizzle.
WGMMA = """
  mov.u32 %r0, smem;
  shl.b32 %r1, %t, 4; add.s32 %r1, %r1, %r0;
  ld.param.u64 %d0, [x]; mad.wide.u32 %d0, %t, 16, %d0;
  ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%d0];
  st.shared.v4.b32 [%r1], {%r2, %r3, %r4, %r5}; // @fill
  setp.ge.u32 %p0, %t, 16; @%p0 bra FILLED;
  ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%d0+2048]; st.shared.v4.b32 [%r1+2048], {%r2, %r3, %r4, %r5}; // @fill-b
FILLED:
  fence.proxy.async.shared::cta; // @proxy
  bar.sync 0;
  shr.u32 %r6, %r0, 4; cvt.u64.u32 %d1, %r6; or.b64 %d1, %d1, 0x1000080000; // @descriptor
  add.s64 %d2, %d1, 128;
  mov.b32 %r8, 0; mov.b32 %r9, 0; mov.b32 %r10, 0; mov.b32 %r11, 0;
  wgmma.fence.sync.aligned; // @fence
  wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r8, %r9, %r10, %r11}, %d1, %d2, 1, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned; // @commit
  wgmma.wait_group.sync.aligned 0; // @wait
  st.global.b32 [%Y], %r8; // @use
"""


def wgmma(edit: Callable[[str], str] = lambda p: p) -> Any:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(1152).astype(np.float16)
    ptx, launch, args = small(WGMMA, block=128, shared=4096, x=x)
    return edit(ptx), launch, args


def wgmma_cp_async(edit: Callable[[str], str] = lambda p: p) -> Any:
    """The same, A brought by cp.async: each thread takes 16 bytes of a row of A [64, 16] to its place."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((72, 16)).astype(np.float16)
    body = WGMMA.replace("mad.wide.u32 %d0, %t, 16, %d0;", "mad.wide.u32 %d0, %t, 16, %d0; xor.b32 %r7, %t, 8;")
    body = body.replace(
        "shl.b32 %r1, %t, 4; add.s32 %r1, %r1, %r0;",
        # Thread 2 * row + unit goes to core matrix (row / 8, unit), its row row % 8.
        """shr.u32 %r1, %t, 1; and.b32 %r2, %r1, 7; shr.u32 %r1, %r1, 3; shl.b32 %r1, %r1, 1; and.b32 %r3, %t, 1;
  add.s32 %r1, %r1, %r3; shl.b32 %r1, %r1, 7; shl.b32 %r2, %r2, 4; add.s32 %r1, %r1, %r2; add.s32 %r1, %r1, %r0;""",
    )
    body = body.replace(
        "  ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%d0];", "  shl.b32 %r7, %t, 4; add.s32 %r7, %r7, %r0;"
    )
    body = body.replace(
        "st.shared.v4.b32 [%r1], {%r2, %r3, %r4, %r5}; // @fill",
        "cp.async.cg.shared.global [%r1], [%d0], 16; // @fill",
    )
    body = body.replace(
        "st.shared.v4.b32 [%r1+2048], {%r2, %r3, %r4, %r5};",
        "shl.b32 %r7, %t, 4; add.s32 %r7, %r7, %r0; st.shared.v4.b32 [%r7+2048], {%r2, %r3, %r4, %r5};",
    )
    body = body.replace("  fence.proxy", "  cp.async.wait_all;\n  fence.proxy", 1)
    ptx, launch, args = small(body, block=128, shared=4096, x=x)
    return edit(ptx), launch, args


def tma(edit: Callable[[str], str] = lambda p: p, cluster: int = 1, **sizes: Any) -> Any:
    rng = np.random.default_rng(0)
    m, n, k = 64 * cluster, 64, 256
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (n, k)))
    c = np.zeros((m, n), np.float16)
    args = {
        "pa": machine.TensorMap(a, (64, 64), 128),
        "pb": machine.TensorMap(b, (64, 64 // cluster), 128),
        "pc": machine.TensorMap(c, (64, 64)),
        "k": k,
    }
    launch = {"grid": cluster, "block": 256, "shared": gemm_tma_bytes(64, 1, 2), "cluster": (cluster, 1, 1)}
    return edit(gemm_tma(64, 1, 2, cluster)), launch, args


CP_ASYNC = """
  mov.u32 %r0, smem; shl.b32 %r1, %t, 4; add.s32 %r1, %r1, %r0; and.b32 %r2, %t, 15; mul.wide.u32 %d0, %r2, 16;
  ld.param.u64 %d1, [x]; add.s64 %d1, %d1, %d0;
  cp.async.cg.shared.global [%r1], [%d1], 16;
  cp.async.commit_group; // @commit
  cp.async.wait_group 0; // @wait
  bar.sync 0; // @barrier
  xor.b32 %r1, %r1, 512; ld.shared.b32 %r3, [%r1]; st.global.b32 [%Y], %r3;
"""

EXCHANGE = """
  mov.u32 %r0, smem; shl.b32 %r1, %t, 2; add.s32 %r1, %r1, %r0;
  st.shared.b32 [%r1], %t;
  bar.sync 0; // @barrier
  xor.b32 %r2, %t, 63; shl.b32 %r2, %r2, 2; add.s32 %r2, %r2, %r0;
  ld.shared.b32 %r3, [%r2]; st.global.b32 [%Y], %r3;
"""

BARRIER = """
  mov.u32 %r0, smem; setp.ne.u32 %p0, %t, 0;
  @!%p0 mbarrier.init.shared.b64 [%r0], 64; // @init
  bar.sync 0; // @barrier
  mbarrier.arrive.shared.b64 _, [%r0]; // @arrive
WAIT:
  mbarrier.try_wait.parity.shared.b64 %p1, [%r0], 0; // @try
  @!%p1 bra WAIT;
"""

CLUSTER = """
  mov.u32 %r0, smem; shl.b32 %r1, %t, 2; add.s32 %r1, %r1, %r0; mov.u32 %r2, %cluster_ctarank;
  st.shared.b32 [%r1], %r2;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  xor.b32 %r3, %r2, 1; mapa.shared::cluster.u32 %r4, %r1, %r3; ld.shared::cluster.b32 %r5, [%r4];
  st.global.b32 [%Y], %r5;
  barrier.cluster.arrive.aligned; // @end-arrive
  barrier.cluster.wait.aligned; // @end-wait
"""


def cluster(edit: Callable[[str], str] = lambda p: p) -> Any:
    ptx, launch, args = small(CLUSTER, grid=2, y=np.zeros(256, np.uint32))
    ptx = ptx.replace(")\n{", ")\n.explicitcluster\n.reqnctapercluster 2, 1, 1\n{", 1)
    ptx = ptx.replace(
        "mad.wide.u32 %Y, %t, 4, %Y;",
        "mov.u32 %r9, %ctaid.x; mad.lo.u32 %r9, %r9, 64, %t; mad.wide.u32 %Y, %r9, 4, %Y;",
    )
    return edit(ptx), {**launch, "cluster": (2, 1, 1)}, args


BULK_STORE = """
  mov.u32 %r0, smem; shl.b32 %r1, %t, 2; add.s32 %r1, %r1, %r0; ld.param.u64 %d0, [y];
  st.shared.b32 [%r1], %t;
  fence.proxy.async.shared::cta; // @proxy
  bar.sync 0;
  setp.ne.u32 %p0, %t, 0; @%p0 bra SYNC;
  cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 256; // @copy
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group.read 0; // @wait
SYNC:
  bar.sync 0;
  mov.b32 %r2, 0; st.shared.b32 [%r1], %r2;
"""

BULK_LOAD = """
  mov.u32 %r0, smem; setp.ne.u32 %p0, %t, 0; @%p0 bra READY;
  mbarrier.init.shared.b64 [%r0], 1;
  fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared.b64 _, [%r0], 256; // @expect
  ld.param.u64 %d0, [x]; add.s32 %r1, %r0, 128;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d0], 256, [%r0]; // @copy
READY:
  bar.sync 0;
WAIT:
  mbarrier.try_wait.parity.shared.b64 %p1, [%r0], 0; // @wait
  @!%p1 bra WAIT; // @loop
  shl.b32 %r2, %t, 2; add.s32 %r2, %r2, %r0; ld.shared.b32 %r3, [%r2+128]; st.global.b32 [%Y], %r3;
"""


def plain(body: str, **options: Any) -> Callable[..., Any]:
    """A builder of the small kernel with ``body``, edited on request."""

    def build(edit: Callable[[str], str] = lambda p: p) -> Any:
        ptx, launch, args = small(body, **options)
        return edit(ptx), launch, args

    return build


def drop(mark: str) -> Callable[[str], str]:
    return lambda ptx: without(ptx, mark)


def change(mark: str, old: str, new: str) -> Callable[[str], str]:
    return lambda ptx: replace(ptx, mark, old, new)


def insert(mark: str, text: str) -> Callable[[str], str]:
    """Add a line after the marked one."""
    return lambda ptx: ptx.replace(f"// @{mark}", f"// @{mark}\n{text}", 1)


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


exchange, cp_async, barrier = plain(EXCHANGE), plain(CP_ASYNC), plain(BARRIER)
bulk_store, bulk_load = plain(BULK_STORE), plain(BULK_LOAD)
setmaxnreg = plain(
    "  setmaxnreg.dec.sync.aligned.u32 40; // @count\n  setmaxnreg.inc.sync.aligned.u32 64;", block=128
)


def with_registers(edit: Callable[[str], str] = lambda p: p) -> Any:
    ptx, launch, args = setmaxnreg(edit)
    return ptx.replace(")\n{", ")\n.maxntid 128, 1, 1\n.maxnreg 64\n{", 1), launch, args


GLOBAL_FLAG = """
  mov.u32 %r0, %ctaid.x; ld.param.u64 %d0, [y]; setp.ne.u32 %p0, %t, 0; @%p0 bra END;
  setp.ne.u32 %p1, %r0, 0; @%p1 bra SECOND;
  mov.b32 %r1, 42; st.global.b32 [%d0+512], %r1;
  mov.b32 %r2, 1; st.release.gpu.global.b32 [%d0+516], %r2; // @release
  bra END;
SECOND:
  ld.acquire.gpu.global.b32 %r3, [%d0+516]; // @acquire
  setp.eq.u32 %p2, %r3, 0; @%p2 bra SECOND;
  ld.global.b32 %r4, [%d0+512]; st.global.b32 [%d0], %r4;
END:
"""
global_flag = plain(GLOBAL_FLAG, grid=2)

CTAS_APART = """
  .reg .b64 %Z; mov.b64 %Z, %Y; mov.u32 %r0, %ctaid.x; mad.wide.u32 %Y, %r0, 256, %Y; st.global.b32 [%Y], %r0; // @store
"""
ctas_apart = plain(CTAS_APART, grid=3)

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
    Case("overwrite-in-flight", tma, change("wait-group", " 0;", " 1;")),
    Case("overwrite-in-flight-warps", wgmma, insert("wait", "  st.shared.b32 [%r1], %r6;"), strict=True),
    Case("missing-proxy-fence-cp-async", wgmma_cp_async, drop("proxy"), strict=True),
    Case("operand-layout", wgmma_cp_async, change("fill", "[%r1]", "[%r7]")),
    Case("missing-proxy-fence", bulk_store, drop("proxy")),
    Case("missing-proxy-fence", wgmma, drop("proxy")),
    Case("missing-proxy-fence", tma, drop("fence-store")),
    Case("uninitialised-shared", wgmma, drop("fill-b")),
    Case("uninitialised-shared", plain("  mov.u32 %r0, smem; // @nothing"), insert("nothing", "  ld.shared.b32 %r1, [%r0];")),
    Case("uninitialised-register", plain("  mov.b32 %r7, 1; // @set\n  st.global.b32 [%Y], %r7;"), drop("set")),
    Case("uninitialised-register", plain("  mov.b32 %r7, 1; // @set\n  st.global.b32 [%Y], %r7;"), change("set", "mov", "@%p5 mov")),
    Case("out-of-bounds", plain("  st.global.b32 [%Y], %t; // @store"), change("store", "[%Y]", "[%Y+1024]")),
    Case("out-of-bounds", exchange, lambda p: p, launch={"shared": 128}),
    Case("misaligned", plain("  st.global.b32 [%Y], %t; // @store"), change("store", "[%Y]", "[%Y+2]")),
    Case("write-to-read-only", plain("  st.global.b32 [%Y], %t; // @store"), change("store", "[%Y]", "[%X]")),
    Case("register-in-flight", wgmma, drop("wait")),
    Case("missing-wgmma-fence", wgmma, drop("fence")),
    Case("missing-wgmma-fence", wgmma, insert("fence", "  mov.b32 %r8, 0;")),
    Case("inadmissible-descriptor", wgmma, change("descriptor", "0x1000080000", "0x4000001000080000")),
    Case("swizzle-mismatch", tma, change("descriptor-a", "0x4000004000010000", "0x8000004000010000")),
    Case("wgmma-not-uniform", wgmma, change("descriptor", "or.b64", "cvt.u64.u32 %d3, %w; shl.b64 %d3, %d3, 7; add.s64 %d1, %d1, %d3; or.b64")),
    Case("mbarrier-before-init", barrier, drop("init")),
    Case("mbarrier-before-init", barrier, drop("barrier")),
    Case("mbarrier-init-not-visible", tma, drop("fence-init")),
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
    Case("step-limit", plain("L: mov.b32 %r0, 1; // @loop"), insert("loop", "  bra L;"), schedules=1),
    Case("trap", plain("  mov.b32 %r0, 1; // @here"), insert("here", "  trap;")),
]  # fmt: skip


def ids(case: Case) -> str:
    return case.code


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_convicts(case: Case, assembles: Callable[[str, str], None]) -> None:
    ptx, launch, args = case.build(case.edit)
    if case.assembles:
        assembles(ptx, "sm_90a")
    limit = 20_000 if case.code == "step-limit" else 5_000_000
    try:
        verdict = machine.check(
            ptx, {**launch, **case.launch}, args, schedules=case.schedules, strict=case.strict, max_steps=limit
        )
    except HazardError as hazard:
        assert hazard.code == case.code
        return
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
]


@pytest.mark.parametrize("build", BUILDERS, ids=range(len(BUILDERS)))
def test_acquits_the_correct_twin(build: Callable[..., Any], assembles: Callable[[str, str], None]) -> None:
    ptx, launch, args = build()
    assembles(ptx, "sm_90a")
    verdict = machine.check(ptx, launch, args, schedules=40, strict=True)
    assert verdict.ok, verdict.render()[:3000]


def test_every_hazard_has_a_case() -> None:
    from tilemma.machine import catalogue

    known = {
        c.code
        for c in vars(catalogue).values()
        if isinstance(c, type) and issubclass(c, HazardError) and c is not HazardError
    }
    # test_matrix.py has these.
    elsewhere = {"no-such-form", "sparse-metadata"}
    assert known - {c.code for c in CASES} - elsewhere == set()
