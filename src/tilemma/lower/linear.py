"""Integers as lanes know them: a sum of registers times constants, plus a constant.

Nothing is emitted until a sum is asked for as a register, so what is known when compiling (tile sizes, indices
of unrolled loops, positions within a fragment) ends up in constants and in immediate offsets.
"""

from __future__ import annotations

from tilemma.ir.lane import Reg
from tilemma.records import record

Terms = tuple[tuple[Reg, int], ...]


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
        """The value, where it is the same in every run."""
        return None if self.terms else self.const

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
        o = Linear.of(other)
        if not o.terms:
            return Linear(self.terms, self.const + o.const) if o.const else self
        if not self.terms:
            return Linear(o.terms, self.const + o.const) if self.const else o
        return Linear(_merged(self.terms, o.terms), self.const + o.const)

    __radd__ = __add__

    def __sub__(self, other: Linear | Reg | int) -> Linear:
        o = Linear.of(other)
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
        """Whether it is a multiple of ``by`` whatever the registers hold."""
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
    """The terms of a sum, of two that are in order each."""
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
