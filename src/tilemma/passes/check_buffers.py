"""Buffers of shared memory: one swizzle for each, and which of them `swap` can exchange, on every target."""

from __future__ import annotations

from tilemma.errors import CompileError, Note, Span
from tilemma.ir.effects import rotated
from tilemma.ir.tile import Alloc, Copy, Kernel, Load
from tilemma.ir.types import Buffer, Space
from tilemma.ir.walk import walk
from tilemma.passes.decision import Decision
from tilemma.passes.rotations import Rotations
from tilemma.records import record


class SwizzleConflict(CompileError):
    code = "swizzle-conflict"
    found = "`{name}` is asked for with `swiz<{first}>` and with `swiz<{second}>`"
    expected = "one swizzle for a buffer, for all its writers and readers"
    fix = "use one of the two everywhere, or none: then the compiler chooses"


@record(slots=False)
class CheckBuffers:
    """Refuses a buffer with two requested swizzles, and rotated buffers of different kinds."""

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises SwizzleConflict or SwapRefused."""
        asked_swizzles(kernel)
        return kernel


def asked_swizzles(kernel: Kernel) -> dict[str, tuple[int, Span | None]]:
    """Buffer -> the requested swizzle in bytes, and its place; rotated buffers have one swizzle."""
    asked = _asked(kernel)
    swaps = any(map(rotated, walk(kernel.body)))
    for group in Rotations(kernel.body).groups if swaps else ():
        wanted = _agreed(group, asked)
        if wanted is not None:
            asked.update(dict.fromkeys(group, wanted))
    return asked


def _asked(kernel: Kernel) -> dict[str, tuple[int, Span | None]]:
    """Buffer -> the requested swizzle in bytes, and its place."""
    found: dict[str, tuple[int, Span | None]] = {}

    def note(buffer: Buffer, swizzle: int | None, span: Span | None) -> None:
        if swizzle is None or buffer.space is not Space.SHARED:
            return
        first, where = found.setdefault(buffer.name, (swizzle, span))
        if first != swizzle:
            notes = [Note(f"`swiz<{first}>` is asked for here", where)]
            raise SwizzleConflict(span, name=buffer.name, first=first, second=swizzle, notes=notes)

    for op in walk(kernel.body):
        match op:
            case Alloc(buffer=b, swizzle=s):
                note(b, s, op.span)
            case Copy(src=src, dst=dst, swizzle=s):
                note(dst.base, s, op.span)
                note(src.base, s, op.span)
            case Load(src=src, swizzle=s):
                note(src.base, s, op.span)
    return found


def _agreed(group: frozenset[str], asked: dict[str, tuple[int, Span | None]]) -> tuple[int, Span | None] | None:
    """The swizzle requested for rotated buffers, or None; SwizzleConflict if requests differ."""
    wanted = [(name, *asked[name]) for name in sorted(group) if name in asked]
    for name, swizzle, span in wanted[1:]:
        first, one, where = wanted[0]
        if swizzle != one:
            notes = [Note(f"`swiz<{one}>` is asked for `{first}`, which changes places with `{name}`", where)]
            raise SwizzleConflict(span, name=name, first=one, second=swizzle, notes=notes)
    return wanted[0][1:] if wanted else None
