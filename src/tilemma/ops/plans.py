"""Plan selection for a call: the cost model's choice, or with ``tune=True`` the fastest measured plan
(autotuning)."""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tilemma.assemble import DiskCache
from tilemma.bounded import Bounded
from tilemma.errors import TilemmaError
from tilemma.fingerprint import fingerprint
from tilemma.ops.candidates import ranked
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Estimate, Hardware, Plan, estimate, hardware
from tilemma.ops.problem import Epilogue, Problem
from tilemma.ops.steps import steps
from tilemma.ops.workspace import allocate
from tilemma.runtime import PreparedLaunch
from tilemma.runtime.arrays import ArrayRef, describe, facts, stream_source

# Libraries that allocate what a plan needs besides the caller's arrays.
ALLOCATE = ("torch", "cupy", "jax", "tilemma", "numpy")
# How many plans are measured, and for how long each in one round, in seconds.
MEASURED, ROUND, ROUNDS = 10, 4e-3, 5
# By how much another plan has to be faster than the model's.
MARGIN = 0.03

_winners: Bounded[str, Plan] = Bounded(1024)


def usable(problem: Problem, on: Hardware) -> list[Estimate]:
    """The plans that can run for this caller, the predicted best first."""
    found = ranked(problem, on)
    if problem.lhs.library in ALLOCATE:
        return found
    return [e for e in found if e.plan.split == 1 and not e.plan.pack]


def best(problem: Problem, tune: bool = False) -> Plan:
    """The plan for a problem on a GPU; ``tune`` measures once for each kind of problem and device."""
    on = hardware(problem.out.device)
    found = usable(problem, on)
    if not tune or problem.epilogue.addend == "out" or len(found) == 1:
        # Repeated measurements would accumulate in a result that is its own addend.
        return found[0].plan
    key = kind(problem, on)
    if key not in _winners:
        _winners[key] = load_winner(key) or measured(problem, found)
        store_winner(key, _winners[key])
    return _winners[key]


def kind(problem: Problem, on: Hardware) -> str:
    """The key of a measurement: the device, the compiler, and all inputs of code and plan."""
    p = problem
    parts: list[object] = [fingerprint(), _own_sources(), repr(on), p.batch, len(p.outer), *p.shape]
    parts += [p.lhs_major, p.rhs_major]
    parts += [repr(p.epilogue), p.left.kind, p.right.kind, p.promote, p.grouped]
    for x in (p.lhs, p.rhs, p.out, p.c, p.bias, p.left.array, p.right.array, p.offsets):
        # The library decides which plans are usable: some libraries cannot allocate workspaces.
        parts.append("" if x is None else (x.library, str(x.dtype), facts(x).contiguous, facts(x).alignment))
    return DiskCache.key(*parts)


@cache
def _own_sources() -> tuple[str, ...]:
    """The library's kernels and the model that picks the plans to be measured."""
    folder = Path(__file__).parent
    return tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*.py")))


def load_winner(key: str) -> Plan | None:
    """The winner kept on disk."""
    return DiskCache("plans").read(key, _read_plan)


def _read_plan(data: bytes) -> Plan:
    fields: dict[str, Any] = json.loads(data)
    fields |= {name: tuple(fields[name]) for name in ("tile", "pack", "cluster")}
    return Plan(**fields)


def store_winner(key: str, winner: Plan) -> None:
    """Keep the winner on disk for other processes."""
    DiskCache("plans").put(key, json.dumps(asdict(winner)).encode())


def variants(found: Sequence[Estimate]) -> list[Plan]:
    """The plans worth measuring: the model's first, and the best of them with other rasters."""
    plans = [e.plan for e in found[:MEASURED]]
    plans += [replace(plans[0], raster=r) for r in (4, 8) if plans[0].by_hand]
    plans += [replace(plans[0], by_hand=False) for _ in (0,) if plans[0].by_hand and plans[0].share]
    return list(dict.fromkeys(plans))


def measured(problem: Problem, found: Sequence[Estimate], quiet: bool = False) -> Plan:
    """The fastest of `variants`: medians over rounds that run each plan once."""
    from rich.console import Console
    from rich.progress import Progress

    stream = stream_source(problem.lhs)()
    ready: dict[Plan, tuple[list[PreparedLaunch], int, Any]] = {}
    plans = variants(found)
    console = Console(file=sys.stderr, quiet=quiet)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring plans", total=len(plans) * (ROUNDS + 1))
        for plan in plans:
            try:
                launches, work = prepared(problem, plan)
            except TilemmaError as e:
                console.print(f"{plan}: {e.message}")
                progress.advance(task, ROUNDS + 1)
                continue
            once = _seconds(launches, 1, stream)
            once = min(once, _seconds(launches, 2, stream))
            ready[plan] = launches, max(1, round(ROUND / once)), work
            progress.advance(task)
        times: dict[Plan, list[float]] = {p: [] for p in ready}
        for _ in range(ROUNDS):
            for plan, (launches, count, _) in ready.items():
                times[plan].append(_seconds(launches, count, stream))
                progress.advance(task)
    if not times:
        return found[0].plan
    return winner(times, found[0].plan)


