"""The values of names and expressions while a kernel is read."""

from __future__ import annotations

from tilemma.ir.expr import Expr, Var
from tilemma.ir.tiles import Bounded, FragmentValue, FutureValue, Tile
from tilemma.ir.types import Buffer, Event
from tilemma.records import record


@record
class Mutable:
    """A scalar in storage; ``mutable`` False: it may not be assigned again."""

    var: Var
    mutable: bool


@record
class TileArray:
    """``s[S][T]``: copies of a buffer, not subscripted to the end yet."""

    buffer: Buffer
    sizes: tuple[int, ...]
    index: tuple[Expr, ...] = ()


@record
class Cut:
    """``tile.subspan(h, w)`` and the like before ``.at`` selects a tile."""

    tile: Tile
    method: str
    extents: tuple[Bounded | Expr | None, ...]
    strides: tuple[Expr, ...] = ()
    step: tuple[Expr, ...] | None = None

    @property
    def place(self) -> str:
        """The member that selects a tile."""
        return "from" if self.method == "view" else "at"


@record
class Filled:
    """``view.zfill``: zeros where the view reaches over the edge."""

    tile: Tile


@record
class Events:
    """An event; ``slot`` or ``order`` once it was subscripted or ``.at`` was taken."""

    event: Event
    slot: Expr | None = None
    order: Expr | None = None


@record
class Operation:
    """The future of an asynchronous ``mma``: something to wait for, without data."""

    name: str


@record
class Promise:
    """``f = dma.any``: a name for a copy that is still to be made."""


@record
class Stream:
    """A parameter of type ``stream``: calls run on the caller's stream."""


@record
class SpanValue:
    """A shape (``mdspan``)."""

    dims: tuple[Expr, ...]


@record
class TupleValue:
    """Several integers or indices (``ituple``); ``names``: the names of the elements, if they have any."""

    items: tuple[Bounded | Expr, ...]
    names: tuple[str, ...] = ()


@record
class Word:
    """Text that only some constructs take, such as a string or ``_``; ``meaning`` in words."""

    meaning: str


Scalar = Bounded | Expr
Value = (
    Bounded
    | Expr
    | Mutable
    | Tile
    | TileArray
    | FragmentValue
    | FutureValue
    | Operation
    | Cut
    | Filled
    | Events
    | SpanValue
    | TupleValue
    | Promise
    | Stream
    | Word
)

_KINDS: tuple[tuple[type, str], ...] = (
    (Bounded, "an index"),
    (Mutable, "a scalar"),
    (Expr, "a scalar"),
    (Tile, "a tile"),
    (TileArray, "an array of tiles"),
    (FragmentValue, "a register tile"),
    (FutureValue, "the future of a copy"),
    (Operation, "the future of an `mma`"),
    (Cut, "a `subspan` without `.at`"),
    (Filled, "a view with `.zfill`"),
    (Events, "an event"),
    (Promise, "a name for a copy that has not been made yet"),
    (Stream, "a stream"),
    (SpanValue, "a shape"),
    (TupleValue, "a tuple"),
)


def kind(value: object) -> str:
    """A description of ``value``."""
    if isinstance(value, Word):
        return value.meaning
    return next((text for cls, text in _KINDS if isinstance(value, cls)), "something else")
