"""The cost model of automatic pipelining: stages, clusters and persistent blocks, from shared memory, occupancy
and register pressure."""

from __future__ import annotations

from math import log2, sqrt
from typing import Literal, TypeAlias

from tilemma.ir.expr import Expr, binary, mod
from tilemma.ir.types import WARPGROUP
from tilemma.records import record
from tilemma.targets.ptx.target import KB, MOST_REGISTERS, Target

# What loops with copies do: see `_LEAST_RESULT`.
Work: TypeAlias = Literal["products", "tiles", "elements"]
# More stages than this hide no more latency: measured on an H200, 4 to 6 stages of 32 to 48 KB saturate it.
_MOST_STAGES = 8
# The elements of a block's result from which one persistent block on a multiprocessor is faster than several
# synchronous ones, which work while one of them waits, by what its loops do besides copies: products of the tiles
# as they are; work on register tiles, too; or work on elements of the copied tiles, conversions, scales.  Measured
# on an H200 at 4096^3: plain products take 346 us instead of 405 with tiles of 64x64, 240 us instead of 351 with
# 64x128; two layers with relu between them 225 us instead of 945, but sums that are scaled 512 us instead of 342,
# and weights that threads convert 5506 us instead of 2267.
_LEAST_RESULT = {"products": 64 * 64, "tiles": 64 * 128, "elements": 128 * 128}
# Those from which a block whose copies TMA cannot make copies ahead by cp.async, and in how many stages.  At
# 4096x4096x4092: with 128x128 348 us instead of 384, with 128x256 343 us instead of 476, in three stages 366 us.
_LEAST_ALONE, STAGES_BESIDE_WGMMA = 128 * 128, 2
# Registers of a consumer's thread that hold no accumulator.
_OTHER_REGISTERS = 24
# Waves of blocks after which a last one that is half empty does not count, and the least steps of joined blocks:
# at 4096x4096x256 they lost 6 % in 4 steps, and with 16 they gain.
_MANY_WAVES, _FEW_STEPS = 8, 16
# The most threads of a joined block: two warps for each scheduler.
_MOST_JOINED = 256
# Bytes for events and for the alignment of swizzled tiles.
_RESERVE = 2048
# Blocks that work at a time: the multiprocessors of an H100 or H200 (SXM).
MULTIPROCESSORS = 132
# Their shared memory in bytes, and the part of each block that the system takes (CUDA C++ Programming Guide,
# "Compute Capabilities").  Code for older targets is measured there too.
_SHARED_PER_SM, _SHARED_OF_SYSTEM = 228 * KB, KB
# Rows of tiles in a band of the raster: neighbouring blocks share operands in the L2 cache.  At 8192^3 bands of 4
# to 16 rows of pairs are within 1 % of each other.
RASTER = 8
# Pieces of a staged result in shared memory: two, so that one is in flight while the next is written, or one where
# two would leave fewer stages than hide the latency of the copies.
STAGING_PIECES, ENOUGH_STAGES = (2, 1), 4


@record
class Choice:
    """The decisions for a block: ``stages`` of each ring; ``cluster``: blocks that share tiles by multicast;
    ``persistent``: so many blocks compute several tiles, or 0; ``reverse``: every other pass goes backward along
    K."""

    stages: int
    cluster: int
    persistent: int
    reverse: bool


def is_profitable(result: int, work: Work) -> bool:
    """Whether to divide a block into roles that computes ``result`` elements, where the program does not say;
    ``work``: what its loops do."""
    return result >= _LEAST_RESULT[work]


def waits_alone(result: int) -> bool:
    """Whether a block of warpgroups that computes ``result`` elements is faster where it copies ahead itself."""
    return result >= _LEAST_ALONE


def registers_suffice(arch: str, groups: int, result: int) -> bool:
    """Register pressure: whether ``groups`` consumers and a producer can hold ``result`` accumulators of 32 bits.

    ptxas compiles a block of four warpgroups or more for its registers at the start, whatever setmaxnreg adds.
    """
    threads = WARPGROUP.threads * (groups + 1)
    most = MOST_REGISTERS if groups < 3 else Target.of(arch).registers_per_sm // threads
    return result // (WARPGROUP.threads * groups) + _OTHER_REGISTERS <= most


