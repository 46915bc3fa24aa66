"""How precise the interval analysis is: the bounds of every operation on all short ranges.

`test_ranges` tests that the bounds hold.  Here the widths of the bounds are added up: a rule that is lost, or that
gives up one case earlier, makes a total larger.  A better rule makes it smaller: then write the new total.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest

from tilemma import dtypes
from tilemma.arithmetic import integers
from tilemma.ir.expr import Binary, Select, Var, const
from tilemma.ir.ranges import Known, below, wraps

A, B = Var("a", dtypes.s32), Var("b", dtypes.s32)
LEFT = list(combinations_with_replacement((-40, -9, -8, -5, -1, 0, 1, 4, 8, 9, 31), 2))
RIGHT = list(combinations_with_replacement((-9, -4, -3, -1, 0, 1, 2, 4, 5, 9, 31, 32), 2))
TOTALS = {
    "add": 136158, "sub": 136158, "mul": 1236913, "floordiv": 92039, "cdiv": 92112, "div": 91681,
    "mod": 41710, "floormod": 58665, "min": 64281, "max": 71877, "and": 162732, "or": 299311,
    "xor": 305293, "shl": 20352147, "shr": 64746,
}  # fmt: skip


def widths(op: str) -> int:
    total = 0
    for a in LEFT:
        for b in RIGHT:
            low, high = Known(variables={"a": a, "b": b}).interval(Binary(op, A, B))
            # Bounds that give up count for little more than the widest that do not.
            total += min(high - low, 5000)
    return total


@pytest.mark.parametrize("op", TOTALS)
def test_widths(op: str) -> None:
    assert widths(op) == TOTALS[op]


def test_bounds_of_short_ranges_hold() -> None:
    """The same ranges against execution, where they are short."""
    for op in TOTALS:
        operate = integers.binary(op, dtypes.s32)
        for a in LEFT:
            for b in RIGHT:
                if a[1] - a[0] > 4 or b[1] - b[0] > 3:
                    continue
                low, high = Known(variables={"a": a, "b": b}).interval(Binary(op, A, B))
                found = [operate(x, y) for x in range(a[0], a[1] + 1) for y in range(b[0], b[1] + 1)]
                assert low <= min(found) and max(found) <= high, (op, a, b)


@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("at", [-4, -3, 0, 5, 6])
def test_what_a_choice_learns_of_its_variable(op: str, at: int) -> None:
    """Each side has the bounds of the values for which it is taken, where those are without a gap."""
    values = range(-3, 6)
    compare = integers.binary(op, dtypes.s32)
    for side in (True, False):
        taken = [v for v in values if bool(compare(v, at)) == side]
        if not taken:
            continue
        other = const(taken[0])
        choice = Select(Binary(op, A, const(at)), *((A, other) if side else (other, A)))
        found = Known(variables={"a": (-3, 5)}).interval(choice)
        assert found == (min(taken), max(taken)), (op, at, side)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "shl", "floordiv", "div", "cdiv"])
@pytest.mark.parametrize("edge", [0, 1])
def test_where_an_operation_wraps(op: str, edge: int) -> None:
    """At the last value that fits it does not, one further it does."""
    low, high = integers.bounds(dtypes.s32)
    cases = {
        "add": ((high - 3, 3), (high - 3, 4)) if edge else ((low + 3, -3), (low + 3, -4)),
        "sub": ((high - 3, -3), (high - 3, -4)) if edge else ((low + 3, 3), (low + 3, 4)),
        "mul": ((2**15, 2**16 - 1), (2**15, 2**16)) if edge else ((-(2**15), 2**16), (-(2**15) - 1, 2**16)),
        "shl": ((1, 30), (1, 31)) if edge else ((0, 31), (0, 32)),
        **dict.fromkeys(("floordiv", "div", "cdiv"), ((low, 1) if edge else (low + 1, -1), (low, -1))),
    }[op]
    for (a, b), expected in zip(cases, (False, True), strict=True):
        known = Known(variables={"a": (a, a), "b": (b, b)})
        assert wraps(Binary(op, A, B), known) == expected, (op, a, b)


def test_below() -> None:
    known = Known(variables={"a": (0, 4), "b": (5, 9)})
    assert below(A, B, known) and not below(B, A, known)
    assert not below(A, B, Known(variables={"a": (0, 5), "b": (5, 9)}))
    for n, expected in ((1, True), (0, False), (-1, False)):
        assert below(A, Binary("add", A, const(n)), known) == expected
        assert below(A, Binary("add", const(n), A), known) == expected
