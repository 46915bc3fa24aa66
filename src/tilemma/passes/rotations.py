"""Buffer rotation (pointer swaps of multi-buffering): the operands of `swap`, and the buffers that a name may
refer to."""

from __future__ import annotations

from collections.abc import Iterable

from tilemma.errors import CompileError, Note
from tilemma.ir.effects import rotated
from tilemma.ir.tile import Alloc, Body, Copy, Op
from tilemma.ir.tiles import written
from tilemma.ir.types import Buffer, Space
from tilemma.ir.walk import walk


class SwapRefused(CompileError):
    code = "swap-refused"
    found = "`{name}` cannot be swapped here: {what}"
    expected = "futures of copies into buffers of one type and shape in shared memory, one buffer for each future"
    fix = "{remedy}"


class Rotations:
    """The swaps of a body: the buffers that each exchanges, and the groups that they form."""

    def __init__(self, body: Body) -> None:
        copies: dict[str, Copy] = {}
        ops = list(walk(body))
        for op in ops:
            if isinstance(op, Copy) and op.future is None:
                # A synchronous copy is identified by its buffer's name.
                copies.setdefault(op.dst.base.name, op)
            elif isinstance(op, Copy) and op.future is not None:
                first = copies.setdefault(op.future, op)
                if first.dst.base.name != op.dst.base.name:
                    notes = [Note("another copy of this name goes elsewhere", first.span)]
                    what = "its copies go to different buffers"
                    raise SwapRefused(
                        op.span, name=written(op.future), what=what, remedy="name them apart", notes=notes
                    )
        self._copies = copies
        self.groups: list[frozenset[str]] = []
        self._of: dict[str, frozenset[str]] = {}
        for op in ops:
            if rotated(op):
                self._join(frozenset(self.buffers(op)))
        if self.groups:
            self._check(ops)

    def buffers(self, op: Op) -> tuple[str, ...]:
        """The buffers of the names that ``op`` rotates, in its order; SwapRefused for a name without a buffer."""
        found: list[Buffer] = []
        names = rotated(op)
        for name in names:
            if name not in self._copies:
                what, remedy = "no copy gives it a buffer", "make it the result of a `dma.copy`"
                raise SwapRefused(op.span, name=written(name), what=what, remedy=remedy)
            found.append(self._copies[name].dst.base)
            if found[-1].space is not Space.SHARED:
                what = f"its copy writes `{found[-1].name}`, which is not in shared memory"
                remedy = "wait for this copy where it stands in the program"
                raise SwapRefused(op.span, name=written(name), what=what, remedy=remedy)
        first = found[0]
        for b, name in zip(found, names, strict=True):
            if (b.dtype, b.shape, b.space, b.copies) != (first.dtype, first.shape, Space.SHARED, 0):
                what = f"`{b.name}` and `{first.name}` differ in type, shape or memory"
                remedy = "give both buffers the same type and shape"
                raise SwapRefused(op.span, name=written(name), what=what, remedy=remedy)
        buffers = tuple(b.name for b in found)
        if len(set(buffers)) != len(buffers):
            what = "two of the names stand for one buffer"
            raise SwapRefused(op.span, name=written(names[0]), what=what, remedy="copy into different buffers")
        return buffers

    def group(self, buffer: str) -> frozenset[str]:
        """The buffers that the name of ``buffer`` may refer to; itself alone if it does not rotate."""
        return self._of.get(buffer, frozenset((buffer,)))

    def _join(self, names: frozenset[str]) -> None:
        joined = names.union(*(g for g in self.groups if g & names))
        self.groups = [*(g for g in self.groups if not g & names), joined]
        self._of.update(dict.fromkeys(joined, joined))

    def _check(self, ops: Iterable[Op]) -> None:
        for op in ops:
            if isinstance(op, Alloc) and op.init is not None and op.buffer.name in self._of:
                what = "its buffer is initialised where it is declared"
                remedy = "fill it with a loop instead"
                raise SwapRefused(op.span, name=op.buffer.name, what=what, remedy=remedy)
