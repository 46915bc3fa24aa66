"""Random kernels with synchronous loops that can be pipelined, and loops that only look so.

``python -m dev.fuzz.pipelined 0 1000 --jobs 2 --json docs/proofs/pipelined.json`` checks the kernels of these
seeds and counts those that are pipelined; with ``--device`` on the GPU.  Each is written in both languages.  The
CPU reference executes it before and after the passes; the PTX machine under several schedules, or the GPU, as
well.  All data are small integers, so that the results are equal bits.  Blocks of persistent kernels compute
several tiles.
"""

from __future__ import annotations

import argparse
import datetime
import json
import linecache
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tilemma import croqtile
from tilemma.ir.canonical import canonical
from tilemma.kernels import Kernel, facts_of
from tilemma.targets.cpu import execute
from tilemma.targets.ptx.passes import plan_roles

ARCHS = ("sm_80", "sm_90a")
# How a loop looks.  After `plain`: what may prevent pipelining, in part or as a whole.
FORMS = (
    "plain", "plain", "plain", "table", "second", "chained", "condition", "exit", "read_after", "alias",
    "modified", "element", "source_written", "variable", "outer",
)  # fmt: skip
# In both languages.
CONDITIONS = (
    ("k % 2 == 0", "k % 2 == 0"), ("k != 1", "k != 1"), ("order.at(k) == 1", "order[k] == 1"),
    ("k % (j + 1) == 0", "k % (j + 1) == 0"), ("k < i + 2", "k < i + 2"),
)  # fmt: skip
# Settings of kernels whose warpgroups multiply.
GRIDS = ("", "", "persistent=true", "persistent=false", 'order="keep"', "cluster=2", "producer=true")
# The forms whose operand A needs a buffer that is declared before the loop.
OWN_BUFFER = ("alias", "modified", "read_after")


@dataclass
class Program:
    """The two texts; ``sizes``: M, N and K; ``own``: operand A has a buffer that is declared before the loop."""

    seed: int
    form: str
    co: list[str] = field(default_factory=list)
    py: list[str] = field(default_factory=list)
    own: bool = False
    depth: int = 1
    sizes: dict[str, int] = field(default_factory=dict)

    def line(self, co: str, py: str, opens: bool = False) -> None:
        """One statement in both languages; ``opens``: a block, which `close` ends."""
        indent = "    " * self.depth
        self.co.append(indent + co + (" {" if opens else ""))
        if py:
            self.py.append(indent + py + (":" if opens else ""))
        self.depth += opens

    def close(self) -> None:
        self.depth -= 1
        self.co.append("    " * self.depth + "}")

    @property
    def croqtile(self) -> str:
        return "\n".join(self.co)

    @property
    def python(self) -> str:
        return "\n".join(self.py)


