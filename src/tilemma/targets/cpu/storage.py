"""Buffers of the reference executor, and regions of them.

Shared and local storage remembers which elements have been written: reading any other is an error, and so is
reading or writing the destination of an asynchronous copy in flight (`Storage.in_flight`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilemma.arithmetic.convert import Array
from tilemma.dtypes import DType
from tilemma.ir.types import Space
from tilemma.targets.cpu.faults import InFlightRead, InFlightWrite, UnwrittenRead, VariableDiverged, WriteConflict

Region = tuple[
    Any, ...
]  # the index into Storage.data: integers and slices, lanes and slot first where there are any


class Storage:
    """The elements of a buffer: ``data`` is [copies, *shape], after [lanes] where each lane has its own.

    ``tracked`` storage records which elements have been written; arrays given by the caller are all written.
    """

    __slots__ = (
        "children", "comparing", "complete", "copies", "data", "diverged", "dtype", "in_flight_count", "lanes",
        "name", "round", "space", "tracked", "under_way", "written", "written_in_round",
    )  # fmt: skip

    def __init__(
        self, name: str, dtype: DType, space: Space, data: Array, copies: int, lanes: int = 0, tracked: bool = True
    ) -> None:
        self.name, self.dtype, self.space, self.data = name, dtype, space, data
        self.copies, self.lanes, self.tracked = copies, lanes, tracked
        self.complete = not tracked  # every element written: ``written`` need not be tested
        self.written: Array | None = None
        # Asynchronous copies in flight into it, and the elements that they will overwrite.
        self.in_flight_count = 0
        self.under_way: Array | None = None
        self.diverged = False  # inner instances left different values in their own copies:
        self.round: object = None  # identifies concurrent writes by siblings; with the elements written so far
        self.written_in_round: Array | None = None
        self.comparing = False
        self.children: dict[tuple[int, int], Storage] = {}

    @staticmethod
    def poisoned(name: str, dtype: DType, space: Space, shape: tuple[int, ...], copies: int) -> Storage:
        """Fresh storage, NaN or a sentinel everywhere."""
        full = (copies, *shape) if copies else shape
        data: Array = np.empty(full, dtype.numpy)
        data.view(np.uint8)[...] = 0x01 if dtype.kind in ("bool", "bits") or dtype.bits == 4 else 0xFF
        return Storage(name, dtype, space, data, copies)

    def forget(self) -> None:
        """As if never written."""
        self.complete = not self.tracked
        if self.written is not None:
            self.written[...] = False

    def written_mask(self) -> Array:
        if self.written is None:
            self.written = np.full(self.data.shape, self.complete)
        return self.written

    def mark(self, region: Region) -> None:
        """The elements of ``region`` are written now."""
        if self.complete:
            return
        mask = self.written_mask()
        mask[region] = True
        self.complete = bool(mask.all())

    def mark_all(self) -> None:
        self.complete = True

    def in_flight(self, region: Region) -> None:
        """A copy into ``region`` is in flight: until it completes, its elements count as unwritten."""
        if self.tracked:
            if self.under_way is None:
                self.under_way = np.zeros(self.data.shape, bool)
            self.check_not_in_flight(self.data, region)
            self.under_way[region] = True
            mask = self.written_mask()
            if self.complete:
                mask[...] = True
            mask[region] = False
            self.complete = False
            self.in_flight_count += 1

    def completed(self, region: Region) -> None:
        if self.tracked:
            assert self.under_way is not None
            self.in_flight_count -= 1
            self.under_way[region] = False
            self.mark(region)

    def check_not_in_flight(self, array: Array, region: Region) -> None:
        """Raise if a copy in flight will overwrite ``array[region]``."""
        if self.in_flight_count and self.under_way is not None:
            hit = np.asarray(self.under_way.reshape(array.shape)[region])
            if np.any(hit):
                raise InFlightWrite(buffer=self.name, where=_where(hit, region))

    def check_written(self, region: Region, active: Any = None) -> None:
        """Every element of ``region`` (of the lanes in ``active``) has been written."""
        if self.diverged:
            raise VariableDiverged(name=self.name)
        if self.complete:
            return
        seen = self.written_mask()[region]
        missing = ~seen if active is None else ~seen & active
        if np.any(missing):
            kind = InFlightRead if self.in_flight_count else UnwrittenRead
            raise kind(space=self.space.value, buffer=self.name, where=_where(np.asarray(missing), region))

    def write_concurrently(self, round: object, write: Callable[[], Any]) -> None:
        """``write`` by one of the siblings that write concurrently: overlapping elements must be equal."""
        if self.round is not round:
            self.round, self.written_in_round = round, np.zeros(self.data.shape, bool)
        self.comparing = True
        try:
            write()
        finally:
            self.comparing = False

    def assign(self, array: Array, region: Region, values: Any) -> None:
        """``array[region] = values``, where ``array`` is the data or another shape of it."""
        self.check_not_in_flight(array, region)
        if not self.comparing or self.written_in_round is None:
            array[region] = values
            return
        mask = self.written_in_round.reshape(array.shape)
        before, again = np.array(array[region]), np.asarray(mask[region])
        array[region] = values
        if before[again].tobytes() != np.asarray(array[region])[again].tobytes():
            raise WriteConflict(who="instances", buffer=self.name)
        mask[region] = True

    def per_lane(self, lanes: int) -> Storage:
        """A copy of it for each of ``lanes`` lanes."""
        data = np.repeat(self.data[None], lanes, axis=0)
        twin = Storage(self.name, self.dtype, self.space, data, self.copies, lanes, self.tracked)
        twin.complete = self.complete
        if self.written is not None:
            twin.written = np.repeat(self.written[None], lanes, axis=0)
        return twin

    def twin(self) -> Storage:
        """A copy of it."""
        other = Storage(self.name, self.dtype, self.space, self.data.copy(), self.copies, self.lanes, self.tracked)
        other.complete = self.complete
        other.written = None if self.written is None else self.written.copy()
        return other

    def same(self, other: Storage) -> bool:
        """Whether both hold the same written elements with the same bytes."""
        if not np.array_equal(self.written_mask() | self.complete, other.written_mask() | other.complete):
            return False
        return self.data.tobytes() == other.data.tobytes()


def _where(missing: Array, region: Region) -> str:
    count = int(np.count_nonzero(missing))
    first = [int(i) for i in np.unravel_index(int(np.argmax(missing)), missing.shape)] if missing.ndim else []
    origin: list[str] = []
    axis = iter(first)
    for r in region:
        if isinstance(r, slice):
            origin.append(str((r.start or 0) + next(axis) * (r.step or 1)))
        elif isinstance(r, np.ndarray):
            origin.append("..")
        else:
            origin.append(str(int(r)))
    return f"{count} elements, first [{', '.join(origin)}]"
