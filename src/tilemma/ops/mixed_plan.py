"""The tile of `mixed_matmul` where the sums of groups are scaled: by a model of the time of a unit, which is 64
columns x 128 rows of weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.forms import padded
from tilemma.ops.mixed_kernels import ROWS
from tilemma.ops.plan import LAUNCH, RESERVED, Hardware

_UNIT = 128
# With more rows the sums of parts take longer than they save.
_MOST_ROWS = 64
# Warpgroups of a block: one alone waits for each of its own multiplies, four had the rate of two.
_WARPGROUPS = 4
# Warps of a block that multiply by themselves: with eight, one of each two works while the other waits.
_WARPS = (4, 8)
# Slices that work in turns: the rows up to which three warpgroups do, and the most stages.  The first copy; clocks
# of a unit, and for each row, of warps and of warpgroups; the share that the shorter of these and the memory's
# time adds to the longer.  Fitted to times on an H200 of nine shapes with 1 to 64 rows.
_THREE_ROWS, _MOST_STAGES = 40, 32
_TURN_START, _TURN_WARPS, _TURN_GROUPS, _TURN_EXPOSED = 0.3e-6, (113.0, 6.1), (146.0, 3.6), 0.1
# Parts of K.
_PARTS = (1, 2, 4, 8)
# With four warpgroups a thread has about 112 registers: for more rows ptxas 13.5 spills, or waits for each
# multiply, where a step has two groups in flight.
_OVERLAPPED_ROWS = 8
# Stages below which copies are not issued early enough.
_ENOUGH_STAGES = 3
# Fitted to times on an H200 with 4-bit weights of five shapes and 1 to 64 rows.  The first copy; what blocks that
# compute several tiles take longer; bytes a clock into an SM from the L2 cache while all read.
_START, _AGAIN, _CACHE = 0.9e-6, 2.0e-6, 64.0
# Clocks from the start of a warpgroup's unit to the end of its multiplies, and for each row; the share of what is
# not the bottleneck that adds to the time of a unit, of warpgroups and of warps.
_LATENCY, _LATENCY_ROW, _EXPOSED, _EXPOSED_WARPS = 575.0, 5.3, 0.2, 0.12
# The kernel that adds parts, which starts later where blocks fill the SMs and it is large.  Blocks that add
# theirs, and how much longer their sums take than the memory.
_ADD, _LATE, _JOIN, _JOIN_BYTES = 0.8e-6, 2.3e-6, 2.0e-6, 1.6
# Clocks of a unit's conversions: 189 instructions in the loop of a warp of each scheduler (SASS of ptxas 13.5), or
# 469 of one of the four warps that mma.sync feeds from their own words, and 79 for further 8 rows.  What a warp
# alone on its scheduler takes longer; and each further scaling of sums in a unit.
_CONVERT, _OWN_WORDS, _OWN_ROWS, _ALONE, _SCALE = 189.0, 400.0 / 4, 79.0 / 4, 1.2, 40.0
# The rate of mma.sync, as a share of that of wgmma, and the rows up to which it was faster.
_SYNC_RATE, _WARP_ROWS = 0.62, 16
# `mixed_products`: rows of its tile, for two warpgroups; clocks of a step of 64 of K with 4-bit weights, more with
# zeros or 8 bits, and for each row; the end of a tile.  On an H200, with 128 to 4096 rows.
_PRODUCT_ROWS, _PRODUCT_GROUPS, _PRODUCT_DEPTH = (256, 192, 128), 2, 64
_PRODUCT_STEP, _PRODUCT_ZEROS, _PRODUCT_8_BITS = 430.0, 180.0, 230.0
_PRODUCT_ROW, _PRODUCT_END = 2.83, 1.5e-6
# The share of the memory's rate that computing weights in memory reaches.
_WIDENING_RATE = 0.88
# Of K, what a warpgroup converts while the weights before are multiplied, if it divides groups and steps.  Where
# three or four warpgroups share the multiplier, longer parts were faster.
_STEP, _SHARED_STEP = 32, 64


@dataclass(frozen=True, slots=True)
class MixedShape:
    """A product [batch, m, k] x [k, n], with weights of ``bits`` in groups of ``group``.

    ``plain``: its operands are matrices, of which slices of K may be multiplied apart.  ``zeros``: they are
    subtracted from the weights.
    """

    batch: int
    m: int
    n: int
    k: int
    bits: int
    group: int
    plain: bool
    zeros: bool = False


@dataclass(frozen=True, slots=True)
class MixedTile:
    """``rows`` of activations and ``groups`` * 64 columns of weights of a block; ``depth`` of K that a warpgroup
    multiplies in each step, of ``slices`` that are copied together; ``parts`` of K are products of their own.

    ``warps``: a warp has the place of a warpgroup.  ``step``: so many of K are multiplied while the next are
    converted; 0: all of a group.  ``joined``: the blocks add the parts; another kernel does without.  ``stages``:
    slices work in turns, with ``share`` of them at the same of so many stages, in `mixed_streams`; 0: all at the
    same, in `mixed_sums`.
    """

    rows: int
    groups: int
    slices: int
    depth: int
    parts: int
    warps: bool = False
    step: int = 0
    joined: bool = False
    share: int = 0
    stages: int = 0

    @property
    def constants(self) -> dict[str, int]:
        """Of `mixed_sums` and `mixed_tiles`."""
        return {"TILE_M": self.rows, "TILE_K": self.depth, "GROUPS": self.groups}

    def turns(self) -> dict[str, int | str]:
        """The constants of `mixed_streams`."""
        found = {"TILE_M": self.rows, "TILE_K": self.depth, "SHARE": self.share, "STAGES": self.stages}
        level = "group" if self.warps else "group-4"
        return {**found, "SLICES": self.slices, "STEP": self.step, "LEVEL": level}

    def own(self, group: int) -> dict[str, int | str]:
        """Of `mixed_sums` alone."""
        step = self.step or min(self.depth, group)
        level = "group" if self.warps else "group-4"
        return {"SLICES": self.slices, "STEP": step, "LEVEL": level}

    def blocks(self, s: MixedShape) -> int:
        """The tiles of a product, with those of all parts of K."""
        return s.batch * cdiv(s.m, self.rows) * cdiv(s.n, self.groups * ROWS) * self.parts

    def room(self, m: int, n: int) -> dict[str, tuple[tuple[int, ...], str]]:
        """The arrays of `mixed_sums` for the sums of parts of a product [m, n], and for their counters; none where
        another kernel adds them."""
        if not self.joined:
            return {}
        tiles = cdiv(n, self.groups * ROWS) * cdiv(m, self.rows)
        sums = (tiles * self.parts, self.groups * ROWS, self.rows)
        return {"parts": (sums, "f32"), "words": ((tiles, self.groups), "s64")}


def tile(s: MixedShape, on: Hardware, *, on_cpu: bool, streams: bool = False) -> MixedTile:
    """The tile of `mixed_sums`: on a GPU with pipelines the fastest by the model.

    Among equally fast ones it has fewer parts, then more warpgroups, which hide more of the latency, then deeper
    steps.  ``streams``: TMA can copy all operands, so that `mixed_streams` can take its place.
    """
    simple = single(s, on, on_cpu=on_cpu)
    if on_cpu or not on.pipelines or s.m > _MOST_ROWS:
        return simple

    def cost(t: MixedTile) -> tuple[float, int, int, int, bool]:
        return round(seconds(t, s, on), 7), t.parts, -t.groups * t.slices, -t.depth, t.joined

    found = [*candidates(s, on, simple.rows), *(in_turns(s, on, simple.rows) if streams else ())]
    return min(found, key=cost, default=simple)


def in_turns(s: MixedShape, on: Hardware, rows: int) -> Iterator[MixedTile]:
    """The tiles of `mixed_streams` for ``rows`` rows that fit the device and are one for each block."""
    if s.bits != 4 or s.group % _UNIT:
        return
    new = MixedTile(rows, 1, 8, 128, 1, True, 128, share=2)
    if rows > _WARP_ROWS:
        # With three warpgroups a thread has 128 registers.
        new = MixedTile(rows, 1, 3 if rows <= _THREE_ROWS else 2, 256, 1, step=64, share=1)
    turns = new.slices // new.share
    stages = min(_ring(new, on) // _stage(replace(new, slices=new.share), s), _MOST_STAGES) // turns * turns
    if stages < 2 * turns or not _meets(new.share * new.depth, s.group):
        return
    # Where the memory is the bottleneck and rows are fewest, slices at the same stages were faster.
    most = on.sms if rows > 8 else on.sms * 3 // 4
    for parts in _PARTS:
        t = replace(new, parts=parts, stages=stages)
        if t.blocks(s) <= most and (parts == 1 or (s.plain and s.k > 0 and s.k % (parts * s.group) == 0)):
            yield t


def product_rows(s: MixedShape, on: Hardware) -> int:
    """The rows of the tile of `mixed_products`; 0 if its steps are not whole groups or equal parts of one."""
    if not _meets(_PRODUCT_DEPTH, s.group):
        return 0
    return min(_PRODUCT_ROWS, key=lambda rows: product_seconds(rows, s, on))


def product_seconds(rows: int, s: MixedShape, on: Hardware) -> float:
    """The time of `mixed_products` with tiles of so many rows, by the model."""
    rounds = cdiv(s.batch * cdiv(s.m, rows) * cdiv(s.n, _PRODUCT_GROUPS * ROWS), on.sms)
    step = _PRODUCT_STEP + _PRODUCT_ZEROS * s.zeros + _PRODUCT_8_BITS * (s.bits == 8) + _PRODUCT_ROW * rows
    return LAUNCH + rounds * (cdiv(s.k, _PRODUCT_DEPTH) * step / on.clock + _PRODUCT_END)


def widening(s: MixedShape, on: Hardware) -> float:
    """The time to compute the weights in memory."""
    return LAUNCH + s.n * s.k * (s.bits / 8 + 2) / (_WIDENING_RATE * on.memory)


def single(s: MixedShape, on: Hardware, *, on_cpu: bool) -> MixedTile:
    """The tile of `mixed_tiles`, also without pipelines: two warpgroups, and so many slices of K that few rows
    keep all SMs busy."""
    depth = _depth(s.group)
    if on_cpu:
        return MixedTile(padded(s.m, 8, 256), min(cdiv(s.n, ROWS), 4), 1, depth, 1)
    t = MixedTile(padded(s.m, 8, 64) if s.m <= _MOST_ROWS else 128, 2, 1, depth, 1)
    if s.m > _MOST_ROWS:
        return t
    most = 4 * on.sms // max(cdiv(s.n, t.groups * ROWS), 1)
    return replace(t, parts=max(n for n in _PARTS if n == 1 or (n <= most and _divides(n, t, s))))


def seconds(t: MixedTile, s: MixedShape, on: Hardware) -> float:
    """The time of a call by the model.  Not modelled: weights that stay in the L2 cache between calls."""
    blocks = t.blocks(s)
    busy = min(blocks, on.sms)
    units = t.groups * cdiv(s.k, t.parts * _UNIT)
    weights = _UNIT * ROWS * s.bits / 8 + 4 * ROWS * _UNIT / s.group
    if t.stages:
        busiest = _turns(t, s, weights * busy / (on.memory / on.clock))
        return LAUNCH + _TURN_START + busiest / on.clock + _adding(t, s, on)
    converting = _CONVERT
    if t.warps:
        alone = _ALONE if t.groups * t.slices == min(_WARPS) else 1.0
        converting = alone * (_OWN_WORDS + _OWN_ROWS * t.rows / 8)
    scalings = _UNIT // min(t.depth, s.group, _UNIT)
    clocks = (
        weights * busy / (on.memory / on.clock),
        (weights + 2 * _UNIT * t.rows / t.groups) / _CACHE,
        2 * _UNIT * ROWS * t.rows / (on.tensor * (_SYNC_RATE if t.warps else 1)),
        converting + (scalings - 1) * _SCALE,
    )
    bound = max(clocks)
    exposed = _EXPOSED_WARPS if t.warps else _EXPOSED
    # Units that the warps of a block have begun.
    begun = t.groups * t.slices * t.depth / _UNIT
    unit = max((_LATENCY + _LATENCY_ROW * t.rows) / begun, bound + exposed * (sum(clocks) - bound))
    rounds = cdiv(blocks, on.sms)
    return LAUNCH + _START + _AGAIN * (rounds > 1) + rounds * units * unit / on.clock + _adding(t, s, on)


def _turns(t: MixedTile, s: MixedShape, memory: float) -> float:
    """Clocks of the slowest of the slices that work in turns; ``memory``: those in which a unit arrives."""
    step, turns = t.share * t.depth, t.slices // t.share
    base, row = _TURN_WARPS if t.warps else _TURN_GROUPS
    clocks = memory, base + row * t.rows
    unit = max(clocks) + _TURN_EXPOSED * min(clocks)
    return cdiv(cdiv(s.k, t.parts * step), turns) * turns * step // _UNIT * unit


def _adding(t: MixedTile, s: MixedShape, on: Hardware) -> float:
    """The time to add parts."""
    if t.parts == 1:
        return 0.0
    moved = 8 * t.parts * s.batch * s.m * s.n / on.memory
    if t.joined:
        return _JOIN + _JOIN_BYTES * moved
    return _ADD + moved + _LATE * (s.m > 8 and 4 * t.blocks(s) > 3 * on.sms)


def candidates(s: MixedShape, on: Hardware, rows: int) -> Iterator[MixedTile]:
    """The tiles of `mixed_sums` for ``rows`` rows that fit the device."""
    base = _depth(s.group)
    found = [
        MixedTile(rows, groups, slices, base * times, 1, step=_step(groups * slices, min(s.group, base)))
        for groups, slices, times in product((1, 2, 4), (1, 2, 3, 4), (1, 2))
        if groups * slices < _WARPGROUPS
        or (groups * slices == _WARPGROUPS and (base * times <= min(s.group, _UNIT) or rows <= _OVERLAPPED_ROWS))
    ]
    if rows <= _WARP_ROWS and s.bits == 4:
        found += [
            MixedTile(rows, groups, slices, depth, 1, warps=True)
            for groups, slices, depth in product((1, 2, 4), (1, 2, 4, 8), {base, max(base // 2, _STEP)})
            if groups * slices in _WARPS
        ]
    for t in found:
        step = t.slices * t.depth
        fits = step <= max(s.k, base) and _ENOUGH_STAGES * _stage(t, s) <= _ring(t, on)
        if not (fits and _meets(t.depth, s.group) and _meets(step, s.group)):
            continue
        yield t
        for parts in _PARTS[1:]:
            if _divides(parts, t, s):
                yield replace(t, parts=parts)
                if not t.warps:
                    yield replace(t, parts=parts, joined=True)


def _step(warpgroups: int, whole: int) -> int:
    """What divides ``whole`` of K, which warpgroups sum before they scale."""
    return _SHARED_STEP if warpgroups > 2 and whole % _SHARED_STEP == 0 else _STEP


def _divides(parts: int, t: MixedTile, s: MixedShape) -> bool:
    """Whether ``parts`` slices of K are whole groups and steps."""
    return s.plain and s.k > 0 and s.k % (parts * math.lcm(s.group, t.slices * t.depth)) == 0


def _meets(depth: int, group: int) -> bool:
    """Whether steps of ``depth`` are whole groups, or groups whole steps."""
    return depth % group == 0 or group % depth == 0


def _depth(group: int) -> int:
    return next((n for n in (128, 64, 32) if group % n == 0 or (group % 32 == 0 and n % group == 0)), 64)


def _stage(t: MixedTile, s: MixedShape) -> int:
    """Bytes of a stage: weights, activations and scales."""
    step = t.slices * t.depth
    return t.groups * ROWS * (step * s.bits // 8 + 4 * max(step // s.group, 1)) + 2 * t.rows * step


def _ring(t: MixedTile, on: Hardware) -> int:
    """Bytes for stages beside the sums of slices, whose rows are padded by at most 32 bytes.  Those of the first
    slice are stored too where slices work in turns."""
    sums = 4 * (t.slices - (t.share == 0)) * t.groups * ROWS * (t.rows + 8)
    return on.shared - RESERVED - sums
