"""Video instructions: one operation on selected bytes or halves, or the same on each of them (PTX ISA, "Video
Instructions", "Scalar Video Instructions" and "SIMD Video Instructions")."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tilemma.machine.decode import Decoder, instruction
from tilemma.machine.syntax import Negative, Operand, Selected

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "absdiff": lambda a, b: abs(a - b),
    "min": min,
    "max": max,
    "avrg": lambda a, b: (a + b + (1 if a + b >= 0 else 0)) >> 1,
}
_SECONDARY: dict[str, Callable[[int, int], int]] = {"add": lambda a, b: a + b, "min": min, "max": max}


def _selected(d: Decoder, x: Operand) -> tuple[int, str]:
    """The row of a source and its selector, empty for none."""
    if isinstance(x, Selected):
        return d.src(x.register, "u32"), x.selector
    return d.src(x, "u32"), ""


def _destination(d: Decoder, x: Operand) -> tuple[int, str]:
    if isinstance(x, Selected):
        return d.dst(x.register, "u32"), x.selector
    return d.dst(x, "u32"), ""


def extended(value: int, bits: int, *, signed: bool) -> int:
    """The low ``bits`` of ``value`` with or without a sign."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def part(value: int, selector: str, *, signed: bool) -> int:
    """The word, the half ``h0``/``h1`` or the byte ``b0``...``b3`` of a register."""
    if not selector:
        return extended(value, 32, signed=signed)
    bits = 8 if selector[0] == "b" else 16
    return extended(value >> (bits * int(selector[1:])), bits, signed=signed)


def saturated(value: int, bits: int, *, signed: bool) -> int:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return max(low, min(high, value))


def merged(value: int, selector: str, c: int) -> int:
    """``value`` put into the selected part of ``c``."""
    bits = 8 if selector[0] == "b" else 16
    at = bits * int(selector[1:])
    mask = ((1 << bits) - 1) << at
    return (c & ~mask) | (value << at & mask)


def _types(d: Decoder, count: int) -> list[str]:
    types = [m for m in d.mods if m in ("u32", "s32")]
    if len(types) != count:
        d.bad(f"it needs {count} types of .u32 and .s32")
    d.used.update(types)
    return types


@instruction("vadd", "vsub", "vabsdiff", "vmin", "vmax", "vset", "vshl", "vshr")
def scalar(d: Decoder) -> None:
    """One operation on a word, half or byte of each source, then a second one with c, or a merge into it."""
    name = d.parts[0][1:]
    compares = name == "set"
    types = _types(d, 2 if compares else 3)
    out_signed = False if compares else types[0] == "s32"
    a_signed, b_signed = (t == "s32" for t in types[-2:])
    comparison = d.one_of(_COMPARE) if compares else None
    saturates, wraps = d.has("sat"), d.one_of(("clamp", "wrap"), "none") == "wrap"
    if (name in ("shl", "shr")) != any(m in ("clamp", "wrap") for m in d.mods):
        d.refuse("shifts have `.clamp` or `.wrap`, other operations neither")
    second = _SECONDARY.get(d.mods[-1]) if not compares or d.mods[-1] in _SECONDARY else None
    if second is not None:
        d.used.add(d.mods[-1])
    d.only()
    d.count(3, 4)
    (o, where), (a, a_part), (b, b_part) = (
        _destination(d, d.operands[0]), _selected(d, d.operands[1]), _selected(d, d.operands[2]),
    )  # fmt: skip
    c = d.src(d.operands[3], "u32") if len(d.operands) == 4 else -1
    if (where or second is not None) and c < 0:
        d.bad("a merge or a second operation needs the operand c")
    bits = {"b": 8, "h": 16}.get(where[:1], 32)

    def one(x: int, y: int, z: int) -> int:
        ta, tb = part(x, a_part, signed=a_signed), part(y, b_part, signed=b_signed)
        if comparison is not None:
            value = int(comparison(ta, tb))
        elif name in ("shl", "shr"):
            n = tb & 31 if wraps else min(tb & 0xFFFFFFFF, 32)
            value = ta << n if name == "shl" else ta >> n
        else:
            value = _OPERATIONS[name](ta, tb)
        if saturates:
            value = saturated(value, bits, signed=out_signed)
        if where:
            return merged(value, where, z)
        if second is not None:
            third = extended(z, 32, signed=out_signed)
            return second(extended(value, 32, signed=out_signed), third)
        return value

    _each_lane(d, o, (a, b, c), one)


