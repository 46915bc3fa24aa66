"""A product in the form that plans and kernels take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tilemma.runtime.arrays import ArrayRef


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The operations on alpha * (a @ b) before it is stored, as far as code is specialised on them.

    ``scaled``: alpha is not 1.  ``addend``: beta * c is added, read from `c` or from the result itself.
    ``bias``: a number for each column, or for each row.
    """

    scaled: bool = False
    addend: Literal["", "c", "out"] = ""
    bias: Literal["", "columns", "rows"] = ""
    activation: str = ""

    @property
    def plain(self) -> bool:
        return self == Epilogue()

    def swapped(self) -> Epilogue:
        """The same for the transposed product."""
        other: dict[str, Literal["", "columns", "rows"]] = {"": "", "columns": "rows", "rows": "columns"}
        return Epilogue(self.scaled, self.addend, other[self.bias], self.activation)


@dataclass(frozen=True, slots=True)
class Scaling:
    """The scales of an operand: ``kind`` is that of `epilogue.Scale`, ``array`` is [batch, steps, extent], or
    [batch, extent, steps] if ``turned``."""

    kind: Literal["", "tensor", "vector", "steps", "blocks"] = ""
    array: ArrayRef | None = None
    turned: bool = False

    @property
    def final(self) -> bool:
        return self.kind in ("tensor", "vector")

    @property
    def stepwise(self) -> bool:
        return self.kind in ("steps", "blocks")


UNSCALED = Scaling()
# Bytes into lhs, rhs, c, out, and the scales of lhs and rhs.
Offsets = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Problem:
    """A checked call in the kernels' form: out[b] = f(lhs[b] x rhs[b]) for b < batch.

    ``lhs`` is [B, M, K], or [B, K, M] where ``lhs_major`` is "col"; ``rhs`` is [B, N, K], or [B, K, N] where
    ``rhs_major`` is "col"; ``out`` and ``c`` are [B, M, N].  A column-major result is computed as the
    transposed product (``swapped``).  ``outer`` are further batches: byte offsets of (lhs, rhs, c, out, scales
    of lhs, scales of rhs) for each launch.  ``left`` and ``right`` are the scales of the operands.  ``promote``:
    the products of each 128 of K are summed apart, and added in f32.  ``grouped``: the "rows" of lhs and out
    (batch 1), or the "columns" of out (rows of rhs), are divided into groups at ``offsets``; group e is
    multiplied by matrix e of the other operand.
    """

    lhs: ArrayRef
    rhs: ArrayRef
    out: ArrayRef
    c: ArrayRef | None
    bias: ArrayRef | None
    lhs_major: Literal["row", "col"]
    rhs_major: Literal["row", "col"]
    alpha: float
    beta: float
    epilogue: Epilogue
    swapped: bool
    outer: tuple[Offsets, ...]
    left: Scaling = UNSCALED
    right: Scaling = UNSCALED
    promote: bool = False
    offsets: ArrayRef | None = None
    grouped: Literal["", "rows", "columns"] = ""

    @property
    def acc(self) -> str:
        """The accumulator's type."""
        if self.lhs.dtype.name == "f64":
            return "f64"
        return "s32" if self.lhs.dtype.is_integer else "f32"

    @property
    def sums(self) -> str:
        """The type of the sums over K, which parts of them are kept in: f32 where products are promoted."""
        return "f32" if self.promote else self.acc

    @property
    def on_tensor_cores(self) -> bool:
        """Whether wgmma multiplies the type: it does not for exact f32 and for f64."""
        return self.lhs.dtype.name not in ("f32", "f64")

    @property
    def apart(self) -> tuple[float, float]:
        """The shares of lhs and of rhs that a product of the batch has to itself: 1, or a part of one that all
        read."""
        left, right = (1.0 if x.strides[0] else 1.0 / max(self.batch, 1) for x in (self.lhs, self.rhs))
        return left, right

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return self.out.is_empty or (self.offsets is not None and self.offsets.is_empty)

    @property
    def plain(self) -> bool:
        """Whether the accumulator is stored as it is."""
        return self.epilogue.plain and not self.left.final and not self.right.final

    @property
    def batch(self) -> int:
        return self.out.shape[0]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(M, N, K) of the product that is computed."""
        k = self.lhs.shape[2 if self.lhs_major == "row" else 1]
        return self.out.shape[1], self.out.shape[2], k


def flops(problem: Problem) -> float:
    """Multiplications and additions of the product."""
    m, n, k = problem.shape
    return 2.0 * m * n * k * problem.batch * max(len(problem.outer), 1)
