"""Refusing by name what the language has and tilemma has not."""

from __future__ import annotations

from tilemma.errors import CompileError


class NotBuiltYet(CompileError):
    code = "not-built-yet"
    found = "{what} cannot be compiled yet"
    expected = "the constructs of docs/language.md"
    fix = "{fix_text}"
