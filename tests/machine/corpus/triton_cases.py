"""The kernels of sources/triton_kernels.py: launch, arguments and expected arrays."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from cuda_cases import Built, Case, randoms, rng, small

CASES: list[Case] = []
F32, I32 = np.float32, np.int32
PTX = Path(__file__).with_name("ptx")


def enter(
    name: str, build: Callable[[], Built], *, grid: Any = 1, entry: str = "", tolerance: float = 1e-4
) -> None:
    """A case: its launch stands in the first line of its PTX; the last two parameters are scratch memory."""
    file = f"triton_{name}"
    with (PTX / f"{file}.ptx").open(encoding="utf-8") as lines:
        facts = re.search(r"shared (\d+), threads (\d+)", lines.readline())
    assert facts is not None

    def with_scratch() -> Built:
        args, wanted = build()
        return {**args, "global_scratch": args.get("global_scratch", 0), "profile_scratch": 0}, wanted

    launch = {"shared": int(facts[1])}
    CASES.append(Case(file, entry or name, with_scratch, grid, int(facts[2]), launch, tolerance))


def case(name: str = "", **options: Any) -> Any:
    def register(build: Callable[[], Built]) -> Callable[[], Built]:
        enter(name or build.__name__, build, **options)
        return build

    return register


@case(grid=4)
def add() -> Built:
    x, y = randoms(900), randoms(900, seed=2)
    return {"x": x, "y": y, "o": np.zeros(900, F32), "n": 900}, {"o": x + y}


@case(grid=2, tolerance=1e-2)
def gelu() -> Built:
    from math import erf

    x = randoms(900).astype(np.float16)
    want = [v * 0.5 * (1 + erf(v * 0.70710678)) for v in x.astype(float)]
    return {"x": x, "o": np.zeros_like(x), "n": 900}, {"o": np.array(want)}


def softmax(n: int) -> Built:
    x = randoms(3, n)
    e = np.exp(x - x.max(1, keepdims=True))
    return {"x": x, "o": np.zeros_like(x), "n": n}, {"o": e / e.sum(1, keepdims=True)}


enter("softmax", lambda: softmax(100), grid=3)
enter("softmax_wide", lambda: softmax(1000), grid=3, entry="softmax")


@case(grid=3)
def layer_norm() -> Built:
    x, w, b = randoms(3, 200), randoms(200, seed=2), randoms(200, seed=3)
    y = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * w + b
    return {"x": x, "w": w, "b": b, "o": np.zeros_like(x), "n": 200}, {"o": y}


@case(grid=3, tolerance=2e-2)
def rms_norm() -> Built:
    x = randoms(3, 200).astype(ml_dtypes.bfloat16)
    v = x.astype(F32)
    return {"x": x, "o": np.zeros_like(x), "n": 200}, {"o": v / np.sqrt((v * v).mean(1, keepdims=True) + 1e-6)}


def scanned(n: int, f: Any) -> Built:
    x = small(n)
    return {"x": x, "o": np.zeros(n, I32)}, {"o": f(x)}


enter("scan", lambda: scanned(256, np.cumsum))
enter("scan_one_warp", lambda: scanned(64, np.cumsum), entry="scan")
enter("scan_max", lambda: scanned(256, np.maximum.accumulate))
enter("sort", lambda: scanned(256, np.sort))


@case(grid=3)
def histogram() -> Built:
    x = rng().integers(0, 32, 700).astype(I32)
    return {"x": x, "bins": np.zeros(32, I32), "n": 700}, {"bins": np.bincount(x, minlength=32)}


@case()
def histogram_op() -> Built:
    x = rng().integers(0, 32, 256).astype(I32)
    return {"x": x, "bins": np.zeros(32, I32)}, {"bins": np.bincount(x, minlength=32)}


@case(grid=3)
def argmax() -> Built:
    x = randoms(3, 200)
    return {"x": x, "o": np.zeros(3, I32), "n": 200}, {"o": x.argmax(1)}


@case()
def transpose() -> Built:
    x = randoms(64, 32)
    return {"x": x, "o": np.zeros((32, 64), F32)}, {"o": x.T}


def reduced(axis: int) -> Built:
    x = randoms(32, 64)
    return {"x": x, "o": np.zeros(64 if axis == 0 else 32, F32)}, {"o": x.sum(axis)}


enter("reduce_rows", lambda: reduced(1), entry="reduce")
enter("reduce_columns", lambda: reduced(0), entry="reduce")


@case()
def dropout() -> Built:
    return {"x": np.ones(256, F32), "o": np.zeros(256, F32), "seed": 7}, {}


@case()
def embedding() -> Built:
    table, index = randoms(20, 64), rng().integers(0, 20, 16).astype(I32)
    return {"table": table, "index": index, "o": np.zeros((16, 64), F32)}, {"o": table[index]}


@case(grid=3)
def lock() -> Built:
    return {"counters": np.zeros(128, I32), "guard": np.zeros(1, I32)}, {"counters": 3 * np.arange(128)}


@case(grid=5)
def last_block() -> Built:
    x = randoms(5, 128)
    args = {"x": x, "parts": np.zeros(5, F32), "count": np.zeros(1, I32), "o": np.zeros(1, F32), "n": 5}
    return args, {"o": x.sum(keepdims=True).reshape(1)}


_TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": F32, "e4m3": ml_dtypes.float8_e4m3fn}


def multiplied(kind: str, transposed: bool, m: int = 100, n: int = 64, k: int = 128, order: str = "mnk") -> Built:
    a, b = (randoms(*shape, seed=i).astype(_TYPES[kind]) for i, shape in ((1, (m, k)), (2, (n, k))))
    want = a.astype(F32) @ b.astype(F32).T
    b = b if transposed else np.ascontiguousarray(b.T)
    sizes = {"m": m, "n": n, "k": k}
    return {"a": a, "b": b, "c": np.zeros((m, n), F32), **{x: sizes[x] for x in order}}, {"c": want}


for _path in sorted(PTX.glob("triton_matmul*.ptx")):
    _name = _path.stem.removeprefix("triton_")
    _parts = _name.removeprefix("matmul_").removeprefix("nt_").split("_")
    enter(
        _name,
        lambda kind=_parts[0], nt="_nt_" in _name: multiplied(kind, nt),  # type: ignore[misc]
        grid=(2, 1),
        entry="matmul_nt" if "_nt_" in _name else "matmul",
        tolerance=2e-2,
    )
enter("persistent", lambda: multiplied("f16", True, 128, 128, 64), grid=3, tolerance=1e-2)
enter("split_k", lambda: multiplied("f16", True, 64, 64, 96), grid=3, tolerance=1e-2)


def attended(causal: bool) -> Built:
    q, k, v = (randoms(128, 64, seed=i).astype(np.float16) for i in (1, 2, 3))
    s = q.astype(F32) @ k.astype(F32).T / 8
    if causal:
        s = np.where(np.arange(128)[:, None] >= np.arange(128)[None, :], s, -np.inf)
    e = np.exp(s - s.max(1, keepdims=True))
    want = e / e.sum(1, keepdims=True) @ v.astype(F32)
    return {"q": q, "k": k, "v": v, "o": np.zeros((128, 64), F32), "n": 128}, {"o": want}


enter("attention", lambda: attended(False), grid=2, tolerance=2e-2)
enter("attention_causal", lambda: attended(True), grid=2, tolerance=2e-2, entry="attention")
