"""Generations of events (mbarrier phases): the triggers that complete one, for every target.

The roles that trigger the same slots complete a generation together: their arrivals add up.  The sites of one
role do the same at different places, so they have to agree.  A trigger outside every role, where roles trigger
the event too, is a credit: all instances that reach it together give one whole generation.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.ir.ranges import interval
from tilemma.ir.types import EventRef
from tilemma.records import record


@record
class TriggerSite:
    """A trigger: its role, given by the threads that the role admits (None: outside every role), the slots that
    it may trigger, and how many arrive."""

    role: frozenset[int] | None
    slots: frozenset[int]
    arrivals: int


class Disagreement(Exception):
    """Two numbers of arrivals that differ, ``here`` and ``there``, and the positions of their sites."""

    def __init__(self, here: int, there: int, site: int, other: int) -> None:
        super().__init__(here, there)
        self.here, self.there, self.site, self.other = here, there, site, other


def slots_of(ref: EventRef) -> frozenset[int]:
    """The slots that ``ref`` can be; ``{0}`` for an event that is no ring."""
    everything = frozenset(range(max(1, ref.event.slots)))
    if ref.slot is None:
        return everything
    low, high = interval(ref.slot)
    return frozenset(s for s in everything if low <= s <= high)


def credits(sites: Sequence[TriggerSite]) -> list[bool]:
    """For each site whether it gives whole generations."""
    by_roles = any(s.role is not None and s.arrivals for s in sites)
    return [by_roles and s.role is None for s in sites]


def arrivals(sites: Sequence[TriggerSite]) -> int:
    """The number of arrivals that complete a generation.  Raises Disagreement."""
    given = credits(sites)
    share: dict[frozenset[int] | None, tuple[int, int, set[int]]] = {}
    for n, site in enumerate(sites):
        if given[n] or not site.arrivals:
            continue
        first, count, slots = share.setdefault(site.role, (n, site.arrivals, set()))
        if site.arrivals != count:
            raise Disagreement(site.arrivals, count, n, first)
        slots |= site.slots
    totals: dict[int, tuple[int, int]] = {}
    for first, count, slots in share.values():
        for slot in slots:
            had, _ = totals.get(slot, (0, first))
            totals[slot] = had + count, first
    found = list(totals.values())
    for total, first in found:
        if total != found[0][0]:
            raise Disagreement(total, found[0][0], first, found[0][1])
    return found[0][0] if found else 0
