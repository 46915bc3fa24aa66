"""Times the plans that the model of `ops.plan` likes best, over many shapes and types, and stores them.

    python bench/sweep_ops.py --json sweep.json --count 300            # on a GPU
    python bench/sweep_ops.py --judge sweep.json                       # anywhere: the model against a stored sweep

The shapes are random, the same for the same seed and kinds, and spread over the kinds of products: large, few
rows, long K, small, batches, misaligned, 8-bit.  For each the plans that the model likes best are timed, half of
them the best of tiles that the others do not have, and torch's product beside them.  Each shape's line has torch's
time over that of the model's choice and over that of the fastest.  Large products are timed with a flushed L2
cache, those of few rounds of the SMs and of hundreds of rows also by replays of CUDA graphs, the others by replays
over copies of the operands.
``--judge`` prints, by kind, the time of the model's choice over that of the fastest.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tilemma import dtypes
from tilemma.errors import TilemmaError
from tilemma.kernels import facts_of
from tilemma.ops import arguments
from tilemma.ops.arguments import PLAIN, SCALED, Call
from tilemma.ops.candidates import ranked
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Estimate, Hardware, Plan, estimate
from tilemma.ops.problem import Problem
from tilemma.ops.steps import steps, workspaces
from tilemma.runtime.arrays import ArrayRef, describe, row_major

KINDS = (
    "large", "few rows", "medium rows", "long K", "small", "batches", "misaligned", "e4m3", "e4m3 blocks",
    "e4m3 few rows", "s8", "e4m3 tensor few rows", "few rounds", "hundreds of rows",
)  # fmt: skip
# The forms of the scales; other 8-bit types.
SCALES = {"e4m3": "rows", "e4m3 few rows": "rows", "e4m3 blocks": "blocks", "e4m3 tensor few rows": "tensor"}
TYPES = {"s8": "s8"} | dict.fromkeys(SCALES, "f8_e4m3")


@dataclass(frozen=True)
class Shape:
    kind: str
    m: int
    n: int
    k: int
    batch: int = 1

    def __str__(self) -> str:
        return f"{self.kind} " + f"{self.batch} x " * (self.batch > 1) + f"{self.m}x{self.n}x{self.k}"

    @property
    def bytes(self) -> int:
        """Of the operands."""
        return self.batch * (self.m + self.n) * self.k * dtypes.dtype(self.dtype).bytes

    @property
    def copies(self) -> int:
        """Copies of the operands that replays of a graph take turns with; 1: single launches are timed."""
        if self.kind in FLUSHED or (self.kind in SMALL and self.bytes > LARGE):
            return 1
        return max(2, min(16, math.ceil(COLD / self.bytes)))

    @property
    def dtype(self) -> str:
        return TYPES.get(self.kind, "bf16")

    @property
    def scales(self) -> str:
        return SCALES.get(self.kind, "")


# The kinds of which single launches are timed, and those of them that are timed in the steady state, too; the
# others by graph replay, over copies of the operands of so many bytes in sum, small ones only up to so many.
STEADY = "few rounds", "hundreds of rows"
FLUSHED, COLD = ("large", "e4m3", "e4m3 blocks", "s8", *STEADY), 120e6
SMALL, LARGE = ("small", "batches", "misaligned"), 60e6
# The share of products of hundreds of rows that have as many columns instead.
TALL = 0.25
# Bytes of weights of few rows, and of the operands of a batch; elements of a result of few rounds, at most.
WEIGHTS, BATCH, FEW_ROUNDS = (8e6, 500e6), 500e6, 8.5e6


def shapes(count: int, seed: int, kinds: Sequence[str] = KINDS) -> list[Shape]:
    rng = random.Random(seed)

    def between(low: int, high: int, step: int) -> int:
        value = math.exp(rng.uniform(math.log(low), math.log(high)))
        return max(step, round(value / step) * step)

    found: list[Shape] = []
    while len(found) < count:
        kind, batch = kinds[len(found) % len(kinds)], 1
        if kind == "hundreds of rows":
            m = between(257, 1023, 1)
            n, k = (between(1024, 28672, rng.choice((128, 64, 8))) for _ in range(2))
            if not WEIGHTS[0] <= 2 * n * k <= WEIGHTS[1]:
                continue
            m, n = (n, m) if rng.random() < TALL else (m, n)
        elif kind.endswith("rows"):
            m = between(65, 224, 1) if kind == "medium rows" else between(1, 256, 1)
            n, k = between(2048, 28672, 128), between(2048, 16384, 128)
            if not WEIGHTS[0] <= 2 * n * k <= WEIGHTS[1]:
                continue
        elif kind == "long K":
            m, n, k = between(64, 512, 8), between(64, 512, 8), between(16384, 65536, 128)
        elif kind == "small":
            m, n, k = (between(128, 1536, 8) for _ in range(3))
        elif kind == "batches":
            m, n, k = (between(32, 1024, 8) for _ in range(3))
            batch = between(16, 4096, 1)
            if 2 * batch * (m + n) * k > BATCH:
                continue
        elif kind == "misaligned":
            m, n, k = (between(256, 4096, 1) for _ in range(3))
        elif kind == "few rounds":
            m, n, k = (max(1024, between(1024, x, rng.choice((64, 16, 8)))) for x in (4096, 4096, 8192))
            if m * n > FEW_ROUNDS:
                continue
        else:
            m, n, k = (between(1024, 10240, 128) for _ in range(3))
        found.append(Shape(kind, m, n, k, batch))
    return found


def choices(problem: Problem, on: Hardware, most: int) -> list[Estimate]:
    """The best estimate of each tile, split, swap, cluster, queue and edge, up to ``most``, the model's choice
    first: half of them, then of tiles that these do not have; a quarter are blocks that form no clusters."""
    seen: dict[Any, Estimate] = {}
    for e in ranked(problem, on):
        p = e.plan
        seen.setdefault((p.kernel, p.tile, p.split, p.swap, p.cluster, p.share, p.queue, p.inside), e)
    best = list(seen.values())
    found = best[: most - most // 2]
    alone = [e for e in best if e.plan.cluster == (1, 1) and e not in found]
    found += alone[: most // 4]
    have = {_kind(e.plan) for e in found}
    for e in best:
        if len(found) < most and _kind(e.plan) not in have:
            have.add(_kind(e.plan))
            found.append(e)
    return found


def _kind(p: Plan) -> tuple[Any, ...]:
    return p.tile[:2], p.swap, p.queue


def compiled(s: Shape, most: int) -> list[str]:
    """Compile the plans of ``choices`` into the cache, in a process of its own; what went wrong."""
    call, out = call_of(s, imagined)
    problem, wrong = arguments.problem(call, out, made=True), []
    for e in choices(problem, Hardware(), most):
        p = transposed_product(problem) if e.plan.swap else problem
        work = {n: imagined(shape, dtype, False) for n, (shape, dtype) in workspaces(p, e.plan).items()}
        for step in steps(p, e.plan, work):
            names = [x.buffer.name for x in step.kernel.build(**step.constants).arrays]
            facts = facts_of(dict(zip(names, step.args, strict=False)))
            try:
                cubin = step.kernel.compile("sm_90a", facts=facts, **step.constants).assembled()
            except TilemmaError as error:
                wrong.append(f"{s}: {e.plan}: {error.message}")
                continue
            if cubin.spills or cubin.warnings:
                wrong.append(f"{s}: {e.plan}: spills or warnings {cubin.warnings}")
    return wrong


def call_of(s: Shape, make: Any) -> tuple[Call, ArrayRef]:
    """The call of a shape; ``make(shape, dtype, transposed)`` gives its arrays."""
    outer = (s.batch,) * (s.batch > 1)
    a, b = make((*outer, s.m, s.k), s.dtype, False), make((*outer, s.n, s.k), s.dtype, True)
    out = make((*outer, s.m, s.n), "s32" if s.kind == "s8" else "bf16", False)
    scales: dict[str, Any] = {}
    if s.scales:
        steps, blocks = -(-s.k // 128), -(-s.n // 128)
        rows, whole = ((1, s.m), (1, s.n)), ((steps, s.m), (steps, blocks))
        left, right = {"tensor": ((1, 1), (1, 1)), "rows": rows, "blocks": whole}[s.scales]
        scales = {"scale_a": make(left, "f32", True), "scale_b": make(right, "f32", False)}
    return Call(a, b, rules=PLAIN if s.kind not in TYPES or s.kind == "s8" else SCALED, **scales), out


PLACES = itertools.count(1)


def imagined(shape: tuple[int, ...], dtype: str, transposed: bool) -> ArrayRef:
    """An array on a GPU that is never accessed."""
    strides = row_major(shape)
    if transposed:
        shape, strides = (*shape[:-2], *shape[:-3:-1]), (*strides[:-2], *strides[:-3:-1])
    return ArrayRef(next(PLACES) << 40, shape, strides, dtypes.dtype(dtype), ("cuda", 0), None, "torch")


def check(run: Callable[[], Any], out: Any, wanted: Any, limit: float, name: object) -> None:
    """Print if a plan's result is wrong by more than ``limit`` of the largest element."""
    out.fill_(math.nan if out.is_floating_point() else 7)
    run()
    off = (out[..., :256, :].double() - wanted).abs().max() / wanted.abs().max()
    if not off < limit:
        print(f"WRONG by {off:.3g}: {name}", flush=True)


