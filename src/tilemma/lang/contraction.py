"""`mma`: fill, load, multiply, store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from tilemma.arithmetic.convert import constant
from tilemma.arithmetic.sparsity import ORDERS
from tilemma.dtypes import DType, f32, f64
from tilemma.ir.builder import element_type
from tilemma.ir.constructs import OPERANDS
from tilemma.ir.element_work import Known
from tilemma.ir.expr import Const
from tilemma.ir.lane_registers import multiply, option_of_lane_multiply
from tilemma.ir.refusals import WrongValue, multiply_into_buffer
from tilemma.ir.tile import Commit, MmaWait, ScaleMma
from tilemma.ir.tiles import FragmentValue, Tile, scalar
from tilemma.ir.types import Contract
from tilemma.lang import scalars, spans
from tilemma.lang.copies import swizzle_of
from tilemma.lang.lanes import local_tile
from tilemma.lang.namespaces import Namespace
from tilemma.lang.registers import Elementwise, Fragment, fragment_of
from tilemma.lang.tracing import builder
from tilemma.lang.views import Subspan, TileValue, Window, tile_of

_FILLS = "`mma.fill(value, dtype)`, or `mma.fill(tile, value)`"


_TILES = (TileValue, Subspan, Window)


class _Row(Namespace):
    """`mma.row` / `mma.col`: the second axis of the contract follows."""

    _forms = "`mma.row.row(acc, a, b)`, `mma.row.col(acc, a, b)`, or the same after `mma.col`"

    def __init__(self, first: str) -> None:
        self._spelled = f"mma.{first}"
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
        self.sp = SparseMultiply(self)

    def __call__(
        self,
        acc: Any,
        a: Any,
        b: Any,
        *,
        async_: bool = False,
        k_tiles: Sequence[int] = (),
        atom: str | None = None,
    ) -> MultiplyHandle | None:
        """``acc += a x b``: operands are register tiles, or shared tiles named directly.

        With ``async_`` it gives a future: `wait` for it before ``acc`` is read.  ``k_tiles``: the order in which
        the instruction's tiles along K are multiplied, ``(3, 2, 1, 0)``.  ``atom``: the name of the instruction.
        """
        return self._issue(acc, a, b, async_, k_tiles, atom)

    def _issue(
        self, acc: Any, a: Any, b: Any, async_: bool, k_tiles: Sequence[int], atom: str | None, **options: Any
    ) -> MultiplyHandle | None:
        if not isinstance(k_tiles, (tuple, list)):
            raise WrongValue(
                builder(self._name).span,
                what=f"`{self._name}(k_tiles=)`",
                got=repr(k_tiles),
                wanted="the numbers of the tiles along K in their order",
                fix_text="write `k_tiles=(3, 2, 1, 0)`",
            )
        order = tuple(scalars.python_int(k, f"{self._name}(k_tiles=)") for k in k_tiles)
        if not async_:
            self._emit(acc, a, b, k_order=order, wanted=atom, **options)
            return None
        future = builder(self._name).fresh(f"{(spans.bound_names() or ('mma',))[0]}.future")
        self._emit(acc, a, b, future=future, k_order=order, wanted=atom, **options)
        return MultiplyHandle(future)

    def scale(
        self,
        acc: Any,
        a: Any,
        b: Any,
        scale_a: Any,
        scale_b: Any,
        *,
        async_: bool = False,
        k_tiles: Sequence[int] = (),
        atom: str | None = None,
    ) -> MultiplyHandle | None:
        """``acc += (a x b) * scale_a * scale_b``, each a number or a tile: ``scale_a`` of [M, 1] or [1, M],
        ``scale_b`` of [1, N]; with a number for each 128 columns of K, [M, ceil(K/128)] and
        [ceil(K/128), ceil(N/128)].  On one lane's registers the scales are those of blocks that the instruction
        takes: the results of `load_matrix_sfa` and `load_matrix_sfb`."""
        what = f"{self._name}.scale"
        if (held := local_tile(acc)) is not None:
            plain = not async_ and not k_tiles
            self._of_lane(what, held, a, b, atom, plain, scales=(scale_a, scale_b))
            return None
        scales = _scales(what, scale_a, scale_b)
        return self._issue(acc, a, b, async_, k_tiles, atom, **scales)

    def _emit(self, acc: Any, a: Any, b: Any, **options: Any) -> None:
        held = local_tile(acc)
        if held is not None:
            named = options.pop("wanted", None)
            self._of_lane(self._name, held, a, b, named, all(v in (None, ()) for v in options.values()))
            return
        if isinstance(acc, TileValue):
            raise multiply_into_buffer(builder(self._name).span)
        target = fragment_of(acc, self._name)
        (x, left), (y, right) = self._operand(a), self._operand(b)
        builder(self._name).mma(self._contract, target, x, y, negated=left != right, **options)

    def _of_lane(
        self,
        what: str,
        acc: Tile,
        a: Any,
        b: Any,
        named: object,
        plain: bool,
        meta: Any = None,
        scales: tuple[Any, ...] = (),
    ) -> None:
        """The multiply of one lane's registers; ``plain``: without options."""
        found = builder(what)
        if not plain:
            raise option_of_lane_multiply(what, found.span)
        e = None if meta is None else tile_of(meta, what)
        words = tuple(tile_of(x, what) for x in scales)
        multiply(found, self._contract, acc, tile_of(a, what), tile_of(b, what), named, e, words)

    def _operand(self, x: Any) -> tuple[FragmentValue | Tile, bool]:
        """The operand, and whether it is taken with its sign reversed: ``-ma``."""
        negative = isinstance(x, Elementwise) and x.negative_of is not None
        if negative:
            x = x.negative_of
        if isinstance(x, (Fragment, Elementwise)):
            return fragment_of(x, self._name), negative
        return tile_of(x, self._name, "operand"), False


