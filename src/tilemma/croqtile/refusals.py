"""Errors that several parts of the front end raise."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.croqtile.ast import Suffix
from tilemma.errors import CompileError, Span, nearest
from tilemma.ir.constructs import NotConstant as NotConstant
from tilemma.ir.constructs import WrongValue as WrongValue


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


def wrong_member(
    span: Span, kind: str, name: str, known: Sequence[str], otherwise: str = "remove it"
) -> WrongMember:
    """The error for a member or suffix that ``kind`` has not, with the nearest one that it has."""
    near = nearest(name, known)
    fix = f"did you mean `.{near}`?" if near else otherwise
    return WrongMember(span, kind=kind, name=name, known=one_of(known), suggestion=fix)


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


class OutsideParallel(CompileError):
    code = "outside-parallel"
    found = "{what} outside every `parallel`"
    expected = "declarations, `assert`, `parallel` and `return` at this place"
    fix = "move it into the `parallel` whose instances shall do it"
