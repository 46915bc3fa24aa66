"""What tools see of kernels: type checkers, signatures, help, pickle, copies, warnings as errors."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import pickle
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import user_file

import tilemma as tm
from tilemma.ir.canonical import canonical

HERE = Path(__file__).resolve().parent
FILE = HERE / "user_file.py"
# A line of the file, and the same with an error that a type checker finds.
ERRORS = {
    "member": ("lhs.subspan(TILE", "lhs.subspam(TILE"),
    "function": ("mma.fill(0.0", "mma.fil(0.0"),
    "argument": ('parallel(1, level="group")', 'parallel(1, levl="group")'),
    "settings": ("tm.Pipeline(stages=2)", 'tm.Pipeline(stages="two")'),
}


@pytest.mark.slow  # `make types` has this file, and another with such errors
@pytest.mark.parametrize("tool", ["mypy", "pyright"])
def test_a_users_file_type_checks_and_its_errors_are_found(tool: str, tmp_path: Path) -> None:
    """Outside of the project and its settings."""
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed")
    text = FILE.read_text(encoding="utf-8")
    right = tmp_path / "right.py"
    right.write_text(text, encoding="utf-8")
    for before, after in ERRORS.values():
        assert before in text
        text = text.replace(before, after)
    wrong = tmp_path / "wrong.py"
    wrong.write_text(text, encoding="utf-8")
    arguments = {
        "mypy": ["--strict", "--config-file=", "--cache-dir", str(HERE.parents[1] / ".mypy_cache" / "user_file")],
        "pyright": ["--pythonpath", sys.executable],
    }[tool]
    command = [sys.executable, "-m", tool, *arguments, str(right), str(wrong)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    said = [line.strip() for line in done.stdout.splitlines() if ".py:" in line]
    assert not [line for line in said if "wrong.py:" not in line], done.stdout + done.stderr
    found = {int(line.partition("wrong.py:")[2].partition(":")[0]) for line in said}
    lines = [i for i, line in enumerate(text.splitlines(), 1) if any(w in line for _, w in ERRORS.values())]
    assert len(lines) == len(ERRORS) and found >= set(lines), done.stdout + done.stderr


def test_the_file_runs() -> None:
    user_file.main()


def test_both_spellings_are_the_same_type() -> None:
    assert tm.Global[tm.Tile, "f16", "M", None, 4] == tm.Global["f16", "M", None, 4]
    assert tm.Scalar[tm.Value, "u32"] == tm.Scalar["u32"]
    assert repr(tm.Global["f16", "M", None, 4]) == "Global['f16', 'M', None, 4]"
    assert [repr(x) for x in (tm.Int, tm.Int64, tm.Float, tm.Double, tm.Bool, tm.Scalar["u8"])] == [
        *("Int", "Int64", "Float", "Double", "Bool", "Scalar['u8']")
    ]


def co_kernel(tmp_path: Path) -> tm.Kernel:
    path = tmp_path / "sums.co"
    text = "__co__ auto f(global f32 [M, ?, 8] x, u8 n, f32 y) { f32 [M] out; parallel i by M : block out.at(i) = y; return out; }"
    path.write_text(text, encoding="utf-8")
    return tm.load(path).f


def documented(thing: object) -> str:
    """`help` as one line: Python 3.13 and later write a long signature on several."""
    text = re.sub(r"\s+", " ", pydoc.render_doc(thing, renderer=pydoc.plaintext))
    return text.replace("( ", "(").replace(" )", ")")


def test_signatures_and_help_are_the_kernels_own(tmp_path: Path) -> None:
    assert str(inspect.signature(user_file.sums)) == "(x: Global['f32', 'M', 8], y: Global['f32', 'M']) -> None"
    assert list(inspect.signature(user_file.product).parameters)[-2:] == ["T", "TILE"]
    shown = documented(user_file.product)
    assert "product(lhs: Global['T', 'M', 'K']" in shown and "some rows scaled" in shown
    co = co_kernel(tmp_path)
    wanted = "(x: Global['f32', 'M', None, 8], n: Scalar['u8'], y: Float, out: Global['f32', 'M'] = None)"
    assert str(inspect.signature(co)) == wanted
    assert wanted in documented(co)
    assert "source" in str(inspect.signature(tm.Kernel))
    # A word of Python is a legal name there.
    odd = tmp_path / "odd.co"
    odd.write_text("__co__ void f(int lambda, f32 [4] x) { x.at(0) = lambda; }", encoding="utf-8")
    assert str(inspect.signature(tm.load(odd).f)) == "(lambda_: Int, x: Global['f32', 4])"


class Holder:
    kernel = user_file.sums


def test_copies_pickles_and_attributes(tmp_path: Path) -> None:
    co = co_kernel(tmp_path)
    for kernel in (user_file.sums, co):
        assert copy.copy(kernel) is kernel and copy.deepcopy([kernel])[0] is kernel
        again: Any = pickle.loads(pickle.dumps(kernel))
        assert canonical(again.build()) == canonical(kernel.build())
    assert pickle.loads(pickle.dumps(user_file.sums)) is user_file.sums
    assert Holder.kernel is Holder().kernel is user_file.sums


def test_public_names() -> None:
    assert {"ops", "Tile", "Value", "kernel"} <= set(tm.__all__) <= set(dir(tm))
    for name in tm.__all__:
        assert getattr(tm, name) is not None


def test_no_warnings() -> None:
    code = (
        "import sys, runpy, tilemma as tm\n"
        f"sys.path[:0] = [{str(HERE)!r}]\n"
        "[getattr(tm, name) for name in tm.__all__]\n"
        "import user_file; user_file.main()\n"
        "from tilemma.cli import main\n"
        f"main(['explain', {str(FILE)!r}, 'sums'], standalone_mode=False)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
