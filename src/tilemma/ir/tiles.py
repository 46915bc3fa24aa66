"""Values of the front ends: bounded integers, tiles and fragments, and the algebra of views.

Both front ends build them, so that ``chunkat`` and ``subspan`` have one meaning.  A `Tile` is a view whose
extents may still wait for the other side of a copy (``chunkat`` takes its tile from there).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tilemma.errors import CompileError, Span, described
from tilemma.ir.contiguous import Part, reshaped
from tilemma.ir.expr import (
    Binary,
    Call,
    Cast,
    Element,
    Expr,
    FragmentElement,
    Index,
    Select,
    Unary,
    add,
    const,
    expr,
    floordiv,
    maximum,
    minimum,
    mul,
    sub,
    value_of,
)
from tilemma.ir.ranges import interval, wraps
from tilemma.ir.tile import FragmentRef
from tilemma.ir.types import Axis, Buffer, Space, View
from tilemma.launch import MAX_EXTENT
from tilemma.records import record, replace


class WrongRank(CompileError):
    code = "wrong-rank"
    found = "`{what}` got {got} for a tile of {rank} dimensions ({shape})"
    expected = "one for each dimension"
    fix = "write {rank} of them; `_` keeps a dimension whole"
    python_fix = "write {rank} of them; `full` keeps a dimension whole"


class ChunkDoesNotDivide(CompileError):
    code = "chunk-does-not-divide"
    found = "`chunkat` cuts a dimension of {dim} into {count} chunks"
    expected = "a count that divides the dimension: outside a copy a chunk is dimension / count"
    fix = "use `subspan({suggestion}).at(...)`, or a count that divides {dim}"


class UnboundedChunkIndex(CompileError):
    code = "unbounded-chunk-index"
    found = "`chunkat` got `{text}`, a value without an upper bound"
    expected = (
        "an index of a `parallel` or loop (also `k - 1`, or `a # b` of two): its bound is the number of chunks"
    )
    fix = "use `subspan(h, w).at(i, j)`, which names the tile's extents"


class NotContiguous(CompileError):
    code = "span-as-not-contiguous"
    found = "`span_as` on a part of `{name}` that is not contiguous in rows of {row}"
    expected = "elements that follow one another in memory, from a multiple of a row of the new shape on"
    fix = "apply `span_as` to `{name}` itself and cut the view from the result"


class ElementCount(CompileError):
    code = "element-count"
    found = "`span_as` turns {have} elements ({shape}) into {want} ({new})"
    expected = "the same number of elements"
    fix = "make the product of the new extents {have}"


class TooManyElements(CompileError):
    code = "too-many-elements"
    found = "`span_as` of `{name}`, which has {count} elements"
    expected = "fewer than 2**31: indices into an array of another shape are 32 bits"
    fix = "index `{name}` by its own dimensions, or pass parts of it as arrays of their own"


class TileExtent(CompileError):
    code = "tile-extent"
    found = "`{name}` with {what} of {n}"
    expected = "at least 1: a tile has elements"
    fix = "use a positive number; `_` keeps a dimension whole"
    python_fix = "use a positive number; `full` keeps a dimension whole"


# A tile one beyond the last of the largest array ends within s32.
_FARTHEST = 2**31 - MAX_EXTENT


@record
class Bounded:
    """A value with an upper bound: an index, a composition ``a # b``, or ``k(-1)``.  0 <= value < extent."""

    value: Expr
    extent: Expr

    @staticmethod
    def of(index: Index) -> Bounded:
        return Bounded(index, index.extent)

    def compose(self, inner: Bounded) -> Bounded:
        """``self # inner``: self * #inner + inner, below #self * #inner."""
        return Bounded(add(mul(self.value, inner.extent), inner.value), mul(self.extent, inner.extent))

    @property
    def last(self) -> Bounded:
        """The largest value it can have, ``k(-1)``."""
        return Bounded(sub(self.extent, 1), self.extent)


