"""Library kernels, written in the public language only."""

from __future__ import annotations

from tilemma.ops.plans import Report
from tilemma.ops.product import grouped_matmul, matmul, plan, scaled_matmul

__all__ = ["Report", "grouped_matmul", "matmul", "plan", "scaled_matmul"]
