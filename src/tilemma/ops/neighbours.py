"""The neighbours of a plan: those that differ in what the model does not tell apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tilemma.arithmetic.integers import cdiv
from tilemma.ops import candidates, registers
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Estimate, Hardware, Plan
from tilemma.ops.problem import Problem
from tilemma.ops.requests import LINE

# Tile rows that blocks walk together; columns more or less; how many plans with the nearest tiles and
# parts, whose predicted time is at most so many times the least.
RASTERS, COLUMNS, NEAREST, WORTH = (32, 4, 8), (-8, 8, -16, 16, -24, 24, 32), 4, 1.5


def neighbours(problem: Problem, plan: Plan, found: Sequence[Estimate], on: Hardware) -> list[Plan]:
    """Plans that differ from ``plan`` in what the model does not tell apart: the number of parts, the stages, who
    pipelines the kernel, some columns, when slots are released, what the L2 cache gives up first, and the raster;
    and those of ``found`` with the nearest tiles and parts."""
    p = transposed_product(problem) if plan.swap else problem
    (m, n, k), columns, depth = p.shape, *plan.tile[1:]
    lists: list[list[Plan]] = [[], [], [], []]
    if plan.split > 1:
        parts = (plan.split + x for x in (-1, 1, -2, 2))
        lists[0] = [replace(plan, split=x) for x in parts if 1 < x <= cdiv(k, depth) // 4]
    lists[1] = [replace(plan, stages=plan.stages - x) for x in (1, 2, 3, 4) if plan.stages - x >= max(2, x)]
    lists[2] = sorted(_similar(plan, found), key=partial(_distance, plan))[:NEAREST]
    if plan.kernel == "pipelined":
        if not plan.by_hand or (p.grouped and not p.promote):
            lists[3].append(replace(plan, by_hand=not plan.by_hand))
        wider = (widened(p, plan, x, on) for x in COLUMNS)
        lists[2] = [x for pair in itertools.zip_longest(lists[2], wider) for x in pair if x is not None]
        lists[3] += _by_hand(plan, p, cdiv(m, plan.height * plan.cluster[0]) if cdiv(n, columns) > 1 else 1)
    turns = itertools.zip_longest(*lists)
    return [x for x in dict.fromkeys(itertools.chain(*turns)) if x is not None and x != plan]


def _by_hand(plan: Plan, p: Problem, tall: int) -> list[Plan]:
    """What only the kernel by hand can do otherwise; ``tall``: rows of tiles."""
    hand = replace(plan, by_hand=True)
    # Two products in parts that seemed 2 % faster so were 1 and 4 % slower when timed again.
    hints = ("rhs", "lhs", "") if plan.split == 1 else ()
    streams = [replace(hand, streamed=x) for x in hints if x != plan.streamed]
    rasters = [replace(hand, raster=x) for x in RASTERS if x < tall and x != plan.raster]
    prompt = [] if p.promote else [replace(hand, prompt=not plan.prompt)]
    turns = itertools.zip_longest(rasters, prompt, streams[:1], streams[1:])
    return [x for x in itertools.chain(*turns) if x is not None]


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
    unit = 64 if p.rhs_major == "col" else 16 if p.acc == "s32" else 8
    half = LINE // size
    whole = plan.store != "tma" or plan.swap or wide > half or wide % half == 0
    most = candidates.WIDEST_OF_256 if rows == 256 else candidates.WIDEST
    tile = rows, wide, depth
    of_16_bits = rows, wide, depth * p.lhs.dtype.bytes // 2
    usual = plan.kernel == "pipelined" and plan.store in ("tma", "direct", "copy") and plan.cluster == (1, 1)
    usual = usual and not (p.promote or p.grouped)
    beyond = more > 0 and columns >= p.shape[1]
    if not usual or beyond or wide % unit or not (whole and 8 <= wide <= most):
        return None
    zeros = candidates.ZEROS if plan.loaded else 0
    stages = candidates.fitting_stages(p, tile, plan.groups, plan.store, on, zeros=zeros)
    stages = min(stages, max(plan.stages, candidates.LARGEST_RING))
    fits = registers.fits_registers(p, of_16_bits, plan.groups, plan.store, plan.split)
    return replace(plan, tile=tile, stages=stages) if fits and stages >= 2 else None
