"""Batches that share an operand, as one product: with the same rhs their rows are those of one long lhs.

[16, 1, 4096] by [4096, 4096] is a product of 16 rows, not 16 products that each read the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilemma.launch import MAX_EXTENT
from tilemma.ops.epilogue import BLOCK
from tilemma.ops.operand_layouts import transposed
from tilemma.ops.problem import Scaling
from tilemma.runtime.arrays import ArrayRef


@dataclass(frozen=True, slots=True)
class Operands:
    """lhs [.., M, K], rhs [.., K, N], result and addend [.., M, N], and scales [.., steps, extent], all with the
    batch of the result."""

    lhs: ArrayRef
    rhs: ArrayRef
    out: ArrayRef
    c: ArrayRef | None
    left: Scaling
    right: Scaling

    def without(self, dim: int) -> Operands:
        """The same without a batch dimension of one product."""
        lhs, rhs, out = (_dropped(x, dim) for x in (self.lhs, self.rhs, self.out))
        left, right = (
            x if x.array is None else replace(x, array=_dropped(x.array, dim)) for x in (self.left, self.right)
        )
        return Operands(lhs, rhs, out, None if self.c is None else _dropped(self.c, dim), left, right)

    def exchanged(self) -> Operands:
        """Those of the transposed product."""
        c = None if self.c is None else transposed(self.c)
        return Operands(transposed(self.rhs), transposed(self.lhs), transposed(self.out), c, self.right, self.left)


def merged(x: Operands, bias: str) -> Operands:
    """``x`` without the batch dimensions in which one operand is the same and the other, the addend and the result
    continue their rows; ``bias`` is along "columns" or "rows", or "".

    Elements of the result keep their places, and are computed as before.
    """
    for dim in reversed(range(x.out.rank - 2)):
        x = x.without(dim) if x.out.shape[dim] == 1 else x
    x = x if bias == "rows" else _by_rows(x)
    return x if bias == "columns" else _by_rows(x.exchanged()).exchanged()


def _by_rows(x: Operands) -> Operands:
    for dim in reversed(range(x.out.rank - 2)):
        x = _without(x, dim) or x
    return x


def _without(x: Operands, dim: int) -> Operands | None:
    """``x`` without the batch dimension ``dim``, of which M becomes a multiple; None where that is not so."""
    rows = x.lhs.shape[-2] * x.out.shape[dim]
    if x.rhs.strides[dim] != 0 or x.lhs.strides[dim] == 0 or rows > MAX_EXTENT:
        return None
    lhs, out = _longer(x.lhs, dim, -2), _longer(x.out, dim, -2)
    c = None if x.c is None else _longer(x.c, dim, -2)
    left, right = _longer_scale(x.left, dim, x.lhs.shape[-2]), _same_scale(x.right, dim)
    if lhs is None or out is None or left is None or right is None or (c is None) != (x.c is None):
        return None
    return Operands(lhs, _dropped(x.rhs, dim), out, c, left, right)


def _longer(x: ArrayRef, dim: int, axis: int) -> ArrayRef | None:
    """``x`` whose ``axis`` goes through dimension ``dim`` too; None where its steps do not continue."""
    extent, step = x.shape[axis], x.strides[dim]
    if extent > 1 and step != extent * x.strides[axis]:
        return None
    shape, strides = list(x.shape), list(x.strides)
    shape[axis] *= x.shape[dim]
    strides[axis] = step if extent == 1 else strides[axis]
    return _dropped(x._replace(shape=tuple(shape), strides=tuple(strides)), dim)


def _longer_scale(scale: Scaling, dim: int, rows: int) -> Scaling | None:
    """The scales of rows that become more."""
    if scale.array is None or scale.kind == "tensor":
        return _same_scale(scale, dim)
    if scale.kind == "blocks" and rows % BLOCK:
        return None
    array = _longer(scale.array, dim, -1)
    return None if array is None else replace(scale, array=array)


def _same_scale(scale: Scaling, dim: int) -> Scaling | None:
    """Scales that do not change along ``dim``."""
    if scale.array is None:
        return scale
    return None if scale.array.strides[dim] else replace(scale, array=_dropped(scale.array, dim))


def _dropped(x: ArrayRef, dim: int) -> ArrayRef:
    shape, strides = x.shape[:dim] + x.shape[dim + 1 :], x.strides[:dim] + x.strides[dim + 1 :]
    return x._replace(shape=shape, strides=strides)
