"""The results of the kernels of sources/features.cu."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import cuda_cases
import ml_dtypes
import numpy as np
from cuda_cases import F32, I32, U32, Built, Case, randoms, rng, small

from tilemma import machine

CASES: list[Case] = []
case = partial(cuda_cases.case, into=CASES)


@case("features", 1, 64)
def merge_sort() -> Built:
    x = small(256, high=1000)
    return {"x": x}, {"x": np.sort(x)}


@case("features", 1, 64)
def warp_merge_sort() -> Built:
    x = small(2, 80, high=1000)
    return {"x": x, "n": 80}, {"x": np.sort(x, 1)}


@case("features", 1, 64)
def differences() -> Built:
    x = small(128, high=1)
    less = np.concatenate([x[:1], np.diff(x)])
    args = {"out": np.zeros(128, I32), "heads": np.zeros(128, I32), "x": x}
    return args, {"out": less, "heads": np.concatenate([[1], np.diff(x) != 0])}


@case("features", 1, 32)
def run_lengths() -> Built:
    values, lengths = small(64, high=100), small(64, seed=2, low=1, high=8)
    want = np.repeat(values, lengths)
    return {"out": np.zeros(len(want), I32), "values": values, "lengths": lengths}, {"out": want}


@case("features", 1, 96)
def rotate() -> Built:
    x = small(96, high=100)
    turned = np.roll(x, -5).reshape(3, 32)
    want = np.stack([turned, 1000 + turned], 1).reshape(-1)
    return {"out": np.zeros(192, I32), "x": x}, {"out": want}


@case("features", 3, 96)
def aggregated() -> Built:
    x = small(250)
    n = int((x > 0).sum())
    return {"counter": np.zeros(1, I32), "to": np.zeros(n, I32), "x": x, "n": 250}, {"counter": [n]}


@case("features", 1, 64)
def by_label() -> Built:
    x = small(64, low=0, high=50)
    want = np.zeros(64, int)
    for w in (slice(0, 32), slice(32, 64)):
        v = x[w]
        label = v[:, None] % 3 == v % 3
        half = label & (v[:, None] % 2 == v % 2)
        want[w] = label @ v * 100 + half.sum(1)
    return {"out": np.zeros(64, I32), "x": x}, {"out": want}


@case("features", 1, 64)
def lane_words() -> Built:
    x = rng().integers(0, 1 << 32, 64).astype(U32)
    want = []
    for t in range(64):
        v = [int(i) for i in x[t // 32 * 32 :][:32]]
        lane, own = t % 32, int(x[t])
        same = sum(1 << i for i in range(32) if v[i] & 3 == own & 3)
        agree = len({i >> 31 for i in v}) == 1
        more = max(v) ^ int(np.bitwise_xor.reduce(np.array(v))) ^ same.bit_count()
        up = v[lane - 3] if lane % 8 >= 3 else own
        down = v[lane + 1] if lane % 16 < 15 else own
        members = [i for i in range(32) if same >> i & 1]
        third = members[1] if len(members) > 1 else 0xFFFFFFFF
        ballot = sum((i & 1) << j for j, i in enumerate(v))
        turned = int(f"{own:032b}"[::-1], 2)
        word = same ^ (0xFFFFFFFF if agree else 0) ^ more ^ up ^ (down * 3) ^ third ^ ballot
        want.append((word ^ (agree << lane) ^ turned ^ (own & -own).bit_length()) & 0xFFFFFFFF)
    return {"out": np.zeros(64, U32), "x": x}, {"out": np.array(want, U32)}


@case("features", 1, 128, shared=3 * 96 * 4)
def staged() -> Built:
    x = randoms(7, 96)
    return {"out": np.zeros(96, F32), "x": x, "steps": 7}, {"out": x[:, ::-1].sum(0)}


@case("features", 1, 64, shared=2 * 64 * 16)
def own_stages() -> Built:
    x = randoms(5, 64, 4)
    v = np.roll(x, -1, 1)
    want = (v[..., 0] + v[..., 1] * v[..., 2] + v[..., 3]).sum(0)
    return {"out": np.zeros(64, F32), "x": x, "steps": 5}, {"out": want}


@case("features", 1, 64)
def split_arrival() -> Built:
    x = small(5, 64)
    return {"out": np.zeros(64, I32), "x": x, "rounds": 5}, {"out": 10 * np.arange(64) + x[:, ::-1].sum(0)}


@case("features", 1, 128)
def bulk_ring() -> Built:
    x = small(5, 128)
    return {"out": np.zeros(128, I32), "x": x, "steps": 5}, {"out": (x * x[:, ::-1]).sum(0)}


@case("features", 1, 128)
def tensor_tile() -> Built:
    x, y = small(20, 16), np.zeros((8, 32), I32)
    want = y.copy()
    want[:, 16:] = 2 * x[5:13] + 1
    maps = {"source": machine.TensorMap(x, (16, 8), 0), "target": machine.TensorMap(y, (16, 8), 0)}
    return {**maps, "row": 5}, {"target": want}


@case("features", 3, 64)
def reduce_bulk() -> Built:
    x = small(3, 64)
    return {"total": np.zeros(64, I32), "x": x}, {"total": x.sum(0)}


@case("features", 4, 64, cluster=2)
def pass_on() -> Built:
    x = small(4, 64)
    return {"out": np.zeros((4, 64), I32), "x": x}, {"out": 3 * x[[1, 0, 3, 2]]}


@case("features", 4, 64, cluster=4)
def shared_histogram() -> Built:
    x = rng().integers(0, 256, 900).astype(np.uint8)
    return {"bins": np.zeros(64, I32), "x": x, "n": 900}, {"bins": np.bincount(x % 64, minlength=64)}


@case("features", 4, 32)
def ticket_queue() -> Built:
    out, total = [], 0
    for i in range(4):
        total = total * 3 + i
        out.append(total)
    args = {
        "out": np.zeros(4, I32),
        "next": np.zeros(1, U32),
        "served": np.zeros(1, U32),
        "total": np.zeros(1, I32),
    }
    return args, {"out": out, "served": [4]}


@case("features", 3, 64)
def exchange_max() -> Built:
    x = rng().random(150).astype(F32)
    args = {"best": np.zeros(1, F32), "where": np.zeros(1, np.int64), "sum": np.zeros(1), "x": x, "n": 150}
    words = (x * 1000).astype(np.int64) << 32 | np.arange(150)
    return args, {"best": [x.max()], "where": [words.max()], "sum": [x.sum()]}


@case("features", 1, 64, tolerance=1e-2)
def narrow_types() -> Built:
    x = randoms(64)
    narrow = sum(x.astype(t).astype(F32) for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))

    def half(v: Any) -> Any:
        return (v * v + 0.5).astype(np.float16).astype(F32)

    want = narrow + (x.astype(ml_dtypes.bfloat16).astype(F32) ** 2) + half(x + 1) + np.exp(half(x))
    return {"out": np.zeros(64, F32), "x": x}, {"out": want}


def wide(a: int, b: int) -> int:
    product, full = a * b, (1 << 64) - 1
    rest = product % 1000003 + (product >> 77) + (product >> 64)
    low = [(v >> 8 * i & 255) for v in (a, b) for i in range(4)]
    signed = [v - 256 * (v > 127) for v in low]
    added = sum((low[i] + low[4 + i] & 255) << 8 * i for i in range(4))
    apart = sum(abs((a >> s & 0xFFFF) - (b >> s & 0xFFFF)) << s for s in (0, 16))
    dot = sum(signed[i] * signed[4 + i] for i in range(4)) + 7
    mixed = sum(low[n] << 8 * i for i, n in enumerate((1, 3, 5, 7)))
    packed = (added ^ apart ^ dot ^ mixed) & 0xFFFFFFFF
    shifted = ((b & 0xFFFFFFFF) << 9 | (a & 0xFFFFFFFF) >> 23) & 0xFFFFFFFF
    return (rest + packed + shifted + a.bit_count() + 64 - b.bit_length()) & full


@case("features", 1, 64)
def wide_integers() -> Built:
    x = rng().integers(0, 1 << 63, 128).astype(np.uint64) * np.uint64(2) + np.uint64(1)
    want = np.array([wide(int(a), int(b)) for a, b in x.reshape(64, 2)], np.uint64)
    return {"out": np.zeros(64, np.uint64), "x": x}, {"out": want}


def of_one(v: float) -> float:
    z = complex(v, 1)
    total = (
        math.sin(v) + math.cosh(v) + math.lgamma(v + 3) + math.copysign(abs(v) ** (1 / 3), v) + math.atan2(v, 2)
    )
    total += abs(v) ** 1.5 + math.fmod(v, 0.7) + round(v) + math.sin(v) + math.expm1(v) + math.gamma(v + 4)
    total += math.hypot(v, 2) + math.erfc(v) + 0.5 * math.erfc(-v / math.sqrt(2)) + math.remainder(v, 0.7)
    bessel = sum((-v * v / 4) ** m / math.factorial(m) ** 2 for m in range(20))
    return total + bessel + abs(z * z / (z + 2)) + math.sqrt(abs(v)) + 1 / (v + 10) + 1 / math.sqrt(v * v + 1)


@case("features", 1, 64)
def functions() -> Built:
    x = randoms(64).astype(np.float64)
    return {"out": np.zeros(64), "x": x}, {"out": [of_one(v) for v in x.tolist()]}


@case("features", 1, 32)
def virtual_calls() -> Built:
    x, kinds = randoms(32), 0x5A3C
    which = np.array([kinds >> t & 1 for t in range(32)])
    return {"out": np.zeros(32, F32), "x": x, "kinds": kinds}, {"out": np.where(which, 3 * x * x, x * x)}


@case("features", 3, 64, shared=68 * 4)
def blur() -> Built:
    x = randoms(150)
    wide = np.pad(x, 2, mode="edge")
    want = sum(t * wide[i:][:150] for i, t in enumerate((1, 4, 6, 4, 1))) / 16
    return {"out": np.zeros(150, F32), "x": x, "n": 150}, {"out": want}


@case("features", 1, 32)
def interpret() -> Built:
    # The code n << 3 pushes n: (7 + t) * t; doubled if t is even; the larger of it and 100; negated.
    code: Any = [7 << 3, 1, 2, 1, 3, 1, 2 << 3 | 6, 2 << 3, 3, 100 << 3, 7, 4]
    t = np.arange(32)
    v = (7 + t) * t
    return {"out": np.zeros(32, I32), "code": np.array(code, I32), "n": len(code)}, {
        "out": -np.maximum(np.where(t % 2, v, 2 * v), 100)
    }


@case("features", 1, 32)
def dependent() -> Built:
    x = small(32)
    return {"out": np.zeros(32, I32), "x": x}, {"out": x + 1}


@case("features", 1, 32, tolerance=1e-2)
def wmma_tf32() -> Built:
    a, b = randoms(16, 32), randoms(16, 32, seed=2)
    return {"c": np.zeros((16, 16), F32), "a": a, "b": b, "k": 32}, {"c": a @ b.T}


@case("features", 1, 64)
def wmma_shared() -> Built:
    a, b = (small(16, 32, seed=i, low=-100, high=100).astype(np.int8) for i in (1, 2))
    return {"c": np.zeros((16, 16), I32), "a": a, "b": b}, {"c": (a.astype(I32) @ b.astype(I32).T).T}
