"""Passes: tile IR to tile IR.  Each fills in decisions, preserves the meaning, and records its decisions.

This package has the passes of every target; `tilemma.targets.ptx.passes` has the order of all passes for PTX.
"""

from __future__ import annotations

from typing import Protocol

from tilemma.ir.tile import Kernel
from tilemma.passes.check_apply import CheckApply
from tilemma.passes.check_atoms import CheckAtoms
from tilemma.passes.check_buffers import CheckBuffers
from tilemma.passes.check_clusters import CheckClusters
from tilemma.passes.check_contracts import CheckContracts
from tilemma.passes.check_element_tiles import CheckElementTiles
from tilemma.passes.check_events import CheckEvents
from tilemma.passes.check_futures import CheckFutures
from tilemma.passes.check_lanes import CheckLanes
from tilemma.passes.check_names import CheckNames
from tilemma.passes.check_scales import CheckScales
from tilemma.passes.check_variables import CheckVariables
from tilemma.passes.decision import Decision
from tilemma.passes.expand_lane_work import ExpandLaneWork
from tilemma.passes.infer_levels import InferLevels
from tilemma.passes.place_fragments import PlaceFragments
from tilemma.passes.split_applies import SplitApplies
from tilemma.passes.split_thread_levels import SplitThreadLevels

__all__ = ["FRONT_PASSES", "Decision", "Pass"]


class Pass(Protocol):
    """Valid IR in, valid IR out, with the same meaning."""

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel: ...


# The passes that do not depend on the target: run on a kernel before any execution; idempotent.
FRONT_PASSES: tuple[Pass, ...] = (
    InferLevels(),
    ExpandLaneWork(),
    SplitThreadLevels(),
    SplitApplies(),
    CheckApply(),
    CheckClusters(),
    CheckLanes(),
    CheckEvents(),
    PlaceFragments(),
    CheckContracts(),
    CheckAtoms(),
    CheckElementTiles(),
    CheckScales(),
    CheckNames(),
    CheckBuffers(),
    CheckFutures(),
    CheckVariables(),
)
