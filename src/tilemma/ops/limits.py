"""What bounds a product: the parts of the machine that work for it at the same time.  Its models share this."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.problem import Problem

if TYPE_CHECKING:
    from tilemma.ops.plan import Hardware, Plan

# The clock, bytes a clock into an SM, and bytes a second of the L2 cache, to which fitted factors of
# `long_k` and `middle` refer.
CLOCK, PORT_BYTES, CACHE_RATE = 1.755e9, 64.0, 5.5e12


def smooth_maximum(seconds: Iterable[float], exponent: float) -> float:
    """The seconds that parts take together: those of the slowest, and the more the closer the others come."""
    return float(sum(x**exponent for x in seconds) ** (1 / exponent))


def divided(p: Problem, plan: Plan, on: Hardware) -> tuple[int, int, int]:
    """The tasks of a product, those of whole clusters and of all parts of K; their rounds; the steps of each."""
    (m, n, k), (rows, columns, depth), (high, wide) = p.shape, plan.tile, plan.cluster
    tasks = cdiv(cdiv(m, rows), high) * cdiv(cdiv(n, columns), wide) * high * wide * plan.split
    return tasks, cdiv(tasks, on.resident(high * wide)), cdiv(cdiv(k, depth), plan.split)


def described(limits: Mapping[str, float], tasks: int, rounds: int, together: int, steps: int) -> str:
    """What bounds ``tasks`` of so many ``steps``, by ``limits`` in seconds; so many tasks run ``together``."""
    slowest = max(limits, key=lambda x: limits[x])
    return f"{tasks} tasks in {rounds} rounds of {min(tasks, together)}, {steps} steps each, bound by {slowest}"
