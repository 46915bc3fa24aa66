"""Plan selection for a call: the cost model's choice, or with ``tune=True`` the fastest measured plan
(autotuning)."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tilemma.assemble import DiskCache
from tilemma.bounded import Bounded
from tilemma.fingerprint import fingerprint
from tilemma.forking import ForkSafeLock
from tilemma.ops.candidates import ranked
from tilemma.ops.plan import Estimate, Hardware, Plan, estimate, hardware
from tilemma.ops.problem import Epilogue, Problem
from tilemma.ops.tuning import measured
from tilemma.runtime.arrays import facts

# Libraries that allocate what a plan needs besides the caller's arrays.
ALLOCATE = ("torch", "cupy", "jax", "tilemma", "numpy")


@dataclass(frozen=True, slots=True)
class Used:
    """A plan of `tune=True`, with the device and the product in words."""

    device: str
    product: str
    plan: Plan


# The plans of calls with `tune=True` by `kind`, and those that were read from tables (`plan_tables`).
used: Bounded[str, Used] = Bounded(1024)
shipped: dict[str, Used] = {}
# Threads that tune at one time would measure each other's work.
tuning = ForkSafeLock()


def usable(problem: Problem, on: Hardware) -> list[Estimate]:
    """The plans that can run for this caller, the predicted best first."""
    found = ranked(problem, on)
    if problem.lhs.library in ALLOCATE:
        return found
    return [e for e in found if e.plan.split == 1 and not e.plan.pack]


def best(problem: Problem, tune: bool = False) -> Plan:
    """The plan for a problem on a GPU; ``tune`` measures once for each kind of problem and device."""
    begin, on = time.perf_counter(), hardware(problem.out.device)
    found = usable(problem, on)
    if not (tune and _measurable(problem, found)):
        return found[0].plan
    key, spent = kind(problem, on), time.perf_counter() - begin
    with tuning:
        if key not in used:
            known = shipped[key].plan if key in shipped else load_winner(key)
            plan = known or measured(problem, found, spent=spent)
            store_winner(key, plan)
            used[key] = Used(on.name, described_product(problem), plan)
        return used[key].plan


def _measurable(problem: Problem, found: Sequence[Estimate]) -> bool:
    """Whether there is a choice; repeated measurements would accumulate in a result that is its own addend."""
    return problem.epilogue.addend != "out" and len(found) > 1


def kind(problem: Problem, on: Hardware) -> str:
    """The key of a measurement: the device, the compiler, and all inputs of code and plan."""
    p = problem
    parts: list[object] = [fingerprint(), own_sources(), repr(on), p.batch, len(p.outer), *p.shape]
    parts += [p.lhs_major, p.rhs_major]
    parts += [repr(p.epilogue), p.left.kind, p.right.kind, p.promote, p.grouped]
    for x in (p.lhs, p.rhs, p.out, p.c, p.bias, p.left.array, p.right.array, p.offsets):
        # The library decides which plans are usable: some libraries cannot allocate workspaces.
        parts.append("" if x is None else (x.library, str(x.dtype), facts(x).contiguous, facts(x).alignment))
    return DiskCache.key(*parts)


@cache
def own_sources() -> tuple[str, ...]:
    """The library's kernels, and the models that pick the plans to be measured, with their timings."""
    folder = Path(__file__).parent
    files = sorted([*folder.rglob("*.py"), *folder.rglob("*.json")])
    return tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)


def load_winner(key: str) -> Plan | None:
    """The winner kept on disk."""
    return DiskCache("plans").read(key, _read_plan)


def _read_plan(data: bytes) -> Plan:
    return plan_of(json.loads(data))


def plan_of(fields: dict[str, Any]) -> Plan:
    """The plan with these fields, as JSON has them.  Raises KeyError, TypeError, ValueError."""
    return Plan(**fields | {name: tuple(fields[name]) for name in ("tile", "pack", "cluster")})


def store_winner(key: str, winner: Plan) -> None:
    """Keep the winner on disk for other processes."""
    DiskCache("plans").put(key, json.dumps(asdict(winner)).encode())


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
    text, found = described_product(problem), usable(problem, on)
    chosen = found[0]
    tuned = tune and problem.out.device[0] == "cuda" and _measurable(problem, found)
    if tuned:
        chosen = estimate(problem, best(problem, True), on)
    rest = [e for e in found if e.plan != chosen.plan]
    seen: dict[tuple[Any, ...], Estimate] = {}
    for e in rest:
        seen.setdefault((e.plan.kernel, e.plan.tile, e.plan.swap), e)
    return Report(text, on.name, chosen, tuple(list(seen.values())[:count]), tuned)


def described_product(problem: Problem) -> str:
    """A product in words."""
    m, n, k = problem.shape
    layouts = f"{problem.lhs_major}.{problem.rhs_major}"
    types = dict.fromkeys((str(problem.lhs.dtype), str(problem.rhs.dtype)))
    text = f"{m} x {n} x {k} {' x '.join(types)}, {layouts}"
    text += f", batch {problem.batch * len(problem.outer)}" if problem.batch * len(problem.outer) != 1 else ""
    text += " (transposed: the result is column-major)" if problem.swapped else ""
    return text if problem.plain else f"{text}, {described(problem.epilogue)}"


def described(e: Epilogue) -> str:
    """The epilogue in words."""
    parts = ["alpha"] * e.scaled + [f"+ beta * {e.addend}"] * bool(e.addend)
    parts += [f"+ bias along {e.bias}"] * bool(e.bias) + [e.activation] * bool(e.activation)
    return ", ".join(parts)
