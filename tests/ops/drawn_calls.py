"""Random calls of the products of `tilemma.ops` with extents of thousands: every type, layout, stride, scale,
batch, group and epilogue; described, without memory."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, replace
from typing import Any

from tilemma import dtypes
from tilemma.ops import arguments
from tilemma.ops.arguments import ADDENDS, GROUPED, PLAIN, SCALED, Call
from tilemma.ops.problem import Problem
from tilemma.runtime.arrays import ArrayRef, row_major

RULES = {"matmul": PLAIN, "scaled_matmul": SCALED, "grouped_matmul": GROUPED}
FLOATS, INTEGERS, FLOAT8 = ("f16", "bf16"), ("s8", "u8"), ("f8_e4m3", "f8_e5m2")
# Bytes of all arrays of a call.
LARGEST = 200e6
PLACES = itertools.count(1)


@dataclass(frozen=True)
class Array:
    """An argument: the names or values of its extents, its type, the contiguous axis ("rows", "columns" or
    "neither"), the elements between the end of a row and the next, those before the first, and the number of
    which the elements from one row to the next are a multiple."""

    extents: tuple[int | str, ...]
    dtype: str
    order: str = "rows"
    pad: int = 0
    before: int = 0
    multiple: int = 1

    def shape(self, sizes: dict[str, int]) -> tuple[int, ...]:
        return tuple(e if isinstance(e, int) else sizes[e] for e in self.extents)

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) < 2:
            return (1,) * len(shape)
        if self.order == "columns":
            turned = replace(self, order="rows").strides((*shape[:-2], shape[-1], shape[-2]))
            return (*turned[:-2], turned[-1], turned[-2])
        step = 2 if self.order == "neither" else 1
        row = -(-(shape[-1] * step + self.pad) // self.multiple) * self.multiple
        return (*(x * row for x in row_major((*shape[:-2], shape[-2]))), step)

    def span(self, shape: tuple[int, ...]) -> int:
        """Elements from the first to the end of the last."""
        return 1 + sum(max(n - 1, 0) * s for n, s in zip(shape, self.strides(shape), strict=True))


@dataclass(frozen=True)
class RealCall:
    """One call: its arrays, by the names of the parameters, with extents that are named in ``sizes``.

    ``in_place``: the result is written over `c`.
    """

    seed: int
    function: str
    sizes: dict[str, int]
    arrays: dict[str, Array]
    options: dict[str, Any]
    out_dtype: str
    made: bool = True
    in_place: bool = False

    def __str__(self) -> str:
        parts = [f"{n} {x.dtype}{list(x.shape(self.all_sizes))}{x.order[0]}" for n, x in self.arrays.items()]
        place = " in place" if self.in_place else ""
        return f"seed {self.seed}: {self.function}({', '.join(parts)}, {self.options}) -> {self.out_dtype}{place}"

    @property
    def all_sizes(self) -> dict[str, int]:
        steps_, blocks = -(-self.sizes["K"] // 128), {f"{x}B": -(-self.sizes[x] // 128) for x in "MN"}
        return {**self.sizes, "KB": steps_, **blocks}

    @property
    def bytes(self) -> int:
        found = ((x.span(x.shape(self.all_sizes)), x.dtype) for x in self.arrays.values())
        return sum(n * dtypes.dtype(t).bytes for n, t in found)

    def call(self, arrays: dict[str, ArrayRef]) -> Call:
        given = {n: x for n, x in arrays.items() if n not in ("a", "b", "out")}
        out = {} if self.made else {"out": arrays["out"]}
        return Call(
            arrays["a"], arrays["b"], rules=RULES[self.function], **given, **out, **self.options,
            **({"out_dtype": self.out_dtype} if self.made else {}),
        )  # fmt: skip

    def problem(self, arrays: dict[str, ArrayRef]) -> Problem:
        call = self.call(arrays)
        arguments.check(call)
        return arguments.problem(call, arrays["out"], made=self.made)

    def imagined(self) -> Problem:
        """The problem of arrays on a GPU that are never accessed."""
        refs = {}
        for name, x in self.arrays.items():
            shape, t = x.shape(self.all_sizes), dtypes.dtype(x.dtype)
            pointer = (next(PLACES) << 40) + x.before * t.bytes
            refs[name] = ArrayRef(pointer, shape, x.strides(shape), t, ("cuda", 0), None, "torch")
        return self.problem(refs | ({"c": refs["out"]} if self.in_place else {}))


def drawn(seed: int) -> RealCall:
    """The call of a seed."""
    rng = random.Random(seed * 2 + 1)
    while True:
        found = _drawn(rng, seed)
        if found.bytes <= LARGEST:
            return _in_place(found) if seed % 2 else found


def _in_place(x: RealCall) -> RealCall:
    """The call with its result in the place of the addend, where that can be."""
    out = x.arrays["out"]
    if "c" not in x.arrays or out.dtype not in ADDENDS or x.arrays["c"].extents != out.extents:
        return x
    return replace(x, arrays=x.arrays | {"c": out}, made=False, in_place=True)


def _extents(rng: random.Random) -> tuple[int, int, int, int]:
    """(M, N, K, batch) of one of the kinds that plans differ for."""

    def between(low: int, high: int) -> int:
        step = rng.choice((1, 8, 16, 64, 128, 128))
        return max(1, round(math.exp(rng.uniform(math.log(low), math.log(high))) / step)) * step

    kind = rng.choice(("large", "few rows", "few rows", "few columns", "long K", "small", "batches", "anything"))
    if kind == "large":
        return between(1000, 9000), between(1000, 9000), between(256, 9000), 1
    if kind in ("few rows", "few columns"):
        m, n = between(1, 300), between(2000, 20000)
        return (*((m, n) if kind == "few rows" else (n, m)), between(1000, 10000), 1)
    if kind == "long K":
        return between(16, 512), between(16, 512), between(8000, 40000), 1
    if kind == "batches":
        return between(8, 1024), between(8, 1024), between(16, 1024), between(2, 500)
    low = 1 if kind == "anything" else 100
    return between(low, 2000), between(low, 2000), between(low, 2000), rng.choice((1, 1, 3))


def _drawn(rng: random.Random, seed: int) -> RealCall:
    m, n, k, batch = _extents(rng)
    function = rng.choice(("matmul", "matmul", "matmul", "scaled_matmul", "scaled_matmul", "grouped_matmul"))
    kinds = {
        "matmul": (FLOATS, FLOATS, FLOATS, INTEGERS, ("f32",), ("f64",)),
        "scaled_matmul": (FLOAT8, FLOAT8, INTEGERS),
        "grouped_matmul": (FLOATS, FLOATS, FLOAT8, INTEGERS),
    }
    types = rng.choice(kinds[function])
    left = rng.choice(types)
    right = left if left in (*FLOATS, "f32", "f64") else rng.choice(types)
    sizes = {"M": m, "N": n, "K": k}
    options: dict[str, Any] = {}
    groups = 0
    if function == "grouped_matmul":
        groups = sizes["E"] = rng.choice((1, 2, 5, 8, 24, 64))
        batch = 1
    elif batch > 1:
        sizes["B"] = batch
    outer: tuple[str, ...] = ("B",) * (batch > 1)
    skewed = rng.random() < 0.25

    def array(*extents: int | str, dtype: str, orders: tuple[str, ...] = ("rows", "columns")) -> Array:
        pad = rng.choice((0, 0, 0, 8, 16, 64, 3)) if skewed else rng.choice((0, 0, 0, 0, 64))
        before = rng.choice((0, 0, 8, 16, 1)) if skewed else 0
        return Array(extents, dtype, rng.choice(orders), pad, before)

    either = ("rows", "rows", "columns")
    if skewed and rng.random() < 0.2:
        either = (*either, "neither")
    shared = batch > 1 and rng.random() < 0.2
    wide = ("E",) if groups else () if shared else outer
    arrays = {
        "a": array(*outer, "M", "K", dtype=left, orders=either),
        "b": array(*wide, "K", "N", dtype=right, orders=(*either, "columns")),
    }
    if groups:
        arrays["offsets"] = Array(("E",), "s32")
    if function == "matmul" and left == "f32" and rng.random() < 0.8:
        options["compute"] = "tf32"
    if function != "matmul" and left not in FLOATS:
        _add_scales(rng, arrays, function, "E" if groups else "B" if outer and not shared else "")
        if rng.random() < 0.3:
            options["fast"] = False
    rules = RULES[function]
    known = rules.results_of(dtypes.dtype(left))
    default = rules.default_of(dtypes.dtype(left))
    out_dtype = rng.choice((*known, *(default,) * (2 * (default in known))))
    addends = [left] if left in (*FLOATS, "f32", "f64") else []
    addends += ["f32", "bf16"]
    if rng.random() < 0.25:
        options["alpha"] = rng.choice((0.5, -2.0))
    if rng.random() < 0.25:
        forms: tuple[tuple[int | str, ...], ...] = ((*outer, "M", "N"), ("M", "N"), (1, "N"), ("M", 1))
        options["beta"] = rng.choice((1.0, -0.5))
        arrays["c"] = array(*rng.choice(forms[:1] * 3 + forms), dtype=rng.choice(addends), orders=either)
    if rng.random() < 0.3:
        forms = (("N",), (1, "N"), ("M", 1), *((("E", "N"),) * (2 * (groups > 1))))
        arrays["bias"] = Array(rng.choice(forms), rng.choice(addends))
    if rng.random() < 0.35:
        options["activation"] = rng.choice(("relu", "gelu", "silu"))
    made = rng.random() < 0.6
    orders = ("rows",) if made else ("rows", "rows", "columns", "neither" if skewed else "rows")
    arrays["out"] = array(*outer, "M", "N", dtype=out_dtype, orders=orders)
    if made:
        arrays["out"] = replace(arrays["out"], pad=0, before=0)
    return RealCall(seed, function, sizes, arrays, options, out_dtype, made)


def _add_scales(rng: random.Random, arrays: dict[str, Array], function: str, lead: str) -> None:
    left: list[tuple[int | str, ...]] = [(), (1, 1), ("M", 1), ("M", "KB")]
    left += [("MB", "KB")] * (function == "scaled_matmul")
    right: list[tuple[int | str, ...]] = [(), (1, 1), (1, "N"), ("KB", "N"), ("KB", "NB")]
    drawn_ = rng.randrange(len(left)), rng.randrange(5)
    chosen = rng.choice(((1, 1), (2, 2), (2, 2), (3, 4), (3, 4), (3, 3), drawn_))
    for name, form in (("scale_a", left[chosen[0]]), ("scale_b", right[chosen[1]])):
        outer = (lead,) * bool(lead and rng.random() < 0.7 and (name == "scale_b" or lead == "B"))
        if form:
            arrays[name] = Array((*outer, *form), "f32", rng.choice(("rows", "columns")))
