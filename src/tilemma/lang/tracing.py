"""The kernel being traced, the lifetime of its values, and the errors of using them elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from types import CodeType, FrameType

from tilemma.errors import CompileError
from tilemma.ir.builder import Builder
from tilemma.ir.element_work import Visited
from tilemma.ir.expr import Element, Expr, FragmentElement, Index, Var, walk
from tilemma.ir.program_points import ProgramPoint, reads
from tilemma.ir.refusals import ExpressionTooLarge
from tilemma.ir.tile import Declare
from tilemma.ir.tiles import describe
from tilemma.ir.types import Space
from tilemma.lang.spans import Position, caller_span, position, user_frame
from tilemma.records import record

# Larger expressions are computed once, into a variable.
MAX_OPERATIONS = 100
MAX_HOST_OPERATIONS = 1000


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


class LeftItsBlock(CompileError):
    code = "left-its-block"
    found = "`{text}` is used outside the loop or block that it belongs to"
    expected = "values used where they are made, or in blocks inside"
    fix = "carry it out in a `var(...)` made before the block, or through memory"


class NotABlock(CompileError):
    code = "not-a-block"
    found = "`{name}(...)` is called where it opens no block"
    expected = "`{form}`, by its own name"
    fix = "write `{form}` and put its statements inside: only source text that is available can be checked"


@record(frozen=False, eq=False)
class Trace:
    """``builder`` collects the operations.  ``headers``: for each function whose text has been checked, where
    in it the calls that open traced blocks stand; ``check`` does that for another function.

    ``visiting``: inside `apply`, the indices of the element visited and the name of the tile.  ``pure``: a
    condition is being read that the kernel evaluates again and again.
    """

    builder: Builder
    check: Callable[[FrameType], frozenset[Position]]
    headers: dict[CodeType, frozenset[Position]] = field(default_factory=dict)
    visiting: Visited | None = None
    pure: bool = False


_TRACE: ContextVar[Trace | None] = ContextVar("tilemma_trace", default=None)


def trace() -> Trace | None:
    """The trace that is running, if any."""
    return _TRACE.get()


def builder(name: str) -> Builder:
    """The builder of the kernel being traced, its span set to the user's call; OutsideKernel without one."""
    running = _TRACE.get()
    span = caller_span()
    if running is None:
        raise OutsideKernel(span, name=name)
    b = running.builder
    if span is not None:
        b.span = span
    return b


def check_caller(name: str, form: str) -> None:
    """The running call, which opens a block in a checked function; NotABlock otherwise."""
    running, frame = _TRACE.get(), user_frame()
    assert running is not None
    if frame is None:
        return
    code = frame.f_code
    if code not in running.headers:
        running.headers[code] = running.check(frame)
    place = position(frame)
    if place is not None and place not in running.headers[code]:
        raise NotABlock(caller_span(), name=name, form=form)


@contextmanager
def tracing(running: Trace) -> Iterator[None]:
    token = _TRACE.set(running)
    try:
        yield
    finally:
        _TRACE.reset(token)


# ---- the values of Python names --------------------------------------------------------------------------------


def local(e: Expr) -> bool:
    """Whether ``e`` depends on a declaration inside some block."""
    return any(isinstance(x, (Index, Var, Element, FragmentElement)) for x in walk(e))


def stay_open(e: Expr, point: ProgramPoint | None) -> None:
    """LeftItsBlock when ``e`` belongs to a block that has been closed since ``point``."""
    running = _TRACE.get()
    if running is not None and point is not None and not running.builder.is_open(point) and local(e):
        raise LeftItsBlock(caller_span(), text=describe(e))


def same(e: Expr, point: ProgramPoint | None) -> Expr:
    """``e`` with its value at ``point``, when Python evaluated it: read there into a variable if it may
    have changed since.  LeftItsBlock when the block it belongs to has been closed."""
    running = _TRACE.get()
    stay_open(e, point)
    if running is None or point is None:
        return e
    b = running.builder
    names = reads(e) - b.fixed
    if not names or not b.is_open(point) or not b.may_differ(names, point, _sees_others(e)):
        return e
    var = b.fix(e)
    b.insert(point, (Declare(var, e, span=caller_span() or b.span),))
    return var


def _sees_others(e: Expr) -> bool:
    """Whether other threads can write what ``e`` reads."""
    return any(isinstance(x, Element) and x.view.base.space is not Space.LOCAL for x in walk(e))


def bounded_size(e: Expr) -> Expr:
    """``e``, or a variable that holds it if it has become large."""
    running = _TRACE.get()
    if running is None:
        return e
    b = running.builder
    room = MAX_OPERATIONS if b.inside_parallel and not running.pure else MAX_HOST_OPERATIONS
    if len(walk(e)) <= room + 1:
        return e
    if not b.inside_parallel or running.pure:
        where = " in a condition that is evaluated again and again" if running.pure else " outside `parallel`"
        raise ExpressionTooLarge(caller_span(), limit=room, where=where)
    var = b.fix(e)
    b.emit(Declare(var, e, span=caller_span() or b.span))
    return var