class SparseMultiply:
    """`mma.row.row.sp(mc, ma, mb, me)`, and `.sp.scale`; options as those of `Multiply`."""

    def __init__(self, dense: Multiply) -> None:
        self._dense = dense
        self._name = f"{dense._name}.sp"

    def __call__(
        self,
        acc: Any,
        a: Any,
        b: Any,
        meta: Any,
        *,
        async_: bool = False,
        k_tiles: Sequence[int] = (),
        atom: str | None = None,
    ) -> MultiplyHandle | None:
        """2:4 sparse A: ``a`` holds K/2 columns, ``meta`` their positions."""
        held = local_tile(acc)
        if held is not None:
            self._dense._of_lane(self._name, held, a, b, atom, not async_ and not k_tiles, meta)
            return None
        ref = fragment_of(meta, self._name).ref
        return self._dense._issue(acc, a, b, async_, k_tiles, atom, meta=ref)

    def scale(
        self,
        acc: Any,
        a: Any,
        b: Any,
        meta: Any,
        scale_a: Any,
        scale_b: Any,
        *,
        async_: bool = False,
        k_tiles: Sequence[int] = (),
        atom: str | None = None,
    ) -> MultiplyHandle | None:
        """``acc += (a x b) * scale_a * scale_b`` with a sparse A; the scales are those of `Multiply.scale`."""
        what = f"{self._name}.scale"
        if (held := local_tile(acc)) is not None:
            plain = not async_ and not k_tiles
            self._dense._of_lane(what, held, a, b, atom, plain, meta, (scale_a, scale_b))
            return None
        scales = _scales(what, scale_a, scale_b)
        ref = fragment_of(meta, self._name).ref
        return self._dense._issue(acc, a, b, async_, k_tiles, atom, meta=ref, **scales)


