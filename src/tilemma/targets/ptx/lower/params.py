"""Kernel parameters: tensor maps (TMA descriptors), pointers, dimensions, strides and scalars, as PTX parameters
and as arguments of the launch plan."""

from __future__ import annotations

import re
from dataclasses import field
from functools import cache

from tilemma import launch
from tilemma.dtypes import DType
from tilemma.ir import usage
from tilemma.ir.expr import Expr, Scalar
from tilemma.ir.lane import LaneParam
from tilemma.records import record
from tilemma.targets.ptx.lower.refusals import NotLowered


@cache
def symbol(name: str) -> str:
    """``name`` as a PTX identifier (letters, digits, underscores); different names have different identifiers."""
    safe = re.sub(r"[^A-Za-z0-9_]", lambda m: f"$u{ord(m[0]):x}$", name)
    return safe if re.match(r"[A-Za-z]", safe) else f"${safe}"


def size(e: Expr) -> launch.Size | None:
    """``e`` as an expression of the launch plan; None if it depends on anything but the arguments."""
    try:
        return usage.size(e)
    except ValueError:
        return None


def param_type(t: DType) -> str:
    """The PTX type of a scalar parameter: 16-bit floats are passed as their bits, narrow integers and bool as s32.

    Raises NotLowered for 8-bit floats.
    """
    if t.is_float and t.bits < 16:
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
    """The parameters that the code reads, recorded when lowering first uses them."""

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
            # The launch converts the value to the parameter's type and passes its bits.
            passed = dtype.name if kind == "b16" else kind
            found.append((LaneParam(ptx, kind), launch.ValueArgument(name, passed)))
        names = [p.name for p, _ in found]
        assert len(names) == len(set(names)), f"two parameters of one name: {names}"
        return tuple(found)
