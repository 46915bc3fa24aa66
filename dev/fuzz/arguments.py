"""Arguments of random programs: values, and how arrays lie in the caller's memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dev.fuzz.arithmetic import NUMPY
from dev.fuzz.programs import Program
from tilemma.testing import Guarded, guarded, random_array

Arrays = dict[str, Any]
_NUMBERS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -2.5, 1e-40, 1e-45, 65504.0, 65520.0, 16777217.0, 1e10, -3e38, 1e300,
    np.inf, -np.inf, np.nan,
)  # fmt: skip


def arguments(p: Program) -> Arrays:
    """Inputs of small numbers, or near the ends of their types; what is written starts as 5."""
    made: Arrays = {}
    for i, a in enumerate(p.arrays):
        kind = NUMPY[a.t]
        if a.name in p.outputs:
            made[a.name] = np.full(p.shape(a), 5).astype(kind)
            continue
        values = random_array(p.shape(a), "f64", p.seed + i) * 4
        whole = np.issubdtype(kind, np.integer)
        values = np.abs(np.rint(values)) if whole else np.rint(values * 2) / 2
        made[a.name] = values.astype(kind)
        if p.edges:
            _put_edges(made[a.name], np.random.default_rng((p.seed, i)))
    return made


def _put_edges(x: Any, rng: np.random.Generator) -> None:
    """Half of the elements become numbers at which something changes in their type."""
    chosen = rng.random(x.shape) < 0.5
    if np.issubdtype(x.dtype, np.integer):
        low, high = int(np.iinfo(x.dtype).min), int(np.iinfo(x.dtype).max)
        numbers = [
            n for n in (low, low + 1, high, high - 1, high // 2 + 1, -1, 0, 1, 31, 32, 33) if low <= n <= high
        ]
        table = np.array(numbers, x.dtype)
    else:
        with np.errstate(over="ignore"):
            table = np.array(_NUMBERS).astype(x.dtype)
    x[chosen] = table[rng.integers(0, len(table), x.shape)][chosen]


@dataclass(frozen=True)
class Hosted:
    """An array somewhere in memory whose surroundings are checked.  ``outer``: where it is a part of another."""

    array: Any
    guard: Guarded
    outer: Any = None

    def check(self) -> None:
        """AssertionError if something outside the array was written."""
        self.guard.check()
        if self.outer is not None:
            hidden = np.ones(self.outer.shape, bool)
            hidden[_steps(self.outer)] = False
            assert not np.asarray(self.outer[hidden] != np.asarray(0, self.outer.dtype)).any(), "a gap was written"


def _steps(outer: Any) -> tuple[slice, ...]:
    return tuple(slice(0, None, 2 + d % 2) for d in range(outer.ndim))


def hosted(a: Any, kind: str) -> Hosted:
    """A copy of ``a``.  ``kind``: rows begin at multiples of 16 bytes (rows), follow each other (packed), are the
    columns (turned), have gaps between elements (stepped), or begin after one element (late)."""
    size = a.itemsize
    match kind:
        case "rows":
            g = guarded(a, gap=16 + (-a.shape[-1] * size % 16))
        case "gapped":
            g = guarded(a, gap=16)
        case "packed":
            g = guarded(a, gap=0)
        case "late":
            g = guarded(a, gap=0, misalignment=size)
        case "turned":
            g = guarded(a.T, gap=0)
            return Hosted(g.array.T, g)
        case "stepped":
            g = guarded(np.zeros([n * (2 + d % 2) for d, n in enumerate(a.shape)], a.dtype), gap=0)
            part = g.array[_steps(g.array)]
            part[...] = a
            return Hosted(part, g, g.array)
        case _:
            raise ValueError(kind)
    return Hosted(g.array, g)


def in_memory(p: Program, given: Arrays) -> Iterator[tuple[str, Hosted]]:
    """The arrays of a call as ``p`` wants them to lie."""
    wanted = dict(p.hosted)
    plain = "rows" if p.seed % 3 else "gapped"
    for name, a in given.items():
        yield name, hosted(a, wanted.get(name, plain))
