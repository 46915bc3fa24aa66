"""Assignments, and expressions that are evaluated for their effect."""

from __future__ import annotations

from tilemma.croqtile import ast
from tilemma.croqtile.arithmetic import combine, converted, held
from tilemma.croqtile.lanes import lane_matrix, lane_store
from tilemma.croqtile.operands import as_tile, plain, scalars_of
from tilemma.croqtile.reader import EFFECTS, FUNCTIONS, Reader, reads
from tilemma.croqtile.refusals import ImmutableAssignment
from tilemma.croqtile.registers import assign_tile_element, assign_whole
from tilemma.croqtile.scope import Redefinition
from tilemma.croqtile.storage import called, no_result, snapshot, stored
from tilemma.croqtile.values import Mutable, Promise, Word, kind
from tilemma.errors import Note
from tilemma.ir.checks import checked_element, checked_scalar
from tilemma.ir.constructs import KINDS
from tilemma.ir.expr import Element, Expr
from tilemma.ir.refusals import NotBuiltYet, OutsideParallel, SideEffect, WrongValue
from tilemma.ir.tiles import Bounded, FragmentValue, FutureValue


@reads(ast.Assign)
def assign(r: Reader, node: ast.Assign) -> None:
    if isinstance(node.target, ast.Name):
        _assign_name(r, node, node.target)
        return
    if not isinstance(node.value, ast.Expr):
        raise WrongValue(
            node.value.span,
            what="an assignment",
            got=_result_of(node.value),
            wanted="a name before `=`",
            fix_text="give the result a name of its own",
        )
    target = node.target
    if isinstance(target, ast.Member) and target.name == "at":
        _assign_element(r, node, target)
        return
    if isinstance(target, ast.Subscript) and r.inside_parallel:
        value = r.value(target)
        if isinstance(value, FragmentValue):
            assign_whole(r, value, node)
            return
        if isinstance(value, Element):
            _assign_value(r, node, target, value)
            return
    raise WrongValue(
        target.span,
        what="an assignment",
        got="something that cannot be assigned",
        wanted="a name, or an element `x.at(i, j)`",
        fix_text="copy tiles with `dma.copy a => b`",
    )


def _result_of(node: ast.Statement) -> str:
    match node:
        case ast.CallStatement():
            return f"the result of `call {node.function}`"
        case ast.Copy():
            return f"the future of a `{node.engine}.copy`"
        case ast.Mma(suffixes=(ast.Suffix(name=name), *_)):
            return f"the result of `mma.{name}`"
    return "the result of an operation"


def _assign_element(r: Reader, node: ast.Assign, target: ast.Member) -> None:
    assert isinstance(node.value, ast.Expr)
    if not r.inside_parallel:
        raise OutsideParallel(node.span, what="an assignment to an element")
    value = plain(r, node.value, "an assignment")
    if node.op:
        old = plain(r, target, f"`{node.op}=`")
        value = combine(r, node.op, old, value, node.span)
    base = r.value(target.base)
    if isinstance(base, FragmentValue):
        assign_tile_element(r, base, target, value)
        return
    tile = as_tile(r, base, target.base, "an assignment")
    indices = scalars_of(r, target.args or (), "`.at`")
    view = tile.element(indices, target.span)
    if not r.b.unreachable:
        checked_element(tile, indices, target.span)
    r.b.set_element(tile, indices, converted(r, value, view.dtype, node.span))


def _assign_value(r: Reader, node: ast.Assign, target: ast.Subscript, element: Element) -> None:
    """``d[i] = e`` of one lane's values."""
    assert isinstance(node.value, ast.Expr)
    value = plain(r, node.value, "an assignment")
    if node.op:
        value = combine(r, node.op, element, value, node.span)
    r.b.set_value(element.view, converted(r, value, element.type, node.span))


