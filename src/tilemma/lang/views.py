"""Traced tiles: tensors, buffers, views of them, and their elements."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from tilemma.dtypes import DType
from tilemma.ir.checks import checked_element, checked_subscript
from tilemma.ir.expr import Expr, binary, value_of
from tilemma.ir.program_points import leaves, reads, replaced
from tilemma.ir.refusals import WrongArity, WrongValue, wrong_member
from tilemma.ir.tiles import Bounded, FutureValue, Tile, describe, scalar
from tilemma.ir.types import Event, EventRef
from tilemma.lang.namespaces import NoSuchMember
from tilemma.lang.operators import Operators
from tilemma.lang.scalars import (
    Value,
    article,
    combine,
    integer,
    operand,
    operand_as,
    python_number,
    refuse_effect,
    refused,
    unwrap,
)
from tilemma.lang.spans import caller_span
from tilemma.lang.tracing import builder, same, stay_open, trace


class Full:
    """`full`: the whole dimension (``_`` in Croqtile)."""

    article: ClassVar[str] = "`full`"

    def __repr__(self) -> str:
        return "full"


full = Full()


def _indices(keys: Sequence[Any], what: str) -> list[Bounded | Expr | None]:
    """Indices of a view; tuples of them count one by one."""
    flat = [k for key in keys for k in (key if isinstance(key, tuple) else (key,))]
    if any(k is None for k in flat):
        fix = "write `full` for a dimension that stays whole" if what in ("chunkat", "subspan", "view") else ""
        raise refused("integer", what, "None", fix or "write a number")
    return [None if isinstance(k, Full) else integer(k, what) for k in flat]


def _numbers(keys: Sequence[Any], what: str) -> list[Bounded | Expr]:
    """As `_indices`, without `full`."""
    found = _indices(keys, what)
    if None in found:
        fix = "`full` keeps a dimension whole in `chunkat`, `subspan` and `view`; write a number here"
        raise refused("integer", what, Full.article, fix)
    return [i for i in found if i is not None]


def within(index: Expr, count: int, name: str) -> None:
    """OutOfRange for a constant subscript outside an array of ``count`` things, in code that can run."""
    if not builder(name).unreachable:
        checked_subscript(index, count, name, caller_span())


class MemoryOperators(Operators):
    """Arithmetic on whole tiles in memory: part of an expression with a register tile, whose threads read them."""

    __slots__ = ()

    def _binary(self, op: Any, other: Any, swap: bool = False) -> Any:
        if isinstance(other, Operators) and not isinstance(other, (Value, MemoryOperators)):
            return NotImplemented
        a, b = (other, self) if swap else (self, other)
        return MemoryExpression(lambda x, y: Value(combine(op, operand(x, ""), operand(y, ""))), a, b)

    def __neg__(self) -> Any:
        return MemoryExpression(operator.neg, self)

    def __abs__(self) -> Any:
        return MemoryExpression(abs, self)

    def __pow__(self, n: Any) -> Any:
        return MemoryExpression(operator.pow, self, n)

    def __rpow__(self, n: Any) -> Any:
        return MemoryExpression(lambda x, y: Value(operand(x, "**")) ** y, n, self)

    def __invert__(self) -> Any:
        return MemoryExpression(operator.invert, self)


class MemoryExpression(MemoryOperators):
    """A function of elements, and its arguments: tiles in memory, other expressions of them, and scalars."""

    __slots__ = ("args", "f", "point")
    article: ClassVar[str] = "arithmetic on tiles in memory, without a register tile"

    def __init__(self, f: Callable[..., Any], *args: Any) -> None:
        self.f, self.args, self.point = f, args, builder("arithmetic").point()

    def elements(self, part: Callable[[Any], Expr]) -> Expr:
        """The expression of an element, where ``part`` gives that of an argument; WrongValue if what it reads may
        have changed since the program wrote the expression."""
        args = (x if python_number(x) is not None else Value(part(x)) for x in self.args)
        e = operand(self.f(*args), "arithmetic")
        b = builder("arithmetic")
        if b.may_differ(reads(e) - b.fixed, self.point, True):
            raise WrongValue(
                caller_span(),
                what="arithmetic on a register tile",
                got="arithmetic on tiles in memory whose elements may have changed since",
                wanted="the register tile in the same expression",
                fix_text="write the arithmetic here, or load the tile with `mma.load` before it changes",
            )
        return e

    def __str__(self) -> str:
        return "arithmetic on tiles in memory"


class TileValue(MemoryOperators):
    """A tile of a tensor or buffer: views of it, its elements, its shape."""

    __slots__ = ("_moment", "_tile", "slots")
    article: ClassVar[str] = "a tile"

    def __init__(self, tile: Tile, slots: tuple[int, ...] = ()) -> None:
        self._tile = tile
        # Sizes of an array of tiles that has not been subscripted.
        self.slots = slots
        running = trace()
        self._moment = None if running is None else running.builder.point()

    @property
    def tile(self) -> Tile:
        """The tile at the point where Python created it: its reads happen at that point."""
        table: dict[Expr, Expr] = {}
        for e in _expressions(self._tile):
            stay_open(e, self._moment)
            for leaf in leaves(e):
                if leaf not in table:
                    table[leaf] = same(leaf, self._moment)
        if any(old is not new for old, new in table.items()):
            self._tile = _replaced(self._tile, {k: v for k, v in table.items() if k is not v})
        return self._tile

    @property
    def shape(self) -> tuple[Any, ...]:
        """Extents: Python ints for constants, traced values otherwise."""
        return tuple(unwrap(e) for e in self.tile.shape)

    span = shape

    @property
    def size(self) -> Any:
        """The number of elements."""
        return prod(self.shape)

    @property
    def rank(self) -> int:
        return self._tile.rank

    @property
    def dtype(self) -> DType:
        return self._tile.view.dtype

    @property
    def data(self) -> TileValue:
        return self

    def _plain(self, what: str) -> Tile:
        """The tile that a view is cut from: a chunk that is cut further has its check that it divides."""
        return builder(what).settle(tile_of(self, what))

    def subspan(self, *extents: Any, strides: Sequence[Any] | None = None) -> Subspan:
        """The tile of these extents that ``.at(i, j)`` selects: its origin is (i * h, j * w).

        ``strides``: neighbouring elements of the tile are that many elements of the dimension apart.
        """
        return Subspan(self, extents, "subspan", strides)

    def modspan(self, *extents: Any) -> Subspan:
        """As `subspan`, but the last tile of a dimension is its remainder."""
        return Subspan(self, extents, "modspan", None)

    def chunk(self, *counts: Any) -> Subspan:
        """Each dimension in that many equal chunks, of which ``.at(i, j)`` selects one."""
        return Subspan(self, counts, "chunk", None)

    def view(self, *extents: Any, strides: Sequence[Any] | None = None) -> Window:
        """The tile of these extents whose first element ``.from_(r, c)`` gives."""
        return Window(self, extents, strides)

    def chunkat(self, *indices: Any) -> TileValue:
        """The chunk number ``indices``; ``full`` keeps a dimension.  In a copy it has the other side's extents."""
        found = [0 if i is not None and not isinstance(i, Bounded) and value_of(i) == 0 else i
                 for i in _indices(indices, "chunkat")]  # fmt: skip
        return TileValue(self._plain("chunkat").chunkat(found, caller_span()))

    def span_as(self, *shape: Any) -> TileValue:
        """The same elements, in row-major order, as an array of another shape."""
        extents = _numbers(shape, "span_as")
        b = builder("span_as")
        return TileValue(b.span_as(self._plain("span_as"), extents, b.span))

    def sqz(self) -> TileValue:
        """Without the dimensions of extent 1."""
        return TileValue(self._plain("sqz").sqz())

    def at(self, *indices: Any) -> Any:
        return self[indices]

    def __getitem__(self, indices: Any) -> Any:
        keys = indices if isinstance(indices, tuple) else (indices,)
        if self.slots:
            return self._copy(keys)
        b = builder("an element")
        coordinates = self._coordinates(keys)
        return Value(b.element(self.tile, coordinates, b.span))

    def _copy(self, keys: Sequence[Any]) -> Any:
        """One of an array of tiles; further subscripts select parts of it."""
        tile, sizes = self.tile, self.slots
        index = scalar(integer(keys[0], f"{tile.view.base.name}[...]"))
        within(index, sizes[0], tile.view.base.name)
        before = tile.view.slot
        slot = index if before is None else binary("add", binary("mul", before, sizes[0]), index)
        if len(sizes) > 1:
            found = TileValue(Tile(tile.view.base.whole(slot)), sizes[1:])
        else:
            found = TileValue(Tile.whole(tile.view.base, slot))
        return found if len(keys) == 1 else found[tuple(keys[1:])]

    def _coordinates(self, keys: Sequence[Any]) -> list[Bounded | Expr]:
        name = self._tile.view.base.name
        for key in keys:
            if isinstance(key, (slice, Full)) or key is Ellipsis or key is None:
                got = (
                    "a Python slice"
                    if isinstance(key, slice)
                    else "`full`"
                    if isinstance(key, Full)
                    else f"`{key}`"
                )
                fix = "cut tiles with `subspan(h, w).at(i, j)` or `chunkat(i, full)`"
                raise refused("integer", f"{name}[...]", got, fix)
        found = _numbers(keys, f"{name}[...]")
        if not builder("an element").unreachable:
            checked_element(self._tile, found, caller_span())
        return found

    def __setitem__(self, indices: Any, value: Any) -> None:
        keys = indices if isinstance(indices, tuple) else (indices,)
        if self.slots:
            if isinstance(value, TileValue):
                raise self._assigned_tile()
            self._copy(keys[: len(self.slots)])[tuple(keys[len(self.slots) :])] = value
            return
        b = builder("an element")
        if running := trace():
            refuse_effect(running.pure, f"`{self._tile.view.base.name}`")
        if isinstance(value, TileValue):
            raise self._assigned_tile()
        if article(value) in ("a register tile", "arithmetic on register tiles"):
            raise refused("scalar", f"{self}[...] =", article(value), f"store the tile: `mma.store(tile, {self})`")
        e = operand_as(value, self.dtype, f"{self._tile.view.base.name}[...] =")
        b.set_element(self.tile, self._coordinates(keys), e)

    def _assigned_tile(self) -> WrongValue:
        return WrongValue(
            caller_span(),
            what=f"`{self._tile.view.base.name}[...] =`",
            got="a tile",
            wanted="one number",
            fix_text="copy tiles with `dma.copy(source, destination)`",
        )

    def __str__(self) -> str:
        return self._tile.view.base.name

    def __repr__(self) -> str:
        shape = ", ".join(describe(e) for e in self._tile.view.shape)
        return f"<tile {self._tile.view.base.name}[{shape}]: {self.dtype}>"

    if not TYPE_CHECKING:  # a type checker knows the members itself

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("__"):
                raise AttributeError(name)
            known = [n for n in dir(type(self)) if not n.startswith("_") and n not in ("article", "slots", "tile")]
            advice = "cut it with `subspan`, `chunkat` or `view`, or take elements, `x[i, j]`"
            e = wrong_member(caller_span(), f"`{self}`, a tile,", name, known, advice, str(self))
            raise NoSuchMember(e.span, **e.facts)


