"""Errors that both front ends raise, so that one mistake has one code in both languages."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.errors import CompileError, Span, nearest, spelled


class WrongValue(CompileError):
    code = "wrong-value"
    found = "{what} got {got}"
    expected = "{wanted}"
    fix = "{fix_text}"


class NotATile(WrongValue):
    code = "not-a-tile"
    found = WrongValue.found
    expected = WrongValue.expected
    fix = WrongValue.fix


class NoKernel(CompileError):
    code = "no-kernel"
    found = "`{file}` {problem}"
    expected = "{wanted}"
    fix = "{fix_text}"


class TileShapeUnknown(CompileError):
    code = "tile-shape-unknown"
    found = "element work on `{name}`, whose {missing} is not known here"
    expected = "a register tile that was loaded, multiplied into, or declared with its extents and type before"
    fix = "multiply into it first, or declare it with its extents: `frag f32[64, 128] {name} {{0.0f}};`"
    python_fix = 'multiply into it first, or declare it with its extents: `mma.frag("f32", 64, 128, init=0.0)`'


class NotConstant(CompileError):
    code = "not-constant"
    found = "{what} is `{text}`, which is not known when compiled"
    expected = "a constant"
    fix = "use a number, a `#define`, or arithmetic on them"
    python_fix = "pass a number, or a compile-time keyword of the kernel"


class NotBuiltYet(CompileError):
    """A construct of the language that is refused by name."""

    code = "not-built-yet"
    found = "{what} cannot be compiled yet"
    expected = "the constructs of docs/language.md"
    fix = "{fix_text}"


def multiply_into_buffer(span: Span | None) -> NotBuiltYet:
    """A multiply whose accumulator is in memory."""
    fix = spelled(
        span,
        "accumulate in registers (`mc = mma.fill.f32 0.0f`) and `mma.store mc, buffer`",
        'accumulate in registers (`mc = mma.fill(0.0, "f32")`) and `mma.store(mc, buffer)`',
    )
    return NotBuiltYet(span, what="a multiplication straight into a buffer", fix_text=fix)


def select_of_tiles(span: Span | None) -> NotBuiltYet:
    what = "`select` between tiles in memory or futures by a run-time condition"
    fix = f"use {spelled(span, '`if`', '`if_`')}, or an array of tiles with a run-time subscript"
    return NotBuiltYet(span, what=what, fix_text=fix)


class WrongMember(CompileError):
    code = "wrong-member"
    found = "{kind} has no member `.{name}`"
    expected = "{known}"
    fix = "{suggestion}"


_TRANSPOSITIONS = ("T", "t", "mT", "transpose", "transposed", "permute", "swapaxes")


def wrong_member(
    span: Span | None,
    kind: str,
    name: str,
    known: Sequence[str],
    otherwise: str = "remove it",
    subject: str | None = "a",
) -> WrongMember:
    """The error for a member or suffix that ``kind`` does not have, with the form of the language for a name of
    another library, applied to ``subject`` (None: without such forms), or the nearest member."""
    from tilemma.ir.spellings import formula

    near = nearest(name, known)
    arguments = (subject or "a", "b", "c")
    form = spelled(span, formula(name, True, arguments), formula(name, False, arguments))
    if form and subject is not None:
        near, otherwise = None, form
    if name in _TRANSPOSITIONS:
        near = None
        otherwise = spelled(
            span,
            "a copy or a store transposes: `dma.transp<1, 0> a => b;`, `mma.store.transp c, d;`",
            "a copy or a store transposes: `dma.copy(a, b, transp=(1, 0))`, `mma.store(c, d, transp=True)`",
        )
    listed = ("one of " if len(known) > 1 else "") + ", ".join(f"`.{m}`" for m in known)
    return WrongMember(
        span,
        kind=kind,
        name=name,
        known=listed or "no member: it has none",
        suggestion=f"did you mean `.{near}`?" if near else otherwise,
    )


class WrongArity(CompileError):
    code = "wrong-arity"
    found = "`{what}` got {got} arguments"
    expected = "{want}"
    fix = "write `{form}`"


class MisplacedJump(CompileError):
    code = "misplaced-jump"
    found = "`{word}` outside a loop"
    expected = "`foreach` or `while` around it, with no `parallel` between"
    fix = "remove it, or use `if`"
    python_fix = "remove it, or use `if_`"


class AssertionFails(CompileError):
    code = "assertion-fails"
    found = "this assertion fails when compiled: {message}"
    expected = "a condition that holds"
    fix = "change the constants that it depends on"


class SideEffect(CompileError):
    code = "side-effect"
    found = "{what} in {where}"
    expected = "a value without effects there: it may be computed any number of times, or not at all"
    fix = "put the effect into a statement of its own"


class OutsideParallel(CompileError):
    code = "outside-parallel"
    found = "{what} outside every `parallel`"
    expected = "declarations, assertions, `parallel` and `return` at this place"
    fix = "move it into the `parallel` whose instances execute it"


class ExpressionTooLarge(CompileError):
    code = "expression-too-large"
    found = "an expression of more than {limit} operations, each part counted wherever it is used"
    expected = "at most {limit} operations{where}"
    fix = "declare a part as a scalar (`mutable int x = ...;`), which is computed once"
    python_fix = "compute a part inside `parallel`, in a `var(...)`, which is computed once"


class BadParameter(CompileError):
    code = "bad-parameter"
    found = "parameter `{name}` {problem}"
    expected = "arrays in global memory and scalars, each with its type"
    fix = "{fix_text}"


class BadReturn(CompileError):
    code = "bad-return"
    found = "`return` {problem}"
    expected = "{wanted}"
    fix = "{fix_text}"
