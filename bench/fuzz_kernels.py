"""Random kernels in both languages against NumPy: on the CPU reference and the PTX machine, or on a GPU.

    python bench/fuzz_kernels.py --count 1000 --seed 0 --jobs 2 --keep build/fuzz --json docs/proofs/fuzz.json
    python bench/fuzz_kernels.py --device --seconds 60 --jobs 14 --json docs/proofs/fuzz.json

Each kernel runs for sm_80 and sm_90a.  One that goes wrong is made smaller and kept with its message; exit status
1 when there is one.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilemma
from tilemma.assemble import find_tool
from tilemma.errors import ToolError
from tilemma.tools.fuzz import ARCHS, Failure, check
from tilemma.tools.fuzz_generate import generate
from tilemma.tools.fuzz_programs import Program, croqtile_text, python_text
from tilemma.tools.fuzz_shrink import shrink


def run(work: tuple[int, bool]) -> tuple[Failure, str] | None:
    """The failure of the kernel of a seed, and a report of a smaller one that fails alike.

    After a failure on a GPU its context may be lost: nothing is made smaller there.
    """
    seed, device = work
    p = generate(seed)
    failure = check(p, device=device)
    if failure is None:
        return None

    def alike(q: Program) -> bool:
        found = check(q)
        return found is not None and (found.where, found.error) == (failure.where, failure.error)

    small = p if device else shrink(p, alike)
    text = f"{failure if device else check(small)}\n\nsizes {small.sizes}, scalars {small.scalars}\n\n"
    return failure, text + python_text(small) + "\n" + croqtile_text(small)


def until(seeds: range, device: bool, deadline: float | None) -> Iterator[tuple[int, bool]]:
    for seed in seeds:
        if deadline is not None and time.monotonic() > deadline:
            return
        yield seed, device


def versions(device: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "tilemma": tilemma.__version__, "python": platform.python_version(), "numpy": np.__version__
    }  # fmt: skip
    if device:
        from tilemma import runtime

        found["gpu"] = runtime.cuda_device(0).name
        try:
            found["ptxas"] = ".".join(map(str, find_tool("ptxas").version))
        except ToolError:
            found["ptxas"] = "the driver's"
    return found


def record(path: Path, entry: dict[str, Any]) -> None:
    """Put ``entry`` into the JSON file in the place of the last one on the same target."""
    known: Sequence[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    runs = [*(r for r in known if r["target"] != entry["target"]), entry]
    path.write_text(
        json.dumps({"runs": sorted(runs, key=lambda r: r["target"])}, indent=1) + "\n", encoding="utf-8"
    )


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--count", type=int, default=1000)
    arguments.add_argument(
        "--seed", type=int, default=int(time.time()) // 86400 * 1_000_000, help="the first seed"
    )
    arguments.add_argument("--jobs", type=int, default=2)
    arguments.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where failures are written")
    arguments.add_argument("--device", action="store_true", help="run on this machine's GPU")
    arguments.add_argument("--seconds", type=float, help="start no kernel after so many")
    arguments.add_argument("--json", type=Path, help="record the outcome here")
    options = arguments.parse_args()
    start = time.monotonic()
    deadline = None if options.seconds is None else start + options.seconds
    seeds = range(options.seed, options.seed + options.count)
    failed: list[Failure] = []
    done = 0
    # Fresh processes now and then: a kernel that ruins a GPU's context ruins few others.
    with multiprocessing.get_context("spawn" if options.device else None).Pool(
        options.jobs, maxtasksperchild=100 if options.device else 50
    ) as pool:
        work = until(seeds, options.device, deadline)
        chunk = options.jobs * 8
        while batch := [w for _, w in zip(range(chunk), work, strict=False)]:
            for found in pool.imap_unordered(run, batch):
                done += 1
                if found is not None:
                    failure, report = found
                    failed.append(failure)
                    options.keep.mkdir(parents=True, exist_ok=True)
                    (options.keep / f"{failure.seed}.txt").write_text(report, encoding="utf-8")
                    print(f"{failure}\n")
            if done // 100 != (done - len(batch)) // 100:
                print(f"{done} kernels, {len(failed)} failures", flush=True)
    print(f"{done} kernels from seed {options.seed}: {len(failed)} failures")
    if options.json:
        entry = {
            "target": "GPU" if options.device else "CPU reference and PTX machine",
            "date": f"{datetime.date.today():%Y-%m-%d}",
            "first_seed": options.seed,
            "kernels": done,
            "archs": list(ARCHS),
            "failures": sorted(f.seed for f in failed),
            "seconds": round(time.monotonic() - start),
            "jobs": options.jobs,
            **versions(options.device),
        }
        record(options.json, entry)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
