"""Parts of an array read in another shape: the same elements in the same order, for any values of the sizes."""

from __future__ import annotations

from itertools import product
from math import prod

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.sampling import examples
from tilemma import dtypes
from tilemma.ir.contiguous import reshaped
from tilemma.ir.expr import Binary, Const, Dim, Expr, Index, const, mul, substitute, value_of
from tilemma.ir.types import Axis, Buffer, Space, View

ROW, COLUMN, N = Index("i", const(9)), Index("j", const(9)), Dim("N")


def number(e: Expr, names: dict[str, int]) -> int:
    found = value_of(substitute(e, {n: Const(v) for n, v in names.items()}))
    assert found is not None
    return int(found)


def places(view: View, names: dict[str, int]) -> list[int]:
    """The places in memory of the elements of ``view``, in order."""
    sizes = [number(e, names) for e in view.base_shape]
    start = [number(e, names) for e in view.offsets]
    found = []
    for at in product(*(range(number(a.extent, names)) for a in view.axes)):
        where = list(start)
        for a, n in zip(view.axes, at, strict=True):
            where[a.dim] += n * number(a.step, names)
        place = 0
        for n, size in zip(where, sizes, strict=True):
            place = place * size + n
        found.append(place)
    return found


def offsets() -> st.SearchStrategy[Expr]:
    leaves = st.sampled_from([ROW, COLUMN, N, *(Const(n) for n in (0, 1, 2, 3, 4, 6))])
    return st.recursive(
        leaves, lambda x: st.builds(Binary, st.sampled_from(["add", "sub", "mul"]), x, x), max_leaves=4
    )


DIMS = st.sampled_from([Const(1), Const(2), Const(4), Const(6), N, mul(N, const(2))])
SUM, DIFFERENCE = (Binary(op, mul(ROW, const(4)), const(8)) for op in ("add", "sub"))


@settings(deadline=None, max_examples=examples(400))
@given(
    st.lists(DIMS, min_size=1, max_size=3), offsets(), st.integers(0, 2), st.lists(DIMS, min_size=1, max_size=3)
)
@example([Const(64)], SUM, 0, [Const(2), Const(4)])
@example([Const(64)], DIFFERENCE, 0, [Const(2), Const(4)])
@example([Const(64)], Binary("add", mul(ROW, const(4)), const(3)), 0, [Const(2), Const(4)])
@example([Const(64)], Binary("add", COLUMN, mul(ROW, const(4))), 0, [Const(2), Const(4)])
def test_the_same_elements_in_the_same_order(
    dims: list[Expr], offset: Expr, whole: int, shape: list[Expr]
) -> None:
    """A part of the first dimension, and of the others all; ``shape`` has as many elements."""
    base = Buffer("a", dtypes.f32, tuple(dims), Space.GLOBAL)
    for names in ({"i": 3, "j": 5, "N": 3}, {"i": 1, "j": 2, "N": 4}, {"i": 0, "j": 7, "N": 1}):
        inner = 1
        for e in dims[1:]:
            inner *= number(e, names)
        count = 1
        for e in shape:
            count *= number(e, names)
        if count % inner:
            continue
        axes = (Axis(0, const(count // inner)), *(Axis(d, e) for d, e in enumerate(dims[1:], 1)))
        view = View(base, (offset, *(const(0) for _ in dims[1:])), axes)
        found = reshaped(view, tuple(shape))
        if found is not None:
            assert places(found.view, names) == places(view, names)
            assert prod(number(e, names) for e in found.view.base_shape) <= prod(number(e, names) for e in dims)


def test_sums_of_whole_rows_are_rows() -> None:
    base = Buffer("a", dtypes.f32, (const(64),), Space.GLOBAL)
    rows = (const(2), const(4))

    def start(offset: Expr) -> Expr | None:
        found = reshaped(View(base, (offset,), (Axis(0, const(8)),)), rows)
        return None if found is None else found.view.offsets[0]

    for offset, wanted in ((SUM, 5), (DIFFERENCE, 1), (mul(ROW, const(4)), 3), (const(12), 3), (const(0), 0)):
        row = start(offset)
        assert row is not None and number(row, {"i": 3}) == wanted
    for offset in (
        ROW,
        const(6),
        Binary("add", mul(ROW, const(4)), COLUMN),
        Binary("sub", COLUMN, mul(ROW, const(4))),
    ):
        assert start(offset) is None
