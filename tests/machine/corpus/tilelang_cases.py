"""The results of the kernels of sources/tilelang_kernels.py; the first line of their PTX has the launch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from cuda_cases import Built, Case, randoms, small

from tilemma import machine

CASES: list[Case] = []
F16, F32 = np.float16, np.float32
PTX = Path(__file__).with_name("ptx")


def bound(plan: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
    """Arrays, and tensor maps over them, in the order of the kernel's parameters."""
    out = {}
    for name in plan["args"]:
        if name not in plan["maps"]:
            out[name] = arrays[name]
            continue
        fields = {k: tuple(v) if isinstance(v, list) else v for k, v in plan["maps"][name].items()}
        array = arrays[fields.pop("array")]
        if "im2col" in fields:
            fields["im2col"] = tuple(map(tuple, fields["im2col"]))
        out[name] = machine.TensorMap(array, **fields)
    return out


def case(*names: str, tolerance: float = 1e-4) -> Any:
    """Enter a builder (arrays by name, and what some of them hold afterwards) as the case of some kernels."""

    def enter(build: Callable[[], Built]) -> Callable[[], Built]:
        for name in names:
            file = f"tilelang_{name}"
            with (PTX / f"{file}.ptx").open(encoding="utf-8") as lines:
                found = re.search(r"launch (\{.*\})", lines.readline())
            assert found is not None
            plan = json.loads(found[1])

            def built(plan: dict[str, Any] = plan) -> Built:
                arrays, wanted = build()
                by_parameter = {n: plan["maps"].get(n, {"array": n})["array"] for n in plan["args"]}
                renamed = {p: wanted[a] for p, a in by_parameter.items() if a in wanted}
                return bound(plan, arrays), renamed

            launch = {"shared": plan["shared"]}
            CASES.append(
                Case(file, "main_kernel", built, tuple(plan["grid"]), tuple(plan["block"]), launch, tolerance)
            )
        return build

    return enter


def product(m: int, n: int, k: int, kind: Any, out: Any, *, transposed: bool = False) -> Built:
    a, b = (
        small(*shape, seed=i, high=4).astype(kind)
        for i, shape in enumerate([(m, k), (n, k) if transposed else (k, n)])
    )
    c = a.astype(F32) @ (b.astype(F32).T if transposed else b.astype(F32))
    return {"A": a, "B": b, "C": np.zeros((m, n), out)}, {"C": c.astype(out)}


case("matmul_f16_sm_80", "matmul_f16_sm_90a")(lambda: product(128, 128, 128, F16, F32))
case("matmul_f16_deep_sm_80", "matmul_f16_deep_sm_90a")(lambda: product(64, 128, 256, F16, F32))
case("matmul_bf16_nt_sm_80", "matmul_bf16_nt_sm_90a")(
    lambda: product(128, 64, 128, ml_dtypes.bfloat16, F32, transposed=True)
)
case("matmul_s8_nt_sm_80", "matmul_s8_nt_sm_90a")(lambda: product(64, 64, 128, np.int8, np.int32, transposed=True))
case("matmul_e4m3_nt")(lambda: product(64, 64, 256, ml_dtypes.float8_e4m3fn, F32, transposed=True))
case("matmul_one_stage_sm_80", "matmul_one_stage_sm_90a")(lambda: product(64, 64, 96, F16, F32))
case("persistent")(lambda: product(128, 128, 64, F16, F32))
case("split_k_sm_80", "split_k_sm_90a")(lambda: product(64, 64, 128, F16, F32))


def attention(*, causal: bool) -> Built:
    q, k, v = (randoms(128, 64, seed=i).astype(F16) for i in (1, 2, 3))
    s = q.astype(F32) @ k.astype(F32).T / 8
    if causal:
        s = np.where(np.tri(128, dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(1, keepdims=True))
    return {"Q": q, "K": k, "V": v, "O": np.zeros_like(q)}, {"O": p / p.sum(1, keepdims=True) @ v.astype(F32)}


case("attention_sm_80", "attention_sm_90a", tolerance=1e-2)(lambda: attention(causal=False))
case("attention_causal", tolerance=1e-2)(lambda: attention(causal=True))


@case("softmax")
def softmax() -> Built:
    x = randoms(4, 256)
    e = np.exp(x - x.max(1, keepdims=True))
    return {"X": x, "Y": np.zeros_like(x)}, {"Y": e / e.sum(1, keepdims=True)}


@case("rms_norm_sm_80", "rms_norm_sm_90a")
def rms_norm() -> Built:
    x = randoms(8, 256)
    return {"X": x, "Y": np.zeros_like(x)}, {"Y": x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6)}


@case("transpose")
def transpose() -> Built:
    x = randoms(64, 64)
    return {"X": x, "Y": np.zeros_like(x)}, {"Y": x.T}


@case("cumsum")
def cumsum() -> Built:
    x = randoms(4, 128)
    return {"X": x, "Y": np.zeros_like(x)}, {"Y": np.cumsum(x, 1)}


@case("histogram")
def histogram() -> Built:
    x = small(1024, low=0, high=32)
    return {"X": x, "H": np.zeros(32, np.int32)}, {"H": np.bincount(x, minlength=32)}


@case("gemv", tolerance=1e-3)
def gemv() -> Built:
    a, x = randoms(64, 256).astype(F16), randoms(256, seed=2).astype(F16)
    return {"A": a, "x": x, "y": np.zeros(64, F32)}, {"y": a.astype(F32) @ x.astype(F32)}


@case("convolution", tolerance=1e-3)
def convolution() -> Built:
    x, k = randoms(1, 8, 8, 32).astype(F16), randoms(3, 3, 32, 64, seed=2).astype(F16)
    padded = np.pad(x.astype(F32), ((0, 0), (1, 1), (1, 1), (0, 0)))
    y = sum(padded[:, r : r + 8, s : s + 8] @ k[r, s].astype(F32) for r in range(3) for s in range(3))
    return {"X": x, "flat_k": k.reshape(-1, 64), "flat_y": np.zeros((64, 64), F32)}, {"flat_y": y}
