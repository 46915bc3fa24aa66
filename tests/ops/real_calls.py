"""Random calls of the products of `tilemma.ops` with extents of thousands (`drawn_calls`): plans and results.

    python tests/ops/real_calls.py --count 500                     # compiles the chosen plans, for sm_90a
    python tests/ops/real_calls.py --count 500 --reference         # and runs them on small arrays of the same kind
    python tests/ops/real_calls.py --count 2000 --device cuda --workers 15 --seconds 50      # on a GPU, with torch

Every case is the same for the same seed everywhere.  Plans depend on extents that the CPU reference and the PTX
machine cannot run, so these compute `reduced` calls by the same plan: arrays have the same layouts, alignments and
types, and just enough rows and columns for two tiles.  All values are small integers and powers of two: sums are
exact, and one element that is read from elsewhere changes them.  ``--any-plan``: every other case takes any of the
plans that could compute it, as tuning does.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from drawn_calls import PLACES, Array, RealCall, drawn

from tilemma import dtypes, ops, testing
from tilemma.errors import TilemmaError
from tilemma.kernels import facts_of
from tilemma.ops import plans, product
from tilemma.ops.candidates import ranked
from tilemma.ops.neighbours import neighbours
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Hardware, Plan
from tilemma.ops.problem import Problem
from tilemma.ops.steps import steps, workspaces
from tilemma.runtime.arrays import ArrayRef, describe, row_major

# Bytes around each array.
MARGIN = 256
# The share of drawn plans that become one of their neighbours.
NEAR = 0.3
# Poison of integers; floats have NaN.
POISON = 113
# Small extents differ from large ones by multiples of this: a stride keeps its alignment to 16 bytes.
UNIT = 16

# ---- plans -----------------------------------------------------------------------------------------------------


def plan_of(problem: Problem, seed: int = 0) -> Plan:
    """The model's choice, or with a ``seed`` any plan that tuning could try."""
    found = ranked(problem, Hardware())
    if not seed:
        return found[0].plan
    rng, kinds = random.Random(seed), dict[tuple[object, ...], list[Plan]]()
    for e in found:
        p = e.plan
        kind = p.kernel, p.split > 1, p.swap, p.cluster, p.by_hand, p.store, p.loaded > 0
        kinds.setdefault(kind, []).append(p)
    plan = rng.choice(kinds[rng.choice(sorted(kinds, key=str))])
    near = neighbours(problem, plan, found, Hardware())
    return rng.choice(near) if near and rng.random() < NEAR else plan


def compiled(problem: Problem, plan: Plan, arch: str = "sm_90a") -> list[str]:
    """Compile the kernels of a plan; what is wrong with them."""
    p, work = transposed_product(problem) if plan.swap else problem, {}
    for name, (shape, dtype) in workspaces(p, plan).items():
        t = dtypes.dtype(dtype)
        work[name] = ArrayRef(next(PLACES) << 40, shape, row_major(shape), t, ("cuda", 0), None, "torch")
    wrong, seen = [], set()
    for step in steps(p, plan, work):
        names = [x.buffer.name for x in step.kernel.build(**step.constants).arrays]
        facts = facts_of(dict(zip(names, step.args, strict=False)))
        key = (step.kernel, str(sorted(step.constants.items(), key=str)), str(facts))
        if key in seen:
            continue
        seen.add(key)
        try:
            cubin = step.kernel.compile(arch, facts=facts, **step.constants).assembled()
        except TilemmaError as error:
            wrong.append(f"{type(error).__name__}: {error.message}")
            continue
        if cubin.spills or cubin.warnings or cubin.stack_bytes:
            wrong.append(f"{step.kernel.name} spills {cubin.spills}, stack {cubin.stack_bytes}, {cubin.warnings}")
    return wrong


