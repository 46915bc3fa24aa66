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

The loop over tiles may be a ``while``, whose body finds the next tile behind the pieces, and the main loop and the
pieces may stand in branches::

    while some(t):                           waiting = 0
        if filled(t):                        while some(t):
            for k: multiply into mc              if filled(t):
            if whole(t):                             for k: ..
                piece 0 of mc => place(t)            waiting = 0
                ..                                   if whole(t):
            else: ..                                     held = mc; place = place(t); waiting = 1
        t = next()                                   else: ..
                                                 t = next()
                                                 if waiting and not (some(t) and filled(t) and ..):
                                                     piece 0 of held => place; ..; waiting = 0

What stands between the two places of the pieces neither touches their buffers nor waits for stores.  So no trigger
there promises another role that a piece has been stored: the pieces of all tiles go through the same buffers, so
that it would stand behind such a wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tilemma.ir import tile as t
from tilemma.ir.expr import (
    INDEX,
    Cast,
    Element,
    Expr,
    FragmentElement,
    Index,
    Unary,
    Var,
    add,
    binary,
    const,
    depends_on,
    substitute,
    value_of,
)
from tilemma.ir.expr import walk as parts
from tilemma.ir.plans import FragmentPlan
from tilemma.ir.types import Space
from tilemma.ir.walk import expressions, rewrite, touched, walk
from tilemma.passes.contraction import fragment_uses
from tilemma.passes.decision import Decision
from tilemma.records import record
from tilemma.targets.ptx.passes.element_tiles import like
from tilemma.targets.ptx.passes.overlapped_pieces import PIECE, copies, evened, merged, regular

# Registers of a thread besides the accumulator and the packed tile: addresses, predicates, indices.
_OTHERS = 40
# A piece contains all its synchronisation: of its copy with its store, and with the piece before it, unless an
# earlier piece has waited for that.
_FREE = (t.BulkWait, t.Barrier)
_PIECE = (t.Store, t.ProxyFence, t.Barrier, t.Copy)
assert len(_PIECE) == PIECE


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
        found = _overlapped(op, registers, log) if isinstance(op, (t.For, t.While)) else None
        out += found if found is not None else (op,)
    return tuple(out)


@record(slots=False)
class _Level:
    """A body on the way to the pieces.

    They stand between ``before`` and ``after``: in ``branch``, taken where ``condition`` holds, as the field
    ``side``, or there themselves.
    """

    before: t.Body
    after: t.Body
    branch: t.If | None = None
    side: str = ""

    @property
    def condition(self) -> Expr | None:
        if self.branch is None or self.side == "then":
            return None if self.branch is None else self.branch.cond
        return Unary("lnot", self.branch.cond)


@record(slots=False)
class _Tile:
    """A loop over ``tiles`` with ``pieces`` of ``mc`` on the way ``levels``, which ``loop`` multiplies into.

    ``passed``: the operations up to the main loop, this included, and ``behind``, those between it and the pieces,
    without branches.
    """

    tiles: t.For | t.While
    levels: list[_Level]
    loop: t.For
    passed: t.Body
    behind: t.Body
    pieces: list[t.Body]
    mc: t.FragmentRef
    plan: FragmentPlan
    stored: t.Store

    @property
    def others(self) -> Iterator[t.Op]:
        """All operations of a tile besides the main loop, the pieces and the branches around these."""
        for level in self.levels:
            for op in (*level.before, *level.after):
                if op is not self.loop:
                    yield from walk((op,))
            if level.branch is not None:
                yield from walk(level.branch.otherwise if level.side == "then" else level.branch.then)

    @property
    def moving(self) -> set[str]:
        """The variables and indices that differ between tiles."""
        return _changed(self.tiles.body) | ({self.tiles.index.name} if isinstance(self.tiles, t.For) else set())


def _overlapped(tiles: t.For | t.While, registers: int, log: list[Decision]) -> t.Body | None:
    """The replacement of the loop over tiles, or None if it is not changed."""
    found = _found(tiles)
    if found is None or found.stored.dst.dtype.bits > 16:
        return None  # a tile that is not narrowed needs as many registers again
    # Accumulators and packed tile: 32-bit registers of a warpgroup's threads.
    declared = (op for op in (*found.passed, *found.behind) if isinstance(op, t.DeclareFragment))
    sums = sum(_area(op.plan) for op in declared if op.plan)
    follows = _follows(found)
    if (
        follows is None
        or sums + _area(found.plan) * found.stored.dst.dtype.bits // 32 + _OTHERS > registers
        or _uneven(found)
        or _used(found)
        or _local(found)
        or not _apart(found)
    ):
        return None
    text = f"{len(found.pieces)} pieces, each in another iteration over {found.loop.index.name} of the next tile"
    log.append(
        Decision("overlapped epilogue", found.mc.name, text, {"pieces": len(found.pieces)}, span=found.stored.span)
    )
    return _delayed(found, follows)


