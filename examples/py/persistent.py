"""Blocks that stay: clusters of CLUSTER of the GRID blocks, which share each tile of rhs, work through the tiles
in bands of RASTER rows of clusters, the twin of examples/co/persistent.co.

As many clusters work as give every turn the same number of tiles. Every other band goes from right to left, and
every other turn from the end of K: what was read last is read again while the L2 cache has it."""

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
    tiles_m, tiles_n, steps = cdiv(M, CLUSTER * TILE_M), cdiv(N, TILE_N), cdiv(K, TILE_K)
    tiles = tm.math.max(tiles_m * tiles_n, 1)
    teams = cdiv(tiles, cdiv(tiles, GRID // CLUSTER))
    for team in parallel(teams, level="cluster"):
        for rank in parallel(CLUSTER, level="block"):
            full = event(STAGES)
            empty = event(STAGES)
            lhs_s = shared(T, TILE_M, TILE_K, copies=STAGES)
            rhs_s = shared(T, TILE_N, TILE_K, copies=STAGES)
            output_s = shared(T, TILE_M, TILE_N)
            for wg in parallel(CONSUMERS + 1, level="group-4"):
                with inthreads(wg == 0, async_=True):
                    slot = var(0)
                    for t in foreach(tiles_m * tiles_n, start=team, step=teams):
                        band, at = t // (RASTER * tiles_n), t % (RASTER * tiles_n)
                        rows = select((band + 1) * RASTER > tiles_m, tiles_m % RASTER, RASTER)
                        m = (band * RASTER + at % rows) * CLUSTER + rank
                        n = select(band % 2 == 1, tiles_n - 1 - at // rows, at // rows)
                        back = t // teams % 2
                        step = var(back * (steps - 1))
                        for k in foreach(steps):
                            wait(empty[slot])
                            tma.copy(
                                lhs.subspan(TILE_M, TILE_K).at(m, step),
                                lhs_s[slot],
                                async_=full[slot],
                            )
                            tma.copy(
                                rhs.subspan(TILE_N, TILE_K).at(n, step),
                                rhs_s[slot],
                                async_=full[slot],
                                multicast=True,
                            )
                            trigger(full[slot])
                            slot.set(select(slot == STAGES - 1, 0, slot + 1))
                            step += 1 - 2 * back
                with inthreads(wg >= 1, async_=True):
                    slot = var(0)
                    for i in foreach(STAGES):
                        trigger(empty[i], cluster=True)
                    for t in foreach(tiles_m * tiles_n, start=team, step=teams):
                        band, at = t // (RASTER * tiles_n), t % (RASTER * tiles_n)
                        rows = select((band + 1) * RASTER > tiles_m, tiles_m % RASTER, RASTER)
                        m = (band * RASTER + at % rows) * CLUSTER + rank
                        n = select(band % 2 == 1, tiles_n - 1 - at // rows, at // rows)
                        mc = mma.fill(0.0, "f32")
                        for k in foreach(steps):
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
                            output.subspan(WARP_M, TILE_N).at(m * CONSUMERS + wg - 1, n),
                        )
