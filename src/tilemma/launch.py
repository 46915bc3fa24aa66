"""The launch plan: all that is needed, besides the code, to start a kernel on arrays of any size.

The compiler writes it, the runtime and the PTX machine read it; as JSON it travels with PTX or a cubin.
Sizes that depend on the arrays are small expression trees over names::

    ("cdiv", "M", 128)          # names: dimensions ("M"), scalar parameters ("n"),
    ("mul", "lhs.stride0", 2)   # element strides of array parameters ("lhs.stride0")

Divisions are those of `tilemma.arithmetic`; sums and products are exact, and ("wrap", size) is the s32 that the
kernel computes where they may leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, field
from typing import Any, TypeAlias

from tilemma.arithmetic import integers
from tilemma.dtypes import s32
from tilemma.records import record

# The largest extent of an array, below 2**31 so that a position some tiles beyond the edge is still an s32.
MAX_EXTENT = 2**31 - 2**20

Size: TypeAlias = int | str | tuple[Any, ...]


SIZE_OPS: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": integers.floordiv,
    "cdiv": integers.cdiv,
    "div": integers.div,
    "mod": integers.mod,
    "floormod": integers.floormod,
    "wrap": lambda a: integers.wrap(a, s32),
    "min": min,
    "max": max,
    "lt": lambda a, b: int(a < b),
    "le": lambda a, b: int(a <= b),
    "eq": lambda a, b: int(a == b),
    "and": lambda a, b: int(bool(a and b)),
    "or": lambda a, b: int(bool(a or b)),
    "select": lambda c, a, b: a if c else b,
}


def evaluate(size: Size, names: Mapping[str, int]) -> int:
    """The value of ``size`` where the names have the values ``names``.

    "and", "or" and "select" evaluate what they need only.  KeyError for a missing name.
    """
    if isinstance(size, int):
        return size
    if isinstance(size, str):
        return names[size]
    op, *operands = size
    if op in ("and", "or", "select"):
        first = evaluate(operands[0], names)
        if op == "select":
            return evaluate(operands[1 if first else 2], names)
        return int(bool(first)) if bool(first) == (op == "or") else int(bool(evaluate(operands[1], names)))
    return SIZE_OPS[op](*(evaluate(x, names) for x in operands))


def _freeze(x: Any) -> Any:
    return tuple(_freeze(e) for e in x) if isinstance(x, (list, tuple)) else x


@record
class ArrayParam:
    """An array as the user passes it: element type and one name or number for each dimension."""

    name: str
    dtype: str
    dims: tuple[Size, ...]
    written: bool
    read: bool = True
    # What the code assumes: bytes that base and every outer stride are multiples of, the dimension whose stride
    # is 1 (None: none), and whether no extent is 0.
    alignment: int = 1
    contiguous: int | None = None
    nonempty: bool = False


@record
class ScalarParam:
    """A scalar as the user passes it."""

    name: str
    dtype: str


@record
class PointerArgument:
    """A kernel argument: the address of an array's first element (a `.param .u64`)."""

    array: str
    kind: str = "pointer"


@record
class ValueArgument:
    """A kernel argument: a number computed from the arrays (a `.param` of PTX type ``type``)."""

    value: Size
    type: str
    kind: str = "value"


@record
class TensorMapArgument:
    """A kernel argument: a tensor map by value (`.param .align 128 .b8 t[128]`), innermost dimension first.

    ``strides`` are in bytes, for every dimension but the innermost.  ``swizzle`` is in bytes: 0, 32, 64, 128.
    Fields as cuTensorMapEncodeTiled takes them (CUDA driver API).
    """

    array: str
    dtype: str
    dims: tuple[Size, ...]
    strides: tuple[Size, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int = 0
    interleave: int = 0
    l2_promotion: int = 0
    oob_nan: bool = False
    kind: str = "tensormap"


Argument: TypeAlias = PointerArgument | ValueArgument | TensorMapArgument
_ARGUMENTS: dict[str, type[Any]] = {
    "pointer": PointerArgument,
    "value": ValueArgument,
    "tensormap": TensorMapArgument,
}


@record
class Launch:
    """How to start one entry point.

    ``block`` and ``cluster`` are in threads and CTAs, x first; ``shared`` is the dynamic shared memory of a
    CTA in bytes.  ``overlap``: the code waits for the end of the launch before it on the stream, so that it may be
    started earlier.  A launch whose grid has a zero extent does nothing.
    """

    entry: str
    arch: str
    arrays: tuple[ArrayParam, ...]
    scalars: tuple[ScalarParam, ...]
    arguments: tuple[Argument, ...]
    grid: tuple[Size, Size, Size]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] | None = None
    shared: int = 0
    overlap: bool = False
    # (condition, message): checked before the launch; the condition is a Size that must not be 0.
    checks: tuple[tuple[Size, str], ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Launch:
        """Inverse of `to_json`; KeyError or TypeError for data of another shape."""
        d = dict(data)
        arguments = []
        for a in d.pop("arguments"):
            cls = _ARGUMENTS[a["kind"]]
            arguments.append(cls(**{k: _freeze(v) for k, v in a.items()}))
        return Launch(
            arrays=tuple(ArrayParam(**{k: _freeze(v) for k, v in a.items()}) for a in d.pop("arrays")),
            scalars=tuple(ScalarParam(**a) for a in d.pop("scalars")),
            arguments=tuple(arguments),
            **{k: _freeze(v) for k, v in d.items()},
        )
