"""Ranges of the numbers that kernels compute for tiles and steps, against execution, right and with mistakes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from test_ranges import value

from tests.sampling import examples
from tilemma import dtypes
from tilemma.ir.expr import Binary, Const, Dim, Expr, Index, Select, Var
from tilemma.ir.ranges import interval, loop_index
from tilemma.ir.tile import Assign, Body, Break, Declare, For, If, Op
from tilemma.ir.variables import variable_ranges
from tilemma.ir.walk import walk
from tilemma.launch import MAX_EXTENT


def capped(name: str, most: int) -> Expr:
    """A dimension that the analysis knows to be at most ``most``."""
    return Binary("min", Dim(name), Const(most))


@st.composite
def raster(draw: st.DrawFn, wrong: bool) -> tuple[Index, dict[str, Expr]]:
    """Rows and columns of tiles in groups of rows, as kernels write it; with ``wrong``, with mistakes."""

    def either(right, *others):
        return draw(st.sampled_from((right, right, right, right, *others))) if wrong else right

    rows, columns = capped("M", draw(st.integers(1, 7))), capped("N", draw(st.integers(1, 5)))
    size = draw(st.integers(1, 4))
    i = Index("t", draw(st.sampled_from((Binary("mul", rows, columns), Binary("mul", columns, rows)))))

    def number(n: int) -> Expr:
        return Const(either(n, n + 1, max(1, n - 1)))

    group = draw(st.sampled_from(("floordiv", "div")))
    rest = draw(st.sampled_from(("floormod", "mod")))
    whole = Binary("mul", number(size), either(columns, rows))
    band, within = Binary(group, i, whole), Binary(rest, i, whole)
    first = Binary("mul", band, number(size))
    after = [Binary("add", first, number(size)), Binary("mul", Binary("add", band, number(1)), number(size))]
    beyond = Binary(either("gt", "ge"), draw(st.sampled_from(after)), either(rows, columns))
    if draw(st.booleans()):
        beyond = Binary({"gt": "lt", "ge": "le"}[beyond.op], beyond.b, beyond.a)
    here = Select(beyond, Binary(rest, either(rows, columns), number(size)), number(size))
    return i, {
        "band": band, "first": first, "rows": here, "row": Binary("add", first, Binary(rest, within, here)),
        "column": Binary(group, within, here),
    }  # fmt: skip


@settings(deadline=None, max_examples=examples(150))
@given(st.booleans().flatmap(raster), st.integers(0, 8), st.integers(0, 8))
def test_groups_of_rows(drawn: tuple[Index, dict[str, Expr]], m: int, n: int) -> None:
    i, parts = drawn
    for t in range(value(i.extent, {"M": m, "N": n})):
        for name, e in parts.items():
            low, high = interval(e)
            assert low <= value(e, {"M": m, "N": n, "t": t}) <= high, (name, e)


@settings(deadline=None, max_examples=examples(40))
@given(raster(False))
def test_the_bounds_of_groups_are_tight(drawn: tuple[Index, dict[str, Expr]]) -> None:
    """The rows of a group are not 0, and neither its first row nor its columns leave the tiles."""
    i, parts = drawn
    most = interval(i.extent)[1]
    first, columns, rows = (interval(parts[n]) for n in ("first", "column", "rows"))
    assert rows[0] == 1 and first[1] < most and (first[1] + 1) * (columns[1] + 1) <= most


def test_groups_of_tiles_whose_number_wraps() -> None:
    """The number of tiles may wrap; the indices that there are lie in the exact number too."""
    rows, columns = Binary("cdiv", Dim("M"), Const(128)), Binary("cdiv", Dim("N"), Const(256))
    i = Index("t", Binary("mul", rows, columns))
    first = Binary("mul", Binary("floordiv", i, Binary("mul", Const(16), columns)), Const(16))
    for m, n in ((MAX_EXTENT, MAX_EXTENT), (MAX_EXTENT, 256 * 130), (128 * 70000, 256 * 70000)):
        names = {"M": m, "N": n}
        for t in (0, 1, 10**6, value(i.extent, names) - 1):
            if 0 <= t < value(i.extent, names):
                assert interval(first)[0] <= value(first, {**names, "t": t}) <= interval(first)[1] <= 2**24


@settings(deadline=None, max_examples=examples(100))
@given(st.integers(0, 9), st.integers(0, 9), st.booleans(), st.booleans())
def test_an_index_less_the_start_of_its_loop(s: int, n: int, another: bool, swapped: bool) -> None:
    start, count = capped("S", 6), capped("N", 7)
    stop = Binary("add", count, start) if swapped else Binary("add", start, count)
    e = Binary("sub", loop_index("k", stop, start, stop), Dim("S") if another else start)
    assert another or interval(e) == (0, 6)
    names = {"S": s, "N": n}
    for at in range(value(start, names), value(stop, names)):
        low, high = interval(e)
        assert low <= value(e, {**names, "k": at}) <= high


def test_an_index_whose_loop_may_wrap_tells_nothing_of_its_start() -> None:
    start, stop = Dim("S"), Binary("add", Dim("S"), Dim("N"))
    free, checked = (Binary("sub", loop_index("k", stop, start, stop, c), start) for c in (False, True))
    assert interval(free)[0] < 0
    assert interval(checked) == (0, MAX_EXTENT - 1)


# ---- variables that loops count --------------------------------------------------------------------------

V, BACK = Var("v", dtypes.s32), Binary("floormod", Index("t", Const(9)), Const(2))
STEPS = capped("N", 6)


@st.composite
def counting(draw: st.DrawFn) -> Body:
    """A variable beside loops that change it, once in each iteration or in other ways."""

    def either(right, *others):
        return draw(st.sampled_from((right, right, right, right, *others)))

    k, j = Index("k", STEPS), Index("j", Const(3))
    either_way = Binary("sub", Const(1), Binary("mul", Const(2), BACK))
    amount = draw(st.sampled_from([Const(draw(st.integers(-3, 3))), either_way, BACK, k, Dim("N"), V]))
    begin = draw(
        st.sampled_from([Const(0), Const(2**31 - 9), Binary("mul", BACK, Binary("sub", STEPS, Const(1)))])
    )
    operation = draw(st.sampled_from(("add", "sub")))
    again: Op = Assign(V, Binary(operation, V, amount))
    nested = For(j, Const(0), Const(3), Const(1), (again,))
    again = either(again, If(Binary("gt", BACK, Const(0)), (again,)), nested)
    body: Body = either((again,), (again, again), (again, Break()), (Assign(V, Const(5)), again))
    start, step = either(Const(0), Const(2), Const(-2)), either(Const(1), Const(2), Const(3))
    loop = For(k, start, STEPS, step, body)
    declared = Declare(V, begin)
    twice = For(j, Const(0), Const(3), Const(1), (loop,))
    return either(
        (declared, loop), (declared, twice), (declared, loop, Assign(V, Const(-7))), (declared, loop, loop)
    )


class Stop(Exception):
    """The innermost loop ends."""


def execute(body: Body, names: dict[str, int], seen: list[int]) -> None:
    for op in body:
        match op:
            case Declare() | Assign():
                names["v"] = value(op.value, names)
                seen.append(names["v"])
            case If():
                execute(op.then if value(op.cond, names) else op.otherwise, names, seen)
            case For():
                try:
                    for k in range(*(value(e, names) for e in (op.start, op.stop, op.step))):
                        names[op.index.name] = k
                        execute(op.body, names, seen)
                except Stop:
                    pass
            case Break():
                raise Stop


@settings(deadline=None, max_examples=examples(200))
@given(counting())
def test_variables_that_loops_count(body: Body) -> None:
    low, high = variable_ranges(walk(body))["v"]
    for n in (0, 1, 5, 6, 8):
        for t in (0, 1):
            seen: list[int] = []
            execute(body, {"N": n, "t": t}, seen)
            assert low <= min(seen) and max(seen) <= high, (n, t)


def test_a_variable_that_a_loop_counts_up_or_down() -> None:
    """From the first to the last, or back, as a condition outside the loop says; each case for itself."""
    begin = Binary("mul", BACK, Binary("sub", STEPS, Const(1)))
    by = Binary("sub", Const(1), Binary("mul", Const(2), BACK))
    loop = For(Index("k", STEPS), Const(0), STEPS, Const(1), (Assign(V, Binary("add", V, by)),))
    assert variable_ranges(walk((Declare(V, begin), loop))) == {"v": (-7, 6)}
