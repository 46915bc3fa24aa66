"""Attention: the examples of both languages against float64, for lengths that no tile divides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilemma.kernels import Kernel
from tilemma.modules import load, load_python

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
Shape = tuple[int, int, int, int, int]  # batch, heads of queries and of keys, queries, keys

SHORT: list[tuple[Shape, bool]] = [
    ((1, 1, 1, 1, 1), False),
    ((1, 4, 2, 33, 97), True),
    ((2, 2, 2, 130, 65), False),
    ((1, 2, 1, 100, 40), True),
]
LONG: list[tuple[Shape, bool]] = [
    ((1, 2, 1, n, n), causal) for n in (127, 512, 1025, 4097) for causal in (False, True)
]


def kernels(name: str, width: int) -> dict[str, tuple[Kernel, dict[str, Any]]]:
    """The kernel of both languages, with its constants."""
    co, py = ("gallery", "gallery") if name == "attention" else ("co", "py")
    text = load(EXAMPLES / co / f"{name}.co", {"DIM": width}).kernels[name]
    return {"co": (text, {}), "py": (load_python(EXAMPLES / py / f"{name}.py").kernels[name], {"DIM": width})}


def attention(q: Any, k: Any, v: Any, scale: float, causal: bool) -> Any:
    """In float64; rows without keys are zeros."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    s = np.einsum("bhqd,bhkd->bhqk", q, k) * scale
    if causal:
        rows, keys = np.indices(s.shape[2:])
        s = np.where(keys > rows + k.shape[2] - q.shape[2], -np.inf, s)
    p = np.exp2(s - np.maximum(s.max(axis=-1, keepdims=True), -1e30))
    total = p.sum(axis=-1, keepdims=True)
    return np.einsum("bhqk,bhkd->bhqd", p / np.where(total > 0, total, 1), v)


def check(
    kernel: Kernel, constants: dict[str, Any], shape: Shape, causal: bool, width: int, **options: Any
) -> None:
    batch, heads, groups, queries, keys = shape
    rng = np.random.default_rng(sum(shape) + width)
    q = rng.standard_normal((batch, heads, queries, width)).astype(np.float16)
    k, v = (rng.standard_normal((batch, groups, keys, width)).astype(np.float16) for _ in range(2))
    scale = float(np.float32(1.4426950408889634 / width**0.5))
    got = np.full_like(q, np.nan)
    kernel.on(**options)(q, k, v, got, scale, causal, **constants)
    wanted = attention(q, k, v, scale, causal)
    # The weights, at most 1, are rounded to f16, as is the result.
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2.0**-9 * max(1.0, float(np.abs(v).max())))


@pytest.mark.parametrize("shape, causal", SHORT)
@pytest.mark.parametrize("width", [64, 128])
def test_the_reference_is_near_float64(width: int, shape: Shape, causal: bool) -> None:
    kernel, constants = kernels("attention", width)["co"]
    check(kernel, constants, shape, causal, width, target="cpu")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("width, shape, causal", [(64, (1, 2, 1, 5, 70), True), (128, *SHORT[0])])
def test_the_machine_is_near_float64(width: int, shape: Shape, causal: bool, arch: str) -> None:
    kernel, constants = kernels("attention", width)["py"]
    check(kernel, constants, shape, causal, width, target="machine", arch=arch, strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("shape, causal", LONG)
@pytest.mark.parametrize("width", [64, 128])
def test_long(width: int, shape: Shape, causal: bool) -> None:
    for kernel, constants in kernels("attention", width).values():
        check(kernel, constants, shape, causal, width, target="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("shape, causal", [*SHORT, *LONG[:4]])
@pytest.mark.parametrize("width", [64, 128])
def test_long_on_the_machine(width: int, shape: Shape, causal: bool, arch: str) -> None:
    kernel, constants = kernels("attention", width)["co"]
    check(kernel, constants, shape, causal, width, target="machine", arch=arch, strict=True)


def test_roles() -> None:
    """The form with a producer: on the reference, and as PTX for the only target that has tensor copies."""
    for language, options in (("co", {"target": "cpu"}), ("py", {"target": "machine", "arch": "sm_90a"})):
        kernel, constants = kernels("attention_roles", 64)[language]
        check(kernel, constants, (1, 2, 1, 5, 140), True, 64, **options)


@pytest.mark.slow
@pytest.mark.parametrize("shape, causal", [*SHORT, *LONG[:4]])
@pytest.mark.parametrize("width", [64, 128])
def test_long_roles_on_the_machine(width: int, shape: Shape, causal: bool) -> None:
    kernel, constants = kernels("attention_roles", width)["co"]
    check(kernel, constants, shape, causal, width, target="machine", arch="sm_90a", strict=True)