def generate(seed: int) -> Program:
    r = Random(seed)
    p = Program(seed, r.choice(FORMS))
    p.own = p.form in OWN_BUFFER or r.random() < 0.3
    warpgroups = r.random() < 0.4
    if warpgroups:
        warps_m, warps_n = r.choice([1, 2]), 1
        tile_m, tile_n, tile_k = 64 * warps_m, r.choice([16, 32, 64]), 16 * r.choice([1, 2, 4])
        aligned = [8, tile_k, 3 * tile_k, 4 * tile_k + 8, 7 * tile_k]
    else:
        warps_m, warps_n = r.choice([(1, 1), (2, 1), (1, 2), (2, 2)])
        tile_m, tile_n, tile_k = 16 * warps_m * r.choice([1, 2]), 16 * warps_n, 16 * r.choice([1, 2, 4])
        aligned = []
    depths = [*aligned, 0, 8, tile_k, 3 * tile_k, 4 * tile_k + 8, 5 * tile_k - 3, 7 * tile_k]
    p.sizes = {"M": r.choice([tile_m, tile_m + 3]), "N": r.choice([tile_n, 2 * tile_n - 5, 3 * tile_n]),
               "K": r.choice(depths)}  # fmt: skip
    level = "group-4" if warpgroups else "group"
    grid = r.choice(GRIDS) if warpgroups else ""
    stages = r.choice([None, 2, 3, 4])
    attribute = "" if stages is None else f"[[pipeline(stages={stages})]] "
    option = "" if stages is None else f", pipeline=tm.Pipeline(stages={stages})"
    inside = p.form not in ("modified", "element") and r.random() < 0.4
    steps, whole = tile_k // 16, r.random() < 0.2
    arrays = "global f16 [M, K] a, global f16 [N, K] b, global f32 [M, N] c, global s32 [64] order"
    unquoted = grid.replace('"', "")
    before = f"[[pipeline({unquoted})]] " if grid else ""
    p.co = [f"{before}__co__ void k({arrays}) {{"]
    settings = f"(pipeline=tm.Pipeline({grid.replace('true', 'True').replace('false', 'False')}))" if grid else ""
    p.py = ["import tilemma as tm", "from tilemma import *", f"@tm.kernel{settings}",
            "def k(a: tm.Global['f16', 'M', 'K'], b: tm.Global['f16', 'N', 'K'], c: tm.Global['f32', 'M', 'N'],"
            " order: tm.Global['s32', 64]):",
            "    (M, K), N = a.shape, b.shape[0]"]  # fmt: skip
    p.line(f"parallel {{i, j}} by [cdiv(M, {tile_m}), cdiv(N, {tile_n})] : block",
           f"for i, j in parallel(cdiv(M, {tile_m}), cdiv(N, {tile_n}), level='block')", True)  # fmt: skip
    group = (f"parallel {{v, w}} by [{warps_m}, {warps_n}] : {level}",
             f"for v, w in parallel({warps_m}, {warps_n}, level='{level}')")  # fmt: skip
    if p.own:
        p.line(f"shared f16 [{tile_m}, {tile_k}] sa;", f"sa = shared('f16', {tile_m}, {tile_k})")
    if inside:
        p.line(*group, True)
    p.line("mc = mma.fill.f32 0.0f;", "mc = mma.fill(0.0, 'f32')")
    if p.form == "variable":
        p.line("mutable int place = 0;", "place = var(0)")
    if p.form == "outer":
        p.line("foreach t in 2", "for t in foreach(2)", True)
    loops = 2 if p.form == "second" else 1
    for n in range(loops):
        p.line(f"{attribute}foreach k in cdiv(K, {tile_k})", f"for k in foreach(cdiv(K, {tile_k}){option})", True)
        _body(p, r, n, (tile_m, tile_n, tile_k), (warps_m, warps_n), steps, inside, whole, group)
        p.close()
    if p.form == "outer":
        p.close()
    if not inside:
        p.line(*group, True)
    at = f"c.subspan({tile_m}, {tile_n}).at(i, j).subspan({tile_m // warps_m}, {tile_n // warps_n}).at(v, w)"
    p.line(f"mma.store mc, {at};", f"mma.store(mc, {at})")
    p.close()
    if p.form == "read_after":
        p.line("if (K > 0)", "with if_(K > 0)", True)
        p.line("parallel t by 1 : thread", "for t in parallel(1, level='thread')", True)
        p.line(f"c.at(i * {tile_m}, j * {tile_n}) = sa.at(0, 0);", f"c[i * {tile_m}, j * {tile_n}] = sa[0, 0]")
        p.close()
        p.close()
    if p.form == "source_written":
        p.line("if (M < 0)", "with if_(M < 0)", True)
        p.line("a.at(0, 0) = 1.0f;", "a[0, 0] = 1.0")
        p.close()
    p.close()
    p.co.append("}")
    return p


