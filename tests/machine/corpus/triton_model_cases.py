"""The kernels of sources/triton_models.py: launch, arguments and expected arrays."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
from cuda_cases import Built, randoms, rng, small
from triton_cases import CASES as CASES
from triton_cases import F32, I32, case, enter

F16, BF16, E5M2 = np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2


def operands(k: int, m: int = 64, n: int = 64, kind: Any = F16) -> tuple[Any, Any, Any]:
    """a [m, k], b [n, k] and their product in f32."""
    a, b = randoms(m, k).astype(kind), randoms(n, k, seed=2).astype(kind)
    return a, b, a.astype(F32) @ b.astype(F32).T


def biased(k: int) -> Built:
    a, b, c = operands(k)
    z = randoms(64, seed=3)
    return {"a": a, "b": b, "z": z, "c": np.zeros((64, 64), F32), "k": k}, {"c": c + z}


enter("bias", lambda: biased(64), tolerance=1e-2)
enter("bias_loop", lambda: biased(192), tolerance=1e-2, entry="bias")


@case(tolerance=2e-2)
def half_sums() -> Built:
    a, b, c = operands(96)
    return {"a": a, "b": b, "c": np.zeros((64, 64), F16), "k": 96}, {"c": c}


@case(grid=3)
def cross_entropy() -> Built:
    x, label = randoms(3, 200), np.array([3, 199, 0], I32)
    e = np.exp(x)
    p = e / e.sum(1, keepdims=True)
    args = {"x": x, "label": label, "loss": np.zeros(3, F32), "grad": np.zeros_like(x), "n": 200}
    return args, {"loss": -np.log(p[range(3), label]), "grad": p - np.eye(200)[label]}


@case(grid=3, tolerance=2e-3)
def rotary() -> Built:
    x, t = randoms(3, 4, 64).astype(F16), randoms(3, 32)
    c, s = np.cos(t), np.sin(t)
    u, v = x[..., :32].astype(F32), x[..., 32:].astype(F32)
    want = np.concatenate([u * c[:, None] - v * s[:, None], v * c[:, None] + u * s[:, None]], 2)
    return {"x": x, "cosine": c, "sine": s, "o": np.zeros_like(x)}, {"o": want}


def recurrent(back: bool) -> Built:
    a, x = rng().random((64, 8)).astype(F32), randoms(64, 8)
    h, want = np.zeros(8), np.zeros((64, 8))
    for t in range(63, -1, -1) if back else range(64):
        h = want[t] = a[t] * h + x[t]
    return {"a": a, "x": x, "o": np.zeros_like(x)}, {"o": want}


enter("linear_scan", lambda: recurrent(False))
enter("linear_scan_reverse", lambda: recurrent(True), entry="linear_scan")


@case(grid=2)
def variance() -> Built:
    x = randoms(2, 512)
    return {"x": x, "mean": np.zeros(2, F32), "var": np.zeros(2, F32)}, {"mean": x.mean(1), "var": x.var(1)}


@case(grid=3)
def norm_backward() -> Built:
    x, w, dy = randoms(3, 100), randoms(100, seed=2), randoms(3, 100, seed=3)
    s = 1 / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6)
    h = dy * w
    dx = s * (h - x * s * s * (h * x).mean(1, keepdims=True))
    args = {"x": x, "w": w, "dy": dy, "dx": np.zeros_like(x), "dw": np.zeros(100, F32), "guard": np.zeros(1, I32)}
    return {**args, "n": 100}, {"dx": dx, "dw": (dy * x * s).sum(0)}


@case(tolerance=1e-2)
def int4_weights() -> Built:
    a, w, scales = randoms(16, 128).astype(F16), small(64, 128, low=-8, high=8), rng(3).random((64, 4)).astype(F16)
    packed = (w[:, ::2] & 15 | w[:, 1::2] << 4).astype(np.int8)
    real = w * np.repeat(scales, 32, 1).astype(F32)
    args = {"a": a, "packed": packed, "scales": scales, "c": np.zeros((16, 64), F32), "k": 128}
    return args, {"c": a.astype(F32) @ real.T}


@case(tolerance=1e-2)
def int8_scaled() -> Built:
    a, b = (small(64, 192, seed=i, low=-100, high=100).astype(np.int8) for i in (1, 2))
    sa, sb = rng(3).random(64).astype(F32), rng(4).random(64).astype(F32)
    c = a.astype(I32) @ b.astype(I32).T * sa[:, None] * sb
    return {"a": a, "b": b, "sa": sa, "sb": sb, "c": np.zeros((64, 64), BF16), "k": 192}, {"c": c}


@case(tolerance=1e-2)
def e5m2_pipelined() -> Built:
    a, b, c = operands(192, kind=E5M2)
    return {"a": a, "b": b, "c": np.zeros((64, 64), F32), "k": 192}, {"c": np.maximum(c, 0)}


def precise() -> Built:
    a, b = randoms(32, 32), randoms(32, 32, seed=2)
    return {"a": a, "b": b, "c": np.zeros((32, 32), F32)}, {"c": a @ b}


for _how in ("ieee", "tf32x3", "bf16x3"):
    enter(f"precise_{_how}", precise, entry="precise")


@case()
def doubles() -> Built:
    a, b = randoms(32, 32).astype(float), randoms(32, 32, seed=2).astype(float)
    return {"a": a, "b": b, "c": np.zeros((32, 32))}, {"c": a @ b}


@case(grid=3)
def atomics() -> Built:
    x = small(300, low=0, high=31)
    high = np.array([max(x[x % 4 == i]) for i in range(4)], F32)
    args = {"x": x, "high": np.zeros(4, F32), "bits": np.zeros(1, I32), "total": np.zeros(1, np.int64)}
    halves = [x[i::8].sum() for i in range(8)]
    want = {"high": high, "bits": np.bitwise_or.reduce(1 << x), "total": x.sum(keepdims=True), "halves": halves}
    return {**args, "halves": np.zeros(8, F16), "n": 300}, want


@case()
def pieces() -> Built:
    x = rng().permutation(1000)[:128].astype(I32)
    args = {"x": x, "top": np.zeros(8, I32), "turned": np.zeros(128, I32), "picked": np.zeros(128, I32)}
    return args, {"top": np.sort(x)[::-1][:8], "turned": x[::-1], "picked": x[(np.arange(128) * 7 + 3) % 128]}


@case()
def woven() -> Built:
    x, y = randoms(64), randoms(64, seed=2)
    both = np.stack([x, y], 1).reshape(2, 32, 2).transpose(1, 0, 2).reshape(64, 2)
    return {"x": x, "y": y, "o": np.zeros(128, F32)}, {"o": both.T.reshape(-1)}


@case()
def assembly() -> Built:
    x, y = (rng(i).integers(0, 1 << 31, 128).astype(I32) for i in (1, 2))
    a, b = x.view(np.uint8).reshape(-1, 4), y.view(np.uint8).reshape(-1, 4)
    mixed = np.stack([a[:, 0], b[:, 0], a[:, 1], b[:, 1]], 1).copy().view(I32).reshape(-1)
    return {"x": x, "y": y, "o": np.zeros(128, I32)}, {"o": mixed ^ y}


@case(grid=2)
def normals() -> Built:
    args = {"o": np.zeros(500, F32), "u": np.zeros(500, F32), "seed": 11, "n": 500}
    return args, {}


@case(grid=2)
def search() -> Built:
    edges, x = np.sort(randoms(100)), randoms(128, seed=2)
    return {"edges": edges, "x": x, "o": np.zeros(128, I32), "n": 100}, {"o": np.searchsorted(edges, x)}


@case(grid=5)
def sparse_rows() -> Built:
    starts = np.array([0, 3, 3, 70, 72, 100], I32)
    columns, values, x = rng().integers(0, 50, 100).astype(I32), randoms(100, seed=2), randoms(50, seed=3)
    want = [(values[a:b] * x[columns[a:b]]).sum() for a, b in pairwise(starts)]
    return {"starts": starts, "columns": columns, "values": values, "x": x, "y": np.zeros(5, F32)}, {"y": want}


@case(grid=2, tolerance=1e-2)
def paged() -> Built:
    q, keys, values = (
        randoms(*s, seed=i).astype(F16) for i, s in enumerate([(2, 16, 64), (8, 16, 64), (8, 16, 64)])
    )
    table, lengths = np.array([[5, 0, 3], [7, 2, 1]], I32), np.array([40, 16], I32)
    want = np.zeros((2, 16, 64))
    for s in range(2):
        k, v = (p[table[s]].reshape(48, 64)[: lengths[s]].astype(F32) for p in (keys, values))
        e = np.exp(q[s].astype(F32) @ k.T / 8)
        want[s] = e / e.sum(1, keepdims=True) @ v
    args = {"q": q, "keys": keys, "values": values, "table": table, "lengths": lengths}
    return {**args, "o": np.zeros((2, 16, 64), F32), "pages": 3}, {"o": want}


@case(grid=2, tolerance=1e-2)
def convolution() -> Built:
    x, w = randoms(8, 18, 32).astype(F16), randoms(9, 32, 32, seed=2).astype(F16)
    y = np.zeros((6, 16, 32))
    for tap in range(9):
        y += x[tap // 3 :][:6, tap % 3 :][:, :16].astype(F32) @ w[tap].astype(F32)
    args = {"x": x, "w": w, "y": np.zeros((96, 32), F32), "height": 8, "width": 18, "channels": 32}
    return args, {"y": y.reshape(96, 32)}


@case(grid=2, tolerance=1e-2)
def experts() -> Built:
    x, w, gate = randoms(40, 64).astype(F16), randoms(2, 32, 64, seed=2).astype(F16), rng(3).random(40).astype(F32)
    rows = rng(4).permutation(40)
    order = np.full((2, 32), 40, I32)
    order[0, :25], order[1, :15] = rows[:25], rows[25:]
    want = np.zeros((40, 32))
    for e in range(2):
        own = order[e][order[e] < 40]
        want[own] = x[own].astype(F32) @ w[e].astype(F32).T * gate[own, None]
    args = {"x": x, "w": w, "o": np.zeros((40, 32), F16), "gate": gate, "order": order, "n": 40, "k": 64}
    return args, {"o": want}


@case(tolerance=2e-2)
def attention_backward() -> Built:
    q, k, v, do = (randoms(64, 64, seed=i).astype(F16) for i in range(4))
    x, y, z, g = (a.astype(F32) for a in (q, k, v, do))
    s = x @ y.T / 8
    top = np.log(np.exp(s).sum(1))
    p = np.exp(s - top[:, None])
    delta = (g * (p @ z)).sum(1)
    ds = p * (g @ z.T - delta[:, None]) / 8
    outs = {name: np.zeros((64, 64), F32) for name in ("dq", "dk", "dv")}
    args = {"q": q, "k": k, "v": v, "do": do, "top": top.astype(F32), "delta": delta.astype(F32)}
    return {**args, **outs}, {"dq": ds @ y, "dk": ds.T @ x, "dv": p.T @ g}


def described(m: int, n: int, k: int) -> Built:
    a, b, c = operands(k, m, n)
    args = {"a": a, "b": b, "c": np.zeros((m, n), F16), "m": m, "n": n, "k": k}
    return {**args, "global_scratch": np.zeros(2048, np.uint8)}, {"c": c}


enter("descriptors", lambda: described(128, 64, 136), grid=2, tolerance=1e-2)
enter("descriptors_persistent", lambda: described(128, 128, 64), grid=2, tolerance=1e-2, entry="descriptors")


@case(grid=2, tolerance=1e-2)
def descriptor_reduce() -> Built:
    a, b, c = operands(128, kind=BF16)
    args = {"a": a, "b": b, "c": np.zeros((64, 64), F32), "k": 128, "global_scratch": np.zeros(2048, np.uint8)}
    return args, {"c": c}


@case()
def checked() -> Built:
    x = (rng().random(16) * 3).astype(F32)
    want = np.sqrt(x) + np.floor(x) + np.clip(x, 1, 2) + x * x + 1 + [math.erf(v) for v in x]
    return {"x": x, "o": np.zeros(16, F32), "n": 0}, {"o": want}


@case()
def functions() -> Built:
    x = randoms(128)
    v = x.astype(float)
    e = np.exp(v)
    want = np.sin(v) + np.cos(v) + 2**v + np.log2(np.abs(v) + 1) + v / 3 + 1 / (1 + 1 / e) + np.ceil(v)
    return {"x": x, "o": np.zeros(128, F32)}, {"o": want + np.sqrt(np.abs(v)) + np.fmod(v, 1.5) + e / e.sum()}


@case()
def integers() -> Built:
    x, y = (rng(i).integers(1, 1 << 40, 128) for i in (1, 2))
    high = (x & 0xFFFFFFFF).astype(np.uint64) * (y & 0xFFFFFFFF).astype(np.uint64) >> np.uint64(32)
    want = (x // y + x % y + (x ^ y) + (x >> 3)).astype(I32)
    args = {"x": x, "y": y, "high": np.zeros(128, I32), "o": np.zeros(128, I32)}
    return args, {"high": high.astype(np.uint32).view(I32), "o": want}


@case(tolerance=1e-2)
def batched() -> Built:
    a, b = randoms(4, 16, 32).astype(F16), randoms(4, 32, 16, seed=2).astype(F16)
    return {"a": a, "b": b, "c": np.zeros((4, 16, 16), F32)}, {"c": a.astype(F32) @ b.astype(F32)}
