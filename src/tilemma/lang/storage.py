"""Declarations of scalars and buffers."""

from __future__ import annotations

from typing import Any

from tilemma.dtypes import DType
from tilemma.ir.builder import element_type
from tilemma.ir.refusals import NotConstant, WrongValue
from tilemma.ir.tiles import Tile, scalar
from tilemma.ir.types import Space
from tilemma.lang.contraction import sizes_of
from tilemma.lang.control import names_of
from tilemma.lang.scalars import Variable, constant_operand, integer, operand, operand_as
from tilemma.lang.tracing import builder
from tilemma.lang.views import TileValue


def var(value: Any, dtype: str | DType | None = None) -> Variable:
    """A mutable scalar, of the value's type or of ``dtype``, to which the value is converted."""
    b = builder("var")
    kind = None if dtype is None else element_type(dtype, b.span)
    e = operand(value, "var") if kind is None else operand_as(value, kind, "var")
    return Variable(b.declare(names_of(1, "x")[0], e, kind))


def _storage(space: Space, dtype: str | DType, shape: tuple[Any, ...], copies: Any, init: Any) -> TileValue:
    b = builder(space.value)
    kind = element_type(dtype, b.span)
    flat = [x for s in shape for x in (s if isinstance(s, (tuple, list)) else (s,))]
    sizes = [_extent(s) for s in flat]
    if not sizes:
        raise WrongValue(
            b.span,
            what=space.value,
            got="no extents",
            wanted="an extent for each dimension",
            fix_text=f'write `{space.value}("{kind}", h, w)`; a scalar is `var(0)`',
        )
    counts = sizes_of(copies, "copies")
    total = 1
    for c in counts:
        total *= c
    value = None if init is None else operand_as(init, kind, f"{space.value}(init=)")
    name = names_of(1, space.value)[0]
    buffer = b.alloc(name, space, kind, sizes, copies=total if counts else 0, init=value, span=b.span)
    return TileValue(Tile.whole(buffer), counts)


def _extent(x: Any) -> Any:
    try:
        return constant_operand(x, "extent")
    except NotConstant:
        return integer(x, "an extent")  # the builder names the buffer in the error


def shared(dtype: str | DType, *shape: Any, copies: int | tuple[int, ...] = 0, init: Any = None) -> TileValue:
    """A buffer in the block's shared memory (``copies`` of it: `s[i]`); uninitialised without ``init``."""
    return _storage(Space.SHARED, dtype, shape, copies, init)


def local(dtype: str | DType, *shape: Any, copies: int | tuple[int, ...] = 0, init: Any = None) -> TileValue:
    """A buffer private to the threads that declare it."""
    return _storage(Space.LOCAL, dtype, shape, copies, init)


def global_(dtype: str | DType, *shape: Any, init: Any = None) -> TileValue:
    """The array that the kernel returns: ``out = global_("f32", M, N)`` .. ``return out``.

    Without ``return`` it is scratch memory that the kernel's launches share.

    A call allocates it with the library and on the device of the first array argument; ``init`` is written to all
    elements before the kernel's first launch.
    """
    b = builder("global_")
    kind = element_type(dtype, b.span)
    if b.inside_parallel:
        raise WrongValue(
            b.span,
            what="`global_`",
            got="a place inside `parallel`",
            wanted="the top of the kernel: a call allocates the array once, for all instances",
            fix_text="move it out of `parallel`, or use `shared(...)`",
        )
    flat = [x for s in shape for x in (s if isinstance(s, (tuple, list)) else (s,))]
    extents = tuple(scalar(integer(s, "global_")) for s in flat)
    value = None if init is None else operand_as(init, kind, "global_(init=)")
    buffer = b.allocated_array(names_of(1, "result")[0], kind, extents, value, b.span)
    return TileValue(Tile.whole(buffer))
