"""Wave quantisation: how many rounds the blocks of a launch take, and how full the last one is.

Blocks that do not fit on the multiprocessors at once wait for a place: 140 blocks on 132 multiprocessors, each
with room for one, take as long as 264.  Persistent blocks compute several tiles each, with the same effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any

from tilemma.compiler import Compiled
from tilemma.errors import ToolError
from tilemma.ir import tile as t
from tilemma.ir.expr import Expr, mul
from tilemma.ir.types import BLOCK, CLUSTER
from tilemma.ir.usage import size
from tilemma.launch import Launch, evaluate
from tilemma.records import record
from tilemma.targets.ptx.passes.persistent_grid import persistent_tiles
from tilemma.targets.ptx.passes.pipeline_model import MULTIPROCESSORS, resident_blocks, shared_of_each
from tilemma.targets.ptx.target import Target


@record
class Rounds:
    """The ``tiles`` of a launch, of which ``at_once`` are computed at a time: a block each, or in a loop of
    ``persistent`` blocks."""

    entry: str
    tiles: int
    at_once: int
    persistent: bool

    @property
    def rounds(self) -> int:
        return -(-self.tiles // self.at_once)

    @property
    def last(self) -> int:
        """The tiles of the last round."""
        return self.tiles - (self.rounds - 1) * self.at_once

    @property
    def used(self) -> float:
        """The share of the blocks' time in which they have a tile."""
        return self.tiles / (self.rounds * self.at_once)

    def __str__(self) -> str:
        kind = "persistent blocks" if self.persistent else "blocks"
        at = f"of {self.at_once} {kind} on {MULTIPROCESSORS} multiprocessors"
        tiles = "1 tile is" if self.tiles == 1 else f"{self.tiles} tiles are"
        return f"{tiles} {_counted(self.rounds)} {at}; last round: {self.last} of {self.at_once} blocks"

    def to_json(self) -> dict[str, Any]:
        facts = {name: getattr(self, name) for name in ("entry", "tiles", "at_once", "persistent")}
        return {**facts, "rounds": self.rounds, "last": self.last, "used": round(self.used, 4), "text": str(self)}


def _counted(n: int) -> str:
    return "1 round" if n == 1 else f"{n} rounds"


def rounds(compiled: Compiled, names: Mapping[str, int]) -> list[Rounds]:
    """The rounds of each launch where dimensions and integer parameters have the values ``names``; without those
    launches whose grid or tiles depend on more, or have none."""
    levels = [op for op in compiled.kernel.body if isinstance(op, t.Parallel)]
    launches = compiled.launches
    if len(levels) != len(launches):
        return []
    found = [_of_launch(compiled, op, x, names) for op, x in zip(levels, launches, strict=True)]
    return [x for x in found if x is not None]


def _of_launch(compiled: Compiled, level: t.Parallel, launch: Launch, names: Mapping[str, int]) -> Rounds | None:
    together = prod(launch.cluster or (1,))
    loop = persistent_tiles(replace(compiled.kernel, body=(level,)))
    try:
        if loop is None:
            tiles = prod(evaluate(x, names) for x in launch.grid)
            at_once = MULTIPROCESSORS * resident(compiled, launch) // together * together
        else:
            tiles, at_once = together * max(evaluate(size(e), names) for e in loop[1]), together * loop[0]
    except (KeyError, ValueError):  # of a value that is known only when the kernel runs
        return None
    return Rounds(launch.entry, tiles, at_once, loop is not None) if tiles > 0 and at_once > 0 else None


def resident(compiled: Compiled, launch: Launch) -> int:
    """The blocks of ``launch`` that a multiprocessor of an H100 or H200 holds at once.  Without ptxas the number
    of registers is not known, and does not count."""
    threads, target = prod(launch.block), Target.of(compiled.arch)
    room = min(target.max_threads_per_sm // threads, target.max_blocks_per_sm)
    with suppress(ToolError):
        room = min(room, resident_blocks(compiled.arch, max(1, compiled.assembled().registers), threads))
    return max(n for n in range(1, max(room, 1) + 1) if n == 1 or shared_of_each(n) >= launch.shared)


def number_of_tiles(kernel: t.Kernel, names: Mapping[str, int]) -> int | None:
    """The tiles of the first launch of a kernel as it is written: its blocks, or those of the loops of its
    persistent blocks; None where they depend on more than ``names``."""
    level = next((op for op in kernel.body if isinstance(op, t.Parallel)), None)
    if level is None:
        return None
    loop = persistent_tiles(replace(kernel, body=(level,)))
    count: Expr = prod_of(level) if loop is None else loop[1][0]
    try:
        return evaluate(size(count), names)
    except (KeyError, ValueError):
        return None


def prod_of(level: t.Parallel) -> Expr:
    """The number of blocks of a grid: the extents of the levels of clusters and blocks."""
    found: Expr = mul(1, 1)
    op: t.Op | None = level
    while isinstance(op, t.Parallel) and op.level in (None, CLUSTER, BLOCK):
        for index in op.indices:
            found = mul(found, index.extent)
        inner = [x for x in op.body if isinstance(x, t.Parallel)]
        op = inner[0] if op.level == CLUSTER and inner else None
    return found
