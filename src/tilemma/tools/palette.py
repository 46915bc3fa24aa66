"""Colours that people with any colour vision tell apart: those of Okabe and Ito, in an order of high contrast.

A colour never stands alone: each use has a label beside it.
"""

from __future__ import annotations

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8a8f98")


def colour(i: int) -> str:
    """The ``i``-th colour; after the last the first again."""
    return COLOURS[i % len(COLOURS)]


def ink(colour: str) -> str:
    """Black or white, whichever is easier to read on ``colour``."""
    r, g, b = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#000" if 0.299 * r + 0.587 * g + 0.114 * b > 115 else "#fff"


def tint(colour: str, share: float) -> str:
    """``colour`` mixed with white: ``share`` 1 is the colour itself."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - p) * share):02x}" for p in parts)
