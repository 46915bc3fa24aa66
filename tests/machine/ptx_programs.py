"""Small correct programs for the machine's tests, whose marked lines (``// @name``) the tests remove or change.

Each builder takes an edit of its PTX and returns (PTX, launch, arguments).
"""

# ruff: noqa: E501
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from kernels import gemm_sm80, gemm_sm80_bytes, gemm_tma, gemm_tma_bytes, header, replace, without

import tilemma as tm
from tilemma import cdiv, dma, foreach, machine, mma, parallel, shared
from tilemma.kernels import facts_of


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


# A 2:4 sparse product of one warpgroup, 64 x 24 x 32: A compressed [64, 16], both operands as core matrices.
SPARSE = f"""
  .reg .b64 %B; .reg .f32 {", ".join(f"%f{i}" for i in range(12))};
  mov.u32 %r0, smem; shl.b32 %r1, %t, 4; add.s32 %r1, %r1, %r0;
  mov.b32 %r2, 0x3c003c00; st.shared.v4.b32 [%r1], {{%r2, %r2, %r2, %r2}};
  setp.ge.u32 %p0, %t, 96; @%p0 bra FILLED;
  shr.u32 %r3, %t, 2; and.b32 %r4, %t, 3; shr.u32 %r5, %r3, 3; and.b32 %r6, %r3, 7;
  shl.b32 %r5, %r5, 9; shl.b32 %r4, %r4, 7; shl.b32 %r6, %r6, 4; add.s32 %r5, %r5, %r4; add.s32 %r5, %r5, %r6;
  add.s32 %r5, %r5, %r0; ld.param.u64 %B, [x]; mad.wide.u32 %B, %t, 16, %B;
  cp.async.cg.shared.global [%r5+2048], [%B], 16;
FILLED:
  cp.async.wait_all;
  fence.proxy.async.shared::cta; // @proxy
  bar.sync 0;
  shr.u32 %r6, %r0, 4; cvt.u64.u32 %d1, %r6; add.s64 %d2, %d1, 128;
  or.b64 %d1, %d1, 0x1000080000; or.b64 %d2, %d2, 0x2000080000; // @descriptor-b
  mov.b32 %r7, 0x44444444;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sp.sync.aligned.m64n24k32.f32.f16.f16 {{{", ".join(f"%f{i}" for i in range(12))}}}, %d1, %d2, %r7, 0, 0, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
  st.global.f32 [%Y], %f0;
"""


def sparse(edit: Callable[[str], str] = lambda p: p) -> Any:
    x = np.random.default_rng(0).standard_normal((24, 32)).astype(np.float16)
    ptx, launch, args = small(SPARSE, block=128, shared=4096, x=x)
    return edit(ptx), launch, args


