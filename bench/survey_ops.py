"""The untuned choice beside the fastest of torch's ways, over classes of products that users have.

    python bench/survey_ops.py --json survey.json --count 200 --seed 1           # on a GPU
    python bench/survey_ops.py --kinds "shared weights" decode --plans 12        # and other plans of the slowest

The shapes of each kind are drawn, the same for the same seed: projections of language models, transposed operands,
batches as attention has them, types and scales, divisions into groups, epilogues.  Lines are in the order of the
ratios, torch's time over tilemma's.  Products of some rows and columns that take long are timed with a flushed L2
cache, the others by replays of CUDA graphs over copies.  With ``--plans`` so many plans that the model likes
best are timed of products that take longer than torch's.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from survey_cases import KINDS, Case, call_of, cases
from sweep_ops import brief, choices, imagined, plan_of

from tilemma import dtypes
from tilemma.errors import TilemmaError
from tilemma.kernels import facts_of
from tilemma.ops import arguments
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Hardware, Plan
from tilemma.ops.steps import steps, workspaces
from tilemma.runtime.arrays import ArrayRef, describe


def compiled(item: tuple[Case, int]) -> tuple[list[dict[str, Any]], list[str]]:
    """The best ``most`` plans of a case with the model's seconds, compiled into the cache, in a process of its
    own; and what went wrong."""
    c, most = item
    call, out = call_of(c, imagined)
    arguments.check(call)
    problem, wrong = arguments.problem(call, out, made=True), list[str]()
    found = choices(problem, Hardware(), most)
    for e in found:
        p = transposed_product(problem) if e.plan.swap else problem
        work = {n: imagined(shape, dtype, False) for n, (shape, dtype) in workspaces(p, e.plan).items()}
        for step in steps(p, e.plan, work):
            names = [x.buffer.name for x in step.kernel.build(**step.constants).arrays]
            facts = facts_of(dict(zip(names, step.args, strict=False)))
            try:
                cubin = step.kernel.compile("sm_90a", facts=facts, **step.constants).assembled()
            except TilemmaError as error:
                wrong.append(f"{c}: {e.plan}: {error.message}")
                continue
            if cubin.spills or cubin.warnings:
                wrong.append(f"{c}: {e.plan}: spills or warnings {cubin.warnings}")
    return [{"plan": asdict(e.plan), "model_us": e.seconds * 1e6} for e in found], wrong


def peers(c: Case, arrays: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """torch's ways to compute it, by name; some cannot."""
    if c.groups:
        return _of_groups(c, arrays)
    if c.types[0] in ("f8_e4m3", "f8_e5m2", "s8"):
        return _of_8_bits(c, arrays)
    return _with_epilogue(c, arrays) if c.epilogue else _plain(c, arrays)


