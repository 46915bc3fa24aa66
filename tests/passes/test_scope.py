"""Dependences of a loop's control flow: its bounds, and the conditions of its exits."""

from __future__ import annotations

import pytest

from tilemma import dtypes
from tilemma.ir.expr import Const, Index, Var
from tilemma.ir.tile import Body, Break, Continue, For, If, InThreads, While
from tilemma.passes.scope import control

C, D = (Var(n, dtypes.dtype("bool")) for n in "cd")
N = Var("n", dtypes.s32)


def loop(body: Body, name: str = "i") -> For:
    return For(Index(name, Const(9)), Const(0), N, Const(1), body)


@pytest.mark.parametrize(
    ("body", "conditions"),
    [
        ((), set()), ((Break(),), set()), ((If(C, (Break(),)),), {"c"}), ((If(C, (), (Continue(),)),), {"c"}),
        ((If(C, (If(D, (Continue(),)),)),), {"c", "d"}), ((InThreads(C, (If(D, (Break(),)),)),), {"c", "d"}),
        ((If(C, (If(D, ()), Break())),), {"c"}), ((If(C, ()),), set()),
        # A jump of a loop inside leaves that loop alone.
        ((loop((If(C, (Break(),)),), "j"),), set()), ((If(C, (loop((Break(),), "j"),)),), set()),
        ((While(C, (If(D, (Continue(),)),)), If(D, (Break(),))), {"d"}),
    ],
)  # fmt: skip
def test_conditions_that_leave_a_loop(body: Body, conditions: set[str]) -> None:
    assert control(loop(body)) == {"n"} | conditions
    assert control(While(N, body)) == {"n"} | conditions
