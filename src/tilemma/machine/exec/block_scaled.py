"""Products of sm_120: 8-, 6- and 4-bit floats in containers, with and without scales of blocks (PTX ISA,
"Warp-level matrix instructions: mma", kinds `f8f6f4`, `mxf8f6f4`, `mxf4` and `mxf4nvf4`, and "Block Scaling")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tilemma.machine.decode import Decoder
from tilemma.machine.exec import aligned
from tilemma.machine.exec.matrix import Fragment, check_metadata
from tilemma.machine.isa import numerics, sparse
from tilemma.machine.isa.forms import Arch
from tilemma.machine.state import Frame

_CODES = np.arange(256, dtype=np.uint8)


def _values(numpy_type: Any, codes: Any = _CODES) -> Any:
    """The f64 values of the codes that a container of 8 bits can hold."""
    return codes.astype(np.uint8).view(numpy_type).astype(np.float64)


# In containers of 8 bits, elements of 6 bits are the low bits, and those of 4 bits are bits 2 to 5.
_CONTAINED = {
    "e4m3": _values(ml_dtypes.float8_e4m3fn),
    "e5m2": _values(ml_dtypes.float8_e5m2),
    "e3m2": _values(ml_dtypes.float6_e3m2fn, _CODES & 63),
    "e2m3": _values(ml_dtypes.float6_e2m3fn, _CODES & 63),
    "e2m1": _values(ml_dtypes.float4_e2m1fn, _CODES >> 2 & 15),
}
_NIBBLES = {"e2m1": _values(ml_dtypes.float4_e2m1fn, np.arange(16))}
_SCALES = {"ue8m0": _values(ml_dtypes.float8_e8m0fnu), "ue4m3": _values(ml_dtypes.float8_e4m3fn, _CODES & 127)}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind: K of the dense form, values by code, the integer type of a code's container, and for each number
    of scales along K the types of scales (none without scales)."""

    k: int
    values: dict[str, Any]
    container: str
    scales: dict[int, tuple[str, ...]]


_KINDS = {
    "kind::f8f6f4": Kind(32, _CONTAINED, "u8", {}),
    "kind::mxf8f6f4": Kind(32, _CONTAINED, "u8", {1: ("ue8m0",)}),
    "kind::mxf4": Kind(64, _NIBBLES, "u4", {2: ("ue8m0",)}),
    "kind::mxf4nvf4": Kind(64, _NIBBLES, "u4", {2: ("ue8m0",), 4: ("ue4m3", "ue8m0")}),
}


class Scales:
    """The scales of one operand: a register, and which of its bytes in which threads of a quad count.

    Rows of A take two threads of each quad (thread-id 0: threads 0 and 1, else 2 and 3), for row ``g`` and
    ``g + 8`` of group ``g``; columns of B take one.
    """

    def __init__(self, d: Decoder, data: Any, selector: Any, letter: str, count: int, name: str) -> None:
        self.row = d.src(data, "b32")
        items = d.items(selector)
        if len(items) != 2:
            d.bad(f"the selector of scale {letter} has a byte-id and a thread-id")
        self.ids = [d.src(x, "u16") for x in items]
        self.letter, self.count, self.values = letter, count, _SCALES[name]
        self.most = (4 - count, 1 if letter == "A" else 3)
        self.opcode = d

    def load(self, w: Any) -> Any:
        """[rows of A or columns of B, scales along K]."""
        byte, thread = (int(w.v[0][i][0]) for i in self.ids)
        if byte > self.most[0] or byte % self.count or thread > self.most[1]:
            self.opcode.refuse(
                f"scale {self.letter} has no byte-id {byte} and thread-id {thread} with {self.count} scales"
            )
        codes = np.ascontiguousarray(w.v[3][self.row]).view(np.uint8).reshape(32, 4)[:, byte : byte + self.count]
        quads = self.values[codes].reshape(8, 4, self.count)
        if self.letter == "B":
            return quads[:, thread]
        return quads[:, 2 * thread : 2 * thread + 2].transpose(1, 0, 2).reshape(16, self.count)


