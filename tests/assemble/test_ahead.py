"""Runs of ptxas that are started before their text is known: the same machine code, and nothing that stays."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from fake_tools import elf_image, fake_tool, writes
from toolchain import tool

from tilemma.assemble import Ahead, PtxRejected, assemble, begin, find_tool, runs, toolchain

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="runs are started ahead on Linux only")

PTX = """.version 8.0
.target sm_80
.address_size 64
.file 1 "sum.py"
.visible .entry sum(.param .u64 x) {
    .reg .u64 %x;
    .loc 1 7 1
    ld.param.u64 %x, [x];
    st.global.u64 [%x], %x;
    ret;
}
"""
IMAGE = elf_image(80, "sum")
# Reads its text twice, as ptxas does, and keeps both in the file that `TEXTS` names.
READS = f"""open(os.environ['TEXTS'] + '.began', 'w').close()
found = [open(sys.argv[-1]).read() for _ in range(2)]
open(os.environ['TEXTS'], 'w').write(repr(found))
{writes(IMAGE)}"""


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEMMA_CACHE", "")
    monkeypatch.setenv("TEXTS", str(tmp_path / "texts"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))


def _left(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "tmp").iterdir())


def _reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEMMA_PTXAS", fake_tool(tmp_path / "bin", READS))


def _begun(tmp_path: Path) -> None:
    deadline = time.monotonic() + 30
    while not (tmp_path / "texts.began").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _run(ahead: Ahead) -> runs.Run:
    assert ahead._run is not None
    return ahead._run


def test_the_machine_code_is_that_of_a_run_with_a_file(tmp_path: Path) -> None:
    tool("ptxas")
    with Ahead("sm_90").expect() as ahead:
        run = _run(ahead)
        with begin(PTX, "sm_90", ahead=ahead) as assembly:
            cubin = assembly.result()
    plain = assemble(PTX, "sm_90")
    assert run.process.process.poll() == 0  # it was this run
    assert (cubin.bytes, cubin.entries, cubin.warnings) == (plain.bytes, plain.entries, plain.warnings)
    assert _left(tmp_path) == []


def test_an_error_keeps_its_place(tmp_path: Path) -> None:
    tool("ptxas")
    wrong = PTX.replace("st.global", "st.nowhere")
    with pytest.raises(PtxRejected) as plain:
        assemble(wrong, "sm_90")
    with (
        pytest.raises(PtxRejected) as caught,
        Ahead("sm_90").expect() as ahead,
        begin(wrong, "sm_90", ahead=ahead) as assembly,
    ):
        assembly.result()
    assert str(caught.value) == str(plain.value)
    assert _left(tmp_path) == []


@pytest.mark.parametrize("begun", [False, True])
def test_both_times_it_reads_the_whole_text(begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _reading(tmp_path, monkeypatch)
    text = PTX + "// a remark\n" * 20_000  # more than a pipe holds unless it is asked to
    with Ahead("sm_80").expect() as ahead:
        if begun:
            _begun(tmp_path)
        with begin(text, "sm_80", ahead=ahead) as assembly:
            assert assembly.result().bytes == IMAGE
            assert assembly.run is not ahead._run is None
    assert (tmp_path / "texts").read_text() == repr([text] * 2)
    assert _left(tmp_path) == []


def test_a_pipe_that_was_found_before_the_text_is_opened_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two, its name becomes that of the file."""
    late = f"""import glob
(pipe,) = glob.glob(os.path.join({str(tmp_path / "tmp")!r}, '*.fifo'))
open(os.environ['TEXTS'] + '.began', 'w').close()
while not os.path.isfile(sys.argv[-1]): time.sleep(0.01)
found = [open(pipe).read(), open(sys.argv[-1]).read()]
open(os.environ['TEXTS'], 'w').write(repr(found))
{writes(IMAGE)}"""
    monkeypatch.setenv("TILEMMA_PTXAS", fake_tool(tmp_path / "bin", late))
    with Ahead("sm_80").expect() as ahead:
        _begun(tmp_path)
        with begin(PTX, "sm_80", ahead=ahead) as assembly:
            assert assembly.result().bytes == IMAGE
    assert (tmp_path / "texts").read_text() == repr([PTX] * 2)
    assert _left(tmp_path) == []


