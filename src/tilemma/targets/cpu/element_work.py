"""Element work on register tiles and vectors: `apply`, and reductions of rows."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from tilemma import dtypes
from tilemma.arithmetic import floats
from tilemma.arithmetic.convert import Array, carrier, rounded
from tilemma.dtypes import DType
from tilemma.ir import walk
from tilemma.ir.expr import FragmentElement
from tilemma.ir.tile import Apply, FragmentRef, Reduce, SetFragmentElement
from tilemma.targets.cpu import control
from tilemma.targets.cpu.contraction import find, settled, types_of
from tilemma.targets.cpu.expressions import INSTANCE, MASK, Evaluate, Frame, merged
from tilemma.targets.cpu.faults import FragmentUnset, TileMismatch
from tilemma.targets.cpu.registers import Tile
from tilemma.targets.cpu.steps import Compiler, Scope, Step
from tilemma.targets.cpu.tasks import Instance


def apply(c: Compiler, op: Apply, scope: Scope) -> Step:
    """The body for all elements at once, each a lane.  One that writes them all needs no values before.

    An assignment to elements ends the sum that a later `mma.scale` scales, even if a condition leaves all out.
    """
    where, t = find(c, op.fragment), types_of(c).get(op.fragment.name, dtypes.f32)
    fresh = bool(op.body) and isinstance(op.body[-1], SetFragmentElement) and not walk.reads_visited(op)
    assigned = {x.fragment: None for x in walk.walk(op.body) if isinstance(x, SetFragmentElement)}
    ended = [find(c, x) for x in assigned if x != op.fragment]
    slots = [c.slot("scalar", i.name) for i in op.indices]
    extents = [c.value(i.extent) for i in op.indices]
    inner = control.body(c, op.body, replace(scope, lanes=True))
    assert not inner.blocking, "element work cannot wait"

    def run(f: Frame) -> None:
        registers, index = where(f)
        outer: Instance = f[INSTANCE]
        if fresh and registers.is_unset(index, outer.threads):
            registers.write(index, outer.threads, Tile(t))
        tile = registers.update(index, outer.threads)
        registers.readable(index, outer.threads)
        shape = tuple(e(f) for e in extents)
        if op.fragment in assigned or tile.data is None:
            tile.data = settled(tile, shape)
            tile.hidden = None
        for others, place in (find_other(f) for find_other in ended):
            if not others.is_unset(place, outer.threads):
                _end_sum(others.update(place, outer.threads))
        if tile.data.shape != shape:
            raise TileMismatch(
                what=f"`apply` over {list(shape)} on a register tile of {list(tile.data.shape)}",
                rule="the tile's extents",
            )
        g = f.copy()
        # All lanes of a `: thread` level around it get here together (`lanes.collective`).
        g[MASK] = None
        g[INSTANCE] = instance = Instance(outer.block, outer.threads, outer)
        instance.lanes, instance.extents = tile.data.size, shape
        for slot, values in zip(slots, np.unravel_index(np.arange(tile.data.size), shape), strict=True):
            g[slot] = values.astype(np.int32)
        inner.run(g)

    return Step(run)


def _end_sum(tile: Tile) -> None:
    if tile.hidden is not None and tile.data is not None:
        tile.data = settled(tile, tile.data.shape)
        tile.hidden = None


def fragment_element(c: Compiler, e: FragmentElement) -> Evaluate:
    where = find(c, FragmentRef(e.fragment, e.index))
    indices = [c.value(i) for i in e.indices]

    def read(f: Frame) -> Any:
        registers, index = where(f)
        instance: Instance = f[INSTANCE]
        tile = registers.readable(index, instance.threads)
        if tile.data is None:
            return tile.fill
        return settled(tile, tile.data.shape)[tuple(i(f) for i in indices)]

    return read


def set_fragment_element(c: Compiler, op: SetFragmentElement, scope: Scope) -> Step:
    where, t = find(c, op.fragment), types_of(c).get(op.fragment.name, dtypes.f32)
    value = c.expressions.stored(op.value, t)

    def run(f: Frame) -> None:
        registers, index = where(f)
        instance: Instance = f[INSTANCE]
        if f[MASK] is None and registers.is_unset(index, instance.threads):
            registers.write(index, instance.threads, Tile(t))
        tile = registers.update(index, instance.threads)
        registers.readable(index, instance.threads)
        tile.data = settled(tile, instance.extents)
        tile.hidden = None
        if tile.data.shape != instance.extents:
            raise TileMismatch(
                what=f"`apply` over {list(instance.extents)} on `{op.fragment.name}` of {list(tile.data.shape)}",
                rule="the tile's extents",
            )
        new = np.broadcast_to(value(f), (tile.data.size,)).reshape(tile.data.shape)
        mask = None if f[MASK] is None else f[MASK].reshape(tile.data.shape)
        tile.data = np.array(new) if mask is None else merged(mask, new, tile.data, t)

    return Step(run)


def reduce(c: Compiler, op: Reduce, scope: Scope) -> Step:
    """Each row of ``src`` to one value: a float sum in f64, rounded to f32 and then to the vector's type."""
    source, target = find(c, op.src), find(c, op.dst)
    have, want = (types_of(c).get(x.name, dtypes.f32) for x in (op.src, op.dst))

    def run(f: Frame) -> None:
        (registers, index), (results, place) = source(f), target(f)
        threads = f[INSTANCE].threads
        tile = registers.readable(index, threads)
        if tile.data is None:
            raise FragmentUnset(name=op.src.name)
        values = settled(tile, tile.data.shape)
        results.write(place, threads, Tile(want, _reduced(op.name, values, have, want)))

    return Step(run)


def _reduced(name: str, values: Array, have: DType, want: DType) -> Array:
    if name == "sum" and have.is_float:
        wide = have if have.bits == 64 else dtypes.f32
        with np.errstate(all="ignore"):
            total = rounded(values.sum(axis=1, dtype=np.float64), dtypes.f64, wide)
        return rounded(total, wide, want)
    if name == "sum":
        return rounded(values.astype(np.int64).sum(axis=1).astype(carrier(have)), have, want)
    pick = floats.maximum if name == "max" else floats.minimum
    return rounded(functools.reduce(pick, values.T), have, want)


TABLE = {Apply: apply, SetFragmentElement: set_fragment_element, Reduce: reduce}
