"""Types of kernel parameters: `Global["f16", "M", "K"]`, `Scalar["u32"]`, `Int`, `Float`, .."""

from __future__ import annotations

from typing import Any

from tilemma.dtypes import DType
from tilemma.errors import described
from tilemma.ir.builder import element_type
from tilemma.lang.scalars import Value, operand_as
from tilemma.lang.tracing import builder
from tilemma.records import record

Dimension = str | int | None


@record
class ArrayType:
    """An array in device memory: element type (or the name of a compile-time parameter that holds it), and
    for each dimension a name, a number, or None for one that has no name."""

    dtype: str
    dims: tuple[Dimension, ...]


@record
class ScalarType:
    """A scalar passed by value: element type, or the name of a compile-time parameter that holds it."""

    dtype: str

    def __call__(self, value: Any) -> Value:
        """``value`` converted to the type in a kernel, with the conversion of a store: `tm.Float(a[i])`.

        Raises ConstantOverflow for a constant beyond the type, WrongValue for what is no scalar.
        """
        b = builder(f"Scalar[{self.dtype!r}]")
        kind = element_type(self.dtype, b.span)
        return Value(b.stored(operand_as(value, kind, f"Scalar[{self.dtype!r}]"), kind))


def _name(item: Any) -> str:
    return str(item) if isinstance(item, (str, DType)) else described(item)


class _Global:
    def __getitem__(self, item: Any) -> ArrayType:
        parts = item if isinstance(item, tuple) else (item,)
        return ArrayType(_name(parts[0]), tuple(parts[1:]))


class _Scalar:
    def __getitem__(self, item: Any) -> ScalarType:
        return ScalarType(_name(item))


Global = _Global()
Scalar = _Scalar()
Int = ScalarType("s32")
Int64 = ScalarType("s64")
Float = ScalarType("f32")
Double = ScalarType("f64")
Bool = ScalarType("bool")
