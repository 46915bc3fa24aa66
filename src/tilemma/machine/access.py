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
from tilemma.machine import strong
from tilemma.machine.memory import SHIFT, SharedMemory
from tilemma.machine.state import Access, Cta, Frame, Warp
from tilemma.machine.syntax import Instruction

Array = npt.NDArray[Any]
Place = TypeVar("Place")

# Ranks in the cluster sit above the 24 bits of a CTA's own window; 0 there means the own CTA.
RANK_SHIFT = 24
OFFSET_MASK = (1 << RANK_SHIFT) - 1


ASYNC_AGENT = {
    "cp.async": "cp.async",
    "tma": "bulk copy",
    "wgmma": "wgmma",
    "bulk-store": "bulk store",
}
WAIT_FOR = {
    "cp.async": "wait with `cp.async.wait_group` (or `cp.async.mbarrier.arrive` and its mbarrier), then a barrier",
    "tma": "wait for the copy's mbarrier: `mbarrier.try_wait.parity` in a loop, on the phase that it completes",
    "wgmma": "add `wgmma.wait_group.sync.aligned` for its group, then tell the writer through a barrier",
    "bulk-store": "add `cp.async.bulk.commit_group` and `cp.async.bulk.wait_group.read`, then a barrier",
}


def barrier_for(a: Warp, b: Warp) -> str:
    """The instruction that would order two warps."""
    if a is b:
        return "bar.warp.sync 0xffffffff;"
    if a.cta is b.cta:
        return "bar.sync 0;"
    if a.cta.cluster is b.cta.cluster:
        return "barrier.cluster.arrive; barrier.cluster.wait;"
    return "an atomic release-acquire pair of scope .gpu"


def owner(f: Frame, ins: Instruction, addr: Array, width: int) -> list[tuple[Cta, Any, Array]]:
    """Whose shared memory the addresses are in: (CTA, selection of lanes or None for all, offsets)."""
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
        f.w.cta.machine.report(
            hz.OutOfBounds.at(
                f.w.place(ins),
                lanes=f.lanes,
                access="use of",
                space=f"shared address {address:#x}",
                what=f"which is no address of this cluster of {len(ctas)} CTAs",
            ),
            fatal=True,
        )
    target = ctas[rank]
    if target.exited:
        f.w.cta.machine.report(
            hz.ExitBeforeCluster.at(f.w.place(ins), lanes=f.lanes, access="access to", rank=rank), fatal=True
        )
    return target


def misaligned(f: Frame, ins: Instruction, address: int, width: int, lanes: Any) -> None:
    f.w.cta.machine.report(
        hz.Misaligned.at(
            f.w.place(ins),
            lanes=lanes,
            access=f"`{ins.opcode}`",
            address=address,
            alignment=width,
            section="Addresses as Operands",
        ),
        fatal=True,
    )


def shared_bounds(
    w: Warp, ins: Instruction, shared: SharedMemory, addr: Array, width: int, lanes: Any, verb: str
) -> None:
    """Report the addresses outside the CTA's shared memory; does nothing when there are none."""
    bad = np.flatnonzero((addr < shared.base) | (addr + width > shared.limit))
    if len(bad):
        first = int(addr[bad[0]])
        w.cta.machine.report(
            hz.OutOfBounds.at(
                w.place(ins),
                lanes=np.asarray(lanes)[bad] if len(lanes) == len(addr) else (),
                at_bytes=range(first, first + width),
                access=verb,
                space=f"shared memory at {first:#x}",
                what=f"the CTA has bytes {shared.base:#x} to {shared.limit - 1:#x}",
            ),
            fatal=True,
        )


# -- shared memory, generic proxy
def shared_load(f: Frame, ins: Instruction, lanes: Any, addr: Array, width: int, kind: str = "ld") -> Array:
    """Words at ``addr`` (16 bytes: rows of two), read by ``lanes``."""
    parts = owner(f, ins, addr, width)
    return gathered(parts, lanes, lambda cta, some, offsets: _load(f, ins, cta, some, offsets, width, kind))


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


