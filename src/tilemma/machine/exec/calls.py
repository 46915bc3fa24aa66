"""call: the one function that device code can call without a definition, vprintf (CUDA, "Formatted Output")."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tilemma.machine.catalogue import OutOfBounds
from tilemma.machine.decode import Decoder, instruction
from tilemma.machine.exec.memory import local_words
from tilemma.machine.memory import LOCAL_WINDOW
from tilemma.machine.state import Frame
from tilemma.machine.syntax import Symbol, Vector

_FIELD = re.compile(r"%([-+ #0]*\d*(?:\.\d+)?)(hh|h|ll|l|z)?([diuxXoeEfFgGcsp%])")


@instruction("call")
def call(d: Decoder) -> None:
    d.only("uni")
    names = [x for x in d.operands if isinstance(x, Symbol)]
    lists = [x for x in d.operands if isinstance(x, Vector)]
    if len(names) != 1 or names[0].name != "vprintf":
        d.unsupported("only vprintf can be called; inline other functions")
    if len(lists) != 2 or len(lists[0].items) != 1 or len(lists[1].items) != 2:
        d.bad("vprintf is called as `(status), vprintf, (format, arguments)`")
    offsets = []
    for item in (*lists[0].items, *lists[1].items):
        if not isinstance(item, Symbol) or item.name not in d.program.local_offsets:
            d.bad("the parameters of a call are `.param` variables of the body")
        offsets.append(d.program.local_offsets[item.name])
    status, text, arguments = offsets
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        lanes = f.lanes if m is None else np.flatnonzero(m)
        for lane in lanes:
            one = np.array([lane])
            pointers = [int(local_words(f, ins, one, np.array([at]), 8)[0]) for at in (text, arguments)]
            printed = _format(f, ins, int(lane), *pointers)
            f.w.cta.machine.printed.append(printed)
            f.w.cta.machine.last_words[f.w] = printed
            local_words(f, ins, one, np.array([status]), 4, np.array([len(printed)], np.uint32))

    d.visible(run)


def _string(f: Frame, ins: Any, lane: int, address: int) -> str:
    """The C string at a global address."""
    allocation = f.w.cta.machine.memory.find(address)
    if allocation is None:
        f.w.cta.machine.report(
            OutOfBounds.at(
                f.w.place(ins), lanes=(lane,), access="read of", space=f"a string at {address:#x}",
                what=f.w.cta.machine.memory.nearest(address),
            ),
            fatal=True,
        )  # fmt: skip
    assert allocation is not None
    raw = allocation.data[address - allocation.base : allocation.size].tobytes()
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


def _format(f: Frame, ins: Any, lane: int, text: int, arguments: int) -> str:
    """What printf prints: arguments lie in local memory, each at its own alignment."""
    at = arguments - LOCAL_WINDOW

    def field(match: re.Match[str]) -> str:
        nonlocal at
        flags, length, kind = match[1], match[2] or "", match[3]
        if kind == "%":
            return "%"
        size = 8 if kind in "eEfFgGsp" or length in ("ll", "l", "z") else 4
        at = -(-at // size) * size
        word = int(local_words(f, ins, np.array([lane]), np.array([at]), size)[0])
        at += size
        value: Any = word
        if kind in "eEfFgG":
            value = float(np.array([word], np.uint64).view(np.float64)[0])
        elif kind in "di":
            value = word - (1 << 8 * size) if word >> (8 * size - 1) else word
        elif kind == "s":
            value = _string(f, ins, lane, word)
        elif kind == "p":
            return f"{word:#x}"
        shown = "%" + flags + ("d" if kind in "iu" else kind)
        return str(shown % value)

    return _FIELD.sub(field, _string(f, ins, lane, text))
