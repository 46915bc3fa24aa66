"""Differential fuzzing: random programs on every target against NumPy.

`check` runs one program; ``python -m tilemma.tools.fuzz 17 --show`` shows and runs the one of seed 17.
"""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tilemma import croqtile
from tilemma.errors import TilemmaError
from tilemma.ir.canonical import canonical
from tilemma.kernels import Kernel
from tilemma.targets.cpu import execute
from tilemma.testing import guarded, random_array
from tilemma.tools.fuzz_generate import generate
from tilemma.tools.fuzz_programs import Program, croqtile_text, python_text
from tilemma.tools.fuzz_values import NUMPY, evaluate

ARCHS = ("sm_80", "sm_90a")
Arrays = dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """``where``: the stage that went wrong; ``what``: its message; ``error``: the code of a refusal."""

    seed: int
    where: str
    what: str
    error: str = ""

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.where}: {self.what}"


def python_kernel(p: Program) -> Kernel:
    """The program's Python text as a kernel."""
    text, file = python_text(p), f"<fuzz {p.seed}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {}
    exec(compile(text, file, "exec"), scope)
    kernel: Kernel = scope["k"]
    return kernel


def croqtile_kernel(p: Program) -> Kernel:
    return Kernel(croqtile.load(croqtile_text(p), f"fuzz {p.seed}.co").sources["k"])


def arguments(p: Program) -> Arrays:
    """Inputs of small numbers; what is written starts as something else."""
    made: Arrays = {}
    for i, a in enumerate(p.arrays):
        kind = NUMPY[a.t]
        values = random_array(p.shape(a), "f64", p.seed + i) * 4
        whole = np.issubdtype(kind, np.integer)
        values = np.abs(np.rint(values)) if whole else np.rint(values * 2) / 2
        made[a.name] = np.full(p.shape(a), 5).astype(kind) if a.name in p.outputs else values.astype(kind)
    return made


def check(
    p: Program,
    archs: Sequence[str] = ARCHS,
    *,
    languages: Sequence[str] = ("python", "croqtile"),
    device: bool = False,
) -> Failure | None:
    """Run ``p`` on the CPU reference and on the machine, or with ``device`` on the GPU; the first difference or
    error, None when all agree."""
    given = arguments(p)
    wanted = evaluate(p, given)
    scalars = {n: v for n, _, v in p.scalars}
    stage = "building"
    try:
        kernels = [python_kernel(p)] if "python" in languages else []
        if "croqtile" in languages:
            stage = "building the Croqtile text"
            other = croqtile_kernel(p)
            twins = kernels and canonical(other.build()) == canonical(kernels[0].build())
            kernels += [] if twins else [other]
        for kernel in kernels:
            language = "Croqtile" if hasattr(kernel.source, "text") else "Python"
            stages = _on_device if device else _stages
            for stage, run in stages(p, kernel, archs, scalars):
                stage = f"{stage} ({language})"
                difference = _compare(run, given, wanted, whole_rows=p.seed % 3 > 0)
                if difference:
                    return Failure(p.seed, stage, difference)
    except TilemmaError as e:
        return Failure(p.seed, stage, str(e), e.code)
    except Exception:
        return Failure(p.seed, stage, traceback.format_exc(), "internal")
    return None


def _stages(
    p: Program, kernel: Kernel, archs: Sequence[str], scalars: Arrays
) -> Iterator[tuple[str, Callable[[Arrays], Any]]]:
    yield "CPU reference", lambda a: kernel(**a, **scalars)
    for arch in archs:
        yield f"decided IR, {arch}", partial(_execute, p, kernel, arch, scalars)
        yield f"machine, {arch}", partial(_on, "machine", kernel, arch, scalars)


def _on_device(
    p: Program, kernel: Kernel, archs: Sequence[str], scalars: Arrays
) -> Iterator[tuple[str, Callable[[Arrays], Any]]]:
    for arch in archs:
        yield f"GPU, {arch}", partial(_on, "cuda", kernel, arch, scalars)


def _on(target: str, kernel: Kernel, arch: str, scalars: Arrays, arrays: Arrays) -> None:
    kernel.on(target, arch=arch)(**arrays, **scalars)


def _execute(p: Program, kernel: Kernel, arch: str, scalars: Arrays, arrays: Arrays) -> None:
    execute(kernel.compile(arch).kernel, arrays, scalars, dims=p.sizes)


def _compare(run: Callable[[Arrays], Any], given: Arrays, wanted: Arrays, whole_rows: bool = False) -> str:
    """``whole_rows``: they start at multiples of 16 bytes, whatever their length."""
    gaps = {name: 16 + (-a.shape[-1] * a.itemsize % 16 if whole_rows else 0) for name, a in given.items()}
    guards = {name: guarded(a, gap=gaps[name]) for name, a in given.items()}
    run({name: g.array for name, g in guards.items()})
    for name, g in guards.items():
        try:
            g.check()
        except AssertionError as e:
            return f"{name}: {e}"
        got, right = g.array, wanted[name]
        same = (got == right) | ((got != got) & (right != right))
        if not same.all():
            at = tuple(int(i) for i in np.argwhere(~same)[0])
            count = f"{int((~same).sum())} of {same.size} elements differ"
            return f"{name}{list(at)} is {got[at]}, not {right[at]} ({count})"
    return ""


def main(argv: Sequence[str]) -> int:
    seeds = [int(a) for a in argv if a.isdigit()]
    for seed in seeds:
        p = generate(seed)
        if "--show" in argv:
            print(f"# sizes {p.sizes}, scalars {p.scalars}\n{python_text(p)}\n{croqtile_text(p)}")
        failure = check(p)
        print(failure or f"seed {seed}: all agree")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
