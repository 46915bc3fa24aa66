"""Promotion of `dma.copy` to TMA: the copies that the tensor memory accelerator can take over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tilemma.errors import CompileError
from tilemma.ir.effects import written_views
from tilemma.ir.expr import Binary, Expr, Index, value_of
from tilemma.ir.plans import SharedLayoutPlan
from tilemma.ir.tile import ArrayFacts, Body, Copy, For, While
from tilemma.ir.types import Space, View
from tilemma.ir.walk import bodies
from tilemma.launch import MAX_EXTENT
from tilemma.passes.scope import names
from tilemma.targets.ptx import tensor_copies
from tilemma.targets.ptx.passes.shared_views import SWIZZLE_ATOMS

_ALIGNMENT = 16


def promoted(op: Copy, facts: Mapping[str, ArrayFacts], shares: int = 1) -> Copy | str:
    """``op`` by TMA, each of ``shares`` blocks an equal part of it, or the rule that it breaks.

    Shared layouts are assigned later: the tile has to have whole swizzle atoms, or rows without a gap.
    """
    there, here = tensor_copies.sides(op)
    array = facts[there.base.name]
    if op.transpose or op.pad or op.rearranges:
        return "it transposes or pads its tile"
    if array.ragged:
        return f"an extent or a stride of `{there.base.name}` is no multiple of {_ALIGNMENT} bytes"
    if array.contiguous is not None and not tensor_copies.starts_on_unit(there, array.contiguous):
        return f"its tile may start elsewhere than on a multiple of {_ALIGNMENT} bytes of a row"
    shape = [value_of(e) for e in here.base.shape]
    if None in shape:
        return f"the extents of `{here.base.name}` are not known at compile time"
    row = (shape[-1] or 0) * here.dtype.bits // 8
    rows = prod(n or 0 for n in shape[:-1])
    problem = ""
    for atom in (*sorted(SWIZZLE_ATOMS, reverse=True), 0):
        layout = SharedLayoutPlan(atom, atom or row, rows, rows * row, 1024)
        try:
            tensor_copies.boxes(op, layout, array, shares)
        except CompileError as e:
            problem = problem or str(e.facts.get("what", e.message))
        else:
            return replace(op, engine="tma")
    return problem


def reordered_stores(program: Body) -> set[str]:
    """The global arrays of which ``program`` may write an element twice, in an order that TMA need not keep.

    Stores of one iteration wait for each other where they may overlap.  Those of different iterations do not:
    there may be one store only, to another place in each.
    """
    found: dict[str, list[tuple[View, tuple[For | While, ...]]]] = {}

    def visit(body: Body, loops: tuple[For | While, ...]) -> None:
        for op in body:
            for view in written_views(op):
                if view.base.space is Space.GLOBAL:
                    found.setdefault(view.base.name, []).append((view, loops))
            for _, inner in bodies(op):
                visit(inner, (*loops, op) if isinstance(op, (For, While)) else loops)

    visit(program, ())
    return {
        name
        for name, stores in found.items()
        if any(loops and (len(stores) > 1 or not _moves(view, loops)) for view, loops in stores)
    }


def _moves(view: View, loops: tuple[For | While, ...]) -> bool:
    """Whether ``view`` is at another place, apart from all others, in each iteration of ``loops``.

    A dimension for each loop, in which no index of the others counts, moves by at least the view's extent.
    """
    indices = {op.index.name for op in loops if isinstance(op, For)}
    extents = {a.dim: value_of(a.extent) or MAX_EXTENT for a in view.axes}

    def moves(loop: For | While) -> bool:
        if not isinstance(loop, For) or (step := value_of(loop.step)) is None:
            return False
        own = loop.index.name
        alone = (d for d, e in enumerate(view.offsets) if names(e) & indices == {own})
        return any(abs(coefficient(view.offsets[d], own) or 0) * abs(step) >= extents.get(d, 1) for d in alone)

    return all(moves(loop) for loop in loops)


def coefficient(e: Expr, name: str) -> int | None:
    """The factor of index ``name`` in ``e``, if ``e`` is linear in it."""
    if name not in names(e):
        return 0
    match e:
        case Index():
            return 1
        case Binary(op="add" | "sub" as op, a=a, b=b):
            x, y = coefficient(a, name), coefficient(b, name)
            return None if x is None or y is None else x + y if op == "add" else x - y
        case Binary(op="mul", a=a, b=b):
            for factor, by in ((a, value_of(b)), (b, value_of(a))):
                x = coefficient(factor, name)
                if by is not None and x is not None:
                    return x * by
    return None
