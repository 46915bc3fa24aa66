"""`tilemma check`: a kernel's PTX on the PTX machine, under many adversarial schedules, and what it computes
compared with the reference executor."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from tilemma import machine
from tilemma.compiler import Compiled
from tilemma.errors import LaunchError, TilemmaError, WrongArgument, described, singular, visible
from tilemma.ir.usage import written
from tilemma.kernels import Kernel, facts_of
from tilemma.machine.run import schedule_of
from tilemma.targets.ptx.passes.persistent_grid import fewer_blocks
from tilemma.tools.compare import Arrays, Comparison, Reference, compare
from tilemma.tools.conditions import failing
from tilemma.tools.explain_run import Answers, Questions, answer
from tilemma.tools.few_blocks import FewBlocks, few_blocks
from tilemma.tools.problem import Problem, make_problem, parse_scalars, parse_shape
from tilemma.tools.sizes import MOST, smallest_sizes
from tilemma.tools.steering import steering

MOST_NOTES = 5
# Inputs of a check: on the first kind every schedule runs; sums of small integers are exact.
NORMAL, WHOLE = "normal data", "small integers"


class NoSizes(LaunchError):
    code = "no-sizes"
    found = "no small sizes were found for which this assertion of {kernel} holds: {message}"
    expected = "sizes of its dimensions"
    fix = "add `--shape {dims}`"


@dataclass
class CheckOutcome:
    """The machine's verdict on every launch of a kernel, and how its results compare with the reference's."""

    kernel: str
    arch: str
    dims: dict[str, int]
    schedules: int
    verdicts: list[machine.Verdict]
    comparisons: list[Comparison] = field(default_factory=list)
    explained: list[Answers] = field(default_factory=list)
    # Whether the sizes were chosen (`smallest_sizes`), not given.
    chosen: bool = False
    # The same code with few persistent blocks, where the kernel itself gave each of them too little to do.
    few: FewOutcome | None = None
    # Warp instructions of a schedule, where that was too many for a check with few persistent blocks.
    too_long_for_few: int = 0
    # Arrays whose elements say where the kernel reads and writes: the check has drawn values inside its bounds.
    steered: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        own = all(v.ok for v in self.verdicts) and not any(c.differences for c in self.comparisons)
        return own and (self.few is None or self.few.outcome.ok)

    @property
    def missed(self) -> frozenset[tuple[int, int]]:
        """Launches and PTX lines that no run has executed."""
        own = missed_by(self.verdicts)
        return own if self.few is None else own & self.few.outcome.missed

    @property
    def complete(self) -> bool:
        return not self.missed

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "kernel": self.kernel,
            "arch": self.arch,
            "dims": self.dims,
            "sizes_chosen": self.chosen,
            "schedules": self.schedules,
            "launches": [v.to_json() for v in self.verdicts],
            "differences": [d.to_json() for c in self.comparisons for d in c.differences],
            "compared": [x.to_json() for c in self.comparisons for x in c.compared],
            "notes": list(dict.fromkeys(n for c in self.comparisons for n in c.notes)),
            **({"few_blocks": self.few.to_json()} if self.few is not None else {}),
            **({"too_long_for_few_blocks": self.too_long_for_few} if self.too_long_for_few else {}),
            **({"drawn_within_bounds": list(self.steered)} if self.steered else {}),
            **({"explained": [a.data for a in self.explained]} if self.explained else {}),
        }

    def render(self) -> str:
        sizes = ", ".join(f"{k}={v}" for k, v in self.dims.items())
        head = f"{self.kernel} at {sizes} on {self.arch}: {singular(f'{self.schedules} schedules')}, "
        head += "no hazard" if all(v.ok for v in self.verdicts) else "HAZARDS"
        if self.comparisons:
            wrong = any(c.differences for c in self.comparisons)
            head += ", DIFFERS from the reference" if wrong else ", as the reference"
        lines = [line for v in self.verdicts for line in verdict_lines(v)]
        lines += [f"  {d.render()}" for c in self.comparisons for d in c.differences]
        lines += [f"  covered: {v.coverage}" for v in self.verdicts if v.coverage is not None]
        if self.few is not None:
            lines += ["  " + line for line in self.few.render().splitlines()]
            left = len(self.missed)
            lines.append(f"  together: {left or 'no'} instruction{'s' * (left != 1)} left that did not run")
        if self.too_long_for_few:
            lines.append(
                f"  not run with few persistent blocks: a schedule executes {self.too_long_for_few} warp "
                f"instructions, more than {MOST}; with larger sizes (`--shape`) a block computes several tiles"
            )
        if self.chosen:
            how = "the smallest that reach every path"
            how = how if self.complete else "what did not run needs others, if any"
            lines.append(f"  sizes: {how}; `--shape` gives others")
        notes = dict.fromkeys(n for c in self.comparisons for n in c.notes)
        if self.steered:
            names = ", ".join(f"`{n}`" for n in self.steered)
            notes[
                f"elements of {names} say where the kernel reads and writes: random ones inside its arrays were "
                f'taken; `kernel.on("machine")(...)` runs it on your own'
            ] = None
        explained = [line for a in self.explained for line in a.lines]
        return "\n".join([head, *lines, *(f"  note: {n}" for n in notes), *explained])


@dataclass(frozen=True)
class FewOutcome:
    """The outcome with at most ``fewer`` persistent blocks in place of ``most``, in otherwise the same PTX."""

    outcome: CheckOutcome
    most: int
    fewer: int

    def to_json(self) -> dict[str, Any]:
        return {"persistent": self.fewer, "in_place_of": self.most, **self.outcome.to_json()}

    def render(self) -> str:
        blocks = f"{self.fewer} persistent blocks or clusters in place of {self.most}"
        return f"the same PTX but for one number, {blocks}:\n{self.outcome.render()}"


def missed_by(verdicts: Sequence[machine.Verdict]) -> frozenset[tuple[int, int]]:
    """Launches and PTX lines that did not run."""
    found = ((i, v.coverage) for i, v in enumerate(verdicts))
    return frozenset((i, line) for i, coverage in found if coverage is not None for line in coverage.missed)


def verdict_lines(verdict: machine.Verdict) -> list[str]:
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
    questions: Questions | None = None,
) -> CheckOutcome:
    """Run every launch of ``kernel`` under ``schedules`` schedules; compare what it wrote with the reference.

    Without ``shape``: the smallest sizes that reach every path, and for persistent blocks, which then compute one
    tile each, the same code with fewer blocks too.
    ``questions`` are answered from one more run of each launch: of the schedule that found a hazard, else of the
    first.
    """
    if schedules < 1:
        raise WrongArgument(function="check", name="schedules", got=described(schedules), wanted="at least 1")
    built = kernel.traced(**constants)
    scalars = parse_scalars(built, args)
    dims, chosen = parse_shape(built, shape), False
    if shape is None and dims:
        smallest = smallest_sizes(kernel, constants, arch, scalars)
        dims, chosen = smallest or dims, smallest is not None
        message = failing(built, dims, scalars)
        if message is not None:
            raise NoSizes(kernel=built.name, message=message, dims=",".join(f"{n}=.." for n in dims))
    built = kernel.build(sizes=dims, **constants)
    problem = make_problem(built, dims, scalars, seed)
    compiled = kernel.compile(arch, facts=facts_of(problem.arrays), sizes=dims, **constants)
    how = _Way(arch, schedules, seed, strict, progress, questions)
    outcome = _checked(compiled, problem, scalars, how)
    outcome.chosen = chosen
    outcome.steered = tuple(dict.fromkeys(x.array for x in steering(built)))
    # A kernel that is compiled for sizes is another one at other sizes.
    if chosen and outcome.ok and not kernel.signature(**constants).sizes:
        length = sum(v.instructions for v in outcome.verdicts) // schedules
        if length <= MOST:
            few = few_blocks(built, compiled, dims, scalars)
            outcome.few = _with_few(few, problem, outcome, scalars, how) if few is not None else None
        elif fewer_blocks(compiled.kernel) is not None:
            outcome.too_long_for_few = length
    return outcome


@dataclass(frozen=True)
class _Way:
    """The options of `check_kernel` about the runs."""

    arch: str
    schedules: int
    seed: int
    strict: bool
    progress: bool
    questions: Questions | None


def _checked(compiled: Compiled, problem: Problem, scalars: Mapping[str, Any], how: _Way) -> CheckOutcome:
    """The outcome of the runs of ``compiled`` on ``problem`` and on a like one of small integers."""
    schedules, seed, strict = how.schedules, how.seed, how.strict
    before = _copies(problem.arrays)
    verdicts = _run(compiled, problem.arrays, problem.scalars, schedules, seed, strict, how.progress)
    outcome = CheckOutcome(problem.kernel.name, how.arch, problem.dims, schedules, verdicts)
    if outcome.ok:
        outcome.comparisons.append(_compared(problem, compiled, before, NORMAL))
    differing = outcome.comparisons[0].expected if outcome.comparisons else {}
    if how.questions or differing:
        values = {**before, **problem.scalars}
        outcome.explained = _explained(
            how.questions or Questions(), compiled, values, verdicts, seed, strict, differing
        )
    if not outcome.ok:
        return outcome
    whole = make_problem(problem.kernel, problem.dims, scalars, seed, kind="small_integers")
    before = _copies(whole.arrays)
    more = _run(compiled, whole.arrays, whole.scalars, 1, seed, strict)
    if all(v.ok for v in more):
        outcome.comparisons.append(_compared(whole, compiled, before, WHOLE))
    else:
        outcome.verdicts += more
    return outcome


def _with_few(
    few: FewBlocks, small: Problem, first: CheckOutcome, scalars: Mapping[str, Any], how: _Way
) -> FewOutcome | None:
    """The check with few persistent blocks, at the first sizes that reach all that ``first`` has not, or the most;
    None if none could be run.  ``small``: the problem for whose arrays the kernel is compiled."""
    best, left = None, 0
    for sizes in few.sizes:
        with suppress(TilemmaError), redirect_stdout(io.StringIO()):
            problem = make_problem(few.source, sizes, scalars, how.seed)
            if facts_of(problem.arrays) != facts_of(small.arrays):
                continue
            tried = _run(few.compiled, problem.arrays, problem.scalars, 1, how.seed, how.strict)
            clean, missed = all(v.ok for v in tried), len(first.missed & missed_by(tried))
            if best is None or missed < left or not clean:
                best, left = sizes, missed
            if not left or not clean or sum(v.instructions for v in tried) > MOST:
                break
    if best is None:
        return None
    problem = make_problem(few.source, best, scalars, how.seed)
    # Questions are about the kernel itself.
    outcome = _checked(few.compiled, problem, scalars, replace(how, questions=None))
    return FewOutcome(outcome, few.most, few.fewer)


def _explained(
    questions: Questions,
    compiled: Compiled,
    values: dict[str, Any],
    verdicts: list[machine.Verdict],
    seed: int,
    strict: bool,
    differing: Mapping[str, Any],
) -> list[Answers]:
    """The answers for each launch, on the arrays that the launches before it have left.

    ``differing`` are the arrays that differ after the last launch: the values wanted, and the tolerances.
    """
    values = {n: v.copy() if hasattr(v, "copy") else v for n, v in values.items()}
    out = []
    for launch, verdict in zip(compiled.launches, verdicts, strict=True):
        tried, how = verdict.found_by[0] if verdict.found_by else (seed, schedule_of(0))
        options: dict[str, Any] = {"seed": tried, "schedule": how, "strict": strict}
        last = differing if launch is compiled.launches[-1] else {}
        out.append(answer(questions, compiled.ptx, launch, values, differing=last, **options))
        with redirect_stdout(io.StringIO()):
            machine.run(compiled.ptx, launch, values, collect=True, **options)
    return out


def _copies(arrays: Arrays) -> Arrays:
    return {name: a.copy() for name, a in arrays.items()}


def _run(
    compiled: Compiled,
    arrays: Arrays,
    scalars: dict[str, Any],
    schedules: int,
    seed: int,
    strict: bool,
    progress: bool = False,
) -> list[machine.Verdict]:
    """Run all launches, one after the other; ``arrays`` hold the results of the first schedule afterwards."""
    values = {**arrays, **scalars}
    verdicts = []
    for launch in compiled.launches:
        options: dict[str, Any] = {"schedules": schedules, "seed": seed, "strict": strict}
        if progress:
            with progress_bar(schedules, launch.entry) as tick:
                verdicts.append(machine.check(compiled.ptx, launch, values, progress=tick, **options))
        else:
            verdicts.append(machine.check(compiled.ptx, launch, values, **options))
    return verdicts


def _compared(problem: Problem, compiled: Compiled, before: Arrays, inputs: str) -> Comparison:
    """``problem`` after its run on the machine, against the reference on the arrays ``before`` it."""
    outputs = written(problem.kernel)

    def again(seed: int) -> Arrays:
        arrays = _copies(before)
        with redirect_stdout(io.StringIO()):
            for launch in compiled.launches:
                machine.run(compiled.ptx, launch, {**arrays, **problem.scalars}, seed=seed, collect=True)
        return {n: arrays[n] for n in outputs}

    reference = Reference(problem.kernel, before, problem.scalars, problem.dims)
    return compare(reference, {n: problem.arrays[n] for n in outputs}, inputs, again)


class progress_bar:
    """A progress bar over schedules, as a context that gives the function to call after each."""

    def __init__(self, total: int, title: str) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(escape(visible(title)), total=total)

    def __enter__(self) -> Any:
        self._bar.start()
        return lambda done, _: self._bar.update(self._task, completed=done)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
