"""Indices that a pass replaces or renames are replaced in the bounds of the loops inside too."""

from __future__ import annotations

import pytest

from tilemma import dtypes
from tilemma.compiler import decide
from tilemma.ir.builder import Builder
from tilemma.ir.expr import add, binary, const
from tilemma.ir.tile import For, Parallel
from tilemma.ir.types import BLOCK, CLUSTER, THREAD
from tilemma.ir.verifier import verify
from tilemma.ir.walk import walk
from tilemma.targets.ptx.passes.names import Names

# Extents of a loop in terms of an outer index; one of 0 iterations among them.
EXTENTS = {
    "the index": lambda i: i,
    "a sum": lambda i: add(i, const(2)),
    "a product": lambda i: binary("mul", add(i, const(1)), const(3)),
    "the larger": lambda i: binary("max", i, const(2)),
}


def nested(extent, in_cluster: bool):
    b = Builder("k")
    y = b.array_param("y", dtypes.s32, [8])
    outer, inner = (CLUSTER, BLOCK) if in_cluster else (BLOCK, THREAD)
    levels = b.parallel(["c"], [1], outer), b.parallel(["p"], [1], inner)
    with levels[0], levels[1] as (p,), b.foreach("k", extent(p.value)) as k:
        loop = b.foreach("l", add(k.value, const(1)))
        with loop as n:
            b.set_element(y, [const(0)], add(k.value, n.value))
    return b.finish()


@pytest.mark.parametrize("extent", EXTENTS)
def test_a_cluster_of_one_block(extent: str) -> None:
    compiled = decide(nested(EXTENTS[extent], True), "sm_90a")
    verify(compiled.kernel)


@pytest.mark.parametrize("extent", EXTENTS)
def test_renamed(extent: str) -> None:
    """A copy under fresh names mentions no name of the original."""
    kernel = nested(EXTENTS[extent], False)
    block = kernel.body[0]
    assert isinstance(block, Parallel)
    names = Names.of(kernel.body)
    copied = names.renamed(block)
    verify(type(kernel)(kernel.name, kernel.params, (copied,)))
    loops = [op for op in walk((copied,)) if isinstance(op, For)]
    assert {op.index.name for op in loops}.isdisjoint({"k", "l"})
