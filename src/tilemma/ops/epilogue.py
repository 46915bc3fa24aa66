"""Epilogue fusion for the products, in the Python language: scales, alpha, addend, bias, activation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tilemma as tm

# Elements along K, and along N or M, that one scale of a block stands for.
BLOCK = 128


@dataclass(frozen=True, slots=True)
class Place:
    """The tile that a task computes.

    ``batch`` is that of the result and of the addend; ``left`` and ``right`` those of the operands and of their
    scales, ``group`` that of the bias.  The tile is rows ``row``.. and columns ``column``.. of the result, and
    rows from ``rows`` on or columns from ``columns`` on are not the task's (None: the edge of the array).
    """

    batch: Any
    left: Any
    right: Any
    group: Any
    row: Any
    column: Any
    rows: Any = None
    columns: Any = None

    def offset_rows(self, rows: Any) -> Place:
        """The same from ``rows`` further on."""
        left = None if self.rows is None else self.rows - rows
        return Place(
            self.batch, self.left, self.right, self.group, self.row + rows, self.column, left, self.columns
        )

    def offset_columns(self, columns: Any) -> Place:
        """The same from ``columns`` further on."""
        left = None if self.columns is None else self.columns - columns
        return Place(
            self.batch, self.left, self.right, self.group, self.row, self.column + columns, self.rows, left
        )


@dataclass(frozen=True, slots=True)
class Scale:
    """The scales of one operand: an array [batch, steps, extent], or where TMA brings them [batch, extent, steps].

    ``kind``: "tensor" (one number), "vector" (one for each row of lhs, or column of rhs), "steps" (one for each of
    these and each `BLOCK` of K), "blocks" (one for `BLOCK` of them and `BLOCK` of K), or "" for none.
    """

    array: Any
    kind: str
    batched: bool

    @property
    def final(self) -> bool:
        """Whether the scale is applied once, after the last step."""
        return self.kind in ("tensor", "vector")

    def of(self, batch: Any) -> Any:
        """The first index of the array for ``batch``."""
        return batch if self.batched else 0

    def at(self, batch: Any, step: Any, index: Any) -> Any:
        """The scale of row or column ``index`` in step ``step``."""
        batch = self.of(batch)
        if self.kind == "tensor":
            return self.array[batch, 0, 0]
        if self.kind == "vector":
            return self.array[batch, 0, index]
        return self.array[batch, step, index // BLOCK if self.kind == "blocks" else index]


@dataclass(slots=True)
class PreloadedOperands:
    """Inputs of the epilogue that are read before it: functions of the row (``left``, the scale of lhs) or the
    column (``right``, the scale of rhs, and ``bias``) of the tile."""

    left: Any = None
    right: Any = None
    bias: Any = None

    def offset(self, columns: int) -> PreloadedOperands:
        """The same for the columns from ``columns`` on."""
        if not columns:
            return self
        right, bias = (None if f is None else (lambda j, f=f: f(columns + j)) for f in (self.right, self.bias))
        return PreloadedOperands(self.left, right, bias)


@dataclass(frozen=True, slots=True)
class EpilogueFunction:
    """activation(alpha * left * right * x + beta * c + bias) of each element x of an accumulator.

    ``scale``: alpha is not 1.  ``addend``: there is beta * c.  ``along``: the bias has an element for each of
    "columns" or "rows".
    """

    alpha: Any
    beta: Any
    c: Any
    bias: Any
    left: Scale
    right: Scale
    scale: bool
    addend: bool
    along: str
    activation: str
    grouped_bias: bool = False

    @property
    def plain(self) -> bool:
        return not (
            self.scale or self.addend or self.along or self.activation or self.left.final or self.right.final
        )

    def of(self, x: Any, at: Place, i: Any, j: Any, preloaded: PreloadedOperands | None = None) -> Any:
        """The value for the element ``x`` at (i, j) of the tile ``at``.

        ``preloaded``: the operands that have been read already.  Beyond the edges the arrays read as zero, and the
        result is never stored.
        """
        row, column = at.row + i, at.column + j
        work = "f64" if str(x.dtype) == "f64" else "f32"
        x = x.astype(work)
        preloaded = preloaded or PreloadedOperands()
        factors = []
        if self.left.final:
            factors.append(self.left.at(at.left, 0, row) if preloaded.left is None else preloaded.left(i))
        if self.right.final:
            factors.append(self.right.at(at.right, 0, column) if preloaded.right is None else preloaded.right(j))
        if factors:
            x = x * math.prod(factors[1:], start=factors[0])
        if self.scale:
            x = x * self.alpha
        if self.addend:
            x = x + self.beta * self.c[at.batch, row, column].astype(work)
        if self.along:
            if preloaded.bias is None:
                which = at.group if self.grouped_bias else 0
                add = self.bias[which, column if self.along == "columns" else row]
            else:
                add = preloaded.bias(j)
            x = x + add.astype(work)
        return activate(x, self.activation)

    def finished(self, acc: Any, at: Place, preloaded: PreloadedOperands | None = None) -> Any:
        """``acc`` as it is stored: the same tile of registers, or one of f32 for an accumulator of integers."""
        if self.plain:
            return acc
        done = acc
        if acc.dtype.is_integer:
            done = tm.mma.frag("f32", *acc.shape, init=0.0)
        for i, j in tm.apply(done):
            done[i, j] = self.of(acc[i, j], at, i, j, preloaded)
        return done


class Inputs:
    """The inputs of an epilogue that a tile of ``groups`` x ``rows`` x ``columns`` can read before its sum: a bias
    for each column, and scales of whole tensors, rows and columns."""

    def __init__(self, epilogue: EpilogueFunction, groups: int, rows: int, columns: int) -> None:
        self._ending, self._groups, self._rows, self._columns = epilogue, groups, rows, columns
        self._near = PreloadedOperands()
        self._bias = self._right = None

    def read(self, at: Place) -> None:
        """Start to read those of the tile ``at``."""
        e, preloaded = self._ending, self._near
        if e.along == "columns":
            which = at.group if e.grouped_bias else 0
            self._bias = self._columns_of(e.bias.view(1, self._columns).from_(which, at.column).sqz())
        if e.right.kind == "vector":
            source = e.right.array.view(1, 1, self._columns).from_(e.right.of(at.right), 0, at.column).sqz()
            self._right = self._columns_of(source)
        elif e.right.kind == "tensor":
            right = tm.var(e.right.at(at.right, 0, 0))
            preloaded.right = lambda _: right
        if e.left.kind == "vector":
            scales = tm.mma.frag("f32", self._rows, init=0.0)
            for p in tm.parallel(self._groups, level="group-4"):
                row = at.row + p * self._rows
                source = e.left.array.view(1, 1, self._rows).from_(e.left.of(at.left), 0, row).sqz()
                tm.mma.load(source, into=scales)
            preloaded.left = scales.__getitem__
        elif e.left.kind == "tensor":
            left = tm.var(e.left.at(at.left, 0, 0))
            preloaded.left = lambda _: left

    def preloaded(self, p: Any, part: int = 0, parts: int = 1) -> PreloadedOperands:
        """Those for warpgroup ``p`` and part ``part`` of the columns."""
        for name, buffer in (("bias", self._bias), ("right", self._right)):
            if buffer is not None:
                setattr(self._near, name, buffer.subspan(1, self._columns // parts).at(p, part).sqz().__getitem__)
        return self._near

    def _columns_of(self, source: Any) -> Any:
        """A copy in shared memory for each warpgroup."""
        buffer = tm.shared(source.dtype, self._groups, self._columns)
        for p in tm.parallel(self._groups, level="group-4"):
            tm.dma.copy(source, buffer.subspan(1, self._columns).at(p, 0).sqz())
        return buffer


NO_SCALE = Scale(None, "", False)


def epilogue_function(
    numbers: tuple[Any, Any],
    arrays: tuple[Any, Any, Any],
    flags: tuple[bool, str, str, str],
    scales: tuple[Scale, Scale] = (NO_SCALE, NO_SCALE),
    grouped_bias: bool = False,
) -> EpilogueFunction:
    """The epilogue of a kernel: of (alpha, beta), (c, bias, out), its compile-time values (SCALE, ADDEND, ALONG,
    ACTIVATION), and the scales of lhs and rhs."""
    (alpha, beta), (c, bias, out), (scaled, addend, along, activation) = numbers, arrays, flags
    added = out if addend == "out" else c
    return EpilogueFunction(
        alpha, beta, added, bias, *scales, scaled, addend != "", along, activation, grouped_bias
    )


# log2 of the probability that a normal variable exceeds z >= 0, fitted so that the probability is off by less than
# 2^-21 (the error bound's share is 2^-19).  It keeps decreasing where the probability is negligible.
_TAIL = (-1.0000008345, -1.1510831118, -0.45927667618, -0.052538018674, 0.0073872017674, -5.1885872381e-4)


def _gelu(x: Any) -> Any:
    """x / 2 + |x| * (1 / 2 - the probability that a normal variable exceeds |x|)."""
    size = tm.math.fabs(x)
    if str(x.dtype) == "f64":
        # The factor of |x| lies between 0 and 1 / 2 and is good to f32; |x| can exceed f32's range.
        return size * (0.5 - _tail(size.astype("f32")).astype("f64")) + 0.5 * x
    return tm.math.fma(size, 0.5 - _tail(size), 0.5 * x)


def _tail(size: Any) -> Any:
    """The probability that a normal variable exceeds ``size``, of f32."""
    power: Any = _TAIL[-1]
    for coefficient in reversed(_TAIL[:-1]):
        power = tm.math.fma(power, size, coefficient)
    return tm.math.exp2_ftz(power)


def activate(x: Any, activation: str) -> Any:
    """``activation`` of a scalar; NaN stays NaN."""
    if activation:
        # An expression is computed wherever it is used: once is enough.
        x = tm.var(x)
    if activation == "relu":
        return tm.select(x < 0.0, 0.0, x)
    if activation == "gelu":
        return _gelu(x)
    if activation == "silu":
        if str(x.dtype) == "f64":
            return x * tm.math.sigmoid(x.astype("f32")).astype("f64")
        return x * tm.math.sigmoid(x)
    return x
