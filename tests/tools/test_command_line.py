"""The command line on a user's own files: neighbours, exceptions, suggestions, and what `--expect` understands."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import tilemma as tm
from tilemma.cli import main
from tilemma.dtypes import dtype
from tilemma.tools.expectation import BadExpectation, evaluate, read

PROGRAM = """
import tilemma as tm
from tilemma import cdiv, foreach, parallel
{imports}

def helper(x):
    {helper}

@tm.kernel
def gemv(x: tm.Global["f16", "M", "K"], v: tm.Global["f16", "K"], b: tm.Global["f32", "M"],
         y: tm.Global["f32", "M"], scale: tm.Float):
    M, K = x.shape
    for i in parallel(cdiv(M, 32), level="block"):
        for t in parallel(32, level="thread"):
            row = i * 32 + t
            with tm.if_(row < M):
                total = tm.var(0.0, "f32")
                for k in foreach(K):
                    total += x[row, k] * v[k]
                y[row] = helper(tm.math.max(scale * total + b[row], 0.0))
"""


def call(*args: str) -> Result:
    return CliRunner().invoke(main, list(args), catch_exceptions=False)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(imports="", helper="return x"))
    return path


def test_a_program_imports_its_neighbours(program: Path) -> None:
    (program.parent / "neighbour_of_program.py").write_text("def double(x):\n    return x + x\n")
    text = PROGRAM.format(imports="from neighbour_of_program import double", helper="return double(x)")
    program.write_text(text)
    size = ("--shape", "M=5,K=3", "--arg", "scale=1", "--target", "cpu")
    assert call("run", str(program), *size).exit_code == 0


@pytest.mark.parametrize("helper", ["return {}['absent']", "return undefined_name", "raise RuntimeError('mine')"])
def test_exceptions_show_the_frames_of_the_program(program: Path, helper: str) -> None:
    program.write_text(PROGRAM.format(imports="", helper=helper))
    result = call("run", str(program), "--shape", "M=5,K=3", "--arg", "scale=1", "--target", "cpu")
    assert result.exit_code == 2
    assert "error[program-failed]" in result.output
    assert helper in result.output
    assert "site-packages" not in result.output and "src/tilemma" not in result.output


def test_our_own_mistakes_are_one_message(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilemma.tools.run.make_problem", None)
    arguments = ("run", str(program), "--shape", "M=5,K=3", "--arg", "scale=1")
    result = call(*arguments)
    assert result.exit_code == 2 and "error[command-failure]" in result.output
    monkeypatch.setenv("TILEMMA_DEBUG", "1")
    with pytest.raises(TypeError):
        call(*arguments)


SUGGESTIONS = {
    "a scalar without a value": (("run", "--shape", "M=5,K=3"), "add --arg scale="),
    "an unknown scalar": (("run", "--arg", "scal=1"), "did you mean `scale`?"),
    "gpu": (("run", "--target", "gpu"), "did you mean `cuda`?"),
    "an unknown kernel": (("run", "--kernel", "gevm"), "did you mean `gemv`?"),
    "a folder that is not there": (
        ("compile", "--arch", "sm_80", "--emit", "ir", "-o", "absent/x.ir"),
        "create the folder `absent` first",
    ),
}


@pytest.mark.parametrize("name", SUGGESTIONS)
def test_suggestions(program: Path, name: str) -> None:
    (command, *arguments), fix = SUGGESTIONS[name]
    result = call(command, str(program), *arguments)
    assert result.exit_code == 2
    assert fix in result.output


def test_the_kernel_may_be_an_option(program: Path) -> None:
    result = call("compile", str(program), "--kernel", "gemv", "--arch", "sm_80", "--emit", "ir")
    assert result.exit_code == 0 and "kernel gemv" in result.output


@pytest.mark.parametrize("suffix", [".py", ".co"])
def test_an_empty_file_says_so(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"empty{suffix}"
    path.write_text("\n")
    result = call("run", str(path))
    assert result.exit_code == 2 and "error[no-kernel]" in result.output and "is empty" in result.output


@pytest.mark.parametrize("word", ["T", "transpose"])
def test_a_transposed_tile_names_transp(word: str) -> None:
    @tm.kernel
    def turned(x: tm.Global["f32", 8, 16], y: tm.Global["f32", 16, 8]) -> None:
        tm.dma.copy(getattr(x, word), y)

    with pytest.raises(tm.CompileError) as caught:
        turned.build()
    assert "transp=(1, 0)" in caught.value.remedy


def test_expected_results_with_addend_factor_and_activation(program: Path) -> None:
    size = ("--shape", "M=40,K=17", "--arg", "scale=2.5", "--target", "cpu")
    right = call("run", str(program), *size, "--expect", "relu(scale * mk,k->m + b)")
    assert right.exit_code == 0 and "within the bound" in right.output
    for wrong in ("scale * mk,k->m + b", "relu(mk,k->m + b)", "relu(scale * mk,k->m + 2 * b)"):
        assert call("run", str(program), *size, "--expect", wrong).exit_code == 1, wrong


VALUES = {"a": (5, 7), "b": (4, 7), "bias": (4,), "c": (5, 4)}
ARRAYS = {n: tm.testing.random_array(s, "f16", i) for i, (n, s) in enumerate(VALUES.items())}


def test_the_bound_is_that_of_testing() -> None:
    wanted = read("gelu(mk,nk->mn + bias)", ["a", "b", "bias", "c"], ARRAYS, {})
    value, bound = evaluate(wanted, ARRAYS, dict.fromkeys(ARRAYS, dtype("f16")), "f32")
    a, b, bias = ARRAYS["a"], ARRAYS["b"], ARRAYS["bias"]
    own = tm.testing.error_bound(a, b.T, acc="f32", out="f16", bias=bias, activation="gelu")
    assert np.all(own <= bound) and np.all(bound <= own * 1.01)
    exact = a.astype(float) @ b.T.astype(float) + bias
    np.testing.assert_allclose(value, tm.testing.ACTIVATIONS["gelu"].value(exact))


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("rely(mk,nk->mn + bias)", "did you mean `relu`?"),
        ("mk,nk->mn + bais", "did you mean `bias`?"),
        ("mk,nk->mn", "name the addends"),
        ("mk,kn->mn + bias", "equal letters"),
        ("mk,nk->mx + bias", "correct the output's letters"),
        ("x * mk,nk->mn + bias", "multiply by a number"),
        ("mk,n->mn + bias", "one letter for each of its dimensions"),
    ],
)
def test_expectations_that_are_refused(text: str, fix: str) -> None:
    with pytest.raises(BadExpectation) as caught:
        read(text, ["a", "b", "bias", "c"], ARRAYS, {})
    assert fix in caught.value.remedy


@pytest.mark.parametrize(
    ("line", "what", "remedy"),
    [
        ("run x.co --seed abc", "'abc' is not a valid integer", "tilemma run --help"),
        ("run x.co --sede 3", "No such option '--sede'", "did you mean `--seed`"),
        ("explain", "Missing argument 'FILE'", "tilemma explain --help"),
        ("explain a b c", "Got unexpected extra argument (c)", "tilemma explain --help"),
        ("compile x.co --arch sm_90a", "Missing option '--emit'", "tilemma compile --help"),
        ("nonsense", "No such command 'nonsense'", "tilemma --help"),
    ],
)
def test_a_wrong_command_line_is_an_error_of_the_family(line: str, what: str, remedy: str) -> None:
    """With its parts; `--json` prints the same as JSON."""
    said = CliRunner().invoke(main, line.split(), prog_name="tilemma")
    assert said.exit_code == 2 and said.output.startswith("error[command-line]: ")
    assert what in said.output and remedy in said.output and "  expected: tilemma " in said.output
    printed = CliRunner().invoke(main, [*line.split(), "--json"], prog_name="tilemma")
    if "--json" not in printed.output:  # an option of the command
        error = json.loads(printed.stdout)["error"]
        assert printed.exit_code == 2 and what in error["message"] and remedy in error["fix"]
        assert error["code"] == "command-line" and error["expected"] in said.output
