"""Requests to the L2 cache: the lines that the boxes of tiles touch, where rows start anywhere."""

from __future__ import annotations

import math
from functools import cache

# Bytes of a line of the L2 cache, which answers for one at a time, and of a box's row; and of a sector.
LINE, SECTOR = 128, 32

# Lines of a shared tile that each block of a cluster loads are a multiple of so many.
PART = 8


def parted(lines: int, blocks: int) -> bool:
    """Whether each of the ``blocks`` of a cluster loads a part of a shared tile of so many ``lines``."""
    return lines % (PART * blocks) == 0


@cache
def lines(size: int, step: int) -> float:
    """Lines that ``size`` bytes touch, on average over their starts: the multiples of ``step``."""
    step = math.gcd(step, LINE)
    starts = range(0, LINE, step)
    return sum(-(-(start + size) // LINE) for start in starts) / len(starts)


def of_rows(rows: float, size: int, pitch: int, box: int = LINE) -> float:
    """Requests for ``rows`` rows of ``size`` bytes that start ``pitch`` bytes apart, in boxes of ``box`` bytes."""
    whole, rest = divmod(size, box)
    step = math.gcd(pitch, box)
    return rows * (whole * lines(box, step) + (lines(rest, step) if rest else 0.0))