def test_a_run_without_a_text_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _reading(tmp_path, monkeypatch)
    with Ahead("sm_80").expect() as ahead:
        run = _run(ahead)
        _begun(tmp_path)
        assert run.process.process.poll() is None
    assert run.process.process.poll() is not None
    assert _left(tmp_path) == [] and not runs._pipes


def test_the_run_does_not_wait_for_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may = f"os.path.exists({str(tmp_path / 'may')!r})"
    head = f"if '--version' in sys.argv:\n    while not {may}: time.sleep(0.01)\n    sys.exit(print('V13.5.0'))"
    monkeypatch.setenv("TILEMMA_PTXAS", fake_tool(tmp_path / "bin", READS, head=head))
    with Ahead("sm_80").expect() as ahead:
        run = _run(ahead)
        _begun(tmp_path)
        (tmp_path / "may").touch()
        with begin(PTX, "sm_80", ahead=ahead) as assembly:
            assert assembly.result().bytes == IMAGE and assembly.run is run
    assert _left(tmp_path) == []


def test_of_several_programs_the_newest_gets_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = []
    for release in ("12.9.1", "13.5.0"):
        head = f"if '--version' in sys.argv: sys.exit(print('V{release}'))"
        paths.append(fake_tool(tmp_path / release, READS, head=head))
    monkeypatch.setattr(toolchain, "candidates", lambda name: {"found": paths})
    with Ahead("sm_80").expect() as ahead:
        run = _run(ahead)  # of the first: the releases are not known yet
        with begin(PTX, "sm_80", ahead=ahead) as assembly:
            assert assembly.result().bytes == IMAGE and assembly.run is not run
            assert assembly.tool.path == paths[1]
    with Ahead("sm_80").expect() as ahead:
        assert _run(ahead).purpose[0] == paths[1]
    assert _left(tmp_path) == []


@pytest.mark.parametrize("why", ["another target", "options", "a long text", "it has ended", "no pipe"])
def test_where_it_does_not_serve_another_run_is_started(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _reading(tmp_path, monkeypatch)
    if why == "a long text":
        monkeypatch.setattr(runs, "_LARGEST", 10)
    if why == "no pipe":
        monkeypatch.setattr(os, "mkfifo", lambda *_: (_ for _ in ()).throw(OSError("no pipes here")))
    options = ["-lineinfo"] if why == "options" else []
    with Ahead("sm_86" if why == "another target" else "sm_80").expect() as ahead:
        if why == "it has ended":
            _run(ahead).process.stop()
        with begin(PTX, "sm_80", options=options, ahead=ahead) as assembly:
            assert assembly.result().bytes == IMAGE
            assert assembly.run is not ahead._run
    assert (tmp_path / "texts").read_text() == repr([PTX] * 2)
    assert _left(tmp_path) == []


def test_the_run_is_started_with_the_expected_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _reading(tmp_path, monkeypatch)
    text = "// ptxas -Ofc=min\n" + PTX
    with Ahead("sm_80").expect(["-Ofc=min"]) as ahead, begin(text, "sm_80", ahead=ahead) as assembly:
        assert assembly.result().bytes == IMAGE
        assert assembly.run.purpose[2] == ("-Ofc=min",) and ahead._run is None
    assert (tmp_path / "texts").read_text() == repr([text] * 2)


def test_without_expected_options_no_run_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _reading(tmp_path, monkeypatch)
    with Ahead("sm_80") as ahead:
        assert ahead.tool is not None and ahead._run is None
    assert _left(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_does_not_keep_the_text_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _reading(tmp_path, monkeypatch)
    monkeypatch.setenv("TILEMMA_TOOL_SECONDS", "20")
    find_tool("ptxas")
    with Ahead("sm_80").expect() as ahead:
        _begun(tmp_path)
        done, wait = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(wait)
            os.read(done, 1)  # as long as the parent works
            os._exit(0)
        try:
            with begin(PTX, "sm_80", ahead=ahead) as assembly:
                assert assembly.result().bytes == IMAGE
        finally:
            os.close(wait)
            os.close(done)
            os.waitpid(child, 0)
