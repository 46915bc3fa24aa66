"""The structures of ``shadow.c`` as arrays of 64-bit integers, and the accesses that it makes.

Each function here returns False where the access is to be made by the NumPy code instead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilemma.machine.native.records import WarpRecord
from tilemma.machine.syntax import Instruction

if TYPE_CHECKING:
    from tilemma.machine.decode import AddressRow
    from tilemma.machine.state import Warp

# Data registers of an access at most.
MOST_REGISTERS = 8
_NO_SHADOW = -2
# The kinds of the events of accesses that ``steps.c`` makes.
EVENTS = {
    "SHARED_LOAD": "ld", "SHARED_STORE": "st", "GLOBAL_LOAD": "ld", "GLOBAL_STORE": "st",
    "MATRIX_LOAD": "ldmatrix", "MATRIX_STORE": "st", "COPY": "cp.async", "FRAGMENT_LOAD": "ld",
    "FRAGMENT_STORE": "st",
}  # fmt: skip
_Byte = ctypes.c_char
# No lane of a cp.async reads.
_NOTHING_READ = 1 << 62
# As in `clocks`, which imports this file.
UNORDERED = 1 << 30
_NEVER = 2**31 - 1


def address_of(array: Any) -> int:
    """The address of an array's first element.  `array.ctypes` takes several times as long."""
    try:
        return ctypes.addressof(_Byte.from_buffer(array))
    except (TypeError, ValueError):  # read-only, not contiguous, or empty
        return int(array.ctypes.data)


def block(values: Sequence[int]) -> tuple[Any, int]:
    """An array of ``values``, and its address."""
    array = (ctypes.c_int64 * len(values))(*values)
    return array, ctypes.addressof(array)


