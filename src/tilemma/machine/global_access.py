"""Accesses to global memory with their checks: allocations, alignment, order by the clocks.

Shadow entries hold the event's cluster above the cluster's own packed event, so that CTAs which never talk to
each other are told apart.  Addresses are int64, one a lane, the width 1, 2, 4, 8 or 16 bytes.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from tilemma.machine import catalogue as hz
from tilemma.machine import strong
from tilemma.machine.access import gathered, misaligned
from tilemma.machine.clocks import event_numbers
from tilemma.machine.conflicts import report_conflict, report_same_instruction
from tilemma.machine.memory import SHIFT, Allocation
from tilemma.machine.native.blocks import address_of
from tilemma.machine.state import Access, Frame, Warp
from tilemma.machine.syntax import Instruction

Array = npt.NDArray[Any]
# Instructions at the words of an atomic operation at most, for the fast check.
_NUMBERS = 24


def locate(
    f: Frame, ins: Instruction, lanes: Any, addr: Array, width: int, verb: str
) -> list[tuple[Allocation, Any, Array]]:
    """The allocations of global addresses: (allocation, selection or None for all, byte offsets)."""
    everything = int(np.bitwise_or.reduce(addr)) if len(addr) else 0
    if everything & (width - 1):
        bad = np.flatnonzero(addr & (width - 1))
        misaligned(f, ins, int(addr[bad[0]]), width, np.asarray(lanes)[bad])
    memory = f.w.cta.machine.memory
    first = memory.find(int(addr[0]))
    if first is not None:
        offsets = addr - first.base
        if int(offsets.min()) >= 0 and int(offsets.max()) + width <= first.size:
            return [(first, None, offsets)]
    out: list[tuple[Allocation, Any, Array]] = []
    owners = [memory.find(int(a)) for a in addr]
    for a, allocation in zip(addr.tolist(), owners, strict=True):
        if allocation is None or a + width > allocation.base + allocation.size:
            out_there = [i for i, o in enumerate(owners) if o is None or int(addr[i]) + width > o.base + o.size]
            f.w.report(
                hz.OutOfBounds,
                ins,
                lanes=np.asarray(lanes)[out_there],
                at_bytes=range(a, a + width),
                access=verb,
                space=f"{width} bytes at global address {a:#x}",
                what=memory.nearest(a + (width - 1 if allocation is not None else 0)),
                fatal=True,
            )
    for one in {id(o): o for o in owners if o is not None}.values():
        where = np.array([i for i, o in enumerate(owners) if o is one])
        out.append((one, where, addr[where] - one.base))
    return out


def global_event(w: Warp, ins: Instruction, kind: str) -> int:
    """A packed global event: the cluster above the cluster's own packed number."""
    cluster = w.cta.cluster
    event = cluster.events.new(w.first, cluster.clocks.now[w.row], w.access(kind, ins))
    return (cluster.serial + 1) << 32 | event


def global_load(f: Frame, ins: Instruction, lanes: Any, addr: Array, width: int, kind: str = "ld") -> Array:
    """Words at global addresses; 16 bytes are rows of two."""
    parts = locate(f, ins, lanes, addr, width, "read of")
    return gathered(parts, lanes, lambda memory, some, at: load_words(f.w, ins, memory, some, at, width, kind))


def load_words(
    w: Warp, ins: Instruction, allocation: Allocation, lanes: Any, offsets: Array, width: int, kind: str
) -> Array:
    """Words of one allocation at byte ``offsets``: checked, and entered as read by ``lanes``."""
    index = offsets >> SHIFT[width]
    if allocation.writable:
        if allocation.writer is not None:
            verb = f"`{ins.opcode}` reads"
            global_ordered(w, ins, allocation, lanes, offsets, width, allocation.writer, kind, verb)
        event = global_event(w, ins, kind)
        record_global_read(w, allocation, lanes, index, width, event, atomic=ins.parts[0] == "atom")
    words: Array = allocation.words[width].take(index, axis=0)
    return words


def record_global_read(
    w: Warp, allocation: Allocation, lanes: Any, index: Array, width: int, event: int, *, atomic: bool = False
) -> None:
    """Enter a read; the last reader of another CTA is kept beside the last reader.

    Each atomic operation observes the one before it: a thread ordered after the last is ordered after all, so that
    the thread with the last ticket may reset a counter.
    """
    if not atomic:
        allocation.log_read(index, width, event + lanes)
        return
    last, other = allocation.read_shadow()
    last_view, other_view = last.reshape(-1, width), other.reshape(-1, width)
    before = last_view.take(index, axis=0)
    foreign = (before >> 32 != w.cta.cluster.serial + 1) & (before != 0)
    if foreign.any():
        # The lanes of one instruction have one number.
        numbers = before >> 5
        events = {n: w.cta.machine.event_of(n << 5) for n in set(numbers[foreign].tolist())}
        chained = [n for n, info in events.items() if info is not None and info.instruction.parts[0] == "atom"]
        foreign &= ~_among(numbers, chained)
        if foreign.any():
            other_view[index] = np.where(foreign, before, other_view[index])
    last_view[index] = (event + lanes)[:, None]


