"""One run of a kernel on the PTX machine, as a page shows it: timelines, and the block that wrote each element."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilemma import machine
from tilemma.compiler import Compiled
from tilemma.machine.recording import Recording
from tilemma.machine.timeline import Cta, Timeline
from tilemma.records import record

# Bars of a page's timelines; rectangles of the map of an array.
MAX_BARS, MAX_RECTANGLES = 6_000, 4_000
# Warp instructions of the run.
MAX_STEPS = 3_000_000


@record
class Tiles:
    """The parts of an array by the block that wrote them, (row, column, rows, columns, block), rows of its view in
    two dimensions."""

    array: str
    shape: tuple[int, ...]
    parts: tuple[tuple[int, int, int, int, int], ...]
    blocks: tuple[Cta, ...]
    note: str = ""


@record
class Ran:
    """One launch on the machine.  ``shown`` are the blocks whose timelines a page has."""

    steps: int
    timeline: Timeline
    shown: tuple[Cta, ...]
    blocks: int
    tiles: tuple[Tiles, ...]
    hazards: tuple[str, ...]
    notes: tuple[str, ...]


def run(compiled: Compiled, values: Mapping[str, Any], seed: int) -> list[Ran]:
    """Every launch in order, each on the arrays that those before it left.  Raises the machine's errors."""
    arrays = {n: v.copy() if hasattr(v, "copy") else v for n, v in values.items()}
    found = []
    for launch in compiled.launches:
        recording = machine.record(compiled.ptx, launch, arrays, seed=seed, max_steps=MAX_STEPS)
        written = [a.name for a in launch.arrays if a.written]
        found.append(_ran(recording, written))
        with contextlib.redirect_stdout(io.StringIO()):
            for name in written:
                arrays[name] = np.ascontiguousarray(recording.array(name))
    return found


def _ran(recording: Recording, written: list[str]) -> Ran:
    report = recording.report
    timeline = report.timeline
    assert timeline is not None
    ctas, bars = timeline.ctas, 0
    shown: list[Cta] = []
    for cta in sorted(ctas, key=lambda c: c[::-1]):
        bars += sum(b.cta == cta for b in timeline.bars)
        if shown and bars > MAX_BARS:
            break
        shown.append(cta)
    return Ran(
        report.steps, timeline, tuple(shown), len(ctas), tuple(_tiles(recording, name) for name in written),
        tuple(h.render() for h in report.hazards), tuple(dict.fromkeys(str(n) for n in report.notes)),
    )  # fmt: skip


def _tiles(recording: Recording, name: str) -> Tiles:
    """The last writer of each element, in rectangles."""
    array = recording.array(name)
    placed = recording.placed[name]
    last = np.full(len(placed.allocation.data), -1, np.int32)
    blocks: dict[Cta, int] = {}
    for s in recording.stores:
        if s.allocation is placed.allocation:
            number = blocks.setdefault(s.warp.cta.index, len(blocks))
            last[s.offsets[:, None] + np.arange(s.width)] = number
    if not array.size:
        return Tiles(name, array.shape, (), (), "it has no elements")
    strides = recording.arrays[name].strides
    offsets = np.full(array.shape, placed.start, np.int64)
    for axis, stride in enumerate(strides):
        offsets += (np.arange(array.shape[axis]) * stride).reshape(
            [-1 if i == axis else 1 for i in range(array.ndim)]
        )
    owners = last[offsets].reshape(-1, array.shape[-1]) if array.ndim else last[offsets].reshape(1, 1)
    parts = _rectangles(owners)
    if len(parts) > MAX_RECTANGLES:
        note = f"{len(parts)} parts; a picture has at most {MAX_RECTANGLES}"
        return Tiles(name, array.shape, (), tuple(blocks), note)
    return Tiles(name, array.shape, tuple(parts), tuple(blocks))


def _rectangles(owners: Any) -> list[tuple[int, int, int, int, int]]:
    """Bands of equal rows, each cut where the owner changes."""
    changes = np.flatnonzero((owners[1:] != owners[:-1]).any(axis=1)) + 1
    parts = []
    for first, end in zip([0, *changes], [*changes, len(owners)], strict=True):
        row = owners[first]
        cuts = np.flatnonzero(row[1:] != row[:-1]) + 1
        for left, right in zip([0, *cuts], [*cuts, len(row)], strict=True):
            if row[left] >= 0:
                parts.append((int(first), int(left), int(end - first), int(right - left), int(row[left])))
    return parts
