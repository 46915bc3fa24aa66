"""Errors of lowering: an operation or type for which the target has no instructions."""

from __future__ import annotations

from tilemma.errors import CompileError


class NotLowered(CompileError):
    code = "not-lowered"
    found = "{what} has no machine code on {arch}"
    expected = "{expected_what}"
    fix = "{remedy}"
