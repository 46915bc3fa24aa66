"""What plans of batches have besides: a queue of tiles, and clusters of four."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Hardware, Plan
from tilemma.ops.problem import Problem

# The producer of a block may be so many tasks ahead of its consumers, and that of a cluster ahead of the others.
AHEAD = 2
# So many of the best plans of a batch have a variant whose blocks take tiles from a queue; their rounds, at least.
QUEUES, ROUNDS_OF_QUEUES = 24, 8
# Rounds from which on steps of 128 elements gained 2 % at most, and took up to 1.57 times as long.
ROUNDS_OF_SHORT_STEPS = 8
# Clusters of four blocks, the rows of their tiles, and the fewest columns: smaller tiles were slower so, but where
# four beside each other, of so many columns at least, are all tiles of a product.
FOURS, ROWS_OF_FOURS, NARROWEST_OF_FOURS = (((2, 2), True), ((4, 1), True), ((1, 4), True)), 128, 128
BESIDE, NARROWEST_BESIDE = (1, 4), 64


def applies(p: Problem) -> bool:
    """Whether ``p`` is a batch of the kind that has been timed: 16-bit operands, no epilogue."""
    timed = p.plain and p.lhs.dtype.bits == 16 and not (p.grouped or p.promote)
    return timed and p.batch > 1 and len(p.outer) == 1


def clusters(p: Problem, tile: tuple[int, int, int], store: str) -> tuple[tuple[tuple[int, int], bool], ...]:
    """Further clusters, and whether their blocks share tiles.

    57x384x704x568 took 46 us in pairs with tiles of 128x192, 41 us in fours.  147x312x112x776 took 42.5 us in
    pairs with tiles of 128x104, 38 us in fours with 128x80.
    """
    if store != "tma" or not applies(p):
        return ()
    large = tile[0] == ROWS_OF_FOURS and tile[1] >= NARROWEST_OF_FOURS
    beside = (cdiv(p.shape[0], tile[0]), cdiv(p.shape[1], tile[1])) == BESIDE and tile[1] >= NARROWEST_BESIDE
    return FOURS if large else ((BESIDE, True),) if beside else ()


def takes_turns(p: Problem, tile: tuple[int, int, int], cluster: tuple[int, int], grid: int) -> bool:
    """Whether the blocks of a batch have other tiles of the products in each round, and the L2 cache gives up the
    operands after the result.

    1793x280x600x144 took 463 us with tiles of 256x144 in pairs, and 342 us in turns: blocks that always had the
    tiles at an edge left the others behind, and operands were read from memory again.  937x696x800x176 took 464 us
    with tiles of 192x160 in pairs, and 437 us with operands that were kept.
    """
    tiles = _tiles(p, tile, cluster)
    return tiles > 1 and p.batch * tiles > grid and applies(p)


def in_turns(p: Problem, plan: Plan) -> Plan:
    """The plan, in turns where `takes_turns`."""
    turns = takes_turns(p, plan.tile, plan.cluster, plan.grid)
    return replace(plan, by_hand=True, turns=True, kept=True) if turns else plan


def from_queues(problem: Problem, plans: Sequence[Plan]) -> list[Plan]:
    """The first of ``plans``, whose blocks take their tiles from a queue instead, where there are many for each
    block.

    900x760x448x128 took 341 us with tiles of 128x224 in turns, and 250 us so.  Of 83 plans of blocks alone 73 took
    less time so, by 2 % on average, whatever K; of 126 plans of clusters 56 did.  Blocks with few tiles do not
    leave each other far behind: of 65 plans of up to seven rounds 54 took longer so, by 3 %.
    """
    if not applies(problem):
        return []
    sides, found = (problem, transposed_product(problem)), []
    for plan in plans[:QUEUES]:
        tiles = _tiles(sides[plan.swap], plan.tile, plan.cluster)
        many = cdiv(problem.batch * tiles, max(plan.grid, 1)) >= ROUNDS_OF_QUEUES
        if many and plan.kernel == "pipelined" and plan.split == 1 and not plan.pack:
            found.append(replace(plan, by_hand=True, queue=True, turns=False, kept=tiles > 1))
    return found


def long_steps(p: Problem, tile: tuple[int, int, int], on: Hardware) -> bool:
    """Whether ``tile`` has steps of 128 elements where blocks of a batch have many tiles.

    1219x112x112x688 took 114 us with tiles of 64x112 so, and 110 us in steps of 64.
    """
    tiles = p.batch * cdiv(p.shape[0], tile[0]) * cdiv(p.shape[1], tile[1])
    return tile[2] == 128 and applies(p) and cdiv(tiles, on.sms) >= ROUNDS_OF_SHORT_STEPS


def _tiles(p: Problem, tile: tuple[int, int, int], cluster: tuple[int, int]) -> int:
    """Tiles of a product, of all blocks of a cluster together."""
    return cdiv(p.shape[0], tile[0] * cluster[0]) * cdiv(p.shape[1], tile[1] * cluster[1])
