"""Times the plans that the model of `ops.plan` likes best, over many shapes and types, and stores them.

    python bench/sweep_ops.py --json sweep.json --count 300            # on a GPU
    python bench/sweep_ops.py --judge sweep.json                       # anywhere: the model against a stored sweep

The shapes are random, the same for the same seed, and spread over the kinds of products: large, few rows, long K,
small, 8-bit.  For each the best candidate of every tile, split and cluster is timed with a flushed L2 cache, and
torch's product beside it.  ``--judge`` prints, by kind, the time of the model's choice over that of the fastest.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilemma import dtypes
from tilemma.ops import arguments
from tilemma.ops.arguments import PLAIN, SCALED, Call
from tilemma.ops.plan import Estimate, Hardware, Plan, estimate, ranked
from tilemma.ops.problem import Problem
from tilemma.runtime.arrays import ArrayRef, describe, row_major

KINDS = ("large", "few rows", "long K", "small", "e4m3", "e4m3 blocks", "e4m3 few rows", "s8")
TYPES = {"s8": "s8", "e4m3": "f8_e4m3", "e4m3 blocks": "f8_e4m3", "e4m3 few rows": "f8_e4m3"}


@dataclass(frozen=True)
class Shape:
    kind: str
    m: int
    n: int
    k: int

    @property
    def dtype(self) -> str:
        return TYPES.get(self.kind, "bf16")

    @property
    def scales(self) -> str:
        return {"e4m3": "rows", "e4m3 few rows": "rows", "e4m3 blocks": "blocks"}.get(self.kind, "")


def shapes(count: int, seed: int) -> list[Shape]:
    rng = random.Random(seed)

    def between(low: int, high: int, step: int) -> int:
        value = math.exp(rng.uniform(math.log(low), math.log(high)))
        return max(step, round(value / step) * step)

    found = []
    for i in range(count):
        kind = KINDS[i % len(KINDS)]
        if kind.endswith("few rows"):
            m, n, k = between(1, 256, 1), between(2048, 28672, 128), between(2048, 16384, 128)
        elif kind == "long K":
            m, n, k = between(64, 512, 8), between(64, 512, 8), between(16384, 65536, 128)
        elif kind == "small":
            m, n, k = (between(128, 1536, 8) for _ in range(3))
        else:
            m, n, k = (between(1024, 10240, 128) for _ in range(3))
        found.append(Shape(kind, m, n, k))
    return found


def choices(problem: Problem, on: Hardware, most: int) -> list[Estimate]:
    """The best estimate of each tile, split, swap and cluster, up to ``most``, the model's choice first."""
    seen: dict[Any, Estimate] = {}
    for e in ranked(problem, on):
        p = e.plan
        seen.setdefault((p.kernel, p.tile, p.split, p.swap, p.cluster, p.share), e)
    return list(seen.values())[:most]


