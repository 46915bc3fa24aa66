"""Register tiles: opaque operands and accumulators, arithmetic on all their elements, and `apply`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tilemma import dtypes
from tilemma.dtypes import DType
from tilemma.ir import tile as t
from tilemma.ir.builder import Builder
from tilemma.ir.element_work import Known
from tilemma.ir.expr import BinaryOp, Const, Element, Expr, FragmentElement, Index, Unary, const, substitute
from tilemma.ir.program_points import ProgramPoint, reads
from tilemma.ir.refusals import TileShapeUnknown, WrongValue, wrong_member
from tilemma.ir.tiles import Bounded, FragmentValue, Tile, describe, scalar
from tilemma.lang import spans
from tilemma.lang.namespaces import NoSuchMember
from tilemma.lang.operators import Operators, in_place
from tilemma.lang.scalars import Value, article, combine, integer, operand, operand_as, python_number, refused
from tilemma.lang.spans import caller_span
from tilemma.lang.tracing import LeftItsBlock, builder, check_caller, trace
from tilemma.lang.views import MemoryExpression, TileValue, within

# Placeholders for the element's row and column until `apply` creates indices.
_ROW, _COLUMN = Index("row", const(0)), Index("column", const(0))
_INDICES = (_ROW, _COLUMN)
# Public to the front end, and no members of the language.
_SHAPES = ("dim", "expand", "flatten", "ndim", "numel", "rank", "reshape", "size", "squeeze", "unsqueeze", "view")
_INTERNAL = ("article", "as_fragment", "expression", "fragment", "is_array", "known", "negative_of")


class TileOperators(Operators):
    """Operators that work on every element, and the right spelling for methods that other libraries have."""

    __slots__ = ()

    def __abs__(self) -> Any:
        return elementwise(abs, self)

    def __pos__(self) -> Any:
        return self

    def __invert__(self) -> Any:
        return elementwise(operator.invert, self)

    def __pow__(self, n: Any) -> Any:
        return elementwise(operator.pow, self, n)

    def __rpow__(self, n: Any) -> Any:
        return elementwise(operator.pow, Value(operand(n, "**")), self)

    def astype(self, dtype: str | DType) -> Any:
        """Every element converted to ``dtype``."""
        return elementwise(lambda x: x.astype(dtype), self)

    def max(self, axis: int) -> Fragment:
        """The largest element of each row (``axis=1``): a vector."""
        return _reduced("max", self, axis)

    def min(self, axis: int) -> Fragment:
        """The smallest element of each row (``axis=1``): a vector."""
        return _reduced("min", self, axis)

    def sum(self, axis: int) -> Fragment:
        """The sum of each row (``axis=1``): a vector, of f32 for floats of fewer bits."""
        return _reduced("sum", self, axis)

    if not TYPE_CHECKING:  # a type checker knows the members itself

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            known = [n for n in dir(type(self)) if not n.startswith("_") and n not in _INTERNAL]
            advice = "use arithmetic, `tm.math`, `.map(f)`, or `for i, j in apply(tile):`"
            subject = None if name in _SHAPES else str(self)
            if subject is None:
                advice = f"its rows and columns are `{self}.shape`, which does not change; buffers have `span_as`"
            e = wrong_member(caller_span(), f"`{self}`, {self.article},", name, known, advice, subject)
            raise NoSuchMember(e.span, **e.facts)


class Fragment(TileOperators):
    """An opaque register tile, or with copies an array of them.

    Arithmetic works on all elements; ``mc += e`` and ``mc.set(e)`` change the tile, inside `apply` its elements
    are ``mc[i, j]``.
    """

    __slots__ = ("_point", "_value")
    article: ClassVar[str] = "a register tile"

    def __init__(self, fragment: FragmentValue, point: ProgramPoint | None = None) -> None:
        self._value = fragment
        running = trace()
        self._point = point or (None if running is None else running.builder.point())

    @property
    def fragment(self) -> FragmentValue:
        running = trace()
        if running is not None and self._point is not None and not running.builder.is_open(self._point):
            raise LeftItsBlock(caller_span(), text=self._value.name)
        return self._value

    @property
    def is_array(self) -> bool:
        return len(self._value.index) < len(self._value.copies)

    def known(self, what: str) -> Known:
        running = trace()
        return Known() if running is None else running.builder.known.get(self.fragment.name, Known())

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns (of a vector, rows), if the program has specified them."""
        return _shape(self)

    span = shape

    @property
    def dtype(self) -> DType:
        return _dtype(self)

    # ---- elements and arrays -----------------------------------------------------------------------------

    def __getitem__(self, i: Any) -> Any:
        keys = i if isinstance(i, tuple) else (i,)
        if self.is_array:
            return self._chosen(keys)
        if _is_column(i):
            return _column(self)
        indices = self._visited(keys)
        return Value(FragmentElement(self.fragment.name, indices, _dtype(self), self.fragment.index))

    def at(self, *indices: Any) -> Any:
        return self[indices]

    def _chosen(self, keys: tuple[Any, ...]) -> Any:
        f = self.fragment
        for n, key in enumerate(keys):
            if len(f.index) == len(f.copies):
                return Fragment(f, self._point)[tuple(keys[n:])]
            index = integer(key, "the subscript of an array of register tiles")
            within(scalar(index), f.copies[len(f.index)], f.name)
            f = f[index]
        return Fragment(f, self._point)

    def _visited(self, keys: tuple[Any, ...]) -> tuple[Expr, ...]:
        """The indices of an element, which must be the one that `apply` visits."""
        running, f = trace(), self.fragment
        if running is None or running.visiting is None:
            raise WrongValue(
                caller_span(),
                what=f"`{f.name}[...]`",
                got="a place outside `apply`",
                wanted="`for i, j in apply(tile):` around it: a thread holds only its own elements",
                fix_text="use `apply`, arithmetic on the whole tile, or store the tile to a buffer",
            )
        visited = running.visiting[0]
        found = tuple(n.value if isinstance(n, Bounded) else n for n in (integer(k, "an element") for k in keys))
        if not running.builder.is_visited(f, found, running.visiting):
            names = ", ".join(i.source_name for i in visited if isinstance(i, Index))
            raise WrongValue(
                caller_span(),
                what=f"`{f.name}[...]`",
                got="another element than the one visited",
                wanted=f"the indices of `apply` in their order, `[{names}]`, of a tile of the same shape; of a "
                "vector, that of the row",
                fix_text="store the tile to a buffer and read its elements there",
            )
        return found

    def __setitem__(self, i: Any, value: Any) -> None:
        keys = i if isinstance(i, tuple) else (i,)
        if self.is_array:
            if isinstance(value, Fragment) and self._chosen(keys)._value == value._value:
                return  # `mc[i] += e` has changed it already
            chosen = self._chosen(keys[: len(self._value.copies)])
            rest = keys[len(self._value.copies) :]
            if rest:
                chosen[rest] = value
            else:
                chosen.set(value)
            return
        self._visited(keys)
        e = operand_as(value, _dtype(self), f"{self.fragment.name}[...] =")
        b = builder("an element")
        b.emit(t.SetFragmentElement(self.fragment.ref, b.held(e, _dtype(self))))

    # ---- the whole tile ----------------------------------------------------------------------------------

    def _binary(self, op: BinaryOp, other: Any, swap: bool = False) -> Any:
        return _combined(op, self, other, swap)

    def __neg__(self) -> Elementwise:
        return Elementwise(Unary("neg", _element(self)), _shape(self))

    def set(self, value: Any) -> None:
        """Every element becomes ``value``'s: a number, a row or column of numbers, or arithmetic on tiles."""
        shape, dtype = _shape(self), _dtype(self)
        b = builder(f"{self.fragment.name}.set")
        e = value.expression() if isinstance(value, Elementwise) else _part(value, shape)
        if isinstance(value, (Elementwise, Fragment)) and _common(_shape(value), shape) != shape:
            raise _shapes(_shape(value), shape)
        _check_single(self)
        for op in _applied(b, self.fragment, shape, b.held(e, dtype)):
            b.emit(op)

    def _update(self, op: BinaryOp, o: Any) -> Fragment:
        self.set(_combined(op, self, o, False))
        return self

    __iadd__ = in_place("add")
    __isub__ = in_place("sub")
    __imul__ = in_place("mul")
    __itruediv__ = in_place("div")
    __ifloordiv__ = in_place("floordiv")

    def map(self, f: Callable[[Value], Any]) -> Elementwise:
        """``f`` of every element, a function of one scalar: ``mc.map(tm.math.tanh)``."""
        return _mapped(f, _element(self), _shape(self))

    def __str__(self) -> str:
        return self._value.name

    def __repr__(self) -> str:
        return f"<register tile {self._value.name}>"


