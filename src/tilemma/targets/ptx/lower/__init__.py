"""Instruction selection: tile IR with every decision made is lowered to lane IR, one file for each kind of
operation.

Importing this package registers the handlers of all files; the entry point is `lower`.
"""

from __future__ import annotations

from tilemma.ir.expr import Call, Element, FragmentElement
from tilemma.ir.operation import require_all
from tilemma.ir.tile import OPERATIONS, LaneLoad, LaneStore, ScaleMma, WaitFuture
from tilemma.targets.ptx.lower import (
    atomics,
    control,
    copies,
    diagnostics,
    elements,
    events,
    fragments,
    futures,
    lane_work,
    loads,
    mathlib,
    mma,
    storage,
    stores,
    sync,
    tma,
)
from tilemma.targets.ptx.lower.context import HANDLERS
from tilemma.targets.ptx.lower.expressions import EVALUATORS
from tilemma.targets.ptx.lower.interleave_multiplies import expected_option
from tilemma.targets.ptx.lower.launches import GridNotComputable, Lowered, lower
from tilemma.targets.ptx.lower.refusals import NotLowered

# Earlier passes make other operations of these: a scaled multiply, waits for groups, statements on elements.
_NOT_LOWERED = (LaneLoad, LaneStore, ScaleMma, WaitFuture)
require_all(HANDLERS, (op for op in OPERATIONS if op not in _NOT_LOWERED), "lowering")
require_all(EVALUATORS, (Element, FragmentElement, Call), "the lowering of expressions")

__all__ = [
    "GridNotComputable", "Lowered", "NotLowered", "atomics", "control", "copies", "diagnostics", "elements",
    "events", "expected_option", "fragments", "futures", "lane_work", "loads", "lower", "mathlib", "mma",
    "storage", "stores", "sync", "tma",
]  # fmt: skip
