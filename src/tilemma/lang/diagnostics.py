"""`print` and `assert`."""

from __future__ import annotations

from typing import Any

from tilemma.ir.checks import checked_text
from tilemma.ir.expr import Expr
from tilemma.ir.refusals import AssertionFails, WrongValue
from tilemma.lang.scalars import article, boolean, operand
from tilemma.lang.tracing import builder


def print_(*parts: Any, end: str = "\n") -> None:
    """Print strings and values when the kernel runs, one after the other."""
    b = builder("print")
    items: list[str | Expr] = []
    for p in parts:
        if isinstance(p, (tuple, list)):
            items += [x for i, e in enumerate(p) for x in (", " if i else "[", operand(e, "print"))]
        items.append("]" if isinstance(p, (tuple, list)) else p if isinstance(p, str) else operand(p, "print"))
    if not isinstance(end, str):
        raise WrongValue(
            b.span, what="`print(end=)`", got=article(end), wanted="a string", fix_text='write `end=""`'
        )
    if end not in ("\n", ""):
        items.append(end)
    b.print_(items, newline=end == "\n")


def assert_(cond: Any, message: str = "") -> None:
    """Stop with ``message`` where ``cond`` does not hold when the kernel runs."""
    b = builder("assert_")
    if not isinstance(message, str):
        raise WrongValue(
            b.span,
            what="the message of `assert_`",
            got=article(message),
            wanted="a string",
            fix_text="pass a string",
        )
    e = boolean(cond, "assert_")
    known = getattr(e, "value", None)
    if known is not None:
        if not known:
            raise AssertionFails(b.span, message=message or "no message")
        return
    b.check(e, checked_text(message, "`assert_`", b.span))
