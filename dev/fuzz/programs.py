"""Random programs as a small syntax tree; `dev.fuzz.text` prints it as a Python and as a Croqtile kernel.

What a program computes `dev.fuzz.values` says, in NumPy alone.  The operands of a `Bin` have one type, so that no
rule of promotion matters, except under `Mixed`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

FLOATS = ("f32", "f16", "bf16", "f64")
FP8 = ("f8_e4m3", "f8_e5m2")


@dataclass(frozen=True, slots=True)
class Expr:
    """``t``: the element type of the value."""

    t: str


@dataclass(frozen=True, slots=True)
class Lit(Expr):
    """A number; it stands beside a value of its type."""

    value: int | float


@dataclass(frozen=True, slots=True)
class Name(Expr):
    """An index, a dimension, a scalar parameter or a variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Elem(Expr):
    buffer: str
    at: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Bin(Expr):
    """``op``: + - * / // % quot rem & | ^ << >> min max cdiv == != < <= > >= and or.

    / is for floats, // and % round down; quot and rem round towards zero, and only Croqtile has them.
    """

    op: str
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class Mixed(Expr):
    """``op`` on operands of any two types, which meet in the type that the language's rules give."""

    op: str
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class Un(Expr):
    """``op``: neg, not (bits), lnot, abs, floor, ceil, round, sqrt."""

    op: str
    a: Expr


@dataclass(frozen=True, slots=True)
class Sel(Expr):
    c: Expr
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class Conv(Expr):
    """As stores convert: to nearest even, narrow integers saturate."""

    a: Expr


@dataclass(frozen=True, slots=True)
class Cut:
    """One step of a `Chain`.

    ``kind``: subspan, modspan, view, chunkat, chunk, span_as or sqz.  ``extents``: of the tile, the counts of
    chunk, the shape of span_as.  ``at``: the tile's number, or the origin of view; None keeps a dimension of
    chunkat.  ``step``: what one number of subspan is, ``strides``: between neighbours in subspan and view.
    """

    kind: str
    extents: tuple[int, ...] = ()
    at: tuple[Expr | None, ...] = ()
    step: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Chain:
    """A view of a view: ``array`` is an array, a buffer, or a name that `Let` gives."""

    array: str
    cuts: tuple[Cut, ...]


@dataclass(frozen=True, slots=True)
class ViewElem(Expr):
    view: Chain
    at: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Old(Expr):
    """An atomic operation and the element's value before it; stands alone on the right of `Var` or `Store`.

    ``op``: those of `Atomic`, sub, exch and cas, which compares with ``expected``.
    """

    op: str
    place: Elem
    value: Expr
    expected: Expr | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A tile of ``array``: ``kind`` is subspan, modspan, chunkat or view, ``at`` the tile's number or origin.

    ``extents`` None: the other side's, for chunkat.  ``step``: what one tile number is, where not the extents.
    """

    array: str
    kind: str
    extents: tuple[int, ...] | None
    at: tuple[Expr, ...]
    step: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Stmt:
    pass


@dataclass(frozen=True, slots=True)
class Var(Stmt):
    name: str
    t: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Set(Stmt):
    name: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Store(Stmt):
    buffer: str
    at: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class Let(Stmt):
    """A name for a view."""

    name: str
    view: Chain


@dataclass(frozen=True, slots=True)
class ViewStore(Stmt):
    view: Chain
    at: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class Atomic(Stmt):
    """``op``: add, min, max, and, or, xor."""

    op: str
    buffer: str
    at: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class Alloc(Stmt):
    space: str
    name: str
    t: str
    shape: tuple[int, ...]
    init: int | float | None = None


@dataclass(frozen=True, slots=True)
class For(Stmt):
    """``name`` from ``start`` to below ``extent`` less ``short``; ``unroll``: 0 wholly, n times."""

    name: str
    extent: Expr
    body: tuple[Stmt, ...]
    start: int | Expr = 0
    step: int = 1
    short: int = 0
    unroll: int | None = None

    @property
    def ranged(self) -> bool:
        return (self.start, self.step, self.short) != (0, 1, 0)


@dataclass(frozen=True, slots=True)
class If(Stmt):
    cond: Expr
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()


@dataclass(frozen=True, slots=True)
class InThreads(Stmt):
    cond: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class While(Stmt):
    cond: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Jump(Stmt):
    word: str


@dataclass(frozen=True, slots=True)
class Parallel(Stmt):
    names: tuple[str, ...]
    extents: tuple[Expr, ...]
    level: str
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Copy(Stmt):
    src: View | Chain | str
    dst: View | Chain | str
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Move(Stmt):
    """A copy of any rank: dimension n of the destination is dimension ``perm[n]`` of the source.

    ``pad``: counts before, after and between the elements of each dimension, filled with ``fill``.
    """

    src: Chain | str
    dst: Chain | str
    perm: tuple[int, ...] = ()
    pad: tuple[tuple[int, int, int], ...] = ()
    fill: int = 0


@dataclass(frozen=True, slots=True)
class Start(Stmt):
    """An asynchronous copy of ``src`` to shared memory: ``name`` is its future, ``name.data`` the buffer."""

    name: str
    src: View | Chain


@dataclass(frozen=True, slots=True)
class Wait(Stmt):
    futures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Swap(Stmt):
    futures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fill(Stmt):
    tile: str
    t: str
    value: float


@dataclass(frozen=True, slots=True)
class Load(Stmt):
    tile: str
    src: View | str


@dataclass(frozen=True, slots=True)
class Mma(Stmt):
    contract: str
    acc: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Apply(Stmt):
    """Each element of ``tile``, at (i, j), becomes ``value``; `Elem(tile, (i, j))` is its old value."""

    tile: str
    names: tuple[str, str]
    value: Expr


@dataclass(frozen=True, slots=True)
class Frag(Stmt):
    """A register tile that no multiply uses, loaded from ``src``."""

    tile: str
    t: str
    shape: tuple[int, int]
    src: Chain | str


@dataclass(frozen=True, slots=True)
class ApplyBody(Stmt):
    """``body`` once for each element (i, j) of ``tile``."""

    tile: str
    names: tuple[str, str]
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Keep(Stmt):
    """`mma.store`."""

    tile: str
    dst: View | Chain | str
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Array:
    """``dims``: names of run-time dimensions, or numbers."""

    name: str
    t: str
    dims: tuple[str | int, ...]


@dataclass(frozen=True)
class Program:
    """``sizes``: the run-time dimensions of the call; ``scalars``: (name, type, value).

    ``edges``: inputs near the ends of their types, infinities and NaN among them.  ``hosted``: how an array
    lies in memory, by its name (`dev.fuzz.arguments`).
    """

    arrays: tuple[Array, ...]
    scalars: tuple[tuple[str, str, int | float], ...]
    body: tuple[Stmt, ...]
    sizes: dict[str, int] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    seed: int = 0
    edges: bool = False
    hosted: tuple[tuple[str, str], ...] = ()
    languages: tuple[str, ...] = ("python", "croqtile")
    archs: tuple[str, ...] = ("sm_80", "sm_90a")

    def shape(self, a: Array) -> tuple[int, ...]:
        return tuple(self.sizes[d] if isinstance(d, str) else d for d in a.dims)


def parts(x: Any) -> Iterator[Any]:
    """``x`` and everything inside it."""
    yield x
    if isinstance(x, (Expr, Stmt, View, Chain, Cut)):
        for f in fields(x):
            yield from parts(getattr(x, f.name))
    elif isinstance(x, tuple):
        for y in x:
            yield from parts(y)
