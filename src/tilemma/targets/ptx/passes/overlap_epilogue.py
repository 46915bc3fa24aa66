"""Overlapped epilogue of persistent kernels: a tile is kept in registers and stored during the next tile's main
loop.

A role that multiplies one tile after another and stores each in pieces leaves its tensor cores idle during the
stores. If registers suffice, the tile is packed, and each piece is stored in another iteration of the next tile's
main loop::

    for t:                                   waiting = 0
        for k: multiply into mc              for t:
        piece 0 of mc => place(t)                for k:
        piece 1 of mc => place(t)                    multiply into mc
        ..                                           if waiting and k == j: piece j of held => place
                                                 held = mc; place = place(t)
                                                 if another tile follows, with an iteration for each piece:
                                                     waiting = 1
                                                 else: piece 0 of held => place; piece 1 of held => ..

The pieces keep their order, and each keeps its own waits, barriers and fences.  In the main loop these, and the
copy, have one text where the pieces differ only in what they store, and regularly in places and slots: ptxas takes
less time for it.  ``held`` is not initialised:
``waiting`` is 0 during the first tile's main loop, so that it is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from tilemma.ir import tile as t
from tilemma.ir.expr import (
    INDEX,
    Binary,
    Cast,
    Const,
    Element,
    Expr,
    FragmentElement,
    Index,
    Var,
    add,
    binary,
    const,
    depends_on,
    mod,
    mul,
    value_of,
)
from tilemma.ir.expr import walk as parts
from tilemma.ir.plans import FragmentPlan
from tilemma.ir.types import Space, View
from tilemma.ir.walk import expressions, rewrite, touched, walk
from tilemma.passes.contraction import fragment_uses
from tilemma.passes.decision import Decision
from tilemma.records import record
from tilemma.targets.ptx.passes.element_tiles import like

# Registers of a thread besides the accumulator and the packed tile: addresses, predicates, indices.
_OTHERS = 40
# A piece contains all its synchronisation: of its copy with its store, and with the piece before it, unless an
# earlier piece has waited for that.
_FREE = (t.BulkWait, t.Barrier)
_PIECE = (t.Store, t.ProxyFence, t.Barrier, t.Copy)


@record(slots=False)
class OverlapEpilogue:
    """Moves the pieces of a stored tile into the next tile's main loop if registers suffice."""

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        def settle(op: t.Op) -> t.Op:
            if isinstance(op, t.InThreads) and op.asynchronous and op.registers is not None:
                return replace(op, body=_role(op.body, op.registers, log))
            return op

        return replace(kernel, body=rewrite(kernel.body, settle))


def _role(body: t.Body, registers: int, log: list[Decision]) -> t.Body:
    out: list[t.Op] = []
    for op in body:
        found = _overlapped(op, registers, log) if isinstance(op, t.For) else None
        out += found if found is not None else (op,)
    return tuple(out)


@record(slots=False)
class _Tile:
    """A loop over ``tiles`` that ends with ``pieces`` of ``mc``, which ``loop`` multiplies into."""

    tiles: t.For
    before: t.Body
    loop: t.For
    pieces: list[t.Body]
    mc: t.FragmentRef
    plan: FragmentPlan
    stored: t.Store


def _overlapped(tiles: t.For, registers: int, log: list[Decision]) -> t.Body | None:
    """The replacement of the loop over tiles, or None if it is not changed."""
    found = _found(tiles)
    if found is None or found.stored.dst.dtype.bits > 16:
        return None  # a tile that is not narrowed needs as many registers again
    # Accumulators and packed tile: 32-bit registers of a warpgroup's threads.
    sums = sum(_area(op.plan) for op in found.before if isinstance(op, t.DeclareFragment) and op.plan)
    if (
        sums + _area(found.plan) * found.stored.dst.dtype.bits // 32 + _OTHERS > registers
        or _uneven(found)
        or _used(found)
        or _local(found)
    ):
        return None
    text = f"{len(found.pieces)} pieces, each in another iteration over {found.loop.index.name} of the next tile"
    log.append(
        Decision("overlapped epilogue", found.mc.name, text, {"pieces": len(found.pieces)}, span=found.stored.span)
    )
    return _delayed(found)