def winner(times: Mapping[Plan, Sequence[float]], first: Plan) -> Plan:
    """The plan with the smallest median; the model's ``first`` unless that is faster by more than `MARGIN`.

    Short runs at boost clocks, with warm caches, differ by less than that for reasons that do not last.
    """
    medians = {p: statistics.median(t) for p, t in times.items()}
    best = min(medians, key=lambda p: medians[p])
    return first if first in medians and medians[first] <= (1 + MARGIN) * medians[best] else best


def _seconds(launches: Sequence[PreparedLaunch], count: int, stream: int) -> float:
    """Host time of one call out of ``count`` back to back, the device idle before and after."""
    device = launches[0].device
    with device.active():
        device.driver.synchronize(stream)
        begin = time.perf_counter()
        for _ in range(count):
            for launch in launches:
                launch.start(stream)
        device.driver.synchronize(stream)
        return (time.perf_counter() - begin) / count


def prepared(problem: Problem, plan: Plan) -> tuple[list[PreparedLaunch], Any]:
    """The launches of a plan for the problem's own arrays, and the arrays it works in, to be kept alive."""
    planned = transposed_product(problem) if plan.swap else problem
    work = allocate(planned, plan, problem.lhs)
    launches: list[PreparedLaunch] = []
    for step in steps(planned, plan, {n: describe(x) for n, x in work.items()}):
        args = tuple(x._replace(writable=True) if isinstance(x, ArrayRef) else x for x in step.args)
        launches += step.kernel.on("cuda").prepare(*args, **step.constants)
    return launches, work


# ---- what `ops.plan` returns ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report:
    """A plan with its reasons: ``chosen`` and the ``alternatives``, each with the model's time; print it."""

    problem: str
    device: str
    chosen: Estimate
    alternatives: tuple[Estimate, ...]
    measured: bool

    def __str__(self) -> str:
        how = "measured fastest" if self.measured else "predicted fastest"
        lines = [f"{self.problem} on {self.device}", f"  {how}: {self.chosen.plan}"]
        lines.append(f"    {self.chosen.seconds * 1e6:.1f} us by the model: {self.chosen.why}")
        lines += [f"  {e.seconds * 1e6:8.1f} us  {e.plan}: {e.why}" for e in self.alternatives]
        return "\n".join(lines)

    __repr__ = __str__

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-ready data."""
        return asdict(self)


def report(problem: Problem, tune: bool = False, count: int = 6) -> Report:
    """The plan of ``problem``, with the ``count`` best alternatives that differ in more than a part."""
    on = hardware(problem.out.device)
    m, n, k = problem.shape
    layouts = f"{problem.lhs_major}.{problem.rhs_major}"
    types = dict.fromkeys((str(problem.lhs.dtype), str(problem.rhs.dtype)))
    text = f"{m} x {n} x {k} {' x '.join(types)}, {layouts}"
    text += f", batch {problem.batch * len(problem.outer)}" if problem.batch * len(problem.outer) != 1 else ""
    text += " (transposed: the result is column-major)" if problem.swapped else ""
    found = usable(problem, on)
    if not problem.plain:
        text += f", {described(problem.epilogue)}"
    chosen = found[0]
    if tune and problem.out.device[0] == "cuda":
        chosen = estimate(problem, best(problem, True), on)
    rest = [e for e in found if e.plan != chosen.plan]
    seen: dict[tuple[Any, ...], Estimate] = {}
    for e in rest:
        seen.setdefault((e.plan.kernel, e.plan.tile, e.plan.swap), e)
    return Report(text, on.name, chosen, tuple(list(seen.values())[:count]), chosen is not found[0])


def described(e: Epilogue) -> str:
    """The epilogue in words."""
    parts = ["alpha"] * e.scaled + [f"+ beta * {e.addend}"] * bool(e.addend)
    parts += [f"+ bias along {e.bias}"] * bool(e.bias) + [e.activation] * bool(e.activation)
    return ", ".join(parts)
