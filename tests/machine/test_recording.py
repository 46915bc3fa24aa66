"""Recorded runs: writers of elements, bytes and registers, the first wrong store, traces, timelines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from ptx_programs import tma

from tilemma import machine
from tilemma.cli import main

ROOT = Path(__file__).resolve().parents[2]
BROKEN = ROOT / "examples" / "ptx" / "block_sum.ptx"
SUMS = BROKEN.read_text(encoding="utf-8").replace("  @%p1 bra NEXT;\n", "")
LAUNCH = {"grid": 4, "block": 256}
STORE = next(i for i, line in enumerate(SUMS.splitlines(), 1) if "st.global" in line)
LOAD = next(i for i, line in enumerate(SUMS.splitlines(), 1) if "ld.global" in line)


def arrays() -> dict[str, Any]:
    return {"values": np.arange(1024, dtype=np.float32), "sums": np.zeros(4, np.float32)}


def test_who_wrote_an_element_and_which_store_is_the_first_wrong_one() -> None:
    args = arrays()
    recording = machine.record(SUMS, LAUNCH, args, seed=3)
    wanted = args["values"].reshape(4, 256).sum(1)
    assert not args["sums"].any() and (recording.array("sums") == wanted).all()
    (store,) = recording.writers("sums", 2)
    assert store.line == STORE and store.place.cta == (2, 0, 0) and store.lane == 0
    assert store.values["sums"] == wanted[2] and "st.global.f32" in store.render()
    assert recording.writers("values", 5) == [] and recording.first_difference("sums", wanted) is None
    wrong = wanted + np.array([0, 2, 0, 2])
    found = recording.first_difference("sums", wrong)
    assert found is not None and found.count == 2 and found.store is not None
    others = [recording.writers("sums", i)[0].step for i in (1, 3)]
    assert found.store.step == min(others) and found.index[0] in (1, 3)
    assert recording.first_difference("sums", wrong, 2.0) is None
    unwritten = recording.first_difference("values", args["values"] + (np.arange(1024) == 7))
    assert unwritten is not None and unwritten.store is None and unwritten.index == (7,)


def test_atomic_operations_are_recorded_in_order() -> None:
    ptx = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 y) {
  .reg .b64 %d<2>; .reg .b32 %r<4>;
  ld.param.u64 %d0, [y]; atom.global.add.u32 %r1, [%d0], 1; red.global.add.u32 [%d0], 2; ret;
}
"""
    recording = machine.record(ptx, {"grid": 2, "block": 1}, {"y": np.zeros(1, np.uint32)})
    values = [int(e.values["y"]) for e in recording.writers("y", 0)]
    assert len(values) == 4 and values == sorted(values) and values[-1] == 6


def test_the_trace_of_a_lane_and_the_origin_of_a_register() -> None:
    lane = ((1, 0, 0), 2, 5)
    recording = machine.record(SUMS, LAUNCH, arrays(), lanes=[lane])
    trace = recording.trace(*lane)
    assert [e.step for e in trace] == sorted(e.step for e in trace)
    load = next(e for e in trace if e.line == LOAD)
    assert load.values == {"%a": 256 + 2 * 32 + 5}
    first_store = next(e.line for e in trace if "st.shared" in e.place.instruction.text)
    assert recording.register("%a", lane, first_store) is load
    assert not any(e.line == STORE for e in trace)
    for wrong in (
        lambda: recording.register("%nothing", lane, LOAD),
        lambda: recording.register("%a", lane, STORE),
    ):
        with pytest.raises(machine.BadMachineCall):
            wrong()


def test_who_wrote_a_byte_of_shared_memory() -> None:
    line = next(i for i, text in enumerate(SUMS.splitlines(), 1) if "st.global" in text)
    view = machine.inspect(SUMS, LAUNCH, arrays(), line)
    offset = len(view.shared) - 1024
    written = view.writer(offset)
    assert written is not None and "st.shared.f32" in written[0].instruction.text and written[1] == 0
    assert view.writer(offset + 4 * 200)[1] == 200 % 32  # type: ignore[index]


def test_tensor_stores_and_the_timeline_of_warps_waits_and_copies() -> None:
    recording = machine.record(*tma())
    (store,) = recording.writers("pc", (3, 4))
    assert "cp.async.bulk.tensor" in store.place.instruction.text
    timeline = recording.report.timeline
    assert timeline is not None
    assert {"warp", "wait", "tma", "wgmma", "phase"} <= {b.what for b in timeline.bars}
    warps = [b for b in timeline.bars if b.what == "warp"]
    assert len(warps) == 8
    for bar in timeline.bars:
        if bar.what == "wait":
            (own,) = [w for w in warps if w.row == bar.row]
            assert own.start <= bar.start <= bar.end <= own.end and bar.line > 0
    assert "CTA 0,0,0 warp 7" in timeline.text() and timeline.svg().count("<title>") == len(timeline.bars)


def test_a_deadlock_shows_the_wait_to_the_end() -> None:
    stuck = SUMS.replace("  bar.sync 0;\n\n", "  @%p9 bar.sync 0;\n\n", 1)
    stuck = stuck.replace(".reg .pred", ".reg .pred %p9; .reg .pred", 1)
    stuck = stuck.replace(
        "  mov.u32 %half, 128;", "  setp.lt.u32 %p9, %t, 32; @%p9 bar.sync 3, 64;\n  mov.u32 %half, 128;"
    )
    recording = machine.record(stuck.replace("  @%p9 bar.sync 0;\n", ""), LAUNCH, arrays())
    assert "deadlock" in {h.code for h in recording.report.hazards}
    timeline = recording.report.timeline
    assert timeline is not None and any(
        b.what == "wait" and b.end == recording.report.steps for b in timeline.bars
    )


def check(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["check", *args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_the_command_line_answers(tmp_path: Path) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(SUMS)
    launch = (
        "--grid",
        "4",
        "--block",
        "256",
        "--schedules",
        "1",
        "--arg",
        "f32[1024]=random",
        "--arg",
        "f32[4]=out",
    )
    picture = tmp_path / "run.svg"
    asked = ("--writer", "a1[2]", "--writer", f"%a@{LOAD + 3}", "--lane", "1,0,0:2,5", "--timeline", str(picture))
    status, text = check(str(path), *launch, *asked)
    assert (
        status == 0
        and f"PTX line {STORE}, lane 0: st.global.f32" in text
        and picture.read_text().startswith("<svg")
    )
    assert "lane 5 of warp 2 of CTA (1, 0, 0)" in text
    status, text = check(str(path), *launch, *asked, "--json", "--timeline", "-")
    outcome = json.loads(text)
    assert outcome["writers"]["a1[2]"][0]["ptx_line"] == STORE and len(outcome["traces"]) == 1
    status, text = check(str(path), *launch, "--expect", "a1=a0[:4]")
    assert status == 1 and "the first store of a wrong value" in text
    for wrong in ("a1[9]", "a7[0]", "a1", "%nothing@3", f"%a@{10**6}"):
        status, text = check(str(path), *launch, "--writer", wrong)
        assert status == 2 and "fix:" in text, (wrong, text)
    assert check(str(path), *launch, "--lane", "x")[0] == 2


def test_the_command_line_answers_for_other_files() -> None:
    example = str(ROOT / "examples" / "co" / "matmul_wgmma_2group.co")
    asked = ("--shape", "M=20,N=10,K=30", "--schedules", "1", "--writer", "output[3,4]")
    status, text = check(example, *asked)
    assert status == 0 and "output[3,4] was written by" in text and "dma.copy output_s" in text
