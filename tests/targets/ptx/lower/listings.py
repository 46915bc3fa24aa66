"""The three matmul listings as tile IR with every decision written down by hand, as passes would."""

from __future__ import annotations

from tilemma import dtypes
from tilemma.ir import tile
from tilemma.ir.expr import Const, Dim, Index, cdiv, const, mul
from tilemma.ir.plans import CopyPlan, FragmentPlan, LoadPlan, SharedLayoutPlan, StorePlan
from tilemma.ir.tile import (
    Alloc,
    ArrayFacts,
    ArrayParameter,
    Barrier,
    Copy,
    CopyCommit,
    CopyWait,
    DeclareFragment,
    Fill,
    For,
    FragmentRef,
    Kernel,
    Load,
    Mma,
    MmaCommit,
    MmaFence,
    MmaWait,
    Parallel,
    ProxyFence,
    Store,
)
from tilemma.ir.types import BLOCK, GROUP, WARPGROUP, Axis, Buffer, Contract, Space, View

ALIGNED = ArrayFacts(1, 16)
M, N, K = Dim("M"), Dim("N"), Dim("K")
WARP_ATOM = {"f32": "SM80_16x8x16_F32F16F16F32_TN", "f16": "SM80_16x8x16_F16F16F16F16_TN"}


def at(buffer: Buffer, offsets, extents) -> View:
    axes = tuple(Axis(d, const(e)) for d, e in enumerate(extents))
    return View(buffer, tuple(Const(o) if isinstance(o, int) else o for o in offsets), axes)


def swizzled(rows: int, cols: int, size: int = 2, swizzle_atom: int = 128) -> SharedLayoutPlan:
    while cols * size % swizzle_atom:
        swizzle_atom //= 2
    return SharedLayoutPlan(swizzle_atom, swizzle_atom, rows, rows * cols * size, 8 * swizzle_atom)


def params(facts: ArrayFacts) -> tuple[Buffer, Buffer, Buffer, tuple[ArrayParameter, ...]]:
    lhs = Buffer("lhs", dtypes.f16, (M, K), Space.GLOBAL)
    rhs = Buffer("rhs", dtypes.f16, (N, K), Space.GLOBAL)
    out = Buffer("output", dtypes.f16, (M, N), Space.GLOBAL)
    return lhs, rhs, out, tuple(ArrayParameter(b, facts) for b in (lhs, rhs, out))


def copy_plan(arch: str, facts: ArrayFacts, threads: int, store: bool = False) -> CopyPlan:
    vector = facts.alignment
    engine = "ldst" if store or vector < 4 else "cp.async"
    return CopyPlan(engine, vector, BLOCK, threads)


def listing1(arch: str = "sm_80", facts: ArrayFacts = ALIGNED) -> Kernel:
    """One warp, 16x16x16 tiles."""
    lhs, rhs, out, ps = params(facts)
    bm, bn = Index("block_m", cdiv(M, 16)), Index("block_n", cdiv(N, 16))
    wm, wn = Index("warp_m", const(1)), Index("warp_n", const(1))
    k, kk = Index("iv_k", cdiv(K, 16)), Index("iv_warp_k", const(1))
    ls, rs, os_ = (Buffer(n, dtypes.f16, (const(16), const(16)), Space.SHARED) for n in ("ls", "rs", "os"))
    plan = swizzled(16, 16)
    atom = WARP_ATOM["f16"]

    def fragment(role, repeat):
        return FragmentPlan(role, dtypes.f16, (16, 16), GROUP, "registers", atom, repeat)

    copies = copy_plan(arch, facts, 32)
    body = (
        Alloc(os_, layout=plan, offset=1024),
        Parallel(
            (wm, wn),
            (
                DeclareFragment("mc", plan=fragment("C", (1, 2))),
                Fill(FragmentRef("mc"), const(0.0)),
                Alloc(ls, layout=plan, offset=0),
                Alloc(rs, layout=plan, offset=512),
                For(
                    k, const(0), k.extent, const(1),
                    (
                        Copy("dma", at(lhs, (mul(bm, 16), mul(k, 16)), (16, 16)), ls.whole(), plan=copies),
                        Copy("dma", at(rhs, (mul(bn, 16), mul(k, 16)), (16, 16)), rs.whole(), plan=copies),
                        CopyCommit(), CopyWait(0), Barrier(0, 32),
                        For(kk, const(0), const(1), const(1), (
                            DeclareFragment("ma", plan=fragment("A", (1, 1))),
                            Load(FragmentRef("ma"), at(ls, (mul(wm, 16), mul(kk, 16)), (16, 16)),
                                 plan=LoadPlan("ldmatrix")),
                            DeclareFragment("mb", plan=fragment("B", (2, 1))),
                            Load(FragmentRef("mb"), at(rs, (mul(wn, 16), mul(kk, 16)), (16, 16)),
                                 plan=LoadPlan("ldmatrix")),
                            Mma(Contract.ROW_ROW, FragmentRef("mc"), FragmentRef("ma"), FragmentRef("mb"),
                                atom=atom, tiles=(1, 2, 1)),
                        )),
                        Barrier(0, 32),
                    ),
                ),
                Store(FragmentRef("mc"), at(os_, (mul(wm, 16), mul(wn, 16)), (16, 16)),
                      plan=StorePlan("direct", 4)),
            ),
            GROUP,
        ),
        Barrier(0, 32),
        Copy("dma", os_.whole(), at(out, (mul(bm, 16), mul(bn, 16)), (16, 16)),
             plan=copy_plan(arch, facts, 32, store=True)),
    )  # fmt: skip
    return Kernel("matmul_wmma", ps, (Parallel((bm, bn), body, BLOCK),))


