"""Promotion of `dma.copy` to TMA: the copies that the tensor memory accelerator can take over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tilemma.errors import CompileError
from tilemma.ir.expr import value_of
from tilemma.ir.plans import SharedLayoutPlan
from tilemma.ir.tile import ArrayFacts, Copy
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
            problem = problem or e.message
        else:
            return replace(op, engine="tma")
    return problem
