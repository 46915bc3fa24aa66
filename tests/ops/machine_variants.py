"""Every kernel variant that a plan of `tilemma.ops` can choose, on the PTX machine under 20 schedules.

    python tests/ops/machine_variants.py --workers 64                              # all
    python tests/ops/machine_variants.py --workers 64 --seconds 50 --done FILE     # again, to run the others
    python tests/ops/machine_variants.py --workers 2 --part 7/100                  # variants 7, 107, ..

A variant is a plan of `ranked` that differs in more than sizes, made small: few slots, parts and blocks, and
shapes of two tiles with ragged edges, along one extent and the other in turns, which one block or cluster
computes through the same ring.  Products of f16 are those of `test_machine.choosable`; the others are reduced
calls of `real_calls`.  All values are exact.

The schedules of a variant share compiled kernels and expected results.  ``--done FILE`` records each variant that
has passed by the hash of its kernels, launches, arrays and schedules and of the machine's source, and a later run
skips it.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import math
import multiprocessing
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ in ("__main__", "__mp_main__"):
    root = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(root), str(Path(__file__).parent)]
    # One process on each core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import test_machine
import test_resident
from drawn_calls import Array, RealCall
from real_calls import expected, numpy_arrays, offsets_of, reduced, wrong_result

from tilemma import machine
from tilemma.launch import Launch
from tilemma.machine.native import library
from tilemma.machine.run import Job, schedule_of
from tilemma.ops import product
from tilemma.ops.candidates import ranked
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Hardware, Plan
from tilemma.ops.problem import Problem
from tilemma.ops.steps import shares_last_tasks
from tilemma.runtime.arrays import describe, facts

SCHEDULES = 20
# Large, few rows in one tile and in several, a short M with a long K, and rows that start within lines.
SHAPES = (
    (4096, 4096, 4096), (16, 8192, 8192), (100, 8192, 8192), (209, 4864, 6144), (203, 20096, 9856),
    (4608, 190, 4096), (400, 400, 32768), (4095, 4097, 4104),
)  # fmt: skip
# Of these one variant of each kind that no other has, whatever the width of its tile.
OTHERS = (
    (88, 120, 7000), (220, 19008, 15872), (1368, 2184, 3624), (128, 128, 21504), (219, 3704, 9496),
    (192, 18304, 4480), (84, 10656, 1296), (98, 2048, 8576), (80, 184, 5912), (256, 128, 128), (760, 472, 232),
    (137, 13200, 8976), (220, 9584, 1856), (1216, 1256, 3200), (1480, 2616, 2048),
)  # fmt: skip
BATCHES = ((136, 328, 72), (64, 264, 40), (300, 520, 136), (72, 320, 16), (257, 96, 520))
OTHER_BATCHES = (
    (234, 320, 219), (336, 265, 128), (152, 578, 26), (476, 71, 80), (475, 176, 32), (224, 384, 36),
    (184, 153, 32), (64, 72, 448), (24, 18, 80), (192, 16, 312), (472, 16, 30), (87, 64, 472), (64, 112, 512),
    (160, 248, 256), (128, 424, 480), (312, 112, 776), (200, 200, 96),
)  # fmt: skip
# The products of a batch; and so many that blocks take their tiles from a queue.
COUNT, MANY = 200, 4000
ROWS, STEPS, BLOCKS = (("M", 1), (1, "N")), (("M", "KB"), ("KB", "NB")), (("MB", "KB"), ("KB", "NB"))
# The f32 scales in the 16 bytes at multiples of which TMA starts to read.
QUAD = 4


@dataclass(frozen=True)
class Family:
    """Calls of one function and type.

    ``plain``: without an epilogue.  ``special``: only plans of batches whose blocks take tiles in turns or from a
    queue, and of groups whose last tasks are halved.  ``any_width``: one of each kind, whatever the width of its
    tile.  ``brought``: the contiguous axes of scales that TMA brings with the tiles: plans by hand without copies.
    """

    function: str
    dtype: str
    out: str
    scales: tuple[Any, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    right: str = "columns"
    batched: bool = False
    plain: bool = False
    special: bool = False
    any_width: bool = False
    brought: tuple[str, ...] = ()

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of products that calls have."""
        return (COUNT, MANY) if self.batched and self.special else (COUNT,)

    def call(self, shape: tuple[int, int, int], count: int = COUNT) -> RealCall:
        """The call with these M, N and K, and so many products if it is a batch."""
        grouped = self.function == "grouped_matmul"
        outer = ("B",) if self.batched else ()
        arrays = {
            "a": Array((*outer, "M", "K"), self.dtype),
            "b": Array((*(("E",) if grouped else outer), "K", "N"), self.dtype, self.right),
        }
        if not self.plain:
            arrays["bias"] = Array(("N",), "f32")
        if grouped:
            arrays["offsets"] = Array(("E",), "s32")
        for i, (name, form) in enumerate(zip(("scale_a", "scale_b"), self.scales, strict=bool(self.scales))):
            extents = (*(("E",) if grouped and name == "scale_b" else ()), *form)
            near = self.brought and Array(extents, "f32", self.brought[i], multiple=QUAD)
            arrays[name] = near or Array(extents, "f32")
        arrays["out"] = Array((*outer, "M", "N"), self.out)
        sizes = dict(zip("MNK", shape, strict=True)) | ({"E": 8} if grouped else {})
        sizes |= {"B": count} if self.batched else {}
        options = {} if self.plain else {"activation": "relu"}
        return RealCall(1, self.function, sizes, arrays, options | dict(self.options), self.out)