def global_ordered(
    w: Warp,
    ins: Instruction,
    allocation: Allocation,
    lanes: Any,
    offsets: Array,
    width: int,
    shadow: Array,
    kind: str,
    verb: str,
) -> None:
    """Check a global access against the events in ``shadow``."""
    events = shadow.reshape(-1, width).take(offsets >> SHIFT[width], axis=0)
    if not events.any():
        return
    if kind == "atom":
        others = _without_excused(w, ins, events)
        if others is None:
            return
        events = others
    bad = unknown_global(w, events, (w.first + np.asarray(lanes))[:, None])
    if not bad.any():
        return
    for i, j in zip(*np.nonzero(bad), strict=True):
        event = w.cta.machine.event_of(int(events[i, j]))
        if event is None:
            continue
        where = allocation.describe(int(offsets[i] + j))
        rows, columns = np.nonzero(bad)
        if event.kind in ("st", "atom", "ld") or "read" in verb:
            report_conflict(
                w, ins, event, verb, where, np.asarray(lanes)[np.unique(rows)], offsets[rows] + columns
            )
        else:
            # Of the asynchronous accesses that may still run, copies into shared memory read global memory.
            source = event.kind in ("cp.async", "tma")
            at_bytes = offsets[rows] + columns
            report_conflict(w, ins, event, verb, where, (), at_bytes, source=source, stored=not source)
        return


def _without_excused(w: Warp, ins: Instruction, events: Array) -> Array | None:
    """``events`` without atomics that are strong with one of ``w`` (0 in their place); None if none is left."""
    first = events[:, 0]
    # The lanes of one earlier instruction are excused together.
    numbers = events >> 5
    present = set((first >> 5 if (events == first[:, None]).all() else numbers).ravel().tolist()) - {0}
    left = []
    for number in present:
        event = w.cta.machine.event_of(number << 5)
        if event is not None and not (_reduces(event) and strong.morally_strong(event, w, ins)):
            left.append(number)
    return np.where(_among(numbers, left), events, 0) if left else None


def _reduces(event: Access) -> bool:
    """Whether the event is an atomic operation, or a bulk copy that reduces: one of scope `.gpu` each element."""
    return event.kind == "atom" or (event.kind == "bulk-store" and "reduce" in event.instruction.parts)


def _among(numbers: Array, few: list[int]) -> npt.NDArray[np.bool_]:
    """The positions at which ``numbers`` has one of ``few``."""
    found = np.zeros(numbers.shape, bool)
    for number in few:
        found |= numbers == number
    return found


def fence_global(w: Warp, rows: Any) -> None:
    """`fence.proxy.async` of global memory: later copies of the warp see the writes that it knows of now, and
    those of any warp that learns of its CTA's writes see these."""
    clocks = w.cta.cluster.clocks
    w.global_fence = clocks.foreign[w.row], clocks.seen[rows, : clocks.used].max(axis=0)
    w.cta.globally_fenced = w.cta.cluster.events.count


def check_fenced(w: Warp, ins: Instruction, allocation: Allocation, offsets: Array, width: int) -> None:
    """Check that a proxy fence stands between the generic-proxy writes of the bytes and a copy that reads them.

    It may stand in the writer's CTA after the write, or in the copying warp after it has learned of the write: the
    ISA does not say in which thread of the path.  Which thread of the CTA executed it is not followed.
    """
    events = allocation.shadow().reshape(-1, width).take(offsets >> SHIFT[width], axis=0)
    for number in np.unique(events >> 5).tolist():
        event = w.cta.machine.event_of(number << 5) if number else None
        if event is None or event.kind not in ("st", "atom") or _fenced(w, event, number):
            continue
        rows, columns = np.nonzero(events >> 5 == number)
        w.report(
            hz.MissingProxyFenceGlobal,
            ins,
            at_bytes=offsets[rows] + columns,
            other=event.place,
            access="the copy reads",
            space=allocation.describe(int(offsets[rows[0]] + columns[0])),
        )
        return


def _fenced(w: Warp, event: Access, number: int) -> bool:
    """Whether the write of ``event`` is fenced in its CTA, or by the copying warp."""
    packed = number << 5 & 0xFFFFFFFF
    if event_numbers(packed) < event.warp.cta.globally_fenced:
        return True
    if w.global_fence is None:
        return False
    foreign, own = w.global_fence
    cluster = event.warp.cta.cluster
    table = own if cluster is w.cta.cluster else foreign.get(cluster.serial)
    column, clock = cluster.events.stand(np.asarray(packed))
    return table is not None and int(column) < len(table) and int(table[int(column)]) >= int(clock)