def measure(s: Shape, most: int, rounds: int, tune: bool = False) -> dict[str, Any]:
    import torch
    from ops_types import replayed
    from timing import flushed

    from tilemma.ops.plan import hardware
    from tilemma.ops.plans import usable
    from tilemma.ops.tuning import measured, prepared

    kept: list[Any] = []

    def make(shape: tuple[int, ...], dtype: str, transposed: bool) -> ArrayRef:
        kind = getattr(torch, dtypes.dtype(dtype).library_name)
        x = torch.randn(shape, device="cuda")
        x = (x * 40).to(kind) if kind is torch.int8 else x.abs().to(kind) if dtype == "f32" else x.to(kind)
        x = x.mT if transposed else x
        kept.append(x)
        return describe(x)

    problems, torches = [], []
    for _ in range(s.copies):
        kept.clear()
        call, out = call_of(s, make)
        problems.append(arguments.problem(call, out, made=True))
        other = torch.empty_like(out.owner, dtype=torch.bfloat16)
        if s.scales in ("tensor", "rows"):
            scales = {"scale_a": kept[3], "scale_b": kept[4], "use_fast_accum": True, "out_dtype": torch.bfloat16}
            torches.append(partial(torch._scaled_mm, kept[0], kept[1], out=other, **scales))
        else:
            product = torch.mm if s.batch == 1 else torch.bmm
            torches.append(partial(product, kept[0], kept[1], out=other))
    a, b, result = torches[-1].args[0], torches[-1].args[1], problems[-1].out.owner
    # Of large results the first rows.
    wanted = a[..., :256, :].double() @ b.double() if s.scales != "blocks" else None
    for scale in kept[3:] if wanted is not None else ():
        wanted = wanted * (scale[..., :256, :] if scale.shape[-1] == 1 else scale)
    runs, names, alive = [], [], []

    def start(launches: Any) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for x in launches:
            x.start(stream)

    on, extra = hardware(("cuda", 0)), {}
    timed = choices(problems[0], on, most)
    if tune:
        begin = time.perf_counter()
        estimates = usable(problems[0], on)
        plan = measured(problems[0], estimates, quiet=True, spent=time.perf_counter() - begin)
        extra = {"tuned": asdict(plan), "tuned_seconds": time.perf_counter() - begin}
        timed += [estimate(problems[0], plan, on)] * all(e.plan != plan for e in timed)
    for e in timed:
        try:
            found = [prepared(problems[0], e.plan)]
            # Each call finds its workspace where the one before has left it.
            found += [prepared(p, e.plan, found[0][1]) for p in problems[1:]]
        except TilemmaError as error:
            print(f"{s}: {e.plan}: {error.message}", flush=True)
            continue
        alive.append(found)
        runs.append(lambda i, found=found: start(found[i][0]))
        names.append(e)
        if wanted is not None:
            # Tensor cores add products of 8-bit floats with fewer bits.
            limit = 0.03 if a.element_size() == 1 else 0.01
            check(partial(start, found[-1][0]), result, wanted, limit, f"{s}: {e.plan}")
    compared = s.kind not in TYPES or s.scales in ("tensor", "rows")
    if compared:
        runs.append(lambda i: torches[i]())
    for run in runs * 2:
        run(0)
    if s.copies > 1:
        times = replayed(runs, s.copies, rounds)
    else:
        times = flushed([partial(run, 0) for run in runs], rounds)
    rows: list[dict[str, Any]] = [
        {"plan": asdict(e.plan), "us": t, "model_us": e.seconds * 1e6} for e, t in zip(names, times, strict=False)
    ]
    if s.kind in STEADY:
        steady = replayed(runs, 1, rounds)
        extra["torch_steady_us"] = steady[-1]
        for row, t in zip(rows, steady, strict=False):
            row["steady_us"] = t
    return {**asdict(s), "torch_us": times[-1] if compared else None, "plans": rows, **extra}


