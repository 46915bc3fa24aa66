"""Elements of less than a byte, packed: arrays and buffers of s4, u4 and b1 become arrays of bytes.

A byte holds two elements of 4 bits or eight single bits along the last dimension, the first in the lowest bits.
Copies then move bytes, and a `Load` of such elements reads packed bytes (`Load.dtype` is their type), as the
registers of the multiplying instructions hold.  A program can read single elements.  It can write those of local
buffers, which one lane alone accesses; elsewhere it cannot, because several elements share a byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tilemma import dtypes
from tilemma.dtypes import DType
from tilemma.errors import CompileError, Span
from tilemma.ir import tile
from tilemma.ir.effects import updated_views, written_views
from tilemma.ir.expr import (
    Binary,
    Cast,
    Const,
    Dim,
    Element,
    Expr,
    Select,
    Unary,
    binary,
    const,
    value_of,
    with_operands,
)
from tilemma.ir.tiles import describe
from tilemma.ir.types import Axis, Buffer, Space, View
from tilemma.ir.walk import map_expressions, rewrite, walk, with_fields
from tilemma.passes.decision import Decision
from tilemma.records import record

# Where the manual of the language describes packed elements.
_SECTION = " (docs/language.md, Elements narrower than a byte)"


class PackedWidth(CompileError):
    code = "packed-width"
    found = "{what} of `{name}`, of {dtype}, is {value}"
    expected = "a multiple of {per}: a byte holds {per} elements along the last dimension" + _SECTION
    fix = "use a multiple of {per} there"


class PackedStep(CompileError):
    code = "packed-step"
    found = "a view of `{name}`, of {dtype}, {what}"
    expected = (
        "a view whose last dimension runs along that of the array: bytes hold {per} neighbours of it" + _SECTION
    )
    fix = "keep the last dimension whole, or use elements of 8 bits"


class PackedWrite(CompileError):
    code = "packed-write"
    found = "{what} writes elements of `{name}`, of {dtype}"
    expected = "copies, which move whole bytes: {per} elements share one, and would be written together" + _SECTION
    fix = "write a u8 array, with the elements in its bits"


class PackedLoad(CompileError):
    code = "packed-load"
    found = "`mma.load` of {source} as {target}"
    expected = "elements of less than a byte in their own type, or s4 and u4 as f16 or bf16" + _SECTION
    fix = "convert them with an element loop"


class PackedUse(CompileError):
    code = "packed-use"
    found = "a statement that reads elements of `{name}`, of {dtype}, and knows no packed ones"
    expected = "copies, `mma.load` of operands, and single elements in expressions" + _SECTION
    fix = "read them by one of these"


class PackedMajor(CompileError):
    code = "packed-major"
    found = "`mma.{contract}` reads {letter} of {dtype} across its bytes"
    expected = (
        "K along the last dimension of operands of less than a byte: A[M, K], B[N, K] (mma.row.row; "
        "the instruction is `.row.col` only, PTX ISA, 9.7.14.5)"
    )
    fix = "store the operand with K last, and write `mma.row.row`"


@record
class PackElements:
    """Rewrites buffers, views, loads and element reads of types narrower than a byte."""

    def run(self, kernel: tile.Kernel, log: list[Decision]) -> tile.Kernel:
        """Raises PackedWidth, PackedStep, PackedWrite, PackedLoad, PackedUse, PackedMajor."""
        narrow = {p.buffer.name for p in kernel.arrays if p.buffer.dtype.bits < 8}
        work = _Packing(kernel)
        body = rewrite(kernel.body, work.operation)
        if not narrow and not work.found:
            return kernel
        params = tuple(work.parameter(p) if isinstance(p, tile.ArrayParameter) else p for p in kernel.params)
        for name, t in sorted(work.found.items()):
            text = f"{t}, {t.per_byte} elements a byte"
            log.append(Decision("packing", name, text, {"dtype": t.name}, span=kernel.span))
        if kernel.returns is not None and kernel.returns.dtype.bits < 8:
            raise work.write(kernel.returns, "`return`")
        return replace(kernel, params=params, body=(*work.conditions(), *body))


class _Packing:
    def __init__(self, kernel: tile.Kernel) -> None:
        self.found: dict[str, DType] = {}
        self.loads = 0
        self.loaded = {op.fragment.name: op.src.dtype for op in walk(kernel.body) if isinstance(op, tile.Load)}
        self.span: Span | None = kernel.span
        self.start = kernel.span
        # Dimensions that are the last of a packed array: the launch requires multiples.
        self.dims: dict[str, int] = {}
        for p in kernel.arrays:
            last = p.buffer.shape[-1] if p.buffer.shape else None
            if isinstance(last, Dim) and p.buffer.dtype.bits < 8:
                self.dims[last.name] = max(self.dims.get(last.name, 1), p.buffer.dtype.per_byte)

    def parameter(self, p: tile.ArrayParameter) -> tile.ArrayParameter:
        if p.buffer.dtype.bits >= 8:
            return p
        if p.facts is not None and p.facts.contiguous != p.buffer.rank - 1:
            raise self._step(p.buffer, "does not have its last dimension contiguous in memory", p.span)
        return replace(p, buffer=self.buffer(p.buffer, p.span))

    def conditions(self) -> Iterator[tile.Assert]:
        """The conditions of a call: rows of whole bytes."""
        for name, per in self.dims.items():
            whole = binary("eq", binary("mod", Dim(name), const(per)), const(0))
            yield tile.Assert(
                whole, f"{name} is a multiple of {per}: a byte holds {per} elements", span=self.start
            )

    def operation(self, op: tile.Op) -> tile.Op | tuple[tile.Op, ...]:
        self.span = op.span or self.span
        self._refuse_writes(op)
        if isinstance(op, tile.SetElement) and op.view.dtype.bits < 8:
            return self._set(op)
        op = map_expressions(op, self.expression)
        if isinstance(op, tile.Mma):
            return self._multiply(op)
        if isinstance(op, tile.Load):
            return self._load(op)
        if isinstance(op, tile.Alloc) and op.buffer.dtype.bits < 8:
            return replace(op, buffer=self.buffer(op.buffer, op.span), init=self._initial(op))
        changes: dict[str, Any] = {}
        for name, _ in type(op).fields_touched:
            value = getattr(op, name)
            if isinstance(value, View) and value.dtype.bits < 8:
                if not isinstance(op, (tile.Copy, tile.LaneMma)):
                    raise PackedUse(op.span, name=value.base.name, dtype=value.dtype)
                changes[name] = self.view(value)
        return with_fields(op, changes)

    # ---- operations

    def _refuse_writes(self, op: tile.Op) -> None:
        if isinstance(op, (tile.Copy, tile.LaneMma)):
            return
        for view in written_views(op):
            if view.dtype.bits < 8 and not (isinstance(op, tile.SetElement) and view.base.space is Space.LOCAL):
                what = "`mma.store`" if isinstance(op, tile.Store) else "an assignment"
                raise self.write(view.base, "an atomic" if updated_views(op) else what)

    def _initial(self, op: tile.Alloc) -> Expr | None:
        """The value of each byte of a buffer with a first value."""
        t, init = op.buffer.dtype, op.init
        value = None if init is None else value_of(init)
        if init is None or value is None:
            if init is not None:
                raise self.write(op.buffer, "an initial value that is not constant")
            return None
        field = int(value) & ((1 << t.bits) - 1)
        return const(sum(field << t.bits * i for i in range(t.per_byte)), dtypes.u8)

    def _set(self, op: tile.SetElement) -> tile.Op:
        """The element's bits in its byte, whose other elements stay."""
        t, view = op.view.dtype, op.view.map(self.expression)
        byte, place = self._place(view)
        mask = const((1 << t.bits) - 1)
        value = binary("and", Cast(self._narrowed(op.value, t), dtypes.s32), mask)
        others = binary("and", Cast(Element(byte), dtypes.s32), Unary("not", binary("shl", mask, place)))
        joined = binary("or", others, binary("shl", value, place))
        return replace(op, view=byte, value=Cast(joined, dtypes.u8))

    def _narrowed(self, e: Expr, t: DType) -> Expr:
        """``e`` converted to ``t``, which it stops at the limits of."""
        exact = e.type is t
        value = self.expression(e)
        if t.kind == "bits":
            return value if value.type.kind == "bool" else binary("ne", value, Const(0, value.type))
        if exact:
            return value
        wide = dtypes.s8 if t.kind == "int" else dtypes.u8
        low, high = (-(1 << t.bits - 1), (1 << t.bits - 1) - 1) if t.kind == "int" else (0, (1 << t.bits) - 1)
        found = Cast(Cast(value, wide), dtypes.s32)
        return binary("min", binary("max", found, const(low)), const(high))

    def _load(self, op: tile.Load) -> tile.Load:
        source, element = op.src.dtype, op.element
        if min(source.bits, element.bits) >= 8:
            return op
        if source is element:
            return replace(op, src=self.view(op.src), dtype=element)
        if source.bits != 4 or element not in (dtypes.f16, dtypes.bf16):
            raise PackedLoad(op.span, source=source, target=element)
        return replace(op, src=self.view(op.src), dtype=element, packed_dtype=source)

    def _multiply(self, op: tile.Mma) -> tile.Op | tuple[tile.Op, ...]:
        before: list[tile.Op] = []
        changes: dict[str, Any] = {}
        for view in (op.scale_a, op.scale_b):
            if view is not None and view.dtype.bits < 8:
                raise PackedUse(op.span, name=view.base.name, dtype=view.dtype)
        for name, turned in (("a", op.contract.a_transposed), ("b", op.contract.b_transposed)):
            x = getattr(op, name)
            t = x.dtype if isinstance(x, View) else self.loaded.get(x.name)
            if t is not None and t.bits < 8 and turned:
                raise PackedMajor(op.span, contract=op.contract.value, letter=name.upper(), dtype=t)
            if isinstance(x, View) and x.dtype.bits < 8:
                self.loads += 1
                ref = tile.FragmentRef(f"{x.base.name}.{name}.packed{self.loads}")
                before += [
                    tile.DeclareFragment(ref.name, (), x.dtype, x.static_shape, span=op.span),
                    self._load(tile.Load(ref, x, span=op.span)),
                ]
                changes[name] = ref
        return (*before, replace(op, **changes)) if before else op

    # ---- storage

    def buffer(self, b: Buffer, span: Span | None) -> Buffer:
        if b.dtype.bits >= 8:
            return b
        self.found[b.name] = b.dtype
        if not b.shape:
            raise self._step(b, "has no dimensions", span)
        last = self._exact(b.shape[-1], b, "the last extent", span)
        return replace(b, dtype=dtypes.u8, shape=(*b.shape[:-1], last))

    def view(self, v: View) -> View:
        b, last = v.base, len(v.offsets) - 1
        axes: list[Axis] = []
        for axis in v.axes:
            if axis.dim != last:
                axes.append(axis)
                continue
            if value_of(axis.step) != 1:
                raise self._step(b, "has steps along its last dimension", self.span)
            axes.append(replace(axis, extent=self._exact(axis.extent, b, "the width of a view", self.span)))
        if not any(axis.dim == last for axis in v.axes):
            raise self._step(b, "fixes the last dimension", self.span)
        offsets = (*v.offsets[:-1], self._exact(v.offsets[-1], b, "the first column of a view", self.span))
        reshape = v.reshape
        if reshape is not None:
            reshape = (*reshape[:-1], self._exact(reshape[-1], b, "the last extent of `span_as`", self.span))
        return View(self.buffer(b, self.span), offsets, tuple(axes), v.slot, reshape)

    # ---- single elements

    def expression(self, e: Expr) -> Expr:
        if isinstance(e, Element) and e.view.dtype.bits < 8:
            return self._element(e.view.map(self.expression))
        if isinstance(e, Cast) and e.dtype.bits < 8:
            return self._narrowed(e.a, e.dtype)
        return with_operands(e, self.expression)

    def _element(self, v: View) -> Expr:
        """The element from its byte: shifted, masked, and extended by its sign."""
        t = v.dtype
        byte, place = self._place(v)
        field = binary("and", binary("shr", Cast(Element(byte), dtypes.s32), place), const((1 << t.bits) - 1))
        if t.kind == "bits":
            return binary("ne", field, const(0))
        if t.kind == "uint":
            return field
        sign = 1 << t.bits - 1
        return binary("sub", binary("xor", field, const(sign)), const(sign))

    def _place(self, v: View) -> tuple[View, Expr]:
        """The byte with the element that ``v`` names, and the lowest bit of the element in it."""
        per, column = v.dtype.per_byte, v.offsets[-1]
        offsets = (*v.offsets[:-1], binary("floordiv", column, const(per)))
        reshape = v.reshape
        if reshape is not None:
            reshape = (*reshape[:-1], self._exact(reshape[-1], v.base, "the last extent of `span_as`", self.span))
        byte = View(self.buffer(v.base, self.span), offsets, v.axes, v.slot, reshape)
        return byte, binary("mul", binary("mod", column, const(per)), const(v.dtype.bits))

    # ---- exact quotients

    def _exact(self, e: Expr, b: Buffer, what: str, span: Span | None) -> Expr:
        per = b.dtype.per_byte
        found = self._divided(e, per)
        if found is None:
            raise PackedWidth(span, what=what, name=b.name, dtype=b.dtype, value=describe(e), per=per)
        return found

    def _divided(self, e: Expr, by: int) -> Expr | None:
        """``e`` / ``by`` where it is a whole number for all values that ``e`` may have, else None."""
        match e:
            case Const(value=int(v)):
                return const(v // by) if v % by == 0 else None
            case Dim(name=name):
                return binary("floordiv", e, const(by)) if self.dims.get(name, 1) % by == 0 else None
            case Binary(op="add" | "sub" | "min" | "max", a=a, b=c):
                left, right = self._divided(a, by), self._divided(c, by)
                return None if left is None or right is None else binary(e.op, left, right)
            case Binary(op="mul", a=a, b=c):
                left = self._divided(a, by)
                if left is not None:
                    return binary("mul", left, c)
                right = self._divided(c, by)
                return None if right is None else binary("mul", a, right)
            case Select(cond=cond, a=a, b=c):
                left, right = self._divided(a, by), self._divided(c, by)
                return None if left is None or right is None else Select(cond, left, right)
        return None

    # ---- refusals

    def _step(self, b: Buffer, what: str, span: Span | None) -> PackedStep:
        return PackedStep(span, name=b.name, dtype=b.dtype, what=what, per=b.dtype.per_byte)

    def write(self, b: Buffer, what: str) -> PackedWrite:
        return PackedWrite(self.span, what=what, name=b.name, dtype=b.dtype, per=b.dtype.per_byte)
