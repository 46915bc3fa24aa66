"""Live ranges of shared tiles: a buffer that several copies fill, in turn, as one buffer for each copy.

A copy from global memory that writes a whole buffer begins a live range.  It reaches to the next such copy in the
same body, and ends before an operation that contains one.  If every access to the buffer belongs to a live range,
no data passes from one range to another, and an initial value is never read::

    foreach k { copy a(k) => s;  multiply s }        foreach k { copy a(k) => s;  multiply s }
    foreach k { copy b(k) => s;  multiply s }   =>   foreach k { copy b(k) => s.1;  multiply s.1 }
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tilemma.ir.substitution import Substitution
from tilemma.ir.tile import Alloc, Body, Copy, Kernel, Op
from tilemma.ir.types import Space, View
from tilemma.ir.walk import bodies, touched, walk, with_bodies
from tilemma.passes.decision import Decision


def fills_buffer(op: Op) -> bool:
    """Whether ``op`` is a synchronous copy from global memory that writes a whole shared buffer."""
    if not isinstance(op, Copy) or (op.src.base.space, op.dst.base.space) != (Space.GLOBAL, Space.SHARED):
        return False
    whole = op.dst.is_whole and op.dst.slot is None and not op.dst.base.copies
    return whole and not (op.asynchronous or op.event or op.future or op.after)


def split_tiles(kernel: Kernel) -> tuple[Kernel, dict[str, str]]:
    """``kernel`` with a buffer for each live range, and the buffer of ``kernel`` of which each new one is a part.

    Initial values that no operation reads are left out.
    """
    accesses: dict[str, int] = {}
    allocs: dict[str, list[Alloc]] = {}
    taken = {p.buffer.name for p in kernel.arrays}
    for op in walk(kernel.body):
        if isinstance(op, Alloc):
            allocs.setdefault(op.buffer.name, []).append(op)
            taken.add(op.buffer.name)
            continue
        if isinstance(op, Copy) and op.future is not None:
            taken.add(op.future)
        filled = op.dst.base.name if isinstance(op, Copy) and fills_buffer(op) else None
        for name in {v.base.name for v in touched(op)} - {filled}:
            accesses[name] = accesses.get(name, 0) + 1
    inside: dict[str, int] = {}
    ranges: dict[str, int] = {}
    for body in _bodies(kernel.body):
        for start, end in _live_ranges(body):
            name = _filled(body[start])
            ranges[name] = ranges.get(name, 0) + 1
            held = (op for op in walk(body[start + 1 : end]) if not isinstance(op, Alloc))
            inside[name] = inside.get(name, 0) + sum(any(v.base.name == name for v in touched(op)) for op in held)
    parted = {
        name
        for name, found in allocs.items()
        if len(found) == 1 and ranges.get(name) and inside.get(name, 0) == accesses.get(name, 0)
    }
    parted = {name for name in parted if ranges[name] > 1 or allocs[name][0].init is not None}
    if not parted:
        return kernel, {}
    splitter = _Splitter({name: allocs[name][0] for name in parted}, taken)
    return replace(kernel, body=splitter.body(kernel.body)), splitter.origin


def of_program(said: Decision, origin: dict[str, str]) -> Decision:
    """``said`` with the program's names of buffers."""
    text = said.text
    for new, old in origin.items():
        text = text.replace(f"`{new}`", f"`{old}`")
    return replace(said, text=text, subject=origin.get(said.subject, said.subject))


def _bodies(body: Body) -> Iterator[Body]:
    yield body
    for op in body:
        for _, inner in bodies(op):
            yield from _bodies(inner)


def _filled(op: Op) -> str:
    assert isinstance(op, Copy)
    return op.dst.base.name


def _live_ranges(body: Body) -> Iterator[tuple[int, int]]:
    """The positions in ``body`` of each copy that fills a buffer, and of the end of its live range."""
    fills = [{_filled(x) for x in walk((op,)) if fills_buffer(x)} for op in body]
    for start, op in enumerate(body):
        if fills_buffer(op):
            name = _filled(op)
            yield start, next((i for i in range(start + 1, len(body)) if name in fills[i]), len(body))


class _Splitter:
    """Gives the second and later live ranges of the buffers of ``allocs`` buffers of their own."""

    def __init__(self, allocs: dict[str, Alloc], taken: set[str]) -> None:
        self.allocs, self.taken = allocs, taken
        self.origin: dict[str, str] = {}
        self.seen: set[str] = set()

    def body(self, body: Body) -> Body:
        renamed: list[dict[str, Alloc]] = [{} for _ in body]
        for start, end in _live_ranges(body):
            name = _filled(body[start])
            if name in self.allocs and name in self.seen:
                new = self._another(self.allocs[name])
                for at in range(start, end):
                    renamed[at][name] = new
            self.seen.add(name)
        out: list[Op] = []
        for op, buffers in zip(body, renamed, strict=True):
            if fills_buffer(op) and _filled(op) in buffers:
                out.append(buffers[_filled(op)])
            if isinstance(op, Alloc) and op.buffer.name in self.allocs:
                op = replace(op, init=None)
            op = with_bodies(op, self.body)
            out.append(Substitution({}, partial(_renamed, buffers)).operation(op) if buffers else op)
        return tuple(out)

    def _another(self, alloc: Alloc) -> Alloc:
        old = alloc.buffer.name
        name = next(n for i in range(1, len(self.taken) + 2) if (n := f"{old}.{i}") not in self.taken)
        self.taken.add(name)
        self.origin[name] = old
        return replace(alloc, buffer=replace(alloc.buffer, name=name), init=None)


def _renamed(buffers: dict[str, Alloc], view: View) -> View:
    alloc = buffers.get(view.base.name)
    return view if alloc is None else replace(view, base=alloc.buffer)
