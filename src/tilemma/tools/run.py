"""`tilemma run`: one call on random inputs, compared with float64, timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tilemma.kernels import Kernel, Runner
from tilemma.runtime import gpu_unavailable_reason
from tilemma.targets.ptx.target import Target
from tilemma.tools.problem import Problem, make_problem, parse_scalars, parse_shape


@dataclass
class Outcome:
    """The result of a run.  ``share``: the largest error as a share of its bound, if a result was expected."""

    kernel: str
    target: str
    arch: str | None
    dims: dict[str, int]
    seconds: float
    share: float | None
    expect: str | None
    plan: str | None = None
    # The plan in sentences, and commands to go on with.
    in_words: list[str] = field(default_factory=list)
    next_steps: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.share is None or self.share <= 1.0

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **self.__dict__}

    def render(self) -> str:
        sizes = ", ".join(f"{k}={v}" for k, v in self.dims.items())
        where = self.target if self.arch is None else f"{self.target} ({self.arch})"
        lines = [f"{self.kernel} at {sizes or 'no dimensions'} on {where}"]
        if self.share is not None:
            verdict = "within the bound" if self.ok else "WRONG: beyond the bound"
            lines.append(f"  largest error: {self.share:.3f} of its bound ({verdict}; float64 {self.expect})")
        lines.append(f"  time: {_time(self.seconds)}")
        lines += [f"  {n}" for n in self.notes]
        if self.plan:
            lines += [self.plan, "in words", *(f"  {x}" for x in self.in_words)]
            lines += ["next", *(f"  {x}" for x in self.next_steps)]
        return "\n".join(lines)


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def run_kernel(
    kernel: Kernel,
    constants: dict[str, Any],
    *,
    shape: str | None = None,
    args: Sequence[str] = (),
    target: str = "auto",
    arch: str | None = None,
    expect: str | None = None,
    seed: int = 0,
    plan: bool = False,
    file: str = "FILE",
) -> Outcome:
    """Run ``kernel`` once on random inputs.  "auto" is the GPU if there is one, else the CPU.

    ``plan``: the outcome has the plan too, in words, and commands on ``file`` to go on with.
    """
    runner_for_checks = kernel.on(target)
    if arch is not None:
        Target.of(arch)
    traced = kernel.traced(**constants)
    scalars, dims = parse_scalars(traced, args), parse_shape(traced, shape)
    problem = make_problem(kernel.build(sizes=dims, **constants), dims, scalars, seed, expect)
    if target == "auto":
        target = "cpu" if gpu_unavailable_reason() else "cuda"
        runner_for_checks = kernel.on(target)
    if arch is not None and target in ("machine", "cuda"):
        runner_for_checks.options["arch"] = arch
    seconds = _run_on(target, runner_for_checks, problem, constants)
    text, words, steps = None, [], []
    if plan:
        from tilemma.tools.plan_words import in_words, next_steps

        planned = arch or runner_for_checks.options.get("arch") or "sm_90a"
        explained = kernel.compile(planned, sizes=dims, **constants).explain()
        text, words, steps = explained.render(limit=15), in_words(explained), next_steps(file, planned, dims)
    share = problem.share() if expect is not None else None
    shown = runner_for_checks.options.get("arch") if target != "cpu" else None
    return Outcome(kernel.name, target, shown, problem.dims, seconds, share, expect, text, words, steps)


def _run_on(target: str, runner: Runner, problem: Problem, constants: dict[str, Any]) -> float:
    if target != "cuda":
        start = time.perf_counter()
        runner(*problem.arguments(), **constants)
        return time.perf_counter() - start
    from tilemma.tools.gpu import run_on_gpu

    return run_on_gpu(runner, problem, constants)