class Elementwise(TileOperators):
    """Arithmetic on whole register tiles.  It is stored in a new tile only if one is needed, unless `set` or
    ``+=`` takes it."""

    __slots__ = ("_expr", "_made", "_point", "shape")
    article: ClassVar[str] = "arithmetic on register tiles"

    def __init__(self, e: Expr, shape: tuple[int, ...]) -> None:
        b = builder("arithmetic")
        self._expr, self.shape = e, shape
        self._point = b.point()
        self._made: Fragment | None = None

    @property
    def dtype(self) -> DType:
        return self._expr.type

    def expression(self) -> Expr:
        """Over the placeholders for row and column; in a new tile if the tiles that it reads may have changed."""
        running = trace()
        assert running is not None
        b = running.builder
        if self._made is None and b.may_differ(reads(self._expr) - b.fixed, self._point, True):
            self._made = self._materialised(b, self._point)
        return self._expr if self._made is None else _element(self._made)

    @property
    def negative_of(self) -> Fragment | None:
        """The register tile of which this is the negative, ``-tile``, if its elements are the same still."""
        match self.expression():
            case Unary(op="neg", a=FragmentElement() as element) if self._made is None:
                return Fragment(FragmentValue(element.fragment, index=element.index), self._point)
        return None

    def as_fragment(self) -> Fragment:
        self.expression()
        if self._made is None:
            self._made = self._materialised(builder("arithmetic"), None)
        return self._made

    def _materialised(self, b: Builder, at: ProgramPoint | None) -> Fragment:
        """A new tile with these elements, made here or ``at`` an earlier point."""
        if not b.is_open(self._point):
            raise LeftItsBlock(caller_span(), text="arithmetic on a register tile")
        name, dtype, shape = b.fresh("elementwise"), self._expr.type, self.shape
        if shape[1:] == (1,):
            raise _shapes(shape, shape[:1])
        value = FragmentValue(name)
        b.known[name] = Known(shape, dtype)
        zero = Const(0.0 if dtype.is_float else 0, dtype)
        ops = [t.DeclareFragment(name, (), dtype, shape), t.Fill(value.ref, zero, dtype)]
        ops += _applied(b, value, shape, self._expr)
        span = caller_span() or b.span
        spanned = [op if op.span else replace(op, span=span) for op in ops]
        if at is None:
            for op in spanned:
                b.emit(op)
        else:
            b.insert(at, spanned)
        return Fragment(value, self._point)

    def __getitem__(self, i: Any) -> Elementwise:
        if not _is_column(i):
            raise WrongValue(
                caller_span(),
                what="`[...]`",
                got="arithmetic on a register tile",
                wanted="`[:, None]` of a vector",
                fix_text="put it into a tile first, and use `apply`",
            )
        return _column(self)

    def _binary(self, op: BinaryOp, other: Any, swap: bool = False) -> Any:
        return _combined(op, self, other, swap)

    def __neg__(self) -> Elementwise:
        return Elementwise(Unary("neg", self.expression()), self.shape)

    def map(self, f: Callable[[Value], Any]) -> Elementwise:
        """``f`` of every element."""
        return _mapped(f, self.expression(), self.shape)

    def __str__(self) -> str:
        return describe(self._expr)


