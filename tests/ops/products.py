"""Problems with arrays on a GPU that are never accessed, for tests of plans."""

from __future__ import annotations

from typing import Any

from tilemma import dtypes
from tilemma.ops import arguments
from tilemma.ops.arguments import Call
from tilemma.runtime.arrays import ArrayRef


def problem(m: int, n: int, k: int, dtype: str = "f16", row_a: int = 0, row_b: int = 0, row_c: int = 0) -> Any:
    """A product of matrices on a GPU that are never accessed; B is a transposed [N, K]."""
    t = dtypes.dtype(dtype)

    def array(where: int, shape: tuple[int, int], strides: tuple[int, int]) -> ArrayRef:
        return ArrayRef(where << 40, shape, strides, t, ("cuda", 0), None, "torch")

    a = array(1, (m, k), (row_a or k, 1))
    b = array(2, (k, n), (1, row_b or k))
    out = array(3, (m, n), (row_c or n, 1))
    return arguments.problem(Call(a, b), out, made=True)
