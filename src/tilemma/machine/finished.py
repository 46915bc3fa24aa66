"""Finished clusters: only the accesses that global memory's shadow still names are kept, for reports of races.

The shadow of each byte of global memory names at most three events, so what is kept is bounded by the bytes that
the grid has touched, however many clusters have finished.  Unnamed events are collected now and then: when the
clusters that have finished since take as much room as those kept, and a share of the shadow that must be searched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tilemma.machine.clocks import Events, Ints32, event_numbers
from tilemma.machine.memory import GlobalMemory
from tilemma.machine.native.records import EventRecord
from tilemma.machine.state import Cluster

# Bytes that finished clusters may take before the first collection.
_FIRST = 256 << 10
# Bytes of a finished cluster's objects, and of one event, roughly.
_CLUSTER, _EVENT = 1500, 20
# Bytes of shadow that are worth a search for each byte that clusters have left since the last collection.
_SHADOW = 4


class KeptEvents(Events):
    """Those of a finished cluster's events that are still named, found by their numbers."""

    def __init__(self, events: Events, numbers: npt.NDArray[np.int64]) -> None:
        # The places of the numbers, where some have been dropped before.
        at = events.places(numbers)
        self.numbers: Ints32 = numbers.astype(np.int32)
        self.column, self.clock, self.alone = events.column[at], events.clock[at], events.alone[at]
        self.info = {i: events.access(j) for i, j in enumerate(at.tolist())}
        self.made = np.zeros(0, np.int64)
        self.record = EventRecord()
        self.record.count, self.record.collective = len(numbers), events.collective

    def places(self, numbers: Any) -> Any:
        """The index of each number; any index for a number that is not kept."""
        return np.minimum(np.searchsorted(self.numbers, numbers), self.count - 1)


class Finished:
    """The finished clusters of a machine, beside those that run in ``clusters``."""

    def __init__(self, clusters: dict[int, Cluster], memory: GlobalMemory, released: dict[Any, Any]) -> None:
        self.clusters, self.memory, self.released = clusters, memory, released
        # Bytes, roughly: kept by the last collection, and left since.
        self.kept = self.left = 0

    def add(self, cluster: Cluster) -> None:
        """Free the state that only a running cluster needs, and collect garbage from time to time."""
        self.left += _CLUSTER + 4 * cluster.clocks.used + _EVENT * cluster.events.count
        cluster.retire()
        if cluster.events.empty:
            del self.clusters[cluster.serial]
        if self.left > max(_FIRST, self.kept) and self.left * _SHADOW > sum(s.nbytes for s in self._shadows()):
            self.collect()

    def _shadows(self) -> Iterator[npt.NDArray[np.int64]]:
        for a in self.memory.allocations:
            a.flush_reads()
            yield from (s for s in (a.writer, a.reader, a.other_reader) if s is not None)

    def _named(self) -> npt.NDArray[np.int64]:
        """The events that shadows name, sorted: the cluster's number above the event's."""
        found = [np.zeros(0, np.int64)]
        for shadow in self._shadows():
            events = shadow[shadow != 0]
            names = (events >> 32) - 1 << 32 | event_numbers(events & 0xFFFFFFFF)
            # Neighbours mostly name the same event.
            found.append(np.sort(_without_repeats(names)))
        return _without_repeats(np.sort(np.concatenate(found)))

    def collect(self) -> None:
        """Drop the events of finished clusters that no shadow names, and the clocks of clusters without events."""
        named = self._named()
        serials = named >> 32
        self.kept = self.left = 0
        for serial, cluster in list(self.clusters.items()):
            if cluster.live_warps:
                continue
            first, end = np.searchsorted(serials, (serial, serial + 1))
            if first == end:
                del self.clusters[serial]
                cluster.events = NOTHING
            else:
                cluster.events = KeptEvents(cluster.events, named[first:end] & 0xFFFFFFFF)
                self.kept += _CLUSTER + _EVENT * cluster.events.count
        for key, released in list(self.released.items()):
            if isinstance(key, tuple) and not released.cta.cluster.live_warps:
                # A flag in shared memory that is gone.
                del self.released[key]
            released.message.foreign = self._of_clusters(released.message.foreign or {}) or None
        for cluster in self.clusters.values():
            if cluster.live_warps:
                cluster.clocks.foreign = [self._of_clusters(tables) for tables in cluster.clocks.foreign]

    def _of_clusters(self, tables: dict[int, Ints32]) -> dict[int, Ints32]:
        return {serial: table for serial, table in tables.items() if serial in self.clusters}


def _without_repeats(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """``numbers``, of at least 0, without those that equal the one before."""
    return numbers[np.flatnonzero(np.diff(numbers, prepend=-1))]


# The events of a cluster of which none is kept.
NOTHING = Events()
NOTHING.trim()
