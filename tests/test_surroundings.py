"""The command line in odd surroundings: outputs not to be lost, closed and full pipes, interrupts, odd files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import unicodedata
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner, Result
from fake_tools import elf_image, fake_tool, writes

from tilemma import errors
from tilemma.cli import main
from tilemma.errors import Span, visible
from tilemma.tools.check import progress_bar

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = str(ROOT / "examples/co/matmul_wgmma_2group.co")
KERNEL = """__co__ void twice(global f32 [M, N] a, int n, float x) {
  parallel i by M : block, j by 32 : thread
    a.at(i, j) = a.at(i, j) * 2.0f;
}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def kernel(tmp_path: Path) -> str:
    path = tmp_path / "twice.co"
    path.write_text(KERNEL)
    return str(path)


def call(*args: str) -> Result:
    return CliRunner().invoke(main, list(args), catch_exceptions=False)


def tilemma(*args: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "tilemma.cli", *args], timeout=120, **options)


# -- nothing silently passes


@pytest.mark.parametrize("schedules", ["0", "-3", "x", "1e3"])
def test_a_check_without_schedules_is_an_error(schedules: str, kernel: str) -> None:
    result = call("check", kernel, "--arg", "n=1", "--arg", "x=1", "--schedules", schedules)
    assert result.exit_code == 2 and "no hazard" not in result.output


@pytest.mark.parametrize(
    "args",
    [["n=1"], ["x=1.0"], ["n=1", "x=1", "q=2"], ["n=1.5", "x=1"], ["n=abc", "x=1"], ["N=1", "x=1"], ["n", "x=1"]],
)
@pytest.mark.parametrize("command", ["run", "check"])
def test_scalars_are_all_given_and_known(command: str, args: list[str], kernel: str) -> None:
    options = [option for a in args for option in ("--arg", a)]
    result = call(command, kernel, "--shape", "M=2,N=32", *options)
    assert result.exit_code == 2 and "error[bad-argument]" in result.output


PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry f(.param .u64 out, .param .u32 n) { ret; }
"""


@pytest.fixture
def ptx(tmp_path: Path) -> list[str]:
    path = tmp_path / "f.ptx"
    path.write_text(PTX)
    return [str(path), "--grid", "1", "--block", "32", "--schedules", "1", "--arg", "u32[8]=out"]


# Digits that `str.isdigit` takes and `int` does not, that only `int` takes, and more than `int` takes.
@pytest.mark.parametrize("number", ["²", "٣", "１", "9" * 5000, "-1", "1_0", "nan", "\0", ""])
def test_numbers_are_ascii_digits(number: str, ptx: list[str]) -> None:
    texts = [f"u32[{number or 'x'}]=out", f"tma(a0, box={number})", f"tma(a0, box=8, swizzle={number})"]
    lines = [["check", *ptx, "--arg", text] for text in texts]
    lines += [["check", *ptx, "--arg", "u32=1", option, number] for option in ("--cluster", "--lane", "--writer")]
    lines += [["check", *ptx, "--arg", "u32=1", "--writer", w] for w in (f"a0[{number or 'x'}]", f"%r1@{number}")]
    lines += [["show", "SM80_16x8x16_F32F16F16F32_TN", o, number] for o in ("--element", "--lane")]
    for line in lines:
        result = call(*line)
        assert result.exit_code == 2 and "error[" in result.output, line


@pytest.mark.parametrize(
    "value", ["u8=256", "u8=-1", "u32=-1", "s32=2**31", "u64=2**64", "s32=7.5", "s32=np.nan", "s64=1e30",
              "u32=1e400", "s32[2]=[1, 2.5]", "u8[2]=[1, 300]", "s8[2]=np.full(2, np.inf)", "u32[8]=10**30"]
)  # fmt: skip
def test_an_integer_argument_holds_its_value(value: str, ptx: list[str]) -> None:
    result = call("check", *ptx, "--arg", value)
    assert result.exit_code == 2 and "error[bad-argument]" in result.output and "exactly" in result.output


def test_values_that_fit_are_taken(ptx: list[str]) -> None:
    for value in (
        "u32=4294967295",
        "s32=-2**31",
        "u32=3.0",
        "f32=0.1",
        "f16=1e9",
        "f32[2]=[0.1, np.nan]",
        "u32=True",
    ):
        assert "error[bad-argument]" not in call("check", *ptx, "--arg", value).output, value
    assert call("check", *ptx[:-1], "u32[]=out", "--arg", "u32=1").exit_code == 0


@pytest.mark.parametrize(
    "inside", ["box=8, box=8", "box=8, fill=x", "box=8, fill", "box=8, swizzle", "box=8, size=2"]
)
def test_options_of_a_tensor_map_are_known_and_given_once(inside: str, ptx: list[str]) -> None:
    result = call("check", *ptx, "--arg", f"tma(a0, {inside})")
    assert result.exit_code == 2 and "error[bad-argument]" in result.output


def test_a_name_has_one_value(kernel: str) -> None:
    for options in (
        ["--arg", "n=1,x=1", "--shape", "M=2,M=3"],
        ["--arg", "n=1", "--arg", "n=2"],
        ["--define", "A=1,A=2"],
    ):
        result = call("run", kernel, *options)
        assert result.exit_code == 2 and "has a value already" in result.output


def test_a_problem_beyond_the_memory_is_refused_by_its_size() -> None:
    for shape in ("M=1000000,N=1000000,K=1000000", f"M={'9' * 18},N=1,K=1", "M=" + "9" * 5000 + ",N=1,K=1"):
        for command in (["run", "--target", "cpu"], ["check"]):
            result = call(command[0], EXAMPLE, *command[1:], "--shape", shape)
            assert result.exit_code == 2 and "error[bad-shape]" in result.output
    assert "limit" in call("run", EXAMPLE, "--shape", "M=1000000,N=1000000,K=1000000").output


@pytest.mark.parametrize(
    "tile", ["99999999999x1x1", "4096x4096x4096", "1x1", "x", "-1x1x1", "1e3x1x1", "9" * 5000 + "x1x1"]
)
def test_tiles_have_a_limit(tile: str) -> None:
    for args in (["--tile", tile], ["--tile", "128x128x64", "--units", tile]):
        assert call("show", "SM80_16x8x16_F32F16F16F32_TN", *args).exit_code == 2
    assert call("show", f"f16,{tile},K,128").exit_code == 2


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", "/", "", "x\0y", "x" * 5000, "nowhere.co", "fifo"])
@pytest.mark.parametrize("suffix", ["", ".py"])
def test_only_regular_files_are_read(
    name: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(f"fifo{suffix}")
    for command in (["explain"], ["run", "--shape", "M=1"], ["compile", "--arch", "sm_80", "--emit", "ptx"]):
        result = CliRunner().invoke(main, [command[0], name + suffix, *command[1:]])
        assert result.exit_code == 2, result.exception


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    with open(tmp_path / "huge.co", "wb") as file:
        file.truncate(1 << 40)
    result = call("explain", str(tmp_path / "huge.co"))
    assert result.exit_code == 2 and "limit" in result.output


def test_what_a_python_file_raises_is_shown_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text("x = 1\n\ndef f():\n    return x / 0\n\nf()\n")
    result = call("explain", str(tmp_path / "k.py"))
    assert result.exit_code == 2 and "error[program-failed]" in result.output
    assert "line 4" in result.output and "ZeroDivisionError" in result.output and "runpy" not in result.output


# -- outputs


def compiled(source: str, output: object, *more: str) -> Result:
    return call("compile", source, "--arch", "sm_80", "--emit", "ptx", "-o", str(output), *more)


def test_a_file_that_we_did_not_write_is_kept(kernel: str, tmp_path: Path) -> None:
    out = tmp_path / "out.ptx"
    out.write_text("precious")
    result = compiled(kernel, out)
    assert result.exit_code == 2 and "--force" in result.output and out.read_text() == "precious"
    assert compiled(kernel, out, "--force").exit_code == 0 and ".entry" in out.read_text()
    assert compiled(kernel, out).exit_code == 0, "our own may be replaced"
    out.write_text(out.read_text() + "// by hand")
    assert compiled(kernel, out).exit_code == 2


def test_the_source_is_never_replaced(kernel: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(kernel)
    os.link(kernel, tmp_path / "hard")
    for output in (kernel, tmp_path / "link", tmp_path / "hard", tmp_path / "." / "twice.co"):
        for more in ([], ["--force"]):
            assert compiled(kernel, output, *more).exit_code == 2
            assert Path(kernel).read_text() == KERNEL


def test_a_file_is_replaced_as_a_whole(kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "folder" / "out.ptx"
    out.parent.mkdir()
    assert compiled(kernel, out).exit_code == 0
    out.chmod(0o640)
    before = out.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = compiled(kernel, out)
    assert result.exit_code == 2 and "No space left" in result.output
    assert out.read_bytes() == before and os.listdir(out.parent) == ["out.ptx"]
    monkeypatch.undo()
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path / "cache"))
    assert compiled(kernel, out).exit_code == 0 and out.stat().st_mode & 0o777 == 0o640


def test_a_foreign_file_of_another_size_is_not_read(kernel: str, tmp_path: Path) -> None:
    out = tmp_path / ("漢" * 80)  # 240 bytes: no room for a longer temporary name
    assert compiled(kernel, out).exit_code == compiled(kernel, out).exit_code == 0
    with open(out, "r+b") as file:
        file.truncate(1 << 40)
    result = compiled(kernel, out)
    assert result.exit_code == 2 and "--force" in result.output and out.stat().st_size == 1 << 40
    assert compiled(kernel, out, "--force").exit_code == 0 and os.listdir(tmp_path).count(out.name) == 1


def test_a_timeline_is_an_output_too(ptx: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.svg"
    out.write_text("precious")
    check = ["check", *ptx, "--arg", "u32=1", "--timeline"]
    result = call(*check, str(out))
    assert result.exit_code == 2 and "--force" in result.output and out.read_text() == "precious"
    assert call(*check, str(out), "--force").exit_code == 0 and "<svg" in out.read_text()
    for place in (ptx[0], "", str(tmp_path)):
        assert call(*check, place, "--force").exit_code == 2
    assert Path(ptx[0]).read_text() == PTX


def test_a_pipe_under_another_name(kernel: str) -> None:
    run = tilemma(
        "compile", kernel, "--arch", "sm_80", "--emit", "ir", "-o", "/dev/stdout", stdout=subprocess.PIPE
    )
    assert run.returncode == 0 and b"kernel twice" in run.stdout


def test_a_link_stays_a_link(kernel: str, tmp_path: Path) -> None:
    (tmp_path / "link.ptx").symlink_to(tmp_path / "real.ptx")
    assert compiled(kernel, tmp_path / "link.ptx").exit_code == 0
    assert (tmp_path / "link.ptx").is_symlink() and ".entry" in (tmp_path / "real.ptx").read_text()


@pytest.mark.parametrize("output", ["nowhere/out", "", "folder", "x\0", "x" * 5000, "/proc/1/nothing"])
def test_places_that_cannot_be_written(
    output: str, kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert compiled(kernel, output).exit_code == 2


def test_a_dash_is_standard_output_and_devices_are_written(kernel: str) -> None:
    assert ".entry" in compiled(kernel, "-").output
    assert compiled(kernel, "/dev/null").exit_code == 0


@pytest.mark.parametrize(
    "command",
    [
        ["--version"],
        ["check", "--help"],
        ["atoms"],
        ["explain", EXAMPLE],
        ["show", "SM80_16x8x16_F32F16F16F32_TN"],
    ],
)
def test_a_closed_pipe_ends_quietly_with_the_usual_status(command: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    run = tilemma(*command, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (run.returncode, run.stderr) == (0, b"")


def test_no_standard_output_at_all(kernel: str) -> None:
    for command in (["atoms"], ["check", kernel, "--shape", "M=1,N=32", "--arg", "n=1,x=1", "--schedules", "1"]):
        again = f"os.execv(sys.executable, [sys.executable, '-m', 'tilemma.cli', *{command!r}])"
        script = f"import os, sys; os.close(1); os.close(2); {again}"
        assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


@pytest.mark.parametrize("command", [["atoms"], ["--help"], ["--version"], ["run", "nowhere.co", "--json"]])
def test_a_full_standard_output_is_an_error(command: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        run = tilemma(*command, stdout=full, stderr=subprocess.PIPE)
    assert run.returncode == 2 and b"cannot-write-file" in run.stderr and b"Traceback" not in run.stderr


@pytest.mark.parametrize(
    "raised, code",
    [(KeyError("x"), "command-failure"), (MemoryError(), "too-large"), (RecursionError("r"), "too-large")],
)
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_what_is_left_at_the_border_has_status_2(
    raised: Exception, code: str, as_json: list[str], kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its frames are the standard library's, so that it does not count as a mistake of the user's program.
    monkeypatch.setattr("tilemma.tools.run.make_problem", Mock(side_effect=raised))
    result = CliRunner().invoke(main, ["run", kernel, "--arg", "n=1,x=1", *as_json], catch_exceptions=False)
    assert result.exit_code == 2 and "Traceback" not in result.output
    said = json.loads(result.stdout)["error"]["code"] if as_json else result.stderr
    assert code in said


# -- which tool


def test_the_version_says_which_tools_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEMMA_PTXAS", fake_tool(tmp_path / "bin", writes(elf_image(80, "twice"))))
    result = call("--version")
    assert result.exit_code == 0
    assert "ptxas 13.5.0" in result.output and str(tmp_path) in result.output and "TILEMMA_PTXAS" in result.output
    plan = call("explain", EXAMPLE)
    assert "assembler ptxas 13.5.0" in plan.output and "TILEMMA_PTXAS" in plan.output
    assert json.loads(call("explain", EXAMPLE, "--json").output)["assembler"]["release"] == "13.5.0"


# -- interrupts


def default_signals() -> None:
    """A shell starts what runs in the background with SIGINT ignored, and `nohup` with SIGHUP."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("sent, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupt_has_its_own_status_and_leaves_no_file(
    sent: signal.Signals, status: int, kernel: str, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    seen = tmp_path / "seen"
    tool = fake_tool(tmp_path / "bin", f"open({str(seen)!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    environment = {**os.environ, "TILEMMA_PTXAS": tool, "TMPDIR": str(tmp_path / "tmp")}
    run = subprocess.Popen(
        [sys.executable, "-m", "tilemma.cli", "compile", kernel, "--arch", "sm_80", "--emit", "cubin"],
        env=environment,
        stderr=subprocess.PIPE,
        preexec_fn=default_signals,
    )
    deadline = time.monotonic() + 60
    while not (seen.exists() and seen.read_text()):
        assert time.monotonic() < deadline and run.poll() is None
        time.sleep(0.02)
    run.send_signal(sent)
    _, said = run.communicate(timeout=60)
    assert run.returncode == status and b"Traceback" not in said
    assert os.listdir(tmp_path / "tmp") == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(seen.read_text()), 0)


# -- text from outside

HOSTILE = "\x1b[31mred\x1b]0;title\x07 \u202eright\u2066 \x9b2J \x00 \u2028 \ud800 \r over"


def test_what_a_terminal_obeys_is_escaped_and_kept_in_json(tmp_path: Path) -> None:
    path = tmp_path / "h.co"
    path.write_bytes(f"#error {HOSTILE}\n".replace("\r", "").encode("utf-8", "replace"))
    result = call("explain", str(path))
    assert result.exit_code == 2 and not any(c in result.output for c in "\x1b\x07\u202e\u2066\x9b\x00\u2028")
    assert "\\x1b" in result.output and "\\u202e" in result.output
    error = json.loads(CliRunner().invoke(main, ["explain", str(path), "--json"]).stdout)["error"]
    assert "\x1b" in error["message"] and "\u202e" in error["message"]


def test_visible_leaves_what_is_only_text() -> None:
    text = "plain äöü 漢字 שלום العربية 🎉\n\ttab"
    assert visible(text) == text
    for c in map(chr, (*range(32), *range(127, 160), 0x200E, 0x202E, 0x2066, 0x2069, 0xD800, 0xFEFF)):
        assert (visible(c) == c) == (c in "\n\t")
    visible(HOSTILE).encode("ascii", "strict")


def test_format_characters_are_shown_as_numbers() -> None:
    # Arabic and other signs that a number follows are format characters, and are seen.
    seen = {0x600, 0x601, 0x602, 0x603, 0x604, 0x605, 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
    kinds = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    hidden = [c for c in map(chr, range(0xE1000)) if unicodedata.category(c) in kinds and ord(c) not in seen]
    kept = visible("".join(hidden))
    assert {c for c in kept if c in hidden} <= {"\n", "\t", *map(chr, range(0x13430, 0x13440))}
    assert visible("\U000e0041") == "\\U000e0041" and visible("\u3164") == "\\u3164"


def test_carets_stand_below_marked_letters() -> None:
    errors.register_source("m.co", "ก\u0e31e\u0301漢\tX\n")
    *_, carets = errors.excerpt(Span("m.co", 1, 7, 1, 8))
    assert carets.split("| ")[1] == " " * (1 + 1 + 2 + 1) + "^"


def test_the_title_of_a_bar_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(1, "[/red]\x1b]0;title\x07.ptx") as tick:
        tick(1, 1)
    assert "\x1b]0;" not in capsys.readouterr().err


@pytest.mark.parametrize("where", ["name", "line", "note"])
def test_errors_show_no_text_that_is_obeyed(where: str) -> None:
    errors.register_source("h.co", f"{HOSTILE}\n")
    span = Span("h.co" if where != "name" else HOSTILE, 1, 3, 1, 8)
    note = errors.Note(HOSTILE, span)
    error = errors.WrongArgument(span, notes=[note], function=HOSTILE, name="x", got=HOSTILE, wanted=HOSTILE)
    assert visible(error.render()) == error.render() == str(error)
    assert json.loads(error.json())["message"] == error.message
    assert HOSTILE in error.message


def test_directions_of_writing_warn(tmp_path: Path) -> None:
    for name, text in (("k.co", KERNEL + "// \u202e } evil"), ("k.py", "# \u2066 evil\n")):
        path = tmp_path / name
        path.write_text(text)
        result = CliRunner().invoke(main, ["explain", str(path)])
        assert (
            "warning: " in result.stderr
            and f"{name}:" in result.stderr
            and "changes the direction" in result.stderr
        )
    (tmp_path / "k.co").write_text(KERNEL + "// שלום العربية 漢字")
    assert "warning" not in CliRunner().invoke(main, ["explain", str(tmp_path / "k.co")]).stderr


@pytest.mark.parametrize(
    "before, marked, after", [(5, 3, 100_000), (100_000, 3, 5), (50_000, 3, 50_000), (0, 100_000, 0)]
)
def test_a_long_line_is_cut_around_the_carets(before: int, marked: int, after: int) -> None:
    errors.register_source("long.co", "a" * before + "X" * marked + "b" * after)
    lines = errors.excerpt(Span("long.co", 1, before + 1, 1, before + marked + 1))
    shown, carets = lines[2].split(" | ", 1)[1], lines[3].split(" | ", 1)[1]
    assert len(shown) < 150 and len(carets) <= len(shown)
    start, count = carets.index("^"), carets.count("^")
    assert set(shown[start : start + count]) == {"X"} and (marked > 50 or count == marked)


# -- files named in PTX


def test_files_named_in_ptx_are_shown_only_below_known_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, other = tmp_path / "work", tmp_path / "other"
    for folder in (work, other):
        folder.mkdir()
        (folder / "below.co").write_text("the line\n")
    os.mkfifo(work / "fifo")
    (work / "link").symlink_to(other / "below.co")
    with open(work / "huge", "wb") as file:
        file.truncate(1 << 40)
    monkeypatch.chdir(work)
    assert errors.source_line("below.co", 1) == errors.source_line(str(work / "below.co"), 1) == "the line"
    for name in (
        other / "below.co",
        "../other/below.co",
        "link",
        "fifo",
        "huge",
        "/etc/passwd",
        "/dev/zero",
        "",
        "\0",
        ".",
    ):
        assert errors.source_line(str(name), 1) is None, name
    errors.show_sources_below(str(other))
    assert errors.source_line(str(other / "below.co"), 1) == "the line"
