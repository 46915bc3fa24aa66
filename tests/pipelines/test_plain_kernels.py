"""Varied plain kernels: which of them the compiler pipelines, and that their results stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import plain_kernels
import pytest

from tilemma.ir.canonical import canonical
from tilemma.ir.expr import Dim, walk
from tilemma.ir.walk import walk as operations
from tilemma.kernels import facts_of
from tilemma.modules import load
from tilemma.targets.cpu import execute
from tilemma.targets.ptx.passes import pipeline_model

KERNELS = load(Path(__file__).with_name("plain_kernels.co")).kernels
# Rows of a multiple of 16 bytes, as TMA needs them.
SIZES = {"M": 136, "N": 272, "K": 208, "L": 136, "B": 2, "T": 260, "C": 72, "R": 3, "F": 136, "P": 258}
ON_SM_80 = [name for name in KERNELS if name != "scaled"]
PAIRS = [(name, "sm_90a") for name in KERNELS] + [(name, "sm_80") for name in ON_SM_80]


def cases() -> list[Any]:
    """Every fifth pair by day, all by night."""
    return [pytest.param(*x, marks=() if i % 5 == 0 else pytest.mark.slow) for i, x in enumerate(PAIRS)]


def problem(name: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Arrays of small integers, whose products are exact, and the dimensions."""
    arrays, rng = {}, np.random.default_rng(0)
    kernel = KERNELS[name].build()
    dims = {e.name for p in kernel.arrays for n in p.buffer.shape for e in walk(n) if isinstance(e, Dim)}
    for p in kernel.arrays:
        shape = [SIZES[e.name] for e in p.buffer.shape if isinstance(e, Dim)]
        arrays[p.buffer.name] = rng.integers(-2, 3, shape).astype(p.buffer.dtype.numpy)
    return arrays, {d: SIZES[d] for d in dims}


@pytest.mark.parametrize("name", KERNELS)
def test_both_languages(name: str) -> None:
    assert canonical(getattr(plain_kernels, name).build()) == canonical(KERNELS[name].build())


@pytest.mark.parametrize("name, arch", cases())
def test_results_stay(name: str, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each of the persistent blocks computes several tiles.
    monkeypatch.setattr(pipeline_model, "MULTIPROCESSORS", 2)
    wanted, dims = problem(name)
    found = {n: a.copy() for n, a in wanted.items()}
    kernel = KERNELS[name]
    compiled = kernel.compile(arch, facts=facts_of(wanted), sizes=dims)
    pipelined = any(d.pass_name == "pipeline" and "stages" in d.data for d in compiled.decisions)
    assert pipelined, compiled.decisions
    kernel.on("cpu")(**wanted)
    execute(compiled.kernel, found, {}, dims=dims)
    for n, a in wanted.items():
        np.testing.assert_array_equal(found[n].astype(np.float64), a.astype(np.float64), n)


@pytest.mark.parametrize("name", ["dequant", "relu_first"])
def test_a_barrier_stands_behind_a_fence_for_elements_that_threads_change(name: str) -> None:
    """A barrier between the elements' stores and the fence orders them for threads, not for `wgmma`."""
    compiled = KERNELS[name].compile("sm_90a")
    kinds = [type(op).__name__ for op in operations(compiled.kernel.body)]
    stored = max(i for i, x in enumerate(kinds) if x == "SetElement")
    multiplied = next(i for i, x in enumerate(kinds) if x == "Mma" and i > stored)
    between = kinds[stored:multiplied]
    assert "Barrier" in between[between.index("ProxyFence") :]


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_on_the_machine(name: str) -> None:
    wanted, _ = problem(name)
    found = {n: a.copy() for n, a in wanted.items()}
    KERNELS[name].on("cpu")(**wanted)
    KERNELS[name].on("machine", arch="sm_90a", seed=1, strict=True)(**found)
    for n, a in wanted.items():
        np.testing.assert_array_equal(found[n].astype(np.float64), a.astype(np.float64), n)
