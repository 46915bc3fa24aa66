"""Checks at the exit of a CTA: asynchronous operations on its shared memory must have been waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilemma.machine.agents import Agent
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


# The number of operations kept without a wait before those that are known by now are dropped.
_MANY = 256


def completed(agent: Agent) -> None:
    """Record the completion of an operation without a wait: a thread must learn of it before its CTAs exit."""
    if agent.kind not in _WHAT:
        return
    for cta in agent.ctas():
        cta.unawaited.append(agent)
        if len(cta.unawaited) > _MANY:
            cta.unawaited = _unknown(cta)


def check(machine: Machine, cta: Cta) -> None:
    """Report asynchronous operations on the shared memory of ``cta`` that no thread has waited for."""
    pending = [a for a in machine.pending if not a.waited and a.kind in _WHAT and cta in a.ctas()]
    for agent in [*pending, *_unknown(cta)]:
        name, what, wait = _WHAT[agent.kind]
        place = agent.warp.place(agent.instruction)
        machine.report(ExitWithPending.at(place, other=place, agent=name, what=what, wait=wait), fatal=False)


def _unknown(cta: Cta) -> list[Agent]:
    """The completed operations on ``cta`` that none of its threads is ordered after."""
    agents = [a for a in cta.unawaited if not a.waited]
    if not agents:
        return []
    cluster = cta.cluster
    first = 32 * cta.first_warp
    seen = cluster.clocks.seen[first : first + 32 * len(cta.warps)].max(axis=0)
    column, clock = cluster.events.stand(np.array([a.event for a in agents]))
    return [a for a, known in zip(agents, seen[column] >= clock, strict=True) if not known]
