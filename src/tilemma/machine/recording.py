"""A recorded run: the stores to each element of the arrays, the instructions of a lane, the time of each warp.

``record`` runs PTX once and keeps the data for later queries: the store that wrote an element, the first store
whose value differs from a reference, the instruction that wrote a register.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilemma.errors import Note, Span, described, excerpt
from tilemma.launch import Launch
from tilemma.machine import call
from tilemma.machine.arguments import refuse
from tilemma.machine.hazards import Place, inlining, shorten
from tilemma.machine.memory import Allocation
from tilemma.machine.placement import Placed
from tilemma.machine.program import ALU, VISIBLE, Program, Step, build_segments
from tilemma.machine.run import MAX_STEPS, Job, Report
from tilemma.machine.scheduler import AGAIN
from tilemma.machine.state import LANES, Warp
from tilemma.machine.syntax import Instruction

# Stores and trace entries that a recording keeps.
MAX_ENTRIES = 1_000_000
Lane = tuple[tuple[int, int, int], int, int]


@dataclass(frozen=True)
class Executed:
    """One instruction that one lane has executed, after ``step`` warp instructions of the grid.

    ``values`` are the registers that it wrote, or the element of an array.
    """

    step: int
    place: Place
    lane: int
    values: Mapping[str, Any]

    @property
    def line(self) -> int:
        return self.place.instruction.line

    @property
    def span(self) -> Span:
        return self.place.span

    def __str__(self) -> str:
        values = ", ".join(f"{name} = {value}" for name, value in self.values.items())
        text = shorten(self.place.instruction)
        return f"step {self.step}, {self.place}, lane {self.lane}: {text}" + (f"  {values}" if values else "")

    def render(self) -> str:
        """The instruction, its source line, and the calls through which it was inlined."""
        notes = [Note("", self.span), *inlining(self.place.instruction.location)]
        lines = [str(self)]
        for note in notes:
            lines += [f"  {note.text}"] if note.text else []
            lines += excerpt(note.span) if note.span is not None else []
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        place = self.place
        return {
            "step": self.step, "ptx_line": self.line, "span": self.span.to_json(), "warp": place.warp,
            "cta": place.cta, "lane": self.lane, "instruction": shorten(place.instruction),
            "values": {name: getattr(v, "item", lambda v=v: v)() for name, v in self.values.items()},
        }  # fmt: skip


@dataclass(slots=True)
class _Store:
    """One store to global memory: by lane ``lanes[i]``, ``width`` bytes ``data[i]`` at ``offsets[i]``."""

    step: int
    warp: Warp
    instruction: Instruction
    allocation: Allocation
    lanes: Any
    offsets: Any
    width: int
    data: Any


@dataclass(frozen=True)
class Difference:
    """An element that differs from a reference; ``store`` wrote it last, None if no store did.

    ``count`` elements differ in all.
    """

    index: tuple[int, ...]
    value: Any
    wanted: Any
    count: int
    store: Executed | None

    def render(self) -> str:
        head = f"{self.count} element{'s differ' if self.count > 1 else ' differs'}; "
        if self.store is None:
            return f"{head}no store has written {list(self.index)}: {self.value} instead of {self.wanted}"
        head += (
            f"the first store of a wrong value leaves {self.value} instead of {self.wanted} at {list(self.index)}"
        )
        return f"{head}\n{self.store.render()}"


@dataclass
class Recording:
    """The recording of a run; ``report`` has its hazards and its timeline."""

    report: Report
    placed: Mapping[str, Placed]
    arrays: Mapping[str, Any]
    lanes: Sequence[Lane] = ()
    stores: list[_Store] = field(default_factory=list)
    traces: dict[Lane, list[Executed]] = field(default_factory=dict)
    registers: frozenset[str] = frozenset()

    # -- callbacks of the machine
    def stored(
        self, w: Warp, ins: Instruction, allocation: Allocation, lanes: Any, offsets: Any, width: int, data: Any
    ) -> None:
        """A store, atomic operation or bulk store has written global memory."""
        if len(self.stores) < MAX_ENTRIES:
            step = w.cta.machine.steps
            raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1, width).copy()
            self.stores.append(_Store(step, w, ins, allocation, np.asarray(lanes), offsets.copy(), width, raw))

    # -- questions
    def array(self, name: str) -> Any:
        """The contents of the array ``name`` after the run."""
        array = self._named(name)
        return np.asarray(self.placed[name].elements(array)).view(array.dtype)

    def writers(self, name: str, index: int | Sequence[int]) -> list[Executed]:
        """The stores to one element of the array ``name``, in the order of time."""
        array = self._named(name)
        at = self._offset(name, array, index)
        found = []
        for s in self.stores:
            if s.allocation is self.placed[name].allocation:
                inside = (s.offsets < at + array.itemsize) & (at < s.offsets + s.width)
                found += [self._written(s, int(i), name, array, at) for i in np.flatnonzero(inside)]
        return found

    def first_difference(self, name: str, wanted: Any, tolerance: Any = 0.0) -> Difference | None:
        """The earliest store whose value stays in ``name`` and differs from ``wanted`` by more than ``tolerance``,
        a number or one for each element.  Values that a later store overwrites do not count.
        """
        got = self.array(name)
        wanted = _numbers("wanted", wanted, got.shape)
        wrong = _differ(got, wanted, _numbers("tolerance", tolerance, got.shape))
        if not wrong.any():
            return None
        array, allocation = self._named(name), self.placed[name].allocation
        last = np.full(len(allocation.data), -1, np.int64)
        for number, s in enumerate(self.stores):
            if s.allocation is allocation:
                last[s.offsets[:, None] + np.arange(s.width)] = number
        best: tuple[int, tuple[int, ...]] | None = None
        places = [tuple(int(i) for i in at) for at in np.argwhere(wrong)]
        for index in places:
            at = self._offset(name, array, index)
            number = int(last[at : at + array.itemsize].max())
            if number >= 0 and (best is None or number < best[0]):
                best = number, index
        index = best[1] if best else places[0]
        store = self.writers(name, index)[-1] if best else None
        return Difference(index, got[index], wanted[index], len(places), store)

    def trace(self, cta: tuple[int, int, int], warp: int, lane: int) -> list[Executed]:
        """The instructions of a lane that `record` followed."""
        (key,) = _lanes([(cta, warp, lane)])
        if key not in self.traces:
            refuse(
                f"lane {lane} of warp {warp} of CTA {cta}", "a lane in `lanes=`", "record the run with this lane"
            )
        return self.traces[key]

    def register(self, name: str, lane: Lane, line: int, occurrence: int = 0) -> Executed | None:
        """The instruction that gave the register its value before the lane executed PTX ``line``; None if none."""
        if not self.registers:
            refuse("no lane was recorded", "the lane in `lanes=`", f"record the run with `lanes=[{lane!r:.60}]`")
        if not isinstance(name, str) or name not in self.registers:
            known = ", ".join(sorted(self.registers)[:12])
            refuse(f"there is no register {described(name)}", f"one of {known}, ...", "name one of these")
        ((cta, warp, number),) = _lanes([lane])
        line, left = call.integer("`line`", line), call.integer("`occurrence`", occurrence)
        found = None
        for executed in self.trace(cta, warp, number):
            if executed.line == line:
                if left == 0:
                    return found
                left -= 1
            if name in executed.values:
                found = executed
        return refuse(
            f"lane {number} of warp {warp} of CTA {cta} does not execute PTX line {line}",
            "a line that the lane executes", "name another line, lane or occurrence",
        )  # fmt: skip

    def _named(self, name: str) -> Any:
        if not isinstance(name, str) or name not in self.placed:
            refuse(f"there is no array {described(name)}", f"one of {', '.join(self.placed)}", "name one of these")
        return self.arrays[name]

    def _offset(self, name: str, array: Any, index: int | Sequence[int]) -> int:
        """The offset in the allocation of an element's first byte."""
        strides: tuple[int, ...] = array.strides
        items: list[Any] = list(index) if isinstance(index, (tuple, list)) else [index]
        inside = len(items) == array.ndim and all(
            isinstance(i, (int, np.integer)) and 0 <= i < n for i, n in zip(items, array.shape, strict=True)
        )
        if not inside:
            shown = all(isinstance(i, (int, np.integer)) and abs(int(i)) < 1 << 64 for i in items[:8])
            refuse(
                f"the index {list(map(int, items[:8])) if shown else described(index)} of `{name}`",
                f"an element of an array of shape {array.shape}",
                "correct it",
            )
        return self.placed[name].start + sum(i * s for i, s in zip(map(int, items), strides, strict=True))

    def _written(self, s: _Store, i: int, name: str, array: Any, at: int) -> Executed:
        start = at - int(s.offsets[i])
        whole = start >= 0 and start + array.itemsize <= s.width
        values = {name: s.data[i, start : start + array.itemsize].view(array.dtype)[0]} if whole else {}
        return Executed(s.step, s.warp.place(s.instruction), int(s.lanes[i]), values)


