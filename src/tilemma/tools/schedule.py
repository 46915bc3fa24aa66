"""The schedule of a compiled kernel as a timeline, from a run on the PTX machine: which agent copies, multiplies
and stores which stage, and what it waits for.

An agent is a warp or the warps of a warpgroup, named by its role: a producer copies, a consumer multiplies.
Copies by TMA and `cp.async`, wgmma and stores by TMA run on their own and have rows of their own.  The machine has
no clock: the order of events is one that the hardware may have, the lengths are not times.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from tilemma.compiler import Compiled
from tilemma.display import Displayed
from tilemma.errors import visible
from tilemma.explain import Explanation
from tilemma.ir import tile as t
from tilemma.ir.walk import walk
from tilemma.kernels import Kernel, facts_of
from tilemma.launch import Launch
from tilemma.machine.parser import parse
from tilemma.machine.run import Job
from tilemma.machine.timeline import Bar, Timeline
from tilemma.passes.scope import Dependence, blocks
from tilemma.passes.threads import Node, Tree
from tilemma.tools.output import say, write_file
from tilemma.tools.problem import make_problem, parse_scalars, parse_shape
from tilemma.tools.sizes import filling_sizes

_WARPGROUP = 4
_WARP = re.compile(r"(stores of )?(warp|warpgroup) (\d+)")


@dataclass
class Schedule(Displayed):
    """The timelines of one block of each launch, by entry; ``dims``: the sizes of the run.

    ``notes``: what the compiler has pipelined, and what stopped it elsewhere.
    """

    kernel: str
    arch: str
    dims: dict[str, int]
    timelines: dict[str, Timeline] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        sizes = ", ".join(f"{k}={v}" for k, v in self.dims.items())
        return f"schedule of {self.kernel} on {self.arch}{' at ' if sizes else ''}{sizes}"

    def __repr__(self) -> str:
        return f"<tilemma {self.title}; see .text(), .svg(), .html()>"

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = 100) -> str:
        """A row for each agent: ``=`` it runs, or an operation is in flight; ``M`` it multiplies, ``S`` stores;
        ``.`` a wait; ``#`` several operations; ``|`` an event's generation completes."""
        parts = [self.title]
        for entry, timeline in self.timelines.items():
            parts += [f"{entry}:"] * (len(self.timelines) > 1)
            parts.append(timeline.text(width))
        return "\n".join([*parts, *(f"  {n}" for n in self.notes)])

    def svg(self, width: int = 1200) -> str:
        """The timelines as pictures, one below the other (one file for each launch: take `timelines`)."""
        return "\n".join(x.svg(width) for x in self.timelines.values())

    def html(self) -> str:
        """A page by itself: no network, no script."""
        pictures = "\n".join(f"<figure>{x.svg()}</figure>" for x in self.timelines.values())
        notes = "".join(f"<li>{escape(visible(n))}</li>" for n in self.notes)
        title = escape(visible(self.title))
        return (
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>'
            "body{font:14px system-ui,sans-serif;margin:2em}figure{margin:0;overflow-x:auto}"
            "@media(prefers-color-scheme:dark){body{background:#12181f;color:#e4e7eb}}"
            f"</style></head><body>\n<h1>{title}</h1>\n{pictures}\n<ul>{notes}</ul>\n</body></html>\n"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "arch": self.arch,
            "dims": self.dims,
            "launches": {e: [b.to_json() for b in x.bars] for e, x in self.timelines.items()},
            "notes": self.notes,
        }


def schedule(
    kernel: Kernel,
    constants: Mapping[str, Any],
    *,
    arch: str = "sm_90a",
    shape: str | None = None,
    args: Sequence[str] = (),
    seed: int = 0,
) -> Schedule:
    """The schedule of ``kernel`` with sizes ``shape`` (by default one tile of each dimension, and enough along the
    loops to fill the rings of buffers twice).  Raises HazardError, BadShape or BadArgument."""
    built = kernel.traced(**constants)
    scalars = parse_scalars(built, args)
    first = kernel.compile(arch, **constants)
    dims = filling_sizes(first.source, first.kernel) if shape is None else parse_shape(built, shape)
    problem = make_problem(kernel.build(sizes=dims, **constants), dims, scalars, seed)
    compiled = kernel.compile(arch, facts=facts_of(problem.arrays), sizes=dims, **constants)
    found = Schedule(kernel.name, arch, dims, notes=pipeline_notes(compiled.explain()))
    values = {**problem.arrays, **problem.scalars}
    for launch, block in zip(compiled.launches, blocks(compiled.kernel), strict=True):
        with contextlib.redirect_stdout(io.StringIO()):
            report = Job(compiled.ptx, launch, values).run(seed=seed, schedule="random", trace=True)
        assert report.timeline is not None
        agents = _agents(block, compiled.kernel)
        found.timelines[launch.entry] = _of_agents(report.timeline, agents, _lines(compiled, launch))
    return found


def of_kernel(
    kernel: Kernel,
    arch: str = "sm_90a",
    *,
    sizes: Mapping[str, int] | None = None,
    scalars: Mapping[str, Any] | None = None,
    **constants: Any,
) -> Schedule:
    """`schedule` with ``sizes`` of the dimensions and values of the ``scalars`` as mappings: `Kernel.schedule`."""
    shape = None if sizes is None else ",".join(f"{n}={v}" for n, v in sizes.items())
    args = [f"{n}={v}" for n, v in (scalars or {}).items()]
    return schedule(kernel, constants, arch=arch, shape=shape, args=args)


