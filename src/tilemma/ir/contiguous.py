"""Parts of an array whose elements follow one another in memory, read in another shape (``span_as``).

A part is contiguous if, of the axes longer than 1, all but the first are whole dimensions of the base and the
first has step 1.  Its elements start at the row-major position of its origin.  Read as ``[s0, s1, .., sk]`` it is
rows of ``s1 * .. * sk`` elements of the base, if its origin is a multiple of such a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tilemma.ir.expr import Binary, Expr, add, const, floordiv, mul, value_of
from tilemma.ir.types import Axis, View
from tilemma.records import record


@record
class Part:
    """``view``: the part in its new shape.  ``inside``: conditions (offset, extent, dimension): the part lies
    within that dimension, so that its elements do follow one another."""

    view: View
    inside: tuple[tuple[Expr, Expr, Expr], ...]


def reshaped(view: View, shape: Sequence[Expr]) -> Part | None:
    """``view`` read as ``shape``, which has as many elements; None if it is not rows of ``shape``."""
    dims = view.base_shape
    axes = {a.dim: a for a in view.axes}
    long = [a for a in view.axes if value_of(a.extent) != 1]
    if list(axes) != sorted(axes) or any(value_of(a.step) != 1 for a in long):
        return None
    for a in long[1:]:
        if a.extent != dims[a.dim] or value_of(view.offsets[a.dim]) != 0:
            return None
    first = long[0].dim if long else len(dims) - 1
    if {a.dim for a in long[1:]} != set(range(first + 1, len(dims))) - _units(dims):
        return None
    row = _product(shape[1:])
    start: Expr = const(0)
    for d, offset in enumerate(view.offsets):
        rows = _divided(offset, dims[d + 1 :], shape[1:])
        if rows is None:
            return None
        start = add(start, rows)
    count = _divided(const(1), dims, shape[1:])
    if count is None and (value_of(_product(dims)) is not None and value_of(row) is not None):
        return None
    count = count if count is not None else floordiv(_product(dims), row)
    new = (count, *shape[1:])
    made = View(
        view.base,
        (start, *(const(0) for _ in shape[1:])),
        tuple(Axis(d, e) for d, e in enumerate(shape)),
        view.slot,
        new,
    )
    outermost = next((d for d, e in enumerate(dims) if value_of(e) != 1), 0)
    inside = tuple(
        (view.offsets[d], axes[d].extent if d in axes else const(1), dims[d])
        for d in range(first + 1)
        if d != outermost and not (d in axes and axes[d].extent == dims[d] and value_of(view.offsets[d]) == 0)
    )
    return Part(made, inside)


def _units(dims: Sequence[Expr]) -> set[int]:
    return {d for d, e in enumerate(dims) if value_of(e) == 1}


def _product(shape: Sequence[Expr]) -> Expr:
    total: Expr = const(1)
    for e in shape:
        total = mul(total, e)
    return total


def _factors(e: Expr) -> tuple[int, Counter[Expr]]:
    """A constant and other factors whose product is ``e``."""
    known = value_of(e)
    if known is not None:
        return known, Counter()
    if isinstance(e, Binary) and e.op == "mul":
        (a, x), (b, y) = _factors(e.a), _factors(e.b)
        return a * b, x + y
    return 1, Counter([e])


def _divided(e: Expr, by: Sequence[Expr], row: Sequence[Expr]) -> Expr | None:
    """``e`` times the product of ``by``, divided by the product of ``row``, where that is whole for any values."""
    if isinstance(e, Binary) and e.op in ("add", "sub"):
        a, b = _divided(e.a, by, row), _divided(e.b, by, row)
        return None if a is None or b is None else replace(e, a=a, b=b)
    number, others = _factors(e)
    for x in by:
        n, rest = _factors(x)
        number, others = number * n, others + rest
    n, rest = _factors(_product(row))
    if number == 0:
        return const(0)
    if n == 0 or number % n or rest - others:
        return None
    return mul(_product(tuple((others - rest).elements())), number // n)
