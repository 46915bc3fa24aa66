"""Fragments whose source may have changed, on every path to a multiply."""

from __future__ import annotations

import pytest
from pass_kernels import listing2

from tilemma.ir.expr import Const, Index, Var
from tilemma.ir.tile import Body, Copy, For, If, InThreads, Load, Mma, Parallel, While
from tilemma.ir.types import WARPGROUP
from tilemma.ir.walk import walk
from tilemma.targets.ptx.passes.snapshot import stale_fragments

OPS = list(walk(listing2().body))
LOAD = next(op for op in OPS if isinstance(op, Load) and op.fragment.name == "ma")
WRITE = next(op for op in OPS if isinstance(op, Copy) and op.dst.base.name == LOAD.src.base.name)
MULTIPLY = next(op for op in OPS if isinstance(op, Mma))
N = Const(3)


def under(kind: str, body: Body) -> Body:
    cond = Var("c", Const(True).type)
    match kind:
        case "then":
            return (If(cond, body),)
        case "else":
            return (If(cond, (), body),)
        case "both":
            return (If(cond, body, body),)
        case "some threads":
            return (InThreads(cond, body),)
        case "for":
            return (For(Index("i", N), Const(0), N, Const(1), body),)
        case "while":
            return (While(cond, body),)
        case "parallel":
            return (Parallel((Index("q", Const(1)),), body, WARPGROUP),)
    return body


KINDS = ("plain", "then", "else", "both", "some threads", "for", "while", "parallel")
CERTAIN = ("plain", "both", "parallel")


@pytest.mark.parametrize("kind", KINDS)
def test_a_load_again_counts_where_it_is_certain(kind: str) -> None:
    """What loads again under a condition leaves the older load on the other way."""
    body = (LOAD, WRITE, *under(kind, (LOAD,)), MULTIPLY)
    assert ("ma" in stale_fragments(body)) == (kind not in CERTAIN)


@pytest.mark.parametrize("kind", KINDS)
def test_a_write_counts_wherever_it_may_happen(kind: str) -> None:
    assert "ma" in stale_fragments((LOAD, *under(kind, (WRITE,)), MULTIPLY))
    assert "ma" not in stale_fragments((*under(kind, (WRITE,)), LOAD, MULTIPLY))


@pytest.mark.parametrize("kind", ("for", "while", "parallel"))
def test_a_write_of_the_iteration_before(kind: str) -> None:
    assert "ma" in stale_fragments((LOAD, *under(kind, (MULTIPLY, WRITE))))
    assert "ma" not in stale_fragments(under(kind, (LOAD, MULTIPLY, WRITE)))


def test_the_ways_of_a_condition_do_not_see_each_other() -> None:
    assert not stale_fragments((LOAD, If(Var("c", Const(True).type), (WRITE,), (MULTIPLY,))))
