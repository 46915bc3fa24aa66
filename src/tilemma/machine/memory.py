"""Memories and their shadow state.

For each byte of shared memory, the shadow has the packed event (``clocks.Events``) of its last write and those of
the
last reads by each warp and asynchronous reader.  Global memory is a set of allocations with red zones in
between; its shadow is made at the first write.
"""

from __future__ import annotations

import bisect
import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tilemma.forking import cached_property
from tilemma.machine.isa.tensormap import TensorMapImage
from tilemma.machine.native.blocks import address_of, block
from tilemma.machine.native.records import SharedRecord

Bytes = npt.NDArray[np.uint8]

WIDTHS = (1, 2, 4, 8, 16)
SHIFT = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4, 32: 5}
_WORD = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

# Generic addresses of the windows; any values do as long as no two overlap.
SHARED_WINDOW = 0x7000_0000_0000
LOCAL_WINDOW = 0x7800_0000_0000
PARAM_WINDOW = 0x7900_0000_0000
# Functions have addresses that are no memory.
FUNCTION_WINDOW = 0x7A00_0000_0000
GLOBAL_START = 0x10_0000_0000
# Unallocated bytes between allocations.
RED_ZONE = 1 << 16


def padded(size: int) -> int:
    """The bytes that an allocation of ``size`` bytes takes."""
    return -(-max(size, 1) // 32) * 32


def wide_views(array: npt.NDArray[Any]) -> dict[int, npt.NDArray[Any]]:
    """For each access width, ``array`` (one entry a byte) as rows of that many entries."""
    return {w: array.reshape(-1, w) for w in WIDTHS}


def word_views(data: Bytes) -> dict[int, npt.NDArray[Any]]:
    """``data`` as words of each width; 16 bytes are rows of two 64-bit words.

    32 bytes are rows of four, where the size is a multiple of them.
    """
    views: dict[int, npt.NDArray[Any]] = {w: data.view(_WORD[w]) for w in (1, 2, 4, 8)}
    views[16] = data.view(np.uint64).reshape(-1, 2)
    if data.size % 32 == 0:
        views[32] = data.view(np.uint64).reshape(-1, 4)
    return views


@dataclass(slots=True)
class Reader:
    """One of those that have read shared memory: its last read of each byte."""

    key: Any
    number: int


# Readers of shared memory for which there is room at first; pages that nothing reads cost nothing.
_FIRST_READERS = 8
# Bytes of an array whose shadow of reads is made at the start, at most.
_EXPECTED = 1 << 24
# Reads of global memory that wait to be entered.
_LOG = 1024


class SharedMemory:
    """The shared memory of one CTA: ``base`` reserved bytes, then ``size`` that belong to the program."""

    def __init__(self, base: int, size: int) -> None:
        self.base, self.size = base, size
        self.limit = base + size
        rounded = -(-self.limit // 16) * 16
        self.data: Bytes = np.zeros(rounded, np.uint8)
        self.writer = np.zeros(rounded, np.int32)
        # The last read of each byte by each reader; with views of it by width, where Python has needed them.
        self.readers: list[Reader] = []
        self._reads = np.zeros((_FIRST_READERS, rounded), np.int32)
        self._views: dict[int, npt.NDArray[Any]] | None = None
        self._reader_of: dict[Any, Reader] = {}
        # Global address that each byte was copied from (cp.async and tensor copies), 0 where unknown.
        self.origin: npt.NDArray[np.int64] | None = None
        self._origins: npt.NDArray[np.int64] | None = None
        self.mbarriers: dict[int, Any] = {}
        # The write that stored an undefined value to each byte, 0 for none; the first read of the last such value.
        self.undefined: npt.NDArray[np.int32] | None = None
        self.first_undefined: Any = None
        # For the native library: the last read of each reader, and whether it is a wgmma.
        self.lasts = np.zeros((2, _FIRST_READERS), np.int64)
        self.record = SharedRecord(base, self.limit, address_of(self.data), address_of(self.writer))
        self._tell_reads()

    @cached_property
    def words(self) -> dict[int, npt.NDArray[Any]]:
        """The bytes as words of each width."""
        return word_views(self.data)

    @cached_property
    def writers(self) -> dict[int, npt.NDArray[Any]]:
        """The last write of each byte, by width."""
        return wide_views(self.writer)

    @property
    def reads(self) -> dict[int, npt.NDArray[Any]]:
        """The last read of each byte by each reader, by width."""
        number = len(self.readers)
        if self._views is None:
            self._views = {w: self._reads[:number].reshape(number, -1, w) for w in WIDTHS}
        return self._views

    def _tell_reads(self) -> None:
        """Tell the native library where the tables of reads are."""
        record, at = self.record, address_of(self.lasts)
        record.reads, record.stride, record.rooms = address_of(self._reads), self._reads.shape[1], len(self._reads)
        record.last, record.wgmma = at, at + self.lasts.strides[0]

    @property
    def last_write(self) -> int:
        """At least the event of the last write anywhere."""
        return int(self.record.last_write)

    @property
    def last_read(self) -> int:
        """At least the event of the last read anywhere."""
        return int(self.record.last_read)

    def write(self, width: int, index: Any, event: Any, last: int) -> None:
        """Enter a write of words; ``event`` broadcasts to [words, bytes], ``last`` is at least all of it."""
        self.writers[width][index] = event
        self.wrote(last)

    def wrote(self, last: int) -> None:
        """``last`` is at least the event of a write that has been entered."""
        if last > self.record.last_write:
            self.record.last_write = last

    def read(self, key: Any, width: int, index: Any, event: Any, last: int) -> None:
        """Enter a read of words by the reader ``key``: a warp's row, or an asynchronous reader."""
        reader = self.reader_of(key)
        self.reads[width][reader.number][index] = event
        self.has_read(reader, last)

    def has_read(self, reader: Reader, last: int) -> None:
        """``last`` is at least the event of a read by ``reader`` that has been entered."""
        if last > self.lasts[0, reader.number]:
            self.lasts[0, reader.number] = last
        if last > self.record.last_read:
            self.record.last_read = last

    def reader_of(self, key: Any) -> Reader:
        """The reader ``key``, made at its first read."""
        found = self._reader_of.get(key)
        return self._new_reader(key) if found is None else found

    def undefined_by(self) -> npt.NDArray[np.int32]:
        """The writes of undefined values, made at the first one."""
        if self.undefined is None:
            self.undefined = np.zeros(len(self.data), np.int32)
        return self.undefined

    def enclose(self, address: int) -> None:
        """Extend the range of addresses that holds all mbarriers by the one at ``address``."""
        record = self.record
        record.low = min(record.low, address) if record.high else address
        record.high = max(record.high, address + 8)

    def list_mbarriers(self) -> None:
        """Tell the native library which mbarriers there are."""
        self._listed = (ctypes.c_int64 * len(self.mbarriers))(*(b.address_of for b in self.mbarriers.values()))
        self.record.mbarriers, self.record.mbarrier = len(self._listed), ctypes.addressof(self._listed)

    def _new_reader(self, key: Any) -> Reader:
        number = len(self.readers)
        if number == len(self._reads):
            self._reads = np.concatenate([self._reads, np.zeros_like(self._reads)])
            self.lasts = np.hstack([self.lasts, np.zeros_like(self.lasts)])
            self._tell_reads()
        reader = self._reader_of[key] = Reader(key, number)
        self.readers.append(reader)
        self._views = None
        self.lasts[1, number] = isinstance(key, tuple) and key[0] == "wgmma"
        self.record.readers = number + 1
        return reader

    def origins(self) -> npt.NDArray[np.int64]:
        """The provenance of each byte, made at the first use."""
        if self.origin is None:
            self.origin = self.prepare()
            self.record.origin = self.record.origins
        return self.origin

    def prepare(self) -> npt.NDArray[np.int64]:
        """What `origins` will be, so that the native library can begin with it."""
        if self._origins is None:
            self._origins = np.zeros(len(self.data), np.int64)
            self.record.origins = address_of(self._origins)
        return self._origins


@dataclass
class Allocation:
    """A range of global memory.  ``holes`` marks bytes inside it that belong to no element, if any."""

    name: str
    base: int
    data: Bytes
    size: int
    writable: bool = True
    holes: npt.NDArray[np.bool_] | None = None
    # For reports and provenance: shape, byte strides and element size of the array.
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    itemsize: int = 1
    # The element type of the array that was passed.
    element: np.dtype[Any] | None = None
    words: dict[int, npt.NDArray[Any]] = field(init=False)
    writer: npt.NDArray[np.int64] | None = None
    # The last reader of each byte, and the last one of another cluster than that; made on demand.
    reader: npt.NDArray[np.int64] | None = None
    other_reader: npt.NDArray[np.int64] | None = None
    # Reads of one cluster that the shadow does not have yet: by width, word numbers and events.
    _log: dict[int, list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]] = field(default_factory=dict)
    _logged: int = 0
    _log_cluster: int = 0

    # The entry of the native library's table.
    entry: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        self.words = word_views(self.data)

    def tell(self) -> None:
        """Update the entry of the native library's table."""
        if self.entry is not None:
            shadows = (0 if s is None else address_of(s) for s in (self.writer, self.reader, self.other_reader))
            holes = self.holes is not None
            self.entry[:] = (
                self.base, self.size, address_of(self.data), self.writable, holes, *shadows, self._logged > 0
            )  # fmt: skip

    def shadow(self) -> npt.NDArray[np.int64]:
        """The write shadow, made on demand together with the read shadows."""
        if self.writer is None:
            self.writer = np.zeros(len(self.data), np.int64)
            self.tell()
        return self.writer

    @property
    def was_read(self) -> bool:
        return self.reader is not None or self._logged > 0

    def log_read(self, index: npt.NDArray[Any], width: int, events: npt.NDArray[np.int64]) -> None:
        """Enter a read of words: only a write of the array needs the shadow, and many arrays have none."""
        cluster = int(events[0]) >> 32
        if self._logged and (cluster != self._log_cluster or self._logged == _LOG or width not in self._log):
            self.flush_reads()
        self._log_cluster = cluster
        self._logged += 1
        if self._logged == 1:
            self.tell()
        self._log.setdefault(width, []).append((index, events))

    def read_shadow(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The last reader of each byte, and the last one of another cluster."""
        if self._logged:
            self.flush_reads()
        if self.reader is None or self.other_reader is None:
            self.reader = np.zeros(len(self.data), np.int64)
            self.other_reader = np.zeros(len(self.data), np.int64)
            self.tell()
        return self.reader, self.other_reader

    def flush_reads(self) -> None:
        """Apply the deferred updates of the shadow."""
        log, self._log, self._logged = self._log, {}, 0
        self.tell()
        for width, reads in log.items():
            last, other = (shadow.reshape(-1, width) for shadow in self.read_shadow())
            index, events = (np.concatenate(part) for part in zip(*reads, strict=True))
            before = last.take(index, axis=0)
            foreign = (before != 0) & (before >> 32 != self._log_cluster)
            if foreign.any():
                other[index] = np.where(foreign, before, other.take(index, axis=0))
            # Of several reads of a word the last one counts.
            last[index] = events[:, None]

    def index_of(self, offset: int) -> tuple[int, ...] | None:
        """The index of the element at a byte offset, for reports; None for bytes of no element."""
        # From the lowest address on, where the last element along a dimension of negative stride lies.
        left = offset
        index = [0] * len(self.shape)
        for axis in sorted(range(len(self.shape)), key=lambda i: -abs(self.strides[i])):
            stride, last = self.strides[axis], self.shape[axis] - 1
            if stride == 0 or last < 0:
                continue
            steps = min(left // abs(stride), last)
            left -= steps * abs(stride)
            index[axis] = steps if stride > 0 else last - steps
        return tuple(index) if 0 <= left < self.itemsize else None

    def describe(self, offset: int) -> str:
        index = self.index_of(offset)
        return f"`{self.name}`{list(index)}" if index is not None else f"`{self.name}` byte {offset}"


@dataclass(frozen=True)
class BoundMap:
    """A tensor map in use: its fields, and the allocation that it describes."""

    image: TensorMapImage
    allocation: Allocation
    # Bytes from the allocation's base to the tensor's first element.
    start: int


class GlobalMemory:
    """All allocations, by address."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.bases: list[int] = []
        self.next = GLOBAL_START
        # Number and place of the entries of the native library's table.
        self.block = block([0, 0])
        self.table = np.zeros((0, 9), np.int64)

    def allocate(self, name: str, size: int, alignment: int = 256, phase: int = 0, **facts: Any) -> Allocation:
        """``size`` bytes at an address that is ``phase`` modulo ``alignment``, red zones on both sides."""
        base = -(-(self.next + RED_ZONE) // alignment) * alignment + phase
        rounded = padded(size)
        allocation = Allocation(name, base, np.full(rounded, 0xFF, np.uint8), size, **facts)
        self.add(allocation)
        self.next = base + rounded
        return allocation

    def add(self, allocation: Allocation) -> None:
        at = bisect.bisect(self.bases, allocation.base)
        self.bases.insert(at, allocation.base)
        self.allocations.insert(at, allocation)
        if len(self.table):
            self.tabulate()

    def tabulate(self) -> None:
        """Make the native library's table of all allocations."""
        self.table = np.zeros((len(self.allocations), 9), np.int64)
        self.block[0][:] = len(self.table), address_of(self.table)
        for allocation, entry in zip(self.allocations, self.table, strict=True):
            allocation.entry = entry
            allocation.tell()

    def expect_reads(self) -> None:
        """Make the shadows of reads, which the native library needs; pages that nothing reads cost nothing."""
        for allocation in self.allocations:
            if allocation.writable and allocation.size <= _EXPECTED:
                allocation.read_shadow()

    def find(self, address: int) -> Allocation | None:
        """The allocation that holds ``address``."""
        at = bisect.bisect(self.bases, address) - 1
        if at < 0:
            return None
        allocation = self.allocations[at]
        return allocation if address < allocation.base + allocation.size else None

    def nearest(self, address: int) -> str:
        """The position of ``address`` relative to the closest allocation, in words."""
        if not self.allocations:
            return "no array is allocated"
        at = max(0, bisect.bisect(self.bases, address) - 1)
        best = min(
            self.allocations[at : at + 2],
            key=lambda a: a.base - address if address < a.base else address - a.base - a.size,
        )
        if address < best.base:
            return f"{best.base - address} bytes before the start of `{best.name}`"
        return f"{address - best.base - best.size} bytes after the end of `{best.name}` ({best.size} bytes)"
