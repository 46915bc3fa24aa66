"""The cost model of automatic pipelining: stages, clusters and persistent blocks, from shared memory, occupancy
and register pressure."""

from __future__ import annotations

from tilemma.ir.types import WARPGROUP
from tilemma.records import record
from tilemma.targets.ptx.target import MOST_REGISTERS, Target

# More stages than this hide no more latency: measured on an H200, 4 to 6 stages of 32 to 48 KB saturate it.
_MOST_STAGES = 8
# The elements of a block's result from which one persistent block on a multiprocessor is faster than several
# synchronous ones: with smaller tiles, other blocks multiply while one waits for its copies.
_LEAST_RESULT = 128 * 128
# Registers of a consumer's thread that hold no accumulator.
_OTHER_REGISTERS = 24
# Bytes for events and for the alignment of swizzled tiles.
_RESERVE = 2048
# Blocks that work at a time: the multiprocessors of an H100 or H200 (SXM).
MULTIPROCESSORS = 132
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


def is_profitable(result: int) -> bool:
    """Whether to divide a block into roles that computes ``result`` elements, where the program does not say."""
    return result >= _LEAST_RESULT


def registers_suffice(arch: str, groups: int, result: int) -> bool:
    """Register pressure: whether ``groups`` consumers and a producer can hold ``result`` accumulators of 32 bits.

    ptxas compiles a block of four warpgroups or more for its registers at the start, whatever setmaxnreg adds.
    """
    threads = WARPGROUP.threads * (groups + 1)
    most = MOST_REGISTERS if groups < 3 else Target.of(arch).registers_per_sm // threads
    return result // (WARPGROUP.threads * groups) + _OTHER_REGISTERS <= most


def stages_of_cp_async(arch: str, registers: int, threads: int) -> int:
    """The stages of a loop that multiplies by mma.sync, in blocks of ``threads`` with ``registers`` each, for the
    best occupancy.

    Two blocks on a multiprocessor multiply while the other one waits: two stages are enough, and a third one would
    take the shared memory of the second block.  A block alone needs a third stage.  Measured on an H200 at 8192^3
    with tiles of 128x128x64: 405 TFLOP/s with two stages and 357 with three, where two blocks of four warps fit;
    297 and 371 where one block of eight warps does.
    """
    return 2 if 2 * registers * threads <= Target.of(arch).registers_per_sm else 3


def most_stages(arch: str, stage_bytes: int, other_bytes: int) -> int:
    """The stages that fit, where one takes ``stage_bytes`` and the rest of the block ``other_bytes``."""
    room = Target.of(arch).shared_limit - other_bytes - _RESERVE
    return max(0, min(_MOST_STAGES, room // max(1, stage_bytes)))
