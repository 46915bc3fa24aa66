"""Types of kernel parameters: `Global["f16", "M", "K"]`, `Scalar["u32"]`, `Int`, `Float`, ..

A type checker reads texts in an annotation as names of types.  For it the class that the kernel works with comes
first: `Global[Tile, "f16", "M", "K"]`, `Scalar[Value, "u32"]`.  To a type checker both are `typing.Annotated`: the
parameter is a `Tile` or a `Value`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilemma.dtypes import DType
from tilemma.errors import described
from tilemma.ir.builder import element_type
from tilemma.lang.scalars import Value, operand_as
from tilemma.lang.tracing import builder
from tilemma.lang.views import TileValue as Tile
from tilemma.records import record

Dimension = str | int | None


@record
class ArrayType:
    """An array in device memory: element type (or the name of a compile-time parameter that holds it), and
    for each dimension a name, a number, or None for one that has no name."""

    dtype: str
    dims: tuple[Dimension, ...]

    def __repr__(self) -> str:
        return f"Global[{', '.join(map(repr, (self.dtype, *self.dims)))}]"


@record
class ScalarType:
    """A scalar passed by value: element type, or the name of a compile-time parameter that holds it."""

    dtype: str

    def __repr__(self) -> str:
        return _SCALARS.get(self.dtype) or f"Scalar[{self.dtype!r}]"

    def __call__(self, value: Any) -> Value:
        """``value`` converted to the type in a kernel, with the conversion of a store: `tm.Float(a[i])`.

        Raises ConstantOverflow for a constant beyond the type, WrongValue for what is no scalar.
        """
        b = builder(f"Scalar[{self.dtype!r}]")
        kind = element_type(self.dtype, b.span)
        return Value(b.stored(operand_as(value, kind, f"Scalar[{self.dtype!r}]"), kind))


def _name(item: Any) -> str:
    return str(item) if isinstance(item, (str, DType)) else described(item)


def _parts(item: Any, worked_with: type) -> tuple[Any, ...]:
    """The element type and the dimensions; the class before them is for type checkers."""
    parts = item if isinstance(item, tuple) else (item,)
    return parts[1:] if len(parts) > 1 and parts[0] is worked_with else parts


class _Global:
    def __getitem__(self, item: Any) -> ArrayType:
        dtype, *dims = _parts(item, Tile) or (item,)
        return ArrayType(_name(dtype), tuple(dims))


class _Scalar:
    def __getitem__(self, item: Any) -> ScalarType:
        parts = _parts(item, Value)
        return ScalarType(_name(parts[0] if len(parts) == 1 else parts))


_SCALARS = {"s32": "Int", "s64": "Int64", "f32": "Float", "f64": "Double", "bool": "Bool"}

if TYPE_CHECKING:
    from typing import Annotated as Global
    from typing import Annotated as Scalar

    class _Number(Value):
        def __init__(self, value: object) -> None: ...

    class Int(_Number): ...

    class Int64(_Number): ...

    class Float(_Number): ...

    class Double(_Number): ...

    class Bool(_Number): ...

else:
    Global = _Global()
    Scalar = _Scalar()
    Int, Int64, Float, Double, Bool = (ScalarType(dtype) for dtype in _SCALARS)

__all__ = [
    "ArrayType", "Bool", "Double", "Float", "Global", "Int", "Int64", "Scalar", "ScalarType", "Tile", "Value",
]  # fmt: skip
