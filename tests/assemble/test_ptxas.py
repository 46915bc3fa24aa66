from __future__ import annotations

import os
import stat
import sys
import threading
from pathlib import Path

import pytest
from fake_tools import elf_image, fake_tool, writes

from tilemma.assemble import (
    DiskCache,
    NoPtxas,
    PtxasFailed,
    PtxasTooOld,
    PtxRejected,
    ToolDoesNotRun,
    assemble,
    disassemble,
    driver_image,
    find_tool,
    local_memory_accesses,
    register_a_in_flight,
    sass_counts,
    source_position,
    toolchain,
)
from tilemma.assemble.ptxas import parse_messages, parse_usage, stated_options
from tilemma.errors import register_source

PTX = """.version 8.0
.target sm_80
.address_size 64
.file 1 "sum.co"
.visible .entry sum(.param .u64 p) .maxntid 128
{
    .reg .b32 r<5>;
    .reg .b64 q<5>;
    .loc 1 2 5
    ld.param.u64 q0, [p];
    ld.global.u32 r1, [q0];
    .loc 1 3 7
    add.u32 r2, r1, r1;
    st.global.u32 [q0], r2;
    ret;
}
"""

SPILLING = """.version 8.0
.target sm_80
.address_size 64
.visible .entry local(.param .u64 p) .maxntid 384
{
    .reg .b32 r<5>;
    .reg .b64 q<5>;
    .local .align 16 .b8 room[256];
    .shared .align 16 .b8 sh[1024];
    mov.u32 r1, %tid.x;
    cvt.u64.u32 q1, r1;
    mov.u64 q2, room;
    add.u64 q2, q2, q1;
    st.local.u32 [q2], r1;
    ld.local.u32 r3, [q2+16];
    mov.u32 r4, sh;
    add.u32 r4, r4, r1;
    st.shared.u32 [r4], r3;
    ld.shared.u32 r2, [r4+4];
    ld.param.u64 q0, [p];
    st.global.u32 [q0], r2;
    ret;
}
"""

try:
    PTXAS = find_tool("ptxas")
except NoPtxas:
    PTXAS = None
needs_ptxas = pytest.mark.skipif(PTXAS is None, reason="ptxas is not installed")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@needs_ptxas
def test_assembles_for_the_device_and_reports_usage() -> None:
    for arch in ("sm_80", "sm_90", "sm_90a"):
        cubin = assemble(PTX, arch)
        assert cubin.bytes[:4] == b"\x7fELF" and cubin.arch == arch
        assert cubin.registers > 0 and not cubin.spills and not cubin.problems
        assert [e.name for e in cubin.entries] == ["sum"]


