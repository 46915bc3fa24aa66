"""Products of matrices that ``products.c`` computes: its structures, and what it reads and writes."""

from __future__ import annotations

import ctypes
import struct
from functools import cache
from typing import Any

import numpy as np

from tilemma.dtypes import dtype
from tilemma.machine.isa import sums
from tilemma.machine.native.blocks import block

# As in ``products.c``: the types, and the elements of an operand for which it has room.
_TYPES = {"f16": 0, "bf16": 1, "tf32": 2, "f32": 3, "e4m3": 4, "e5m2": 4}
_MOST_A, _MOST_B, _MOST_N = 64 * 64, 64 * 256, 256


@cache
def _values(name: str) -> Any:
    """The value of each byte as an element of an 8-bit type."""
    return np.arange(256, dtype=np.uint8).view(dtype(name).numpy).astype(np.float64)


class TileProduct:
    """Products of one shape.

    ``places`` of A, B, C and D, each [count, rows, columns]: where the elements are, in elements of the type or,
    for ``in_memory``, in bytes.  ``turned``: B's places are [columns, rows].
    """

    def __init__(
        self, kind: Any, types: tuple[str, str, str, str], places: tuple[Any, Any, Any, Any], rule: sums.Rule,
        *, in_memory: str = "", turned: bool = False, negative: tuple[bool, bool] = (False, False),
    ) -> None:  # fmt: skip
        td, ta, tb, tc = types
        (m, depth), n = places[0].shape[-2:], places[2].shape[-1]
        height = places[1].shape[-1 if turned else -2]
        kept = [np.ascontiguousarray(x, np.int64) for x in places]
        operands: list[int] = []
        for letter, name, at in zip("ABCD", (ta, tb, tc, td), kept, strict=True):
            size = 1 if letter in in_memory else dtype(name).bits // 8 if name != "tf32" else 4
            table = _values(name).ctypes.data if _TYPES[name] == 4 else 0
            operands += (_TYPES[name], size, at.ctypes.data, table)
        count = places[2].shape[0] if places[2].ndim == 3 else 1
        record, address = block([*operands, count, turned, *negative])
        names = (dtype(t).name for t in (ta, tb, td))
        shape, order, largest = sums._shape(1, m, n, depth, height, rule, *names)
        self.arguments = address, shape.ctypes.data, order.ctypes.data, largest
        # The same for `steps.c`, which has the number of products too.
        whole, self.block = block([*self.arguments[:3], struct.unpack("q", struct.pack("d", largest))[0], count])
        self._kept = kept, record, shape, order, whole

    def registers(self, native: Any, registers: int) -> None:
        """All operands are in the registers of a warp; ``registers``: its table of register files."""
        native.multiply_registers(*self.arguments, registers)

    def tiles(self, native: Any, a: tuple[int, int], b: tuple[int, int], registers: int, *, added: bool) -> None:
        """A and B start at (address, bytes after it); the accumulator is in registers."""
        native.multiply_tiles(*self.arguments, *a, *b, registers, added)


def tile_product(kind: Any, types: Any, places: Any, **options: Any) -> TileProduct | None:
    """The product of tiles at ``places``; None where the compiled code has no rule or no room for it."""
    td, ta, tb, tc = types
    m, depth = places[0].shape[-2:]
    rule = sums.rule(kind, ta, td, depth)
    n = places[2].shape[-1]
    if rule is None or not {ta, tb} <= _TYPES.keys() or not {tc, td} <= {"f16", "f32"}:
        return None
    if m * depth > _MOST_A or depth * n > _MOST_B or n > _MOST_N or n % 8 or m > 64:
        return None
    return TileProduct(kind, types, places, rule, **options)


def declare(native: Any) -> None:
    """The types of the functions of ``products.c``."""
    pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    native.multiply_registers.argtypes = (pointer, pointer, pointer, real, pointer)
    native.multiply_tiles.argtypes = (pointer, pointer, pointer, real, *(pointer, number) * 2, pointer, number)
    native.knowledge_of.argtypes = (pointer, number, number, number, pointer, number)
    native.async_read.argtypes = (*(pointer,) * 3, *(number,) * 3, pointer, *(number,) * 3)
    native.async_read.restype = number
    native.regular_tile.argtypes = (pointer, number, number, pointer, pointer)
    native.regular_tile.restype = number
    native.same_tile.argtypes, native.same_tile.restype = (pointer, pointer, number, pointer), number
    native.async_write.argtypes = (*(pointer,) * 3, *(number,) * 2, *(pointer,) * 2, *(number,) * 2)
    native.async_write.restype = number
    box = (pointer, number, pointer, number, ctypes.c_uint64)
    native.move_box.argtypes = (*(pointer,) * 3, number, number, *box)
    native.move_elements.argtypes = (*(pointer,) * 3, number, number, pointer, pointer)
    for function in (
        native.multiply_registers, native.multiply_tiles, native.knowledge_of, native.move_elements,
        native.move_box,
    ):  # fmt: skip
        function.restype = None
