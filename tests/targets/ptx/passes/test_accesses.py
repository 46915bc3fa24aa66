"""Accesses that may overlap, compared with computed addresses, also where offsets wrap."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import examples
from tilemma import dtypes
from tilemma.arithmetic import integers
from tilemma.ir.expr import Binary, Cast, Const, Dim, Expr, Index, Scalar, Var, binary, const, promote, substitute
from tilemma.ir.tile import Barrier, For
from tilemma.ir.types import Axis, Buffer, Space, View
from tilemma.launch import MAX_EXTENT
from tilemma.passes.threads import Block, Node
from tilemma.targets.ptx.passes.aliasing import Access, _Offset, overlap, same_mapping

s32, s64 = dtypes.s32, dtypes.s64
THREADS = 4
LANE, WIDE_LANE = Index("t", const(THREADS)), Cast(Index("t", const(THREADS)), s64)
LOOP, FAR_LOOP, DIM = Index("k", const(5)), Index("far", const(2**31 - 1)), Dim("N")
PARAMETER, VARIABLE = Scalar("n", s32), Var("x", s32)
LEAVES: tuple[Expr, ...] = (LANE, LANE, WIDE_LANE, LOOP, FAR_LOOP, DIM, PARAMETER, VARIABLE)
EDGES = (0, 1, -1, 2, 7, 2**30, 2**31 - 1, -(2**31))
WIDE_EDGES = (*EDGES, 2**31, 2**32, 2**32 + 3, 2**62, 2**63 - 1, -(2**63))
VALUES = {
    "k": (0, 1, 4), "far": (0, 3, 2**31 - 2), "N": (0, 1, MAX_EXTENT), "n": EDGES, "x": EDGES,
}  # fmt: skip


def constants() -> st.SearchStrategy[Expr]:
    near = st.integers(-40, 40).map(const)
    narrow = st.sampled_from(EDGES).map(const)
    return st.one_of(near, narrow, st.sampled_from(WIDE_EDGES).map(lambda v: Const(v, s64)))


@st.composite
def offsets(draw: st.DrawFn, depth: int = 3) -> Expr:
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(st.one_of(st.sampled_from(LEAVES), constants()))
    op = draw(st.sampled_from(("add", "sub", "mul", "mul", "floordiv", "mod", "min", "shl")))
    other = draw(st.one_of(constants(), offsets(depth - 1)))
    pair = [draw(offsets(depth - 1)), other]
    if draw(st.booleans()):
        pair.reverse()
    return binary(op, *pair)


def value(e: Expr, names: dict[str, int]) -> int:
    match e:
        case Const():
            return int(e.value)
        case Index() | Dim() | Scalar() | Var():
            return names[e.name]
        case Cast():
            return integers.saturate(value(e.a, names), e.dtype)
        case Binary():
            t = promote(e.a.type, e.b.type)
            a, b = (integers.wrap(value(x, names), t) for x in (e.a, e.b))
            return integers.binary(e.op, t)(a, b)
    raise AssertionError(e)


def access(view: View, loop: For | None = None) -> Access:
    """``loop``: the loop around it."""
    index = {"t": np.arange(THREADS, dtype=np.int64)}
    body = Block(None, "body", (), (), index, np.ones(THREADS, dtype=bool), ())
    if loop is not None:
        body = Block(Node(loop, body), "body", (), (), index, body.mask, ())
    start = np.arange(THREADS, dtype=np.int64)
    return Access(Node(Barrier(0, THREADS), body), "s", view, True, "thread", start, 1)


def row(offset: Expr, extent: int, step: Expr) -> View:
    return View(Buffer("s", s32, (const(64),), Space.SHARED), (offset,), (Axis(0, const(extent), step),))


def positions(view: View, names: dict[str, int]) -> set[int]:
    first, step = (value(e, names) for e in (view.offsets[0], view.axes[0].step))
    return {first + i * step for i in range(value(view.axes[0].extent, names))}


FAR_TILE = binary("mul", FAR_LOOP, const(2**30))
LANE_TILE = binary("mul", binary("add", LANE, const(2**31 - 2)), const(2**31 - 1))


@settings(deadline=None, max_examples=examples(400))
@given(
    offsets(), offsets(), st.integers(1, 6), st.integers(-3, 3), st.sets(st.sampled_from(("k", "far"))), st.data()
)
def test_whoever_meets_is_found(
    a: Expr, b: Expr, extent: int, step: int, carried: set[str], data: st.DataObject
) -> None:
    """Two accesses that touch one element overlap, at whatever values of indices and parameters."""
    if data.draw(st.booleans()):
        # The same offset, moved: most pairs that are drawn separately are far apart.
        b = binary("add", a, const(data.draw(st.sampled_from((0, 1, -1, 5, -(2**31))))))
    x, y = row(a, extent, const(1)), row(b, 3, const(step))
    found = overlap(access(x), access(y), frozenset(carried))
    for _ in range(4):
        one = {name: data.draw(st.sampled_from(choices)) for name, choices in VALUES.items()}
        # Variables may have other values at the second access, as carried indices have.
        other = {n: data.draw(st.sampled_from(VALUES[n])) if n == "x" or n in carried else one[n] for n in one}
        mine = [positions(x, {**one, "t": t}) for t in range(THREADS)]
        its = [positions(y, {**other, "t": t}) for t in range(THREADS)]
        for i in range(THREADS):
            for j in range(THREADS):
                assert found[i, j] or not any(0 <= p < 2**31 for p in mine[i] & its[j]), (i, j, one, other)


@settings(deadline=None, max_examples=examples(150))
@given(
    st.integers(-9, 9),
    st.integers(-9, 9),
    st.integers(-20, 20),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 7),
    st.sampled_from((1, 2, 3, 7, -1, -4)),
)
def test_iterations_meet_exactly_where_their_elements_do(
    by_loop: int, by_lane: int, shift: int, wide: int, tall: int, start: int, step: int
) -> None:
    """One affine subscript in two iterations of a loop, compared with all pairs of iterations, and of different
    ones."""
    low, size = start % abs(step), abs(step)
    values = range(low, low + 5 * size, size)
    index = Index("i", const(values[-1] + 1))
    first, stop = (low, values[-1] + 1) if step > 0 else (values[-1], low - 1)
    loop = For(index, const(first), const(stop), const(step), ())
    offset = binary("add", binary("mul", index, const(by_loop)), binary("mul", LANE, const(by_lane)))
    x, y = row(offset, wide, const(1)), row(binary("add", offset, const(shift)), tall, const(1))
    for advanced in (frozenset[str](), frozenset("i")):
        found = overlap(access(x, loop), access(y, loop), frozenset("i"), advanced)
        for t in range(THREADS):
            for u in range(THREADS):
                pairs = [(a, b) for a in values for b in values if not advanced or a != b]
                apart = {by_loop * (a - b) + by_lane * (t - u) - shift for a, b in pairs}
                assert found[t, u] == any(-wide < d < tall for d in apart), (t, u, advanced)


@settings(deadline=None, max_examples=examples(150))
@given(
    st.integers(-9, 9),
    st.integers(-9, 9),
    st.integers(-20, 20),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from((LANE, binary("mul", LANE, const(3)), binary("sub", const(THREADS - 1), LANE), PARAMETER)),
    st.sampled_from((1, 3, THREADS, 7)),
)
def test_iterations_of_a_loop_in_which_each_lane_starts_at_its_own_index(
    by_loop: int, by_lane: int, shift: int, wide: int, tall: int, start: Expr, step: int
) -> None:
    """All elements that meet are found, in one iteration and in different ones."""
    trips = 4
    index = Index("i", const(3 * THREADS + trips * step))
    loop = For(index, start, index.extent, const(step), ())
    offset = binary("add", binary("mul", index, const(by_loop)), binary("mul", LANE, const(by_lane)))
    x, y = row(offset, wide, const(1)), row(binary("add", offset, const(shift)), tall, const(1))
    first = [value(start, {"t": t, "n": 2}) for t in range(THREADS)]
    for carried in (frozenset[str](), frozenset("i")):
        for advanced in {frozenset[str](), carried}:
            found = overlap(access(x, loop), access(y, loop), carried, advanced)
            for t in range(THREADS):
                for u in range(THREADS):
                    pairs = [
                        (a, b)
                        for a in range(trips)
                        for b in range(trips)
                        if (a != b if advanced else carried or a == b)
                    ]
                    apart = {
                        by_loop * (first[t] + a * step - first[u] - b * step) + by_lane * (t - u) - shift
                        for a, b in pairs
                    }
                    assert found[t, u] or not any(-wide < d < tall for d in apart), (t, u, advanced)


def test_lanes_that_stride_over_a_row_stay_apart() -> None:
    """The lanes start at their own element and go on by their number."""
    index = Index("i", const(64))
    for step in (THREADS, 2 * THREADS):
        loop = For(index, LANE, index.extent, const(step), ())
        x = access(row(index, 1, const(1)), loop)
        for carried in (frozenset[str](), frozenset("i")):
            assert (overlap(x, x, carried) == np.eye(THREADS, dtype=bool)).all()
        assert not overlap(x, x, frozenset("i"), frozenset("i")).any()


def test_a_variable_that_is_set_once_has_one_value_in_an_instance_and_an_iteration() -> None:
    """Known or not: offsets by it are compared in the instance that set it, until its loop goes on."""
    loop = For(LOOP, const(0), const(5), const(1), ())
    moved = binary("mul", VARIABLE, const(8))

    def of(offset: Expr, instance: int) -> Access:
        found = access(row(offset, 8, const(1)), loop)
        found.start, found.threads = np.array([instance], dtype=np.int64), 2
        found.own = {VARIABLE.name: frozenset({LOOP.name})}
        return found

    x, y, other = of(moved, 0), of(binary("add", moved, const(8)), 0), of(binary("add", moved, const(8)), 2)
    assert not overlap(x, y, frozenset()).any() and overlap(x, x, frozenset()).all()
    assert overlap(x, y, frozenset({LOOP.name})).all() and overlap(x, other, frozenset()).all()
    assert same_mapping(x, x, frozenset()) and not same_mapping(x, x, frozenset({LOOP.name}))


def test_offsets_that_are_far_apart_modulo_the_type() -> None:
    """An s32 that wraps comes back: lanes and iterations 2**31 or more apart may be at one element."""
    again = binary("mul", LANE, const(2**30))
    round_trip = access(row(binary("mul", again, const(4)), 1, const(1)))
    found = overlap(access(row(again, 1, const(1))), round_trip, frozenset())
    assert found[0].all() and not found[1:].any()
    x = access(row(FAR_TILE, 1, const(1)))
    assert overlap(x, x, frozenset(("far",))).all()
    far = access(row(binary("mul", LANE_TILE, Const(2**63 - 1, s64)), 1, const(1)))
    overlap(far, far, frozenset())


def test_what_stays_apart_is_kept_apart() -> None:
    """Without this every pair could count as overlapping."""
    tile = binary("mul", LANE, const(8))
    x, y = access(row(tile, 8, const(1))), access(row(binary("add", tile, const(4)), 4, const(1)))
    assert (overlap(x, x, frozenset()) == np.eye(THREADS, dtype=bool)).all()
    assert (overlap(x, y, frozenset()) == np.eye(THREADS, dtype=bool)).all()
    both = access(row(binary("add", binary("mul", LOOP, const(2**20)), tile), 8, const(1)))
    assert (overlap(both, both, frozenset()) == np.eye(THREADS, dtype=bool)).all()
    # Iterations are 2**20 apart.
    assert (overlap(both, both, frozenset(("k",))) == np.eye(THREADS, dtype=bool)).all()
    low, high = access(row(const(-(2**31)), 1, const(1))), access(row(const(2**31 - 2), 1, const(1)))
    assert overlap(low, high, frozenset()).all()
    moved = substitute(tile, {"t": const(3)})
    assert overlap(access(row(moved, 8, const(1))), x, frozenset()).sum() == THREADS


def test_bounds_of_sums_and_products_are_exact() -> None:
    """The loose part of an offset: all that the operands allow, and no more."""
    ends = [(low, high) for low in range(-3, 4) for high in range(low, 4)]
    for x in ends:
        for y in ends:
            for sign in (1, -1):
                found = _Offset(5, {}, x).plus(_Offset(2, {}, y), sign)
                sums = [a + sign * b for a in range(x[0], x[1] + 1) for b in range(y[0], y[1] + 1)]
                assert (found.base, found.loose) == (5 + sign * 2, (min(sums), max(sums)))
        for c in range(-3, 4):
            found = _Offset(5, {}, x).times(c)
            assert (found.base, found.loose) == (5 * c, (min(c * x[0], c * x[1]), max(c * x[0], c * x[1])))
