"""What a CTA must not leave behind when its last warp exits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilemma.machine.catalogue import ExitWithPending
from tilemma.machine.state import Cta

if TYPE_CHECKING:
    from tilemma.machine.scheduler import Machine

_WHAT = {
    "tma": ("bulk copy", "may still write its shared memory", "wait for the copy's mbarrier before the exit"),
    "bulk-store": (
        "bulk store",
        "may still read its shared memory",
        "add `cp.async.bulk.commit_group` and `cp.async.bulk.wait_group.read 0` in the issuing thread",
    ),
    "wgmma": ("wgmma", "may still run", "add `wgmma.wait_group.sync.aligned 0`"),
    "cp.async": ("cp.async", "may still write its shared memory", "add `cp.async.wait_all`"),
}


def check(machine: Machine, cta: Cta) -> None:
    """Report asynchronous operations on the shared memory of ``cta`` that nobody has waited for."""
    for agent in machine.pending:
        if agent.waited or cta not in agent.ctas() or agent.kind not in _WHAT:
            continue
        name, what, wait = _WHAT[agent.kind]
        place = agent.warp.place(agent.instruction)
        machine.report(ExitWithPending.at(place, other=place, agent=name, what=what, wait=wait), fatal=False)
