"""Instruction scheduling of copies: the cp.async of later iterations are interleaved with this iteration's
multiplies.

A copy branches on whether its tile lies inside its array.  In a loop that loads a step ahead (see
`DoubleBufferFragments`) the branch would separate multiplies and copies, because ptxas schedules within basic
blocks. There each vector of bytes has its own predicate instead, and each step issues an equal share of the
copies::

    for k in a..b:                       for k in a..b:
        copy .. k .. => s                    if an edge cuts vectors of iteration k: copy .. k .. => s
        for i: load, multiply      =>        for i: load, a share of the copies, multiply
        rest                                 rest

Each vector lies inside or outside an array, unless the array's extent is not a multiple of the vector's.  The
iteration whose tile crosses that edge then issues its copies together, and not in its steps.  Where the facts of
the arrays exclude that, there is no branch: the launch checks it.  Copies at another place of an iteration stay
there (see `DoubleBufferFragments` on two buffers).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import groupby, takewhile
from typing import Literal

from tilemma.ir.expr import Expr, Select, binary, const, substitute, value_of
from tilemma.ir.ranges import interval
from tilemma.ir.tile import (
    Alloc,
    ArrayParameter,
    Body,
    Copy,
    CopyCommit,
    CopyWait,
    For,
    If,
    Kernel,
    Load,
    Mma,
    Op,
    Parallel,
)
from tilemma.ir.types import View
from tilemma.ir.walk import map_expressions, with_bodies
from tilemma.passes.decision import Decision
from tilemma.records import record, replace
from tilemma.targets.ptx.passes.names import Names

# Less than any difference of an extent and an offset.
_NEVER = -(2**31)


@record(slots=False)
class InterleaveCopyIssue:
    """Rewrites loops that copy by cp.async and load operands one step ahead of their multiplies."""

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        names = Names.of(kernel.body)
        whole = {p.buffer.name for p in kernel.arrays if _has_whole_rows(p)}

        def settle(body: Body) -> Body:
            out: list[Op] = []
            for op in body:
                op = with_bodies(op, settle)
                marked = replace(op, body=tuple(_marked(x, whole) for x in op.body)) if isinstance(op, For) else op
                interleaved = _interleaved(marked, names, log) if isinstance(marked, For) else None
                if interleaved is not None:
                    # The copies before the loop take a single path, which compiles faster.
                    out = [_cut_where_asynchronous(x) for x in out]
                out.append(interleaved or op)
            return tuple(out)

        return replace(kernel, body=settle(kernel.body))


def _has_whole_rows(p: ArrayParameter) -> bool:
    facts = p.facts
    return facts is not None and facts.has_whole_rows and facts.contiguous == p.buffer.rank - 1


def _marked(op: Op, whole: set[str]) -> Op:
    """``op``, if it is a copy from an array in ``whole``, as one of whole vectors."""
    known = isinstance(op, Copy) and op.src.base.name in whole and _by_vectors(op)
    return _with_edge([op], "whole vectors")[0] if known and isinstance(op, Copy) else op


def _interleaved(loop: For, names: Names, log: list[Decision]) -> For | None:
    """``loop`` with its copies interleaved with its multiplies; None if it does not have the required form."""
    iteration = _iteration(loop)
    copies = [x for x in loop.body if isinstance(x, Copy)]
    if iteration is None or not copies or not all(x.future is not None and _by_vectors(x) for x in copies):
        return None
    first = [x for x in iteration.copies if isinstance(x, Copy)]
    if not first:
        log.append(Decision("spread", loop.index.name, "copies stay together", span=loop.span))
        return replace(loop, body=(*iteration.allocs, iteration.group, *_in_place(iteration.after)))
    steps = value_of(iteration.steps.stop) or 0
    # If an iteration waits on its own copies, issue them first, together.
    shares = steps if _stay_open(iteration) else 1
    log.append(Decision("spread", loop.index.name, f"copies go in {shares} of {steps} steps", span=loop.span))
    steps_apart = (names.renamed(x) for x in _between(iteration, _cuts(first), shares))
    return replace(loop, body=(*iteration.allocs, *_where_cut(first), *steps_apart, *_in_place(iteration.after)))


def _in_place(body: Body) -> Body:
    """``body`` with its copies predicated vector by vector at their place.

    The branch for tiles in which an edge cuts vectors follows the next multiplies: directly after a barrier, it
    would delay the multiplies of all warps.
    """
    out: list[Op] = []
    rare: Body = ()
    for is_copy, found in groupby(body, lambda x: isinstance(x, Copy)):
        run = tuple(found)
        if is_copy:
            copies = [x for x in run if isinstance(x, Copy)]
            out += _where_whole(copies, _cuts(copies))
            rare = _where_cut(copies)
            continue
        next_to = tuple(takewhile(lambda x: isinstance(x, (CopyCommit, Parallel)), run))
        closed = [x for x in next_to if isinstance(x, CopyCommit)]
        out += [*(x for x in next_to if x not in closed), *rare, *closed, *run[len(next_to) :]]
        rare = ()
    return (*out, *rare)


def _cut_where_asynchronous(op: Op) -> Op:
    if isinstance(op, Copy) and op.future is not None and _by_vectors(op):
        return _with_edge([op], "cut vectors")[0]
    return op


@record
class _Iteration:
    """The loop's body: ``copies`` (with their commits) into ``allocs``, ``group`` around the loop ``steps``,
    ``after``."""

    allocs: Body
    copies: Body
    group: Parallel
    steps: For
    after: Body


def _iteration(loop: For) -> _Iteration | None:
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
    return _Iteration(allocs, copies, group, steps, loop.body[at + 1 :])


def _stay_open(iteration: _Iteration) -> bool:
    """Whether an iteration does not wait for its own copies."""
    groups = sum(isinstance(x, CopyCommit) for x in iteration.copies)
    return all(x.pending >= groups for x in iteration.after if isinstance(x, CopyWait))


def _between(iteration: _Iteration, cuts: list[_Cut], shares: int) -> Body:
    """The unrolled steps: each loads for the next step, issues its share of the copies, and multiplies."""
    steps, out = iteration.steps, list[Op]()
    count = value_of(steps.stop) or 0
    parts = _shares(iteration.copies, shares)
    for n in range(count):
        here = tuple(_at(x, steps, n) for x in steps.body)
        loads = tuple(x for x in here if isinstance(x, Load))
        multiplies = tuple(x for x in here if isinstance(x, Mma))
        part = parts[n] if n < shares else ()
        copies = _where_whole([x for x in part if isinstance(x, Copy)], cuts)
        rest = [x for x in part if not isinstance(x, Copy)]
        out += [replace(iteration.group, body=loads), *copies, *rest, replace(iteration.group, body=multiplies)]
    return tuple(out)


def _at(op: Op, steps: For, n: int) -> Op:
    """``op`` of step ``n``."""
    return map_expressions(op, lambda e: substitute(e, {steps.index.name: const(n)}))


def _shares(copies: Body, count: int) -> list[Body]:
    """``copies`` in ``count`` parts, in order; a commit goes with the last copy of its group.

    The parts are as equal as possible: a burst of copies would delay the issue of multiplies.
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
    """Rows of the tile that all threads copy with one instruction each; 0 if these are not whole rows."""
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


