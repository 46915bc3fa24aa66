"""atom and red (PTX ISA, "Parallel Synchronization and Communication Instructions")."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tilemma.machine import access, global_access, strong
from tilemma.machine.decode import Decoder, instruction
from tilemma.machine.exec.memory import ORDERS, SCOPES, SPACES, WORDS, data_registers, skip_hints
from tilemma.machine.isa import numerics
from tilemma.machine.memory import SHARED_WINDOW
from tilemma.machine.state import LANES, Frame
from tilemma.machine.syntax import TYPE_BYTES

_FLOAT = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


_TYPES = (
    *(f"{letter}{bits}" for letter in "bus" for bits in (16, 32, 64)),
    "b128", "f16x2", "bf16x2", *_FLOAT,
)  # fmt: skip


def atomic_function(op: str, kind: str) -> Any:
    """``f(old, b, c) -> new`` on Python numbers (integers) or NumPy scalars (floats)."""
    if op == "exch":
        return lambda a, b, c: b
    if op == "cas":
        return lambda a, b, c: c if a == b else a
    if kind in ("f16x2", "bf16x2"):
        element = _FLOAT[kind[:-2]]

        def packed(a: Any, b: Any, c: Any) -> Any:
            x, y = (np.array([v], np.uint32).view(element) for v in (a, b))
            return int(numerics.arith(op, kind[:-2], x, y).view(np.uint32)[0])

        return packed
    if kind in _FLOAT:
        word = f"u{TYPE_BYTES[kind]}"

        def floating(a: Any, b: Any, c: Any) -> Any:
            x, y = (np.array([v], word).view(_FLOAT[kind]) for v in (a, b))
            return int(numerics.arith(op, kind, x, y).view(word)[0])

        return floating
    bits = TYPE_BYTES[kind] * 8
    mask = (1 << bits) - 1

    def signed(x: int) -> int:
        return x - (1 << bits) if kind[0] == "s" and x >> (bits - 1) else x

    table = {
        "add": lambda a, b, c: (a + b) & mask,
        "min": lambda a, b, c: a if signed(a) <= signed(b) else b,
        "max": lambda a, b, c: a if signed(a) >= signed(b) else b,
        "and": lambda a, b, c: a & b,
        "or": lambda a, b, c: a | b,
        "xor": lambda a, b, c: a ^ b,
        "inc": lambda a, b, c: 0 if a >= b else a + 1,
        "dec": lambda a, b, c: b if a == 0 or a > b else a - 1,
    }
    return table[op]


def atomic_on_arrays(op: str, kind: str) -> Any:
    """``atomic_function`` for arrays of words of addresses that all differ."""
    if op == "exch":
        return lambda a, b, c: b
    if op == "cas":
        return lambda a, b, c: np.where(a == b, c, a)
    element = kind.removesuffix("x2")
    if element in _FLOAT:
        values = _FLOAT[element]
        if op == "add" and element in ("f32", "f64"):

            def added(a: Any, b: Any, c: Any) -> Any:
                """A result with a NaN is another payload's."""
                total = a.view(values) + b.view(values)
                if not np.isnan(total).any():
                    return total.view(a.dtype)
                return numerics.arith(op, element, a.view(values), b.view(values)).view(a.dtype)

            return added
        return lambda a, b, c: numerics.arith(op, element, a.view(values), b.view(values)).view(a.dtype)
    integers: Any = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{TYPE_BYTES[kind]}")
    functions: dict[str, Any] = {
        "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
        "xor": np.bitwise_xor, "inc": lambda a, b: np.where(a >= b, a.dtype.type(0), a + a.dtype.type(1)),
        "dec": lambda a, b: np.where((a == 0) | (a > b), b, a - a.dtype.type(1)),
    }  # fmt: skip
    return lambda a, b, c: functions[op](a.view(integers), b.view(integers)).view(a.dtype)


