"""Passes: tile IR to tile IR.  Each fills in decisions, keeps the meaning, and records what it decided."""

from __future__ import annotations

from typing import Protocol

from tilemma.ir.tile import Kernel
from tilemma.passes.allocate_shared import AllocateShared
from tilemma.passes.assign_layouts import AssignLayouts
from tilemma.passes.assign_roles import AssignRoles
from tilemma.passes.await_multiplies import AwaitMultiplies
from tilemma.passes.bind_copies import BindCopies
from tilemma.passes.check_clusters import CheckClusters
from tilemma.passes.check_contracts import CheckContracts
from tilemma.passes.check_futures import CheckFutures
from tilemma.passes.choose_atoms import ChooseAtoms
from tilemma.passes.choose_copies import ChooseCopies
from tilemma.passes.copy_once import CopyOnce
from tilemma.passes.decision import Decision
from tilemma.passes.expand_copies import ExpandCopies
from tilemma.passes.fold_tails import FoldTails
from tilemma.passes.infer_levels import InferLevels
from tilemma.passes.insert_sync import InsertSync
from tilemma.passes.pipeline_loads import PipelineLoads
from tilemma.passes.place_fragments import PlaceFragments
from tilemma.passes.plan_events import PlanEvents
from tilemma.passes.release_slots import ReleaseSlots
from tilemma.passes.simplify import Simplify
from tilemma.passes.spread_copies import SpreadCopies
from tilemma.passes.stage_output import StageOutput
from tilemma.passes.start_from_zero import StartFromZero
from tilemma.passes.store_late import StoreLate
from tilemma.passes.take_turns import TakeTurns
from tilemma.passes.target import Target, targets
from tilemma.passes.wait_once import WaitOnce

__all__ = ["FRONT_PASSES", "PASSES", "TARGET_PASSES", "Decision", "Pass", "Target", "decide", "targets"]


class Pass(Protocol):
    """Valid IR in, valid IR out, with the same meaning."""

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel: ...


# What does not depend on the target: run on a kernel before it is executed anywhere, and again is harmless.
FRONT_PASSES: tuple[Pass, ...] = (InferLevels(), PlaceFragments(), CheckContracts(), CheckFutures())


def TARGET_PASSES(arch: str) -> tuple[Pass, ...]:
    """The passes for ``arch`` that follow FRONT_PASSES, in order.  Raises UnknownArch."""
    Target.of(arch)
    return (
        ExpandCopies(),
        Simplify(),
        FoldTails(),
        CheckClusters(arch),
        AwaitMultiplies(),
        ChooseAtoms(arch),
        StageOutput(arch),
        AssignLayouts(),
        ChooseCopies(arch),
        CopyOnce(),
        WaitOnce(),
        BindCopies(),
        PlanEvents(arch),
        TakeTurns(),
        StartFromZero(),
        ReleaseSlots(),
        PipelineLoads(arch),
        InsertSync(arch),
        AssignRoles(arch),
        StoreLate(),
        AllocateShared(arch),
        SpreadCopies(),
    )


def PASSES(arch: str) -> tuple[Pass, ...]:
    """All passes for ``arch``, in order.  Raises UnknownArch."""
    return (*FRONT_PASSES, *TARGET_PASSES(arch))


def decide(kernel: Kernel, arch: str) -> tuple[Kernel, tuple[Decision, ...]]:
    """``kernel`` with every decision taken for ``arch``, and what was decided."""
    log: list[Decision] = []
    for p in PASSES(arch):
        kernel = p.run(kernel, log)
    return kernel, tuple(log)
