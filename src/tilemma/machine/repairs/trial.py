"""Trials of candidate repairs: the first that leaves the program clean and right in every schedule is advised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilemma.checked import Condition, checked, instance, integer, optional
from tilemma.errors import TilemmaError
from tilemma.launch import Launch
from tilemma.machine.arguments import refuse
from tilemma.machine.parser import parse
from tilemma.machine.repairs.candidates import candidates
from tilemma.machine.repairs.listing import Listing, without_other_entries
from tilemma.machine.run import Job, Verdict, schedule_of

# Candidates that are tried, and the warp instructions of each run, relative to those until the hazard.
MOST_TRIALS = 120
_PATIENCE, _AT_LEAST = 8, 200_000
# Sums in another order: the share of the largest value by which results may differ between schedules.
_NOISE = 1e-3


def _are_arrays(wanted: Any) -> bool:
    return isinstance(wanted, Mapping) and all(isinstance(v, np.ndarray) for v in wanted.values())


@dataclass(frozen=True)
class Advice:
    """A repair that the machine has confirmed; ``ptx`` is the repaired program, ``tried`` the candidates."""

    text: str
    ptx: str
    tried: int


@checked(
    ptx=instance("PTX text", str),
    verdict=instance("what `machine.check` returned", Verdict),
    wanted=optional(Condition("a mapping from the names of arrays to NumPy arrays", _are_arrays)),
    schedules=integer(1, 1 << 31),
    strict=instance("True or False", bool),
    trials=integer(1, 1 << 31),
)
def advise(
    ptx: str,
    launch: Launch | Mapping[str, Any],
    args: Mapping[str, Any],
    verdict: Verdict,
    *,
    wanted: Mapping[str, Any] | None = None,
    schedules: int = 20,
    strict: bool = False,
    arch: str | None = None,
    trials: int = MOST_TRIALS,
) -> Advice | None:
    """The first candidate repair of ``ptx`` that cures the hazard that ``verdict`` (of `check`) found; None if
    none does.

    A candidate adds synchronisation, or changes an operand of it: a parity, a count, a number of groups; it
    removes nothing.  It cures if no schedule finds a hazard and all leave the same results, those of ``wanted``
    where
    given.  ``args`` are the arrays before the run; they are not changed.  The advice becomes the fix of the
    verdict's hazards.
    """
    if verdict.ok:
        return None
    short = without_other_entries(ptx, verdict.entry)
    listing = Listing(parse(short), verdict.entry)
    seed, how = verdict.found_by[0]
    limit = _PATIENCE * verdict.instructions + _AT_LEAST
    trial = _Trial(launch, args, wanted or {}, strict, arch, limit)
    binding = Job(short, launch, args, arch).binding
    for name, values in (wanted or {}).items():
        if name not in binding.arrays or values.shape != binding.arrays[name].shape:
            refuse(
                f"`wanted` has {name!r:.40} of shape {values.shape}",
                "arrays of the call",
                "correct the name or shape",
            )
    block = binding.block
    seen: set[int] = set()
    for repair in candidates(listing, verdict.hazards, block[0] * block[1] * block[2]):
        text = repair.applied(short)
        if hash(text) in seen:
            continue
        seen.add(hash(text))
        if trial.cures(text, seed, how, schedules):
            verdict.advice, verdict.repaired = repair.advice, repair.applied(ptx)
            first, *others = verdict.hazards
            many = f"{schedules} schedules find" if schedules > 1 else "one schedule finds"
            first.advice = f"{repair.advice}; with it, {many} no hazard"
            for hazard in others:
                hazard.advice = "repair the first hazard: this one is gone then"
            return Advice(repair.advice, verdict.repaired, len(seen))
        if len(seen) >= trials:
            break
    return None


@dataclass
class _Trial:
    launch: Launch | Mapping[str, Any]
    args: Mapping[str, Any]
    wanted: Mapping[str, Any]
    strict: bool
    arch: str | None
    limit: int

    def cures(self, ptx: str, seed: int, how: str, schedules: int) -> bool:
        """Whether the schedule that found the hazard, and then all others, find none and agree."""
        try:
            job = Job(ptx, self.launch, self.args, self.arch)
            first = self._results(job, seed, how)
            if not self._right(first, self.wanted):
                return False
            for i in range(schedules):
                results = self._results(job, seed + i, schedule_of(i))
                if not (self._right(results, self.wanted) and self._right(results, first)):
                    return False
        except TilemmaError:
            return False
        return True

    def _results(self, job: Job, seed: int, how: str) -> dict[str, Any]:
        job.run(write_back=False, seed=seed, schedule=how, strict=self.strict, max_steps=self.limit)
        arrays = job.binding.arrays
        return {n: placed.elements(arrays[n]).view(arrays[n].dtype) for n, placed in job.placed.items()}

    @staticmethod
    def _right(got: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
        return all(_agree(got[name], values) for name, values in wanted.items())


def _agree(got: Any, wanted: Any) -> bool:
    wanted = np.asarray(wanted).reshape(got.shape)
    if got.dtype.kind in "iub" and wanted.dtype.kind in "iub":
        return bool((got == wanted).all())
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.abs(b[np.isfinite(b)])
    bound = _NOISE * float(finite.max(initial=0.0))
    with np.errstate(invalid="ignore"):
        return bool(((np.abs(a - b) <= bound) | (a == b) | (np.isnan(a) & np.isnan(b))).all())
