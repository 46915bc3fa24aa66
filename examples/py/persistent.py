"""Blocks that stay: clusters of CLUSTER of the GRID blocks, which share each tile of rhs, work through the tiles
in groups of RASTER rows of clusters, the twin of examples/co/persistent.co."""

import tilemma as tm
from tilemma import cdiv, event, foreach, inthreads, mma, parallel, select, shared, tma, trigger, var, wait


@tm.kernel
def persistent(
    lhs: tm.Global["T", "M", "K"],
    rhs: tm.Global["T", "N", "K"],
    output: tm.Global["T", "M", "N"],
    *,
    T="f16",
    WARP_M=64,
    TILE_N=256,
    TILE_K=64,
    STAGES=4,
    CONSUMERS=2,
    CLUSTER=2,
    RASTER=8,
    GRID=132,
):
    (M, K), N = lhs.shape, rhs.shape[0]
    TILE_M = CONSUMERS * WARP_M
    tiles_m, tiles_n = cdiv(M, CLUSTER * TILE_M), cdiv(N, TILE_N)
    for team in parallel(GRID // CLUSTER, level="cluster"):
        for rank in parallel(CLUSTER, level="block"):
            full = event(STAGES)
            empty = event(STAGES)
            lhs_s = shared(T, TILE_M, TILE_K, copies=STAGES)
            rhs_s = shared(T, TILE_N, TILE_K, copies=STAGES)
            output_s = shared(T, TILE_M, TILE_N)
            for wg in parallel(CONSUMERS + 1, level="group-4"):
                with inthreads(wg == 0, async_=True):
                    slot = var(0)
                    for t in foreach(tiles_m * tiles_n, start=team, step=GRID // CLUSTER):
                        first = t // (RASTER * tiles_n) * RASTER
                        rows = select(first + RASTER > tiles_m, tiles_m % RASTER, RASTER)
                        m, n = first + t % (RASTER * tiles_n) % rows, t % (RASTER * tiles_n) // rows
                        for k in foreach(cdiv(K, TILE_K)):
                            wait(empty[slot])
                            tma.copy(
                                lhs.subspan(TILE_M, TILE_K).at(m * CLUSTER + rank, k),
                                lhs_s[slot],
                                async_=full[slot],
                            )
                            tma.copy(
                                rhs.subspan(TILE_N, TILE_K).at(n, k),
                                rhs_s[slot],
                                async_=full[slot],
                                multicast=True,
                            )
                            trigger(full[slot])
                            slot.set(select(slot == STAGES - 1, 0, slot + 1))
                with inthreads(wg >= 1, async_=True):
                    slot = var(0)
                    for i in foreach(STAGES):
                        trigger(empty[i], cluster=True)
                    for t in foreach(tiles_m * tiles_n, start=team, step=GRID // CLUSTER):
                        first = t // (RASTER * tiles_n) * RASTER
                        rows = select(first + RASTER > tiles_m, tiles_m % RASTER, RASTER)
                        m, n = first + t % (RASTER * tiles_n) % rows, t % (RASTER * tiles_n) // rows
                        mc = mma.fill(0.0, "f32")
                        for k in foreach(cdiv(K, TILE_K)):
                            wait(full[slot])
                            ma = mma.load(lhs_s[slot].subspan(WARP_M, TILE_K).at(wg - 1, 0))
                            mb = mma.load(rhs_s[slot])
                            mma.row.row(mc, ma, mb)
                            mma.commit()
                            trigger(empty[slot], cluster=True)
                            slot.set(select(slot == STAGES - 1, 0, slot + 1))
                        mma.store(mc, output_s.subspan(WARP_M, TILE_N).at(wg - 1, 0))
                        tma.copy(
                            output_s.subspan(WARP_M, TILE_N).at(wg - 1, 0),
                            output.subspan(WARP_M, TILE_N).at((m * CLUSTER + rank) * CONSUMERS + wg - 1, n),
                        )
