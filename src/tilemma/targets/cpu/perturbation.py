"""Operations that other targets may round differently from the reference executor.

Sums of products, functions of the math library and atomic additions of floats are the only operations whose
results are not fixed to the last bit; a conversion passes on what it is given.  An executor with a
`Perturbation` gives it each such result and continues with what it returns.
"""

from __future__ import annotations

from typing import Protocol

from tilemma.arithmetic.convert import Array
from tilemma.dtypes import DType
from tilemma.targets.cpu.values import Value


class Perturbation(Protocol):
    """Gives another value that a correct target could have computed."""

    def contraction(
        self, p: Array, before: Array, x: Array, y: Array, factors: Array | None, acc: DType, operands: DType
    ) -> Array:
        """``p = x @ y * factors``, which is about to be added to ``before`` in an accumulator of ``acc``."""

    def scaling(self, p: Array, before: Array, acc: DType) -> Array:
        """``p``, a scaled tile that is about to be added to ``before``."""

    def function(self, name: str, result: Value, t: DType) -> Value:
        """A result of type ``t`` of the math library's function ``name``."""

    def conversion(self, value: Value, result: Value, source: DType, target: DType) -> Value:
        """``value`` of type ``source``, converted to ``result`` of type ``target``."""

    def atomic(self, name: str, new: Value, old: Value, given: Value, t: DType) -> Value:
        """``new``, the outcome of an atomic operation of ``given`` on ``old``."""
