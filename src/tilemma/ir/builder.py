"""The builder of tile IR, which both front ends call to turn statements into operations.

A front end resolves names and syntax, and calls a `Builder`; unique names, views, what a copy allocates and
where operations go is settled here, so that two spellings of a kernel give the same IR.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, Literal

from tilemma import dtypes
from tilemma.arithmetic.convert import constant, real
from tilemma.dtypes import DType
from tilemma.errors import CompileError, Span, described, is_text_source, nearest, spelled
from tilemma.ir import tile as t
from tilemma.ir.checks import checked_constant, checked_fit, checked_index, checked_text
from tilemma.ir.constructs import LIMITS, OPERANDS, AtomicName
from tilemma.ir.element_work import ElementWork, Known
from tilemma.ir.expr import Cast, Const, Element, Expr, Var, add, binary, cdiv, const, mod, mul, sub, value_of
from tilemma.ir.named_atoms import check_level, multiplying
from tilemma.ir.padding import Padding, padding_fields, result_shape
from tilemma.ir.ranges import interval
from tilemma.ir.refusals import WrongValue
from tilemma.ir.specialise import ExtentsNotKnown, open_dimensions
from tilemma.ir.tiles import FragmentValue, FutureValue, Scalarlike, Tile, describe, scalar
from tilemma.ir.types import BLOCK, THREAD, Buffer, Contract, Event, EventRef, Space, View
from tilemma.records import record


class CopyOption(CompileError):
    code = "copy-option"
    found = "`dma.copy` got `{option}`"
    expected = "an option of every copy: `{option}` is for the tensor copy engine"
    fix = "write `tma.copy`, or leave `{option}` out"


class KTileOrder(CompileError):
    code = "k-tile-order"
    found = "the K tiles of a multiply are ordered {got}{why}"
    expected = "each of {wanted} once"
    fix = "{fix_text}"


class UnknownDtype(CompileError):
    code = "unknown-dtype"
    found = "`{name}` is not an element type"
    expected = "one of {known}"
    fix = "{suggestion}"


class BitsOfFloats(CompileError):
    code = "bits-of-floats"
    found = "the atomic operation `{name}` on elements of {dtype}"
    expected = "elements of an integer type: `and`, `or` and `xor` work on bits"
    fix = "use an integer array, or one of add, sub, exch, min, max, cas"


class AtomicType(CompileError):
    code = "atomic-type"
    found = "the atomic operation `{name}` on elements of {dtype}"
    expected = "elements of 16, 32 or 64 bits: no hardware changes smaller ones in one step"
    fix = "use an array of {wider}"


# How the launch that gives an array its first values divides the elements.
_FILLED_BY_BLOCK, _FILLING_THREADS = 2048, 256


@record(frozen=False, slots=False)
class Builder(ElementWork):
    """Collects the operations of one kernel."""

    # ---- scalars and elements ----------------------------------------------------------------------------

    def declare(self, name: str, value: Scalarlike | float, dtype: DType | None = None) -> Var:
        e = scalar(value)
        var = Var(self.fresh(name), dtype or e.type)
        self.emit(t.Declare(var, self.held(e, var.dtype)))
        return var

    def assign(self, var: Var, value: Scalarlike | float) -> None:
        self.emit(t.Assign(var, self.held(scalar(value), var.dtype)))

    @staticmethod
    def converted(e: Expr, dtype: DType) -> Expr:
        """``e`` as ``dtype``; constants are converted here."""
        if e.type == dtype:
            return e
        return _constant(e, dtype) if isinstance(e, Const) else Cast(e, dtype)

    def stored(self, e: Expr, dtype: DType) -> Expr:
        """``e`` converted as a store to ``dtype`` does; ConstantOverflow for an integer that does not fit."""
        return self.converted(checked_fit(e, dtype, self.span), dtype)

    def held(self, e: Expr, dtype: DType) -> Expr:
        """As `stored`, for a value that no store converts: ConstantValue for a constant that ``dtype`` cannot
        hold."""
        return self.converted(checked_constant(e, dtype, self.span), dtype)

    def element(self, tile: Tile, indices: Sequence[Scalarlike], span: Span | None = None) -> Element:
        return Element(self.settle(tile).element(indices, span))

    def set_element(self, tile: Tile, indices: Sequence[Scalarlike], value: Scalarlike | float) -> None:
        self.set_value(self.settle(tile).element(indices, self.span), value)

    def set_value(self, view: View, value: Scalarlike | float) -> None:
        self.emit(t.SetElement(view, self.stored(scalar(value), view.dtype)))

    def atomic(
        self, name: AtomicName, view: View, value: Expr, compare: Expr | None = None, *, used: bool = True
    ) -> Var | None:
        """``old = *view; *view = old NAME value`` in one step (``cas``: where it was ``compare``).

        The old value, where it is ``used``.
        """
        dtype = view.dtype
        if dtype.is_float and name in ("and", "or", "xor"):
            raise BitsOfFloats(self.span, name=name, dtype=str(dtype))
        if dtype.bits < 16 or dtype.kind == "bool":
            raise AtomicType(self.span, name=name, dtype=str(dtype), wider="f32" if dtype.is_float else "s32")
        old = Var(self.fresh("old"), dtype) if used else None
        if old is not None:
            self.fixed.add(old.name)
            self.emit(t.Declare(old, Const(0.0 if dtype.is_float else 0, dtype)))
        expected = None if compare is None else self.held(compare, dtype)
        self.emit(t.Atomic(name, view, self.held(value, dtype), expected, old))
        return old

    def print_(self, parts: Sequence[str | Expr], newline: bool) -> None:
        """Print when this place is reached; outside every `parallel` a launch of one block prints."""
        checked_text("".join(p for p in parts if isinstance(p, str)), "`print`", self.span)
        op = t.Print(tuple(parts), newline)
        if self.inside_parallel:
            self.emit(op)
            return
        with self.parallel(["printing"], [1], BLOCK):
            self.emit(op)

    # ---- storage -----------------------------------------------------------------------------------------

    def allocated_array(
        self, name: str, dtype: DType, shape: Sequence[Expr], init: Expr | None = None, span: Span | None = None
    ) -> Buffer:
        """An array in global memory that each call allocates: the one that the kernel returns, or scratch memory.

        A separate launch writes ``init`` to all elements."""
        for extent in map(value_of, shape):
            if extent is not None and extent < 0:
                raise WrongValue(
                    span or self.span,
                    what=f"an extent of `{name}`",
                    got=str(extent),
                    wanted="at least 0",
                    fix_text="use a number of at least 0",
                )
        buffer = Buffer(self.fresh(name), dtype, tuple(shape), Space.GLOBAL)
        self.params.append(t.ArrayParameter(buffer, scratch=True, span=span))
        if init is None:
            return buffer
        init = self.held(init, dtype)
        total = _product(buffer.shape)
        flat = self.span_as(Tile.whole(buffer), [total], span)
        if self.inside_parallel:
            # A kernel without levels is one block: its threads go through the array.
            self._fill(flat, const(0), total, total, init)
            return buffer
        with self.parallel([f"{name}_part"], [cdiv(total, _FILLED_BY_BLOCK)], BLOCK) as (part,):
            self._fill(flat, mul(part.value, _FILLED_BY_BLOCK), const(_FILLED_BY_BLOCK), total, init)
        return buffer

    def _fill(self, flat: Tile, first: Expr, count: Expr, total: Expr, value: Expr) -> None:
        """A block's threads write ``value`` to ``count`` elements of ``flat`` from ``first`` on."""
        with (
            self.parallel(["t"], [_FILLING_THREADS], THREAD) as (lane,),
            self.foreach("n", cdiv(count, _FILLING_THREADS)) as iteration,
        ):
            element = add(add(first, mul(iteration.value, _FILLING_THREADS)), lane.value)
            with self.if_(binary("lt", element, total)):
                self.set_element(flat, [element], value)

    def alloc(
        self,
        name: str,
        space: Space,
        dtype: DType,
        shape: Sequence[Scalarlike],
        *,
        copies: int = 0,
        init: Scalarlike | float | None = None,
        swizzle: int | None = None,
        span: Span | None = None,
        copied: bool = False,
    ) -> Buffer:
        """A shared or local buffer; extents must be compile-time constants (ExtentsNotKnown).  ``copied``: a copy
        makes it, with the extents of its source."""
        LIMITS["rank"].checked(len(shape), f"`{name}`", span or self.span)
        place = span or self.span
        extents = tuple(checked_index(scalar(s), f"an extent of `{name}`", place) for s in shape)
        self._check_known(name, extents, span, declared=not copied)
        buffer = Buffer(self.fresh(name), dtype, extents, space, copies)
        value = None if init is None else self.held(scalar(init), dtype)
        self.emit(t.Alloc(buffer, value, swizzle, span=span))
        return buffer

    def _check_known(self, what: str, extents: Sequence[Expr], span: Span | None, declared: bool = False) -> None:
        # Run-time dimensions are known when it is compiled (`ir.specialise`).
        if open_dimensions(tuple(extents)) is None:
            shape = "[" + ", ".join(describe(e) for e in extents) + "]"
            place = span or self.span
            remedy = "cut the tile with `subspan(h, w).at(i, j)`, with constants for h and w"
            if declared:
                constants = spelled(place, "numbers or `#define`s", "numbers or compile-time keywords")
                remedy = f"use constants as extents: {constants}"
            raise ExtentsNotKnown(place, what=what, shape=shape, remedy=remedy)

    def settle(self, tile: Tile, other: Sequence[Expr] | None = None) -> Tile:
        """`Tile.settle`; conditions that depend on the launch become an `Assert`."""
        if other is None or tile.chunks is None or len(other) != len(tile.chunks):
            for dim, count in tile.unsettled_requirement():
                divides = binary("eq", mod(dim, count), 0)
                self.require(divides, f"chunkat: {describe(count)} must divide {describe(dim)}", tile.span)
        return tile.settle(other)

    def span_as(self, tile: Tile, shape: Sequence[Scalarlike], span: Span | None = None) -> Tile:
        """`Tile.span_as`; the numbers of elements must agree, which is checked at launch if they are not
        constants."""
        LIMITS["rank"].checked(len(shape), "`.span_as`", span or self.span)
        made = tile.span_as(shape, span)
        settled = self.settle(tile)
        base = made.view.base
        if base.space is not Space.GLOBAL:
            self._check_known(f"span_as of {base.name}", made.view.shape, span)
        text = f"span_as: `{base.name}` has {{}} elements, and {{}} are wanted"
        for have, want in ((settled.view.shape, made.view.shape), (base.shape, made.view.base_shape)):
            if value_of(_product(have)) is None or value_of(_product(want)) is None:
                exact = [_product([self.converted(x, dtypes.s64) for x in shape]) for shape in (have, want)]
                counts = (describe(_product(x)) for x in (have, want))
                self.require(binary("eq", *exact), text.format(*counts), span)
                if base.space is Space.GLOBAL:
                    most = binary("lt", exact[1], Const(2**31, dtypes.s64))
                    self.require(most, f"span_as: `{base.name}` has fewer than 2**31 elements", span)
        # A part that reached over the edge of an inner dimension would go on in the next row.
        for offset, extent, dim in settled.part_as(tuple(map(scalar, shape)), span).inside:
            end = add(offset, extent)
            if interval(offset)[0] < 0 or interval(sub(end, dim))[1] > 0:
                holds = binary("land", binary("ge", offset, 0), binary("le", end, dim))
                self.require(
                    holds, f"span_as: the part of `{base.name}` is inside a dimension of {describe(dim)}", span
                )
        return made

    def copy(
        self,
        src: Tile,
        dst: Tile | Space,
        *,
        engine: Literal["dma", "tma"] = "dma",
        name: str | None = None,
        asynchronous: bool = False,
        event: EventRef | None = None,
        transpose: tuple[int, ...] | None = None,
        pad: tuple[Padding, ...] = (),
        span: Span | None = None,
        **options: Any,
    ) -> FutureValue:
        """A copy; to a `Space` it allocates the buffer, called ``name``.

        ``options`` are further fields of `Copy` (swizzle, zfill, multicast, promote, evict, pad_value, after).
        """
        for option in ("multicast", "promote", "evict") if engine == "dma" else ():
            if options.get(option):
                raise CopyOption(span or self.span, option=option)
        self.check_arrangement(src, transpose, pad, span or self.span)
        shaped = transpose is None and not pad
        if isinstance(dst, Space):
            src = self.settle(src)
            extents = result_shape(src.shape, transpose, pad)
            buffer = self.alloc(
                name or f"{src.view.base.name}_copy",
                dst,
                src.view.dtype,
                extents,
                swizzle=options.get("swizzle"),
                span=span,
                copied=True,
            )
            dst = Tile.whole(buffer)
        elif src.chunks is not None and shaped:
            dst = self.settle(dst)
            src = self.settle(src, dst.shape)
        elif dst.chunks is not None and shaped:
            dst = self.settle(dst, src.shape)
        else:
            src, dst = self.settle(src), self.settle(dst)
        if options.get("pad_value") is not None:
            checked_constant(options["pad_value"], src.view.dtype, span or self.span)
        future = self.fresh(f"{name or 'copy'}.future") if asynchronous and event is None else None
        self.emit(
            t.Copy(
                engine,
                src.view,
                dst.view,
                asynchronous,
                event,
                future,
                transpose=transpose,
                **padding_fields(pad),
                span=span,
                **options,
            )
        )
        return FutureValue(future or "", dst)

    @staticmethod
    def check_arrangement(
        src: Tile, transpose: tuple[int, ...] | None, pad: tuple[Padding, ...], span: Span | None
    ) -> None:
        """WrongValue for a permutation or a padding that does not fit the source's dimensions."""
        dims, croqtile = range(src.rank), is_text_source(span)
        if transpose is not None and sorted(transpose) != list(dims):
            raise WrongValue(
                span,
                what="`dma.transp<...>`" if croqtile else "`transp=`",
                got=", ".join(map(str, transpose)) or "nothing",
                wanted=f"a permutation of {', '.join(map(str, dims))}: the source's dimensions, each once",
                fix_text="write `dma.transp<1, 0>` for a matrix"
                if croqtile
                else "write `transp=(1, 0)` for a matrix",
            )
        if pad and len(pad) != src.rank:
            raise WrongValue(
                span,
                what="`dma.pad<...>`" if croqtile else "`pad=`",
                got=f"counts for {len(pad)} dimensions",
                wanted=f"(low, high, between) counts for each of {src.rank} dimensions",
                fix_text="write `dma.pad<{0, 0}, {0, 1}, {0, 0}, 0.0f> src => dst`"
                if croqtile
                else "write `pad=((0, 0, 0), (0, 1, 0))`",
            )
        for counts in pad:
            OPERANDS["padding"].checked_all([n for n in counts if isinstance(n, int)], span)

    # ---- contraction -------------------------------------------------------------------------------------

    def fragment(
        self,
        name: str,
        copies: tuple[int, ...] = (),
        dtype: DType | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> FragmentValue:
        unique = self.fresh(name)
        self.emit(t.DeclareFragment(unique, copies, dtype, shape))
        self.known[unique] = Known(shape, dtype)
        if dtype is not None and shape is not None:
            self.declared_types[unique] = dtype
        return FragmentValue(unique, copies)

    def fill(
        self,
        fragment: FragmentValue | str,
        value: Scalarlike | float | Tile,
        dtype: DType | None = None,
        fast: bool = False,
    ) -> FragmentValue:
        """Fill a fragment, declaring it first where a name is given; without ``dtype`` with the one it has.

        Of an array, each tile that its index does not choose between.  A tile is a row or column to repeat.
        """
        if isinstance(value, Tile):
            return self._filled_from(fragment, value, dtype, fast)
        target = self.fragment(fragment, dtype=dtype) if isinstance(fragment, str) else fragment
        dtype = dtype or self.known.get(target.name, Known()).dtype
        v = scalar(value)
        if dtype is not None:
            v = self.held(v, dtype)
        for rest in product(*map(range, target.copies[len(target.index) :])):
            one = FragmentValue(target.name, target.copies, (*target.index, *map(const, rest)))
            self.emit(t.Fill(one.ref, v, dtype, fast))
        self._learn(target.name, Known(None, dtype))
        return target

    def _filled_from(
        self, fragment: FragmentValue | str, value: Tile, dtype: DType | None, fast: bool
    ) -> FragmentValue:
        src = self.settle(value).view
        known = None if isinstance(fragment, str) else self.known.get(fragment.name, Known()).dtype
        dtype = dtype or known or src.dtype
        target = self.fill(fragment, 0.0 if dtype.is_float else 0, dtype, fast)
        if len(target.index) < len(target.copies):
            raise WrongValue(
                self.span,
                what="`mma.fill`",
                got=f"`{target.name}`, an array of register tiles, and a row or column",
                wanted="one register tile",
                fix_text=f"choose one: `{target.name}[i]`",
            )
        self.fill_from(target, src)
        return target

    def load(
        self,
        fragment: FragmentValue | str,
        src: Tile,
        swizzle: int | None = None,
        dtype: DType | None = None,
        order: str | None = None,
    ) -> FragmentValue:
        """Load an operand tile, as ``dtype``, declaring the fragment where a name is given; prepacked metadata in
        ``order``."""
        settled = self.settle(src)
        target = self.fragment(fragment) if isinstance(fragment, str) else fragment
        if self.is_vector(target):
            if dtype is not None or order is not None:
                raise WrongValue(
                    self.span,
                    what="`mma.load` of a vector",
                    got=f"the type {dtype}" if dtype is not None else f"the order `{order}`",
                    wanted="no type or order: the elements become those of the register vector",
                    fix_text="leave it out",
                )
            self.load_vector(target, settled.view)
            return target
        declared = self.declared_types.get(target.name)
        if None not in (dtype, declared) and dtype != declared:
            raise WrongValue(
                self.span,
                what=f"`mma.load` into `{target.name}`",
                got=f"the type {dtype}",
                wanted=f"{declared}, with which the register tile is declared",
                fix_text="leave the type out: the elements become those of the tile",
            )
        dtype = dtype or declared
        kind = dtype if dtype != settled.view.dtype else None
        op = t.Load(target.ref, settled.view, swizzle, kind, order=order)
        self.emit(op)
        self._learn(target.name, Known(None if order else settled.view.static_shape, op.element))
        return target

    def mma(
        self,
        contract: Contract,
        acc: FragmentValue,
        a: FragmentValue | Tile,
        b: FragmentValue | Tile,
        **options: Any,
    ) -> None:
        """``options`` are further fields of `Mma` (meta, those of `scales`, negated, future, k_order, wanted);
        KTileOrder, NoSuchAtom."""
        order = options.get("k_order", ())
        if sorted(order) != list(range(len(order))):
            raise KTileOrder(
                self.span,
                got=", ".join(map(str, order)),
                why="",
                wanted=f"0 to {len(order) - 1}",
                fix_text="name every tile of K once: 3, 2, 1, 0",
            )
        if options.get("wanted") is not None:
            atom = multiplying(options["wanted"], self.span)
            check_level(atom, self.span)
            options["wanted"] = atom.name
        op = t.Mma(contract, acc.ref, self._operand(a), self._operand(b), **options)
        self.emit(op)
        a_shape, b_shape = self._known_operand(op.a), self._known_operand(op.b)
        legal = a_shape.dtype.accumulators if a_shape.dtype is not None else ()
        shape = None
        if len(a_shape.shape or ()) == len(b_shape.shape or ()) == 2:
            assert a_shape.shape is not None and b_shape.shape is not None
            shape = (a_shape.shape[contract.a_transposed], b_shape.shape[contract.b_transposed])
        self._learn(acc.name, Known(shape, dtypes.dtype(legal[0]) if legal else None))

    def scales(self, a: Tile | Scalarlike, b: Tile | Scalarlike) -> dict[str, Any]:
        """The fields of `Mma` and `ScaleMma` for the scales of A and B, each a tile or one number."""
        views = {name: self.settle(x).view for name, x in (("scale_a", a), ("scale_b", b)) if isinstance(x, Tile)}
        numbers = [scalar(x) for x in (a, b) if not isinstance(x, Tile)]
        if len(numbers) == 2:
            t = dtypes.f64 if any(x.type is dtypes.f64 for x in numbers) else dtypes.f32
            numbers = [binary("mul", *(self.held(x, t) for x in numbers))]
        return {**views, "factor": numbers[0] if numbers else None}

    def _known_operand(self, x: t.Operand) -> Known:
        return Known(x.static_shape, x.dtype) if isinstance(x, View) else self.known.get(x.name, Known())

    def _learn(self, fragment: str, new: Known) -> None:
        old = self.known.get(fragment, Known())
        self.known[fragment] = Known(old.shape or new.shape, old.dtype or new.dtype)

    def _operand(self, x: FragmentValue | Tile) -> t.Operand:
        return x.ref if isinstance(x, FragmentValue) else self.settle(x).view

    def store(self, fragment: FragmentValue, dst: Tile, **options: Any) -> None:
        """``options`` are further fields of `Store` (transpose, rows, columns)."""
        if self.is_vector(fragment):
            self.store_vector(fragment, self.settle(dst).view, **options)
            return
        self.emit(t.Store(fragment.ref, self.settle(dst).view, **options))

    # ---- events ------------------------------------------------------------------------------------------

    def event(self, name: str, slots: int = 0, threads: int | None = None, ready: bool = False) -> Event:
        e = Event(self.fresh(name), slots, threads, ready)
        self.emit(t.DeclareEvent(e))
        return e


def _constant(e: Const, dtype: DType) -> Const:
    """A constant converted as `Cast` converts: first to the type of the constant, then to the target type."""
    value = constant(e.value, e.dtype)
    return Const(real(value, dtype) if dtype.is_float else constant(value, dtype), dtype)


def _product(shape: Sequence[Expr]) -> Expr:
    total: Expr = const(1)
    for e in shape:
        total = binary("mul", total, e)
    return total


def element_type(name: str | DType, span: Span | None = None) -> DType:
    """The element type called ``name``; UnknownDtype with the nearest name otherwise."""
    try:
        return dtypes.dtype(name)
    except KeyError:
        # The name in array libraries comes first: `float16` is nearer to `float` as text.
        called = name if isinstance(name, str) else _name_in_library(name)
        near = dtypes.named_elsewhere(called) or nearest(called, dtypes.names())
        meant = f"did you mean `{near}`?" if isinstance(name, str) or not near else f'write "{dtypes.dtype(near)}"'
        if isinstance(name, (int, tuple, list)):
            near, meant = "f32", 'an element type is a text such as "f32", and stands before the extents'
        raise UnknownDtype(
            span,
            name=f"class {called}" if isinstance(name, type) else called or described(name),
            known=", ".join(dtypes.BY_NAME),
            suggestion=meant if near else "pick one of these",
        ) from None


def _name_in_library(kind: object) -> str:
    """The name of an array library's element type ``kind``: ``np.float16``, a ``np.dtype``, ``torch.float16``."""
    if isinstance(kind, type):
        return kind.__name__
    library = type(kind).__module__.partition(".")[0]
    return str(kind).rpartition(".")[2] if library in ("numpy", "torch") else ""
