"""Generic accesses to shared memory with their checks: bounds, alignment, initialisation, order by the clocks.

All accesses take byte addresses as int64, one a lane, and a width of 1, 2, 4, 8 or 16 bytes.  Those of the async
proxy (bulk copies, wgmma) are in ``async_access``, those to global memory in ``global_access``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tilemma.machine import catalogue as hz
from tilemma.machine.conflicts import (
    barrier_for,
    check_lanes_ordered,
    check_warps_waited,
    is_wgmma,
    report_same_instruction,
    report_unordered,
    touches_mbarrier,
)
from tilemma.machine.memory import SHIFT, SharedMemory
from tilemma.machine.state import Cta, Frame, Warp
from tilemma.machine.syntax import Instruction

Array = npt.NDArray[Any]
Place = TypeVar("Place")

# Ranks in the cluster sit above the 24 bits of a CTA's own window; 0 there means the own CTA.
RANK_SHIFT = 24
OFFSET_MASK = (1 << RANK_SHIFT) - 1

# Reductions without the cost of an array's own methods.
_least, _most = np.minimum.reduce, np.maximum.reduce


def owner(f: Frame, ins: Instruction, addr: Array, width: int) -> list[tuple[Cta, Any, Array]]:
    """The CTA that holds each address: (CTA, selection of lanes or None for all, offsets)."""
    everything = int(np.bitwise_or.reduce(addr)) if len(addr) else 0
    if everything & (width - 1):
        bad = np.flatnonzero(addr & (width - 1))
        misaligned(f, ins, int(addr[bad[0]]), width, bad)
    cta = f.w.cta
    if 0 <= everything >> RANK_SHIFT == 0:
        return [(cta, None, addr)]
    ranks = (addr >> RANK_SHIFT) - 1
    out = []
    for rank in np.unique(ranks):
        where = np.flatnonzero(ranks == rank)
        target = cta if rank == -1 else cluster_cta(f, ins, int(rank), int(addr[where[0]]))
        out.append((target, where, addr[where] & OFFSET_MASK))
    return out


def cluster_cta(f: Frame, ins: Instruction, rank: int, address: int) -> Cta:
    """CTA ``rank`` of the frame's cluster, still alive."""
    ctas = f.w.cta.cluster.ctas
    if not 0 <= rank < len(ctas):
        f.w.report(
            hz.OutOfBounds,
            ins,
            lanes=f.lanes,
            access="use of",
            space=f"shared address {address:#x}",
            what=f"which is no address of this cluster of {len(ctas)} CTAs",
            fatal=True,
        )
    target = ctas[rank]
    if target.exited:
        f.w.report(hz.ExitBeforeCluster, ins, lanes=f.lanes, access="access to", rank=rank, fatal=True)
    return target


def misaligned(f: Frame, ins: Instruction, address: int, width: int, lanes: Any) -> None:
    f.w.report(
        hz.Misaligned,
        ins,
        lanes=lanes,
        access=f"`{ins.opcode}`",
        address=address,
        alignment=width,
        section="Addresses as Operands",
        fatal=True,
    )


def shared_bounds(
    w: Warp, ins: Instruction, shared: SharedMemory, addr: Array, width: int, lanes: Any, verb: str
) -> None:
    """Report the addresses outside the CTA's shared memory."""
    bad = np.flatnonzero((addr < shared.base) | (addr + width > shared.limit))
    if len(bad):
        first = int(addr[bad[0]])
        w.report(
            hz.OutOfBounds,
            ins,
            lanes=np.asarray(lanes)[bad] if len(lanes) == len(addr) else (),
            at_bytes=range(first, first + width),
            access=verb,
            space=f"shared memory at {first:#x}",
            what=f"the CTA has bytes {shared.base:#x} to {shared.limit - 1:#x}",
            fatal=True,
        )


# -- shared memory, generic proxy
def shared_load(f: Frame, ins: Instruction, lanes: Any, addr: Array, width: int, kind: str = "ld") -> Array:
    """Words at ``addr`` (16 bytes: rows of two), read by ``lanes``."""
    parts = owner(f, ins, addr, width)
    return gathered(
        parts, lanes, lambda cta, some, at: load_words(f.w, ins, cta, some, at, at >> SHIFT[width], width, kind)
    )


def gathered(
    parts: Sequence[tuple[Place, Any, Array]], lanes: Any, load: Callable[[Place, Any, Array], Array]
) -> Array:
    """Words of ``lanes``, by ``load(place, lanes, offsets)`` from each place that holds some: (place, selection of
    lanes or None for all, offsets)."""
    place, where, offsets = parts[0]
    if where is None:
        return load(place, lanes, offsets)
    words = [load(place, lanes[where], offsets) for place, where, offsets in parts]
    out = np.zeros((len(lanes), *words[0].shape[1:]), words[0].dtype)
    for (_, where, _), some in zip(parts, words, strict=True):
        out[where] = some
    return out


