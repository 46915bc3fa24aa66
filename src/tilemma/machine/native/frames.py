"""Frames that run in C (``frame.c``): sequences on registers, plain accesses to memory and branches of whole
frames, up to the first step that is something else, and the records of them that the Python side keeps."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilemma.machine.native.blocks import COPY as COPY_SIZE
from tilemma.machine.native.blocks import PlainAccess, address_of

if TYPE_CHECKING:
    from tilemma.machine.program import Program, Step
    from tilemma.machine.scheduler import Machine
    from tilemma.machine.state import Frame, Warp

(
    OTHER, SEQUENCE, BRANCH, SHARED_LOAD, SHARED_STORE, GLOBAL_LOAD, GLOBAL_STORE, MATRIX_LOAD, EXCHANGE, COPY,
) = range(10)  # fmt: skip
# How a call ends: at another step, with the budget spent, within a sequence, or with its tables full.
STOPPED, SPENT, PARTLY, FULL = range(4)
_KINDS = {
    "SHARED_LOAD": (SHARED_LOAD, "ld", "bank-conflict"), "SHARED_STORE": (SHARED_STORE, "st", "bank-conflict"),
    "GLOBAL_LOAD": (GLOBAL_LOAD, "ld", "uncoalesced"), "GLOBAL_STORE": (GLOBAL_STORE, "st", "uncoalesced"),
    "MATRIX_LOAD": (MATRIX_LOAD, "ldmatrix", "bank-conflict"), "COPY": (COPY, "cp.async", "bank-conflict"),
}  # fmt: skip
# `program.BRANCH`, whose module imports this one.
_BRANCH = 2
# As in ``frame.c``.
_EVENTS, _ORIGINS, _COPIES = 256, 64, 16
_GIVEN, _CHANGED = struct.Struct("26q"), struct.Struct("11q")
_OUT = 15 * 8
# Steps of one call at most.
_LIMIT = 1 << 20


class Table:
    """The steps of a program as ``frame.c`` reads them."""

    def __init__(self, program: Program) -> None:
        steps = program.steps
        self.array = np.zeros((len(steps) + 1, 7), np.int64)
        self.address = address_of(self.array)
        # Kind of event and of note, and the registers of an ldmatrix, by step.
        self.events: dict[int, tuple[str, str, tuple[int, ...]]] = {}
        self.matrices = self.copies = False
        for at, step in enumerate(steps):
            guard = -1 if step.guard < 0 else step.guard << 1 | step.negated
            segment = program.segments[at]
            if segment is not None:
                if segment.operations is not None:
                    place = ctypes.addressof(segment.operations)
                    self.array[at] = SEQUENCE, segment.next, -1, segment.count, place, 0, 0
            elif step.check_guard is not None:
                continue
            elif step.kind == _BRANCH:
                if not step.targets and step.target >= 0:
                    self.array[at] = BRANCH, step.target, guard, 0, 0, 0, 0
            elif step.plain is not None and step.run is step.encoded and _untracked(step.plain, program.followed):
                self._access(at, guard, step.plain)
        self.kinds: list[int] = self.array[:, 0].tolist()

    def _access(self, at: int, guard: int, plain: PlainAccess) -> None:
        if plain.kind == "EXCHANGE":
            self.array[at] = EXCHANGE, 0, guard, 0, plain.block.address, 0, 0
            return
        kind, event, about = _KINDS[plain.kind]
        lanes = 0 if plain.lanes is None else address_of(plain.lanes)
        halves = 0 if plain.halves is None else address_of(plain.halves)
        self.array[at] = kind, 0, guard, 0, plain.block.address, lanes, halves
        self.events[at] = event, about, plain.registers
        self.matrices |= kind == MATRIX_LOAD
        self.copies |= kind == COPY


def _untracked(plain: PlainAccess, followed: frozenset[int]) -> bool:
    """Whether the origins of the data registers are not followed."""
    if plain.kind == "GLOBAL_LOAD":
        return followed.isdisjoint(plain.words)
    return plain.kind != "SHARED_STORE" or not plain.words or not plain.words <= followed


class Runner:
    """Runs the frames of one machine."""

    def __init__(self, machine: Machine, table: Table) -> None:
        self.machine, self.table, self.kinds = machine, table, table.kinds
        self.steps = machine.program.steps
        self.buffer = bytearray(_GIVEN.size + 4 * _EVENTS)
        kept = (ctypes.c_char * len(self.buffer)).from_buffer(self.buffer)
        self.address = ctypes.addressof(kept)
        self.made = (ctypes.c_int32 * _EVENTS).from_buffer(self.buffer, _GIVEN.size)
        covered = (ctypes.c_char * len(machine.covered)).from_buffer(machine.covered)
        self.counted = np.zeros((len(self.steps), 3), np.int64)
        self.surplus = np.zeros((len(self.steps), 3), np.int64)
        self._kept = kept, covered
        self._make_room()
        self.fixed = table.address, ctypes.addressof(covered), address_of(self.counted)
        self.call = machine.native.run_frame

    def _make_room(self) -> None:
        """Room for the copies that a call issues; their agents keep it."""
        self.copies = np.empty((_COPIES, COPY_SIZE), np.int64)
        self.room = address_of(self.copies), address_of(self.surplus)

    def run(self, f: Frame, pc: int, budget: int) -> tuple[int, int, int, int]:
        """Run ``f`` from ``pc`` on.

        Returns how the call ended, the step reached, the budget left, and how many operations of the sequence
        there have been executed.
        """
        w, machine = f.w, self.machine
        cluster, shared = w.cta.cluster, w.cta.shared
        events, row = cluster.events, w.row
        now = cluster.clocks.now[row]
        room = len(events.column)
        if room - events.count < _EVENTS:
            events.grow()
            room = len(events.column)
        collective, origins, place = -1, None, 0
        if self.table.matrices and w.collective == now:
            collective = cluster.clocks.columns["collective", row]
            if shared.origin is not None:
                origins = np.empty((_ORIGINS, 32, 2), np.int64)
                place = address_of(origins)
        column = -1 if w.copies is None else w.copies.column
        limit = min(machine.max_steps - machine.steps, _LIMIT)
        _GIVEN.pack_into(
            self.buffer, 0, w.native, *self.fixed, f.rpc, len(f.lanes), limit, w.floor, now, room, collective,
            place, column, *self.room, pc, budget, 0, 0, events.count, 0, 0, 0, 0, 0, 0,
        )  # fmt: skip
        m = f.m
        how = self.call(self.address, None if m is None else m.tobytes())
        (
            pc, budget, executed, done, count, made, stores, read, written, registers, issued,
        ) = _CHANGED.unpack_from(self.buffer, _OUT)  # fmt: skip
        machine.steps += executed
        machine.progress += stores
        if made:
            known, steps = w.by_step, self.made[:made]
            try:
                events.info += [known[s] for s in steps]
            except KeyError:
                for s in set(steps):
                    step = s if s >= 0 else ~s
                    kind = "ld" if s < 0 else self.table.events[s][0]
                    known[s] = w.access(kind, self.steps[step].instruction)
                events.info += [known[s] for s in steps]
            events.count = count
            if read:
                w.reader.last = read
                shared.last_read = max(shared.last_read, read)
            if written:
                shared.last_write = max(shared.last_write, written)
            if registers:
                events.collective = True
                if origins is not None:
                    self._keep(w.origins, origins, steps)
            if issued:
                self._issue(w, [self.steps[s] for s in steps if s >= 0 and self.kinds[s] == COPY])
        return how, pc, budget, done

    def _keep(self, known: dict[int, Any], origins: Any, steps: Sequence[int]) -> None:
        """Enter the origins of what ldmatrix has loaded."""
        names = [r for s in steps if s >= 0 for r in self.table.events[s][2]]
        known.update(zip(names, origins, strict=False))

    def _issue(self, w: Warp, steps: Sequence[Step]) -> None:
        """Enter the copies that C has issued, of ``steps`` in order."""
        address, size = self.room[0], 8 * COPY_SIZE
        for i, step in enumerate(steps):
            copy = self.copies[i]
            assert step.plain is not None
            agent = step.plain.agent(w, step.instruction, copy, (copy, address + i * size))
            w.copies.open.append(agent)
            self.machine.issue(agent)
        self._make_room()

    def counts(self) -> list[tuple[str, Any, tuple[int, int, int]]]:
        """Kind of note, instruction, and executions, surplus and worst, of each access that C has made; once."""
        found = []
        for about, table in (("uncoalesced", self.surplus), ("", self.counted)):
            for i in np.flatnonzero(table[:, 0]).tolist():
                kind = about or self.table.events[i][1]
                found.append((kind, self.steps[i].instruction, tuple(table[i].tolist())))
            table[:] = 0
        return found
