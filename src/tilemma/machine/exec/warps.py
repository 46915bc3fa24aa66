"""Warp-wide exchange: shfl, vote, match, redux, elect, activemask (PTX ISA, "Parallel Synchronization")."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilemma.machine.catalogue import ShuffleOfInactiveLane
from tilemma.machine.decode import VIEW, Decoder, instruction
from tilemma.machine.exec import aligned
from tilemma.machine.hazards import ranges
from tilemma.machine.isa import numerics
from tilemma.machine.isa.forms import Arch
from tilemma.machine.native.blocks import AccessBlock, PlainAccess, block
from tilemma.machine.register_checks import shuffled
from tilemma.machine.state import LANES, Frame
from tilemma.machine.syntax import Instruction, Register, Sink

# Patterns of shifts that one instruction remembers.
_PATTERNS = 256


def _mask(f: Frame, m: Any, row: int) -> int:
    lane = f.lanes[0] if m is None else int(np.flatnonzero(m)[0])
    return int(f.w.v[3][row][lane])


def _put(target: Any, value: Any, m: Any) -> None:
    np.copyto(target, value, where=True if m is None else m, casting="unsafe")


@instruction("shfl.sync")
def shfl(d: Decoder) -> None:
    mode = d.one_of(("up", "down", "bfly", "idx"))
    d.only("sync", "b32")
    to, predicate = d.pair(d.operands[0])
    o = d.dst(to, "b32")
    p = d.dst(predicate, "pred") if predicate is not None and not isinstance(predicate, Sink) else -1
    a, b, c = (d.src(x, "b32") for x in d.operands[1:4])
    mask = d.src(d.operands[4], "u32")
    d.membership = mask
    ins, program = d.ins, d.program
    given = d.register_id(d.operands[1]) if isinstance(d.operands[1], Register) else -1
    result = d.register_id(to) if isinstance(to, Register) else -1
    exchange = block([("up", "down", "bfly", "idx").index(mode), o, p, a, b, c, mask])
    d.plain = PlainAccess("EXCHANGE", AccessBlock(*exchange))
    # By shift and clamp of each lane: the source lanes of whole warps, and whether each is inside the segment.
    patterns: dict[bytes, tuple[Any, Any]] = {}

    def run(f: Frame, m: Any) -> None:
        w = f.w
        u = w.v[3]
        if m is None:
            key = u[b].tobytes() + u[c].tobytes()
            known = patterns.get(key)
            if known is not None and given not in program.tracked and _mask(f, m, mask) == 0xFFFFFFFF:
                source, inside = known
                u[o][:] = u[a].take(source)
                if p >= 0:
                    w.v[9][p][:] = inside
                return
        named = aligned.members(f, ins, m, _mask(f, m, mask))
        shift = (u[b] & 31).astype(np.int64)
        clamp, segment = (u[c] & 31).astype(np.int64), (u[c] >> 8 & 31).astype(np.int64)
        highest = (LANES & segment) | (clamp & ~segment & 31)
        lowest = LANES & segment
        if mode == "up":
            source = LANES - shift
            inside = source >= highest
        elif mode == "down":
            source = LANES + shift
            inside = source <= highest
        elif mode == "bfly":
            source = LANES ^ shift
            inside = source <= highest
        else:
            source = lowest | (shift & ~segment & 31)
            inside = source <= highest
        source = np.where(inside, source, LANES)
        reading = w.live if m is None else m
        lost = reading & ~named[source]
        if lost.any():
            _report_lost(f, ins, np.flatnonzero(lost), source[lost])
        elif m is None and named.all() and len(patterns) < _PATTERNS:
            patterns[key] = source, inside
        value = u[a][source]
        written = None if named.all() and m is None else named if m is None else m
        _put(u[o], value, written)
        if given in program.tracked:
            # Of the value only the lanes count from which some lane gets it: a leader may share what it alone has.
            shuffled(w, given, result, ins, source, written)
        if p >= 0:
            _put(w.v[9][p], inside, m)

    d.visible(aligned.by_mask(run, mask))


def _report_lost(f: Frame, ins: Instruction, lanes: Any, sources: Any) -> None:
    """Report the lanes that get the register of a lane that does not execute the shuffle."""
    f.w.report(ShuffleOfInactiveLane, ins, lanes=lanes, opcode=ins.opcode, sources=ranges(sources))


@instruction("vote.sync")
def vote(d: Decoder) -> None:
    mode = d.one_of(("all", "any", "uni", "ballot"))
    out = "b32" if mode == "ballot" else "pred"
    d.only("sync", out)
    o = d.dst(d.operands[0], out)
    a, negated = d.src_pred(d.operands[1])
    mask = d.membership = d.src(d.operands[2], "u32")
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        w = f.w
        named = aligned.members(f, ins, m, _mask(f, m, mask))
        votes = (w.v[9][a] ^ negated)[named]
        if mode == "ballot":
            bits = int(sum(1 << int(i) for i, v in zip(np.flatnonzero(named), votes, strict=True) if v))
            _put(w.v[3][o], bits, m)
        else:
            result = {"all": votes.all(), "any": votes.any(), "uni": votes.all() or not votes.any()}[mode]
            _put(w.v[9][o], result, m)

    d.visible(aligned.by_mask(run, mask))


@instruction("match.any.sync", "match.all.sync")
def match(d: Decoder) -> None:
    kind = d.type
    everything = "all" in d.mods
    to, predicate = d.pair(d.operands[0])
    if predicate is not None and not everything:
        d.bad("`match.any` has no predicate")
    o = d.dst(to, "u32")
    p = d.dst(predicate, "pred") if predicate is not None and not isinstance(predicate, Sink) else -1
    a, mask = d.src(d.operands[1], kind), d.src(d.operands[2], "u32")
    d.membership = mask
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        w = f.w
        named = aligned.members(f, ins, m, _mask(f, m, mask))
        value = w.v[VIEW[kind]][a]
        equal = (value[:, None] == value[None, :]) & named[None, :]
        weights = np.uint64(1) << LANES.astype(np.uint64)
        sets = (equal * weights).sum(axis=1)
        full = int((named * weights).sum())
        if everything:
            same = bool((sets[named] == full).all())
            _put(w.v[3][o], full if same else 0, m)
            if p >= 0:
                _put(w.v[9][p], same, m)
        else:
            _put(w.v[3][o], sets, m)

    d.visible(aligned.by_mask(run, mask))


def _float_extremum(op: str, values: Any, nan: bool) -> Any:
    """The minimum or maximum of some f32; a NaN counts with `.NaN` only."""
    out = values[:1]
    for i in range(1, len(values)):
        out = numerics.arith(op, "f32", out, values[i : i + 1], nan=nan)
    # One NaN alone becomes the canonical one.
    return numerics.arith(op, "f32", out, out, nan=nan)[0]


@instruction("redux.sync")
def redux(d: Decoder) -> None:
    kind = d.type
    op = d.one_of(("add", "min", "max", "and", "or", "xor"))
    magnitudes, nan = d.has("abs"), d.has("NaN")
    d.only("sync", kind)
    d.needs(80)
    if kind == "f32" and Arch.parse(d.program.arch).number >= 110:
        d.refuse("redux of .f32 is for sm_100a and its family")
    value = "u32" if kind == "b32" else kind
    o, a, mask = d.dst(d.operands[0], value), d.src(d.operands[1], value), d.src(d.operands[2], "u32")
    d.membership = mask
    reduce = {
        "add": np.add.reduce, "min": np.minimum.reduce, "max": np.maximum.reduce, "and": np.bitwise_and.reduce,
        "or": np.bitwise_or.reduce, "xor": np.bitwise_xor.reduce,
    }[op]  # fmt: skip
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        view = f.w.v[VIEW[kind]]
        named = aligned.members(f, ins, m, _mask(f, m, mask))
        values = view[a][named]
        if kind == "f32":
            _put(view[o], _float_extremum(op, np.abs(values) if magnitudes else values, nan), m)
            return
        total = reduce(values) if op != "add" else values.astype(np.int64).sum() & 0xFFFFFFFF
        _put(view[o], np.array(total).astype(np.int64).astype(view[o].dtype), m)

    d.visible(aligned.by_mask(run, mask))


@instruction("activemask")
def activemask(d: Decoder) -> None:
    o = d.dst(d.operands[0], "b32")

    def run(f: Frame, m: Any) -> None:
        lanes = f.lanes if m is None else np.flatnonzero(m)
        _put(f.w.v[3][o], int(sum(1 << int(i) for i in lanes)), m)

    d.plain = PlainAccess("ACTIVE", AccessBlock(*block([])), keep=o)
    d.visible(run)


@instruction("elect.sync")
def elect(d: Decoder) -> None:
    d.needs(90)
    d.only("sync")
    to, predicate = d.pair(d.operands[0])
    o = d.dst(to, "u32") if not isinstance(to, Sink) else -1
    if predicate is None:
        d.bad("`d|p` is needed")
    p = d.dst(predicate, "pred")
    mask = d.membership = d.src(d.operands[1], "u32")
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        w = f.w
        bits = _mask(f, m, mask)
        named = np.flatnonzero(aligned.members(f, ins, m, bits))
        if not len(named):
            return  # `bits` names none of the executing lanes, which is reported.
        # The ISA guarantees only that the same mask elects the same leader: not that it is lane 0.
        leader = int(named[w.cta.machine.leader(bits) % len(named)])
        if o >= 0:
            _put(w.v[3][o], leader, m)
        _put(w.v[9][p], leader == LANES, m)

    d.visible(aligned.by_mask(run, mask))