def line(s: Shape, row: dict[str, Any]) -> str:
    """torch's time over that of the model's choice and over that of the fastest plan, and both plans."""
    chosen, torch_us = row["plans"][0], row["torch_us"] or math.nan
    best = min(row["plans"], key=lambda p: p["us"])
    text = f"{s!s:36} {torch_us:7.1f} {torch_us / chosen['us']:6.3f} {torch_us / best['us']:6.3f}"
    for p in [chosen] + [best] * (best is not chosen):
        text += f" | {p['us']:.1f} ({p['model_us']:.1f}) {brief(plan_of(p['plan']))}"
    if "tuned" in row:
        text += f" | tuned {gain(row):.3f} in {row['tuned_seconds']:.2f} s"
    return text


def gain(row: dict[str, Any]) -> float:
    """The time of the model's choice over that of the tuned plan."""
    (tuned,) = (p["us"] for p in row["plans"] if p["plan"] == row["tuned"])
    return float(row["plans"][0]["us"] / tuned)


def brief(p: Plan) -> str:
    """A plan in few letters."""
    parts = [p.kernel[0], "x".join(map(str, p.tile)), f"{p.stages}st"]
    parts += [f"/{p.split}"] * (p.split > 1) + ["T"] * p.swap + ["pack"] * bool(p.pack)
    parts += ["queue"] * p.queue + ["inside"] * p.inside
    parts += ["c" + "x".join(map(str, p.cluster)) + "-" * (not p.share)] * (p.cluster != (1, 1))
    return " ".join(parts)


