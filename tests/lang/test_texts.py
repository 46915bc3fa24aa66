"""Kernels whose text is in no file, and kernels as Python objects: signature, copies, pickles, short texts."""

from __future__ import annotations

import copy
import inspect
import linecache
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import CodeType

import numpy as np
import pytest

import tilemma as tm

PROGRAM = """
import numpy as np
import tilemma as tm
from tilemma import parallel

@tm.kernel
def double(x: tm.Global["f32", 8], y: tm.Global["f32", 8]):
    for i in parallel(8, level="thread"):
        y[i] = x[i] + x[i]

x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
double(x, y)
print("doubled", (y == 2 * x).all())
"""
WRONG = PROGRAM.replace("y[i] = x[i] + x[i]", "y[i] = x[i] if x[i] > 0 else 0")


def python(*arguments: str, text: str | None = None, path: Path | None = None) -> str:
    command = [sys.executable, *arguments]
    given = None if path is None else path.open()
    done = subprocess.run(command, input=text, stdin=given, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("program", [PROGRAM, WRONG], ids=["right", "wrong"])
@pytest.mark.parametrize("how", ["-c", "exec", "stdin"])
def test_programs_without_a_file(how: str, program: str, tmp_path: Path) -> None:
    path = tmp_path / "program.txt"
    path.write_text(program)
    said = {
        "-c": lambda: python("-c", program),
        "exec": lambda: python("-c", f"text = open({str(path)!r}).read()\nexec(text)"),
        "stdin": lambda: python("-", path=path),
    }[how]()
    if program is PROGRAM:
        assert "doubled True" in said, said
    else:
        assert "bool-of-traced-value" in said and "y[i] = x[i] if x[i] > 0 else 0" in said, said


def test_two_texts_of_one_name_are_told_apart() -> None:
    """They have the same instructions: only constants or names differ.  All of them are at hand."""
    bodies = ("x[i] * 3", "x[i] * 5", "abs(x[i])", "int(x[i])")
    texts = [PROGRAM.partition("x, y =")[0].replace("x[i] + x[i]", body) for body in bodies]
    first, second, third, fourth = texts
    for text, body in zip((second, first, fourth, third), ("* 5", "* 3", "int(", "abs("), strict=True):
        scope: dict[str, object] = {}
        exec(text, scope)
        assert body in inspect.getsource(scope["double"])


def test_a_text_can_be_passed() -> None:
    body = ['@tm.kernel(source=TEXT)\ndef idle(x: tm.Global["f32", 8]):\n    x[0] = 1.0\n']
    scope = {"tm": tm, "TEXT": ""}
    with pytest.raises(tm.CompileError, match="unchanged"):
        exec(body[0], scope)
    scope["TEXT"] = body[0]
    exec(body[0], scope)
    assert scope["idle"].build().name == "idle"

    def plain(x: object) -> None:
        pass

    with pytest.raises(tm.LaunchError, match="the text of a program"):
        tm.kernel(source=3)(plain)


@pytest.mark.skipif(not hasattr(os, "forkpty"), reason="needs a pseudo-terminal")
def test_a_repl(tmp_path: Path) -> None:
    import pty

    said = b""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"PYTHON_BASIC_REPL": "1", "HOME": str(tmp_path), "TERM": "dumb"}
        os.execv(sys.executable, [sys.executable, "-q"])
    os.write(terminal, (PROGRAM.strip().replace("\n\nx, y", "\n\n\nx, y") + "\nexit()\n").encode())
    try:
        while chunk := os.read(terminal, 4096):
            said += chunk
    except OSError:
        pass
    os.close(terminal)
    os.waitpid(pid, 0)
    assert b"doubled True" in said, said.decode()


@tm.kernel
def triple(x: tm.Global["f32", "N"], n: tm.Int, *, TILE=4):
    """Three times."""
    for i in tm.parallel(TILE, level="thread"):
        x[i] = x[i] * 3


def test_a_kernel_is_a_python_object() -> None:
    assert list(inspect.signature(triple).parameters) == ["x", "n", "TILE"]
    assert triple.__doc__ == "Three times." and inspect.unwrap(triple).__name__ == "triple"
    assert copy.deepcopy(triple) is triple and copy.copy(triple) is triple
    assert pickle.loads(pickle.dumps(triple)) is triple


def test_a_kernel_of_a_text_file_is_pickled(tmp_path: Path) -> None:
    path = tmp_path / "k.co"
    path.write_text("__co__ void k(global f32 [8] x) {\n  parallel i by 8 : thread { x.at(i) = 2.0f; }\n}\n")
    kernel = pickle.loads(pickle.dumps(tm.load(path).only()))
    x = np.zeros(8, np.float32)
    kernel(x)
    assert (x == 2).all()


def test_texts_in_a_repl_are_short() -> None:
    compiled = triple.compile("sm_80")
    assert repr(compiled) == "<tilemma triple compiled for sm_80>"
    assert len(repr(compiled.explain())) < 100
    assert str(compiled.explain()) == compiled.explain().render()
    assert "ops" in tm.__all__


FAILING = PROGRAM.replace("y[i] = x[i] + x[i]", "y[i] = tm.math.exp(x[i], 2)")
RAISING = PROGRAM.replace("y[i] = x[i] + x[i]", "y[i] = {}['absent']")


@pytest.mark.parametrize("program", [FAILING, RAISING], ids=["refused", "raising"])
def test_tracebacks_show_the_frames_of_the_program(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "program.py"
    path.write_text(program)
    monkeypatch.delenv("TILEMMA_DEBUG", raising=False)
    short = python(str(path))
    assert program.splitlines()[8].strip() in short
    assert "/lang/" not in short and short.count("File ") <= 4, short
    monkeypatch.setenv("TILEMMA_DEBUG", "1")
    assert python(str(path)).count("File ") > 5


def test_a_pipe_cannot_be_read_again() -> None:
    said = python("-", text=PROGRAM)
    assert "no-kernel-source" in said and "redirect it, `python - < kernel.py`" in said


def test_what_is_typed_at_the_prompt_of_python_3_13_is_found(monkeypatch):
    """These versions keep it by code object, under a file name of its own."""
    typed = {
        "<python-input-6>": "def doubled(x, i):\n    for _ in tm.foreach(2):\n        x[i] = x[i] * 2.0\n",
        "<stdin-5>": "def k(x: tm.Global['f32', 8]):\n    for i in tm.parallel(8, level='thread'):\n        doubled(x, i)\n",
    }

    def kept(code: CodeType) -> list[str]:
        return typed.get(code.co_filename, "").splitlines(keepends=True)

    monkeypatch.setattr(linecache, "_getlines_from_code", kept, raising=False)
    scope = {"tm": tm}
    for name in typed:
        exec(compile(typed[name], name, "exec"), scope)
    x = np.ones(8, np.float32)
    tm.kernel(scope["k"])(x)
    assert (x == 4).all()
    assert linecache.getline("<stdin-5>", 1).startswith("def k")


def test_a_helper_typed_at_a_prompt_is_read_too():
    """Its text is no file, and it keeps its name: the frame that runs cannot be renamed."""
    text = (
        "def twice(x, i):\n    for _ in tm.foreach(2):\n        x[i] = x[i] * 2.0\n"
        "@tm.kernel\ndef k(x: tm.Global['f32', 8]):\n    for i in tm.parallel(8, level='thread'):\n        twice(x, i)\n"
    )
    scope = {"tm": tm, "__name__": "typed"}
    exec(compile(text, "<string>", "exec"), scope)
    x = np.ones(8, np.float32)
    scope["k"](x)
    assert (x == 4).all()
