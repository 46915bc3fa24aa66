"""Boxes of TMA start where the hardware can write them: a program is refused, or runs without a trap and right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilemma as tm
from tilemma import croqtile
from tilemma.errors import CompileError
from tilemma.kernels import Kernel
from tilemma.targets.ptx.tensor_copies import SHARED_ALIGNMENT, TmaRefused, _split

BYTES = {"s8": 1, "f16": 2, "f32": 4}
RING = """
__co__ void ring(global {t} [M, K] x, global {t} [M, K] y) {{
  parallel b by 1 : block {{
    shared event full[{slots}];
    shared {t} [{rows}, {columns}] first;
    shared {t} [{rows}, {columns}] s[{slots}];
    tma.copy x.subspan({rows}, {columns}).at(0, 0) => first;
    foreach k in {slots} {{
      tma.copy.async<full[k]> x.subspan({rows}, {columns}).at(k, 0) => s[k];
    }}
    foreach k in {slots} {{
      wait full[k];
      dma.copy s[k] => y.subspan({rows}, {columns}).at(k, 0);
    }}
  }}
}}
"""
PART = """
__co__ void part(global {t} [M, K] x, global {t} [M, K] y) {{
  parallel b by 1 : block {{
    shared {t} [{rows}, {columns}] s;
    dma.copy x.subspan({rows}, {columns}).at(0, 0) => s;
    foreach k in {turns} {{
      tma.copy x.subspan({high}, {columns}).step(1, 1).at(k, {corner})
        => s.subspan({high}, {columns}).step({step}, {columns}).at(k, 0);
    }}
    dma.copy s => y.subspan({rows}, {columns}).at(0, 0);
  }}
}}
"""


def loaded(text: str) -> Kernel:
    (source,) = croqtile.load(text, "copies.co", {}).sources.values()
    return Kernel(source)


def ran(text: str, x: np.ndarray) -> np.ndarray:
    """What the machine leaves in `y`, beside what the reference does; it has found no hazard."""
    kernel, wanted, got = loaded(text), np.zeros_like(x), np.zeros_like(x)
    machine = kernel.on("machine", arch="sm_90a")
    machine(x, got)
    kernel.on("cpu")(x, wanted)
    assert (got == wanted).all()
    return got


@given(
    t=st.sampled_from(sorted(BYTES)),
    rows=st.integers(1, 9),
    units=st.integers(1, 5),
    slots=st.integers(1, 4),
)
@settings(max_examples=20, deadline=None)
def test_every_slot_of_a_ring_starts_on_128_bytes(t: str, rows: int, units: int, slots: int) -> None:
    columns = units * 16 // BYTES[t]
    x = tm.testing.random_array((rows * slots, columns), t, seed=rows)
    got = ran(RING.format(t=t, rows=rows, columns=columns, slots=slots), x)
    assert (got == x).all()


@given(
    t=st.sampled_from(sorted(BYTES)),
    high=st.integers(1, 5),
    step=st.integers(1, 9),
    units=st.integers(1, 9),
    corner=st.sampled_from([0, 1, 4, 8, 16]),
)
@settings(max_examples=20, deadline=None)
def test_a_part_of_a_tile_is_right_or_refused(t: str, high: int, step: int, units: int, corner: int) -> None:
    columns, turns = units * 16 // BYTES[t], 3
    rows = step * (turns - 1) + high
    text = PART.format(t=t, rows=rows, columns=columns, high=high, step=step, corner=corner, turns=turns)
    x = tm.testing.random_array((rows + turns, columns + 32), t, seed=rows)
    legal = corner * BYTES[t] % 16 == 0 and step * columns * BYTES[t] % SHARED_ALIGNMENT == 0
    if legal:
        ran(text, x)
    else:
        with pytest.raises(TmaRefused, match=r"tma\.copy"):
            loaded(text).compile(arch="sm_90a")


@given(st.integers(1, 3000), st.sampled_from([16, 32, 48, 64, 128]))
def test_boxes_of_many_rows_start_on_128_bytes(rows: int, row_bytes: int) -> None:
    def refuse(*_: object) -> TmaRefused:
        return TmaRefused(None, src="x", dst="s", what="", rule="", remedy="")

    try:
        box = _split(rows, row_bytes, refuse)
    except CompileError:
        assert all(b * row_bytes % SHARED_ALIGNMENT for b in range(1, 257) if rows % b == 0)
    else:
        assert box <= 256 and rows % box == 0
        assert box == rows or box * row_bytes % SHARED_ALIGNMENT == 0


def test_a_copy_that_may_start_off_a_unit_is_not_promoted() -> None:
    text = PART.replace("tma.copy", "dma.copy").format(
        t="f16", rows=8, columns=8, high=8, step=1, corner=3, turns=1
    )
    x = tm.testing.random_array((9, 40), "f16", seed=1)
    ran(text, x)
    assert "cp.async.bulk.tensor" not in loaded(text).compile(arch="sm_90a").ptx
