"""Kernel parameters: which values a launch needs, in PTX's order, and the launch plan's account of them."""

from __future__ import annotations

import re
from dataclasses import field
from functools import cache

from tilemma import launch
from tilemma.dtypes import DType
from tilemma.ir.expr import Binary, Const, Dim, Expr, Scalar, Select, interval
from tilemma.ir.lane import LaneParam
from tilemma.records import record

_SIZE_OPS = frozenset(launch.SIZE_OPS)
_FLIPPED = {"gt": "lt", "ge": "le"}


@cache
def symbol(name: str) -> str:
    """``name`` as a PTX identifier (letters, digits, underscores), different names staying different."""
    safe = re.sub(r"[^A-Za-z0-9_]", lambda m: f"$u{ord(m[0]):x}$", name)
    return safe if re.match(r"[A-Za-z]", safe) else f"${safe}"


def size(e: Expr) -> launch.Size | None:
    """``e`` as the launch plan computes it; None where it depends on anything but the arguments."""
    match e:
        case Const() if not e.type.is_float:
            return int(e.value)
        case Dim() | Scalar():
            return e.name
        case Binary():
            a, b = size(e.a), size(e.b)
            if a is None or b is None:
                return None
            if e.op in _FLIPPED:
                return (_FLIPPED[e.op], b, a)
            match e.op:
                case "div" | "mod" if interval(e.a)[0] < 0 or interval(e.b)[0] < 0:
                    # The plan rounds down, and these toward zero.
                    return None
                case "div":
                    return ("floordiv", a, b)
                case "land":
                    return ("min", a, b)
                case "lor":
                    return ("max", a, b)
                case "ne":
                    return ("sub", 1, ("eq", a, b))
            return (e.op, a, b) if e.op in _SIZE_OPS else None
        case Select():
            c, a, b = size(e.cond), size(e.a), size(e.b)
            return None if c is None or a is None or b is None else ("select", c, a, b)
    return None


def param_type(t: DType) -> str:
    """The PTX type of a scalar parameter; halves travel as their bits, narrow integers and bool as s32.

    A parameter of 8-bit floats has none: NotLowered.
    """
    if t.is_float and t.bits < 16:
        from tilemma.lower.context import NotLowered

        raise NotLowered(
            what=f"a scalar parameter of {t}",
            arch="any target",
            expected_what="f16, bf16, f32 or f64",
            remedy="pass f16, which holds all its values, and convert it in the kernel",
        )
    if t.is_float and t.bits == 32:
        return "f32"
    if t.bits == 16 and t.is_float:
        return "b16"
    return {"f64": "f64", "s64": "s64", "u64": "u64", "u32": "u32"}.get(t.name, "s32")


@record(frozen=False, slots=False)
class Parameters:
    """What the code reads of its arguments, noted as it is read."""

    dims: dict[str, str] = field(default_factory=dict)
    strides: dict[tuple[str, int], str] = field(default_factory=dict)
    scalars: dict[str, tuple[str, str, DType]] = field(default_factory=dict)
    maps: dict[launch.TensorMapArgument, str] = field(default_factory=dict)

    def tensor_map(self, argument: launch.TensorMapArgument) -> str:
        """The parameter that holds this tensor map."""
        if argument not in self.maps:
            same = sum(a.array == argument.array for a in self.maps)
            self.maps[argument] = f"{symbol(argument.array)}_map{same or ''}"
        return self.maps[argument]

    def dim(self, name: str) -> str:
        return self.dims.setdefault(name, symbol(name))

    def stride(self, array: str, axis: int) -> str:
        return self.strides.setdefault((array, axis), f"{symbol(array)}_stride{axis}")

    def scalar(self, s: Scalar) -> tuple[str, str]:
        """(parameter name, PTX type)."""
        name, kind, _ = self.scalars.setdefault(s.name, (symbol(s.name), param_type(s.dtype), s.dtype))
        return name, kind

    def arguments(self, arrays: tuple[str, ...]) -> tuple[tuple[LaneParam, launch.Argument], ...]:
        """All parameters with their arguments: tensor maps, pointers, dimensions, strides, scalars."""
        found: list[tuple[LaneParam, launch.Argument]] = []
        for argument, ptx in self.maps.items():
            found.append((LaneParam(ptx, "tensormap"), argument))
        for name in arrays:
            found.append((LaneParam(symbol(name), "u64"), launch.PointerArgument(name)))
        for name, ptx in self.dims.items():
            found.append((LaneParam(ptx, "s32"), launch.ValueArgument(name, "s32")))
        for (array, axis), ptx in self.strides.items():
            found.append((LaneParam(ptx, "s64"), launch.ValueArgument(f"{array}.stride{axis}", "s64")))
        for name, (ptx, kind, dtype) in self.scalars.items():
            # The bits of a half are those of the value converted to its type.
            passed = dtype.name if kind == "b16" else kind
            found.append((LaneParam(ptx, kind), launch.ValueArgument(name, passed)))
        names = [p.name for p, _ in found]
        assert len(names) == len(set(names)), f"two parameters of one name: {names}"
        return tuple(found)