FAMILIES = {
    "f32": Family("matmul", "f32", "f32"),
    "tf32": Family("matmul", "f32", "f32", options=(("compute", "tf32"),)),
    "f64": Family("matmul", "f64", "f64"),
    "s8": Family("matmul", "s8", "s32"),
    "bf16": Family("matmul", "bf16", "bf16", plain=True, any_width=True),
    "bf16, rhs of contiguous rows": Family("matmul", "bf16", "f32", right="rows"),
    "batches": Family("matmul", "f16", "f16", batched=True),
    "batches, rhs of contiguous rows": Family("matmul", "f16", "f16", right="rows", batched=True),
    "batches in order": Family("matmul", "f16", "f16", batched=True, plain=True, special=True),
    "batches in order, rhs of contiguous rows": Family(
        "matmul", "f16", "f16", right="rows", batched=True, plain=True, special=True
    ),
    "e4m3, scaled rows": Family("scaled_matmul", "f8_e4m3", "bf16", ROWS),
    "e4m3, promoted": Family("scaled_matmul", "f8_e4m3", "bf16", ROWS, (("fast", False),)),
    "e4m3, scaled blocks": Family("scaled_matmul", "f8_e4m3", "bf16", STEPS),
    "s8, scaled rows": Family("scaled_matmul", "s8", "f16", ROWS),
    "groups of bf16": Family("grouped_matmul", "bf16", "bf16"),
    "groups of e4m3, scaled rows": Family("grouped_matmul", "f8_e4m3", "bf16", ROWS),
    "groups of e4m3, scaled blocks": Family("grouped_matmul", "f8_e4m3", "bf16", STEPS),
    "e4m3, scaled blocks by TMA": Family(
        "scaled_matmul", "f8_e4m3", "bf16", STEPS, any_width=True, brought=("columns", "rows")
    ),
    "e4m3, scaled blocks of neighbours": Family(
        "scaled_matmul", "f8_e4m3", "bf16", STEPS, any_width=True, brought=("columns", "columns")
    ),
    "e4m3, blocks of both by TMA": Family(
        "scaled_matmul", "f8_e4m3", "bf16", BLOCKS, any_width=True, brought=("columns", "rows")
    ),
    "e4m3, blocks of both, of neighbours": Family(
        "scaled_matmul", "f8_e4m3", "bf16", BLOCKS, any_width=True, brought=("rows", "columns")
    ),
    "groups of e4m3, blocks by TMA": Family(
        "grouped_matmul", "f8_e4m3", "bf16", STEPS, any_width=True, brought=("columns", "rows")
    ),
    "groups of e4m3, blocks of neighbours": Family(
        "grouped_matmul", "f8_e4m3", "bf16", STEPS, any_width=True, brought=("columns", "columns")
    ),
    "groups of s8": Family("grouped_matmul", "s8", "s32"),
    "halved groups of bf16": Family("grouped_matmul", "bf16", "bf16", plain=True, special=True),
    "halved groups of bf16, rhs of contiguous rows": Family(
        "grouped_matmul", "bf16", "bf16", right="rows", plain=True, special=True
    ),
    "halved groups of f16 to f32": Family("grouped_matmul", "f16", "f32", plain=True, special=True),
    "halved groups of e4m3": Family("grouped_matmul", "f8_e4m3", "bf16", plain=True, special=True),
    "halved groups of s8": Family("grouped_matmul", "s8", "s32", plain=True, special=True),
}


