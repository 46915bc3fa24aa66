"""Settings of automatic pipelining that a program gives: fields of a loop and of a kernel.

A loop is pipelined when it copies the tiles of later iterations into further buffers while it multiplies the
tiles of the present one.  The reference executor ignores these settings: they do not change the result.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Literal, get_args

from tilemma.errors import Span, spelled
from tilemma.ir.refusals import WrongValue
from tilemma.records import record

SumOrder = Literal["any", "keep"]
ORDERS: tuple[SumOrder, ...] = get_args(SumOrder)
# The settings that describe the whole grid: a loop cannot have its own.
KERNEL_ONLY = ("cluster", "persistent", "blocks")


@record
class PipelineSettings:
    """The program's choices; None where the compiler chooses.

    ``stages``: buffers of each tile.  ``producer``: warps of their own copy.  ``cluster``: blocks that share
    tiles by multicast.  ``persistent``: each block computes several tiles of the grid.  ``blocks``: how many
    persistent blocks there are at most.  ``order``: "keep" forbids changes of the order in which products are
    added.  ``off``: the loop, or each of the kernel, stays as written.
    """

    stages: int | None = None
    producer: bool | None = None
    cluster: int | None = None
    persistent: bool | None = None
    order: Literal["any", "keep"] = "any"
    blocks: int | None = None
    off: bool = False

    def __str__(self) -> str:
        """The settings that the program gives, as it writes them: ``pipeline(stages=4, producer=true)``."""
        given = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        parts = ["off" if name == "off" else f"{name}={str(value).lower()}" for name, value in given]
        return f"`pipeline({', '.join(parts)})`" if parts else "`pipeline`"

    def inherit(self, outer: PipelineSettings | None) -> PipelineSettings:
        """These settings of a loop, completed by those of its kernel."""
        if outer is None or self.off or outer.off:
            return self
        return PipelineSettings(
            outer.stages if self.stages is None else self.stages,
            outer.producer if self.producer is None else self.producer,
            outer.cluster,
            outer.persistent,
            "keep" if "keep" in (self.order, outer.order) else "any",
            outer.blocks,
        )


OFF = PipelineSettings(off=True)


def effective(loop: PipelineSettings | None, kernel: PipelineSettings | None) -> PipelineSettings | None:
    """The settings of a loop with ``loop`` in a kernel with ``kernel``; None: the program says nothing."""
    return kernel if loop is None else loop.inherit(kernel)


def kernel_setting_on_loop(name: str, span: Span | None) -> WrongValue:
    """The error for a setting of the kernel that a loop was given."""
    form = spelled(span, "[[pipeline(...)]]", "pipeline=")
    place = spelled(
        span, "before `__co__`: `[[pipeline({})]]`", "to the kernel: `@tm.kernel(pipeline=tm.Pipeline({}))`"
    )
    usual = spelled(span, "persistent=true", "persistent=True")
    usual = {"cluster": "cluster=2", "blocks": "blocks=132", "persistent": usual}[name]
    return WrongValue(
        span,
        what=f"`{form}` of a loop",
        got=f"`{name}`, which belongs to the kernel",
        wanted="`stages`, `producer` or `order`",
        fix_text=f"give it {place.format(usual)}",
    )
