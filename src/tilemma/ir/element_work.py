"""The part of the builder for work on the elements of register tiles and vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Literal

from tilemma import dtypes
from tilemma.dtypes import DType
from tilemma.errors import Span, is_text_source
from tilemma.ir import tile as t
from tilemma.ir.expr import Cast, Element, Expr, FragmentElement, Index, Var, binary, const, value_of
from tilemma.ir.refusals import TileShapeUnknown, WrongValue
from tilemma.ir.structure import ValueNumber
from tilemma.ir.tiles import FragmentValue, shape_text
from tilemma.ir.types import View
from tilemma.ir.walk import rewrite, substituted
from tilemma.records import record


@record
class Known:
    """The state of a register tile at this point of the program."""

    shape: tuple[int, ...] | None = None
    dtype: DType | None = None


# Inside `apply`: the indices of the visited element, and the name of the tile or vector.
Visited = tuple[tuple[Index, ...], str]


@record(frozen=False, slots=False)
class ElementWork(ValueNumber):
    """`apply`, reductions of rows, and loads and stores of vectors.  ``known``: by the fragment's name;
    ``fills``: those from a row or column, each with the fragment, its axis and the extent of the source."""

    known: dict[str, Known] = field(default_factory=dict)
    declared_types: dict[str, DType] = field(default_factory=dict)
    fills: list[tuple[str, int, View, Span | None]] = field(default_factory=list)

    @contextmanager
    def apply(
        self, fragment: FragmentValue, names: Sequence[str], span: Span | None = None
    ) -> Iterator[tuple[Index, ...]]:
        """Element work on a register tile: the body once for each element, by its owner.

        The extents of an accumulator that a later multiply determines are filled in when the kernel is complete.
        """
        span = span or self.span
        shape = self.known.get(fragment.name, Known()).shape
        later = [Var(f"{fragment.name}.{axis}", dtypes.s32) for axis in ("rows", "columns")]
        extents = later[: len(names)] if shape is None else [const(n) for n in shape]
        indices = tuple(Index(self.fresh(n), e) for n, e in zip(names, extents, strict=True))
        loops, self._loops = self._loops, 0
        try:
            with self._body() as ops:
                yield indices
        finally:
            self._loops = loops
        self.emit(t.Apply(fragment.ref, indices, tuple(ops), span=span))

    def is_visited(self, fragment: FragmentValue, indices: Sequence[Expr], visiting: Visited) -> bool:
        """Whether ``indices`` name the element that an `apply` visits, or a vector's element of its row."""
        own = self.known.get(fragment.name, Known()).shape
        over = self.known.get(visiting[1], Known()).shape
        rank = len(own) if own is not None else len(visiting[0])
        fits = own is None or over is None or own in (over, over[:1])
        return fits and tuple(indices) == visiting[0][:rank]

    def reduce(self, name: Literal["max", "min", "sum"], dst: FragmentValue, src: FragmentValue) -> None:
        """Row i of ``src`` to element i of the vector ``dst``; WrongValue for other ranks and extents."""
        have, want = (self.known.get(x.name, Known()).shape for x in (src, dst))
        if want is None or len(want) != 1 or (have is not None and have[0] != want[0]) or len(have or (0, 0)) != 2:
            rows = "rows" if have is None else have[0]
            raise WrongValue(
                self.span,
                what=f"a reduction of `{src.name}` into `{dst.name}`",
                got=f"{'a tile' if have is None else list(have)} and {'a tile' if want is None else list(want)}",
                wanted=f"a tile [rows, columns], and a vector [{rows}] for the results",
                fix_text=f"declare the vector with one extent: `frag f32[{rows}] {dst.name};`"
                if is_text_source(self.span)
                else f'declare the vector with one extent: `mma.frag("f32", {rows})`',
            )
        self.emit(t.Reduce(name, dst.ref, src.ref))

    def finish(self) -> t.Kernel:
        """The kernel read so far, the extents of all element work known; TileShapeUnknown."""
        kernel = super().finish()
        self._check_repeated()

        def sized(op: t.Op) -> t.Op:
            if not isinstance(op, t.Apply) or not isinstance(op.indices[0].extent, Var):
                return op
            shape = self.known.get(op.fragment.name, Known()).shape
            if shape is None:
                raise TileShapeUnknown(op.span, name=op.fragment.name, missing="shape")
            indices = tuple(Index(i.name, const(n)) for i, n in zip(op.indices, shape, strict=True))
            table: dict[str, Expr] = {i.name: i for i in indices}
            return replace(op, indices=indices, body=substituted(op.body, table))

        return replace(kernel, body=rewrite(kernel.body, sized))

    def fill_from(self, fragment: FragmentValue, src: View) -> None:
        """Every row becomes ``src``, a row [N] or [1, N]; or every column, [M, 1].  Raises WrongValue."""
        dtype = self.known.get(fragment.name, Known()).dtype
        ones = [value_of(e) == 1 for e in src.shape]
        if len(ones) not in (1, 2) or (len(ones) == 2 and not any(ones)):
            raise WrongValue(
                self.span,
                what="`mma.fill`",
                got=f"`{src.base.name}`, a tile of {shape_text(src.shape)}",
                wanted="a number, a row [N] or [1, N], or a column [M, 1]; `mma.load` takes a whole tile",
                fix_text="cut it: `x.subspan(1, n).at(i, 0)`",
            )
        column = len(ones) == 2 and ones[1] and not ones[0]
        self.fills.append((fragment.name, 0 if column else 1, src, self.span))
        with self.apply(fragment, ("i", "j")) as (i, j):
            at = (j,) if len(ones) == 1 else (i, const(0)) if column else (const(0), j)
            self.emit(t.SetFragmentElement(fragment.ref, _as(Element(src.element(at)), dtype)))

    def _check_repeated(self) -> None:
        """WrongValue for a fill from a row or column of another extent than the accumulator's."""
        for name, axis, src, span in self.fills:
            shape = self.known.get(name, Known()).shape
            have = value_of(src.shape[-1] if axis else src.shape[0])
            if shape is not None and have is not None and have != shape[axis]:
                kind = "row" if axis else "column"
                raise WrongValue(
                    span,
                    what="`mma.fill`",
                    got=f"`{src.base.name}`, a {kind} of {have}",
                    wanted=f"a {kind} of {shape[axis]}, the extent of `{name}`",
                    fix_text=f"cut it: `x.subspan({shape[axis]}).at(i)`",
                )

    # ---- vectors -----------------------------------------------------------------------------------------

    def is_vector(self, fragment: FragmentValue) -> bool:
        return len(self.known.get(fragment.name, Known()).shape or ()) == 1

    def load_vector(self, fragment: FragmentValue, src: View) -> None:
        """Every element of the vector from memory."""
        view = self._of_rows(fragment, src, "mma.load")
        with self.apply(fragment, ("i",)) as (i,):
            value = _as(Element(view.element((i,))), self.known[fragment.name].dtype)
            self.emit(t.SetFragmentElement(fragment.ref, value))

    def store_vector(
        self,
        fragment: FragmentValue,
        dst: View,
        transpose: bool = False,
        rows: Expr | None = None,
        columns: Expr | None = None,
    ) -> None:
        """Every element of the vector to memory, or the first ``rows``, each by one thread that holds it."""
        view = self._of_rows(fragment, dst, "mma.store")
        if transpose or columns is not None:
            raise WrongValue(
                self.span,
                what="`mma.store`",
                got=f"columns of `{fragment.name}`, a vector",
                wanted="a vector's rows",
                fix_text="leave them out",
            )
        dtype = self.known[fragment.name].dtype
        assert dtype is not None
        with self.apply(fragment, ("i",)) as (i,):
            value = _as(FragmentElement(fragment.name, (i,), dtype, fragment.index), view.dtype)
            op: t.Op = t.SetElement(view.element((i,)), value, span=self.span)
            limits = [e for e in (rows, view.shape[0]) if e is not None and value_of(e) is None]
            limits += [e for e in (rows,) if e is not None and value_of(e) is not None]
            for limit in limits:
                op = t.If(binary("lt", i, limit), (op,), span=self.span)
            self.emit(op)

    def _of_rows(self, fragment: FragmentValue, view: View, what: str) -> View:
        """``view`` with one axis, of the vector's extent; WrongValue."""
        shape, dtype = self.known[fragment.name].shape, self.known[fragment.name].dtype
        assert shape is not None
        if dtype is None:
            raise TileShapeUnknown(self.span, name=fragment.name, missing="element type")
        axes = tuple(a for a in view.axes if value_of(a.extent) != 1) or view.axes[-1:]
        if len(axes) != 1 or value_of(axes[0].extent) not in (None, shape[0]):
            raise WrongValue(
                self.span,
                what=f"`{what}` of `{fragment.name}`",
                got=f"a tile of {shape_text(view.shape)}",
                wanted=f"a tile of [{shape[0]}], the extent of the vector",
                fix_text=f"cut it: `x.subspan({shape[0]}).at(i)`",
            )
        return replace(view, axes=axes)


def _as(e: Expr, dtype: DType | None) -> Expr:
    return e if dtype is None or e.type == dtype else Cast(e, dtype)
