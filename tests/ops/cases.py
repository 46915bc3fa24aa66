"""Random products for `ops.matmul`: shapes, strides, layouts, batches, epilogues, with poisoned surroundings.

    python tests/ops/cases.py --count 2000                  # on the CPU reference
    python tests/ops/cases.py --count 2000 --device cuda --workers 12    # on a GPU, with torch

Every case is the same for the same seed everywhere.  ``--any-plan``: every other case is computed by any of the
plans that could, not by the one that the model likes best.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import tilemma as tm
from tilemma import ops, testing
from tilemma.ops import plans, product
from tilemma.ops.plan import Plan

# An integer that is no result.
POISON = 113
SMALL = (0, 1, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 72, 100, 127, 128, 129, 130)


@dataclass(frozen=True)
class Case:
    """One call: arrays as float-preserving NumPy views into poisoned memory, and the keywords."""

    a: Any
    b: Any
    out: Any
    c: Any
    bias: Any
    options: dict[str, Any]
    dtype: str
    out_dtype: str
    frames: dict[str, Any]


def strided(values: Any, rng: random.Random, kind: str, name: str, frames: dict[str, Any]) -> Any:
    """``values`` in larger memory full of NaN (integers: `POISON`): rows or columns contiguous, padded, or every
    second element."""
    *batch, m, n = values.shape
    if kind == "columns":
        turned = strided(np.swapaxes(values, -1, -2), rng, "rows", name, frames)
        return np.swapaxes(turned, -1, -2)
    step = 2 if kind == "neither" else 1
    before, pad = rng.choice([0, 0, 1, 8]), rng.choice([0, 0, 1, 3, 8])
    poison = POISON if values.dtype.kind in "iu" else np.nan
    frame = np.full((*batch, m + 2, before + n * step + pad), poison, values.dtype)
    frames[name] = frame
    view = frame[..., 1 : m + 1, before : before + n * step : step]
    view[...] = values
    return view


def case(seed: int, largest: int = 130) -> Case:
    rng = random.Random(seed)
    sizes = [s for s in SMALL if s <= largest]
    m, n, k = (rng.choice(sizes) for _ in range(3))
    if seed % 10 == 9:  # deep enough to be split
        k = (264, 520, 777, 1030)[seed // 10 % 4]
    dtype = rng.choice(["f16", "f16", "bf16"])
    out_dtype = rng.choice([dtype, dtype, "f32", "f16", "bf16"])
    batch: tuple[int, ...] = rng.choice([(), (), (), (2,), (3,), (2, 3), (1,), (0,)])
    kinds = ["rows", "rows", "columns", "columns", "neither"]
    frames: dict[str, Any] = {}

    def operand(shape: tuple[int, ...], which: int, type_: str, name: str) -> Any:
        values = testing.random_array(shape, type_, seed * 8 + which)
        return strided(values, rng, rng.choice(kinds), name, frames)

    def part(full: tuple[int, ...]) -> tuple[int, ...]:
        """Some of the batch dimensions, each as it is or 1."""
        kept = full[rng.randint(0, len(full)) :] if rng.random() < 0.4 else full
        return tuple(rng.choice([e, e, 1]) if e > 0 and rng.random() < 0.3 else e for e in kept)

    batch_a, batch_b = (part(batch), batch) if rng.random() < 0.5 else (batch, part(batch))
    a = operand((*batch_a, m, k), 0, dtype, "a")
    b = operand((*batch_b, k, n), 1, dtype, "b")
    options: dict[str, Any] = {}
    if rng.random() < 0.4:
        options["alpha"] = rng.choice([0.5, -1.25, 2, 0.0])
    c = bias = None
    if rng.random() < 0.4:
        shape = rng.choice([(*batch, m, n), (m, n), (1, n), (m, 1)])
        c = operand(shape, 2, rng.choice([dtype, out_dtype]), "c")
        options["beta"] = rng.choice([1.0, -0.5, 0.0])
    if rng.random() < 0.4:
        shape = rng.choice([(1, n), (m, 1)])
        bias = operand(shape, 3, rng.choice([dtype, "f32"]), "bias")
        bias = bias[0] if shape == (1, n) and rng.random() < 0.6 else bias
    if rng.random() < 0.5:
        options["activation"] = rng.choice(["relu", "gelu", "silu"])
    out = None
    if rng.random() < 0.6:
        empty = np.zeros((*batch, m, n), tm.dtypes.dtype(out_dtype).numpy)
        out = strided(empty, rng, rng.choice(kinds), "out", frames)
        if c is not None and c.shape == out.shape and rng.random() < 0.3:
            out = strided(testing.random_array(out.shape, out_dtype, seed), rng, "rows", "out", frames)
            c = out
    elif out_dtype != dtype:
        options["out_dtype"] = out_dtype
    return Case(a, b, out, c, bias, options, dtype, out_dtype, frames)


def expected(x: Case) -> tuple[Any, Any]:
    """The float64 result and the bound."""
    o = x.options
    a, b = testing.to_float64(x.a), testing.to_float64(x.b)
    value = o.get("alpha", 1.0) * np.matmul(a, b)
    beta = o.get("beta", 0.0)
    c = None if x.c is None or beta == 0 else x.c.copy()
    if c is not None:
        value = value + beta * testing.to_float64(c)
    if x.bias is not None:
        value = value + testing.to_float64(x.bias)
    bound = testing.error_bound(
        x.a, x.b, "f32", x.out_dtype, o.get("alpha", 1.0), beta, c, x.bias, o.get("activation")
    )
    if o.get("activation"):
        value = testing.ACTIVATIONS[o["activation"]].value(value)
    return value, bound


def root_of(x: Any) -> Any:
    """The array that owns the memory of ``x``."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def to_torch(x: Any, memory: dict[int, Any]) -> Any:
    """A CUDA tensor with the strides of ``x``, a view of a copy of all the memory that ``x`` is a view of."""
    import torch

    root = root_of(x)
    if id(root) not in memory:
        kind = getattr(torch, root.dtype.name)
        # torch does not know the element types of ml_dtypes: their bits pass as integers.
        bits = np.ascontiguousarray(root).reshape(-1).view(f"i{root.itemsize}")
        memory[id(root)] = torch.from_numpy(bits.copy()).cuda().view(kind)
    offset = (x.__array_interface__["data"][0] - root.__array_interface__["data"][0]) // x.itemsize
    return memory[id(root)].as_strided(x.shape, [s // x.itemsize for s in x.strides], offset)


def surroundings_kept(before: Any, after: Any, frame: Any, view: Any) -> bool:
    """Whether nothing but ``view`` changed in ``frame``."""
    inside = np.zeros(frame.shape, bool)
    offset = (view.__array_interface__["data"][0] - frame.__array_interface__["data"][0]) // frame.itemsize
    steps = [s // frame.itemsize for s in view.strides]
    np.lib.stride_tricks.as_strided(inside.reshape(-1)[offset:], view.shape, steps)[...] = True
    return bool(np.array_equal(before[~inside], after[~inside], equal_nan=True))


def run(x: Case, device: str = "cpu", **options: Any) -> float:
    """The share of the bound that the result uses; infinite where memory around it was changed."""
    wanted, bound = expected(x)
    arrays, memory = [x.a, x.b, x.out, x.c, x.bias], {}
    if device == "cuda":
        arrays = [None if y is None else to_torch(y, memory) for y in arrays]
    a, b, out, c, bias = arrays
    before = None if x.out is None else x.frames["out"].copy()
    result = ops.matmul(a, b, out=out, c=c, bias=bias, **x.options, **options)
    assert out is None or result is out
    if before is not None and x.out.size:
        after = x.frames["out"] if device == "cpu" else host(memory[id(root_of(x.out))], before)
        if not surroundings_kept(before, after, x.frames["out"], x.out):
            return float("inf")
    return testing.share_of_bound(result, wanted, bound)


def host(flat: Any, like: Any) -> Any:
    """A flat CUDA tensor as a NumPy array like ``like``."""
    import torch

    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32}[like.itemsize]
    return flat.view(whole).cpu().numpy().view(like.dtype).reshape(like.shape)


@contextlib.contextmanager
def any_plan(seed: int) -> Iterator[list[Plan]]:
    """Calls inside are computed by a plan that is drawn from all that can; the list says which."""
    rng = random.Random(seed)
    drawn: list[Plan] = []

    def draw(problem: Any, tune: bool = False) -> Plan:
        on = plans.hardware(problem.out.device)
        # In an order that does not depend on the model.
        found = sorted((e.plan for e in plans.usable(problem, on)), key=repr)
        # As many of each kind: there are few without a split, and few on threads alone.
        kinds = sorted({(p.kernel, p.split > 1, p.swap, p.cluster) for p in found})
        kind = rng.choice(kinds)
        chosen = rng.choice([p for p in found if (p.kernel, p.split > 1, p.swap, p.cluster) == kind])
        if chosen.kernel == "pipelined" and (problem.out.device[0] == "cpu" or rng.random() < 0.5):
            # Turns and groups of tiles, as large products have.
            turns = {"grid": min(chosen.grid, 3), "raster": rng.choice((1, 2, 16))}
            chosen = replace(chosen, back=rng.random() < 0.5, **turns)
        drawn.append(chosen)
        return chosen

    before = plans.best, product.choose
    plans.best = product.choose = draw
    try:
        yield drawn
    finally:
        plans.best, product.choose = before


def outcome(seed: int, largest: int, device: str, draws: bool) -> tuple[int, float, str]:
    """(seed, share of the bound, what was wrong)."""
    x = case(seed, largest)
    with any_plan(seed) if draws and seed % 2 else contextlib.nullcontext([]) as drawn:
        try:
            share = run(x, device)
            text = f"{share} of the bound"
        except Exception as e:
            share, text = float("inf"), f"{type(e).__name__}: {e}"
    return seed, share, "" if share <= 1 else f"{text}: {x.a.shape} x {x.b.shape} {x.options} {[*map(str, drawn)]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--largest", type=int, default=130)
    parser.add_argument("--any-plan", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    worst, wrong, begin = 0.0, 0, time.time()
    seeds = range(options.first, options.first + options.count)
    one = partial(outcome, largest=options.largest, device=options.device, draws=options.any_plan)
    with contextlib.ExitStack() as stack:
        results: Iterator[tuple[int, float, str]] = map(one, seeds)
        if options.workers > 1:
            context = multiprocessing.get_context("spawn")
            results = stack.enter_context(context.Pool(options.workers)).imap(one, seeds, chunksize=8)
        for seed, share, text in results:
            wrong += bool(text)
            worst = max(worst, share)
            if text:
                print(f"seed {seed}: {text}", flush=True)
    seconds = time.time() - begin
    print(f"{options.count} cases, {wrong} wrong, worst {worst:.3f} of the bound, {seconds:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
