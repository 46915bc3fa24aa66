"""Accesses of the async proxy to shared memory: checked and entered into the shadow when they are issued.

The operation may access the bytes at any time until it completes.  It is therefore checked against the clocks of
its issuer, and later accesses against its completion.  Addresses are int64, the width 1, 2, 4, 8 or 16 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilemma.machine import catalogue as hz
from tilemma.machine.access import shared_bounds
from tilemma.machine.conflicts import (
    check_lanes_ordered,
    check_warps_waited,
    first_unordered,
    is_wgmma,
    report_conflict,
    touches_mbarrier,
)
from tilemma.machine.memory import SHIFT
from tilemma.machine.native.blocks import address_of
from tilemma.machine.native.records import address
from tilemma.machine.state import Access, Cta, Warp
from tilemma.machine.syntax import Instruction

Array = npt.NDArray[Any]


@dataclass(slots=True)
class Knowledge:
    """The clocks of the issuer of an asynchronous operation: one a column, per proxy."""

    seen: Array
    fenced: Array

    def cover(self, column: Array) -> None:
        """Extend the clocks by zeros for columns that were added later."""
        need = int(column.max()) + 1 - len(self.seen)
        if need > 0:
            more = np.zeros(need, self.seen.dtype)
            self.seen, self.fenced = np.concatenate([self.seen, more]), np.concatenate([self.fenced, more])


def read_tile(
    w: Warp, ins: Instruction, cta: Cta, units: tuple[Array, int, int], knowledge: Knowledge, event: int,
    reader: Any, what: str,
) -> None:  # fmt: skip
    """`async_read` of ``units``: addresses, bytes to add to each, and their width."""
    addr, moved, width = units
    native, shared = w.cta.machine.native, cta.shared
    if native is not None:
        found = shared.reader_of(reader)
        fenced = knowledge.fenced
        if native.async_read(
            address(shared.record), address(w.cta.cluster.events.record), address_of(addr), moved, addr.size,
            width, address_of(fenced), len(fenced), found.number, event,
        ):  # fmt: skip
            shared.has_read(found, event)
            return
    async_read(w, ins, cta, addr + moved, width, knowledge, event, reader, what)


def async_read(
    w: Warp,
    ins: Instruction,
    cta: Cta,
    addr: Array,
    width: int,
    knowledge: Knowledge,
    event: int,
    reader: Any,
    what: str,
) -> None:
    """Check an async-proxy read of words at ``addr`` (any shape) at its issue, and enter it as ``reader``."""
    shared, events = cta.shared, w.cta.cluster.events
    addr = addr.reshape(-1)
    index = addr >> SHIFT[width]
    if int(addr.min()) < shared.base or int(addr.max()) + width > shared.limit:
        shared_bounds(w, ins, shared, addr, width, (), f"{what} reads")
    written = shared.writers[width].take(index, axis=0)
    if width > 1 and (written == written[:, :1]).all():
        written = written[:, :1]
    if written.min() <= 0:
        i, j = np.nonzero(written == 0)
        at = addr[i] + j
        w.report(
            hz.UninitialisedShared,
            ins,
            at_bytes=np.sort(at),
            access=f"{what} reads",
            space=f"shared bytes at {int(at.min()):#x}",
        )
    column, clock = events.stand(written)
    knowledge.cover(column)
    known = (knowledge.fenced[column] >= clock) | (written == 0)
    if not known.all():
        i, j = np.nonzero(~known)
        _blame_async(
            w, ins, events.of(written[i[0], j[0]]), addr[i] + j, written[i[0], j[0]], knowledge, f"{what} reads"
        )
    shared.read(reader, width, index, event, event)


def write_tile(
    w: Warp, ins: Instruction, cta: Cta, addr: Array, width: int, knowledge: Knowledge, event: int, what: str
) -> None:
    """`async_write`, in the native library where that finds nothing."""
    native, shared = w.cta.machine.native, cta.shared
    if native is not None:
        seen, fenced = knowledge.seen, knowledge.fenced
        if native.async_write(
            address(shared.record), address(w.cta.cluster.events.record), address_of(addr), addr.size, width,
            address_of(seen), address_of(fenced), len(fenced), event,
        ):  # fmt: skip
            shared.wrote(event)
            return
    async_write(w, ins, cta, addr, width, knowledge, event, what)


def async_write(
    w: Warp, ins: Instruction, cta: Cta, addr: Array, width: int, knowledge: Knowledge, event: int, what: str
) -> None:
    """Check an async-proxy write at its issue, and enter it as the bytes' (pending) writer."""
    shared, events = cta.shared, w.cta.cluster.events
    addr = addr.reshape(-1)
    index = addr >> SHIFT[width]
    if int(addr.min()) < shared.base or int(addr.max()) + width > shared.limit:
        shared_bounds(w, ins, shared, addr, width, (), f"{what} writes")
    old = shared.writers[width].take(index, axis=0)
    if width > 1 and (old == old[:, :1]).all():
        old = old[:, :1]
    column, clock = events.stand(old)
    knowledge.cover(column)
    unknown = (knowledge.fenced[column] < clock) & (old != 0)
    if unknown.any():
        i, j = np.nonzero(unknown)
        _blame_async(w, ins, events.of(old[i[0], j[0]]), addr[i] + j, old[i[0], j[0]], knowledge, f"{what} writes")
    if shared.readers:
        reads = shared.reads[width].take(index, axis=1)
        for reader in shared.readers if reads.any() else ():
            read = reads[reader.number]
            if not read.any():
                continue
            if width > 1 and (read == read[:, :1]).all():
                read = read[:, :1]
            column, clock = events.stand(read)
            knowledge.cover(column + 4)
            unknown = (knowledge.seen[column] < clock) & (read != 0)
            if unknown.any():
                blamed, at_bytes, space = first_unordered(w, read, unknown, addr)
                report_conflict(w, ins, blamed, f"{what} writes", space, (), at_bytes)
            elif is_wgmma(reader.key):
                check_warps_waited(w, ins, read, None, knowledge.seen, addr, f"{what} writes")
            elif isinstance(reader.key, int):
                check_lanes_ordered(w, ins, read, None, knowledge.seen, addr, f"{what} writes")
                _after_reads(w, ins, read, knowledge, addr, f"{what} writes")
    touches_mbarrier(w, ins, cta, (), addr, width, f"{what} writes")
    shared.write(width, index, event, event)