def _load(f: Frame, ins: Instruction, cta: Cta, lanes: Any, addr: Array, width: int, kind: str) -> Array:
    w, shared = f.w, cta.shared
    index = addr >> SHIFT[width]
    try:
        written = shared.writers[width].take(index, axis=0)
    except IndexError:
        shared_bounds(w, ins, shared, addr, width, lanes, "read of")
        raise
    floor = w.floor if cta is w.cta else 0
    if written.min() <= 0 or written.max() > floor:
        check_read(w, ins, cta, lanes, addr, width, written, kind)
    events, row, clocks = w.cta.cluster.events, w.row, w.cta.cluster.clocks
    unordered = cta is not w.cta
    if kind == "ldmatrix":
        # The warp reads together: a lane that is past the instruction knows that all rows were read.
        column = clocks.column(("collective", row), 32)
        clocks.seen[32 * row : 32 * row + 32, column : column + 32] = clocks.now[row]
        event = events.new(column, clocks.now[row], w.access(kind, ins), unordered=unordered, alone=32 * row)
    else:
        event = events.new(32 * row, clocks.now[row], w.access(kind, ins), unordered=unordered)
    packed = (lanes + event)[:, None]
    shared.reader_views(row)[width][index] = packed
    shared.readers[width][index] = packed
    words: Array = shared.words[width][index]
    return words


def check_read(
    w: Warp, ins: Instruction, cta: Cta, lanes: Any, addr: Array, width: int, written: Array, kind: str
) -> None:
    """The exact check of a generic read against the last writes ``written`` [n, width]."""
    cluster = w.cta.cluster
    if written.min() <= 0:
        shared_bounds(w, ins, cta.shared, addr, width, lanes, "read of")
        i, j = np.nonzero(written == 0)
        where = np.unique(i)
        w.cta.machine.report(
            hz.UninitialisedShared.at(
                w.place(ins),
                lanes=np.asarray(lanes)[where],
                at_bytes=addr[i] + j,
                access="read of",
                space=f"shared bytes at {int(addr[i[0]] + j[0]):#x}",
            )
        )
        written = np.where(written == 0, cluster.events.new(0, 0, None), written)
    rows = (w.first + lanes)[:, None]
    if width > 1 and (written == written[:, :1]).all():
        written = written[:, :1]
    touches_mbarrier(w, ins, cta, lanes, addr, width, f"`{ins.opcode}` reads")
    known = cluster.events.known(written, rows, cluster.clocks.seen)
    if not known.all():
        _blame(w, ins, cta, lanes, addr, written, known, f"`{ins.opcode}` reads", kind)


def _blame(
    w: Warp, ins: Instruction, cta: Cta, lanes: Any, addr: Array, events: Array, known: Array, verb: str, kind: str
) -> None:
    """Report the first access that is not ordered, by the kind of the event that it collides with."""
    table = w.cta.cluster.events
    bad_rows, bad_columns = np.nonzero(~known)
    for i, j in zip(bad_rows, bad_columns, strict=True):
        event = table.of(events[i, j])
        if event is None:
            continue
        # A lane that polls what another lane of its warp will write is in another frame than that lane.
        together = strong.lockstep(event, w, ins) and int(events[i, j]) & 31 in lanes
        if event.kind == kind == "atom" and strong.morally_strong(event, w, ins) and not together:
            continue
        same = np.unique(bad_rows)
        report_conflict(
            w,
            ins,
            event,
            verb,
            f"shared byte {int(addr[i] + j):#x}",
            np.asarray(lanes)[same],
            addr[bad_rows] + bad_columns,
        )
        return


def touches_mbarrier(w: Warp, ins: Instruction, cta: Cta, lanes: Any, addr: Array, width: int, verb: str) -> None:
    """Report ordinary accesses to the bytes of an mbarrier in use."""
    barriers = cta.shared.mbarriers
    if not barriers:
        return
    first = min(barriers)
    if int(addr.max()) + width <= first or int(addr.min()) >= max(barriers) + 8:
        return
    hit = {int(a) + o & ~7 for a in addr for o in range(0, width, 8)} & barriers.keys()
    if hit:
        at = min(hit)
        w.cta.machine.report(
            hz.MbarrierReinit.at(
                w.place(ins),
                lanes=lanes,
                at_bytes=range(at, at + 8),
                other=barriers[at].init.place,
                address=at,
                what=f"{verb} its bytes with an ordinary access while it is in use",
                fix_text="give the data another place, or `mbarrier.inval` the barrier first",
            )
        )


