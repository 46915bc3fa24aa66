"""Copies in the reference executor: a synchronous one completes at once, an asynchronous one at any time up to its
wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tilemma.arithmetic.convert import Array
from tilemma.ir.expr import Const, binary, value_of
from tilemma.ir.tile import Copy
from tilemma.ir.types import Space
from tilemma.targets.cpu.access import Access, Place
from tilemma.targets.cpu.expressions import INSTANCE, Frame
from tilemma.targets.cpu.faults import CopyMisfit, InFlightSource
from tilemma.targets.cpu.steps import Compiler, Scope, Step
from tilemma.targets.cpu.sync import event_place
from tilemma.targets.cpu.tasks import Instance, Transfer

Transform = Callable[[Frame, Array], Array]
# The axes of both sides that count.
Kept = tuple[list[int], list[int]] | None


def copy(c: Compiler, op: Copy, scope: Scope) -> Step:
    op = _narrowed(op)
    src, dst = c.access(op.src), c.access(op.dst)
    if op.src.dtype != op.dst.dtype:
        raise CopyMisfit(op.span, source=f"{op.src.dtype} elements", target=f"{op.dst.dtype} elements")
    transform, kept = _transform(c, op), _kept(op)
    after = [c.slot("future", n) for n in op.after]
    # Loads and stores are executed synchronously, even if the program allows otherwise.
    at_once = op.plan is not None and op.plan.engine == "ldst" and op.event is None
    if not at_once and (op.asynchronous or op.event is not None or op.future is not None):
        return _asynchronous(c, op, src, dst, transform, after)

    def run(f: Frame) -> None:
        wait_for(f, after)
        p, q = src.place(f), dst.place(f)
        src.check(p)
        tile = fitted(src, p, dst, q, f, transform, kept)
        dst.put(q, tile.copy() if p.storage is q.storage else tile)

    return Step(run)


def _narrowed(op: Copy) -> Copy:
    """``op`` with the tile's extents: constant extents of the source alone limit those of the destination."""
    kept = _kept(op)
    source = [value_of(e) for e in op.arriving]
    target = list(range(len(op.dst.axes))) if kept is None else kept[1]
    source = source if kept is None else [source[i] for i in kept[0]]
    if op.dst.static_shape is not None or None in source or len(source) != len(target):
        return op
    axes = list(op.dst.axes)
    for i, extent in zip(target, source, strict=True):
        assert extent is not None
        axes[i] = replace(axes[i], extent=binary("min", axes[i].extent, Const(extent)))
    return replace(op, dst=replace(op.dst, axes=tuple(axes)))


def _transform(c: Compiler, op: Copy) -> Transform | None:
    """Transposition and padding of the source's tile."""
    if op.transpose is None and not op.pad:
        return None
    pad, dtype = op.pad, op.src.dtype
    value = None if op.pad_value is None else c.expressions.stored(op.pad_value, dtype)

    def transform(f: Frame, tile: Array) -> Array:
        if op.transpose is not None:
            tile = tile.transpose(op.transpose)
        if not pad:
            return tile
        spread = [n + max(0, n - 1) * inner for n, (_, _, inner) in zip(tile.shape, pad, strict=True)]
        shape = [low + n + high for n, (low, high, _) in zip(spread, pad, strict=True)]
        out: Array = np.zeros(shape, dtype.numpy)
        if value is not None:
            out[...] = value(f)
        at = tuple(slice(low, low + n, inner + 1) for n, (low, _, inner) in zip(spread, pad, strict=True))
        out[at] = tile
        return out

    return transform


def fitted(
    src: Access, p: Place, dst: Access, q: Place, f: Frame, transform: Transform | None, kept: Kept
) -> Array:
    """The source's tile with the destination's extents.

    Axes of extent 1 do not count.  A smaller source leaves the rest zero; what is beyond a smaller
    destination is dropped (run-time views and remainders: contracts between known extents are checked when
    compiled).
    """
    tile = src.fetch(p)
    if transform is not None:
        tile = transform(f, tile)
    want = dst.nominal(q)
    if kept is not None:
        tile = tile.reshape([tile.shape[i] for i in kept[0]])
    wanted = want if kept is None else tuple(want[i] for i in kept[1])
    if tile.shape == wanted:
        return tile.reshape(want)
    if len(tile.shape) != len(wanted):
        raise CopyMisfit(source=f"a tile of {list(tile.shape)}", target=f"one of {list(want)}")
    common = tuple(slice(0, min(a, b)) for a, b in zip(tile.shape, wanted, strict=True))
    out: Array = np.zeros(wanted, tile.dtype)
    out[common] = tile[common]
    return out.reshape(want)


def _kept(op: Copy) -> Kept:
    """The axes of both sides without those of extent 1, which do not count, if these are at different
    positions."""
    if not op.rearranges:
        return None
    sides = op.arriving, op.dst.shape
    source, target = ([i for i, e in enumerate(shape) if value_of(e) != 1] for shape in sides)
    return source, target


def wait_for(f: Frame, slots: list[int]) -> None:
    for slot in slots:
        if f[slot] is not None:
            f[INSTANCE].block.wait(f[slot])


def _asynchronous(
    c: Compiler, op: Copy, src: Access, dst: Access, transform: Transform | None, after: list[int]
) -> Step:
    """The source is read when the copy is issued, and must not change; the destination is unusable until the copy
    completes."""
    future, kept = None if op.future is None else c.slot("future", op.future), _kept(op)
    event = None if op.event is None else event_place(c, op.event)
    store = op.dst.base.space is Space.GLOBAL
    needs_wait = op.event is None and (op.future is not None or not store)
    bulk = store and op.plan is not None and op.plan.engine == "tma"

    def run(f: Frame) -> None:
        wait_for(f, after)
        instance: Instance = f[INSTANCE]
        p, q = src.place(f), dst.place(f)
        src.check(p)
        original = src.fetch(p).copy()
        tile = fitted(src, p, dst, q, f, transform, kept)

        def complete() -> None:
            if src.fetch(p).tobytes() != original.tobytes():
                raise InFlightSource(op.span, buffer=p.storage.name)
            dst.mark(q, q.storage.completed)
            dst.put(q, tile)

        what = id(op), id(q.storage), repr(q.region), tile.tobytes()
        transfer = instance.block.joined(what, instance.threads)
        if transfer is None:
            dst.mark(q, q.storage.in_flight)
            name = op.future or op.dst.base.name
            transfer = Transfer(name, instance.threads, complete, needs_wait, op.span, bulk, what=what)
            instance.block.launch(transfer)
        if future is not None:
            f[future] = transfer
        if event is not None:
            ring, slot, _ = event(f)
            transfer.bind(ring, slot)

    return Step(run)