def _mapped(f: Any, element: Expr, shape: tuple[int, ...]) -> Elementwise:
    """``f`` of the element of each place; WrongValue if ``f`` is no function of traced values."""
    if type(f).__module__ == "numpy" or not callable(f):
        fix = "pass a function of `tm.math`, such as `tm.math.tanh`, or a `lambda` of them"
        wanted = "a function of one traced scalar"
        raise WrongValue(caller_span(), what="`map`", got=article(f), wanted=wanted, fix_text=fix)
    return Elementwise(operand(f(Value(element)), "map"), shape)


def _applied(b: Builder, target: FragmentValue, shape: tuple[int, ...], e: Expr) -> list[t.Op]:
    """Operations that make ``e`` the value of each element of ``target``."""
    indices = tuple(Index(b.fresh(n), const(x)) for n, x in zip("ij", shape, strict=False))
    value = substitute(e, {s.name: i for s, i in zip(_INDICES, indices, strict=False)})
    return [t.Apply(target.ref, indices, (t.SetFragmentElement(target.ref, value, span=b.span),))]


def _combined(op: BinaryOp, one: Fragment | Elementwise, other: Any, swap: bool) -> Elementwise:
    shape = _shape(one)
    if isinstance(other, (Fragment, Elementwise)):
        shape = _common(shape, _shape(other))
    a, b = _part(one, shape), _part(other, shape)
    if swap:
        a, b = b, a
    return Elementwise(combine(op, a, b), shape)


