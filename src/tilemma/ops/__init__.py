"""Library kernels, written in the public language only."""

from __future__ import annotations

from tilemma.ops.plans import Report
from tilemma.ops.product import matmul, plan

__all__ = ["Report", "matmul", "plan"]
