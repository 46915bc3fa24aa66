"""Kernels of `tilemma.ops`, small and ragged, for a checker of memory, races or barriers to watch:

    python bench/memcheck_ops.py --workers 12 --kinds FILE         # all, without a checker
    compute-sanitizer --tool memcheck --error-exitcode 1 python bench/memcheck_ops.py --kinds FILE --part 0/4

The checkers `racecheck`, `synccheck` and `initcheck` are run in the same way.  What racecheck says of
`task_queue.py` is no race: lanes of a warp read a task, and behind `bar.warp.sync` one of them arrives, for its
warp, at the mbarrier that the writer of the next task waits for.  With `--every-lane` all lanes arrive, and it
reports nothing.

The kernels are one of each kind of `tests/ops/machine_variants.py`, which runs all of them on the PTX machine.
Results are exact.  The first command writes the list of kinds and fills the cache of compiled kernels, which the
others use.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pickle
import re
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "ops"))

from drawn_calls import RealCall
from machine_variants import Variant, variants
from real_calls import expected, numpy_arrays, run_small, wrong_result

from tilemma import compiler
from tilemma.ops import product
from tilemma.ops.batch_plans import AHEAD
from tilemma.ops.plan import Plan
from tilemma.runtime import DeviceArray, cuda_device, describe


def kind(v: Variant) -> tuple[Any, ...]:
    """What variants share whose kernels take the same ways through the text."""
    p, call = v.plan, v.calls[0][0]
    made = p.kernel, p.by_hand, p.groups, p.store, p.cluster, p.share, p.split > 1, p.loaded > 0
    scales = call.arrays["scale_b"].extents[-2:] if "scale_b" in call.arrays else ()
    return call.function, scales, *made, p.prompt, p.turns, p.queue, p.ordered, p.swap


def chosen(kept: Path | None) -> list[Variant]:
    """One of each kind, those with queues and with the most warpgroups first; from the file, if it is there."""
    if kept and kept.exists():
        found: list[Variant] = pickle.loads(kept.read_bytes())
        return found
    kinds = {kind(v): v for v in reversed(variants())}
    every = sorted(kinds.values(), key=lambda v: (not v.plan.queue, -v.plan.groups))
    if kept:
        kept.write_bytes(pickle.dumps(every))
    return every


def every_lane_arrives() -> None:
    """From now on every lane, not one for its warp, gives the words of a queue back, in kernels that no cache
    keeps."""
    os.environ["TILEMMA_CACHE"] = tempfile.mkdtemp()
    begin, assemble = compiler.begin, compiler.assemble
    arrival = r"@%first_lane\w* (mbarrier\.arrive\.shared::cta\.b64 _, \[%event\w*\+(\d+)\])"

    def changed(ptx: str) -> str:
        for place in {int(at) for _, at in re.findall(arrival, ptx)}:
            for slot in range(AHEAD):
                start = rf"(mbarrier\.init\.shared::cta\.b64 \[%shared_base\+{place + 8 * slot}\], )(\d+);"
                ptx = re.sub(start, lambda m: f"{m[1]}{32 * int(m[2])};", ptx)
        return re.sub(arrival, r"\1", ptx)

    compiler.begin = lambda ptx, *rest, **options: begin(changed(ptx), *rest, **options)
    compiler.assemble = lambda ptx, arch: assemble(changed(ptx), arch)


def copied(array: Any, whole: int) -> DeviceArray:
    """A copy on the device in memory that ends with the ``whole`` bytes in which it ends.

    memcheck and initcheck take copies of fewer than 16 bytes (`cp.async` with a source size) for whole ones.
    """
    driver = cuda_device(0).driver
    allocate = driver.allocate

    def closely(size: int) -> int:
        # The driver's addresses are multiples of 256: an array needs no room to be moved to one.
        length = max(-(-(size - 256) // whole) * whole, whole)
        address = allocate(length)
        driver.fill(address, 0, length)
        return address

    with mock.patch.object(driver, "allocate", closely):
        return DeviceArray.from_host(cuda_device(0), array)


def on_device(x: RealCall, plan: Plan, whole: int) -> str:
    """What is wrong with the result of a call on copies of its arrays (`copied`)."""
    given, frames = numpy_arrays(x)
    before, correct = frames["out"].copy(), expected(x, given)
    copies = {name: copied(y, whole) for name, y in given.items()}
    if x.in_place:
        copies["out"] = copies["c"]
    product.run(x.problem({n: describe(y) for n, y in copies.items()}), plan, "cuda", arch="sm_90a")
    given["out"][...] = copies["out"].to_host()
    return wrong_result(x, given, frames, before, correct)


def outcome(v: Variant, target: str, whole: int) -> tuple[Variant, str]:
    """A variant, and what is wrong with its results."""
    try:
        if target == "cuda":
            return v, "; ".join(w for call in v.calls[:2] if (w := on_device(*call, whole)))
        options = {} if target == "cpu" else {"arch": "sm_90a"}
        return v, "; ".join(w for x, plan in v.calls[:2] if (w := run_small(x, plan, target, **options)))
    except Exception:
        return v, traceback.format_exc(-12)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="0/1", help="I/N: kinds I, I + N, ..")
    parser.add_argument("--kinds", type=Path, help="the list of kinds, which is written if it is not there")
    parser.add_argument(
        "--whole", type=int, default=16, help="bytes of which the memory of an array has a multiple (default 16)"
    )
    parser.add_argument("--every-lane", action="store_true", help="each lane gives the words of a queue back")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0: this one, which the checker watches")
    parser.add_argument("--seconds", type=float, default=0, help="stop after so many, if not 0")
    parser.add_argument("--target", choices=["cuda", "cpu", "machine"], default="cuda")
    options = parser.parse_args()
    begin, failed, done = time.time(), 0, 0
    if options.every_lane:
        every_lane_arrives()
    if options.target == "cuda" and not options.workers:
        cuda_device(0)  # a checker waits some seconds for a process that uses the driver
    every = chosen(options.kinds)
    first, _, step = options.part.partition("/")
    mine = every[int(first) :: int(step)]
    print(f"{len(mine)} of {len(every)} kinds", flush=True)
    one = partial(outcome, target=options.target, whole=options.whole)
    pool = multiprocessing.get_context("spawn").Pool(options.workers) if options.workers else None
    for v, wrong in pool.imap_unordered(one, mine) if pool else map(one, mine):
        done, failed = done + 1, failed + bool(wrong)
        if wrong:
            print(f"WRONG: {v.family}, {v.plan}: {wrong}", flush=True)
        elif not pool:
            print(f"{v.family}, {v.plan}", flush=True)
        if options.seconds and time.time() - begin > options.seconds:
            break
    print(f"{done} of {len(mine)} kinds, {failed} wrong, {time.time() - begin:.0f} s", flush=True)
    if pool:
        pool.terminate()
    return int(failed > 0)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