# ---- where it applies ------------------------------------------------------------------------------------


def _found(tiles: t.For | t.While) -> _Tile | None:
    way = _way(tiles.body)
    if way is None:
        return None
    levels, pieces = way
    stores = [op for piece in pieces for op in piece if isinstance(op, t.Store)]
    (mc, *others) = {s.fragment for s in stores}
    if others or mc.index:
        return None
    path = [op for level in levels for op in level.before]
    loops = [i for i, op in enumerate(path) if isinstance(op, t.For) and _multiplies(op, mc)]
    plan = next((op.plan for op in path if isinstance(op, t.DeclareFragment) and op.name == mc.name), None)
    if plan is None or len(loops) != 1:
        return None
    passed, behind = tuple(path[: loops[0] + 1]), tuple(path[loops[0] + 1 :])
    loop = passed[-1]
    assert isinstance(loop, t.For)
    return _Tile(tiles, levels, loop, passed, behind, pieces, mc, plan, stores[0])


def _way(body: t.Body) -> tuple[list[_Level], list[t.Body]] | None:
    """The last pieces in ``body`` or its branches, and the way there."""
    for at in range(len(body) - 1, -1, -1):
        op = body[at]
        pieces = _pieces(body[: at + 1])
        if len(pieces) > 1:
            return [_Level(body[: at + 1 - sum(map(len, pieces))], body[at + 1 :])], pieces
        for side in ("then", "otherwise") if isinstance(op, t.If) else ():
            inner = _way(getattr(op, side))
            if inner is not None and isinstance(op, t.If):
                return [_Level(body[:at], body[at + 1 :], op, side), *inner[0]], inner[1]
    return None


def _barrier(piece: t.Body) -> t.Barrier:
    return next(op for op in piece if isinstance(op, t.Barrier))


def _area(plan: FragmentPlan) -> int:
    """Registers of a thread for an accumulator; 0 for other fragments."""
    return plan.shape[0] * plan.shape[1] // plan.level.threads if plan.role == "C" else 0


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


def _follows(found: _Tile) -> list[Expr] | None:
    """Conditions at the end of a tile for another that gets to the main loop; None where they are not known
    there."""
    tiles = found.tiles
    if isinstance(tiles, t.While):
        conditions, step = [tiles.cond], {}
    else:
        conditions, step = [], {tiles.index.name: add(tiles.index, tiles.step)}
    path: list[t.Op] = []
    for level in found.levels:
        path += level.before
        if found.loop in path:
            break
        condition = _at_the_end(level.condition, path) if level.condition is not None else None
        if condition is None:
            return None
        conditions.append(substitute(condition, step))
    if any(isinstance(x, (Element, FragmentElement)) for e in conditions for x in parts(e)):
        return None
    if isinstance(tiles, t.For):
        conditions.insert(0, binary("lt", step[tiles.index.name], tiles.stop))
    return conditions


def _at_the_end(e: Expr, path: list[t.Op]) -> Expr | None:
    """The value that ``e`` will have behind ``path``, of the next tile, in terms of the values before it."""
    for op in reversed(path):
        if isinstance(op, (t.Declare, t.Assign)):
            e = substitute(e, {op.var.name: op.value})
        elif depends_on(e, _changed((op,))):
            return None
    return e


def _uneven(found: _Tile) -> bool:
    """Whether the main loop's trip count may differ between tiles, or a loop may be left early."""
    jumps = any(isinstance(op, (t.Break, t.Continue)) for op in walk(found.tiles.body))
    return jumps or depends_on(found.loop.stop, found.moving)


def _used(found: _Tile) -> bool:
    """Whether the accumulator has other uses than element work and stores between the main loop and the pieces,
    when nothing is held; whether the main loop has element work, or that work reads global memory: both need
    registers."""
    work = [op for op in found.behind if isinstance(op, t.Apply)]
    if any(isinstance(op, t.Apply) for op in walk(found.loop.body)) or _reads_global(work):
        return True
    done = {id(op) for op in walk(tuple(work))}
    for op in found.others:
        mine = id(op) not in done and not isinstance(op, (t.Mma, t.Fill, t.DeclareFragment, t.Store))
        if mine and any(r == found.mc for _, r in fragment_uses(op)):
            return True
    return False


def _uses_shared(found: _Tile) -> bool:
    """Whether a tile uses shared memory besides the main loop and the pieces."""
    return any(v.base.space is Space.SHARED for op in found.others for v in touched(op))


def _reads_global(work: Iterable[t.Op]) -> bool:
    read = (x for op in walk(tuple(work)) for e in expressions(op) for x in parts(e) if isinstance(x, Element))
    return any(x.view.base.space is Space.GLOBAL for x in read)


