"""`Pipeline`: the settings of automatic pipelining, for `foreach(pipeline=)` and `@tm.kernel(pipeline=)`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal

import numpy as np

from tilemma.errors import described
from tilemma.ir.constructs import CHOICES
from tilemma.ir.pipeline import KERNEL_ONLY, OFF, ORDERS, PipelineSettings, SumOrder, kernel_setting_on_loop
from tilemma.ir.refusals import WrongValue
from tilemma.lang.scalars import article, constant_operand
from tilemma.lang.spans import caller_span
from tilemma.records import record


@record
class Pipeline:
    """Settings of a pipelined loop, or with ``@tm.kernel`` of all loops of a kernel.  None: the compiler chooses.

    ``stages``: buffers of each copied tile, 1 to 16.  ``producer``: warps of their own copy.  ``cluster``: 1, 2, 4
    or 8 blocks that share tiles by multicast.  ``persistent``: each block computes several tiles of the grid.
    ``blocks``: how many persistent blocks there are at most.  ``order``: "keep" forbids the compiler to add
    products in another order.  ``cluster``, ``persistent`` and ``blocks`` are settings of kernels.
    Raises WrongValue, NotConstant.
    """

    stages: int | None = None
    producer: bool | None = None
    cluster: int | None = None
    persistent: bool | None = None
    order: SumOrder = "any"
    blocks: int | None = None

    def __post_init__(self) -> None:
        for name in ("stages", "cluster", "blocks"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, constant_operand(given, name))
        for name in ("producer", "persistent"):
            given = getattr(self, name)
            if isinstance(given, np.bool_):
                object.__setattr__(self, name, bool(given))
            elif given is not None and not isinstance(given, bool):
                raise WrongValue(
                    caller_span(),
                    what=f"`Pipeline({name}=)`",
                    got=article(given),
                    wanted="True or False, or None where the compiler chooses",
                    fix_text=f"write `{name}=True`",
                )
        if not isinstance(self.order, str) or self.order not in ORDERS:
            word = self.order if isinstance(self.order, str) else described(self.order)
            raise CHOICES["order"].refused(word, caller_span())


def _settings(given: Pipeline | Literal[False] | None, what: str) -> PipelineSettings | None:
    if given is None:
        return None
    if given is False:
        return OFF
    if not isinstance(given, Pipeline):
        raise WrongValue(
            caller_span(),
            what=f"`{what}(pipeline=)`",
            got=article(given),
            wanted="a `tm.Pipeline`, or False",
            fix_text="write `pipeline=tm.Pipeline(stages=4)`",
        )
    return PipelineSettings(*(getattr(given, f.name) for f in fields(Pipeline)))


def loop_settings(given: Any) -> PipelineSettings | None:
    """The settings that ``foreach(n, pipeline=given)`` gives its loop."""
    found = _settings(given, "foreach")
    for name in KERNEL_ONLY:
        if found is not None and getattr(found, name) is not None:
            raise kernel_setting_on_loop(name, caller_span())
    return found


def kernel_settings(given: Any) -> PipelineSettings | None:
    """The settings that ``@tm.kernel(pipeline=given)`` gives its kernel."""
    return _settings(given, "kernel")
