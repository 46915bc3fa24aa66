"""Loads of Croqtile's prepacked metadata: the extents that a tile of prepacked words stands for, and the rules."""

from __future__ import annotations

from tilemma import dtypes
from tilemma.arithmetic.sparsity import ORDERS
from tilemma.errors import CompileError
from tilemma.ir import tile as t
from tilemma.ir.tiles import shape_text
from tilemma.passes.contraction import Fragments, matrix


class PrepackedMetadata(CompileError):
    code = "prepacked-metadata"
    found = "`mma.load` of `{name}` in the order `{order}`: {what}"
    expected = "{wanted} (docs/language.md, Sparse A)"
    fix = "{remedy}"


def loaded_shape(load: t.Load) -> tuple[int, int] | None:
    """The extents of the register tile that ``load`` fills; None if a tile in memory has none that are known."""
    shape = matrix(load.src).static_shape
    if shape is None or len(shape) != 2:
        return None
    if load.order is None:
        return shape[0], shape[1]
    order = ORDERS[load.order]
    found = order.shape((shape[0], shape[1]))
    if load.src.dtype is not dtypes.u32 or found is None:
        columns = f"W a multiple of {order.pairs}" if order.pairs > 1 else "W words for a row"
        extents = "u32 [M/16, 16 * W]" if order.in_blocks else "u32 [M, W], M a multiple of 16"
        raise PrepackedMetadata(
            load.span,
            name=load.fragment.name,
            order=load.order,
            what=f"a tile of {load.src.dtype} {shape_text(shape)}",
            wanted=f"{extents}, {columns}",
            remedy="cut a tile of these extents; `tm.sparse.prepack` makes the words, `span_as` their extents",
        )
    return found


def check_prepacked(fragments: Fragments) -> None:
    """PrepackedMetadata for prepacked words that are no metadata, or that of an A of another type."""
    users = {m.meta.name: m for m in fragments.multiplies if m.meta is not None}
    for name, loads in fragments.loads.items():
        for load in loads:
            if load.order is None:
                continue
            order = ORDERS[load.order]
            types = order.types
            used = users.get(name)
            a = None if used is None else fragments.dtype(used.a)
            if used is not None and (a is None or a.name in types):
                continue
            others = [n for n, x in ORDERS.items() if a is not None and a.name in x.types]
            others.sort(key=lambda n: ORDERS[n].in_blocks is not order.in_blocks)
            raise PrepackedMetadata(
                load.span,
                name=name,
                order=load.order,
                what="no multiply takes it as metadata" if used is None else f"metadata of an A of {a}",
                wanted=f"the metadata of a sparse A of {' or '.join(types)}",
                remedy=f"write `{others[0]}`"
                if others
                else "leave the order out, and load metadata as `tm.sparse.compress` makes it",
            )
