"""docs/tutorial.md shows the present files and the present output of its commands; its claims about them hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dev.pages.transcripts import PAGE, document
from tilemma import croqtile, machine
from tilemma.compiler import compile_kernel
from tilemma.errors import CompileError
from tilemma.modules import load
from tilemma.tools.problem import make_problem

ROOT = Path(__file__).resolve().parents[2]
STEPS = ROOT / "examples" / "tutorial"


def test_the_page_is_current() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert document(text, ROOT) == text, "rewrite it: python -m dev.pages.stages"


def test_every_step_is_shown() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert len(list(STEPS.glob("*.co"))) == 5
    assert all(f"<!-- file: examples/tutorial/{p.name} -->" in page for p in STEPS.glob("*.co"))


@pytest.mark.parametrize("which", range(3))
def test_all_synchronisation_of_the_second_step_is_needed(which: int) -> None:
    """Two barriers and a wait; without any one of them the machine reports a hazard."""
    compiled = load(STEPS / "2_tiles.co").only().compile("sm_80")
    lines = compiled.ptx.splitlines()
    found = [i for i, line in enumerate(lines) if re.search(r"bar\.sync|wait_group", line)]
    assert len(found) == 3
    del lines[found[which]]
    problem = make_problem(compiled.source, {"M": 16, "N": 16, "K": 200}, {}, 0, None)
    with pytest.raises(machine.HazardError):
        machine.run("\n".join(lines), compiled.launches[0], problem.arrays, schedule="late")


def test_a_wait_too_late_in_the_fourth_step_is_refused() -> None:
    text = (STEPS / "4_ahead.co").read_text(encoding="utf-8")
    late = text.replace("      wait a, b;\n", "", 1).replace("      swap(a,", "      wait a, b;\n      swap(a,")
    (source,) = croqtile.load(late, "late.co").sources.values()
    with pytest.raises(CompileError) as e:
        compile_kernel(source.build({}), "sm_80")
    assert e.value.code == "copy-not-waited-for"
