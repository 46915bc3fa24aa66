"""Results of asynchronous multiplies are not read before a wait, for every kind of read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pass_kernels import listing2

from tilemma import dtypes
from tilemma.errors import CompileError
from tilemma.ir.expr import Binary, Const, FragmentElement, Index, Var
from tilemma.ir.tile import (
    Apply,
    Assign,
    Body,
    Declare,
    FragmentRef,
    If,
    Kernel,
    Mma,
    SetFragmentElement,
    WaitFuture,
)
from tilemma.ir.walk import walk
from tilemma.targets.ptx.passes.await_multiplies import AwaitMultiplies

MULTIPLY = replace(next(op for op in walk(listing2().body) if isinstance(op, Mma)), future="f")
ROWS, COLUMNS = (Index(n, Const(64)) for n in "ij")
RESULT = FragmentElement(MULTIPLY.acc.name, (ROWS, COLUMNS), dtypes.f16)
SCALED = Binary("mul", RESULT, Const(2.0, dtypes.f16))


def visit(tile: str, body: Body) -> Body:
    return (Apply(FragmentRef(tile), (ROWS, COLUMNS), body),)


X = Var("x", dtypes.f16)
READS: dict[str, Body] = {
    "the tile that is visited": visit(MULTIPLY.acc.name, ()),
    "an element of another tile": visit("other", (SetFragmentElement(FragmentRef("other"), SCALED),)),
    "for a variable": visit("other", (Declare(X, RESULT),)),
    "in an assignment": visit("other", (Declare(X, Const(0.0, dtypes.f16)), Assign(X, SCALED))),
    "in a condition": visit("other", (If(Binary("gt", RESULT, Const(0.0, dtypes.f16)), ()),)),
}


@pytest.mark.parametrize("name", READS)
def test_every_way_to_read_an_accumulator(name: str) -> None:
    with pytest.raises(CompileError) as caught:
        AwaitMultiplies().run(Kernel("k", (), (MULTIPLY, *READS[name], WaitFuture(("f",)))), [])
    assert caught.value.code == "accumulator-not-awaited"
    AwaitMultiplies().run(Kernel("k", (), (MULTIPLY, WaitFuture(("f",)), *READS[name])), [])
