"""Statements of the reference executor on scalars, elements and storage; `print` and `assert`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilemma.arithmetic.convert import carrier
from tilemma.dtypes import DType
from tilemma.ir import tile
from tilemma.ir.effects import rotated
from tilemma.ir.types import Space
from tilemma.ir.walk import walk
from tilemma.targets.cpu.arithmetic import scalar_binary
from tilemma.targets.cpu.expressions import INSTANCE, MASK, Frame, merged, settled
from tilemma.targets.cpu.faults import AssertionFailed
from tilemma.targets.cpu.lanes import lane_frame
from tilemma.targets.cpu.steps import Compiler, Scope, Step
from tilemma.targets.cpu.storage import Storage
from tilemma.targets.cpu.tasks import Instance
from tilemma.targets.cpu.values import from_element


def alloc(c: Compiler, op: tile.Alloc, scope: Scope) -> Step:
    """Shared storage is one for the block; local storage is new for each instance (each lane)."""
    b = op.buffer
    slot = c.slot("buffer", b.name)
    extents = [c.value(e) for e in b.shape]
    init = None if op.init is None else c.expressions.stored(op.init, b.dtype)
    rotates = b.name in _rotating(c.kernel)

    def run(f: Frame) -> None:
        instance: Instance = f[INSTANCE]
        block = instance.block
        if rotates and b.name in block.fresh and f[slot] is not None:
            # Declared in a loop that rotates it: the name refers to the rotated buffer, which siblings that are
            # behind may still read.
            if instance.siblings is None:
                f[slot].forget()
            return
        if b.space is Space.GLOBAL and isinstance(f[slot], Storage) and not f[slot].tracked:
            storage = f[slot]  # given by the caller
        elif b.space is Space.LOCAL:
            storage = Storage.poisoned(b.name, b.dtype, b.space, tuple(e(f) for e in extents), b.copies)
            if instance.lanes:
                storage = storage.per_lane(instance.lanes)
        else:
            shape = tuple(e(f) for e in extents)
            found = block.pool.get(b.name)
            if found is None or found.data.shape[bool(b.copies) :] != shape:
                found = block.pool[b.name] = Storage.poisoned(b.name, b.dtype, b.space, shape, b.copies)
            if b.name not in block.fresh or instance.siblings is None:
                found.forget()
                block.fresh.add(b.name)
            storage = found
        f[slot] = storage
        if init is not None:
            value = init(f)
            lanes_first = (
                value.reshape(-1, *([1] * (storage.data.ndim - 1))) if isinstance(value, np.ndarray) else value
            )
            storage.data[...] = lanes_first
            storage.mark_all()

    return Step(run)


def _rotating(kernel: tile.Kernel) -> set[str]:
    """Names of the buffers that rotated futures write."""
    ops = list(walk(kernel.body))
    futures = {name for op in ops for name in rotated(op)}
    return {op.dst.base.name for op in ops if isinstance(op, tile.Copy) and op.future in futures}


def declare(c: Compiler, op: tile.Declare, scope: Scope) -> Step:
    slot, value = c.slot("scalar", op.var.name), c.expressions.stored(op.value, op.var.dtype)

    def run(f: Frame) -> None:
        f[slot] = value(f)

    return Step(run)


def assign(c: Compiler, op: tile.Assign, scope: Scope) -> Step:
    slot, value = c.slot("scalar", op.var.name), c.expressions.stored(op.value, op.var.dtype)
    if not scope.lanes:
        return declare(c, tile.Declare(op.var, op.value), scope)

    def run(f: Frame) -> None:
        new, mask = value(f), f[MASK]
        f[slot] = new if mask is None else merged(mask, new, settled(f[slot]), op.var.dtype)

    return Step(run)


def set_element(c: Compiler, op: tile.SetElement, scope: Scope) -> Step:
    access, value = c.access(op.view), c.expressions.stored(op.value, op.view.dtype)
    return Step(lambda f: access.set_element(f, value(f)))


_ATOMIC = {"add": "add", "sub": "sub", "min": "min", "max": "max", "and": "and", "or": "or", "xor": "xor"}


def _update(name: str, t: DType) -> Callable[[Any, Any, Any], Any]:
    """(old, value, compare) -> new."""
    if name == "exch":
        return lambda old, value, compare: value
    if name == "cas":
        # The hardware compares bits: -0 is not 0, and a NaN is equal to itself.
        def bits(x: Any) -> bytes:
            return np.asarray(x, t.numpy).tobytes()

        return lambda old, value, compare: value if bits(old) == bits(compare) else old
    f = scalar_binary(_ATOMIC[name], t)
    return lambda old, value, compare: f(old, value)


def atomic(c: Compiler, op: tile.Atomic, scope: Scope) -> Step:
    """Once for the instance, or lane after lane; the result is each one's old value."""
    access, t = c.access(op.view), op.view.dtype
    value = c.expressions.stored(op.value, t)
    compare = None if op.compare is None else c.expressions.stored(op.compare, t)
    update, perturbation = _update(op.name, t), c.perturbation
    result = None if op.result is None else c.slot("scalar", op.result.name)

    def once(f: Frame) -> Any:
        old, given = access.element(f), value(f)
        new = update(old, given, None if compare is None else compare(f))
        if perturbation is not None:
            new = perturbation.atomic(op.name, new, old, given, t)
        access.set_element(f, new)
        return old

    def run(f: Frame) -> None:
        if not scope.lanes:
            old = once(f)
            if result is not None:
                f[result] = old
            return
        instance: Instance = f[INSTANCE]
        olds = [from_element(t.numpy.type(0), t)] * instance.lanes
        mask = f[MASK]
        for lane in range(instance.lanes):
            if mask is None or mask[lane]:
                olds[lane] = once(lane_frame(f, lane))
        if result is not None:
            new = np.array(olds, carrier(t))
            f[result] = merged(True if mask is None else mask, new, new if f[result] is None else f[result], t)

    return Step(run)


def _text(value: Any, t: DType) -> str:
    return f"{float(value):.9g}" if t.is_float else str(int(value))


def print_(c: Compiler, op: tile.Print, scope: Scope) -> Step:
    """Integers as %d, floats as %.9g (enough for f32); by the instance, or by each active lane."""
    parts = [p if isinstance(p, str) else (c.value(p), p.type) for p in op.parts]
    out = c.slot("output", "print")

    def once(f: Frame) -> None:
        text = "".join(p if isinstance(p, str) else _text(p[0](f), p[1]) for p in parts)
        f[out](text + ("\n" if op.newline else ""))

    return Step(for_each_lane(once, scope))


def for_each_lane(once: Callable[[Frame], None], scope: Scope) -> Callable[[Frame], None]:
    if not scope.lanes:
        return once

    def run(f: Frame) -> None:
        for lane in range(f[INSTANCE].lanes):
            if f[MASK] is None or f[MASK][lane]:
                once(lane_frame(f, lane))

    return run


def assert_(c: Compiler, op: tile.Assert, scope: Scope) -> Step:
    cond = c.value(op.cond)

    def run(f: Frame) -> None:
        holds, mask = cond(f), f[MASK]
        failed = np.logical_not(holds) if mask is None else np.logical_not(holds) & mask
        if np.any(failed):
            raise AssertionFailed(op.span, message=op.message)

    return Step(run)


TABLE = {
    tile.Alloc: alloc,
    tile.Declare: declare,
    tile.Assign: assign,
    tile.SetElement: set_element,
    tile.Atomic: atomic,
    tile.Print: print_,
    tile.Assert: assert_,
}
