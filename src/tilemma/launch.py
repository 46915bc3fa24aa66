"""The launch plan: all that is needed, besides the code, to start a kernel on arrays of any size.

The compiler writes it, the runtime and the PTX machine read it; as JSON it travels with PTX or a cubin.
Sizes that depend on the arrays are small expression trees over names::

    ("cdiv", "M", 128)          # names: dimensions ("M"), scalar parameters ("n"),
    ("mul", "lhs.stride0", 2)   # element strides of array parameters ("lhs.stride0")

Divisions are those of `tilemma.arithmetic`; sums and products are exact, and ("wrap", size) is the s32 that the
kernel computes where they may leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, field, fields
from functools import cache
from typing import Any, TypeAlias

from tilemma.arithmetic import integers
from tilemma.dtypes import dtype, s32
from tilemma.errors import LaunchError, described
from tilemma.records import record


class BadPlan(LaunchError, KeyError):
    code = "bad-launch-plan"
    found = "the launch plan cannot be read: {where} is {got}"
    expected = "{wanted}"
    fix = "pass a plan as `Launch.to_json` writes it"


# Operations inside operations in a size: far more than a kernel's sizes have.
MAX_DEPTH = 100
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

    "and", "or" and "select" evaluate only the operands that they need.  Raises KeyError for a missing name.
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


# The variant of a kernel whose blocks are not joined; other names are those of indices with one tile.
APART = "blocks apart"


def better_variant(launches: Sequence[Launch], names: Mapping[str, int] | None) -> tuple[str, ...]:
    """What makes the variant that is faster where the names have the values ``names``.

    The indices in which blocks of clusters differ (`Launch.clustered`) and that have one tile, and `APART` where
    blocks should not be joined (`Launch.joined`).
    """
    found = dict(x.clustered for x in launches if x.clustered is not None)
    joined = [x.joined for x in launches if x.joined is not None]
    with suppress(KeyError):  # without all of the sizes nothing is known
        single = tuple(index for index, tiles in found.items() if evaluate(tiles, names or {}) == 1)
        return single if all(evaluate(x, names or {}) for x in joined) else (*single, APART)
    return ()


def divided_dimension(size: Size) -> tuple[str, int] | None:
    """Name and divisor of an extent ``name // divisor``, as arrays of packed elements have; None for others.

    The name is then the extent times the divisor.
    """
    if isinstance(size, tuple) and len(size) == 3 and size[0] == "floordiv":
        _, name, divisor = size
        if isinstance(name, str) and isinstance(divisor, int):
            return name, divisor
    return None


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
    # Assumptions: bytes that base and every outer stride are multiples of, the dimension whose stride
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


@record
class SharedName:
    """An object of the program in a CTA's dynamic shared memory, from byte ``offset``; ``kind``: buffer or event.

    A ring has ``copies`` slots of ``bytes`` each; 0: the object is no ring, and its name takes no index.
    """

    name: str
    kind: str
    offset: int
    bytes: int
    copies: int = 0


Argument: TypeAlias = PointerArgument | ValueArgument | TensorMapArgument
_ARGUMENTS: dict[str, type[Any]] = {
    "pointer": PointerArgument,
    "value": ValueArgument,
    "tensormap": TensorMapArgument,
}


@record
class Launch:
    """The launch of one entry point.

    ``block`` and ``cluster`` are in threads and CTAs, x first; ``shared`` is the dynamic shared memory of a
    CTA in bytes.  ``overlap``: the code waits for the end of the launch before it on the stream, so that it may be
    started earlier.  ``clustered``: the index of the grid in which the blocks of a cluster differ, and its extent,
    where the compiler chose the cluster: with one tile along it, `Kernel.ready` has a faster variant; ``joined``:
    each block is two of the program, and where this size is 0 there is a faster variant too.  A launch whose grid
    has a zero extent does nothing.
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
    # For reports: the program's names of places in shared memory.
    shared_names: tuple[SharedName, ...] = field(default=())
    clustered: tuple[str, Size] | None = None
    joined: Size | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Launch:
        """Inverse of `to_json`; BadPlan, a ValueError, for data of another shape."""
        plan: Launch = _read("the plan", Launch, data)
        for a in plan.arrays:
            dtype(a.dtype)
        return plan


