"""cp.async.bulk and cp.reduce.async.bulk of bytes in a row (PTX ISA, "Data Movement: Bulk copy")."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilemma.machine import access, async_access, global_access
from tilemma.machine.clocks import NEVER
from tilemma.machine.decode import Decoder, instruction
from tilemma.machine.exec.boxes import Places
from tilemma.machine.exec.bulk import (
    bulk_of,
    check_source,
    issue_load,
    issue_store,
    knowledge_of,
    one_thread,
    reduce,
    shared_offset,
    targets_of,
)
from tilemma.machine.limits import MAX_VARIABLE
from tilemma.machine.state import Frame
from tilemma.machine.syntax import TYPE_BYTES, Instruction


@instruction("cp.async.bulk", "cp.reduce.async.bulk")
def plain(d: Decoder) -> None:
    d.needs(90)
    reduces = d.parts[1] == "reduce"
    multicast = d.has("multicast::cluster")
    if multicast and "shared::cluster" not in d.mods:
        d.refuse("`.multicast::cluster` copies to .shared::cluster")
    operation, kind = "none", "b128"
    if reduces:
        operation, kind = d.one_of(("add", "min", "max", "and", "or", "xor", "inc", "dec")), d.type
        place = "global" if "global" in d.mods else "shared::cluster"
        if kind not in (types := _REDUCED[place].get(operation, ())):
            d.refuse(f"{operation} in .{place} is for {', '.join('.' + t for t in types)}")
        d.used.add(kind)
        d.has("reduce", "noftz")
        if ("noftz" in d.mods) != (operation == "add" and kind in ("f16", "bf16")):
            d.refuse("`.noftz` stands with .add of f16 and bf16, and with these alone")
    d.has("global", "shared::cluster", "shared::cta", "mbarrier::complete_tx::bytes", "bulk_group")
    masked = d.has("cp_mask")
    operands = d.without_policy(behind=int(masked))
    d.only("async", "bulk")
    spaces = [m for m in d.mods if m in ("global", "shared::cluster", "shared::cta")]
    if len(spaces) != 2:
        d.bad("it needs a destination and a source space")
    to, source, size = d.address(operands[0]), d.address(operands[1]), d.src(operands[2], "u32")
    stores = spaces[0] == "global"
    if masked:
        d.needs(100)
        if not stores or reduces:
            d.refuse("`.cp_mask` is for copies to .global that do not reduce")
    if len(operands) != 4 - stores + multicast + masked:
        d.bad(f"{len(operands)} operands beside a cache policy; it takes {4 - stores + multicast + masked}")
    barrier = None if stores else d.address(operands[3])
    mask = d.src(operands[4], "u16") if multicast else -1
    chosen = d.src(operands[3], "u16") if masked else -1
    from_shared = spaces[1] == "shared::cta" and not stores
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        w = f.w
        lanes = f.lanes if m is None else np.flatnonzero(m)
        at, start = to.values(w, None), source.values(w, None)
        one_thread(f, ins, lanes, [at, start])
        for lane in lanes:
            n = int(w.v[3][size][lane])
            everything = n | int(at[lane]) | int(start[lane])
            if everything & 15:
                access.misaligned(f, ins, everything, 16, (lane,))
            if not n:
                continue
            # One side is in shared memory: a larger size has passed its end in these bytes already.
            n = min(n, MAX_VARIABLE["shared"])
            words = np.arange(0, n, 16, dtype=np.int64)
            if stores:
                _, offset = shared_offset(f, ins, int(start[lane]))
                (allocation, _, first), *_rest = global_access.locate(
                    f, ins, np.array([lane]), at[[lane]], 16, "write to"
                )
                item = 1 if chosen >= 0 else min(16, TYPE_BYTES[kind])
                items = np.arange(0, n, item, dtype=np.int64)
                if chosen >= 0:
                    # Bit i of the mask is for byte i of each 16.
                    items = items[int(w.v[0][chosen][lane]) >> (items & 15) & 1 == 1]
                    if not len(items):
                        continue
                where = items + offset
                issue_store(
                    f, ins, int(lane), allocation, items + int(first[0]), where, where, item, operation,
                    _ELEMENTS.get(kind, kind),
                )  # fmt: skip
                continue
            assert barrier is not None
            the_mask = int(w.v[0][mask][lane]) if mask >= 0 else None
            targets = targets_of(f, ins, int(at[lane]), int(barrier.values(w, None)[lane]), the_mask)
            read = None
            if from_shared:
                fetch = _shared_source(f, ins, int(lane), int(start[lane]), words)
            else:
                fetch, read = _global_source(f, ins, int(lane), start[[lane]], words)
            if reduces:
                fetch = _reduced(targets[0], fetch, words, operation, kind)
            issue_load(f, ins, int(lane), targets, lambda o, x=words: Places.of(x + o, 16), n, fetch, 0, read)

    d.visible(run)


# The types of each operation of cp.reduce.async.bulk, by the destination (PTX ISA).
_REDUCED = {
    "shared::cluster": {
        **dict.fromkeys(("and", "or", "xor"), ("b32",)), **dict.fromkeys(("inc", "dec"), ("u32",)),
        **dict.fromkeys(("min", "max"), ("u32", "s32")), "add": ("u32", "s32", "u64"),
    },
    "global": {
        **dict.fromkeys(("and", "or", "xor"), ("b32", "b64")), **dict.fromkeys(("inc", "dec"), ("u32",)),
        **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64", "f16", "bf16")),
        "add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"),
    },
}  # fmt: skip
_ELEMENTS = {"b32": "u32", "b64": "u64"}


def _reduced(target: Any, fetch: Any, words: Any, operation: str, kind: str) -> Any:
    """The source of a reducing copy into shared memory: the destination's bytes combined with the copied ones."""
    cta, offset, _ = target
    index = (words + offset) >> 4

    def combined() -> tuple[Any, Any]:
        new, origin = fetch()
        size = TYPE_BYTES[kind]
        old = np.ascontiguousarray(cta.shared.words[16][index]).view(f"u{size}")
        mixed = reduce(operation, _ELEMENTS.get(kind, kind), old, np.ascontiguousarray(new).view(f"u{size}"))
        return np.ascontiguousarray(mixed).view(np.uint64).reshape(new.shape), np.zeros_like(origin)

    return combined


def _global_source(f: Frame, ins: Instruction, lane: int, start: Any, words: Any) -> Any:
    (allocation, _, first), *_rest = global_access.locate(f, ins, np.array([lane]), start, 16, "copy of")
    offsets = words + int(first[0])
    check_source(f.w, ins, lane, allocation, offsets, 16)
    return lambda: (allocation.words[16][offsets >> 4], offsets + allocation.base), (allocation, offsets, 16)


def _shared_source(f: Frame, ins: Instruction, lane: int, start: int, words: Any) -> Any:
    w = f.w
    cta, offset = shared_offset(f, ins, start)
    bulk = bulk_of(w, lane)
    event = w.cta.cluster.events.new(bulk.read_column, int(NEVER), w.access("bulk-store", ins), unordered=True)
    async_access.async_read(
        w, ins, cta, words + offset, 16, knowledge_of(w, lane), event, ("bulk", w.first + lane), f"`{ins.opcode}`"
    )
    return lambda: (cta.shared.words[16][(words + offset) >> 4], np.zeros(len(words), np.int64))
