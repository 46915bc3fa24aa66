"""Running a problem on a GPU: arrays staged there, warm calls timed."""

from __future__ import annotations

import time
from typing import Any

from tilemma import runtime
from tilemma.ir.usage import written
from tilemma.kernels import Runner
from tilemma.tools.problem import Problem

REPEATS = 20


def run_on_gpu(runner: Runner, problem: Problem, constants: dict[str, Any]) -> float:
    """Run the problem on the first GPU and copy its results back; seconds of one call, launches included.

    The first call compiles; the time is the mean of the calls after it, which start back to back.
    """
    device = runtime.cuda_device(0)
    with device.active():
        return _run(device, runner, problem, constants)


def _run(device: runtime.Device, runner: Runner, problem: Problem, constants: dict[str, Any]) -> float:
    host = problem.arguments()
    staged = runtime.to_device(host, device)
    runner(*staged, **constants)
    # Without options the kernel itself keeps its launches prepared, as for any caller.
    call = runner.kernel if not runner.options else runner
    call(*staged, **constants)
    device.driver.synchronize(0)
    start = time.perf_counter()
    for _ in range(REPEATS):
        call(*staged, **constants)
    device.driver.synchronize(0)
    seconds = (time.perf_counter() - start) / REPEATS
    writes = written(problem.kernel)
    names = [getattr(p, "buffer", None) or getattr(p, "scalar", None) for p in problem.kernel.params]
    runtime.copy_back(host, staged, [n is not None and n.name in writes for n in names])
    return seconds
