"""The main loops of a consumer warpgroup of the pipelined kernel: the sum of its rows of a tile over K."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilemma import apply, foreach, mma, select, trigger, var, wait
from tilemma.ops.epilogue import Place
from tilemma.ops.ring import Operand, PipelineState
from tilemma.ops.sums import promoted

# The widest part of a tile whose products are summed apart: registers hold no more beside the sums.
WIDEST = 128


@dataclass(frozen=True)
class MainLoop:
    """Part ``part`` of ``rows`` rows, at ``place``, of a tile of ``columns``, from the slots of the ring from
    ``used`` on.

    ``shares``: slots are released to all blocks of the cluster.  ``shift``: where the scales of the tile's rows
    and columns start in a slot.  ``back``: 1 where the steps go from the last to the first, None where they never
    do.  ``parts``: the tile's columns are summed in so many parts; the first comes with ``full``, the others with
    ``more``.  ``prompt``: a slot is released when it has been multiplied, not after the next one is started.
    """

    a: Operand
    b: Operand
    full: Any
    more: list[Any]
    empty: Any
    used: PipelineState
    part: Any
    place: Place
    acc: str
    zero: Any
    multiply: Any
    rows: int
    columns: int
    shares: bool
    shift: Any
    back: Any
    parts: int = 1
    prompt: bool = False

    def plain(self, steps: Any, begin: Any, end: Any) -> Any:
        """One sum, whose multiplications follow each other without a wait for their results."""
        mc = mma.fill(self.zero, self.acc, fast=True)
        for _ in foreach(steps, start=begin, stop=end):
            wait(self.full[self.used.slot])
            self._multiply(mc)
            mma.commit()
            if self.prompt:
                mma.wait(0)
            trigger(self.empty[self.used.slot], cluster=self.shares)
            self.used.advance()
        return [mc]

    def promoted(self, steps: Any, begin: Any, end: Any) -> Any:
        """The products of each step are summed apart, and added in f32.

        Scales that do not come with the tile are read from memory, a step ahead.
        """
        columns = self.columns // self.parts
        sums = [mma.frag("f32", self.rows, columns, init=0.0) for _ in range(self.parts)]
        down, ahead = mma.frag("f32", self.rows), mma.frag("f32", self.rows)
        numbers = [[var(1.0) for _ in self._blocks(x)] for x in range(self.parts)]
        self._read(self._step(begin, begin, end), ahead, numbers)
        for k in foreach(steps, start=begin, stop=end):
            blocks = [[var(x) for x in each] for each in numbers]
            if self._by_rows and self.a.scales is None:
                down.set(ahead)
            self._read(self._step(k + 1, begin, end), ahead, numbers)
            slot = self.used.slot
            wait(self.full[slot])
            for h, mc in enumerate(sums):
                if h:
                    wait(self.more[h - 1][slot])
                part = mma.fill(self.zero, self.acc, fast=True)
                self._multiply(part, h)
                if h == 0:
                    self._from_ring(slot, self._step(k, begin, end), down, blocks)
                last = h == self.parts - 1
                if last and self.b.scale.kind != "steps":
                    mma.wait(0)
                    trigger(self.empty[slot], cluster=self.shares)
                for i, j in apply(mc):
                    factors = [down[i], *blocks[h]] if self._by_rows else list(blocks[h])
                    if self.b.scale.kind == "steps":
                        factors.append(self.b.scales[slot][self.shift[1] + h * columns + j])
                    mc[i, j] = promoted(mc[i, j], part[i, j], factors)
                if last and self.b.scale.kind == "steps":
                    trigger(self.empty[slot], cluster=self.shares)
            self.used.advance()
        return sums

    def _from_ring(self, slot: Any, k: Any, down: Any, blocks: list[list[Any]]) -> None:
        """Read the scales of step ``k`` that have come with its tiles."""
        if self.a.scale.kind == "steps" and self.a.scales is not None:
            first = self.part * self.rows + self.shift[0]
            mma.load(self.a.scales[slot].view(self.rows).from_(first), into=down)
        # Of each operand: where its tile starts, and this warpgroup's share of the tile.
        starts = (
            (self.a, self.place.row - self.part * self.rows, self.part * self.rows, 0),
            (self.b, self.place.column, 0, self.columns // self.parts),
        )
        for operand, start, mine, width in starts:
            if operand.scale.kind == "blocks" and operand.scales is not None:
                for h, found in enumerate(blocks):
                    found.append(var(operand.block_scale(slot, start, start + mine + h * width, k)))

    @property
    def _by_rows(self) -> bool:
        """Whether each row has its scale in each step."""
        return self.a.scale.kind == "steps"

    def _read(self, k: Any, rows: Any, blocks: list[list[Any]]) -> None:
        """Read the scales of step ``k``: those of the rows into the vector ``rows``, those of blocks into
        variables."""
        if self._by_rows and self.a.scales is None:
            batch = self.place.left if self.a.scale.batched else 0
            mma.load(self.a.scale.array.view(1, 1, self.rows).from_(batch, k, self.place.row).sqz(), into=rows)
        for part, numbers in enumerate(blocks):
            for scale, x in zip(self._blocks(part), numbers, strict=True):
                x.set(scale(k))

    def _step(self, place: Any, begin: Any, end: Any) -> Any:
        """The step that comes at ``place`` of those from ``begin`` to ``end``."""
        return place if self.back is None else select(self.back == 1, begin + end - 1 - place, place)

    def _multiply(self, into: Any, part: int = 0) -> None:
        """Issue the products of the next slot, for part ``part`` of the columns."""
        slot = self.used.slot
        left = self.a.load(slot, self.part, self.rows)
        self.multiply(into, left, self.b.load(slot, part, self.columns // self.parts))

    def _blocks(self, part: int) -> list[Any]:
        """For each operand with scales of blocks, that of part ``part`` of the tile as a function of the step."""
        at = self.place.offset_columns(part * (self.columns // self.parts)) if part else self.place
        places = ((self.a, at.left, at.row), (self.b, at.right, at.column))
        return [
            lambda k, s=x.scale, batch=batch, index=index: s.at(batch, k, index)
            for x, batch, index in places
            if x.scale.kind == "blocks" and x.scales is None
        ]
