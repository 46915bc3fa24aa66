"""Copies that may be issued ahead, and the reasons why others may not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilemma import croqtile
from tilemma.ir.tile import For, Kernel, Mma, Parallel
from tilemma.ir.walk import rewrite, walk
from tilemma.passes import FRONT_PASSES
from tilemma.passes.pipeline_legality import LoopCopies, loop_copies

LOOP = """
    foreach k in [cdiv(K, 64)] {
      dma.copy lhs.subspan(64, 64).at(b, k) => lhs_s;
      dma.copy rhs.subspan(64, 64).at(0, k) => rhs_s;
      parallel p by 1 : group-4 {
        ma = mma.load lhs_s;
        mb = mma.load rhs_s;
        mma.row.row mc, ma, mb;
      }
    }
"""
KERNEL = """
__co__ void kernel(global f16 [M, K] lhs, global f16 [N, K] rhs, global f16 [M, N] output, global s32 [P] at) {
  parallel b by cdiv(M, 64) : block {
    shared f16 [64, 64] lhs_s;
    shared f16 [64, 64] rhs_s;
    shared f16 [64, 64] output_s;
    mc = mma.fill.f32 0.0f;
    LOOP
    mma.store mc, output_s;
    dma.copy output_s => output.subspan(64, 64).at(b, 0);
  }
}
"""


def analysis(*edits: tuple[str, str]) -> LoopCopies:
    return loop_copies(kernel_of(*edits))[-1]


def kernel_of(*edits: tuple[str, str]) -> Kernel:
    text = KERNEL.replace("LOOP", LOOP)
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    (source,) = croqtile.load(text, "kernel.co", {}).sources.values()
    kernel: Kernel = source.build({})
    for step in FRONT_PASSES:
        kernel = step.run(kernel, [])
    return kernel


def test_plain_loop() -> None:
    found = analysis()
    assert [c.dst.base.name for c in found.ahead] == ["lhs_s", "rhs_s"] and not found.obstacles
    assert not found.stepped


FIRST = "dma.copy lhs.subspan(64, 64).at(b, k) => lhs_s;"
CASES = {
    "conditional-copy": [
        (FIRST, f"if (row_s.at(0) < 3) {{ {FIRST} }} row_s.at(0) = k;"),
        ("shared f16 [64, 64] lhs_s;", "shared f16 [64, 64] lhs_s; shared s32 [1] row_s; row_s.at(0) = 0;"),
    ],
    "read-before-copy": [(FIRST, f"output_s.at(0, 0) = lhs_s.at(0, 0); {FIRST}")],
    "read-outside-loop": [
        ("mma.store mc, output_s;", "mma.store mc, output_s; output_s.at(0, 0) = lhs_s.at(0, 0);")
    ],
    "written-elsewhere": [(FIRST, f"lhs_s.at(0, 0) = 1.0f; {FIRST}")],
    "while-loop": [
        ("foreach k in [cdiv(K, 64)] {", "mutable int k = 0; while (k < K) {"),
        ("mma.row.row mc, ma, mb;", "mma.row.row mc, ma, mb; k = k + 64;"),
    ],
    "source-written": [(FIRST, f"{FIRST} lhs.at(0, 0) = 1.0f;")],
    "address-from-memory": [
        ("at(b, k) => lhs_s;", "at(row_s.at(0), k) => lhs_s; row_s.at(0) = k;"),
        ("shared f16 [64, 64] lhs_s;", "shared f16 [64, 64] lhs_s; shared s32 [1] row_s; row_s.at(0) = 0;"),
    ],
    "part-of-a-buffer": [
        (FIRST, "dma.copy lhs.subspan(32, 64).at(b, k) => lhs_s.subspan(32, 64).at(0, 0);"),
    ],
    "early-exit": [("parallel p by 1", "if (k > 5) { break; } parallel p by 1")],
    "hand-written": [(FIRST, "e = dma.copy.async lhs.subspan(64, 64).at(b, k) => lhs_s; wait e;")],
}


@pytest.mark.parametrize("rule", CASES)
def test_obstacle(rule: str) -> None:
    found = analysis(*CASES[rule])
    assert rule in {o.rule for o in found.obstacles}
    assert "lhs_s" not in {c.dst.base.name for c in found.ahead}
    assert all(o.span is not None for o in found.obstacles)


def test_a_place_read_from_an_input_is_no_obstacle() -> None:
    assert len(analysis(("at(b, k) => lhs_s", "at(at.at(0), k) => lhs_s")).ahead) == 2


LEGAL = {
    "the initial value is never read": [("shared f16 [64, 64] lhs_s;", "shared f16 [64, 64] lhs_s {0};")],
    "the tile is changed after the copy": [
        ("ma = mma.load lhs_s;", "lhs_s.at(0, 0) = 1.0f; ma = mma.load lhs_s;")
    ],
    "the source is written after the loop": [
        ("mma.store mc, output_s;", "mma.store mc, output_s; lhs.at(0, 0) = 1.0f;")
    ],
    "the place is read from a table that the loop does not write": [
        ("at(b, k) => lhs_s;", "at(row_s.at(0), k) => lhs_s;"),
        ("shared f16 [64, 64] lhs_s;", "shared f16 [64, 64] lhs_s; shared s32 [1] row_s; row_s.at(0) = 0;"),
    ],
}


@pytest.mark.parametrize("edits", LEGAL.values(), ids=LEGAL)
def test_legal(edits: list[tuple[str, str]]) -> None:
    assert len(analysis(*edits).ahead) == 2


# Obstacles to the threads that multiply, and to a role that executes the control flow around its copies.
@pytest.mark.parametrize("rule", CASES)
def test_a_role_executes_control_flow(rule: str) -> None:
    found = loop_copies(kernel_of(*CASES[rule]), role=True)[-1]
    control = rule in ("conditional-copy", "early-exit", "while-loop")
    assert (rule in {o.rule for o in found.obstacles}) != control
    # A tile that is copied in a branch has to be used there.
    legal = control and rule != "conditional-copy"
    assert ("lhs_s" in {c.dst.base.name for c in found.ahead}) == legal


@pytest.mark.parametrize("role", [False, True])
def test_copies_in_a_branch(role: bool) -> None:
    edits = [
        (FIRST, f"if (k > 1) {{ {FIRST}"),
        ("mma.row.row mc, ma, mb;\n      }", "mma.row.row mc, ma, mb;\n      } }"),
    ]
    found = loop_copies(kernel_of(*edits), role=role)[-1]
    assert len(found.ahead) == 2 and all(len(around) == 1 for around in found.between)


DURING_THE_BLOCK = {
    "source-written": "the source is written after the loop",
    "address-from-memory": "the place is read from a table that the loop does not write",
}


@pytest.mark.parametrize("rule", DURING_THE_BLOCK)
def test_a_role_copies_during_all_of_the_block(rule: str) -> None:
    """What is legal between the beginning and the end of the loop may not be in a role."""
    found = loop_copies(kernel_of(*LEGAL[DURING_THE_BLOCK[rule]]), role=True)[-1]
    assert {o.rule for o in found.obstacles} == {rule}


def test_other_copies_of_the_loop_stay_eligible() -> None:
    found = analysis(*CASES["conditional-copy"])
    assert [c.dst.base.name for c in found.ahead] == ["rhs_s"]


def test_a_tile_multiplied_after_the_loop() -> None:
    """The languages do not let a name leave its block; the operations can."""
    kernel = kernel_of()
    (multiply,) = [op for op in walk(kernel.body) if isinstance(op, Parallel) and isinstance(op.body[-1], Mma)]
    again = replace(multiply, body=(replace(multiply.body[-1]),))
    body = rewrite(kernel.body, lambda op: (op, again) if isinstance(op, For) else op)
    (found,) = loop_copies(replace(kernel, body=body))
    assert {o.rule for o in found.obstacles} == {"fragment-used-later"} and not found.ahead
