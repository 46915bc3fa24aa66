"""The values of predefined registers (PTX ISA, "Special Registers")."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tilemma.machine.scheduler import Machine
    from tilemma.machine.state import Cta

# Those whose values differ between the CTAs of a grid; some have three dimensions.
OF_ONE_CTA: dict[str, Callable[[Any], Any]] = {
    "%ctaid": lambda cta: cta.index,
    "%clusterid": lambda cta: cta.cluster.index,
    "%cluster_ctaid": lambda cta: _in_cluster(cta.machine.cluster_shape, cta.rank),
    "%smid": lambda cta: cta.cluster.serial % 132,
    "%cluster_ctarank": lambda cta: cta.rank,
}


def _in_cluster(shape: tuple[int, int, int], rank: int) -> tuple[int, int, int]:
    return rank % shape[0], rank // shape[0] % shape[1], rank // (shape[0] * shape[1])


def special_value(machine: Machine, name: str, cta: Cta) -> Any:
    """The value of a predefined register: broadcastable to [warps, 32]."""
    root, _, dimension = name.partition(".")
    if root in OF_ONE_CTA:
        value = OF_ONE_CTA[root](cta)
        return value["xyz".find(dimension)] if isinstance(value, tuple) else value
    t = np.arange(32 * machine.warps_per_cta).reshape(-1, 32)
    bx, by, bz = machine.block
    cx, cy, cz = machine.cluster_shape
    axis = "xyz".find(dimension) if dimension else 0
    lane = t % 32
    cluster_grid = [g // c for g, c in zip(machine.grid, machine.cluster_shape, strict=True)]
    one = np.uint64(1)
    bit = one << lane.astype(np.uint64)
    values: dict[str, Any] = {
        "%tid": (t % bx, t // bx % by, t // (bx * by)),
        "%ntid": (bx, by, bz),
        "%nctaid": machine.grid,
        "%nclusterid": cluster_grid,
        "%cluster_nctaid": (cx, cy, cz),
    }
    if root in values:
        return values[root][axis]
    single: dict[str, Any] = {
        "%laneid": lane,
        "%warpid": t // 32,
        "%nwarpid": machine.warps_per_cta,
        "%nsmid": 132,
        "%gridid": 1,
        "%cluster_nctarank": cx * cy * cz,
        "%is_explicit_cluster": int(cx * cy * cz > 1),
        "%dynamic_smem_size": machine.dynamic_shared,
        "%total_smem_size": machine.shared_bytes,
        "%aggr_smem_size": machine.shared_base + machine.shared_bytes,
        "%reserved_smem_offset_begin": 0,
        "%envreg1": machine.workspace >> 32,
        "%envreg2": machine.workspace & 0xFFFFFFFF,
        "%lanemask_eq": bit,
        "%lanemask_lt": bit - one,
        "%lanemask_le": bit + bit - one,
        "%lanemask_gt": ~(bit + bit - one) & np.uint64(0xFFFFFFFF),
        "%lanemask_ge": ~(bit - one) & np.uint64(0xFFFFFFFF),
    }
    return single.get(name, 0)
