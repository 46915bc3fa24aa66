"""Declarations: scalars, buffers, shapes, tuples, events."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from tilemma.croqtile import ast
from tilemma.croqtile.node import Node
from tilemma.croqtile.refusals import NotBuiltYet, OutsideParallel, WrongArity, WrongValue
from tilemma.croqtile.values import Events, Mutable, Scalar, SpanValue, TileArray, TupleValue, Value, kind
from tilemma.errors import CompileError
from tilemma.ir.constructs import OPERANDS
from tilemma.ir.expr import Const, Expr, const, value_of
from tilemma.ir.tiles import Bounded, Tile, scalar
from tilemma.ir.types import Space

if TYPE_CHECKING:
    from tilemma.croqtile.build import Reader


class Declarations:
    """The part of a `Reader` that knows declarations."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def declare(self, node: ast.Declare) -> None:
        for item in node.items:
            self.reader.b.span = item.span
            if node.type is not None and (node.type.dims is not None or node.type.rank is not None):
                self._declare_array(node, node.type, item)
            else:
                self._declare_scalar(node, item)

    def _declare_scalar(self, node: ast.Declare, item: ast.Item) -> None:
        r = self.reader
        if (
            item.sizes
            or node.storage == "shared"
            or (node.type is not None and node.type.name in ("void", "auto"))
        ):
            raise WrongValue(
                item.span,
                what=f"the declaration of `{item.name}`",
                got="no scalar type",
                wanted="a scalar type, or an array with its extents",
                fix_text=f"write `shared f16 [h, w] {item.name};` or `int {item.name} = 0;`",
            )
        dtype = r.expressions.element_type(node.type.name, node.type.span) if node.type else None
        if item.value is None:
            if dtype is None or not (node.mutable or node.type is None or node.type.name not in ("int", "bool")):
                raise WrongValue(
                    item.span,
                    what=f"`{item.name}`",
                    got="no value",
                    wanted="a value: it cannot be assigned later",
                    fix_text=f"write `int {item.name} = ...;`, or `mutable int {item.name} = 0;`",
                )
            value: Scalar = const(0) if not dtype.is_float else Const(0.0, dtype)
        elif isinstance(item.value, ast.Expr):
            value = r.expressions.scalar(item.value, f"`{item.name}`")
        else:
            raise self.no_result(item.value, item.name)
        # `int` and `bool` are control scalars, fixed unless `mutable`; element types are storage.
        named_mutable = node.mutable or (node.type is not None and node.type.name not in ("int", "bool"))
        r.scopes.define(item.name, self.stored(item.name, value, dtype, named_mutable), item.span)

    def stored(self, name: str, value: Scalar, dtype: Any, mutable: bool) -> Value:
        """Storage for a scalar, or the expression itself where nothing can change it."""
        r = self.reader
        e = scalar(value)
        if not (mutable and name in r.assigned) and not r.depends_on_memory(e):
            if dtype is None or dtype == e.type:
                return value
            return r.expressions.converted(e, dtype, r.b.span or r.here)
        if not r.inside_parallel:
            raise OutsideParallel(r.b.span or r.here, what=f"`{name}`, a scalar that changes,")
        if dtype is not None:
            e = r.expressions.converted(e, dtype, r.b.span or r.here)
        return Mutable(r.b.declare(name, e, dtype), mutable)

    def fixed(self, e: Expr, name: str) -> Expr:
        """``e`` as it is now: in a variable of its own where what it reads may change."""
        if not self.reader.depends_on_memory(e):
            return e
        return self.reader.b.declare(name, e)

    def snapshot(self, name: str, value: Value) -> Value:
        """What ``name`` shall stand for: offsets, extents and subscripts as they are now."""
        r = self.reader
        if isinstance(value, Tile):
            chunks = [c for c in value.chunks or () if c is not None]
            if any(r.depends_on_memory(e) for c in chunks for e in (c.value, c.extent)):
                value = r.b.settle(value)
            return replace(value, view=value.view.map(lambda e: self.fixed(e, name)))
        if isinstance(value, SpanValue):
            return SpanValue(tuple(self.fixed(e, name) for e in value.dims))
        if isinstance(value, TupleValue):
            items = tuple(x if isinstance(x, Bounded) else self.fixed(x, name) for x in value.items)
            return TupleValue(items, value.names)
        if isinstance(value, TileArray):
            return TileArray(value.buffer, value.sizes, tuple(self.fixed(e, name) for e in value.index))
        if isinstance(value, Events):
            slot, order = (None if e is None else self.fixed(e, name) for e in (value.slot, value.order))
            return Events(value.event, slot, order)
        return value

    def _declare_array(self, node: ast.Declare, kind_: ast.Type, item: ast.Item) -> None:
        r = self.reader
        dtype = r.expressions.element_type(kind_.name, kind_.span)
        if kind_.dims is None:
            raise NotBuiltYet(item.span, what="a buffer of given rank only", fix_text="write its extents")
        if node.mutable:
            raise WrongValue(
                item.span,
                what="`mutable`",
                got="an array",
                wanted="a scalar",
                fix_text="arrays are always writable",
            )
        shape = [scalar(s) for s in r.views.scalars(kind_.dims, f"the extents of `{item.name}`")]
        if node.storage in (None, "global"):
            r.returned_array(item, dtype, shape)
            return
        if not r.inside_parallel:
            raise OutsideParallel(item.span, what=f"a `{node.storage}` buffer")
        for e, dim in zip(shape, kind_.dims, strict=False):
            v = value_of(e)
            if v is not None and v < 0:
                raise OPERANDS["extent"].refused(str(v), dim.span)
            if v == 0:
                raise WrongValue(
                    dim.span,
                    what=f"an extent of `{item.name}`",
                    got=str(v),
                    wanted="at least 1",
                    fix_text="`#k` is the bound of an index, `k` its present value",
                )
        sizes = r.operands("copies", item.sizes)
        init = r.fill_value(item.value, "an initialiser", dtype) if isinstance(item.value, ast.Expr) else None
        if item.value is not None and init is None:
            raise self.no_result(item.value, item.name)
        if init is not None:
            init = r.expressions.converted(init, dtype, item.span)
        space = Space(node.storage or "local")
        buffer = r.b.alloc(item.name, space, dtype, shape, copies=prod(sizes) if sizes else 0, init=init)
        r.scopes.define(item.name, TileArray(buffer, sizes) if sizes else Tile.whole(buffer), item.span)

    def no_result(self, node: object, name: str) -> CompileError:
        if isinstance(node, ast.CallStatement):
            return NotBuiltYet(node.span, what="`call` of a host function", fix_text="write it in the language")
        span = node.span if isinstance(node, Node) else self.reader.here
        return WrongValue(
            span,
            what=f"`{name}`",
            got="an operation whose result is no scalar",
            wanted="a scalar",
            fix_text=f"write `{name} = ...;` without a type",
        )

    def span(self, node: ast.DeclareSpan) -> None:
        value = self.reader.shape(node.value, f"`{node.name}`")
        self._check_rank(node, len(value.dims))
        self.reader.scopes.define(node.name, self.snapshot(node.name, value), node.span)

    def tuple(self, node: ast.DeclareTuple) -> None:
        value = self.reader.value(node.value)
        if isinstance(value, SpanValue):
            value = TupleValue(value.dims)
        if not isinstance(value, TupleValue):
            raise WrongValue(
                node.value.span,
                what=f"`{node.name}`",
                got=kind(value),
                wanted="a tuple of integers",
                fix_text=f"write `{node.name} = {{1, 2}};`",
            )
        self._check_rank(node, len(value.items))
        self.reader.scopes.define(node.name, self.snapshot(node.name, value), node.span)

    def _check_rank(self, node: ast.DeclareSpan | ast.DeclareTuple, found: int) -> None:
        if node.rank is not None and node.rank != found:
            raise WrongArity(
                node.value.span,
                what=node.name,
                got=found,
                want=f"{node.rank}, the rank declared",
                form=f"<{found}>",
            )

    def event(self, node: ast.DeclareEvent) -> None:
        r = self.reader
        if node.storage != "shared":
            raise NotBuiltYet(
                node.span, what=f"an event in `{node.storage or 'no'}` storage", fix_text="write `shared event`"
            )
        threads = r.operand("threads", node.threads) if node.threads is not None else None
        for item in node.items:
            if len(item.sizes) > 1:
                raise NotBuiltYet(item.span, what="an array of events of rank 2", fix_text="use one subscript")
            slots = r.operand("slots", item.sizes[0]) if item.sizes else 0
            ready = isinstance(item.value, ast.Name)
            if isinstance(item.value, ast.Name) and item.value.text != "ready":
                raise WrongValue(
                    item.span,
                    what="an event",
                    got=f"`= {item.value.text}`",
                    wanted="`= ready` or nothing",
                    fix_text="write `= ready`",
                )
            r.scopes.define(item.name, Events(r.b.event(item.name, slots, threads, ready)), item.span)