@pytest.mark.parametrize(
    ("release", "options", "fast"),
    [
        ("13.5.0", [], True),
        ("14.0.1", ["-lineinfo"], True),
        ("13.4.9", [], False),
        ("13.5.0", ["-O0"], False),
        ("13.5.0", ["--opt-level", "3"], False),
        ("13.5.0", ["--Ofast-compile=0"], False),
    ],
)
def test_the_first_line_asks_for_fast_compilation(
    release: str, options: list[str], fast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"open({str(tmp_path / 'calls')!r}, 'a').write(repr('-Ofc=min' in sys.argv))\n"
    head = f"if '--version' in sys.argv: sys.exit(print('V{release}'))"
    path = fake_tool(tmp_path / "bin", script + writes(elf_image(80, "sum")), head=head)
    monkeypatch.setenv("TILEMMA_PTXAS", path)
    assemble("// ptxas -Ofc=min\n" + PTX, "sm_80", options=options)
    assert (tmp_path / "calls").read_text() == repr(fast)


@pytest.mark.parametrize(
    "line", ["// ptxas -O4", "// ptxas -Ofc=min --warn-on-spills", "// ptxas --help", "// by ptxas -Ofc=min"]
)
def test_the_first_line_has_no_other_options(line: str) -> None:
    assert stated_options("// ptxas -Ofc=min\n" + PTX) == ("-Ofc=min",)
    assert stated_options(f"{line}\n" + PTX) == ()


@needs_ptxas
def test_ptxas_takes_the_option_of_the_first_line() -> None:
    stated = "// ptxas -Ofc=min\n" + PTX
    assert disassemble(assemble(stated, "sm_80")) == disassemble(assemble(PTX, "sm_80", options=["-Ofc=min"]))


def test_code_that_spills_with_the_option_is_assembled_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spills = "    8 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads"
    script = f"""print("ptxas info    : Function properties for sum")
print({spills!r} if "-Ofc=min" in sys.argv else {spills.replace("8", "0")!r})
open({str(tmp_path / "calls")!r}, "a").write(repr("-Ofc=min" in sys.argv) + " ")
{writes(elf_image(80, "sum"))}"""
    monkeypatch.setenv("TILEMMA_PTXAS", fake_tool(tmp_path / "bin", script))
    stated = "// ptxas -Ofc=min\n" + PTX
    assert not assemble(stated, "sm_80").spills and assemble(stated, "sm_80").cached
    assert (tmp_path / "calls").read_text() == "True False "
    assert assemble(stated, "sm_80", options=["-Ofc=min"]).spills


def test_a_release_without_the_option_gets_the_text_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = "if '-Ofc=min' in sys.argv: sys.exit('ptxas fatal   : Unknown option')"
    wrong = "if 'wrong' in open(sys.argv[-1]).read(): sys.exit('ptxas fatal   : wrong')"
    script = f"{refuses}\n{wrong}\n{writes(elf_image(80, 'sum'))}"
    monkeypatch.setenv("TILEMMA_PTXAS", fake_tool(tmp_path / "bin", script))
    stated = "// ptxas -Ofc=min\n" + PTX
    assert assemble(stated, "sm_80").bytes == elf_image(80, "sum")
    with pytest.raises(PtxasFailed, match="wrong"):
        assemble(stated + "// wrong\n", "sm_80")
    with pytest.raises(PtxasFailed, match="Unknown option"):
        assemble(stated, "sm_80", options=["-Ofc=min"])


@needs_ptxas
def test_stack_shared_memory_and_local_accesses_are_seen() -> None:
    cubin = assemble(SPILLING, "sm_90")
    assert cubin.stack_bytes >= 256 and cubin.shared_bytes >= 1024
    sass = disassemble(cubin)
    assert local_memory_accesses(sass) >= 2
    assert local_memory_accesses(disassemble(assemble(PTX, "sm_90"))) == 0


@needs_ptxas
def test_opcodes_are_counted_with_and_without_modifiers() -> None:
    sass = disassemble(assemble(PTX, "sm_90"))
    counts = sass_counts(sass)
    assert counts["LDG"] == counts["STG"] == counts["EXIT"] == 1 and "NOP" not in counts
    assert sum(sass_counts(sass, modifiers=True).values()) == sum(counts.values())
    assert any(name.startswith("LDG.") for name in sass_counts(sass, modifiers=True))


@needs_ptxas
def test_ignored_setmaxnreg_is_a_property() -> None:
    body = PTX.replace("sm_80", "sm_90a").replace("ret;", "setmaxnreg.inc.sync.aligned.u32 240;\n ret;")
    assert assemble(body, "sm_90a").setmaxnreg_ignored
    good = body.replace(".maxntid 128", ".maxntid 128 .minnctapersm 1")
    assert not assemble(good, "sm_90a").setmaxnreg_ignored


@needs_ptxas
def test_an_error_shows_the_ptx_line_and_the_source_line() -> None:
    register_source("sum.co", "one\ntwo three\n  four five\n")
    with pytest.raises(PtxRejected) as caught:
        assemble(PTX.replace("add.u32 r2, r1, r1", "add.u32 r2, r1, rr"), "sm_80")
    error = caught.value
    assert error.span is not None and error.span.line == 13
    assert "rr" in error.message
    assert error.notes[0].span is not None and str(error.notes[0].span) == "sum.co:3:7"
    text = error.render()
    assert "add.u32 r2, r1, rr" in text and "four five" in text
    assert "Traceback" not in text


@needs_ptxas
def test_an_error_without_a_line_is_a_failure_of_the_tool() -> None:
    with pytest.raises(PtxasFailed, match="sm_8"):
        assemble(PTX, "sm_8")
    with pytest.raises(PtxasFailed):
        assemble(PTX.replace("sm_80", "sm_90a"), "sm_80")


@needs_ptxas
def test_the_cache_answers_and_survives_damage(own_cache: Path) -> None:
    first = assemble(PTX, "sm_80")
    again = assemble(PTX, "sm_80")
    assert again == first and again.cached and not first.cached
    assert not assemble(PTX, "sm_80", options=["-Ofc=min"]).cached
    assert not assemble(PTX, "sm_86").cached
    for file in (own_cache / "cubin").glob("*/*"):
        file.write_bytes(file.read_bytes()[:-1])
    damaged = assemble(PTX, "sm_80")
    assert not damaged.cached and damaged.bytes == first.bytes
    assert assemble(PTX, "sm_80").cached


def _fake_tool(folder: Path, script: str) -> str:
    path = folder / "ptxas"
    path.write_text(f"#!{sys.executable}\nimport sys, os, signal\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_no_ptxas_says_how_to_get_it_and_what_works_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TILEMMA_PTXAS", raising=False)
    monkeypatch.setattr(toolchain, "_folders", lambda: iter([(str(tmp_path), "here")]))
    with pytest.raises(NoPtxas) as caught:
        assemble(PTX, "sm_80")
    assert "tilemma[dev]" in caught.value.remedy and "CUDA_HOME" in caught.value.remedy
    assert "without it" in caught.value.remedy


def test_the_newest_wins_and_the_environment_overrides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folders = []
    for name, version in (("a", "12.9.1"), ("b", "13.10.2"), ("c", "13.9.3")):
        (tmp_path / name).mkdir()
        _fake_tool(tmp_path / name, f"print('Cuda compilation tools, release x, V{version}')")
        folders.append((str(tmp_path / name), "here"))
    monkeypatch.delenv("TILEMMA_PTXAS", raising=False)
    monkeypatch.setattr(toolchain, "_folders", lambda: iter(folders))
    assert find_tool("ptxas").version == (13, 10, 2)
    monkeypatch.setenv("TILEMMA_PTXAS", str(tmp_path / "a" / "ptxas"))
    assert find_tool("ptxas").release == "12.9.1"
    monkeypatch.setenv("TILEMMA_PTXAS", str(tmp_path / "nowhere"))
    with pytest.raises(ToolDoesNotRun, match="TILEMMA_PTXAS"):
        find_tool("ptxas")


def test_a_tool_is_identified_once_for_all_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    script = f"import time; open({str(asked)!r}, 'a').write('x'); time.sleep(0.3); print('V13.5.0')"
    monkeypatch.setenv("TILEMMA_PTXAS", _fake_tool(tmp_path, script))
    monkeypatch.setenv("TILEMMA_CACHE", "")
    threads = [threading.Thread(target=find_tool, args=("ptxas",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked.read_text() == "x"


def test_a_crash_of_ptxas_is_an_error_not_a_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = "print('V13.5.0') if '--version' in sys.argv else os.kill(os.getpid(), signal.SIGSEGV)"
    monkeypatch.setenv("TILEMMA_PTXAS", _fake_tool(tmp_path, script))
    with pytest.raises(PtxasFailed, match="signal 11"):
        assemble(PTX, "sm_80")


WGMMA_RS = """wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
  {d0, d1, d2, d3},
  {a0, a1, a2, a3}, desc, p, 1, 1, 1;
"""


def test_register_a_in_flight_reads_the_module() -> None:
    wait = "wgmma.wait_group.sync.aligned 1;\n"
    shared = WGMMA_RS.replace("{a0, a1, a2, a3}", "desc_a")
    assert register_a_in_flight(WGMMA_RS + wait) == 1
    assert register_a_in_flight(WGMMA_RS + wait.replace("1", "0")) == 0
    assert register_a_in_flight(shared + wait) == 0
    assert register_a_in_flight(shared + WGMMA_RS + wait + wait.replace("1", "3")) == 3


def test_old_ptxas_is_refused_for_register_a_in_flight(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEMMA_PTXAS", _fake_tool(tmp_path, "print('V13.0.88')"))
    with pytest.raises(PtxasTooOld, match=r"13\.0\.88"):
        assemble(WGMMA_RS + "wgmma.wait_group.sync.aligned 1;", "sm_90a")


def test_source_position_stops_at_the_function() -> None:
    lines = PTX.split("\n")
    at = {text.strip(): n for n, text in enumerate(lines, 1)}
    found = source_position(PTX, at["st.global.u32 [q0], r2;"])
    assert found is not None and (found.file, found.line, found.column) == ("sum.co", 3, 7)
    found = source_position(PTX, at["ld.global.u32 r1, [q0];"])
    assert found is not None and found.line == 2
    assert source_position(PTX, at[".reg .b32 r<5>;"]) is None


def test_messages_and_usage_of_a_stored_output() -> None:
    output = """ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas /tmp/k.ptx, line 12; warning : something odd
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'f' for 'sm_90a'
ptxas info    : Function properties for f
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 168 registers, used 3 barriers, 16 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compiling entry function 'g' for 'sm_90a'
ptxas info    : Function properties for g
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 360 bytes cmem[0]
"""
    messages = parse_messages(output)
    assert [(m.code, m.line, m.severity) for m in messages] == [("C7510", 0, "info"), ("", 12, "warning")]
    f, g = parse_usage(output)
    assert (f.registers, f.barriers, f.shared_bytes) == (168, 3, 1024)
    assert (f.stack_bytes, f.spills_stores, f.spills_loads) == (16, 8, 4)
    assert (g.name, g.registers, g.shared_bytes) == ("g", 8, 0)


def test_an_unwritable_cache_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = DiskCache("x", tmp_path / "file")
    cache.put(cache.key(1), b"data")
    assert cache.get(cache.key(1)) is None


def test_an_empty_variable_turns_the_cache_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEMMA_CACHE", "")
    cache = DiskCache("x")
    cache.put("ab", b"data")
    assert cache.get("ab") is None


def test_keys_tell_parts_apart(tmp_path: Path) -> None:
    key = DiskCache.key
    assert len({key("ab", "c"), key("a", "bc"), key("abc"), key(b"abc"), key("1"), key(1), key(("a", 1))}) == 7
    cache = DiskCache("x", tmp_path)
    cache.put(key("a"), b"")
    assert cache.get(key("a")) == b"" and cache.get(key("b")) is None
    cache.clear()
    assert cache.get(key("a")) is None and os.path.isdir(tmp_path / "x")


def test_the_driver_assembles_only_what_any_assembler_gets_right() -> None:
    assert driver_image(PTX) == PTX.encode() + b"\0"
    with pytest.raises(PtxasTooOld, match="inside the driver"):
        driver_image(WGMMA_RS + "wgmma.wait_group.sync.aligned 1;")
