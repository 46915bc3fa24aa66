"""Random calls of `matmul` on integers, `scaled_matmul` and `grouped_matmul`, with poisoned surroundings.

    python tests/ops/typed_cases.py --count 2000                  # on the CPU reference
    python tests/ops/typed_cases.py --count 2000 --device cuda    # on a GPU, with torch

Every case is the same for the same seed everywhere.  ``--any-plan``: as for `cases`.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cases import any_plan, host, root_of, strided, surroundings_kept, to_torch

import tilemma as tm
from tilemma import ops, testing

FLOAT8, INTEGERS = ("f8_e4m3", "f8_e5m2"), ("s8", "u8")
SMALL = (1, 2, 3, 7, 8, 16, 17, 31, 32, 33, 63, 64, 65, 72, 100, 127, 128, 129, 144)
DEPTHS = (0, 1, 3, 16, 64, 72, 127, 128, 129, 144, 200, 256, 272, 400)


@dataclass(frozen=True)
class TypedCase:
    """One call: NumPy views into poisoned memory by the names of the parameters, and the other keywords."""

    function: str
    arrays: dict[str, Any]
    options: dict[str, Any]
    out_dtype: str
    frames: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = ", ".join(f"{n} {x.dtype.name}{list(x.shape)}" for n, x in self.arrays.items())
        return f"{self.function}({shapes}, {self.options})"


class _Maker:
    """Random arrays of one case."""

    def __init__(self, seed: int) -> None:
        self.rng, self.seed = random.Random(seed), seed * 16
        self.arrays: dict[str, Any] = {}
        self.frames: dict[str, Any] = {}

    def add(self, name: str, shape: tuple[int, ...], dtype: str, kinds: tuple[str, ...] = ()) -> None:
        self.seed += 1
        values = testing.random_array(shape, dtype, self.seed)
        if dtype == "f32":
            values = np.abs(values) + np.float32(0.1)
        choice = kinds or ("rows", "rows", "columns", "columns", "neither")
        kind = self.rng.choice(choice)
        if not shape:
            view = values
        elif len(shape) < 2:
            view = strided(values[None], self.rng, "rows", name, self.frames)[0]
        else:
            view = strided(values, self.rng, kind, name, self.frames)
        self.arrays[name] = view


def case(seed: int) -> TypedCase:
    rng = random.Random(seed)
    make = _Maker(seed)
    function = ("matmul", "scaled_matmul", "grouped_matmul")[seed % 3]
    m, n, k = rng.choice(SMALL), rng.choice(SMALL), rng.choice(DEPTHS)
    kinds = INTEGERS if function == "matmul" or rng.random() < 0.3 else FLOAT8
    types = [rng.choice(kinds) for _ in range(2)]
    if function == "grouped_matmul" and rng.random() < 0.3:
        types = [rng.choice(("f16", "bf16"))] * 2
    batch: tuple[int, ...] = () if function == "grouped_matmul" else rng.choice([(), (), (), (2,), (2, 3)])
    groups = rng.choice((1, 2, 3, 5, 8))
    wide = (groups,) if function == "grouped_matmul" else batch if rng.random() < 0.7 else ()
    make.add("a", (*batch, m, k), types[0])
    make.add("b", (*wide, k, n), types[1])
    if function == "grouped_matmul":
        ends = sorted(rng.choice((0, m, rng.randint(0, m))) for _ in range(groups))
        make.arrays["offsets"] = np.array(ends, np.int32)
    if function != "matmul" and k and types[0] not in ("f16", "bf16"):
        _add_scales(make, rng, function, (m, n, k), wide)
    options: dict[str, Any] = {}
    if function != "matmul" and rng.random() < 0.3:
        options["fast"] = False
    integer = types[0] in INTEGERS
    results = ("s32", "s32", "s8", "bf16", "f16", "f32") if integer else ("bf16", "bf16", "f16", "f32")
    out_dtype = rng.choice(results)
    _add_epilogue(make, rng, options, (*batch, m, n), groups if function == "grouped_matmul" else 0)
    if rng.random() < 0.6 or function == "grouped_matmul":
        shape = (*batch, m, n)
        empty = np.zeros(shape, tm.dtypes.dtype(out_dtype).numpy)
        make.arrays["out"] = strided(empty, rng, rng.choice(("rows", "columns", "neither")), "out", make.frames)
    else:
        options["out_dtype"] = out_dtype
    return TypedCase(function, make.arrays, options, out_dtype, make.frames)


def _add_scales(make: _Maker, rng: random.Random, function: str, shape: tuple[int, ...], wide: Any) -> None:
    (m, n, k), steps = shape, -(-shape[2] // 128)
    forms_a = [(), (1, 1), (m, 1), (m, steps)] + [(-(-m // 128), steps)] * (function == "scaled_matmul")
    forms_b = [(), (1, 1), (1, n), (steps, n), (steps, -(-n // 128))]
    chosen = rng.choice(((1, 1), (2, 2), (3, 4), (3, 3), (rng.randrange(len(forms_a)), rng.randrange(5))))
    for name, form, lead in (("scale_a", forms_a[chosen[0]], ()), ("scale_b", forms_b[chosen[1]], wide)):
        if form or rng.random() < 0.5:
            make.add(name, (*(lead if form and rng.random() < 0.7 else ()), *form), "f32")


def _add_epilogue(
    make: _Maker, rng: random.Random, options: dict[str, Any], shape: tuple[int, ...], groups: int
) -> None:
    *_, m, n = shape
    if rng.random() < 0.4:
        options["alpha"] = rng.choice([0.5, -1.25, 2, 0.0])
    if rng.random() < 0.3:
        make.add("c", rng.choice([shape, (1, n), (m, 1)]), rng.choice(["bf16", "f32"]))
        options["beta"] = rng.choice([1.0, -0.5])
    if rng.random() < 0.4:
        bias = rng.choice([(1, n), (m, 1), (n,)] + [(groups, n)] * (2 * (groups > 0)))
        make.add("bias", bias, rng.choice(["bf16", "f32"]))
    if rng.random() < 0.4:
        options["activation"] = rng.choice(["relu", "gelu", "silu"])


def spread(scale: Any, extents: tuple[int, int]) -> Any:
    """A scale as an array of the operand's extents."""
    s = np.atleast_2d(testing.to_float64(scale))
    for axis, extent in zip((-2, -1), extents, strict=True):
        times = extent if s.shape[axis] == 1 else 1 if s.shape[axis] == extent else 128
        s = np.take(np.repeat(s, times, axis), range(extent), axis)
    return s


