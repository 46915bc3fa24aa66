"""The results of the kernels of sources/engines.cu."""

from __future__ import annotations

from functools import partial

import cuda_cases
import numpy as np
from cuda_cases import F32, I32, U32, Built, Case, randoms, rng, small

from tilemma import machine

CASES: list[Case] = []
case = partial(cuda_cases.case, into=CASES)


@case("engines", (2, 2), 384, tolerance=2e-3, shared=1024 + 2 * 24576 + 16384)
def specialised() -> Built:
    a, b = (randoms(n, 192, seed=i).astype(np.float16) for i, n in enumerate((256, 128)))
    c = np.zeros((256, 128), np.float16)
    maps = {
        "a": machine.TensorMap(a, (64, 128), 128), "b": machine.TensorMap(b, (64, 64), 128),
        "c": machine.TensorMap(c, (64, 64), 128),
    }  # fmt: skip
    return {**maps, "steps": 3}, {"c": a.astype(F32) @ b.astype(F32).T}


@case("engines", (2, 2), 128, tolerance=2e-3)
def quantised() -> Built:
    n, k = 64, 256
    x, scale = randoms(16, k).astype(np.float16), np.abs(randoms(n, seed=2)).astype(np.float16)
    weights = rng(3).integers(0, 16, (n, k))
    nibbles = weights.reshape(n, k // 8, 8).astype(np.uint64) << (4 * np.arange(8, dtype=np.uint64))
    packed = np.bitwise_or.reduce(nibbles, axis=2).astype(U32)
    args = {"c": np.zeros((16, n), F32), "x": x, "packed": packed, "scale": scale, "locks": np.zeros(2, I32)}
    want = x.astype(F32) @ ((weights - 8) * scale.astype(F32)[:, None]).T
    return {**args, "k_slice": k // 2, "n": n}, {"c": want}


@case("engines", 1, 256)
def ping_pong() -> Built:
    x = randoms(256)
    value, total = x.reshape(2, 128), np.zeros((2, 128), F32)
    for r in range(5):
        total = total + np.roll(value, -37, axis=1)
        value = value * F32(0.5) + F32(r)
    return {"out": np.zeros(256, F32), "x": x, "rounds": 5}, {"out": total}


@case("engines", 3, 96)
def scheduler() -> Built:
    x = small(7, 64)
    args = {"out": np.zeros((7, 64), I32), "next": np.zeros(1, I32), "x": x, "tiles": 7}
    return args, {"out": 2 * x + np.arange(7)[:, None]}


@case("engines", 4, 32, cluster=4)
def ring_sum() -> Built:
    x = small(4, 32)
    return {"out": np.zeros((4, 32), I32), "x": x}, {"out": np.tile(x.sum(0), (4, 1))}


@case("engines", 2, 64, cluster=2)
def pair_copy() -> Built:
    x = small(6, 64)
    want = np.stack([(x * (np.arange(6)[:, None] + 1 + rank)).sum(0) for rank in (0, 1)])
    return {"out": np.zeros((2, 64), I32), "x": x, "steps": 6}, {"out": want}


@case("engines", 2, 64)
def fourier() -> Built:
    x = (randoms(4, 64) + 1j * randoms(4, 64, seed=2)).astype(np.complex64)
    spectrum = np.fft.fft(x, axis=1).astype(np.complex64)
    return {"out": np.zeros((4, 64, 2), F32), "x": x.view(F32)}, {"out": spectrum.view(F32)}


@case("engines", 1, 64)
def route() -> Built:
    expert = rng().integers(0, 32, 100).astype(I32)
    starts = np.concatenate([[0], np.cumsum((np.bincount(expert, minlength=32) + 7) // 8 * 8)])
    return {
        "order": np.zeros(int(starts[-1]), I32), "starts": np.zeros(33, I32), "expert": expert, "tokens": 100,
    }, {"starts": starts}  # fmt: skip


@case("engines", 1, 64)
def largest() -> Built:
    x = rng().integers(0, 1000, 200).astype(U32)
    x[[3, 50, 120]], x[77] = 5000, 9000
    return {"out": np.zeros(4, U32), "x": x, "n": 200, "k": 4}, {"out": [9000, 5000, 5000, 5000]}


@case("engines", 1, 64)
def join() -> Built:
    keys, values = rng().permutation(1000)[:90].astype(I32), small(90, low=0, high=100)
    asked = np.concatenate([keys[::2], 1000 + np.arange(20)]).astype(I32)
    found = np.concatenate([values[::2], np.full(20, -1)])
    args = {"found": np.zeros(len(asked), I32), "keys": keys, "values": values, "asked": asked}
    return {**args, "n": 90, "m": len(asked)}, {"found": found}


@case("engines", (2, 3), 64)
def stream_k() -> Built:
    x = randoms(7, 128)
    args = {
        "out": np.zeros(128, F32),
        "parts": np.zeros((6, 64), F32),
        "arrived": np.zeros(2, U32),
        "x": x,
        "n": 7,
    }
    return args, {"out": x.sum(0)}
