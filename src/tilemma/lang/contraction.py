"""`mma`: fill, load, multiply, store."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

from tilemma.dtypes import DType
from tilemma.ir.builder import element_type
from tilemma.ir.constructs import OPERANDS
from tilemma.ir.expr import const
from tilemma.ir.tile import Commit, MmaWait, ScaleMma
from tilemma.ir.tiles import FragmentValue, Tile, scalar
from tilemma.ir.types import Contract
from tilemma.lang import spans
from tilemma.lang.copies import swizzle_of
from tilemma.lang.registers import Elementwise, Fragment, fragment_of
from tilemma.lang.scalars import constant_operand, constant_operands, integer, number, python_int
from tilemma.lang.tracing import WrongOperand, builder
from tilemma.lang.views import TileValue, tile_of


class _Row:
    """`mma.row` / `mma.col`: the second axis of the contract follows."""

    def __init__(self, first: str) -> None:
        self.row = Multiply(Contract(f"{first}.row"))
        self.col = Multiply(Contract(f"{first}.col"))


class MultiplyHandle:
    """The future of an asynchronous multiply: something to wait for, without data."""

    __slots__ = ("name",)
    article: ClassVar[str] = "the future of an `mma`"

    def __init__(self, name: str) -> None:
        self.name = name


class Multiply:
    """`mma.row.row(mc, ma, mb)` and its variants `.sp` and `.scale`."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._name = f"mma.{contract.value}"

    def __call__(
        self, acc: Any, a: Any, b: Any, *, async_: bool = False, k_tiles: Sequence[int] = ()
    ) -> MultiplyHandle | None:
        """``acc += a x b``: operands are register tiles, or shared tiles named directly.

        With ``async_`` it gives a future: `wait` for it before ``acc`` is read.  ``k_tiles``: the order in which
        the instruction's tiles along K are multiplied, ``(3, 2, 1, 0)``.
        """
        if not isinstance(k_tiles, (tuple, list)):
            raise WrongOperand(
                builder(self._name).span,
                what=f"{self._name}(k_tiles=)",
                got=repr(k_tiles),
                wanted="the numbers of the tiles along K in their order",
                fix_text="write `k_tiles=(3, 2, 1, 0)`",
            )
        order = tuple(python_int(k, f"{self._name}(k_tiles=)") for k in k_tiles)
        if not async_:
            self._emit(acc, a, b, k_order=order)
            return None
        future = builder(self._name).fresh(f"{(spans.bound_names() or ('mma',))[0]}.future")
        self._emit(acc, a, b, future=future, k_order=order)
        return MultiplyHandle(future)

    def sp(self, acc: Any, a: Any, b: Any, meta: Any) -> None:
        """2:4 sparse A: ``a`` holds K/2 columns, ``meta`` says which."""
        self._emit(acc, a, b, meta=fragment_of(meta, f"{self._name}.sp").ref)

    def scale(self, acc: Any, a: Any, b: Any, scale_a: Any, scale_b: Any) -> None:
        """``acc += (a x b) * scale_a[row] * scale_b``."""
        what = f"{self._name}.scale"
        view = builder(what).settle(tile_of(scale_a, what)).view
        self._emit(acc, a, b, scale_a=view, scale_b=scalar(number(scale_b, what)))

    def _emit(self, acc: Any, a: Any, b: Any, **options: Any) -> None:
        target = fragment_of(acc, self._name)
        operands = [self._operand(x) for x in (a, b)]
        builder(self._name).mma(self._contract, target, operands[0], operands[1], **options)

    def _operand(self, x: Any) -> FragmentValue | Tile:
        if isinstance(x, TileValue):
            return tile_of(x, self._name)
        return fragment_of(x, self._name)


