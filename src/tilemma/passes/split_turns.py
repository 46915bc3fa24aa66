"""Turns that no edge concerns, in a loop of their own.

A copy asks whether its tile lies inside its array, and branches. In a loop that loads a step ahead (see
`PipelineLoads`) that keeps multiplies and copies apart: the assembler schedules between branches only. The
turns whose copies are all inside therefore run first, in a loop without branches, and the others after them::

    for k in a..b:                   for k in a..m:                     m: the first turn with a tile over an edge
        copy .. k .. => s                for i: load, a share of the copies, multiply
        for i: load, multiply   =>       rest
        rest                         for k in m..b:
                                         copy .. k .. => s
                                         for i: load, multiply
                                         rest
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce

from tilemma.ir.expr import Expr, Select, binary, const, depends_on, interval, substitute, value_of
from tilemma.ir.tile import Alloc, Body, Copy, CopyCommit, CopyWait, For, Kernel, Load, Mma, Op, Parallel
from tilemma.ir.types import View
from tilemma.ir.walk import map_expressions, rewrite
from tilemma.passes.decision import Decision
from tilemma.passes.names import Names


@dataclass(frozen=True)
class SplitTurns:
    """Splits loops that begin with copies by cp.async and then load a step ahead of what they multiply."""

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        names = Names.of(kernel.body)

        def settle(op: Op) -> Op | Body:
            turn = _turn(op) if isinstance(op, For) else None
            if not isinstance(op, For) or turn is None:
                return op
            edge = _edge(op, [x for x in turn.copies if isinstance(x, Copy)])
            if edge is None or not _stay_open(turn):
                return op
            log.append(Decision("edges", op.index.name, f"the turns before {edge} ask for no edge", span=op.span))
            whole = tuple(_whole(x) for x in turn.copies)
            first = replace(op, stop=edge, body=(*_between(turn, whole), *turn.after))
            rest = replace(op, start=edge, body=(*turn.copies, turn.group, *turn.after))
            return (*turn.allocs, names.renamed(first), rest)

        return replace(kernel, body=rewrite(kernel.body, settle))


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn: ``copies`` (with their commits) into ``allocs``, ``group`` around the loop ``steps``, ``after``."""

    allocs: Body
    copies: Body
    group: Parallel
    steps: For
    after: Body


def _turn(loop: For) -> _Turn | None:
    at = next((i for i, x in enumerate(loop.body) if not isinstance(x, (Alloc, Copy, CopyCommit))), None)
    if at is None:
        return None
    lead, group = loop.body[:at], loop.body[at]
    if not isinstance(group, Parallel) or len(group.body) != 1 or not isinstance(group.body[0], For):
        return None
    steps = group.body[0]
    loads = tuple(x for x in steps.body if isinstance(x, Load))
    multiplies = tuple(x for x in steps.body if isinstance(x, Mma))
    ahead = bool(loads and multiplies) and all(x.fragment.index for x in loads)
    if not ahead or steps.body != (*loads, *multiplies) or value_of(steps.start) != 0 or value_of(steps.step) != 1:
        return None
    allocs = tuple(x for x in lead if isinstance(x, Alloc))
    copies = tuple(x for x in lead if not isinstance(x, Alloc))
    return _Turn(allocs, copies, group, steps, loop.body[at + 1 :])


def _stay_open(turn: _Turn) -> bool:
    """Whether nothing of this turn is waited for in it: what is should start as early as it can, and together."""
    groups = sum(isinstance(x, CopyCommit) for x in turn.copies)
    return all(x.pending >= groups for x in turn.after if isinstance(x, CopyWait))


def _between(turn: _Turn, copies: Body) -> Body:
    """The steps one by one: each loads for the next, starts its share of the copies, multiplies."""
    steps, out = turn.steps, list[Op]()
    count = value_of(steps.stop) or 0
    shares = _shares(copies, count)
    for n in range(count):
        here = tuple(_at(x, steps, n) for x in steps.body)
        loads = tuple(x for x in here if isinstance(x, Load))
        multiplies = tuple(x for x in here if isinstance(x, Mma))
        out += [replace(turn.group, body=loads), *shares[n], replace(turn.group, body=multiplies)]
    return tuple(out)


def _at(op: Op, steps: For, n: int) -> Op:
    """``op`` of step ``n``."""
    return map_expressions(op, lambda e: substitute(e, {steps.index.name: const(n)}))


