"""The kernel being traced, and the errors of using its values outside or as Python values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tilemma.errors import CompileError
from tilemma.ir.builder import Builder
from tilemma.lang.spans import caller_span

_BUILDER: ContextVar[Builder | None] = ContextVar("tilemma_builder", default=None)


class OutsideKernel(CompileError):
    code = "outside-kernel"
    found = "`{name}` is called outside a kernel"
    expected = "a call from a function under `@tm.kernel`, while it is being traced"
    fix = "move it into a kernel, and call the kernel with arrays"


class BoolOfTraced(CompileError):
    code = "bool-of-traced-value"
    found = "Python asks whether `{text}` is true while the kernel is traced"
    expected = "a condition known when compiled: the value is only known when the kernel runs"
    fix = "{fix_text}"


class PythonNumber(CompileError):
    code = "traced-value-as-python-number"
    found = "Python asks for the number `{text}` while the kernel is traced"
    expected = "a value known when compiled: this one is only known when the kernel runs"
    fix = "use `foreach` instead of `range`, a compile-time keyword for sizes, `select` for choices"


class WrongOperand(CompileError):
    code = "wrong-operand"
    found = "`{what}` got {got}"
    expected = "{wanted}"
    fix = "{fix_text}"


def builder(name: str) -> Builder:
    """The builder of the kernel being traced, its span set to the user's call; OutsideKernel without one."""
    b = _BUILDER.get()
    span = caller_span()
    if b is None:
        raise OutsideKernel(span, name=name)
    if span is not None:
        b.span = span
    return b


@contextmanager
def tracing(b: Builder) -> Iterator[None]:
    token = _BUILDER.set(b)
    try:
        yield
    finally:
        _BUILDER.reset(token)
