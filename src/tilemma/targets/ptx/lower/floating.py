"""Float instructions on registers of one type, for the sequences of the math library and of divisions."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.ir.lane import Imm, Reg
from tilemma.records import record
from tilemma.targets.ptx.lower.emitter import Emitter
from tilemma.targets.ptx.lower.regions import Value


@record
class Float:
    """Arithmetic on registers of one float type, each operation rounded by itself."""

    e: Emitter
    kind: str

    def c(self, x: float) -> Imm:
        return Imm(x, self.kind)

    def op(self, mnemonic: str, *args: Value) -> Reg:
        return self.e.pure(f"{mnemonic}.{self.kind}", self.kind, *args, hint="f")

    def add(self, a: Value, b: Value) -> Reg:
        return self.op("add.rn", a, b)

    def sub(self, a: Value, b: Value) -> Reg:
        return self.op("sub.rn", a, b)

    def mul(self, a: Value, b: Value) -> Reg:
        return self.op("mul.rn", a, b)

    def div(self, a: Value, b: Value) -> Reg:
        return self.op("div.rn", a, b)

    def toward_zero(self, a: Value, b: Value) -> Reg:
        """The quotient, rounded toward zero."""
        return self.op("div.rz", a, b)

    def down(self, a: Value, b: Value) -> Reg:
        """The quotient, rounded down."""
        return self.op("div.rm", a, b)

    def fma(self, a: Value, b: Value, c: Value) -> Reg:
        return self.op("fma.rn", a, b, c)

    def neg(self, a: Value) -> Reg:
        return self.op("neg", a)

    def abs(self, a: Value) -> Reg:
        return self.op("abs", a)

    def sqrt(self, a: Value) -> Reg:
        return self.op("sqrt.rn", a)

    def whole(self, a: Value, way: str) -> Reg:
        """``a`` rounded to an integer: rni, rzi, rmi or rpi."""
        return self.e.pure(f"cvt.{way}.{self.kind}.{self.kind}", self.kind, a, hint="f")

    def copysign(self, a: Value, sign: Value) -> Reg:
        return self.op("copysign", sign, a)

    def test(self, how: str, a: Value, b: Value) -> Reg:
        return self.e.pure(f"setp.{how}.{self.kind}", "pred", a, b, hint="p")

    def where(self, cond: Reg, a: Value, b: Value) -> Reg:
        return self.op("selp", a, b, cond)

    def series(self, x: Value, coefficients: Sequence[float]) -> Reg:
        """Horner's rule, constant term first."""
        total: Value = self.c(coefficients[-1])
        for k in reversed(coefficients[:-1]):
            total = self.fma(total, x, self.c(k))
        assert isinstance(total, Reg)
        return total
