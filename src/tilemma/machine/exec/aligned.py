"""The rule of `.sync` and `.aligned`: all the threads named execute the instruction together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilemma.machine.catalogue import AlignedUnderDivergence
from tilemma.machine.hazards import ranges
from tilemma.machine.state import ALL_LANES, LANES, Frame
from tilemma.machine.syntax import Instruction

# A member mask of all lanes in each lane.
_ALL = b"\xff" * 128


def by_mask(run: Callable[[Frame, Any], None], row: int) -> Callable[[Frame, Any], None]:
    """``run`` once for each member mask in register row ``row``: lanes in step may name several."""

    def for_each_mask(f: Frame, m: Any) -> None:
        masks = f.w.v[3][row]
        if m is None and masks.tobytes() == _ALL:
            run(f, m)
            return
        active = f.w.live if m is None else m
        values = masks[active]
        if (values == values[0]).all():
            run(f, m)
            return
        for value in np.unique(values):
            run(f, active & (masks == value))

    return for_each_mask


def whole_warp(f: Frame, ins: Instruction, m: Any) -> None:
    """Report an ``.aligned`` instruction that not all live lanes of the warp execute."""
    if m is None:
        return
    live = f.w.live
    if m.tobytes() != live.tobytes():
        _report(f, ins, m, live)


def members(f: Frame, ins: Instruction, m: Any, mask: int) -> Any:
    """The live lanes named by ``mask``; reports lanes of it on another path, and executing lanes not in it."""
    if m is None and mask == 0xFFFFFFFF and 0 not in f.w.live.tobytes():
        return ALL_LANES
    named = (mask >> LANES & 1).astype(bool) & f.w.live
    active = f.w.live if m is None else m
    if named.tobytes() != active.tobytes():
        _report(f, ins, active, named)
        named = named & active
    return named


def _report(f: Frame, ins: Instruction, active: Any, live: Any) -> None:
    f.w.report(
        AlignedUnderDivergence,
        ins,
        lanes=np.flatnonzero(active),
        opcode=ins.opcode,
        active=ranges(np.flatnonzero(active)),
        live=ranges(np.flatnonzero(live)),
    )