@instruction("vmad")
def multiply_add(d: Decoder) -> None:
    """``(a * b + c) >> scale``, with one more in the plus-one mode."""
    types = _types(d, 3)
    signed = [t == "s32" for t in types]
    saturates, plus = d.has("sat"), d.has("po")
    scale = d.one_of({"shr7": 7, "shr15": 15}, 0) if any(m in ("shr7", "shr15") for m in d.mods) else 0
    d.only()
    d.count(4)
    o = d.dst(d.operands[0], "u32")
    # Either the product or c may be negated (`-a`, `-b`, `-c`).
    signs = [-1 if isinstance(x, Negative) else 1 for x in d.operands[1:]]
    if signs[0] * signs[1] < 0 and signs[2] < 0:
        d.refuse("the product or c may be negated, not both")
    if plus and -1 in signs:
        d.refuse("`.po` takes no negated source")
    plain = [x.operand if isinstance(x, Negative) else x for x in d.operands[1:]]
    (a, a_part), (b, b_part), (c, c_part) = (_selected(d, x) for x in plain)

    def one(x: int, y: int, z: int) -> int:
        product = signs[0] * signs[1] * part(x, a_part, signed=signed[1]) * part(y, b_part, signed=signed[2])
        value = (product + signs[2] * part(z, c_part, signed=signed[0]) + plus) >> scale
        return saturated(value, 32, signed=signed[0]) if saturates else value

    _each_lane(d, o, (a, b, c), one)


_SIMD = [f"v{op}{n}" for op in ("add", "sub", "avrg", "absdiff", "min", "max", "set") for n in (2, 4)]


@instruction(*_SIMD)
def simd(d: Decoder) -> None:
    """The same operation on two halves or four bytes; selectors choose among those of both sources."""
    count = int(d.parts[0][-1])
    name, bits = d.parts[0][1:-1], 32 // count
    compares = name == "set"
    types = _types(d, 2 if compares else 3)
    out_signed = False if compares else types[0] == "s32"
    signed = [t == "s32" for t in types[-2:]]
    comparison = d.one_of(_COMPARE) if compares else None
    saturates, sums = d.has("sat"), d.has("add")
    if saturates and sums:
        d.refuse("`.sat` and `.add` do not stand together")
    d.only()
    d.count(4)
    (o, mask), (a, a_parts), (b, b_parts) = (
        _destination(d, d.operands[0]), _selected(d, d.operands[1]), _selected(d, d.operands[2]),
    )  # fmt: skip
    c = d.src(d.operands[3], "u32")
    # Selectors name the parts from the highest down: 0 to count - 1 are those of a, the rest those of b.
    order_a = [int(x) for x in reversed(a_parts[1:])] or list(range(count))
    order_b = [int(x) for x in reversed(b_parts[1:])] or list(range(count, 2 * count))
    lanes = sorted(int(x) for x in mask[1:]) if mask else list(range(count))

    def one(x: int, y: int, z: int) -> int:
        both = x | y << 32
        values = []
        for i in range(count):
            ta = extended(both >> (bits * order_a[i]), bits, signed=signed[0])
            tb = extended(both >> (bits * order_b[i]), bits, signed=signed[1])
            value = int(comparison(ta, tb)) if comparison is not None else _OPERATIONS[name](ta, tb)
            values.append(saturated(value, bits, signed=out_signed) if saturates else value)
        if sums:
            return z + sum(
                extended(values[i], bits, signed=out_signed) if not saturates else values[i] for i in lanes
            )
        letter = "h" if bits == 16 else "b"
        for i in lanes:
            z = merged(values[i], f"{letter}{i}", z)
        return z

    _each_lane(d, o, (a, b, c), one)


def _each_lane(d: Decoder, o: int, sources: tuple[int, int, int], one: Callable[[int, int, int], int]) -> None:
    """``one(a, b, c)`` in each lane on the unsigned words of the rows; a row of -1 gives 0."""

    def run(w: Any, m: Any) -> None:
        rows = [w.v[3][i].tolist() if i >= 0 else [0] * 32 for i in sources]
        out = np.array([one(*x) & 0xFFFFFFFF for x in zip(*rows, strict=True)], np.uint32)
        np.copyto(w.v[3][o], out, where=True if m is None else m)

    d.alu(run)
