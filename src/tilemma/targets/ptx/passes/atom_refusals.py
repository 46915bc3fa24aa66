"""Errors of instruction selection: no instruction for a multiply, or no register layout for a tile."""

from __future__ import annotations

from tilemma.errors import CompileError


class NoInstruction(CompileError):
    code = "no-instruction"
    found = "no instruction of {arch} multiplies {a} by {b} into {d} for a tile of {m}x{n}x{k} held by `{level}`"
    expected = "types and a tile that one of the instructions below takes"
    fix = "{remedy}"


class FragmentLayouts(CompileError):
    code = "fragment-layouts"
    found = "`{name}` is needed in two register layouts: {first}, and {second}"
    expected = "multiplies of one shape for all uses of a fragment"
    fix = "load it a second time under another name for the other use"


class TileTooLarge(CompileError):
    code = "tile-too-large"
    found = "`{name}`, {shape} of {dtype}, takes {registers} registers of each thread of `{level}`"
    expected = "at most {limit} for one tile: a thread has 255"
    fix = "distribute it over more threads, or process it in smaller tiles"