# ---- edges -----------------------------------------------------------------------------------------------


def _by_vectors(copy: Copy) -> bool:
    """Whether the vectors of ``copy`` can be predicated one by one, by their row and first column."""
    plan, view = copy.plan, copy.src
    if plan is None or plan.engine != "cp.async" or view.static_shape is None:
        return False
    if view.static_shape != copy.dst.static_shape or len(view.axes) != 2 or view.reshape is not None:
        return False
    if any(value_of(a.step) != 1 for a in view.axes) or view.axes[-1].dim != len(view.offsets) - 1:
        return False
    return all(interval(o)[0] >= 0 for o in view.offsets)


_Cut = tuple[Expr, Expr]  # (room, limit): the edge cuts vectors of a tile where room < limit


def _cuts(copies: Sequence[Copy]) -> list[_Cut]:
    """Whether the edge of the columns may cut vectors of one of ``copies``."""
    return list(dict.fromkeys(c for x in copies if (c := _cut(x)) is not None))


def _cut(copy: Copy) -> _Cut | None:
    plan, shape = copy.plan, copy.src.static_shape
    assert plan is not None and shape is not None
    if plan.edge == "whole vectors":
        return None
    extent = copy.src.base.shape[-1]
    rest = binary("mod", extent, const(plan.vector * 8 // copy.src.dtype.bits))
    if value_of(rest) == 0:
        return None
    room = binary("sub", extent, copy.src.offsets[-1])
    return room, Select(binary("ne", rest, const(0)), const(shape[-1]), const(_NEVER))


def _where_cut(copies: Sequence[Copy]) -> Body:
    cuts = _cuts(copies)
    if not cuts:
        return ()
    some = reduce(lambda a, b: binary("lor", a, b), (binary("lt", room, limit) for room, limit in cuts))
    return (If(some, _with_edge(copies, "cut vectors")),)


def _where_whole(copies: Sequence[Copy], cuts: Sequence[_Cut]) -> Body:
    if not cuts or not copies:
        return _with_edge(copies, "whole vectors")
    none = reduce(lambda a, b: binary("land", a, b), (binary("ge", room, limit) for room, limit in cuts))
    return (If(none, _with_edge(copies, "whole vectors")),)


def _with_edge(copies: Sequence[Copy], edge: Literal["whole vectors", "cut vectors"]) -> Body:
    return tuple(replace(x, plan=replace(x.plan, edge=edge)) for x in copies if x.plan is not None)