def load_words(
    w: Warp, ins: Instruction, cta: Cta, lanes: Any, addr: Array, index: Array, width: int, kind: str
) -> Array:
    """Words of one CTA at ``addr``, with word numbers ``index``: checked, and recorded as read by ``lanes``."""
    shared = cta.shared
    try:
        written = shared.writers[width].take(index, axis=0)
    except IndexError:
        shared_bounds(w, ins, shared, addr, width, lanes, "read of")
        raise
    floor = w.floor if cta is w.cta else 0
    if _least(written, None) <= 0 or (shared.last_write > floor and _most(written, None) > floor):
        check_read(w, ins, cta, lanes, addr, width, written, kind)
    cluster, row = w.cta.cluster, w.row
    events, clocks = cluster.events, cluster.clocks
    unordered = cta is not w.cta
    now = clocks.now[row]
    if kind == "ldmatrix":
        column = clocks.collective(row, w)
        event = events.new(column, now, w.access(kind, ins), unordered=unordered, alone=32 * row)
    else:
        event = events.new(32 * row, now, w.access(kind, ins), unordered=unordered)
    shared.read(row, width, index, (lanes + event)[:, None], event + 31)
    words: Array = shared.words[width].take(index, axis=0)
    return words


def check_read(
    w: Warp, ins: Instruction, cta: Cta, lanes: Any, addr: Array, width: int, written: Array, kind: str
) -> None:
    """The exact check of a generic read against the last writes ``written`` [n, width]."""
    cluster = w.cta.cluster
    if _least(written, None) <= 0:
        shared_bounds(w, ins, cta.shared, addr, width, lanes, "read of")
        _check_written(w, ins, lanes, addr, written, kind)
        written = np.where(written == 0, cluster.events.new(0, 0, None), written)
    touches_mbarrier(w, ins, cta, lanes, addr, width, f"`{ins.opcode}` reads")
    known = all_known(w, lanes, written)
    if known is not None:
        report_unordered(w, ins, cta, lanes, addr, written, known, f"`{ins.opcode}` reads", kind)


def _check_written(w: Warp, ins: Instruction, lanes: Any, addr: Array, written: Array, kind: str) -> None:
    """Report the bytes that nothing has written, unless loads carry them as undefined values."""
    if kind == "ld" and w.cta.machine.program.unwritten:
        return
    i, j = np.nonzero(written == 0)
    if not len(i):
        return
    w.report(
        hz.UninitialisedShared,
        ins,
        lanes=np.asarray(lanes)[np.unique(i)],
        at_bytes=addr[i] + j,
        access="read of",
        space=f"shared bytes at {int(addr[i[0]] + j[0]):#x}",
    )


def all_known(w: Warp, lanes: Any, packed: Array) -> Array | None:
    """Whether each of ``lanes`` knows each of its events [lanes, bytes]; None if all of them are known."""
    cluster = w.cta.cluster
    table, last = cluster.clocks.seen, int(_most(packed, None))
    if last == 0:
        return None
    if last == _least(packed, None):
        # One event, such as the read of an operand by wgmma.
        column, clock = cluster.events.stand(last)
        mine = table[w.first : w.first + 32, column]
        if (_least(mine if len(lanes) == 32 else mine[lanes])) >= clock:
            return None
        return np.broadcast_to((mine[lanes] >= clock)[:, None], packed.shape)
    first = packed[:, 0]
    rows = w.first + lanes
    if packed.shape[1] == 1 or (packed == first[:, None]).all():
        known = cluster.events.known(first, rows, table)
        if first.all():
            return None if known.all() else np.broadcast_to(known[:, None], packed.shape)
        known |= first == 0
        return None if known.all() else np.broadcast_to(known[:, None], packed.shape)
    known = cluster.events.known(packed, rows[:, None], table) | (packed == 0)
    return None if known.all() else known


def shared_store(
    f: Frame, ins: Instruction, lanes: Any, addr: Array, width: int, values: Array, kind: str = "st"
) -> None:
    """Write words to ``addr`` by ``lanes``; 16 bytes are rows of two 64-bit words."""
    for cta, where, offsets in owner(f, ins, addr, width):
        some, given = (lanes, values) if where is None else (lanes[where], values[where])
        store_words(f.w, ins, cta, some, offsets, width, given, kind)


