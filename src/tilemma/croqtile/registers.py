"""Register tiles: declarations, elements, `apply`, arithmetic on whole tiles."""

from __future__ import annotations

from tilemma.croqtile import ast
from tilemma.croqtile.arithmetic import combine, converted
from tilemma.croqtile.operands import chosen, plain, scalars_of
from tilemma.croqtile.reader import Reader, reads
from tilemma.croqtile.shapes import dimension
from tilemma.croqtile.values import SpanValue, Value
from tilemma.ir import tile as t
from tilemma.ir.builder import Known
from tilemma.ir.expr import Expr, FragmentElement, const
from tilemma.ir.refusals import NotBuiltYet, TileShapeUnknown, WrongArity, WrongValue, wrong_member
from tilemma.ir.tiles import Bounded, FragmentValue, scalar


def fragment_member(r: Reader, base: FragmentValue, node: ast.Member) -> Value:
    shape = r.b.known.get(base.name, Known()).shape
    if node.name == "span":
        if shape is None:
            raise _shape_unknown(node, base)
        dims = tuple(const(n) for n in shape)
        return dimension(r, dims, node.args, node) if node.args else SpanValue(dims)
    if node.name != "at":
        fix = "store it to a buffer (`mma.store`) first"
        raise wrong_member(node.name_span or node.span, "a register tile", node.name, ("at", "span"), fix)
    indices = visited(r, base, node)
    dtype = r.b.known.get(base.name, Known()).dtype
    assert dtype is not None
    return FragmentElement(base.name, indices, dtype, base.index)


def visited(r: Reader, base: FragmentValue, node: ast.Member) -> tuple[Expr, ...]:
    """The indices of ``base.at(i, j)``, which must be those that `apply` visits."""
    if r.visiting is None:
        raise WrongValue(
            node.span,
            what="`.at` of a register tile",
            got="a place outside `apply`",
            wanted="`apply {i, j} in tile.span { ... }` around it: a thread holds only its own elements",
            fix_text="use `apply`, or store the tile to a buffer",
        )
    indices, shape = r.visiting
    known = r.b.known.get(base.name, Known())
    found = tuple(scalar(x) for x in scalars_of(r, node.args or (), "`.at`"))
    whole = len(base.index) == len(base.copies)
    if not whole or known.dtype is None or known.shape != shape or found != indices:
        raise NotBuiltYet(
            node.span,
            what="an element of a register tile other than the one `apply` visits",
            fix_text="use tiles of one shape and the indices of `apply`, in their order",
        )
    return indices


@reads(ast.Apply, inside="`apply`")
def apply(r: Reader, node: ast.Apply) -> None:
    """``apply {i, j} in mc.span { mc.at(i, j) = ...; }``"""
    over = node.over
    base = r.value(over.base) if isinstance(over, ast.Member) and over.name == "span" else None
    if not isinstance(base, FragmentValue):
        raise WrongValue(
            over.span,
            what="`apply`",
            got="something else",
            wanted="the shape of a register tile, `mc.span`",
            fix_text="write `apply {i, j} in mc.span { ... }`; use `foreach` for buffers",
        )
    chosen(base, over, "`apply`")
    shape = r.b.known.get(base.name, Known()).shape
    if shape is None:
        raise _shape_unknown(over, base)
    names = [n.text for n in node.names.parts] or [node.names.whole or "i"]
    if len(names) != len(shape):
        raise WrongArity(node.names.span, what="apply", got=len(names), want=str(len(shape)), form="apply {i, j}")
    with r.b.apply(base, names, shape, node.span) as indices, r.scopes.block():
        for n, i in zip(names, indices, strict=True):
            r.scopes.define(n, Bounded.of(i), node.names.span)
        outer, r.visiting = r.visiting, (indices, shape)
        r.body(node.body)
        r.visiting = outer


def assign_whole(r: Reader, base: FragmentValue, node: ast.Assign) -> None:
    """``mc = mc * 2.0 + bias``: every element, rows and columns of numbers repeated."""
    assert isinstance(node.value, ast.Expr)
    chosen(base, node.target, "arithmetic on a register tile")
    known = r.b.known.get(base.name, Known())
    if known.shape is None or known.dtype is None or len(known.shape) != 2:
        raise _shape_unknown(node.target, base)
    with r.b.apply(base, ("i", "j"), known.shape, node.span) as indices, r.without_effects("tile arithmetic"):
        r.whole = (indices, known.shape)
        value = plain(r, node.value, "arithmetic on a register tile")
        if node.op:
            old = FragmentElement(base.name, indices, known.dtype, base.index)
            value = combine(r, node.op, old, value, node.span)
        r.whole = None
        r.b.emit(t.SetFragmentElement(base.ref, converted(r, value, known.dtype, node.span)))


def assign_tile_element(r: Reader, base: FragmentValue, node: ast.Member, value: Expr) -> None:
    visited(r, base, node)
    r.b.emit(t.SetFragmentElement(base.ref, value))


def _shape_unknown(node: ast.Expr, base: FragmentValue) -> TileShapeUnknown:
    return TileShapeUnknown(node.span, name=base.name, missing="shape")
