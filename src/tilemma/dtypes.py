"""Every element type once: bits, format, NumPy type, PTX names, legal accumulators.

Other properties of a type derive from its entry: the type of an arithmetic result (`promote`), its name
in array libraries, its DLPack code, the data type of a tensor map, the rounding errors of `tilemma.testing`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import fields
from math import ldexp
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tilemma.errors import LaunchError, described
from tilemma.records import record

Kind = Literal["float", "int", "uint", "bool", "bits"]


@record
class Format:
    """A floating-point format (IEEE 754's, or OCP's for 8 bits and fewer): bits of exponent and mantissa.

    ``infinite``: has infinities.  ``saturates``: conversions stop at the largest number.  ``nan``: has NaN;
    without, a conversion of NaN gives the largest number.
    """

    exponent: int
    mantissa: int
    infinite: bool = True
    saturates: bool = False
    nan: bool = True

    @property
    def bias(self) -> int:
        return (1 << self.exponent - 1) - 1

    @property
    def lowest(self) -> int:
        """The exponent of the smallest normal number."""
        return 1 - self.bias

    @property
    def top(self) -> int:
        """The exponent of the largest numbers."""
        return (1 << self.exponent) - (2 if self.infinite else 1) - self.bias

    @property
    def sign(self) -> int:
        """The number of the sign's bit; bits above it are 0."""
        return self.exponent + self.mantissa

    @property
    def largest(self) -> float:
        """The largest finite number.  Without infinities only the mantissa of all ones is NaN, if any (OCP)."""
        steps = (2 << self.mantissa) - (1 if self.infinite or not self.nan else 2)
        return ldexp(steps, self.top - self.mantissa)

    def values(self) -> NDArray[np.float64]:
        """The number of each bit pattern, in the order of the patterns."""
        patterns = np.arange(1 << (1 + self.exponent + self.mantissa))
        fraction = patterns & ((1 << self.mantissa) - 1)
        power = patterns >> self.mantissa & ((1 << self.exponent) - 1)
        whole = fraction + (1 << self.mantissa) * (power > 0)
        normal = np.ldexp(whole.astype(np.float64), np.maximum(power, 1) - self.bias - self.mantissa)
        highest = power == (1 << self.exponent) - 1
        special = highest if self.infinite else highest & (fraction == (1 << self.mantissa) - 1) & self.nan
        infinity = np.where(fraction == 0, np.inf, np.nan) if self.infinite else np.nan
        sign = np.where(patterns >> (self.exponent + self.mantissa), -1.0, 1.0)
        found: NDArray[np.float64] = sign * np.where(special, infinity, normal)
        return found

    def holds(self, other: Format) -> bool:
        """Whether every finite number of ``other`` is one of this format."""
        smallest, others = self.lowest - self.mantissa, other.lowest - other.mantissa
        return self.mantissa >= other.mantissa and smallest <= others and self.largest >= other.largest