def is_wgmma(reader: Any) -> bool:
    return isinstance(reader, tuple) and reader[0] == "wgmma"


def first_blamed(w: Warp, events: Array, bad: Array, addr: Array) -> tuple[Access, Array, str]:
    """The first of ``events[row, byte]`` that is ``bad``, the bytes of all that are, and the first byte in words.

    The bytes of a row begin at its ``addr``.
    """
    i, j = np.nonzero(bad)
    event = w.cta.cluster.events.of(events[i[0], j[0]])
    return event, np.sort(addr[i] + j), f"shared byte {int(addr[i[0]] + j[0]):#x}"


def by_other_warps(
    w: Warp,
    ins: Instruction,
    events: Array,
    rows: Any,
    table: Any,
    addr: Array,
    verb: str,
    hazard: type[hz.OverwriteOfOtherWarps] = hz.OverwriteOfOtherWarps,
) -> None:
    """Report the overwrite of wgmma operands that not all of the warpgroup's warps are known to have waited for.

    The warps' own columns follow that of the warpgroup.  ``table[rows, column]`` is what the writer knows; rows of
    None: ``table`` is one row.
    """
    if not events.any():
        return
    log = w.cta.cluster.events
    column, clock = log.stand(events)
    bad = np.zeros(events.shape, bool)
    for warp in range(1, 5):
        known = table[column + warp] if rows is None else table[rows, column + warp]
        bad |= (known < clock) & (events != 0)
    if bad.any():
        event, at_bytes, space = first_blamed(w, events, bad, addr)
        w.cta.machine.report(
            hazard.at(w.place(ins), at_bytes=at_bytes, other=event.place, access=verb, space=space)
        )


