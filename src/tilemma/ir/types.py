"""Types of the operands of tile operations: levels, buffers, views, fragments, events, futures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tilemma.dtypes import DType
from tilemma.ir.expr import Const, Expr, add, const, mul, value_of
from tilemma.records import record, replace

# The threads of a warp.
WARP = 32


class Space(StrEnum):
    """The memory that holds a buffer: device memory, a CTA's shared memory, one lane's registers."""

    GLOBAL = "global"
    SHARED = "shared"
    LOCAL = "local"


class Contract(StrEnum):
    """Which axis of each stored operand is contracted.

    row_row: A[M,K] B[N,K]; row_col: A[M,K] B[K,N]; col_row: A[K,M] B[N,K]; col_col: A[K,M] B[K,N].
    """

    ROW_ROW = "row.row"
    ROW_COL = "row.col"
    COL_ROW = "col.row"
    COL_COL = "col.col"

    @property
    def a_transposed(self) -> bool:
        """A is stored [K, M]."""
        return self.value.startswith("col")

    @property
    def b_transposed(self) -> bool:
        """B is stored [K, N]."""
        return self.value.endswith("col")


@dataclass(frozen=True, slots=True, order=True)
class Level:
    """The threads that execute a statement together.

    ``kind`` is "cluster", "block", "group" or "thread"; a group has ``warps`` warps (1: a warp, 4: a
    warpgroup).  "device" is all threads of the device, whom a fence can address.
    """

    kind: str
    warps: int = 1

    def __post_init__(self) -> None:
        assert self.kind in ("device", "cluster", "block", "group", "thread"), self
        assert self.warps >= 1 and (self.kind == "group" or self.warps == 1), self

    @property
    def depth(self) -> int:
        """0 for the outermost kind that a program opens."""
        return ("device", "cluster", "block", "group", "thread").index(self.kind) - 1

    @property
    def threads(self) -> int:
        """Threads of one instance, for groups and threads."""
        assert self.kind in ("group", "thread"), self
        return WARP * self.warps if self.kind == "group" else 1

    def __str__(self) -> str:
        return f"group-{self.warps}" if self.kind == "group" and self.warps > 1 else self.kind

    @staticmethod
    def parse(text: str) -> Level:
        """Inverse of ``str``; ValueError for other texts."""
        if text in ("device", "cluster", "block", "group", "thread"):
            return Level(text)
        kind, _, n = text.partition("-")
        if kind == "group" and n.isdecimal() and int(n) >= 1:
            return Level("group", int(n))
        raise ValueError(text)


CLUSTER, BLOCK, GROUP, WARPGROUP, THREAD = (
    Level("cluster"),
    Level("block"),
    Level("group"),
    Level("group", 4),
    Level("thread"),
)


@record
class Buffer:
    """Storage for a dense row-major array (as the program sees it), or for ``copies`` of it (``s[S]``)."""

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    space: Space
    copies: int = 0

    @property
    def rank(self) -> int:
        return len(self.shape)

    def whole(self, slot: Expr | None = None) -> View:
        """The view of all of it (of copy ``slot``)."""
        zero = const(0)
        return View(
            self, tuple(zero for _ in self.shape), tuple(Axis(d, e) for d, e in enumerate(self.shape)), slot
        )


@record
class Axis:
    """One axis of a view: ``extent`` steps of ``step`` elements along dimension ``dim`` of the base."""

    dim: int
    extent: Expr
    step: Expr = Const(1)


@record
class View:
    """A region of a buffer: element ``(i, j, ..)`` is base coordinate ``offsets[axis.dim] + i * axis.step``.

    Dimensions without an axis are fixed at their offset.  ``reshape`` reads the base's elements, in row-major
    order, as an array of that shape first (``span_as``): offsets and axes then refer to those dimensions.
    An extent may depend on run-time values (a remainder tile).  Only views of parameters may reach over the
    edge of the base: loads read zero there, stores drop.
    """

    base: Buffer
    offsets: tuple[Expr, ...]
    axes: tuple[Axis, ...]
    slot: Expr | None = None
    reshape: tuple[Expr, ...] | None = None

    @property
    def shape(self) -> tuple[Expr, ...]:
        return tuple(a.extent for a in self.axes)

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The extents if all are constants, else None."""
        values = tuple(value_of(e) for e in self.shape)
        return None if any(v is None for v in values) else tuple(v for v in values if v is not None)

    @property
    def dtype(self) -> DType:
        return self.base.dtype

    @property
    def base_shape(self) -> tuple[Expr, ...]:
        return self.base.shape if self.reshape is None else self.reshape

    @property
    def is_whole(self) -> bool:
        """Whether it is the base (or one copy of it), unchanged."""
        return (
            self.reshape is None
            and all(value_of(o) == 0 for o in self.offsets)
            and self.axes == tuple(Axis(d, e) for d, e in enumerate(self.base.shape))
        )

    def expressions(self) -> Iterator[Expr]:
        yield from self.offsets
        for a in self.axes:
            yield a.extent
            yield a.step
        if self.slot is not None:
            yield self.slot

    def map(self, f: Callable[[Expr], Expr]) -> View:
        """The view with ``f`` applied to each of its expressions; itself where that changes none."""
        old = tuple(self.expressions())
        new = [f(x) for x in old]
        if all(a is b for a, b in zip(old, new, strict=True)):
            return self
        rest = iter(new)
        return replace(
            self,
            offsets=tuple(next(rest) for _ in self.offsets),
            axes=tuple(replace(a, extent=next(rest), step=next(rest)) for a in self.axes),
            slot=None if self.slot is None else next(rest),
        )

    def shift(self, axis: int, by: Expr | int) -> View:
        """Moved by ``by`` elements along view axis ``axis``."""
        a = self.axes[axis]
        moved = add(self.offsets[a.dim], mul(by, a.step))
        return replace(self, offsets=(*self.offsets[: a.dim], moved, *self.offsets[a.dim + 1 :]))

    def element(self, indices: tuple[Expr, ...]) -> View:
        """The single element at ``indices``: a view without axes."""
        v = self
        for axis, i in enumerate(indices):
            v = v.shift(axis, i)
        return replace(v, axes=())


@record
class Event:
    """A ring of ``slots`` barriers with generations; ``slots`` 0: a single event without a subscript.

    ``threads``: the number of triggers that complete a generation, if the program specifies it.
    """

    name: str
    slots: int = 0
    threads: int | None = None
    ready: bool = False


@record
class EventRef:
    """``e``, ``e[slot]``, or ``e.at(order)`` (slot order % slots, generation order / slots)."""

    event: Event
    slot: Expr | None = None
    order: Expr | None = None