def _numbers(what: str, value: Any, shape: tuple[int, ...]) -> Any:
    """A number, or an array of numbers, in ``shape``."""
    number = isinstance(value, (int, float, np.generic)) and not isinstance(value, bool)
    if not number and not isinstance(value, np.ndarray):
        refuse(f"`{what}` is {described(value)}", "a number or an array", "pass one")
    try:
        found = np.broadcast_to(np.asarray(value), shape)
        found.astype(np.float64)
    except (ValueError, TypeError, OverflowError):
        refuse(
            f"`{what}` is {described(value)} of another shape or type", f"numbers of shape {shape}", "correct it"
        )
    return found


def _differ(got: Any, wanted: Any, tolerance: Any) -> Any:
    if got.dtype.kind in "iub":
        return got != wanted
    a, b = got.astype(np.float64), np.asarray(wanted).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return ~((np.abs(a - b) <= tolerance) | (a == b) | (np.isnan(a) & np.isnan(b)) | np.isinf(tolerance))


def _lanes(lanes: Any) -> list[Lane]:
    """``lanes`` as (CTA, warp, lane) each."""
    given: Sequence[Any] = lanes if isinstance(lanes, (tuple, list)) else [lanes]
    if not all(isinstance(x, (tuple, list)) and len(x) == 3 for x in given):
        refuse(f"`lanes` is {described(lanes)}", "a list of (CTA, warp, lane)", "write lanes=[((0, 0, 0), 0, 0)]")
    return [
        (call.triple("cta", c, rest=0), call.integer("`warp`", w), call.integer("`lane`", n)) for c, w, n in given
    ]


