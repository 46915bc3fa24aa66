"""The builder of lane IR: integer arithmetic on registers, predicates and special registers, over `Regions`."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.arithmetic.integers import wrap
from tilemma.dtypes import s32
from tilemma.ir.lane import Imm, Reg, Special
from tilemma.targets.ptx.lower.linear import Linear, in_32_bits, in_s32
from tilemma.targets.ptx.lower.regions import ANYTHING, Regions, Value


def _reciprocal(by: int, most: int) -> tuple[int, int] | None:
    """(multiplier, shift) such that x // by == (x * multiplier >> 32) >> shift for each x in [0, most]; None if
    there are none of 32 bits.

    The multiplier is 2**(32 + shift) / by, rounded up: the product is too large by less than ``excess`` * x / by
    units of 2**(32 + shift), which must not reach the next multiple of 1 / by.
    """
    shift = by.bit_length() - 1
    multiplier = -(-(1 << (32 + shift)) // by)
    excess = multiplier * by - (1 << (32 + shift))
    return (multiplier, shift) if multiplier < 2**32 and excess * most < 1 << (32 + shift) else None


class Emitter(Regions):
    """Instructions of one thread's program, folded where value ranges decide them."""

    # ---- integers --------------------------------------------------------------------------------------

    def exact(self, x: Linear) -> Linear:
        """``x``, an s32 that may wrap, as a sum that does not wrap: a register of its own unless the ranges prove
        it.

        Sums and multiples may be computed modulo 2**32.  Comparisons, divisions and conversions to a wider type
        need the exact value.
        """
        if in_s32(self.range_of(x)):
            return x
        return Linear.of(self.register(x)) if x.terms else Linear(const=wrap(x.const, s32))

    def value(self, x: Linear, hint: str = "i") -> Value:
        """``x`` in a register or an immediate, computed modulo 2**32.

        Terms of outer loops are added first, so that they can be hoisted.
        """
        x = x.reduced
        if not x.terms:
            return Imm(x.const)
        if len(x.terms) == 1:
            return self._sum(x, x.terms, hint)
        return self.cse(
            ("sum", x),
            lambda: self._sum(x, sorted(x.terms, key=lambda t: (self.depth(t[0]), t[1] == 1, t[0].name)), hint),
        )

    def _sum(self, x: Linear, terms: Sequence[tuple[Reg, int]], hint: str) -> Reg:
        """``x`` in a register, its ``terms`` added in this order."""
        low = high = 0
        total: Reg | None = None
        last = None if x.const else terms[-1][0]
        for reg, factor in terms:
            a, b = self._range.get(reg.name, ANYTHING)
            if factor < 0:
                a, b = b, a
            low, high = low + a * factor, high + b * factor
            name = hint if reg is last else "i"
            if total is None:
                total = reg if factor == 1 else self._scaled(reg, factor, name)
            elif factor == 1:
                total = self.pure("add.s32", "s32", total, reg, hint=name)
            elif factor == -1:
                total = self.pure("sub.s32", "s32", total, reg, hint=name)
            else:
                total = self.pure("mad.lo.s32", "s32", reg, Imm(factor), total, hint=name)
            self._note(total, low, high)
        assert total is not None
        if x.const:
            total = self.pure("add.s32", "s32", total, Imm(x.const), hint=hint)
            self._note(total, low + x.const, high + x.const)
        return total

    def register(self, x: Linear, hint: str = "i") -> Reg:
        """`value`, in a register even where it is a constant."""
        v = self.value(x, hint)
        return v if isinstance(v, Reg) else self.pure("mov.b32", "s32", v, hint=hint)

    def hoisted(self, x: Linear) -> Linear:
        """``x`` with its loop-invariant terms and its constant summed in one register outside the innermost
        loop."""
        inner = max((i for i, r in enumerate(self.regions) if r.kind == "loop"), default=0)
        fixed = tuple(t for t in x.terms if self.depth(t[0]) < inner)
        if not fixed or (len(fixed) == 1 and not x.const):
            return x
        moving = Linear(tuple(t for t in x.terms if t not in fixed))
        return moving + self.register(Linear(fixed, x.const))

    def _note(self, reg: Reg, low: int, high: int) -> None:
        if low >= -(2**31) and high < 2**31 and reg.name not in self._range and reg.name not in self._mutable:
            self._range[reg.name] = (low, high)

    def _scaled(self, reg: Reg, factor: int, hint: str) -> Reg:
        if factor > 0 and factor & (factor - 1) == 0:
            return self.pure("shl.b32", "s32", reg, Imm(factor.bit_length() - 1), hint=hint)
        if factor == -1:
            return self.pure("neg.s32", "s32", reg, hint=hint)
        return self.pure("mul.lo.s32", "s32", reg, Imm(factor), hint=hint)

    def divide(self, x: Linear, by: int, hint: str = "q") -> tuple[Linear, Linear]:
        """(x // by, x mod by), rounding down; ``x`` is an s32, or a sum that is proved to be in [0, 2**32).

        For a negative ``x`` and a ``by`` that is not a power of two, the quotient is outside every array.
        """
        assert by > 0
        if by == 1:
            return x, Linear()
        if not in_32_bits(self.range_of(x)):
            x = self.exact(x)
        high, low = x.split(by)
        bottom, top = self.range_of(low)
        if bottom >= 0 and top < by:
            return high.divided(by), low
        power = by & (by - 1) == 0
        alone = power or bottom >= 0
        if not (alone and in_32_bits((bottom, top))):
            # Only the whole sum can be divided: the terms that `by` does not divide may be negative in sum.
            high, low = Linear(), x
            bottom, top = self.range_of(x)
        reg = self.register(low)
        if power:
            shift = "shr.u32" if bottom >= 0 else "shr.s32"
            quotient = self.pure(shift, "s32", reg, Imm(by.bit_length() - 1), hint=hint)
            rest = self.pure("and.b32", "s32", reg, Imm(by - 1), hint=f"{hint}_rest")
        elif reg.uniform and bottom >= 0 and (found := _reciprocal(by, top)) is not None:
            # ptxas divides in uniform registers by a reciprocal in floating point, even by a constant: that takes
            # ten times as many instructions.
            upper = self.pure("mul.hi.u32", "s32", reg, Imm(found[0]), hint=hint)
            quotient = self.pure("shr.u32", "s32", upper, Imm(found[1]), hint=hint)
            back = self.pure("mul.lo.s32", "s32", quotient, Imm(by), hint=hint)
            rest = self.pure("sub.s32", "s32", reg, back, hint=f"{hint}_rest")
        else:
            quotient = self.pure("div.u32", "s32", reg, Imm(by), hint=hint)
            rest = self.pure("rem.u32", "s32", reg, Imm(by), hint=f"{hint}_rest")
        if bottom < 0:
            self.bounded(quotient, *((bottom // by, top // by) if power else (0, (2**32 - 1) // by)))
            self.bounded(rest, 0, by - 1)
        else:
            self.bounded(quotient, 0, top // by)
            self.bounded(rest, 0, min(by - 1, top))
        return high.divided(by) + quotient, Linear.of(rest)

    # ---- predicates ------------------------------------------------------------------------------------

    def compare(
        self, op: str, a: Linear, b: Linear, *, unsigned: bool = False, also: Reg | bool = True, hint: str = "p"
    ) -> Reg | bool:
        """``a op b and also`` as a predicate, or a bool where the ranges decide it.

        ``unsigned`` compares a position in memory with an extent, both as 32-bit patterns.  The position may be
        the sum of a view's origin, an s32, and an offset within the view; it is outside if the sum exceeds s32.
        """
        if also is False:
            return False
        if not unsigned:
            a, b = self.exact(a), self.exact(b)
        low, high = self.range_of(a - b)
        if not unsigned or (self.range_of(a)[0] >= 0 and self.range_of(b)[0] >= 0):
            known = {
                "lt": (high < 0, low >= 0), "le": (high <= 0, low > 0), "gt": (low > 0, high <= 0),
                "ge": (low >= 0, high < 0), "eq": (low == high == 0, low > 0 or high < 0),
                "ne": (low > 0 or high < 0, low == high == 0),
            }[op]  # fmt: skip
            if known[0]:
                return also
            if known[1]:
                return False
        # Constants go to the right-hand side, where PTX takes an immediate.
        if b.known is not None and a.known is None:
            moved = a.variable, Linear(const=b.const - a.const)
            if not unsigned and all(in_s32(self.range_of(x)) for x in moved):
                a, b = moved
        elif a.known is not None:
            op = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}.get(op, op)
            a, b = b, a
        kind = ("u32" if unsigned else "s32") if op not in ("eq", "ne") else "s32"
        left, right = self.register(a), self.value(b)
        if isinstance(also, Reg):
            return self.pure(f"setp.{op}.and.{kind}", "pred", left, right, also, hint=hint)
        return self.pure(f"setp.{op}.{kind}", "pred", left, right, hint=hint)

    def both(self, a: Reg | bool, b: Reg | bool, hint: str = "p") -> Reg | bool:
        if a is False or b is False:
            return False
        if a is True:
            return b
        if b is True or a == b:
            return a
        return self.pure("and.pred", "pred", a, b, hint=hint)

    def inverse(self, a: Reg | bool) -> Reg | bool:
        return (not a) if isinstance(a, bool) else self.pure("not.pred", "pred", a, hint="not")

    def pick(self, cond: Reg | bool, a: Value, b: Value, type: str = "s32", hint: str = "sel") -> Value:
        if isinstance(cond, bool):
            return a if cond else b
        if a == b:
            return a
        width = "b64" if type in ("s64", "u64", "b64") else "b32"
        if type in ("f32", "f64", "b16"):
            width = type
        return self.pure(f"selp.{width}", type, a, b, cond, hint=hint)

    # ---- special registers -----------------------------------------------------------------------------

    def special(self, name: str, hint: str, limit: int, *, uniform: bool = False) -> Reg:
        """Special register ``name`` (such as tid.x), less than ``limit``, read once."""
        with self.at_root():
            reg = self.pure("mov.u32", "s32", Special(f"%{name}"), hint=hint, uniform=uniform)
        return self.bounded(reg, 0, limit - 1)
