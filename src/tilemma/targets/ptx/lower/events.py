"""Lowering of events to mbarriers in shared memory: initialisation, arrivals, waits by phase parity.

PTX ISA, mbarrier: a barrier starts in phase 0; ``try_wait.parity P`` returns true once the phase of parity P has
completed.  So a wait for generation g uses parity g & 1.  Each waiting thread keeps the parities of its next waits
in one register: a bit for each slot, or a single bit if it waits for the slots in ring order.  The bits of an
event that is declared ready start as 1, as if its generation 0 had completed before phase 0.
"""

from __future__ import annotations

from tilemma.atoms.atom import arch_number
from tilemma.ir import tile
from tilemma.ir.expr import binary, const
from tilemma.ir.lane import Imm, Instr, LaneOperand, Mem, Reg, Special
from tilemma.ir.tile import DeclareEvent, Op
from tilemma.ir.types import EventRef
from tilemma.ir.walk import walk
from tilemma.targets.ptx.lower.context import Lowering, lowers
from tilemma.targets.ptx.lower.expressions import linear
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.regions import Value

MBARRIER = 8


def initialise(lo: Lowering, body: tuple[Op, ...]) -> bool:
    """Emit `mbarrier.init` for all events of a block, executed by one thread; returns whether there are any.

    The fence makes them visible to the async proxy and the cluster, if either uses them; the barrier that follows
    makes them visible to the block's threads.
    """
    events = [op for op in walk(body) if isinstance(op, DeclareEvent)]
    if not events:
        return False
    e = lo.e
    for op in events:
        assert op.offset is not None and op.arrivals is not None, f"{op.event.name} is not planned"
        e.comment(f"event {op.event.name}: {op.arrivals} arrivals")
        for slot in range(max(1, op.event.slots)):
            at = Mem(lo.shared, op.offset + slot * MBARRIER)
            e.do(f"mbarrier.init{_space(lo)}.b64", (), (at, Imm(op.arrivals)))
    copies = (op for op in walk(body) if isinstance(op, tile.Copy) and op.event is not None)
    by_tma = any(op.plan is not None and op.plan.engine == "tma" for op in copies)
    if by_tma or (lo.cluster is not None and lo.cluster.uses_distributed_shared_memory):
        e.do("fence.mbarrier_init.release.cluster")
    return True


def _hopper(lo: Lowering) -> bool:
    """Whether mbarriers have transaction counts and `try_wait`, which suspends the thread (sm_90 and later)."""
    return arch_number(lo.arch) >= arch_number("sm_90")


def _space(lo: Lowering) -> str:
    return ".shared::cta" if _hopper(lo) else ".shared"


@lowers(tile.DeclareEvent)
def lower_declare_event(lo: Lowering, op: tile.DeclareEvent) -> None:
    """Initialise the register of phase parities; the mbarriers are initialised at the kernel's start."""
    name = op.event.name
    counted = [w for w in walk(lo.kernel.body) if isinstance(w, tile.WaitEvent) and w.event.event.name == name]
    if any(w.event.order is None for w in counted):
        phases = lo.e.reg(f"{name}_phases", "b32", mutable=True)
        ready = 1 if any(w.one_parity for w in counted) else -1
        lo.e.do("mov.b32", (phases,), (Imm(ready if op.event.ready else 0),))
        lo.phases[name] = phases


def slot_of(lo: Lowering, ref: EventRef) -> Linear:
    """The number of the slot."""
    if ref.order is not None:
        return linear(lo, binary("floormod", ref.order, const(max(1, ref.event.slots))))
    return Linear() if ref.slot is None else linear(lo, ref.slot)


def address(lo: Lowering, ref: EventRef) -> Mem:
    """The address operand of the slot's mbarrier."""
    return _slot_at(lo, ref, lo.shared)


def _slot_at(lo: Lowering, ref: EventRef, shared: Reg) -> Mem:
    """The slot's mbarrier in the shared memory that starts at ``shared``."""
    op = lo.events[ref.event.name]
    assert op.offset is not None
    slot = slot_of(lo, ref)
    if slot.known is not None:
        return Mem(shared, op.offset + slot.known * MBARRIER)
    return Mem(lo.e.register(slot * MBARRIER + shared, hint=f"{ref.event.name}_at"), op.offset)


@lowers(tile.WaitEvent)
def lower_wait_event(lo: Lowering, op: tile.WaitEvent) -> None:
    e, ref = lo.e, op.event
    name = ref.event.name
    at = address(lo, ref)
    if ref.order is not None:
        slots = max(1, ref.event.slots)
        generation = linear(lo, binary("floordiv", ref.order, const(slots)))
        parity: Value = e.pure("and.b32", "b32", e.register(generation), Imm(1), hint="parity")
        if ref.event.ready:
            parity = e.pure("xor.b32", "b32", parity, Imm(1), hint="parity")
        _spin(lo, at, parity)
        return
    phases, slot = lo.phases[name], slot_of(lo, ref)
    flip: Value
    if op.one_parity:
        # All slots have the same parity until the wait for the last slot.
        _spin(lo, at, phases)
        last = e.compare("eq", slot, Linear(const=ref.event.slots - 1), hint="last_slot")
        if last is not False:
            guard = last if isinstance(last, Reg) else None
            e.do("xor.b32", (phases,), (phases, Imm(1)), guard=guard)
        return
    if ref.event.slots <= 1:
        parity, flip = e.pure("and.b32", "b32", phases, Imm(1), hint="parity"), Imm(1)
    else:
        number = e.value(slot)
        shifted = phases if slot.known == 0 else e.pure("shr.u32", "b32", phases, number)
        parity = e.pure("and.b32", "b32", shifted, Imm(1), hint="parity")
        flip = (
            Imm(1 << number.value)
            if isinstance(number, Imm) and isinstance(number.value, int)
            else e.pure("shl.b32", "b32", Imm(1), number, hint="slot_bit")
        )
    _spin(lo, at, parity)
    e.do("xor.b32", (phases,), (phases, flip))


