"""The state of an mbarrier: its phase, what that lacks, and the clocks of its arrivals."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilemma.machine import catalogue as hz
from tilemma.machine.clocks import Message
from tilemma.machine.hazards import Place
from tilemma.machine.native import records
from tilemma.machine.native.blocks import address_of
from tilemma.machine.native.records import MbarrierRecord
from tilemma.machine.state import Access, Cta, Frame

MAX_COUNT = (1 << 20) - 1


class _Field:
    """A number in the record that the native library shares."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, barrier: Any, owner: type | None = None) -> int:
        value: int = getattr(barrier.record, self.name)
        return value

    def __set__(self, barrier: Any, value: int) -> None:
        setattr(barrier.record, self.name, value)


class _Clocks:
    """The clocks of a message, None where there is none: ``length`` of them in the arrays of that number."""

    def __init__(self, number: int, length: str) -> None:
        self.number, self.length = number, length

    def __get__(self, barrier: Any, owner: type | None = None) -> Message | None:
        length = getattr(barrier.record, self.length)
        if not length:
            return None
        seen, fenced = barrier.clocks[self.number][:, :length]
        return Message(seen, fenced, barrier.cta.cluster.serial, barrier.foreign[self.number])

    def __set__(self, barrier: Any, message: Message | None) -> None:
        length = 0 if message is None else max(len(message.seen), len(message.fenced))
        barrier.make_room(length)
        if message is not None:
            for to, clocks in zip(barrier.clocks[self.number], (message.seen, message.fenced), strict=True):
                to[: len(clocks)] = clocks
                to[len(clocks) : length] = 0
        barrier.foreign[self.number] = None if message is None else message.foreign
        setattr(barrier.record, self.length, length)
        barrier.record.foreign = any(barrier.foreign)