def _local(found: _Tile) -> bool:
    """Whether the pieces stage each tile elsewhere."""
    targets = {id(e) for e in _coordinates(found.pieces)}
    everything = (e for piece in found.pieces for op in piece for e in expressions(op) if id(e) not in targets)
    return any(depends_on(e, found.moving) for e in everything)


def _apart(found: _Tile) -> bool:
    """Whether nothing between the two places of the pieces touches their buffers, or waits for stores.

    A wait for the tile before in front of the main loop would also leave a barrier behind the loop that the pieces
    do not have there.
    """
    mine = {v.base.name for piece in found.pieces for op in piece for v in touched(op)}
    between = (*found.passed, *(op for level in found.levels for op in level.after))
    return not any(
        isinstance(op, t.BulkWait) or any(v.base.name in mine for v in touched(op)) for op in walk(between)
    )


def _changed(body: t.Body) -> set[str]:
    """The variables that ``body`` sets."""
    found = {op.var.name for op in walk(body) if isinstance(op, (t.Declare, t.Assign))}
    return found | {op.result.name for op in walk(body) if isinstance(op, t.Atomic) and op.result is not None}


# ---- the loop over tiles with delayed pieces -------------------------------------------------------------


def _delayed(found: _Tile, follows: list[Expr]) -> t.Body:
    tiles, loop, pieces, mc, span = found.tiles, found.loop, found.pieces, found.mc, found.stored.span
    dtype = found.stored.dst.dtype
    packed = like(found.plan, dtype, mc.name, span)
    held, waiting = t.FragmentRef(f"{mc.name}.held"), Var(f"{mc.name}.waiting", INDEX)
    places = _places(found, pieces)
    even = evened(pieces)
    one = regular(even, {e: var for e, var in places.items() if e in _coordinates(even[:1])})
    if one is not None:
        places = _places(found, pieces[:1])
        even, pieces = (
            [tuple(one(const(j)) if isinstance(op, t.Copy) else op for op in p) for j, p in enumerate(x)]
            for x in (even, pieces)
        )
    at = [binary("eq", loop.index, j) for j in range(len(pieces))]
    last = [_overlapped_piece(piece, held, places) for piece in pieces]
    if one is None:
        each: t.Body = tuple(t.If(here, piece, span=span) for here, piece in zip(at, last, strict=True))
    else:
        each = merged([_overlapped_piece(piece, held, places) for piece in even], at, one(loop.index))
    due = binary("land", binary("gt", waiting, 0), binary("lt", loop.index, len(pieces)))
    main_loop = replace(loop, body=(*loop.body, t.If(due, each, span=span)))
    ready = (_packed(mc, found.plan, held, packed), *(t.Assign(var, e, span=span) for e, var in places.items()))
    if _uses_shared(found):
        # The barriers of the pieces also ended the use of other shared memory by a tile.
        ready = (*ready, _barrier(pieces[0]))
    may_wait = binary("ge", loop.stop, len(pieces))
    for condition in reversed(follows):
        may_wait = binary("land", condition, may_wait)
    wait, done = (t.Assign(waiting, const(x), span=span) for x in (1, 0))
    stores = tuple(op for p in last for op in p)
    if len(found.levels) == 1:
        end = t.If(may_wait, (wait,), stores, span=span)
        multiplied: t.Body = (main_loop,)
    else:
        # Some tiles have no pieces.
        end = t.If(binary("gt", waiting, 0), (t.If(may_wait, (wait,), (*stores, done), span=span),), span=span)
        multiplied, ready = (main_loop, done), (*ready, wait)
    return (
        t.DeclareFragment(held.name, (), dtype, found.plan.shape, packed, guarded=True, span=span),
        *(t.Declare(v, const(0), span=span) for v in (waiting, *places.values())),
        replace(tiles, body=(*_rebuilt(found.levels, loop, multiplied, ready), end)),
    )


def _rebuilt(levels: list[_Level], loop: t.For, multiplied: t.Body, ready: t.Body) -> t.Body:
    """The way ``levels`` with ``multiplied`` in the place of ``loop`` and ``ready`` in that of the pieces."""
    first, *inner = levels
    before = [x for op in first.before for x in (multiplied if op is loop else (op,))]
    if first.branch is not None:
        body = _rebuilt(inner, loop, multiplied, ready)
        taken = first.side == "then"
        ready = (replace(first.branch, then=body) if taken else replace(first.branch, otherwise=body),)
    return (*before, *ready, *first.after)


def _places(found: _Tile, pieces: list[t.Body]) -> dict[Expr, Var]:
    """A variable for each part of the places of ``pieces`` that depends on the tile."""
    moving = dict.fromkeys(e for e in _coordinates(pieces) if depends_on(e, found.moving))
    return {e: Var(f"{found.mc.name}.place{i}", e.type) for i, e in enumerate(moving)}


def _coordinates(pieces: Iterable[t.Body]) -> list[Expr]:
    return [e for c in copies(pieces) for e in c.dst.offsets]


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
