"""Control as Python functions: each opens a block of the kernel being traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal

from tilemma.errors import Span
from tilemma.ir.builder import Builder
from tilemma.ir.checks import checked_indices, checked_start, checked_step, checked_stop
from tilemma.ir.constructs import CHOICES, LIMITS
from tilemma.ir.expr import Expr, const
from tilemma.ir.program_points import reads
from tilemma.ir.refusals import MisplacedJump, SideEffect, WrongValue
from tilemma.ir.tile import Break, Continue, Declare
from tilemma.ir.tiles import Bounded, Unlooped, extent_of, scalar
from tilemma.ir.types import CLUSTER, Level
from tilemma.lang import spans
from tilemma.lang.pipeline import Pipeline, loop_settings
from tilemma.lang.scalars import Value, article, boolean, constant_operand, flag, integer, refused
from tilemma.lang.tracing import builder, check_caller, trace
from tilemma.lang.views import TileValue


def level_of(name: Any, span: Span | None, operand: str) -> Level:
    """The level called ``name``, which stands for the ``operand`` of the table in `ir.constructs`."""
    try:
        level = Level.parse(str(name))
    except ValueError:
        raise CHOICES[operand].refused(str(name), span) from None
    if level.kind == "device" and operand != "fence":
        raise CHOICES[operand].refused(str(name), span)
    return level


def names_of(count: int, prefix: str) -> tuple[str, ...]:
    """The names that the program binds to the results of this call, else ``prefix`` and a number."""
    bound = spans.bound_names()
    return bound if len(bound) == count else tuple(f"{prefix}{i}" for i in range(count))


def _extents(given: tuple[Any, ...], what: str, span: Span | None) -> list[Bounded | Expr]:
    flat = [x for e in given for x in (e if isinstance(e, (tuple, list)) else (e,))]
    if not flat:
        raise WrongValue(
            span,
            what=f"`{what}`",
            got="no extents",
            wanted="an extent for each index",
            fix_text=f"write `{what}(n)`",
        )
    LIMITS["rank"].checked(len(flat), f"`{what}`", span)
    found = []
    for x in flat:
        if isinstance(x, TileValue):
            raise refused("extent", what, f"`{x}`, a tile", f"write `{what}(*{x}.shape)`")
        if isinstance(x, (str, range)):
            options = f"start={x.start}, step={x.step}" if isinstance(x, range) else f'level="{x}"'
            plain = isinstance(x, range) and (x.start, x.step) == (0, 1)
            form = f"{what}({x.stop if isinstance(x, range) else 'n'}{'' if plain else ', ' + options})"
            raise refused("extent", what, article(x), f"write `{form}`")
        found.append(integer(x, what))
    return found


def parallel(
    *extents: Any,
    level: str | None = None,
    async_: bool = False,
    cooperative: bool = False,
    min_blocks: int | None = None,
    max_registers: int | None = None,
    overlap: bool | Literal["before"] = False,
    drained: bool = False,
) -> Iterator[Any]:
    """``for i, j in parallel(a, b, level="block"):`` runs the body once for each (i, j), all at once.

    ``level`` is "cluster" (or "cluster-grid": around the blocks of one cluster), "cluster-rank" (around the whole
    grid, whose neighbours form clusters; the index is a block's rank among them), "block", "group-4" (a
    warpgroup), "group" (a warp), "group-N" or "thread"; without one it is inferred: the outermost is block, the
    innermost thread.  ``overlap``, at the outermost level: blocks start while the kernel before them on
    the stream ends, set up events, and wait for its end before they touch memory (sm_90 and later; elsewhere it
    has no effect).  With "before", the blocks of the next kernel do not start while these run: the GPU then places
    neighbouring blocks beside each other, not where the first of these end.  ``drained``, of a cluster: each
    block has waited for whatever the others do to its shared memory and events when it ends, so that no barrier
    of the cluster is needed there.
    """
    b = builder("parallel")
    check_caller("parallel", "for i in parallel(n):")
    span = b.span
    ranked = level == "cluster-rank"
    grouped = ranked or level == "cluster-grid"
    lv = CLUSTER if grouped else None if level is None else level_of(level, span, "level")
    sizes = _extents(extents, "parallel", span)
    checked_indices(len(sizes), span)
    names = names_of(len(sizes), "p")
    options: dict[str, Any] = {
        "asynchronous": flag(async_, "async_"),
        "cooperative": flag(cooperative, "cooperative"),
    }
    before = isinstance(overlap, str) and overlap == "before"
    options["overlap"] = "before" if before else flag(overlap, "overlap", "before")
    if options["overlap"] and b.inside_parallel:
        raise WrongValue(
            span,
            what="`parallel(overlap=)`",
            got="a level inside another",
            wanted="the outermost level of a kernel, which is launched",
            fix_text="give it to the outermost `parallel`",
        )
    options["drained"] = flag(drained, "drained")
    for name, value in (("min_blocks", min_blocks), ("max_registers", max_registers)):
        options[name] = None if value is None else constant_operand(value, name.replace("_", "-"))

    def run() -> Iterator[Any]:
        opened = b.ranked_cluster(names, sizes, span=span, **options) if ranked else None
        with opened or b.parallel(names, sizes, lv, span=span, **options) as indices:
            yield _one_or_tuple(indices)

    return run()


def _one_or_tuple(indices: tuple[Bounded, ...]) -> Any:
    values = tuple(Value(i) for i in indices)
    return values[0] if len(values) == 1 else values


def foreach(
    *extents: Any,
    start: Any = 0,
    stop: Any = None,
    step: Any = 1,
    unroll: bool | int = False,
    pipeline: Pipeline | Literal[False] | None = None,
) -> Iterator[Any]:
    """``for i in foreach(n):`` loops when the kernel runs; several extents nest, the last innermost.

    ``start``, ``stop`` and ``step`` are for a single extent; the index stays bounded by it.  An index as the
    extent is replaced by its value, one of `bound`, which has no loop, by its bound.  ``pipeline``: how the
    innermost loop is pipelined; False: it is not.
    """
    b = builder("foreach")
    check_caller("foreach", "for k in foreach(n):")
    span = b.span
    sizes = [_steady(b, extent_of(x)) for x in _extents(extents, "foreach", span)]
    names = names_of(len(sizes), "k")
    ranged = not (isinstance(start, int) and start == 0 and stop is None and isinstance(step, int) and step == 1)
    if ranged and len(sizes) != 1:
        raise WrongValue(
            span,
            what="`foreach`",
            got=f"a range and {len(sizes)} extents",
            wanted="one extent with `start`, `stop` and `step`",
            fix_text="nest the loops",
        )
    first, pace = (_steady(b, scalar(integer(x, f"foreach({w}=)"))) for x, w in ((start, "start"), (step, "step")))
    end = None if stop is None else _steady(b, scalar(integer(stop, "foreach(stop=)")))
    checked_step(pace, span)
    checked_start(first, span)
    if end is not None:
        checked_stop(end, sizes[0], span)
    settings = loop_settings(pipeline)
    times = None if unroll is False else 0 if unroll is True else constant_operand(unroll, "unroll")

    def run(i: int, outer: tuple[Bounded, ...]) -> Iterator[Any]:
        if i == len(sizes):
            yield _one_or_tuple(outer)
            return
        options: dict[str, Any] = {"unroll": times, "pipeline": settings if i == len(sizes) - 1 else None}
        with b.foreach(names[i], sizes[i], start=first, stop=end, step=pace, span=span, **options) as k:
            yield from run(i + 1, (*outer, k))

    return run(0, ())


def _steady(b: Builder, e: Expr) -> Expr:
    """``e`` as Python evaluates a loop's limits: once, before the first iteration."""
    if not reads(e) - b.fixed:
        return e
    var = b.fix(e)
    b.emit(Declare(var, e))
    return var


