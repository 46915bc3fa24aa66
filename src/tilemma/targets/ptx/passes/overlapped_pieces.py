"""Pieces of a stored tile that have one text: in a loop, the piece of an iteration as a function of its number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from tilemma.ir import tile as t
from tilemma.ir.expr import Binary, Const, Expr, add, const, mod, mul, value_of
from tilemma.ir.types import View

# Operations of a piece behind its wait.
PIECE = 4


def copies(pieces: Iterable[t.Body]) -> list[t.Copy]:
    return [op for piece in pieces for op in piece if isinstance(op, t.Copy)]


def evened(pieces: list[t.Body]) -> list[t.Body]:
    """``pieces`` with one wait in front of each, if those that have one have the same: the others need none, and
    pieces have one text more often."""
    waits = {p[:-PIECE] for p in pieces if len(p) > PIECE}
    return [(*wait, *p[-PIECE:]) for wait in waits for p in pieces] if len(waits) == 1 else pieces


def regular(pieces: list[t.Body], places: Mapping[Expr, Expr]) -> Callable[[Expr], t.Copy] | None:
    """The copy of a piece as a function of its number, with ``places`` filled in, if the pieces have one text.

    They do if they differ in what they store, in coordinates that grow by one number from piece to piece, and in
    slots that are taken in turns.  Else None.
    """
    others = [tuple(op for op in piece if not isinstance(op, (t.Store, t.Copy))) for piece in pieces]
    found = copies(pieces)
    first = found[0]
    source, target = (_view([getattr(c, side) for c in found], places) for side in ("src", "dst"))
    differ = any(replace(c, src=first.src, dst=first.dst) != first for c in found)
    if source is None or target is None or differ or any(ops != others[0] for ops in others):
        return None
    return lambda j: replace(first, src=source(j), dst=target(j))


def _view(views: list[View], places: Mapping[Expr, Expr]) -> Callable[[Expr], View] | None:
    first = views[0]
    if any(v.map(lambda _: const(0)) != first.map(lambda _: const(0)) for v in views):
        return None
    found = [_series(list(x), places) for x in zip(*(v.expressions() for v in views), strict=True)]
    series = [s for s in found if s is not None]
    if len(series) < len(found):
        return None

    def view(j: Expr) -> View:
        each = iter(series)
        return first.map(lambda _: next(each)(j))

    return view


def _series(values: list[Expr], places: Mapping[Expr, Expr]) -> Callable[[Expr], Expr] | None:
    """A function of j with the values ``values[j]``; the first of them may have a variable in ``places``."""
    start = places.get(values[0], values[0])
    if all(v == values[0] for v in values):
        return lambda _: start
    for period in range(2, len(values)):
        if [value_of(v) for v in values] == [j % period for j in range(len(values))]:
            return lambda j: mod(j, period)
    (base, at), (_, then) = _with_constant(values[0]), _with_constant(values[1])
    step = then - at
    if any(_with_constant(v) != (base, at + j * step) for j, v in enumerate(values)):
        return None
    return lambda j: add(start, mul(j, step))


def _with_constant(e: Expr) -> tuple[Expr, int]:
    """``e`` as the sum of an expression and a number."""
    if isinstance(e, Const):
        return const(0), int(e.value)
    if isinstance(e, Binary) and e.op == "add" and isinstance(e.b, Const):
        return e.a, int(e.b.value)
    return e, 0


def merged(pieces: list[t.Body], at: list[Expr], copy: t.Copy) -> t.Body:
    """The piece whose condition in ``at`` holds: what all have in common stands there once."""
    out: list[t.Op] = []
    for ops in zip(*pieces, strict=True):
        if isinstance(ops[0], t.Store):
            out += (t.If(here, (op,), span=op.span) for here, op in zip(at, ops, strict=True))
        else:
            out.append(copy if isinstance(ops[0], t.Copy) else ops[0])
    return tuple(out)