def _found(tiles: t.For) -> _Tile | None:
    pieces = _pieces(tiles.body)
    before = tiles.body[: len(tiles.body) - sum(map(len, pieces))]
    stores = [op for piece in pieces for op in piece if isinstance(op, t.Store)]
    stored = {s.fragment for s in stores}
    if len(pieces) < 2 or len(stored) > 1:
        return None
    (mc,) = stored
    # The wait for the tile before to be read, where it stands in front of the main loop, leaves a barrier behind
    # the loop that the pieces would not have there.
    if mc.index or not isinstance(pieces[0][0], t.BulkWait):
        return None
    loops = [op for op in before if isinstance(op, t.For) and _multiplies(op, mc)]
    plan = next((op.plan for op in before if isinstance(op, t.DeclareFragment) and op.name == mc.name), None)
    if plan is None or len(loops) != 1:
        return None
    return _Tile(tiles, before, loops[0], pieces, mc, plan, stores[0])


def _area(plan: FragmentPlan) -> int:
    """Registers of a thread for an accumulator; 0 for other fragments."""
    return plan.shape[0] * plan.shape[1] // plan.level.threads if plan.role == "C" else 0


def _delayed(found: _Tile) -> t.Body:
    tiles, loop, pieces, mc, span = found.tiles, found.loop, found.pieces, found.mc, found.stored.span
    dtype = found.stored.dst.dtype
    packed = like(found.plan, dtype, mc.name, span)
    held, waiting = t.FragmentRef(f"{mc.name}.held"), Var(f"{mc.name}.waiting", INDEX)
    places = _places(found, pieces)
    regular = _regular(pieces, {e: var for e, var in places.items() if e in _coordinates(pieces[:1])})
    if regular is not None:
        places = _places(found, pieces[:1])
        pieces = [
            tuple(regular(const(j)) if isinstance(op, t.Copy) else op for op in p) for j, p in enumerate(pieces)
        ]
    overlapped = [_overlapped_piece(piece, held, places) for piece in pieces]
    at = [binary("eq", loop.index, j) for j in range(len(pieces))]
    each: t.Body = tuple(t.If(here, piece, span=span) for here, piece in zip(at, overlapped, strict=True))
    if regular is not None:
        each = _merged(overlapped, at, regular(loop.index))
    due = binary("land", binary("gt", waiting, 0), binary("lt", loop.index, len(pieces)))
    main_loop = replace(loop, body=(*loop.body, t.If(due, each, span=span)))
    ready = (_packed(mc, found.plan, held, packed), *(t.Assign(var, e, span=span) for e, var in places.items()))
    another = binary("lt", add(tiles.index, tiles.step), tiles.stop)
    may_wait = binary("land", another, binary("ge", loop.stop, len(pieces)))
    way = t.If(
        may_wait, (t.Assign(waiting, const(1), span=span),), tuple(op for p in overlapped for op in p), span=span
    )
    before = tuple(main_loop if op is loop else op for op in found.before)
    if _uses_shared(found):
        # The barriers of the pieces also ended the use of other shared memory by a tile.
        ready = (*ready, next(op for op in pieces[0] if isinstance(op, t.Barrier)))
    return (
        t.DeclareFragment(held.name, (), dtype, found.plan.shape, packed, guarded=True, span=span),
        *(t.Declare(v, const(0), span=span) for v in (waiting, *places.values())),
        replace(tiles, body=(*before, *ready, way)),
    )


def _pieces(body: t.Body) -> list[t.Body]:
    """The pieces that ``body`` ends with."""
    found: list[t.Body] = []
    end = len(body)
    while _kinds(body[:end], len(_PIECE)) == _PIECE:
        start = end - len(_PIECE)
        if _kinds(body[:start], len(_FREE)) == _FREE:
            start -= len(_FREE)
        found.insert(0, body[start:end])
        end = start
    return found


def _kinds(body: t.Body, count: int) -> tuple[type[t.Op], ...]:
    """The kinds of the last ``count`` operations."""
    return tuple(map(type, body[-count:]))


def _multiplies(loop: t.For, mc: t.FragmentRef) -> bool:
    """Whether ``loop`` goes from 0, a step at a time, and multiplies into ``mc``."""
    counts = value_of(loop.start) == 0 and value_of(loop.step) == 1
    return counts and any(isinstance(x, t.Mma) and x.acc == mc for x in walk(loop.body))


def _uneven(found: _Tile) -> bool:
    """Whether the main loop's trip count may differ between tiles, or a loop may be left early."""
    stop = found.loop.stop
    differs = depends_on(stop, {found.tiles.index.name}) or bool(_variables((stop,)) & _changed(found.tiles))
    return differs or any(isinstance(op, (t.Break, t.Continue)) for op in walk(found.tiles.body))


