"""ldmatrix, stmatrix, movmatrix and mma.sync (PTX ISA, "Warp Level Matrix Instructions")."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np

from tilemma.dtypes import dtype
from tilemma.machine import access, provenance
from tilemma.machine.catalogue import SparseMetadata
from tilemma.machine.decode import RAW, AddressRow, Decoder, instruction
from tilemma.machine.exec import aligned, byte_matrices
from tilemma.machine.isa import forms, fragments, sparse, sums
from tilemma.machine.memory import SHARED_WINDOW
from tilemma.machine.native import blocks
from tilemma.machine.native.blocks import AccessBlock, PlainAccess, address_of
from tilemma.machine.native.products import TileProduct, tile_product
from tilemma.machine.patterns import SharedPatterns
from tilemma.machine.state import LANES, Frame

_SHARED = ("shared", "shared::cta")


def _matrix_modifiers(d: Decoder) -> tuple[int, bool]:
    num = d.one_of({"x1": 1, "x2": 2, "x4": 4})
    trans = d.has("trans")
    d.only("sync", "aligned", "m8n8", "b16", *_SHARED)
    return num, trans


def _matrix_address(d: Decoder, operand: Any) -> AddressRow:
    """The address of rows in shared memory; without a state space it is a generic one."""
    address = d.address(operand)
    if d.has(*_SHARED):
        return address
    return replace(address, offset=address.offset - SHARED_WINDOW)


def _rows(d: Decoder, operand: Any, *, write: bool, kind: str = "b32") -> Any:
    items = d.items(operand)
    return np.array([d.dst(x, kind) if write else d.src(x, kind) for x in items])


@instruction("ldmatrix.sync")
def ldmatrix(d: Decoder) -> None:
    d.count(2)
    rows = _rows(d, d.operands[0], write=True)
    if d.type != "b16":
        byte_matrices.load(d, _matrix_address(d, d.operands[1]), rows)
        return
    num, trans = _matrix_modifiers(d)
    if len(rows) != num:
        d.bad(f"{len(rows)} registers for x{num}")
    patterns = SharedPatterns(_matrix_address(d, d.operands[1]), 16)
    the_map = fragments.ldmatrix_map(num, trans)
    # For each register, the two halves of each lane: matrix, row and column of the tile as loaded.
    which = np.arange(num)[:, None, None]
    at_rows, at_columns = the_map.rows.transpose(1, 0, 2), the_map.cols.transpose(1, 0, 2)
    halves = (which * 64 + at_rows * 8 + at_columns).reshape(-1)
    lanes = LANES[: 8 * num]
    ins = d.ins
    ids = [d.register_id(x) for x in d.items(d.operands[0])]
    block = AccessBlock.of(patterns.address, 16, [(RAW["32"], int(row)) for row in rows], 4, False)
    halves = np.ascontiguousarray(halves, np.int64)
    place, these = address_of(halves), bytes(int(lane < 8 * num) for lane in range(32))
    d.plain = PlainAccess(
        "MATRIX_LOAD", block, registers=tuple(ids), lanes=np.frombuffer(these, np.uint8), halves=halves
    )

    def run(f: Frame, m: Any) -> None:
        w = f.w
        if m is not None:
            aligned.whole_warp(f, ins, m)
        if w.native and blocks.matrix_load(w, ins, block, these, place, ids):
            return
        pattern = patterns.of(w, lanes)
        addr = pattern.addr
        if pattern.own:
            words = access.load_words(w, ins, w.cta, lanes, addr, pattern.index, 16, "ldmatrix")
            w.cta.machine.performance.add("bank-conflict", ins, pattern.extra)
        else:
            words = access.shared_load(f, ins, lanes, addr, 16, "ldmatrix")
            w.cta.machine.performance.shared(ins, addr, 16)
        loaded = words.reshape(-1).view(np.uint16).take(halves).view(np.uint32).reshape(num, 32)
        u32 = w.v[3]
        for i, row in enumerate(rows):
            u32[row][:] = loaded[i]
        origin = w.cta.shared.origin
        if origin is not None:
            if pattern.halves is None:
                pattern.halves = addr.reshape(num, 8)[which, at_rows] + 2 * at_columns
            origins = origin.take(pattern.halves)
            for i, register in enumerate(ids):
                w.origins[register] = origins[i]

    d.visible(run)


@instruction("stmatrix.sync")
def stmatrix(d: Decoder) -> None:
    d.count(2)
    address = _matrix_address(d, d.operands[0])
    rows = _rows(d, d.operands[1], write=False)
    if d.type != "b16":
        byte_matrices.store(d, address, rows)
        return
    num, trans = _matrix_modifiers(d)
    if len(rows) != num:
        d.bad(f"{len(rows)} registers for x{num}")
    the_map = fragments.stmatrix_map(num, trans)
    which = np.arange(num)[None, :, None]
    lanes = LANES[: 8 * num]
    ins = d.ins
    halves = (which * 64 + the_map.rows * 8 + the_map.cols).transpose(1, 0, 2).reshape(-1)
    block = AccessBlock.of(address, 16, [(RAW["32"], int(row)) for row in rows], 4, False)
    these = np.frombuffer(bytes(int(lane < 8 * num) for lane in range(32)), np.uint8)
    d.plain = PlainAccess("MATRIX_STORE", block, lanes=these, halves=np.ascontiguousarray(halves, np.int64))

    def run(f: Frame, m: Any) -> None:
        w = f.w
        aligned.whole_warp(f, ins, m)
        addr = address.values(w, None)[: 8 * num]
        regs = np.ascontiguousarray(w.cta.registers["32"][w.index, rows].T)
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


def _sums_f16_of_sparse_f8(d: Decoder) -> bool:
    """Whether this is the form that sm_120a alone has: sparse products of 8-bit floats, summed in f16."""
    types = [m for m in d.mods if m in _TYPES]
    summed = len(types) == 4 and types[0] == "f16" and types[1] in ("e4m3", "e5m2")
    return summed and "sp::ordered_metadata" in d.mods and d.program.arch == "sm_120a"


@instruction("mma.sync", "mma.sp.sync", "mma.sp::ordered_metadata.sync")
def mma(d: Decoder) -> None:
    """``mma.sync.aligned.shape.row.col.dtype.atype.btype.ctype d, a, b, c``; sparse: then metadata, selector."""
    match = next((x for x in map(_SHAPE.match, d.mods) if x), None)
    if match is None:
        d.unsupported("the shape")
    shape = (int(match[1]), int(match[2]), int(match[3]))
    if any(m.startswith("kind::") for m in d.mods) or _sums_f16_of_sparse_f8(d):
        from tilemma.machine.exec.block_scaled import scaled

        scaled(d, match[0])
        return
    d.used.add(match[0])
    ordered = "sp::ordered_metadata" in d.mods
    sparse_a = ordered or "sp" in d.mods
    satfinite = d.has("satfinite")
    bitop = d.one_of(("xor", "and"), "none")
    bitop = None if bitop == "none" else bitop
    d.has("popc")
    layouts = tuple(m for m in d.mods if m in ("row", "col"))
    types = tuple(m for m in d.mods if m in _TYPES)
    rounding = d.one_of(("rn", "rz", "rm", "rp"), "rn")
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
    if ta != "f64" and any(m in d.mods for m in ("rn", "rz", "rm", "rp")):
        d.refuse("a rounding mode is for f64")
    if shape == (8, 8, 4) and ta == "f16":
        _quad_pairs(d, types, layouts)
    elif sparse_a:
        _sparse(d, shape, types, satfinite, selector)
    else:
        _mma(d, shape, types, (satfinite, bitop, rounding))


_TYPES = ("f16", "bf16", "tf32", "f32", "f64", "e4m3", "e5m2", "s8", "u8", "s4", "u4", "b1", "s32")


class Fragment:
    """One operand of mma.sync: the registers that hold it and the coordinates of its values in the tile."""

    def __init__(
        self, d: Decoder, operand: Any, shape: Any, letter: Any, name: str, *, write: bool, layout: Any = None
    ) -> None:
        self.name = name
        self.cls = "64" if name == "f64" else "32"
        items = d.items(operand)
        kind = "b64" if name == "f64" else "b32"
        if name in ("f32", "f64"):
            d.check_vector(items, name, wider=False)
        self.rows = np.array([d.dst(x, kind) if write else d.src(x, kind) for x in items])
        self.ids = [d.register_id(x) if type(x).__name__ == "Register" else -1 for x in items]
        self.key = tuple(self.ids)
        self.at = fragments.mma_fragment(shape, letter, name, layout)
        m, n, k = shape
        self.extent = {"A": (m, k), "B": (k, n)}.get(letter, (m, n))
        need = self.at[0].shape[1] // fragments.elements_per_register(name)
        if len(self.rows) != need:
            d.bad(f"operand {letter} has {len(self.rows)} registers, .{name} needs {need}")
        self.integer = not dtype(name).is_float
        # Whether each value is one element of the register file as an array of its type.
        self.direct = dtype(name).bits >= 8 and layout is None
        if self.direct:
            self.index = self._elements()

    def _elements(self) -> Any:
        """For each element of the tile, its place in the warp's registers as elements of its type."""
        per = fragments.elements_per_register(self.name)
        value = np.arange(self.at[0].shape[1])
        place = (self.rows[value // per] * 32 + np.arange(32)[:, None]) * per + value % per
        index = np.empty(self.extent, np.int64)
        index[self.at] = place
        return index

    def values(self, w: Any) -> Any:
        """The values that each lane holds, [32, values]."""
        return fragments.unpack(np.ascontiguousarray(w.cta.registers[self.cls][w.index, self.rows].T), self.name)

    def load(self, w: Any) -> Any:
        """The tile, from the warp's registers."""
        if self.direct:
            return load_elements(w, self.cls, self.name, self.index)
        tile = np.empty(self.extent, np.int64 if self.integer else np.float64)
        tile[self.at] = self.values(w)
        return tile

    def store(self, w: Any, tile: Any) -> None:
        """The tile, to the warp's registers."""
        if self.direct:
            store_elements(w, self.cls, self.name, self.index, tile)
        else:
            self.put(w, tile[self.at])

    def put(self, w: Any, values: Any) -> None:
        """Each lane's values, [32, values], to the warp's registers."""
        w.cta.registers[self.cls][w.index, self.rows] = fragments.pack(values, self.name).T


def load_elements(w: Any, cls: str, name: str, index: Any) -> Any:
    """Elements of the warp's registers: the register class viewed as an array of the type ``name``."""
    if name == "tf32":
        return (w.flat["32"].take(index) & np.uint32(0xFFFFE000)).view(np.float32)
    values = w.flat[cls].view(dtype(name).numpy).take(index)
    return values if dtype(name).is_float else values.astype(np.int64)


def store_elements(w: Any, cls: str, name: str, index: Any, values: Any) -> None:
    """The inverse; values of another type are converted."""
    w.flat[cls].view(dtype(name).numpy).put(index, values.astype(dtype(name).numpy, copy=False))


class Multiply:
    """One mma.sync on dense tiles; ``form`` is equal for those that may be multiplied together."""

    def __init__(
        self, ins: Any, step: int, form: Any, a: Fragment, b: Fragment, c: Fragment, out: Fragment
    ) -> None:
        self.ins, self.step, self.form, self.a, self.b, self.c, self.out = ins, step, form, a, b, c, out
        _, types, options = form
        self.options = dict(zip(("satfinite", "bitop", "rounding"), options, strict=True))
        self.bits = dtype(types[1]).bits if types[1] != "tf32" else 32
        self.product = self.compiled([self])

    def check(self, w: Any) -> None:
        """Check the origins of the operands."""
        w.cta.machine.note_work(w, "mma", self.ins.line)
        if provenance.wanted(w, self.ins):
            chain = self.c.key, self.out.key
            provenance.check_mma(w, self.ins, self.a, self.b, self.bits, chain)
        elif w.cta.shared.origin is not None:
            w.cta.machine.looked[self.step] = 1

    def compiled(self, group: list[Multiply]) -> TileProduct | None:
        """The products of ``group`` as the compiled library computes them; None where it does not."""
        operands = [[getattr(x, letter) for x in group] for letter in ("a", "b", "c", "out")]
        if not all(fragment.direct for fragments_ in operands for fragment in fragments_):
            return None
        return tile_product("mma", self.form[1], [np.stack([x.index for x in each]) for each in operands])

    def __call__(self, f: Frame, m: Any) -> None:
        w = f.w
        if m is not None:
            aligned.whole_warp(f, self.ins, m)
        self.check(w)
        if w.cta.machine.native is not None and self.product is not None:
            self.product.registers(w.cta.machine.native, w.registers)
            return
        _, (td, ta, tb, _), _ = self.form
        tiles = self.a.load(w), self.b.load(w), self.c.load(w)
        self.out.store(w, sums.multiply("mma", *tiles, ta, tb, td, **self.options))

    def together(self, all_of_them: list[Multiply]) -> tuple[Any, TileProduct | None]:
        """A function that executes several multiplies of a warp at once, none of which reads a result of another,
        and what the compiled code needs for it, if it can."""
        operands = [[getattr(x, letter) for x in all_of_them] for letter in ("a", "b", "c", "out")]
        if not all(fragment.direct for group in operands for fragment in group):

            def one_by_one(f: Frame) -> None:
                for x in all_of_them:
                    x(f, None)

            return one_by_one, None
        (a, b, c, out), (cls_a, cls_b, cls_c, cls_out) = (
            [np.stack([x.index for x in group]) for group in operands],
            [group[0].cls for group in operands],
        )
        _, (td, ta, tb, tc), _ = self.form
        compiled = self.compiled(all_of_them)

        def at_once(f: Frame) -> None:
            w = f.w
            for x in all_of_them:
                x.check(w)
            if w.cta.machine.native is not None and compiled is not None:
                compiled.registers(w.cta.machine.native, w.registers)
                return
            tiles = (
                load_elements(w, cls_a, ta, a), load_elements(w, cls_b, tb, b), load_elements(w, cls_c, tc, c),
            )  # fmt: skip
            y = sums.multiply("mma", *tiles, ta, tb, td, **self.options)
            store_elements(w, cls_out, td, out, y)

        return at_once, compiled


def _mma(d: Decoder, shape: Any, types: Any, options: tuple[bool, Any, str]) -> None:
    td, ta, tb, tc = types
    a = Fragment(d, d.operands[1], shape, "A", ta, write=False)
    b = Fragment(d, d.operands[2], shape, "B", tb, write=False)
    c = Fragment(d, d.operands[3], shape, "C", tc, write=False)
    out = Fragment(d, d.operands[0], shape, "D", td, write=True)
    multiply = Multiply(d.ins, len(d.program.steps), (shape, types, options), a, b, c, out)

    def run(f: Frame, m: Any) -> None:
        multiply(f, m)

    run.multiply = multiply  # type: ignore[attr-defined]
    d.visible(run)


def _sparse(d: Decoder, shape: Any, types: Any, satfinite: bool, selector: Any) -> None:
    """mma.sp: A holds half of K; the metadata gives the columns of its elements."""
    td, ta, tb, tc = types
    m, n, k = shape
    a = Fragment(d, d.operands[1], (m, n, k // 2), "A", ta, write=False)
    b = Fragment(d, d.operands[2], shape, "B", tb, write=False)
    c = Fragment(d, d.operands[3], shape, "C", tc, write=False)
    out = Fragment(d, d.operands[0], shape, "D", td, write=True)
    metadata = d.src(d.operands[4], "u32")
    ins = d.ins
    ordered = "sp::ordered_metadata" in d.mods or ta in ("e4m3", "e5m2")

    def run(f: Frame, mask: Any) -> None:
        w = f.w
        aligned.whole_warp(f, ins, mask)
        w.cta.machine.note_work(w, "mma", ins.line)
        fields = sparse.metadata_fields(w.v[3][metadata], k, ta, selector)
        check_metadata(f, ins, fields, ta, ordered=ordered)
        columns = sparse.stored_columns(fields, ta)
        tiles = a.load(w), b.load(w), c.load(w)
        out.store(w, sums.multiply("mma", *tiles, ta, tb, td, columns, satfinite=satfinite))

    d.visible(run)


def check_metadata(f: Frame, ins: Any, fields: Any, name: str, *, ordered: bool) -> None:
    """Report metadata whose meaning the ISA leaves undefined."""
    problems = sparse.metadata_problems(fields, name, ordered=ordered)
    if problems:
        f.w.report(SparseMetadata, ins, what=problems[0][2], fatal=True)


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
        tiles = np.zeros((4, *a.extent)), np.zeros((4, *b.extent)), np.zeros((4, *c.extent))
        for tile, fragment in zip(tiles, (a, b, c), strict=True):
            tile[pair, fragment.at[0], fragment.at[1]] = fragment.values(w)
        result = sums.quad_pairs(*tiles, td)
        out.put(w, result[pair, out.at[0], out.at[1]])

    d.visible(run)
