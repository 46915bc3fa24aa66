"""ptxas runs while the code is checked: code that fails a check is not returned, and no process or file
remains."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_tools import elf_image, fake_tool, writes

from tilemma import compiler
from tilemma.assemble import PtxasFailed, PtxRejected, assemble, begin, find_tool
from tilemma.compiler import Compiled, Draft, compile_kernel, decide
from tilemma.errors import TilemmaError
from tilemma.ir import tile as t
from tilemma.ir.lane import Instr, Reg
from tilemma.ir.lane_verifier import InvalidLaneIR
from tilemma.ir.tile import ArrayFacts
from tilemma.ir.verifier import InvalidIR
from tilemma.kernels import Kernel
from tilemma.modules import load
from tilemma.targets.ptx.lower import Lowered

TEXT = """
__co__ void twice(global f32 [M, N] a) {
  parallel i by M : block, j by 32 : thread
    a.at(i, j) = a.at(i, j) * 2.0f;
}
"""
FACTS = {"a": ArrayFacts(1, 16)}
# Says its number and works for a minute; or writes a cubin at once.
SLOW = "open(os.environ['SEEN'], 'w').write(str(os.getpid()))\ntime.sleep(60)"
IMAGE = elf_image(90, "twice")
QUICK = writes(IMAGE)


@pytest.fixture(autouse=True)
def files_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    (tmp_path / "twice.co").write_text(TEXT)
    return load(tmp_path / "twice.co").only()


def _ptxas(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEMMA_PTXAS", fake_tool(folder, script))


def _seen(folder: Path) -> int:
    """The number of the process, once it runs."""
    deadline = time.monotonic() + 20
    while not (folder / "seen").exists() or not (folder / "seen").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int((folder / "seen").read_text())


def _left(folder: Path) -> list[Path]:
    return list(folder.glob("tilemma-*"))


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _refuse(draft: Draft) -> None:
    raise InvalidLaneIR(None, what="nothing holds", operation="ret", rule="a rule")


def test_a_check_that_fails_stops_the_assembler_and_keeps_nothing(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ptxas(SLOW, tmp_path, monkeypatch)
    running = []

    def while_it_works(draft: Draft) -> None:
        running.append(_runs(_seen(tmp_path)))

    monkeypatch.setattr(compiler, "CHECKS", (while_it_works, _refuse))
    with pytest.raises(InvalidLaneIR, match="nothing holds"):
        kernel.ready("sm_80", FACTS, assemble_for="sm_90")
    assert running == [True] and not _runs(_seen(tmp_path)) and _left(tmp_path) == []
    kept = [p for kind in ("ptx", "cubin") for p in (tmp_path / "cache" / kind).glob("*/*")]
    assert kept == []
    monkeypatch.setattr(compiler, "CHECKS", (_refuse,))
    for leaves in (lambda c: c.ptx, lambda c: c.launches, lambda c: c.lane_ir, Compiled.assembled):
        with pytest.raises(InvalidLaneIR):
            leaves(kernel.compile("sm_80", facts=FACTS))


def test_invalid_decisions_are_found_before_anything_leaves(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Breaks:
        def run(self, kernel: t.Kernel, log: object) -> t.Kernel:
            (outer,) = kernel.body
            assert isinstance(outer, t.Parallel)
            return replace(kernel, body=outer.body)  # the index of `outer` means nothing there

    source = kernel.build()
    monkeypatch.setattr(compiler, "PASSES", lambda arch: (Breaks(),))
    with pytest.raises(InvalidIR):
        compile_kernel(source, "sm_80")
    # Code generation, which comes first, may fail on it in ways of its own.
    with pytest.raises(InvalidIR):
        _ = decide(source, "sm_80").ptx


def test_an_invalid_kernel_of_a_front_end_is_found_before_anything_leaves(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fails:
        def run(self, kernel: t.Kernel, log: object) -> t.Kernel:
            raise KeyError("a name that is not declared")

    valid = kernel.build()
    (outer,) = valid.body
    assert isinstance(outer, t.Parallel)
    invalid = replace(valid, body=outer.body)  # the index of `outer` means nothing there
    monkeypatch.setattr(compiler, "PASSES", lambda arch: (Fails(),))
    with pytest.raises(InvalidIR):  # not the failure that it causes
        decide(invalid, "sm_80")
    decided = decide(valid, "sm_80", front=()).decided
    with pytest.raises(InvalidIR):
        _ = replace(decide(valid, "sm_80", front=()), source=invalid, decided=decided).kernel


def test_lane_ir_is_checked(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    lower = compiler.lower

    def wrong(decided: t.Kernel, arch: str) -> tuple[Lowered, ...]:
        (unit,) = lower(decided, arch)
        unwritten = Instr("add.s32", (Reg("x", "s32"),), (Reg("y", "s32"), Reg("y", "s32")))
        return (replace(unit, lane=replace(unit.lane, body=(*unit.lane.body, unwritten))),)

    monkeypatch.setattr(compiler, "lower", wrong)
    with pytest.raises(InvalidLaneIR, match="before it is written"):
        _ = kernel.compile("sm_80").ptx


def test_the_cubin_comes_along(kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ptxas(QUICK, tmp_path, monkeypatch)
    ready = kernel.ready("sm_80", FACTS, assemble_for="sm_90")
    (tmp_path / "ptxas").unlink()
    assert ready.assembled("sm_90").bytes == IMAGE
    again = load(tmp_path / "twice.co").only().ready("sm_80", FACTS, assemble_for="sm_90")
    assert again == ready and again.cubin is None


def test_without_ptxas_there_is_a_text(kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEMMA_PTXAS", raising=False)
    monkeypatch.setattr("tilemma.assemble.toolchain._folders", lambda: iter([(str(tmp_path), "here")]))
    ready = kernel.ready("sm_80", FACTS, assemble_for="sm_90")
    assert ".target sm_80" in ready.ptx
    with pytest.raises(TilemmaError, match="ptxas was not found"):
        ready.assembled("sm_90")


def test_what_ptxas_refuses_is_refused(kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "ptxas {file}, line 9; error   : Unknown thing"
    _ptxas(f"sys.exit('{said}'.replace('{{file}}', sys.argv[-1]))", tmp_path, monkeypatch)
    with pytest.raises(PtxRejected, match="Unknown thing"):
        kernel.ready("sm_80", FACTS, assemble_for="sm_90")
    with pytest.raises(PtxRejected, match="Unknown thing"):
        kernel.compile("sm_80", facts=FACTS).assembled()


def test_leaving_early_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEMMA_CACHE", "")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    _ptxas(SLOW, tmp_path, monkeypatch)
    with pytest.raises(KeyboardInterrupt), begin("text", "sm_80"):
        process = _seen(tmp_path)
        assert _runs(process) and len(_left(tmp_path)) == 3
        raise KeyboardInterrupt
    assert not _runs(process) and _left(tmp_path) == []


def test_a_tool_that_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEMMA_CACHE", "")
    _ptxas("print('done')", tmp_path, monkeypatch)
    with pytest.raises(PtxasFailed, match=r"wrote nothing\): done"):
        assemble("text", "sm_80")


def test_a_tool_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ptxas(SLOW, tmp_path, monkeypatch)
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path / "cache"))
    find_tool("ptxas")
    (tmp_path / "ptxas").write_text("no program")
    with pytest.raises(PtxasFailed, match="not run"), begin("text", "sm_80"):
        raise AssertionError
    assert _left(tmp_path) == []


@pytest.mark.parametrize("own", [None, "glibc.malloc.tcache_count=0"])
def test_large_pages_unless_the_user_tunes_memory(
    own: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEMMA_CACHE", "")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    if own is None:
        monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    else:
        monkeypatch.setenv("GLIBC_TUNABLES", own)
    _ptxas(f"open(os.environ['SEEN'], 'w').write(os.environ['GLIBC_TUNABLES'])\n{QUICK}", tmp_path, monkeypatch)
    assemble("text", "sm_90")
    assert (tmp_path / "seen").read_text() == (own or "glibc.malloc.hugetlb=1:glibc.malloc.top_pad=67108864")
