"""Mutants of every example's PTX on the PTX machine, under strict schedules: each is convicted, or listed here.

    python bench/mutate.py                       # everything; `make mutate`
    python bench/mutate.py --only matmul --sample 20

One synchronising instruction deleted or weakened at a time, each swizzle, phase, stride and byte count changed.
Exit status 1 when a mutant survives that is not in EQUIVALENT.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tilemma.ir.tile import Copy
from tilemma.ir.walk import walk
from tilemma.kernels import Kernel, facts_of, load
from tilemma.machine.mutate import survey
from tilemma.tools.problem import make_problem

ROOT = Path(__file__).resolve().parents[1] / "examples" / "co"
# Sizes that run interior and edge tiles, and every slot of a ring more than once.
SIZES = {"M": 72, "N": 72, "K": 392}
# Mutant key -> why it is no bug.  None is known.
EQUIVALENT: dict[str, str] = {}


def kernels() -> dict[str, Kernel]:
    found = {}
    for path in sorted(ROOT.glob("*.co")):
        for kernel in load(path).kernels.values():
            if [p.buffer.name for p in kernel.build().arrays] == ["lhs", "rhs", "output"]:
                found[kernel.name] = kernel
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="examples whose name contains this")
    parser.add_argument("--sample", type=int, help="a fixed sample of so many mutants of each")
    parser.add_argument("--schedules", type=int, default=12)
    options = parser.parse_args()
    survivors = 0
    for name, kernel in kernels().items():
        if options.only not in name:
            continue
        built = kernel.build()
        tma = any(isinstance(op, Copy) and op.engine == "tma" for op in walk(built.body))
        for arch in ("sm_90a",) if tma else ("sm_80", "sm_90a"):
            start = time.perf_counter()
            problem = make_problem(built, SIZES, {}, 0, None)
            compiled = kernel.compile(arch, facts=facts_of(problem.arrays))
            (launch,) = compiled.launches
            result = survey(
                f"{name} {arch}",
                compiled.ptx,
                launch,
                problem.arrays,
                schedules=options.schedules,
                sample=options.sample,
                equivalents=EQUIVALENT,
            )
            survivors += len(result.survivors)
            print(result.render(), f"({time.perf_counter() - start:.0f} s)", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
