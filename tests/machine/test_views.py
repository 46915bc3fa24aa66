"""Inspection, the timeline, the documented example and the generated page."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from test_kernels import hopper

from dev.pages import hazards as hazards_page
from tilemma import machine
from tilemma.machine.problems import BadMachineCall

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
    assert picture.startswith("<svg") and picture.count("<rect") == len(timeline.bars)


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
