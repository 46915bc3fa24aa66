"""The pass pipeline of PTX targets: instruction selection, layouts, copies, synchronisation, and their order."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.errors import CompileError
from tilemma.ir.tile import Kernel
from tilemma.passes import FRONT_PASSES, Pass
from tilemma.passes.decision import Decision
from tilemma.passes.expand_copies import ExpandCopies
from tilemma.passes.merge_peeled_epilogue import MergePeeledEpilogue
from tilemma.passes.simplify import Simplify
from tilemma.targets.ptx.passes.allocate_shared import AllocateShared
from tilemma.targets.ptx.passes.alternate_operand_registers import AlternateOperandRegisters
from tilemma.targets.ptx.passes.assign_layouts import AssignLayouts
from tilemma.targets.ptx.passes.assign_roles import AssignRoles
from tilemma.targets.ptx.passes.assign_tma_barriers import AssignTmaBarriers
from tilemma.targets.ptx.passes.await_multiplies import AwaitMultiplies
from tilemma.targets.ptx.passes.check_clusters import CheckClusters
from tilemma.targets.ptx.passes.choose_atoms import ChooseAtoms
from tilemma.targets.ptx.passes.choose_copies import ChooseCopies
from tilemma.targets.ptx.passes.deduplicate_copies import DeduplicateCopies
from tilemma.targets.ptx.passes.delay_consumer_release import DelayConsumerRelease
from tilemma.targets.ptx.passes.double_buffer_fragments import DoubleBufferFragments
from tilemma.targets.ptx.passes.eliminate_redundant_waits import EliminateRedundantWaits
from tilemma.targets.ptx.passes.expand_scales import ExpandScales
from tilemma.targets.ptx.passes.fold_zero_fill import FoldZeroFill
from tilemma.targets.ptx.passes.insert_sync import InsertSync
from tilemma.targets.ptx.passes.interleave_copy_issue import InterleaveCopyIssue
from tilemma.targets.ptx.passes.join_blocks import JoinBlocks
from tilemma.targets.ptx.passes.narrow_copies import NarrowCopies
from tilemma.targets.ptx.passes.order_event_waits import OrderEventWaits
from tilemma.targets.ptx.passes.overlap_epilogue import OverlapEpilogue
from tilemma.targets.ptx.passes.pack_elements import PackElements
from tilemma.targets.ptx.passes.pipeline_loops import PipelineLoops
from tilemma.targets.ptx.passes.plan_events import PlanEvents
from tilemma.targets.ptx.passes.promote_sums import PromoteSums
from tilemma.targets.ptx.passes.report_pipelines import ReportPipelines
from tilemma.targets.ptx.passes.share_old_values import ShareOldValues
from tilemma.targets.ptx.passes.specialise_warps import SpecialiseWarps
from tilemma.targets.ptx.passes.split_contractions import SplitContractions
from tilemma.targets.ptx.passes.stage_through_shared import StageThroughShared
from tilemma.targets.ptx.passes.stage_warp_results import StageWarpResults
from tilemma.targets.ptx.passes.unify_ring_parity import UnifyRingParity
from tilemma.targets.ptx.target import Target

__all__ = ["PASSES", "TARGET_PASSES", "decide", "run"]


def TARGET_PASSES(arch: str) -> tuple[Pass, ...]:
    """The passes for ``arch`` that follow FRONT_PASSES, in order.  Raises UnknownArch."""
    Target.of(arch)
    return (
        ExpandCopies(),
        PackElements(),
        Simplify(),
        SpecialiseWarps(arch),
        MergePeeledEpilogue(),
        CheckClusters(arch),
        AwaitMultiplies(),
        SplitContractions(),
        ExpandScales(),
        PromoteSums(),
        ShareOldValues(),
        ChooseAtoms(arch),
        JoinBlocks(arch),
        StageWarpResults(),
        StageThroughShared(arch),
        AssignLayouts(),
        ChooseCopies(arch),
        NarrowCopies(arch),
        PipelineLoops(arch),
        DeduplicateCopies(),
        EliminateRedundantWaits(),
        AssignTmaBarriers(),
        PlanEvents(arch),
        UnifyRingParity(),
        FoldZeroFill(),
        DelayConsumerRelease(),
        AlternateOperandRegisters(arch),
        DoubleBufferFragments(arch),
        InsertSync(),
        AssignRoles(arch),
        OrderEventWaits(),
        OverlapEpilogue(),
        AllocateShared(arch),
        InterleaveCopyIssue(),
        ReportPipelines(arch),
    )


_REWRITING = (SpecialiseWarps, JoinBlocks, StageWarpResults, PipelineLoops)


def PASSES(arch: str) -> tuple[Pass, ...]:
    """All passes for ``arch``, in order.  Raises UnknownArch."""
    return (*FRONT_PASSES, *TARGET_PASSES(arch))


def decide(kernel: Kernel, arch: str) -> tuple[Kernel, tuple[Decision, ...]]:
    """Run all passes for ``arch``: the kernel with every decision made, and the log of decisions."""
    log: list[Decision] = []
    if not Target.of(arch).seen:
        text = f"no GPU of {arch} has run generated code: only ptxas and the PTX machine have checked it"
        log.append(Decision("target", arch, text, warning=True))
    return run(kernel, PASSES(arch), log), tuple(log)


def run(kernel: Kernel, steps: Sequence[Pass], log: list[Decision]) -> Kernel:
    """``kernel`` after ``steps``.

    A kernel that one of `_REWRITING` has rewritten may break a rule of a later pass that the kernel as written
    keeps: it is then compiled as written.
    """
    for i, step in enumerate(steps):
        before, logged = kernel, len(log)
        kernel = step.run(kernel, log)
        if isinstance(step, _REWRITING) and kernel is not before:
            try:
                return run(kernel, steps[i + 1 :], log)
            except CompileError as e:
                del log[logged:]
                text = f"not pipelined: {e.message}"
                log.append(Decision("pipeline", kernel.name, text, {"rule": e.code}, span=e.span))
                kernel = before
    return kernel
