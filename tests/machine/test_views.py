"""Inspection, the timeline, the documented example and the generated page."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from test_kernels import hopper

import tilemma as tm
from dev.pages import hazards as hazards_page
from tilemma import machine
from tilemma.machine.problems import BadMachineCall
from tilemma.machine.timeline import Bar, Timeline

ROOT = Path(__file__).resolve().parents[2]


def line_of(ptx: str, text: str) -> int:
    return next(i for i, line in enumerate(ptx.split("\n"), 1) if text in line)


def test_the_tile_that_the_tensor_core_sees() -> None:
    ptx, launch, args = hopper(64, 64, 256)
    line = line_of(ptx, "wgmma.mma_async")
    view = machine.inspect(ptx, launch, args, line, warp=4, occurrence=2)
    a, b = args["a"].array, args["b"].array
    seen_a = view.tile(int(view.register("%da")[0]), 64, 16, "f16")
    seen_b = view.tile(int(view.register("%db")[0]), 64, 16, "f16")
    # The third k-tile's first 16 columns.
    assert (seen_a == a[:, 128:144]).all()
    assert (seen_b == b[:, 128:144]).all()
    assert view.lane(7)["%kt"] == 2
    assert view.register("%acc0").dtype == np.float32
    assert view.active == tuple(range(32))
    assert not args["c"].array.any(), "inspection writes nothing back"


def test_inspection_that_never_gets_there() -> None:
    ptx, launch, args = hopper(64, 64, 64)
    with pytest.raises(BadMachineCall, match="does not execute"):
        machine.inspect(ptx, launch, args, line_of(ptx, "wgmma.mma_async"), warp=4, occurrence=9)
    with pytest.raises(BadMachineCall, match="has no instruction"):
        machine.inspect(ptx, launch, args, 10_000)
    with pytest.raises(BadMachineCall, match="no register"):
        machine.inspect(ptx, launch, args, line_of(ptx, "setp.ne.s32 %p0"), warp=0).register("%nothing")


def test_timeline() -> None:
    ptx, launch, args = hopper(64, 64, 256)
    report = machine.run(ptx, launch, args, trace=True)
    timeline = report.timeline
    assert timeline is not None
    kinds = {b.what for b in timeline.bars}
    assert {"tma", "wgmma", "bulk-store", "phase"} <= kinds
    assert sum(b.what == "wgmma" for b in timeline.bars) == 16
    text = timeline.text(80)
    assert all(actor in text for actor in timeline.actors)
    assert max(map(len, text.split("\n"))) <= 80 + 2 + max(map(len, timeline.actors))
    picture = timeline.svg()
    assert picture.startswith("<svg") and picture.count("<title>") == len(timeline.bars)


def test_the_page_of_hazards_is_current() -> None:
    hint = "rewrite it: python -m dev.pages.hazards > docs/hazards.md"
    assert (ROOT / "docs" / "hazards.md").read_text() == hazards_page.page(), hint


def test_every_hazard_says_why() -> None:
    for hazard in hazards_page.hazards():
        assert hazard.code and hazard.why, hazard


def test_the_example_finds_its_bug(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "ptx"))
    import find_the_bug

    find_the_bug.main()
    said = capsys.readouterr().out
    assert "error[race]" in said and "no hazard in 20 schedules" in said
    del sys.modules["find_the_bug"]


def test_a_timeline_has_the_program_s_names() -> None:
    kernel = tm.load(ROOT / "examples" / "co" / "tma_pipeline.co").tma_pipeline
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((64, 128), (64, 128)))
    report = kernel.on("machine", trace=True)(a, b, np.zeros((64, 64), np.float16))
    rows = {b.actor for b in report.timeline.bars}
    assert {"full[0]", "full[1]", "copies into lhs_s[0]", "copies into rhs_s[1]", "warpgroup 1"} <= rows
    about = {(b.what, b.about) for b in report.timeline.bars}
    assert {("wgmma", "lhs_s[1] x rhs_s[1]"), ("bulk-store", "output_s")} <= about
    waited = {b.about for b in report.timeline.bars if b.what == "wait"}
    assert {"full[0]", "barrier 0"} <= waited and not any("mbarrier" in name for name in waited)


def test_hostile_names_are_escaped_in_the_picture() -> None:
    bars = [Bar("<script>\x1b", "wait", 0, 3, 1, (0, 0, 0), "</svg>&\uffff")]
    ElementTree.fromstring(Timeline(bars).svg())


def test_hazards_name_the_program_s_buffers_and_events() -> None:
    compiled = tm.load(ROOT / "examples" / "co" / "tma_pipeline.co").tma_pipeline.compile("sm_90a")
    expected = ", 32768;"
    assert expected in compiled.ptx
    arrays = {n: np.zeros((128, 128), np.float16) for n in ("lhs", "rhs", "output")}
    early = machine.check(compiled.ptx.replace(expected, ", 16384;"), compiled.launches[0], arrays, schedules=3)
    notes = [note.text for h in early.hazards for note in h.notes]
    assert any(re.fullmatch(r"0x\w+ is byte \d+ of `[lr]hs_s\[[0-2]\]`", text) for text in notes), notes
    late = machine.check(compiled.ptx.replace(expected, ", 65536;"), compiled.launches[0], arrays, schedules=3)
    (deadlock,) = late.hazards
    assert deadlock.code == "deadlock" and "is `full[0]`" in deadlock.notes[-1].text
