"""The kernels of the gallery: twins with the same tile IR, right on every target at small and at odd sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilemma as tm
from dev.gallery import ENTRIES, FOLDER, kernel
from dev.gallery.problems import Problem
from tilemma.ir.canonical import canonical
from tilemma.targets.ptx.target import targets

# In Python an atomic operation is an expression, whose old value is kept.
VALUES_KEPT = {"histogram"}


def run(name: str, size: Any, language: Any, **options: Any) -> None:
    problem = ENTRIES[name].problem(size)
    arguments = tuple(x.copy() if isinstance(x, np.ndarray) else x for x in problem.arguments)
    if language == "co":
        kernel(name, "co", **problem.constants).on(**options)(*arguments)
    else:
        kernel(name).on(**options)(*arguments, **problem.constants)
    problem.check(arguments)


def test_every_kernel_has_an_entry_and_a_twin() -> None:
    files = {p.name for p in FOLDER.iterdir() if p.is_file()}
    assert files == {f"{n}.{x}" for n in ENTRIES for x in ("co", "py")}


@pytest.mark.parametrize("name", ENTRIES)
def test_twins_have_the_same_tile_ir(name: str) -> None:
    sizes = ENTRIES[name].example
    co, py = (kernel(name, language).build(sizes=sizes) for language in ("co", "py"))
    assert (canonical(co) == canonical(py)) == (name not in VALUES_KEPT)


@pytest.mark.parametrize("size", ["small", "odd"])
@pytest.mark.parametrize("name", ENTRIES)
def test_on_the_reference(name: str, size: str) -> None:
    run(name, size, "py", target="cpu")


def machines() -> list[Any]:
    """The `.co` file of each kernel on one target by day, on the others by night."""
    cases = []
    for i, name in enumerate(ENTRIES):
        for k, arch in enumerate(("sm_80", "sm_90a")):
            for size in ("small", "odd"):
                day = size == "odd" and k == i % 2
                cases.append(pytest.param(name, size, arch, marks=() if day else pytest.mark.slow))
    return cases


@pytest.mark.parametrize("name, size, arch", machines())
def test_on_the_machine(name: str, size: str, arch: str) -> None:
    known = targets()
    if known.index(arch) < known.index(ENTRIES[name].oldest):
        with pytest.raises(tm.CompileError, match="e4m3"):
            run(name, size, "co", target="machine", arch=arch)
        return
    run(name, size, "co", target="machine", arch=arch, strict=True)


def test_a_wrong_result_is_seen() -> None:
    for name in ("softmax", "batched"):
        problem: Problem = ENTRIES[name].problem("small")
        kernel(name)(*problem.arguments)
        written = problem.arguments[next(iter(problem.wanted))]
        written.flat[0] += 1
        with pytest.raises(AssertionError):
            problem.check(problem.arguments)