class MmaNamespace(Namespace):
    """`mma`: fill, load, multiply, store."""

    _spelled = "mma"
    _own_names = ("mul", "multiply", "matmul", "gemm", "dot")
    _forms = (
        '`mma.row.row(acc, a, b)`, `mma.row.col(acc, a, b)`, `mma.fill(0.0, "f32")` or another of its functions'
    )

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
        fast: bool = False,
    ) -> Fragment:
        """``mma.fill(0.0, "f32")``: an accumulator with every element 0; its type is inferred from the operands
        without one.  ``copies=(2, 3)`` gives an array of them, ``mc[i][j]``.  ``fast``: sums of 8-bit floats stay
        in the accumulator of the hardware, which keeps 13 bits; otherwise they are added to f32 every 128 of K.

        ``mma.fill(mc, 0.0)`` fills an existing one again.  In place of the number a row, [N] or [1, N], is what
        each row of the accumulator becomes, or a column, [M, 1], each column.
        """
        b = builder("mma.fill")
        if (
            isinstance(first, (Fragment, Elementwise))
            or scalars.python_number(second) is not None
            or isinstance(second, (scalars.Value, *_TILES))
        ):
            if dtype is not None or copies != () or second is None:
                got = "no value" if second is None else "a type for a tile that has one"
                raise WrongValue(b.span, what="`mma.fill`", got=got, wanted=_FILLS, fix_text=f"write {_FILLS}")
            target = fragment_of(first, "mma.fill", whole=True)
            return Fragment(
                b.fill(
                    target,
                    _filling(second, b.known.get(target.name, Known()).dtype),
                    fast=scalars.flag(fast, "fast"),
                )
            )
        if second is not None and dtype is not None:
            raise WrongValue(
                b.span, what="`mma.fill`", got="two element types", wanted=_FILLS, fix_text="leave one out"
            )
        name = second if second is not None else dtype
        kind = None if name is None else element_type(name, b.span)
        value = _filling(first, kind)
        label = (spans.bound_names() or ("acc",))[0]
        made = b.fragment(label, sizes_of(copies, "tiles"), kind)
        return Fragment(b.fill(made, value, kind, scalars.flag(fast, "fast")))

    def frag(
        self, dtype: str | DType, *shape: Any, copies: int | tuple[int, ...] = (), init: Any = None
    ) -> Fragment:
        """A register tile declared with its type and extents, or with one extent a vector, a value for each row of
        a tile; filled with ``init``."""
        b = builder("mma.frag")
        kind = element_type(dtype, b.span)
        if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
            shape = tuple(shape[0])
        if len(shape) not in (1, 2):
            raise OPERANDS["fragment-extent"].refused(f"{len(shape)} extents", b.span, "rows, or rows and columns")
        extents = scalars.constant_operands(shape, "fragment-extent")
        sizes = sizes_of(copies, "tiles")
        made = b.fragment((spans.bound_names() or ("acc",))[0], sizes, kind, extents)
        if init is not None:
            b.fill(made, scalars.operand_as(init, kind, "mma.frag"), kind)
        return Fragment(made)

    def load(
        self,
        src: Any,
        into: Any = None,
        *,
        swizzle: int | None = None,
        dtype: str | DType | None = None,
        order: str | None = None,
    ) -> Fragment:
        """A snapshot of ``src`` as a register tile (``into`` one that is declared): an operand, or an accumulator
        where it is used as one.  ``dtype``: the elements are converted to this type.  ``order``: that of
        prepacked metadata, "prepack", "prepack_v2" or "prepack_v2_fp8"."""
        b = builder("mma.load")
        kind = None if dtype is None else element_type(dtype, b.span)
        name: FragmentValue | str = (spans.bound_names() or ("operand",))[0]
        if isinstance(into, (str, DType)):
            fix = f'write `mma.load(tile, dtype="{into}")`'
            raise scalars.refused("register tile", "mma.load(into=)", scalars.article(into), fix)
        if into is not None:
            name = fragment_of(into, "mma.load(into=)")
        if order is not None and (not isinstance(order, str) or order not in ORDERS):
            raise WrongValue(
                b.span,
                what="`mma.load(order=)`",
                got=repr(order) if isinstance(order, str) else scalars.article(order),
                wanted=f"an order of prepacked metadata: {', '.join(map(repr, ORDERS))}",
                fix_text="name one of these, or leave it out for metadata as `tm.sparse.compress` makes it",
            )
        return Fragment(b.load(name, tile_of(src, "mma.load"), swizzle_of(swizzle), kind, order))

    def store(
        self, fragment: Any, dst: Any, *, transp: bool = False, rows: Any = None, columns: Any = None
    ) -> None:
        """Write an accumulator, converting; ``transp`` swaps rows and columns; only the first ``rows`` and
        ``columns`` where these are given."""
        what = "mma.store"
        if isinstance(fragment, TileValue) and isinstance(dst, Fragment):
            fix = f"write the register tile first: `{what}({dst}, tile)`"
            raise scalars.refused("register tile", what, "its arguments in the reverse order", fix)
        source = fragment_of(fragment, what)
        limits = [
            None if x is None else scalar(scalars.integer(x, f"{what}(rows=, columns=)")) for x in (rows, columns)
        ]
        options = {"transpose": scalars.flag(transp, "transp"), "rows": limits[0], "columns": limits[1]}
        builder(what).store(source, tile_of(dst, what), **options)

    def scale(self, acc: Any, scale_a: Any, scale_b: Any) -> None:
        """Scale the sum accumulated since the fill or the last `mma.scale` by ``scale_a * scale_b``, each a number
        or a tile: ``scale_a`` of [M, 1] or [1, M], ``scale_b`` of [1, N] or [1, ceil(N/128)]."""
        target = fragment_of(acc, "mma.scale").ref
        builder("mma.scale").emit(ScaleMma(target, **_scales("mma.scale", scale_a, scale_b)))

    def reduce_max(self, dst: Any, src: Any) -> None:
        """Element i of the vector ``dst`` becomes the largest element of row i of ``src``."""
        self._reduce("max", dst, src)

    def reduce_min(self, dst: Any, src: Any) -> None:
        """Element i of the vector ``dst`` becomes the smallest element of row i of ``src``."""
        self._reduce("min", dst, src)

    def reduce_sum(self, dst: Any, src: Any) -> None:
        """Element i of the vector ``dst`` becomes the sum of row i of ``src``, of f16 and bf16 computed in f32."""
        self._reduce("sum", dst, src)

    def _reduce(self, name: Literal["max", "min", "sum"], dst: Any, src: Any) -> None:
        what = f"mma.reduce_{name}"
        builder(what).reduce(name, fragment_of(dst, what), fragment_of(src, what))

    def commit(self) -> None:
        """The multiplies above have read the buffers that the next trigger releases."""
        builder("mma.commit").emit(Commit())

    def wait(self, pending: int) -> None:
        """All but the newest ``pending`` batches of multiplies (each ends with `commit`) have finished."""
        builder("mma.wait").emit(MmaWait(scalars.constant_operand(pending, "pending")))


