"""What NumPy says of the kernels in user_*.py and user_kernels.co, and arrays for them.

The numbers are small integers, and scales powers of two: every sum is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np

from tilemma.ir.expr import Dim, value_of, walk
from tilemma.ir.tile import Kernel

SIZES = {
    "M": 200, "N": 264, "K": 336, "H": 136, "B": 2, "S": 200, "T": 136, "R": 2, "L": 6, "P": 3, "E": 3,
    "N2": 256, "T2": 201, "K2": 168, "J": 331,
}  # fmt: skip
OTHER_SIZES = {
    "mlp": {"N": 120}, "scale_by_blocks": {"L": 3}, "scale_s8": {"L": 3}, "grouped_rows": {"R": 4},
    "gathered_rows": {"S": 150}, "powers": {"B": 3}, "w8a16_rows": {"N": 200}, "w8a16_slices": {"N": 200},
    "w4_transposed": {"K": 384}, "w4_slices": {"K": 384}, "glu": {"N": 128}, "sandwich": {"N": 120},
    "two_launches": {"K": 72, "N": 136}, "window_attention": {"S": 328},
    "doubles": {"M": 72, "N": 72, "K": 80}, "exact_f32": {"M": 72, "N": 72, "K": 80},
}  # fmt: skip
GIVEN: dict[str, Any] = {
    "mask": np.array([[1, 0, 0, 1, 1, 0], [0, 1, 1, 1, -1, 1]]),
    "expert": np.array([2, -1, 0, 1]),
    "stop": np.array([0, 0, 0, 0, 1, 0]),
    "next": np.zeros(1),
}
SCALARS = {"most": 3, "alpha": 2.0, "n": 2, "rows": 150}
RESULTS = {"y", "z", "o", "p", "h", "part", "last", "pre", "total"}

Arrays = dict[str, Any]


def arguments(name: str, kernel: Kernel, seed: int = 1) -> Arrays:
    """Arrays and scalars for kernel ``name``."""
    sizes, rng = {**SIZES, **OTHER_SIZES.get(name, {})}, np.random.default_rng(seed)
    found: Arrays = {p.scalar.name: SCALARS[p.scalar.name] for p in kernel.scalars}
    for p in kernel.arrays:
        n, dtype = p.buffer.name, p.buffer.dtype
        shape = [sizes[e.name] if isinstance(e, Dim) else value_of(e) for e in p.buffer.shape]
        found[n] = np.asarray(_values(name, n, dtype.name, shape, sizes, rng)).astype(dtype.numpy)
    return found


def _values(name: str, array: str, dtype: str, shape: list[Any], sizes: dict[str, int], rng: Any) -> Any:
    if array in RESULTS or (array in ("t", "most") and name in ("both_ways_out", "row_maxima", "staged_and_read")):
        return np.full(shape, 7)
    if array in GIVEN:
        return GIVEN[array]
    if array == "rows":
        return rng.integers(0, sizes["M"], shape)
    if array in ("sa", "sb", "sc"):
        return 2.0 ** rng.integers(-1, 2, shape)
    if name == "powers":
        eyes = [np.eye(64)[rng.permutation(64)] * rng.integers(1, 3, (64, 1)) for _ in range(shape[0])]
        return np.stack(eyes)
    if name == "nibbles" and array == "q":
        return rng.integers(0, 256, shape)
    high = {"u8": 5, "u4": 16}.get(dtype)
    return rng.integers(-2, 3, shape) if high is None else rng.integers(0, high, shape)


def dimensions(name: str, kernel: Kernel) -> dict[str, int]:
    sizes = {**SIZES, **OTHER_SIZES.get(name, {})}
    return {
        e.name: sizes[e.name] for p in kernel.arrays for n in p.buffer.shape for e in walk(n) if isinstance(e, Dim)
    }


# ---- references ------------------------------------------------------------------------------------------------


def wide(x: Any) -> Any:
    return np.asarray(x).astype(np.float64)


def product(a: Any, b: Any) -> Any:
    """A B', of the last two dimensions."""
    return wide(a) @ np.swapaxes(wide(b), -1, -2)


def positive(x: Any) -> Any:
    return np.maximum(x, 0)


def tiles(a: Any, keep: Any) -> Any:
    """``a`` with zeros in the tiles of 64 columns that ``keep`` leaves out."""
    return wide(a) * np.repeat(np.asarray(keep), 64)[: a.shape[1]]


def plain(a: Any, b: Any, **_: Any) -> Arrays:
    return {"y": product(a, b)}


def mlp(x: Any, w1: Any, b1: Any, w2: Any, res: Any, **_: Any) -> Arrays:
    hidden = positive(product(x, w1) + b1).astype(x.dtype)
    return {"y": product(hidden, w2) + wide(res)}


