"""wmma (PTX ISA, "Warp Level Matrix Instructions using wmma").

The ISA leaves open which lane holds which element.  Here lane l holds the elements l*n to l*n + n - 1 of the tile
in row-major order, again from the start where a fragment has more places than the tile elements.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilemma.dtypes import dtype
from tilemma.forking import cached_property
from tilemma.machine import access, global_access
from tilemma.machine.decode import RAW, Decoder, instruction
from tilemma.machine.exec import aligned
from tilemma.machine.isa import fragments, numerics
from tilemma.machine.memory import SHARED_WINDOW
from tilemma.machine.native import blocks
from tilemma.machine.native.blocks import AccessBlock, PlainAccess, address_of, block
from tilemma.machine.state import LANES, Frame

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")
_TYPES = ("f16", "bf16", "tf32", "f32", "f64", "s8", "u8", "s4", "u4", "b1", "s32")
_SPACES = {"shared": "shared", "shared::cta": "shared", "shared::cluster": "shared", "global": "global"}
# Registers of a fragment of A or B (PTX ISA, "Matrix Fragments for WMMA"), by shape and kind of element.
_HALF = {"m16n16k16": (8, 8), "m32n8k16": (8, 8), "m8n32k16": (8, 8)}
_WIDE = {"m16n16k16": (4, 4), "m32n8k16": (8, 2), "m8n32k16": (2, 8)}
_BYTE = {"m16n16k16": (2, 2), "m32n8k16": (4, 1), "m8n32k16": (1, 4)}
_REGISTERS: dict[str, dict[str, tuple[int, int]]] = {
    "f16": _HALF, "bf16": _WIDE, "tf32": {"m16n16k8": (4, 4)}, "f64": {"m8n8k4": (1, 1)}, "s8": _BYTE, "u8": _BYTE,
    "s4": {"m8n8k32": (1, 1)}, "u4": {"m8n8k32": (1, 1)}, "b1": {"m8n8k128": (1, 1)},
}  # fmt: skip
# Targets: (types of A and B) -> sm.
_SINCE = {"bf16": 80, "tf32": 80, "f64": 80, "s8": 72, "u8": 72, "s4": 75, "u4": 75, "b1": 75}


@dataclass(frozen=True)
class Place:
    """The layout of a fragment: tile extent, type, and elements in each lane."""

    letter: str
    rows: int
    columns: int
    name: str
    registers: int

    @cached_property
    def bits(self) -> int:
        return 32 if self.name == "tf32" else dtype(self.name).bits

    @cached_property
    def each(self) -> int:
        """Elements in each lane."""
        return self.registers * (64 if self.name == "f64" else 32) // self.bits

    @cached_property
    def index(self) -> Any:
        """[32, each]: the elements of each lane in the tile's row-major order."""
        return np.arange(32 * self.each).reshape(32, self.each) % (self.rows * self.columns)


