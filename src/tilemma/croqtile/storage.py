"""Declarations of scalars and buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from tilemma.croqtile import ast
from tilemma.croqtile.arithmetic import held, is_large
from tilemma.croqtile.c_spellings import array_form
from tilemma.croqtile.operands import fill_value, known_type, scalar_of, scalars_of, table_operands
from tilemma.croqtile.reader import Reader, reads
from tilemma.croqtile.unbuilt import refused_call
from tilemma.croqtile.values import Events, Mutable, Scalar, SpanValue, TileArray, TupleValue, Value, kind
from tilemma.dtypes import DType
from tilemma.errors import CompileError
from tilemma.ir.constructs import OPERANDS
from tilemma.ir.expr import Const, Element, Expr, FragmentElement, Var, const, value_of, walk
from tilemma.ir.refusals import BadReturn, NotBuiltYet, OutsideParallel, WrongValue
from tilemma.ir.tiles import Bounded, Tile, scalar
from tilemma.ir.types import Space


def depends_on_memory(e: Expr) -> bool:
    """Whether ``e`` may have another value later: it reads an element or a mutable scalar."""
    return any(isinstance(x, (Element, Var, FragmentElement)) for x in walk(e))


@reads(ast.Declare)
def declare(r: Reader, node: ast.Declare) -> None:
    for item in node.items:
        r.b.span = item.span
        if node.type is not None and (node.type.dims is not None or node.type.rank is not None):
            _declare_array(r, node, node.type, item)
        else:
            _declare_scalar(r, node, item)


def _array_advice(node: ast.Declare, item: ast.Item) -> str:
    """The form of ``float s[16]``, in which the extents follow the name; else both forms of a declaration."""
    values = [e.value for e in item.sizes if isinstance(e, ast.Int)]
    if node.type is None or not values or len(values) < len(item.sizes):
        return f"write `shared f16 [h, w] {item.name};` or `int {item.name} = 0;`"
    forms = [array_form(s, node.type.name, item.name, [str(v) for v in values]) for s in ("shared", "local")]
    if node.storage == "shared":
        return f"write `{forms[0]};`"
    return f"write `{forms[1]};`, or `{forms[0]};` for an array that the threads of a block share"


def _declare_scalar(r: Reader, node: ast.Declare, item: ast.Item) -> None:
    if item.sizes or node.storage == "shared" or (node.type is not None and node.type.name in ("void", "auto")):
        raise WrongValue(
            item.span,
            what=f"the declaration of `{item.name}`",
            got="no scalar type",
            wanted="a scalar type, or an array with its extents",
            fix_text=_array_advice(node, item),
        )
    dtype = known_type(node.type.name, node.type.span) if node.type else None
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
        value = scalar_of(r, item.value, f"`{item.name}`")
    elif isinstance(item.value, ast.CallStatement):
        value = scalar_of(r, called(r, item.value), f"`{item.name}`")
    else:
        raise no_result(item.value, item.name)
    # `int` and `bool` are control scalars, fixed unless `mutable`; element types are storage.
    named_mutable = node.mutable or (node.type is not None and node.type.name not in ("int", "bool"))
    r.scopes.define(item.name, stored(r, item.name, value, dtype, named_mutable), item.span)


def called(r: Reader, node: ast.CallStatement) -> ast.Expr:
    """``call f(x)`` as an expression; NotBuiltYet for a function that the file does not have."""
    if node.function not in r.device_functions or node.template:
        raise refused_call(node)
    return ast.Call(ast.Name(node.function, span=node.span), node.args, span=node.span)


def stored(r: Reader, name: str, value: Scalar, dtype: Any, mutable: bool) -> Value:
    """Storage for a scalar, or the expression itself if it is constant."""
    e = scalar(value)
    unchanging = isinstance(e, Var) and e.name in r.b.fixed
    kept = mutable and (name in r.assigned or (r.inside_parallel and is_large(r, e)))
    if not kept and (unchanging or not depends_on_memory(e)):
        if dtype is None or dtype == e.type:
            return value
        return held(r, e, dtype, r.b.span or r.here)
    if not r.inside_parallel:
        raise OutsideParallel(r.b.span or r.here, what=f"`{name}`, a scalar that changes,")
    if dtype is not None:
        e = held(r, e, dtype, r.b.span or r.here)
    return Mutable(r.b.declare(name, e, dtype), mutable)


def fixed(r: Reader, e: Expr, name: str) -> Expr:
    """The present value of ``e``: in a new variable if the values that it reads may change."""
    if not depends_on_memory(e):
        return e
    return r.b.declare(name, e)


def snapshot(r: Reader, name: str, value: Value) -> Value:
    """The value bound to ``name``: with the present offsets, extents and subscripts."""
    if isinstance(value, Tile):
        chunks = [c for c in value.chunks or () if c is not None]
        if any(depends_on_memory(e) for c in chunks for e in (c.value, c.extent)):
            value = r.b.settle(value)
        return replace(value, view=value.view.map(lambda e: fixed(r, e, name)))
    if isinstance(value, SpanValue):
        return SpanValue(tuple(fixed(r, e, name) for e in value.dims))
    if isinstance(value, TupleValue):
        items = tuple(x if isinstance(x, Bounded) else fixed(r, x, name) for x in value.items)
        return TupleValue(items, value.names)
    if isinstance(value, TileArray):
        return TileArray(value.buffer, value.sizes, tuple(fixed(r, e, name) for e in value.index))
    if isinstance(value, Events):
        slot, order = (None if e is None else fixed(r, e, name) for e in (value.slot, value.order))
        return Events(value.event, slot, order)
    return value


def _declare_array(r: Reader, node: ast.Declare, kind_: ast.Type, item: ast.Item) -> None:
    dtype = known_type(kind_.name, kind_.span)
    if kind_.dims is None:
        raise NotBuiltYet(item.span, what="a buffer of given rank only", fix_text="write its extents")
    if node.mutable:
        raise WrongValue(
            item.span, what="`mutable`", got="an array", wanted="a scalar", fix_text="arrays are always writable"
        )
    shape = [scalar(s) for s in scalars_of(r, kind_.dims, f"the extents of `{item.name}`")]
    if node.storage in (None, "global"):
        _declare_global(r, item, dtype, shape)
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
    sizes = table_operands(r, "copies", item.sizes)
    if isinstance(item.value, ast.Statement):
        raise no_result(item.value, item.name, "a number, for all elements")
    init = None
    if item.value is not None:
        init = held(r, fill_value(r, item.value, "an initialiser", dtype), dtype, item.span)
    space = Space(node.storage or "local")
    buffer = r.b.alloc(item.name, space, dtype, shape, copies=prod(sizes) if sizes else 0, init=init)
    r.scopes.define(item.name, TileArray(buffer, sizes) if sizes else Tile.whole(buffer), item.span)


def no_result(node: ast.Statement, name: str, wanted: str = "a scalar") -> CompileError:
    if isinstance(node, ast.CallStatement):
        return refused_call(node)
    return WrongValue(
        node.span,
        what=f"`{name}`",
        got="an operation whose result is no scalar",
        wanted=wanted,
        fix_text=f"write `{name} = ...;` without a type",
    )


def _declare_global(r: Reader, item: ast.Item, dtype: DType, shape: Sequence[Expr]) -> None:
    """``f32 [M, N] out;``: the array that the kernel returns, or scratch memory that a call allocates."""
    if r.inside_parallel and not r.implicit:
        raise WrongValue(
            item.span,
            what=f"`{item.name}`",
            got="an array in global memory, inside `parallel`",
            wanted="its declaration at the top of the kernel: a call allocates it once, for all instances",
            fix_text="move it out of `parallel`, or declare it `shared` or `local`",
        )
    if item.sizes:
        raise NotBuiltYet(
            item.span,
            what=f"`{item.name}`, several arrays in global memory under one name",
            fix_text="give the array a dimension more",
        )
    if isinstance(item.value, ast.Statement):
        raise no_result(item.value, item.name, "a number, for all elements")
    init = None
    if item.value is not None:
        init = held(r, fill_value(r, item.value, "an initialiser", dtype), dtype, item.span)
    buffer = r.b.allocated_array(item.name, dtype, shape, init, item.span)
    r.scopes.define(item.name, Tile.whole(buffer), item.span)


def returned(r: Reader, node: ast.Return) -> None:
    wanted = "an array declared at the top of the kernel (`f32 [M, N] out; ... return out;`)"
    last = [s for s in r.function.body.body if not isinstance(s, ast.Block) or s.body][-1:]
    if last != [node]:
        inside = r.inside_parallel and not r.implicit
        raise BadReturn(
            node.span,
            problem="inside `parallel`" if inside else "before the end of the kernel",
            wanted="`return` at the end of the kernel, as its last statement",
            fix_text="move it, and put statements that may be left out under an `if`",
        )
    if node.value is None:
        if r.function.returns.name != "void":
            raise BadReturn(node.span, problem="without a value", wanted=wanted, fix_text="return the array")
        return
    if r.function.returns.name == "void":
        raise BadReturn(
            node.span,
            problem="with a value in a kernel of type `void`",
            wanted="no value",
            fix_text="make the kernel's type `auto`",
        )
    value = r.value(node.value)
    buffer = value.view.base if isinstance(value, Tile) and value.view.is_whole else None
    if buffer is None or buffer.space is not Space.GLOBAL:
        raise BadReturn(
            node.span, problem=f"of {kind(value)}", wanted=wanted, fix_text="return a whole global array"
        )
    declared = r.function.returns
    if declared.name != "auto" and known_type(declared.name, declared.span) != buffer.dtype:
        raise BadReturn(
            node.span,
            problem=f"of an array of {buffer.dtype}",
            wanted=f"an array of {declared.name}, the kernel's type",
            fix_text="declare the array with that type, or make the kernel's type `auto`",
        )
    r.b.returns = buffer
