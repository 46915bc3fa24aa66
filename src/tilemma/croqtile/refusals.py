"""Errors that several parts of the front end raise."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.croqtile.ast import Suffix
from tilemma.errors import CompileError


def one_of(members: Sequence[str]) -> str:
    """The members that could stand there, in words."""
    if not members:
        return "no member: it has none"
    return ("one of " if len(members) > 1 else "") + ", ".join(f"`.{m}`" for m in members)


class NotBuiltYet(CompileError):
    """What the language has and tilemma has not, refused by name."""

    code = "not-built-yet"
    found = "{what} cannot be compiled yet"
    expected = "the constructs of docs/language.md"
    fix = "{fix_text}"


class WrongValue(CompileError):
    code = "wrong-value"
    found = "{what} got {got}"
    expected = "{wanted}"
    fix = "{fix_text}"


def has_suffix(suffixes: Sequence[Suffix], name: str, what: str) -> bool:
    """Whether ``.name`` follows the word ``what``, the only suffix that may; WrongValue for another."""
    for s in suffixes:
        if s.name != name:
            wanted = f"`.{name}` or nothing"
            raise WrongValue(s.span, what=what, got=f"`.{s.name}`", wanted=wanted, fix_text="remove it")
    return bool(suffixes)


class NotATile(CompileError):
    code = "not-a-tile"
    found = "{what} got {got}"
    expected = "a parameter, a buffer, or a view of one"
    fix = "{fix_text}"


class WrongMember(CompileError):
    code = "wrong-member"
    found = "{kind} has no member `.{name}`"
    expected = "{known}"
    fix = "{suggestion}"


class WrongArity(CompileError):
    code = "wrong-arity"
    found = "`{what}` got {got} arguments"
    expected = "{want}"
    fix = "write `{form}`"


class ImmutableAssignment(CompileError):
    code = "immutable-assignment"
    found = "`{name}`, {kind}, is assigned again"
    expected = "a scalar declared `mutable`, a register tile, or an element"
    fix = "{fix_text}"


class ConstantOverflow(CompileError):
    code = "constant-overflow"
    found = "the constant {value} does not fit in {dtype}"
    expected = "constants within the range of their type"
    fix = "use smaller numbers, or 64-bit ones (suffix `ll`)"


class ConstantDivision(CompileError):
    code = "constant-division"
    found = "{what} in a constant expression"
    expected = "a divisor other than 0, a shift by 0 to 31"
    fix = "check the constants (and `#define`s) of this expression"


class ExpressionTooLarge(CompileError):
    code = "expression-too-large"
    found = "an expression of more than {limit} operations, named parts counted where they are used"
    expected = "at most {limit} operations, nested at most {depth} deep"
    fix = "declare a part as a scalar (`mutable int x = ...;`), which is computed once"


class SideEffect(CompileError):
    code = "side-effect"
    found = "{what} in {where}"
    expected = "a value without effects there: it may be computed any number of times, or not at all"
    fix = "put the effect into a statement of its own"


class NotConstant(CompileError):
    code = "not-constant"
    found = "{what} is `{text}`, which is not known when compiled"
    expected = "a constant"
    fix = "use a number, a `#define`, or arithmetic on them"


class OutsideParallel(CompileError):
    code = "outside-parallel"
    found = "{what} outside every `parallel`"
    expected = "declarations, `assert`, `parallel` and `return` at this place"
    fix = "move it into the `parallel` whose instances shall do it"