def scaled(d: Decoder, match: str) -> None:
    """``mma{.sp::ordered_metadata}.sync.aligned.shape.row.col.kind{.block_scale{.scale_vec}}.d.a.b.c{.scale}``."""
    arch = Arch.parse(d.program.arch)
    if arch.number // 10 != 12 or not arch.suffix:
        d.needs(120, feature="sm_120a")
    # ptxas takes `kind::f8f6f4` without its name where no other form has the types.
    name = d.one_of(tuple(_KINDS), "kind::f8f6f4")
    kind = _KINDS[name]
    ordered = "sp::ordered_metadata" in d.mods
    d.used.update((match, "sync", "aligned", "row", "col", name, "sp::ordered_metadata"))
    k = kind.k * (2 if ordered else 1)
    if match != f"m16n8k{k}":
        d.refuse(f"the shape of .{name} is m16n8k{k}, not {match}")
    count = d.one_of({"scale_vec::1X": 1, "scale_vec::2X": 2, "scale_vec::4X": 4}, min(kind.scales, default=0))
    if d.has("block_scale") != bool(kind.scales) or (kind.scales and count not in kind.scales):
        d.refuse(f".{name} takes {sorted(kind.scales) or 'no'} scales along K")
    scale = d.one_of(tuple(_SCALES), "none")
    if kind.scales and scale not in kind.scales[count]:
        d.refuse(f"the scales of .{name} with scale_vec::{count}X are {kind.scales[count]}")
    if count == 4 and scale == "ue8m0" and d.program.module.version < (9, 1):
        d.refuse(".scale_vec::4X with scales of .ue8m0 needs PTX 9.1")
    types = [m for m in d.mods if m in _CONTAINED or m in ("f32", "f16")]
    if len(types) != 4 or not {types[1], types[2]} <= set(kind.values) or types[0] != types[3]:
        d.refuse(f".{name} takes D and C of one type, and A and B of {', '.join(kind.values)}")
    if kind.scales and types[0] != "f32":
        d.refuse("scaled products accumulate in f32")
    d.used.update(types)
    d.only()
    _execute(d, kind, types, k, count, scale, sparse_a=ordered)


def _execute(d: Decoder, kind: Kind, types: list[str], k: int, count: int, scale: str, *, sparse_a: bool) -> None:
    td, ta, tb, _ = types
    operands = list(d.operands)
    d.count(4 + 2 * sparse_a + 4 * bool(count))
    shape = (16, 8, k)
    a = Fragment(d, operands[1], (16, 8, k // 2) if sparse_a else shape, "A", kind.container, write=False)
    b = Fragment(d, operands[2], shape, "B", kind.container, write=False)
    c = Fragment(d, operands[3], shape, "C", td, write=False)
    out = Fragment(d, operands[0], shape, "D", td, write=True)
    # The pattern is that of integers of the container: pairs of elements in a byte of two.
    pattern = "s4" if kind.container == "u4" else "e4m3"
    metadata = d.src(operands[4], "u32") if sparse_a else -1
    selector = d.immediate(operands[5]) if sparse_a else 0
    rest = operands[6 if sparse_a else 4 :]
    scales = (
        (Scales(d, rest[0], rest[1], "A", count, scale), Scales(d, rest[2], rest[3], "B", count, scale))
        if count
        else None
    )
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        w = f.w
        aligned.whole_warp(f, ins, m)
        left, right = kind.values[ta][a.load(w)], kind.values[tb][b.load(w)]
        if sparse_a:
            fields = sparse.metadata_fields(w.v[3][metadata], k, pattern, selector)
            check_metadata(f, ins, fields, pattern, ordered=True)
            whole = np.zeros((16, k))
            np.put_along_axis(whole, sparse.stored_columns(fields, pattern), left, 1)
            left = whole
        if scales is not None:
            left = left * np.repeat(scales[0].load(w), k // count, axis=1)
            right = right * np.repeat(scales[1].load(w), k // count, axis=1).T
        out.store(w, numerics.mma(left, right, c.load(w), "f64", "f64", td))

    d.visible(run)
