"""The examples of each use, in both languages: batches, convolution, mixture of experts, 8-bit floats, 2:4."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilemma as tm
from tilemma.modules import load, load_python

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
Problem = tuple[list[Any], Any]  # arguments, the last one written; what it should be


def numbers(*shape: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float16)


def batched() -> Problem:
    a, b = numbers(2, 70, 40, seed=0), numbers(2, 33, 40, seed=1)
    return [a, b, np.full((2, 70, 33), np.nan, np.float16)], np.einsum("bmk,bnk->bmn", *wide(a, b))


def convolution() -> Problem:
    x, w = numbers(2, 5, 70, 8, seed=0), numbers(40, 3, 2, 8, seed=1)
    windows = np.lib.stride_tricks.sliding_window_view(wide(x)[0], (3, 2), axis=(1, 2))
    wanted = np.einsum("npqcrs,frsc->npqf", windows, *wide(w))
    return [x, w, np.full(wanted.shape, np.nan, np.float16)], wanted


def experts() -> Problem:
    x, w, gate = numbers(75, 24, seed=0), numbers(4, 40, 24, seed=1), wide(numbers(75, seed=2))[0]
    first = np.array([0, 70, 70, 71, 75], np.int32)
    expert = np.repeat(np.arange(4), np.diff(first))
    wanted = np.einsum("tk,tnk->tn", wide(x)[0], wide(w)[0][expert]) * gate[:, None]
    return [x, w, first, gate.astype(np.float32), np.full((75, 40), np.nan, np.float16)], wanted


def dequantized() -> Problem:
    a, b = (numbers(n, 200, seed=n).astype(ml_dtypes.float8_e4m3fn) for n in (70, 72))
    rows, tiles = wide(numbers(2, 70, seed=2))[0], wide(numbers(2, 2, seed=3))[0]
    wanted = sum(
        (wide(a[:, i : i + 128])[0] @ wide(b[:, i : i + 128])[0].T)
        * rows[i // 128][:, None]
        * np.repeat(tiles[i // 128], 64)[:72]
        for i in (0, 128)
    )
    out = np.full((70, 72), np.nan, ml_dtypes.bfloat16)
    return [a, b, rows.astype(np.float32), tiles.astype(np.float32), out], wanted


def sparse() -> Problem:
    a, b = tm.sparse.prune(numbers(70, 96, seed=0)), numbers(40, 96, seed=1)
    stored = tm.sparse.compress(a, "u16")
    out = np.full((70, 40), np.nan, np.float16)
    return [stored.values, stored.metadata, b, out], wide(a)[0] @ wide(b)[0].T


def wide(*arrays: Any) -> list[Any]:
    return [a.astype(np.float64) for a in arrays]


PROBLEMS: dict[str, Callable[[], Problem]] = {
    f.__name__: f for f in (batched, convolution, experts, dequantized, sparse)
}


def check(name: str, language: str, **options: Any) -> None:
    path = EXAMPLES / language / f"{name}.{language}"
    kernel = (load if language == "co" else load_python)(path).kernels[name]
    arguments, wanted = PROBLEMS[name]()
    kernel.on(**options)(*arguments)
    got = arguments[-1]
    assert np.array_equal(got, np.asarray(wanted).astype(got.dtype)), name


@pytest.mark.parametrize("name", PROBLEMS)
def test_on_the_reference(name: str) -> None:
    check(name, "py", target="cpu")


def machines() -> list[Any]:
    """Each example on one target; on the other one by night."""
    pairs = [(n, a) for i, n in enumerate(PROBLEMS) for a in (("sm_80", "sm_90a"), ("sm_90a", "sm_80"))[i % 2]]
    return [pytest.param(n, a, marks=() if k % 2 == 0 else pytest.mark.slow) for k, (n, a) in enumerate(pairs)]


@pytest.mark.parametrize("name, arch", machines())
def test_on_the_machine(name: str, arch: str) -> None:
    if (name, arch) == ("dequantized", "sm_80"):
        with pytest.raises(tm.CompileError, match="e4m3"):
            check(name, "co", target="machine", arch=arch)
        return
    check(name, "co", target="machine", arch=arch, strict=True)
