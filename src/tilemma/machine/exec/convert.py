"""cvt (PTX ISA, "Data Movement and Conversion Instructions: cvt")."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tilemma import dtypes
from tilemma.machine.decode import RAW, VIEW, Decoder, instruction
from tilemma.machine.exec.floating import as_bits, as_values
from tilemma.machine.isa import numerics
from tilemma.machine.state import VIEW_CLASS
from tilemma.machine.syntax import TYPE_BYTES

_ROUND = ("rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi")
_PACKED = {"f16x2": "f16", "bf16x2": "bf16", "e4m3x2": "f8_e4m3", "e5m2x2": "f8_e5m2"}
_INT_NUMPY = {
    "u8": np.uint8, "s8": np.int8, "u16": np.uint16, "s16": np.int16, "u32": np.uint32, "s32": np.int32,
    "u64": np.uint64, "s64": np.int64,
}  # fmt: skip


@instruction("cvt")
def cvt(d: Decoder) -> None:
    d.has("x2")
    to, source = d.mods[-2], d.mods[-1]
    if d.has("rs"):
        d.unsupported("rounding by random bits")
    rounding = d.one_of(_ROUND, "none")
    flags = {"ftz": d.has("ftz"), "sat": d.has("sat"), "satfinite": d.has("satfinite"), "relu": d.has("relu")}
    d.only(to, source)
    mode = None if rounding == "none" else rounding
    if "ue8m0x2" in (to, source):
        d.unsupported("exponents of .ue8m0x2")
    if to in _NARROW or source in _NARROW:
        _narrow(d, to, source, flags["relu"])
        return
    if to in _PACKED:
        _packed(d, to, source, mode, flags)
        return
    if source in _PACKED:
        d.unsupported("from a packed type to a scalar")
    to_name = "tf32" if to == "tf32" else to
    out = "b32" if to == "tf32" else to
    cls_o, o = d.dst_any(d.operands[0], out)
    cls_a, a = d.src_any(d.operands[1], source)
    for operand, kind in ((d.operands[0], out), (d.operands[1], source)):
        d.check_type(operand, kind, wider=True)
    integral = source in _INT_NUMPY

    def run(w: Any, m: Any) -> None:
        x = w.v[RAW[cls_a]][a]
        # A wider register than the type holds the value in its low bits (PTX ISA, "Operand Size Exceeding").
        if integral:
            x = x.astype(_INT_NUMPY[source])
        else:
            exact = VIEW_CLASS[VIEW[source]] == cls_a
            x = as_values(w.v[VIEW[source]][a] if exact else x.astype(f"u{TYPE_BYTES[source]}"), source)
        y = numerics.convert(x, source, to_name, mode, **flags)
        if to in _INT_NUMPY:
            raw = y if to[0] == "u" else y.astype(f"i{_size(cls_o)}")
            result = raw.astype(f"u{_size(cls_o)}")
        else:
            result = np.ascontiguousarray(y).view(f"u{y.dtype.itemsize}").astype(f"u{_size(cls_o)}")
        target = w.v[RAW[cls_o]][o]
        if m is None:
            target[:] = result
        else:
            np.copyto(target, result, where=m)

    d.alu(run)


def _size(cls: str) -> int:
    return {"16": 2, "32": 4, "64": 8}[cls]


# Floats of 6 and 4 bits: element type, NumPy type, the bits that one of the pair takes, the register's type.
_NARROW = {
    "e2m1x2": ("f4_e2m1", ml_dtypes.float4_e2m1fn, 4, "b8"),
    "e2m3x2": ("f6_e2m3", ml_dtypes.float6_e2m3fn, 8, "b16"),
    "e3m2x2": ("f6_e3m2", ml_dtypes.float6_e3m2fn, 8, "b16"),
}


def _narrow(d: Decoder, to: str, source: str, relu: bool) -> None:
    """A pair of f32 to 6- or 4-bit floats, where NaN becomes the largest number, or such a pair to f16x2."""
    if source in _NARROW:
        element, values, bits, kind = _NARROW[source]
        d.count(2)
        o, a = d.dst(d.operands[0], "b32"), d.src(d.operands[1], kind)

        def widen(w: Any, m: Any) -> None:
            codes = w.v[VIEW[kind]][a][:, None] >> np.array([0, bits]) & (15 if bits == 4 else 63)
            y = numerics.convert(codes.astype(np.uint8).view(values), element, "f16", "rn", relu=relu)
            np.copyto(w.v[VIEW["b32"]][o], y.view(np.uint32).reshape(32), where=True if m is None else m)

        d.alu(widen)
        return
    element, values, bits, kind = _NARROW[to]
    d.count(3)
    o, high, low = d.dst(d.operands[0], kind), d.src(d.operands[1], "f32"), d.src(d.operands[2], "f32")
    largest = np.float32(numerics.FORMATS[element].largest)

    def pack_pair(w: Any, m: Any) -> None:
        both = np.stack([w.v[VIEW["f32"]][low], w.v[VIEW["f32"]][high]])
        y = numerics.convert(
            np.where(np.isnan(both), largest, both), "f32", element, "rn", satfinite=True, relu=relu
        )
        codes = y.view(np.uint8).astype(np.uint16)
        np.copyto(w.v[VIEW[kind]][o], codes[0] | codes[1] << bits, where=True if m is None else m)

    d.alu(pack_pair)


def _packed(d: Decoder, to: str, source: str, mode: Any, flags: Any) -> None:
    """Two values into one register: the first source goes to the upper half."""
    element = _PACKED[to]
    out = "b16" if to.startswith("e") else "b32"
    o = d.dst(d.operands[0], to)
    if source in _PACKED:
        a = d.src(d.operands[1], source)
        v = VIEW["b16" if source.startswith("e") else "b32"]
        inner = _PACKED[source]

        def unpacked(w: Any, m: Any) -> None:
            values = np.ascontiguousarray(w.v[v][a]).view(dtypes.dtype(inner).numpy)
            y = numerics.convert(values, inner, element, mode, **flags)
            np.copyto(
                w.v[VIEW[out]][o], y.view(np.uint16 if out == "b16" else np.uint32), where=True if m is None else m
            )

        d.alu(unpacked)
        return
    high, low = d.src(d.operands[1], source), d.src(d.operands[2], source)
    v, vo = VIEW[source], VIEW[out]
    plain = to == "f16x2" and source == "f32" and mode == "rn" and not any(flags.values())

    def run(w: Any, m: Any) -> None:
        r = w.v[v]
        both = np.empty((32, 2), r[low].dtype)
        both[:, 0], both[:, 1] = r[low], r[high]
        y = both.astype(np.float16) if plain else numerics.convert(both, source, element, mode, **flags)
        bits = np.ascontiguousarray(y).view(np.uint16 if y.dtype.itemsize == 1 else np.uint32).reshape(32)
        target = w.v[vo][o]
        if m is None:
            target[:] = bits
        else:
            np.copyto(target, bits, where=m)

    d.alu(run)


_PACK_BITS = {"u16": 16, "s16": 16, "u8": 8, "s8": 8, "u4": 4, "s4": 4, "u2": 2, "s2": 2}


@instruction("cvt.pack")
def pack(d: Decoder) -> None:
    """Two integers saturated and packed, a above b; types below 16 bits go below the bits of c (PTX ISA,
    "cvt.pack")."""
    d.has("sat")
    to = d.mods[2] if len(d.mods) > 2 else ""
    if to not in _PACK_BITS or "s32" not in d.mods:
        d.unsupported()
    bits, signed = _PACK_BITS[to], to[0] == "s"
    if ("b32" in d.mods) != (bits < 16):
        d.refuse("`.b32` stands with types below 16 bits, whose fourth operand it describes, and with these alone")
    d.only("pack", to, "s32", "b32")
    d.count(3 if bits == 16 else 4)
    o = d.dst(d.operands[0], "b32")
    a, b = d.src(d.operands[1], "s32"), d.src(d.operands[2], "s32")
    c = d.src(d.operands[3], "b32") if bits < 16 else -1
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    mask = (1 << bits) - 1

    def run(w: Any, m: Any) -> None:
        upper, lower = (np.clip(w.v[4][i].astype(np.int64), low, high) & mask for i in (a, b))
        out = upper << bits | lower
        if c >= 0:
            out |= w.v[3][c].astype(np.int64) << 2 * bits
        np.copyto(w.v[3][o], (out & 0xFFFFFFFF).astype(np.uint32), where=True if m is None else m)

    d.alu(run)


__all__ = ["as_bits", "cvt"]