def _filling(x: Any, dtype: DType | None) -> Any:
    """The value of a fill of ``dtype``, if the type is known: a number, or a tile to repeat."""
    if isinstance(x, _TILES):
        return tile_of(x, "mma.fill")
    return scalars.number(x, "mma.fill") if dtype is None else scalars.operand_as(x, dtype, "mma.fill")


def _unrounded(x: Any) -> Any:
    """A constant of f32 that f32 does not hold exactly as one of f64: the type of the sum rounds it."""
    return (
        Const(x.value, f64) if isinstance(x, Const) and x.dtype is f32 and constant(x.value, f32) != x.value else x
    )


def _scales(what: str, *given: Any) -> dict[str, Any]:
    """The fields for the two scales of a multiply."""
    a, b = (tile_of(x, what, "scale") if isinstance(x, _TILES) else scalars.number(x, what) for x in given)
    if not any(isinstance(x, scalars.Value) for x in given):
        a, b = (_unrounded(x) for x in (a, b))
    return builder(what).scales(a, b)


def sizes_of(copies: Any, operand: str) -> tuple[int, ...]:
    """``copies=``, an operand of that name in the table, as sizes of an array; empty for none."""
    if isinstance(copies, int) and not isinstance(copies, bool) and copies == 0:
        return ()
    return scalars.constant_operands(copies if isinstance(copies, (tuple, list)) else (copies,), operand)


mma = MmaNamespace()
