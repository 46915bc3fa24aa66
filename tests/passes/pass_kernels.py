"""The three kernels of the tutorial's chapter on tensor contraction, built without a front end."""

from __future__ import annotations

from tilemma import dtypes
from tilemma.ir.builder import Builder
from tilemma.ir.expr import Dim, cdiv
from tilemma.ir.tile import Kernel
from tilemma.ir.tiles import Tile
from tilemma.ir.types import BLOCK, GROUP, WARPGROUP, Contract, Space
from tilemma.ir.walk import walk

M, N, K = Dim("M"), Dim("N"), Dim("K")


def parameters(b: Builder, dtype=dtypes.f16):
    lhs = b.array_param("lhs", dtype, ["M", "K"])
    rhs = b.array_param("rhs", dtype, ["N", "K"])
    output = b.array_param("output", dtypes.f16, ["M", "N"])
    return lhs, rhs, output


def listing1(dtype=dtypes.f16) -> Kernel:
    b = Builder("matmul_wmma")
    lhs, rhs, output = parameters(b, dtype)
    with b.parallel(["block_m", "block_n"], [cdiv(M, 16), cdiv(N, 16)], BLOCK) as (bm, bn):
        out_s = Tile.whole(b.alloc("output_s", Space.SHARED, dtypes.f16, [16, 16]))
        with b.parallel(["warp_m", "warp_n"], [1, 1], GROUP) as (wm, wn):
            mc = b.fill("mc", 0.0)
            with b.foreach("iv_k", cdiv(K, 16)) as k:
                l_s = b.copy(lhs.subspan([16, 16], [bm, k]), Space.SHARED, name="lhs_load_s").data
                r_s = b.copy(rhs.subspan([16, 16], [bn, k]), Space.SHARED, name="rhs_load_s").data
                with b.foreach("iv_warp_k", 1) as kk:
                    ma = b.load("ma", l_s.chunkat([wm, kk]))
                    mb = b.load("mb", r_s.chunkat([wn, kk]))
                    b.mma(Contract.ROW_ROW, mc, ma, mb)
            b.store(mc, out_s.subspan([16, 16], [wm, wn]))
        b.copy(out_s, output.subspan([16, 16], [bm, bn]))
    return b.finish()


def listing2(acc=dtypes.f16) -> Kernel:
    b = Builder("matmul_wgmma")
    lhs, rhs, output = parameters(b)
    with b.parallel(["block_m", "block_n"], [cdiv(M, 64), cdiv(N, 64)], BLOCK) as (bm, bn):
        l_s = Tile.whole(b.alloc("lhs_load_s", Space.SHARED, dtypes.f16, [64, 128]))
        r_s = Tile.whole(b.alloc("rhs_load_s", Space.SHARED, dtypes.f16, [64, 128]))
        mc = b.fill("mc", 0.0, acc)
        with b.foreach("iv_k", cdiv(K, 128)) as k:
            b.copy(lhs.subspan([64, 128], [bm, k]), l_s)
            b.copy(rhs.chunkat([bn, k]), r_s)
            with b.foreach("iv_warp", 8) as kk, b.parallel(["p"], [1], WARPGROUP):
                ma = b.load("ma", l_s.chunkat([None, kk]))
                mb = b.load("mb", r_s.chunkat([None, kk]))
                b.mma(Contract.ROW_ROW, mc, ma, mb)
        out_s = Tile.whole(b.alloc("output_s", Space.SHARED, dtypes.f16, [64, 64]))
        b.store(mc, out_s)
        b.copy(out_s, output.subspan([64, 64], [bm, bn]))
    return b.finish()


def listing3(groups: int = 2, wn: int = 64, dtype=dtypes.f16) -> Kernel:
    b = Builder("matmul_wgmma_2group")
    lhs, rhs, output = parameters(b, dtype)
    tile_m = 64 * groups
    with b.parallel(["block_m", "block_n"], [cdiv(M, tile_m), cdiv(N, wn)], BLOCK) as (bm, bn):
        l_s = Tile.whole(b.alloc("lhs_load_s", Space.SHARED, dtype, [tile_m, 128]))
        r_s = Tile.whole(b.alloc("rhs_load_s", Space.SHARED, dtype, [wn, 128]))
        out_s = Tile.whole(b.alloc("output_s", Space.SHARED, dtypes.f16, [tile_m, wn]))
        mc = b.fill("mc", 0.0, dtypes.f32)
        with b.foreach("iv_k", cdiv(K, 128)) as k:
            b.copy(lhs.subspan([tile_m, 128], [bm, k]), l_s)
            b.copy(rhs.chunkat([bn, k]), r_s)
            with b.parallel(["p1"], [groups], WARPGROUP) as (p,), b.foreach("iv_warp", 8) as kk:
                ma = b.load("ma", l_s.subspan([64, 128], [p, 0]).chunkat([None, kk]))
                mb = b.load("mb", r_s.chunkat([None, kk]))
                b.mma(Contract.ROW_ROW, mc, ma, mb)
        with b.parallel(["p1"], [groups], WARPGROUP) as (p,):
            b.store(mc, out_s.subspan([64, wn], [p, 0]))
        b.copy(out_s, output.subspan([tile_m, wn], [bm, bn]))
    return b.finish()


def levels_kernel(*levels) -> Kernel:
    """Nested parallels of (extent, level), outermost first."""
    b = Builder("levels")

    def nest(rest):
        if rest:
            with b.parallel(["p"], [rest[0][0]], rest[0][1]):
                nest(rest[1:])

    nest(levels)
    return b.finish()


def one_multiply(
    contract=Contract.ROW_ROW,
    *,
    a=(64, 64),
    b=(64, 64),
    dtype=dtypes.f16,
    b_dtype=None,
    acc=dtypes.f32,
    level=WARPGROUP,
    groups=1,
    swizzle=None,
    out=dtypes.f16,
    direct=False,
) -> Kernel:
    """C = A x B for one tile that each of ``groups`` instances multiplies; operands through shared memory."""
    build = Builder("one_multiply")
    lhs = build.array_param("lhs", dtype, ["Q", "P"] if contract.a_transposed else ["P", "Q"])
    rhs = build.array_param("rhs", b_dtype or dtype, ["Q", "R"] if contract.b_transposed else ["R", "Q"])
    output = build.array_param("output", out, ["M", "N"])
    m = a[1] if contract.a_transposed else a[0]
    n = b[1] if contract.b_transposed else b[0]
    with build.parallel(["block"], [1], BLOCK) as (block,):
        l_s = Tile.whole(build.alloc("lhs_s", Space.SHARED, dtype, a, swizzle=swizzle))
        r_s = Tile.whole(build.alloc("rhs_s", Space.SHARED, b_dtype or dtype, b))
        build.copy(lhs.subspan(a, [block, 0]), l_s)
        build.copy(rhs.subspan(b, [block, 0]), r_s)
        with build.parallel(["p"], [groups], level) as (p,):
            mc = build.fill("mc", 0.0, acc)
            ma, mb = (l_s, r_s) if direct else (build.load("ma", l_s), build.load("mb", r_s))
            build.mma(contract, mc, ma, mb)
            build.store(mc, output.subspan([m, n], [block, p]))
    return build.finish()


def find(kernel: Kernel, kind):
    """The operations of a class, in program order."""
    return [op for op in walk(kernel.body) if isinstance(op, kind)]
