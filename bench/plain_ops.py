"""The plain text of the products beside the kernel written by hand, in turns in one process.

    python bench/plain_ops.py                  # the whole table
    python bench/plain_ops.py groups "e4m3 blocks" --rounds 31

For each product of the tables of `ops_types.py` and for some of `ops.py`, the model's plan is launched with both
texts: medians of single launches, the L2 cache flushed before each.  Ratios are the time by hand over that of the
plain text: above 1, the plain text is faster.  The results are compared with each other: "differs" is the largest
difference over the largest result.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from ops_types import E4M3, GROUPED, normal
from timing import flushed

from tilemma.ops import arguments, product
from tilemma.ops.candidates import ranked
from tilemma.ops.plan import Plan, hardware
from tilemma.ops.problem import Problem
from tilemma.ops.tuning import prepared

Arrays = tuple[Any, ...]
Call = tuple[arguments.Rules, Arrays, tuple[Any, ...]]
SHAPES = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (5120, 5120, 5120),
    (2048, 2048, 2048),
    (8192, 28672, 8192),
    (4095, 4097, 4104),
    (1000, 1000, 1000),
    (16, 8192, 8192),
    (128, 8192, 8192),
    (256, 8192, 8192),
    (512, 512, 16384),
)


def plain(m: int, n: int, k: int, kind: Any = torch.float16, **extra: Any) -> Call:
    a, b = normal(m, k, kind=kind), normal(n, k, kind=kind).t()
    out = torch.empty(m, n, device="cuda", dtype=torch.int32 if kind is torch.int8 else kind)
    bias = torch.randn(n, device="cuda").to(kind) if extra else None
    options = (1.0, 0.0, "gelu" if extra else None, None, None, True)
    return arguments.PLAIN, (a, b, None, bias, out, None, None, None), options


def scaled(form: str, m: int, n: int, k: int) -> Call:
    a, b = normal(m, k), normal(n, k).t()
    steps, blocks = -(-k // 128), -(-n // 128)
    shapes = {"tensor": ((1,), (1,)), "rows": ((m, 1), (1, n)), "blocks": ((steps, m), (steps, blocks))}
    shapes["steps"] = (steps, m), (steps, n)
    left, right = (torch.rand(s, device="cuda") + 0.5 for s in shapes[form])
    left = left.t() if form in ("blocks", "steps") else left
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    return arguments.SCALED, (a, b, None, None, out, left, right, None), (1.0, 0.0, None, None, None, True)


def grouped(experts: int, tokens: int, n: int, k: int, kind: Any) -> Call:
    torch.manual_seed(experts)
    a, b = normal(tokens, k, kind=kind), normal(experts, n, k, kind=kind).transpose(-1, -2)
    shares = torch.rand(experts) ** 2 + 0.05
    ends = (shares.cumsum(0) / shares.sum() * tokens).round().int().cuda()
    out = torch.zeros(tokens, n, device="cuda", dtype=torch.bfloat16)
    return arguments.GROUPED, (a, b, None, None, out, None, None, ends), (1.0, 0.0, None, None, None, True)


def calls() -> Iterator[tuple[str, Callable[[], Call]]]:
    """Each product with its name, which starts with its family."""
    for shape in SHAPES:
        yield f"f16 {shape}", lambda s=shape: plain(*s)
    yield "f16 bias+gelu", lambda: plain(4096, 4096, 4096, bias=True)
    yield "s8 4096", lambda: plain(4096, 4096, 4096, torch.int8)
    for form in ("tensor", "rows", "blocks", "steps"):
        for size in (4096, 8192):
            yield f"e4m3 {form} {size}", lambda f=form, s=size: scaled(f, s, s, s)
    for shape in GROUPED:
        for kind in (torch.bfloat16, E4M3):
            yield f"groups {shape} {kind}", lambda s=shape, t=kind: grouped(*s, t)


def launcher(problem: Problem, plan: Plan) -> tuple[Callable[[], None], Any]:
    """A function that starts the plan's kernels, and the arrays that they work in."""
    launches, work = prepared(problem, plan)

    def start() -> None:
        for launch in launches:
            launch.start(torch.cuda.current_stream().cuda_stream)

    return start, work


def measure(name: str, call: Call, rounds: int) -> None:
    rules, arrays, options = call
    problem, _, _ = product.prepare(rules, arrays, options)
    plan = ranked(problem, hardware(problem.out.device))[0].plan
    runs, results, kept = [], [], []
    for hand in (True, False):
        start, work = launcher(problem, replace(plan, by_hand=hand))
        start()
        torch.cuda.synchronize()
        results.append(arrays[4].double().clone())
        runs.append(start)
        kept.append(work)
    differs = float((results[1] - results[0]).abs().max() / results[0].abs().max().clamp_min(1e-9))
    for run in runs * 2:
        run()
    by_hand, text = flushed(runs, rounds)
    print(
        f"{name:44} {by_hand:9.1f} us {text:9.1f} us {by_hand / text:6.3f} differs {differs:.0e} | {plan}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", help="starts of names")
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    for name, make in calls():
        if not options.only or any(name.startswith(x) for x in options.only):
            torch.manual_seed(0)
            try:
                measure(name, make(), options.rounds)
            except Exception as e:
                print(f"{name:44} {type(e).__name__}: {e}", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
