"""Arrays whose elements say where a kernel reads and writes, or how much: the values that a problem may give them.

Random numbers would lie outside the arrays that they index.  The values that fit follow from the kernel: the
extent of each dimension that an element indexes, of the rows and columns that one limits, and the assertions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilemma.ir import tile as t
from tilemma.ir.effects import written_views
from tilemma.ir.expr import Binary, Const, Dim, Element, Expr, Var, add, sub
from tilemma.ir.expr import walk as parts
from tilemma.ir.types import Space, View
from tilemma.ir.usage import is_size, read, size, written
from tilemma.ir.walk import touched, walk
from tilemma.launch import evaluate
from tilemma.records import record

# An array, and the last coordinate of the element where that is a constant: a column of a table.
Source = tuple[str, int | None]


@record
class Steering:
    """Elements of ``array`` (of its ``column``, if any) are at least 0 and below each of ``limits``."""

    array: str
    column: int | None
    limits: tuple[Expr, ...]

    def limit(self, names: Mapping[str, Any]) -> int:
        """The number that elements are below where sizes and scalars have the values ``names``."""
        return max(1, min(evaluate(size(x), names) for x in self.limits))

    def draw(self, into: NDArray[Any], names: Mapping[str, Any], rng: np.random.Generator) -> None:
        """Values for the elements: distinct ones where there is room for that, as for places that are written."""
        part = into if self.column is None else into[..., self.column]
        room = min(self.limit(names), int(np.iinfo(into.dtype).max) + 1)
        few = part.size <= room
        part[...] = (rng.permutation(room)[: part.size] if few else rng.integers(0, room, part.size)).reshape(
            part.shape
        )


def steering(kernel: t.Kernel) -> tuple[Steering, ...]:
    """The integer arrays, by column, that index or limit what the kernel accesses and that it does not write."""
    arrays = _given(kernel)
    sources = _variables(kernel, arrays)
    limits: dict[Source, dict[Expr, None]] = {}
    for e, limit in _uses(kernel):
        for source, below in _below(e, limit, sources, arrays):
            limits.setdefault(source, {})[below] = None
    return tuple(Steering(name, column, tuple(found)) for (name, column), found in limits.items())


def scattering(kernel: t.Kernel) -> frozenset[str]:
    """The dimensions of arrays whose elements say where the kernel writes into its results."""
    arrays = _given(kernel)
    sources = _variables(kernel, arrays)
    names = {
        source[0]
        for op in walk(kernel.body)
        for view in written_views(op)
        if view.base.space is Space.GLOBAL
        for offset in view.offsets
        for source in _read(offset, sources, arrays)
    }
    shapes = [p.buffer.shape for p in kernel.arrays if p.buffer.name in names]
    return frozenset(x.name for shape in shapes for e in shape for x in parts(e) if isinstance(x, Dim))


# Two different positions, the lower one first, in four bits (PTX ISA, "Sparse matrix storage"): these two are
# valid where the metadata chooses single elements and where it chooses pairs.
_POSITIONS = (0x4, 0xE)


def metadata(kernel: t.Kernel) -> frozenset[str]:
    """The arrays that are copied or loaded to be the metadata of sparse products."""
    wanted = {op.meta.name for op in walk(kernel.body) if isinstance(op, t.Mma) and op.meta is not None}
    while True:
        before = len(wanted)
        for op in walk(kernel.body):
            if isinstance(op, t.Load) and op.fragment.name in wanted:
                wanted.add(op.src.base.name)
            if isinstance(op, t.Copy) and isinstance(op.dst, View) and op.dst.base.name in wanted:
                wanted |= {v.base.name for v in [op.src] if isinstance(v, View)}
        if len(wanted) == before:
            return _given(kernel) & wanted


def draw_metadata(into: NDArray[Any], rng: np.random.Generator) -> None:
    """Metadata that the ISA defines, in every element of ``into``."""
    raw = into.view(np.uint8)
    low, high = (rng.choice(_POSITIONS, raw.shape) for _ in range(2))
    raw[...] = low | high << 4


def _given(kernel: t.Kernel) -> frozenset[str]:
    """Names of the arrays of integers that are read and not written."""
    integers = {p.buffer.name for p in kernel.arrays if p.buffer.dtype.is_integer and p.buffer.dtype.bits >= 8}
    return frozenset(integers & (read(kernel) - written(kernel)))


def _variables(kernel: t.Kernel, arrays: frozenset[str]) -> dict[str, frozenset[Source]]:
    """The elements that the value of each variable depends on."""
    found: dict[str, frozenset[Source]] = {}
    while True:
        before = dict(found)
        for op in walk(kernel.body):
            if isinstance(op, (t.Declare, t.Assign)):
                known = found.get(op.var.name, frozenset())
                found[op.var.name] = known | _read(op.value, found, arrays)
        if found == before:
            return found


def _read(e: Expr, sources: Mapping[str, frozenset[Source]], arrays: frozenset[str]) -> frozenset[Source]:
    """The elements that the value of ``e`` depends on."""
    found: set[Source] = set()
    for x in parts(e):
        if isinstance(x, Var):
            found |= sources.get(x.name, frozenset())
        elif isinstance(x, Element) and x.view.base.name in arrays:
            last = x.view.offsets[-1]
            known = last.value if isinstance(last, Const) and isinstance(last.value, int) else None
            found.add((x.view.base.name, known))
    return frozenset(found)


def _uses(kernel: t.Kernel) -> Iterator[tuple[Expr, Expr]]:
    """Expressions that index or limit something, or of which an assertion says so, and what they are below."""
    for op in walk(kernel.body):
        for view in touched(op):
            yield from zip(view.offsets, view.base_shape, strict=False)
        if isinstance(op, t.Store):
            yield from _of_rows(op.dst, op.rows, op.columns)
        if isinstance(op, t.Assert):
            for x in parts(op.cond):
                if isinstance(x, Binary) and x.op in ("lt", "le", "gt", "ge"):
                    small, large = (x.a, x.b) if x.op in ("lt", "le") else (x.b, x.a)
                    yield small, large if x.op in ("lt", "gt") else add(large, 1)


def _of_rows(dst: View, rows: Expr | None, columns: Expr | None) -> Iterator[tuple[Expr, Expr]]:
    for limit, axis in zip((rows, columns), dst.axes, strict=False):
        if limit is not None:
            yield limit, dst.base_shape[axis.dim]


def _below(
    e: Expr, limit: Expr, sources: Mapping[str, frozenset[Source]], arrays: frozenset[str]
) -> Iterator[tuple[Source, Expr]]:
    """The elements that ``e`` depends on, with what they are below if ``e`` is below ``limit``.

    A constant that ``e`` adds is subtracted; other terms are left out, as they belong to tiles that may reach over
    the edge.
    """
    if not is_size(limit):
        return
    if isinstance(e, Binary) and e.op == "add" and isinstance(e.b, Const):
        yield from _below(e.a, sub(limit, e.b), sources, arrays)
    else:
        yield from ((source, limit) for source in _read(e, sources, arrays))
