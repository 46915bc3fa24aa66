"""By how much an expression grows from one iteration to the next, compared with its values."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import examples
from tilemma import dtypes
from tilemma.ir.expr import Binary, Const, Dim, Expr, Index, Scalar, Var, const, substitute, value_of
from tilemma.ir.tile import Assign, For, If, Op
from tilemma.ir.types import Event, EventRef
from tilemma.targets.ptx.passes.delay_consumer_release import _step, advances

K, OUTER, N, P = Index("k", const(100)), Index("o", const(9)), Dim("N"), Scalar("p", dtypes.s32)
COUNT, STEADY, ODD = (Var(n, dtypes.s32) for n in ("count", "steady", "odd"))
START, BY = 3, 2
ELSEWHERE = {"o": 5, "N": 7, "p": -4, "steady": 11}


def loop(*body: Op) -> For:
    assigned = (Assign(COUNT, Binary("add", COUNT, Const(4))), Assign(ODD, Binary("mul", ODD, Const(3))))
    return For(K, const(START), const(100), const(BY), (*body, *assigned))


def value(e: Expr, iteration: int) -> int:
    names = {"k": START + BY * iteration, "count": 1 + 4 * iteration, "odd": 3**iteration} | ELSEWHERE
    found = value_of(substitute(e, {n: Const(v) for n, v in names.items()}))
    assert found is not None
    return int(found)


def expressions() -> st.SearchStrategy[Expr]:
    leaves = st.sampled_from([K, OUTER, N, P, COUNT, STEADY, ODD, *(Const(n) for n in (-3, 0, 1, 5))])
    made = st.sampled_from(["add", "sub", "mul", "floordiv"])
    return st.recursive(leaves, lambda x: st.builds(Binary, made, x, x), max_leaves=6)


@settings(deadline=None, max_examples=examples(400))
@given(expressions())
def test_steps_are_the_differences_of_values(e: Expr) -> None:
    d = _step(e, loop())
    if d is not None:
        assert [value(e, n + 1) - value(e, n) for n in range(4)] == [d] * 4, e


def test_steps_of_linear_expressions_are_known() -> None:
    known = {
        K: BY, OUTER: 0, COUNT: 4, STEADY: 0, N: 0, P: 0, Binary("sub", OUTER, K): -BY, Binary("add", K, COUNT): 6,
        Binary("mul", Const(5), K): 5 * BY, Binary("mul", K, Const(-3)): -3 * BY, Binary("mul", OUTER, N): 0,
        Binary("add", Binary("mul", N, P), K): BY,
    }  # fmt: skip
    assert {e: _step(e, loop()) for e in known} == known
    for unknown in (
        ODD,
        Binary("mul", K, N),
        Binary("mul", N, K),
        Binary("mul", K, K),
        Binary("floordiv", K, Const(2)),
    ):
        assert _step(unknown, loop()) is None
    conditional = For(
        K, const(0), const(9), const(1), (If(const(1), (Assign(COUNT, Binary("add", COUNT, Const(1))),)),)
    )
    assert _step(COUNT, conditional) is None


def test_slots_of_consecutive_iterations_differ() -> None:
    for slots in (1, 2, 3, 4, 6):
        ring = Event("e", slots)
        for factor in range(5):
            e = Binary("mul", K, Const(factor))
            differ = all(value(e, n) % slots != value(e, n + 1) % slots for n in range(2 * slots))
            assert advances(EventRef(ring, slot=Binary("floormod", e, Const(slots))), loop()) == differ
            assert advances(EventRef(ring, order=e), loop()) == differ
        assert not advances(EventRef(ring, slot=K), loop())
