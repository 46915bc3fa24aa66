"""Every example once, small and ragged, for a checker of memory to watch:

    compute-sanitizer --tool memcheck --error-exitcode 1 python bench/memcheck.py

Both languages, the pipelined ones with 2, 3 and 4 stages.  Results are compared with float64.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "pipelines"))

from configurations import CONFIGURATIONS, EXAMPLES

from tilemma.ir.tile import Copy
from tilemma.ir.walk import walk
from tilemma.kernels import Kernel
from tilemma.modules import load, load_python
from tilemma.runtime import cuda_device, runs_on
from tilemma.tools.problem import make_problem

# (M, N, K): less than a tile, and several with a rest in each dimension.
RAGGED = [(1, 8, 8), (264, 136, 200)]
# What does not go by TMA need not have rows of 16 bytes.
UNALIGNED = [(67, 131, 45)]


def kernels() -> Iterator[tuple[str, Kernel, dict[str, Any], tuple[str, ...]]]:
    """(title, kernel, constants, targets) of every example in both languages."""
    for c in CONFIGURATIONS:
        for language in c.languages:
            yield f"{c} ({language})", c.kernel(language), c.constants(language), c.archs
    configured = {c.name for c in CONFIGURATIONS}
    for path in sorted([*(EXAMPLES / "co").glob("*.co"), *(EXAMPLES / "py").glob("*.py")]):
        if path.stem in configured:
            continue
        module = load_python(path) if path.suffix == ".py" else load(path)
        for name, kernel in module.kernels.items():
            yield f"{path.stem}.{name} ({path.suffix[1:]})", kernel, {}, ("sm_80", "sm_90a")


def run(title: str, kernel: Kernel, constants: dict[str, Any], archs: tuple[str, ...]) -> int:
    """Runs it on every target of the device; how many results were wrong."""
    built = kernel.build(**constants)
    product = [p.buffer.name for p in built.arrays] == ["lhs", "rhs", "output"]
    tma = any(isinstance(op, Copy) and op.engine == "tma" for op in walk(built.body))
    shapes = [*RAGGED, *([] if tma else UNALIGNED)] if product else [None]
    wrong = 0
    for arch in archs:
        if not runs_on(arch, cuda_device(0).compute_capability):
            continue
        for shape in shapes:
            sizes = dict(zip("MNK", shape, strict=True)) if shape else {}
            problem = make_problem(built, sizes, {}, 0, "mk,nk->mn" if product else None)
            kernel.on("cuda", arch=arch)(*problem.arguments(), **constants)
            share = problem.share() if product else 0.0
            wrong += not share <= 1
            print(f"{title} {arch} {shape or ''}: {share:.2f} of its bound", flush=True)
    return wrong


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    wrong = sum(run(*found) for found in kernels())
    print(f"{wrong} wrong" if wrong else "all results within their bounds")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