Reader: TypeAlias = Callable[[str, Any], Any]


def _read(where: str, wanted: Any, given: Any) -> Any:
    """``given``, from JSON, as a record of the class ``wanted``; BadPlan where it is none."""
    readers = _readers(wanted)
    if not isinstance(given, Mapping) or not readers.keys() >= given.keys():
        raise BadPlan(where=where, got=described(given), wanted=f"the fields {', '.join(readers)}")
    if missing := _required(wanted) - given.keys():
        raise BadPlan(where=where, got=f"nothing for {min(missing)}", wanted=f"the fields {', '.join(readers)}")
    return wanted(**{name: readers[name](f"{where}.{name}", value) for name, value in given.items()})


@cache
def _required(record_type: Any) -> frozenset[str]:
    """The fields without a default value."""
    return frozenset([f.name for f in fields(record_type) if f.default is MISSING])


@cache
def _readers(record_type: Any) -> dict[str, Reader]:
    return {f.name: _reader(str(f.type)) for f in fields(record_type)}


@cache
def _reader(annotation: str) -> Reader:
    """The function that reads a value of a field's type, from the type's text: resolving the texts of all types,
    as `typing.get_type_hints` does, would take longer than reading a plan."""
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    if annotation in _RECORDS:
        return lambda where, x: _read(where, _RECORDS[annotation], x)
    if annotation.endswith(" | None"):
        some = _reader(annotation.removesuffix(" | None"))
        return lambda where, x: None if x is None else some(where, x)
    elements = _split(annotation.removeprefix("tuple[").removesuffix("]"))
    readers = [_reader(e) for e in elements if e != "..."]
    return lambda where, x: _tuple(where, readers, elements[1:] == ["..."], x)


def _split(elements: str) -> list[str]:
    """The types between commas outside brackets."""
    found, depth = [""], 0
    for c in elements:
        depth += (c == "[") - (c == "]")
        if c == "," and not depth:
            found.append("")
        else:
            found[-1] += c
    return [e.strip() for e in found]


def _tuple(where: str, readers: list[Reader], any_length: bool, given: Any) -> tuple[Any, ...]:
    if not isinstance(given, (list, tuple)) or not (any_length or len(given) == len(readers)):
        raise BadPlan(where=where, got=described(given), wanted="a list of the plan's length")
    many = readers * len(given) if any_length else readers
    return tuple([read(f"{where}[{i}]", x) for i, (read, x) in enumerate(zip(many, given, strict=True))])


def _exactly(wanted: type[Any]) -> Reader:
    def read(where: str, given: Any) -> Any:
        if type(given) is not wanted:
            raise BadPlan(where=where, got=described(given), wanted=f"a value of type {wanted.__name__}")
        return given

    return read


def _size(where: str, given: Any) -> Size:
    if type(given) is int or type(given) is str:
        return given
    found: Size = _freeze(given)
    if not _is_size(found):
        raise BadPlan(where=where, got=described(given), wanted="a number, a name, or an operation on them")
    return found


def _argument(where: str, given: Any) -> Argument:
    kind = given.get("kind") if isinstance(given, Mapping) else None
    if not isinstance(kind, str) or kind not in _ARGUMENTS:
        raise BadPlan(where=where, got=described(given), wanted=f"an argument, `kind` {', '.join(_ARGUMENTS)}")
    argument: Argument = _read(where, _ARGUMENTS[kind], given)
    return argument


_SIMPLE: dict[str, Reader] = {
    **{t.__name__: _exactly(t) for t in (int, str, bool)},
    "Size": _size,
    "Argument": _argument,
}
_RECORDS: dict[str, type[Any]] = {x.__name__: x for x in (ArrayParam, ScalarParam, SharedName)}


def _is_size(x: Any, depth: int = 0) -> bool:
    if isinstance(x, (int, str)):
        return not isinstance(x, bool)
    operation = x[0] if isinstance(x, tuple) and x and isinstance(x[0], str) and depth < MAX_DEPTH else None
    operands = {"wrap": 1, "select": 3}.get(operation, 2) if operation in SIZE_OPS else -1
    return operands == len(x or ()) - 1 and all(_is_size(e, depth + 1) for e in x[1:])