def expected(x: TypedCase) -> tuple[Any, Any]:
    """The float64 result and the bound, of the rows that the call writes."""
    o, given = x.options, x.arrays
    if x.function != "grouped_matmul":
        return _expected(given, o, x.out_dtype)
    parts, begin = [], 0
    for e, end in enumerate(given["offsets"]):
        mine = {n: v for n, v in given.items() if n not in ("offsets", "out")}
        mine["a"], mine["b"] = given["a"][begin:end], given["b"][e]
        rows = given["a"].shape[0]
        for name in ("scale_a", "c"):
            if name in mine and mine[name].ndim == 2 and mine[name].shape[0] == rows:
                mine[name] = mine[name][begin:end]
        if "scale_b" in mine and mine["scale_b"].ndim == 3:
            mine["scale_b"] = mine["scale_b"][e if len(mine["scale_b"]) > 1 else 0]
        if "bias" in mine:
            bias, n = mine["bias"], given["b"].shape[-1]
            if bias.ndim == 2 and bias.shape == (len(given["offsets"]), n) and len(given["offsets"]) > 1:
                mine["bias"] = bias[e]
            elif bias.ndim == 2 and bias.shape == (rows, 1):
                mine["bias"] = bias[begin:end]
        parts.append(_expected(mine, o, x.out_dtype))
        begin = end
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def _expected(given: dict[str, Any], o: dict[str, Any], out_dtype: str) -> tuple[Any, Any]:
    a, b = testing.to_float64(given["a"]), testing.to_float64(given["b"])
    kind = testing._element_type(given["a"])
    scaled = "scale_a" in given or "scale_b" in given
    if "scale_a" in given:
        a = a * spread(given["scale_a"], a.shape[-2:])
    if "scale_b" in given:
        b = b * spread(given["scale_b"], b.shape[-2:])
    alpha, beta, activation = o.get("alpha", 1.0), o.get("beta", 0.0), o.get("activation")
    c, bias = given.get("c"), given.get("bias")
    value = alpha * np.matmul(a, b)
    value = value + (0 if c is None else beta * testing.to_float64(c))
    value = value + (0 if bias is None else testing.to_float64(bias))
    exact = kind in INTEGERS and not scaled and alpha == 1 and c is None and bias is None and activation is None
    acc, operands = ("s32", kind) if exact else ("f32", "f16" if kind in INTEGERS else kind)
    bound = testing.error_bound(a, b, acc, out_dtype, alpha, beta, c, bias, activation, operands=operands)
    if scaled:
        # Two factors and their product round besides.
        bound = bound + 2.0**-21 * (np.abs(value) + np.abs(alpha) * np.matmul(np.abs(a), np.abs(b)))
    if activation:
        value = testing.ACTIVATIONS[activation].value(value)
    return value, bound


