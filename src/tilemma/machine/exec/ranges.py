"""discard and st.bulk: a range of bytes without a value, or of zeros (PTX ISA, "Data Movement and Conversion
Instructions")."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilemma.machine import access, global_access
from tilemma.machine.decode import Decoder, instruction
from tilemma.machine.limits import MAX_VARIABLE
from tilemma.machine.memory import SHARED_WINDOW
from tilemma.machine.state import Frame

_LINE = 128
_POISON = 0xDEADBEEFDEADBEEF


@instruction("discard")
def discard(d: Decoder) -> None:
    """``discard.global.L2 [a], 128``: a write of values that are not known; here of a pattern."""
    d.needs(80)
    d.has("global", "L2")
    d.only()
    d.count(2)
    if d.immediate(d.operands[1]) != _LINE:
        d.bad("the size must be 128")
    address, ins = d.address(d.operands[0]), d.ins
    values = np.full((_LINE // 16, 2), _POISON, np.uint64)

    def run(f: Frame, m: Any) -> None:
        for lane in f.lanes if m is None else np.flatnonzero(m):
            at = int(address.values(f.w, None)[lane])
            if at % _LINE:
                access.misaligned(f, ins, at, _LINE, (lane,))
            lanes = np.full(_LINE // 16, lane)
            global_access.global_store(f, ins, lanes, at + 16 * np.arange(_LINE // 16), 16, values)

    d.visible(run)


@instruction("st.bulk")
def zeros(d: Decoder) -> None:
    """``st.bulk.shared::cta [a], size, 0``: a lane fills shared memory with zeros."""
    d.needs(100)
    d.has("weak", "shared::cta")
    d.only("bulk")
    d.count(3)
    if d.immediate(d.operands[2]) != 0:
        d.bad("the value must be 0")
    address, size, ins = d.address(d.operands[0]), d.src(d.operands[1], "u64"), d.ins

    def run(f: Frame, m: Any) -> None:
        for lane in f.lanes if m is None else np.flatnonzero(m):
            at, n = int(address.values(f.w, None)[lane]), int(f.w.v[6][size][lane])
            if at % 8 or n % 8:
                access.misaligned(f, ins, at | n, 8, (lane,))
            # A larger size has passed the end of shared memory in these bytes already.
            words = np.arange(0, min(n, MAX_VARIABLE["shared"]), 8, dtype=np.int64) + at % SHARED_WINDOW
            if n:
                lanes = np.full(len(words), lane)
                access.shared_store(f, ins, lanes, words, 8, np.zeros(len(words), np.uint64))

    d.visible(run)