def call_of(s: Shape, make: Any) -> tuple[Call, ArrayRef]:
    """The call of a shape; ``make(shape, dtype, transposed)`` gives its arrays."""
    a, b = make((s.m, s.k), s.dtype, False), make((s.n, s.k), s.dtype, True)
    out = make((s.m, s.n), "s32" if s.kind == "s8" else "bf16", False)
    scales: dict[str, Any] = {}
    if s.scales:
        steps, blocks = -(-s.k // 128), -(-s.n // 128)
        forms = ((1, s.m), (1, s.n)) if s.scales == "rows" else ((steps, s.m), (steps, blocks))
        scales = {"scale_a": make(forms[0], "f32", True), "scale_b": make(forms[1], "f32", False)}
    return Call(a, b, rules=PLAIN if s.kind not in TYPES or s.kind == "s8" else SCALED, **scales), out


PLACES = itertools.count(1)


def imagined(shape: tuple[int, int], dtype: str, transposed: bool) -> ArrayRef:
    """An array on a GPU that is never accessed."""
    strides = row_major(shape)
    if transposed:
        shape, strides = shape[::-1], strides[::-1]
    return ArrayRef(next(PLACES) << 40, shape, strides, dtypes.dtype(dtype), ("cuda", 0), None, "torch")


def measure(s: Shape, most: int, rounds: int) -> dict[str, Any]:
    import torch
    from timing import flushed

    from tilemma.ops.plan import hardware
    from tilemma.ops.plans import prepared

    kept = []

    def make(shape: tuple[int, int], dtype: str, transposed: bool) -> ArrayRef:
        kind = getattr(torch, dtypes.dtype(dtype).library_name)
        x = torch.randn(shape, device="cuda")
        x = (x * 40).to(kind) if kind is torch.int8 else x.abs().to(kind) if dtype == "f32" else x.to(kind)
        x = x.t() if transposed else x
        kept.append(x)
        return describe(x)

    call, out = call_of(s, make)
    problem = arguments.problem(call, out, made=True)
    runs, names, alive = [], [], []
    stream = torch.cuda.current_stream().cuda_stream
    for e in choices(problem, hardware(("cuda", 0)), most):
        launches, work = prepared(problem, e.plan)
        alive.append((launches, work))
        runs.append(lambda launches=launches: [x.start(stream) for x in launches])
        names.append(e)
    if s.kind not in TYPES:
        other = torch.empty(s.m, s.n, device="cuda", dtype=torch.bfloat16)
        runs.append(lambda: torch.mm(kept[0], kept[1], out=other))
    for run in runs * 2:
        run()
    times = flushed(runs, rounds)
    rows = [
        {"plan": asdict(e.plan), "us": t, "model_us": e.seconds * 1e6} for e, t in zip(names, times, strict=False)
    ]
    return {**asdict(s), "torch_us": times[-1] if s.kind not in TYPES else None, "plans": rows}


def plan_of(fields: dict[str, Any]) -> Plan:
    return Plan(**{n: tuple(x) if isinstance(x, list) else x for n, x in fields.items()})


def judge(sweep: dict[str, Any]) -> None:
    """Print, by kind, how much slower the model's choice is than the fastest measured plan, and torch's ratio."""
    on = Hardware()
    lost, ratios = defaultdict(list), defaultdict(list)
    for x in sweep["shapes"]:
        call, out = call_of(Shape(x["kind"], x["m"], x["n"], x["k"]), imagined)
        problem = arguments.problem(call, out, made=True)
        plans = [(plan_of(p["plan"]), p["us"]) for p in x["plans"]]
        chosen = min(plans, key=lambda p: estimate(problem, p[0], on).seconds)
        lost[x["kind"]].append(chosen[1] / min(us for _, us in plans))
        if x["torch_us"]:
            ratios[x["kind"]].append(x["torch_us"] / chosen[1])
    for kind, values in lost.items():
        text = f"{kind:14} {len(values):4} shapes: chosen over fastest {statistics.geometric_mean(values):.3f}"
        text += f", worst {max(values):.3f}"
        if ratios[kind]:
            text += (
                f"; torch over chosen {statistics.geometric_mean(ratios[kind]):.3f}, worst {min(ratios[kind]):.3f}"
            )
        print(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plans", type=int, default=12, help="at most so many for each shape")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0, help="start no shape after so many, if not 0")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--judge", type=Path)
    options = parser.parse_args()
    if options.judge:
        judge(json.loads(options.judge.read_text()))
        return 0
    from timing import facts

    begin, rows = time.time(), []
    for s in shapes(options.count, options.seed):
        if options.seconds and time.time() - begin > options.seconds:
            break
        try:
            rows.append(measure(s, options.plans, options.rounds))
        except Exception as e:
            print(f"{s}: {type(e).__name__}: {str(e)[:300]}", flush=True)
            continue
        if options.json:
            options.json.write_text(json.dumps({**facts(), "seed": options.seed, "shapes": rows}))
    print(f"{len(rows)} shapes in {time.time() - begin:.0f} s", flush=True)
    if rows:
        judge({"shapes": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
