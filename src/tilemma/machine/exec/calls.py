"""call of the functions that device code can call without a definition (CUDA, "Formatted Output", "Assertion")."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import numpy as np

from tilemma.errors import Span
from tilemma.machine.catalogue import OutOfBounds, Trap
from tilemma.machine.decode import Decoder, instruction
from tilemma.machine.exec.memory import local_words
from tilemma.machine.inlining import read_call
from tilemma.machine.memory import LOCAL_WINDOW
from tilemma.machine.problems import MachineLimit
from tilemma.machine.state import Frame
from tilemma.machine.syntax import Symbol

# Possessive repeats: none is tried again with fewer characters.
_FIELD = re.compile(r"%([-+ #0]*+(\d*+)(?:\.(\d++))?)(hh|h|ll|l|z)?([diuxXoeEfFgGcsp%])")
# Characters that one field may be padded to, that a string may have, and that a run may print in all.
MAX_WIDTH = 4096
MAX_STRING = 1 << 16
MAX_PRINTED = 1 << 24


@instruction("call")
def call(d: Decoder) -> None:
    """A call that ``inlining`` has left: of an external function, or through an address that is no function's."""
    if d.has("recursive"):
        d.visible(lambda f, m: _refuse(d, "a function calls itself; recursion is not modelled"))
        return
    d.only("uni")
    parts = read_call(d.ins)
    if parts is None:
        d.bad("it takes `(results), function, (parameters)`")
    if not isinstance(parts.target, Symbol):
        _through_address(d)
        return
    external = _EXTERNAL.get(parts.target.name)
    if external is None:
        d.unsupported(f"the function `{parts.target.name}` has no definition in this PTX")
    offsets = []
    for item in (*parts.results, *parts.arguments):
        if not isinstance(item, Symbol) or item.name not in d.program.local_offsets:
            d.bad("the parameters of a call are `.param` variables of the body")
        offsets.append(d.program.local_offsets[item.name])
    external(d, offsets)


def _refuse(d: Decoder, what: str) -> None:
    d.unsupported(what)


def _through_address(d: Decoder) -> None:
    """An indirect call that matched none of the functions that it may reach."""
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        lanes = f.lanes if m is None else np.flatnonzero(m)
        f.w.report(
            OutOfBounds,
            ins,
            lanes=lanes,
            access="call of",
            space="an address",
            what="which is that of no function of this PTX with the parameters that are passed",
            fatal=True,
        )

    d.visible(run)


def _vprintf(d: Decoder, offsets: list[int]) -> None:
    if len(offsets) != 3:
        d.bad("vprintf is called as `(status), vprintf, (format, arguments)`")
    status, text, arguments = offsets
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        lanes = f.lanes if m is None else np.flatnonzero(m)
        for lane in lanes:
            one = np.array([lane])
            pointers = [int(local_words(f, ins, one, np.array([at]), 8)[0]) for at in (text, arguments)]
            printed = _format(f, ins, int(lane), *pointers)
            machine = f.w.cta.machine
            machine.printed.append(printed)
            machine.printed_size += len(printed)
            if machine.printed_size > MAX_PRINTED:
                _too_much(f, ins, f"more than {MAX_PRINTED} characters in a run", MAX_PRINTED)
            machine.last_words[f.w] = printed
            local_words(f, ins, one, np.array([status]), 4, np.array([len(printed)], np.uint32))

    d.visible(run)


def _assertfail(d: Decoder, offsets: list[int]) -> None:
    """`__assertfail(message, file, line, function, size of a character)`: called by a failed assert()."""
    if len(offsets) != 5:
        d.bad("__assertfail is called as `(message, file, line, function, size)`")
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        lanes = f.lanes if m is None else np.flatnonzero(m)
        lane = int(lanes[0])
        message, file, function = (
            _string(f, ins, lane, int(local_words(f, ins, np.array([lane]), np.array([offsets[i]]), 8)[0]))
            for i in (0, 1, 3)
        )
        line = int(local_words(f, ins, np.array([lane]), np.array([offsets[2]]), 4)[0])
        said = f"assertion `{message}` failed in {function}, {file}:{line}"
        f.w.report(Trap, ins, lanes=lanes, notes=[said], opcode=ins.opcode, fatal=True)

    d.visible(run)


_EXTERNAL = {"vprintf": _vprintf, "__assertfail": _assertfail}


def _string(f: Frame, ins: Any, lane: int, address: int) -> str:
    """The C string at a global address."""
    allocation = f.w.cta.machine.memory.find(address)
    if allocation is None:
        f.w.report(
            OutOfBounds,
            ins,
            lanes=(lane,),
            access="read of",
            space=f"a string at {address:#x}",
            what=f.w.cta.machine.memory.nearest(address),
            fatal=True,
        )
    assert allocation is not None
    start = address - allocation.base
    raw = allocation.data[start : min(allocation.size, start + MAX_STRING + 1)].tobytes()
    text, _, _ = raw.partition(b"\0")
    if len(text) > MAX_STRING:
        _too_much(f, ins, f"a string of more than {MAX_STRING} characters", MAX_STRING)
    return text.decode("utf-8", "replace")


def _too_much(f: Frame, ins: Any, what: str, limit: int) -> NoReturn:
    name = f.w.cta.machine.module_name
    span = Span(name, ins.line, ins.column, ins.line, ins.column + len(ins.text))
    raise MachineLimit(span, what=f"vprintf prints {what}", limit=f"{limit} characters", how="print less")


def _format(f: Frame, ins: Any, lane: int, text: int, arguments: int) -> str:
    """The output of printf: arguments lie in local memory, each at its own alignment."""
    at = arguments - LOCAL_WINDOW

    def field(match: re.Match[str]) -> str:
        nonlocal at
        flags, length, kind = match[1], match[4] or "", match[5]
        for digits in (match[2], match[3] or ""):
            if len(digits) > 6 or int(digits or 0) > MAX_WIDTH:
                _too_much(f, ins, f"a field of {digits[:20]} characters", MAX_WIDTH)
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
        elif kind == "c":
            return chr(word & 0xFF)
        elif kind == "s":
            value = _string(f, ins, lane, word)
        elif kind == "p":
            return f"{word:#x}"
        shown = "%" + flags + ("d" if kind in "iu" else kind)
        return str(shown % value)

    return _FIELD.sub(field, _string(f, ins, lane, text))
