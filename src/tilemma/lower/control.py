"""Control: instances of parallel levels, loops, branches, roles, mutable scalars."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import nullcontext

from tilemma import dtypes
from tilemma.ir import tile, walk
from tilemma.ir.expr import Binary, Element, Expr, Index, Select, below, children, interval, trips, value_of
from tilemma.ir.lane import Imm, LaneBreak, LaneContinue, LaneExit, Reg
from tilemma.ir.tile import Body, Op, Parallel
from tilemma.ir.types import BLOCK, Space
from tilemma.lower.context import Instance, Lowering, NotLowered, lowers
from tilemma.lower.convert import convert, register_type
from tilemma.lower.emitter import Value
from tilemma.lower.linear import Linear

# Loops of at most this many turns, and operations in all, are written out where that frees registers or
# addresses: around matrix instructions, and around subscripts of lane-local buffers.
UNROLL_LIMIT = 32
UNROLL_OPERATIONS = 2048
# No loop is written out beyond this many operations, whoever asks for it.
UNROLL_MOST = 1 << 16
GRID_LIMIT = 65535


def extents(op: Parallel) -> tuple[int, ...]:
    """Instances along each index; below the block they are known."""
    found = []
    for i in op.indices:
        n = value_of(i.extent)
        assert n is not None, f"extent of {i.name} has to be known inside a block"
        found.append(n)
    return tuple(found)


def unit(op: Parallel) -> int:
    """Threads of one instance of a level inside a block: the level's, or what the levels inside it need."""
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
    """Threads of a CTA: the most that the levels inside ask for, in whole warps."""
    return -(-max(_needed(op.body), 1) // 32) * 32


# ---- parallel levels -------------------------------------------------------------------------------------


@lowers(Parallel)
def lower_parallel(lo: Lowering, op: Parallel) -> None:
    """A level inside a block: its instances side by side on the threads of the enclosing instance."""
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
    """Row-major: the last index counts fastest."""
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
    """Whether the body picks registers by the index: fragments of an array."""
    return any(
        _mentions(i, op.index.name) for inner in walk.walk(op.body) for ref in _fragments(inner) for i in ref.index
    )


def _fragments(op: Op) -> Iterable[tile.FragmentRef]:
    for name in ("fragment", "acc", "a", "b", "meta"):
        ref = getattr(op, name, None)
        if isinstance(ref, tile.FragmentRef):
            yield ref


def _picks_local(op: tile.For) -> bool:
    """Whether the index subscripts a lane's own buffer: with known subscripts it ends up in registers."""

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


def _weight(body: Body) -> int:
    """Operations of ``body``, those of loops of known length once for each turn."""
    total = 0
    for op in body:
        inside = sum(_weight(inner) for _, inner in walk.bodies(op))
        if isinstance(op, tile.For):
            bounds = (value_of(op.start), value_of(op.stop), value_of(op.step))
            if None not in bounds:
                inside *= max(1, trips(bounds[0] or 0, bounds[1] or 0, bounds[2] or 1))
        total += 1 + inside
    return total


def _wants_unroll(op: tile.For, turns: int) -> bool:
    if op.unroll == 1:
        return False
    if op.unroll is not None:
        fits = turns * _weight(op.body) <= UNROLL_MOST
        return fits and (turns <= max(op.unroll, 1) or op.unroll <= 0)
    kinds = {type(inner) for inner in walk.walk(op.body)}
    if kinds & {tile.Copy, tile.Barrier, tile.While, tile.WaitEvent}:
        return turns == 1
    if turns > UNROLL_LIMIT or turns * _weight(op.body) > UNROLL_OPERATIONS:
        return False
    return bool(kinds & {tile.Mma, tile.Load}) or _picks_local(op)


@lowers(tile.For)
def lower_for(lo: Lowering, op: tile.For) -> None:
    e = lo.e
    start, stop, step = lo.linear(op.start), lo.linear(op.stop), lo.linear(op.step)
    known = (start.known, stop.known, step.known)
    name = op.index.name
    if None not in known:
        turns = range(known[0] or 0, known[1] or 0, known[2] or 1)
        if len(turns) == 0:
            return
        jumps = any(isinstance(x, (tile.Break, tile.Continue)) for x in walk.walk(op.body))
        needed = _must_unroll(op) and len(turns) * _weight(op.body) <= UNROLL_MOST
        if not jumps and (needed or len(turns) == 1 or _wants_unroll(op, len(turns))):
            for i in turns:
                e.comment(f"for {name} = {i}")
                lo.indices[name] = Linear(const=i)
                lo.body(op.body)
            return
    if _must_unroll(op):
        raise NotLowered(
            op.span,
            what=f"the loop over `{name}`, which subscripts fragments",
            arch=lo.arch,
            expected_what="bounds that are known when compiling: registers have no run-time subscripts",
            remedy="use constant bounds, fewer turns, and no `break` or `continue` inside",
        )
    e.comment(f"for {name}")
    factor = op.unroll if op.unroll is not None and op.unroll > 1 else 1
    if factor > 1 and None not in known and len(turns) % factor == 0:
        wide = e.value(step * factor)
        with e.loop(name, e.value(start), e.value(stop), wide) as var:
            for j in range(factor):
                lo.indices[name] = Linear.of(var) + (known[2] or 1) * j
                lo.body(op.body)
        return
    plain = not any(isinstance(x, (tile.Copy, tile.Mma, tile.Barrier)) for x in walk.walk(op.body))
    # Where none is left out, ptxas sees no path around the multiplies to what reads their accumulators.
    entered = below(op.start, op.stop, lo.nonzero)
    bounds = e.value(start), e.value(stop), e.value(step)
    with e.loop(name, *bounds, unroll=None if plain else 1, entered=entered) as var:
        low, high = e.range_of(var)
        if low < 0 <= interval(op.start)[0] and interval(op.step)[0] > 0:
            e.bounded(var, 0, high)
        lo.indices[name] = Linear.of(var)
        lo.body(op.body)


@lowers(tile.While)
def lower_while(lo: Lowering, op: tile.While) -> None:
    e = lo.e
    with e.collect("loop") as setup:
        cond = lo.predicate(op.cond)
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
    cond = lo.predicate(op.cond)
    if isinstance(cond, bool):
        lo.body(op.then if cond else op.otherwise)
        return
    if not op.otherwise and all(isinstance(x, tile.TriggerEvent) or _copies(x, "whole vectors") for x in op.then):
        # Arrivals and copies take a predicate: no branch in the loop that releases slots, or multiplies.
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
    cond = lo.predicate(op.cond)
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
        lo.body(op.body)
        return
    e = lo.e
    # A whole warp goes along, so that addresses and counters are the same in all its lanes and stay in uniform
    # registers; `elect.sync` tells the assembler that one lane acts.
    mine = e.compare("eq", lo.warp_in(lo.instance), Linear(), hint="acting_warp")
    with e.branch(mine) if isinstance(mine, Reg) else nullcontext():
        lo.solo = e.reg("elected", "pred")
        e.do("elect.sync", (lo.solo,), (Imm(-1, "b32"),))
        lo.body(op.body)
    lo.solo = None


def entry_registers(lo: Lowering) -> int:
    """Registers of a thread at the start, as ptxas gives them under `.maxntid` and `.minnctapersm 1`."""
    return min(255, 64 * 1024 // lo.threads) // 8 * 8


# ---- mutable scalars -------------------------------------------------------------------------------------


def assign(lo: Lowering, reg: Reg, value: Value) -> None:
    """``reg = value``; both are registers of one type, or the value an immediate."""
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
    if op.var.dtype == dtypes.s32 and _counts_up(lo, op):
        lo.e.bounded(reg, 0, 2**31 - 1)
    _set(lo, reg, op.var.dtype, op.value)


def _counts_up(lo: Lowering, op: tile.Declare) -> bool:
    """Whether the variable starts at 0 or above and is only ever increased, or set to what is not negative."""
    values = [op.value, *lo.assigned.get(op.var, ())]

    def grows(x: Expr) -> bool:
        if isinstance(x, Binary) and x.op in ("add", "min", "max"):
            return grows(x.a) and grows(x.b)
        if isinstance(x, Binary) and x.op in ("mod", "floordiv", "div"):
            return grows(x.a) and (value_of(x.b) or 0) > 0
        if isinstance(x, Select):
            return grows(x.a) and grows(x.b)
        return x == op.var or interval(x)[0] >= 0

    return op.var not in lo.from_atomics and all(grows(v) for v in values)


@lowers(tile.Assign)
def lower_assign(lo: Lowering, op: tile.Assign) -> None:
    _set(lo, lo.variables[op.var.name], op.var.dtype, op.value)


def _set(lo: Lowering, reg: Reg, dtype: object, value: Expr) -> None:
    from tilemma.dtypes import DType

    assert isinstance(dtype, DType)
    assign(lo, reg, convert(lo.e, lo.scalar(value), value.type, dtype, lo.arch))


# ---- the grid --------------------------------------------------------------------------------------------


def may_exceed(lo: Lowering, extent: Expr, limit: int) -> bool:
    n = value_of(extent)
    return n is None or n > limit


def bind_blocks(lo: Lowering, indices: tuple[Index, ...]) -> None:
    """Give the block's indices their values from %ctaid; see `grid` for the order."""
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
                past = e.compare("ge", first, lo.linear(indices[0].extent), hint="past")
                assert isinstance(past, Reg)
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
    for i in reversed(indices[1:]):
        n = lo.linear(i.extent)
        if n.known is not None:
            rest, digit = e.divide(rest, n.known, hint=i.name)
        else:
            a, b = e.register(rest), e.register(n)
            digit = Linear.of(e.bounded(e.pure("rem.u32", "s32", a, b, hint=i.name), 0, 2**31 - 1))
            rest = Linear.of(e.bounded(e.pure("div.u32", "s32", a, b, hint="blocks"), 0, 2**31 - 1))
        lo.indices[i.name] = digit
    if indices:
        lo.indices[indices[0].name] = rest
