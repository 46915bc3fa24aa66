"""The kernels of the gallery on a GPU, at every size, within poisoned surroundings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dev.gallery import ENTRIES, kernel
from tilemma import testing
from tilemma.runtime import cuda_device, gpu_unavailable_reason, runs_on

pytestmark = pytest.mark.gpu
MISSING = gpu_unavailable_reason()
if MISSING:
    pytest.skip(MISSING, allow_module_level=True)
torch = pytest.importorskip("torch")

ARCHS = [a for a in ("sm_80", "sm_90a") if runs_on(a, cuda_device(0).compute_capability)]
# Elements that torch has no type for, or that no tensor is made of from NumPy.
UNKNOWN_TO_TORCH = {"dequantized"}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("size", ["small", "odd", "large"])
@pytest.mark.parametrize("name", ENTRIES)
def test_on_the_gpu(name: str, size: Any, arch: str) -> None:
    if arch == "sm_80" and ENTRIES[name].oldest != "sm_80":
        pytest.skip(f"needs {ENTRIES[name].oldest}: tests/gallery shows the refusal")
    problem = ENTRIES[name].problem(size)
    call = kernel(name).on("cuda", arch=arch)
    if name in UNKNOWN_TO_TORCH:
        call(*problem.arguments, **problem.constants)
        problem.check(problem.arguments)
        return
    guards = {
        i: testing.guarded(a, device="cuda") for i, a in enumerate(problem.arguments) if isinstance(a, np.ndarray)
    }
    call(*(guards[i].array if i in guards else a for i, a in enumerate(problem.arguments)), **problem.constants)
    torch.cuda.synchronize()
    back = tuple(guards[i].array.cpu().numpy() if i in guards else a for i, a in enumerate(problem.arguments))
    problem.check(back)
    for g in guards.values():
        g.check()


@pytest.mark.parametrize("name", ENTRIES)
def test_two_runs_give_the_same_bits(name: str) -> None:
    problem = ENTRIES[name].problem("odd")
    results = []
    for _ in range(2):
        arguments = tuple(a.copy() if isinstance(a, np.ndarray) else a for a in problem.arguments)
        kernel(name).on("cuda")(*arguments, **problem.constants)
        results.append([arguments[i].tobytes() for i in problem.wanted])
    assert results[0] == results[1]
