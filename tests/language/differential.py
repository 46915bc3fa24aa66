"""A program in both spellings, run on the CPU reference and as PTX on the machine: all four agree.

They agree when they write the same bits, or refuse the program with the same code.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from construct import Arrays

from tilemma import croqtile
from tilemma.errors import TilemmaError
from tilemma.kernels import Kernel
from tilemma.testing import guarded

PRELUDE = """
import tilemma as tm
from tilemma import (
    apply, atomic, bound, break_, cdiv, compose, continue_, dma, else_, foreach, full, if_, inthreads, local, mma,
    parallel, select, shared, swap, sync, ubound, var, wait, while_,
)
"""
_FILES = count()


class Lines:
    """A text in both spellings, line by line; ``x[i, j]`` of the ``arrays`` becomes ``x.at(i, j)`` in Croqtile."""

    def __init__(self, arrays: str) -> None:
        self._elements = re.compile(rf"\b({arrays})\[([^\]]*)\]")
        self._co: list[str] = []
        self._python: list[str] = []

    def __call__(self, depth: int, co: str, python: str) -> None:
        if co:
            self._co.append("  " * depth + self._elements.sub(r"\1.at(\2)", co))
        if python:
            self._python.append("    " * depth + python)

    @property
    def co(self) -> str:
        return "\n".join(self._co)

    @property
    def python(self) -> str:
        return "\n".join(self._python) + "\n"


def python_kernel(text: str) -> Kernel:
    """The kernel ``f`` of a Python text that begins behind the usual imports."""
    text, file = PRELUDE + text, f"<differential {next(_FILES)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {}
    exec(compile(text, file, "exec"), scope)
    kernel: Kernel = scope["f"]
    return kernel


def croqtile_kernel(text: str) -> Kernel:
    return Kernel(croqtile.load(text, "differential.co").sources["f"])


@dataclass(frozen=True)
class Strided:
    """An array given with other strides: every ``steps[d]``-th place along dimension d of a larger array, whose
    dimensions lie in memory in the given ``order``."""

    values: Any
    steps: tuple[int, ...]
    order: tuple[int, ...]

    def make(self) -> tuple[Any, Any]:
        """(the array, what is around it with the array's places cleared)."""
        large = [n * step + 1 for n, step in zip(self.values.shape, self.steps, strict=True)]
        memory = np.full([large[d] for d in self.order], 77, self.values.dtype)
        places = tuple(slice(0, n * step, step) for n, step in zip(self.values.shape, self.steps, strict=True))
        array = memory.transpose(np.argsort(self.order))[places]
        array[...] = self.values
        return array, memory


def outcome(kernel: Kernel, target: str, arch: str, given: Mapping[str, Any]) -> Arrays | str:
    """What the arrays hold after a run, or the code of the refusal."""
    guards = {k: guarded(v) for k, v in given.items() if isinstance(v, np.ndarray)}
    strided = {k: v.make() for k, v in given.items() if isinstance(v, Strided)}
    arrays = {**{k: g.array for k, g in guards.items()}, **{k: array for k, (array, _) in strided.items()}}
    arguments = {**given, **arrays}
    options = {} if target == "cpu" else {"arch": arch}
    try:
        kernel.on(target, **options)(**arguments)
    except TilemmaError as e:
        assert e.code not in ("internal", "compiler-failure", "invalid-ir"), e
        return e.code
    for g in guards.values():
        g.check()
    found = {k: np.array(a) for k, a in arrays.items()}
    for array, memory in strided.values():
        array[...] = 77
        assert (memory == 77).all(), "written between the elements of an array"
    return found


def outcomes(
    co: str | None, python: str | None, given: Mapping[str, Any], archs: Sequence[str] = ("sm_90a",)
) -> Iterator[tuple[str, Arrays | str]]:
    """(which language on which target, what came out)."""
    kernels = [("Croqtile", croqtile_kernel(co))] if co is not None else []
    kernels += [("Python", python_kernel(python))] if python is not None else []
    for language, kernel in kernels:
        yield f"{language} on the CPU", outcome(kernel, "cpu", "", given)
        for arch in archs:
            yield f"{language} on {arch}", outcome(kernel, "machine", arch, given)


def agree(
    co: str | None, python: str | None, given: Mapping[str, Any], archs: Sequence[str] = ("sm_90a",)
) -> Arrays | str:
    """What all runs came to; an assertion fails where two differ."""
    (where, first), *rest = outcomes(co, python, given, archs)
    for other, found in rest:
        texts = f"{where} and {other} differ:\n{co}\n{python}"
        if isinstance(first, str) or isinstance(found, str):
            assert isinstance(first, str) and found == first, f"{texts}\n{first}\n{found}"
            continue
        for name, array in first.items():
            np.testing.assert_array_equal(array, found[name], err_msg=f"{name}: {texts}")
    return first