def _spin(lo: Lowering, at: Mem, parity: Value) -> None:
    """A spin loop: `try_wait` suspends the thread for a limited time, and is repeated until the phase is
    complete."""
    e = lo.e
    done = e.reg("complete", "pred", mutable=True)
    way = "try_wait" if _hopper(lo) else "test_wait"
    attempt = Instr(f"mbarrier.{way}.parity{_space(lo)}.b64", (done,), (at, parity), span=e.span)
    e.until((attempt,), done)


@lowers(tile.TriggerEvent)
def lower_trigger_event(lo: Lowering, op: tile.TriggerEvent) -> None:
    """An arrival by one thread of the instance, by one of each of its warps, or by each thread
    (`DeclareEvent.by`)."""
    declared = lo.events[op.event.event.name]
    if declared.by == "thread":
        guard: Reg | bool = True
    elif declared.by == "warp":
        guard = lo.e.compare("eq", lo.lane, Linear(), hint="first_lane")
    else:
        guard = lo.elect()
    at = address(lo, op.event)
    count = op.bytes
    if count and (declared.by != "instance" or op.count > 1):
        expect(lo, at, count, _register(_taken(lo, lo.elect())))
        count = 0
    guard = _taken(lo, guard)
    if guard is False:
        return
    if op.cluster and lo.cluster is not None:
        _arrive_everywhere(lo, op, guard, declared)
        return
    if op.count > 1:
        arrive_often(lo, at, op.count, _register(guard))
        return
    arrive(lo, at, count, _register(guard))


def arrive_often(lo: Lowering, at: Mem, count: int, guard: Reg | None) -> None:
    """An arrival that counts ``count``: an operand of the instruction from sm_90 on (PTX ISA, mbarrier.arrive)."""
    mnemonic, operands = arrival(lo, at, 0)
    if _hopper(lo):
        lo.e.do(mnemonic, (), (*operands, Imm(count)), guard=guard)
        return
    for _ in range(count):
        lo.e.do(mnemonic, (), operands, guard=guard)


def _arrive_everywhere(lo: Lowering, op: tile.TriggerEvent, guard: Reg | bool, declared: DeclareEvent) -> None:
    """An arrival on the event of every block of the cluster.

    One thread arrives on the mbarrier of its own block, others on those of the other blocks.  The arrivals have
    the default form without `.release.cluster`: a release at cluster scope is slow, and the data went through the
    async proxy.
    """
    e, cluster, ref = lo.e, lo.cluster, op.event
    assert cluster is not None
    more = (Imm(op.count),) if op.count > 1 else ()
    mnemonic, operands = arrival(lo, address(lo, ref), 0)
    e.do(mnemonic, (), (*operands, *more), guard=_register(guard))
    rank = e.special("cluster_ctarank", "rank", cluster.size, uniform=True)
    by_several_threads = declared.by != "thread" and lo.solo is None
    for other in range(1, cluster.size):
        if by_several_threads:
            arriving = _taken(lo, e.compare("eq", lo.thread_in(lo.instance), Linear(const=other), hint="speaker"))
        else:
            arriving = guard
        _, there = e.divide(Linear.of(rank) + other, cluster.size, hint="peer")
        # The same address in the other block's shared memory.
        remote = e.pure("mapa.shared::cluster.u32", "b32", lo.shared, e.value(there), hint="remote")
        where = _slot_at(lo, ref, remote)
        e.do("mbarrier.arrive.shared::cluster.b64", (), (Special("_"), where, *more), guard=_register(arriving))


def _taken(lo: Lowering, guard: Reg | bool) -> Reg | bool:
    """``guard`` and the condition under which the program executes the trigger."""
    return lo.e.both(guard, lo.guard, hint="taken")


def _register(guard: Reg | bool) -> Reg | None:
    return guard if isinstance(guard, Reg) else None


@lowers(tile.Commit)
def lower_commit(lo: Lowering, op: tile.Commit) -> None:
    """No code: the passes have inserted the wait for its multiplies before the trigger."""


def arrival(lo: Lowering, at: Mem, count: int) -> tuple[str, tuple[LaneOperand, ...]]:
    """(mnemonic, operands) of an arrival that adds ``count`` bytes to the phase's expected transaction count."""
    if count:
        return "mbarrier.arrive.expect_tx.shared::cta.b64", (Special("_"), at, Imm(count))
    return f"mbarrier.arrive{_space(lo)}.b64", (Special("_"), at)


def expectation(at: Mem, count: int) -> tuple[str, tuple[LaneOperand, ...]]:
    """(mnemonic, operands) that add ``count`` bytes to the current phase's expected transaction count."""
    return "mbarrier.expect_tx.relaxed.cta.shared::cta.b64", (at, Imm(count))


def arrive(lo: Lowering, at: Mem, count: int, guard: Reg | None = None) -> None:
    mnemonic, operands = arrival(lo, at, count)
    lo.e.do(mnemonic, (), operands, guard=guard)


def expect(lo: Lowering, at: Mem, count: int, guard: Reg | None = None) -> None:
    mnemonic, operands = expectation(at, count)
    lo.e.do(mnemonic, (), operands, guard=guard)