def _of_groups(c: Case, arrays: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    import torch

    a, b, ends, out = (arrays[x] for x in ("a", "b", "offsets", "out"))
    if c.scales == "rows":
        left, right = arrays["scale_a"].reshape(-1), arrays["scale_b"].reshape(len(c.groups), c.n)
        more = {"offs": ends, "out_dtype": out.dtype, "use_fast_accum": True}
        return {"_scaled_grouped_mm": lambda: torch._scaled_grouped_mm(a, b, left, right, **more)}
    if c.scales:
        return {}
    places, begin, other = [], 0, torch.empty_like(out)
    for e, rows in enumerate(c.groups):
        if rows:
            places.append((a[begin : begin + rows], b[e], other[begin : begin + rows]))
        begin += rows

    def each() -> None:
        for x, y, z in places:
            torch.mm(x, y, out=z)

    return {"_grouped_mm": lambda: torch._grouped_mm(a, b, offs=ends), "mm of each": each}


def _of_8_bits(c: Case, arrays: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    import torch

    a, b = arrays["a"], arrays["b"]
    if c.types[0] == "s8":
        sums = torch.empty(c.m, c.n, device="cuda", dtype=torch.int32)
        return {"_int_mm": lambda: torch._int_mm(a, b, out=sums)}
    left, right = arrays["scale_a"], arrays["scale_b"]
    if c.scales == "blocks":
        # cuBLASLt wants the rows of K blocks padded to four.
        steps, blocks = right.shape
        padded = torch.zeros(blocks, -(-steps // 4) * 4, device="cuda")
        padded[:, :steps] = right.t()
        right = padded[:, :steps].t()
    # Scales of rows give bf16 only.
    out = torch.empty_like(arrays["out"], dtype=torch.bfloat16 if c.scales == "rows" else None)
    more = {"scale_a": left, "scale_b": right, "out_dtype": out.dtype, "out": out}
    found = {"_scaled_mm": lambda: torch._scaled_mm(a, b, use_fast_accum=False, **more)}
    if c.scales != "blocks":
        found["_scaled_mm fast"] = lambda: torch._scaled_mm(a, b, use_fast_accum=True, **more)
    return found


def _plain(c: Case, arrays: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    import torch

    a, b, out = arrays["a"], arrays["b"], torch.empty_like(arrays["out"])
    if c.out == "f32":
        return {"mm f32": lambda: torch.mm(a, b, out_dtype=torch.float32)}
    if c.batch == 1:
        return {"mm": lambda: torch.mm(a, b, out=out)}
    wide = [x.expand(c.batch, *x.shape[-2:]) for x in (a, b)]
    found = {"bmm": lambda: torch.bmm(*wide, out=out)}
    return found | ({"matmul": lambda: torch.matmul(a, b)} if c.shared else {})


def _with_epilogue(c: Case, arrays: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    import torch

    a, b, bias, addend = (arrays.get(x) for x in ("a", "b", "bias", "c"))
    words, after = c.epilogue.split(), _activation(c)

    def added() -> Any:
        x = torch.addmm(bias, a, b) if addend is None else torch.addmm(addend, a, b, beta=0.5)
        x = x if addend is None or bias is None else x + bias
        return x if after is None else after(x)

    found = {"addmm": added}
    if words == ["bias", "relu"]:
        found["_addmm_activation"] = lambda: torch._addmm_activation(bias, a, b, use_gelu=False)
    return found


def _activation(c: Case) -> Any:
    """torch's function, or None."""
    import torch

    known = {"gelu": torch.nn.functional.gelu, "relu": torch.relu, "silu": torch.nn.functional.silu}
    return next((known[x] for x in c.epilogue.split() if x in known), None)


def checked(c: Case, arrays: dict[str, Any], plan: Plan) -> None:
    """Print if the result is wrong by far, in the first rows."""
    a, b, out = (arrays[x] for x in ("a", "b", "out"))
    rows = min(c.m, 64) if not c.groups else min(next(x for x in c.groups if x), 64)
    first = next(e for e, x in enumerate(c.groups) if x) if c.groups else 0
    left, right = a[..., :rows, :].double(), (b[first] if c.groups else b).double()
    if c.scales == "rows":
        left, scale = left * arrays["scale_a"][:rows], arrays["scale_b"]
        right = right * (scale[first] if c.groups else scale)
    elif c.scales == "tensor":
        left, right = left * arrays["scale_a"], right * arrays["scale_b"]
    elif c.scales:
        scale = arrays["scale_b"][first] if c.groups else arrays["scale_b"]
        left = left * arrays["scale_a"][:rows].repeat_interleave(128, 1)[:, : c.k]
        right = right * scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[: c.k, : c.n]
    wanted = left @ right
    words = c.epilogue.split()
    if "c" in words:
        wanted = wanted + 0.5 * arrays["c"][..., :rows, :].double()
    if "bias" in words or "rows" in words:
        wanted = wanted + (arrays["bias"] if "bias" in words else arrays["bias"][:rows]).double()
    after = _activation(c)
    wanted = wanted if after is None else after(wanted)
    if c.out == "s8":
        wanted = wanted.round().clamp(-128, 127)
    off = (out[..., :rows, :].double() - wanted).abs().max() / wanted.abs().max()
    limit = 0.03 if c.types[0].startswith("f8") else 0.01
    if not off < limit:
        print(f"WRONG by {float(off):.3g}: {c}: {plan}", flush=True)


def measure(c: Case, plans: list[dict[str, Any]], rounds: int) -> dict[str, Any]:
    import torch
    from ops_types import replayed
    from timing import flushed

    from tilemma.ops.tuning import prepared

    def make(shape: tuple[int, ...], dtype: str, transposed: bool) -> ArrayRef:
        kind = getattr(torch, dtypes.dtype(dtype).library_name)
        if dtype == "s32" and c.groups:
            x = torch.tensor(c.groups).cumsum(0).to(kind).cuda()
        else:
            x = torch.randn(shape, device="cuda", dtype=torch.bfloat16 if dtype != "f32" else torch.float32)
            x = (x * 40).to(kind) if kind is torch.int8 else x.abs().to(kind) if dtype == "f32" else x.to(kind)
            if c.types[0] == "s8" and dtype == "f32":
                # Products of about 40.
                x = x * (0.16 / c.k**0.25)
        return describe(x.mT if transposed else x)

    problems, torches = [], []
    for _ in range(c.copies):
        call, out = call_of(c, make)
        problems.append(arguments.problem(call, out, made=True))
        names = ("a", "b", "c", "bias", "scale_a", "scale_b", "offsets")
        refs = {n: getattr(call, n) for n in names if isinstance(getattr(call, n), ArrayRef)}
        arrays = {n: x.owner for n, x in refs.items()} | {"out": out.owner}
        torches.append(peers(c, arrays))
    runs: list[Callable[[int], Any]] = []
    known, alive = [], []

    def start(launches: Any) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for x in launches:
            x.start(stream)

    for row in plans:
        plan = plan_of(row["plan"])
        try:
            found = [prepared(problems[0], plan)]
            found += [prepared(p, plan, found[0][1]) for p in problems[1:]]
        except TilemmaError as error:
            print(f"{c}: {plan}: {error.message}", flush=True)
            continue
        alive.append(found)
        runs.append(partial(lambda found, i: start(found[i][0]), found))
        known.append(row)
        arrays["out"].fill_(math.nan if arrays["out"].is_floating_point() else 7)
        start(found[-1][0])
        checked(c, arrays, plan)
    ways, errors = [], {}
    for name in torches[0]:
        try:
            torches[0][name]()
            torch.cuda.synchronize()
            runs.append(partial(lambda name, i: torches[i][name](), name))
            ways.append(name)
        except Exception as e:
            errors[name] = f"{type(e).__name__}: {str(e)[:80]}"
    for run in runs * 2:
        run(0)
    times = replayed(runs, c.copies, rounds) if c.copies > 1 else flushed([partial(r, 0) for r in runs], rounds)
    timed = [{**row, "us": t} for row, t in zip(known, times, strict=False)]
    by_way = dict(zip(ways, times[len(known) :], strict=True))
    return {"case": asdict(c), "plans": timed, "torch": by_way, "errors": errors}


def ratio(row: dict[str, Any], best: bool = False) -> float:
    """torch's least time over that of the model's choice, or of the best plan."""
    theirs = min(row["torch"].values(), default=math.nan)
    times = [p["us"] for p in row["plans"]]
    return float(theirs / (min(times) if best else times[0]))


def case_of(row: dict[str, Any]) -> Case:
    fields: dict[str, Any] = {n: tuple(x) if isinstance(x, list) else x for n, x in row["case"].items()}
    return Case(**fields)


def line(row: dict[str, Any]) -> str:
    c = case_of(row)
    chosen, best = row["plans"][0], min(row["plans"], key=lambda p: p["us"])
    theirs = min(row["torch"].items(), key=lambda x: x[1], default=("none", math.nan))
    text = f"{ratio(row):6.3f} {ratio(row, True):6.3f} {c!s:60} {theirs[0]} {theirs[1]:.1f}"
    for p in [chosen] + [best] * (best is not chosen):
        text += f" | {p['us']:.1f} ({p['model_us']:.1f}) {brief(plan_of(p['plan']))}"
    rate = 2e-6 * c.batch * c.m * c.n * c.k / chosen["us"]
    return f"{text} | {rate:.0f} TF {c.bytes / chosen['us'] / 1e6:.2f} TB/s" + f" {row['errors']}" * bool(
        row["errors"]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--shapes", nargs="+", default=(), help="MxNxK instead of drawn ones, in bf16")
    parser.add_argument("--jobs", type=int, default=16, help="processes that compile")
    parser.add_argument("--plans", type=int, default=0, help="time so many of the slowest products' plans")
    parser.add_argument("--below", type=float, default=0.99, help="the ratios of these")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0, help="start no product after so many, if not 0")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    begin, rows = time.time(), dict[Case, dict[str, Any]]()
    sizes = [tuple(int(n) for n in x.split("x")) for x in options.shapes]
    given = [Case("given", m, n, k) for m, n, k in sizes]
    wanted = given or cases(options.count, options.seed, tuple(options.kinds))
    with ProcessPoolExecutor(options.jobs) as pool:
        # Before torch starts CUDA here, which children that are forked could not use.
        first = list(pool.map(compiled, [(c, 1) for c in wanted]))
        print(f"compiled in {time.time() - begin:.0f} s", flush=True)
        import torch
        from timing import facts

        def timed(c: Case, plans: list[dict[str, Any]]) -> None:
            try:
                rows[c] = measure(c, plans, options.rounds)
            except Exception as e:
                print(f"{c}: {type(e).__name__}: {str(e)[:300]}", flush=True)
                return
            if c.bytes > 5e8:
                torch.cuda.empty_cache()

        share = 0.6 if options.plans else 1.0
        for c, (plans, wrong) in zip(wanted, first, strict=True):
            print(*wrong, sep="\n", end="\n" * bool(wrong), flush=True)
            if not options.seconds or time.time() - begin < share * options.seconds:
                timed(c, plans)
        print(f"{len(rows)} of {len(wanted)} products in {time.time() - begin:.0f} s", flush=True)
        for row in sorted((x for x in rows.values() if x["torch"]), key=ratio):
            print(line(row), flush=True)
        for row in rows.values():
            if not row["torch"]:
                print(line(row), flush=True)
        slow = sorted((c for c in rows if ratio(rows[c]) < options.below), key=lambda c: ratio(rows[c]))
        print(f"{len(slow)} below {options.below}", flush=True)
        if options.json:
            options.json.write_text(json.dumps({**facts(), "seed": options.seed, "rows": list(rows.values())}))
        slow = slow if options.plans else []
        for c, (plans, wrong) in zip(slow, pool.map(compiled, [(c, options.plans) for c in slow]), strict=True):
            print(*wrong, sep="\n", end="\n" * bool(wrong), flush=True)
            if options.seconds and time.time() - begin > options.seconds:
                break
            timed(c, plans)
            print(line(rows[c]), flush=True)
            if options.json:
                options.json.write_text(json.dumps({**facts(), "seed": options.seed, "rows": list(rows.values())}))
        pool.shutdown(cancel_futures=True)
    kinds = defaultdict(list)
    for c, row in rows.items():
        if row["torch"]:
            kinds[c.kind].append((ratio(row), ratio(row, True)))
    for kind, found in kinds.items():
        chosen, best = ([x[i] for x in found] for i in (0, 1))
        text = f"{kind:32} {len(found):3}: {statistics.geometric_mean(chosen):.3f}, worst {min(chosen):.3f}; "
        print(text + f"best plans {statistics.geometric_mean(best):.3f}, worst {min(best):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
