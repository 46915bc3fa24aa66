"""Tools that hang, crash, print garbage, nothing or too much; tools that are not installed; other machine code."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_tools import elf_image, fake_tool, writes

from tilemma.assemble import (
    DisassemblyFailed,
    DiskCache,
    PtxasFailed,
    ToolDoesNotRun,
    assemble,
    cache,
    disassemble,
    elf,
    find_tool,
    process,
    ptxas,
    settings,
    toolchain,
)
from tilemma.errors import ToolError

PTX = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry sum() { ret; }\n"
IMAGE = elf_image(80, "sum")


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.delenv("TILEMMA_PTXAS", raising=False)
    monkeypatch.delenv("TILEMMA_NVDISASM", raising=False)


def left(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "tmp").iterdir())


# What a tool does instead of its work, and what the error says.
FAULTS = {
    "hangs": ("time.sleep(100)", "still running"),
    "hangs in a child": ("os.system('sleep 100')", "still running"),
    "hangs, and said something": ("print('last words', flush=1); time.sleep(99)", "last words"),
    "crashes": ("print('before', flush=1); os.kill(os.getpid(), signal.SIGSEGV)", "before"),
    "exits silently": ("sys.exit(3)", "no message"),
    "fails with garbage": ("sys.stdout.buffer.write(bytes(range(256)) * 9); sys.exit(1)", "failed"),
    "prints without end": ("while 1: print('x' * 65536)", "MiB of output"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["ptxas", "nvdisasm"])
def test_a_failing_tool_is_our_error_and_leaves_nothing(
    name: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, says = FAULTS[fault]
    monkeypatch.setenv(f"TILEMMA_{name.upper()}", fake_tool(tmp_path / "bin", script, name))
    monkeypatch.setenv("TILEMMA_TOOL_SECONDS", "1.5")
    monkeypatch.setattr(process, "OUTPUT_LIMIT", 1 << 20)
    with pytest.raises(PtxasFailed if name == "ptxas" else DisassemblyFailed) as caught:
        assemble(PTX, "sm_80") if name == "ptxas" else disassemble(IMAGE)
    assert says in caught.value.message or fault == "fails with garbage"
    assert ("xxx" in caught.value.message) == (fault == "prints without end")
    assert left(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="the tool's group is not known after its end here")
def test_a_child_that_a_tool_leaves_behind_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    # The child keeps the lock as long as it runs.
    script = f"import fcntl, subprocess; f = open({str(tmp_path / 'lock')!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX)"
    script += f"\nsubprocess.Popen(['sleep', '60'], pass_fds=[f.fileno()])\n{writes(IMAGE)}"
    monkeypatch.setenv("TILEMMA_PTXAS", fake_tool(tmp_path / "bin", script))
    assert assemble(PTX, "sm_80").bytes == IMAGE
    with open(tmp_path / "lock", "w") as lock:
        for _ in range(200):
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.05)
    raise AssertionError("the child still runs")


def test_the_time_limit_is_that_of_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "TILEMMA_PTXAS", fake_tool(tmp_path / "bin", "", head="print('so far', flush=1); time.sleep(9)")
    )
    monkeypatch.setenv("TILEMMA_TOOL_SECONDS", "0.5")
    with pytest.raises(ToolDoesNotRun, match=r"still running after 0.5 s.*so far"):
        find_tool("ptxas")


@pytest.mark.parametrize("text", ["x", "0", "-1", "nan", "1" * 400, "\x1b[31m"])
def test_a_setting_that_is_no_number_is_ignored_with_a_warning(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_warned", set())
    for name, used in (
        ("TILEMMA_TOOL_SECONDS", lambda: process.time_limit() == process.TIME_LIMIT),
        ("TILEMMA_CACHE_MB", lambda: cache.size_limit() == cache.LIMIT),
    ):
        monkeypatch.setenv(name, text)
        with pytest.warns(settings.IgnoredSetting, match=f"^{name}=.* is ignored: expected a") as said:
            assert used() and used()
        assert len(said) == 1 and "\x1b" not in str(said[0].message)


@pytest.mark.parametrize(
    "left_behind",
    ["", "os.mkdir(out)", "os.mkfifo(out)", "os.symlink('/dev/zero', out)", "os.symlink('/etc/passwd', out)",
     "open(out, 'wb').truncate(1 << 40)"],
)  # fmt: skip
def test_only_a_regular_file_is_read_back(
    left_behind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"out = sys.argv[sys.argv.index('-o') + 1]; os.unlink(out); {left_behind}"
    monkeypatch.setenv("TILEMMA_PTXAS", fake_tool(tmp_path / "bin", script))
    with pytest.raises(PtxasFailed):
        assemble(PTX, "sm_80")
    assert left(tmp_path) == []


def test_of_many_messages_the_last_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxas, "_MOST_SAID", 4096)
    script = "print('ptxas error   : a\\n' * 10000 + 'ptxas error   : the last'); sys.exit(1)"
    monkeypatch.setenv("TILEMMA_PTXAS", fake_tool(tmp_path / "bin", script))
    with pytest.raises(PtxasFailed, match="the last") as caught:
        assemble(PTX, "sm_80")
    assert len(caught.value.message) < 2200


@pytest.mark.parametrize(
    "image, says",
    [
        (b"\0" * 1000, "not an ELF"),
        (b"", "wrote nothing"),
        (IMAGE[:100], "damaged"),
        (elf_image(80, "sum", machine=62), "machine 62"),
        (elf_image(90, "sum"), "sm_90"),
        (elf_image(80, "other"), "no entry sum"),
        (elf_image(80), "no entry sum"),
    ],
)
def test_what_comes_back_is_machine_code_for_this_kernel(
    image: bytes, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEMMA_PTXAS", fake_tool(tmp_path / "bin", writes(image)))
    with pytest.raises(PtxasFailed, match=says):
        assemble(PTX, "sm_80")
    assert left(tmp_path) == [] and not list((tmp_path / "cache" / "cubin").glob("*/*"))


def test_both_versions_of_the_abi_say_their_architecture() -> None:
    assert elf.problem(elf_image(90, "f", abi=7), "sm_90a", ["f"]) is None
    assert elf.problem(elf_image(90, "f", abi=8), "sm_90a", ["f"]) is None


def test_any_damage_to_an_image_is_answered(tmp_path: Path) -> None:
    for at in range(len(IMAGE)):
        for value in (0, 1, 0x7F, 0xFF):
            elf.problem(IMAGE[:at] + bytes([value]) + IMAGE[at + 1 :], "sm_80", ["sum"])
        assert elf.problem(IMAGE[:at], "sm_80", ["sum"]) is not None


@pytest.mark.parametrize(
    "head",
    [
        "sys.exit(7)",
        "print('hello')",
        "sys.stdout.buffer.write(b'\\xff\\xfe' * 1000)",
        "print('V' + '9' * 100000)",
        "print('x' * (2 << 20))",
        "time.sleep(100)",
        "os.kill(os.getpid(), signal.SIGKILL)",
    ],
)
def test_a_tool_that_does_not_say_its_version(head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_VERSION_SECONDS", 1.5)
    monkeypatch.setattr(process, "OUTPUT_LIMIT", 1 << 20)
    monkeypatch.setenv("TILEMMA_PTXAS", fake_tool(tmp_path / "bin", "", head=head))
    with pytest.raises(ToolDoesNotRun):
        find_tool("ptxas")
    assert left(tmp_path) == []


def test_the_reason_is_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEMMA_PTXAS", fake_tool(tmp_path / "bin", "", head="sys.exit(print('hello') or 7)"))
    search = toolchain.Search("ptxas")
    search.ask()
    for _ in range(2):
        with pytest.raises(ToolDoesNotRun, match="status 7, `hello`"):
            search.tool()
    search.end()
    assert left(tmp_path) == []


def test_a_search_ends_while_another_thread_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = toolchain.Search("ptxas")
    path = fake_tool(tmp_path / "bin", "", head="time.sleep(9)")
    search._ask((path,))
    (question,) = search._asked.values()
    assert isinstance(question, toolchain._Question)
    ended = question.end

    def ask_another() -> None:
        search._ask((str(tmp_path / "missing"),))
        ended()

    monkeypatch.setattr(question, "end", ask_another)
    search.end()
    assert left(tmp_path) == []


def test_a_version_in_another_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = "sys.exit(sys.stdout.buffer.write('Überarbeitung V13.5.37'.encode('latin-1')) and 0)"
    path = fake_tool(tmp_path / "bin", "", head=head)
    (tmp_path / "bin" / "ptxas").write_text("# -*- coding: utf-8 -*-\n" + Path(path).read_text(), encoding="utf-8")
    text = Path(path).read_text().split("\n", 1)
    Path(path).write_text(f"#!{sys.executable}\n" + text[1])
    monkeypatch.setenv("TILEMMA_PTXAS", path)
    assert find_tool("ptxas").version == (13, 5, 37)


@pytest.mark.parametrize("path", ["/nowhere/ptxas", "/", "/dev/null", "", "\0", "x" * 5000])
def test_an_override_that_is_no_program(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "candidates", lambda name: {"named": [path]})
    with pytest.raises(ToolError):
        find_tool("ptxas")


def test_nothing_in_the_working_folder_is_run(tmp_path: Path) -> None:
    """A REPL has the working folder in `sys.path`; so have `python -c` and `python -m`."""
    seen = tmp_path / "seen"
    bad = f"open({str(seen)!r}, 'w').write('ran')"
    for folder in ("nvidia/cu99/bin", ".", "bin"):
        for name in ("ptxas", "nvdisasm"):
            fake_tool(tmp_path / "here" / folder, "", name, head=f"{bad}\nprint('V99.0.0')")
    code = "import sys; sys.path.insert(0, '')\nfrom tilemma.assemble import find_tool, ToolError\n"
    code = code.replace(", ToolError", "") + "from tilemma.errors import ToolError\n"
    code += "for n in ('ptxas', 'nvdisasm'):\n try: print(find_tool(n))\n except ToolError as e: print(e.code)\n"
    paths = ["", ".", "bin", "nvidia/cu99/bin", *os.environ["PATH"].split(os.pathsep)]
    environment = {**os.environ, "PATH": os.pathsep.join(paths), "CUDA_HOME": "nvidia/cu99", "CUDA_PATH": "."}
    for key in ("TILEMMA_PTXAS", "TILEMMA_NVDISASM"):
        environment.pop(key, None)
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "here", env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert not seen.exists() and "99" not in run.stdout


def test_the_wheel_comes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(folder: str, version: str) -> Path:
        fake_tool(tmp_path / folder, "", head=f"print('V{version}')")
        return tmp_path / folder

    wheel = program("site/nvidia/cu12/bin", "12.9.0")
    program("site/nvidia/cu13/bin", "13.0.0")
    newest = program("usr/bin", "13.9.0")
    monkeypatch.setattr(toolchain, "site_folders", lambda: [str(tmp_path / "site")])
    monkeypatch.setenv("PATH", str(newest))
    assert find_tool("ptxas").release == "13.0.0" and "wheel" in find_tool("ptxas").why
    monkeypatch.setenv("TILEMMA_PTXAS", str(newest / "ptxas"))
    assert find_tool("ptxas").release == "13.9.0" and "TILEMMA_PTXAS" in find_tool("ptxas").why
    monkeypatch.delenv("TILEMMA_PTXAS")
    monkeypatch.setattr(toolchain, "site_folders", list)
    assert find_tool("ptxas").release == "13.9.0" and "PATH" in find_tool("ptxas").why
    assert wheel.exists()


def test_a_cubin_is_kept_for_the_tool_that_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fake_tool(tmp_path / "a", writes(IMAGE))
    second = fake_tool(tmp_path / "b", writes(IMAGE))
    monkeypatch.setenv("TILEMMA_PTXAS", first)
    assert not assemble(PTX, "sm_80").cached and assemble(PTX, "sm_80").cached
    monkeypatch.setenv("TILEMMA_PTXAS", second)
    assert not assemble(PTX, "sm_80").cached, "another path"
    monkeypatch.setenv("TILEMMA_PTXAS", first)
    toolchain._chosen.clear()
    fake_tool(tmp_path / "a", writes(IMAGE) + "\n# changed")
    assert not assemble(PTX, "sm_80").cached, "another program at the same path"


def test_a_kept_cubin_is_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEMMA_PTXAS", fake_tool(tmp_path / "a", writes(IMAGE)))
    puts: list[tuple[str, bytes]] = []
    put = DiskCache.put
    monkeypatch.setattr(DiskCache, "put", lambda s, k, c: (puts.append((k, c)), put(s, k, c))[1])
    assemble(PTX, "sm_80")
    key, content = puts[-1]
    for wrong in (b"", b"\xff\xff\xff\xff{}", b"\4\0\0\0null", content.replace(b"sum", b"sun"), content[:-70]):
        put(DiskCache("cubin"), key, wrong)
        cubin = assemble(PTX, "sm_80")
        assert not cubin.cached and cubin.bytes == IMAGE
