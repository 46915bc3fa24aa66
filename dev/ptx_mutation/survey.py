"""Running mutants: each under strict schedules, until one of them convicts it as one would expect.

``survey`` takes all mutants of one program in this process; `Trial` is for those who share them out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dev.ptx_mutation.mutants import WRONG, Mutant, mutants
from tilemma.errors import TilemmaError
from tilemma.machine.arguments import TensorMap
from tilemma.machine.run import Job, Report, schedule_of

# Warp instructions that a mutant may execute: so many times those of the sound program, and a few more.
_PATIENCE, _AT_LEAST = 4, 50_000


@dataclass(frozen=True)
class Outcome:
    """The machine's verdict on one mutant.  ``codes`` are the hazards found, ``refused`` an error before that."""

    mutant: Mutant
    codes: tuple[str, ...]
    refused: str = ""
    reason: str = ""
    # The sound program never executes the instruction with these arguments.
    unreached: bool = False

    @property
    def convicted(self) -> bool:
        return bool(self.codes) or bool(self.refused)

    @property
    def as_expected(self) -> bool:
        return bool(self.mutant.expected & set(self.codes))


@dataclass
class Survey:
    """The outcomes of all mutants of one program."""

    name: str
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def survivors(self) -> list[Outcome]:
        return [o for o in self.outcomes if not o.convicted and not o.reason and not o.unreached]

    @property
    def unreached(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.unreached]

    @property
    def equivalents(self) -> list[Outcome]:
        return [o for o in self.outcomes if not o.convicted and o.reason]

    @property
    def unexpected(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.convicted and not o.as_expected]

    @property
    def reports(self) -> dict[str, int]:
        """Convicted mutants for each public bug report."""
        out: dict[str, int] = {}
        for o in self.outcomes:
            if o.convicted:
                for r in o.mutant.reports:
                    out[r] = out.get(r, 0) + 1
        return dict(sorted(out.items()))

    def render(self) -> str:
        """The survey as text: the numbers, then the mutants to inspect."""
        n = len(self.outcomes)
        convicted = sum(o.convicted for o in self.outcomes)
        lines = [
            f"{self.name}: {n} mutants, {convicted} convicted, {len(self.equivalents)} equivalent, "
            f"{len(self.survivors)} survive, {len(self.unreached)} unreached"
        ]
        lines += [f"  survives: {o.mutant.key}, PTX line {o.mutant.line}, {o.mutant.what}" for o in self.survivors]
        lines += [f"  equivalent: {o.mutant.key}: {o.reason}" for o in self.equivalents]
        lines += [
            f"  unexpected: {o.mutant.key}, line {o.mutant.line}: {', '.join(o.codes) or o.refused}"
            for o in self.unexpected
        ]
        return "\n".join(lines)


@dataclass(eq=False)
class Trial:
    """A program whose mutants are to be tried on one set of arguments.

    The program itself must be free of hazards: `sound` raises HazardError otherwise.
    """

    ptx: str
    launch: Any
    args: Mapping[str, Any]
    schedules: int = 12
    seed: int = 0

    @cached_property
    def results(self) -> dict[str, Any]:
        """The arguments, which `sound` writes its results to."""
        return _copies(self.args)

    @cached_property
    def sound(self) -> Report:
        """The machine's verdict on the program itself."""
        return Job(self.ptx, self.launch, self.results).run(strict=True, seed=self.seed)

    @cached_property
    def mutants(self) -> list[Mutant]:
        return mutants(self.ptx, self.launch, self.args)

    def reaches(self, mutant: Mutant) -> bool:
        """Whether the sound program executes the mutated instruction."""
        return not mutant.line or mutant.line in self.sound.lines

    def judge(self, mutant: Mutant, reason: str = "") -> Outcome:
        """Try one mutant; ``reason``: why it is not a bug, if it is none.

        A schedule ends at the first hazard that one would expect; others are collected on the way.
        """
        if not self.reaches(mutant):
            return Outcome(mutant, (), reason=reason, unreached=True)
        limit = _PATIENCE * self.sound.instructions + _AT_LEAST
        mine = _copies(mutant.args or self.args)
        codes: set[str] = set()
        try:
            job = Job(mutant.ptx, mutant.launch or self.launch, mine)
            for i in range(self.schedules):
                options: dict[str, Any] = {"seed": self.seed + i, "schedule": schedule_of(i), "strict": True}
                report = job.run(
                    collect=True, enough=mutant.expected, max_steps=limit, write_back=i == 0, **options
                )
                codes |= {h.code for h in report.hazards}
                # Other bits than the sound program's: whatever else schedules find, it is wrong.
                if i == 0 and not codes and any(_differ(mine[k], self.results[k]) for k in mine):
                    codes = {WRONG}
                if codes & mutant.expected or (codes and codes != {WRONG}):
                    break
        except TilemmaError as error:
            return Outcome(mutant, (), refused=error.message, reason=reason)
        return Outcome(mutant, tuple(sorted(codes)), reason=reason)


def survey(
    name: str,
    ptx: str,
    launch: Any,
    args: Mapping[str, Any],
    *,
    schedules: int = 12,
    seed: int = 0,
    sample: int | None = None,
    equivalents: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Survey:
    """Run every mutant (or a fixed ``sample`` of them) under strict schedules, until one convicts it.

    ``equivalents`` maps a mutant's key to the reason for which it is no bug.  Mutants of instructions that the
    program never executes with these arguments are set aside as unreached.  The program itself must be free of
    hazards: HazardError otherwise.
    """
    trial = Trial(ptx, launch, args, schedules, seed)
    chosen: Sequence[Mutant] = trial.mutants
    if sample is not None and sample < len(chosen):
        chosen = random.Random(seed).sample(list(chosen), sample)
    out = Survey(name)
    for i, mutant in enumerate(chosen):
        out.outcomes.append(trial.judge(mutant, (equivalents or {}).get(mutant.key, "")))
        if progress is not None:
            progress(i + 1, len(chosen))
    return out


def _differ(a: Any, b: Any) -> bool:
    """Whether two arguments hold other bits."""
    a, b = getattr(a, "array", a), getattr(b, "array", b)
    return hasattr(a, "tobytes") and bool(a.tobytes() != b.tobytes())


def _copies(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays copied, so that a mutant does not write into the caller's; one array stays one array."""
    import numpy as np

    made: dict[int, Any] = {}

    def copy(x: Any) -> Any:
        if isinstance(x, TensorMap):
            return replace(x, array=copy(x.array))
        if isinstance(x, np.ndarray):
            if id(x) not in made:
                made[id(x)] = _same_strides(x)
            return made[id(x)]
        return x

    return {k: copy(v) for k, v in args.items()}


def _same_strides(x: Any) -> Any:
    """A copy with the strides of ``x``: they are facts that the code was compiled for."""
    import numpy as np

    if x.flags.c_contiguous or x.size == 0 or any(s <= 0 for s in x.strides):
        return x.copy()
    size = sum((n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)) + x.itemsize
    phase = x.__array_interface__["data"][0] % 16
    buffer = np.zeros(size + 32, np.uint8)
    start = (phase - buffer.__array_interface__["data"][0]) % 16
    out = np.ndarray(x.shape, x.dtype, buffer=buffer.data, offset=start, strides=x.strides)
    out[...] = x
    return out
