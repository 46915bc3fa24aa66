"""Fences (PTX ISA, "membar / fence")."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilemma.machine import sequential, strong
from tilemma.machine.clocks import Message
from tilemma.machine.decode import Decoder, instruction
from tilemma.machine.exec import tensormaps
from tilemma.machine.global_access import fence_global
from tilemma.machine.isa import tensormap
from tilemma.machine.native.blocks import AccessBlock, PlainAccess, block
from tilemma.machine.state import Frame

_SCOPES = ("cta", "cluster", "gpu", "sys", "gl")


@instruction("membar", "fence")
def fence(d: Decoder) -> None:
    # Without a word about it a fence is `.acq_rel`; `membar` is `fence.sc`.
    consistent = d.has("sc") or d.parts[0] == "membar"
    d.has("acq_rel", "acquire", "release", "sync_restrict::shared::cta", "sync_restrict::shared::cluster")
    d.one_of(_SCOPES)
    d.only()
    scope = strong.scope_of(d.ins)

    def run(f: Frame, m: Any) -> None:
        strong.fence(f, f.w.rows_of(m), scope, lanes=sequential.bits(m) if consistent else 0)

    d.visible(run)


@instruction("fence.proxy", "membar.proxy")
def proxy(d: Decoder) -> None:
    d.needs(70 if "alias" in d.mods else 90)
    kind = d.one_of(("alias", "async", "async.global", "tensormap::generic", "async::generic"))
    d.has(
        "global", "shared::cta", "shared::cluster", "release", "acquire", "gpu", "cta", "cluster", "sys", "proxy"
    )
    d.has("sync_restrict::shared::cta", "sync_restrict::shared::cluster")
    d.only()
    if kind == "tensormap::generic":
        _tensormap(d)
        return
    # Restricted to one memory, the fence does nothing for the other.
    counts = kind.startswith("async") and "global" not in d.mods
    reaches_global = kind.startswith("async") and not any(x.startswith("shared") for x in d.mods)

    if counts and not reaches_global:
        d.plain = PlainAccess("PROXY_FENCE", AccessBlock(*block([])))

    def run(f: Frame, m: Any) -> None:
        w = f.w
        if reaches_global:
            fence_global(w, w.rows_of(m))
        if counts:
            w.cta.cluster.clocks.fence_proxy(w.rows_of(m), w.row)
            fence_inits(f)

    d.visible(run)


def _tensormap(d: Decoder) -> None:
    """``fence.proxy.tensormap::generic.acquire.gpu [map], 128`` lets the warp use the map."""
    acquires = "acquire" in d.mods
    address = d.address(d.operands[0]) if acquires and d.operands else None
    if address is not None and d.immediate(d.operands[1]) != tensormap.BYTES:
        d.bad("the size must be 128")

    def run(f: Frame, m: Any) -> None:
        rows = f.w.rows_of(m)
        strong.fence(f, rows)
        if address is not None:
            lanes = f.lanes if m is None else m.nonzero()[0]
            for lane, at in zip(lanes, address.values(f.w, lanes), strict=True):
                tensormaps.fence_acquire(f, int(lane), int(at))

    d.visible(run)


@instruction("fence.mbarrier_init")
def mbarrier_init(d: Decoder) -> None:
    d.needs(90)
    d.has("release", "cluster")
    d.only("mbarrier_init")

    def run(f: Frame, m: Any) -> None:
        release_inits(f)
        fence_inits(f)

    d.visible(run)


def fence_inits(f: Frame) -> None:
    """Make the mbarriers that this warp has initialised visible to the async proxy (once others acquire them)."""
    for barrier in f.w.inits:
        barrier.fenced = True
    f.w.inits.clear()
    f.w.record.inits = 0


def release_inits(f: Frame) -> None:
    """`fence.mbarrier_init`: releases the inits, and no other write, to those that acquire a relaxed arrival."""
    w = f.w
    clocks = w.cta.cluster.clocks
    size = clocks.seen.shape[1]
    table = np.zeros(size, np.int32)
    for barrier in w.inits:
        table[barrier.init_column] = barrier.init_clock
    message = Message(table, table.copy(), w.cta.cluster.serial)
    if w.init_message is not None:
        message.merge(w.init_message)
    w.init_message = message