def store_words(
    w: Warp, ins: Instruction, cta: Cta, lanes: Any, addr: Array, width: int, values: Array, kind: str,
    *, distinct: bool = False,
) -> None:  # fmt: skip
    """Write words of one CTA, checked; ``distinct``: no two lanes name the same."""
    cluster = w.cta.cluster
    event = cluster.events.new(w.first, cluster.clocks.now[w.row], w.access(kind, ins), unordered=cta is not w.cta)
    index = check_write(w, ins, cta, lanes, addr, width, kind, values)
    packed = lanes + event
    shared = cta.shared
    shared.write(width, index, packed[:, None], event + 31)
    words = shared.words[width]
    words[index] = values
    if not distinct and len(addr) > 1 and kind != "atom":
        landed = shared.writers[width].take(index, axis=0)[:, 0]
        if (landed != packed).any():
            report_same_instruction(w, ins, lanes, addr, words[index], values, width)
    if shared.origin is not None:
        shared.origin.reshape(-1, width)[index] = 0


def check_write(
    w: Warp, ins: Instruction, cta: Cta, lanes: Any, addr: Array, width: int, kind: str, values: Any = None
) -> Array:
    """Check a generic write (of ``values``, if known) against earlier accesses; returns the word index."""
    shared = cta.shared
    index = addr >> SHIFT[width]
    try:
        written = shared.writers[width].take(index, axis=0)
    except IndexError:
        shared_bounds(w, ins, shared, addr, width, lanes, "write to")
        raise
    if _least(addr) < shared.base or (shared.limit & 15 and _most(addr) + width > shared.limit):
        shared_bounds(w, ins, shared, addr, width, lanes, "write to")
    floor = w.floor if cta is w.cta else 0
    if shared.last_write > floor and _most(written, None) > floor:
        touches_mbarrier(w, ins, cta, lanes, addr, width, f"`{ins.opcode}` writes")
        known = all_known(w, lanes, written)
        if known is not None:
            _overwrite(w, ins, cta, lanes, addr, width, written, known, kind, values)
    if shared.last_read > floor:
        reads = shared.reads[width].take(index, axis=1)
        if _most(reads, None) > floor:
            for reader, last in zip(shared.readers, shared.lasts[0].tolist(), strict=False):
                if last > floor:
                    _after_reader(w, ins, cta, lanes, addr, reader.key, reads[reader.number], kind)
    return index


def _after_reader(
    w: Warp, ins: Instruction, cta: Cta, lanes: Any, addr: Array, reader: Any, events: Array, kind: str
) -> None:
    """Check a write against the last reads of one reader."""
    if not events.any():
        return
    verb = f"`{ins.opcode}` writes"
    known = all_known(w, lanes, events)
    if known is not None:
        report_unordered(w, ins, cta, lanes, addr, events, known, verb, kind)
    table, rows = w.cta.cluster.clocks.seen, (w.first + lanes)[:, None]
    if not is_wgmma(reader):
        check_lanes_ordered(w, ins, events, rows, table, addr, verb)
    else:
        # Widely used pipelines leave out other warps only where a copy of the async proxy overwrites.
        check_warps_waited(w, ins, events, rows, table, addr, verb, hz.OverwriteOfWarpsByStore)


def _overwrite(
    w: Warp, ins: Instruction, cta: Cta, lanes: Any, addr: Array, width: int, events: Array, known: Array,
    kind: str, values: Any,
) -> None:  # fmt: skip
    """Report a write over writes that are not ``known``, unless each lane writes what is there already."""
    if values is not None:
        there = cta.shared.words[width][addr >> SHIFT[width]]
        same = (there == values).reshape(len(addr), -1).all(axis=1)
        if same.any():
            known = known | _equal_writes(w, ins, lanes, addr, events, known, same)
    if not known.all():
        report_unordered(w, ins, cta, lanes, addr, events, known, f"`{ins.opcode}` writes", kind)


def _equal_writes(
    w: Warp, ins: Instruction, lanes: Any, addr: Array, events: Array, known: Array, same: Array
) -> Array:
    """The unordered writes by the same instruction of another warp that left the value which is written now."""
    table = w.cta.cluster.events
    ours = np.zeros(events.shape, bool)
    for packed in np.unique(events[~known]):
        event = table.of(packed)
        if event is not None and event.kind == "st" and event.instruction is ins and event.warp is not w:
            ours |= events == packed
    ours &= same[:, None] & ~known
    if ours.any():
        i, j = np.nonzero(ours)
        event = table.of(events[i[0], j[0]])
        w.report(
            hz.RaceOfEqualValues,
            ins,
            lanes=np.asarray(lanes)[np.unique(i)],
            at_bytes=addr[i] + j,
            other=event.place,
            access=f"`{ins.opcode}` writes",
            space=f"shared byte {int(addr[i[0]] + j[0]):#x}",
            barrier=barrier_for(event.warp, w),
            first_line=ins.line,
            second_line=ins.line,
        )
    return ours
