"""Release and acquire through ordinary memory: flags, locks and counters (PTX ISA, "Memory Consistency Model").

A release leaves a message at its address; an acquire that comes to the address takes it.  Atomics continue the
release sequence that they find.  Relaxed accesses count together with a fence on their side.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilemma.machine.clocks import Message
from tilemma.machine.state import Frame


def _rows(f: Frame, lanes: Any) -> Any:
    return f.w.first + np.asarray(lanes)


def before_read(f: Frame, lanes: Any, addr: Any, order: str) -> None:
    """A strong read by ``lanes``: acquire what was released at its addresses."""
    if order == "weak":
        return
    w, table = f.w, f.w.cta.machine.released
    if not table:
        return
    for lane, a in zip(lanes, addr, strict=True):
        message = table.get(_key(f, int(a)))
        if message is None:
            continue
        if order in ("acquire", "acq_rel"):
            w.cta.cluster.clocks.acquire(_rows(f, [lane]), message)
        elif order != "release":
            if w.brought is None:
                w.brought = []
            w.brought.append((int(lane), message))


def _key(f: Frame, address: int) -> Any:
    """Shared addresses are those of one CTA, global ones of all."""
    if address < 1 << 32:
        rank = (address >> 24) - 1
        cta = f.w.cta if rank < 0 else f.w.cta.cluster.ctas[min(rank, len(f.w.cta.cluster.ctas) - 1)]
        return cta.index, address & 0xFFFFFF
    return address


def before_write(f: Frame, lanes: Any, addr: Any, order: str) -> None:
    """A strong write by ``lanes``: leave what a release, or an earlier fence, hands on."""
    w = f.w
    message: Message | None
    if order in ("release", "acq_rel"):
        message = w.cta.cluster.clocks.release(_rows(f, lanes), w.row)
    else:
        message = w.fence_message
    if message is None:
        return
    table = w.cta.machine.released
    for a in {int(x) for x in addr}:
        key = _key(f, a)
        known = table.get(key)
        fresh = Message(
            message.seen.copy(), message.fenced.copy(), message.cluster, dict(message.foreign or {}) or None
        )
        if known is not None:
            _continue(fresh, known)
        table[key] = fresh


def _continue(message: Message, earlier: Message) -> None:
    """Carry on a release sequence: who acquires the new value also gets what the old one carried."""
    if earlier.cluster == message.cluster:
        message.merge(earlier)
    else:
        carrier = Message(message.seen[:0], message.fenced[:0], message.cluster, {earlier.cluster: earlier.seen})
        if earlier.foreign:
            carrier.merge(Message(message.seen[:0], message.fenced[:0], message.cluster, earlier.foreign))
        message.merge(carrier)


def fence(f: Frame, rows: Any) -> None:
    """`fence.acq_rel`, `fence.sc` and `membar`: earlier relaxed reads acquire, later relaxed writes release."""
    w = f.w
    clocks = w.cta.cluster.clocks
    if w.brought:
        for lane, message in w.brought:
            clocks.acquire(_rows(f, [lane]), message)
        w.brought = None
    w.fence_message = clocks.release(rows, w.row)