@instruction("atom", "red")
def atom(d: Decoder) -> None:
    # A vector form may have the type before the operation: `red.global.v4.f32.add`.
    kind = d.one_of(_TYPES)
    red = d.parts[0] == "red"
    space = d.one_of(SPACES, "generic")
    op = d.one_of(("add", "min", "max", "and", "or", "xor", "inc", "dec", "exch", "cas"))
    order = d.one_of(ORDERS, "relaxed")
    d.one_of(SCOPES, "gpu")
    skip_hints(d)
    d.has("noftz", "v2", "v4", "v8")
    d.only(kind)
    d.program.communicates = True
    if op == "cas" and "L2::cache_hint" in d.mods:
        d.refuse("`.cas` takes no cache policy")
    operands = d.without_policy()
    wanted = 2 + (not red) + (op == "cas")
    if len(operands) != wanted:
        d.bad(f"{len(operands)} operands beside a cache policy; it takes {wanted}")
    result = None if red else data_registers(d, operands.pop(0), kind, write=True)
    address = d.address(operands[0])
    value = data_registers(d, operands[1], kind, write=False)
    third = data_registers(d, operands[2], kind, write=False) if op == "cas" else None
    f2, at_once = atomic_function(op, kind), atomic_on_arrays(op, kind)
    ins, size = d.ins, TYPE_BYTES[kind]
    width = value.size * len(value.rows)
    if kind == "b128" and op not in ("exch", "cas"):
        d.unsupported()

    def run(f: Frame, m: Any) -> None:
        w = f.w
        lanes = np.flatnonzero(m) if m is not None else LANES
        addr = address.values(w, lanes)
        shared = space == "shared" or int(addr[0]) >= SHARED_WINDOW
        if int(addr[0]) >= SHARED_WINDOW:
            addr = addr - SHARED_WINDOW
        known = strong.before_read(f, lanes, addr, order, ins)
        turns = _turns(f, addr)
        if turns is not None and not red:
            strong.in_turn(f, lanes[turns], addr[turns], order, ins)
        strong.before_write(f, lanes, addr, order, ins, known)
        load, store = (
            (access.shared_load, access.shared_store)
            if shared
            else (global_access.global_load, global_access.global_store)
        )
        fast = w.native and not shared and not red and width <= 8
        place = global_access.atomic_load(w, ins, addr, width) if fast else None
        if place is not None:
            old = place[0].words[width].take(place[1], axis=0)
        else:
            old = load(f, ins, lanes, addr, width, "atom")
        if kind == "b128":
            desired = third.gather(w, lanes, width) if third else None
            after, before = _exchange_wide(turns, addr, old, value.gather(w, lanes, width), desired)
            store(f, ins, lanes, addr, width, after, "atom")
            if result is not None:
                result.scatter(w, lanes, before)
            w.cta.machine.progress += 1
            return
        b = value.gather(w, lanes, width).view(WORDS[size]).reshape(len(lanes), -1)
        c = third.gather(w, lanes, width) if third else None
        before, after = _combine(turns, f2, at_once, addr, old, b, c, WORDS[size])
        stored = after.view(old.dtype).reshape(old.shape)
        if place is not None:
            global_access.atomic_store(w, ins, place[0], lanes, addr, stored)
        else:
            store(f, ins, lanes, addr, width, stored, "atom")
        if w.cta.machine.watch is not None:
            w.cta.machine.watch.unchanged = after.tobytes() == old.tobytes()
        if result is not None:
            result.scatter(w, lanes, before.view(old.dtype).reshape(old.shape))
        w.cta.machine.progress += 1

    d.visible(run)


def _turns(f: Frame, addr: Any) -> list[int] | None:
    """A random order of the operations; None where their addresses all differ."""
    turns = list(range(len(addr)))
    if len(set(addr.tolist())) == len(turns):
        return None
    f.w.cta.machine.random.shuffle(turns)
    return turns


def _exchange_wide(turns: list[int] | None, addr: Any, old: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """`exch` (c is None) or `cas` of 128 bits, rows of two words: (final value of each address, value that each
    lane read)."""
    memory = {int(a): tuple(x) for a, x in zip(addr, old.tolist(), strict=True)}
    before = old.copy()
    for i in turns or range(len(addr)):
        a = int(addr[i])
        before[i] = memory[a]
        if c is None:
            memory[a] = tuple(b[i].tolist())
        elif memory[a] == tuple(b[i].tolist()):
            memory[a] = tuple(c[i].tolist())
    return np.array([memory[int(a)] for a in addr], np.uint64), before


def _combine(
    turns: list[int] | None, f2: Any, at_once: Any, addr: Any, old: Any, b: Any, c: Any, word: Any
) -> tuple[Any, Any]:
    """Apply the operations in the order ``turns``: (value that each lane read, final value of each address)."""
    cells = old.view(word).reshape(len(addr), -1)
    if turns is None:
        return cells, at_once(cells, b, c if c is None else c[:, None])
    before, after = cells.copy(), cells.copy()
    for item in range(cells.shape[1]):
        memory = {int(a): int(x) for a, x in zip(addr, cells[:, item], strict=True)}
        for i in turns:
            a = int(addr[i])
            before[i, item] = memory[a]
            memory[a] = f2(memory[a], int(b[i, item]), int(c[i]) if c is not None else 0)
        after[:, item] = [memory[int(a)] for a in addr]
    return before, after