def _body(
    p: Program, r: Random, n: int, tiles: tuple[int, int, int], warps: tuple[int, int], steps: int, inside: bool,
    whole: bool, group: tuple[str, str],
) -> None:  # fmt: skip
    tile_m, tile_n, tile_k = tiles
    place = {"table": ("order.at(k)", "order[k]"), "variable": ("place", "place")}.get(p.form, ("k", "k"))
    a, b = f"a.subspan({tile_m}, {tile_k}).at(i, ", f"b.subspan({tile_n}, {tile_k}).at(j, "
    fa, fb = f"fa{n}", f"fb{n}"
    sa, sb = f"{fa}.data", f"{fb}.data"
    if p.form == "exit":
        p.line("if (k == 2) break;", "with if_(k == 2):")
        p.py.append("    " * (p.depth + 1) + "break_()")
    if p.form == "condition":
        co, py = r.choice(CONDITIONS)
        p.line(f"if ({co})", f"with if_({py})", True)
    if p.own:
        p.line(f"dma.copy {a}{place[0]}) => sa;", f"dma.copy({a}{place[1]}), sa)")
        sa = "sa"
    else:
        p.line(f"{fa} = dma.copy {a}{place[0]}) => shared;", f"{fa} = dma.copy({a}{place[1]}), to='shared')")
    p.line(f"{fb} = dma.copy {b}{place[0]}) => shared;", f"{fb} = dma.copy({b}{place[1]}), to='shared')")
    if p.form == "modified":
        p.line(f"parallel t by {tile_m} : thread", f"for t in parallel({tile_m}, level='thread')", True)
        p.line("sa.at(t, 0) = sa.at(t, 0) + 1;", "sa[t, 0] = sa[t, 0] + 1")
        p.close()
    if p.form == "element":
        p.line("parallel t by 1 : thread", "for t in parallel(1, level='thread')", True)
        p.line(f"c.at(i * {tile_m}, j * {tile_n}) = {sa}.at(0, 0);", f"c[i * {tile_m}, j * {tile_n}] = {sa}[0, 0]")
        p.close()
    if not inside:
        p.line(*group, True)
    for x in ("", "_more")[: 2 if p.form == "chained" else 1]:
        if not whole:
            p.line(f"foreach s{x} in {steps}", f"for s{x} in foreach({steps})", True)
        at, depth = ("0", tile_k) if whole else (f"s{x}", 16)
        mine = (
            f"subspan({tile_m // warps[0]}, {depth}).at(v, {at})",
            f"subspan({tile_n // warps[1]}, {depth}).at(w, {at})",
        )
        p.line(f"ma{x} = mma.load {sa}.{mine[0]};", f"ma{x} = mma.load({sa}.{mine[0]})")
        p.line(f"mb{x} = mma.load {sb}.{mine[1]};", f"mb{x} = mma.load({sb}.{mine[1]})")
        p.line(f"mma.row.row mc, ma{x}, mb{x};", f"mma.row.row(mc, ma{x}, mb{x})")
        if not whole:
            p.close()
    if not inside:
        p.close()
    if p.form == "condition":
        p.close()
    if p.form == "alias":
        p.line(f"dma.copy {a}0) => sa;", f"dma.copy({a}0), sa)")
    if p.form == "variable":
        p.line("place = place + 1;", "place.set(place + 1)")


@dataclass(frozen=True)
class Result:
    """``pipelined``: the loops that the passes pipelined for each architecture; ``producer``: with a producer."""

    pipelined: dict[str, int]
    failure: str = ""
    producer: bool = False


def check(p: Program, schedules: int = 5, device: bool = False) -> Result:
    """Run ``p``: reference before and after the passes, and the machine under ``schedules``, or the GPU."""
    kernel = Kernel(croqtile.load(p.croqtile, f"pipelined {p.seed}.co").sources["k"])
    if canonical(kernel.build()) != canonical(_python(p).build()):
        return Result({}, "the two languages differ")
    wanted = _arrays(p)
    kernel.on("cpu")(**wanted)
    if p.form in ("plain", "source_written") and (wanted["c"] != _product(p, wanted)).any():
        return Result({}, "the reference differs from NumPy")
    found: dict[str, int] = {}
    producer = False
    for arch in ARCHS:
        compiled = kernel.compile(arch, facts=facts_of(wanted))
        said = [d for d in compiled.decisions if d.pass_name == "pipeline" and "stages" in d.data]
        found[arch] = sum(not d.warning for d in said)
        producer = producer or any("full" in d.data for d in said)
        again = _arrays(p)
        execute(compiled.kernel, again, {}, dims=p.sizes)
        if not np.array_equal(again["c"], wanted["c"]):
            return Result(found, f"after the passes for {arch} the reference differs", producer)
        for schedule in range(1 if device else schedules):
            run = _arrays(p)
            on = (
                kernel.on("cuda", arch=arch)
                if device
                else kernel.on("machine", arch=arch, seed=schedule, strict=True)
            )
            on(**run)
            if not np.array_equal(run["c"], wanted["c"]):
                where = "GPU" if device else f"machine, schedule {schedule},"
                return Result(found, f"the {where} differs on {arch}", producer)
    return Result(found, producer=producer)