def reduced(x: RealCall, problem: Problem, plan: Plan, tiles: tuple[int, int] = (2, 2)) -> tuple[RealCall, Plan]:
    """The call with extents of ``tiles``, one or two along rows and columns, or of two blocks of scales, whose
    strides are as aligned, and the plan with few slots, parts and blocks.  The last tiles are ragged."""
    high, wide = plan.tile[0] * plan.cluster[0], plan.tile[1] * plan.cluster[1]
    rows, columns = (y + 8 if n == 2 else max(8, y - 24) for n, y in zip(tiles, (high, wide), strict=True))
    if "blocks" in (problem.left.kind, problem.right.kind):
        rows, columns = max(rows, 160), max(columns, 160)
    if problem.swapped != plan.swap:
        rows, columns = columns, rows
    split = min(plan.split, 2)
    resident = plan.kernel == "resident"
    depth = 3 * split * plan.tile[2] - 8
    few = {"M": plan.tile[0] + 8 if resident else rows, "N": columns, "K": depth, "B": 3, "E": 3}
    if x.function == "grouped_matmul":
        few["M"] = 2 * few["M"]

    def less(name: str, size: int) -> int:
        least = few[name]
        if size <= least or (resident and name in "NK"):
            return size
        return least if name in "BE" else least + (size - least) % UNIT

    sizes = {name: less(name, size) for name, size in x.sizes.items()}
    if plan.loaded and not plan.swap:
        name = "N" if problem.swapped != plan.swap else "M"
        sizes[name] = x.sizes[name]
    small = replace(plan, stages=min(plan.stages, 3), split=split, grid=min(plan.grid, 2))
    return replace(x, sizes=sizes), small


# ---- values ----------------------------------------------------------------------------------------------------


def _values(name: str, dtype: str, shape: tuple[int, ...], rng: Any, xp: Any) -> Any:
    """Small numbers whose sums and products are exact, of NumPy's or torch's generator."""
    if xp is np:
        drawn_ = rng.integers(0, 3, shape)
    else:
        drawn_ = xp.randint(0, 3, shape, device="cuda", generator=rng)
    if name.startswith("scale"):
        return 2.0 ** (drawn_ - 1)
    return drawn_ if dtype == "u8" else (drawn_ - 1)


def offsets_of(x: RealCall) -> list[int]:
    """The ends of the groups."""
    rng, m = random.Random(x.seed), x.sizes["M"]
    return sorted(rng.choice((0, m, rng.randint(0, m), rng.randint(0, m))) for _ in range(x.sizes["E"]))


def numpy_arrays(x: RealCall) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays in memory full of poison, and that memory."""
    rng, found, frames = np.random.default_rng(x.seed), {}, {}
    for name, spec in x.arrays.items():
        shape, t = spec.shape(x.all_sizes), dtypes.dtype(spec.dtype)
        kind = t.numpy
        poison = POISON if t.is_integer else np.nan
        raw = np.zeros((spec.span(shape) + spec.before) * t.bytes + 2 * MARGIN + 512, np.uint8)
        start = -raw.ctypes.data % 256
        frame = raw[start : start + (len(raw) - 512) // t.bytes * t.bytes].view(kind)
        frame[...] = poison
        first = MARGIN // t.bytes + spec.before
        steps_ = [s * t.bytes for s in spec.strides(shape)]
        view = np.ndarray(shape, kind, frame, first * t.bytes, steps_)
        if name == "offsets":
            view[...] = offsets_of(x)
        elif name != "out":
            view[...] = _values(name, spec.dtype, shape, rng, np).astype(kind)
        found[name], frames[name] = view, frame
    if x.in_place:
        found["out"], frames["out"] = found["c"], frames["c"]
    return found, frames


def spread(scale: Any, extents: tuple[int, int], xp: Any) -> Any:
    """A scale as an array of the operand's extents."""
    s = scale.astype(np.float64) if xp is np else scale.double()
    for axis, extent in zip((-2, -1), extents, strict=True):
        if s.shape[axis] not in (1, extent):
            s = np.repeat(s, 128, axis) if xp is np else s.repeat_interleave(128, axis)
            s = s[..., :extent, :] if axis == -2 else s[..., :extent]
    return s