def listing3(
    arch: str = "sm_90a",
    facts: ArrayFacts = ALIGNED,
    groups: int = 2,
    acc: str = "f32",
    tile_k: int = 128,
    warp: tuple[int, int] = (64, 64),
    a_from: str = "shared",
) -> Kernel:
    """``groups`` warpgroups of 64x64 (listing 3; listing 2 has one, and an f16 accumulator).

    On sm_90a, A comes from "shared" memory, or through "registers".
    """
    lhs, rhs, out, ps = params(facts)
    wm, wn = warp
    tile_m = wm * groups
    threads = 128 * groups
    bm, bn = Index("block_m", cdiv(M, tile_m)), Index("block_n", cdiv(N, wn))
    k, kk = Index("iv_k", cdiv(K, tile_k)), Index("iv_warp", const(tile_k // 16))
    p1, p2 = Index("p1", const(groups)), Index("p1.1", const(groups))
    ls = Buffer("lhs_load_s", dtypes.f16, (const(tile_m), const(tile_k)), Space.SHARED)
    rs = Buffer("rhs_load_s", dtypes.f16, (const(wn), const(tile_k)), Space.SHARED)
    os_ = Buffer("output_s", dtypes.f16, (const(tile_m), const(wn)), Space.SHARED)
    hopper = arch == "sm_90a"
    acc_t = dtypes.dtype(acc)
    if hopper:
        atom = f"SM90_64x{wn}x16_{acc.upper()}F16F16_{a_from[0].upper()}S"
        grid, tiles = (1, 1), (1, 1, 1)
        where = "shared"
    else:
        atom = WARP_ATOM[acc]
        grid, tiles = (4, 1), (1, wn // 8, 1)
        where = "registers"

    def fragment(role, dtype, shape, repeat, where="registers"):
        return FragmentPlan(role, dtype, shape, WARPGROUP, where, atom, repeat, grid)

    method = LoadPlan("descriptor" if hopper else "ldmatrix")
    a_where, a_method = (where, method) if a_from == "shared" else ("registers", LoadPlan("ldmatrix"))
    copies = copy_plan(arch, facts, threads)
    multiply: tuple[tile.Op, ...] = (
        For(kk, const(0), const(tile_k // 16), const(1), (
            DeclareFragment("ma", plan=fragment("A", dtypes.f16, (wm, 16), (wm // 64, 1), a_where)),
            Load(FragmentRef("ma"), at(ls, (mul(p1, wm), mul(kk, 16)), (wm, 16)), plan=a_method),
            DeclareFragment("mb", plan=fragment("B", dtypes.f16, (wn, 16), (1 if hopper else wn // 8, 1), where)),
            Load(FragmentRef("mb"), at(rs, (0, mul(kk, 16)), (wn, 16)), plan=method),
            *(() if a_from == "shared" else (MmaFence(),)),
            Mma(Contract.ROW_ROW, FragmentRef("mc"), FragmentRef("ma"), FragmentRef("mb"), atom=atom, tiles=tiles),
        )),
    )  # fmt: skip
    if hopper:
        multiply = (MmaFence(), *multiply, MmaCommit(), MmaWait(0))
    body = (
        Alloc(ls, layout=swizzled(tile_m, tile_k), offset=0),
        Alloc(rs, layout=swizzled(wn, tile_k), offset=tile_m * tile_k * 2),
        Alloc(os_, layout=swizzled(tile_m, wn), offset=(tile_m + wn) * tile_k * 2),
        DeclareFragment("mc", plan=fragment("C", acc_t, (wm, wn), (1, 1 if hopper else wn // 8))),
        Fill(FragmentRef("mc"), const(0.0), acc_t),
        For(k, const(0), k.extent, const(1), (
            Copy("dma", at(lhs, (mul(bm, tile_m), mul(k, tile_k)), (tile_m, tile_k)), ls.whole(), plan=copies),
            Copy("dma", at(rhs, (mul(bn, wn), mul(k, tile_k)), (wn, tile_k)), rs.whole(), plan=copies),
            CopyCommit(), CopyWait(0), *((ProxyFence(),) if hopper else ()), Barrier(0, threads),
            Parallel((p1,), multiply, WARPGROUP),
            Barrier(0, threads),
        )),
        Parallel((p2,), (
            Store(FragmentRef("mc"), at(os_, (mul(p2, wm), 0), (wm, wn)), plan=StorePlan("direct", 4)),
        ), WARPGROUP),
        Barrier(0, threads),
        Copy("dma", os_.whole(), at(out, (mul(bm, tile_m), mul(bn, wn)), (tile_m, wn)),
             plan=copy_plan(arch, facts, threads, store=True)),
    )  # fmt: skip
    return Kernel("matmul_wgmma_2group" if groups == 2 else "matmul_wgmma", ps, (Parallel((bm, bn), body, BLOCK),))


def listing2(arch: str = "sm_90a", facts: ArrayFacts = ALIGNED) -> Kernel:
    return listing3(arch, facts, groups=1, acc="f16")