def _assign_name(r: Reader, node: ast.Assign, target: ast.Name) -> None:
    name = target.text
    binding = r.scopes.find(name)
    if isinstance(node.value, ast.CallStatement) and node.value.function in r.device_functions:
        node = node.evolve(value=called(r, node.value))
    if not isinstance(node.value, ast.Expr):
        if node.op:
            raise WrongValue(
                node.span, what=f"`{node.op}=`", got="an operation", wanted="a scalar", fix_text="use `=`"
            )
        _define_result(r, node.value, target)
        return
    if binding is None:
        if node.op:
            raise r.scopes.unknown(name, target.span)
        _define(r, target, node.value)
        return
    value = binding.value
    if isinstance(value, Mutable) and value.mutable:
        new = plain(r, node.value, "an assignment")
        if node.op:
            new = combine(r, node.op, value.var, new, node.span)
        if r.inside_parallel:
            new = checked_scalar(new, value.var.dtype, name, node.span)
            r.b.assign(value.var, held(r, new, value.var.dtype, node.span))
            return
        raise OutsideParallel(node.span, what=f"an assignment to `{name}`")
    if isinstance(value, FragmentValue):
        assign_whole(r, value, node)
        return
    scalars = isinstance(value, (Bounded, Expr, Mutable))
    raise ImmutableAssignment(
        node.span,
        name=name,
        kind=kind(value),
        fix_text=f"declare it `mutable {name} = ...;`" if scalars else "give the new value another name",
        notes=[Note("defined here", binding.span)],
    )


def _define(r: Reader, target: ast.Name, node: ast.Expr) -> None:
    """``x = e`` for a new name: an alias of a view, a shape's element, a tuple, a scalar."""
    if isinstance(node, ast.SpanList):
        raise WrongValue(
            node.span,
            what=f"`{target.text} =`",
            got="a shape in brackets",
            wanted="`:` before a shape, braces for a tuple",
            fix_text=f"write `{target.text} : [...]` for a shape, `{target.text} = {{...}}` for a tuple",
        )
    value = lane_matrix(r, node, target.text) if isinstance(node, ast.LaneMatrix) else r.value(node)
    if isinstance(value, Word):
        raise KINDS["scalar"].refused(f"`{target.text} =`", kind(value), node.span)
    if isinstance(value, (Bounded, Expr, Mutable)):
        plain = value.var if isinstance(value, Mutable) else value
        value = stored(r, target.text, plain, None, False)
    else:
        value = snapshot(r, target.text, value)
    r.scopes.define(target.text, value, target.span)


def _define_result(r: Reader, node: ast.Statement, target: ast.Name) -> None:
    """``f = dma.copy ..``, ``mc = mma.fill ..``: the name of an operation's result."""
    if isinstance(node, ast.Copy) and r.inside_parallel:
        _check_new(r, target, "the future of a copy")
    elif isinstance(node, ast.CallStatement) and r.inside_parallel:
        raise no_result(node, target.text)
    value = r.result(node, name=target.text)
    binding = r.scopes.find(target.text)
    if value is None or (binding is not None and isinstance(value, FragmentValue) and binding.value == value):
        return
    r.scopes.define(target.text, value, target.span)


def _check_new(r: Reader, target: ast.Name, what: str) -> None:
    binding = r.scopes.find(target.text)
    if binding is None or isinstance(binding.value, Promise):
        return
    if isinstance(binding.value, FutureValue) and binding.span != target.span:
        raise NotBuiltYet(
            target.span,
            what=f"giving `{target.text}`, {what}, a new copy",
            fix_text="declare the buffer (`shared f16 [h, w] s;`) and copy into it: `dma.copy src => s`",
            notes=[Note("the first copy", binding.span)],
        )
    raise Redefinition(target.span, name=target.text, notes=[Note("the first definition", binding.span)])


@reads(ast.Evaluate, inside="an expression")
def evaluate(r: Reader, node: ast.Evaluate) -> None:
    """An expression for its effect."""
    value = node.value
    if isinstance(value, ast.Step) and isinstance(value.target, ast.Member) and value.target.name == "at":
        one = ast.Int(1, span=value.span)
        step = ast.Assign(value.target, one, "+" if value.sign > 0 else "-", span=node.span)
        _assign_element(r, step, value.target)
        return
    name = value.function.text if isinstance(value, ast.Call) and isinstance(value.function, ast.Name) else ""
    if isinstance(value, ast.LaneMatrix) and value.name == "store_matrix_d":
        lane_store(r, value)
        return
    if isinstance(value, ast.Call) and name in r.device_functions:
        from tilemma.croqtile.inlining import inlined  # most files have none

        inlined(r, name, value.args, node.span)
        return
    if isinstance(value, ast.Call) and name in EFFECTS:
        FUNCTIONS[name](r, value, name, used=False)
        return
    r.value(value)
    if not isinstance(value, ast.Step):
        raise SideEffect(node.span, what="a value that nothing uses", where="a statement")