def unknown_global(w: Warp, events: Array, rows: Any) -> npt.NDArray[np.bool_]:
    """Which global events are not ordered before the threads ``rows`` of warp ``w``."""
    cluster = w.cta.cluster
    serial = events >> 32
    packed = events & 0xFFFFFFFF
    own = serial == cluster.serial + 1
    bad = np.zeros(events.shape, bool)
    if own.any():
        known = cluster.events.known(np.where(own, packed, 0), rows, cluster.clocks.seen)
        bad |= own & ~known
    foreign = ~own & (events != 0)
    if foreign.any():
        knowledge = cluster.clocks.foreign[w.row]
        for number in np.unique(serial[foreign]):
            other = w.cta.machine.clusters[int(number) - 1]
            here = foreign & (serial == number)
            # Numbers of other clusters' events may be beyond this one's.
            column, clock = other.events.stand(np.where(here, packed, 0))
            table = knowledge.get(int(number) - 1)
            known = np.zeros(events.shape, bool)
            if table is not None:
                inside = column < len(table)
                known = inside & (table[np.where(inside, column, 0)] >= clock)
            bad |= here & ~known
    return bad


def atomic_load(w: Warp, ins: Instruction, addr: Array, width: int) -> tuple[Allocation, Array] | None:
    """The array, and the numbers of the words in it, that an `atom` changes.

    None where `load_words` is to look at them: some event there is not of an atomic operation that is strong with
    this one.
    """
    machine = w.cta.machine
    allocation = machine.memory.find(int(addr[0]))
    if allocation is None or not allocation.writable or allocation.holes is not None or allocation.entry is None:
        return None
    allocation.shadow()
    allocation.read_shadow()
    numbers = (ctypes.c_int64 * _NUMBERS)()
    count = machine.native.event_numbers(
        address_of(allocation.entry), address_of(addr), len(addr), width, ctypes.addressof(numbers), _NUMBERS
    )
    if count < 0:
        return None
    for i, number in enumerate(numbers[1 : count + 1]):
        event = machine.event_of(number << 5)
        if event is None or not (_reduces(event) and strong.morally_strong(event, w, ins)):
            return None
        if i < numbers[0] and event.instruction.parts[0] != "atom":
            return None
    return allocation, (addr - allocation.base) >> SHIFT[width]


def atomic_store(
    w: Warp, ins: Instruction, allocation: Allocation, lanes: Any, addr: Array, values: Array
) -> None:
    """Enter the read of `atomic_load`, and write the words."""
    read, written = (global_event(w, ins, "atom") for _ in range(2))
    lanes, values = np.ascontiguousarray(lanes, np.int64), np.ascontiguousarray(values)
    w.cta.machine.native.atomic_store(
        address_of(allocation.entry), address_of(addr), len(addr), values.nbytes // len(addr), address_of(lanes),
        read, written, address_of(values),
    )  # fmt: skip


def global_store(
    f: Frame, ins: Instruction, lanes: Any, addr: Array, width: int, values: Array, kind: str = "st"
) -> None:
    """Write words to global addresses."""
    for allocation, where, offsets in locate(f, ins, lanes, addr, width, "write to"):
        some, given = (lanes, values) if where is None else (lanes[where], values[where])
        store_words(f.w, ins, allocation, some, offsets, width, given, kind)


def store_words(
    w: Warp, ins: Instruction, allocation: Allocation, lanes: Any, offsets: Array, width: int, values: Array,
    kind: str,
) -> None:  # fmt: skip
    """Write words of one allocation at byte ``offsets``, checked."""
    check_global_write(w, ins, allocation, lanes, offsets, width, kind, f"`{ins.opcode}` writes")
    index = offsets >> SHIFT[width]
    event = global_event(w, ins, kind)
    allocation.shadow().reshape(-1, width)[index] = (event + lanes)[:, None]
    words = allocation.words[width]
    words[index] = values
    if w.cta.machine.history is not None:
        w.cta.machine.history.stored(w, ins, allocation, lanes, offsets, width, values)
    if kind != "atom" and (words.take(index, axis=0) != values).any():
        report_same_instruction(w, ins, lanes, offsets, words[index], values, width)


def check_global_write(
    w: Warp, ins: Instruction, allocation: Allocation, lanes: Any, offsets: Array, width: int, kind: str, verb: str
) -> None:
    """Check that a write hits only bytes of elements, and no access that is not ordered before it."""
    if not allocation.writable:
        w.report(hz.WriteToReadOnly, ins, lanes=lanes, at_bytes=offsets, access=verb, array=allocation.name)
    if allocation.holes is not None:
        holes = allocation.holes.reshape(-1, width).take(offsets >> SHIFT[width], axis=0)
        if holes.any():
            i, j = np.nonzero(holes)
            w.report(
                hz.OutOfBounds,
                ins,
                lanes=np.asarray(lanes)[np.unique(i)] if len(lanes) == len(offsets) else (),
                at_bytes=offsets[i] + j,
                access="write to",
                space=f"{allocation.describe(int(offsets[i[0]] + j[0]))}",
                what="which belongs to no element of the array (a gap between its rows)",
            )
    shadow = allocation.shadow()
    global_ordered(w, ins, allocation, lanes, offsets, width, shadow, kind, verb)
    if allocation.was_read:
        for reads in allocation.read_shadow():
            global_ordered(w, ins, allocation, lanes, offsets, width, reads, kind, verb)