def kind(p: Plan, any_width: bool = False) -> tuple[Any, ...]:
    """What two plans share whose kernels differ in sizes alone; ``any_width``: or in the columns of a tile."""
    shape = p.kernel, p.tile[:: 2 if any_width else 1], p.groups, p.cluster, p.share, min(p.stages, 3), p.split > 1
    same = p.store, p.swap, p.pack, p.back, p.by_hand, p.loaded, p.slots, p.prompt, p.streamed
    return *shape, *same, p.turns, p.queue, p.kept, p.ordered, p.inside


def piece(problem: Problem, plan: Plan) -> int:
    """Bytes of the pieces of operands that threads copy; 0 where TMA copies boxes."""
    if plan.kernel not in ("tiles", "ahead"):
        return 0
    return min(facts(x).alignment for x in (problem.lhs, problem.rhs))


@dataclass(frozen=True)
class Variant:
    """A family, a plan of it, and the calls and plans that its schedules run in turns."""

    family: str
    plan: Plan
    calls: tuple[tuple[RealCall, Plan], ...]


def without_places(ptx: str) -> str:
    """PTX without its places in sources."""
    return re.sub(r"(?m)^\s*(\.loc|\.file|//).*\n", "", ptx)


# The runs of each kernel in this process.
_runs: Counter[str] = Counter()


class Prepared:
    """A call on arrays in memory whose kernels are compiled and decoded, to be run any number of times."""

    def __init__(self, x: RealCall, plan: Plan) -> None:
        self.call = x
        self.given, self.frames = numpy_arrays(x)
        self.correct = expected(x, self.given)
        problem = x.problem({n: describe(y) for n, y in self.given.items()})
        launches: list[tuple[str, Launch, dict[str, Any]]] = []
        with mock.patch.object(machine, "run", lambda *launch: launches.append(launch)):
            product.run(problem, plan, "machine", arch="sm_90a")
        self.kernels = [without_places(ptx) for ptx, _, _ in launches]
        self.launches = [repr(launch) for _, launch, _ in launches]
        self.jobs = [Job(*launch) for launch in launches]
        self.arrays = [[y for y in values.values() if isinstance(y, np.ndarray)] for _, _, values in launches]
        # All memory that the kernels write, as it was.
        self.before = self.frames["out"].copy()
        self.work = [(y, y.copy()) for y in {id(y): y for ys in self.arrays for y in ys}.values()]
        # Of each kernel the arrays before and after its first run.
        self.images: list[tuple[list[bytes], list[Any]]] = []

    def run(self, seed: int) -> str:
        """What is wrong under one schedule.

        A kernel that has run under all schedules, as a part of this call or of others, is not run again on the
        same arrays: packing operands and adding parts of K are kernels that many variants share.
        """
        for y, before in self.work:
            if y.flags.writeable:
                y[...] = before
        self.frames["out"][...] = self.before
        for i, (kernel, job, arrays) in enumerate(zip(self.kernels, self.jobs, self.arrays, strict=True)):
            now = [y.tobytes() for y in arrays]
            if i < len(self.images) and _runs[kernel] >= SCHEDULES and now == self.images[i][0]:
                for y, after in zip(arrays, self.images[i][1], strict=True):
                    if y.flags.writeable:
                        y[...] = after
                continue
            job.run(seed=seed, schedule=schedule_of(seed))
            _runs[kernel] += 1
            if i == len(self.images):
                self.images.append((now, [y.copy() for y in arrays]))
        return wrong_result(self.call, self.given, self.frames, self.before, self.correct)

    def text(self) -> str:
        """The kernels, the launches, and the arrays."""
        arrays = [(n, y.dtype.str, y.shape, y.strides) for n, y in self.given.items()]
        return "\n".join([*self.kernels, *self.launches, repr(arrays)])


@cache
def sources() -> str:
    """A hash of what decides on the outcome beside the kernels."""
    package = Path(machine.__file__).parent.parent
    files = [x for folder in ("machine", "arithmetic") for x in (package / folder).rglob("*") if x.is_file()]
    files = [x for x in files if x.suffix in (".py", ".c")]
    files += [package / "dtypes.py", package / "launch.py"]
    files += [Path(__file__).with_name(f"{name}.py") for name in ("real_calls", "drawn_calls", "machine_variants")]
    return hashlib.sha256(b"\0".join(x.read_bytes() for x in sorted(files))).hexdigest()


