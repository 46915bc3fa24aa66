"""`print` and `assert`."""

from __future__ import annotations

from tilemma.croqtile import ast
from tilemma.croqtile.operands import condition_of, plain
from tilemma.croqtile.reader import Reader, reads
from tilemma.croqtile.values import SpanValue, TupleValue
from tilemma.errors import Note
from tilemma.ir import tile as t
from tilemma.ir.checks import checked_text
from tilemma.ir.expr import Const, Expr
from tilemma.ir.refusals import AssertionFails
from tilemma.ir.tiles import describe, scalar


@reads(ast.Print)
def print_(r: Reader, node: ast.Print) -> None:
    parts: list[str | Expr] = []
    for a in node.args:
        if isinstance(a, ast.Str):
            parts.append(a.value)
            continue
        value = r.value(a)
        if isinstance(value, (SpanValue, TupleValue)):
            items = value.dims if isinstance(value, SpanValue) else value.items
            for i, x in enumerate(items):
                parts += [", " if i else "[", scalar(x)]
            parts.append("]")
        else:
            parts.append(plain(r, a, "`print`"))
    if node.compile_time:
        text = "".join(p if isinstance(p, str) else describe(p) for p in parts)
        r.notes.append(Note(text, node.span))
    else:
        r.b.print_(parts, node.newline)


@reads(ast.Assert)
def assert_(r: Reader, node: ast.Assert) -> None:
    with r.without_effects("an assertion"):
        cond = condition_of(r, node.cond, "`assert`")
    if isinstance(cond, Const):
        if not cond.value:
            raise AssertionFails(node.span, message=node.message or "no message")
        return
    r.b.emit(t.Assert(cond, checked_text(node.message, "`assert`", node.span)))