@dataclass(frozen=True, slots=True)
class AccessBlock:
    """An instruction's address and data registers."""

    array: Any
    address: int

    def approve(self, base: int) -> None:
        """The type of the array at ``base`` fits the registers."""
        self.array[-1] = base

    @staticmethod
    def of(
        address: AddressRow,
        width: int,
        rows: Sequence[tuple[int, int]],
        size: int,
        signed: bool,
        watched: bool = False,
    ) -> AccessBlock:
        """``rows``: unsigned view and row of each data register, ``size`` its bytes in memory; ``watched``: the
        array's type is compared with theirs."""
        sizes = {0: 2, 3: 4, 6: 8}
        padding = (0,) * (MOST_REGISTERS - len(rows))
        return AccessBlock(
            *block([
                width, sizes[address.view], address.row, address.offset, len(rows), size, int(signed),
                *(sizes[view] for view, _ in rows), *padding, *(row for _, row in rows), *padding,
                0 if watched else -1,
            ])
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlainAccess:
    """An access that ``steps.c`` makes.  ``words``: the registers that its elements fill, where they may carry an
    origin; of an ldmatrix, ``registers`` are those loaded, ``lanes`` those that give addresses, and ``halves`` is
    its map."""

    kind: str
    block: AccessBlock
    words: frozenset[int] = frozenset()
    registers: tuple[int, ...] = ()
    lanes: Any = None
    halves: Any = None
    # Makes the agent of a copy: (warp, instruction, its integers, memory and address).
    agent: Any = None
    # Groups of cp.async that a wait leaves, -1: it waits for all copies; of an
    # instruction that tells the time or its lanes, its row, and for the time whether that has 64 bits.
    keep: int = 0
    # Of a wgmma: its `Form`; the registers of D that may be undefined.
    form: Any = None
    unsure: Any = None


def warp_record(w: Warp) -> Any:
    """The parts of a warp that the library needs: its registers, clocks, memories and place."""
    cta = w.cta
    cluster, memory = cta.cluster, cta.machine.memory
    place = map(ctypes.addressof, (cluster.clocks.record, cluster.events.record, cta.shared.record))
    record = WarpRecord(w.registers, w.first, *place, -1, memory.block[1], cluster.serial + 1)
    record.cta = ctypes.addressof(cta.record)
    record.copies = record.known_column = -1
    return record


def _reader(w: Warp) -> Any:
    """The warp as a reader of its CTA's shared memory."""
    if w.reader is None:
        w.reader = w.cta.shared.reader_of(w.row)
        w.record.reader = w.reader.number
    return w.reader


def shared_load(w: Warp, ins: Instruction, access: AccessBlock, m: Any) -> bool:
    """Load from the CTA's own shared memory."""
    cluster, machine, shared = w.cta.cluster, w.cta.machine, w.cta.shared
    reader = _reader(w)
    events = cluster.events
    event = events.count << 5
    mask = None if m is None else m.tobytes()
    extra = machine.native.shared_load(w.native, access.address, w.floor, event, mask)
    if extra < 0:
        return False
    events.new(w.first, cluster.clocks.now[w.row], w.access("ld", ins))
    shared.has_read(reader, event + 31)
    machine.performance.add("bank-conflict", ins, extra)
    return True


def shared_store(w: Warp, ins: Instruction, access: AccessBlock, m: Any) -> bool:
    """Store to the CTA's own shared memory."""
    cluster, machine, shared = w.cta.cluster, w.cta.machine, w.cta.shared
    events = cluster.events
    event = events.count << 5
    mask = None if m is None else m.tobytes()
    extra = machine.native.shared_store(w.native, access.address, w.floor, event, mask)
    if extra < 0:
        return False
    events.new(w.first, cluster.clocks.now[w.row], w.access("st", ins))
    shared.wrote(event + 31)
    machine.performance.add("bank-conflict", ins, extra)
    return True


def _make_shadows(w: Warp, address: AddressRow, m: Any, kind: str) -> None:
    """Make the shadows that the access needs: those of the arrays that its lanes name."""
    row = w.v[address.view][address.row]
    memory = w.cta.machine.memory
    named = (row if m is None else row[m]).astype(np.int64) + address.offset
    first = memory.find(int(named.min()))
    alone = first is not None and first is memory.find(int(named.max()))
    for array in {id(a): a for a in ([first] if alone else map(memory.find, named.tolist()))}.values():
        if array is not None:
            if kind == "st":
                array.shadow()
            if kind == "ld" or array.was_read:
                array.read_shadow()


def global_access(
    w: Warp, ins: Instruction, access: AccessBlock, m: Any, kind: str, address: AddressRow,
    check: Callable[[Any, int], None] | None,
) -> bool:  # fmt: skip
    """Load (``kind`` "ld") or store ("st") words of one array; ``check`` sees the array's address."""
    cluster, machine = w.cta.cluster, w.cta.machine
    events, memory = cluster.events, machine.memory
    call = machine.native.global_load if kind == "ld" else machine.native.global_store
    event = (cluster.serial + 1) << 32 | events.count << 5
    mask = None if m is None else m.tobytes()
    found = call(w.native, access.address, event, mask, 0)
    if found == _NO_SHADOW:
        _make_shadows(w, address, m, kind)
        found = call(w.native, access.address, event, mask, 0)
    if found < 0:
        return False
    if check is not None:
        check(machine, memory.bases[found >> 32])
        access.approve(memory.bases[found >> 32])
    if found & 1:
        events.new(w.first, cluster.clocks.now[w.row], w.access(kind, ins))
    machine.performance.add("uncoalesced", ins, (found & 0xFFFFFFFF) >> 1)
    return True


# Integers of a `Copy`: its number of lanes, its width, four of each lane, and its event.
COPY = 2 + 4 * 32 + 1


def copy_issue(
    w: Warp,
    ins: Instruction,
    to: AccessBlock,
    source: AccessBlock,
    sizes: int,
    address: AddressRow,
    column: int,
    m: Any,
) -> tuple[int, Any] | None:
    """Issue a cp.async whose lanes copy all bytes or none (``sizes``: the row of their bytes, -1 for all).

    Returns the event of the copies, of ``column``, and the argument of `copy_complete`; None where the
    NumPy code is to issue it.
    """
    machine, shared, events = w.cta.machine, w.cta.shared, w.cta.cluster.events
    copy, passes = (ctypes.c_int64 * COPY)(), ctypes.c_int64()
    mask = None if m is None else m.tobytes()
    arguments = (
        w.native, to.address, source.address, sizes, w.floor, events.count << 5 | UNORDERED, mask,
        ctypes.addressof(copy), ctypes.addressof(passes),
    )  # fmt: skip
    found = machine.native.copy_issue(*arguments)
    if found == _NO_SHADOW:
        _make_shadows(w, address, m, "ld")
        found = machine.native.copy_issue(*arguments)
    if found < 0:
        return None
    if found != _NOTHING_READ:
        machine.performance.add("uncoalesced", ins, (found & 0xFFFFFFFF) >> 1)
    event = events.new(column, _NEVER, w.access("cp.async", ins), unordered=True)
    shared.wrote(event + 31)
    machine.performance.add("bank-conflict", ins, passes.value)
    return event, (copy, ctypes.addressof(copy))


def copy_complete(w: Warp, copy: Any) -> None:
    """Complete a copy of the native library: its memory, and its address there."""
    shared = w.cta.shared
    shared.origins()
    w.cta.machine.native.copy_complete(ctypes.addressof(shared.record), copy[1])


def gather(w: Warp, ins: Instruction, where: Any, words: Any) -> int:
    """Load ``words`` [32, n] from the CTA's own shared memory at ``where`` [32, n]: how many loads were made."""
    cluster, reader = w.cta.cluster, _reader(w)
    events, address = cluster.events, np.ascontiguousarray(where.T)
    event = events.count << 5
    made: int = w.cta.machine.native.shared_gather(
        w.native, address_of(address), len(address), words.itemsize, w.floor, event, address_of(words)
    )
    for _ in range(made):
        events.new(w.first, cluster.clocks.now[w.row], w.access("ld", ins))
    if made:
        w.cta.shared.has_read(reader, event + 32 * made - 1)
    return made


def scatter(w: Warp, ins: Instruction, where: Any, words: Any) -> int:
    """Store ``words`` [32, n] to one array in global memory at ``where``: how many stores were made."""
    cluster = w.cta.cluster
    events, address = cluster.events, np.ascontiguousarray(where.T)
    event = (cluster.serial + 1) << 32 | events.count << 5
    made: int = w.cta.machine.native.global_scatter(
        w.native, address_of(address), len(address), words.itemsize, event, address_of(words)
    )
    for _ in range(made):
        events.new(w.first, cluster.clocks.now[w.row], w.access("st", ins))
    return made


def matrix_load(
    w: Warp, ins: Instruction, access: AccessBlock, mask: bytes, halves: int, ids: Sequence[int]
) -> bool:
    """ldmatrix from the CTA's own shared memory; ``halves``: the address of the map from `matrix_load` in C."""
    cluster, machine, shared, row = w.cta.cluster, w.cta.machine, w.cta.shared, w.row
    reader = _reader(w)
    events, clocks = cluster.events, cluster.clocks
    event = events.count << 5
    origins = None if shared.origin is None else np.empty((len(ids), 32, 2), np.int64)
    place = 0 if origins is None else address_of(origins)
    extra = machine.native.matrix_load(w.native, access.address, w.floor, event, mask, halves, place)
    if extra < 0:
        return False
    events.new(clocks.collective(row, w), clocks.now[row], w.access("ldmatrix", ins), alone=w.first)
    shared.has_read(reader, event + 31)
    machine.performance.add("bank-conflict", ins, extra)
    if origins is not None:
        w.origins.update(zip(ids, origins, strict=True))
    return True