def _moved(e: Expr) -> Bounded | None:
    """``k``, or ``k - 1``, ``k + 1`` with a constant: the chunk before or after chunk ``k`` of ``#k``."""
    by: int | None = 0
    index = e
    if isinstance(e, Binary) and e.op in ("add", "sub"):
        index, by = e.a, value_of(e.b)
    if not isinstance(index, Index) or by is None:
        return None
    # As many chunks away as the dimension has: twice the dimension, whose position wraps to no place inside.
    return Bounded(e, index.extent) if abs(by) <= (value_of(index.extent) or 1) else None


Scalarlike = Bounded | Expr | int
MaybeIndex = Scalarlike | None  # None represents `_`


@record
class Unlooped(Bounded):
    """An index of `with` (Python's `bound`), which no loop runs over: its value is 0, and as the extent of a loop
    it is replaced by its bound."""


def extent_of(x: Scalarlike) -> Expr:
    """The number of values of an index over ``x``: the bound of an index without a loop, else the value of
    ``x``."""
    return x.extent if isinstance(x, Unlooped) else scalar(x)


def scalar(x: Scalarlike | float) -> Expr:
    """``x`` as a plain expression, without its bound."""
    return x.value if isinstance(x, Bounded) else expr(x)


def _origin(view: View, index: Expr | int, extent: Expr) -> Expr:
    """The position of tile number ``index``; it does not wrap: far tiles of parameters lie beyond every edge."""
    product = mul(index, extent)
    n = value_of(extent)
    if view.base.space is not Space.GLOBAL or n is None or not 0 < n < _FARTHEST or not wraps(product):
        return product
    # Where an origin is counted in elements, the limit keeps its divisors, which decide the width of accesses.
    number, last = expr(index), MAX_EXTENT // n + (n > 1)
    low, high = interval(number)
    if high > last:
        number = minimum(number, last)
    if low < -last:
        number = maximum(number, -last)
    return mul(number, extent)


