"""Operands of 8 bits for products that quantise in each call."""

from __future__ import annotations

from typing import Any

from tilemma.ops import launch_cache
from tilemma.ops.rounding_kernels import LARGEST, rounded_rows
from tilemma.ops.steps import Step
from tilemma.ops.workspace import launch_template
from tilemma.runtime.arrays import describe, empty_like_first

_WARM = launch_cache.WarmCalls()
# Threads of a row, and elements that each has under way: of six plans the fastest on an H200 for rows of 4096 and
# of 14336 elements.
_SHORT_ROW, _SHORT, _LONG = 8192, {"WARPS": 4, "EACH": 16}, {"WARPS": 8, "EACH": 8}


def rounded(x: Any, kind: str) -> tuple[Any, Any]:
    """The rows of ``x`` [R, C] of a GPU (f16, bf16 or f32, not empty) in elements of ``kind`` (f8_e4m3 or s8), and
    their f32 scales [R]."""
    key = launch_cache.key_of((x, *[None] * 7), ("rounded", kind))
    entry = None if key is None else _WARM.find(key)
    if entry is None:
        given = describe(x)
        needs = {"out": (given.shape, kind), "work.scales": (given.shape[:1], "f32")}
        arrays = [describe(empty_like_first(given, *spec))._replace(writable=True) for spec in needs.values()]
        plan = _SHORT if given.shape[1] <= _SHORT_ROW else _LONG
        constants = {"T": given.dtype.name, "TV": kind, "LARGEST": LARGEST[kind], **plan}
        step = Step(rounded_rows, (given, *arrays), constants, (("a", 0), ("out", 0), ("work.scales", 0)))
        template = launch_template([step], given, needs, {})
        # Arrays without a key are described in each call.
        entry = launch_cache.Entry(template, {"a": given.pointer}) if key is None else _WARM.put(key, template)
    made = entry.start(x)
    return made["out"], made["work.scales"]
