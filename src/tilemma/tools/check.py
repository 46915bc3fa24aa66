"""`tilemma check`: a kernel's PTX on the PTX machine, under many adversarial schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilemma import machine
from tilemma.kernels import Kernel, facts_of
from tilemma.tools.problem import literal, make_problem, parse_pairs, parse_shape

MOST_NOTES = 5


@dataclass
class CheckOutcome:
    """The machine's verdict on every launch of a kernel."""

    kernel: str
    arch: str
    dims: dict[str, int]
    schedules: int
    verdicts: list[Any]

    @property
    def ok(self) -> bool:
        return all(v.ok for v in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "kernel": self.kernel,
            "arch": self.arch,
            "dims": self.dims,
            "schedules": self.schedules,
            "launches": [v.to_json() for v in self.verdicts],
        }

    def render(self) -> str:
        sizes = ", ".join(f"{k}={v}" for k, v in self.dims.items())
        head = f"{self.kernel} at {sizes} on {self.arch}: {self.schedules} schedules, "
        head += "no hazard" if self.ok else "HAZARDS"
        return "\n".join([head, *(line for v in self.verdicts for line in _lines(v))])


def _lines(verdict: machine.Verdict) -> list[str]:
    """A verdict, each hazard in full, and where data moves slowly."""
    found = [f"  {verdict}"]
    for hazard in (*verdict.hazards, *verdict.letter):
        found.append(hazard.render())
    found += [f"  performance: {n}" for n in verdict.notes[:MOST_NOTES]]
    left = len(verdict.notes) - MOST_NOTES
    return [*found, f"  performance: {left} notes more, see --json"] if left > 0 else found


def check_kernel(
    kernel: Kernel,
    constants: dict[str, Any],
    *,
    arch: str = "sm_90a",
    shape: str | None = None,
    args: Sequence[str] = (),
    schedules: int = 20,
    strict: bool = False,
    seed: int = 0,
    progress: bool = False,
) -> CheckOutcome:
    """Run every launch of ``kernel`` under ``schedules`` schedules."""
    built = kernel.build(**constants)
    scalars = {k: literal(v) for k, v in parse_pairs("arg", list(args)).items()}
    problem = make_problem(built, parse_shape(built, shape), scalars, seed, None)
    compiled = kernel.compile(arch, facts=facts_of(problem.arrays), **constants)
    values = {**problem.arrays, **problem.scalars}
    verdicts = []
    for launch in compiled.launches:
        options: dict[str, Any] = {"schedules": schedules, "seed": seed, "strict": strict}
        if progress:
            with _bar(schedules, launch.entry) as tick:
                verdicts.append(machine.check(compiled.ptx, launch, values, progress=tick, **options))
        else:
            verdicts.append(machine.check(compiled.ptx, launch, values, **options))
    return CheckOutcome(kernel.name, arch, problem.dims, schedules, verdicts)


class _bar:
    """A progress bar over schedules, as a context that gives the function to call after each."""

    def __init__(self, total: int, title: str) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(title, total=total)

    def __enter__(self) -> Any:
        self._bar.start()
        return lambda *_: self._bar.advance(self._task)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
