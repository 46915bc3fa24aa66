"""What bounds a product: the parts of the machine that work for it at the same time.  Its models share this."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# The clock, bytes a clock into an SM, and bytes a second of the L2 cache, to which fitted factors of
# `long_k` and `middle` refer.
CLOCK, PORT_BYTES, CACHE_RATE = 1.755e9, 64.0, 5.5e12


def smooth_maximum(seconds: Iterable[float], exponent: float) -> float:
    """The seconds that parts take together: those of the slowest, and the more the closer the others come."""
    return float(sum(x**exponent for x in seconds) ** (1 / exponent))


def described(limits: Mapping[str, float], tasks: int, rounds: int, together: int, steps: int) -> str:
    """What bounds ``tasks`` of so many ``steps``, by ``limits`` in seconds; so many tasks run ``together``."""
    slowest = max(limits, key=lambda x: limits[x])
    return f"{tasks} tasks in {rounds} rounds of {min(tasks, together)}, {steps} steps each, bound by {slowest}"
