"""The groups of `grouped_matmul`: checks of the offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilemma.ops.refusals import MatmulOffsets
from tilemma.runtime.arrays import host_view

if TYPE_CHECKING:
    from tilemma.ops.arguments import Call


def check_offsets(call: Call) -> None:
    """Type and shape of the offsets, and their values where the host can read them.  Raises MatmulOffsets."""
    x = call.offsets
    if x is None:
        return
    experts, tokens = call.b.shape[0], call.a.shape[0]
    if x.dtype.name != "s32":
        raise _refused(call, f"holds {x.dtype}", "s32", "convert `offsets` to s32")
    if x.shape != (experts,):
        raise _refused(
            call,
            f"has shape {list(x.shape)}",
            f"[{experts}], the end of each group, as `b` has {experts} matrices",
            "pass the cumulative sum of the rows of each group",
        )
    if x.device[0] == "cpu" and experts:
        values = host_view(x)
        if np.any(np.diff(values, prepend=0) < 0) or values[-1] > tokens:
            raise _refused(
                call,
                f"is {values.tolist()!s:.60}",
                f"numbers that never decrease, from 0 to {tokens}, the rows of `a`",
                "pass the cumulative sum of the rows of each group",
            )


def _refused(call: Call, what: str, wanted: str, remedy: str) -> MatmulOffsets:
    return MatmulOffsets(function=call.function, what=what, wanted=wanted, remedy=remedy)