def two_tiles(x: RealCall, problem: Problem, plan: Plan) -> tuple[tuple[RealCall, Plan], ...]:
    """The reduced calls with two tiles along one extent, and along the other; one call where the other extent, or
    each, has one tile."""
    found: list[tuple[RealCall, Plan]] = []
    extents = [x.sizes[n] for n in ("NM" if problem.swapped != plan.swap else "MN")]
    one = [size <= t * c for size, t, c in zip(extents, plan.tile[:2], plan.cluster, strict=True)]
    for along in (1, 0):
        tiles = tuple(2 if i == along or one[1 - i] else 1 for i in range(2))
        call, small = reduced(x, problem, plan, (tiles[0], tiles[1]))
        if shares(problem, plan):
            call, small = halved(call, small)
        elif plan.kernel != "resident":
            small = replace(small, grid=min(small.grid, 1))
            call = replace(call, sizes=call.sizes | ({"B": 2} if "B" in call.sizes else {}))
        if all(call.sizes != other.sizes for other, _ in found):
            found.append((call, small))
    return tuple(found)


def shares(problem: Problem, plan: Plan) -> bool:
    """Whether blocks share the last tasks."""
    return shares_last_tasks(transposed_product(problem) if plan.swap else problem, plan)


def halved(x: RealCall, plan: Plan) -> tuple[RealCall, Plan]:
    """The call with groups that leave tasks for at most a half of the blocks in the last round, and of which none
    ends with half a tile or less."""
    rows, beside = plan.tile[0], -(-x.sizes["N"] // plan.tile[1])
    blocks, seeds = 4 if beside % 3 == 0 else 3, itertools.count(1)
    while True:
        found = replace(x, seed=next(seeds), sizes=x.sizes | {"M": 4 * rows})
        sizes = np.diff(offsets_of(found), prepend=0)
        rests, tasks = sizes % rows, beside * int(np.sum(-(-sizes // rows)))
        few = bool(np.any((rests > 0) & (2 * rests <= rows)))
        if not few and tasks > blocks and 0 < 2 * (tasks % blocks) <= blocks:
            return found, replace(plan, grid=blocks)


def of_family(name: str) -> Iterator[Variant]:
    """The plans for the calls of a family, one of each kind."""
    family, kinds = FAMILIES[name], set[tuple[Any, ...]]()
    first, others = (BATCHES, OTHER_BATCHES) if family.batched else (SHAPES, OTHERS)
    for count, shape in itertools.product(family.counts, (*first, *others)):
        x, any_width = family.call(shape, count), family.any_width or shape in others
        problem = x.imagined()
        for plan in (e.plan for e in ranked(problem, Hardware())):
            special, pieces = plan.turns or plan.queue or shares(problem, plan), piece(problem, plan)
            if family.brought and (plan.pack or not plan.by_hand):
                continue
            if (*kind(plan, any_width), pieces) not in kinds and (special or not family.special):
                kinds |= {(*kind(plan), pieces), (*kind(plan, True), pieces)}
                yield Variant(name, plan, two_tiles(x, problem, plan))


def of_f16() -> Iterator[Variant]:
    """`test_machine.choosable`, in each layout, in one block or cluster and in as many as there are tasks; and the
    plans of `test_resident`."""
    names = {"C": "rows", "F": "columns"}

    def call(m: int, n: int, k: int, layout: int, b: int = 0) -> RealCall:
        left, right = (names[x] for x in test_machine.LAYOUTS[layout])
        outer = ("B",) if b else ()
        arrays = {"a": Array((*outer, "M", "K"), "f16", left), "b": Array((*outer, "K", "N"), "f16", right)}
        arrays["out"] = Array((*outer, "M", "N"), "f16")
        sizes = {"M": m, "N": n, "K": k} | ({"B": b} if b else {})
        return RealCall(1, "matmul", sizes, arrays, {}, "f16", made=False)

    for plan in test_machine.choosable():
        layouts = range(4) if plan.tile[1] % 64 == 0 and plan.kernel == "pipelined" and not plan.loaded else (0,)
        enough, calls = replace(plan, grid=plan.grid and 64), []
        for p in (plan, enough) if plan.grid else (plan,):
            for layout in layouts:
                both = (True, False) if len(layouts) == 1 else ((layout + (p is plan)) % 2 == 1,)
                calls += [(call(*shape(plan, tall), layout), p) for tall in both]
        yield Variant("f16", plan, tuple(calls))
    for b, m, n, k in test_resident.SHAPES:
        plans = (test_resident.small(x) for x in test_resident.resident(test_resident.batch((b, m, n, k))[0]))
        for plan in dict.fromkeys(plans):
            yield Variant("resident", plan, ((call(m, n, k, 0, b), plan),))


def shape(plan: Plan, tall: bool) -> tuple[int, int, int]:
    """A shape with ragged edges, two tiles along one extent, and three steps for each part."""
    high, wide = plan.tile[0] * plan.cluster[0], plan.tile[1] * plan.cluster[1]
    m, n = (high + 8, max(8, wide - 8)) if tall else (max(8, high - 8), wide + 8)
    if plan.loaded and not plan.swap:
        m, n = plan.loaded - 3, wide + 8
    k = 3 * plan.split * plan.tile[2] - 8
    return (n, m, k) if plan.swap else (m, n, k)


def variants() -> list[Variant]:
    """All, of each family in turns: whatever part of them is run has some of each."""
    parts = [list(of_f16()), *(list(of_family(name)) for name in FAMILIES)]
    placed = [(i / len(part), n, v) for n, part in enumerate(parts) for i, v in enumerate(part)]
    return [v for _, _, v in sorted(placed, key=lambda x: x[:2])]


@dataclass(frozen=True)
class Outcome:
    """Of one variant: its key, the runs, processor seconds, and what is wrong."""

    variant: Variant
    key: str
    runs: int
    seconds: float
    wrong: str = ""


def outcome(v: Variant, schedules: int, done: frozenset[str] = frozenset()) -> Outcome:
    """Run a variant under so many schedules, unless its key is in ``done``."""
    begin, key, runs = time.process_time(), "", 0

    def ended(wrong: str = "") -> Outcome:
        wrong = wrong and f"{v.family}, {v.plan}, schedule {runs - 1}: {wrong}"
        return Outcome(v, key, runs, time.process_time() - begin, wrong)

    try:
        calls = [Prepared(*x) for x in v.calls[:schedules]]
        text = "\0".join([sources(), str(schedules), *(x.text() for x in calls)])
        key = hashlib.sha256(text.encode()).hexdigest()
        for seed in range(schedules) if key not in done else ():
            runs = seed + 1
            if wrong := calls[seed % len(calls)].run(seed):
                return ended(wrong)
    except Exception as error:
        return ended(f"{type(error).__name__}: {str(error)[:600]}")
    return ended()


def in_order(found: list[Variant]) -> list[Variant]:
    """One of each kind first, whatever the width of its tile, then a second one, and so on; of these those of
    large clusters first: they take up to a minute."""
    seen, turns = Counter[Any](), []
    for v in found:
        same = v.family, kind(v.plan, True)
        turns.append(seen[same])
        seen[same] += 1
    keys = [(turn, -math.prod(v.plan.cluster) // 4) for turn, v in zip(turns, found, strict=True)]
    return [found[i] for i in sorted(range(len(found)), key=keys.__getitem__)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--schedules", type=int, default=SCHEDULES)
    parser.add_argument("--part", default="0/1", help="I/N: variants I, I + N, ..")
    parser.add_argument("--seconds", type=float, default=0, help="stop after so many, if not 0")
    parser.add_argument("--done", type=Path, help="the keys of variants that have passed; adds those that pass")
    parser.add_argument(
        "--list", action="store_true", help="print the number of variants of each family, and stop"
    )
    options = parser.parse_args()
    begin = time.time()
    every = variants()
    first, _, step = options.part.partition("/")
    chosen = in_order(every[int(first) :: int(step)])
    print(f"{len(chosen)} of {len(every)} variants: {dict(Counter(v.family for v in chosen))}", flush=True)
    if options.list:
        return 0
    known = options.done.read_text().split() if options.done and options.done.exists() else []
    if library.loaded() is None:
        library.compile_now()  # once, for all processes
    one = partial(outcome, schedules=options.schedules, done=frozenset(known))
    found: list[Outcome] = []
    with multiprocessing.get_context("fork").Pool(options.workers) as pool:
        results = pool.imap_unordered(one, chosen)
        while len(found) < len(chosen):
            left = begin + options.seconds - time.time() if options.seconds else None
            try:
                found.append(results.next(left if left is None else max(left, 0)))
            except multiprocessing.TimeoutError:
                pool.terminate()
                break
            last = found[-1]
            if last.wrong:
                print(f"WRONG: {last.wrong}", flush=True)
            elif options.done and last.runs:
                with options.done.open("a") as file:
                    file.write(f"{last.key}\n")
    failed, skipped = sum(bool(x.wrong) for x in found), sum(not x.runs and not x.wrong for x in found)
    runs, seconds, left = sum(x.runs for x in found), sum(x.seconds for x in found), len(chosen) - len(found)
    print(
        f"{len(found) - skipped} variants, {runs} runs, {failed} failures, {skipped} passed before,"
        f" {len(found) - len({x.key for x in found})} of equal kernels,"
        f" {left} variants not run; {time.time() - begin:.0f} s, {seconds:.0f} s of processors"
    )
    return 1 if failed or left else 0


if __name__ == "__main__":
    sys.exit(main())