def by_other_lanes(
    w: Warp, ins: Instruction, events: Array, rows: Any, table: Any, addr: Array, verb: str
) -> None:
    """Report the overwrite of what a warp read as one, where its lanes are not known one by one to be past that.

    The warp's own later instructions need no more than its `.sync`.  ``table[rows, column]`` is what the writer
    knows; rows of None: ``table`` is one row.
    """
    log = w.cta.cluster.events
    column, clock = log.stand(events)
    alone = log.alone_column(events)
    if (alone == column).all():
        return
    known, each = (table[c] if rows is None else table[rows, c] for c in (column, alone))
    bad = (each < clock) & (known >= clock) & (events != 0) & (alone // 32 != w.row)
    if bad.any():
        event, at_bytes, space = first_blamed(w, events, bad, addr)
        w.cta.machine.report(
            hz.RaceOfLanes.at(
                w.place(ins),
                at_bytes=at_bytes,
                other=event.place,
                access=verb,
                space=space,
                first_line=event.instruction.line,
            )
        )


def report_conflict(
    w: Warp, ins: Instruction, event: Access, verb: str, space: str, lanes: Any, at_bytes: Any
) -> None:
    """The hazard of an access that is not ordered after ``event``."""
    machine, place = w.cta.machine, w.place(ins)
    reads = "read" in verb
    other = event.place
    facts: dict[str, Any] = {"lanes": lanes, "at_bytes": at_bytes, "other": other, "access": verb, "space": space}
    if event.kind in ("cp.async", "tma") and reads:
        machine.report(
            hz.ReadBeforeArrival.at(place, agent=ASYNC_AGENT[event.kind], wait=WAIT_FOR[event.kind], **facts)
        )
    elif event.kind in ("wgmma", "bulk-store") and not reads:
        machine.report(
            hz.OverwriteInFlight.at(place, agent=ASYNC_AGENT[event.kind], wait=WAIT_FOR[event.kind], **facts)
        )
    else:
        machine.report(
            hz.Race.at(
                place,
                barrier=barrier_for(event.warp, w),
                first_line=event.instruction.line,
                second_line=ins.line,
                **facts,
            )
        )


def shared_store(
    f: Frame, ins: Instruction, lanes: Any, addr: Array, width: int, values: Array, kind: str = "st"
) -> None:
    """Write words to ``addr`` by ``lanes``; 16 bytes are rows of two 64-bit words."""
    for cta, where, offsets in owner(f, ins, addr, width):
        if where is None:
            _store(f, ins, cta, lanes, offsets, width, values, kind)
        else:
            _store(f, ins, cta, lanes[where], offsets, width, values[where], kind)


def _store(
    f: Frame, ins: Instruction, cta: Cta, lanes: Any, addr: Array, width: int, values: Array, kind: str
) -> None:
    w = f.w
    cluster = w.cta.cluster
    event = cluster.events.new(
        w.first, cluster.clocks.now[w.row], Access(kind, w, ins), unordered=cta is not w.cta
    )
    index = check_write(w, ins, cta, lanes, addr, width, kind, values)
    packed = (lanes + event)[:, None]
    shared = cta.shared
    shared.writers[width][index] = packed
    words = shared.words[width]
    words[index] = values
    if len(addr) > 1 and kind != "atom":
        landed = shared.writers[width].take(index, axis=0)[:, 0]
        if (landed != packed[:, 0]).any():
            report_same_instruction(w, ins, lanes, addr, words[index], values, width)
    if shared.origin is not None:
        shared.origin.reshape(-1, width)[index] = 0


def report_same_instruction(
    w: Warp, ins: Instruction, lanes: Any, addr: Array, landed: Array, values: Array, width: int
) -> None:
    """Lanes of one instruction wrote the same bytes: harmless when they wrote the same."""
    different = np.flatnonzero((landed != values).reshape(len(addr), -1).any(axis=1))
    if len(different):
        w.cta.machine.report(
            hz.Race.at(
                w.place(ins),
                lanes=np.asarray(lanes)[different],
                at_bytes=addr[different],
                access=f"`{ins.opcode}` writes",
                space=f"different values by several lanes to shared byte {int(addr[different[0]]):#x}",
                barrier="bar.warp.sync 0xffffffff;",
                first_line=ins.line,
                second_line=ins.line,
            )
        )


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
    shared_bounds_quick = addr.min() < shared.base or (shared.limit & 15 and addr.max() + width > shared.limit)
    if shared_bounds_quick:
        shared_bounds(w, ins, shared, addr, width, lanes, "write to")
    read = shared.readers[width].take(index, axis=0)
    floor = w.floor if cta is w.cta else 0
    if written.max() > floor:
        touches_mbarrier(w, ins, cta, lanes, addr, width, f"`{ins.opcode}` writes")
        same = None
        if values is not None:
            same = (shared.words[width][index] == values).reshape(len(addr), -1).all(axis=1)
        _ordered(w, ins, cta, lanes, addr, width, written, kind, same)
    if read.max() > floor:
        for reader, views in list(shared.by_reader.items()):
            events = views[width].take(index, axis=0)
            _ordered(w, ins, cta, lanes, addr, width, events, kind)
            rows = (w.first + np.asarray(lanes))[:, None]
            if not is_wgmma(reader):
                by_other_lanes(w, ins, events, rows, w.cta.cluster.clocks.seen, addr, f"`{ins.opcode}` writes")
            else:
                # Widely used pipelines leave out other warps only where a copy of the async proxy overwrites.
                table, verb = w.cta.cluster.clocks.seen, f"`{ins.opcode}` writes"
                by_other_warps(w, ins, events, rows, table, addr, verb, hz.OverwriteOfWarpsByStore)
    return index


def _ordered(
    w: Warp,
    ins: Instruction,
    cta: Cta,
    lanes: Any,
    addr: Array,
    width: int,
    events: Array,
    kind: str,
    same: Array | None = None,
) -> None:
    """Check a write against ``events``; ``same`` says which lanes write what is there already."""
    cluster = w.cta.cluster
    if width > 1 and (events == events[:, :1]).all():
        events = events[:, :1]
    known = cluster.events.known(events, (w.first + lanes)[:, None], cluster.clocks.seen) | (events == 0)
    if not known.all() and same is not None and same.any():
        known = known | _equal_writes(w, ins, lanes, addr, events, known, same)
    if not known.all():
        _blame(w, ins, cta, lanes, addr, events, known, f"`{ins.opcode}` writes", kind)


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
        w.cta.machine.report(
            hz.RaceOfEqualValues.at(
                w.place(ins), lanes=np.asarray(lanes)[np.unique(i)], at_bytes=addr[i] + j, other=event.place,
                access=f"`{ins.opcode}` writes", space=f"shared byte {int(addr[i[0]] + j[0]):#x}",
                barrier=barrier_for(event.warp, w), first_line=ins.line, second_line=ins.line,
            )
        )  # fmt: skip
    return ours
