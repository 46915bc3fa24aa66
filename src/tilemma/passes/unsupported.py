"""Constructs of the language that the compiler does not implement yet: refused by name."""

from __future__ import annotations

from tilemma.errors import CompileError


class NotBuilt(CompileError):
    code = "not-built"
    found = "{what} is not compiled for {arch} yet"
    expected = "a construct that the compiler builds"
    fix = "{remedy}"
