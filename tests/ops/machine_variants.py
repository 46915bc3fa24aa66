"""Every kernel variant that a plan of `tilemma.ops` can choose, on the PTX machine under 20 schedules.

    python tests/ops/machine_variants.py --workers 64                 # all, some 20,000 s of processors
    python tests/ops/machine_variants.py --workers 2 --part 7/100     # each hundredth, from the seventh on

A variant is a plan of `candidates` that differs in more than sizes, made small: few slots, parts and blocks, and a
shape of about two tiles with ragged edges.  Products of f16 are those of `test_machine.choosable`; the others are
reduced calls of `real_calls`, whose values are exact.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ in ("__main__", "__mp_main__"):
    root = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(root), str(Path(__file__).parent)]
    # One process on each core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import test_machine
import test_resident
from drawn_calls import Array, RealCall
from real_calls import reduced, run_small

from tilemma.machine.native import library
from tilemma.machine.run import schedule_of
from tilemma.ops.candidates import candidates
from tilemma.ops.plan import Hardware, Plan

SCHEDULES = 20
# Large, few rows in one tile and in several, a short M with a long K, and rows that start within lines.
SHAPES = (
    (4096, 4096, 4096), (16, 8192, 8192), (100, 8192, 8192), (209, 4864, 6144), (4608, 190, 4096),
    (400, 400, 32768), (4095, 4097, 4104),
)  # fmt: skip
BATCHES = ((136, 328, 72), (64, 264, 40), (300, 520, 136), (72, 320, 16), (257, 96, 520))
ROWS, STEPS = (("M", 1), (1, "N")), (("M", "KB"), ("KB", "NB"))


@dataclass(frozen=True)
class Family:
    """Calls of one function and type."""

    function: str
    dtype: str
    out: str
    scales: tuple[Any, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    right: str = "columns"
    batched: bool = False

    def calls(self) -> Iterator[RealCall]:
        """One for each shape."""
        grouped = self.function == "grouped_matmul"
        outer = ("B",) if self.batched else ()
        arrays = {
            "a": Array((*outer, "M", "K"), self.dtype),
            "b": Array((*(("E",) if grouped else outer), "K", "N"), self.dtype, self.right),
            "bias": Array(("N",), "f32"),
        }
        if grouped:
            arrays["offsets"] = Array(("E",), "s32")
        for name, form in zip(("scale_a", "scale_b"), self.scales, strict=bool(self.scales)):
            arrays[name] = Array((*(("E",) if grouped and name == "scale_b" else ()), *form), "f32")
        arrays["out"] = Array((*outer, "M", "N"), self.out)
        for shape in BATCHES if self.batched else SHAPES:
            sizes = dict(zip("MNK", shape, strict=True)) | ({"E": 8} if grouped else {})
            sizes |= {"B": 200} if self.batched else {}
            yield RealCall(1, self.function, sizes, arrays, {"activation": "relu", **dict(self.options)}, self.out)


FAMILIES = {
    "f32": Family("matmul", "f32", "f32"),
    "tf32": Family("matmul", "f32", "f32", options=(("compute", "tf32"),)),
    "f64": Family("matmul", "f64", "f64"),
    "s8": Family("matmul", "s8", "s32"),
    "bf16, rhs of contiguous rows": Family("matmul", "bf16", "f32", right="rows"),
    "batches": Family("matmul", "f16", "f16", batched=True),
    "batches, rhs of contiguous rows": Family("matmul", "f16", "f16", right="rows", batched=True),
    "e4m3, scaled rows": Family("scaled_matmul", "f8_e4m3", "bf16", ROWS),
    "e4m3, promoted": Family("scaled_matmul", "f8_e4m3", "bf16", ROWS, (("fast", False),)),
    "e4m3, scaled blocks": Family("scaled_matmul", "f8_e4m3", "bf16", STEPS),
    "s8, scaled rows": Family("scaled_matmul", "s8", "f16", ROWS),
    "groups of bf16": Family("grouped_matmul", "bf16", "bf16"),
    "groups of e4m3, scaled rows": Family("grouped_matmul", "f8_e4m3", "bf16", ROWS),
    "groups of e4m3, scaled blocks": Family("grouped_matmul", "f8_e4m3", "bf16", STEPS),
    "groups of s8": Family("grouped_matmul", "s8", "s32"),
}


def kind(p: Plan) -> tuple[Any, ...]:
    """What two plans share whose kernels differ in sizes alone."""
    shape = p.kernel, p.tile, p.groups, p.cluster, p.share, min(p.stages, 3), p.split > 1
    same = p.store, p.swap, p.pack, p.back, p.by_hand, p.loaded, p.slots, p.prompt, p.streamed, p.turns
    return *shape, *same


# What is computed: the family, the plan, and a run under one schedule that returns what is wrong.
Variant = tuple[str, Plan, Callable[[int], str]]


def of_family(name: str) -> Iterator[Variant]:
    """The plans for the calls of a family, one of each kind."""
    found: dict[tuple[Any, ...], Variant] = {}
    for x in FAMILIES[name].calls():
        problem = x.imagined()
        for plan in candidates(problem, Hardware()):
            if kind(plan) not in found:
                small = reduced(x, problem, plan)

                def run(seed: int, small: tuple[RealCall, Plan] = small) -> str:
                    how = schedule_of(seed)
                    return run_small(*small, "machine", arch="sm_90a", seed=seed, schedule=how)

                found[kind(plan)] = name, small[1], run
    yield from found.values()


def of_f16() -> Iterator[Variant]:
    """`test_machine.test_schedules` and `test_resident.test_schedules`."""
    for plan in test_machine.choosable():

        def run(seed: int, plan: Plan = plan) -> str:
            share = test_machine.under_schedule(plan, seed)
            return "" if share <= 1 else f"{share} of the bound"

        yield "f16", plan, run
    for shape in test_resident.SHAPES:
        plans = (test_resident.small(x) for x in test_resident.resident(test_resident.batch(shape)[0]))
        for plan in dict.fromkeys(plans):

            def run(seed: int, shape: tuple[int, int, int, int] = shape, plan: Plan = plan) -> str:
                share = test_resident.run(shape, plan, seed=seed, schedule=schedule_of(seed))
                return "" if share <= 1 else f"{share} of the bound"

            yield f"resident, {shape}", plan, run


def variants() -> list[Variant]:
    """All, of each family in turns: whatever part of them is run has some of each."""
    parts = [list(of_f16()), *(list(of_family(name)) for name in FAMILIES)]
    placed = [(i / len(part), n, v) for n, part in enumerate(parts) for i, v in enumerate(part)]
    return [v for _, _, v in sorted(placed, key=lambda x: x[:2])]


_known: list[Variant] = []


def outcome(job: tuple[int, int]) -> tuple[str, int, float, str]:
    """(family, runs, processor seconds, what is wrong) of one variant under so many schedules."""
    number, schedules = job
    if not _known:
        _known.extend(variants())
    (name, plan, run), begin = _known[number], time.process_time()
    for seed in range(schedules):
        try:
            wrong = run(seed)
        except Exception as error:
            wrong = f"{type(error).__name__}: {str(error)[:600]}"
        if wrong:
            return name, seed + 1, time.process_time() - begin, f"{name}, {plan}, schedule {seed}: {wrong}"
    return name, schedules, time.process_time() - begin, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--schedules", type=int, default=SCHEDULES)
    parser.add_argument("--part", default="0/1", help="I/N: variants I, I + N, ..")
    parser.add_argument("--seconds", type=float, default=0, help="stop after so many, if not 0")
    parser.add_argument(
        "--list", action="store_true", help="print the number of variants of each family, and stop"
    )
    options = parser.parse_args()
    every = variants()
    first, _, step = options.part.partition("/")
    chosen = range(int(first), len(every), int(step))
    counts = Counter(every[i][0].partition(", (")[0] for i in chosen)
    print(f"{len(chosen)} of {len(every)} variants: {dict(counts)}", flush=True)
    if options.list:
        return 0
    begin, done, runs, used, failed = time.time(), 0, 0, 0.0, 0
    library.compile_now()  # once: the processes find it on disk
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        jobs = zip(chosen, itertools.repeat(options.schedules))
        for name, count, seconds, wrong in pool.imap_unordered(outcome, jobs):
            done, runs, used, failed = done + 1, runs + count, used + seconds, failed + bool(wrong)
            if wrong:
                print(f"WRONG: {wrong}", flush=True)
            if options.seconds and time.time() - begin > options.seconds:
                pool.terminate()
                break
    left = len(chosen) - done
    print(
        f"{done} variants, {runs} runs, {failed} failures, {left} variants not run; {time.time() - begin:.0f} s,"
        f" {used:.0f} s of processors"
    )
    return 1 if failed or left else 0


if __name__ == "__main__":
    sys.exit(main())
