"""Kernels of the language, compiled and run: on the CPU before and after the passes, and on the PTX machine."""

from __future__ import annotations

import numpy as np

from tilemma import croqtile, machine
from tilemma.compiler import Compiled, compile_kernel, default_facts, with_facts
from tilemma.ir.tile import Kernel
from tilemma.kernels import facts_of
from tilemma.targets.cpu import execute

Shape = tuple[int, int, int]


def from_co(text: str, **defines) -> Kernel:
    """The only kernel of a Croqtile text."""
    (source,) = croqtile.load(text, "kernel.co", defines).sources.values()
    kernel = source.build({})
    return with_facts(kernel, default_facts(kernel))


def problem(kernel: Kernel, shape: Shape, turned: bool = False, seed: int = 0):
    """(arrays, float64 product) of C[M, N] = A[M, K] x B, with B[N, K], or B[K, N] where ``turned``."""
    m, n, k = shape
    dtype = kernel.arrays[0].buffer.dtype.numpy
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((m, k)).astype(dtype)
    b = rng.standard_normal((k, n) if turned else (n, k)).astype(dtype)
    want = a.astype(np.float64) @ (b.astype(np.float64) if turned else b.astype(np.float64).T)
    return {"lhs": a, "rhs": b, "output": np.full((m, n), 7, dtype)}, want


def close(found, want) -> bool:
    half = 2.0**-11 if found.dtype == np.float16 else 2.0**-8
    return bool((np.abs(found.astype(np.float64) - want) <= np.abs(want) * half * 1.1 + 2e-3).all())


def check(kernel: Kernel, arch: str, shape: Shape, turned: bool = False, seeds=(1,)) -> Compiled:
    """Everything agrees with float64, on every target, and the machine finds nothing, strictly."""
    m, n, k = shape
    compiled = compile_kernel(kernel, arch, facts_of(problem(kernel, shape, turned)[0]))
    for ir in (kernel, compiled.kernel):
        arrays, want = problem(kernel, shape, turned)
        execute(ir, arrays, {}, dims={"M": m, "N": n, "K": k})
        assert close(arrays["output"], want)
    for seed in seeds:
        arrays, want = problem(kernel, shape, turned)
        (launch,) = compiled.launches
        report = machine.run(
            compiled.ptx, launch, arrays, seed=seed, schedule="late" if seed else "random", strict=True
        )
        assert report.ok and not report.letter
        assert close(arrays["output"], want)
    return compiled
