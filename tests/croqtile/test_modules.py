"""The result of `tm.load`: kernels by name; a module of one kernel can be used as the kernel."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest

import tilemma as tm
from tilemma.kernels import Kernel
from tilemma.modules import Module, load_python

ONE = "__co__ void f(global f32 [N] x, global f32 [N] y) { parallel i by N : block y.at(i) = x.at(i) + K; }"
TWO = ONE + "\n" + ONE.replace("void f", "void compile")


def module(tmp_path: Path, text: str) -> Module:
    path = tmp_path / "kernels.co"
    path.write_text("#ifndef K\n#define K 1\n#endif\n" + text)
    return tm.load(str(path))


def test_a_module_of_one_kernel_stands_for_it(tmp_path: Path) -> None:
    m = module(tmp_path, ONE)
    x = np.arange(4, dtype=np.float32)
    for run in (m, m.f, m["f"], m.only(), m.on("cpu"), m.on("machine", arch="sm_80")):
        y = np.zeros_like(x)
        run(x, y)
        assert (y == x + 1).all()
    y = np.zeros_like(x)
    m(x, y, K=5)
    assert (y == x + 5).all()
    assert m.compile("sm_80").ptx == m.f.compile("sm_80").ptx
    assert m.name == "f" and m.build() == m.f.build()
    assert {"f", "on", "compile"} <= set(dir(m))


def test_every_method_of_a_kernel_is_passed_on(tmp_path: Path) -> None:
    m = module(tmp_path, ONE)
    public = [name for name in dir(Kernel) if not name.startswith("_")]
    assert public
    for name in public:
        assert getattr(m, name) == getattr(m.f, name)


def test_a_module_of_several_kernels_lists_them(tmp_path: Path) -> None:
    m = module(tmp_path, TWO)
    x, y = np.zeros(4, np.float32), np.zeros(4, np.float32)
    assert isinstance(m.compile, Kernel), "a kernel's name comes first"
    m.compile(x, y)
    for wrong in (lambda: m(x, y), lambda: m.on("cpu"), lambda: m.only()):
        with pytest.raises(tm.CompileError) as caught:
            wrong()
        assert caught.value.code == "several-kernels"
        assert "f, compile" in str(caught.value) and "module.NAME" in str(caught.value)
    with pytest.raises(tm.CompileError) as caught:
        m.g  # noqa: B018
    assert caught.value.code == "no-such-kernel"


def test_how_modules_are_shown_and_copied(tmp_path: Path) -> None:
    assert "kernels.co" in repr(module(tmp_path, TWO)) and "with f, compile>" in repr(module(tmp_path, TWO))
    m = module(tmp_path, ONE)
    assert "with f>" in repr(m) and "kernel f" in repr(m.f)
    assert copy.copy(m).kernels == m.kernels
    assert not hasattr(m, "__array__") and not hasattr(m, "_repr_svg_")


def test_python_files_are_modules_too(tmp_path: Path) -> None:
    path = tmp_path / "kernels.py"
    path.write_text(
        "import tilemma as tm\n@tm.kernel\ndef f(x: tm.Global['f32', 4]):\n"
        "    for i in tm.parallel(4, level='block'):\n        x[i] = i\n"
    )
    x = np.zeros(4, np.float32)
    load_python(path)(x)
    assert x.tolist() == [0, 1, 2, 3]


def test_a_module_is_a_mapping_of_names() -> None:
    """`for name in m` would call `m[0]` without an iterator."""
    two = "__co__ void f(f32 [M] x) { parallel i by M : block { x.at(i) = 1.0f; } }"
    module = tm.loads(two + two.replace("void f", "void g"))
    assert list(module) == ["f", "g"] and len(module) == 2 and "g" in module and "h" not in module
    assert module and tm.loads(two)
