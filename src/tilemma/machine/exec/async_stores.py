"""st.async and red.async: stores that complete on an mbarrier (PTX ISA, "st.async", "red.async").

The scheduler decides when the bytes move; a wait for the mbarrier's phase orders the waiter after them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilemma.machine import access, async_access
from tilemma.machine.clocks import NEVER
from tilemma.machine.decode import Decoder, instruction
from tilemma.machine.exec import mbarriers
from tilemma.machine.exec.atomics import atomic_function
from tilemma.machine.exec.bulk import LoadAgent, check_same_cta, knowledge_of
from tilemma.machine.exec.memory import data_registers
from tilemma.machine.memory import SHARED_WINDOW, SHIFT
from tilemma.machine.state import LANES, Access, Frame

_COMMON = (
    "weak",
    "async",
    "relaxed",
    "cluster",
    "shared",
    "shared::cluster",
    "mbarrier::complete_tx::bytes",
    "v2",
    "v4",
)
# The types of each operation of red.async.
_REDUCED = {
    "inc": ("u32",), "dec": ("u32",), "min": ("u32", "s32"), "max": ("u32", "s32"),
    "add": ("u32", "s32", "u64", "s64"), "and": ("b32",), "or": ("b32",), "xor": ("b32",),
}  # fmt: skip


@instruction("st.async", "red.async")
def store(d: Decoder) -> None:
    d.needs(90)
    kind = d.type
    operation = d.one_of(tuple(_REDUCED), "none") if d.parts[0] == "red" else "none"
    if "global" in d.mods or (operation != "none" and kind not in _REDUCED[operation]):
        d.unsupported()
    d.has(*_COMMON)
    d.only(kind)
    d.count(3)
    address, barrier = d.address(d.operands[0]), d.address(d.operands[2])
    values = data_registers(d, d.operands[1], kind, write=False)
    width = values.size * len(values.rows)
    if width > 16:
        d.bad(f"{width} bytes; it takes 4, 8 or 16")
    ins = d.ins
    combine = None if operation == "none" else atomic_function(operation, kind)

    def run(f: Frame, m: Any) -> None:
        lanes = LANES if m is None else np.flatnonzero(m)
        some = None if m is None else lanes
        words = values.gather(f.w, some, width)
        to, on = address.values(f.w, some), barrier.values(f.w, some)
        for i, lane in enumerate(lanes):
            _issue(f, ins, int(lane), int(to[i]), int(on[i]), words[i : i + 1], width, combine)

    d.visible(run)


def _issue(f: Frame, ins: Any, lane: int, to: int, on: int, word: Any, width: int, combine: Any) -> None:
    w = f.w
    if to >= SHARED_WINDOW:
        to -= SHARED_WINDOW
    target = mbarriers.find(f, ins, on, "the store completes on", w.first + lane)
    [(cta, _, offsets)] = access.owner(f, ins, np.array([to & access.OFFSET_MASK]), width)
    if to >> access.RANK_SHIFT:
        cta = access.cluster_cta(f, ins, (to >> access.RANK_SHIFT) - 1, to)
    check_same_cta(f, ins, cta, target.cta)
    cluster = w.cta.cluster
    kind = "tma" if combine is None else "atom"
    event = cluster.events.new(target.column, int(NEVER), Access(kind, w, ins, 0), unordered=True)
    shared, index = cta.shared, offsets >> SHIFT[width]
    if combine is None:
        knowledge = knowledge_of(w, lane)
        # A store of the generic proxy: no proxy fence is due before it.
        knowledge.fenced = knowledge.seen
        async_access.async_write(w, ins, cta, offsets, width, knowledge, event, f"`{ins.opcode}`")
    else:
        access.check_write(w, ins, cta, np.array([lane]), offsets, width, "atom")
        shared.write(width, index, event, event)

    def move() -> None:
        cells = shared.words[width]
        if combine is None:
            cells[index] = word
        else:
            cells[index] = combine(int(cells[index[0]]), int(word[0]), 0)

    agent = LoadAgent(w, ins, cta, target, move, width, int(index[0]) * width)
    agent.event = event
    w.cta.machine.issue(agent)