def place(d: Decoder, letter: str, name: str, shape: str) -> Place:
    """The fragment ``letter`` of a shape with elements of a type; refuses those that the ISA does not have."""
    match = _SHAPE.match(shape)
    assert match is not None
    m, n, k = (int(x) for x in match.groups())
    if letter in "AB":
        found = _REGISTERS.get(name, {}).get(shape)
        if found is None:
            d.refuse(f"wmma has no {shape} with elements of type .{name}")
        d.needs(_SINCE.get(name, 70))
        return Place(letter, *((m, k) if letter == "A" else (k, n)), name, found["AB".index(letter)])
    if not any(shape in shapes for shapes in _REGISTERS.values()) or name not in ("f16", "f32", "f64", "s32"):
        d.refuse(f"wmma has no {shape} with accumulators of type .{name}")
    bits = dtype(name).bits
    return Place(letter, m, n, name, m * n * bits // 32 // (64 if name == "f64" else 32))


def _shape(d: Decoder) -> str:
    found = next((m for m in d.mods if _SHAPE.match(m)), None)
    if found is None:
        d.unsupported("the shape")
    d.used.add(found)
    return found


class Registers:
    """The registers of one fragment."""

    def __init__(self, d: Decoder, operand: Any, at: Place, *, write: bool) -> None:
        self.at = at
        self.cls = "64" if at.name == "f64" else "32"
        kind = "b64" if at.name == "f64" else "b32"
        items = d.items(operand)
        if len(items) != at.registers:
            d.bad(f"operand {at.letter} has {len(items)} registers, .{at.name} needs {at.registers}")
        if at.name in ("f32", "f64"):
            d.check_vector(items, at.name, wider=False)
        self.rows = np.array([d.dst(x, kind) if write else d.src(x, kind) for x in items])

    def load(self, w: Any) -> Any:
        """The tile that the lanes hold."""
        at = self.at
        values = fragments.unpack(np.ascontiguousarray(w.cta.registers[self.cls][w.index, self.rows].T), at.name)
        flat = np.zeros(at.rows * at.columns, np.float64 if dtype(at.name).is_float else np.int64)
        flat[at.index] = values
        return flat.reshape(at.rows, at.columns)

    def store(self, w: Any, tile: Any) -> None:
        w.cta.registers[self.cls][w.index, self.rows] = fragments.pack(
            tile.reshape(-1)[self.at.index], self.at.name
        ).T

    def put_raw(self, w: Any, raw: Any) -> None:
        """Words of memory, [32, each], as the registers hold them."""
        bits = self.at.bits
        if bits < 8:
            per = 8 // bits
            parts = raw.reshape(32, -1, per).astype(np.uint8)
            raw = np.zeros(parts.shape[:2], np.uint8)
            for i in range(per):
                raw |= parts[:, :, i] << (bits * i)
        word = np.uint64 if self.cls == "64" else np.uint32
        w.cta.registers[self.cls][w.index, self.rows] = np.ascontiguousarray(raw).view(word).reshape(32, -1).T

    def raw(self, w: Any) -> Any:
        """The registers as words of an element each, [32, each]; elements of 8 bits and more."""
        values = np.ascontiguousarray(w.cta.registers[self.cls][w.index, self.rows].T)
        return values.view(f"u{self.at.bits // 8}").reshape(32, -1)


@instruction("wmma.load", "wmma.store")
def transfer(d: Decoder) -> None:
    """``wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {...}, [p], stride``, and the store of D."""
    loads = d.mods[0] == "load"
    letter = d.one_of({"a": "A", "b": "B", "c": "C", "d": "D"})
    by_rows = d.one_of(("row", "col")) == "row"
    space = d.one_of(_SPACES, "generic")
    at = place(d, letter, d.type, _shape(d))
    d.only("load", "store", "sync", "aligned", d.type)
    d.count(2, 3)
    pointer, data = (d.operands[1], d.operands[0]) if loads else (d.operands[0], d.operands[1])
    address = d.address(pointer)
    fragment = Registers(d, data, at, write=loads)
    stride = d.src(d.operands[2], "u32") if len(d.operands) == 3 else -1
    row, column = at.index // at.columns, at.index % at.columns
    line, offset = (row, column) if by_rows else (column, row)
    dense = at.columns if by_rows else at.rows
    ins, bits = d.ins, at.bits
    width = max(1, bits // 8)

    def addresses(w: Any) -> Any:
        start = address.values(w, None)
        step = w.v[3][stride].astype(np.int64) if stride >= 0 else np.full(32, dense)
        elements = line * step[:, None] + offset
        return start[:, None] + elements * bits // 8, elements * bits % 8

    def run(f: Frame, m: Any) -> None:
        aligned.whole_warp(f, ins, m)
        w = f.w
        where, bit = addresses(w)
        shared = space == "shared" or int(where[0, 0]) >= SHARED_WINDOW
        if int(where[0, 0]) >= SHARED_WINDOW:
            where = where - SHARED_WINDOW
        load, store = (
            (access.shared_load, access.shared_store)
            if shared
            else (global_access.global_load, global_access.global_store)
        )
        if not loads:
            words = np.ascontiguousarray(fragment.raw(w))
            made = blocks.scatter(w, ins, where, words) if w.native and not shared else 0
            for i in range(made, at.each):
                store(f, ins, LANES, where[:, i], width, np.ascontiguousarray(words[:, i]))
            return
        words = np.empty((32, at.each), f"u{width}")
        made = blocks.gather(w, ins, where, words) if w.native and shared else 0
        for i in range(made, at.each):
            words[:, i] = load(f, ins, LANES, where[:, i], width)
        fragment.put_raw(w, words if bits >= 8 else words >> bit.astype(np.uint8) & ((1 << bits) - 1))

    if bits >= 8:
        held = AccessBlock.of(address, width, [(RAW[fragment.cls], int(r)) for r in fragment.rows], width, False)
        lines, offsets = (np.ascontiguousarray(x, np.int64) for x in (line, offset))
        record = block([
            held.address, stride, dense, at.each, width, int(loads), int(space == "shared"), address_of(lines),
            address_of(offsets),
        ])  # fmt: skip
        kind = "FRAGMENT_LOAD" if loads else "FRAGMENT_STORE"
        # The record refers to the others.
        d.plain = PlainAccess(kind, AccessBlock(*record), lanes=(held, lines, offsets))
    d.visible(run)


@instruction("wmma.mma")
def mma(d: Decoder) -> None:
    """``wmma.mma.sync.aligned.row.col.m16n16k16.f32.f16 d, a, b, c``, and the forms that name all four types."""
    shape = _shape(d)
    layouts = [m for m in d.mods if m in ("row", "col")]
    types = [m for m in d.mods if m in _TYPES]
    if len(layouts) != 2 or len(types) not in (2, 4):
        d.bad("it needs two layouts, and the types of D and C or of D, A, B and C")
    d.used.update((*layouts, *types))
    satfinite = d.has("satfinite")
    bitop = d.one_of(("xor", "and"), "none")
    d.has("popc", "rn", "rz", "rm", "rp")
    d.only("mma", "sync", "aligned")
    d.count(4)
    td, ta, tb, tc = types if len(types) == 4 else (types[0], "f16", "f16", types[1])
    if ta != tb and {ta, tb} not in ({"s8", "u8"}, {"s4", "u4"}):
        d.refuse(f"wmma does not multiply .{ta} by .{tb}")
    out = Registers(d, d.operands[0], place(d, "D", td, shape), write=True)
    a, b, c = (
        Registers(d, operand, place(d, letter, name, shape), write=False)
        for operand, letter, name in zip(d.operands[1:], "ABC", (ta, tb, tc), strict=True)
    )
    ins = d.ins
    operation = None if bitop == "none" else bitop

    def run(f: Frame, m: Any) -> None:
        aligned.whole_warp(f, ins, m)
        w = f.w
        tiles = (a.load(w), b.load(w), c.load(w))
        out.store(w, numerics.mma(*tiles, ta, tb, td, satfinite=satfinite, bitop=operation))

    d.visible(run)
