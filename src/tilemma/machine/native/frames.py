"""Frames that run in C (``grid.c``): sequences on registers, plain accesses to memory, branches of all lanes and
barriers, up to the first step that is something else; and the records of them on the Python side."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tilemma.machine import exit_checks, starvation
from tilemma.machine.native import encode, twister
from tilemma.machine.native.blocks import COPY as COPY_SIZE
from tilemma.machine.native.blocks import EVENTS, PlainAccess, address_of
from tilemma.machine.native.records import FrameRecord, GridRecord, QueueRecord
from tilemma.machine.state import ALL_LANES, Cluster, Frame, Warp

if TYPE_CHECKING:
    from tilemma.machine.native.products import TileProduct
    from tilemma.machine.program import Program, Step
    from tilemma.machine.scheduler import Machine

(
    OTHER, SEQUENCE, BRANCH, SHARED_LOAD, SHARED_STORE, GLOBAL_LOAD, GLOBAL_STORE, MATRIX_LOAD, EXCHANGE, COPY,
    BARRIER, WARP_BARRIER, COMMIT, AWAIT, MULTIPLY, LEAVE, WGMMA_FENCE, WGMMA_ISSUE, WGMMA_COMMIT, WGMMA_AWAIT,
    PROXY_FENCE, NOTHING, ARRIVE, WAIT, MATRIX_STORE, CLOCK, ACTIVE, FRAGMENT, BULK_AWAIT,
) = range(29)  # fmt: skip
# What the log of operations in flight says.
(
    _ISSUED, _COMPLETED, _COMMITTED, _AWAITED, _FIRST_READ, _WGMMA_FENCED, _WGMMA_ISSUED, _WGMMA_COMMITTED,
    _WGMMA_AWAITED, _SUSPENDED, _LEFT,
) = range(11)  # fmt: skip
# How a call ends: at another step, with the budget spent, within a sequence, with tables full, at a barrier; where
# an operation is to be completed or a wait to time out, where only starved warps are left, where none is ready.
STOPPED, SPENT, PARTLY, FULL, PARKED, COMPLETE, TIMED_OUT, STARVED, IDLE = range(9)
EARLY = 2
_KINDS = {
    "SHARED_LOAD": (SHARED_LOAD, "bank-conflict"), "SHARED_STORE": (SHARED_STORE, "bank-conflict"),
    "GLOBAL_LOAD": (GLOBAL_LOAD, "uncoalesced"), "GLOBAL_STORE": (GLOBAL_STORE, "uncoalesced"),
    "MATRIX_LOAD": (MATRIX_LOAD, "bank-conflict"), "MATRIX_STORE": (MATRIX_STORE, "bank-conflict"),
    "COPY": (COPY, "bank-conflict"),
}  # fmt: skip
# Steps with nothing but a kind, and groups that a wait leaves.
_BARE = {
    "COMMIT": COMMIT, "AWAIT": AWAIT, "WGMMA_FENCE": WGMMA_FENCE, "WGMMA_COMMIT": WGMMA_COMMIT,
    "WGMMA_AWAIT": WGMMA_AWAIT, "PROXY_FENCE": PROXY_FENCE, "NOTHING": NOTHING, "CLOCK": CLOCK,
    "ACTIVE": ACTIVE, "BULK_AWAIT": BULK_AWAIT,
}  # fmt: skip
# Steps with a record of their own.
_WHOLE = {"ARRIVE": ARRIVE, "WAIT": WAIT, "FRAGMENT_LOAD": FRAGMENT, "FRAGMENT_STORE": FRAGMENT}
# `program.VISIBLE`, `program.BRANCH` and `program.EXIT`, whose module imports this one.
_VISIBLE, _BRANCH, _EXIT = 1, 2, 3
# As in ``steps.c``.
_ORIGINS, _COPIES, _LOADS, _TOUCHES, _RECORDS = 64, 64, 64, 256, 64
# New frames of one call.
_FRAMES = 64
# Operations in flight, and entries of their log, at first.
_OPERATIONS = 256
# Events for which there must be room, and steps of one call, at most.
_ROOM, _LIMIT = 2, 1 << 20
_NEVER = 1 << 62
_NOTHING: dict[int, Any] = {}


class Table:
    """The steps of a program as ``grid.c`` reads them."""

    def __init__(self, program: Program) -> None:
        steps = program.steps
        self.array = np.zeros((len(steps) + 1, 7), np.int64)
        self.array[:, 2] = -1
        self.address = address_of(self.array)
        # Kind of event and of note, and the registers of an ldmatrix, by step.
        self.events: dict[int, tuple[str, str, tuple[int, ...]]] = {}
        self.matrices = self.copies = False
        # The checks around steps that touch registers of wgmma, or define registers.
        self.around: dict[int, encode.Around] = {}
        # The registers that wgmma define, by step.
        self.defined: dict[int, dict[int, Any]] = {}
        # The steps refer to them.
        self._products: list[TileProduct] = []
        clustered = any(step.instruction.opcode.startswith("barrier.cluster") for step in steps)
        for at, step in enumerate(steps):
            guard = -1 if step.guard < 0 else step.guard << 1 | step.negated
            segment = program.segments[at]
            if segment is not None:
                if segment.operations is not None:
                    place = ctypes.addressof(segment.operations)
                    around = segment.around
                    checked = 0 if around is None else 3 if around.forgets else 1
                    touches = int(around is not None and bool(around.touches))
                    self.array[at] = SEQUENCE, segment.next, -1, segment.count, place, checked, touches
                    if around is not None:
                        self.around[at] = around
            elif step.check_guard is not None:
                continue
            elif step.kind == _BRANCH:
                if not step.targets and step.target >= 0:
                    self.array[at] = BRANCH, step.target, guard, program.reconverge[at], 0, 0, 0
            elif step.kind == _EXIT:
                self.array[at] = LEAVE, 0, guard, clustered, 0, 0, 0
            elif step.barrier >= 0:
                kind = BARRIER if step.instruction.parts[1] != "warp" else WARP_BARRIER
                self.array[at] = kind, 0, guard, step.barrier, 0, 0, 0
            elif (product := _product(program, at)) is not None:
                self.array[at] = MULTIPLY, 0, guard, 0, product.block, 0, 0
                self._products.append(product)
            elif step.kind == _VISIBLE:
                # Python executes the step where a lane does, unless the library can.
                self.array[at, 2] = guard
                if step.plain is not None:
                    self._access(at, guard, step, _tracked(step.plain, program.followed))
        self.kinds: list[int] = self.array[:, 0].tolist()

    def _access(self, at: int, guard: int, step: Step, tracked: bool) -> None:
        plain, checks = step.plain, step.checks
        assert plain is not None
        if plain.kind == "WGMMA_ISSUE":
            if step.run is step.encoded or (
                checks is not None
                and checks.run is step.run
                and not (checks.reads or checks.touches or checks.forgets)
            ):
                plain.block.array[-1] = bool(plain.unsure())
                if checks is not None:
                    self.defined[at] = dict.fromkeys(checks.defines, ALL_LANES)
                self.array[at] = WGMMA_ISSUE, 0, guard, 0, plain.block.address, 0, 0
            return
        touches = checks is not None and checks.run is step.run and not (checks.reads or checks.defines)
        if step.run is not step.encoded and (not touches or plain.kind == "EXCHANGE"):
            return
        if plain.kind == "EXCHANGE":
            self.array[at] = EXCHANGE, 0, guard, 0, plain.block.address, 0, 0
            return
        if plain.kind in _WHOLE:
            if step.run is step.encoded:
                self.array[at] = _WHOLE[plain.kind], 0, guard, 0, plain.block.address, 0, 0
            return
        if plain.kind in _BARE:
            if step.run is step.encoded:
                self.array[at] = _BARE[plain.kind], 0, guard, plain.keep, 0, 0, 0
            return
        kind, about = _KINDS[plain.kind]
        lanes = 0 if plain.lanes is None else address_of(plain.lanes)
        halves = int(tracked) if plain.halves is None else address_of(plain.halves)
        if checks is not None and step.run is not step.encoded:
            self.around[at] = encode.Around((), {}, dict.fromkeys(checks.touches, step.instruction), frozenset())
        self.array[at] = kind, step.run is not step.encoded, guard, 0, plain.block.address, lanes, halves
        self.events[at] = EVENTS[plain.kind], about, plain.registers
        self.matrices |= kind == MATRIX_LOAD
        self.copies |= kind == COPY


def _product(program: Program, at: int) -> TileProduct | None:
    """The products of the mma.sync from step ``at`` on, if the library has them."""
    batch, multiply = program.batches.get(at), getattr(program.steps[at].run, "multiply", None)
    found: TileProduct | None = batch.product if batch is not None else getattr(multiply, "product", None)
    return found


def _tracked(plain: PlainAccess, followed: frozenset[int]) -> bool:
    """Whether the origins of the data registers are followed."""
    if plain.kind == "GLOBAL_LOAD":
        return not followed.isdisjoint(plain.words)
    return plain.kind == "SHARED_STORE" and bool(plain.words) and plain.words <= followed


class Runner:
    """Runs the frames of one machine."""

    def __init__(self, machine: Machine, table: Table) -> None:
        self.machine, self.table, self.kinds = machine, table, table.kinds
        self.steps = machine.program.steps
        covered = (ctypes.c_char * len(machine.covered)).from_buffer(machine.covered)
        self.counted = np.zeros((len(self.steps), 3), np.int64)
        self.surplus = np.zeros((len(self.steps), 3), np.int64)
        self.loads, self.touches = ((ctypes.c_int64 * n)() for n in (_LOADS, _TOUCHES))
        self.entries = bytearray()
        # The frames that `entries` has: ready and parked ones.
        self.listed: list[Frame] = []
        self.pool: Any = None
        self.queue = QueueRecord()
        # The instructions whose operands need no look at their origins any more.
        looked = (ctypes.c_char * len(machine.looked)).from_buffer(machine.looked)
        self.record = GridRecord(
            table.address, ctypes.addressof(covered), address_of(self.counted), address_of(self.surplus),
            twister.state_of(machine.random), machine.by_priority, machine.rate, machine.eagerness * 0.3,
            ("late", "random", "early").index(machine.schedule) if machine.schedule != "starve" else 1,
            ctypes.addressof(self.queue), ctypes.addressof(looked),
        )  # fmt: skip
        self.record.impatience = machine.impatience
        self.records = np.empty((_RECORDS, 33), np.int64)
        self.record.records = address_of(self.records)
        self.record.loads, self.record.touches = ctypes.addressof(self.loads), ctypes.addressof(self.touches)
        self._kept = covered, looked
        self._make_room()
        self.address = ctypes.addressof(self.record)
        self.run_grid = machine.native.run_grid
        # A frame that goes on, and its budget.
        self.resumed: tuple[Frame, int] | None = None

    def begin(self, cluster: Cluster) -> None:
        """Make what the library needs for copies and matrix loads of the warps of a new cluster."""
        from tilemma.machine.exec.copies import copies_of

        for cta in cluster.ctas if self.table.copies or self.table.matrices else ():
            if self.table.copies:
                cta.shared.prepare()
            for w in cta.warps:
                if self.table.copies:
                    copies_of(w)
                if self.table.matrices:
                    w.record.known_column = cluster.clocks.column(("collective", w.row), 32)

    def _make_room(self) -> None:
        """Room for the copies and the origins of one call; who gets them keeps it."""
        if self.table.copies:
            self.copies = np.empty((_COPIES, COPY_SIZE), np.int64)
            self.record.copies = address_of(self.copies)
        if self.table.matrices:
            self.origins = np.empty((_ORIGINS, 32, 2), np.int64)
            self.record.origins = address_of(self.origins)

    def _begin(self) -> Any:
        record, machine = self.record, self.machine
        record.executed, record.progress = machine.steps, machine.progress
        record.limit = min(machine.max_steps, machine.steps + _LIMIT)
        record.loaded = record.registers = record.issued = record.touched = 0
        if machine.stale:
            machine.stale = False
            self._queue()
        if self.pool is None:
            self.pool = (FrameRecord * _FRAMES)()
            record.pool, record.rooms = ctypes.addressof(self.pool), _FRAMES
        self.queue.logged = 0
        return record

    def _queue(self) -> None:
        """Tell the library which operations are in flight."""
        queue, pending = self.queue, self.machine.pending
        if len(pending) >= queue.capacity // 2:
            queue.capacity = max(_OPERATIONS, 4 * len(pending))
            queue.room = 2 * queue.capacity
            self.operations = (ctypes.c_int64 * (3 * queue.capacity))()
            self.log = (ctypes.c_int64 * queue.room)()
            queue.operations, queue.log = ctypes.addressof(self.operations), ctypes.addressof(self.log)
        queue.pending = len(pending)
        self.operations[: 3 * len(pending)] = [x for agent in pending for x in agent.entry]

    def _end(self, frames: Sequence[Frame]) -> None:
        record, machine = self.record, self.machine
        machine.steps, machine.progress = record.executed, record.progress
        if record.loaded:
            self._enter_loads(frames)
        if record.recorded:
            place = record.records + 8
            for entry in self.records[: record.recorded, 0].tolist():
                self._follow(frames[entry >> 32].w, entry & 0xFFFFFFFF, place)
                place += 8 * 33
        if self.queue.logged:
            self._enter_operations(frames)
        if record.loaded or record.issued:
            self._make_room()
        for entry in self.touches[: record.touched] if record.touched else ():
            self.table.around[entry & 0x7FFFFFFF].enter(frames[entry >> 32].w, touching=not entry >> 31 & 1)

    def step(self) -> bool:
        """`Machine.step`, as often as C can make it."""
        machine, record, skip = self.machine, self.record, 0
        while True:
            how, f = self._run_ready(skip)
            skip = 0
            if how == COMPLETE:
                machine.complete(machine.pending[record.at])
                if record.schedule == EARLY:
                    return True
                skip = 1
                continue
            if how == STARVED:
                if record.at >= 0:
                    machine.complete(machine.pending[record.at])
                else:
                    starvation.delayed(machine)
            elif f is None:
                if machine.ready and machine.steps >= machine.max_steps:
                    # The next instruction is beyond the limit, which Python reports.
                    machine.execute(*machine.pick())
                else:
                    return bool(machine.ready) or machine.step_without_ready()
            elif how == TIMED_OUT:
                machine.time_out()
                machine.execute(f, machine.burst())
            elif how == FULL:
                self._grow(f)
                self.resumed = f, record.budget
            else:
                machine.execute(f, record.budget, how)
            if self.resumed is None:
                return True

    def _run_ready(self, skip: int) -> tuple[int, Frame | None]:
        """How the call ended, and the frame that stopped, if one did."""
        machine, record = self.machine, self._begin()
        frames = [*machine.ready, *machine.parked]
        record.ready, record.parked, record.skip = len(machine.ready), len(machine.parked), skip
        if frames != self.listed or len(self.entries) < 16 * (len(frames) + _FRAMES):
            self._list(frames)
        record.resumed = 0
        if self.resumed is not None:
            (f, record.budget), self.resumed = self.resumed, None
            record.resumed = f.address or f.shared_address()
            frames.append(f)
        record.until = min(machine.next_watch, machine.next_tick if machine.tick else _NEVER, record.limit)
        record.timeouts = bool(machine.timeouts)
        record.starving, record.polling = bool(machine.starved), bool(machine.polling)
        record.starved_at = machine.starved_at
        how = self.run_grid(self.address)
        machine.starved_at = record.starved_at
        ready, parked, chosen = record.ready, record.parked, record.chosen
        names = _entries(ready + parked).unpack_from(self.entries, 0)
        if record.moved:
            found = self._moved(frames, names if chosen < 0 else (*names, chosen))
            self.listed = found if chosen < 0 else found[:-1]
        else:
            self.listed = [frames[i] for i in names]
        machine.ready, machine.parked = self.listed[:ready], self.listed[ready:]
        self._end(frames)
        if chosen < 0:
            return how, None
        return how, found[-1] if record.moved else frames[chosen]

    def _list(self, frames: list[Frame]) -> None:
        """Give the library the frames that are ready or parked."""
        n = len(frames)
        if len(self.entries) < 16 * (n + _FRAMES):
            self.entries = bytearray(32 * (n + _FRAMES))
            self._entries = (ctypes.c_char * len(self.entries)).from_buffer(self.entries)
            self.record.entries = ctypes.addressof(self._entries)
        entries = [x for f in frames for x in (f.address or f.shared_address(), 0)]
        struct.pack_into(f"{2 * n}q", self.entries, 0, *entries)

    def _moved(self, frames: Sequence[Frame], given: Sequence[int]) -> list[Frame]:
        """The frames that ``given`` names: by their number, or their address where they have been made or were
        waiting for their children."""
        known: dict[int, Frame] = {}
        for f in frames:
            above: Frame | None = f
            while above is not None and above.address not in known:
                known[above.address] = above
                if above.record.changed:
                    above.follow()
                above = above.parent
        before = len(known)
        found = [frames[x] if x < len(frames) else self._frame(x, frames, known) for x in given]
        if len(known) > before:
            self.pool = None
        return found

    def _frame(self, address: int, frames: Sequence[Frame], known: dict[int, Frame]) -> Frame:
        found = known.get(address)
        if found is None:
            record = self.pool[(address - ctypes.addressof(self.pool)) // ctypes.sizeof(FrameRecord)]
            parent = self._frame(record.parent, frames, known) if record.parent else None
            found = known[address] = Frame.of(frames[record.index].w, record, parent)
        return found

    def _grow(self, f: Frame) -> None:
        events = f.w.cta.cluster.events
        if events.record.capacity - events.record.count < _ROOM:
            events.grow()
        # More room for operations in flight, where that is short.
        self.machine.stale = True

    def _enter_loads(self, frames: Sequence[Frame]) -> None:
        """Enter the origins of what ldmatrix has loaded."""
        origins = iter(self.origins)
        for entry in self.loads[: self.record.loaded]:
            registers = self.table.events[entry & 0xFFFFFFFF][2]
            frames[entry >> 32].w.origins.update(zip(registers, origins, strict=False))

    def _enter_operations(self, frames: Sequence[Frame]) -> None:
        """Repeat what the library has done with copies, their groups and the readers of shared memory."""
        machine, at = self.machine, 0
        pending = machine.pending
        log = iter(self.log[: self.queue.logged])
        for entry in log:
            kind, value = entry & 15, entry >> 4
            if kind == _COMPLETED:
                agent = pending.pop(value)
                machine.polls = 0
                agent.warp.cta.shared.origins()
                if not agent.waited:
                    exit_checks.completed(agent)
            elif kind == _ISSUED:
                w, step, copy = frames[value >> 32].w, self.steps[value & 0xFFFFFFFF], self.copies[at]
                assert step.plain is not None
                agent = step.plain.agent(w, step.instruction, copy, self.record.copies + at * 8 * COPY_SIZE)
                w.copies.open.append(agent)
                agent.issued = machine.steps
                pending.append(agent)
                at += 1
            elif kind == _LEFT:
                w = frames[value].w
                w.done = True
                w.cta.live_warps -= 1
                w.cta.cluster.live_warps -= 1
            elif kind == _SUSPENDED:
                f = frames[value >> 32]
                f.pc = value & 0xFFFFFFFF
                plain = self.steps[f.pc].plain
                assert plain is not None
                plain.agent(f, next(log) >> 4)
            elif kind >= _WGMMA_FENCED:
                self._enter_wgmma(frames[value >> 32].w, kind, value & 0xFFFFFFFF, next(log) >> 4)
            elif kind == _COMMITTED:
                frames[value].w.copies.has_committed()
            elif kind == _AWAITED:
                frames[value >> 32].w.copies.has_awaited(value & 0xFFFFFFFF)
            else:
                w = frames[value].w
                w.reader = w.cta.shared.reader_of(w.row)

    def _follow(self, w: Warp, at: int, addresses: int) -> None:
        """An access has moved words whose origins are followed, or a sequence ends the origins of its results.

        ``addresses`` is where the library has those of the access's lanes.
        """
        around = self.table.around.get(at)
        if around is not None and around.forgets:
            for register in around.forgets:
                w.origins.pop(register, None)
        else:
            plain = self.steps[at].plain
            assert plain is not None
            plain.agent(w, addresses)

    def _enter_wgmma(self, w: Warp, kind: int, value: int, more: int) -> None:
        if kind == _WGMMA_FENCED:
            w.touched.clear()
        elif kind == _WGMMA_ISSUED:
            step = self.steps[value]
            assert step.plain is not None
            w.flights.append(step.plain.agent(more))
            w.defined.update(self.table.defined.get(value, _NOTHING))
        elif kind == _WGMMA_COMMITTED:
            w.cta.warpgroups[w.index // 4].ends[value] = more
        elif more:
            w.flights.clear()
            w.in_flight.clear()
        else:
            w.flights.append(value)

    def counts(self) -> list[tuple[str, Any, tuple[int, int, int]]]:
        """Kind of note, instruction, and executions, surplus and worst, of each access that C has made; once."""
        found = []
        for about, table in (("uncoalesced", self.surplus), ("", self.counted)):
            for i in np.flatnonzero(table[:, 0]).tolist():
                kind = about or self.table.events[i][1]
                found.append((kind, self.steps[i].instruction, tuple(table[i].tolist())))
            table[:] = 0
        return found


@cache
def _entries(n: int) -> struct.Struct:
    """The names of the frames of ``n`` entries."""
    return struct.Struct("8xq" * n)
