"""Problems with arrays on a GPU that are never accessed, for tests of plans."""

from __future__ import annotations

from typing import Any

from tilemma import dtypes
from tilemma.ops import arguments
from tilemma.ops.arguments import GROUPED, Call
from tilemma.runtime.arrays import ArrayRef


def problem(
    m: int, n: int, k: int, dtype: str = "f16", row_a: int = 0, row_b: int = 0, row_c: int = 0, layout: str = "nt"
) -> Any:
    """A product of matrices on a GPU that are never accessed.

    B is a transposed [N, K], or stored as [K, N] with "n" as the second letter of ``layout``; with "t" as the
    first, A is a transposed [K, M].
    """
    t = dtypes.dtype(dtype)

    def array(where: int, shape: tuple[int, int], strides: tuple[int, int]) -> ArrayRef:
        return ArrayRef(where << 40, shape, strides, t, ("cuda", 0), None, "torch")

    a = array(1, (m, k), (row_a or k, 1) if layout[0] == "n" else (1, row_a or m))
    b = array(2, (k, n), (1, row_b or k) if layout[1] == "t" else (row_b or n, 1))
    out = array(3, (m, n), (row_c or n, 1))
    return arguments.problem(Call(a, b), out, made=True)


def grouped(groups: int, tokens: int, n: int, k: int) -> Any:
    """A bf16 product of groups on a GPU, K contiguous."""
    bf16 = dtypes.dtype("bf16")
    a = ArrayRef(1 << 40, (tokens, k), (k, 1), bf16, ("cuda", 0), None, "torch")
    b = ArrayRef(2 << 40, (groups, k, n), (n * k, 1, k), bf16, ("cuda", 0), None, "torch")
    out = ArrayRef(3 << 40, (tokens, n), (n, 1), bf16, ("cuda", 0), None, "torch")
    offsets = ArrayRef(4 << 40, (groups,), (1,), dtypes.dtype("s32"), ("cuda", 0), None, "torch")
    return arguments.problem(Call(a, b, offsets=offsets, rules=GROUPED), out, made=True)
