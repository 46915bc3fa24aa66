"""Arguments of a simple launch: arrays, numbers, structures and tensor maps, for the parameters of an entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from tilemma import dtypes, errors
from tilemma.dtypes import dtype, from_numpy
from tilemma.machine.isa import tensormap
from tilemma.machine.problems import BadMachineCall
from tilemma.machine.syntax import TYPE_BYTES, Parameter


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor map over an array, as an argument of a simple launch; sizes innermost dimension first.

    ``box`` and ``element_strides`` are in elements; ``dims`` and ``strides`` (bytes, all but the innermost)
    default to those of the array.  ``swizzle`` is 0, 32, 64 or 128 bytes.  ``im2col`` makes it a map of that mode:
    the lower and the upper corner of the pixel box (without channels and batch); ``box`` is then (channels per
    pixel, pixels per column).
    """

    array: Any
    box: tuple[int, ...]
    swizzle: int = 0
    element_strides: tuple[int, ...] = ()
    dtype: str = ""
    dims: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    oob_nan: bool = False
    im2col: tuple[tuple[int, ...], tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Struct:
    """A structure passed by value: for each field its offset in bytes and its value.

    A field is an array (its address is passed), a NumPy scalar or structured scalar, bytes, or a `TensorMap`.
    """

    fields: Mapping[int, Any]


def refuse(what: str, want: str, how: str) -> NoReturn:
    raise BadMachineCall(what=what, want=want, how=how)


def array_argument(name: str, value: Any) -> Any:
    """``value``, which must be a NumPy array of elements that the machine can hold."""
    if not isinstance(value, np.ndarray):
        refuse(
            f"argument `{name}` is {type(value).__name__}",
            "a NumPy array",
            f"pass `{name}` as a NumPy array (`np.asarray`)",
        )
    if value.dtype.hasobject or value.dtype.names or value.itemsize not in (1, 2, 4, 8):
        refuse(f"`{name}` holds {value.dtype}", "elements of 1, 2, 4 or 8 bytes", "convert it with `.astype`")
    if value.dtype.kind not in "biufcV":
        refuse(
            f"`{name}` holds {value.dtype}", "numbers", "convert it with `.astype`, or pass its bytes as integers"
        )
    if not value.dtype.isnative:
        native = "`.astype(x.dtype.newbyteorder('='))`"
        refuse(
            f"`{name}` holds {value.dtype} in the other byte order", "this computer's order", f"convert: {native}"
        )
    if isinstance(value, np.ma.MaskedArray):
        refuse(f"`{name}` is a masked array", "a NumPy array without a mask", f"pass `{name}.filled()`")
    return value


def described(parameter: Parameter) -> str:
    """The type of a parameter in words."""
    return f"{parameter.size} bytes" if parameter.count > 1 else f"type .{parameter.type}"


def bind_argument(name: str, value: Any, parameter: Parameter, arrays: dict[str, Any]) -> tuple[str, Any]:
    """The value passed for ``parameter``; the arrays that it needs are added to ``arrays``.

    One of ("pointer", array's name), ("bytes", raw), ("map", (array's name, image)) and
    ("struct", [(offset, one of the former)]).
    """
    wanted = f"a value for `{parameter.name}` of {described(parameter)}"
    if isinstance(value, Struct):
        return "struct", _struct(name, value, parameter, arrays)
    if isinstance(value, TensorMap) and parameter.size != 128:
        refuse(f"`{name}` is a tensor map", wanted, "pass maps to 128-byte parameters")
    if isinstance(value, np.ndarray) and parameter.count > 1:
        value = value.tobytes()
    if isinstance(value, (TensorMap, np.ndarray)):
        part = _by_value(name, value, arrays)
        assert part is not None
        return part
    if isinstance(value, (bytes, bytearray, np.void)):
        return "bytes", value.tobytes() if isinstance(value, np.void) else bytes(value)
    if parameter.count > 1:
        refuse(
            f"argument `{name}` is {type(value).__name__}",
            wanted,
            "pass bytes, a structured scalar or `machine.Struct`",
        )
    return "bytes", _number(name, value, parameter)


def _struct(name: str, value: Struct, parameter: Parameter, arrays: dict[str, Any]) -> list[tuple[int, Any]]:
    parts = []
    if not isinstance(value.fields, Mapping):
        refuse(f"the fields of `{name}` are {errors.described(value.fields)}", "a dict by offset", "pass {0: x}")
    for offset, content in value.fields.items():
        part = _by_value(f"{name}+{offset}", content, arrays)
        if part is None or not isinstance(offset, int):
            refuse(
                f"field {errors.described(offset)} of `{name}` is {type(content).__name__}",
                "an offset with an array, a NumPy scalar (np.int32(7)), bytes or a TensorMap",
                "give the field a type of definite size",
            )
        size = {"pointer": 8, "map": 128}.get(part[0]) or len(part[1])
        if not 0 <= offset <= parameter.size - size:
            refuse(
                f"field {offset} of `{name}` has {size} bytes",
                f"fields inside the {parameter.size} bytes of `{parameter.name}`",
                "move it",
            )
        parts.append((offset, part))
    return parts


def _by_value(name: str, value: Any, arrays: dict[str, Any]) -> tuple[str, Any] | None:
    """An array, a tensor map, or a value of definite size; None for other arguments."""
    if isinstance(value, TensorMap):
        known = next((n for n, a in arrays.items() if a is value.array), name)
        arrays[known] = array_argument(name, value.array)
        return "map", (known, _image(name, value))
    if isinstance(value, np.ndarray):
        known = next((n for n, a in arrays.items() if a is value), name)
        arrays[known] = array_argument(name, value)
        return "pointer", known
    if isinstance(value, (np.generic, bytes, bytearray)):
        return "bytes", bytes(value) if isinstance(value, (bytes, bytearray)) else value.tobytes()
    return None


def _number(name: str, value: Any, parameter: Parameter) -> bytes:
    """A number as the bytes of a parameter; refuses other objects and numbers out of range."""
    kind = parameter.type
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        refuse(
            f"argument `{name}` is {type(value).__name__}",
            f"a NumPy array or a number for `{parameter.name}` of type .{kind}",
            "pass arrays as np.ndarray (np.asarray(x)), numbers as int or float",
        )
    width = 8 * TYPE_BYTES[kind]
    floating = kind[0] == "f" or kind == "bf16"
    if isinstance(value, float) and kind[0] == "b" and width in (16, 32, 64):
        kind, floating = f"f{width}", True
    if isinstance(value, int) and value.bit_length() > (1000 if floating else width):
        refuse(
            f"argument `{name}` is {errors.described(value)}", f"a number of type .{kind}", "pass one that fits"
        )
    if floating:
        return scalar_bytes(value, kind)
    if isinstance(value, float):
        refuse(
            f"argument `{name}` is {value!r}", f"an integer for `{parameter.name}` of type .{kind}", "pass an int"
        )
    if not -(1 << (width - 1)) <= value < 1 << width:
        refuse(f"argument `{name}` is {value}", f"a number of {width} bits (.{kind})", "pass one that fits")
    return scalar_bytes(value, kind)


def scalar_bytes(value: Any, kind: str) -> bytes:
    """A scalar argument of PTX type ``kind`` as its bytes."""
    if kind not in TYPE_BYTES:
        refuse(f"`{kind}` is no PTX type", "a type such as u32", "correct the launch plan")
    width = TYPE_BYTES[kind]
    if kind in ("f16", "f32", "f64", "bf16"):
        return np.array(value).astype(dtype(kind).numpy).tobytes()
    return (int(value) & ((1 << 8 * width) - 1)).to_bytes(width, "little")


def _numbers(name: str, what: str, value: Any) -> tuple[int, ...]:
    """Sizes of a tensor map, at most five."""
    known = isinstance(value, (tuple, list)) and len(value) <= 5
    if not known or any(isinstance(n, bool) or not isinstance(n, (int, np.integer)) for n in value):
        refuse(
            f"`{what}` of `{name}` is {errors.described(value)}", "a tuple of up to five integers", "correct it"
        )
    return tuple(int(n) for n in value)


def _image(name: str, m: TensorMap) -> tensormap.TensorMapImage:
    array = array_argument(name, m.array)
    found = from_numpy(array.dtype)
    element = (found.name if found else "") if isinstance(m.dtype, str) and not m.dtype else m.dtype
    if isinstance(element, str) and not element:
        refuse(f"a tensor map over {array.dtype}", "an element type of tilemma", "name it with `dtype=`")
    box, dims, strides, steps = (
        _numbers(name, what, value)
        for what, value in (("box", m.box), ("dims", m.dims), ("strides", m.strides), ("steps", m.element_strides))
    )
    if not isinstance(element, str) or element not in dtypes.names():
        refuse(f"`dtype` of `{name}` is {errors.described(element)}", "the name of an element type", "correct it")
    whole = isinstance(m.swizzle, (int, np.integer)) and not isinstance(m.swizzle, bool)
    if not whole or m.swizzle not in (0, 32, 64, 128) or not isinstance(m.oob_nan, bool):
        refuse(f"the swizzle of `{name}` is {errors.described(m.swizzle)}", "0, 32, 64 or 128", "correct it")
    dims = dims or tuple(reversed(array.shape))
    strides = strides or tuple(reversed(array.strides[:-1]))
    steps = steps or (1,) * len(dims)
    corners = None
    if m.im2col is not None:
        if not isinstance(m.im2col, tuple) or len(m.im2col) != 2:
            refuse(
                f"`im2col` of `{name}` is {errors.described(m.im2col)}",
                "the lower and the upper corner of the pixel box", "pass im2col=((0, 0), (0, 0))",
            )  # fmt: skip
        corners = _numbers(name, "im2col", m.im2col[0]), _numbers(name, "im2col", m.im2col[1])
    return tensormap.TensorMapImage(element, dims, strides, box, steps, int(m.swizzle), 0, m.oob_nan, corners)
