"""Inlines calls of `__device__` functions: the body is read at the call, with names of its own."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.croqtile import ast
from tilemma.croqtile.arithmetic import as_cpp
from tilemma.croqtile.device_functions import CCast, DeviceFunction, Unparsed, WarpCall, instance
from tilemma.croqtile.operands import as_tile, known_type, plain
from tilemma.croqtile.reader import Reader, nodes_in, reads
from tilemma.croqtile.scope import Scopes
from tilemma.croqtile.storage import fixed, stored
from tilemma.croqtile.values import Value, kind
from tilemma.dtypes import DType, boolean
from tilemma.errors import Note, Span
from tilemma.ir.constructs import KINDS
from tilemma.ir.expr import Const, Element, Expr, Unary, Var, const, mul, value_of
from tilemma.ir.refusals import NotBuiltYet, WrongArity
from tilemma.ir.tiles import Tile
from tilemma.records import record

MAX_DEPTH = 16


@record(frozen=False, slots=False, eq=False)
class Inlining:
    """A call that is being read: where its result goes, and whether it has returned where that is not plain."""

    function: DeviceFunction
    result: Var | None
    done: Var | None = None


def inlined(r: Reader, name: str, args: Sequence[ast.Expr], span: Span) -> Expr | None:
    """The result of a call of the device function ``name``; None of one without a result.

    Raises NotOfTheSubset for a body outside the language's subset, NotBuiltYet for recursion.
    """
    f = r.device_functions[name]
    if isinstance(f, Unparsed):
        raise type(f.error)(f.error.span, notes=[Note(f"`{name}` is called here", span)], **f.error.facts)
    if name in r.results or any(c.function.span == f.span for c in r.calls):
        raise NotBuiltYet(span, what=f"`{name}`, which calls itself", fix_text="write a loop")
    if len(r.calls) + len(r.results) >= MAX_DEPTH:
        what = f"`{name}`, inside {MAX_DEPTH} calls of device functions"
        raise NotBuiltYet(span, what=what, fix_text="write the statements of some of them where they are called")
    if len(args) != len(f.params):
        form = f"{name}({', '.join(n for n, _ in f.params)})"
        raise WrongArity(span, what=name, got=len(args), want=str(len(f.params)), form=form)
    types: dict[str, DType] = {}
    fix = _only_result(f) is None
    given = zip(f.params, args, strict=True)
    values = [_argument(r, f, p, t, a, fix, types) for (p, t), a in given]
    if types:
        f = instance(f, {name: str(dtype) for name, dtype in types.items()})
    result = _only_result(f)
    returns = [n for n in nodes_in(f.body) if isinstance(n, ast.Return)]
    assigned = frozenset(
        n.target.text for n in nodes_in(f.body) if isinstance(n, ast.Assign) and isinstance(n.target, ast.Name)
    )
    outer = r.scopes, r.assigned
    r.scopes, r.assigned = Scopes(), assigned
    try:
        for (p, t), value in zip(f.params, values, strict=True):
            dtype = known_type(t, span)
            known: Value = value
            if result is None and isinstance(value, Expr):
                known = stored(r, p, value, dtype, True)
            r.scopes.define(p, known, f.span)
        if result is not None:
            r.results.append(name)
            try:
                found = plain(r, result, f"the result of `{name}`")
            finally:
                r.results.pop()
            return found if f.returns == "auto" else as_cpp(r, found, _result_type(f), span)
        r.effect(span, f"a call of `{name}`")
        return _body(r, f, returns)
    finally:
        r.scopes, r.assigned = outer


def _only_result(f: DeviceFunction) -> ast.Expr | None:
    """What a function returns whose only statement that is."""
    only = f.body.body[0] if len(f.body.body) == 1 else None
    return only.value if isinstance(only, ast.Return) and f.returns != "void" else None


def _argument(
    r: Reader, f: DeviceFunction, name: str, dtype: str, node: ast.Expr, fix: bool, types: dict[str, DType]
) -> Value:
    """An argument of the parameter's type.

    ``fix``: the body may change what its value depends on.  ``types``: those of the template's names, which the
    arguments decide."""
    if name not in f.pointers:
        value = plain(r, node, f"`{f.name}`")
        wanted = _deduced(f, dtype, value.type, node.span, types)
        return as_cpp(r, fixed(r, value, name) if fix else value, wanted, node.span)
    tile = r.b.settle(_addressed(r, node, f"`{f.name}`"))
    if tile.view.dtype != _deduced(f, dtype, tile.view.dtype, node.span, types):
        raise NotBuiltYet(
            node.span,
            what=f"an array of {tile.view.dtype} where `{f.name}` takes `{dtype}*`",
            fix_text="change the parameter's type",
        )
    count: Expr = const(1)
    for extent in tile.view.shape:
        count = mul(count, extent)
    return r.b.span_as(tile, [count], node.span)


def _addressed(r: Reader, node: ast.Expr, what: str) -> Tile:
    """The array that a pointer refers to; of ``&x.at(i, j)`` that element alone."""
    while isinstance(node, ast.Paren):
        node = node.inner
    place = node.operand if isinstance(node, ast.Unary) and node.op == "&" else None
    while isinstance(place, ast.Paren):
        place = place.inner
    if not isinstance(place, ast.Member) or place.name != "at" or place.args is None:
        return as_tile(r, r.value(node), node, what)
    element = r.value(place)
    if not isinstance(element, Element):
        raise KINDS["element"].refused(what, kind(element), node.span, "write `&x.at(i)`")
    return r.b.settle(as_tile(r, r.value(place.base), place.base, what)).one(element.view)


def _deduced(f: DeviceFunction, name: str, have: DType, span: Span, types: dict[str, DType]) -> DType:
    """The type ``name``; NotBuiltYet where two arguments give one name of a template two types."""
    if name not in f.templates:
        return known_type(name, span)
    if types.setdefault(name, have) != have:
        what = f"`{f.name}` with `{name}` as {types[name]} and as {have}"
        raise NotBuiltYet(span, what=what, fix_text="convert one of the arguments")
    return have


def _body(r: Reader, f: DeviceFunction, returns: list[ast.Return]) -> Expr | None:
    dtype = None if f.returns == "void" else _result_type(f)
    result = None
    if dtype is not None:
        zero = Const(0.0, dtype) if dtype.is_float else Const(0, dtype)
        result = r.b.declare(f"{f.name}.result", zero, dtype)
    call = Inlining(f, result)
    if returns and not _tail(f.body):
        call.done = r.b.declare(f"{f.name}.done", Const(False, boolean), boolean)
    r.calls.append(call)
    try:
        r.body(_ending(f.body, call))
    finally:
        r.calls.pop()
    if result is not None:
        r.b.fixed.add(result.name)
    return result


def _result_type(f: DeviceFunction) -> DType:
    if f.returns == "auto" or f.returns in f.templates:
        raise NotBuiltYet(
            f.span, what=f"a function whose result is `{f.returns}`", fix_text="write the type of its result"
        )
    return known_type(f.returns, f.span)


def _has_return(node: ast.Statement) -> bool:
    return any(isinstance(n, ast.Return) for n in nodes_in(node))


def _tail(node: ast.Statement) -> bool:
    """Whether nothing follows any `return`, so that each ends the function by its place."""
    if isinstance(node, ast.Block):
        return not any(_has_return(s) for s in node.body[:-1]) and (not node.body or _tail(node.body[-1]))
    if isinstance(node, ast.If):
        return _tail(node.then) and (node.otherwise is None or _tail(node.otherwise))
    return isinstance(node, ast.Return) or not _has_return(node)


def _ending(node: ast.Block, call: Inlining, loop: bool = False) -> ast.Block:
    """``node`` where statements behind one that may have returned run only if it has not."""
    body: list[ast.Statement] = []
    for i, s in enumerate(node.body):
        if call.done is None or not _has_return(s):
            body.append(s)
            continue
        if isinstance(s, ast.Return):
            body += [s, ast.Break(span=s.span)] if loop else [s]
            break
        body.append(_inside(s, call, loop))
        rest = ast.Block(node.body[i + 1 :], span=s.span)
        done = Done(call.done, span=s.span)
        if loop:
            left = ast.Block((ast.Break(span=s.span),), span=s.span)
            body.append(ast.If(done, left, span=s.span))
        if rest.body:
            undone = Done(call.done, True, span=s.span)
            body.append(ast.If(undone, _ending(rest, call, loop), span=s.span))
        break
    return ast.Block(tuple(body), span=node.span)


def _inside(s: ast.Statement, call: Inlining, loop: bool) -> ast.Statement:
    if isinstance(s, ast.Block):
        return _ending(s, call, loop)
    if isinstance(s, ast.While):
        return s.evolve(body=_ending(_block(s.body), call, True))
    assert isinstance(s, ast.If), s
    otherwise = None if s.otherwise is None else _ending(_block(s.otherwise), call, loop)
    return s.evolve(then=_ending(_block(s.then), call, loop), otherwise=otherwise)


def _block(s: ast.Statement) -> ast.Block:
    return s if isinstance(s, ast.Block) else ast.Block((s,), span=s.span)


class Done(ast.Expr):
    """Whether the call has returned, or has not."""

    variable: Var
    negated: bool = False


@reads(Done)
def done(r: Reader, node: Done) -> Value:
    return Unary("lnot", node.variable) if node.negated else node.variable


@reads(CCast)
def cast(r: Reader, node: CCast) -> Value:
    e, dtype = plain(r, node.operand, "a cast"), known_type(node.dtype, node.span)
    return as_cpp(r, e, dtype, node.span)


@reads(WarpCall)
def warp_call(r: Reader, node: WarpCall) -> Value:
    """All lanes of the warp take part, and none is in a group of fewer."""
    mask = value_of(plain(r, node.mask, "the mask of a warp"))
    if mask is None or int(mask) & 0xFFFFFFFF != 0xFFFFFFFF:
        raise NotBuiltYet(node.span, what="an exchange between some lanes", fix_text="pass the mask 0xffffffff")
    if node.width is not None and value_of(plain(r, node.width, "the width of an exchange")) != 32:
        raise NotBuiltYet(node.span, what="an exchange in groups of lanes", fix_text="pass the width 32, or none")
    return r.value(node.call)