def _expressions(tile: Tile) -> list[Expr]:
    found = list(tile.view.expressions())
    for chunk in tile.chunks or ():
        if chunk is not None:
            found += [chunk.value, chunk.extent]
    return found


def _replaced(tile: Tile, table: dict[Expr, Expr]) -> Tile:
    """``tile`` with leaves of its expressions replaced."""
    view = tile.view.map(lambda e: replaced(e, table))
    chunks = None
    if tile.chunks is not None:
        chunks = tuple(
            None if c is None else Bounded(replaced(c.value, table), replaced(c.extent, table))
            for c in tile.chunks
        )
    return Tile(view, chunks, tile.span)


class Subspan:
    """`subspan(h, w)` before ``.at``: optionally ``.step(sh, sw)``."""

    __slots__ = ("extents", "kind", "of", "steps", "strides")

    def __init__(self, of: TileValue, extents: Sequence[Any], kind: str, strides: Sequence[Any] | None) -> None:
        self.of, self.kind, self.strides = of, kind, strides
        self.extents = _indices(extents, kind)
        self.steps: Sequence[Any] | None = None

    @property
    def article(self) -> str:
        return f"`{self.kind}(...)` without `.at(i, j)`"

    def step(self, *steps: Any) -> Subspan:
        """Neighbouring tiles start this many elements apart (default: the extents)."""
        self.steps = steps
        return self

    def at(self, *indices: Any) -> TileValue:
        tile, span = self.of._plain(self.kind), caller_span()
        where = _indices(indices, f"{self.kind}(...).at")
        if self.kind == "chunk":
            if len(where) != len(self.extents):
                tile.chunkat(where, span)  # raises WrongRank
            pairs = [None if i is None or n is None else Bounded(scalar(i), scalar(n))
                     for i, n in zip(where, self.extents, strict=True)]  # fmt: skip
            return TileValue(tile.chunkat(pairs, span))
        found = tile.subspan(
            self.extents,
            where,
            step=_per_dimension(self.steps, self.extents, "step"),
            strides=_per_dimension(self.strides, self.extents, "strides"),
            remainder=self.kind == "modspan",
            name=self.kind,
            span=span,
        )
        return TileValue(found)


