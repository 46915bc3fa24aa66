"""Random kernels in both languages on every target without a GPU, against NumPy.

    python bench/fuzz_kernels.py --count 1000 --seed 0 --jobs 2 --keep build/fuzz

A kernel that goes wrong is made smaller and kept with its message; exit status 1 when there is one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from pathlib import Path

from tilemma.tools.fuzz import Failure, check
from tilemma.tools.fuzz_generate import generate
from tilemma.tools.fuzz_programs import Program, croqtile_text, python_text
from tilemma.tools.fuzz_shrink import shrink


def run(seed: int) -> tuple[Failure, str] | None:
    """The failure of the kernel of ``seed``, and a report of a smaller one that fails alike."""
    p = generate(seed)
    failure = check(p)
    if failure is None:
        return None

    def alike(q: Program) -> bool:
        found = check(q)
        return found is not None and (found.where, found.error) == (failure.where, failure.error)

    small = shrink(p, alike)
    text = f"{check(small)}\n\nsizes {small.sizes}, scalars {small.scalars}\n\n{python_text(small)}\n"
    return failure, text + croqtile_text(small)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--count", type=int, default=1000)
    arguments.add_argument(
        "--seed", type=int, default=int(time.time()) // 86400 * 1_000_000, help="the first seed"
    )
    arguments.add_argument("--jobs", type=int, default=2)
    arguments.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where failures are written")
    options = arguments.parse_args()
    seeds = range(options.seed, options.seed + options.count)
    failures = 0
    with multiprocessing.Pool(options.jobs, maxtasksperchild=50) as pool:
        for done, found in enumerate(pool.imap_unordered(run, seeds, chunksize=4), 1):
            if found is not None:
                failure, report = found
                failures += 1
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{failure.seed}.txt").write_text(report, encoding="utf-8")
                print(f"{failure}\n")
            if done % 100 == 0:
                print(f"{done} of {options.count} kernels, {failures} failures", flush=True)
    print(f"{options.count} kernels from seed {options.seed}: {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