def expected(x: RealCall, given: dict[str, Any], xp: Any = np) -> tuple[Any, int]:
    """The exact result before it is rounded, in float64, and the number of its rows that are defined."""
    if x.function != "grouped_matmul":
        return _expected(x, given, xp), given["a"].shape[-2]
    parts, begin, rows = [], 0, given["a"].shape[0]
    ends = [int(e) for e in given["offsets"]]
    for e, end in enumerate(ends):
        mine = {n: v for n, v in given.items() if n not in ("offsets", "out")}
        mine["a"], mine["b"] = given["a"][begin:end], given["b"][e]
        for name in ("scale_a", "c"):
            if name in mine and mine[name].ndim == 2 and mine[name].shape[0] == rows:
                mine[name] = mine[name][begin:end]
        if "scale_b" in mine and mine["scale_b"].ndim == 3:
            mine["scale_b"] = mine["scale_b"][e]
        if x.arrays.get("bias", Array((), "")).extents[:1] == ("E",) and len(ends) > 1:
            mine["bias"] = mine["bias"][e]
        elif "bias" in mine and mine["bias"].ndim == 2 and mine["bias"].shape == (rows, 1):
            mine["bias"] = mine["bias"][begin:end]
        if end > begin:
            parts.append(_expected(x, mine, xp))
        begin = max(begin, end)
    n = x.sizes["N"]
    empty = np.zeros((0, n)) if xp is np else given["a"].new_zeros((0, n), dtype=xp.float64)
    return xp.concatenate([empty, *parts]), begin


def _expected(x: RealCall, given: dict[str, Any], xp: Any) -> Any:
    def wide(y: Any) -> Any:
        return y.astype(np.float64) if xp is np else y.double()

    a, b = wide(given["a"]), wide(given["b"])
    if "scale_a" in given:
        a = a * spread(given["scale_a"], a.shape[-2:], xp)
    if "scale_b" in given:
        b = b * spread(given["scale_b"], b.shape[-2:], xp)
    value = x.options.get("alpha", 1.0) * (a @ b)
    if "c" in given:
        value = value + x.options.get("beta", 0.0) * wide(given["c"])
    if "bias" in given:
        value = value + wide(given["bias"])
    name = x.options.get("activation")
    if name and xp is np:
        return testing.ACTIVATIONS[name].value(value)
    return getattr(xp.nn.functional, name)(value) if name else value


ROUNDING = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-23, "f64": 2.0**-50}
RANGES = {"s8": (-128, 127), "u8": (0, 255)}


def off(x: RealCall, result: Any, value: Any, xp: Any = np) -> str:
    """What is wrong with a result, "" for nothing."""
    got = result.astype(np.float64) if xp is np else result.double()
    if x.out_dtype in RANGES:
        value = xp.clip(value, *RANGES[x.out_dtype])
    inexact = x.options.get("activation") in ("gelu", "silu")
    relative = ROUNDING.get(x.out_dtype, 0.0)
    bound = abs(value) * (relative * 1.01 + inexact * 2.0**-16) + inexact * 2.0**-16
    if dtypes.dtype(x.out_dtype).is_integer:
        # Halves are rounded to even; what is inexact may round to the other side.
        bound = bound + 0.5
    if x.out_dtype == "f16":
        bound = xp.where(abs(value) > 65000, math.inf, bound)
    wrong = ~(abs(got - value) <= bound)
    count = int(wrong.sum())
    if not count:
        return ""
    first = [int(i) for i in (np.argwhere(wrong) if xp is np else xp.nonzero(wrong))[0]]
    at = tuple(first)
    return f"{count} of {math.prod(wrong.shape)} wrong, first {first}: {float(got[at])}, not {float(value[at])}"


# ---- runs ------------------------------------------------------------------------------------------------------


def run_small(x: RealCall, plan: Plan, target: str = "auto", **options: Any) -> str:
    """What is wrong with the result of a reduced call on the CPU reference or the PTX machine."""
    given, frames = numpy_arrays(x)
    before, correct = frames["out"].copy(), expected(x, given)
    product.run(x.problem({n: describe(y) for n, y in given.items()}), plan, target, **options)
    return wrong_result(x, given, frames, before, correct)