def elementwise(f: Callable[..., Any], *args: Any) -> Elementwise:
    """``f``, a function of scalars, of each element of ``args``.

    At least one is a register tile, all such have one shape; rows and columns in memory repeat, numbers do too.
    """
    tiles = [x for x in args if isinstance(x, (Fragment, Elementwise))]
    shape = _shape(tiles[0])
    for x in tiles[1:]:
        shape = _common(shape, _shape(x))
    parts = [x if python_number(x) is not None else Value(_part(x, shape)) for x in args]
    return Elementwise(operand(f(*parts), "arithmetic on a register tile"), shape)


def _part(x: Any, shape: tuple[int, ...]) -> Expr:
    """One operand as an expression of the element's row and column; rows and columns are repeated."""
    if isinstance(x, Elementwise):
        return x.expression()
    if isinstance(x, Fragment):
        return _element(x)
    if isinstance(x, TileValue):
        return _broadcast(x, shape)
    if isinstance(x, MemoryExpression):
        return x.elements(lambda part: _part(part, shape))
    if isinstance(x, Value) or python_number(x) is not None:
        return operand(x, "arithmetic on a register tile")
    raise WrongValue(
        caller_span(),
        what="arithmetic on a register tile",
        got=article(x),
        wanted="a number, a row [N] or column [M, 1] of numbers, or a tile of the same shape",
        fix_text="pass one of these",
    )


