"""The neighbours of a plan: those that differ in what the model does not tell apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tilemma.arithmetic.integers import cdiv
from tilemma.ops import candidates, few_rows, registers
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Estimate, Hardware, Plan
from tilemma.ops.problem import Problem
from tilemma.ops.requests import LINE
from tilemma.ops.resident_plans import other_rings

# Parts and stages, more or less, and tile rows that blocks walk together: first what was the fastest most often
# when products were tuned.
PARTS, STAGES, RASTERS = (-1, -2, -3, 1), (-1, -3, 1, -4, -2, 2), (8, 32, 4, 64, 2)
# Stages, at most; columns more or less; how many plans with the nearest tiles and parts, whose predicted time is
# at most so many times the least.
DEEPEST, COLUMNS, NEAREST, WORTH = 14, (-8, 8, -16, 16, -24, 24, 32, -32), 4, 1.5
# Bytes along K of a step; clusters of single products that share tiles.
DEPTHS, CLUSTERS = (LINE, 2 * LINE), ((2, 1), (4, 1), (1, 2), (1, 1))


def neighbours(problem: Problem, plan: Plan, found: Sequence[Estimate], on: Hardware) -> list[Plan]:
    """Plans that differ from ``plan`` in what the model does not tell apart: the number of parts, the stages, who
    pipelines the kernel, some columns, the length of a step, the number of blocks, when slots are released, what
    the L2 cache gives up first, and the order of the tiles; and those of ``found`` with the nearest tiles and
    parts."""
    p = transposed_product(problem) if plan.swap else problem
    lists: list[list[Plan]] = [[], [], [], []]
    if plan.split > 1:
        parts = (plan.split + x for x in PARTS)
        lists[0] = [replace(plan, split=x) for x in parts if 1 < x <= cdiv(p.shape[2], plan.tile[2]) // 4]
    lists[1] = _of_stages(p, plan, on)
    lists[2] = sorted(_similar(plan, found), key=partial(_distance, plan))[:NEAREST]
    if plan.kernel == "pipelined":
        if not plan.by_hand or (p.grouped and not (p.promote or plan.pack)):
            lists[3].append(replace(plan, by_hand=not plan.by_hand))
        wider = (widened(p, plan, x, on) for x in COLUMNS)
        longer = (_with_tile(p, plan, (*plan.tile[:2], x // p.lhs.dtype.bytes), on) for x in DEPTHS)
        lists[2] = _in_turns(
            lists[2], list(wider), list(longer) if not (p.promote or plan.loaded) else [], _clusters(p, plan, on)
        )
        lists[3] += _by_hand(plan, p)
    return [x for x in dict.fromkeys(_in_turns(*lists)) if x != plan]


def _in_turns(*lists: Sequence[Plan | None]) -> list[Plan]:
    return [x for turn in itertools.zip_longest(*lists) for x in turn if x is not None]


def _of_stages(p: Problem, plan: Plan, on: Hardware) -> list[Plan]:
    """``plan`` with shorter rings, and longer ones where they fit; of both operands if it has two rings."""
    most = plan.stages
    if plan.kernel == "resident":
        return list(other_rings(p, plan, on))
    if plan.kernel == "pipelined":
        zeros = candidates.ZEROS if plan.loaded else 0
        fits = candidates.fitting_stages(p, plan.tile, plan.groups, plan.store, on, DEEPEST, zeros)
        most = max(most, fits)
    stages = ((plan.stages + x, x) for x in STAGES)
    return [replace(plan, stages=n) for n, x in stages if max(2, -x) <= n <= most]


def _by_hand(plan: Plan, p: Problem) -> list[Plan]:
    """What only the kernel by hand can do otherwise."""
    (m, n, _), hand = p.shape, replace(plan, by_hand=True)
    tall, wide = cdiv(m, plan.height * plan.cluster[0]), cdiv(n, plan.tile[1] * plan.cluster[1])
    # 192x496x29696 in parts took 17.6 us by the plain text, 15.2 us with rhs streamed.
    streams = [replace(hand, streamed=x) for x in ("rhs", "lhs", "both", "") if x != plan.streamed]
    high = tall if wide > 1 else 1
    rasters = [replace(hand, raster=x) for x in RASTERS if x < high and x != plan.raster]
    prompt = [] if p.promote else [replace(hand, prompt=not plan.prompt)]
    rounds = _of_rounds(hand, p, tall * wide)
    return _in_turns(streams[:1], rasters, streams[1:2], rounds, prompt, streams[2:], _stored_directly(plan, p))


def _stored_directly(plan: Plan, p: Problem) -> list[Plan]:
    """``plan`` without the way of results through shared memory: a small tile leaves sooner so."""
    of_16_bits = *plan.tile[:2], plan.tile[2] * p.lhs.dtype.bytes // 2
    if plan.store not in ("tma", "copy") or plan.inside or p.promote or p.grouped:
        return []
    fits = registers.fits_registers(p, of_16_bits, plan.groups, "direct", plan.split)
    return [replace(plan, store="direct")] if fits else []


def _clusters(p: Problem, plan: Plan, on: Hardware) -> list[Plan]:
    """``plan`` in other clusters; few rows and batches have theirs among the candidates."""
    if plan.split > 1 or plan.loaded or p.batch > 1 or p.grouped or len(p.outer) > 1 or few_rows.applies(p):
        return []
    found = []
    for cluster in CLUSTERS:
        blocks = cluster[0] * cluster[1]
        if (cluster, True) != (plan.cluster, plan.share) and candidates.fits_cluster(p, plan.tile, cluster, True):
            grid = on.resident(blocks) // blocks
            ring = min(plan.stages, candidates.SHARED_RING) if blocks > 1 else plan.stages
            found.append(replace(plan, by_hand=True, cluster=cluster, share=True, grid=grid, stages=ring))
    return found


def _of_rounds(hand: Plan, p: Problem, tiles: int) -> list[Plan]:
    """As many blocks as have work in the last round, too; other orders of ``tiles`` tiles for each product."""
    found, tasks = [], p.batch * tiles * hand.split
    even = cdiv(tasks, max(1, cdiv(tasks, hand.grid)))
    simple = not (p.grouped or p.promote) and len(p.outer) == 1
    if not p.grouped and even < hand.grid and not hand.queue:
        found.append(replace(hand, grid=even))
    if simple and p.batch == 1 and hand.split == 1 and tasks > hand.grid:
        found.insert(0, replace(hand, back=not hand.back))
    if simple and p.batch > 1 and hand.split == 1 and (hand.turns or hand.kept):
        found += [replace(hand, kept=not hand.kept), replace(hand, turns=False, kept=False)]
    return found


def _similar(plan: Plan, found: Sequence[Estimate]) -> list[Plan]:
    most = WORTH * found[0].seconds
    same = (e.plan for e in found if e.seconds < most and e.plan.kernel == plan.kernel)
    return [x for x in same if x.swap == plan.swap and x != plan]


def _distance(a: Plan, b: Plan) -> float:
    """How different two plans are, in doublings of an extent."""
    pairs = [*zip(a.tile, b.tile, strict=True), *zip(a.cluster, b.cluster, strict=True), (a.split, b.split)]
    return sum(abs(math.log2(x / y)) for x, y in pairs) + (a.share != b.share) + (a.pack != b.pack)


def widened(p: Problem, plan: Plan, more: int, on: Hardware) -> Plan | None:
    """``plan`` for ``p``, transposed already if the plan says so, with ``more`` columns in a tile and as many
    stages as fit; None if that is no tile of its kernel."""
    (rows, columns, depth), size = plan.tile, p.out.dtype.bytes
    wide = columns + more
    # Sums that are promoted are added in pairs of eight columns.
    unit = 64 if p.rhs_major == "col" else 16 if p.acc == "s32" or p.promote else 8
    half = LINE // size
    whole = plan.store != "tma" or plan.swap or wide > half or wide % half == 0
    most = candidates.WIDEST_OF_256 if rows == 256 else candidates.WIDEST
    beyond = more > 0 and columns >= p.shape[1]
    if p.grouped or beyond or wide % unit or not (whole and 8 <= wide <= most):
        return None
    return _with_tile(p, plan, (rows, wide, depth), on)


def _with_tile(p: Problem, plan: Plan, tile: tuple[int, int, int], on: Hardware) -> Plan | None:
    """``plan`` with another ``tile`` and as many stages as fit, or None."""
    of_16_bits = *tile[:2], tile[2] * p.lhs.dtype.bytes // 2
    usual = plan.kernel == "pipelined" and plan.store in ("tma", "direct", "copy") and not p.grouped
    if not usual or not registers.promotable(p, tile, plan.groups):
        return None
    if plan.cluster != (1, 1) and not candidates.fits_cluster(p, tile, plan.cluster, plan.share):
        return None
    zeros = candidates.ZEROS if plan.loaded else 0
    stages = candidates.fitting_stages(p, tile, plan.groups, plan.store, on, zeros=zeros)
    stages = min(stages, max(plan.stages, candidates.LARGEST_RING))
    fits = registers.fits_registers(p, of_16_bits, plan.groups, plan.store, plan.split)
    return replace(plan, tile=tile, stages=stages) if fits and stages >= 2 else None