class Mbarrier:
    """One initialised mbarrier."""

    # ``fenced``: visible to the async proxy, by a fence of the thread that initialised it.
    address, count, pending, tx, phase = (_Field() for _ in range(5))
    init_column, init_clock, column = (_Field() for _ in range(3))
    # The clocks of this phase's arrivals so far, and of the phases before.
    message, done = _Clocks(0, "taken"), _Clocks(1, "released")

    def __init__(
        self, cta: Cta, address: int, count: int, init: Access, init_column: int, init_clock: int, column: int
    ) -> None:
        # The column and clock of the init, and the column of its phases.
        self.cta, self.init = cta, init
        self.record = MbarrierRecord(
            address, count, count, init_column=init_column, init_clock=init_clock, column=column
        )
        self.address_of = records.address(self.record)
        self.fenced = False
        self.clocks: Any = np.zeros((2, 2, 0), np.int32)
        self.foreign: list[Any] = [None, None]
        self.make_room(cta.cluster.clocks.seen.shape[1])
        self.waiters: list[Frame] = []
        # The number of complete phases that each warp of the cluster has waited for, or -1.
        self.last: Any = np.full(len(cta.cluster.clocks.now), -1, np.int64)
        self.record.awaited = address_of(self.last)
        # Warps whose next wait succeeds although its phase is over (see ``deadlock.release_followers``).
        self.forgiven: set[Any] = set()

    def make_room(self, length: int) -> None:
        """Make room for messages of so many clocks."""
        if length > self.clocks.shape[2]:
            more = np.zeros((2, 2, length + 64), np.int32)
            more[:, :, : self.clocks.shape[2]] = self.clocks
            self.clocks, record = more, self.record
            record.room = more.shape[2]
            record.message0, record.message1, record.done0, record.done1 = (
                address_of(x) for pair in more for x in pair
            )

    @property
    def seen(self) -> dict[Any, int]:
        """The number of complete phases that each warp has waited for."""
        warps = [w for cta in self.cta.cluster.ctas for w in cta.warps]
        return {w: n for w, n in zip(warps, self.last.tolist(), strict=True) if n >= 0}

    def wait(self, f: Frame, parity: int | None) -> None:
        """Suspend a frame that waits for ``parity``, or for a state."""
        self.waiters.append(f)
        self.record.waiters = len(self.waiters)
        self.machine.suspend(f, lambda: self.describe(parity), self.address)
        self.machine.timeouts[f] = None

    def forgive(self, w: Any) -> None:
        """The next wait of ``w`` succeeds."""
        self.forgiven.add(w)
        self.record.forgiven = 1

    @property
    def machine(self) -> Any:
        return self.cta.machine

    def arrive(self, place: Place, n: int, message: Message | None, *, drop: bool = False) -> None:
        """``n`` arrivals; ``message`` has the clocks that they release."""
        if n > self.pending:
            self.machine.report(
                hz.MbarrierArrivals.at(
                    place,
                    n=n,
                    address=self.address,
                    pending=self.pending,
                    expected_count=self.count,
                    init_line=self.init.instruction.line,
                    other=self.init.place,
                ),
                fatal=True,
            )
        self._take(message)
        self.pending -= n
        if drop:
            self.count -= n
        if self.pending == 0 and self.tx < 0:
            self._too_many(place)
        self._advance()

    def arrive_one_by_one(self, place: Place, n: int, message: Message | None) -> None:
        """``n`` arrivals of one thread each: a phase may end between any two."""
        while n:
            some = min(n, self.pending) or 1
            self.arrive(place, some, message)
            n -= some

    def _take(self, message: Message | None) -> None:
        if message is None:
            return
        held = self.message
        if held is not None:
            held.merge(message)
        self.message = message if held is None else held

    def _too_many(self, place: Place) -> None:
        self.machine.report(
            hz.MbarrierBytes.at(
                place,
                address=self.address,
                what=f"copies have brought {-self.tx} bytes more than phase {self.phase} was told to expect",
            ),
            fatal=True,
        )

    def expect(self, place: Place, n: int) -> None:
        """`expect_tx`."""
        self.tx += n
        self._check_range(place)

    def _check_range(self, place: Place) -> None:
        if abs(self.tx) > MAX_COUNT:
            self.machine.report(
                hz.MbarrierBytes.at(
                    place, address=self.address, what=f"the transaction count {self.tx} is beyond {MAX_COUNT}"
                ),
                fatal=True,
            )

    def complete_tx(self, place: Place, n: int, event: int | None) -> None:
        """``n`` bytes have arrived, by the copy ``event``."""
        self.tx -= n
        self._check_range(place)
        if event is not None:
            self.cta.cluster.events.complete(event, self.phase + 1)
        if self.pending == 0 and self.tx < 0:
            self._too_many(place)
        self._advance()

    def _advance(self) -> None:
        if self.pending or self.tx:
            return
        self.phase += 1
        self.pending = self.count
        size = self.column + 1
        news = Message(np.zeros(size, np.int32), np.zeros(size, np.int32), self.cta.cluster.serial)
        news.seen[self.column] = news.fenced[self.column] = self.phase
        for earlier in (self.message, self.done):
            if earlier is not None:
                news.merge(earlier)
        self.done, self.message = news, None
        waiters, self.waiters = self.waiters, []
        self.record.waiters = 0
        for f in waiters:
            self.machine.wake(f)
        self.machine.progress += 1
        if self.machine.trace is not None:
            now, name = self.machine.steps, self.machine.names.event(self.address)
            self.machine.note_time("phase", self.cta.index, name, now, now, 0, f"{name}, phase {self.phase}")

    def awaited(self, w: Any, parity: int) -> int:
        """The phases that a wait of warp ``w`` for ``parity`` wants complete: as its last wait, or one more."""
        last = int(self.last[w.row])
        return 1 - parity if last < 0 else last + (last & 1 == parity)

    def describe(self, parity: int | None) -> str:
        """The description of the awaited phase, for the wait-for graph."""
        which = f"parity {parity}" if parity is not None else "its state"
        missing = []
        if self.pending:
            missing.append(f"{self.pending} of {self.count} arrivals")
        if self.tx:
            missing.append(f"{self.tx} bytes")
        return (
            f"{which} of the mbarrier at {self.address:#x} of CTA {self.cta.index} (initialised at PTX line "
            f"{self.init.instruction.line}), now in phase {self.phase}, which lacks {' and '.join(missing)}"
        )
