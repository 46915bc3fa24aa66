"""Folding of zero fills into wgmma's scale-d: the first multiply ignores the accumulator instead of a fill with
zero.

The scale-d predicate says whether the instruction reads the accumulator: it is false for the first multiply of a
loop, and the fill is removed.
"""

from __future__ import annotations

from dataclasses import replace

from tilemma.atoms import MmaAtom, catalogue
from tilemma.dtypes import boolean
from tilemma.ir.expr import Const, Expr, binary, value_of
from tilemma.ir.ranges import Known, enters
from tilemma.ir.tile import Body, Commit, Fill, For, FragmentRef, If, Kernel, Mma, MmaWait, Op, Parallel
from tilemma.ir.usage import nonzero
from tilemma.ir.walk import bodies, jumps, rewrite, walk, with_bodies
from tilemma.passes.contraction import fragment_uses
from tilemma.passes.decision import Decision
from tilemma.records import record


@record(slots=False)
class FoldZeroFill:
    """Drops fills with zero whose accumulator is next multiplied into, at once or by a loop, and sets
    `Mma.accumulate`.

    If the trip count may be 0, the fill follows the loop under that condition.  The fact that arrays are not empty
    excludes this case if their extents determine the trip count.
    """

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        return replace(kernel, body=_body(kernel.body, nonzero(kernel), log))


def _body(body: Body, dims: frozenset[str], log: list[Decision]) -> Body:
    ops: list[Op] = []
    for op in body:
        ops.append(with_bodies(op, lambda inner: _body(inner, dims, log)))
    i = 0
    while i < len(ops):
        op = ops[i]
        if isinstance(op, Fill) and value_of_float(op.value) == 0 and not op.fragment.index:
            at = next((j for j in range(i + 1, len(ops)) if _uses(ops[j], op.fragment.name)), None)
            loop = ops[at] if at is not None else None
            first = _first(loop, op.fragment) if isinstance(loop, For) else None
            if at is not None and isinstance(loop, For) and first is not None:
                end = at + 1
                while end < len(ops) and isinstance(ops[end], (Commit, MmaWait)):
                    end += 1
                started, *empty = _started(loop, op, first, dims)
                ops[at:end] = [started, *ops[at + 1 : end], *empty]
                del ops[i]
                text = f"the first iteration of the loop over {loop.index.name} starts it from zero (scale-d)"
                log.append(Decision("zero", op.fragment.name, text, span=op.span))
                continue
            if at is not None and isinstance(loop, Mma) and _starts(loop, op.fragment):
                ops[at] = replace(loop, accumulate=Const(False, boolean))
                del ops[i]
                log.append(Decision("zero", op.fragment.name, "its multiply starts it (scale-d)", span=op.span))
                continue
        i += 1
    return tuple(ops)


def _starts(multiply: Mma, ref: FragmentRef) -> bool:
    """Whether a multiply can write the accumulator without reading it."""
    return multiply.acc.name == ref.name and multiply.accumulate is None and _has_scale(multiply)


def value_of_float(e: Expr) -> float | None:
    """The number that ``e`` always is, or None."""
    value = getattr(e, "value", None)
    return float(value) if isinstance(value, (int, float)) else None


def _uses(op: Op, name: str) -> bool:
    return any(ref.name == name for x in walk((op,)) for _, ref in fragment_uses(x))


def _first(loop: For, ref: FragmentRef) -> tuple[Mma, tuple[For, ...]] | None:
    """The first multiply of every iteration of ``loop``, and the loops around it, ``loop`` first."""
    for x in walk(loop.body):
        for use, other in fragment_uses(x):
            if other.name == ref.name and use != "accumulator":
                return None
            if other.name == ref.name and not isinstance(x, Mma):
                return None
    found = _find(loop, ref.name, (loop,))
    # An iteration that ends early may do so before its first multiply.
    return None if found is None or any(jumps(x) for x in found[1]) else found


def _find(op: Op, name: str, around: tuple[For, ...]) -> tuple[Mma, tuple[For, ...]] | None:
    for _, inner in bodies(op):
        for x in inner:
            if isinstance(x, Mma) and x.acc.name == name:
                return (x, around) if _has_scale(x) else None
            if not _uses(x, name):
                continue
            if isinstance(x, For):
                start, stop = value_of(x.start), value_of(x.stop)
                if start is None or stop is None or start >= stop:
                    return None
                return _find(x, name, (*around, x))
            return _find(x, name, around) if isinstance(x, Parallel) else None
    return None


def _has_scale(m: Mma) -> bool:
    atom = catalogue[m.atom] if m.atom is not None else None
    return isinstance(atom, MmaAtom) and any(i.name == "scale_d" for i in atom.immediates)


def _started(loop: For, fill: Fill, first: tuple[Mma, tuple[For, ...]], dims: frozenset[str]) -> list[Op]:
    multiply, loops = first
    later: Expr | None = None
    for around in loops:
        moved = binary("gt", around.index, around.start)
        later = moved if later is None else binary("lor", later, moved)

    def mark(op: Op) -> Op:
        return replace(op, accumulate=later) if op is multiply else op

    marked = rewrite((loop,), mark)
    if enters(loop.index, loop.start, loop.stop, Known(dims)):
        return list(marked)
    return [*marked, If(binary("ge", loop.start, loop.stop), (fill,), span=fill.span)]
