"""Problems for the kernels of the gallery: arguments as NumPy arrays, and the results that float64 gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import tilemma as tm

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """A call of a kernel, and its results.

    ``arguments``: arrays and numbers in the order of the parameters.  ``wanted``: by position the arrays that it
    writes, as they should be, each within ``tolerance`` of its largest element (0: equal after rounding).
    """

    arguments: tuple[Any, ...]
    wanted: Mapping[int, Any]
    tolerance: float = 0.0
    constants: Mapping[str, Any] = field(default_factory=dict)

    def check(self, arguments: tuple[Any, ...]) -> None:
        """AssertionError unless the arrays among ``arguments`` are as wanted."""
        for i, wanted in self.wanted.items():
            got = np.asarray(arguments[i])
            if not self.tolerance:
                np.testing.assert_array_equal(got, np.asarray(wanted).astype(got.dtype))
                continue
            largest = float(np.abs(wanted).max(initial=0.0)) or 1.0
            np.testing.assert_allclose(wide(got), wanted, rtol=0, atol=self.tolerance * largest)


def wide(x: Any) -> Floats:
    """In float64."""
    return np.asarray(x).astype(np.float64)


def whole(seed: int, *shape: int, dtype: Any = np.float16) -> Any:
    """Small integers, whose products and sums are exact."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)


def normal(seed: int, *shape: int, dtype: Any = np.float16) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def unset(*shape: int, dtype: Any = np.float16) -> Any:
    """An output that still has to be written."""
    return np.full(shape, np.nan if np.issubdtype(dtype, np.floating) else -1, dtype)


def softmax(m: int, n: int) -> Problem:
    x = normal(0, m, n)
    e = np.exp(wide(x) - wide(x).max(1, keepdims=True))
    return Problem((x, unset(m, n)), {1: e / e.sum(1, keepdims=True)}, 2.0**-10)


