"""The pipelined examples on a GPU: both languages, 2, 3 and 4 stages, ragged, with poisoned surroundings."""

from __future__ import annotations

from functools import cache

import pytest
from configurations import CONFIGURATIONS, Configuration

from tilemma import testing
from tilemma.kernels import Kernel
from tilemma.runtime import cuda_device, gpu_unavailable_reason, runs_on
from tilemma.tools.problem import make_problem

pytestmark = pytest.mark.gpu
MISSING = gpu_unavailable_reason()
if MISSING:
    pytest.skip(MISSING, allow_module_level=True)

# Rows of whole 16-byte units, as TMA takes them; one tile, part of one, several, K shorter than the ring.
SHAPES = [(1, 8, 8), (136, 136, 328), (520, 648, 72), (300, 1000, 264), (64, 256, 0)]
CASES = [
    pytest.param(c, language, arch, id=f"{c}-{language}-{arch}")
    for c in CONFIGURATIONS
    for language in c.languages
    for arch in c.archs
    if runs_on(arch, cuda_device(0).compute_capability)
]


@cache
def kernel_of(configuration: str, language: str) -> Kernel:
    return next(c for c in CONFIGURATIONS if str(c) == configuration).kernel(language)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("configuration", "language", "arch"), CASES)
def test_configuration(
    configuration: Configuration, language: str, arch: str, shape: tuple[int, int, int]
) -> None:
    kernel, constants = kernel_of(str(configuration), language), configuration.constants(language)
    sizes = dict(zip("MNK", shape, strict=True))
    problem = make_problem(kernel.build(**constants), sizes, {}, 0, "mk,nk->mn")
    guards = {n: testing.guarded(a, gap=16, device="cuda") for n, a in problem.arrays.items()}
    kernel.on("cuda", arch=arch)(*(guards[p.buffer.name].array for p in problem.kernel.arrays), **constants)
    problem.arrays["output"][...] = guards["output"].array.cpu().numpy()
    assert problem.share() <= 1.0
    for g in guards.values():
        g.check()
