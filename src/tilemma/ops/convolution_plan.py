"""The tile of a convolution: pixels, channels and depth of a block, by the constants of the cost model in
``ops/plan.py``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.forms import padded
from tilemma.ops.plan import FILL, LAUNCH, PORT, RESERVED, SHARED_RATE, SPLITS, STORE, Hardware

# Elements have 16 bits: a step of 64 channels is a row of 128 bytes, the widest swizzle.
_BYTES, _DEPTHS = 2, (64, 32, 16)
# A part of a sum; the fewest steps of a part.
_SUM_BYTES, _LEAST_STEPS = 4, 4
# Pixels of a tile, and the warpgroups that multiply them.
_PIXELS = ((256, 2), (128, 2), (64, 1))
_CHANNELS = (256, 224, 192, 160, 128, 96, 64, 32, 16)
# The accumulators of a warpgroup: 64 x 256, and of 128 rows 128 x 128.
_MOST_RESULT = 64 * 256
# Estimates: unlike the constants of `plan.py`, they were not measured.
# Fewer stages do not hide the latency of the copies; a step of three stages waits for a part of it.
_ENOUGH_STAGES, _WAITING = 4, 1.15
# Clocks of a step besides its transfers and multiplies: its two waits, and the producer's divisions.
_STEP = 60.0


@dataclass(frozen=True, slots=True)
class ConvolutionTile:
    """The extents of a block's tile: TILE_B images, TILE_P x TILE_Q pixels of each, TILE_O channels of the result;
    TILE_C channels of the image in each step; GROUPS warpgroups.  SPLIT: parts of the steps, added afterwards."""

    TILE_B: int
    TILE_P: int
    TILE_Q: int
    TILE_O: int
    TILE_C: int
    GROUPS: int
    SPLIT: int = 1

    @property
    def rows(self) -> int:
        return self.TILE_B * self.TILE_P * self.TILE_Q

    def tiles(self, result: Sequence[int]) -> int:
        """The tiles of pixels of ``result``."""
        images, p, q, _ = result
        return cdiv(images, self.TILE_B) * cdiv(p, self.TILE_P) * cdiv(q, self.TILE_Q)

    @property
    def constants(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Reach:
    """The elements that pixels of the result read along an axis: the first one ``first`` (rows of the image, or
    elements of a row), each further one ``step`` more."""

    first: int
    step: int

    def of(self, pixels: int) -> int:
        return self.first + (pixels - 1) * self.step


def tile(
    result: Sequence[int], w: Sequence[int], reach: tuple[Reach, Reach], on: Hardware, *, on_cpu: bool
) -> ConvolutionTile:
    """The tile of a convolution to ``result``, [B, P, Q, O], by filters ``w``, [O, R, S, C].

    Among equally fast ones the tile that reads least: neighbouring pixels share most of what a compact one reads.
    """
    _, height, width, channels = w
    high, wide = reach
    if on_cpu or not on.pipelines:
        return _simple(result, channels, on, on_cpu)

    def cost(t: ConvolutionTile) -> tuple[float, int]:
        read = t.TILE_B * high.of(t.TILE_P) * wide.of(t.TILE_Q)
        return round(seconds(t, result, channels, height * width, on), 7), read

    return min(_candidates(result, channels, height * width, on), key=cost)


def seconds(t: ConvolutionTile, result: Sequence[int], channels: int, taps: int, on: Hardware) -> float:
    """The predicted time: rounds of tiles, each of steps as long as their slowest part."""
    images, p, q, o = result
    tiles = t.tiles(result) * cdiv(o, t.TILE_O)
    steps = cdiv(taps * cdiv(channels, t.TILE_C), t.SPLIT)
    clocks = max(
        2 * t.rows * t.TILE_O * t.TILE_C / on.tensor,
        (t.rows + t.GROUPS * t.TILE_O) * t.TILE_C * _BYTES / SHARED_RATE,
        (t.rows + t.TILE_O) * t.TILE_C * _BYTES / min(PORT, on.cache),
    )
    stored = _BYTES if t.SPLIT == 1 else _SUM_BYTES
    if _stages(t, on) < _ENOUGH_STAGES:
        clocks *= _WAITING
    each = steps * (clocks + _STEP) / on.clock + t.rows * t.TILE_O * stored * STORE
    total = LAUNCH + FILL + cdiv(tiles * t.SPLIT, on.sms) * each
    if t.SPLIT > 1:
        total += LAUNCH + 2.0 * t.SPLIT * images * p * q * o * _SUM_BYTES / on.memory
    return total


def _stages(t: ConvolutionTile, on: Hardware) -> int:
    """The stages of the ring beside the result; sums of parts are stored directly."""
    stage = (t.rows + t.TILE_O) * t.TILE_C * _BYTES
    staged = t.rows * t.TILE_O * _BYTES if t.SPLIT == 1 else 0
    return (on.shared - RESERVED - staged) // stage


def _candidates(result: Sequence[int], channels: int, taps: int, on: Hardware) -> Iterator[ConvolutionTile]:
    """The tiles of a pipelined kernel, for filters of ``taps`` elements."""
    images, p, q, o = result
    for pixels, groups in _PIXELS:
        for columns in _CHANNELS:
            if columns > padded(o, 64, 256) or pixels // groups * columns > _MOST_RESULT:
                continue
            for wide in _powers(pixels):
                for high in _powers(pixels // wide):
                    several = pixels // (wide * high)
                    if wide >= 2 * q or high >= 2 * p or several >= 2 * images:
                        continue
                    for depth in _DEPTHS:
                        if depth <= padded(channels, 16, 64):
                            yield from _divided(
                                ConvolutionTile(several, high, wide, columns, depth, groups),
                                taps * cdiv(channels, depth), on,
                            )  # fmt: skip
    yield _simple(result, channels, Hardware(), False)


def _divided(whole: ConvolutionTile, steps: int, on: Hardware) -> Iterator[ConvolutionTile]:
    """``whole``, and with its ``steps`` in parts that are long enough."""
    yield whole
    for split in SPLITS[1:]:
        t = replace(whole, SPLIT=split)
        if steps >= _LEAST_STEPS * split and _stages(t, on) >= _ENOUGH_STAGES:
            yield t


def _powers(most: int) -> Iterator[int]:
    n = 1
    while n <= most:
        yield n
        n *= 2


def _simple(result: Sequence[int], channels: int, on: Hardware, on_cpu: bool) -> ConvolutionTile:
    """The tile of kernels that are not pipelined: a shape that wastes little of the image's edge."""
    images, p, q, o = result
    wide = next((n for n in (4, 8, 16, 32) if n >= q), 32)
    rows, groups = (64, 1) if on_cpu else (128, 2)
    columns = padded(o, 64, 128)
    if not on_cpu and cdiv(images * p * q, rows) * cdiv(o, columns) < on.sms:
        rows, groups, columns = 64, 1, 64
    high = next(n for n in (1, 2, 4, 8, 16, 32) if n >= min(p, rows // wide))
    return ConvolutionTile(rows // (wide * high), high, wide, columns, padded(channels, 16, 64), groups)