def layer_norm(m: int, n: int) -> Problem:
    x, gamma, beta = normal(0, m, n), normal(1, n), normal(2, n)
    centred = wide(x) - wide(x).mean(1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    return Problem((x, gamma, beta, unset(m, n), 1e-5), {3: scaled * wide(gamma) + wide(beta)}, 2.0**-10)


def reduction(n: int, blocks: int) -> Problem:
    x = whole(0, n, dtype=np.float32)
    return Problem((x, unset(blocks, dtype=np.float32), unset(1, dtype=np.float32)), {2: [wide(x).sum()]})


def scan(n: int) -> Problem:
    x = whole(0, n, dtype=np.float32)
    sums = unset(-(-n // (256 * 31)), dtype=np.float32)
    return Problem((x, sums, unset(n, dtype=np.float32)), {2: np.cumsum(wide(x))})


def transpose(m: int, n: int) -> Problem:
    x = normal(0, m, n, dtype=np.float32)
    return Problem((x, unset(n, m, dtype=np.float32)), {1: x.T})


def gemv(m: int, k: int) -> Problem:
    a, x = whole(0, m, k), whole(1, k)
    return Problem((a, x, unset(m, dtype=np.float32)), {2: wide(a) @ wide(x)})


def batched(b: int, m: int, n: int, k: int) -> Problem:
    left, right = whole(0, b, m, k), whole(1, b, n, k)
    wanted = np.einsum("bmk,bnk->bmn", wide(left), wide(right))
    return Problem((left, right, unset(b, m, n)), {2: wanted})


def experts(rows: tuple[int, ...], n: int, k: int) -> Problem:
    """``rows``: how many tokens each expert has."""
    first = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
    tokens, expert = int(first[-1]), np.repeat(np.arange(len(rows)), rows)
    x, w, gate = whole(0, tokens, k), whole(1, len(rows), n, k), whole(2, tokens, dtype=np.float32)
    tiles = np.array([(e, r) for e in range(len(rows)) for r in range(first[e], first[e + 1], 128)], np.int32)
    wanted = np.zeros((tokens, n))
    for e in range(len(rows)):
        wanted[expert == e] = wide(x)[expert == e] @ wide(w)[e].T
    return Problem((x, w, first, tiles, gate, unset(tokens, n)), {5: wanted * wide(gate)[:, None]})


def gated_mlp(m: int, n: int, k: int) -> Problem:
    x, gate, up = normal(0, m, k), normal(1, n, k), normal(2, n, k)
    g, u = wide(x) @ wide(gate).T, wide(x) @ wide(up).T
    return Problem((x, gate, up, unset(m, n)), {3: g / (1 + np.exp(-g)) * u}, 2.0**-10)


def convolution(images: int, height: int, width: int, c: int, f: int, r: int, s: int) -> Problem:
    x, w = whole(0, images, height, width, c), whole(1, f, r, s, c)
    windows = np.lib.stride_tricks.sliding_window_view(wide(x), (r, s), axis=(1, 2))
    wanted = np.einsum("npqcrs,frsc->npqf", windows, wide(w), optimize=True)
    return Problem((x, w, unset(*wanted.shape)), {2: wanted})


def attention(b: int, heads: int, groups: int, queries: int, keys: int, causal: bool) -> Problem:
    width = 64
    q, k, v = (
        normal(0, b, heads, queries, width),
        normal(1, b, groups, keys, width),
        normal(2, b, groups, keys, width),
    )
    scale = float(np.float32(np.log2(np.e) / width**0.5))
    k_, v_ = (np.repeat(wide(x), heads // groups, axis=1) for x in (k, v))
    s = np.einsum("bhqd,bhkd->bhqk", wide(q), k_, optimize=True) * scale
    if causal:
        row, key = np.indices(s.shape[2:])
        s = np.where(key > row + keys - queries, -np.inf, s)
    p = np.exp2(s - np.maximum(s.max(axis=-1, keepdims=True), -1e30))
    total = p.sum(axis=-1, keepdims=True)
    wanted = np.einsum("bhqk,bhkd->bhqd", p / np.where(total > 0, total, 1), v_, optimize=True)
    return Problem((q, k, v, unset(*q.shape), scale, causal), {3: wanted}, 2.0**-9)


def dequantized(m: int, n: int, k: int) -> Problem:
    a, b = (whole(i, rows, k, dtype=ml_dtypes.float8_e4m3fn) for i, rows in enumerate((m, n)))
    blocks, tiles = -(-k // 128), -(-n // 128)
    rows, columns = whole(2, blocks, m, dtype=np.float32), whole(3, blocks, tiles, dtype=np.float32)
    wanted = np.zeros((m, n))
    for i in range(blocks):
        part = slice(128 * i, 128 * (i + 1))
        product = wide(a[:, part]) @ wide(b[:, part]).T
        wanted += product * wide(rows[i])[:, None] * np.repeat(wide(columns[i]), 128)[:n]
    out = np.full((m, n), np.nan, ml_dtypes.bfloat16)
    return Problem((a, b, rows, columns, out), {4: wanted})


def sparse(m: int, n: int, k: int) -> Problem:
    a, b = tm.sparse.prune(whole(0, m, k)), whole(1, n, k)
    stored = tm.sparse.compress(a, "u16")
    return Problem((stored.values, stored.metadata, b, unset(m, n)), {3: wide(a) @ wide(b).T})


def w4a16(m: int, n: int, k: int) -> Problem:
    x, w = whole(0, m, k), np.random.default_rng(1).integers(-8, 8, (n, k))
    scales = whole(2, -(-k // 128), n)
    # Two numbers a byte, that of the even k in the lower half.
    packed = (w[:, ::2] & 15 | (np.pad(w, ((0, 0), (0, k % 2)))[:, 1::2] & 15) << 4).astype(np.uint8)
    wanted = wide(x) @ (w * np.repeat(wide(scales), 128, axis=0)[:k].T).T
    return Problem((x, packed, scales, unset(m, n)), {3: wanted})


def histogram(n: int) -> Problem:
    x = np.random.default_rng(0).integers(0, 256, n).astype(np.uint8)
    return Problem((x, unset(256, dtype=np.int32)), {1: np.bincount(x, minlength=256)}, constants={"GRID": 2})


def stencil(m: int, n: int) -> Problem:
    x = normal(0, m, n, dtype=np.float32)
    p = np.pad(wide(x), 1)
    around = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]
    return Problem((x, unset(m, n, dtype=np.float32), 0.25), {1: x + 0.25 * (around - 4 * x)}, 2.0**-21)


def triangular_solve(n: int, r: int) -> Problem:
    lower = np.tril(normal(0, n, n, dtype=np.float32), -1) / np.float32(n**0.5) + 2 * np.eye(n, dtype=np.float32)
    b = normal(1, n, r, dtype=np.float32)
    # What is above the diagonal is not read as numbers of the matrix.
    stored = lower + np.triu(np.full((n, n), 7, np.float32), 1)
    return Problem((stored, b, unset(n, r, dtype=np.float32)), {2: np.linalg.solve(wide(lower), wide(b))}, 1e-5)