def _python(p: Program) -> Kernel:
    file = f"<pipelined {p.seed}>"
    linecache.cache[file] = (len(p.python), None, p.python.splitlines(keepends=True), file)
    scope: dict[str, Any] = {}
    exec(compile(p.python, file, "exec"), scope)
    kernel: Kernel = scope["k"]
    return kernel


def _arrays(p: Program) -> dict[str, Any]:
    rng = np.random.default_rng(p.seed)
    m, n, k = (p.sizes[x] for x in "MNK")
    a, b = (rng.integers(-3, 4, (x, k)).astype(np.float16) for x in (m, n))
    order = rng.integers(0, 2, 64).astype(np.int32)
    return {"a": a, "b": b, "c": np.zeros((m, n), np.float32), "order": order}


def _product(p: Program, arrays: dict[str, Any]) -> Any:
    return arrays["a"].astype(np.float32) @ arrays["b"].astype(np.float32).T


def _checked(task: tuple[int, bool]) -> tuple[str, Result]:
    seed, device = task
    p = generate(seed)
    try:
        return p.form, check(p, device=device)
    except Exception as e:
        return p.form, Result({}, f"{type(e).__name__}: {e}")


def main(first: int, count: int, jobs: int, device: bool, path: Path | None) -> int:
    """Check ``count`` seeds from ``first``; print failures, and how many kernels of each form are pipelined.

    ``path``: the record of the runs.  This run takes the place of the last on its target, or continues it.
    """
    start, seeds = time.monotonic(), range(first, first + count)
    forms, failed, producers = Counter[str](), list[int](), 0
    with (
        tempfile.TemporaryDirectory(prefix="tilemma-pipelined-") as cache,
        multiprocessing.get_context("spawn").Pool(jobs, _setup, (cache,)) as pool,
    ):
        tasks = [(seed, device) for seed in seeds]
        for seed, (form, result) in zip(seeds, pool.imap(_checked, tasks, chunksize=4), strict=True):
            if result.failure:
                failed.append(seed)
                print(f"seed {seed} ({form}): {result.failure}", flush=True)
            forms[form] += any(result.pipelined.values())
            producers += result.producer
    print(f"{count} kernels, {forms.total()} pipelined, {len(failed)} failed: {dict(forms)}")
    if path is not None:
        target = "GPU" if device else "CPU reference and PTX machine, 5 schedules"
        date = f"{datetime.date.today():%Y-%m-%d}"
        entry = {"target": target, "date": date, "first_seed": first, "kernels": count,
                 "archs": list(ARCHS), "pipelined": forms.total(), "with_a_producer": producers,
                 "pipelined_by_form": dict(sorted(forms.items())), "failures": failed,
                 "seconds": round(time.monotonic() - start), "jobs": jobs}  # fmt: skip
        runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
        before = next((r for r in runs if r["target"] == target), None)
        if before is not None and before["first_seed"] + before["kernels"] == first:
            entry = _added(before, entry)
        runs = [*(r for r in runs if r["target"] != target), entry]
        text = json.dumps({"runs": sorted(runs, key=lambda r: r["target"])}, indent=1)
        path.write_text(text + "\n", encoding="utf-8")
    return 1 if failed else 0


def _added(before: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """The record of two runs, of which the second continues the first."""
    numbers = ("kernels", "pipelined", "with_a_producer", "seconds")
    forms = Counter(before["pipelined_by_form"]) + Counter(entry["pipelined_by_form"])
    return {
        **entry,
        **{n: before[n] + entry[n] for n in numbers},
        "first_seed": before["first_seed"],
        "failures": before["failures"] + entry["failures"],
        "pipelined_by_form": dict(sorted(forms.items())),
    }


def _setup(cache: str) -> None:
    """Two blocks at a time, so that a persistent block computes several tiles; a cache that the run removes."""
    os.environ["TILEMMA_CACHE"] = cache
    setattr(plan_roles, "MULTIPROCESSORS", 2)  # noqa: B010 (a constant to the type checker)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("first", type=int)
    options.add_argument("count", type=int)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--device", action="store_true")
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    sys.exit(main(given.first, given.count, given.jobs, given.device, given.json))