def wrong_result(
    x: RealCall, given: dict[str, Any], frames: dict[str, Any], before: Any, correct: tuple[Any, int]
) -> str:
    """What is wrong with the result in ``given``; ``before``: the memory around it before the call."""
    value, rows = correct
    result, around = given["out"][..., :rows, :].copy(), before.copy()
    given["out"][..., :rows, :] = POISON
    place = given["out"].ctypes.data - frames["out"].ctypes.data
    blank = np.ndarray(given["out"].shape, around.dtype, around, place, given["out"].strides)
    blank[..., :rows, :] = POISON
    text = off(x, result, value)
    if around.tobytes() != frames["out"].tobytes():
        text += " memory around the result was changed"
    return text


def on_gpu(x: RealCall, seed: int = 0) -> str:
    """What is wrong with the result of a call on the GPU, by the plan of `plan_of`."""
    import torch

    rng, given, frames = torch.Generator("cuda").manual_seed(x.seed), {}, {}
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    for name, spec in x.arrays.items():
        shape, t = spec.shape(x.all_sizes), dtypes.dtype(spec.dtype)
        kind = getattr(torch, t.library_name)
        length = spec.span(shape) + spec.before + 2 * MARGIN
        frame = torch.full((length,), POISON, device="cuda", dtype=bits[t.bytes])
        if not t.is_integer:
            frame.fill_(-1)
        first = MARGIN // t.bytes + spec.before
        if name == "offsets":
            values = torch.tensor(offsets_of(x), device="cuda")
        else:
            values = _values(name, spec.dtype, shape, rng, torch)
        view = frame.as_strided(shape, spec.strides(shape), first)
        if name != "out":
            view.copy_((values if t.is_integer else values.double()).to(kind).view(bits[t.bytes]))
        # Bits of all ones are NaN in every float but e5m2 and e4m3 agree, too.
        given[name] = frame.view(kind).as_strided(shape, spec.strides(shape), first)
        frames[name] = frame, view
    if x.in_place:
        given["out"], frames["out"] = given["c"], frames["c"]
    value, rows = expected(x, given, torch)
    before = frames["out"][0].clone()
    named = {n: y for n, y in given.items() if n not in ("a", "b", "offsets", "out")}
    operands = [given[n] for n in ("a", "b", "offsets") if n in given]
    extra = {"out_dtype": x.out_dtype} if x.made else {"out": given["out"]}
    with mock.patch.object(plans, "best", lambda problem, tune: plan_of(problem, seed)):
        result = getattr(ops, x.function)(*operands, **named, **x.options, **extra)
    text = off(x, result[..., :rows, :], value, torch)
    if not x.made:
        frame, view = frames["out"]
        view[..., :rows, :] = before.as_strided(view.shape, view.stride(), view.storage_offset())[..., :rows, :]
        if not bool((frame == before).all()):
            text += " memory around the result was changed"
    return text


def outcome(
    seed: int, *, reference: bool = False, draws: bool = False, assemble: bool = True, device: str = "cpu"
) -> tuple[int, str, str]:
    """(seed, what is wrong, the call and its plan)."""
    x, text = drawn(seed), ""
    try:
        problem = x.imagined()
        drawing = seed if draws and seed % 2 else 0
        plan = plan_of(problem, drawing)
        text = f"{x} by {plan}"
        wrong = compiled(problem, plan) if assemble else []
        if reference:
            wrong += [w for w in [run_small(*reduced(x, problem, plan))] if w]
        if device == "cuda":
            wrong += [w for w in [on_gpu(x, drawing)] if w]
    except Exception as error:
        wrong = [f"{type(error).__name__}: {str(error)[:500]}"]
    return seed, "; ".join(wrong), text or str(x)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--any-plan", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0, help="stop after so many, if not 0")
    options = parser.parse_args()
    begin, done, failed = time.time(), 0, 0
    seeds = range(options.first, options.first + options.count)
    one = partial(
        outcome, reference=options.reference, draws=options.any_plan, assemble=not options.no_compile,
        device=options.device,
    )  # fmt: skip
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.workers) as pool:
        for seed, wrong, text in pool.imap_unordered(one, seeds):
            done, failed = done + 1, failed + bool(wrong)
            if wrong:
                print(f"{wrong}\n    {text}", flush=True)
            if options.seconds and time.time() - begin > options.seconds:
                pool.terminate()
                break
    print(f"{done} calls, {failed} wrong, {time.time() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