def _check_lanes(lanes: Sequence[Lane], grid: Sequence[int], block: Sequence[int]) -> None:
    """Refuse lanes that a launch does not have."""
    threads = math.prod(block)
    for cta, warp, lane in lanes:
        if any(not 0 <= i < n for i, n in zip(cta, grid, strict=True)):
            refuse(f"there is no CTA {cta}", f"one of the grid {tuple(grid)}", "correct it")
        if lane >= len(LANES) or len(LANES) * warp + lane >= threads:
            want = f"a lane from 0 to 31 of the {threads} threads of a block"
            refuse(f"there is no lane {lane} of warp {warp}", want, "correct it")


def record(
    ptx: str,
    launch: Launch | Mapping[str, Any],
    args: Mapping[str, Any],
    *,
    lanes: Sequence[Lane] = (),
    arch: str | None = None,
    seed: int = 0,
    schedule: str = "random",
    strict: bool = False,
    max_steps: int = MAX_STEPS,
) -> Recording:
    """Run ``ptx`` as `run` does, collecting hazards, and keep the recording.  The arrays are not changed.

    ``lanes`` are the lanes to trace, each as (CTA, warp, lane).
    """
    options = call.options(seed=seed, strict=strict, max_steps=max_steps)
    call.schedule(schedule)
    followed = _lanes(lanes)
    job = Job(ptx, launch, args, arch)
    _check_lanes(followed, job.binding.grid, job.binding.block)
    recording = Recording(Report(job.entry.name, seed, schedule), {}, job.binding.arrays, followed)
    _follow(job.program, recording)
    recording.report = job.run(
        retry=False, write_back=False, trace=True, collect=True, schedule=schedule, history=recording, **options
    )
    recording.placed = job.placed
    return recording


def _follow(program: Program, recording: Recording) -> None:
    """Wrap the steps of the program such that they record the instructions of the chosen lanes."""
    recording.traces = {lane: [] for lane in recording.lanes}
    if not recording.lanes:
        return
    kinds = {r.name: r.type for r in program.entry.registers}
    registers = {
        program.register_ids[place]: (name.split("@")[0], *place, kinds[name])
        for name, place in program.register_rows.items()
        if place in program.register_ids and name in kinds
    }
    recording.registers = frozenset(name for name, *_ in registers.values())
    for step in program.steps:
        if step.kind in (ALU, VISIBLE):
            written = [registers[r] for r in sorted(step.writes) if r in registers]
            step.run = _traced(step, step.kind == VISIBLE, written, recording)
    build_segments(program)


def _traced(
    step: Step, visible: bool, written: Sequence[tuple[str, str, int, str]], recording: Recording
) -> Callable[..., Any]:
    """The step, entered into the traces; ``written`` are its registers: name, class, row and type."""
    inner, instruction = step.run, step.instruction

    def run(x: Any, m: Any) -> Any:
        w: Warp = x.w if visible else x
        result = inner(x, m)
        for key in recording.lanes:
            cta, warp, lane = key
            if result is AGAIN or w.index != warp or w.cta.index != cta or not (m is None or m[lane]):
                continue
            entries = recording.traces[key]
            if len(entries) < MAX_ENTRIES:
                values = {
                    name: typed(w.cta.registers[cls][warp, row], cls, kind)[lane]
                    for name, cls, row, kind in written
                }
                entries.append(Executed(w.cta.machine.steps, w.place(instruction), lane, values))
        return result

    return run


def typed(values: Any, cls: str, kind: str) -> Any:
    """A row of registers of class ``cls`` as the declared type ``kind``; bits as unsigned integers."""
    as_type = {"f": np.float64 if cls == "64" else np.float32 if cls == "32" else np.float16}.get(kind[0])
    if as_type is not None and kind[:3] in ("f16", "f32", "f64") and kind != "f16x2":
        return np.asarray(values.view(as_type))
    if kind[0] == "s":
        return np.asarray(values.view(f"i{values.dtype.itemsize}"))
    return np.asarray(values)