def _after_reads(w: Warp, ins: Instruction, read: Array, knowledge: Knowledge, addr: Array, verb: str) -> None:
    """Report the overwrite of bytes that were read through the generic proxy, without a proxy fence in between."""
    column, clock = w.cta.cluster.events.stand(read)
    bad = (knowledge.fenced[column] < clock) & (read != 0)
    if bad.any():
        event, at_bytes, space = first_unordered(w, read, bad, addr)
        w.report(
            hz.MissingProxyFenceAfterRead, ins, at_bytes=at_bytes, other=event.place, access=verb, space=space
        )


def _blame_async(
    w: Warp, ins: Instruction, event: Access, at: Array, packed: Any, knowledge: Knowledge, verb: str
) -> None:
    column, clock = w.cta.cluster.events.stand(np.asarray(packed))
    if event.kind not in ("tma", "wgmma", "bulk-store", "mbarrier") and knowledge.seen[column] >= clock:
        cls = hz.MissingProxyFenceAfterCopy if event.kind == "cp.async" else hz.MissingProxyFence
        w.report(
            cls, ins, at_bytes=np.sort(at), other=event.place, access=verb, space=f"shared byte {int(at.min()):#x}"
        )
    else:
        report_conflict(w, ins, event, verb, f"shared byte {int(at.min()):#x}", (), np.sort(at))
