"""The schedule of a kernel as a timeline: agents, stages, and what stands in the way of pipelining."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from tilemma.cli import main
from tilemma.machine.timeline import Bar
from tilemma.modules import load, load_python
from tilemma.tools.schedule import Schedule

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def specialised() -> Schedule:
    """Divided by the compiler into a producer and consumers, in Python."""
    return (
        load_python(EXAMPLES / "py" / "plain.py").only().schedule("sm_90a", sizes={"M": 128, "N": 256, "K": 576})
    )


@pytest.fixture(scope="module")
def ahead() -> Schedule:
    """Copied ahead by the threads that multiply, in Croqtile."""
    return load(EXAMPLES / "tutorial" / "3_warps.co").only().schedule("sm_80")


def bars(found: Schedule, what: str) -> Iterator[Bar]:
    (timeline,) = found.timelines.values()
    return (b for b in timeline.bars if b.what == what)


def test_agents_of_roles_copy_multiply_and_store(specialised: Schedule) -> None:
    agents = {b.actor for b in bars(specialised, "warp")}
    assert agents == {"producer, warps 0-3", "consumer, warps 4-7", "consumer, warps 8-11"}
    assert {b.actor for b in bars(specialised, "wgmma")} == {f"wgmma of {a}" for a in agents if "consumer" in a}
    assert {b.actor for b in bars(specialised, "bulk-store")} == {
        f"TMA stores of {a}" for a in agents if "consumer" in a
    }
    stages = {f"copies into {name}[{s}]" for name in ("lhs_load_s", "rhs_load_s") for s in range(4)}
    assert {b.actor for b in bars(specialised, "tma")} == stages
    # Nine tiles along K in a ring of four stages: the first one is filled three times.
    lhs = [b for b in bars(specialised, "tma") if b.actor == "copies into lhs_load_s[0]"]
    assert len({b.start for b in lhs}) == 3 and all("(line " in b.about for b in lhs)
    assert {b.actor for b in bars(specialised, "phase")} == {
        f"{e}[{s}]" for e in ("full", "empty") for s in range(4)
    }
    assert any("ring of 4 stages" in n for n in specialised.notes)


def test_a_stage_is_multiplied_after_its_copy(specialised: Schedule) -> None:
    """Each multiply reads a stage whose copy is over, and no later copy into it has begun."""
    copies = [b for b in bars(specialised, "tma") if b.actor == "copies into lhs_load_s[1]"]
    reads = [b for b in bars(specialised, "wgmma") if "lhs_load_s[1]" in b.about]
    assert copies and reads
    for r in reads:
        assert all(c.end <= r.start or c.start >= r.end for c in copies), r


def test_threads_that_copy_ahead_of_their_multiplies(ahead: Schedule) -> None:
    # Two neighbouring blocks of four warps are one.
    warps = {"warps 0-3", "warps 4-7"}
    assert {b.actor for b in bars(ahead, "warp")} == warps
    assert {b.actor for b in bars(ahead, "mma")} == warps
    names = {b.actor for b in bars(ahead, "cp.async")}
    # The results share the memory of the tiles.
    tiles = {x for n in names for x in n.removeprefix("copies into ").split(" / ")}
    assert tiles >= {"a", "a.1", "b", "b.1"}
    first = min(b.start for b in bars(ahead, "mma"))
    assert min(b.start for b in bars(ahead, "cp.async") if b.actor == "copies into a.1") < first
    assert "M" in ahead.text() and "S" in ahead.text()


def test_every_form_holds_it(specialised: Schedule) -> None:
    page, picture = specialised.html(), specialised.svg()
    ElementTree.fromstring(picture)
    for name in ("producer, warps 0-3", "full[1]", "lhs_load_s[2]"):
        assert name in page and name in picture and name in specialised.text()
    assert json.loads(json.dumps(specialised.to_json()))["dims"] == {"M": 128, "N": 256, "K": 576}
    ElementTree.fromstring(specialised._repr_html_())


@pytest.mark.parametrize("suffix", [".svg", ".html", ".txt"])
def test_on_the_command_line(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"schedule{suffix}"
    file = str(EXAMPLES / "tutorial" / "3_warps.co")
    result = CliRunner().invoke(main, ["explain", file, "--arch", "sm_80", "--timeline", str(path)])
    assert result.exit_code == 0, result.output
    assert {".svg": "<svg", ".html": "<!DOCTYPE", ".txt": "schedule of"}[suffix] in path.read_text()


def test_a_loop_that_is_not_pipelined_says_why(tmp_path: Path) -> None:
    text = """
    __co__ void f(global f16 [M, K] a, global f16 [N, K] b, global f32 [M, N] c) {
      parallel {i, j} by [cdiv(M, 32), cdiv(N, 32)] : block {
        shared f16 [32, 32] sa; shared f16 [32, 32] sb;
        mc = mma.fill.f32 0.0f;
        foreach k in cdiv(K, 32) {
          if (k == 3) break;
          dma.copy a.subspan(32, 32).at(i, k) => sa;
          dma.copy b.subspan(32, 32).at(j, k) => sb;
          parallel w by 1 : group
            mma.row.row mc, sa, sb;
        }
        parallel w by 1 : group
          mma.store mc, c.subspan(32, 32).at(i, j);
      }
    }
    """
    path = tmp_path / "f.co"
    path.write_text(text)
    found = load(path).only().schedule("sm_80", sizes={"M": 32, "N": 32, "K": 128})
    assert any("a `break` or `continue` may end an iteration early; let every iteration" in n for n in found.notes)
    assert "break" in found.text()
