"""`x += 1` by one thread, where all threads load `x`: a race that no result depends on, and races that some do."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from ptx_programs import small

from tilemma import machine

# Codes whose advice is followed here.
FOLLOWED = frozenset({"race-unused-value"})

# As torch.compile's kernels for counters of steps: two warps load, thread 0 stores.
COUNT = """
  ld.param.u64 %d0, [y]; setp.eq.u32 %p0, %t, 0;
  mov.u32 %r0, 0;
  ld.global.b32 {%r0}, [%d0 + 0];
  add.s32 %r1, %r0, 1;
  selp.b32 %r2, %r1, 7, %p0;
  @%p0 st.global.b32 [%d0 + 0], {%r2};
"""


def found(body: str, strict: bool = False) -> tuple[str, dict[str, str], Any]:
    y = np.full(256, 41, np.uint32)
    ptx, launch, args = small(body, y=y)
    verdict = machine.check(ptx, launch, args, schedules=12, strict=strict)
    return ptx, {h.code: h.remedy for h in verdict.hazards}, y


def test_a_value_that_is_not_used() -> None:
    _, codes, y = found(COUNT)
    assert codes == {} and y[0] == 42
    ptx, codes, _ = found(COUNT, strict=True)
    assert set(codes) == FOLLOWED
    advised = re.search(r"add `(bar[^`]+)` before PTX line (\d+)", codes["race-unused-value"])
    assert advised is not None
    lines = ptx.split("\n")
    lines.insert(int(advised[2]) - 1, "bar.sync 0;")
    launch, args = small(COUNT)[1:]
    assert machine.check("\n".join(lines), launch, args, schedules=12, strict=True).ok


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # Another thread stores what it has loaded, to a place of its own or by another store.
        (
            "@%p0 st.global.b32 [%d0 + 0], {%r2};",
            "@%p0 st.global.b32 [%d0 + 0], {%r2}; st.global.b32 [%Y + 4], %r1;",
        ),
        ("@%p0 st.global.b32 [%d0 + 0], {%r2};", "st.global.b32 [%Y + 0], {%r2};"),
        # It decides a branch, an address, or the guard of the store.
        ("selp.b32", "setp.eq.u32 %p1, %r0, 41; @%p1 bra ON; ld.global.b32 %r3, [%Y + 8]; ON: selp.b32"),
        ("selp.b32", "shr.u32 %r3, %r0, 8; mad.wide.u32 %d0, %r3, 4, %d0; selp.b32"),
        ("selp.b32", "setp.eq.u32 %p1, %r0, 41; and.pred %p0, %p0, %p1; selp.b32"),
        # Another lane gets it.
        ("selp.b32", "shfl.sync.idx.b32 %r1, %r1, 0, 31, 0xffffffff; selp.b32"),
    ],
    ids=["stored", "stored by all", "branch", "address", "guard", "shuffled"],
)
def test_a_value_that_is_used(old: str, new: str) -> None:
    assert old in COUNT
    assert "race" in found(COUNT.replace(old, new))[1]


def test_iterations_are_no_such_pair() -> None:
    """The thread that stores first is not the one that stores last: what the second has loaded is used."""
    turns = COUNT.replace("mov.u32 %r0, 0;", "mov.u32 %r5, 0; AGAIN: setp.eq.u32 %p0, %t, %r5;")
    turns += "  bar.sync 0; add.s32 %r5, %r5, 32; setp.le.u32 %p1, %r5, 32; @%p1 bra AGAIN;"
    assert "race" in found(turns)[1]
