"""The state inside a run, at a PTX line: registers of a lane, shared memory as an instruction reads it, and
the instructions that wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilemma.checked import checked, instance, integer, one_of
from tilemma.dtypes import dtype
from tilemma.launch import Launch
from tilemma.machine import call
from tilemma.machine.arguments import refuse
from tilemma.machine.hazards import Place
from tilemma.machine.isa import descriptors
from tilemma.machine.program import VISIBLE, build_segments
from tilemma.machine.recording import typed
from tilemma.machine.run import Job
from tilemma.machine.scheduler import Machine, Stop
from tilemma.machine.state import Access, Frame, Warp
from tilemma.machine.syntax import TYPE_BYTES


class _Reached(Exception):
    """The line has been reached."""


@dataclass(frozen=True)
class View:
    """The state of one warp and its CTA just before it executes a line.

    ``shared`` is a copy of the CTA's shared memory, by shared address.
    """

    line: int
    instruction: str
    warp: int
    cta: tuple[int, int, int]
    active: tuple[int, ...]
    shared: npt.NDArray[np.uint8]
    files: Mapping[str, Any]
    rows: Mapping[str, tuple[str, int, str]]
    # For each byte of shared memory the store that wrote it last, as a packed event; the events' accesses.
    writers: npt.NDArray[np.int32]
    events: Mapping[int, Access]

    def writer(self, address: int) -> tuple[Place, int] | None:
        """The instruction and the lane that wrote the byte at a shared address last; None if there is none.

        Of a copy the instruction is the one that issued it.
        """
        if not 0 <= call.integer("`address`", address) < len(self.writers):
            refuse(f"the address {address}", f"below {len(self.writers)}", "stay in shared memory")
        packed = int(self.writers[address])
        access = self.events.get(packed)
        return None if access is None else (access.place, packed & 31)

    @checked(name=instance("the name of a register", str))
    def register(self, name: str) -> npt.NDArray[Any]:
        """The register ``name`` in all 32 lanes, in its declared type (bits as unsigned integers)."""
        if name not in self.rows:
            refuse(
                f"there is no register `{name}`",
                f"one of {', '.join(sorted(self.rows)[:12])}, ...",
                "name one of these",
            )
        cls, row, kind = self.rows[name]
        return np.asarray(typed(self.files[cls][row], cls, kind))

    @checked(lane=integer(0, 31))
    def lane(self, lane: int) -> dict[str, Any]:
        """All registers of one lane."""
        return {name: self.register(name)[lane].item() for name in self.rows}

    @checked(
        descriptor=integer(0, (1 << 64) - 1), rows=integer(1, 256), k=integer(1, 1024), major=one_of("K", "MN")
    )
    def tile(
        self, descriptor: int, rows: int, k: int, element: str, major: descriptors.Major = "K"
    ) -> npt.NDArray[Any]:
        """The operand [rows, k] that wgmma reads through ``descriptor``: 64 rows for A, n for B."""
        t = dtype(element)
        at = descriptors.operand_addresses(descriptors.decode(descriptor), rows, k, t.bits, major)
        return self.matrix(at, element)

    def matrix(self, addresses: Any, element: str) -> npt.NDArray[Any]:
        """The elements at shared addresses, in the addresses' shape."""
        t = dtype(element)
        at = np.asarray(addresses if isinstance(addresses, np.ndarray) else _integers(addresses))
        if at.dtype.kind not in "iu" or not at.size:
            refuse("the addresses are no integers, or none", "an array of shared addresses", "pass one")
        if int(at.min()) < 0 or int(at.max()) + t.bytes > len(self.shared):
            refuse(
                f"addresses {int(at.min())} to {int(at.max())}",
                f"below {len(self.shared)}",
                "stay in shared memory",
            )
        raw = self.shared[at[..., None] + np.arange(t.bytes)]
        return np.asarray(np.ascontiguousarray(raw).view(t.numpy)[..., 0])


