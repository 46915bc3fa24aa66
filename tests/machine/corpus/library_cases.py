"""The results of the kernels of sources/library.cu."""

from __future__ import annotations

from functools import partial

import cuda_cases
import numpy as np
from cuda_cases import F32, I32, U32, Built, Case, randoms, small

from tilemma import machine

CASES: list[Case] = []
case = partial(cuda_cases.case, into=CASES)


@case("library", 2, 128)
def cub_reduce() -> Built:
    x = small(256)
    return {"out": np.zeros(2, I32), "x": x}, {"out": x.reshape(2, 128).sum(1)}


@case("library", 1, 128)
def cub_reduce_raking() -> Built:
    x = small(128)
    return {"out": np.zeros(1, I32), "x": x}, {"out": x.sum(keepdims=True)}


@case("library", 1, 128)
def cub_scan() -> Built:
    x = small(256)
    return {"out": np.zeros(257, I32), "x": x}, {"out": np.concatenate([[0], np.cumsum(x)])}


@case("library", 1, 128)
def cub_scan_raking() -> Built:
    x = small(128)
    return {"out": np.zeros(128, I32), "x": x}, {"out": np.cumsum(x)}


@case("library", 1, 64)
def cub_sort() -> Built:
    x = small(128, low=0, high=256).astype(U32)
    return {"x": x}, {"x": np.sort(x)}


@case("library", 1, 64)
def cub_histogram() -> Built:
    x = small(128, low=0, high=32).astype(np.uint8)
    return {"bins": np.zeros(32, U32), "x": x}, {"bins": np.bincount(x, minlength=32)}


@case("library", 1, 64)
def cub_exchange() -> Built:
    x = small(256, high=1000)
    return {"out": np.zeros(256, I32), "x": x}, {"out": x.reshape(64, 4)[:, ::-1]}


@case("library", 1, 64)
def cub_warp() -> Built:
    x = small(64)
    before = np.cumsum(x.reshape(2, 32), 1) - x.reshape(2, 32)
    want = np.concatenate([before.reshape(-1), x.reshape(4, 16).sum(1)])
    return {"out": np.zeros(68, I32), "x": x}, {"out": want}


@case("library", 5, 64)
def look_back() -> Built:
    x = small(320)
    state = {name: np.zeros(5, I32) for name in ("partial", "inclusive", "state")}
    return {"out": np.zeros(320, I32), "x": x, "ticket": np.zeros(1, U32), **state}, {"out": np.cumsum(x)}


@case("library", 1, 64)
def tile_reduce() -> Built:
    x = small(64, low=0)
    rows = x.reshape(8, 8)
    total, high = (np.repeat(v, 8) for v in (rows.sum(1), rows.max(1)))
    before = (np.cumsum(rows, 1) - rows).reshape(-1)
    return {"out": np.zeros(64, I32), "x": x}, {"out": total * 10000 + high * 100 + before}


@case("library", 4, 64)
def cluster_sum() -> Built:
    x = small(256)
    return {"out": np.zeros(4, I32), "x": x}, {"out": np.full(4, x.sum())}


@case("library", 1, 128)
def role_pipeline() -> Built:
    x = randoms(5, 64)
    return {"out": np.zeros(64, F32), "x": x, "n": 5}, {"out": x.sum(0)[::-1]}


@case("library", 1, 64)
def barrier_copy() -> Built:
    x = randoms(2, 256)
    return {"out": np.zeros(512, F32), "x": x}, {"out": x[:, ::-1]}


@case("library", 1, 64)
def primitives_pipeline() -> Built:
    x = randoms(5, 64)
    return {"out": np.zeros(64, F32), "x": x, "n": 5}, {"out": x.sum(0)[::-1]}


@case("library", 2, 128)
def ptx_bulk() -> Built:
    x = randoms(256)
    return {"out": np.zeros(256, F32), "x": x}, {"out": 3 * x}


@case("library", 2, 64)
def tensor_copy() -> Built:
    x, y = small(16, 64), np.zeros((16, 64), I32)
    maps = {name: machine.TensorMap(array, (32, 16)) for name, array in (("x", x), ("y", y))}
    return maps, {"y": x + np.arange(16)[:, None]}


@case("library", 1, 64)
def latches() -> Built:
    x = small(64)
    return {"out": np.zeros(64, I32), "data": x}, {"out": x[::-1]}


@case("library", 3, 32)
def semaphores() -> Built:
    return {"out": np.zeros(1, I32), "gate": np.ones(8, I32)}, {"out": np.array([7])}


@case("library", 2, 128)
def flash_rows() -> Built:
    q, k, v = (randoms(n, 32, seed=n) for n in (8, 64, 65))
    v = v[:64]
    p = np.exp(q @ k.T - (q @ k.T).max(1, keepdims=True))
    return {"out": np.zeros((8, 32), F32), "q": q, "k": k, "v": v, "n": 64}, {
        "out": p / p.sum(1, keepdims=True) @ v
    }


@case("library", 2, 128, tolerance=1e-2)
def layer_norm_half() -> Built:
    x = randoms(2, 300).astype(np.float16)
    f = x.astype(F32)
    want = (f - f.mean(1, keepdims=True)) / np.sqrt(f.var(1, keepdims=True) + 1e-5)
    return {"y": np.zeros_like(x), "x": x, "n": 150}, {"y": want}


@case("library", 1, 128, tolerance=1e-3)
def gemm_stages() -> Built:
    a, b = (small(32, 64, seed=i).astype(np.float16) for i in (1, 2))
    return {"c": np.zeros((32, 32), F32), "a": a, "b": b, "n": 64}, {"c": a.astype(F32) @ b.astype(F32).T}