def _broadcast(x: TileValue, shape: tuple[int, ...]) -> Expr:
    tile = builder("arithmetic on a register tile").settle(x.tile)
    extents = tile.view.static_shape
    rows, columns = shape if len(shape) == 2 else (shape[0], shape[0])
    choices: dict[tuple[int, ...], tuple[Expr, ...]] = {
        (columns,): (_COLUMN,),
        (1, columns): (const(0), _COLUMN),
        (rows, 1): (_ROW, const(0)),
        (rows, columns): (_ROW, _COLUMN),
    }
    if len(shape) == 1:
        choices = {shape: (_ROW,)}
    if extents not in choices:
        have = ", ".join(describe(e) for e in tile.view.shape)
        if len(shape) == 1:
            raise WrongValue(
                caller_span(),
                what="arithmetic on a vector",
                got=f"`{x}`, a tile of [{have}]",
                wanted=f"[{rows}]",
                fix_text=f"cut it: `{x}.subspan({rows}).at(...)`",
            )
        raise WrongValue(
            caller_span(),
            what="arithmetic on a register tile",
            got=f"`{x}`, a tile of [{have}]",
            wanted=f"[{columns}] or [1, {columns}] (a row), [{rows}, 1] (a column), or [{rows}, {columns}]",
            fix_text=f"cut it: `{x}.subspan({columns}).at(j)`"
            if len(tile.view.shape) == 1
            else f"cut it: `{x}.subspan({1 if have.startswith('1,') else rows}, {columns}).at(i, j)`",
        )
    return Element(Tile(tile.view).element(choices[extents]))


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of arithmetic on tiles of two shapes: a column [rows, 1] repeats along the rows."""
    if one == other or (len(one) == 2 and other == (one[0], 1)):
        return one
    if len(other) == 2 and one == (other[0], 1):
        return other
    raise _shapes(other, one)


def _is_column(i: Any) -> bool:
    whole = isinstance(i, tuple) and len(i) == 2 and isinstance(i[0], slice) and i[1] is None
    return whole and (i[0].start, i[0].stop, i[0].step) == (None, None, None)


def _column(x: Fragment | Elementwise) -> Elementwise:
    """``x[:, None]`` of a vector: its values as a column."""
    shape = _shape(x)
    if len(shape) != 1:
        raise WrongValue(
            caller_span(),
            what="`[:, None]`" if isinstance(x, Elementwise) else f"`{x}[:, None]`",
            got=f"a tile of {list(shape)}",
            wanted="a vector, such as `tile.max(axis=1)`",
            fix_text="leave `[:, None]` out",
        )
    return Elementwise(x.expression() if isinstance(x, Elementwise) else _element(x), (shape[0], 1))


def _reduced(name: Literal["max", "min", "sum"], x: Any, axis: Any) -> Fragment:
    """``x.max(axis=1)`` and its siblings: a new vector."""
    b = builder(name)
    tile = x.as_fragment() if isinstance(x, Elementwise) else x
    shape, dtype = _shape(tile), _dtype(tile)
    if len(shape) != 2 or axis not in (1, -1) or isinstance(axis, bool):
        raise WrongValue(
            caller_span(),
            what=f"`{x}.{name}(axis={axis!r})`",
            got=f"a tile of {list(shape)}",
            wanted="`axis=1` of a tile of rows and columns: a value for each row",
            fix_text="for values of columns, transpose: multiply the operands in the other order, or copy "
            "the tile with `transp=(1, 0)` before its load",
        )
    _check_single(tile)
    wide = dtypes.f32 if name == "sum" and dtype.is_float and dtype.bits < 32 else dtype
    label = spans.bound_names() or (f"{name}_of_rows",)
    made = b.fragment(label[0] if len(label) == 1 else f"{name}_of_rows", (), wide, shape[:1])
    b.reduce(name, made, tile.fragment)
    return Fragment(made)


def _shapes(other: tuple[int, ...], shape: tuple[int, ...]) -> WrongValue:
    return WrongValue(
        caller_span(),
        what="arithmetic on register tiles",
        got=f"tiles of {list(shape)} and {list(other)}",
        wanted="one shape",
        fix_text="use tiles of one shape, a row or column from memory, or a vector as a column, `v[:, None]`",
    )


def _element(x: Fragment) -> FragmentElement:
    _check_single(x)
    return FragmentElement(x.fragment.name, _INDICES[: len(_shape(x))], _dtype(x), x.fragment.index)


def _check_single(x: Fragment, what: str = "arithmetic on a register tile") -> None:
    if x.is_array:
        fix = f"choose one: `{x}" + "".join("[i]" for _ in x.fragment.copies) + "`"
        raise refused("register tile", what, f"`{x}`, an array of register tiles", fix)


def _shape(x: Fragment | Elementwise) -> tuple[int, ...]:
    if isinstance(x, Elementwise):
        return x.shape
    shape = x.known("").shape
    if shape is None:
        raise _unknown(x, "shape")
    return shape


def _dtype(x: Fragment) -> DType:
    dtype = x.known("").dtype
    if dtype is None:
        raise _unknown(x, "element type")
    return dtype


def _unknown(x: Fragment, missing: str) -> TileShapeUnknown:
    return TileShapeUnknown(caller_span(), name=x, missing=missing)


def fragment_of(x: Any, what: str, whole: bool = False) -> FragmentValue:
    """The register tile that ``x`` is; one of an array must have been chosen, unless ``whole``."""
    if isinstance(x, Elementwise):
        x = x.as_fragment()
    if not isinstance(x, Fragment):
        raise refused("register tile", what, article(x))
    if not whole:
        _check_single(x, what)
    return x.fragment


def apply(tile: Any) -> Iterator[Any]:
    """``for i, j in apply(mc):`` the body once for each element of a register tile, by the thread that has it;
    ``for i in apply(v):`` for each element of a vector.

    ``mc[i, j]`` is the element, of this and of other tiles of the same shape, ``v[i]`` that of a vector for the
    row; assigning to it changes it.
    """
    b = builder("apply")
    check_caller("apply", "for i, j in apply(tile):")
    fragment = fragment_of(tile, "apply")
    bound = spans.bound_names()
    rank = len(b.known.get(fragment.name, Known()).shape or (0, 0))
    names, span = bound if len(bound) == rank else ("i", "j")[:rank], b.span
    running = trace()
    assert running is not None

    def run() -> Iterator[Any]:
        with b.apply(fragment, names, span=span) as indices:
            outer, running.visiting = running.visiting, (indices, fragment.name)
            found = tuple(Value(Bounded.of(i)) for i in indices)
            yield found if rank == 2 else found[0]
            running.visiting = outer

    return run()
