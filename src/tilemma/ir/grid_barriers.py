"""Barriers of all blocks of a cooperative launch: the launch ends there, and another one continues.

The launches of a kernel follow one another, so that every block of the second sees the writes of every block of
the first.  Registers and shared memory do not outlive a launch; only global memory carries values over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilemma.errors import CompileError, Note
from tilemma.ir import tile as t
from tilemma.ir.effects import Effect, name_of, touches
from tilemma.ir.expr import Element, Expr, FragmentElement, Index, Var, walk
from tilemma.ir.operation import Body
from tilemma.ir.types import Level
from tilemma.ir.walk import expressions, substituted
from tilemma.ir.walk import walk as operations

# What a barrier of the grid is while the launch around it is open.
GRID = Level("device")


class GridBarrierInside(CompileError):
    code = "grid-barrier-inside"
    found = "a barrier of all blocks inside a loop or a branch"
    expected = "a barrier that every block reaches once: the launch ends there, and another one continues"
    fix = "move it out, or write one `parallel` for each phase: launches run one after the other"


class KeptOverGridBarrier(CompileError):
    code = "kept-over-grid-barrier"
    found = "`{name}` is used after a barrier of all blocks, and was declared before it"
    expected = "values in global memory: the launch ends at the barrier, and registers and shared memory with it"
    fix = "declare and fill it again after the barrier, or keep it in global memory"


def is_grid_barrier(op: t.Op) -> bool:
    return isinstance(op, t.Sync) and op.what == "barrier" and op.level == GRID


def launches(op: t.Parallel, fresh: Callable[[str], str]) -> tuple[t.Parallel, ...]:
    """``op``, a launch, divided at the barriers of its grid.  Raises GridBarrierInside, KeptOverGridBarrier.

    ``fresh`` gives new names of indices.
    """
    if not any(is_grid_barrier(x) for x in operations(op.body)):
        return (op,)
    parts = _divided(op)
    declared: dict[str, t.Op] = {}
    for part in parts:
        _check_kept(part, declared)
        declared |= _declared(part)
    return (parts[0], *(_renamed(p, fresh) for p in parts[1:]))


def _divided(op: t.Parallel) -> list[t.Parallel]:
    bodies: list[list[t.Op]] = [[]]
    for inner in op.body:
        if is_grid_barrier(inner):
            bodies.append([])
        elif isinstance(inner, t.Parallel):
            first, *rest = _divided(inner)
            bodies[-1].append(first)
            bodies += [[p] for p in rest]
        else:
            for x in operations((inner,)):
                if is_grid_barrier(x):
                    raise GridBarrierInside(x.span, notes=[Note("inside this", inner.span)])
            bodies[-1].append(inner)
    return [replace(op, body=tuple(body)) for body in bodies]


def _declared(part: t.Parallel) -> dict[str, t.Op]:
    return {
        name_of(x.what): op
        for op in operations(part.body)
        for x in touches(op)
        if Effect.DECLARE in x.effect and not isinstance(x.what, Index)
    }


def _check_kept(part: t.Parallel, declared: dict[str, t.Op]) -> None:
    """KeptOverGridBarrier where ``part`` uses what an earlier launch declares."""
    for op in operations(part.body):
        used = [name_of(x.what) for x in touches(op) if not isinstance(x.what, Index)]
        used += [name for e in expressions(op) for name in _read(e)]
        for name in used:
            if name in declared:
                note = Note("declared here", declared[name].span)
                raise KeptOverGridBarrier(op.span, name=name.split(".")[0], notes=[note])


def _read(e: Expr) -> Sequence[str]:
    found = []
    for x in walk(e):
        if isinstance(x, Var):
            found.append(x.name)
        elif isinstance(x, Element):
            found.append(x.view.base.name)
        elif isinstance(x, FragmentElement):
            found.append(x.fragment)
    return found


def _renamed(op: t.Parallel, fresh: Callable[[str], str]) -> t.Parallel:
    """``op`` with new names for the indices of its levels."""
    body: Body = tuple(_renamed(x, fresh) if isinstance(x, t.Parallel) else x for x in op.body)
    indices = tuple(replace(i, name=fresh(i.source_name)) for i in op.indices)
    table: dict[str, Expr] = {old.name: new for old, new in zip(op.indices, indices, strict=True)}
    return replace(op, indices=indices, body=substituted(body, table))