def _used(found: _Tile) -> bool:
    """Whether the accumulator has other uses than element work between the main loop and the pieces, when nothing
    is held; whether the main loop has element work, or that work reads global memory: both need registers."""
    at = found.before.index(found.loop)
    work = [op for op in found.before[at + 1 :] if isinstance(op, t.Apply)]
    if any(isinstance(op, t.Apply) for op in walk(found.loop.body)) or _reads_global(work):
        return True
    for op in walk(tuple(op for op in found.before if op not in work)):
        mine = not isinstance(op, (t.Mma, t.Fill, t.DeclareFragment))
        if mine and any(r == found.mc for _, r in fragment_uses(op)):
            return True
    return False


def _uses_shared(found: _Tile) -> bool:
    """Whether a tile uses shared memory besides the main loop and the pieces."""
    others = walk(tuple(op for op in found.before if op is not found.loop))
    return any(v.base.space is Space.SHARED for op in others for v in touched(op))


def _reads_global(work: Iterable[t.Op]) -> bool:
    read = (x for op in walk(tuple(work)) for e in expressions(op) for x in parts(e) if isinstance(x, Element))
    return any(x.view.base.space is Space.GLOBAL for x in read)


def _local(found: _Tile) -> bool:
    """Whether the pieces read variables that the loop over tiles changes, or stage each tile elsewhere."""
    everything = [e for piece in found.pieces for op in piece for e in expressions(op)]
    elsewhere = [
        e for piece in found.pieces for op in piece if not isinstance(op, t.Copy) for e in expressions(op)
    ]
    moves = any(depends_on(e, {found.tiles.index.name}) for e in elsewhere)
    return moves or bool(_variables(everything) & _changed(found.tiles))


def _changed(loop: t.For) -> set[str]:
    return {op.var.name for op in walk(loop.body) if isinstance(op, (t.Declare, t.Assign))}


def _variables(found: Iterable[Expr]) -> set[str]:
    return {x.name for e in found for x in parts(e) if isinstance(x, Var)}


def _places(found: _Tile, pieces: list[t.Body]) -> dict[Expr, Var]:
    """A variable for each part of the places of ``pieces`` that depends on the tile."""
    moving = dict.fromkeys(e for e in _coordinates(pieces) if depends_on(e, {found.tiles.index.name}))
    return {e: Var(f"{found.mc.name}.place{i}", e.type) for i, e in enumerate(moving)}


def _copies(pieces: Iterable[t.Body]) -> list[t.Copy]:
    return [op for piece in pieces for op in piece if isinstance(op, t.Copy)]


def _coordinates(pieces: Iterable[t.Body]) -> list[Expr]:
    return [e for c in _copies(pieces) for e in c.dst.offsets]


# ---- pieces with one text --------------------------------------------------------------------------------


def _regular(pieces: list[t.Body], places: Mapping[Expr, Expr]) -> Callable[[Expr], t.Copy] | None:
    """The copy of a piece as a function of its number, with ``places`` filled in, if the pieces have one text.

    They do if they differ in what they store, in coordinates that grow by one number from piece to piece, and in
    slots that are taken in turns.  Else None.
    """
    others = [tuple(op for op in piece if not isinstance(op, (t.Store, t.Copy))) for piece in pieces]
    copies = _copies(pieces)
    first = copies[0]
    source, target = (_view([getattr(c, side) for c in copies], places) for side in ("src", "dst"))
    differ = any(replace(c, src=first.src, dst=first.dst) != first for c in copies)
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


def _merged(pieces: list[t.Body], at: list[Expr], copy: t.Copy) -> t.Body:
    """The piece whose condition in ``at`` holds: what all have in common stands there once."""
    out: list[t.Op] = []
    for ops in zip(*pieces, strict=True):
        if isinstance(ops[0], t.Store):
            out += (t.If(here, (op,), span=op.span) for here, op in zip(at, ops, strict=True))
        else:
            out.append(copy if isinstance(ops[0], t.Copy) else ops[0])
    return tuple(out)


def _overlapped_piece(piece: t.Body, held: t.FragmentRef, places: dict[Expr, Var]) -> t.Body:
    """``piece`` of the packed tile, at ``places``."""
    out: list[t.Op] = []
    for op in piece:
        if isinstance(op, t.Store):
            op = replace(op, fragment=held)
        elif isinstance(op, t.Copy):
            op = replace(op, dst=replace(op.dst, offsets=tuple(places.get(e, e) for e in op.dst.offsets)))
        out.append(op)
    return tuple(out)


def _packed(mc: t.FragmentRef, plan: FragmentPlan, held: t.FragmentRef, packed: FragmentPlan) -> t.Op:
    """``held = mc``, converted."""
    at = tuple(Index(f"{held.name}.{x}", const(n)) for x, n in zip("ij", plan.shape, strict=True))
    value = Cast(FragmentElement(mc.name, at, plan.dtype), packed.dtype)
    return t.Apply(held, at, (t.SetFragmentElement(held, value),))
