"""Two warpgroups alternate, tile by tile: one stores its result while the other multiplies, the twin of
examples/co/pingpong.co.

The steps of all tiles of a pair of blocks are numbered through: `order` says which slot of the ring a step takes,
and the generation of the slot's events to wait for, whichever warpgroup uses it."""

import tilemma as tm
from tilemma import cdiv, event, foreach, inthreads, mma, parallel, select, shared, tma, trigger, wait


@tm.kernel
def pingpong(
    lhs: tm.Global["T", "M", "K"],
    rhs: tm.Global["T", "N", "K"],
    output: tm.Global["T", "M", "N"],
    *,
    T="f16",
    TILE_M=64,
    TILE_N=256,
    TILE_K=64,
    STAGES=4,
    CLUSTER=2,
    RASTER=8,
    GRID=66,
):
    (M, K), N = lhs.shape, rhs.shape[0]
    tiles_m, tiles_n, steps = cdiv(M, CLUSTER * TILE_M), cdiv(N, TILE_N), cdiv(K, TILE_K)
    for pair in parallel(GRID, level="cluster"):
        for rank in parallel(CLUSTER, level="block"):
            full = event(STAGES)
            empty = event(STAGES, ready=True, threads=128)
            go = event(2, threads=128)
            lhs_s = shared(T, TILE_M, TILE_K, copies=STAGES)
            rhs_s = shared(T, TILE_N, TILE_K, copies=STAGES)
            output_s = shared(T, TILE_M, TILE_N, copies=2)
            for wg in parallel(3, level="group-4"):
                with inthreads(wg == 0, async_=True):
                    trigger(go[0])
                    for t in foreach(tiles_m * tiles_n, start=pair, step=GRID):
                        first = t // (RASTER * tiles_n) * RASTER
                        rows = select(first + RASTER > tiles_m, tiles_m % RASTER, RASTER)
                        m, n = first + t % (RASTER * tiles_n) % rows, t % (RASTER * tiles_n) // rows
                        done = t // GRID * steps
                        for order in foreach(done + steps, start=done):
                            wait(empty.at(order))
                            slot = order % STAGES
                            tma.copy(
                                lhs.subspan(TILE_M, TILE_K).at(m * CLUSTER + rank, order - done),
                                lhs_s[slot],
                                async_=full.at(order),
                            )
                            tma.copy(
                                rhs.subspan(TILE_N, TILE_K).at(n, order - done),
                                rhs_s[slot],
                                async_=full.at(order),
                                multicast=True,
                            )
                            trigger(full.at(order))
                with inthreads(wg >= 1, async_=True):
                    turn = wg % 2
                    for t in foreach(tiles_m * tiles_n, start=pair + turn * GRID, step=2 * GRID):
                        first = t // (RASTER * tiles_n) * RASTER
                        rows = select(first + RASTER > tiles_m, tiles_m % RASTER, RASTER)
                        m, n = first + t % (RASTER * tiles_n) % rows, t % (RASTER * tiles_n) // rows
                        mc = mma.fill(0.0, "f32")
                        wait(go[turn])
                        done = t // GRID * steps
                        for order in foreach(done + steps, start=done):
                            wait(full.at(order))
                            ma = mma.load(lhs_s[order % STAGES])
                            mb = mma.load(rhs_s[order % STAGES])
                            mma.row.row(mc, ma, mb)
                            mma.commit()
                            trigger(empty.at(order), cluster=True)
                        trigger(go[1 - turn])
                        mma.store(mc, output_s[turn])
                        tma.copy(output_s[turn], output.subspan(TILE_M, TILE_N).at(m * CLUSTER + rank, n))
