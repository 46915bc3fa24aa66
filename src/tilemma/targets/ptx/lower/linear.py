"""Affine expressions of lane code: sums of registers times constants, plus a constant.

No instruction is emitted until a sum is needed in a register, so that compile-time values (tile sizes, indices of
unrolled loops, positions within a fragment) become constants and immediate offsets.
"""

from __future__ import annotations

from tilemma.arithmetic.integers import Range, wrap
from tilemma.dtypes import s32
from tilemma.ir.lane import Reg
from tilemma.records import record

Terms = tuple[tuple[Reg, int], ...]


def in_s32(r: Range) -> bool:
    """Whether all numbers of a range are s32."""
    return r[0] >= -(2**31) and r[1] < 2**31


def in_32_bits(r: Range) -> bool:
    """Whether a 32-bit register represents all numbers of a range, as signed or as unsigned values."""
    return in_s32(r) or (r[0] >= 0 and r[1] < 2**32)


@record
class Linear:
    """``sum(reg * factor) + const``; no factor is 0, and terms stand in the order of their register names."""

    terms: Terms = ()
    const: int = 0

    @staticmethod
    def of(x: Linear | Reg | int) -> Linear:
        if isinstance(x, Linear):
            return x
        return Linear(((x, 1),)) if isinstance(x, Reg) else Linear(const=x)

    @property
    def known(self) -> int | None:
        """The value, if it is a constant."""
        return None if self.terms else self.const

    @property
    def reduced(self) -> Linear:
        """An equal sum modulo 2**32 whose factors and constant are s32; the same object if they are already."""
        low = high = self.const
        for _, f in self.terms:
            if f < low:
                low = f
            elif f > high:
                high = f
        if low >= -(2**31) and high < 2**31:
            return self
        terms = [(r, wrap(f, s32)) for r, f in self.terms]
        return Linear(tuple([t for t in terms if t[1]]), wrap(self.const, s32))

    @property
    def variable(self) -> Linear:
        """Without its constant."""
        return Linear(self.terms)

    @property
    def uniform(self) -> bool:
        return all(r.uniform for r, _ in self.terms)

    def __add__(self, other: Linear | Reg | int) -> Linear:
        if isinstance(other, int):
            return Linear(self.terms, self.const + other) if other else self
        o = other if type(other) is Linear else Linear.of(other)
        if not o.terms:
            return Linear(self.terms, self.const + o.const) if o.const else self
        if not self.terms:
            return Linear(o.terms, self.const + o.const) if self.const else o
        return Linear(_merged(self.terms, o.terms), self.const + o.const)

    __radd__ = __add__

    def __sub__(self, other: Linear | Reg | int) -> Linear:
        o = other if type(other) is Linear else Linear.of(other)
        if o.terms == self.terms:
            return Linear((), self.const - o.const)
        return self + o * -1

    def __mul__(self, factor: int) -> Linear:
        if factor == 0:
            return Linear()
        if factor == 1:
            return self
        if not self.terms:
            return Linear((), self.const * factor)
        return Linear(tuple([(r, f * factor) for r, f in self.terms]), self.const * factor)

    __rmul__ = __mul__

    def divisible(self, by: int) -> bool:
        """Whether it is a multiple of ``by`` for all values of the registers."""
        return self.const % by == 0 and not sum([f % by for _, f in self.terms])

    def divided(self, by: int) -> Linear:
        """Exactly divided; asserts `divisible`."""
        assert self.divisible(by), (self, by)
        return Linear(tuple([(r, f // by) for r, f in self.terms]), self.const // by)

    def split(self, by: int) -> tuple[Linear, Linear]:
        """(multiples of ``by``, the rest), the constant's remainder in [0, by) with the rest."""
        high = tuple([t for t in self.terms if t[1] % by == 0])
        low = tuple([t for t in self.terms if t[1] % by]) if len(high) < len(self.terms) else ()
        rest = self.const % by
        return Linear(high, self.const - rest), Linear(low, rest)


def _merged(a: Terms, b: Terms) -> Terms:
    """The sorted terms of a sum, from the sorted terms of its two operands."""
    if a[-1][0].name < b[0][0].name:
        return (*a, *b)
    if b[-1][0].name < a[0][0].name:
        return (*b, *a)
    out: list[tuple[Reg, int]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        x, y = a[i], b[j]
        if x[0].name == y[0].name:
            if factor := x[1] + y[1]:
                out.append((x[0], factor))
            i, j = i + 1, j + 1
        elif x[0].name < y[0].name:
            out.append(x)
            i += 1
        else:
            out.append(y)
            j += 1
    return (*out, *a[i:], *b[j:])
