"""The operands of the language that are known at compile time: their legal values, in both languages.

Both front ends check them here, with the same errors, and docs/language.md shows the table.  The legal values do
not depend on the target: a limit that holds on every target is in the table, and the passes for an architecture
refuse values beyond its own limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilemma.arithmetic import integers
from tilemma.arithmetic.integers import DIVISIONS
from tilemma.dtypes import DType, promote
from tilemma.errors import CompileError, Span, described, is_text_source, nearest, spelled
from tilemma.ir.expr import BinaryOp, Const, Expr, value_of
from tilemma.ir.ranges import interval
from tilemma.ir.tiles import Scalarlike, Tile, describe, scalar
from tilemma.records import record


class WrongValue(CompileError):
    code = "wrong-value"
    found = "{what} got {got}"
    expected = "{wanted}"
    fix = "{fix_text}"


class NotConstant(CompileError):
    code = "not-constant"
    found = "{what} is `{text}`, which is not known when compiled"
    expected = "a constant"
    fix = "use a number, a `#define`, or arithmetic on them"
    python_fix = "pass a number, or a compile-time keyword of the kernel"


class OutOfRange(CompileError):
    code = "index-out-of-range"
    found = "index {index} of `{name}`, whose extent there is {extent}"
    expected = "0 to {last}"
    fix = "{fix_text}"


class ConstantOverflow(CompileError):
    code = "constant-overflow"
    found = "the constant {value} does not fit in {dtype}"
    expected = "constants within the range of their type"
    fix = "use smaller numbers, or 64-bit ones (suffix `ll`)"
    python_fix = "use smaller numbers, or a wider element type"


class ConstantDivision(CompileError):
    code = "constant-division"
    found = "{what} in a constant expression"
    expected = "a divisor other than 0, a shift by less than the width of the type"
    fix = "check the constants (and `#define`s) of this expression"
    python_fix = "check the numbers and the compile-time values of this expression"


@record
class Operand:
    """An integer known when compiled.

    ``croqtile`` and ``python``: where it stands, as ``N`` (Croqtile "": it has no such operand).  It lies in
    ``low .. high`` (None: no limit here), or is one of ``choices``.  ``total``: the limit for the product of
    several.  ``usual``: a value that stands in advice.
    """

    name: str
    meaning: str
    croqtile: str
    python: str
    low: int = 0
    high: int | None = None
    choices: tuple[int, ...] = ()
    total: int | None = None
    usual: int = 1

    @property
    def wanted(self) -> str:
        if self.choices:
            return "one of " + ", ".join(map(str, self.choices))
        return f"at least {self.low}" if self.high is None else f"{self.low} to {self.high}"

    def admits(self, value: int) -> bool:
        if self.choices:
            return value in self.choices
        return self.low <= value and (self.high is None or value <= self.high)

    def form(self, span: Span | None) -> str:
        """Where it stands, in the language of the program at ``span``."""
        return self.croqtile if is_text_source(span) else self.python

    def example(self, span: Span | None) -> str:
        return self.form(span).replace("N", str(self.usual))

    def refused(self, got: str, span: Span | None, wanted: str | None = None) -> WrongValue:
        """The error for a value that it cannot have."""
        return WrongValue(
            span,
            what=f"`{self.form(span)}`",
            got=got,
            wanted=f"{wanted or self.wanted}: {self.meaning}",
            fix_text=f"write `{self.example(span)}`, for instance",
        )

    def checked(self, value: int, span: Span | None) -> int:
        """``value``; WrongValue where the operand cannot have it."""
        if not self.admits(value):
            raise self.refused(str(value) if abs(value) < 2**64 else described(value), span)
        return value

    def checked_all(self, values: Sequence[int], span: Span | None) -> tuple[int, ...]:
        """``values``, of which none and not all together pass the limit."""
        found = tuple(self.checked(v, span) for v in values)
        if self.total is not None and prod(found) > self.total:
            raise self.refused(f"{prod(found)} in all", span, f"at most {self.total} in all")
        return found


@record
class Choice:
    """One of a few words.  ``croqtile`` and ``python``: where it stands, as ``W``."""

    name: str
    meaning: str
    croqtile: str
    python: str
    words: tuple[str, ...]

    def refused(self, got: str, span: Span | None) -> WrongValue:
        """The error for another word, with the nearest of those that may stand there."""
        form = self.croqtile if is_text_source(span) else self.python
        near = nearest(got, self.words)
        word = form.replace("W", near or self.words[-1])
        return WrongValue(
            span,
            what=f"`{form}`",
            got=f"`{got}`",
            wanted=f"one of {', '.join(self.words)}: {self.meaning}",
            fix_text=f"did you mean `{near}`? write `{word}`" if near else f"write `{word}`, for instance",
        )


CHOICES = {
    c.name: c
    for c in (
        Choice(
            "level",
            "who executes the body; N is a number of warps",
            ": W",
            'level="W"',
            ("cluster", "block", "group-N", "group-4", "group", "thread"),
        ),
        Choice(
            "waiting",
            "whose threads wait for each other, or see what was written",
            "sync.barrier : W",
            'sync.barrier("W")',
            ("cluster", "block", "group-N", "group-4", "group", "thread"),
        ),
        Choice("evict", "what the cache gives up", ".evict_W", 'evict="W"', ("first", "last")),
        Choice("to", "where the copy's new buffer stands", "=> W", 'to="W"', ("local", "shared")),
    )
}
SWIZZLES = {0: 0, 1: 32, 2: 64, 3: 128, 32: 32, 64: 64, 128: 128}

OPERANDS = {
    o.name: o
    for o in (
        Operand("pending", "batches of multiplies that still run", "mma.wait<N>", "mma.wait(N)", 0, 7, usual=0),
        Operand(
            "swizzle",
            "the width of the swizzle in bytes, or 1, 2, 3 for these widths, or 0 for none",
            ".swiz<N>",
            "swizzle=N",
            choices=tuple(SWIZZLES),
            usual=128,
        ),
        Operand(
            "promote",
            "bytes that the cache fetches at once",
            ".promote<N>",
            "promote=N",
            choices=(64, 128, 256),
            usual=128,
        ),
        Operand("copies", "buffers of an array", "s[N]", "copies=N", 1, 4096, total=4096, usual=2),
        Operand("tiles", "register tiles of an array", "mc[N]", "copies=N", 1, 256, total=256, usual=2),
        Operand("extent", "an extent of a buffer", "shared f16 [N]", 'shared("f16", N)', 1, usual=64),
        Operand(
            "fragment-extent", "rows or columns of a register tile", "f32[N, 64] p", '"f32", N, 64', 1, usual=64
        ),
        Operand("slots", "events of a ring", "event e[N]", "event(N)", 1, 4096, usual=2),
        Operand(
            "threads", "triggers that complete a generation", "event<N>", "event(threads=N)", 1, 4096, usual=128
        ),
        Operand("unroll", "copies of the loop's body", "unroll(N)", "unroll=N", 1, 4096, usual=4),
        Operand("vectorize", "elements that an iteration handles", "vectorize(i, N)", "", 1, 4096, usual=4),
        Operand(
            "min-blocks",
            "blocks that a multiprocessor holds at once; none holds more than 32",
            "launch_bounds(_, N)",
            "min_blocks=N",
            1,
            32,
        ),
        Operand(
            "max-registers",
            "registers of a thread; none has more than 255",
            "maxnreg(N)",
            "max_registers=N",
            1,
            255,
            usual=128,
        ),
        Operand("start", "the first index; an index is never negative", "(N:)", "start=N", 0, usual=0),
        Operand("step", "the distance from one index to the next", "(::N)", "step=N", 1, usual=1),
        Operand("padding", "elements added to a dimension", "{N, 0}", "(N, 0)"),
    )
}  # fmt: skip


def checked_start(start: Expr, span: Span | None) -> Expr:
    """The first index of a loop; WrongValue for one that is known to be negative."""
    if isinstance(start, Const) and interval(start)[0] < 0:
        raise OPERANDS["start"].refused(str(start.value), span)
    return start


def checked_stop(stop: Expr, extent: Expr, span: Span | None) -> Expr:
    """Where a loop ends; WrongValue where that is known to lie beyond its extent."""
    end, limit = value_of(stop), value_of(extent)
    if end is not None and limit is not None and end > limit:
        raise WrongValue(
            span,
            what="the end of a range",
            got=str(end),
            wanted=f"at most {limit}, the extent: the index stays below it",
            fix_text=f"make the extent {end}",
        )
    return stop


def checked_step(step: Expr, span: Span | None) -> Expr:
    """The distance between indices; WrongValue for one that may be less than 1."""
    if interval(step)[0] >= 1:
        return step
    known = value_of(step)
    larger = "__max" if is_text_source(span) else "tm.math.max"
    raise WrongValue(
        span,
        what="the step of a range",
        got=f"`{describe(step)}`, known when the kernel runs, which may be less" if known is None else str(known),
        wanted="a value that is certainly at least 1",
        fix_text=f"count upwards, and compute the index from the counter; or write `{larger}(step, 1)`",
    )


def checked_index(e: Expr, what: str, span: Span | None) -> Expr:
    """An index or extent; WrongValue for a constant that no index can have."""
    known = value_of(e)
    if known is not None and not -(2**31) <= known < 2**31:
        raise WrongValue(
            span,
            what=what,
            got=str(known),
            wanted="an index or extent below 2**31",
            fix_text="use smaller numbers; offsets in memory are 64-bit by themselves",
        )
    return e


def checked_subscript(e: Expr, count: Expr | int, name: str, span: Span | None) -> Expr:
    """The index of one of ``count`` things of ``name``; OutOfRange for a constant that lies outside."""
    known, extent = value_of(e), value_of(count)
    if known is None or (known >= 0 and (extent is None or known < extent)):
        return e
    fix = "" if extent is None else f"use an index from 0 to {extent - 1}"
    if known < 0:
        last = spelled(span, "x.span(0) - 1", "x.shape[0] - 1")
        fix = f"{fix or 'count from 0'}; the last one of an array `x` is `{last}`"
    raise OutOfRange(
        span,
        index=known,
        name=name,
        extent="not known when compiled" if extent is None else extent,
        last="the extent - 1" if extent is None else extent - 1,
        fix_text=fix,
    )


def checked_element(tile: Tile, indices: Sequence[Scalarlike], span: Span | None) -> None:
    """OutOfRange where a constant among ``indices`` is none of an element of ``tile``."""
    view = tile.settle().view
    for axis, i in zip(view.axes, indices, strict=False):
        checked_subscript(scalar(i), axis.extent, view.base.name, span)


def checked_division(op: BinaryOp, a: Expr, b: Expr, span: Span | None) -> None:
    """ConstantDivision for integers divided by a literal 0, and for a literal shifted by its width or more.

    Computed operands pass, even if they fold to a number: the validity of ``n / (p % N)`` does not depend on N.
    """
    both = promote(a.type, b.type)
    if both.is_float or not (isinstance(b, Const) and b.literal):
        return
    if op in DIVISIONS and b.value == 0:
        raise ConstantDivision(span, what="a division by zero")
    if op in ("shl", "shr") and isinstance(a, Const) and a.literal and not 0 <= b.value < both.bits:
        raise ConstantDivision(span, what=f"a shift of {both} by {b.value}")


def checked_fit(e: Expr, dtype: DType, span: Span | None) -> Expr:
    """``e``, of which a value of ``dtype`` is made; ConstantOverflow for an integer beyond its range."""
    if isinstance(e, Const) and e.dtype.is_integer and dtype.is_integer and not integers.fits(e.value, dtype):
        value = int(e.value)
        short = str(value) if value.bit_length() <= 128 else f"of {value.bit_length()} bits"
        raise ConstantOverflow(span, value=short, dtype=dtype.name)
    return e
