"""Checks of operands, shared by both front ends, the passes and the CPU reference: ranges, indices, divisors,
constants that fit, metadata and scales of a multiply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from tilemma.arithmetic import integers, sparsity
from tilemma.arithmetic.convert import constant
from tilemma.arithmetic.integers import DIVISIONS
from tilemma.dtypes import DType, promote, u8, u16, u32
from tilemma.errors import CompileError, Span, is_text_source, spelled
from tilemma.ir.constructs import LIMITS, OPERANDS
from tilemma.ir.expr import BinaryOp, Const, Expr, value_of
from tilemma.ir.ranges import interval
from tilemma.ir.refusals import WrongArity, WrongValue
from tilemma.ir.tiles import Scalarlike, Tile, describe, scalar, shape_text
from tilemma.ir.types import Contract


class OutOfRange(CompileError):
    code = "index-out-of-range"
    found = "index {index} of `{name}`, whose extent there is {extent}"
    expected = "0 to {last}"
    fix = "{fix_text}"


class ConstantOverflow(CompileError):
    code = "constant-overflow"
    found = "the constant {value} does not fit in {dtype}"
    expected = "constants within the range of their type"
    fix = "use smaller numbers, or a wider type: `s64`, for a number the suffix `ll`"
    python_fix = "use smaller numbers, or a wider element type"


class ConstantValue(CompileError):
    code = "constant-value"
    found = "the constant {value} is no value of {dtype}"
    expected = "{wanted}"
    fix = "write a number that {dtype} holds, or use a type that holds {value}"


class ConstantDivision(CompileError):
    code = "constant-division"
    found = "{what} in a constant expression"
    expected = "a divisor other than 0, a shift by less than the width of the type"
    fix = "check the constants (and `#define`s) of this expression"
    python_fix = "check the numbers and the compile-time values of this expression"


class SparseMetadata(CompileError):
    code = "sparse-metadata"
    found = "`mma.{contract}.sp` of A {a} of {dtype} got metadata {meta} of {type}"
    expected = "{rule}"
    fix = "{remedy}"


class ScaleShape(CompileError):
    code = "scale-shape"
    found = "a scale {shape} for {what}"
    expected = "{wanted} (docs/language.md, Scales)"
    fix = "cut it to one of these shapes, such as `subspan({first}).at(i, j)`"


def checked_text(text: str, what: str, span: Span | None) -> str:
    """WrongValue for a text to be printed that has a NUL: `vprintf` and `__assertfail` end it there."""
    if "\0" in text:
        raise WrongValue(
            span, what=what, got="a text with a NUL character", wanted="a text without it", fix_text="leave it out"
        )
    return text


def checked_indices(count: int, span: Span | None) -> None:
    """WrongArity for a `parallel` of more indices than a grid has."""
    most = LIMITS["indices"].most
    if count > most:
        want = f"at most {most}: compute more indices from one, {spelled(span, '`i / n`', '`i // n`')} and `i % n`"
        form = spelled(span, "by [a, b, c]", "parallel(a, b, c)")
        raise WrongArity(span, what="parallel", got=count, want=want, form=form)


def checked_start(start: Expr, span: Span | None) -> Expr:
    """The first index of a loop; WrongValue if it is a negative constant."""
    if isinstance(start, Const) and interval(start)[0] < 0:
        raise OPERANDS["start"].refused(str(start.value), span)
    return start


def checked_stop(stop: Expr, extent: Expr, span: Span | None) -> Expr:
    """The end of a loop; WrongValue if it is a constant beyond the extent."""
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
            got=known,
            wanted="an index or extent below 2**31",
            fix_text="use smaller numbers; offsets in memory are 64-bit by themselves",
        )
    return e


def checked_subscript(e: Expr, count: Expr | int, name: str, span: Span | None) -> Expr:
    """The index of one of ``count`` things of ``name``; OutOfRange for a constant outside the range."""
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


def checked_constant(e: Expr, dtype: DType, span: Span | None) -> Expr:
    """`checked_fit`, for a value that no store converts: ConstantValue for a constant that ``dtype`` cannot hold.

    An integer holds no fraction, infinity or NaN; no type holds a number beyond its largest.  A float may round a
    constant."""
    checked_fit(e, dtype, span)
    if not isinstance(e, Const) or isinstance(e.value, bool) or dtype.kind == "bool":
        return e
    value, f = e.value, dtype.format
    if f is None:
        low, high = (0, 1) if dtype.kind == "bits" else integers.bounds(dtype)
        if low <= value <= high and value == int(value):
            return e
        wanted = f"an integer from {low} to {high}"
    else:
        largest = f.largest
        if value != value:
            held = f.nan
        elif value in (math.inf, -math.inf):
            held = f.infinite and not f.saturates
        else:
            held = abs(value) <= largest or (not f.saturates and math.isfinite(constant(value, dtype)))
        if held:
            return e
        wanted = f"a number from {-largest:.6g} to {largest:.6g}"
        if f.infinite and not f.saturates:
            wanted += f", or an infinity ({spelled(span, '`inf`', '`math.inf`')})"
    raise ConstantValue(
        span, value=f"{value:.9g}" if isinstance(value, float) else value, dtype=dtype, wanted=wanted
    )


def checked_scalar(e: Expr, dtype: DType, name: str, span: Span | None) -> Expr:
    """``e``, which the scalar ``name`` of type ``dtype`` takes; WrongValue for a float that is no constant integer
    where ``dtype`` holds no floats, since the program does not specify a rounding."""
    whole = isinstance(e, Const) and float(e.value).is_integer()
    if dtype.is_float or not e.type.is_float or whole:
        return e
    convert = spelled(span, f"`__to<{dtype}>(x)`", f"`.astype('{dtype}')`")
    declare = spelled(span, f"declare the scalar `{e.type}`", f"make the variable `var(..., '{e.type}')`")
    raise WrongValue(
        span,
        what=f"`{name}`",
        got=f"a value of {e.type}",
        wanted=f"one of {dtype}, the scalar's type",
        fix_text=f"convert it: {convert}, or {declare}",
    )


def checked_metadata(
    contract: Contract, t: DType, whole: tuple[int, int], words: DType, have: tuple[int, ...], span: Span | None
) -> None:
    """SparseMetadata unless each row of A [M, K] of ``t``, ``whole``, has the ``words`` that its type requires;
    ``have`` is the shape of the metadata."""
    rows, k = whole
    refused = partial(
        SparseMetadata, span, contract=contract, a=shape_text(whole), dtype=t, meta=shape_text(have), type=words
    )
    if t.name not in sparsity.TYPES:
        raise refused(
            rule=f"A of a type with a sparse form: {', '.join(sparsity.TYPES)} ({sparsity.SECTION})",
            remedy=f"multiply the whole A without `.sp`: {t} has no sparse form",
        )
    pattern = sparsity.pattern(t)
    legal = [x for x in (u8, u16, u32) if k % sparsity.unit(t, x) == 0]
    if words in legal and have == (rows, k // sparsity.unit(t, words)):
        return
    columns = " or ".join(f"{x} {shape_text((rows, k // sparsity.unit(t, x)))}" for x in legal)
    each = ", ".join(f"{x} {sparsity.unit(t, x)}" for x in (u8, u16, u32))
    raise refused(
        rule=f"four bits for each {pattern.width} columns ({pattern.name}; {sparsity.SECTION}); "
        f"columns that a word describes: {each}",
        remedy=f"load {columns}" if columns else f"make K a multiple of {sparsity.unit(t, u8)}",
    )


# Columns of K, and of N for scales by blocks, for which a scale has one number.
SCALE_BLOCK = 128


def scale_shapes(letter: str, extent: int, k: int) -> dict[tuple[int, ...], tuple[str, ...]]:
    """The shapes that the scale of A ("A", ``extent`` is M) or of B (N) may have for a product over ``k`` columns,
    each with the meaning of its axes: "each" row or column, "block" of 128 columns of N, "k" block of K, "one"."""
    blocks, across = -(-k // SCALE_BLOCK), -(-extent // SCALE_BLOCK)
    if letter == "A":
        found: dict[tuple[int, ...], tuple[str, ...]] = {(extent, blocks): ("each", "k")}
        vectors: dict[tuple[int, ...], tuple[str, ...]] = {
            (extent, 1): ("each", "one"), (1, extent): ("one", "each"), (extent,): ("each",),
        }  # fmt: skip
    else:
        found = {(blocks, extent): ("k", "each"), (blocks, across): ("k", "block")}
        vectors = {(1, extent): ("one", "each"), (extent, 1): ("each", "one"), (extent,): ("each",)}
    single: dict[tuple[int, ...], tuple[str, ...]] = {(1,): ("one",), (1, 1): ("one", "one")}
    if blocks == 1:
        found = {s: ("one" if m[0] == "k" else m[0], "one" if m[1] == "k" else m[1]) for s, m in found.items()}
    return {**found, **vectors, **single}


def checked_scale(
    letter: str, shape: Sequence[int | Expr], extent: int, k: int, span: Span | None
) -> tuple[str, ...]:
    """The meaning of the axes of a scale of ``shape``; ScaleShape if it is none of `scale_shapes`.

    Axes of one element beyond the second are left out.
    """
    legal = scale_shapes(letter, extent, k)
    have: Any = tuple(shape)
    if len(have) > 2:
        have = tuple(n for n in have if n != 1)
    if have not in legal:
        wanted = [shape_text(s) for s in legal]
        what = f"{extent} {'rows' if letter == 'A' else 'columns'} and {k} of K"
        first = ", ".join(map(str, next(iter(legal))))
        raise ScaleShape(span, shape=shape_text(shape), what=what, wanted=" or ".join(wanted), first=first)
    return legal[have]
