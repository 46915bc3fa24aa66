"""Views at run time: from a `View` to a region of storage that is read and written.

Views of parameters may reach over the edge: reads give zero there, writes are dropped.  All others must fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tilemma.arithmetic.convert import Array, load, store
from tilemma.ir.expr import value_of
from tilemma.ir.types import Space, View
from tilemma.records import record
from tilemma.targets.cpu import faults
from tilemma.targets.cpu.expressions import INSTANCE, MASK, Evaluate, Expressions, Frame
from tilemma.targets.cpu.storage import Region, Storage
from tilemma.targets.cpu.values import Value, from_element


class Place(NamedTuple):
    """A located region: the storage, the array it indexes (reshaped if need be), and the part inside its
    bounds."""

    storage: Storage
    array: Array
    region: Region
    shape: tuple[int, ...]
    inner: tuple[slice, ...] | None  # None: no part is clipped


@record(slots=False)
class _Dimension:
    offset: Evaluate
    extent: Evaluate | None
    step: Evaluate
    known: tuple[int, int] | None  # extent and step, where both are constants


class Access:
    """A view, compiled."""

    def __init__(self, view: View, expressions: Expressions) -> None:
        names, compile_ = expressions.names, expressions.compile
        self.view = view
        self.buffer = view.base
        self.name_slot = names.slot("buffer", view.base.name)
        self.clips = view.base.space is Space.GLOBAL
        self.slot = None if view.slot is None else compile_(view.slot)
        self.reshape = None if view.reshape is None else [compile_(e) for e in view.reshape]
        if view.reshape is not None:
            names.reshaped.add(view.base.name)
        by_dim = {a.dim: a for a in view.axes}
        if len(by_dim) != len(view.axes):
            raise faults.NotInReference(what="a view with two axes along one dimension")
        self.dimensions: list[_Dimension] = []
        for d, offset in enumerate(view.offsets):
            a = by_dim.get(d)
            if a is None:
                self.dimensions.append(_Dimension(compile_(offset), None, lambda f: 1, None))
                continue
            extent, step = value_of(a.extent), value_of(a.step)
            known = (extent, step) if extent is not None and step is not None and step >= 1 else None
            self.dimensions.append(_Dimension(compile_(offset), compile_(a.extent), compile_(a.step), known))
        dims = [a.dim for a in view.axes]
        order = sorted(dims)
        self.permute = None if order == dims else tuple(order.index(d) for d in dims)

    # -- finding ----------------------------------------------------------------------------------------

    def slot_of(self, f: Frame, storage: Storage) -> int | None:
        if not storage.copies:
            return None
        if self.slot is None:
            raise faults.SlotOutside(
                name=storage.name, slot="(none given)", slots=storage.copies, last=storage.copies - 1
            )
        return faults.within(storage.name, self.slot(f), storage.copies)

    def reshaped(self, f: Frame, array: Array, leading: int) -> Array:
        """``array`` with its dimensions after the first ``leading`` read as the view's ``reshape``."""
        if self.reshape is None:
            return array
        shape = tuple(int(e(f)) for e in self.reshape)
        try:
            other = array.reshape((*array.shape[:leading], *shape))
        except ValueError:
            other = None
        # A copy would take what is stored in it.
        if other is None or not (array.size == 0 or np.may_share_memory(other, array)):
            raise faults.TileMismatch(
                what=f"`{self.buffer.name}` of shape {list(array.shape[leading:])} is spanned as {list(shape)}",
                rule="the same number of elements, contiguous in memory",
            )
        return other

    def place(self, f: Frame) -> Place:
        """The position of the view in this iteration."""
        storage: Storage = f[self.name_slot]
        slot = self.slot_of(f, storage)
        array = self.reshaped(f, storage.data, 0 if slot is None else 1)
        region: list[Any] = [] if slot is None else [slot]
        limits = array.shape[len(region) :]
        shape: list[int] = []
        inner: list[slice] = []
        whole = True
        for dimension, limit in zip(self.dimensions, limits, strict=True):
            offset = dimension.offset(f)
            known = dimension.known
            if known is not None:
                extent, step = known
            elif dimension.extent is None:
                extent, step = -1, 1
            else:
                extent, step = max(0, dimension.extent(f)), dimension.step(f)
                if step < 1:
                    raise faults.ViewOutside(buffer=storage.name, where=f"step {step}")
            if extent < 0:
                if 0 <= offset < limit:
                    region.append(offset)
                    continue
                if not self.clips:
                    raise faults.ViewOutside(buffer=storage.name, where=f"index {offset} of {limit}")
                region.append(slice(0, 0))
                whole = False
                continue
            shape.append(extent)
            last = offset + (extent - 1) * step
            if (offset >= 0 and last < limit) or extent == 0:
                region.append(slice(offset, last + 1, step) if extent else slice(0, 0))
                inner.append(slice(0, extent))
                continue
            if not self.clips:
                raise faults.ViewOutside(buffer=storage.name, where=f"elements {offset} to {last} of {limit}")
            whole = False
            first = 0 if offset >= 0 else -(offset // step)
            stop = max(first, min(extent, -((offset - limit) // step)))
            region.append(
                slice(offset + first * step, max(0, offset + (stop - 1) * step + 1), step)
                if stop > first
                else slice(0, 0)
            )
            inner.append(slice(first, stop))
        return Place(storage, array, tuple(region), tuple(shape), None if whole else tuple(inner))

    # -- whole tiles ------------------------------------------------------------------------------------

    def read(self, f: Frame) -> Array:
        """The tile, elements as stored; may alias the storage."""
        p = self.place(f)
        self.check(p)
        return self.fetch(p)

    def fetch(self, p: Place) -> Array:
        if p.inner is None:
            tile = p.array[p.region]
        else:
            tile = np.zeros(p.shape, p.storage.dtype.numpy)
            if not self._beside(p):
                tile[p.inner] = p.array[p.region]
        return tile if self.permute is None else tile.transpose(self.permute)

    def check(self, p: Place) -> None:
        s = p.storage
        if s.complete and not s.diverged:
            return
        self.mark(p, s.check_written)

    def write(self, f: Frame, tile: Array) -> None:
        """Write ``tile``, elements as stored."""
        self.put(self.place(f), tile)

    def put(self, p: Place, tile: Array) -> None:
        if self.permute is not None:
            tile = tile.transpose(np.argsort(self.permute))
        if p.inner is None:
            p.storage.assign(p.array, p.region, tile)
        elif not self._beside(p):
            p.storage.check_not_in_flight(p.array, p.region)
            p.array[p.region] = tile[p.inner]
        if not p.storage.complete:
            self.mark(p, p.storage.mark)

    def mark(self, p: Place, how: Callable[[Region], None]) -> None:
        """Call the storage's update for the region, in the storage's own shape."""
        if p.array is p.storage.data:
            how(p.region)
            return
        picked = np.zeros(p.array.shape, bool)
        picked[p.region] = True
        how((picked.reshape(p.storage.data.shape),))

    def nominal(self, p: Place) -> tuple[int, ...]:
        """The extents of the tile, before clipping."""
        return p.shape if self.permute is None else tuple(p.shape[i] for i in self.permute)

    def _beside(self, p: Place) -> bool:
        """Whether a fixed dimension lies outside, so that the whole tile lies outside."""
        return any(
            d.extent is None and isinstance(r, slice)
            for d, r in zip(self.dimensions, p.region[-len(self.dimensions) :], strict=True)
        )

    # -- elements ---------------------------------------------------------------------------------------

    def coordinates(self, f: Frame) -> tuple[Any, ...]:
        """Of an element's view: slot (if any) and coordinates, scalars or arrays over lanes."""
        found = [d.offset(f) for d in self.dimensions]
        return (self.slot(f), *found) if self.slot is not None else tuple(found)

    def element(self, f: Frame) -> Value:
        """The value of the element, for each lane where it differs."""
        storage: Storage = f[self.name_slot]
        at = self.coordinates(f)
        array = self.reshaped(f, storage.data, int(storage.lanes > 0) + int(storage.copies > 0))
        if storage.lanes or any(isinstance(c, np.ndarray) for c in at):
            region, inside = self._lane_region(f, storage, array, at)
            self._check_element(storage, array, region, _both(inside, f[MASK]))
            values = load(array[region], storage.dtype)
            return values if inside is None else np.where(inside, values, values.dtype.type(0))
        if not self._inside(storage, array, at):
            return from_element(storage.dtype.numpy.type(0), storage.dtype)
        self._check_element(storage, array, at, None)
        return from_element(array[at], storage.dtype)

    def set_element(self, f: Frame, value: Value) -> None:
        """``value``, of the buffer's type, becomes the element: once, or for each active lane."""
        storage: Storage = f[self.name_slot]
        at = self.coordinates(f)
        array = self.reshaped(f, storage.data, int(storage.lanes > 0) + int(storage.copies > 0))
        mask = f[MASK]
        varied = isinstance(value, np.ndarray) or any(isinstance(c, np.ndarray) for c in at)
        if not varied and not storage.lanes:
            if (mask is None or mask.any()) and self._inside(storage, array, at):
                storage.assign(array, at, value)
                self._mark_element(storage, array, at)
            return
        region, inside = self._lane_region(f, storage, array, at)
        active = _both(inside, mask)
        values = store(np.asarray(np.broadcast_to(value, (f[INSTANCE].lanes,))), storage.dtype, storage.dtype)
        if active is not None:
            region, values = tuple(c[active] for c in region), values[active]
        storage.check_not_in_flight(array, region)
        array[region] = values
        if array[region].tobytes() != values.astype(array.dtype, copy=False).tobytes():
            raise faults.WriteConflict(who="lanes", buffer=storage.name)
        self._mark_element(storage, array, region)

    def _inside(self, storage: Storage, array: Array, at: tuple[Any, ...]) -> bool:
        for position, (c, limit) in enumerate(zip(at, array.shape, strict=True)):
            if not 0 <= c < limit:
                if storage.copies and position == 0:
                    faults.within(storage.name, c, limit)
                if not self.clips:
                    raise faults.ViewOutside(buffer=storage.name, where=f"index {c} of {limit}")
                return False
        return True

    def _lane_region(
        self, f: Frame, storage: Storage, array: Array, at: tuple[Any, ...]
    ) -> tuple[tuple[Array, ...], Array | None]:
        """Index arrays over lanes (lanes outside moved to 0), and which lanes are inside (None: all)."""
        lanes, mask = f[INSTANCE].lanes, f[MASK]
        limits = array.shape[1:] if storage.lanes else array.shape
        ok = np.ones(lanes, bool)
        for position, (c, limit) in enumerate(zip(at, limits, strict=True)):
            fits = (c >= 0) & (c < limit)
            out = ~np.broadcast_to(fits, (lanes,)) if mask is None else np.logical_not(fits) & mask
            if (not self.clips or (storage.copies and position == 0)) and np.any(out):
                bad = np.broadcast_to(c, (lanes,))[out][0]
                raise faults.ViewOutside(buffer=storage.name, where=f"index {bad} of {limit}")
            ok &= fits
        region = tuple(np.where(ok, c, 0) for c in at)
        if storage.lanes:
            region = (np.arange(lanes), *region)
        return region, None if ok.all() else ok

    @staticmethod
    def _check_element(storage: Storage, array: Array, region: Region, active: Any) -> None:
        if storage.complete and not storage.diverged:
            return
        if array is storage.data:
            storage.check_written(region, active)
        else:
            seen = storage.written_mask().reshape(array.shape)[region]
            if np.any(~seen if active is None else ~seen & active):
                storage.check_written((slice(None),) * storage.data.ndim)

    @staticmethod
    def _mark_element(storage: Storage, array: Array, region: Region) -> None:
        if not storage.complete:
            mask = storage.written_mask()
            mask.reshape(array.shape)[region] = True


def _both(a: Array | None, b: Array | None) -> Array | None:
    return b if a is None else a if b is None else a & b