def linear_attention(q: Any, k: Any, v: Any, **_: Any) -> Arrays:
    at = np.arange(q.shape[1])
    weights = np.where(at > at[:, None], 0, positive(product(q, k)))
    return {"o": wide(weights.astype(q.dtype)) @ wide(v)}


def window_attention(q: Any, k: Any, v: Any, **_: Any) -> Arrays:
    scores, at = product(q, k), np.arange(q.shape[0])
    outside = (at > at[:, None]) | (at + 96 < at[:, None])
    scores = np.where(outside, -np.inf, scores)
    return {"o": wide(scores == scores.max(1, keepdims=True)) @ wide(v)}


def by_blocks(a: Any, b: Any, sa: Any, sb: Any) -> Any:
    """The sum of products of each 128 of K, times ``sa[:, l]`` and ``sb[l]``."""
    parts = [np.s_[128 * n : 128 * (n + 1)] for n in range(sa.shape[1])]
    return sum(product(a[:, c], b[:, c]) * wide(sa)[:, n : n + 1] * wide(sb)[n] for n, c in enumerate(parts))


def two_halves(a: Any, b: Any, **_: Any) -> Arrays:
    half = -(-a.shape[1] // 64) // 2 * 64
    return {"y": product(a, b), "z": product(a[:, :half], b[:, :half])}


def block_sparse(a: Any, b: Any, mask: Any, y: Any) -> Arrays:
    """Each 128 rows with the tiles that their row of ``mask`` keeps."""
    out = np.zeros(y.shape)
    for i, keep in enumerate(mask):
        rows = np.s_[i * 128 : (i + 1) * 128]
        out[rows] = product(tiles(a[rows], keep != 0), b)
    return {"y": out}


def skips(a: Any, b: Any, mask: Any, y: Any) -> Arrays:
    """The same, up to the first negative entry of a row."""
    return block_sparse(a, b, mask * (np.cumsum(mask < 0, 1) == 0), y)


def last_tile_kept(a: Any, b: Any, last: Any, **_: Any) -> Arrays:
    begin = (a.shape[1] - 1) // 64 * 64
    kept = np.zeros(last.shape)
    kept[:, : a.shape[1] - begin] = a[:, begin:]
    return {"y": product(a, b), "last": kept}


def gram(x: Any, y: Any) -> Arrays:
    tile = np.arange(x.shape[0]) // 128
    return {"y": np.where(tile <= tile[:, None], product(x, x), wide(y))}


def upper(a: Any, b: Any, **_: Any) -> Arrays:
    tile = np.arange(a.shape[0]) // 64
    return {"y": (wide(a) * (tile >= tile[:, None])) @ wide(b)}


def epilogue_of_all(x: Any, w: Any, bias: Any, gate: Any, res: Any, alpha: float, **_: Any) -> Arrays:
    before = alpha * product(x, w) + wide(bias)
    return {"pre": before, "y": positive(before) * wide(gate) + wide(res)}


def own_persistent(a: Any, b: Any, y: Any) -> Arrays:
    whole, out = product(a, b), wide(y)
    across = -(-whole.shape[1] // 128)
    for t in range(-(-whole.shape[0] // 128) * across):
        place = np.s_[t // across * 128 : (t // across + 1) * 128, t % across * 128 : (t % across + 1) * 128]
        if t % 3 != 1:
            out[place] = whole[place]
    return {"y": out}


def split_k(a: Any, b: Any, part: Any, **_: Any) -> Arrays:
    n = part.shape[0]
    each = ceil(ceil(a.shape[1] / 64) / n) * 64
    parts = [product(a[:, r * each : (r + 1) * each], b[:, r * each : (r + 1) * each]) for r in range(n)]
    return {"part": np.stack(parts), "y": sum(parts)}


def grouped_rows(x: Any, w: Any, expert: Any, y: Any) -> Arrays:
    out = wide(y)
    for i, e in enumerate(expert.tolist()):
        rows = np.s_[i * 64 : (i + 1) * 64]
        out[rows] = product(x[rows], w[e]) if e >= 0 else out[rows]
    return {"y": out}


def normalised(x: Any, w: Any, **_: Any) -> Arrays:
    sums = wide(x).sum(1)
    return {"y": product(x, w) - sums[:, None], "total": sums}


def powers(x: Any, n: int, **_: Any) -> Arrays:
    out = wide(x)
    for _i in range(n):
        out = out @ wide(x)
    return {"y": out}


def nibbles(x: Any, q: Any, **_: Any) -> Arrays:
    halves = np.stack([q & 15, q >> 4], -1).reshape(q.shape[0], -1)
    return {"y": product(x, wide(halves) - 8)}


def two_launches(a: Any, b: Any, c: Any, **_: Any) -> Arrays:
    hidden = product(a, b).astype(a.dtype)
    return {"h": hidden, "y": product(hidden, c)}


def masked_rows(a: Any, b: Any, rows: int, y: Any) -> Arrays:
    out = wide(y)
    out[:rows] = product(a, b)[:rows]
    return {"y": out}


def alternating(a: Any, b: Any, **_: Any) -> Arrays:
    even = np.arange(99) % 2 == 0
    return {"y": product(tiles(a, even), b) - product(tiles(a, ~even), b)}


def glu(x: Any, w: Any, **_: Any) -> Arrays:
    n = w.shape[0] // 2
    return {"y": positive(product(x, w[:n])) * product(x, w[n:])}


def until(a: Any, b: Any, stop: Any, **_: Any) -> Arrays:
    n = int(np.argmax(stop != 0)) * 64
    return {"y": product(a[:, :n], b[:, :n])}


def staged_and_read(a: Any, b: Any, **_: Any) -> Arrays:
    y = product(a, b)
    return {"y": y, "most": np.stack([y[i : i + 128].max(0) for i in range(0, len(y), 128)])}


def windows(x: Any, w: Any, y: Any) -> Arrays:
    return {"y": sum(product(x[r : r + len(y)], w[r]) for r in range(len(w)))}


REFERENCES: dict[str, Callable[..., Arrays]] = {
    **{f.__name__: f for f in (
        block_sparse, skips, mlp, linear_attention, window_attention, two_halves, last_tile_kept, gram,
        upper, epilogue_of_all, own_persistent, split_k, grouped_rows, normalised, powers, nibbles,
        two_launches, masked_rows, alternating, glu, until, staged_and_read, windows,
    )},
    **dict.fromkeys((
        "reshaped_tile", "own_raster", "columns_by_warpgroups", "no_inner_level", "loop_and_tail", "first_peeled",
        "unrolled", "variable_places", "doubles", "exact_f32", "narrow_floats", "inner_batches", "resident_b",
        "wide_a", "reused_a", "three_groups", "skinny", "k_by_warps", "queue", "rows_of_dims", "two_tiles_of_b",
        "odd_rows", "chunks", "half_sums",
    ), plain),
    **dict.fromkeys(("a_transposed", "transposing_copy"), lambda a, b, y: {"y": product(a.T, b)}),
    **dict.fromkeys(("w4_transposed", "w4_slices"), lambda x, q, y: {"y": product(x, q)}),
    **dict.fromkeys(("w8a16_rows", "w8a16_slices"), lambda x, q, sc, y: {"y": product(x, q) * wide(sc)}),
    **dict.fromkeys(
        ("accumulate", "atomic_split", "residual_in_place"), lambda a, b, y: {"y": wide(y) + product(a, b)}
    ),
    "attention_registers": lambda q, k, v, o: {
        "o": wide((positive(product(q, k)) * 0.5).astype(q.dtype)) @ wide(v)
    },
    "u8_zero_points": lambda x, q, zero, y: {"y": product(x, wide(q) - wide(zero)[:, None])},
    "scale_by_blocks": lambda a, b, sa, sb, y: {"y": by_blocks(a, b, sa, np.repeat(sb, 128, 1)[:, : len(b)])},
    "scale_s8": lambda a, b, sa, sb, y: {"y": by_blocks(a, b, sa.T, sb)},
    "every_other": lambda a, b, y: {"y": product(tiles(a, np.arange(99) % 2 == 0), b)},
    "strided": lambda a, b, y: {"y": product(tiles(a, np.arange(99) % 2 == 1), b)},
    "stops_late": lambda a, b, most, y: {"y": product(a[:, : most * 64], b[:, : most * 64])},
    "triangular": lambda a, b, y: {"y": product(np.tril(wide(a)), b)},
    "batched_heads": lambda q, k, p: {"p": product(q, k)},
    "both_ways_out": lambda a, b, y, t: {"y": product(a, b), "t": product(a, b).T},
    "gathered_rows": lambda x, rows, w, y: {"y": product(x[rows], w)},
    "three_operands": lambda a, b, d, y, z: {"y": product(a, b), "z": -product(a, d)},
    "residual_tile": lambda a, b, bias, res, y: {"y": product(a, b) + wide(bias) + wide(res)},
    "scaled_operand": lambda a, b, d, y: {"y": product(wide(a) * wide(d), b)},
    "row_maxima": lambda a, b, most: {"most": product(a, b).max(1)},
    "sandwich": lambda a, x, b, y: {"y": wide(product(a, x).astype(a.dtype)) @ wide(b).T},
    "tf32_bias": lambda a, b, bias, y: {"y": product(a, b) + wide(bias)},
    "two_depths": lambda a, b, c, d, y: {"y": product(a, b) + product(c, d)},
    "weighted": lambda a, b, weight, y: {"y": (product(a, b) * wide(weight)[:, None, None]).sum(0)},
    "settings": lambda a, b, y: {"y": product(a, b) + product(a[:, :64], b[:, :64])},
}  # fmt: skip