@record
class Tile:
    """A view as a program names it; ``chunks`` are ``chunkat`` indices whose extents are not determined yet."""

    view: View
    chunks: tuple[Bounded | None, ...] | None = None
    span: Span | None = None

    kind: ClassVar[str] = "tile"

    @staticmethod
    def whole(buffer: Buffer, slot: Expr | None = None) -> Tile:
        return Tile(buffer.whole(slot))

    @property
    def shape(self) -> tuple[Expr, ...]:
        """Extents, ``chunkat`` settled by dimension / count."""
        return self.settle().view.shape

    @property
    def rank(self) -> int:
        return len(self.view.axes)

    def _check_rank(self, what: str, count: int, span: Span | None) -> None:
        if count != self.rank:
            shape = ", ".join(describe(e) for e in self.view.shape)
            raise WrongRank(span or self.span, what=what, got=count, rank=self.rank, shape=shape)

    def settle(self, other: Sequence[Expr] | None = None) -> Tile:
        """The tile with its extents fixed.

        ``other``: the extents of a copy's other side, which a ``chunkat`` takes over; without them a chunk is
        dimension / count.  Raises ChunkDoesNotDivide if constants show that it does not divide.
        """
        if self.chunks is None:
            return self
        use_other = other is not None and len(other) == len(self.chunks)
        view = self.view
        axes = list(view.axes)
        for i, chunk in enumerate(self.chunks):
            if use_other and other is not None:
                extent = other[i] if chunk is not None else axes[i].extent
            elif chunk is None:
                continue
            else:
                extent = self._share(axes[i].extent, chunk.extent)
            if chunk is not None:
                view = view.shift(i, _origin(view, chunk.value, extent))
            axes[i] = replace(axes[i], extent=extent)
        return Tile(replace(view, axes=tuple(axes)), None, self.span)

    def _share(self, dim: Expr, count: Expr) -> Expr:
        d, c = value_of(dim), value_of(count)
        if d is not None and c is not None and (c == 0 or d % c):
            size = -(-d // c) if c else d
            raise ChunkDoesNotDivide(self.span, dim=d, count=c, suggestion=size)
        # dim / (dim / c) is c: the launch checks that c divides the dimension.
        divisor = _divisor(dim, count)
        return floordiv(dim, count) if divisor is None else divisor

    def unsettled_requirement(self) -> tuple[tuple[Expr, Expr], ...]:
        """(dimension, number) pairs that must divide when the tile is settled by itself; for launch checks."""
        pairs = []
        for axis, chunk in zip(self.view.axes, self.chunks or (), strict=False):
            if chunk is not None and (value_of(axis.extent) is None or value_of(chunk.extent) is None):
                divisor = _divisor(axis.extent, chunk.extent)
                pairs.append((axis.extent, chunk.extent if divisor is None else divisor))
        return tuple(pairs)

    def chunkat(self, indices: Sequence[MaybeIndex], span: Span | None = None) -> Tile:
        base = self.settle()
        self._check_rank("chunkat", len(indices), span)
        chunks: list[Bounded | None] = []
        for i in indices:
            if isinstance(i, Expr):
                i = _moved(i) or i
            if isinstance(i, int):
                i = Bounded(const(i), const(i + 1)) if i == 0 else i
            if i is not None and not isinstance(i, Bounded):
                raise UnboundedChunkIndex(span or self.span, text=describe(scalar(i)))
            chunks.append(i)
        return Tile(base.view, tuple(chunks), span or self.span)

    def subspan(
        self,
        extents: Sequence[MaybeIndex],
        at: Sequence[MaybeIndex],
        *,
        step: Sequence[Scalarlike] | None = None,
        strides: Sequence[Scalarlike] | None = None,
        remainder: bool = False,
        name: str = "subspan",
        span: Span | None = None,
    ) -> Tile:
        """The tile of these extents number ``at``: its origin is at * step, step being the extents by default.

        ``strides``: distance of neighbouring elements, in elements of the dimension.  ``remainder``
        (``modspan``): the last tile is the remainder of the dimension.
        """
        base = self.settle()
        self._check_rank(name, len(extents), span)
        self._check_rank(f"{name}(...).at", len(at), span)
        for what, numbers in (("an extent", extents), ("a stride", strides or ())):
            for x in numbers:
                n = None if x is None else value_of(scalar(x))
                if n is not None and n < 1:
                    raise TileExtent(span or self.span, name=name, what=what, n=n)
        view = base.view
        axes = list(view.axes)
        for i, (extent, index) in enumerate(zip(extents, at, strict=True)):
            size = axes[i].extent if extent is None else scalar(extent)
            pace = size if step is None else scalar(step[i])
            origin = _origin(view, 0 if index is None else scalar(index), pace)
            view = view.shift(i, origin)
            if remainder:
                size = minimum(size, sub(axes[i].extent, origin))
            stride = axes[i].step if strides is None else mul(axes[i].step, scalar(strides[i]))
            axes[i] = replace(axes[i], extent=size, step=stride)
        return Tile(replace(view, axes=tuple(axes)), None, span or self.span)

    def window(
        self,
        extents: Sequence[MaybeIndex],
        origin: Sequence[Scalarlike],
        *,
        strides: Sequence[Scalarlike] | None = None,
        span: Span | None = None,
    ) -> Tile:
        """``view(h, w).from(r, c)``: the tile whose first element is at ``origin``, in elements."""
        ones = [1] * len(extents)
        return self.subspan(extents, list(origin), step=ones, strides=strides, name="view", span=span)

    def span_as(self, shape: Sequence[Scalarlike], span: Span | None = None) -> Tile:
        """The same elements, in row-major order, as an array of ``shape``; of a part, where it is contiguous."""
        base = self.settle().view
        new = tuple(scalar(s) for s in shape)
        have, want = _count(base.shape), _count(new)
        if have is not None and want is not None and have != want:
            raise ElementCount(
                span or self.span,
                have=have,
                want=want,
                shape=" x ".join(describe(e) for e in base.shape),
                new=" x ".join(describe(e) for e in new),
            )
        count = _count(base.base.shape) or (want if base.is_whole else None)
        if base.base.space is Space.GLOBAL and count is not None and count >= 2**31:
            raise TooManyElements(span or self.span, name=base.base.name, count=count)
        view = self.part_as(new, span).view
        if base.is_whole or _covers(base):
            axes = tuple(Axis(d, e) for d, e in enumerate(new))
            view = View(base.base, tuple(const(0) for _ in new), axes, base.slot, new)
        return Tile(view, None, span or self.span)

    def part_as(self, shape: tuple[Expr, ...], span: Span | None = None) -> Part:
        """The contiguous part read as ``shape``; NotContiguous."""
        view = self.settle().view
        whole = view.is_whole or _covers(view)
        part = Part(view, ()) if whole else reshaped(view, shape)
        if part is None:
            row = " x ".join(describe(e) for e in shape[1:]) or "1"
            raise NotContiguous(span or self.span, name=view.base.name, row=row)
        return part

    def sqz(self) -> Tile:
        """Without the axes of extent 1."""
        v = self.settle().view
        return Tile(replace(v, axes=tuple(a for a in v.axes if value_of(a.extent) != 1)), None, self.span)

    def one(self, element: View) -> Tile:
        """``element``, one of this tile's, as an array of rank 1."""
        axes = tuple(replace(a, extent=const(1)) for a in self.view.axes[-1:])
        return Tile(replace(element, axes=axes), None, self.span)

    def element(self, indices: Sequence[Scalarlike], span: Span | None = None) -> View:
        """The element at ``indices``: a view without axes."""
        self._check_rank("at", len(indices), span)
        return self.settle().view.element(tuple(scalar(i) for i in indices))


def _divisor(dim: Expr, count: Expr) -> Expr | None:
    """c where ``count`` is written as dim / c."""
    if isinstance(count, Binary) and count.op in ("div", "floordiv", "cdiv") and count.a == dim:
        return count.b
    return None


@record
class FragmentValue:
    """A register tile, or (with ``copies``) an array of them."""

    name: str
    copies: tuple[int, ...] = ()
    index: tuple[Expr, ...] = ()

    def __getitem__(self, i: Scalarlike) -> FragmentValue:
        return replace(self, index=(*self.index, scalar(i)))

    @property
    def ref(self) -> FragmentRef:
        return FragmentRef(self.name, self.index)


@record
class FutureValue:
    """The handle of a copy: ``data`` is its destination tile.  The handle may be used in place of that tile."""

    name: str
    data: Tile


def _covers(view: View) -> bool:
    return (
        view.reshape is not None
        and all(value_of(o) == 0 for o in view.offsets)
        and view.axes == tuple(Axis(d, e) for d, e in enumerate(view.reshape))
    )


def _count(shape: Sequence[Expr]) -> int | None:
    n = 1
    for e in shape:
        v = value_of(e)
        if v is None:
            return None
        n *= v
    return n


_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%", "floormod": "%", "floordiv": "//",
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "land": "&&", "lor": "||",
}  # fmt: skip


