"""What the language has and the compiler does not build yet: refused by name, never compiled wrongly."""

from __future__ import annotations

from tilemma.errors import CompileError


class NotBuilt(CompileError):
    code = "not-built"
    found = "{what} is not compiled for {arch} yet"
    expected = "a construct that the compiler builds"
    fix = "{remedy}"
