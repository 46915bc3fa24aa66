"""Undefined values in shared memory: stored or never written, and loaded by lanes that may discard them.

CUB's merge sort stores the registers of elements beyond the end, reads one element beyond those that it has
stored, and never uses what it loads there.  A byte is undefined while its last write is one that stored an
undefined value; in a program decoded with ``unwritten``, also before its first write.  Programs that read shared
memory by other instructions than `ld` report the store, or the load of bytes that nothing has written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilemma.machine.decode import Decoder
from tilemma.machine.memory import SHARED_WINDOW
from tilemma.machine.state import ALL_LANES, LANES
from tilemma.machine.syntax import TYPE_BYTES, Register

if TYPE_CHECKING:
    from tilemma.machine.program import Program, Step

# Parts of stores that are not plain; instructions that read shared memory, beside `ld`, or copy from it.
_STRONG = ("release", "relaxed", "volatile", "async")
_OTHER_READERS = ("ldmatrix", "wgmma", "wmma", "atom", "red", "multimem", "tcgen05")


def stores(step: Step) -> bool:
    """Whether ``step`` is a plain store to shared memory."""
    parts = {*step.instruction.parts}
    return (
        step.instruction.parts[0] == "st" and bool({"shared", "shared::cta"} & parts) and parts.isdisjoint(_STRONG)
    )


def loads(step: Step) -> bool:
    """Whether ``step`` may be a load from shared memory."""
    parts = step.instruction.parts
    return parts[0] == "ld" and not {"global", "local", "param", "const", "param::entry"} & {*parts}


def carried(program: Program, undefined: list[frozenset[int]]) -> bool:
    """Whether undefined values are followed through the shared memory of ``program``."""
    if not followable(program):
        return False
    return program.unwritten or any(
        undefined[s.index] & {r for _, r in _data(program, s, 1)} for s in program.steps if stores(s)
    )


def followable(program: Program) -> bool:
    """Whether `ld` alone reads the shared memory of ``program``."""
    names = [s.instruction.parts for s in program.steps]
    return not any(n[0] in _OTHER_READERS or "bulk" in n for n in names)


def _data(program: Program, step: Step, position: int) -> list[tuple[int, int]]:
    """The registers of an access: the offset of each in bytes, and its number."""
    size = TYPE_BYTES.get(step.instruction.parts[-1], 0)
    operand = step.instruction.operands[position]
    items = getattr(operand, "items", (operand,))
    registers = [(i * size, x) for i, x in enumerate(items) if isinstance(x, Register)]
    return [(offset, program.register_ids[program.register(x)]) for offset, x in registers]


def data_registers(program: Program, step: Step) -> frozenset[int]:
    """The registers that a store writes to memory."""
    return frozenset(r for _, r in _data(program, step, 1))


def _places(program: Program, step: Step, position: int) -> Callable[[Any, Any], Any]:
    """The addresses of lanes in the CTA's shared memory; others are below 0."""
    address = Decoder(program, step.instruction).address(step.instruction.operands[position])

    def places(w: Any, lanes: Any) -> Any:
        at = address.values(w, lanes)
        at = np.where(at >= SHARED_WINDOW, at - SHARED_WINDOW, at)
        return np.where(at < len(w.cta.shared.data), at, -1)

    return places


def storing(program: Program, step: Step, origin: Callable[[Any, int], Any]) -> Callable[..., Any]:
    """A store that marks the bytes to which it writes undefined values."""
    inner, registers = step.run, _data(program, step, 1)
    places, size = _places(program, step, 0), TYPE_BYTES[step.instruction.parts[-1]]

    def store(f: Any, m: Any) -> Any:
        w = f.w
        lanes = LANES if m is None else np.flatnonzero(m)
        at = places(w, lanes)
        result = inner(f, m)
        shared = w.cta.shared
        for offset, r in registers:
            if r not in step.maybe_undefined:
                continue
            known = w.defined.get(r)
            if known is ALL_LANES:
                continue
            bad = np.ones(len(lanes), bool) if known is None else ~known[lanes]
            bytes_ = (at[bad & (at >= 0)] + offset)[:, None] + np.arange(size)
            if bytes_.size:
                shared.undefined_by()[bytes_] = shared.writer[bytes_]
                shared.first_undefined = origin(w, r)
        return result

    return store


def loading(program: Program, step: Step, define: Callable[..., None]) -> Callable[..., Any]:
    """A load whose results are undefined where the bytes are."""
    inner, registers = step.run, _data(program, step, 0)
    places, size = _places(program, step, 1), TYPE_BYTES[step.instruction.parts[-1]]
    unwritten, names = program.unwritten, program.register_names

    def load(f: Any, m: Any) -> Any:
        w, shared = f.w, f.w.cta.shared
        lanes = LANES if m is None else np.flatnonzero(m)
        at = places(w, lanes) if unwritten or shared.undefined is not None else None
        result = inner(f, m)
        active = ALL_LANES if m is None else m
        for offset, r in registers:
            good = ALL_LANES
            if at is not None:
                bytes_ = np.maximum(at, 0)[:, None] + offset + np.arange(size)
                writer = shared.writer[bytes_]
                bad = (writer == 0).any(axis=1) if unwritten else np.zeros(len(lanes), bool)
                if shared.undefined is not None:
                    marks = shared.undefined[bytes_]
                    bad |= ((marks != 0) & (marks == writer)).any(axis=1)
                bad &= at >= 0
                if bad.any():
                    good = ALL_LANES.copy()
                    good[lanes[bad]] = False
            define(w, (r,), active, good, shared.first_undefined or (step.instruction, names[r]))
        return result

    return load
