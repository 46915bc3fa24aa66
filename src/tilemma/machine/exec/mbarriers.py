"""mbarrier objects (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier").

A phase completes when its pending arrivals and its transaction count are both zero.  A wait for it acquires the
clocks of all arrivals, and the copies whose bytes were counted in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilemma.machine import access
from tilemma.machine import catalogue as hz
from tilemma.machine.decode import VIEW, AddressRow, Decoder, instruction
from tilemma.machine.exec.integer import function
from tilemma.machine.exec.mbarrier_objects import MAX_COUNT, Mbarrier
from tilemma.machine.memory import SHARED_WINDOW
from tilemma.machine.native.blocks import AccessBlock, PlainAccess, block
from tilemma.machine.scheduler import AGAIN, POLL
from tilemma.machine.state import LANES, Frame
from tilemma.machine.syntax import Address, Instruction, Sink


def find(f: Frame, ins: Instruction, address: int, verb: str, row: int | None = None) -> Mbarrier:
    """The mbarrier at ``address``; its init must be ordered before thread ``row`` (default: the frame's first)."""
    w = f.w
    if address >= SHARED_WINDOW:
        address -= SHARED_WINDOW
    cta, offset = w.cta, address
    if address >> access.RANK_SHIFT:
        cta = access.cluster_cta(f, ins, (address >> access.RANK_SHIFT) - 1, address)
        offset = address & access.OFFSET_MASK
    if offset % 8:
        access.misaligned(f, ins, offset, 8, f.lanes)
    found = cta.shared.mbarriers.get(offset)
    if found is None:
        missing = "initialise it with `mbarrier.init`, or correct the address"
        if (late := _not_executed(cta)) is not None:
            barrier_text = _init_barrier(cta is not w.cta)
            missing = (
                f"add {barrier_text} after the init of PTX line {late.line}, if it initialises this mbarrier; "
                f"else {missing}"
            )
        w.report(
            hz.MbarrierBeforeInit,
            ins,
            lanes=f.lanes,
            access=verb,
            address=offset,
            what=f"which nothing has initialised in CTA {cta.index}",
            fix_text=missing,
            fatal=True,
        )
    assert found is not None
    barrier: Mbarrier = found
    clocks = w.cta.cluster.clocks
    if row is None:
        row = w.first + int(f.lanes[0])
    if clocks.seen[row, barrier.init_column] < barrier.init_clock:
        w.report(
            hz.MbarrierBeforeInit,
            ins,
            lanes=f.lanes,
            other=barrier.init.place,
            access=verb,
            address=offset,
            what=f"whose init at PTX line {barrier.init.instruction.line} is not ordered before it",
            fix_text=f"add {_init_barrier(cta is not w.cta)} after the init of PTX line "
            f"{barrier.init.instruction.line}, before the first use by other threads",
        )
    return barrier


def _not_executed(cta: Any) -> Instruction | None:
    """The first `mbarrier.init` of the program that has initialised nothing in ``cta`` so far."""
    executed = {barrier.init.instruction for barrier in cta.shared.mbarriers.values()}
    inits = (s.instruction for s in cta.machine.program.steps if s.instruction.parts[:2] == ("mbarrier", "init"))
    return next((ins for ins in inits if ins not in executed), None)


def _init_barrier(cluster: bool) -> str:
    return "a cluster barrier (with `fence.mbarrier_init`)" if cluster else "`bar.sync 0;`"


def for_copy(f: Frame, ins: Instruction, address: int, row: int) -> Mbarrier:
    """The mbarrier that an asynchronous copy will complete on: its init must be visible to the async proxy."""
    barrier = find(f, ins, address, "the copy completes on", row)
    cluster = f.w.cta.cluster
    if not barrier.fenced and cluster.clocks.fenced[row, barrier.init_column] < barrier.init_clock:
        hazard = hz.MbarrierInitNotVisibleToCopy if barrier.cta is f.w.cta else hz.MbarrierInitNotVisible
        f.w.report(hazard, ins, other=barrier.init.place, address=barrier.address)
    return barrier


def _lanes(f: Frame, m: Any) -> Any:
    return f.lanes if m is None else np.flatnonzero(m)


def _groups(f: Frame, m: Any, address: AddressRow) -> list[tuple[int, Any]]:
    """Lanes by the barrier address that they name."""
    lanes = _lanes(f, m)
    addr = address.values(f.w, None if len(lanes) == 32 else lanes)
    first = int(addr[0])
    if addr.tobytes() == addr[:1].tobytes() * len(addr):
        return [(first, lanes)]
    return [(int(a), lanes[addr == a]) for a in np.unique(addr)]


_COMMON = ("shared", "shared::cta", "shared::cluster", "cta", "cluster", "b64")


@instruction("mbarrier.init")
def init(d: Decoder) -> None:
    d.needs(80)
    d.has(*_COMMON)
    d.only("init")
    address, count = d.address(d.operands[0]), d.src(d.operands[1], "u32")
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        w = f.w
        cluster = w.cta.cluster
        for at, lanes in _groups(f, m, address):
            n = int(w.v[3][count][lanes[0]])
            shared = w.cta.shared
            problem, fix = "", "initialise it once, before the barrier that hands it to the other threads"
            if at in shared.mbarriers:
                known = shared.mbarriers[at]
                problem = f"initialised again; the first time was PTX line {known.init.instruction.line}"
            elif len(lanes) > 1:
                problem = f"initialised by {len(lanes)} lanes at once"
                fix = "let one thread initialise it"
            elif not 1 <= n <= MAX_COUNT:
                problem, fix = f"the count {n} is not 1 to {MAX_COUNT}", "correct the count"
            if problem:
                w.report(hz.MbarrierReinit, ins, lanes=lanes, address=at, what=problem, fix_text=fix, fatal=True)
            if at % 8:
                access.misaligned(f, ins, at, 8, lanes)
            info = w.access("mbarrier", ins)
            where = np.array([at])
            index = access.check_write(w, ins, w.cta, lanes[:1], where, 8, "mbarrier")
            event = cluster.events.new(w.first, cluster.clocks.now[w.row], info, unordered=True)
            event += int(lanes[0])
            shared.write(8, index, event, event)
            # Its bytes must not be read as data; the words are poison.
            row = w.first + int(lanes[0])
            column = cluster.clocks.column(("mbarrier", w.cta.rank, at))
            init_column = cluster.clocks.column(("mbarrier-init", w.cta.rank, at))
            init_clock = int(cluster.clocks.seen[:, init_column].max()) + 1
            cluster.clocks.learn(np.array([row]), init_column, init_clock, fenced=False)
            barrier = Mbarrier(w.cta, at, n, info, init_column, init_clock, column)
            shared.mbarriers[at] = barrier
            shared.list_mbarriers()
            shared.enclose(at)
            w.inits.append(barrier)
            w.record.inits = 1
            # Releases of the initialising thread from here on cover the init.

    d.visible(run)


@instruction("mbarrier.inval")
def inval(d: Decoder) -> None:
    d.needs(80)
    d.has(*_COMMON)
    d.only("inval")
    address = d.address(d.operands[0])
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        w = f.w
        for at, lanes in _groups(f, m, address):
            barrier = find(f, ins, at, "invalidation of", w.first + int(lanes[0]))
            if barrier.waiters:
                w.report(
                    hz.MbarrierReinit,
                    ins,
                    lanes=lanes,
                    address=at,
                    what="invalidated while threads wait on it",
                    fix_text="invalidate it after a barrier of all its users",
                    fatal=True,
                )
            del w.cta.shared.mbarriers[barrier.address]
            w.cta.shared.list_mbarriers()
            cluster = w.cta.cluster
            event = cluster.events.new(w.first, cluster.clocks.now[w.row], w.access("st", ins), unordered=True)
            event += int(lanes[0])
            w.cta.shared.write(8, barrier.address >> 3, event, event)

    d.visible(run)


@instruction("mbarrier.arrive", "mbarrier.arrive_drop")
def arrive(d: Decoder) -> None:
    d.needs(80)
    drop = d.mods[0] == "arrive_drop"
    expects = d.has("expect_tx")
    relaxed = d.has("relaxed")
    d.has("release", "noComplete", *_COMMON)
    d.only("arrive", "arrive_drop")
    operands = list(d.operands)
    has_state = not isinstance(operands[0], Address)
    if has_state and "shared::cluster" in d.mods and not isinstance(operands[0], Sink):
        d.bad("an arrival at .shared::cluster has no state: write `_`, or .shared::cta")
    partial = "noComplete" in d.mods
    state = -1
    if has_state:
        to = operands.pop(0)
        state = -1 if isinstance(to, Sink) else d.dst(to, "u64")
    address = d.address(operands[0])
    amount = d.src(operands[1], "u32") if len(operands) > 1 else -1
    if expects or (amount >= 0 and not partial):
        d.needs(90)
    if expects and amount < 0:
        d.bad("`expect_tx` needs a byte count")
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        w = f.w
        for at, lanes in _groups(f, m, address):
            barrier = find(f, ins, at, "arrival on", w.first + int(lanes[0]))
            if state >= 0:
                # The phase and the pending count before this arrival.
                w.v[6][state][lanes] = barrier.phase << 32 | barrier.pending
            place = w.place(ins)
            n = len(lanes)
            if amount >= 0:
                amounts = w.v[3][amount][lanes].astype(np.int64)
                if expects:
                    barrier.expect(place, int(amounts.sum()))
                else:
                    n = int(amounts.sum())
            if partial and n == barrier.pending:
                what = "`.noComplete` promises that the phase stays open, and these arrivals complete it"
                w.report(hz.MbarrierIncomplete, ins, lanes=lanes, address=at, what=what)
            message = None if relaxed else w.cta.cluster.clocks.release(w.first + lanes, w.row)
            barrier.arrive(place, n, message, drop=drop)

    if not (drop or relaxed or partial):
        d.plain = _plain("ARRIVE", address, state, amount, int(expects), 0, 0, 0)
    d.visible(run)


def _plain(kind: str, address: AddressRow, *numbers: int, agent: Any = None) -> PlainAccess:
    """What the native library needs of an arrival or a wait."""
    at = AccessBlock.of(address, 8, [], 8, False)
    array, place = block([at.address, *numbers])
    return PlainAccess(kind, AccessBlock((array, at.array), place), agent=agent)


@instruction("mbarrier.expect_tx", "mbarrier.complete_tx")
def transaction(d: Decoder) -> None:
    d.needs(90)
    d.has("relaxed", *_COMMON)
    d.only("expect_tx", "complete_tx")
    expects = "expect_tx" in d.mods
    address, amount = d.address(d.operands[0]), d.src(d.operands[1], "u32")
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        w = f.w
        for at, lanes in _groups(f, m, address):
            barrier = find(f, ins, at, "use of", w.first + int(lanes[0]))
            total = int(w.v[3][amount][lanes].astype(np.int64).sum())
            if expects:
                barrier.expect(w.place(ins), total)
            else:
                barrier.complete_tx(w.place(ins), total, None)

    d.visible(run)


@instruction("mbarrier.test_wait", "mbarrier.try_wait")
def wait(d: Decoder) -> None:
    d.needs(80 if d.mods[0] == "test_wait" else 90)
    by_parity = d.has("parity")
    relaxed = d.has("relaxed")
    blocks = d.mods[0] == "try_wait"
    d.has("acquire", "shared", "shared::cta", "cta", "cluster", "b64")
    d.only("test_wait", "try_wait")
    p = d.dst(d.operands[0], "pred")
    address = d.address(d.operands[1])
    kind = "u32" if by_parity else "u64"
    wanted = d.src(d.operands[2], kind)
    if len(d.operands) > 3:
        d.src(d.operands[3], "u32")
    ins = d.ins

    def run(f: Frame, m: Any) -> Any:
        w = f.w
        machine = w.cta.machine
        given_up, f.timeout = f.timeout, False
        results = []
        for at, lanes in _groups(f, m, address):
            barrier = find(f, ins, at, "wait on", w.first + int(lanes[0]))
            want = w.v[VIEW[kind]][wanted][lanes].astype(np.int64)
            done = (barrier.phase & 1) != (want & 1) if by_parity else barrier.phase > want >> 32
            if w in barrier.forgiven:
                barrier.forgiven.discard(w)
                barrier.record.forgiven = len(barrier.forgiven)
                done = np.ones_like(done)
            through = 0 not in done.tobytes()
            if by_parity and through:
                # The next number of phases of the other parity: a warp that lags sees one late.
                barrier.last[w.row] = barrier.awaited(w, int(want[0] & 1))
            elif by_parity:
                f.awaited = (barrier, int(want[0] & 1))
            if blocks and not given_up and not through and machine.random.random() >= machine.impatience:
                barrier.wait(f, int(want[0] & 1) if by_parity else None)
                return AGAIN
            results.append((barrier, lanes, done, through))
        waits = False
        for barrier, lanes, done, through in results:
            w.v[9][p][lanes] = done
            passed = lanes if through else lanes[done]
            if len(passed) and barrier.done is not None and not relaxed:
                rows = slice(w.first, w.first + 32) if len(passed) == 32 else w.first + passed
                w.cta.cluster.clocks.acquire(rows, barrier.done)
            waits |= not through
        return POLL if waits else None

    def suspended(f: Frame, value: int) -> None:
        """The native library has found that ``f`` waits."""
        barrier = f.w.cta.shared.mbarriers[value >> 1]
        f.awaited = barrier, value & 1
        barrier.wait(f, value & 1)

    numbers = p, wanted, 0, int(by_parity), int(blocks), int(relaxed)
    d.plain = _plain("WAIT", address, *numbers, agent=suspended)
    d.visible(run)


@instruction("mbarrier.pending_count")
def pending_count(d: Decoder) -> None:
    d.needs(80)
    d.only("pending_count", "b64")
    function(d, lambda state: state.astype(np.uint32), "u32", "u64")


__all__ = ["LANES", "Mbarrier", "find", "for_copy"]
