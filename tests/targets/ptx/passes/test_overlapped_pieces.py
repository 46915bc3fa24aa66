"""The pieces of a stored tile as functions of their number."""

from __future__ import annotations

from itertools import product

from tilemma.dtypes import f16
from tilemma.ir.expr import INDEX, Expr, Var, add, const, substitute, value_of
from tilemma.ir.types import Buffer, Space, View
from tilemma.targets.ptx.passes.overlapped_pieces import _series, _view

X, Y = (Var(name, INDEX) for name in "xy")
AT = {"x": const(1000), "y": const(2000)}
# Coordinates and slots of a piece.
SOME = (const(0), const(1), const(2), const(64), X, add(X, const(64)), add(X, const(128)), add(Y, const(64)))


def numbers(values: list[Expr]) -> list[int | None]:
    return [value_of(substitute(x, AT)) for x in values]


def test_a_series_has_the_values_of_all_pieces() -> None:
    for count in (2, 3, 4):
        for values in map(list, product(SOME, repeat=count)):
            series = _series(values, {})
            if series is not None:
                assert numbers([series(const(j)) for j in range(count)]) == numbers(values)


def test_series_that_are_found() -> None:
    for start in (const(0), X, add(X, const(64))):
        for step in (0, 8, 64):
            values = [add(start, const(j * step)) for j in range(5)]
            series = _series(values, {start: Y})
            assert series is not None
            assert numbers([series(const(j)) for j in range(5)]) == [2000 + j * step for j in range(5)]
    for period in (2, 3, 4):
        assert _series([const(j % period) for j in range(5)], {}) is not None


def test_views_that_differ_irregularly_have_no_common_text() -> None:
    ring, other = (Buffer(name, f16, (const(64), const(64)), Space.SHARED, 4) for name in ("ring", "other"))

    def views(*places: tuple[Buffer, int, int]) -> list[View]:
        return [View(b, (const(0), const(at)), b.whole().axes, const(slot)) for b, at, slot in places]

    even = views((ring, 0, 0), (ring, 64, 1), (ring, 128, 0), (ring, 192, 1))
    found = _view(even, {})
    assert found is not None and [found(const(j)) for j in range(4)] == even
    assert _view(views((ring, 0, 0), (ring, 64, 1), (ring, 192, 0)), {}) is None
    assert _view(views((ring, 0, 0), (ring, 64, 2), (ring, 128, 3)), {}) is None
    assert _view(views((ring, 0, 0), (other, 64, 1)), {}) is None