def _per_dimension(given: Sequence[Any] | None, extents: Sequence[Any], what: str) -> list[Bounded | Expr] | None:
    if given is None:
        return None
    found = [integer(s, what) for s in (given if isinstance(given, (tuple, list)) else (given,))]
    if len(found) != len(extents):
        want = f"{len(extents)}, as extents"
        raise WrongArity(caller_span(), what=what, got=len(found), want=want, form=f"{what} for each extent")
    return found


class Window:
    """`view(h, w)` before ``.from_(r, c)``."""

    __slots__ = ("extents", "of", "strides")
    article: ClassVar[str] = "`view(...)` without `.from_(r, c)`"

    def __init__(self, of: TileValue, extents: Sequence[Any], strides: Sequence[Any] | None) -> None:
        self.of, self.strides = of, strides
        self.extents = _indices(extents, "view")

    def from_(self, *origin: Any) -> TileValue:
        """``origin`` in elements."""
        tile = self.of._plain("view").window(
            self.extents,
            _numbers(origin, "from_"),
            strides=_per_dimension(self.strides, self.extents, "strides"),
            span=caller_span(),
        )
        return TileValue(tile)


def tile_of(x: Any, what: str, kind: str = "tile") -> Tile:
    """The tile ``x``, or the tile of the copy ``x``; NotATile for other objects."""
    if isinstance(x, TileValue) and not x.slots:
        return x.tile
    if isinstance(x, Subspan) and x.kind != "chunk":
        return x.at(*(full if e is None else 0 for e in x.extents)).tile
    if isinstance(x, TileValue):
        got = f"`{x}`, an array of {prod(x.slots)} tiles"
        raise refused(kind, what, got, f"choose one: `{x}" + "".join("[i]" for _ in x.slots) + "`")
    if isinstance(x, (Subspan, Window)):
        call = ".from_(r, c)" if isinstance(x, Window) else ".at(i, j)"
        raise refused(kind, what, article(x), f"add `{call}`, which selects the tile")
    raise refused(kind, what, article(x))


