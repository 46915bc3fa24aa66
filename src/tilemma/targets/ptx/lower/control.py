"""Lowering of control flow: parallel levels, loops and unrolling, branches, warp-specialised roles, mutable
scalars."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import nullcontext

from tilemma.dtypes import DType
from tilemma.ir import tile, walk
from tilemma.ir.expr import Dim, Element, Expr, Index, children, const, value_of
from tilemma.ir.lane import Imm, LaneBreak, LaneContinue, LaneExit, Reg
from tilemma.ir.ranges import Known, enters
from tilemma.ir.tile import Body, Op, Parallel
from tilemma.ir.types import BLOCK, Space
from tilemma.targets.ptx.lower.context import Instance, Lowering, lowers
from tilemma.targets.ptx.lower.convert import convert, register_type
from tilemma.targets.ptx.lower.expressions import linear, predicate, scalar
from tilemma.targets.ptx.lower.linear import Linear, in_s32
from tilemma.targets.ptx.lower.places import Places
from tilemma.targets.ptx.lower.refusals import NotLowered
from tilemma.targets.ptx.lower.regions import Value
from tilemma.targets.ptx.target import Target

# Loops of at most this many iterations, and operations in all, are unrolled where constant indices save registers
# or address computations: around matrix instructions, and around subscripts of lane-local buffers.
UNROLL_LIMIT = 32
UNROLL_OPERATIONS = 2048
# No loop is unrolled to more operations than this, even if the program asks for it.
UNROLL_CAP = 1 << 16
GRID_LIMIT = 65535


def extents(op: Parallel) -> tuple[int, ...]:
    """The number of instances along each index; inside a block they are constants."""
    found = []
    for i in op.indices:
        n = value_of(i.extent)
        assert n is not None, f"extent of {i.name} has to be a constant inside a block"
        found.append(n)
    return tuple(found)


def unit(op: Parallel) -> int:
    """Threads of one instance of a level inside a block: the level's own, or more if the levels inside it need
    more."""
    assert op.level is not None
    return max(op.level.threads, _needed(op.body))


def _needed(body: Body) -> int:
    most = 0
    for op in body:
        if isinstance(op, Parallel):
            most = max(most, math.prod(extents(op)) * unit(op))
        else:
            most = max([most, *(_needed(inner) for _, inner in walk.bodies(op))])
    return most


def launch_threads(op: Parallel) -> int:
    """Threads of a CTA: as many as the levels inside need, rounded up to whole warps."""
    return -(-max(_needed(op.body), 1) // 32) * 32


# ---- parallel levels -------------------------------------------------------------------------------------


@lowers(Parallel)
def lower_parallel(lo: Lowering, op: Parallel) -> None:
    """A level inside a block: its instances occupy consecutive threads of the enclosing instance."""
    assert op.level is not None and op.level.kind in ("group", "thread"), op.level
    outer = lo.instance
    count, size = math.prod(extents(op)), unit(op)
    assert count * size <= outer.threads, f"{count} x {size} threads in {outer.threads}"
    e = lo.e
    active: Reg | bool = True
    if size % 32 == 0:
        position = lo.warp_in(outer)
        per = size // 32
        if count * size < outer.threads:
            active = e.compare("lt", position, Linear(const=count * per), hint="active")
        number, _ = e.divide(position, per, hint=op.indices[0].name if op.indices else "instance")
    else:
        position = lo.thread_in(outer)
        if count * size < outer.threads:
            active = e.compare("lt", position, Linear(const=count * size), hint="active")
        number, _ = e.divide(position, size, hint="instance")
    if count == 1:
        number = Linear()
    first = outer.first + number * size
    aligned = math.gcd(outer.aligned, size)
    inner = Instance(op.level, size, number, first, aligned)
    _bind(lo, op.indices, number)
    e.comment(f"parallel {', '.join(i.name for i in op.indices)} : {op.level}")
    if active is True:
        with lo.within(inner):
            lo.body(op.body)
    elif active is not False:
        with e.branch(active), lo.within(inner):
            lo.body(op.body)


def _bind(lo: Lowering, indices: tuple[Index, ...], number: Linear) -> None:
    """Define ``indices`` from their row-major ``number``: the last index varies fastest."""
    rest = number
    for i in reversed(indices[1:]):
        n = value_of(i.extent) or 1
        rest, digit = lo.e.divide(rest, n, hint=i.name)
        lo.indices[i.name] = digit
    if indices:
        lo.indices[indices[0].name] = rest


def block_instance(threads: int) -> Instance:
    return Instance(BLOCK, threads, Linear(), Linear(), max(1024, threads))


# ---- loops -----------------------------------------------------------------------------------------------


def _mentions(x: Expr, name: str) -> bool:
    return (isinstance(x, Index) and x.name == name) or any(_mentions(c, name) for c in children(x))


def _must_unroll(op: tile.For) -> bool:
    """Whether the index subscripts an array of fragments, that is, selects registers."""
    return any(
        _mentions(i, op.index.name) for inner in walk.walk(op.body) for ref in _fragments(inner) for i in ref.index
    )


def _fragments(op: Op) -> Iterable[tile.FragmentRef]:
    for name in ("fragment", "acc", "a", "b", "meta"):
        ref = getattr(op, name, None)
        if isinstance(ref, tile.FragmentRef):
            yield ref


def _subscripts_local(op: tile.For) -> bool:
    """Whether the index subscripts a lane-local buffer: with constant subscripts ptxas keeps it in registers."""

    def local(x: Expr) -> bool:
        if isinstance(x, Element) and x.view.base.space is Space.LOCAL:
            return any(_mentions(e, op.index.name) for e in x.view.expressions())
        return any(local(c) for c in children(x))

    for inner in walk.walk(op.body):
        for view in walk.views(inner):
            if view.base.space is Space.LOCAL and any(_mentions(e, op.index.name) for e in view.expressions()):
                return True
        if any(local(x) for x in walk.expressions(inner)):
            return True
    return False


def _operation_count(body: Body) -> int:
    """Operations of ``body``, those of loops of constant trip count once for each iteration."""
    total = 0
    for op in body:
        inside = sum(_operation_count(inner) for _, inner in walk.bodies(op))
        if isinstance(op, tile.For):
            inside *= walk.trip_count(op) or 1
        total += 1 + inside
    return total


def _wants_unroll(op: tile.For, trip_count: int) -> bool:
    if op.unroll == 1:
        return False
    if op.unroll is not None:
        fits = trip_count * _operation_count(op.body) <= UNROLL_CAP
        return fits and (trip_count <= max(op.unroll, 1) or op.unroll <= 0)
    kinds = {type(inner) for inner in walk.walk(op.body)}
    if kinds & {tile.Copy, tile.Barrier, tile.While, tile.WaitEvent}:
        return trip_count == 1
    if trip_count > UNROLL_LIMIT or trip_count * _operation_count(op.body) > UNROLL_OPERATIONS:
        return False
    return bool(kinds & {tile.Mma, tile.Load}) or _subscripts_local(op)


@lowers(tile.For)
def lower_for(lo: Lowering, op: tile.For) -> None:
    _lower_for(lo, op)


def _lower_for(lo: Lowering, op: tile.For, places: Places | None = None) -> None:
    """The loop; ``places`` are computed behind the operations of its first iteration."""
    e = lo.e
    start, stop, step = linear(lo, op.start), linear(lo, op.stop), linear(lo, op.step)
    known = (start.known, stop.known, step.known)
    name = op.index.name
    # In an unrolled body, `continue` of one copy would have to jump to the next copy, not to the loop's end.
    jumps = walk.jumps(op)
    if None not in known:
        iterations = range(known[0] or 0, known[1] or 0, known[2] or 1)
        if len(iterations) == 0:
            return
        needed = _must_unroll(op) and len(iterations) * _operation_count(op.body) <= UNROLL_CAP
        if not jumps and (needed or len(iterations) == 1 or _wants_unroll(op, len(iterations))):
            for i in iterations:
                e.comment(f"for {name} = {i}")
                lo.indices[name] = Linear(const=i)
                lo.body(op.body)
            return
    if _must_unroll(op):
        raise NotLowered(
            op.span,
            what=f"the loop over `{name}`, which subscripts fragments",
            arch=lo.arch,
            expected_what="bounds that are known when compiled: registers have no run-time subscripts",
            remedy="use constant bounds, fewer iterations, and no `break` or `continue` inside",
        )
    e.comment(f"for {name}")
    factor = op.unroll if op.unroll is not None and op.unroll > 1 and not jumps else 1
    if factor > 1 and None not in known and len(iterations) % factor == 0:
        wide = e.value(step * factor)
        with e.loop(name, e.value(start), e.value(stop), wide) as var:
            for j in range(factor):
                lo.indices[name] = Linear.of(var) + (known[2] or 1) * j
                lo.body(op.body)
        return
    # The number of iterations has to be a number of s32.
    if factor > 1 and known[2] is not None and known[2] > 0 and in_s32(e.range_of(stop - start)):
        start = _in_groups(lo, op, start, stop, known[2], factor)
    plain = not any(isinstance(x, (tile.Copy, tile.Mma, tile.Barrier)) for x in walk.walk(op.body))
    # If the trip count is at least 1, ptxas sees no path that skips the multiplies before their accumulators are
    # read.
    entered = enters(op.index, op.start, op.stop, Known(lo.nonzero))
    bounds = e.value(start), e.value(stop), e.value(step)
    repeated = start.known is None
    sources = Places.loaded(lo, op) if repeated and lo.solo is not None else None
    if sources is not None and not sources.found:
        sources.compute_at(lo, op.index.name, start)
    with e.loop(name, *bounds, unroll=None if plain else 1, entered=entered) as var:
        e.bounded(var, *lo.interval(op.index))
        lo.indices[name] = Linear.of(var)
        with lo.iterating(op.stop if lo.interval(op.start)[0] >= 0 else const(1)):
            outside = dict(lo.held)
            lo.held |= sources.found if sources is not None else {}
            _tile(lo, op.body, repeated)
            lo.held = outside
            if sources is not None:
                after = e.bounded(e.register(Linear.of(var) + step), *lo.interval(op.index))
                sources.compute_at(lo, name, Linear.of(after))
            if places is not None:
                first = e.compare("eq", Linear.of(var), start)
                with e.branch(first, cold=True) if isinstance(first, Reg) else nullcontext():
                    places.compute(lo)


def _tile(lo: Lowering, body: Body, repeated: bool) -> None:
    """Lower ``body``, of a role, or of a loop: ``repeated`` if over tiles, from one that differs between blocks.

    The places of TMA stores behind a main loop, which take divisions, are computed when its first multiplications
    have been issued, not when the tensor cores have nothing to do; by blocks of one tile, while the first operands
    are on their way.
    """
    known = dict(lo.held)
    for at, op in enumerate(body):
        places = Places.stored(lo, op, body[at + 1 :])
        if places is None:
            lo.op(op)
            continue
        if not repeated:
            places.compute(lo)
            lo.op(op)
        else:
            assert isinstance(op, tile.For), op
            ops = places.computed_before(lo)
            if not enters(op.index, op.start, op.stop, Known(lo.nonzero)):
                none = lo.e.compare("ge", linear(lo, op.start), linear(lo, op.stop))
                if isinstance(none, Reg):
                    lo.e.select_branch(none, ops, ())
            _lower_for(lo, op, places)
        lo.held |= places.found
    lo.held = known


def _in_groups(lo: Lowering, op: tile.For, start: Linear, stop: Linear, step: int, factor: int) -> Linear:
    """A loop over whole groups of ``factor`` iterations; returns the index of the first one after them."""
    e, name, wide = lo.e, op.index.name, step * factor
    left = e.pure("max.s32", "s32", e.register(stop - start), Imm(0), hint="left")
    groups, _ = e.divide(Linear.of(e.bounded(left, 0, 2**31 - 1)), wide, hint="groups")
    behind = Linear.of(e.register(start + groups * wide, hint="behind"))
    with e.loop(name, e.value(start), e.value(behind), Imm(wide)) as var:
        e.bounded(var, *lo.interval(op.index))
        with lo.iterating(op.stop if lo.interval(op.start)[0] >= 0 else const(1)):
            for j in range(factor):
                lo.indices[name] = Linear.of(var) + step * j
                lo.body(op.body)
    return behind


@lowers(tile.While)
def lower_while(lo: Lowering, op: tile.While) -> None:
    e = lo.e
    with e.collect("loop") as setup:
        cond = predicate(lo, op.cond)
        if isinstance(cond, bool):
            cond = e.pure("setp.ne.s32", "pred", Imm(int(cond)), Imm(0), hint="always", uniform=True)
        setup_ops = tuple(setup)
    with e.collect("loop") as body:
        lo.body(op.body)
        body_ops = tuple(body)
    e.while_loop(setup_ops, cond, body_ops)


@lowers(tile.Break)
def lower_break(lo: Lowering, op: tile.Break) -> None:
    lo.e.add(LaneBreak())


@lowers(tile.Continue)
def lower_continue(lo: Lowering, op: tile.Continue) -> None:
    lo.e.add(LaneContinue())


# ---- branches --------------------------------------------------------------------------------------------


@lowers(tile.If)
def lower_if(lo: Lowering, op: tile.If) -> None:
    e = lo.e
    cond = predicate(lo, op.cond)
    if isinstance(cond, bool):
        lo.body(op.then if cond else op.otherwise)
        return
    if not op.otherwise and all(isinstance(x, tile.TriggerEvent) or _copies(x, "whole vectors") for x in op.then):
        # Arrivals and copies take a predicate, which avoids a branch in the main loop.
        with lo.where(cond):
            lo.body(op.then)
        return
    if not op.otherwise and all(_copies(x, "cut vectors") for x in op.then):
        with e.branch(cond, cold=True):
            lo.body(op.then)
        return
    with e.collect() as then:
        lo.body(op.then)
        then_ops = tuple(then)
    with e.collect() as otherwise:
        lo.body(op.otherwise)
        other_ops = tuple(otherwise)
    e.select_branch(cond, then_ops, other_ops)


def _copies(op: Op, edge: str) -> bool:
    return isinstance(op, tile.Copy) and op.plan is not None and op.plan.edge == edge


@lowers(tile.InThreads)
def lower_in_threads(lo: Lowering, op: tile.InThreads) -> None:
    cond = predicate(lo, op.cond)
    if cond is True:
        _role(lo, op)
    elif cond is not False:
        with lo.e.branch(cond):
            _role(lo, op)


def _role(lo: Lowering, op: tile.InThreads) -> None:
    if op.registers is not None:
        way = "inc" if op.registers > entry_registers(lo) else "dec"
        lo.e.do(f"setmaxnreg.{way}.sync.aligned.u32", (), (Imm(op.registers),))
        lo.reallocates = True
    if not op.solo or lo.solo is not None:
        _tile(lo, op.body, repeated=False)
        return
    e = lo.e
    # A whole warp executes the role, so that addresses and counters are warp-uniform and stay in uniform
    # registers; `elect.sync` (sm_90) tells ptxas that one lane executes the predicated
    # instructions.
    mine = e.compare("eq", lo.warp_in(lo.instance), Linear(), hint="acting_warp")
    with e.branch(mine) if isinstance(mine, Reg) else nullcontext():
        if Target.of(lo.arch).has("elect.sync"):
            lo.solo = e.reg("elected", "pred")
            e.do("elect.sync", (lo.solo,), (Imm(-1, "b32"),))
        else:
            first = lo.elected(lo.instance)
            assert isinstance(first, Reg), first
            lo.solo = first
        lo.body(op.body)
    lo.solo = None


def entry_registers(lo: Lowering) -> int:
    """Registers of a thread at kernel entry, as ptxas allocates them under `.maxntid` and `.minnctapersm`."""
    return min(255, 64 * 1024 // (lo.threads * lo.min_blocks)) // 8 * 8


# ---- mutable scalars -------------------------------------------------------------------------------------


def assign(lo: Lowering, reg: Reg, value: Value) -> None:
    """``reg = value``; the value is a register of the same type or an immediate."""
    kind = {"s32": "b32", "u32": "b32", "s64": "b64", "u64": "b64"}.get(reg.type, reg.type)
    if reg.type != "pred":
        lo.e.do(f"mov.{kind}", (reg,), (value,))
    elif isinstance(value, Imm):
        lo.e.do("setp.ne.s32", (reg,), (Imm(int(value.value)), Imm(0)))
    else:
        lo.e.do("mov.pred", (reg,), (value,))


@lowers(tile.Declare)
def lower_declare(lo: Lowering, op: tile.Declare) -> None:
    reg = lo.e.reg(op.var.name, register_type(op.var.dtype), mutable=True)
    lo.variables[op.var.name] = reg
    if op.var.dtype.is_integer and op.var.dtype.bits <= 32:
        lo.e.bounded(reg, *lo.interval(op.var))
    _set(lo, reg, op.var.dtype, op.value)


@lowers(tile.Assign)
def lower_assign(lo: Lowering, op: tile.Assign) -> None:
    _set(lo, lo.variables[op.var.name], op.var.dtype, op.value)


def _set(lo: Lowering, reg: Reg, dtype: object, value: Expr) -> None:
    assert isinstance(dtype, DType)
    assign(lo, reg, convert(lo.e, scalar(lo, value), value.type, dtype, lo.arch))


# ---- the grid --------------------------------------------------------------------------------------------


def may_exceed(lo: Lowering, extent: Expr, limit: int) -> bool:
    n = value_of(extent)
    return n is None or n > limit


def bind_blocks(lo: Lowering, indices: tuple[Index, ...]) -> None:
    """Define the block's indices from %ctaid; `launches._grid` describes the order."""
    _bind_grid(lo, indices)
    for i in indices:
        at = lo.indices[i.name]
        if len(at.terms) == 1 and at == Linear.of(at.terms[0][0]):
            # The index is below its extent: the launch starts no other blocks, or they have exited.
            lo.e.bounded(at.terms[0][0], *lo.interval(i))


