"""Lowering of barriers (bar.sync, named barriers, bar.warp.sync) and fences."""

from __future__ import annotations

from tilemma.ir import tile
from tilemma.ir.lane import Imm
from tilemma.targets.ptx.lower.clusters import cluster_barrier
from tilemma.targets.ptx.lower.context import Instance, Lowering, lowers
from tilemma.targets.ptx.lower.linear import Linear


@lowers(tile.Barrier)
def lower_barrier(lo: Lowering, op: tile.Barrier) -> None:
    """`bar.warp.sync` for a warp, `bar.sync` for more (PTX ISA, 9.7.13.2 and 9.7.13.1)."""
    e = lo.e
    if op.cluster and lo.cluster is not None:
        cluster_barrier(lo)
        return
    if op.threads <= 32:
        e.do("bar.warp.sync", (), (Imm(-1, "b32"),))
        return
    number = Linear(const=op.id)
    if op.id_step:
        instance = next((i for i in reversed(lo.instances) if i.threads == op.threads), lo.instance)
        number = number + _number(lo, instance) * op.id_step
    if op.threads == lo.threads and number.known is not None:
        e.do("bar.sync", (), (Imm(number.const),))
    else:
        e.do("bar.sync", (), (e.value(number, hint="barrier"), Imm(op.threads)))


def _number(lo: Lowering, instance: Instance) -> Linear:
    """The instance's number among its siblings, computed from the thread's number if possible.

    The machine instruction BAR.SYNC reads the barrier's number from a vector register.  ptxas keeps a value that
    it knows to be warp-uniform in a uniform register, and would move it for every barrier.
    """
    size, around = instance.threads, lo.instances[lo.instances.index(instance) - 1]
    if instance.index.known is not None or around.level.kind != "block" or size & (size - 1):
        return instance.index
    number = lo.e.pure("shr.u32", "s32", lo.thread, Imm(size.bit_length() - 1), hint="instance")
    return Linear.of(lo.e.bounded(number, 0, lo.threads // size - 1))


@lowers(tile.ProxyFence)
def lower_proxy_fence(lo: Lowering, op: tile.ProxyFence) -> None:
    lo.e.do("fence.proxy.async.shared::cta")


@lowers(tile.Sync)
def lower_sync(lo: Lowering, op: tile.Sync) -> None:
    """A fence of the program.  InsertSync has put a `Barrier` in the place of each of its barriers."""
    assert op.what == "fence"
    if op.level is not None and op.level.kind == "device":
        # Ordering writes needs no order among fences, which `membar` has as well (PTX ISA, membar/fence).
        lo.e.do("fence.acq_rel.gpu")
    else:
        lo.e.do("membar.cta" if op.level is None or op.level.kind == "block" else "membar.gl")
