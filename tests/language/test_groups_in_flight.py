"""Groups of wgmma that the program leaves under way stay so; an accumulator is read when its group has finished."""

from __future__ import annotations

import re

import numpy as np
import pytest
from construct import cases
from test_advice import co, py

from tilemma import machine
from tilemma.compiler import Compiled
from tilemma.errors import CompileError
from tilemma.machine import HazardError

CASES = cases("contraction")
NAMES = ("groups_in_flight", "futures_in_flight")


def waits(compiled: Compiled) -> list[int]:
    """The numbers of groups that the waits leave under way, in order."""
    return [int(n) for n in re.findall(r"wgmma\.wait_group\.sync\.aligned (\d+)", compiled.ptx)]


@pytest.mark.parametrize("language", ["co", "py"])
@pytest.mark.parametrize("name", NAMES)
def test_a_group_stays_under_way(name: str, language: str) -> None:
    case = CASES[name]
    compiled = (case.kernel if language == "py" else case.croqtile()).compile("sm_90a")
    found = waits(compiled)
    assert found[-1] == 0 and 1 in found and 0 not in found[:-1]
    assert compiled.ptx.count("wgmma.commit_group") >= 2
    # ptxas does not serialise the multiplies (C7510).
    assert not [w for w in compiled.assembled().warnings if w.code]


@pytest.mark.parametrize("name", NAMES)
def test_the_waits_are_needed(name: str) -> None:
    """With a wait for fewer groups the machine finds that an accumulator is read too early."""
    case = CASES[name]
    compiled = case.kernel.compile("sm_90a")
    for text, weaker in (("aligned 1;", "aligned 2;"), ("aligned 0;", "aligned 1;")):
        at = compiled.ptx.rindex(f"wgmma.wait_group.sync.{text}")
        start, end = compiled.ptx[:at], compiled.ptx[at:]
        ptx = start + end.replace(text, weaker, 1)
        arrays = {k: v.copy() for k, v in case.given.items()}
        with pytest.raises(HazardError):
            machine.run(ptx, compiled.launch, arrays)


EARLY = (
    """a_s = dma.copy b => shared; parallel g by 1 : group-4 { m = mma.fill.f32 0.0f; n = mma.fill.f32 0.0f;
    mma.row.row m, a_s.data, a_s.data; mma.commit; mma.row.row n, a_s.data, a_s.data; mma.commit; mma.wait<1>;
    mma.store n, c; mma.store m, c; }""",
    """a_s = dma.copy(b, to="shared")
for g in parallel(1, level="group-4"):
    m, n = mma.fill(0.0, "f32"), mma.fill(0.0, "f32")
    mma.row.row(m, a_s, a_s); mma.commit(); mma.row.row(n, a_s, a_s); mma.commit(); mma.wait(1)
    mma.store(n, c); mma.store(m, c)""",
)


@pytest.mark.parametrize("language", ["co", "py"])
def test_an_accumulator_of_a_pending_group_is_waited_for(language: str) -> None:
    indented = "\n".join("    " + line for line in EARLY[1].split("\n"))
    kernel = (
        co(f"parallel p by 1 : block {{ {EARLY[0]} }}")
        if language == "co"
        else py(f'for p in parallel(1, level="block"):\n{indented}')
    )
    assert waits(kernel.compile("sm_90a")) == [1, 0]
    b = np.random.default_rng(0).integers(-2, 3, (64, 64)).astype(np.float16)
    want = b.astype(np.float32) @ b.astype(np.float32).T
    for run in (kernel, kernel.on("machine", arch="sm_90a")):
        c = np.zeros((64, 64), np.float32)
        run(b, c)
        np.testing.assert_array_equal(c, want)


def test_sums_that_are_read_first_are_a_group_of_their_own() -> None:
    """The multiplies behind them stay in flight while they are read."""
    text = """parallel p by 1 : block {{ s = dma.copy b => shared; parallel g by 1 : group-4 {{
      m = mma.fill.f32 0.0f; n = mma.fill.f32 0.0f;
      mma.row.row m, s.data, s.data; mma.row.row n, s.data, s.data; mma.store {0}, c; mma.store {1}, c; }} }}"""
    assert waits(co(text.format("m", "n")).compile("sm_90a")) == [1, 0]
    assert waits(co(text.format("n", "m")).compile("sm_90a")) == [0]


def test_an_accumulator_whose_future_is_not_awaited_is_refused() -> None:
    body = """parallel p by 1 : block { s = dma.copy b => shared; parallel g by 1 : group-4 {
      m = mma.fill.f32 0.0f; n = mma.fill.f32 0.0f;
      f = mma.row.row.async m, s.data, s.data; h = mma.row.row.async n, s.data, s.data;
      wait f; mma.store n, c; wait h; } }"""
    with pytest.raises(CompileError) as e:
        co(body).compile("sm_90a")
    assert e.value.code == "accumulator-not-awaited"


@pytest.mark.parametrize("language", ["co", "py"])
def test_explain_says_why_no_wgmma_serves(language: str) -> None:
    one = """parallel p by 1 : block { s = dma.copy a => shared; parallel g by 1 : group-4 { m = mma.fill.f32 0.0f;
      mma.row.row m, s.data, s.data; mma.store m, c; } }"""
    other = """for p in parallel(1, level="block"):
    s = dma.copy(a, to="shared")
    for g in parallel(1, level="group-4"):
        m = mma.fill(0.0, "f32")
        mma.row.row(m, s, s)
        mma.store(m, c)"""
    kernel = (
        co(one, "global f16 [96, 64] a, global f32 [96, 96] c")
        if language == "co"
        else py(other, 'a: tm.Global["f16", 96, 64], c: tm.Global["f32", 96, 96]')
    )
    text = str(kernel.compile("sm_90a").explain())
    (line,) = [x for x in text.splitlines() if x.startswith("  multiply")]
    assert "SM80_16x8x16" in line and "not wgmma: M = 96 is no multiple of the instruction's 64" in line
    assert "not wgmma" not in str(kernel.compile("sm_80").explain())
