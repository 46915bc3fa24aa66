"""What plans of batches have besides: blocks that take turns, and clusters of four."""

from __future__ import annotations

from dataclasses import replace

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.plan import Plan
from tilemma.ops.problem import Problem

# Clusters of four blocks, the rows of their tiles, and the fewest columns: smaller tiles were slower so.
FOURS, ROWS_OF_FOURS, NARROWEST_OF_FOURS = (((2, 2), True), ((4, 1), True), ((1, 4), True)), 128, 128


def applies(p: Problem) -> bool:
    """Whether ``p`` is a batch of the kind that has been timed: 16-bit operands, no epilogue."""
    timed = p.plain and p.lhs.dtype.bits == 16 and not (p.grouped or p.promote)
    return timed and p.batch > 1 and len(p.outer) == 1


def clusters(p: Problem, tile: tuple[int, int, int], store: str) -> tuple[tuple[tuple[int, int], bool], ...]:
    """Further clusters, and whether their blocks share tiles.

    57x384x704x568 took 46 us in pairs with tiles of 128x192, 41 us in fours.
    """
    fits = tile[0] == ROWS_OF_FOURS and tile[1] >= NARROWEST_OF_FOURS and store == "tma"
    return FOURS if fits and applies(p) else ()


def takes_turns(p: Problem, tile: tuple[int, int, int], cluster: tuple[int, int], grid: int) -> bool:
    """Whether blocks have other tiles of a batch's products in each round: there are several of both.

    1793x280x600x144 took 463 us with tiles of 256x144 in pairs, and 342 us so: blocks that always had the tiles at
    an edge left the others behind, and operands were read from memory again.
    """
    tiles = cdiv(p.shape[0], tile[0] * cluster[0]) * cdiv(p.shape[1], tile[1] * cluster[1])
    return tiles > 1 and p.batch * tiles > grid and applies(p)


def in_turns(p: Problem, plan: Plan) -> Plan:
    """The plan, in turns where `takes_turns`."""
    turns = takes_turns(p, plan.tile, plan.cluster, plan.grid)
    return replace(plan, by_hand=True, turns=True) if turns else plan