def ampere(m: int, n: int, k: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)).astype(np.float16), rng.standard_normal((n, k)).astype(np.float16)
    c = np.zeros((m, n), np.float32)
    launch = {"grid": (-(-m // 64), -(-n // 64)), "block": 128, "shared": gemm_sm80_bytes()}
    return gemm_sm80(), launch, {"a": a, "b": b, "c": c, "m": m, "n": n, "k": k}


@tm.kernel
def by_columns(
    lhs: tm.Global["f16", "M", "K"], rhs: tm.Global["f16", "K", "N"], output: tm.Global["f32", "M", "N"]
):
    """B as it lies in memory, N contiguous, 24 columns a tile: too narrow for a swizzle."""
    (M, K), N = lhs.shape, rhs.shape[1]
    for m, n in parallel(cdiv(M, 64), cdiv(N, 24), level="block"):
        lhs_s, rhs_s = shared("f16", 64, 32), shared("f16", 32, 24)
        mc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 32)):
            dma.copy(lhs.subspan(64, 32).at(m, k), lhs_s)
            dma.copy(rhs.subspan(32, 24).at(k, n), rhs_s)
            for _ in parallel(1, level="group-4"):
                mma.row.col(mc, mma.load(lhs_s), mma.load(rhs_s))
        for _ in parallel(1, level="group-4"):
            mma.store(mc, output.subspan(64, 24).at(m, n))


@tm.kernel(pipeline=False)
def two_consumers(
    lhs: tm.Global["f16", "M", "K"], rhs: tm.Global["f16", "N", "K"], output: tm.Global["f32", "M", "N"]
):
    """Two warpgroups multiply by one tile of B."""
    (M, K), N = lhs.shape, rhs.shape[0]
    for m, n in parallel(cdiv(M, 128), cdiv(N, 32), level="block"):
        lhs_s, rhs_s = shared("f16", 128, 64), shared("f16", 32, 64)
        mc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(lhs.subspan(128, 64).at(m, k), lhs_s)
            dma.copy(rhs.subspan(32, 64).at(n, k), rhs_s)
            for p in parallel(2, level="group-4"):
                mma.row.row(mc, mma.load(lhs_s.subspan(64, 64).at(p, 0)), mma.load(rhs_s))
        for p in parallel(2, level="group-4"):
            mma.store(mc, output.subspan(64, 32).at(m * 2 + p, n))


def compiled(kernel: Any, arch: str, result_type: Any = np.float32, **shapes: tuple[int, ...]) -> Any:
    """(PTX, launch, arguments) of a kernel on arrays of small numbers; the last one is its result."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {x: rng.integers(-3, 4, shape).astype(np.float16) for x, shape in shapes.items()}
    arrays["output"] = np.zeros(shapes["output"], result_type)
    result = kernel.compile(arch, facts=facts_of(arrays))
    return result.ptx, result.launches[0], arrays


def columns(edit: Callable[[str], str] = lambda p: p) -> Any:
    ptx, launch, args = compiled(by_columns, "sm_90a", lhs=(64, 64), rhs=(64, 24), output=(64, 24))
    return edit(ptx), launch, args


@tm.kernel
def one_tile(lhs: tm.Global["f16", 64, 64], rhs: tm.Global["f16", 32, 64], output: tm.Global["f16", 64, 32]):
    """A product whose result takes the way through a swizzled buffer."""
    for _ in parallel(1, level="block"):
        lhs_s, rhs_s, output_s = shared("f16", 64, 64), shared("f16", 32, 64), shared("f16", 64, 32)
        mc = mma.fill(0.0, "f32")
        dma.copy(lhs, lhs_s)
        dma.copy(rhs, rhs_s)
        for _ in parallel(1, level="group-4"):
            mma.row.row(mc, mma.load(lhs_s), mma.load(rhs_s))
            mma.store(mc, output_s)
        dma.copy(output_s, output)


def staged() -> Any:
    return compiled(one_tile, "sm_90a", np.float16, lhs=(64, 64), rhs=(32, 64), output=(64, 32))


def two_groups(edit: Callable[[str], str] = lambda p: p) -> Any:
    """The barrier after the products' waits, before the tiles are overwritten, is marked ``free``."""
    ptx, launch, args = compiled(two_consumers, "sm_90a", lhs=(128, 192), rhs=(32, 192), output=(128, 32))
    marked = re.sub(r"(wgmma\.wait_group[^;]*;\s*bar\.sync 0;)", r"\1 // @free", ptx, count=1)
    return edit(marked), launch, args


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

# A copy, its readers, and another copy to the same place.
BULK_TWICE = """
  mov.u32 %r0, smem; setp.ne.u32 %p0, %t, 0; ld.param.u64 %d0, [x]; add.s32 %r1, %r0, 128; shl.b32 %r2, %t, 2; add.s32 %r2, %r2, %r0;
  @%p0 bra READY;
  mbarrier.init.shared.b64 [%r0], 1;
  fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared.b64 _, [%r0], 256;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d0], 256, [%r0];
READY:
  bar.sync 0;
WAIT:
  mbarrier.try_wait.parity.shared.b64 %p1, [%r0], 0;
  @!%p1 bra WAIT;
  ld.shared.b32 %r3, [%r2+128];
  fence.proxy.async.shared::cta; // @proxy
  bar.sync 0; // @read
  @%p0 bra AGAIN;
  mbarrier.arrive.expect_tx.shared.b64 _, [%r0], 256;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d0+256], 256, [%r0];
AGAIN:
  mbarrier.try_wait.parity.shared.b64 %p1, [%r0], 1;
  @!%p1 bra AGAIN;
  ld.shared.b32 %r4, [%r2+128]; add.s32 %r3, %r3, %r4; st.global.b32 [%Y], %r3;
"""
bulk_twice = plain(BULK_TWICE)

# Warp 0 reads a tile by ldmatrix and hands its place to warp 1.
READ_THEN_GIVE = """
  mov.u32 %r0, smem; shl.b32 %r1, %t, 2; add.s32 %r1, %r1, %r0; setp.ne.u32 %p0, %t, 0;
  @!%p0 mbarrier.init.shared.b64 [%r0+512], 1;
  st.shared.b32 [%r1], %t;
  bar.sync 0;
  setp.ge.u32 %p1, %t, 32; @%p1 bra SECOND;
  and.b32 %r2, %l, 7; shl.b32 %r2, %r2, 4; add.s32 %r2, %r2, %r0;
  ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [%r2];
  bar.warp.sync 0xffffffff; // @warp
  @!%p0 mbarrier.arrive.shared.b64 _, [%r0+512];
  bra END;
SECOND:
  mbarrier.try_wait.parity.shared.b64 %p2, [%r0+512], 0;
  @!%p2 bra SECOND;
  st.shared.b32 [%r1+-128], %t;
END:
"""
read_then_give = plain(READ_THEN_GIVE)

CTAS_APART = """
  .reg .b64 %Z; mov.b64 %Z, %Y; mov.u32 %r0, %ctaid.x; mad.wide.u32 %Y, %r0, 256, %Y; st.global.b32 [%Y], %r0; // @store
"""
ctas_apart = plain(CTAS_APART, grid=3)
