"""Random calls of `gated_matmul`, `sparse_matmul`, `mixed_matmul` and `conv2d` with random epilogues, each with
its result in float64 and a bound.

Every case is the same for the same seed everywhere; ``deep`` ones have the sizes that a GPU cuts into many tiles.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from cases import host, root_of, strided, surroundings_kept, to_torch

import tilemma as tm
from tilemma import ops, testing

SIZES = (1, 3, 8, 17, 64, 72, 130)
# Rows on both sides of what a tile of few rows has; columns and depths of more than one tile.
DEEP_SIZES, DEEP = (1, 8, 17, 33, 64, 96, 130, 264, 513, 1000), (512, 1056, 2048, 4096)


@dataclass(frozen=True)
class Form:
    """A call: a function of `ops` with its operands, and the product in float64 with the bound before the
    epilogue."""

    function: Callable[..., Any]
    operands: dict[str, Any]
    product: Any
    bound: Callable[..., Any]
    acc: str
    results: tuple[str, ...]


@dataclass(frozen=True)
class Draw:
    """What a case is drawn from."""

    rng: random.Random
    seed: int
    deep: bool

    def size(self) -> int:
        return self.rng.choice(DEEP_SIZES if self.deep else SIZES)

    def depth(self, depths: tuple[int, ...]) -> int:
        return self.rng.choice((*depths, *DEEP) if self.deep else depths)

    def operand(self, shape: tuple[int, ...], dtype: str, place: int) -> Any:
        values = testing.random_array(shape, dtype, 4 * self.seed + place)
        return strided(values, self.rng, self.rng.choice(["rows", "columns", "neither"]), str(place), {})

    def batch(self) -> tuple[int, ...]:
        return self.rng.choice([(), (2,)])


def wide(x: Any) -> Any:
    return testing.to_float64(x)


def gated(draw: Draw) -> Form:
    m, n, k, dtype = draw.size(), draw.size(), draw.depth(SIZES), draw.rng.choice(("f16", "bf16"))
    x = draw.operand((*draw.batch(), m, k), dtype, 0)
    gate, up = draw.operand((k, n), dtype, 1), draw.operand((k, n), dtype, 2)
    silu = testing.ACTIVATIONS["silu"].value(wide(x) @ wide(gate))
    second = wide(x) @ wide(up)
    errors = [testing.error_bound(x, w, "f32", "f32", activation=a) for w, a in ((gate, "silu"), (up, None))]
    error = errors[0] * np.abs(second) + errors[1] * np.abs(silu) + errors[0] * errors[1]
    error = error + 2.0**-22 * np.abs(silu * second)
    operands = {"x": x, "gate": gate, "up": up}
    return Form(ops.gated_matmul, operands, silu * second, lambda: error, "f32", ("f16", "bf16", "f32"))


def sparse(draw: Draw) -> Form:
    m, n, k = draw.size(), draw.size(), draw.depth((32, 64, 160, 320))
    dtype = draw.rng.choice(("f16", "bf16", "f8_e4m3", "s8"))
    whole = tm.sparse.prune(testing.random_array((m, k), dtype, 4 * draw.seed))
    a = tm.sparse.compress(whole, draw.rng.choice(("u8", "u16", "u32")))
    b = draw.operand((*draw.batch(), k, n), dtype, 1)
    acc = "s32" if dtype == "s8" else "f32"
    left = np.broadcast_to(whole, (*b.shape[:-2], m, k))
    results = ("s32", "s8", "f16") if acc == "s32" else ("f16", "bf16", "f32")
    product = wide(whole) @ wide(b)

    def bound() -> Any:
        return testing.error_bound(left, b, acc, acc)

    return Form(ops.sparse_matmul, {"a": a, "b": b}, product, bound, acc, results)


def mixed(draw: Draw) -> Form:
    m, n, k = draw.size(), draw.size(), draw.depth((32, 64, 192, 384))
    rng = draw.rng
    dtype, kind = rng.choice(("f16", "bf16")), rng.choice(("s8", "s4", "f8_e4m3"))
    group = rng.choice([None, 32, k // 2])
    zeros = kind != "f8_e4m3" and rng.random() < 0.5
    weights = testing.random_array((k, n), "f32", 4 * draw.seed)
    b = tm.quantize(weights, kind, group, zeros=zeros, scales=rng.choice(("f32", "f16")))
    a = draw.operand((*draw.batch(), m, k), dtype, 1)
    weights = b.dequantize()
    # Each weight may be rounded to the type of ``a``: half of its last bit, and of the smallest number.
    lost = {"f16": 2.0**-11, "bf16": 2.0**-8}[dtype] * np.abs(wide(weights)) + 2.0**-25
    right = np.broadcast_to(np.abs(weights), (*a.shape[:-2], k, n)).astype(a.dtype)

    def bound() -> Any:
        return 1.01 * testing.error_bound(a, right, "f32", "f32") + np.abs(wide(a)) @ lost

    return Form(ops.mixed_matmul, {"a": a, "b": b}, wide(a) @ wide(weights), bound, "f32", ("f16", "bf16", "f32"))


def convolved(x: Any, w: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    """The convolution in float64, an element of the filter at a time."""
    _, (_, r, s, _) = x.shape, w.shape
    x = np.pad(wide(x), ((0, 0), (padding[0],) * 2, (padding[1],) * 2, (0, 0)))
    high = (x.shape[1] - dilation[0] * (r - 1) - 1) // stride[0] + 1
    broad = (x.shape[2] - dilation[1] * (s - 1) - 1) // stride[1] + 1
    total = np.zeros((x.shape[0], high, broad, w.shape[0]))
    for i in range(r):
        for j in range(s):
            rows = slice(i * dilation[0], i * dilation[0] + (high - 1) * stride[0] + 1, stride[0])
            columns = slice(j * dilation[1], j * dilation[1] + (broad - 1) * stride[1] + 1, stride[1])
            total += x[:, rows, columns] @ wide(w)[:, i, j].T
    return total


def convolution(draw: Draw) -> Form:
    rng = draw.rng
    dtype = rng.choice(("f16", "bf16"))
    r, s = rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 3))
    stride, padding = [tuple(rng.choice(v) for _ in range(2)) for v in ((1, 1, 2), (0, 0, 1, 2))]
    dilation = tuple(rng.choice((1, 1, 2)) for _ in range(2))
    more = draw.deep
    h, q = rng.choice((6, 9, 30) if more else (6, 9)), rng.choice((5, 14, 41) if more else (5, 14))
    c, o = rng.choice((3, 16, 72, 256) if more else (3, 16, 72)), rng.choice((4, 40, 256) if more else (4, 40))
    x = draw.operand((2, h, q, c), dtype, 0)
    w = testing.random_array((o, r, s, c), dtype, 4 * draw.seed + 1)
    product = convolved(x, w, stride, padding, dilation)
    # The bound is of sums of |products|: the same convolution of magnitudes.
    total = convolved(abs(x.astype(np.float32)), abs(w.astype(np.float32)), stride, padding, dilation)
    error = testing.accumulation_bound(total, r * s * c, tm.dtypes.dtype("f32"), dtype, 0.0)
    operands = {"x": x, "w": w, "stride": stride, "padding": padding, "dilation": dilation}
    return Form(ops.conv2d, operands, product, lambda: error, "f32", ("f16", "bf16", "f32"))


FORMS: dict[str, Callable[[Draw], Form]] = {
    "gated": gated, "sparse": sparse, "mixed": mixed, "convolution": convolution,
}  # fmt: skip


def drawn(name: str, seed: int, deep: bool = False) -> tuple[Form, random.Random]:
    """The call of a seed, and what its epilogue is drawn from."""
    draw = Draw(random.Random(seed), seed, deep)
    return FORMS[name](draw), draw.rng


def share(name: str, seed: int, device: str = "cpu", deep: bool = False) -> float:
    """The share of the bound that a random call with a random epilogue uses; infinite where memory around its
    result was changed."""
    form, rng = drawn(name, seed, deep)
    shape = form.product.shape
    given: dict[str, Any] = {"alpha": rng.choice([1.0, -0.5]), "out_dtype": rng.choice(form.results)}
    value, terms = given["alpha"] * form.product, np.abs(given["alpha"] * form.product)
    if rng.random() < 0.5:
        given |= {"c": testing.random_array(shape, "f32", 4 * seed + 3), "beta": 2.0}
        value, terms = value + 2 * wide(given["c"]), terms + 2 * np.abs(wide(given["c"]))
    if rng.random() < 0.5:
        given["bias"] = testing.random_array(shape[-1:], "f16", 4 * seed + 3)
        value, terms = value + wide(given["bias"]), terms + np.abs(wide(given["bias"]))
    error = abs(given["alpha"]) * form.bound() + 6 * 2.0**-24 * terms
    if form.function is not ops.gated_matmul and rng.random() < 0.5:
        given["activation"] = "relu"
        value = np.maximum(value, 0)
    out = tm.dtypes.dtype(given["out_dtype"])
    frames: dict[str, Any] = {}
    if rng.random() < 0.5:
        kind = rng.choice(["rows", "columns", "neither"])
        given["out"] = strided(np.zeros(shape, out.numpy), rng, kind, "out", frames)
    plain = given["alpha"] == 1 and not {"c", "bias", "activation"} & set(given)
    result, kept = _called(form, given, frames, device)
    bound = testing._stored(value, error, tm.dtypes.dtype(form.acc), out, plain)
    return testing.share_of_bound(result, value, bound) if kept else float("inf")


def _called(form: Form, given: dict[str, Any], frames: dict[str, Any], device: str) -> tuple[Any, bool]:
    """The result of the call, and whether nothing around it changed."""
    memory: dict[int, Any] = {}

    def placed(x: Any) -> Any:
        if is_dataclass(x) and not isinstance(x, type):
            return replace(x, **{f.name: placed(getattr(x, f.name)) for f in fields(x)})
        return to_torch(x, memory) if device == "cuda" and isinstance(x, np.ndarray) else x

    view, before = given.get("out"), frames["out"].copy() if frames else None
    arrays = {name: placed(x) for name, x in {**form.operands, **given}.items()}
    result = form.function(**arrays)
    if view is None or not view.size:
        return result, True
    after = frames["out"] if device == "cpu" else host(memory[id(root_of(view))], before)
    return result, surroundings_kept(before, after, frames["out"], view)
