"""Operands of 8 bits for products that quantise in each call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilemma.ops import launch_cache
from tilemma.ops.rounding_kernels import LARGEST, rounded_rows
from tilemma.ops.steps import Step
from tilemma.ops.workspace import launch_template
from tilemma.runtime.arrays import ArrayRef, describe, empty_like_first

_WARM = launch_cache.WarmCalls()
# Threads of a row, and elements that each has under way: of six plans the fastest on an H200 for rows of 4096 and
# of 14336 elements.
_SHORT_ROW, _SHORT, _LONG = 8192, {"WARPS": 4, "EACH": 16}, {"WARPS": 8, "EACH": 8}


def rounding(x: ArrayRef, values: ArrayRef, scales: ArrayRef, sources: Sequence[str]) -> Step:
    """The call that writes the rows of ``x`` to ``values`` and ``scales``; ``sources``: the names of the three."""
    plan = _SHORT if x.shape[1] <= _SHORT_ROW else _LONG
    kind = values.dtype.name
    constants = {"T": x.dtype.name, "TV": kind, "LARGEST": LARGEST[kind], **plan}
    written = (a._replace(writable=True) for a in (values, scales))
    return Step(rounded_rows, (x, *written), constants, tuple((name, 0) for name in sources))


def rounded(x: Any, kind: str) -> tuple[Any, Any]:
    """The rows of ``x`` [R, C] of a GPU (f16, bf16 or f32, not empty) in elements of ``kind`` (f8_e4m3 or s8), and
    their f32 scales [R]."""
    key = launch_cache.key_of((x, *[None] * 7), ("rounded", kind))
    entry = None if key is None else _WARM.find(key)
    if entry is None:
        given = describe(x)
        needs = {"out": (given.shape, kind), "work.scales": (given.shape[:1], "f32")}
        values, scales = (describe(empty_like_first(given, *spec)) for spec in needs.values())
        template = launch_template([rounding(given, values, scales, ("a", *needs))], given, needs, {})
        # Arrays without a key are described in each call.
        entry = launch_cache.Entry(template, {"a": given.pointer}) if key is None else _WARM.put(key, template)
    made = entry.start(x)
    return made["out"], made["work.scales"]
