"""The three listings of the tutorial's contraction chapter, as the front ends build them."""

from __future__ import annotations

from tilemma import dtypes
from tilemma.ir.builder import Builder
from tilemma.ir.expr import cdiv
from tilemma.ir.tile import Kernel
from tilemma.ir.tiles import Tile
from tilemma.ir.types import BLOCK, GROUP, WARPGROUP, Contract, Space

f16 = dtypes.f16


def _params(b: Builder, t=f16, out=None) -> tuple[Tile, Tile, Tile]:
    return (
        b.array_param("lhs", t, ["M", "K"]),
        b.array_param("rhs", t, ["N", "K"]),
        b.array_param("output", out or t, ["M", "N"]),
    )


def dims_of(tile: Tile):
    return tile.view.base.shape


def listing1(t=f16, out=None, tile=(16, 16, 16), mma=(16, 16, 16), acc=None) -> Kernel:
    """One warp a tile (`: group`); larger ``tile`` uses more warps."""
    b = Builder("matmul_wmma")
    lhs, rhs, output = _params(b, t, out)
    (m, k), n = dims_of(lhs), dims_of(rhs)[0]
    tm, tn, tk = tile
    with b.parallel(["block_m", "block_n"], [cdiv(m, tm), cdiv(n, tn)], BLOCK) as (bm, bn):
        output_s = b.alloc("output_s", Space.SHARED, out or t, [tm, tn])
        with b.parallel(["warp_m", "warp_n"], [tm // mma[0], tn // mma[1]], GROUP) as (wm, wn):
            mc = b.fill("mc", 0.0, acc)
            with b.foreach("iv_k", cdiv(k, tk)) as iv_k:
                lhs_s = b.copy(lhs.subspan([tm, tk], [bm, iv_k]), Space.SHARED, name="lhs_load_s").data
                rhs_s = b.copy(rhs.subspan([tn, tk], [bn, iv_k]), Space.SHARED, name="rhs_load_s").data
                with b.foreach("iv_warp_k", tk // mma[2]) as iv_w:
                    ma = b.load("ma", lhs_s.chunkat([wm, iv_w]))
                    mb = b.load("mb", rhs_s.chunkat([wn, iv_w]))
                    b.mma(Contract.ROW_ROW, mc, ma, mb)
            b.store(mc, Tile.whole(output_s).subspan(mma[:2], [wm, wn]))
        b.copy(Tile.whole(output_s), output.subspan([tm, tn], [bm, bn]))
    return b.finish()


def listing2(t=f16, out=None, acc=dtypes.f16) -> Kernel:
    """One warpgroup."""
    b = Builder("matmul_wgmma")
    lhs, rhs, output = _params(b, t, out)
    (m, k), n = dims_of(lhs), dims_of(rhs)[0]
    with b.parallel(["block_m", "block_n"], [cdiv(m, 64), cdiv(n, 64)], BLOCK) as (bm, bn):
        lhs_s = Tile.whole(b.alloc("lhs_load_s", Space.SHARED, t, [64, 128]))
        rhs_s = Tile.whole(b.alloc("rhs_load_s", Space.SHARED, t, [64, 128]))
        mc = b.fill("mc", 0.0, acc)
        with b.foreach("iv_k", cdiv(k, 128)) as iv_k:
            b.copy(lhs.subspan([64, 128], [bm, iv_k]), lhs_s)
            b.copy(rhs.chunkat([bn, iv_k]), rhs_s)
            with b.foreach("iv_warp", 8) as iv_w, b.parallel(["p"], [1], WARPGROUP):
                ma = b.load("ma", lhs_s.chunkat([None, iv_w]))
                mb = b.load("mb", rhs_s.chunkat([None, iv_w]))
                b.mma(Contract.ROW_ROW, mc, ma, mb)
        output_s = Tile.whole(b.alloc("output_s", Space.SHARED, out or t, [64, 64]))
        b.store(mc, output_s)
        b.copy(output_s, output.subspan([64, 64], [bm, bn]))
    return b.finish()


def listing3(t=f16, out=None, acc=dtypes.f32) -> Kernel:
    """Two warpgroups that share B."""
    b = Builder("matmul_wgmma_2group")
    lhs, rhs, output = _params(b, t, out)
    (m, k), n = dims_of(lhs), dims_of(rhs)[0]
    with b.parallel(["block_m", "block_n"], [cdiv(m, 128), cdiv(n, 64)], BLOCK) as (bm, bn):
        lhs_s = Tile.whole(b.alloc("lhs_load_s", Space.SHARED, t, [128, 128]))
        rhs_s = Tile.whole(b.alloc("rhs_load_s", Space.SHARED, t, [64, 128]))
        output_s = Tile.whole(b.alloc("output_s", Space.SHARED, out or t, [128, 64]))
        mc = b.fill("mc", 0.0, acc)
        with b.foreach("iv_k", cdiv(k, 128)) as iv_k:
            b.copy(lhs.subspan([128, 128], [bm, iv_k]), lhs_s)
            b.copy(rhs.chunkat([bn, iv_k]), rhs_s)
            with b.parallel(["p1"], [2], WARPGROUP) as (p1,), b.foreach("iv_warp", 8) as iv_w:
                ma = b.load("ma", lhs_s.subspan([64, 128], [p1, 0]).chunkat([None, iv_w]))
                mb = b.load("mb", rhs_s.chunkat([None, iv_w]))
                b.mma(Contract.ROW_ROW, mc, ma, mb)
        with b.parallel(["p1"], [2], WARPGROUP) as (p1,):
            b.store(mc, output_s.subspan([64, 64], [p1, 0]))
        b.copy(output_s, output.subspan([128, 64], [bm, bn]))
    return b.finish()
