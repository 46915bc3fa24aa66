"""The command line: what it prints, its exit statuses, its JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tilemma as tm
from tilemma.cli import main
from tilemma.runtime import gpu_unavailable_reason
from tilemma.tools.plan_words import next_steps

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = str(ROOT / "examples/co/matmul_wgmma_2group.co")
SMALL = "M=70,N=40,K=72"


def call(*args: str) -> Result:
    return CliRunner().invoke(main, list(args), catch_exceptions=False)


def changed(tmp_path: Path, old: str, new: str) -> str:
    """The example with one text replaced."""
    text = Path(EXAMPLE).read_text()
    assert old in text
    path = tmp_path / "kernel.co"
    path.write_text(text.replace(old, new))
    return str(path)


def test_run_compares_with_float64() -> None:
    result = call("run", EXAMPLE, "--target", "cpu", "--shape", SMALL, "--expect", "mk,nk->mn", "--plan")
    assert result.exit_code == 0
    assert "within the bound" in result.output
    assert "SM90_64x64x16_F32F16F16_SS" in result.output


def test_the_demo_prints_at_most_15_lines_of_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # the page is written there
    result = call("run", EXAMPLE, "--target", "cpu", "--shape", SMALL, "--plan")
    plan, _, rest = result.output[result.output.index("plan for") :].partition("\nin words\n")
    assert len(plan.strip().splitlines()) <= 15
    words, _, steps = rest.partition("\nnext\n")
    assert "lhs[128 x 128]" in words and "SM90_64x64x16_F32F16F16_SS" in words and "32 registers" in words
    commands = [line.strip().partition("   ")[0].split() for line in steps.strip().splitlines()]
    assert [c[:2] for c in commands] == [["tilemma", x] for x in ("explain", "check", "show", "compile")]
    for command in commands:
        schedules = ["--schedules", "2"] if command[1] == "check" else []
        assert call(*command[1:], *schedules).exit_code == 0


def test_the_demo_names_a_command_that_is_not_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / ".venv/bin/tilemma")])
    assert next_steps("k.co", "sm_90a", {})[0].startswith(".venv/bin/tilemma explain k.co")


def test_a_wrong_kernel_is_1(tmp_path: Path) -> None:
    path = changed(tmp_path, "rhs_load_s.chunkat(_, iv_warp)", "lhs_load_s.subspan(WARP_N, WARP_K).at(0, iv_warp)")
    result = call("run", path, "--target", "cpu", "--shape", SMALL, "--expect", "mk,nk->mn", "--json")
    assert result.exit_code == 1
    assert json.loads(result.output)["ok"] is False


WRONG = {
    "unknown name": ("dma.copy lhs.", "dma.copy lsh.", "unknown-name", (14, 10)),
    "syntax": ("mc, ma, mb;", "mc ma, mb;", "syntax", (20, 16)),
    "contract": ("mma.row.row", "mma.row.col", "contract-shapes", (20, 1)),
    "types": ("f16", "s16", "no-instruction", (20, 1)),
    "shared memory": ("TILE_K 128", "TILE_K 1024", "shared-memory-limit", (9, 29)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_is_2(name: str, tmp_path: Path) -> None:
    old, new, code, place = WRONG[name]
    path = changed(tmp_path, old, new)
    result = call("explain", path, "--arch", "sm_90a", "--json")
    assert result.exit_code == 2
    error = json.loads(result.output)["error"]
    assert error["code"] == code
    assert (error["span"]["line"], error["span"]["column"]) == place
    assert error["span"]["file"] == path
    text = call("explain", path, "--arch", "sm_90a").output
    assert f"error[{code}]" in text
    assert "^" in text
    assert "fix: " in text
    if code == "no-instruction":
        assert error["refusals"]


@pytest.mark.parametrize(
    "shape", ["M=64,N=64", "M=64,N=64,K=-1", "M=64,N=64,K=64,Q=1", "M=64,N=64,K=x", "M,N,K", "m=1,N=1,K=1"]
)
def test_a_wrong_shape_is_2(shape: str) -> None:
    result = call("run", EXAMPLE, "--target", "cpu", "--shape", shape)
    assert result.exit_code == 2
    assert "error[bad-" in result.output


@pytest.mark.parametrize(
    "args",
    [
        ("run", "nowhere.co"),
        ("run", EXAMPLE, "no_such_kernel"),
        ("run", EXAMPLE, "--target", "gpu"),
        ("run", EXAMPLE, "--expect", "mk,kn", "--shape", SMALL),
        ("run", EXAMPLE, "--expect", "mk->mk", "--shape", SMALL),
        ("run", EXAMPLE, "--expect", "mk,kn->mn", "--shape", SMALL),
        ("explain", EXAMPLE, "--arch", "sm_90b"),
        ("compile", EXAMPLE, "--arch", "sm_80", "--emit", "nonsense"),
        ("show", "SM80_16x8x16"),
        ("show", "SM80_16x8x16_F32F16F16F32_TN", "--operand", "Q"),
        ("show", "SM80_16x8x16_F32F16F16F32_TN", "--element", "99,0"),
        ("show", "SM80_16x8x16_F32F16F16F32_TN", "--lane", "x"),
        ("atoms", "--arch", "sm_1"),
        ("run", EXAMPLE, "--arch", "sm_1", "--shape", SMALL),
    ],
    ids=" ".join,
)
def test_wrong_arguments_are_2(args: tuple[str, ...]) -> None:
    assert call(*args).exit_code == 2


@pytest.mark.parametrize("suffix", [".co", ".py"])
def test_a_file_in_another_encoding(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"kernel{suffix}"
    path.write_bytes("# Größe".encode("latin-1"))
    with pytest.raises(tm.CompileError) as e:
        tm.load(path)
    assert e.value.code == "not-utf-8" and "UTF-8" in e.value.remedy
    for command in ("run", "check", "explain"):
        result = call(command, str(path))
        assert result.exit_code == 2 and "error[not-utf-8]" in result.output


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "kernel.co"
    path.write_text(
        "#define N 4\n__co__ void k(global f32 [N] a) { parallel i by N : block { a.at(i) = 1; } }", "utf-8-sig"
    )
    assert call("compile", str(path), "--arch", "sm_80", "--emit", "ir").exit_code == 0
    path.write_text("__co__ void k(global f32 [4] a) { a.at(i) = 1; }", "utf-8-sig")
    with pytest.raises(tm.CompileError) as e:
        tm.load(path).k.build()
    assert e.value.span is not None and e.value.span.column == 40
    assert " 1 | __co__ void" in e.value.render()


@pytest.mark.skipif(gpu_unavailable_reason() is None, reason="there is a GPU")
def test_no_gpu_says_what_to_do() -> None:
    result = call("run", EXAMPLE, "--target", "cuda", "--shape", SMALL)
    assert result.exit_code == 2
    assert "error[no-" in result.output
    assert "fix: " in result.output


def test_no_assembler_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEMMA_PTXAS", "/nowhere/ptxas")
    result = call("compile", EXAMPLE, "--arch", "sm_80", "--emit", "cubin")
    assert result.exit_code == 2
    assert "fix: " in result.output
    assert call("compile", EXAMPLE, "--arch", "sm_80", "--emit", "ptx").exit_code == 0


@pytest.mark.parametrize("emit", ["ir", "lane", "ptx", "launch"])
def test_compile_writes_files(emit: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    assert call("compile", EXAMPLE, "--arch", "sm_90a", "--emit", emit, "-o", str(path)).exit_code == 0
    assert path.stat().st_size > 100
    if emit == "launch":
        assert json.loads(path.read_text())["block"] == [384, 1, 1]


def test_check_finds_nothing_in_the_example() -> None:
    args = ("check", EXAMPLE, "--arch", "sm_90a", "--shape", "M=65,N=64,K=40", "--schedules", "3", "--json")
    result = call(*args)
    assert result.exit_code == 0
    assert json.loads(result.output)["ok"] is True


def test_explain_as_json() -> None:
    plan = json.loads(call("explain", EXAMPLE, "--json").output)
    assert plan["multiplies"][0]["atom"].startswith("SM90_64x64x16")
    assert {b["name"] for b in plan["buffers"]} == {"lhs_load_s", "rhs_load_s", "output_s"}


def test_importing_is_cheap() -> None:
    """`import tilemma` imports no other module of the package, no array library and nothing of CUDA."""
    code = "import sys; before = {*sys.modules}; import tilemma; new = {*sys.modules} - before; "
    code += "assert not any(m.startswith('tilemma.') for m in new); print(*{m.split('.')[0] for m in new})"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {*result.stdout.split()} <= {"tilemma", *sys.stdlib_module_names}


def test_an_option_of_another_command_is_answered_with_its_own() -> None:
    said = call("check", "--target", "gpu", "k.co")
    assert said.exit_code == 2 and "Did you mean '--arch'?" in said.output


def test_a_missing_file_of_ptx_is_not_told_to_be_another() -> None:
    said = call("check", "missing.ptx", "--grid", "1", "--block", "32").output
    assert "cannot-read-file" in said and ".co" not in said
