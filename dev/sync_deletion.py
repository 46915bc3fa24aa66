"""Variants of a compiled kernel, each without one synchronisation operation that the compiler has inserted.

The compiler inserts as few as possible: without any one of them the PTX machine reports a hazard, or the kernel
computes something else, under some schedule.

``python -m dev.sync_deletion sm_90a examples/co/plain.co M=64,N=64,K=200 TILE_M=128 ..`` runs all variants.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from tilemma import machine
from tilemma.compiler import Compiled
from tilemma.errors import TilemmaError
from tilemma.ir.tile import Kernel, Op
from tilemma.ir.walk import bodies, with_fields
from tilemma.kernels import facts_of
from tilemma.launch import Launch
from tilemma.machine.parser import parse
from tilemma.machine.run import Job, schedule_of
from tilemma.modules import load
from tilemma.targets.ptx import print_module
from tilemma.targets.ptx.lower import lower
from tilemma.targets.ptx.passes.insertions import Insertion, insertions
from tilemma.tools.problem import make_problem, parse_shape

Arguments = Callable[[], dict[str, Any]]
# Instructions that only lowering inserts: (opcode, how it is called).
_OF_LOWERING = (
    ("fence.mbarrier_init", "mbarrier fence"),
    ("barrier.cluster.arrive", "cluster barrier"),
)
MAX_STEPS = 3_000_000


@dataclass(frozen=True)
class Variant:
    """A kernel without one insertion; ``units``: PTX and launch plan of each launch."""

    insertion: str
    units: tuple[tuple[str, Launch], ...]


@dataclass(frozen=True)
class Outcome:
    """``found``: the hazard's code, or "wrong result"; empty where nothing was found in all schedules."""

    insertion: str
    found: str
    schedules: int


def without(kernel: Kernel, number: int) -> Kernel:
    """``kernel`` without the operation at ``number`` in `walk` of its body."""
    position = -1

    def strip(body: tuple[Op, ...]) -> tuple[Op, ...]:
        nonlocal position
        out = []
        for op in body:
            position += 1
            left_out = position == number
            changes = {name: strip(inner) for name, inner in bodies(op)}
            if not left_out:
                out.append(with_fields(op, changes))
        return tuple(out)

    return replace(kernel, body=strip(kernel.body))


def variants(compiled: Compiled) -> Iterator[tuple[str, Callable[[], Variant]]]:
    """Each insertion, in program order, and what makes the kernel without it."""

    def lowered(x: Insertion) -> Variant:
        units = lower(without(compiled.kernel, x.number), compiled.arch)
        return Variant(_name(x), tuple((print_module([u.lane], compiled.arch), u.launch) for u in units))

    for x in insertions(compiled.kernel, compiled.source):
        if x.number >= 0:
            yield _name(x), partial(lowered, x)
    units = [(print_module([u.lane], compiled.arch), u.launch) for u in compiled.lowered]
    for i, (ptx, launch) in enumerate(units):
        for name, changed in _without_instructions(ptx, launch):
            yield name, partial(Variant, name, (*units[:i], (changed, launch), *units[i + 1 :]))


def _name(x: Insertion) -> str:
    return f"{x.number} {x}"


def _without_instructions(ptx: str, launch: Launch) -> Iterator[tuple[str, str]]:
    """The PTX without each instruction that lowering inserts by itself."""
    entry = parse(ptx).entries[launch.entry]
    instructions = entry.instructions
    events = any(i.opcode.startswith("mbarrier.init") for i in instructions)
    remote = any(i.opcode.startswith("barrier.cluster") for i in instructions)
    for n, ins in enumerate(instructions):
        for opcode, name in _OF_LOWERING:
            if ins.opcode.startswith(opcode):
                last = instructions[n + 1] if opcode.endswith("arrive") else ins
                yield f"{name} (PTX line {ins.line})", ptx[: ins.start] + ptx[last.end :]
    if events and not remote:
        start = next(i for i in instructions if i.opcode.startswith(("bar.sync", "barrier.sync")))
        yield f"barrier at the start (PTX line {start.line})", ptx[: start.start] + ptx[start.end :]


def run(
    variant: Variant,
    arguments: Arguments,
    wanted: Mapping[str, Any] | None,
    schedules: Sequence[int] = range(20),
    blocks: int = 0,
) -> Outcome:
    """Run ``variant`` under schedules until one finds a hazard or other results than ``wanted``.

    ``blocks``: run so many blocks of the grid only; the results are not compared then.
    """
    for i in schedules:
        values = arguments()
        for ptx, launch in variant.units:
            options: dict[str, Any] = {"seed": i, "schedule": schedule_of(i), "strict": True}
            try:
                Job(ptx, launch, values).run(max_steps=MAX_STEPS, ctas=blocks or None, **options)
            except TilemmaError as e:
                return Outcome(variant.insertion, e.code, i + 1)
        if wanted is not None and any(not _equal(values[n], a) for n, a in wanted.items()):
            return Outcome(variant.insertion, "wrong result", i + 1)
    return Outcome(variant.insertion, "", len(schedules))


def _equal(a: Any, b: Any) -> bool:
    return not isinstance(a, np.ndarray) or a.tobytes() == b.tobytes()


def intact(compiled: Compiled, arguments: Arguments) -> dict[str, Any]:
    """The arguments after a run of the whole kernel.  Raises HazardError."""
    values = arguments()
    for launch in compiled.launches:
        machine.run(compiled.ptx, launch, values, strict=True)
    return values


def survey(
    compiled: Compiled,
    arguments: Arguments,
    schedules: Sequence[int] = range(20),
    every: int = 1,
    blocks: int = 0,
    only: Container[str] | None = None,
) -> Iterator[Outcome]:
    """The outcomes of all variants, or of each ``every``-th, of the insertions ``only`` if that is given;
    ``blocks``: see `run`."""
    wanted = None if blocks else intact(compiled, arguments)
    for i, (insertion, variant) in enumerate(variants(compiled)):
        if i % every == 0 and (only is None or insertion in only):
            yield run(variant(), arguments, wanted, schedules, blocks)


def main(arch: str, file: str, shape: str, *defines: str) -> int:
    (kernel,) = load(file, dict(d.split("=") for d in defines)).kernels.values()
    dims = parse_shape(kernel.traced(), shape)
    problem = make_problem(kernel.build(sizes=dims), dims, {}, 0)
    compiled = kernel.compile(arch, facts=facts_of(problem.arrays), sizes=dims)
    failed = 0
    for x in survey(compiled, lambda: {n: a.copy() for n, a in problem.arrays.items()}):
        failed += not x.found
        print(f"{x.found or 'NOTHING'} after {x.schedules}: {x.insertion}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
