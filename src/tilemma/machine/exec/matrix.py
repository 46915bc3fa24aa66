"""ldmatrix, stmatrix, movmatrix and mma.sync (PTX ISA, "Warp Level Matrix Instructions")."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tilemma.dtypes import dtype
from tilemma.machine import access, provenance
from tilemma.machine.catalogue import SparseMetadata
from tilemma.machine.decode import Decoder, instruction
from tilemma.machine.exec import aligned
from tilemma.machine.isa import forms, fragments, numerics, sparse
from tilemma.machine.state import LANES, Frame

_SHARED = ("shared", "shared::cta")


def _matrix_modifiers(d: Decoder) -> tuple[int, bool]:
    num = d.one_of({"x1": 1, "x2": 2, "x4": 4})
    trans = d.has("trans")
    if d.one_of(("m8n8", "m16n16", "m8n16", "m16n8")) != "m8n8" or d.type != "b16":
        d.unsupported("shapes other than m8n8 of .b16")
    d.one_of(_SHARED)
    d.only("sync", "aligned", "b16")
    return num, trans


def _rows(d: Decoder, operand: Any, *, write: bool, kind: str = "b32") -> Any:
    items = d.items(operand)
    return np.array([d.dst(x, kind) if write else d.src(x, kind) for x in items])


@instruction("ldmatrix.sync")
def ldmatrix(d: Decoder) -> None:
    d.needs(75)
    num, trans = _matrix_modifiers(d)
    rows = _rows(d, d.operands[0], write=True)
    if len(rows) != num:
        d.bad(f"{len(rows)} registers for x{num}")
    address = d.address(d.operands[1])
    the_map = fragments.ldmatrix_map(num, trans)
    which = np.arange(num)[None, :, None]
    lanes = LANES[: 8 * num]
    ins = d.ins
    ids = [d.register_id(x) for x in d.items(d.operands[0])]

    def run(f: Frame, m: Any) -> None:
        w = f.w
        aligned.whole_warp(f, ins, m)
        addr = address.values(w, None)[: 8 * num]
        words = access.shared_load(f, ins, lanes, addr, 16, "ldmatrix")
        w.cta.machine.performance.shared(ins, addr, 16)
        tiles = words.view(np.uint16).reshape(num, 8, 8)
        halves = tiles[which, the_map.rows, the_map.cols]
        regs = np.ascontiguousarray(halves).view(np.uint32)[:, :, 0]
        w.cta.registers["32"][rows, w.index] = regs.T
        provenance.matrix_loaded(w, ids, addr, the_map)

    d.visible(run)


@instruction("stmatrix.sync")
def stmatrix(d: Decoder) -> None:
    d.needs(90)
    num, trans = _matrix_modifiers(d)
    address = d.address(d.operands[0])
    rows = _rows(d, d.operands[1], write=False)
    if len(rows) != num:
        d.bad(f"{len(rows)} registers for x{num}")
    the_map = fragments.stmatrix_map(num, trans)
    which = np.arange(num)[None, :, None]
    lanes = LANES[: 8 * num]
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        w = f.w
        aligned.whole_warp(f, ins, m)
        addr = address.values(w, None)[: 8 * num]
        regs = np.ascontiguousarray(w.cta.registers["32"][rows, w.index].T)
        halves = regs.view(np.uint16).reshape(32, num, 2)
        tiles = np.empty((num, 8, 8), np.uint16)
        tiles[which, the_map.rows, the_map.cols] = halves
        access.shared_store(f, ins, lanes, addr, 16, tiles.reshape(8 * num, 8).view(np.uint64))
        w.cta.machine.performance.shared(ins, addr, 16)

    d.visible(run)


@instruction("movmatrix.sync")
def movmatrix(d: Decoder) -> None:
    d.needs(75)
    d.only("sync", "aligned", "m8n8", "trans", "b16")
    o, a = d.dst(d.operands[0], "b32"), d.src(d.operands[1], "b32")
    plain, turned = fragments.ldmatrix_map(1, False), fragments.ldmatrix_map(1, True)
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        aligned.whole_warp(f, ins, m)
        u = f.w.v[3]
        tile = np.empty((8, 8), np.uint16)
        tile[plain.rows[:, 0], plain.cols[:, 0]] = u[a].view(np.uint16).reshape(32, 2)
        out = np.ascontiguousarray(tile[turned.rows[:, 0], turned.cols[:, 0]])
        u[o][:] = out.view(np.uint32)[:, 0]

    d.visible(run)


_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")


@instruction("mma.sync", "mma.sp.sync", "mma.sp::ordered_metadata.sync")
def mma(d: Decoder) -> None:
    """``mma.sync.aligned.shape.row.col.dtype.atype.btype.ctype d, a, b, c``; sparse: then metadata, selector."""
    match = next((x for x in map(_SHAPE.match, d.mods) if x), None)
    if match is None:
        d.unsupported("the shape")
    shape = (int(match[1]), int(match[2]), int(match[3]))
    d.used.add(match[0])
    ordered = "sp::ordered_metadata" in d.mods
    sparse_a = ordered or "sp" in d.mods
    satfinite = d.has("satfinite")
    bitop = d.one_of(("xor", "and"), "none")
    bitop = None if bitop == "none" else bitop
    d.has("popc")
    layouts = tuple(m for m in d.mods if m in ("row", "col"))
    types = tuple(m for m in d.mods if m in _TYPES)
    if len(types) != 4 or len(layouts) != 2:
        d.bad("it needs two layouts and the four types of D, A, B and C")
    d.used.update((*types, *layouts))
    d.only("sync", "aligned")
    d.count(6 if sparse_a else 4)
    td, ta, tb, tc = types
    selector = d.immediate(d.operands[5]) if sparse_a else None
    verdict = forms.legal_mma(
        shape, ta, tb, tc, td, d.program.arch, layouts=layouts, satfinite=satfinite, bitop=bitop, sparse=sparse_a,
        ordered=ordered, selector=selector,
    )  # fmt: skip
    if not verdict:
        d.refuse(verdict.reason)
    if shape == (8, 8, 4) and ta == "f16":
        _quad_pairs(d, types, layouts)
    elif sparse_a:
        _sparse(d, shape, types, satfinite, selector)
    else:
        _mma(d, shape, types, satfinite, bitop)


_TYPES = ("f16", "bf16", "tf32", "f32", "f64", "e4m3", "e5m2", "s8", "u8", "s4", "u4", "b1", "s32")


class Fragment:
    """One operand of mma.sync: the registers that hold it and where its values stand in the tile."""

    def __init__(
        self, d: Decoder, operand: Any, shape: Any, letter: Any, name: str, *, write: bool, layout: Any = None
    ) -> None:
        self.name = name
        self.cls = "64" if name == "f64" else "32"
        items = d.items(operand)
        kind = "f64" if name == "f64" else "b32"
        self.rows = np.array([d.dst(x, kind) if write else d.src(x, kind) for x in items])
        self.ids = [d.register_id(x) if type(x).__name__ == "Register" else -1 for x in items]
        self.at = fragments.mma_fragment(shape, letter, name, layout)
        m, n, k = shape
        self.extent = {"A": (m, k), "B": (k, n)}.get(letter, (m, n))
        need = self.at[0].shape[1] // fragments.elements_per_register(name)
        if len(self.rows) != need:
            d.bad(f"operand {letter} has {len(self.rows)} registers, .{name} needs {need}")
        self.integer = not dtype(name).is_float

    def values(self, w: Any) -> Any:
        """The values that each lane holds, [32, values]."""
        return fragments.unpack(np.ascontiguousarray(w.cta.registers[self.cls][self.rows, w.index].T), self.name)

    def load(self, w: Any) -> Any:
        """The tile, from the warp's registers."""
        tile = np.empty(self.extent, np.int64 if self.integer else np.float64)
        tile[self.at] = self.values(w)
        return tile

    def store(self, w: Any, tile: Any) -> None:
        """The tile, to the warp's registers."""
        self.put(w, tile[self.at])

    def put(self, w: Any, values: Any) -> None:
        """Each lane's values, [32, values], to the warp's registers."""
        w.cta.registers[self.cls][self.rows, w.index] = fragments.pack(values, self.name).T