def resident_blocks(arch: str, registers: int, threads: int) -> int:
    """The blocks of ``threads`` with ``registers`` each for which a multiprocessor has registers and room."""
    target = Target.of(arch)
    return min(target.registers_per_sm // (registers * threads), target.max_blocks_per_sm)


def rows_of_bands(blocks: int, by_rows: int, by_columns: int) -> int:
    """Rows of tiles in a band of a grid, where ``blocks`` work at a time on each multiprocessor, and each reads
    ``by_rows`` bytes for its row and ``by_columns`` for its column: a power of two.

    R rows of n blocks read R * by_rows + n / R * by_columns bytes: the least where both terms are equal.  Measured
    on an H200 at 4096^3 and 8192^3: 16 rows are 1 % faster than 8 for tiles of 128x256, 8 rows 0.5 % faster than
    16 for 256x128.
    """
    best = sqrt(max(1, blocks) * MULTIPROCESSORS * by_columns / by_rows)
    return int(2 ** min(max(round(log2(best)), 0), 6))


def shared_of_each(blocks: int) -> int:
    """The shared memory of each of ``blocks`` on a multiprocessor, in bytes."""
    return _SHARED_PER_SM // blocks - _SHARED_OF_SYSTEM


def joined_is_faster(arch: str, registers: int, threads: int, tiles: Expr, steps: Expr | None) -> Expr | None:
    """Whether blocks that each compute two of ``tiles`` in ``steps`` (None: not known) are faster than blocks of
    ``threads`` with one; None if never.

    They read fewer bytes, and save some 4 % of each step (measured on an H200, as are the other numbers).  A
    multiprocessor has to hold as many of their warps, and to have work: after the last full wave, so many tiles
    have to be left that it has two of them, unless there are many waves.  With few steps the first copies and the
    last stores of a tile count more, during which two blocks multiply in turn.
    """
    apart, joined = (resident_blocks(arch, registers, n) for n in (threads, 2 * threads))
    if not joined or 2 * joined < apart or 2 * threads > _MOST_JOINED:
        return None
    wave = apart * MULTIPROCESSORS
    left = mod(tiles, wave)
    full = binary("lor", binary("eq", left, 0), binary("lt", wave // 2, left))
    many = binary("lt", _MANY_WAVES * wave, tiles)
    busy = binary("land", binary("lt", wave // 2, tiles), binary("lor", full, many))
    return busy if steps is None else binary("land", busy, binary("le", _FEW_STEPS, steps))


def stages_of_cp_async(arch: str, registers: int, threads: int, stage_bytes: int, other_bytes: int) -> int:
    """The stages of a loop that multiplies by mma.sync, in blocks of ``threads`` with ``registers`` each, for the
    best occupancy.

    Blocks that share a multiprocessor multiply while another one waits: a third stage is worth less than a second
    block, and only taken where it leaves room for it.  Measured on an H200 at 8192^3 with tiles of 128x128x64: 405
    TFLOP/s with two stages and 357 with three, where two blocks of four warps fit; 297 and 371 where one block of
    eight warps does.  Three stages in each of two blocks are 1 to 1.5 % faster than two.
    """
    blocks = resident_blocks(arch, registers, threads)
    return 2 if blocks > 1 and other_bytes + 3 * stage_bytes > shared_of_each(blocks) else 3


def fits(arch: str, shared_bytes: int) -> bool:
    """Whether a block with events and ``shared_bytes`` of tiles and other buffers has enough shared memory."""
    return shared_bytes + _RESERVE <= Target.of(arch).shared_limit


def most_stages(arch: str, stage_bytes: int, other_bytes: int) -> int:
    """The stages that fit, where one takes ``stage_bytes`` and the rest of the block ``other_bytes``."""
    room = Target.of(arch).shared_limit - other_bytes - _RESERVE
    return max(0, min(_MOST_STAGES, room // max(1, stage_bytes)))