@record(eq=False)
class DType:
    """An element type: one object for each, compared by identity.

    ``numpy`` holds one element in host memory (4-bit types take a byte on the host).  ``ptx`` is the type's
    name inside an instruction (``f16``, ``e4m3``), ``reg`` the PTX register class that carries one scalar.
    ``accumulators`` lists the accumulator types an instruction may have for this operand type, the one
    inferred for a fill without a suffix first.  ``format``: of floats.  ``stored``: the name of the type whose
    elements it shares, where arrays have none of its own.  ``dlpack``: the code in dlpack.h, None where DLPack has
    no such type.  ``cvt``: the number of the first target that converts an 8-bit float by itself, 0 for none; code
    for other targets converts by integer arithmetic on the bits.
    """

    name: str
    bits: int
    kind: Kind
    numpy: np.dtype[Any]
    ptx: str
    reg: str
    accumulators: tuple[str, ...] = ()
    format: Format | None = None
    stored: str = ""
    dlpack: int | None = None
    cvt: int = 0

    def __post_init__(self) -> None:
        assert self.bits in (1, 4, 6, 8, 16, 32, 64), self
        assert (self.kind == "float") == (self.format is not None), self
        assert self.bits < 8 or self.numpy.itemsize * 8 == self.bits, self

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (self.name,)

    @property
    def bytes(self) -> int:
        """Bytes of one element in memory; asserts that the type is not narrower than a byte."""
        assert self.bits % 8 == 0, f"{self.name} has no whole number of bytes"
        return self.bits // 8

    @property
    def per_byte(self) -> int:
        """The number of elements in a byte of a GPU's memory; 1 for types of 8 bits and more."""
        return max(1, 8 // self.bits)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def floating(self) -> Format:
        """The format of a floating-point type."""
        assert self.format is not None, f"{self.name} is no floating-point type"
        return self.format

    @property
    def library_name(self) -> str:
        """The name of the element type in NumPy, torch, CuPy and JAX, such as ``bfloat16``."""
        return self.numpy.name

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


def _small_format(exponent: int, mantissa: int) -> Format:
    """A format of OCP's MX of fewer than 8 bits: every pattern is a number."""
    return Format(exponent, mantissa, infinite=False, saturates=True, nan=False)


# Codes of dlpack.h (DLDataTypeCode).
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL, _E4M3FN, _E5M2 = 0, 1, 2, 4, 6, 10, 12

_TABLE = (
    DType("f64", 64, "float", _np(np.float64), "f64", "f64", ("f64",), Format(11, 52), dlpack=_FLOAT),
    DType("f32", 32, "float", _np(np.float32), "f32", "f32", ("f32",), Format(8, 23), dlpack=_FLOAT),
    # tf32 occupies a 32-bit register; the hardware reads its upper 19 bits (PTX ISA, alternate formats).
    DType("tf32", 32, "float", _np(np.float32), "tf32", "b32", ("f32",), Format(8, 10), stored="f32"),
    DType("f16", 16, "float", _np(np.float16), "f16", "b16", ("f16", "f32"), Format(5, 10), dlpack=_FLOAT),
    DType("bf16", 16, "float", _np(ml_dtypes.bfloat16), "bf16", "b16", ("f32",), Format(8, 7), dlpack=_BFLOAT),
    DType(
        "f8_e4m3", 8, "float", _np(ml_dtypes.float8_e4m3fn), "e4m3", "b8", ("f32", "f16"),
        Format(4, 3, infinite=False, saturates=True), dlpack=_E4M3FN, cvt=89,
    ),
    DType(
        "f8_e5m2", 8, "float", _np(ml_dtypes.float8_e5m2), "e5m2", "b8", ("f32", "f16"),
        Format(5, 2, saturates=True), dlpack=_E5M2, cvt=89,
    ),
    # OCP's MX formats of 6 and 4 bits: one element a byte, as CUDA's __nv_fp6_e2m3 and ml_dtypes store them.
    DType("f6_e2m3", 8, "float", _np(ml_dtypes.float6_e2m3fn), "e2m3", "b8", ("f32", "f16"), _small_format(2, 3)),
    DType("f6_e3m2", 8, "float", _np(ml_dtypes.float6_e3m2fn), "e3m2", "b8", ("f32", "f16"), _small_format(3, 2)),
    DType("f4_e2m1", 8, "float", _np(ml_dtypes.float4_e2m1fn), "e2m1", "b8", ("f32", "f16"), _small_format(2, 1)),
    DType("u64", 64, "uint", _np(np.uint64), "u64", "u64", dlpack=_UINT),
    DType("s64", 64, "int", _np(np.int64), "s64", "s64", dlpack=_INT),
    DType("u32", 32, "uint", _np(np.uint32), "u32", "u32", dlpack=_UINT),
    DType("s32", 32, "int", _np(np.int32), "s32", "s32", ("s32",), dlpack=_INT),
    DType("u16", 16, "uint", _np(np.uint16), "u16", "u16", dlpack=_UINT),
    DType("s16", 16, "int", _np(np.int16), "s16", "s16", dlpack=_INT),
    DType("u8", 8, "uint", _np(np.uint8), "u8", "u8", ("s32",), dlpack=_UINT),
    DType("s8", 8, "int", _np(np.int8), "s8", "s8", ("s32",), dlpack=_INT),
    DType("u4", 4, "uint", _np(ml_dtypes.uint4), "u4", "b8", ("s32",)),
    DType("s4", 4, "int", _np(ml_dtypes.int4), "s4", "b8", ("s32",)),
    DType("b1", 1, "bits", _np(np.bool_), "b1", "b32", ("s32",), stored="bool"),
    DType("bool", 8, "bool", _np(np.bool_), "pred", "pred", dlpack=_BOOL),
)  # fmt: skip

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


class TypeNotRegistered(LaunchError, ValueError):
    code = "type-not-registered"
    found = "`tm.dtypes.register` got {what}"
    expected = "a `DType` with a name of its own; a name keeps its first meaning"
    fix = "{fix_text}"


def _check_format(entry: DType, form: Format) -> None:
    """TypeNotRegistered unless ``form`` gives each bit pattern the number that the NumPy type gives it.

    Code for GPUs converts by the format, the CPU reference by NumPy.  A byte may hold a shorter format without
    NaN, such as those of 6 bits; the bits above it are 0.
    """
    bits = 1 + form.exponent + form.mantissa
    if bits > entry.bits or (bits < entry.bits and (form.nan or entry.bits > 8)):
        text = f"a format of {bits} bits for the {entry.bits} of `{entry.name}`"
        raise TypeNotRegistered(what=text, fix_text="give the bits of exponent and mantissa; one more is the sign")
    with np.errstate(all="ignore"):
        have = np.arange(1 << bits, dtype=f"u{entry.numpy.itemsize}").view(entry.numpy).astype(np.float64)
    want = form.values()
    wrong = np.flatnonzero(~((want == have) | ((want != want) & (have != have))))
    if wrong.size:
        at = int(wrong[0])
        values = f"as {want[at]:g}, where {entry.numpy} has {have[at]:g}"
        raise TypeNotRegistered(
            what=f"a format that reads 0x{at:x} of `{entry.name}` {values}",
            fix_text="give the NumPy type of this format, or the format of this NumPy type",
        )


def register(entry: DType) -> DType:
    """Make an element type known by its name, in both languages; returns the type.

    Everything else that the package knows of a type derives from its entry.  The same entry may be registered
    again.  Raises TypeNotRegistered for an entry whose name another type has, and for a format that is not that of
    its NumPy type.
    """
    if not isinstance(entry, DType):
        raise TypeNotRegistered(what=described(entry), fix_text="pass `DType(name, bits, kind, ...)`")
    if not entry.name.isidentifier() or entry.name in _ALIASES:
        raise TypeNotRegistered(what=f"the name `{entry.name}`", fix_text="use another name")
    if entry.format is not None and entry.bits <= 16:
        _check_format(entry, entry.format)
    known = BY_NAME.get(entry.name)
    if known is not None and _properties(known) != _properties(entry):
        raise TypeNotRegistered(what=f"another type called `{entry.name}`", fix_text="use another name")
    return BY_NAME.setdefault(entry.name, entry)


def registered_key() -> str:
    """A key of all registered types, for caches of what the compiler makes of them; empty for none."""
    ours = {t.name for t in _TABLE}
    added = sorted(repr(_properties(t)) for t in BY_NAME.values() if t.name not in ours)
    return hashlib.sha256("\n".join(added).encode()).hexdigest()[:16] if added else ""


def _properties(t: DType) -> tuple[object, ...]:
    return tuple(getattr(t, f.name) for f in fields(t))


class UnknownDtype(LaunchError, KeyError, TypeError):
    code = "unknown-dtype"
    found = "{got} is no element type"
    expected = "one of {known}"
    fix = "use one of these names"


def dtype(name: str | DType) -> DType:
    """The type called ``name`` (an alias such as ``f8`` or ``half`` counts).

    Raises UnknownDtype, a KeyError, for an unknown name: front ends turn that into an error with a place.
    """
    if isinstance(name, DType):
        return name
    found = BY_NAME.get(_ALIASES.get(name, name)) if isinstance(name, str) else None
    if found is None:
        raise UnknownDtype(got=described(name), known=", ".join(BY_NAME))
    return found


def names() -> tuple[str, ...]:
    """All names that ``dtype`` takes."""
    return (*BY_NAME, *_ALIASES)


def from_numpy(t: Any) -> DType | None:
    """The type whose elements NumPy stores as ``t``; None when there is none.

    Where two types share a storage type (f32 and tf32, bool and b1) it is the one that does not borrow it.
    """
    try:
        t = np.dtype(t)
    except (TypeError, ValueError):
        raise UnknownDtype(got=described(t), known=", ".join(BY_NAME)) from None
    return next((d for d in BY_NAME.values() if d.numpy == t and not d.stored), None)


def from_library(name: str) -> DType | None:
    """The type that array libraries call ``name`` (``float16``, ``bfloat16``), or None."""
    return next((d for d in BY_NAME.values() if d.library_name == name and not d.stored), None)


_ELSEWHERE = {
    "brain": "bf16", "bf": "bf16", "bfp": "bf16", "single": "f32", "long": "s64", "short": "s16", "char": "s8",
    "unsigned": "u32", "uint": "u32", "size": "u64", "byte": "u8", "e4m3fn": "f8_e4m3", "f8e4m3": "f8_e4m3",
    "fp8e4m3": "f8_e4m3", "f8e5m2": "f8_e5m2", "fp8e5m2": "f8_e5m2", "boolean": "bool", "bit": "b1",
    "nvbfloat16": "bf16",
    "longlong": "s64", "unsignedint": "u32", "unsignedchar": "u8", "unsignedlonglong": "u64", "half2": "f16",
}  # fmt: skip
_WIDTHS = re.compile(r"(fp|float|f|int|i|s|uint|u|bfloat)(\d+)")
_LETTERS = {"fp": "f", "float": "f", "int": "s", "i": "s", "uint": "u", "bfloat": "bf"}


def named_elsewhere(name: str) -> str:
    """Our name of the type that an array library, C++, LLVM or Triton calls ``name`` (`torch.float16`, `uint8_t`,
    `fp32`, `i64`); empty if there is none."""
    bare = name.rpartition(".")[2].strip("_").removesuffix("_t")
    if (found := from_library(bare)) is not None:
        return str(found)
    bare = bare.lower().replace("_", "").replace(" ", "")
    width = _WIDTHS.fullmatch(bare)
    made = _LETTERS.get(width[1], width[1]) + width[2] if width else _ELSEWHERE.get(bare, "")
    return made if made in BY_NAME else ""


def library_names() -> tuple[str, ...]:
    """The names that `from_library` knows."""
    return tuple(d.library_name for d in BY_NAME.values() if not d.stored)


def from_dlpack(code: int, bits: int) -> DType | None:
    """The type with that code and width in dlpack.h, or None."""
    return next((d for d in BY_NAME.values() if d.dlpack == code and d.bits == bits), None)


def promote(a: DType, b: DType) -> DType:
    """The type of an arithmetic result, by C's rules.

    Integers narrower than 32 bits count as s32.  Of two floats it is the one that holds the other's numbers, and
    f32 where neither does (f16 with bf16).
    """
    if type(a) is not DType or type(b) is not DType:
        raise UnknownDtype(got=described(b if type(a) is DType else a), known=", ".join(BY_NAME))
    if a is b and (a.kind == "float" or (a.kind in ("int", "uint") and a.bits >= 32)):
        return a
    if a.is_float or b.is_float:
        if not a.is_float:
            return b
        if not b.is_float:
            return a
        return a if a.floating.holds(b.floating) else b if b.floating.holds(a.floating) else BY_NAME["f32"]
    bits = max(a.bits, b.bits, 32)
    unsigned = (a.kind == "uint" and a.bits == bits) or (b.kind == "uint" and b.bits == bits)
    return dtype(f"{'u' if unsigned else 's'}{bits}")


f64, f32, tf32, f16, bf16 = (BY_NAME[n] for n in ("f64", "f32", "tf32", "f16", "bf16"))
e4m3, e5m2 = BY_NAME["f8_e4m3"], BY_NAME["f8_e5m2"]
u64, s64, u32, s32 = (BY_NAME[n] for n in ("u64", "s64", "u32", "s32"))
u16, s16, u8, s8, u4, s4 = (BY_NAME[n] for n in ("u16", "s16", "u8", "s8", "u4", "s4"))
b1, boolean = BY_NAME["b1"], BY_NAME["bool"]
