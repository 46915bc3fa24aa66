"""The plans that can compute a product: every tile, ring, split and cluster worth a try; and the choice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilemma.arithmetic.integers import cdiv
from tilemma.ops import batch_plans, few_rounds, few_rows, hundreds, long_k, middle, unaligned_batches
from tilemma.ops.epilogue import BLOCK
from tilemma.ops.operand_layouts import aligned, by_columns, packed, packs, transposed, transposed_product
from tilemma.ops.plan import (
    CACHE,
    EVENTS,
    MOST_FLIGHT,
    RESERVED,
    SPLITS,
    STAGING,
    Estimate,
    Hardware,
    Plan,
    estimates,
    hardware,
    outgrows_cache,
    straddling,
)
from tilemma.ops.problem import Problem
from tilemma.ops.registers import (
    COLUMNS_OF_THREE,
    WIDEST_FINISHED,
    fits_registers,
    fits_registers_of_tiles,
    promotable,
)
from tilemma.ops.requests import LINE, parted
from tilemma.ops.resident_plans import resident_plans

# Operands of so many bytes in sum are read from memory repeatedly.
LARGE = 400 << 20
LARGEST_RING = 8
# The same of few rows in several tiles: 114x4608x7424 took 23.3 us with 8 stages, 21.3 us with 10, and
# 121x3712x6528 18.2 us with 8 and 16.7 us with 13.
DEEPEST_RING = 13
# Stages that few rows have in any case.
LEAST_RING = 5
# Columns of tiles of all columns.
WIDEST_FITTED = 248
# More columns and the pieces of a store do not fit beside the sums of 128 rows.
WIDEST_OF_256 = 192
# Tiles that are chosen for the number of them: rows and warpgroups, columns, in how many numbers of rounds each,
# and how many rounds at most.
BALANCED = ((192, 3), (128, 2), (64, 1))
WIDEST, NARROWEST_BALANCED, BALANCED_ROUNDS, MOST_ROUNDS = 256, 72, 3, 10
# Results with so many rows or columns have tiles of their own.
FEW_ROWS = 256
# Columns of a tile that has a half or a third of all of them.
NARROWEST_PART = 40
# Stages, at least, of products of few rows in which every SM has so many tasks; the tasks of each SM, the blocks
# that share the rows, and the parts of K.
LEAST_WAVE_RING = 3
# Tiles that have a part of all columns and leave as whole rows: parts, at most, columns, at least, and at most by
# the rows of a tile.
MOST_PARTS, NARROWEST_ROW = 6, 72
MOST_IN_ROWS = {64: WIDEST_FITTED, 128: WIDEST_FITTED, 192: 200, 256: 184}
# Rows of zeros that are copied to those of a ring's slots that are not loaded.
ZEROS = 8
WAVES = ((1, 1, 1), (1, 2, 1), (4, 1, 1), (2, 1, 2), (2, 1, 3))
# Five were 1 to 3 % slower than four.
PROMOTED_RING = 4
# Blocks of a cluster wait for each other's slots.  Single products of small and middle size took 2 to 4 % less
# time with deep rings.
SHARED_RING = 5
# Results of 4 bytes gained 2 to 10 % by tensor stores, but nothing where a block has one tile of 64 rows.
TENSOR_STORE_ROWS = {2: 64, 4: 128}
# Columns of a tile whose transpose is staged at a time, and the bytes that the compiler may leave free then.
TURNED, SPARE = 32, 1024
# Products of so many rows and columns whose transpose is computed have whole tiles by single blocks only.
LEAST_TURNED = 1024
# Tile rows that blocks walk together.
RASTER = 16

# (tile, warpgroups) of the pipelined kernel for 16-bit operands, and of the kernel for any strides.  Steps of
# 8-bit operands have as many bytes along K.
PIPELINED = (
    ((256, 192, 64), 2),
    ((256, 160, 64), 2),
    ((192, 192, 64), 3),
    ((192, 160, 64), 3),
    ((192, 128, 64), 3),
    ((128, 256, 64), 2),
    ((256, 128, 64), 2),
    ((128, 224, 64), 2),
    ((128, 192, 64), 2),
    ((128, 160, 64), 2),
    ((128, 128, 64), 2),
    ((64, 256, 64), 1),
    ((64, 224, 64), 1),
    ((64, 192, 64), 1),
    ((64, 160, 64), 1),
    ((64, 128, 64), 1),
    ((64, 64, 64), 1),
    ((128, 64, 64), 2),
    ((64, 32, 128), 1),
    ((64, 16, 128), 1),
)
# Blocks of a cluster along M and N, and whether they share.  Products in clusters, of groups and of promoted sums
# are computed by hand: their plain text was slower, or has not been timed.  So are products of copies in aligned
# rows: the compiler does not pipeline their plain text, because the extents are no multiples of 16 bytes.
CLUSTERS = (
    ((1, 1), True), ((2, 1), True), ((1, 2), True), ((2, 1), False), ((1, 2), False), ((3, 1), False),
    ((1, 3), False),
)  # fmt: skip
TILES = (((128, 128, 64), 2), ((64, 64, 64), 1))
# Tiles of f64, which copies ahead: the last wave counts, because a tile takes long.  Steps of 32 are 2 to 4 %
# faster than those of 16.
TILES_F64 = (((128, 128, 32), 2), ((128, 96, 32), 2), ((128, 64, 32), 2), ((64, 64, 32), 1))
PARTS = tuple(sorted({*SPLITS, 5, 7, 9, 10, 11, 14}))
# Parts are for SMs without a task: no more parts than so many for each.
SPLIT_ROUNDS = 2


def tile_for(problem: Problem, tile: tuple[int, int, int]) -> tuple[int, int, int]:
    """``tile``, of 16-bit elements, for the operands: as many bytes along K, or the `BLOCK` that is promoted."""
    m, n, k = tile
    return m, n, BLOCK if problem.promote else k * 2 // problem.lhs.dtype.bytes


def candidates(problem: Problem, on: Hardware) -> Iterator[Plan]:
    """The plans that can compute ``problem``, good or bad."""
    few = few_rows.applies(problem)
    for plan in _candidates(problem, on):
        yield few_rows.settled(problem, plan) if few else plan


def _candidates(problem: Problem, on: Hardware) -> Iterator[Plan]:
    m, _, k = problem.shape
    known = on.pipelines and unaligned_batches.applies(problem)
    yield from unaligned_batches.plans(problem) if known else ()
    for tile, groups in TILES if not known else ():
        if not fits_registers_of_tiles(problem, tile):
            continue
        if not problem.promote or tile[1] == 64:
            yield Plan("tiles", tile_for(problem, tile), groups)
        if not problem.on_tensor_cores and problem.lhs.dtype.bits == 32:
            yield Plan("ahead", tile_for(problem, tile), groups)
    for tile, groups in TILES_F64 if problem.lhs.dtype.name == "f64" else ():
        # Three stages fit, or the steps are shorter.
        depth = tile[2] if 24 * (tile[0] + tile[1]) * tile[2] <= on.shared else tile[2] // 2
        if fits_registers_of_tiles(problem, tile):
            yield Plan("ahead", (*tile[:2], depth), groups)
    if not on.pipelines or k == 0 or not problem.on_tensor_cores:
        return
    yield from resident_plans(problem, on)
    if long_k.applies(problem) and not packed(problem):
        yield from _parts(problem, False, on)
        yield from _parts(transposed_product(problem), True, on)
        return
    for swap in (False, True):
        many = swap and m > FEW_ROWS and not problem.grouped
        alone = many and problem.batch == 1
        if alone and not _takes_turned(problem):
            break
        large = alone and min(problem.shape[:2]) >= LEAST_TURNED
        p = transposed_product(problem) if swap else problem
        ways = list(packs(p))
        if ways[0] and (many or len(problem.outer) != 1):
            continue
        size = p.out.dtype.bytes
        # Tensor stores write whole 16-byte units, over the edge too.
        whole = p.out.shape[2] * size % 16 == 0 and p.grouped != "columns"
        by_tma = size in TENSOR_STORE_ROWS and whole and aligned(p.out) and not swap
        # Warps write other rows of narrow elements whole from shared memory, where a fragment's lanes would write
        # parts of sectors: 433x962x318 took 1.09 times as long, 3713x2011x521 1.75 times.
        by_copy = size == 2 and not (by_tma or swap or p.grouped or p.promote) and p.out.strides[2] == 1
        turned = swap and _turns(p)
        few = few_rows.applies(p)
        if not (swap or ways[0] or p.grouped or p.promote or len(problem.outer) != 1):
            yield from _waves(p, on)
            yield from _of_few_rows(p, False, on) if few and by_tma and size == 2 else ()
            if by_tma and size == 2:
                yield from _of_row_boxes(p, on)
        if few and turned and not ways[0]:
            yield from _of_few_rows(p, True, on)
        if not ways[0] and (turned or (by_tma and not (few or swap))):
            yield from _sharing(p, swap, on)
        usual = dict.fromkeys((*PIPELINED, *_fitted(p, 8 if turned else 16)))
        middling = (middle.applies(p) or few_rounds.applies(p)) and not ways[0]
        single = dict.fromkeys(middle.tiles(p, on.sms) if middling else ())
        for wide, groups in dict.fromkeys((*usual, *_balanced(p, on.sms), *single)):
            tile = tile_for(problem, wide)
            if not promotable(p, tile, groups):
                continue
            # Boxes of a store by TMA are half a swizzle wide, or whole ones.
            boxes = by_tma and (tile[1] % (LINE // size) == 0 or tile[1] > LINE // size)
            store = "copy" if by_copy else "direct"
            store = "tma" if turned or (boxes and tile[0] >= TENSOR_STORE_ROWS[size]) else store
            whole_boxes = tile[1] % 64 == 0 or p.rhs_major == "row"
            if not whole_boxes or batch_plans.long_steps(p, tile, on):
                continue
            tiles = p.batch * cdiv(p.shape[0], tile[0]) * cdiv(p.shape[1], tile[1])
            parts = 1 if len(problem.outer) != 1 or p.grouped else cdiv(k, tile[2]) // 4
            # Registers spill.
            if alone and tile[1] > WIDEST_FINISHED and "vector" in (p.left.kind, p.right.kind):
                continue
            whole_k = large or (middling and (wide, groups) not in usual)
            for split in (1,) if whole_k else _splits(tiles, parts, on.sms):
                how = store if split == 1 else "direct"
                stages = fitting_stages(p, tile, groups, how, on)
                if stages < 2 or not fits_registers(p, wide, groups, how, split):
                    continue
                back = split == 1 and not p.grouped and _alternates(p)
                plan = Plan("pipelined", tile, groups, stages, RASTER, on.sms, split, how, swap, back=back)
                for cluster, share in (*CLUSTERS, *batch_plans.clusters(p, tile, how)):
                    grid = on.resident(cluster[0] * cluster[1]) // (cluster[0] * cluster[1])
                    common = (wide, groups) in usual or (wide, groups) in single
                    if cluster != (1, 1) and (p.grouped or large or not common):
                        continue
                    if 3 in cluster and not few:
                        continue
                    if grid and fits_cluster(p, tile, cluster, share):
                        ring = _ring(p, plan, on)
                        if share and cluster != (1, 1) and not middling:
                            ring = min(ring, _shared_ring(p, tile, cluster, on))
                        rows = RASTER // cluster[0] if plan.back or outgrows_cache(p, plan, cluster) else RASTER
                        hand = p.promote or bool(p.grouped) or cluster != (1, 1) or how == "copy"
                        turns = split == 1 and batch_plans.takes_turns(p, tile, cluster, grid)
                        for pack in ways:
                            mine = turns and not pack
                            yield replace(
                                plan, grid=grid, cluster=cluster, share=share, stages=ring, raster=rows,
                                by_hand=hand or mine or bool(pack), turns=mine, kept=mine, pack=pack,
                            )  # fmt: skip


def _parts(p: Problem, swap: bool, on: Hardware) -> Iterator[Plan]:
    """The plans for a long K: parts of it for all SMs."""
    for tile, groups, split in long_k.tiles(p, on):
        stages = fitting_stages(p, tile, groups, "direct", on)
        if stages >= LEAST_WAVE_RING and fits_registers(p, tile, groups, "direct", split):
            yield Plan("pipelined", tile, groups, stages, RASTER, on.sms, split, "direct", swap)


def _waves(p: Problem, on: Hardware) -> Iterator[Plan]:
    """The plans for few rows in which every SM has one or two tasks: tiles of all rows, as wide as that takes.

    Rows of a tile that the operand does not have are not loaded: TMA would take its time to fill them.
    """
    (m, n, k), size = p.shape, p.out.dtype.bytes
    by_tma = size == 2 and n * size % 16 == 0 and aligned(p.out)
    if not by_tma or p.batch != 1 or m > FEW_ROWS or "col" in (p.lhs_major, p.rhs_major):
        return
    few = few_rows.applies(p)
    rows = 64 * cdiv(m, 64)
    groups = min(rows // 64, 3) if rows < FEW_ROWS else 2
    for beside, waves, split in WAVES:
        resident = on.resident(beside)
        columns = 8 * cdiv(cdiv(n * split, waves * resident), 8)
        for depth in (128, 64):
            wide = rows, columns, depth
            tile = tile_for(p, wide)
            store = "tma" if split == 1 else "direct"
            stages = fitting_stages(p, tile, groups, store, on, zeros=ZEROS)
            deepest = fitting_stages(p, tile, groups, store, on, DEEPEST_RING, ZEROS) if few else stages
            widest = WIDEST_OF_256 if rows > 192 else WIDEST
            if not NARROWEST_PART <= columns <= widest or n <= columns * (beside - 1) or stages < LEAST_WAVE_RING:
                continue
            if cdiv(k, tile[2]) < 4 * split or not fits_registers(p, wide, groups, store, split):
                continue
            loaded = 8 * cdiv(m, 8)
            for ring in dict.fromkeys((stages, deepest)):
                yield Plan(
                    "pipelined", tile, groups, ring, RASTER, resident // beside, split, store,
                    cluster=(1, beside), by_hand=True, loaded=loaded if loaded < rows and tile[2] <= LINE else 0,
                )  # fmt: skip


def _of_few_rows(p: Problem, swap: bool, on: Hardware) -> Iterator[Plan]:
    """The plans for few rows in clusters, or placed in order, and with as many weights for each SM.  The rings are
    deep."""
    for x in few_rows.tiles(p, swap, on):
        store, zeros = ("direct", ZEROS) if x.loaded else ("tma", 0)
        tile, least = tile_for(p, x.shape), LEAST_RING if swap and x.share and not x.ordered else LEAST_WAVE_RING
        stages = fitting_stages(p, tile, x.groups, store, on, DEEPEST_RING, zeros)
        if stages >= least and fits_registers(p, x.shape, x.groups, store, 1):
            size = x.cluster[0] * x.cluster[1]
            plan = Plan(
                "pipelined", tile, x.groups, stages, grid=on.resident(size) // size, store=store, swap=swap
            )
            plan = replace(plan, cluster=x.cluster, share=x.share, loaded=x.loaded, by_hand=True)
            # Blocks in order go through the tiles of the rows first.
            yield replace(plan, ordered=x.ordered, raster=1 if x.ordered and swap else RASTER)


def _sharing(p: Problem, swap: bool, on: Hardware) -> Iterator[Plan]:
    """The plans for rows that start within sectors, in clusters that share tiles."""
    for tile, groups, cluster in middle.sharing(p, on, hundreds.applies(p) and few_rounds.within_lines(p)):
        stages, size = fitting_stages(p, tile, groups, "tma", on), cluster[0] * cluster[1]
        if stages >= LEAST_WAVE_RING and fits_registers(p, tile, groups, "tma", 1):
            plan = Plan(
                "pipelined", tile, groups, stages, RASTER, on.resident(size) // size, store="tma", swap=swap
            )
            yield replace(plan, cluster=cluster, by_hand=True)


def _of_row_boxes(p: Problem, on: Hardware) -> Iterator[Plan]:
    """The plans for batches whose results have rows that start within lines: the rows of a tile leave as a whole,
    because each box of a part of them would write parts of two lines.

    Of an odd number of 16 bytes: eight rows start in different banks.  wgmma does not read so many columns of an
    rhs whose columns are contiguous.
    """
    n = p.shape[1]
    if p.batch == 1 or p.acc == "s32" or p.rhs_major == "col" or straddling(p.out, False) == 1:
        return
    found = (cdiv(cdiv(n, parts), 8) * 8 for parts in range(1, MOST_PARTS + 1))
    for columns in dict.fromkeys(x + 8 * (x % 16 == 0) for x in found):
        if not NARROWEST_ROW <= columns <= WIDEST_FITTED:
            continue
        for rows, groups in ((64, 1), (128, 2), (192, 3), (256, 2)):
            wide = rows, columns, 64
            tile = tile_for(p, wide)
            stages = fitting_stages(p, tile, groups, "rows", on)
            if stages < 2 or not fits_registers(p, wide, groups, "rows", 1) or columns > MOST_IN_ROWS[rows]:
                continue
            plan = Plan("pipelined", tile, groups, stages, RASTER, on.sms, 1, "rows")
            yield batch_plans.in_turns(p, plan)
            if rows > 64 and n > columns:
                ring = min(stages, SHARED_RING)
                pair = replace(plan, grid=on.sms // 2, cluster=(1, 2), stages=ring, by_hand=True)
                yield batch_plans.in_turns(p, pair)


def fitting_stages(
    p: Problem, tile: tuple[int, int, int], groups: int, store: str, on: Hardware, deepest: int = LARGEST_RING,
    zeros: int = 0,
) -> int:  # fmt: skip
    """The stages that shared memory has room for beside so many rows of ``zeros``, up to ``deepest`` or more."""
    staged = tile[0] * tile[1] * p.out.dtype.bytes
    staging = {"tma": min(staged, STAGING), "copy": staged, "rows": staged + SPARE}.get(store, 0)
    if store == "tma" and by_columns(p):
        staging = min(staged, TURNED * tile[0] * p.out.dtype.bytes) + SPARE
    room = on.shared - _reserved(p, tile, groups) - staging - zeros * tile[2] * p.lhs.dtype.bytes
    # Tiles that share weights are small.
    apart = few_rows.applies(p) and min(cdiv(p.shape[0], tile[0]), cdiv(p.shape[1], tile[1])) > 1
    most = PROMOTED_RING if p.promote else DEEPEST_RING if apart else deepest
    return min(most, room // _stage(p, tile))


def _turns(p: Problem) -> bool:
    """Whether the transpose of a tile of the transposed product can be made on its way through shared memory."""
    size = p.out.dtype.bytes
    whole = size == 2 and p.out.shape[1] * size % 16 == 0 and aligned(transposed(p.out))
    return whole and not p.grouped and p.epilogue.addend != "out"


def _takes_turned(p: Problem) -> bool:
    """Whether tiles of the transposed product are worth a try: its columns are the rows of the result, which are
    then divided in steps of 8, not of 64, to fill the last round, or into larger tiles.

    3456x1536x5248 took 81.8 us with tiles of 192x112, 75.3 us with 160x256.  Integers and f32 have not been timed,
    nor epilogues of larger products; with silu registers spill.
    """
    m, n, _ = p.shape
    timed = p.acc != "s32" and p.lhs.dtype.bits <= 16 and p.batch * len(p.outer) == 1
    ends = p.epilogue.plain or (min(m, n) < LEAST_TURNED and p.epilogue.activation != "silu")
    timed = timed and ends and (min(m, n) > FEW_ROWS or middle.applies(p))
    return timed and not p.promote and _turns(transposed_product(p))


def _splits(tiles: int, parts: int, sms: int) -> list[int]:
    """The numbers of parts of K worth a try, up to ``parts``: 1, and those that give most SMs one or two tasks."""
    found = [x for x in PARTS if x == 1 or (x <= parts and tiles * x <= SPLIT_ROUNDS * sms)]
    return [x for x in found if x in (1, found[-1]) or 3 * tiles * x >= sms]


def _fitted(p: Problem, unit: int) -> Iterator[tuple[tuple[int, int, int], int]]:
    """Tiles of all columns, or of a half or a third of them, where these are few: TMA takes its time for each row
    beyond the edge, too.  More than 32 are in multiples of ``unit``."""
    if p.grouped:
        return
    for parts in (1, 2, 3, 4) if batch_plans.applies(p) else (1, 2, 3):
        columns = cdiv(max(p.shape[1], 1), parts)
        wide = cdiv(columns, 8) * 8 if columns <= 32 else cdiv(columns, unit) * unit
        if wide <= WIDEST_FITTED and (parts == 1 or wide >= NARROWEST_PART):
            yield from (((64, wide, 128), 1), ((64, wide, 64), 1), ((128, wide, 64), 2))
            yield ((192, wide, 64), 3)
            if wide <= WIDEST_OF_256:
                yield ((256, wide, 64), 2)


def _balanced(p: Problem, sms: int) -> Iterator[tuple[tuple[int, int, int], int]]:
    """Tiles whose number is just below a multiple of ``sms``: the last of a few rounds leaves few SMs out."""
    if p.grouped or p.promote or p.batch * len(p.outer) != 1 or min(p.shape[:2]) <= FEW_ROWS:
        return
    for rows, groups in BALANCED:
        widest = COLUMNS_OF_THREE if groups == 3 else WIDEST
        down = cdiv(p.shape[0], rows)
        first = cdiv(down * max(1, p.shape[1] // widest), sms)
        for rounds in range(first, min(first + BALANCED_ROUNDS, MOST_ROUNDS + 1)):
            columns = cdiv(p.shape[1], max(1, rounds * sms // down))
            # wgmma of integers has no odd multiples of 8.
            for unit in (16,) if p.acc == "s32" else (8, 16):
                wide = cdiv(columns, unit) * unit
                if NARROWEST_BALANCED <= wide <= widest:
                    yield (rows, wide, 64), groups


def _ring(p: Problem, plan: Plan, on: Hardware) -> int:
    """The stages of ``plan``, or as many of them as may be on their way in the transposed product of few rows.

    Groups of few rows took 2 % more time with fewer.
    """
    (m, n, _), (rows, columns, depth) = p.shape, plan.tile
    if not plan.swap or p.grouped:
        return plan.stages
    beside = cdiv(n, columns)
    working = max(1, min(on.sms, cdiv(m, rows) * beside * plan.split * p.batch))
    # Tiles beside each other read the same weights.  The few rows come from the L2 cache: they count half.
    step = working * (rows / beside + columns / 2) * depth * p.lhs.dtype.bytes
    return min(plan.stages, max(LEAST_RING, int(MOST_FLIGHT // step)))


def _shared_ring(p: Problem, tile: tuple[int, int, int], cluster: tuple[int, int], on: Hardware) -> int:
    """The stages, at most, of blocks that share: `SHARED_RING`, and of batches as many as may be on their way.

    1202x56x128x944 took 125 us with five stages of tiles of 64x64 in pairs, 114 us with eight.
    """
    if not batch_plans.applies(p):
        return SHARED_RING
    step = on.sms * (tile[0] / cluster[1] + tile[1] / cluster[0]) * tile[2] * p.lhs.dtype.bytes
    return max(SHARED_RING, int(MOST_FLIGHT // step))


def _stage(p: Problem, tile: tuple[int, int, int]) -> int:
    """Bytes of a stage: of both operands, and of the scales that come with them."""
    scales = 0
    for scale, extent, axis in ((p.left, tile[0], "rows"), (p.right, tile[1], "columns")):
        if scale.kind == "steps":
            scales += 4 * (extent + (LINE // 4 if p.grouped == axis else 0))
        elif scale.kind == "blocks":
            scales += LINE
    return (tile[0] + tile[1]) * tile[2] * p.lhs.dtype.bytes + scales


def _reserved(p: Problem, tile: tuple[int, int, int], groups: int) -> int:
    """Bytes of shared memory besides the ring and the staging buffers: the events, each warpgroup's bias and
    scales of columns, and the ends of the groups."""
    bias = p.bias.dtype.bytes if p.bias is not None and p.epilogue.bias == "columns" else 0
    each = groups * tile[1] * (bias + 4 * (p.right.kind == "vector"))
    return min(EVENTS + each, RESERVED) + (4 * p.offsets.shape[0] if p.offsets is not None else 0)


def _alternates(p: Problem) -> bool:
    """Whether power is the limit, because reads of L2 and memory take it from the tensor cores: both operands much
    larger than the cache, with rows that start on cache lines.

    Traversal in alternating directions was 5 % and 3 % faster in the steady state at 537 MB and 604 MB of
    operands, and single launches as fast; at 151 MB and 268 MB, where the steady state gained too, those seemed
    slower.
    """
    m, n, k = p.shape
    if straddling(p.lhs, False) > 1 or straddling(p.rhs, False) > 1:
        return False
    left, right = m * k * p.lhs.dtype.bytes, n * k * p.lhs.dtype.bytes
    return min(left, right) > 2 * CACHE and left + right > LARGE


def fits_cluster(p: Problem, tile: tuple[int, int, int], cluster: tuple[int, int], share: bool) -> bool:
    """Whether every block of ``cluster`` has a tile, and the blocks have data to share or to read from L2
    together."""
    (m, n, _), (rows, columns, depth), (high, wide) = p.shape, tile, cluster
    if m <= rows * (high - 1) or n <= columns * (wide - 1):
        return False
    if not share:
        # All blocks that read the same part of a large operand, and of larger clusters every block has a tile.
        if high * wide > 2 and (cdiv(m, rows) % high or cdiv(n, columns) % wide):
            return False
        return (high > 1 and m <= rows * high) or (wide > 1 and n <= columns * wide)
    left = rows if p.lhs_major == "row" else depth
    right = columns if p.rhs_major == "row" else depth
    return (wide == 1 or parted(left, wide)) and (high == 1 or parted(right, high))


def ranked(problem: Problem, on: Hardware) -> list[Estimate]:
    """All candidates, `batch_plans.from_queues` and `few_rounds.inside`, the predicted best first; ties go to the
    earlier one."""
    found = sorted(estimates(problem, candidates(problem, on), on), key=lambda e: e.seconds)
    more = batch_plans.from_queues(problem, [e.plan for e in found]) or few_rounds.inside(problem, found)
    return sorted((*found, *estimates(problem, more, on)), key=lambda e: e.seconds) if more else found


def _padded(extent: int, largest: int) -> int:
    """The smallest multiple of 64 that holds ``extent``, up to ``largest``."""
    return min(cdiv(max(extent, 1), 64) * 64, largest)


def choose(problem: Problem) -> Plan:
    """The plan for ``problem`` on its device."""
    m, n, k = problem.shape
    device = problem.out.device
    if device[0] == "cpu":
        # The reference works tile by tile: few large ones are fastest.  A tile has one scale of a block.
        rows, columns = (BLOCK if x.kind == "blocks" else 512 for x in (problem.left, problem.right))
        depth = BLOCK if problem.promote else _padded(k, 512)
        return Plan("tiles", (_padded(m, rows), _padded(n, columns), depth), 1)
    return ranked(problem, hardware(device))[0].plan