def _integers(addresses: Any) -> Any:
    """A list or tuple of integers, nested or not; an empty one for other values."""
    try:
        return np.asarray(addresses) if isinstance(addresses, (list, tuple)) else []
    except (ValueError, OverflowError, RecursionError):
        return []


def inspect(
    ptx: str,
    launch: Launch | Mapping[str, Any],
    args: Mapping[str, Any],
    line: int,
    *,
    warp: int = 0,
    cta: tuple[int, int, int] = (0, 0, 0),
    occurrence: int = 0,
    arch: str | None = None,
    **options: Any,
) -> View:
    """Run until ``warp`` of ``cta`` is about to execute PTX ``line`` for the ``occurrence``-th time (from 0).

    Arrays are not written.  Hazards on the way are raised as by `run`; LaunchError where the warp never gets
    there.  ``options`` are those of `run`: seed, schedule, strict, max_steps.
    """
    line, warp, occurrence = (
        call.integer(f"`{n}`", v) for n, v in (("line", line), ("warp", warp), ("occurrence", occurrence))
    )
    cta = call.triple("cta", cta, rest=0)
    if unknown := set(options) - {"seed", "schedule", "strict", "max_steps"}:
        refuse(f"`inspect` has no option `{min(unknown)}`", "seed, schedule, strict or max_steps", "drop it")
    options |= call.options(**{n: v for n, v in options.items() if n != "schedule"})
    call.schedule(options.get("schedule", "random"))
    job = Job(ptx, launch, args, arch)
    b = job.binding
    warps = -(-(b.block[0] * b.block[1] * b.block[2]) // 32)
    if not 0 <= warp < warps:
        refuse(f"warp {warp}", f"a warp of the block, 0 to {warps - 1}", "correct it")
    if not all(0 <= i < n for i, n in zip(cta, b.grid, strict=True)):
        refuse(f"CTA {cta}", f"a CTA of the grid {b.grid}, counted from 0", "correct it")
    steps = [s for s in job.program.steps if s.instruction.line == line]
    if not steps:
        refuse(f"PTX line {line} has no instruction", "a line with one", "count lines of the PTX text from 1")
    step = steps[0]
    inner, was_visible = step.run, step.kind == VISIBLE
    found: list[View] = []
    left = occurrence

    def hook(f: Frame, m: Any) -> Any:
        nonlocal left
        if f.w.index == warp and f.w.cta.index == cta:
            if left == 0:
                found.append(_view(f, m, line))
                raise _Reached
            left -= 1
        return inner(f if was_visible else f.w, m)

    if step.kind in (2, 3):
        refuse(f"PTX line {line} is a branch or an exit", "a line that computes", "name the next line")
    step.run, step.kind = hook, VISIBLE
    build_segments(job.program)
    machine, _ = job.machine(**options)
    try:
        machine.run()
    except _Reached:
        return found[0]
    except Stop:
        pass
    return refuse(
        f"warp {warp} of CTA {cta} does not execute PTX line {line} {occurrence + 1} times",
        "a line that the warp reaches",
        "name another warp, CTA or occurrence",
    )


def _view(f: Frame, m: Any, line: int) -> View:
    w: Warp = f.w
    machine: Machine = w.cta.machine
    program = machine.program
    rows: dict[str, tuple[str, int, str]] = {}
    kinds = {r.name: r.type for r in program.entry.registers}
    for name, (cls, row) in program.register_rows.items():
        assert kinds[name] == "pred" or kinds[name] in TYPE_BYTES
        rows[name.split("@")[0]] = (cls, row, kinds[name])
    files = {cls: file[w.index].copy() for cls, file in w.cta.registers.items()}
    active = f.lanes if m is None else np.flatnonzero(m)
    text = program.steps[f.pc].instruction.text
    lanes = tuple(int(x) for x in active)
    writers, events = w.cta.shared.writer.copy(), w.cta.cluster.events
    known = {int(e): events.of(int(e)) for e in np.unique(writers) if e}
    return View(line, text, w.index, w.cta.index, lanes, w.cta.shared.data.copy(), files, rows, writers, known)