def _mma(d: Decoder, shape: Any, types: Any, satfinite: bool, bitop: Any) -> None:
    td, ta, tb, tc = types
    a = Fragment(d, d.operands[1], shape, "A", ta, write=False)
    b = Fragment(d, d.operands[2], shape, "B", tb, write=False)
    c = Fragment(d, d.operands[3], shape, "C", tc, write=False)
    out = Fragment(d, d.operands[0], shape, "D", td, write=True)
    ins, bits = d.ins, dtype(ta).bits if ta != "tf32" else 32

    def run(f: Frame, m: Any) -> None:
        w = f.w
        aligned.whole_warp(f, ins, m)
        if provenance.wanted(w, ins):
            provenance.check_mma(w, ins, a, b, bits)
        out.store(w, numerics.mma(a.load(w), b.load(w), c.load(w), ta, tb, td, satfinite=satfinite, bitop=bitop))

    d.visible(run)


def _sparse(d: Decoder, shape: Any, types: Any, satfinite: bool, selector: Any) -> None:
    """mma.sp: A holds half of K; the metadata says where its elements stand."""
    td, ta, tb, tc = types
    m, n, k = shape
    a = Fragment(d, d.operands[1], (m, n, k // 2), "A", ta, write=False)
    b = Fragment(d, d.operands[2], shape, "B", tb, write=False)
    c = Fragment(d, d.operands[3], shape, "C", tc, write=False)
    out = Fragment(d, d.operands[0], shape, "D", td, write=True)
    metadata = d.src(d.operands[4], "b32")
    ins = d.ins
    ordered = "sp::ordered_metadata" in d.mods or ta in ("e4m3", "e5m2")

    def run(f: Frame, mask: Any) -> None:
        w = f.w
        aligned.whole_warp(f, ins, mask)
        fields = sparse.metadata_fields(w.v[3][metadata], k, ta, selector)
        check_metadata(f, ins, fields, ta, ordered=ordered)
        columns = sparse.stored_columns(fields, ta)
        out.store(w, sparse.sparse_mma(a.load(w), columns, b.load(w), c.load(w), ta, tb, td, satfinite=satfinite))

    d.visible(run)


def check_metadata(f: Frame, ins: Any, fields: Any, name: str, *, ordered: bool) -> None:
    """Report metadata whose meaning the ISA leaves open."""
    problems = sparse.metadata_problems(fields, name, ordered=ordered)
    if problems:
        f.w.cta.machine.report(SparseMetadata.at(f.w.place(ins), what=problems[0][2]), fatal=True)


def _quad_pairs(d: Decoder, types: Any, layouts: Any) -> None:
    """m8n8k4 on f16: four independent products, one for each pair of quads."""
    td, ta, tb, tc = types
    shape = (8, 8, 4)
    a = Fragment(d, d.operands[1], shape, "A", ta, write=False, layout=layouts[0])
    b = Fragment(d, d.operands[2], shape, "B", tb, write=False, layout=layouts[1])
    c = Fragment(d, d.operands[3], shape, "C", tc, write=False)
    out = Fragment(d, d.operands[0], shape, "D", td, write=True)
    pair = fragments.quad_pair()[:, None]
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        w = f.w
        aligned.whole_warp(f, ins, m)
        tiles = []
        for fragment in (a, b, c):
            tile = np.zeros((4, *fragment.extent))
            tile[pair, fragment.at[0], fragment.at[1]] = fragment.values(w)
            tiles.append(tile)
        result = numerics.mma(tiles[0], tiles[1], tiles[2], ta, tb, td)
        out.put(w, result[pair, out.at[0], out.at[1]])

    d.visible(run)