class MmaNamespace:
    """`mma`: fill, load, multiply, store."""

    def __init__(self) -> None:
        self.row = _Row("row")
        self.col = _Row("col")

    def fill(
        self,
        first: Any,
        second: Any = None,
        dtype: str | DType | None = None,
        *,
        copies: int | tuple[int, ...] = (),
    ) -> Fragment:
        """``mma.fill(0.0, "f32")``: an accumulator with every element 0; its type is inferred from the operands
        without one.  ``copies=(2, 3)`` gives an array of them, ``mc[i][j]``.

        ``mma.fill(mc, 0.0)`` fills one anew.
        """
        b = builder("mma.fill")
        if isinstance(first, (Fragment, Elementwise)):
            return self._refill(first, second, dtype, copies)
        if second is not None and dtype is not None:
            raise WrongOperand(
                b.span,
                what="mma.fill",
                got="two element types" if isinstance(first, (int, float)) else "too many arguments",
                wanted="`mma.fill(value, dtype)`, or `mma.fill(tile, value)`",
                fix_text="leave one out",
            )
        name = second if second is not None else dtype
        kind = None if name is None else element_type(name, b.span)
        value = number(first, "mma.fill")
        label = (spans.bound_names() or ("acc",))[0]
        sizes = sizes_of(copies, "tiles")
        if not sizes:
            return Fragment(b.fill(label, value, kind))
        made = b.fragment(label, sizes, kind)
        for index in itertools.product(*map(range, sizes)):
            b.fill(FragmentValue(made.name, sizes, tuple(const(i) for i in index)), value, kind)
        return Fragment(made)

    @staticmethod
    def _refill(first: Any, value: Any, dtype: Any, copies: Any) -> Fragment:
        b = builder("mma.fill")
        if dtype is not None or copies != () or value is None:
            raise WrongOperand(
                b.span,
                what="mma.fill",
                got="no value" if value is None else "a type for a tile that has one",
                wanted="`mma.fill(tile, value)`",
                fix_text="write it so, or `mc = mma.fill(value, dtype)` for a new tile",
            )
        target = first if isinstance(first, Fragment) else first.as_fragment()
        fragment = target.fragment
        value_ = number(value, "mma.fill")
        kind = b.known[fragment.name].dtype
        for index in itertools.product(*map(range, fragment.copies[len(fragment.index) :])):
            full = (*fragment.index, *(const(i) for i in index))
            b.fill(FragmentValue(fragment.name, fragment.copies, full), value_, kind)
        return target

    def frag(
        self, dtype: str | DType, *shape: Any, copies: int | tuple[int, ...] = (), init: Any = None
    ) -> Fragment:
        """A register tile declared with its type and extents, filled with ``init``."""
        b = builder("mma.frag")
        kind = element_type(dtype, b.span)
        if len(shape) != 2:
            raise OPERANDS["fragment-extent"].refused(f"{len(shape)} extents", b.span, "rows and columns")
        extents = constant_operands(shape, "fragment-extent")
        sizes = sizes_of(copies, "tiles")
        made = b.fragment((spans.bound_names() or ("acc",))[0], sizes, kind, extents)
        if init is not None:
            value = number(init, "mma.frag")
            for index in itertools.product(*map(range, sizes)):
                b.fill(FragmentValue(made.name, sizes, tuple(const(i) for i in index)), value, kind)
        return Fragment(made)

    def load(self, src: Any, into: Any = None, *, swizzle: int | None = None) -> Fragment:
        """A snapshot of ``src`` as a register tile (``into`` one that is declared): an operand, or an accumulator
        where it is used as one."""
        b = builder("mma.load")
        name: FragmentValue | str = (spans.bound_names() or ("operand",))[0]
        if into is not None:
            name = fragment_of(into, "mma.load(into=)")
        return Fragment(b.load(name, tile_of(src, "mma.load"), swizzle_of(swizzle)))

    def store(
        self, fragment: Any, dst: Any, *, transp: bool = False, rows: Any = None, columns: Any = None
    ) -> None:
        """Write an accumulator, converting; ``transp`` swaps rows and columns; only the first ``rows`` and
        ``columns`` where these are given."""
        what = "mma.store"
        source = fragment_of(fragment, what)
        limits = [None if x is None else scalar(integer(x, f"{what}(rows=, columns=)")) for x in (rows, columns)]
        options = {"transpose": bool(transp), "rows": limits[0], "columns": limits[1]}
        builder(what).store(source, tile_of(dst, what), **options)

    def scale(self, acc: Any, scale_a: Any, scale_b: Any) -> None:
        """What was accumulated since the last `mma.scale` is scaled by ``scale_a[row] * scale_b``."""
        b = builder("mma.scale")
        view = b.settle(tile_of(scale_a, "mma.scale")).view
        b.emit(ScaleMma(fragment_of(acc, "mma.scale").ref, view, scalar(number(scale_b, "mma.scale"))))

    def commit(self) -> None:
        """The multiplies above have read what the next trigger releases."""
        builder("mma.commit").emit(Commit())

    def wait(self, pending: int) -> None:
        """All but the newest ``pending`` batches of multiplies (each ends with `commit`) have finished."""
        builder("mma.wait").emit(MmaWait(constant_operand(pending, "pending")))


def sizes_of(copies: Any, operand: str) -> tuple[int, ...]:
    """``copies=``, an operand of that name in the table, as sizes of an array; empty for none."""
    if isinstance(copies, int) and not isinstance(copies, bool) and copies == 0:
        return ()
    return constant_operands(copies if isinstance(copies, (tuple, list)) else (copies,), operand)


mma = MmaNamespace()
