"""Warp-wide operations on the registers of single lanes: the multiply of fragments, exchange of values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tilemma.arithmetic import sparsity
from tilemma.arithmetic.convert import Array, carrier, load, store
from tilemma.arithmetic.issues import issue
from tilemma.arithmetic.packing import unpack
from tilemma.atoms import DECLARED, MmaAtom, Operand, catalogue
from tilemma.dtypes import e4m3
from tilemma.ir.tile import Exchange, LaneLoad, LaneMma, LaneStore, Op
from tilemma.ir.types import WARP, View
from tilemma.targets.cpu.expressions import INSTANCE, MASK, Evaluate, Frame
from tilemma.targets.cpu.faults import BrokenPattern, LaneDependent
from tilemma.targets.cpu.registers import accumulate, operand, product
from tilemma.targets.cpu.steps import Compiler, Scope, Step
from tilemma.targets.cpu.storage import Storage


def _warps(f: Frame, op: Op) -> Iterator[slice]:
    """The lanes of each warp that executes ``op``; LaneDependent where a part of one does."""
    mask = f[MASK]
    for first in range(0, f[INSTANCE].lanes, WARP):
        lanes = slice(first, first + WARP)
        if mask is None or mask[lanes].all():
            yield lanes
        elif mask[lanes].any():
            raise LaneDependent(op.span, through="the control around it")


def lane_mma(c: Compiler, op: LaneMma, scope: Scope) -> Step:
    """The fragments of each warp as matrices, multiplied as the multiply of register tiles does it."""
    atom = catalogue[op.atom]
    assert isinstance(atom, MmaAtom) and scope.lanes, op
    views = {"A": op.a, "B": op.b, "C": op.c}
    read = {letter: _values(c, view) for letter, view in views.items()}
    packed = {letter for letter, view in views.items() if view.dtype is not atom.operands[letter].dtype}
    meta = None if op.e is None else _values(c, op.e)
    scales = {letter: _values(c, view) for letter, view in (("SFA", op.sfa), ("SFB", op.sfb)) if view is not None}
    write, t, perturbation = _values(c, op.d), atom.d.dtype, c.perturbation

    def run(f: Frame) -> None:
        for lanes in _warps(f, op):
            held = {letter: _fragments(find(f), lanes) for letter, find in read.items()}
            held |= {letter: unpack(held[letter], atom.operands[letter].dtype) for letter in packed}
            a, b, before = (atom.operands[x].scatter(load(held[x], atom.operands[x].dtype)) for x in "ABC")
            if atom.kind == DECLARED or atom.meaning is not None:
                result = issue(atom.meaning, a, b, before, t)
            else:
                x, y = operand(a, atom.a.dtype), operand(b, atom.b.dtype).T
                if meta is not None:
                    x = _expanded(atom, x, _fragments(meta(f), lanes), op)
                if scales:
                    left, right = (
                        _scales(atom.operands[s], _fragments(find(f), lanes)) for s, find in scales.items()
                    )
                    x = x * np.repeat(left, x.shape[1] // left.shape[1], axis=1)
                    y = y * np.repeat(right, y.shape[0] // right.shape[1], axis=1).T
                p = product(x, y, t)
                if perturbation is not None:
                    p = perturbation.contraction(p, before, x, y, None, t, atom.a.dtype)
                result = accumulate(before.copy(), p, t)
            storage, region = write(f)
            storage.data[(lanes, *region)] = store(atom.d.gather(np.asarray(result)), t, t)
            storage.mark((lanes, *region))

    return Step(run)


def _expanded(atom: MmaAtom, half: Array, words: Array, op: LaneMma) -> Array:
    """The whole A [M, K] of its stored half, by the words of metadata [32, 1] of the lanes; BrokenPattern.

    The instruction reads the words of the first lanes that have each field (sparsity selector 0).
    """
    e, t = atom.operands["E"], atom.a.dtype
    table, found = e.coordinates_table[::-1], np.zeros(e.shape[0] * e.shape[1], np.int64)
    found[table.reshape(-1)] = sparsity.fields_of(words, 32)[::-1].reshape(-1)
    fields = found.reshape(e.shape, order="F")
    wrong = sparsity.broken(fields, half, t)
    if wrong is not None:
        row, chunk = wrong
        name = op.e.base.name if op.e is not None else ""
        raise BrokenPattern(
            op.span, name=name, row=row, chunk=chunk, bits=int(fields[row, chunk]), rule=sparsity.rule_of(t)
        )
    return sparsity.expand(half, sparsity.columns_of(fields, t))


def _scales(operand: Operand, words: Array) -> Array:
    """The scales of an operand's rows, [rows, blocks of K], of the words [32, 1] of the lanes.

    The instruction reads the first bytes of the first lanes that have each scale (byte and thread 0).
    """
    codes = np.ascontiguousarray(words.astype(np.uint32)).view(np.uint8).reshape(WARP, 4).astype(np.int64)
    found = np.zeros(operand.shape[0] * operand.shape[1], np.int64)
    found[operand.coordinates_table[::-1, ::-1].reshape(-1)] = codes[::-1, ::-1].reshape(-1)
    chosen = found.reshape(operand.shape, order="F")
    if operand.dtype.ptx == "ue4m3":
        values: Array = e4m3.floating.values()[chosen & 127]
        return values
    return np.where(chosen == 255, np.nan, np.ldexp(1.0, chosen - 127))


def _values(c: Compiler, view: View) -> Any:
    """The storage of a lane's values, and the subscripts of its buffer after the lane."""
    slot = c.slot("buffer", view.base.name)
    copy = None if view.slot is None else c.value(view.slot)

    def find(f: Frame) -> tuple[Storage, tuple[Any, ...]]:
        return f[slot], () if copy is None else (copy(f),)

    return find


def _fragments(found: tuple[Storage, tuple[Any, ...]], lanes: slice) -> Array:
    storage, region = found
    storage.check_written((lanes, *region))
    values: Array = storage.data[(lanes, *region)]
    return values


def exchange(c: Compiler, op: Exchange, scope: Scope) -> Step:
    value = c.value(op.value)
    lane: Evaluate = (lambda f: 0) if op.lane is None else c.value(op.lane)
    slot, kind = c.slot("scalar", op.result.name), carrier(op.result.dtype)

    def run(f: Frame) -> None:
        count = f[INSTANCE].lanes
        values = np.broadcast_to(np.asarray(value(f)), (count,))
        others = np.broadcast_to(np.asarray(lane(f)), (count,)) & (WARP - 1)
        old = f[slot]
        result = np.array(np.broadcast_to(np.asarray(0 if old is None else old, kind), (count,)))
        for lanes in _warps(f, op):
            result[lanes] = _exchanged(op.name, values[lanes], others[lanes], kind)
        f[slot] = result

    return Step(run)


def _exchanged(name: str, values: Array, other: Array, kind: Any) -> Array:
    own = np.arange(WARP)
    if name == "ballot":
        return np.full(WARP, sum(1 << int(i) for i in np.flatnonzero(values)), kind)
    source = {"shfl_xor": own ^ other, "shfl_up": own - other, "shfl_down": own + other, "shfl_idx": other}[name]
    return values[np.where((source < 0) | (source >= WARP), own, source)].astype(kind)


def expanded(c: Compiler, op: LaneLoad | LaneStore, scope: Scope) -> Step:
    raise AssertionError(f"{type(op).__name__} is expanded by ExpandLaneWork before any execution")


TABLE = {LaneMma: lane_mma, Exchange: exchange, LaneLoad: expanded, LaneStore: expanded}
