"""The main loop of a product in plain text: copies and multiplies along K, without events.  The compiler pipelines
it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tilemma as tm
from tilemma import apply, dma, foreach, mma, parallel, shared, var
from tilemma.ops.epilogue import Scale


def zero(dtype: str) -> Any:
    """Zero of an accumulator's type."""
    return 0 if dtype == "s32" else 0.0


def multiply(lhs_major: str, rhs_major: str) -> Any:
    """`mma.<lhs>.<rhs>`: which axis of each operand's storage is contracted."""
    return getattr(getattr(mma, lhs_major), rhs_major)


def promoted(total: Any, part: Any, factors: list[Any]) -> Any:
    """``total`` plus the product of a step times its scales, in f32."""
    part = part.astype("f32")
    return tm.math.fma(part, math.prod(factors[1:], start=factors[0]), total) if factors else total + part


@dataclass(frozen=True)
class Operand:
    """One operand of a tile: ``rows`` x K of matrix ``batch`` of ``array``, from row ``start`` on, ``depth`` of K
    at a time.

    ``major``: "row" where K is contiguous.  ``scale``: its scales, those of matrix ``scales`` of their array.
    """

    array: Any
    dtype: str
    major: str
    rows: int
    depth: int
    batch: Any
    start: Any
    scale: Scale
    scales: Any

    def buffer(self) -> Any:
        """Shared memory for a step."""
        return shared(self.dtype, *self._ordered(self.rows, self.depth))

    def copy(self, k: Any, buffer: Any) -> None:
        """Copy step ``k`` to ``buffer``."""
        place = self._ordered(self.start, k * self.depth)
        dma.copy(self.array.view(1, *self._ordered(self.rows, self.depth)).from_(self.batch, *place).sqz(), buffer)

    def load(self, buffer: Any, part: Any, parts: int) -> Any:
        """Part ``part`` of the rows in ``buffer``."""
        return mma.load(buffer.subspan(*self._ordered(self.rows // parts, self.depth)).at(*self._ordered(part, 0)))

    def factor(self, k: Any) -> Any:
        """The scale of the tile's block in step ``k``."""
        return self.scale.at(self.scales, k, self.start)

    def _ordered(self, row: Any, k: Any) -> tuple[Any, Any]:
        return (row, k) if self.major == "row" else (k, row)


@dataclass(frozen=True)
class Sum:
    """The sum over the steps of ``a`` and ``b``, by ``groups`` warpgroups, each for its rows."""

    a: Operand
    b: Operand
    groups: int
    acc: str

    def plain(self, steps: Any, first: Any, end: Any) -> Any:
        """One sum."""
        mc = mma.fill(zero(self.acc), self.acc, fast=True)
        stage = self._stage()
        for k in foreach(steps, start=first, stop=end):
            self._copy(k, stage)
            for p in parallel(self.groups, level="group-4"):
                self._multiply(mc, stage, p)
        return mc

    def apart(self, steps: Any, first: Any, end: Any) -> Any:
        """The products of each step are summed apart, and added in f32.

        The scales of the rows and of blocks are read from memory a step ahead; those of the columns come with the
        tile.
        """
        mc = mma.frag("f32", self._rows, self.b.rows, init=0.0)
        stage, (down, blocks), (later, numbers) = self._stage(), self._factors(), self._factors()
        self._read(first, later, numbers)
        for k in foreach(steps, start=first, stop=end):
            for x, number in zip(blocks, numbers, strict=True):
                x.set(number)
            if down is not None:
                for _ in parallel(self.groups, level="group-4"):
                    down.set(later)
            self._read(k + 1, later, numbers)
            self._copy(k, stage)
            for p in parallel(self.groups, level="group-4"):
                part = mma.fill(zero(self.acc), self.acc, fast=True)
                self._multiply(part, stage, p)
                self._add(mc, part, down, blocks, stage)
        return mc

    @property
    def _rows(self) -> int:
        return self.a.rows // self.groups

    def _stage(self) -> tuple[Any, Any, Any]:
        """Shared memory for a step: of both operands, and of the scales of the tile's columns."""
        scales = None
        if self.b.scale.kind == "steps":
            # TMA writes to multiples of 128 bytes.
            scales = shared("f32", -(-self.b.rows // 32) * 32)
        return self.a.buffer(), self.b.buffer(), scales

    def _copy(self, k: Any, stage: tuple[Any, Any, Any]) -> None:
        self.a.copy(k, stage[0])
        self.b.copy(k, stage[1])
        if stage[2] is not None:
            source = self.b.scale
            there = source.array.view(1, 1, stage[2].shape[0])
            dma.copy(there.from_(source.of(self.b.scales), k, self.b.start).sqz(), stage[2])

    def _multiply(self, into: Any, stage: tuple[Any, Any, Any], p: Any) -> None:
        operands = self.a.load(stage[0], p, self.groups), self.b.load(stage[1], 0, 1)
        multiply(self.a.major, self.b.major)(into, *operands)

    def _factors(self) -> tuple[Any, list[Any]]:
        """Registers for the scales of a step: of the rows (None: they have none), and of blocks."""
        down = mma.frag("f32", self._rows, init=0.0) if self.a.scale.kind == "steps" else None
        return down, [var(0.0) for x in (self.a, self.b) if x.scale.kind == "blocks"]

    def _read(self, k: Any, down: Any, blocks: list[Any]) -> None:
        """Read the scales of step ``k``."""
        if down is not None:
            source = self.a.scale
            for p in parallel(self.groups, level="group-4"):
                row = self.a.start + p * self._rows
                mma.load(
                    source.array.view(1, 1, self._rows).from_(source.of(self.a.scales), k, row).sqz(), into=down
                )
        for x, operand in zip(blocks, [o for o in (self.a, self.b) if o.scale.kind == "blocks"], strict=True):
            x.set(operand.factor(k))

    def _add(self, mc: Any, part: Any, down: Any, blocks: list[Any], stage: tuple[Any, Any, Any]) -> None:
        """Add the products of a step times its scales, in f32."""
        for i, j in apply(mc):
            factors = [*([] if down is None else [down[i]]), *blocks]
            if stage[2] is not None:
                factors.append(stage[2][j])
            mc[i, j] = promoted(mc[i, j], part[i, j], factors)
