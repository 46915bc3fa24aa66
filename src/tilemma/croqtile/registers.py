"""Register tiles: declarations, elements, `apply`, arithmetic on whole tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

from tilemma.croqtile import ast
from tilemma.croqtile.arithmetic import combine, converted, held
from tilemma.croqtile.operands import chosen, constant, fragment_of, plain, scalars_of
from tilemma.croqtile.reader import Reader, nodes_in, reads
from tilemma.croqtile.shapes import dimension
from tilemma.croqtile.values import SpanValue, Value
from tilemma.ir import tile as t
from tilemma.ir.element_work import Known
from tilemma.ir.expr import Expr, FragmentElement, binary, const
from tilemma.ir.refusals import NotBuiltYet, TileShapeUnknown, WrongArity, WrongValue, wrong_member
from tilemma.ir.tiles import Bounded, FragmentValue, scalar
from tilemma.records import record


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
    known = r.b.known.get(base.name, Known())
    found = tuple(scalar(x) for x in scalars_of(r, node.args or (), "`.at`"))
    if known.dtype is None:
        raise TileShapeUnknown(node.span, name=base.name, missing="element type")
    if len(base.index) != len(base.copies) or not r.b.is_visited(base, found, r.visiting):
        raise NotBuiltYet(
            node.span,
            what="an element of a register tile other than the one `apply` visits",
            fix_text="use tiles of one shape and the indices of `apply` in order; of a vector, that of the row",
        )
    return found


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
    rank = 2 if shape is None else len(shape)
    names = [n.text for n in node.names.parts] or [node.names.whole or "i"]
    if len(names) != rank:
        form = "apply {i, j}" if rank == 2 else "apply {i}"
        raise WrongArity(node.names.span, what="apply", got=len(names), want=str(rank), form=form)
    sums = _accumulation(r, node.body, names) if shape is not None else None
    if sums is not None and shape is not None:
        _accumulate(r, node, base, (shape[0], shape[1]), sums)
        return
    with _visiting(r, node, base, names):
        r.body(node.body)


@contextmanager
def _visiting(r: Reader, node: ast.Apply, base: FragmentValue, names: Sequence[str]) -> Iterator[None]:
    with r.b.apply(base, names, node.span) as indices, r.scopes.block():
        for n, i in zip(names, indices, strict=True):
            r.scopes.define(n, Bounded.of(i), node.names.span)
        outer, r.visiting = r.visiting, (indices, base.name)
        yield
        r.visiting = outer


@record
class _Accumulation:
    """``v.at(i) = v.at(i) + e``, where ``e`` depends on the column: the sum, largest or least of each row."""

    vector: FragmentValue
    kind: Literal["sum", "max", "min"]
    term: ast.Expr
    names: tuple[str, str]


def _accumulation(r: Reader, body: ast.Statement, names: Sequence[str]) -> _Accumulation | None:
    """The value that the only statement of an `apply` over rows and columns accumulates; None for other bodies."""
    while isinstance(body, ast.Block) and len(body.body) == 1:
        body = body.body[0]
    if len(names) != 2 or not isinstance(body, ast.Assign) or not isinstance(body.value, ast.Expr):
        return None
    name = _of_row(body.target, names[0])
    found = r.scopes.find(name) if name else None
    if found is None or not isinstance(found.value, FragmentValue) or not r.b.is_vector(found.value):
        return None
    kind: str = "sum"
    sides: tuple[ast.Expr, ...] = ()
    match body.value:
        case ast.Expr() as value if body.op == "+":
            sides = (body.target, value)
        case ast.Binary(op="+", a=a, b=b) if not body.op:
            sides = (a, b)
        case ast.Call(function=ast.Name(text="__max" | "__min" as word), args=(a, b)) if not body.op:
            kind, sides = word.removeprefix("__"), (a, b)
    own = [_of_row(x, names[0]) == name for x in sides]
    if sum(own) != 1:
        return None
    term = sides[own.index(False)]
    inside = list(nodes_in(term))
    by_column = any(isinstance(n, ast.Name) and n.text == names[1] for n in inside)
    if not by_column or any(isinstance(n, ast.Name) and n.text == name for n in inside):
        return None
    return _Accumulation(found.value, cast(Any, kind), term, (names[0], names[1]))


def _of_row(node: ast.Expr, row: str) -> str:
    """The name of ``v`` in ``v.at(row)``; empty for other expressions."""
    while isinstance(node, ast.Paren):
        node = node.inner
    if not (isinstance(node, ast.Member) and node.name == "at" and isinstance(node.base, ast.Name)):
        return ""
    one = node.args[0] if node.args is not None and len(node.args) == 1 else None
    return node.base.text if isinstance(one, ast.Name) and one.text == row else ""


def _accumulate(
    r: Reader, node: ast.Apply, base: FragmentValue, shape: tuple[int, int], sums: _Accumulation
) -> None:
    """The terms as a tile, its reduction, and the vector with that."""
    vector, span = sums.vector, node.span
    dtype = r.b.known[vector.name].dtype
    if dtype is None:
        raise TileShapeUnknown(span, name=vector.name, missing="element type")
    terms = r.b.fragment(f"{vector.name}.terms", (), dtype, shape)
    with _visiting(r, node, terms, sums.names):
        value = plain(r, sums.term, "`apply`")
        r.b.emit(t.SetFragmentElement(terms.ref, held(r, value, dtype, span)))
    part = r.b.fragment(f"{vector.name}.part", (), dtype, shape[:1])
    r.b.reduce(sums.kind, part, terms)
    with r.b.apply(vector, sums.names[:1], span) as indices:
        old, new = (FragmentElement(x.name, indices, dtype, x.index) for x in (vector, part))
        joined = combine(r, "+", old, new, span) if sums.kind == "sum" else binary(sums.kind, old, new)
        r.b.emit(t.SetFragmentElement(vector.ref, converted(r, joined, dtype, span)))


def assign_whole(r: Reader, base: FragmentValue, node: ast.Assign) -> None:
    """``mc = mc * 2.0 + bias``: every element, rows and columns of numbers repeated."""
    assert isinstance(node.value, ast.Expr)
    chosen(base, node.target, "arithmetic on a register tile")
    known = r.b.known.get(base.name, Known())
    if known.shape is None or known.dtype is None:
        raise _shape_unknown(node.target, base)
    with (
        r.b.apply(base, ("i", "j")[: len(known.shape)], node.span) as indices,
        r.without_effects("tile arithmetic"),
    ):
        r.whole = (indices, known.shape)
        value = plain(r, node.value, "arithmetic on a register tile")
        if node.op:
            old = FragmentElement(base.name, indices, known.dtype, base.index)
            value = combine(r, node.op, old, value, node.span)
        r.whole = None
        r.b.emit(t.SetFragmentElement(base.ref, held(r, value, known.dtype, node.span)))


def assign_tile_element(r: Reader, base: FragmentValue, node: ast.Member, value: Expr) -> None:
    visited(r, base, node)
    dtype = r.b.known.get(base.name, Known()).dtype
    r.b.emit(t.SetFragmentElement(base.ref, value if dtype is None else held(r, value, dtype, node.span)))


@reads(ast.Reduce, inside="a reduction")
def reduce(r: Reader, node: ast.Reduce) -> None:
    """``reduce_max(m, s, 1)``, ``reduce_sum``, ``all_reduce_sum(l)``, ``copy(dst, src)`` of register tiles."""
    form = {"copy": "copy(dst, src)", "all_reduce_sum": "all_reduce_sum(vector)"}.get(
        node.word, f"{node.word}(vector, tile, 1)"
    )
    want = form.count(",") + 1
    if len(node.args) != want:
        raise WrongArity(node.span, what=node.word, got=len(node.args), want=str(want), form=form)
    tiles = [fragment_of(r, a, f"`{node.word}`") for a in node.args[:2]]
    if node.word == "copy":
        _copy(r, tiles[0], tiles[1], node)
    elif node.word == "all_reduce_sum":
        # The values of a vector are whole: `reduce_sum` adds up the parts of all lanes.
        if len(r.b.known.get(tiles[0].name, Known()).shape or ()) != 1:
            raise WrongValue(
                node.span,
                what="`all_reduce_sum`",
                got=f"`{tiles[0].name}`, a tile",
                wanted="a vector: a register tile of one extent",
                fix_text="declare it with one extent, `frag f32[64] l;`",
            )
    else:
        if constant(r, node.args[2], f"`{node.word}`") != 1:
            raise NotBuiltYet(
                node.args[2].span,
                what="a reduction along the rows of a tile",
                fix_text="reduce each row, along dimension 1: multiply the operands in the other order",
            )
        r.b.reduce("max" if node.word == "reduce_max" else "sum", tiles[0], tiles[1])


def _copy(r: Reader, dst: FragmentValue, src: FragmentValue, node: ast.Reduce) -> None:
    known, source = (r.b.known.get(x.name, Known()) for x in (dst, src))
    if known.dtype is None or source.dtype is None:
        raise TileShapeUnknown(
            node.span, name=dst.name if known.dtype is None else src.name, missing="element type"
        )
    rank = len(known.shape or source.shape or (0, 0))
    with r.b.apply(dst, ("i", "j")[:rank], node.span) as indices:
        if not r.b.is_visited(src, indices, (indices, dst.name)):
            raise WrongValue(
                node.span,
                what="`copy`",
                got=f"`{src.name}` of {list(source.shape or ())} and `{dst.name}` of {list(known.shape or ())}",
                wanted="two register tiles of one shape",
                fix_text="declare both with the same extents",
            )
        value = FragmentElement(src.name, indices, source.dtype, src.index)
        r.b.emit(t.SetFragmentElement(dst.ref, r.b.converted(value, known.dtype), span=node.span))


def _shape_unknown(node: ast.Expr, base: FragmentValue) -> TileShapeUnknown:
    return TileShapeUnknown(node.span, name=base.name, missing="shape")