def _shares(copies: Body, count: int) -> list[Body]:
    """``copies`` in ``count`` parts, in order; what closes a group of copies goes with the last of it.

    Parts are as long as they can be equal: a burst of copies would keep multiplies from being issued.
    """
    each = max(1, -(-sum(_passes(x) for x in copies if isinstance(x, Copy)) // count))
    parts: list[list[Op]] = [[]]
    room = each
    for x in copies:
        for piece in _pieces(x, each) if isinstance(x, Copy) else [x]:
            needed = _passes(piece) if isinstance(piece, Copy) else 0
            if needed > room and len(parts) < count:
                parts.append([])
                room = each
            room -= needed
            parts[-1].append(piece)
    return [tuple(p) for p in parts] + [()] * (count - len(parts))


def _rows_at_once(copy: Copy) -> int:
    """Rows of the tile that all threads move with one instruction each; 0 where that is not a number of rows."""
    plan, shape = copy.plan, copy.dst.static_shape
    if plan is None or shape is None or len(shape) != 2 or copy.src.static_shape != shape:
        return 0
    row = shape[1] * copy.dst.dtype.bits // 8
    rows, rest = divmod(plan.threads * plan.vector, row)
    return 0 if rest or not rows or shape[0] % rows else rows


def _passes(copy: Copy) -> int:
    """Instructions of each thread for ``copy``."""
    rows, shape = _rows_at_once(copy), copy.dst.static_shape
    return shape[0] // rows if rows and shape is not None else 1


def _pieces(copy: Copy, most: int) -> list[Copy]:
    """``copy`` cut along its rows into pieces of at most ``most`` instructions, where they come out equal."""
    rows, passes = _rows_at_once(copy), _passes(copy)
    if not rows or passes <= most or passes % most:
        return [copy]
    height = rows * most
    return [
        replace(copy, src=_band(copy.src, i * height, height), dst=_band(copy.dst, i * height, height))
        for i in range(passes // most)
    ]


def _band(view: View, first: int, height: int) -> View:
    """``height`` rows of ``view`` from row ``first`` on."""
    moved = view.shift(0, first)
    return replace(moved, axes=(replace(moved.axes[0], extent=const(height)), *moved.axes[1:]))


def _whole(op: Op) -> Op:
    if isinstance(op, Copy) and op.plan is not None:
        return replace(op, plan=replace(op.plan, whole=True))
    return op


# ---- where an edge comes ---------------------------------------------------------------------------------


def _edge(loop: For, copies: Iterable[Copy]) -> Expr | None:
    """The first turn in which a tile may lie over an edge; None where no expression says so."""
    if value_of(loop.step) != 1:
        return None
    always: dict[Expr, None] = {}
    ends: dict[Expr, None] = {}
    for c in copies:
        dimensions = _dimensions(c.src)
        if c.plan is None or c.plan.engine != "cp.async" or c.src.static_shape != c.dst.static_shape:
            return None
        if dimensions is None:
            return None
        for offset, extent, whole in dimensions:
            if interval(offset)[0] < 0:
                return None
            if not depends_on(offset, {loop.index.name}):
                # The difference fits 32 bits where offset + extent might not.
                always[binary("ge", binary("sub", whole, offset), const(extent))] = None
                continue
            line = _line(offset, loop)
            if line is None:
                return None
            start, step = line
            # start + k * step + extent <= whole, for all k below this.
            room = binary("sub", whole, const(start + extent - step))
            enough = binary("ge", whole, const(start + extent))
            ends[Select(enough, binary("floordiv", room, const(step)), const(0))] = None
    if not ends and not always:
        return None
    end = reduce(lambda a, b: binary("min", a, b), ends, loop.stop)
    end = binary("max", end, loop.start)
    asked = [c for c in always if value_of(c) != 1]
    if not asked:
        return end
    return Select(reduce(lambda a, b: binary("land", a, b), asked), end, loop.start)


def _dimensions(view: View) -> list[tuple[Expr, int, Expr]] | None:
    """(offset, extent of the view, extent of the array) along each dimension; None for views with steps."""
    shape = view.static_shape
    if shape is None or view.reshape is not None or any(value_of(a.step) != 1 for a in view.axes):
        return None
    extents = dict(zip((a.dim for a in view.axes), shape, strict=True))
    return [
        (offset, extents.get(dim, 1), whole)
        for dim, (offset, whole) in enumerate(zip(view.offsets, view.base.shape, strict=True))
    ]


def _line(offset: Expr, loop: For) -> tuple[int, int] | None:
    """(a, b) where ``offset`` is a + b * index of ``loop``, b > 0."""
    at = [value_of(substitute(offset, {loop.index.name: const(n)})) for n in (0, 1, 2)]
    if at[0] is None or at[1] is None or at[2] is None or not 0 < at[1] - at[0] == at[2] - at[1]:
        return None
    return at[0], at[1] - at[0]