def bound(n: Any) -> Value:
    """A bounded value that is 0 until a `foreach` loops over it (``with k in n``)."""
    builder("bound")
    return Value(Unlooped(const(0), extent_of(integer(n, "bound"))))


def if_(cond: Any) -> AbstractContextManager[None]:
    """``with if_(c):`` the block runs where ``c`` holds; `else_` may follow."""
    b = builder("if_")
    check_caller("if_", "with if_(c):")
    return b.if_(boolean(cond, "if_"), span=b.span)


def else_() -> AbstractContextManager[None]:
    """``with else_():`` directly after the block of its `if_`."""
    b = builder("else_")
    check_caller("else_", "with else_():")
    return b.else_(span=b.span)


def while_(cond: Callable[[], Any]) -> AbstractContextManager[None]:
    """``with while_(lambda: x < n):`` repeats the block; each iteration evaluates the lambda, traced once."""
    b = builder("while_")
    check_caller("while_", "with while_(lambda: c):")
    running = trace()
    assert running is not None
    if not callable(cond) or isinstance(cond, Value):
        raise WrongValue(
            b.span,
            what="`while_`",
            got="a value",
            wanted="a function of no arguments: the condition is evaluated again for each iteration",
            fix_text="write `while_(lambda: ...)`",
        )
    span, outer = b.span, running.pure
    running.pure = True
    try:
        with b.repeated():
            start = b.point()
            condition = boolean(cond(), "while_")
            end = b.point()
    finally:
        running.pure = outer
    # The value of a name that was bound before may have been stored there now.
    if b.emitted_since(start):
        # It would run once, before the loop.
        where = "the condition of `while_`"
        raise SideEffect(end.body[-1].span or span, what="a statement", where=where)
    return b.while_(condition, span=span)


def inthreads(cond: Any, *, async_: bool = False) -> AbstractContextManager[None]:
    """``with inthreads(wg == 0):`` only those threads take part; with ``async_`` they play a role of their own."""
    b = builder("inthreads")
    check_caller("inthreads", "with inthreads(c):")
    return b.inthreads(boolean(cond, "inthreads"), flag(async_, "async_"), span=b.span)


def break_() -> None:
    """Leave the innermost `foreach` or `while_` when the kernel comes here."""
    _jump("break_", Break())


def continue_() -> None:
    """Continue with the next iteration of the innermost `foreach` or `while_`."""
    _jump("continue_", Continue())


def _jump(name: str, op: Break | Continue) -> None:
    b = builder(name)
    if not b.in_loop:
        raise MisplacedJump(b.span, word=name)
    b.emit(op)
