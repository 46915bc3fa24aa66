"""The listings of a page: source, PTX and SASS, each line with the source line that it comes from."""

from __future__ import annotations

import re

from tilemma.assemble import assemble, disassemble
from tilemma.compiler import Compiled
from tilemma.errors import TilemmaError, ToolError, source_line
from tilemma.ir import tile as t
from tilemma.ir.walk import walk
from tilemma.records import record

# Lines of a listing.
MAX_LINES = 60_000
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'\.file\s+(\d+)\s+"(.*)"')
_SASS_LINE = re.compile(r'//## File "(.*)", line (\d+)')
_SASS_CODE = re.compile(r"/\*[0-9a-f]{4,}\*/")


@record
class Listing:
    """``lines``: (text, source line or 0); the first has number ``first``.  ``note``: why it is empty or cut."""

    title: str
    lines: tuple[tuple[str, int], ...] = ()
    first: int = 1
    note: str = ""


def source(kernel: t.Kernel) -> tuple[str, Listing]:
    """The file of the kernel, and its lines from the first to the last that an operation has."""
    file = kernel.span.file if kernel.span is not None else ""
    lines = [op.span.line for op in walk(kernel.body) if op.span is not None and op.span.file == file]
    if kernel.span is not None:
        lines.append(kernel.span.line)
    ends = [op.span.end_line for op in walk(kernel.body) if op.span is not None and op.span.file == file]
    if not lines:
        return file, Listing("source", note="the source is not at hand")
    first, last = min(lines), max([*lines, *ends])
    # Comments and compile-time values above, closing braces below.
    first = max(1, first - 12)
    texts = [source_line(file, n) for n in range(first, min(last + 6, first + MAX_LINES))]
    while texts and not texts[-1]:
        texts.pop()
    if all(text is None for text in texts):
        return file, Listing("source", note="the source is not at hand")
    return file, Listing("source", tuple((text or "", first + i) for i, text in enumerate(texts)), first)


def ptx(text: str, file: str) -> Listing:
    """PTX with the positions of its `.loc` directives, which are left out of none of its line numbers."""
    number, current, lines = "", 0, []
    for line in text.splitlines()[:MAX_LINES]:
        if found := _FILE.match(line.lstrip()):
            number = found[1] if found[2] == file else number
        if found := _LOC.match(line.lstrip()):
            current = int(found[2]) if found[1] == number else 0
        elif line.startswith((".visible", "}", "{", ".entry")):
            current = 0
        lines.append((line, current))
    return Listing("PTX", tuple(lines), note=_cut(len(text.splitlines())))


def sass(compiled: Compiled, file: str) -> Listing:
    """The machine code, where ptxas and nvdisasm are."""
    try:
        text = disassemble(assemble(compiled.ptx, compiled.arch, options=("-lineinfo",)), lines=True)
    except ToolError as error:
        return Listing("SASS", note=error.message)
    except TilemmaError as error:
        return Listing("SASS", note=str(error).split("\n")[0])
    current, lines = 0, []
    for line in text.splitlines():
        if found := _SASS_LINE.match(line.lstrip()):
            current = int(found[2]) if found[1] == file else 0
        elif _SASS_CODE.match(line.lstrip()) or re.match(r"[.\w$]+:$", line):
            lines.append((line.strip("\t ").rstrip(), current))
    return Listing("SASS", tuple(lines[:MAX_LINES]), note=_cut(len(lines)))


def _cut(lines: int) -> str:
    return f"the first {MAX_LINES} of {lines} lines" if lines > MAX_LINES else ""