def write_schedule(found: Schedule, path: str, *, source: str, force: bool) -> None:
    """Write ``found`` to ``path``, as its name ends: ``.svg``, ``.html``, else text; ``-`` prints the text.

    Raises CannotWrite; ``source``: the program's file, which is not replaced.
    """
    if path == "-":
        say(found.text())
        return
    ways = {".svg": found.svg, ".html": found.html}
    text = ways.get(Path(path).suffix, lambda: found.text() + "\n")()
    write_file(path, text.encode(), source=source, force=force)


def pipeline_notes(plan: Explanation) -> list[str]:
    """The loops that are pipelined, and the obstacles for the others."""
    return [f"{d.subject}: {d.text}" for d in plan.decisions if d.pass_name == "pipeline"]


def _lines(compiled: Compiled, launch: Launch) -> dict[int, int]:
    """The line of the program of each line of PTX."""
    entry = parse(compiled.ptx).entries[launch.entry]
    return {i.line: i.location.line for i in entry.instructions if i.location is not None}


# ---- agents ----------------------------------------------------------------------------------------------


def _agents(block: t.Parallel, kernel: t.Kernel) -> list[str]:
    """The name of the agent of each warp of the block."""
    tree = Tree(block, Dependence(kernel.body))
    warps = tree.threads // 32
    roles: list[Node | None] = [None] * warps
    for node in tree.walk():
        role = node.role
        if role is not None and node.parent.role is role:
            for warp in np.unique(np.flatnonzero(node.parent.mask) // 32).tolist():
                roles[warp] = role
    wide = warps // _WARPGROUP >= 1 and any(isinstance(op, t.Mma) and op.tiles for op in walk(block.body))
    names: list[str] = []
    for warp in range(warps):
        first = warp // _WARPGROUP * _WARPGROUP
        last = min(first + _WARPGROUP, warps) - 1
        group = f"warps {first}-{last}" if wide and last > first else f"warp {warp}"
        names.append(f"{_role_name(roles[warp])}{group}")
    return names


def _role_name(role: Node | None) -> str:
    if role is None:
        return ""
    inside = list(walk((role.op,)))
    if any(isinstance(op, t.Mma) for op in inside):
        return "consumer, "
    return "producer, " if any(isinstance(op, t.Copy) for op in inside) else "role, "


def _of_agents(timeline: Timeline, agents: list[str], lines: Mapping[int, int]) -> Timeline:
    """The bars of the first block, with the warps of an agent joined."""
    cta = min(timeline.ctas, default=(0, 0, 0))
    out = Timeline()
    mine = [b for b in timeline.bars if b.cta == cta]
    for agent in dict.fromkeys(agents):
        warps = [f"warp {w}" for w, name in enumerate(agents) if name == agent]
        bars = [b for b in mine if b.actor in warps]
        whole = [b for b in bars if b.what == "warp"]
        if whole:
            out.add(
                replace(whole[0], actor=agent, start=min(b.start for b in whole), end=max(b.end for b in whole))
            )
        waits = [[b for b in bars if b.what == "wait" and b.actor == w] for w in warps]
        end = max((b.end for b in whole), default=0)
        for own, b in ((own, b) for b in whole for own, w in zip(waits, warps, strict=True) if b.actor == w):
            # A warp that has ended keeps no other from waiting.
            own += [replace(b, what="wait", start=b.end, end=end, about="")] * (b.end < end)
        for b in (*_all_wait(waits), *_joined(b for b in bars if b.what in ("mma", "store"))):
            out.add(replace(b, actor=agent))
    threads = [replace(b, actor=f"copies into {b.about}") for b in mine if b.what == "cp.async" and b.about]
    for name in sorted({b.actor for b in threads}):
        for b in _joined(b for b in threads if b.actor == name):
            out.add(b)
    for b in mine:
        if b.what not in ("warp", "wait", "mma", "store") and not (b.what == "cp.async" and b.about):
            out.add(replace(b, actor=_renamed(b, agents)))
    out.bars = [replace(b, about=_about(b, lines)) for b in out.bars]
    return out


def _all_wait(waits: list[list[Bar]]) -> Iterator[Bar]:
    """The times in which all warps of an agent wait."""
    common, *others = waits
    for other in others:
        common = [
            replace(a if a.about else b, start=max(a.start, b.start), end=min(a.end, b.end))
            for a in common
            for b in other
            if max(a.start, b.start) < min(a.end, b.end)
        ]
    yield from common


def _joined(bars: Iterable[Bar]) -> Iterator[Bar]:
    """Bars of one kind that overlap, as one."""
    last: dict[str, Bar] = {}
    for b in sorted(bars, key=lambda b: b.start):
        before = last.get(b.what)
        if before is not None and b.start <= before.end:
            last[b.what] = replace(before, end=max(before.end, b.end))
            continue
        if before is not None:
            yield before
        last[b.what] = b
    yield from last.values()


def _renamed(bar: Bar, agents: list[str]) -> str:
    """The actor of an asynchronous operation, with the name of the agent that issued it."""
    match = _WARP.fullmatch(bar.actor)
    if match is None:
        return bar.actor
    number = int(match[3]) * (_WARPGROUP if match[2] == "warpgroup" else 1)
    what = "TMA stores of" if match[1] else "wgmma of"
    return f"{what} {agents[number]}" if number < len(agents) else bar.actor


def _about(bar: Bar, lines: Mapping[int, int]) -> str:
    place = f"line {lines[bar.line]}" if bar.line in lines else ""
    return f"{bar.about} ({place})" if bar.about and place else bar.about or place
