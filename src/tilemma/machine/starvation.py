"""The schedule ``starve``: chosen warps run only where no other warp can, so that they miss what can be missed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilemma.machine.state import Cluster

if TYPE_CHECKING:
    from tilemma.machine.scheduler import Machine

# The probability that a starved warp runs although others could.
RELIEF = 1 / 256


def starve(machine: Machine, cluster: Cluster) -> None:
    """Choose the delayed warps of ``cluster``: the one with the seed's number, in one CTA or in all of
    them."""
    apart = machine.random.random() < 0.5
    ctas = [machine.random.choice(cluster.ctas)] if apart else cluster.ctas
    for warp in (cta.warps[machine.seed % len(cta.warps)] for cta in ctas):
        machine.starved.add(warp)
        warp.record.starved = 1


def step(machine: Machine) -> bool:
    """Run a starved warp only where no other warp can run, and no asynchronous operation is left."""
    if machine.pending and machine.random.random() < machine.eagerness * 0.3:
        machine.complete(machine.random.choice(machine.pending))
    starved = machine.starved
    lagging = [f for f in machine.ready if f.w in starved]
    if not lagging:
        machine.execute(*machine.pick())
    elif machine.random.random() < RELIEF:
        # The others may poll for a value that only a starved warp writes.
        others = [f for f in machine.ready if f.w not in starved]
        machine.ready = lagging
        chosen = machine.pick()
        machine.ready += others
        machine.execute(*chosen)
    elif len(lagging) < len(machine.ready):
        machine.ready = [f for f in machine.ready if f.w not in starved]
        chosen = machine.pick()
        machine.ready += lagging
        machine.execute(*chosen)
    else:
        delayed(machine)
    return True


def delayed(machine: Machine) -> None:
    """All ready warps are starved: something else goes on, if anything can."""
    if machine.pending:
        machine.complete(machine.random.choice(machine.pending))
    elif machine.polling and machine.progress != machine.starved_at:
        machine.starved_at = machine.progress
        machine.ready += machine.polling
        machine.polling = []
    else:
        machine.starved_at = -1
        machine.execute(*machine.pick())
