"""Library kernels, written in the public language only."""

from __future__ import annotations

from tilemma.ops.convolution import conv2d
from tilemma.ops.gated import gated_matmul
from tilemma.ops.mixed import mixed_matmul
from tilemma.ops.plan_tables import load_plans, save_plans
from tilemma.ops.plans import Report
from tilemma.ops.product import grouped_matmul, matmul, plan, scaled_matmul
from tilemma.ops.sparse import sparse_matmul

__all__ = [
    "Report", "conv2d", "gated_matmul", "grouped_matmul", "load_plans", "matmul", "mixed_matmul", "plan",
    "save_plans", "scaled_matmul", "sparse_matmul",
]  # fmt: skip
