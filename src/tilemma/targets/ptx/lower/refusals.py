"""The error of lowering: an operation or type without machine code."""

from __future__ import annotations

from tilemma.errors import CompileError


class NotLowered(CompileError):
    code = "not-lowered"
    found = "{what} has no machine code on {arch}"
    expected = "{expected_what}"
    fix = "{remedy}"