def run(x: TypedCase, device: str = "cpu") -> float:
    """The share of the bound that the result uses; infinite where memory around it was changed."""
    wanted, bound = expected(x)
    memory: dict[int, Any] = {}
    given = dict(x.arrays)
    if device == "cuda":
        given = {n: to_torch(y, memory) for n, y in given.items()}
    before = x.frames["out"].copy() if "out" in x.arrays else None
    names = ["a", "b", *(["offsets"] if "offsets" in given else [])]
    operands = [given.pop(n) for n in names]
    result = getattr(ops, x.function)(*operands, **given, **x.options)
    if before is not None and x.arrays["out"].size:
        out = x.arrays["out"]
        after = x.frames["out"] if device == "cpu" else host(memory[id(root_of(out))], before)
        written = out if x.function != "grouped_matmul" else out[: x.arrays["offsets"][-1]]
        if not surroundings_kept(before, after, x.frames["out"], written):
            return float("inf")
    return testing.share_of_bound(
        result[: len(wanted)] if x.function == "grouped_matmul" else result, wanted, bound
    )


def outcome(seed: int, device: str, draws: bool) -> tuple[float, str]:
    """The share of the bound, and what was wrong."""
    x = case(seed)
    with any_plan(seed) if draws and seed % 2 else contextlib.nullcontext([]) as drawn:
        try:
            share = run(x, device)
            text = f"{share} of the bound"
        except Exception as e:
            share, text = float("inf"), f"{type(e).__name__}: {e}"
    return share, "" if share <= 1 else f"{text}: {x} {[*map(str, drawn)]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--any-plan", action="store_true")
    parser.add_argument("--seconds", type=float, default=0, help="stop after so many, if not 0")
    options = parser.parse_args()
    worst, wrong, done, begin = 0.0, 0, 0, time.time()
    for seed in range(options.first, options.first + options.count):
        if options.seconds and time.time() - begin > options.seconds:
            break
        share, text = outcome(seed, options.device, options.any_plan)
        done, wrong, worst = done + 1, wrong + bool(text), max(worst, share)
        if text:
            print(f"seed {seed}: {text}", flush=True)
    print(f"{done} cases, {wrong} wrong, worst {worst:.3f} of the bound, {time.time() - begin:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
