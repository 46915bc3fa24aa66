"""Library kernels, written in the public language only."""

from __future__ import annotations

from tilemma.ops.product import matmul

__all__ = ["matmul"]
