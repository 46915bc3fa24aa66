"""Vector clocks: for each thread of a cluster, the events that happen before its next instruction.

``seen[t, column]`` is the clock up to which the events of ``column`` happen before thread t's next instruction.
The
first columns are the threads themselves; further ones belong to asynchronous agents, made on demand: one for each
mbarrier (its clock is the phase), warpgroup (wgmma group), and thread that issues cp.async or bulk groups.

``fenced`` is the same for the async proxy: the generic-proxy writes that `fence.proxy.async` has made visible to
it on the way to the thread (PTX ISA, "Memory Consistency Model", proxies).  Completion of an
asynchronous copy counts for both: the ISA puts an implicit proxy fence there.

All lanes of a warp share one running clock, so that an access carries (warp, lane, clock) in 32 bits.  A release
by a lane covers that lane alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tilemma.machine.native import library
from tilemma.machine.native.blocks import address_of
from tilemma.machine.native.records import ClockRecord, EventRecord

Ints32 = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]
Rows: TypeAlias = slice | npt.NDArray[Any]

# The clock of an operation that has not completed: no thread has seen it.
NEVER = np.int32(2**31 - 1)

_most = np.maximum.reduce

_LANE_BITS = 5
# Accesses that a CTA barrier alone does not order (asynchronous ones, those from other CTAs) carry this bit,
# so that the fast path, a comparison with the last barrier's event number, never takes them as ordered.
UNORDERED = 1 << 30
_ID = UNORDERED - 1


@dataclass(slots=True)
class Message:
    """The clocks that a release publishes and an acquire merges."""

    seen: Ints32
    fenced: Ints32
    # The cluster whose columns these are, and the clocks of other clusters (through global memory).
    cluster: int = 0
    foreign: dict[int, Ints32] | None = None

    def copy(self) -> Message:
        """A message of its own, to be merged into."""
        return Message(self.seen.copy(), self.fenced.copy(), self.cluster, dict(self.foreign or {}) or None)

    def merge(self, other: Message) -> None:
        """Take in ``other``; the two may be of different length."""
        for name in ("seen", "fenced"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if len(mine) < len(theirs):
                mine = np.concatenate([mine, np.zeros(len(theirs) - len(mine), np.int32)])
                setattr(self, name, mine)
            np.maximum(mine[: len(theirs)], theirs, out=mine[: len(theirs)])
        if other.foreign:
            self.foreign = _merge_foreign(self.foreign, other.foreign)


def continued(message: Message, earlier: Message) -> Message:
    """``message`` and ``earlier``, which may be of another cluster: an acquire takes both."""
    out = message.copy()
    if earlier.cluster == message.cluster:
        out.merge(earlier)
        return out
    nothing = message.seen[:0], message.fenced[:0], message.cluster
    carrier = Message(*nothing, {earlier.cluster: earlier.seen})
    if earlier.foreign:
        carrier.merge(Message(*nothing, earlier.foreign))
    out.merge(carrier)
    return out


def _merge_foreign(a: dict[int, Ints32] | None, b: dict[int, Ints32]) -> dict[int, Ints32]:
    out = dict(a or {})
    for cluster, theirs in b.items():
        mine = out.get(cluster)
        if mine is None:
            out[cluster] = theirs
            continue
        long, short = (mine, theirs) if len(mine) >= len(theirs) else (theirs, mine)
        long = long.copy()
        np.maximum(long[: len(short)], short, out=long[: len(short)])
        out[cluster] = long
    return out


class Clocks:
    """The clocks of one cluster of ``threads`` threads (whole warps)."""

    def __init__(self, threads: int, cluster: int = 0) -> None:
        self.threads, self.cluster = threads, cluster
        capacity = threads + max(64, threads // 2)
        self.seen: Ints32 = np.zeros((threads, capacity), np.int32)
        self.fenced: Ints32 = np.zeros((threads, capacity), np.int32)
        self.seen.reshape(-1)[:: capacity + 1] = 1
        self.native = library.loaded()
        warps = threads // 32
        # The clock of each warp; the native library uses it too.
        self.now = (ctypes.c_int64 * warps)(*[1] * warps)
        self.columns: dict[Hashable, int] = {}
        self.used = threads
        # For each warp, the clocks of other clusters that it has acquired: serial -> clocks.  Mostly empty.
        self.foreign: list[dict[int, Ints32]] = [{} for _ in self.now]
        self._has_foreign = (ctypes.c_int64 * warps)()
        self.record = ClockRecord(0, 0, 0, 0, ctypes.addressof(self.now), ctypes.addressof(self._has_foreign))
        self._place()

    def column(self, key: Hashable, width: int = 1) -> int:
        """The first of the ``width`` columns of the agent ``key``."""
        found = self.columns.get(key)
        if found is None:
            found = self.columns[key] = self.used
            self.used += width
            self.record.used = self.used
            if self.used > self.seen.shape[1]:
                grow = max(64 + width, self.seen.shape[1] // 2)
                pad = np.zeros((self.threads, grow), np.int32)
                self.seen = np.hstack([self.seen, pad])
                self.fenced = np.hstack([self.fenced, pad])
                self._place()
        return found

    def _place(self) -> None:
        """Tell the native library where the tables are, and make room for what it returns."""
        capacity = self.seen.shape[1]
        self._tables = address_of(self.seen), address_of(self.fenced)
        self.record.seen, self.record.fenced = self._tables
        self.record.capacity, self.record.used = capacity, self.used
        self._scratch = np.zeros(capacity, np.int32)
        self._room = address_of(self._scratch)

    def _most(self, rows: Rows) -> tuple[Ints32, Ints32]:
        """The clocks that any of ``rows`` has seen, for both proxies."""
        used = self.used
        if self.native is None:
            return _most(self.seen[rows, :used]), _most(self.fenced[rows, :used])
        (_kept, each), capacity = _threads(rows), self.seen.shape[1]
        # Two arrays: views of one would keep three for each message.
        found = np.empty(used, np.int32), np.empty(used, np.int32)
        for table, most in zip(self._tables, found, strict=True):
            self.native.clocks_most(table, capacity, used, *each, address_of(most))
        return found

    def known_to_all(self, first: int, others: tuple[Ints32, Ints32] | None) -> tuple[Ints32, Ints32]:
        """For each column the most that a lane of the warp from thread ``first`` on has seen, in each proxy, or
        less where ``others`` have seen less; these may be changed."""
        if self.native is None:
            rows = slice(first, first + 32)
            mine = [_most(t[rows, : self.used]) for t in (self.seen, self.fenced)]
            if others is not None:
                mine = [np.minimum(x, y[: len(x)]) for x, y in zip(others, mine, strict=True)]
            return mine[0], mine[1]
        if others is None:
            found = np.empty(self.used, np.int32), np.empty(self.used, np.int32)
        else:
            found = others
        capacity = self.seen.shape[1]
        for table, out in zip(self._tables, found, strict=True):
            self.native.knowledge_of(table, capacity, len(out), first, address_of(out), others is not None)
        return found

    def collective(self, row: int, w: Any) -> int:
        """The column of the collective reads of warp ``row``: a lane that executes one knows all of it."""
        column = self.column(("collective", row), 32)
        now = self.now[row]
        if w.record.known_clock != now:
            w.record.known_clock, w.record.known_column = now, column
            self.seen[32 * row : 32 * row + 32, column : column + 32] = now
        return column

    def tick(self, warp: int) -> None:
        """Advance the clock of the warp: later accesses are not covered by its earlier releases."""
        self.now[warp] += 1
        first = 32 * warp
        if self.native is not None:
            self.native.clocks_tick(self._tables[0], self.seen.shape[1], first, self.now[warp])
            return
        own = np.arange(first, first + 32)
        self.seen[own, own] = self.now[warp]

    def release(self, rows: Rows, warp: int) -> Message:
        """The clocks that the threads ``rows`` of one warp release, their own included."""
        message = Message(*self._most(rows), self.cluster, self.foreign[warp] or None)
        self.tick(warp)
        return message

    def acquire(self, rows: Rows, message: Message) -> None:
        """The threads ``rows`` of one cluster learn ``message``."""
        if message.cluster != self.cluster or message.foreign:
            self._acquire_foreign(rows, message)
        if message.cluster != self.cluster:
            return
        if self.native is not None:
            (_kept, each), capacity = _threads(rows), self.seen.shape[1]
            for table, news in zip(self._tables, (message.seen, message.fenced), strict=True):
                self.native.clocks_learn(table, capacity, len(news), *each, address_of(news))
            return
        for mine, theirs in ((self.seen, message.seen), (self.fenced, message.fenced)):
            part = mine[rows, : len(theirs)]
            np.maximum(part, theirs, out=part)
            if not isinstance(rows, slice):
                mine[rows, : len(theirs)] = part

    def pass_on(self, rows: npt.NDArray[np.int64]) -> None:
        """Each of the threads ``rows`` learns what those before it know."""
        for table in (self.seen, self.fenced):
            table[rows, : self.used] = np.maximum.accumulate(table[rows, : self.used], axis=0)

    def _acquire_foreign(self, rows: Rows, message: Message) -> None:
        news = dict(message.foreign or {})
        own = news.pop(self.cluster, None)
        if message.cluster != self.cluster:
            news = _merge_foreign(news, {message.cluster: message.seen})
        # The rows of a barrier are in the order in which its warps arrived.
        each = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else np.asarray(rows)
        for warp in set((each // 32).tolist()):
            self.foreign[warp] = _merge_foreign(self.foreign[warp], news)
            self._has_foreign[warp] = 1
        if own is not None:
            self.acquire(rows, Message(own, own[:0], self.cluster))

    def synchronise(self, rows: Rows, warps: list[int]) -> None:
        """A barrier among ``rows``, which lie in ``warps``: all acquire the clocks of all."""
        foreign: dict[int, Ints32] | None = None
        for warp in warps:
            if self.foreign[warp]:
                foreign = _merge_foreign(foreign, self.foreign[warp])
        if self.native is not None and not foreign:
            (_kept, each), capacity = _threads(rows), self.seen.shape[1]
            for table in self._tables:
                self.native.clocks_join(table, capacity, self.used, *each, self._room)
        else:
            self.acquire(rows, Message(*self._most(rows), self.cluster, foreign))
        for warp in warps:
            self.tick(warp)

    def fence_proxy(self, rows: Rows, warp: int) -> None:
        """`fence.proxy.async`: what is ordered before the threads in the generic proxy is so in the async proxy
        too."""
        used = self.used
        part = self.fenced[rows, :used]
        np.maximum(part, self.seen[rows, :used], out=part)
        if not isinstance(rows, slice):
            self.fenced[rows, :used] = part
        self.tick(warp)

    def learn(self, rows: Rows, column: Any, clock: Any, *, fenced: bool = True) -> None:
        """Set the clock of ``column`` (one or one each) that ``rows`` have seen to ``clock``, in both proxies if
        ``fenced``."""
        tables = (self.seen, self.fenced) if fenced else (self.seen,)
        if isinstance(rows, slice):
            if isinstance(column, int):
                for table in tables:
                    part = table[rows, column]
                    np.maximum(part, clock, out=part)
                return
            rows = np.arange(rows.start, rows.stop)
        for table in tables:
            table[rows, column] = np.maximum(table[rows, column], clock)


def _threads(rows: Rows) -> tuple[Any, tuple[int | None, int, int]]:
    """``rows`` as the native library takes them: an address, or the first one and their number; with what has to
    live as long as the address is used."""
    if isinstance(rows, slice):
        return rows, (None, rows.start, rows.stop - rows.start)
    if rows.dtype != np.int64 or not rows.flags.c_contiguous:
        rows = np.ascontiguousarray(rows, np.int64)
    # An integer: `rows.ctypes` as an argument leaves a cycle of references for each call.
    return rows, (address_of(rows), 0, len(rows))


def event_numbers(packed: Any) -> Any:
    """The numbers of packed events."""
    return (packed & _ID) >> _LANE_BITS


class Events:
    """The accesses of one cluster: for each number its column, its clock and its `Access`.

    Shadow memory holds packed numbers: ``number << 5 | lane``, with ``UNORDERED``; the event's column is that
    of lane 0 and the packed lane is added to it.
    """

    def __init__(self) -> None:
        self.column: Ints32 = np.zeros(256, np.int32)
        self.clock: Ints32 = np.zeros(256, np.int32)
        # For a collective access of a warp, the column of its lane 0; for other accesses ``column`` again.
        self.alone: Ints32 = np.zeros(256, np.int32)
        # Accesses of the native library: the row of the warp and the step.
        self.made: npt.NDArray[np.int64] = np.zeros(256, np.int64)
        # Those of Python, by number.
        self.info: dict[int, Any] = {0: None}
        # What makes the `Access` of one of ``made`` from these two.
        self.maker: Callable[[int, int], Any] | None = None
        self.record = EventRecord()
        self.record.count = 1
        self._place()

    def _place(self) -> None:
        """Tell the native library where the tables are."""
        tables = (self.column, self.clock, self.alone, self.made)
        self.record.column, self.record.clock, self.record.alone, self.record.made = map(address_of, tables)
        self.record.capacity = len(self.column)

    @property
    def count(self) -> int:
        return int(self.record.count)

    @property
    def collective(self) -> bool:
        """Whether there is an event of a collective access."""
        return bool(self.record.collective)

    def access(self, number: int) -> Any:
        """The `Access` of an event, by its index in the tables."""
        found = self.info.get(number)
        code = int(self.made[number]) if found is None else 0
        if code and self.maker is not None:
            found = self.info[number] = self.maker((code >> 32) - 1, code & 0xFFFFFFFF)
        return found

    def new(self, column: int, clock: int, info: Any, *, unordered: bool = False, alone: int | None = None) -> int:
        """A packed event, lane 0; ``alone`` is the column of the warp's lane 0 where ``column`` is the warp's."""
        record = self.record
        n: int = record.count
        if n == record.capacity:
            self.grow()
        self.column[n], self.clock[n] = column, clock
        if alone is None:
            self.alone[n] = column
        else:
            self.alone[n] = alone
            record.collective = 1
        self.info[n] = info
        record.count = n + 1
        return n << _LANE_BITS | (UNORDERED if unordered else 0)

    def grow(self) -> None:
        """Make room for further events."""
        more = np.zeros(max(256, len(self.column)), np.int32)
        self.column = np.concatenate([self.column, more])
        self.clock = np.concatenate([self.clock, more])
        self.alone = np.concatenate([self.alone, more])
        self.made = np.concatenate([self.made, np.zeros(len(more), np.int64)])
        self._place()

    @property
    def empty(self) -> bool:
        return self.count == 1

    def trim(self) -> None:
        """Drop the room for further events."""
        self.column, self.clock = self.column[: self.count].copy(), self.clock[: self.count].copy()
        self.alone, self.made = self.alone[: self.count].copy(), self.made[: self.count].copy()

    def complete(self, packed: int, clock: int, column: int | None = None) -> None:
        """Give a pending event the clock (and the column) at which it completed."""
        n = (packed & _ID) >> _LANE_BITS
        self.clock[n] = clock
        if column is not None:
            self.column[n] = self.alone[n] = column

    def of(self, packed: int) -> Any:
        """The info of a packed event."""
        return self.access(int(self.places(event_numbers(int(packed)))))

    def places(self, numbers: Any) -> Any:
        """The index of each event in the tables; here it is the event's number."""
        return numbers

    @property
    def floor(self) -> int:
        """Packed numbers up to this one are events that exist now and are not unordered."""
        return (self.count << _LANE_BITS) - 1

    def stand(self, packed: Any) -> tuple[Any, Any]:
        """Column and clock of packed events."""
        at = self.places(event_numbers(packed))
        return self.column[at] + (packed & 31), self.clock[at]

    def alone_column(self, packed: Any) -> Any:
        """The threads' own columns, also of collective accesses of their warp."""
        return self.alone[(packed & _ID) >> _LANE_BITS] + (packed & 31)

    def known(self, packed: Any, rows: Any, table: Ints32) -> npt.NDArray[np.bool_]:
        """Whether thread ``rows`` (broadcast against ``packed``) has seen each event, by ``table``."""
        column, clock = self.stand(packed)
        result: npt.NDArray[np.bool_] = table[rows, column] >= clock
        return result
