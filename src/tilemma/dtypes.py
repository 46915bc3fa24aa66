"""Every element type once: bits, NumPy type, PTX names, legal accumulators."""

from __future__ import annotations

from typing import Any, Literal

import ml_dtypes
import numpy as np

from tilemma.records import record

Kind = Literal["float", "int", "uint", "bool", "bits"]


@record
class DType:
    """An element type.

    ``numpy`` holds one element in host memory (4-bit types take a byte on the host).  ``ptx`` is the type's
    name inside an instruction (``f16``, ``e4m3``), ``reg`` the PTX register class that carries one scalar.
    ``accumulators`` lists the accumulator types an instruction may have for this operand type, the one
    inferred for a fill without a suffix first.
    """

    name: str
    bits: int
    kind: Kind
    numpy: np.dtype[Any]
    ptx: str
    reg: str
    accumulators: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.bits in (1, 4, 6, 8, 16, 32, 64), self
        assert self.bits < 8 or self.numpy.itemsize * 8 == self.bits, self

    @property
    def bytes(self) -> int:
        """Bytes of one element in memory; an error of ours for types below a byte."""
        assert self.bits % 8 == 0, f"{self.name} has no whole number of bytes"
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"DType({self.name})"


def _np(t: Any) -> np.dtype[Any]:
    d: np.dtype[Any] = np.dtype(t)
    return d


_TABLE = (
    DType("f64", 64, "float", _np(np.float64), "f64", "f64", ("f64",)),
    DType("f32", 32, "float", _np(np.float32), "f32", "f32", ()),
    # tf32 occupies a 32-bit register; the hardware reads its upper 19 bits (PTX ISA, alternate formats).
    DType("tf32", 32, "float", _np(np.float32), "tf32", "b32", ("f32",)),
    DType("f16", 16, "float", _np(np.float16), "f16", "b16", ("f16", "f32")),
    DType("bf16", 16, "float", _np(ml_dtypes.bfloat16), "bf16", "b16", ("f32",)),
    DType("f8_e4m3", 8, "float", _np(ml_dtypes.float8_e4m3fn), "e4m3", "b8", ("f32", "f16")),
    DType("f8_e5m2", 8, "float", _np(ml_dtypes.float8_e5m2), "e5m2", "b8", ("f32", "f16")),
    DType("u64", 64, "uint", _np(np.uint64), "u64", "u64"),
    DType("s64", 64, "int", _np(np.int64), "s64", "s64"),
    DType("u32", 32, "uint", _np(np.uint32), "u32", "u32"),
    DType("s32", 32, "int", _np(np.int32), "s32", "s32"),
    DType("u16", 16, "uint", _np(np.uint16), "u16", "u16"),
    DType("s16", 16, "int", _np(np.int16), "s16", "s16"),
    DType("u8", 8, "uint", _np(np.uint8), "u8", "u8", ("s32",)),
    DType("s8", 8, "int", _np(np.int8), "s8", "s8", ("s32",)),
    DType("u4", 4, "uint", _np(ml_dtypes.uint4), "u4", "b8", ("s32",)),
    DType("s4", 4, "int", _np(ml_dtypes.int4), "s4", "b8", ("s32",)),
    DType("b1", 1, "bits", _np(np.bool_), "b1", "b32", ("s32",)),
    DType("bool", 8, "bool", _np(np.bool_), "pred", "pred"),
)

BY_NAME: dict[str, DType] = {t.name: t for t in _TABLE}
_ALIASES = {
    "f8": "f8_e4m3",
    "e4m3": "f8_e4m3",
    "e5m2": "f8_e5m2",
    "int": "s32",
    "float": "f32",
    "double": "f64",
    "half": "f16",
    "bfp16": "bf16",
    "bin1": "b1",
    "u1": "b1",
}


def dtype(name: str | DType) -> DType:
    """The type called ``name`` (an alias such as ``f8`` or ``half`` counts).

    Raises KeyError for an unknown name: front ends turn that into an error with a place.
    """
    if isinstance(name, DType):
        return name
    return BY_NAME[_ALIASES.get(name, name)]


def names() -> tuple[str, ...]:
    """All names that ``dtype`` takes."""
    return (*BY_NAME, *_ALIASES)


def from_numpy(t: Any) -> DType | None:
    """The type whose elements NumPy stores as ``t``; None when there is none.

    Where two types share a storage type (f32 and tf32, bool and b1) it is the plain one.
    """
    t = np.dtype(t)
    if t == np.bool_:
        return BY_NAME["bool"]
    return next((d for d in _TABLE if d.numpy == t and d.name != "tf32"), None)


f64, f32, tf32, f16, bf16 = (BY_NAME[n] for n in ("f64", "f32", "tf32", "f16", "bf16"))
e4m3, e5m2 = BY_NAME["f8_e4m3"], BY_NAME["f8_e5m2"]
u64, s64, u32, s32 = (BY_NAME[n] for n in ("u64", "s64", "u32", "s32"))
u16, s16, u8, s8, u4, s4 = (BY_NAME[n] for n in ("u16", "s16", "u8", "s8", "u4", "s4"))
b1, boolean = BY_NAME["b1"], BY_NAME["bool"]
