"""Requests to the L2 cache: the lines that the boxes of tiles touch, where rows start anywhere."""

from __future__ import annotations

import math
from functools import cache

# Bytes of a line of the L2 cache, which answers for one at a time, and of a box's row; and of a sector.
LINE, SECTOR = 128, 32


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