def written(future: str) -> str:
    """The name in the program of a future of the IR (``f`` for ``f.future``)."""
    return future.split(".future")[0]


def describe(e: Expr) -> str:
    """``e`` as a person would write it, for messages."""
    if isinstance(e, Binary):
        left, right = describe(e.a), describe(e.b)
        if e.op in ("cdiv", "min", "max"):
            return f"{e.op}({left}, {right})"
        wrapped = [f"({t})" if isinstance(x, Binary) and x.op not in ("cdiv", "min", "max") else t
                   for x, t in ((e.a, left), (e.b, right))]  # fmt: skip
        return f"{wrapped[0]} {_SIGNS[e.op]} {wrapped[1]}"
    value = value_of(e)
    if value is not None:
        # Python writes no integer of more than some thousand digits.
        return described(value) if value.bit_length() > 1000 else str(value)
    match e:
        case Element(view):
            return _element(view.base.name, view.offsets)
        case FragmentElement(name, indices):
            return _element(name, indices)
        case Call(name, args):
            return f"{name}({', '.join(map(describe, args))})"
        case Select(cond, a, b):
            return f"select({describe(cond)}, {describe(a)}, {describe(b)})"
        case Cast(a, kind):
            return f"{kind}({describe(a)})"
        case Unary(op, a):
            return f"{op}({describe(a)})"
        case Index():
            return e.source_name
    named = getattr(e, "name", None)
    return str(named if named is not None else getattr(e, "value", f"an expression of type {e.type}"))


def _element(name: str, indices: Sequence[Expr]) -> str:
    return f"{name}[{', '.join(map(describe, indices))}]"


def shape_text(shape: Sequence[int | Expr]) -> str:
    return "[" + ", ".join(str(e) if isinstance(e, int) else describe(e) for e in shape) + "]"
