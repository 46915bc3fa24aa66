"""Waits that use a ring's slots in cyclic order keep one parity; others keep a bit for each slot; both are
right."""

from __future__ import annotations

import pytest
from pipeline_runs import check, from_co

from tilemma.ir.tile import WaitEvent
from tilemma.ir.walk import walk

# Two tiles a block, so that the slots go on where the tile before has left them.
RING = """
#define TILE 64
#define STAGES 3
__co__ void k(global f16 [M, K] lhs, global f16 [N, K] rhs, global f16 [M, N] output) {
  parallel cta by 2 : block {
    shared event full[STAGES], empty[STAGES] = ready;
    shared f16 [TILE, TILE] a[STAGES];
    shared f16 [TILE, TILE] b[STAGES];
    parallel p by 2 : group-4 {
      inthreads.async (p == 0) {
        DECLARE
        foreach n in cdiv(N, TILE) {
          RESET
          foreach k in cdiv(K, TILE) {
            wait empty[SLOT];
            tma.copy.async<full[SLOT]> lhs.subspan(TILE, TILE).at(cta, k) => a[SLOT];
            tma.copy.async<full[SLOT]> rhs.subspan(TILE, TILE).at(n, k) => b[SLOT];
            trigger full[SLOT];
            STEP
          }
        }
      }
      inthreads.async (p == 1) {
        DECLARE
        foreach n in cdiv(N, TILE) {
          RESET
          mc = mma.fill.f32 0.0f;
          foreach k in cdiv(K, TILE) {
            wait full[SLOT];
            mma.row.row mc, a[SLOT], b[SLOT];
            trigger empty[SLOT];
            STEP
          }
          mma.store mc, output.subspan(TILE, TILE).at(cta, n);
        }
      }
    }
  }
}
"""
STEP = "slot = slot == STAGES - 1 ? 0 : slot + 1;"


def ring(step=STEP, slot="slot", declare="mutable int slot = 0;", reset=""):
    text = RING.replace("STEP", step).replace("SLOT", slot).replace("DECLARE", declare).replace("RESET", reset)
    return from_co(text)


def one_parity(compiled):
    return [op.one_parity for op in walk(compiled.kernel.body) if isinstance(op, WaitEvent)]


@pytest.mark.parametrize(
    "step",
    [
        STEP,
        "slot = (slot + 1) % STAGES;",
        "slot = slot + 1 == STAGES ? 0 : slot + 1;",
        "slot = slot < STAGES - 1 ? slot + 1 : 0;",
    ],
)
def test_slots_in_turn(step):
    compiled = check(ring(step), "sm_90a", (72, 128, 392))
    assert one_parity(compiled) == [True, True]
    assert "shl.b32 %slot_bit" not in compiled.ptx


def test_the_counter_of_the_only_loop():
    text = ring("", "k % STAGES", "")
    one = from_co(
        RING.replace("foreach n in cdiv(N, TILE) {", "with n in 1 {")
        .replace("STEP", "").replace("SLOT", "(k % STAGES)").replace("DECLARE", "").replace("RESET", "")
    )  # fmt: skip
    assert one_parity(check(one, "sm_90a", (72, 64, 392))) == [True, True]
    # Seven steps a tile: the second tile starts at slot 0 again, which has one generation more than the others.
    assert one_parity(check(text, "sm_90a", (72, 128, 448))) == [False, False]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"declare": "mutable int slot = 1;"}, "starts elsewhere"),
        ({"step": "slot = slot == 1 ? 0 : slot + 1;"}, "turns back early"),
        ({"step": "slot = (slot + 2) % STAGES;"}, "takes every other slot"),
        ({"step": STEP, "reset": "slot = 0;"}, "starts anew with each tile"),
        ({"step": "if (k % 2 == 0) { STEP } else { STEP }".replace("STEP", STEP)}, "changes in two places"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_slots_out_of_turn(settings, why):
    assert one_parity(check(ring(**settings), "sm_90a", (72, 128, 448))) == [False, False]
