"""bar, barrier, barrier.cluster (PTX ISA, "Parallel Synchronization and Communication Instructions")."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilemma.machine import sequential
from tilemma.machine.catalogue import BarrierCount
from tilemma.machine.clocks import Message
from tilemma.machine.decode import Decoder, instruction
from tilemma.machine.exec import aligned
from tilemma.machine.scheduler import AFTER, AGAIN, Machine
from tilemma.machine.state import Cta, Frame, NamedBarrier, Warp
from tilemma.machine.syntax import Immediate, Instruction


@instruction("bar.warp.sync")
def warp_sync(d: Decoder) -> None:
    mask = d.membership = d.barrier = d.src(d.operands[0], "u32")
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        w = f.w
        lane = f.lanes[0] if m is None else int(np.flatnonzero(m)[0])
        named = aligned.members(f, ins, m, int(w.v[3][mask][lane]))
        w.cta.cluster.clocks.synchronise(w.rows_of(None if 0 not in named.tobytes() else named), [w.row])
        if w.fences:
            sequential.pass_on([(w, sequential.bits(named))])
        if w.cta.machine.warps_per_cta == 1 and named.tobytes() == w.live.tobytes():
            w.record.floor = w.cta.cluster.events.floor

    d.visible(aligned.by_mask(run, mask))


@instruction("bar", "barrier")
def bar(d: Decoder) -> None:
    d.has("cta", "aligned")
    sync = d.one_of(("sync", "arrive", "red"))
    operation = d.one_of(("popc", "and", "or"), "none")
    d.only("b32", "u32", "pred")
    is_aligned = d.parts[0] == "bar" or "aligned" in d.mods
    operands = list(d.operands)
    result: Any = None
    predicate: Any = None
    if sync == "red":
        kind = "u32" if operation == "popc" else "pred"
        result = (3 if operation == "popc" else 9, d.dst(operands.pop(0), kind))
        predicate = d.src_pred(operands.pop())
    number = d.src(operands[0], "u32")
    count = d.src(operands[1], "u32") if len(operands) > 1 else -1
    if isinstance(operands[0], Immediate) and not 0 <= operands[0].value < 16:
        d.bad(f"barrier {operands[0].value}; there are 0 to 15")
    if len(operands) > 1 and isinstance(operands[1], Immediate) and operands[1].value % 32:
        d.bad(f"{operands[1].value} threads, which is no multiple of 32")
    ins = d.ins
    if (
        sync == "sync"
        and len(operands) == 1
        and isinstance(operands[0], Immediate)
        and 0 <= operands[0].value < 16
    ):
        d.barrier = operands[0].value

    def run(f: Frame, m: Any) -> Any:
        w = f.w
        if is_aligned:
            aligned.whole_warp(f, ins, m)
        lane = f.lanes[0] if m is None else int(np.flatnonzero(m)[0])
        name = int(w.v[3][number][lane])
        threads = int(w.v[3][count][lane]) if count >= 0 else 0
        if f.resume is not None:
            value, f.resume = f.resume, None
            _give(w, m, result, value)
            return None
        value = None
        if predicate is not None:
            row, negated = predicate
            value = (w.v[9][row] ^ negated)[f.lanes if m is None else np.flatnonzero(m)]
        return arrive(f, ins, m, name, threads, sync != "arrive", value, operation)

    d.visible(run)


def _give(w: Warp, m: Any, result: Any, value: Any) -> None:
    if result is not None:
        view, row = result
        np.copyto(w.v[view][row], value, where=True if m is None else m, casting="unsafe")


def expected_threads(cta: Cta, barrier: NamedBarrier) -> int:
    """Threads that a phase of the barrier waits for; without a count, all that have not exited."""
    return barrier.expected or 32 * cta.live_warps


def arrive(f: Frame, ins: Instruction, m: Any, name: int, threads: int, waits: bool, value: Any, op: str) -> Any:
    """One warp arrives at a named barrier."""
    w, cta = f.w, f.w.cta
    machine = cta.machine
    if not 0 <= name < 16:
        _wrong(f, ins, name, "a CTA has barriers 0 to 15")
    if not waits and not threads:
        _wrong(f, ins, name, "an arrival names no threads; it needs the count of all that take part")
    if threads % 32:
        _wrong(f, ins, name, f"the thread count {threads} is no multiple of 32")
    if cta.record.arrived:
        machine.unpark(cta)
    b = cta.barriers.get(name)
    if b is None:
        b = cta.barriers[name] = NamedBarrier()
        cta.record.partial = 1
    if b.arrived == 0:
        b.expected, b.first = threads, (w, ins)
    elif b.expected != threads:
        other_warp, other = b.first
        _wrong(
            f,
            ins,
            name,
            f"this warp names {threads or 'all'} threads, warp {other_warp.index} at PTX line {other.line} "
            f"{b.expected or 'all'}",
        )
    rows = w.rows_of(None if m is None else m)
    b.arrived += 32 if m is None or m.tobytes() == w.live.tobytes() else int(m.sum())
    b.warps.append(w.row)
    if waits:
        b.rows.append(rows)
        b.waiting.append(f)
        machine.suspend(f, "", f"barrier {name}")
    else:
        message = cta.cluster.clocks.release(rows, w.row)
        if b.message is None:
            b.message = message
        else:
            b.message.merge(message)
        if w.fences:
            b.fences.append(w.fences.at(sequential.bits(m)))
    if value is not None:
        b.values.append(value)
    expected = expected_threads(cta, b)
    if b.arrived > expected:
        _wrong(f, ins, name, f"{b.arrived} threads arrived where {expected} were named")
    if b.arrived >= expected:
        release(cta, name, b, op)
    else:
        f.blocked = f"barrier {name} ({b.arrived} of {expected} threads are there)"
        for waiting in b.waiting:
            waiting.blocked = f.blocked
    if not waits:
        return None
    return AGAIN if value is not None else AFTER


def _wrong(f: Frame, ins: Instruction, name: int, what: str) -> None:
    f.w.report(BarrierCount, ins, lanes=f.lanes, barrier=name, what=what, fatal=True)


def release(cta: Cta, name: int, b: NamedBarrier, op: str = "none") -> None:
    """Complete a phase of the barrier: the waiting threads acquire the clocks of all arrivals."""
    del cta.barriers[name]
    cta.record.partial = bool(cta.barriers)
    clocks, events = cta.cluster.clocks, cta.cluster.events
    everyone = len(set(b.warps)) == cta.live_warps and len(b.rows) == len(b.warps)
    whole = everyone and all(isinstance(r, slice) for r in b.rows) and cta.live_warps == len(cta.warps)
    if whole:
        rows: Any = slice(32 * cta.first_warp, 32 * (cta.first_warp + len(cta.warps)))
    else:
        parts = [np.arange(r.start, r.stop) if isinstance(r, slice) else r for r in b.rows]
        rows = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    waiting_rows = [f.w.row for f in b.waiting]
    if len(waiting_rows):
        if b.message is not None:
            clocks.acquire(rows, b.message)
        clocks.synchronise(rows, waiting_rows)
        members = zip(b.waiting, b.rows, strict=True)
        sequential.pass_on([(f.w, _bits(r, f.w.first)) for f, r in members], b.fences)
    value: Any = None
    if b.values:
        votes = np.concatenate(b.values)
        value = {"popc": int(votes.sum()), "and": bool(votes.all()), "or": bool(votes.any())}[op]
    for f in b.waiting:
        if everyone:
            f.w.record.floor = events.floor
        if value is not None:
            f.resume = value
        cta.machine.wake(f)
    cta.machine.progress += 1


def _bits(rows: Any, first: int) -> int:
    return sequential.bits(None if isinstance(rows, slice) else rows - first)


def warp_left(machine: Machine, w: Warp) -> None:
    """A warp has exited: barriers that wait for everyone wait for one less."""
    cta = w.cta
    if cta.record.arrived:
        machine.unpark(cta)
    for name, b in list(cta.barriers.items()):
        if not b.expected and b.arrived >= 32 * cta.live_warps and b.waiting:
            release(cta, name, b)
    if cta.cluster.barrier_arrived:
        _cluster_complete(cta.cluster)


# -- cluster barriers
@instruction("barrier.cluster")
def cluster_barrier(d: Decoder) -> None:
    d.needs(90)
    action = d.one_of(("arrive", "wait"))
    relaxed = d.has("relaxed")
    d.has("release", "acquire", "aligned")
    d.only()
    is_aligned = "aligned" in d.mods
    ins = d.ins

    def arrive_there(f: Frame, m: Any) -> None:
        w, cluster = f.w, f.w.cta.cluster
        if is_aligned:
            aligned.whole_warp(f, ins, m)
        key = w.row
        if key in cluster.barrier_arrived:
            f.w.cta.machine.report(
                BarrierCount.at(w.place(ins), barrier="cluster", what="the warp arrives twice without a wait"),
                fatal=True,
            )
        message = w.init_message if relaxed else cluster.clocks.release(w.rows_of(m), w.row)
        if message is not None:
            message = Message(message.seen.copy(), message.fenced.copy(), message.cluster, message.foreign)
            if cluster.barrier_message is None:
                cluster.barrier_message = message
            else:
                cluster.barrier_message.merge(message)
        cluster.barrier_arrived.add(key)
        w.cluster_phase = cluster.barrier_phase
        w.cluster_waited = 0
        _cluster_complete(cluster)

    def wait_there(f: Frame, m: Any) -> Any:
        w, cluster = f.w, f.w.cta.cluster
        if is_aligned:
            aligned.whole_warp(f, ins, m)
        if w.cluster_phase < 0:
            w.report(BarrierCount, ins, barrier="cluster", what="`wait` without an `arrive` before it", fatal=True)
        lanes = sequential.bits(m)
        if w.cluster_waited & lanes:
            w.report(
                BarrierCount, ins, barrier="cluster", what="a second `wait` for the same `arrive`", fatal=True
            )
        if cluster.barrier_phase > w.cluster_phase:
            w.cluster_waited |= lanes
            if cluster.barrier_done is not None:
                cluster.clocks.acquire(w.rows_of(m), cluster.barrier_done)
            return None
        cluster.barrier_waiting.append(f)
        missing = cluster.live_warps - len(cluster.barrier_arrived)
        w.cta.machine.suspend(f, f"the cluster barrier ({missing} warps have not arrived)", "cluster barrier")
        return AGAIN

    d.visible(arrive_there if action == "arrive" else wait_there)


def _cluster_complete(cluster: Any) -> None:
    live = {w.row for cta in cluster.ctas for w in cta.warps if not w.done}
    if not live <= cluster.barrier_arrived or not live:
        return
    cluster.barrier_arrived.clear()
    cluster.barrier_phase += 1
    message, cluster.barrier_message = cluster.barrier_message, None
    if message is not None:
        done = Message(message.seen, message.fenced, message.cluster, message.foreign)
        if cluster.barrier_done is not None:
            done.merge(cluster.barrier_done)
        cluster.barrier_done = done
    machine = cluster.machine
    for f in cluster.barrier_waiting:
        machine.wake(f)
    cluster.barrier_waiting.clear()
    machine.progress += 1
