"""Reports the pipelining that a program asked for and no pass has done.

A pass that pipelines a loop, or clusters a grid, removes from `For.pipeline` and `Kernel.pipeline` the settings
that it has carried out (None when nothing is left).  The program stays correct without the rest, only slower.
"""

from __future__ import annotations

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
            if isinstance(op, For) and (left := _unmet(op.pipeline)) is not None:
                self._report(f"loop over `{op.index.name}`", left, op.span, log)
        if (left := _unmet(kernel.pipeline)) is not None:
            self._report(f"kernel `{kernel.name}`", left, kernel.span, log)
        return kernel

    def _report(self, subject: str, left: PipelineSettings, span: Span | None, log: list[Decision]) -> None:
        text = f"not pipelined as asked: {left} is not available for it on {self.arch}; it runs without"
        log.append(Decision("pipeline", subject, text, {"settings": str(left)}, warning=True, span=span))


def _unmet(left: PipelineSettings | None) -> PipelineSettings | None:
    """The settings in ``left`` that ask for something that the program as written does not do."""
    if left is None or left.off:
        return None
    stages, cluster = (None if n == 1 else n for n in (left.stages, left.cluster))
    asked = PipelineSettings(stages, left.producer or None, cluster, left.persistent or None, blocks=left.blocks)
    return None if asked == PipelineSettings() else asked
