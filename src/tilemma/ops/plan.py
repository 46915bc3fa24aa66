"""How a product is computed: tile, stages, raster and the rest, chosen by a small written model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilemma.ops.arguments import Problem


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to compute a product.

    ``kernel``: "tiles" (any strides, every target) or "pipelined" (sm_90a, operands that TMA can read).
    ``tile`` is (M, N, K) of a block's step; ``groups`` warpgroups multiply, each tile[0] / groups rows, fed
    through ``stages`` slots.  ``raster``: tile rows in a group that blocks walk together.  ``grid``: blocks that
    stay.  ``split``: parts of K, added in order afterwards.  ``store``: "tma", through shared memory, or
    "direct".  ``swap``: the transposed product is computed.
    """

    kernel: str
    tile: tuple[int, int, int]
    groups: int
    stages: int = 1
    raster: int = 8
    grid: int = 0
    split: int = 1
    store: str = "direct"
    swap: bool = False

    @property
    def constants(self) -> dict[str, Any]:
        """The compile-time values of the kernel."""
        m, n, k = self.tile
        values = {"WARP_M": m // self.groups, "TILE_N": n, "TILE_K": k, "GROUPS": self.groups, "RASTER": self.raster}
        if self.kernel == "pipelined":
            values |= {"STAGES": self.stages, "GRID": self.grid, "SPLIT": self.split, "STORE": self.store}
        return values


def _reach(extent: int, largest: int) -> int:
    """The smallest multiple of 64 that holds ``extent``, up to ``largest``."""
    return min(-(-max(extent, 1) // 64) * 64, largest)


def choose(problem: Problem) -> Plan:
    """The plan for ``problem`` on its device."""
    m, n, k = problem.shape
    if problem.out.device[0] == "cpu":
        # The reference works tile by tile: few large ones are fastest.
        return Plan("tiles", (_reach(m, 512), _reach(n, 512), _reach(k, 512)), 1)
    return Plan("tiles", (128, 128, 64), 2)