class FutureHandle(TileValue):
    """The result of a copy: `.data` is the destination tile; the result may be used in place of that tile."""

    __slots__ = ("future",)
    article: ClassVar[str] = "the future of a copy"

    def __init__(self, future: FutureValue) -> None:
        super().__init__(future.data)
        self.future = future

    @property
    def data(self) -> TileValue:
        return self


class EventHandle:
    """An event: `e[s]` is slot s, `e.at(order)` slot order % S of generation order // S."""

    __slots__ = ("_moment", "_ref")
    article: ClassVar[str] = "an event"

    def __init__(self, event: Event | EventRef) -> None:
        self._ref = event if isinstance(event, EventRef) else EventRef(event)
        running = trace()
        self._moment = None if running is None else running.builder.point()

    @property
    def ref(self) -> EventRef:
        r = self._ref
        slot, order = (None if e is None else same(e, self._moment) for e in (r.slot, r.order))
        return EventRef(r.event, slot, order)

    def __getitem__(self, slot: Any) -> EventHandle:
        self._subscript("[s]")
        index = scalar(integer(slot, "event slot"))
        within(index, self._ref.event.slots, self._ref.event.name)
        return EventHandle(EventRef(self._ref.event, slot=index))

    def at(self, order: Any) -> EventHandle:
        self._subscript(".at(order)")
        return EventHandle(EventRef(self._ref.event, order=scalar(integer(order, "event order"))))

    def _subscript(self, what: str) -> None:
        if self._ref.event.slots and self._ref.slot is None and self._ref.order is None:
            return
        single = not self._ref.event.slots
        raise WrongValue(
            caller_span(),
            what=f"`{self._ref.event.name}{what}`",
            got="a single event" if single else "an event that has its slot already",
            wanted="an array of events",
            fix_text="declare it with a size, `event(2)`, or remove the subscript"
            if single
            else "take one subscript",
        )

    def __iter__(self) -> NoReturn:
        raise WrongValue(
            caller_span(),
            what="a Python loop",
            got="an event",
            wanted="something to go through",
            fix_text="loop over slots with `foreach(S)`",
        )


def event_of(x: Any, what: str) -> EventRef:
    """The event that ``x`` is; one of an array must have been chosen."""
    if not isinstance(x, EventHandle):
        raise refused("event", what, article(x))
    ref = x.ref
    if ref.event.slots and ref.slot is None and ref.order is None:
        name = ref.event.name
        got = f"`{name}`, an array of {ref.event.slots} events"
        raise refused("event", what, got, f"choose one: `{name}[s]`, `{name}.at(order)`")
    return ref
