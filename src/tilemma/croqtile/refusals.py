"""Errors of the `.co` front end alone, and checks of suffixes."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.croqtile.ast import Suffix
from tilemma.errors import CompileError
from tilemma.ir.refusals import WrongValue


class ImmutableAssignment(CompileError):
    code = "immutable-assignment"
    found = "`{name}`, {kind}, is assigned again"
    expected = "a scalar declared `mutable`, a register tile, or an element"
    fix = "{fix_text}"


def has_suffix(suffixes: Sequence[Suffix], name: str, what: str) -> bool:
    """Whether ``.name`` follows the word ``what``, the only suffix that may; WrongValue for another."""
    for s in suffixes:
        if s.name != name:
            wanted = f"`.{name}` or nothing"
            raise WrongValue(s.span, what=what, got=f"`.{s.name}`", wanted=wanted, fix_text="remove it")
    return bool(suffixes)
