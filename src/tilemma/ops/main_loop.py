"""The main loops of a consumer warpgroup of the pipelined kernel: the sum of its rows of a tile over K."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilemma import apply, foreach, if_, mma, select, trigger, var, wait
from tilemma.ops.epilogue import Place
from tilemma.ops.ring import Operand, PipelineState
from tilemma.ops.sums import promoted


@dataclass(frozen=True)
class MainLoop:
    """Part ``part`` of ``rows`` rows, at ``place``, of a tile of ``columns``, from the slots of the ring from
    ``used`` on.

    ``shares``: slots are released to all blocks of the cluster.  ``shift``: where the scales of the tile's columns
    start in a slot.  ``back``: 1 where the steps go from the last to the first, None where they never do.
    """

    a: Operand
    b: Operand
    full: Any
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

    def plain(self, steps: Any, begin: Any, end: Any) -> Any:
        """One sum, whose multiplications follow each other without a wait for their results."""
        mc = mma.fill(self.zero, self.acc, fast=True)
        for _ in foreach(steps, start=begin, stop=end):
            wait(self.full[self.used.slot])
            self._multiply(mc)
            mma.commit()
            trigger(self.empty[self.used.slot], cluster=self.shares)
            self.used.advance()
        return mc

    def promoted(self, steps: Any, begin: Any, end: Any) -> Any:
        """The products of each step are summed apart, and added in f32.

        The scales of the rows and of blocks are read from memory, a step ahead; those of the columns come with the
        tile.
        """
        mc = mma.frag("f32", self.rows, self.columns, init=0.0)
        down, ahead = mma.frag("f32", self.rows), mma.frag("f32", self.rows)
        numbers = [var(1.0) for _ in self._blocks()]
        self._read(self._step(begin, begin, end), ahead, numbers)
        for k in foreach(steps, start=begin, stop=end):
            blocks = [var(x) for x in numbers]
            if self._by_rows:
                down.set(ahead)
            self._read(self._step(k + 1, begin, end), ahead, numbers)
            wait(self.full[self.used.slot])
            part = mma.fill(self.zero, self.acc, fast=True)
            self._multiply(part)
            slot = self.used.slot
            for i, j in apply(mc):
                factors = [down[i], *blocks] if self._by_rows else list(blocks)
                if self.b.scales is not None:
                    factors.append(self.b.scales[slot][self.shift + j])
                mc[i, j] = promoted(mc[i, j], part[i, j], factors)
            trigger(self.empty[slot], cluster=self.shares)
            self.used.advance()
        return mc

    def overlapped(self, begin: Any, end: Any) -> Any:
        """As `promoted`, for an even number of steps: those of one step are added while the next is multiplied.

        The columns have no scales of their own: registers hold no more.
        """
        mc = mma.frag("f32", self.rows, self.columns, init=0.0)
        sums = [mma.frag(self.acc, self.rows, self.columns) for _ in range(2)]
        down = [mma.frag("f32", self.rows) for _ in range(2)]
        blocks = [[var(1.0) for _ in self._blocks()] for _ in range(2)]

        def prepare(which: int, place: Any) -> None:
            self._read(self._step(place, begin, end), down[which], blocks[which])
            wait(self.full[self.used.slot])

        def start(which: int) -> None:
            mma.fill(sums[which], self.zero, fast=True)
            self._multiply(sums[which])
            self.used.advance()

        def finish() -> None:
            # While two batches are in flight, ptxas lets no instruction read the sums of either: it serialises
            # the multiplies instead (C7514).
            mma.wait(0)
            trigger(self.empty[self.used.before], cluster=self.shares)

        def add(which: int) -> None:
            for i, j in apply(mc):
                factors = [down[which][i], *blocks[which]] if self._by_rows else blocks[which]
                mc[i, j] = promoted(mc[i, j], sums[which][i, j], factors)

        with if_(begin < end):
            prepare(0, begin)
            start(0)
            pairs = (end - begin) // 2
            for pair in foreach(pairs - 1):
                for x in range(2):
                    prepare(1 - x, begin + 2 * pair + 1 + x)
                    finish()
                    start(1 - x)
                    add(x)
            prepare(1, begin + 2 * pairs - 1)
            finish()
            start(1)
            add(0)
            finish()
            add(1)
        return mc

    @property
    def _by_rows(self) -> bool:
        """Whether each row has its scale in each step."""
        return self.a.scale.kind == "steps"

    def _read(self, k: Any, rows: Any, blocks: list[Any]) -> None:
        """Read the scales of step ``k``: those of the rows into the vector ``rows``, those of blocks into
        variables."""
        if self._by_rows:
            batch = self.place.left if self.a.scale.batched else 0
            mma.load(self.a.scale.array.view(1, 1, self.rows).from_(batch, k, self.place.row).sqz(), into=rows)
        for scale, x in zip(self._blocks(), blocks, strict=True):
            x.set(scale(k))

    def _step(self, place: Any, begin: Any, end: Any) -> Any:
        """The step that comes at ``place`` of those from ``begin`` to ``end``."""
        return place if self.back is None else select(self.back == 1, begin + end - 1 - place, place)

    def _multiply(self, into: Any) -> None:
        """Issue the products of the next slot."""
        slot = self.used.slot
        self.multiply(into, self.a.load(slot, self.part, self.rows), self.b.load(slot, 0, self.columns))

    def _blocks(self) -> list[Any]:
        """For each operand with scales of blocks, that of the tile as a function of the step."""
        at = self.place
        places = ((self.a.scale, at.left, at.row), (self.b.scale, at.right, at.column))
        return [
            lambda k, s=s, batch=batch, index=index: s.at(batch, k, index)
            for s, batch, index in places
            if s.kind == "blocks"
        ]
