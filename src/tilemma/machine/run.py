"""Running PTX on the machine: one run with a report, or many schedules with one verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilemma.display import Displayed
from tilemma.errors import (
    TilemmaError,
    WrongArgumentType,
    described,
    print_from_program,
    register_source,
    singular,
)
from tilemma.launch import Launch
from tilemma.machine import binding, call, decoded, placement
from tilemma.machine.arguments import refuse
from tilemma.machine.catalogue import Deadlock, UninitialisedShared
from tilemma.machine.coverage import Coverage, executed_lines
from tilemma.machine.hazards import HazardError, PerformanceNote
from tilemma.machine.native import library
from tilemma.machine.placement import Placed
from tilemma.machine.problems import MachineFailure, MachineLimit
from tilemma.machine.program import Program, build_segments, decode_program
from tilemma.machine.scheduler import Machine, Stop
from tilemma.machine.shared_names import SharedNames
from tilemma.machine.syntax import Entry, Module
from tilemma.machine.timeline import Timeline
from tilemma.machine.traced import TracedMachine
from tilemma.machine.undefined_memory import followable
from tilemma.machine.variables import place_variables, place_workspace

MAX_STEPS = 20_000_000


@dataclass(repr=False)
class Report(Displayed):
    """The result of one run.

    ``hazards`` are errors, ``letter`` those that are errors under ``strict`` only, ``notes`` the performance
    notes.  ``instructions`` counts warp instructions, ``seed`` and ``schedule`` repeat the run.
    """

    entry: str
    seed: int
    schedule: str
    hazards: list[HazardError] = field(default_factory=list)
    letter: list[HazardError] = field(default_factory=list)
    notes: list[PerformanceNote] = field(default_factory=list)
    instructions: int = 0
    timeline: Timeline | None = None
    # PTX lines that were executed.
    lines: frozenset[int] = frozenset()
    # The output of the kernel's vprintf.
    printed: str = ""
    # Whether lanes waited for good for others of their warp that they do not need.
    held: bool = False

    def __repr__(self) -> str:
        found = ", ".join(sorted({h.code for h in self.hazards})) or "no hazard"
        return f"<report of {self.entry}: {found}; {self.instructions} warp instructions>"

    @property
    def ok(self) -> bool:
        return not self.hazards

    @property
    def steps(self) -> int:
        return self.instructions

    def to_json(self) -> dict[str, Any]:
        return {
            "entry": self.entry,
            "seed": self.seed,
            "schedule": self.schedule,
            "ok": self.ok,
            "hazards": [h.to_json() for h in self.hazards],
            "letter": [h.to_json() for h in self.letter],
            "notes": [str(n) for n in self.notes],
            "instructions": self.instructions,
            "printed": self.printed,
        }


@dataclass(repr=False)
class Verdict(Displayed):
    """The result of ``check`` over all schedules."""

    schedules: int
    hazards: list[HazardError] = field(default_factory=list)
    letter: list[HazardError] = field(default_factory=list)
    notes: list[PerformanceNote] = field(default_factory=list)
    instructions: int = 0
    # Seed and schedule of the run that found each hazard.
    found_by: list[tuple[int, str]] = field(default_factory=list)
    # CTAs that ran in each schedule, and those of the grid, if a sample was requested.
    sample: tuple[int, int] | None = None
    # The entry that was run, and the target it was run as.
    entry: str = ""
    arch: str = ""
    # A repair after which the program is clean and right; its program is complete PTX.
    advice: str = ""
    repaired: str = ""
    # The instructions that ran in some schedule.
    coverage: Coverage | None = None

    def __repr__(self) -> str:
        return f"<verdict on {self.entry}: {self}>"

    @property
    def ok(self) -> bool:
        return not self.hazards

    def __str__(self) -> str:
        if self.ok:
            text = singular(f"no hazard in {self.schedules} schedules ({self.instructions} warp instructions)")
            return text if self.sample is None else f"{text}, each of {self.sample[0]} of {self.sample[1]} CTAs"
        names = ", ".join(sorted({h.code for h in self.hazards}))
        return f"{len(self.hazards)} hazard{'s' if len(self.hazards) > 1 else ''}: {names}"

    def render(self) -> str:
        """The verdict as text: hazards in full, then strict-only hazards, then performance."""
        parts = [str(self)]
        for hazard, (seed, schedule) in zip(self.hazards, self.found_by, strict=True):
            parts.append(f"{hazard.render()}\n  note: found with seed {seed}, schedule {schedule}")
        if self.letter:
            parts.append("forbidden by the PTX ISA, tolerated by hardware (errors under --strict):")
            parts += [h.render() for h in self.letter]
        return "\n".join([*parts, *(str(n) for n in self.notes)])

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "schedules": self.schedules,
            "hazards": [h.to_json() for h in self.hazards],
            "letter": [h.to_json() for h in self.letter],
            "notes": [str(n) for n in self.notes],
            "instructions": self.instructions,
            "advice": self.advice,
            **({} if self.sample is None else {"ctas": list(self.sample)}),
            **({} if self.coverage is None else {"coverage": self.coverage.to_json()}),
        }


class CallersError(Exception):
    """``error`` was raised by a function of the caller during a run."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Job:
    """PTX decoded and bound to arguments, to be run any number of times."""

    def __init__(
        self,
        ptx: str,
        launch: Launch | Mapping[str, Any],
        args: Mapping[str, Any],
        arch: str | None = None,
        name: str | None = None,
    ) -> None:
        call.check_call(ptx, launch, args)
        arch = call.architecture(arch)
        wanted = launch.entry if isinstance(launch, Launch) else call.entry_name(launch)
        name = name or f"{wanted or 'kernel'}.ptx"
        register_source(name, ptx)
        self.module: Module = decoded.parsed(ptx, name, wanted)
        self.entry = self._accepted(wanted)
        self.binding = binding.bind(launch, self.entry, args, self.module.target)
        self.arch = arch or self.binding.arch or self.module.target
        self.key = decoded.key_of(ptx, name, self.arch, self.binding)
        self.program: Program = decoded.take(self.key, self.module, self.entry, self.arch)
        number = int("".join(c for c in self.arch if c.isdigit()) or 0)
        binding.check_limits(self.binding, self.entry, self.program.static_shared, number)
        # The output of the last run, also if it ended with a hazard, and its arrays.
        self.printed = ""
        self.placed: dict[str, Placed] = {}

    def end(self) -> None:
        """The job runs no more: another one of the same program may use what was decoded."""
        decoded.give_back(self.key, self.program)

    def _entry(self, wanted: str | None) -> Entry:
        entries = self.module.entries
        if wanted is None and len(entries) == 1:
            return next(iter(entries.values()))
        if wanted not in entries:
            refuse(
                f"the PTX has no entry `{wanted}`",
                f"one of {', '.join(entries) or 'none'}",
                "name it in the launch",
            )
        return entries[wanted or ""]

    def _accepted(self, wanted: str | None) -> Entry:
        """The entry to launch; raises the error of an unsupported construct in it."""
        entry = self._entry(wanted)
        if entry.refused is not None:
            raise entry.refused
        return entry

    def sample(self, wanted: int) -> tuple[int, int]:
        """The number of CTAs of a sample of ``wanted`` (whole clusters), and that of the grid.

        Raises BadMachineCall where the CTAs communicate, so that some cannot run without the others.
        """
        if self.program.communicates:
            refuse(
                "a sample of CTAs that may communicate through memory (the PTX has atomics or strong accesses)",
                "CTAs that are independent of each other",
                "run all: leave out `ctas`",
            )
        grid, cluster = self.binding.grid, self.binding.cluster
        total, size = grid[0] * grid[1] * grid[2], cluster[0] * cluster[1] * cluster[2]
        return min(total, -(-wanted // size) * size), total

    def machine(self, **options: Any) -> tuple[Machine, dict[str, Placed]]:
        """A machine with the arrays in place, not started."""
        b = self.binding
        kind = TracedMachine if options.get("trace") is not None else Machine
        machine = kind(self.program, b.grid, b.block, b.cluster, b.shared, **options)
        machine.names = SharedNames(b.shared_names, self.program.shared_base + self.program.static_shared)
        placed, maps = binding.fill_parameters(b, self.entry, self.program, machine.memory)
        machine.tensor_maps = maps
        place_variables(self.program, machine.memory)
        machine.workspace = place_workspace(self.program, machine.memory)
        return machine, placed

    def run(self, *, write_back: bool = True, retry: bool = True, **options: Any) -> Report:
        """One run; arrays are written unless ``write_back`` is false.

        With ``retry``, a load of shared bytes that nothing has written is no hazard where its value is discarded,
        but under ``strict``: the run is repeated with a program that carries it as an undefined value.

        Lanes that a branch has separated wait for each other where its sides meet.  A run that ends because some
        wait for good is repeated with a program in which they go on where they may (`Program.apart`).
        """
        report, error = self._once(**options)
        if report.held and not self.program.apart and all(isinstance(h, Deadlock) for h in report.hazards):
            self.program = decode_program(
                self.module, self.entry, self.arch, unwritten=self.program.unwritten, apart=True
            )
            self.key = (*self.key, "apart")
            report, error = self._once(**options)
        if retry and not options.get("strict") and self._loads_unwritten(report):
            before = self.program, self.placed, self.printed
            self.program = decode_program(
                self.module, self.entry, self.arch, unwritten=True, apart=self.program.apart
            )
            again, later = self._once(**options)
            if any(h.code.startswith("uninitialised") for h in again.hazards):
                self.program, self.placed, self.printed = before
            else:
                self.key, report, error = (*self.key, "unwritten"), again, later
        if write_back:
            self.write_back(self.placed)
        if error is not None:
            raise error
        return report

    def _loads_unwritten(self, report: Report) -> bool:
        return (
            bool(report.hazards)
            and isinstance(report.hazards[0], UninitialisedShared)
            and not self.program.unwritten
            and followable(self.program)
        )

    def _once(
        self, *, trace: bool = False, tick: Callable[[int], None] | None = None, **options: Any
    ) -> tuple[Report, TilemmaError | None]:
        """One run, and the error that has ended it.  ``tick``: see `Machine.tick`."""
        b = self.binding
        if not self.program.native and library.loaded() is not None:
            build_segments(self.program)
        self.program.count_run()
        timeline = Timeline() if trace else None
        machine, self.placed = self.machine(trace=timeline, **options)
        machine.tick = tick
        report = Report(b.entry, options.get("seed", 0), options.get("schedule", "random"), timeline=timeline)
        error: TilemmaError | None = None
        try:
            if all(b.grid):
                machine.run()
        except Stop:
            pass
        except TilemmaError as e:
            error = e
        except CallersError as e:
            raise e.error from None
        except MemoryError as e:
            error = MachineLimit(
                what=f"the run of {b.entry} takes more memory ({e})",
                limit="what this computer has left",
                how="use smaller arrays, variables or grids",
            )
        except Exception as e:  # an internal error, reported as one; `cause` keeps it
            error = MachineFailure(entry=b.entry, what=f"{type(e).__name__}: {e}")
            error.cause = error.__cause__ = e
        finally:
            report.hazards, report.letter = machine.hazards, machine.letter
            report.held = bool(machine.held)
            report.notes = machine.performance.found()
            report.instructions = machine.steps
            report.printed = self.printed = "".join(machine.printed)
            report.lines = executed_lines(machine.program, machine.covered)
            library.executed(machine.steps)
        return report, error

    def write_back(self, placed: Mapping[str, Placed]) -> None:
        """Copy the results of a run into the caller's arrays."""
        for name, array in placed.items():
            if array.allocation.writer is not None and self.binding.arrays[name].flags.writeable:
                placement.take_back(array, self.binding.arrays[name])


def run(
    ptx: str,
    launch: Launch | Mapping[str, Any],
    args: Mapping[str, Any],
    *,
    arch: str | None = None,
    seed: int = 0,
    schedule: str = "random",
    strict: bool = False,
    collect: bool = False,
    max_steps: int = MAX_STEPS,
    trace: bool = False,
) -> Report:
    """Execute ``ptx`` on NumPy arrays, which are written in place.  Its output goes to standard output.

    ``launch`` is the compiler's launch plan (a `Launch` or its JSON), or for other PTX a dict with ``grid`` and
    ``block`` (and ``entry``, ``cluster``, ``shared`` in bytes, ``arch``, ``read_only``); then ``args`` are in the
    order of the entry's parameters: arrays, numbers, or `TensorMap`.  ``schedule`` is ``random``, ``late`` or
    ``early`` (when asynchronous operations complete), or ``starve`` (one warp, chosen by the seed, runs only when
    nothing else can); the same seed gives the same run.

    Raises HazardError at the first hazard, unless ``collect``; CompileError for PTX that is malformed or not
    modelled; LaunchError for arguments that do not fit.
    """
    call.schedule(schedule)
    options = call.options(seed=seed, strict=strict, collect=collect, max_steps=max_steps, trace=trace)
    job = Job(ptx, launch, args, arch)
    try:
        report = job.run(schedule=schedule, **options)
        job.end()
        return report
    finally:
        print_from_program(job.printed)


def schedule_of(i: int) -> str:
    """The schedule of the i-th run of a check: the two extremes first, then random ones and starved warps
    alternately.

    Of 20 runs, 8 starve a warp; consecutive seeds then starve each warp of a block of up to 4 warps.
    """
    return ("late", "early", "starve", "random", "starve")[i % 5]


def _ticks(
    progress: Callable[[float, int], None], done: int, schedules: int, instructions: int
) -> Callable[[int], None]:
    """What reports the ``done + 1``-th run of a check while it runs; those before took ``instructions`` in all."""

    def tick(steps: int) -> None:
        expected = instructions / done if done else steps + _FIRST_RUN
        try:
            progress(done + min(steps / max(expected, 1), 0.99), schedules)
        except Exception as e:
            raise CallersError(e) from e

    return tick


# Warp instructions after which the first run of a check counts as half done: how many it takes is not known.
_FIRST_RUN = 50_000


def check(
    ptx: str,
    launch: Launch | Mapping[str, Any],
    args: Mapping[str, Any],
    *,
    schedules: int = 20,
    seed: int = 0,
    strict: bool = False,
    arch: str | None = None,
    max_steps: int = MAX_STEPS,
    name: str | None = None,
    ctas: str = "all",
    progress: Callable[[float, int], None] | None = None,
) -> Verdict:
    """Run ``ptx`` under many adversarial schedules; arrays hold the first run's results afterwards.

    Stops at the first schedule that finds a hazard, after collecting all that it finds.  ``progress`` is
    called during and after each run with (runs done, runs in all); of the run in progress the first number has an
    estimated part.  ``name`` names the PTX in reports.  Raises as `run` does for malformed PTX and wrong
    arguments.

    ``ctas="sample:8"`` runs 8 CTAs of the grid in each schedule, whole clusters chosen by the schedule's seed, and
    the verdict says so.  It is refused where CTAs communicate: the ones that run may wait for the others.
    """
    options = call.options(seed=seed, strict=strict, max_steps=max_steps, schedules=schedules)
    seed, schedules = options.pop("seed"), options.pop("schedules")
    if progress is not None and not callable(progress):
        raise WrongArgumentType(function="check", name="progress", got=described(progress), wanted="a function")
    if name is not None and not isinstance(name, str):
        raise WrongArgumentType(function="check", name="name", got=described(name), wanted="text")
    job = Job(ptx, launch, args, arch, name)
    verdict = Verdict(schedules, entry=job.entry.name, arch=job.arch)
    wanted = call.sample(ctas)
    if wanted is not None:
        verdict.sample = job.sample(wanted)
        ctas_run = verdict.sample[0]
    else:
        ctas_run = None
    results: Mapping[str, Placed] = {}
    lines: set[int] = set()
    for i in range(schedules):
        how = schedule_of(i)
        tick = None if progress is None else _ticks(progress, i, schedules, verdict.instructions)
        report = job.run(
            write_back=False, seed=seed + i, schedule=how, collect=True, ctas=ctas_run, tick=tick, **options
        )
        lines |= report.lines
        verdict.instructions += report.instructions
        if i == 0:
            verdict.notes, results = report.notes, job.placed
        known = {(h.code, h.facts.get("ptx_line")) for h in verdict.letter}
        verdict.letter += [h for h in report.letter if (h.code, h.facts.get("ptx_line")) not in known]
        if report.hazards:
            verdict.schedules = i + 1
            verdict.hazards = report.hazards
            verdict.found_by = [(seed + i, how)] * len(report.hazards)
        if progress is not None:
            progress(i + 1, schedules)
        if report.hazards:
            break
    verdict.coverage = Coverage.of(job.program, lines)
    # Only now: every schedule starts from the arrays as they were given.
    job.write_back(results)
    job.end()
    return verdict
