"""The reference executor: the semantics of the language, on NumPy arrays.

It runs tile IR before and after any pass, with the same result.  The threads of an instance execute each
statement together.  Instances that can wait for one another are coroutines under a seeded scheduler.  Shared and
local memory records which elements have been written.  The destination of an asynchronous copy cannot be used
before the wait for the copy.  A program whose result is not defined is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilemma.blas import one_blas_thread
from tilemma.ir.tile import Kernel
from tilemma.targets.cpu.perturbation import Perturbation


def execute(
    kernel: Kernel,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    scalars: Mapping[str, Any],
    *,
    dims: Mapping[str, int],
    seed: int = 0,
    out: Callable[[str], Any] | None = None,
    perturbation: Perturbation | None = None,
) -> None:
    """Run ``kernel`` on ``arrays``, in place.

    ``arrays``: by parameter name (and the buffer of ``kernel.returns``), of the parameters' NumPy types and
    shapes, any strides.  ``scalars`` and ``dims``: by name.  ``seed`` picks one of the orders in which
    instances and asynchronous copies may proceed.  ``out`` receives the output of the kernel.
    ``perturbation`` changes every value that a target may compute with another rounding.

    Raises a subclass of `ProgramFault` where the program has no defined result, `ArgumentMisfit` for arrays
    that do not fit.
    """
    # The event simulation needs only a part of the executor, and few processes need both.
    from tilemma.targets.cpu.program import Program

    with one_blas_thread():
        Program(kernel, perturbation).run(arrays, scalars, dims, seed, out)


__all__ = ["Perturbation", "execute"]
