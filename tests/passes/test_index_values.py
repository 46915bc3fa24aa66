"""Expressions in all threads at once, compared with each thread's own value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.sampling import examples
from tilemma import dtypes
from tilemma.arithmetic import integers
from tilemma.ir.expr import Binary, Const, Expr, Index, Select, Unary, Var, binary, const, promote
from tilemma.passes.index_values import evaluate

T, G = Index("t", const(8)), Index("g", const(3))
VALUES = {"t": np.arange(8, dtype=np.int64), "g": np.arange(8, dtype=np.int64) % 3}
OPERATORS = (
    "add",
    "sub",
    "mul",
    "floordiv",
    "floormod",
    "div",
    "mod",
    "min",
    "max",
    "shl",
    "shr",
    "and",
    "or",
    "xor",
)
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
LEAVES = st.one_of(
    st.sampled_from((T, G)), st.integers(-9, 9).map(const), st.sampled_from((2**31 - 1, -(2**31))).map(const)
)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> Expr:
    if depth == 0:
        return draw(LEAVES)
    below = expressions(depth - 1)
    match draw(st.integers(0, 5)):
        case 0:
            return draw(LEAVES)
        case 1:
            return Unary("neg", draw(below))
        case 2:
            return Select(draw(conditions(depth - 1)), draw(below), draw(below))
    op = draw(st.sampled_from(OPERATORS))
    # Not every division has a result.
    other = (
        draw(st.integers(1, 5).map(const))
        if op in ("floordiv", "floormod", "div", "mod", "shl", "shr")
        else draw(below)
    )
    return binary(op, draw(below), other)


@st.composite
def conditions(draw: st.DrawFn, depth: int) -> Expr:
    below = expressions(depth)
    one = binary(draw(st.sampled_from(COMPARISONS)), draw(below), draw(below))
    match draw(st.integers(0, 3)):
        case 0:
            return Unary("lnot", one)
        case 1:
            return binary(draw(st.sampled_from(("land", "lor"))), one, binary("lt", draw(below), draw(below)))
    return one


def own(e: Expr, thread: int) -> int:
    """The value in one thread, by the arithmetic of single numbers."""
    match e:
        case Const(value=v):
            return int(v)
        case Index(name=name):
            return int(VALUES[name][thread])
        case Unary(op=op, a=a):
            x = own(a, thread)
            return int(not x) if op == "lnot" else integers.wrap(-x, e.type)
        case Select(cond=c, a=a, b=b):
            return own(a if own(c, thread) else b, thread)
        case Binary(op=op, a=a, b=b):
            t = promote(a.type, b.type)
            return int(integers.binary(op, t)(own(a, thread), own(b, thread)))
    raise AssertionError(e)


@settings(max_examples=examples(80), deadline=None)
@example(Unary("neg", const(-(2**31))))
@given(st.one_of(expressions(), conditions(2)))
def test_each_thread_has_its_own_value(e: Expr) -> None:
    value = evaluate(e, VALUES)
    # What is indexed by thread has an element for each; one number stands for all of them otherwise.
    assert value.shape == (8,) if isinstance(value, np.ndarray) else isinstance(value, int)
    found = np.broadcast_to(np.asarray(value), 8).astype(np.int64)
    assert found.tolist() == [own(e, thread) for thread in range(8)]


@pytest.mark.parametrize(
    "e",
    [
        Var("x", dtypes.s32),
        Index("other", const(4)),
        Const(1.5, dtypes.f32),
        Unary("neg", Var("x", dtypes.s32)),
        binary("add", T, Var("x", dtypes.s32)),
        binary("add", Var("x", dtypes.s32), T),
        Select(binary("lt", Var("x", dtypes.s32), 3), T, G),
        Select(binary("lt", T, 3), Var("x", dtypes.s32), G),
        Select(binary("lt", T, 3), T, Var("x", dtypes.s32)),
        Binary("lt", Const(1.5, dtypes.f32), Const(2.5, dtypes.f32)),
    ],
    ids=str,
)
def test_what_needs_more_than_the_indices_is_unknown(e: Expr) -> None:
    assert evaluate(e, VALUES) is None
