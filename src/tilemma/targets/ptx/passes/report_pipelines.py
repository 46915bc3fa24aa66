"""Reports the pipelining that a program asked for and no pass has done.

A pass that pipelines a loop, or clusters a grid, removes from `For.pipeline` and `Kernel.pipeline` the settings
that it has carried out (None when nothing is left).  The program stays correct without the rest, only slower.
"""

from __future__ import annotations

from typing import TypeGuard

from tilemma.errors import Span
from tilemma.ir.pipeline import PipelineSettings
from tilemma.ir.tile import For, Kernel
from tilemma.ir.walk import walk
from tilemma.passes.decision import Decision
from tilemma.records import record


@record(slots=False)
class ReportPipelines:
    """Warns about the settings that are left."""

    arch: str

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        for op in walk(kernel.body):
            if isinstance(op, For) and _unmet(op.pipeline):
                self._report(f"loop over `{op.index.name}`", op.pipeline, op.span, log)
        if _unmet(kernel.pipeline):
            self._report(f"kernel `{kernel.name}`", kernel.pipeline, kernel.span, log)
        return kernel

    def _report(self, subject: str, left: PipelineSettings, span: Span | None, log: list[Decision]) -> None:
        text = f"not pipelined as asked: {left} is not available for it on {self.arch}; it runs as written"
        log.append(Decision("pipeline", subject, text, {"settings": str(left)}, warning=True, span=span))


def _unmet(left: PipelineSettings | None) -> TypeGuard[PipelineSettings]:
    """Whether ``left`` asks for something that the program as written does not do."""
    if left is None or left.off:
        return False
    asked = left.producer or left.persistent or left.blocks is not None
    return bool(asked) or left.stages not in (None, 1) or left.cluster not in (None, 1)
