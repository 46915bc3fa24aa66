"""Tensor maps that a program changes: tensormap.replace, tensormap.cp_fenceproxy and the proxy fence before their
use (PTX ISA, "Data Movement and Conversion Instructions: tensormap.replace", "tensormap.cp_fenceproxy")."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilemma.machine import access, global_access, strong
from tilemma.machine import catalogue as hz
from tilemma.machine.decode import VIEW, Decoder, instruction
from tilemma.machine.exec import aligned
from tilemma.machine.isa import tensormap
from tilemma.machine.isa.copying import CONSTANT_FIELDS
from tilemma.machine.memory import PARAM_WINDOW, SHARED_WINDOW, BoundMap
from tilemma.machine.state import LANES, Frame
from tilemma.machine.syntax import Instruction

_INDEXED = {"global_dim", "global_stride", "box_dim", "element_stride"}


@instruction("tensormap.replace")
def replace(d: Decoder) -> None:
    """``tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [map], 0, 64``."""
    d.needs(90, accelerated=True)
    d.one_of(("tile",))
    name = d.one_of(tuple(tensormap.FIELDS))
    space = d.one_of({"global": "global", "shared::cta": "shared", "shared": "shared"}, "generic")
    kind = d.type
    d.only("replace", "b1024", kind)
    indexed = name in _INDEXED
    d.count(3 if indexed else 2)
    address = d.address(d.operands[0])
    offset, width, count = tensormap.FIELDS[name]
    ordinal = d.immediate(d.operands[1]) if indexed else 0
    if not 0 <= ordinal < count:
        d.bad(f"`.{name}` has ordinals 0 to {count - 1}, not {ordinal}")
    if name in CONSTANT_FIELDS and not 0 <= d.immediate(d.operands[-1]) <= CONSTANT_FIELDS[name]:
        d.bad(f"`.{name}` has values 0 to {CONSTANT_FIELDS[name]}")
    value = d.src(d.operands[-1], kind)
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        lanes = LANES if m is None else np.flatnonzero(m)
        some = None if m is None else lanes
        at = address.values(f.w, some)
        new = f.w.v[VIEW[kind]][value]
        new = (new if some is None else new[some]).astype(np.uint64)
        shared = space == "shared" or int(at[0]) >= SHARED_WINDOW
        if int(at[0]) >= SHARED_WINDOW:
            at = at - SHARED_WINDOW
        bad = np.flatnonzero(at % tensormap.BYTES)
        if len(bad):
            access.misaligned(f, ins, int(at[bad[0]]), tensormap.BYTES, lanes[bad])
        store = access.shared_store if shared else global_access.global_store
        word = {1: np.uint8, 2: np.uint16, 8: np.uint64}[width]
        store(f, ins, lanes, at + offset + ordinal * width, width, new.astype(word))

    d.visible(run)


@instruction("tensormap.cp_fenceproxy")
def copy_and_fence(d: Decoder) -> None:
    """One warp copies a tensor map to global memory and releases it to the tensormap proxy."""
    d.needs(90)
    d.has("global", "shared::cta", "tensormap::generic", "release", "cta", "cluster", "gpu", "sys")
    d.only("cp_fenceproxy", "sync", "aligned")
    d.count(3)
    to, source = d.address(d.operands[0]), d.address(d.operands[1])
    if d.immediate(d.operands[2]) != tensormap.BYTES:
        d.bad("the size must be 128")
    ins = d.ins
    lanes = np.arange(tensormap.BYTES // 16)

    def run(f: Frame, m: Any) -> None:
        aligned.whole_warp(f, ins, m)
        w = f.w
        at, start = int(to.values(w, None)[0]), int(source.values(w, None)[0])
        for address in (at, start):
            if address % tensormap.BYTES:
                access.misaligned(f, ins, address, tensormap.BYTES, (0,))
        words = access.shared_load(f, ins, lanes, start % SHARED_WINDOW + 16 * lanes, 16)
        global_access.global_store(f, ins, lanes, at + 16 * lanes, 16, words)
        # `.release`: threads ordered after this copy may use the map.
        w.fence_message = strong.GPU, w.cta.cluster.clocks.release(w.rows_of(m), w.row)

    d.visible(run)


def fence_acquire(f: Frame, lane: int, address: int) -> None:
    """`fence.proxy.tensormap::generic.acquire`: threads of the CTA that know of this fence may use the map at
    ``address`` as it is now."""
    w = f.w
    allocation = w.cta.machine.memory.find(address)
    if allocation is not None and allocation.writer is not None:
        at = address - allocation.base
        written = allocation.writer[at : at + tensormap.BYTES].copy()
        clock = int(w.cta.cluster.clocks.now[w.row])
        w.cta.map_fences.setdefault(address, {})[w.index] = w.first + lane, clock, written


def _fence_seen(w: Any, lane: int, address: int, written: Any) -> bool:
    """Whether a fence of the map as ``written`` is known to a thread of the CTA: the ISA asks for a proxy fence
    somewhere along the path from the write to the use."""
    seen = w.cta.cluster.clocks.seen[w.first + lane]
    return any(
        (by == w.index or seen[column] >= clock) and (fenced == written).all()
        for by, (column, clock, fenced) in w.cta.map_fences.get(address, {}).items()
    )


def in_memory(f: Frame, ins: Instruction, lane: int, address: int) -> BoundMap | None:
    """The tensor map at a generic address; None where there is none."""
    w = f.w
    machine = w.cta.machine
    if PARAM_WINDOW <= address < PARAM_WINDOW + len(machine.program.parameter_bytes):
        raw = machine.program.parameter_bytes[address - PARAM_WINDOW :][: tensormap.BYTES]
    else:
        allocation = machine.memory.find(address)
        if allocation is None or address + tensormap.BYTES > allocation.base + allocation.size:
            return None
        offset = address - allocation.base
        raw = allocation.data[offset : offset + tensormap.BYTES]
        if allocation.writer is not None and allocation.writer[offset : offset + tensormap.BYTES].any():
            _check_fenced(f, ins, lane, address, allocation, offset)
    found = tensormap.decoded(raw.tobytes()) if len(raw) == tensormap.BYTES else None
    if found is None:
        return None
    image, start = found
    target = machine.memory.find(start)
    if target is None:
        what = f"the tensor map's global address {start:#x} is that of no array"
        w.report(hz.BadTensorMap, ins, what=what, fatal=True)
    assert target is not None
    problems = tensormap.problems(image, start)
    if problems:
        w.report(hz.BadTensorMap, ins, what=problems[0], fatal=True)
    return BoundMap(image, target, start - target.base)


def _check_fenced(f: Frame, ins: Instruction, lane: int, address: int, allocation: Any, offset: int) -> None:
    """A map that the program has written is used after the writes, and after a fence that saw them."""
    w = f.w
    written = allocation.writer[offset : offset + tensormap.BYTES]
    lanes, at = np.full(8, lane), offset + 16 * np.arange(8)
    global_access.global_ordered(
        w, ins, allocation, lanes, at, 16, allocation.writer, "ld", "the copy reads the map at"
    )
    if not _fence_seen(w, lane, address, written):
        event = w.cta.machine.event_of(int(written[written > 0][0]))
        w.report(hz.MissingTensorMapFence, ins, other=event.place, address=address)