def count_blocks(lo: Lowering, indices: tuple[Index, ...], register: str) -> None:
    """The extent of the only index of a launch is the number of its blocks or clusters, in a special register:
    loops whose step it is do not divide to find it."""
    extent = indices[0].extent if len(indices) == 1 else const(1)
    value = None if value_of(extent) is not None else lo.value_numbers.of(extent)
    if value is not None and not isinstance(extent, Dim):
        lo.launched = value.number, lo.interval(extent), register


def _bind_grid(lo: Lowering, indices: tuple[Index, ...]) -> None:
    e = lo.e

    def cta(axis: str) -> Linear:
        return Linear.of(e.special(f"ctaid.{axis}", f"cta_{axis}", 2**31 - 1, uniform=True))

    match len(indices):
        case 0:
            return
        case 1:
            lo.indices[indices[0].name] = cta("x")
        case 2:
            lo.indices[indices[1].name] = cta("x")
            first = cta("y")
            if may_exceed(lo, indices[0].extent, GRID_LIMIT):
                first = Linear.of(e.register(first + cta("z") * GRID_LIMIT, hint=indices[0].name))
                e.bounded(first.terms[0][0], 0, 2**31 - 1)
                past = e.compare("ge", first, linear(lo, indices[0].extent), hint="past")
                # A comparison that folds holds in no block that starts: an extent of at most 0 starts none.
                if isinstance(past, Reg):
                    with e.branch(past):
                        e.add(LaneExit())
            lo.indices[indices[0].name] = first
        case 3 if not any(may_exceed(lo, i.extent, GRID_LIMIT) for i in indices[:2]):
            for i, axis in zip(reversed(indices), "xyz", strict=True):
                lo.indices[i.name] = cta(axis)
        case _:
            number(lo, indices, cta("x"))


def number(lo: Lowering, indices: tuple[Index, ...], count: Linear) -> None:
    """``indices`` from their row-major number ``count``."""
    e = lo.e
    rest = count
    while len(indices) > 1 and value_of(indices[0].extent) == 1:
        lo.indices[indices[0].name] = Linear()
        indices = indices[1:]
    for i in reversed(indices[1:]):
        n = linear(lo, i.extent)
        if n.known is not None:
            rest, digit = e.divide(rest, n.known, hint=i.name)
        else:
            a, b = e.register(rest), e.register(n)
            digit = Linear.of(e.bounded(e.pure("rem.u32", "s32", a, b, hint=i.name), 0, 2**31 - 1))
            rest = Linear.of(e.bounded(e.pure("div.u32", "s32", a, b, hint="blocks"), 0, 2**31 - 1))
        lo.indices[i.name] = digit
    if indices:
        lo.indices[indices[0].name] = rest