def plan_of(fields: dict[str, Any]) -> Plan:
    return Plan(**{n: tuple(x) if isinstance(x, list) else x for n, x in fields.items()})


def judge(sweep: dict[str, Any]) -> None:
    """Print, by kind, how much slower the model's choice is than the fastest measured plan, and torch's ratio."""
    on = Hardware()
    lost, ratios, gains = defaultdict(list), defaultdict(list), defaultdict(list)
    for x in sweep["shapes"]:
        call, out = call_of(Shape(x["kind"], x["m"], x["n"], x["k"], x.get("batch", 1)), imagined)
        problem = arguments.problem(call, out, made=True)
        plans = [(plan_of(p["plan"]), p["us"]) for p in x["plans"]]
        chosen = min(plans, key=lambda p: estimate(problem, p[0], on).seconds)
        lost[x["kind"]].append(chosen[1] / min(us for _, us in plans))
        if x["torch_us"]:
            ratios[x["kind"]].append(x["torch_us"] / chosen[1])
        if "tuned" in x:
            gains[x["kind"]].append(gain(x))
    for kind, values in lost.items():
        text = f"{kind:14} {len(values):4} shapes: chosen over fastest {statistics.geometric_mean(values):.3f}"
        text += f", worst {max(values):.3f}"
        if ratios[kind]:
            text += (
                f"; torch over chosen {statistics.geometric_mean(ratios[kind]):.3f}, worst {min(ratios[kind]):.3f}"
            )
        if gains[kind]:
            text += f"; tuning {statistics.geometric_mean(gains[kind]):.3f}, worst {min(gains[kind]):.3f}"
        print(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--tune", action="store_true", help="tune each shape too, and time the plan that wins")
    parser.add_argument("--jobs", type=int, default=16, help="processes that compile")
    parser.add_argument("--plans", type=int, default=12, help="at most so many for each shape")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0, help="start no shape after so many, if not 0")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--judge", type=Path)
    options = parser.parse_args()
    if options.judge:
        judge(json.loads(options.judge.read_text()))
        return 0
    import torch
    from timing import facts

    begin, rows = time.time(), []
    wanted = shapes(options.count, options.seed, options.kinds)
    with ProcessPoolExecutor(options.jobs) as pool:
        for wrong in pool.map(partial(compiled, most=options.plans), wanted):
            print(*wrong, sep="\n", end="\n" * bool(wrong), flush=True)
    print(f"compiled in {time.time() - begin:.0f} s", flush=True)
    for s in wanted:
        if options.seconds and time.time() - begin > options.seconds:
            break
        try:
            rows.append(measure(s, options.plans, options.rounds, options.tune))
        except Exception as e:
            print(f"{s}: {type(e).__name__}: {str(e)[:300]}", flush=True)
            continue
        print(line(s, rows[-1]), flush=True)
        torch.cuda.empty_cache()
        if options.json:
            options.json.write_text(json.dumps({**facts(), "seed": options.seed, "shapes": rows}))
    print(f"{len(rows)} shapes in {time.time() - begin:.0f} s", flush=True)
    if rows:
        judge({"shapes": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
