"""The 64-bit matrix descriptor by which wgmma finds an operand in shared memory.

PTX ISA, 9.7.15.5.1 ("Matrix descriptor format"): bits 0-13 start address, 16-29 leading dimension byte
offset, 32-45 stride dimension byte offset, each shifted right by 4; bits 49-51 base offset; bits 62-63
swizzle mode.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tilemma.checked import Condition, checked, integer, is_integer, one_of
from tilemma.errors import CompileError, described
from tilemma.records import record

# The descriptor's own code.  CUtensorMapSwizzle counts the other way: see `tensor_map_swizzle`.
MODE_OF_SWIZZLE: Final = {0: 0, 128: 1, 64: 2, 32: 3}
SWIZZLE_OF_MODE: Final = {mode: swizzle for swizzle, mode in MODE_OF_SWIZZLE.items()}
_TENSOR_MAP_SWIZZLE: Final = {0: 0, 32: 1, 64: 2, 128: 3}
_LIMIT: Final = 1 << 18


class DescriptorError(CompileError, ValueError):
    code = "matrix-descriptor"
    found = "a matrix descriptor cannot hold {what}"
    expected = "{wanted}"
    fix = "see the PTX ISA, 9.7.15.5.1, Matrix descriptor format"


_FIELD: Final = Condition("an integer", is_integer)
_BASE_OFFSET: Final = integer(0, 7)
_SWIZZLE: Final = one_of(*MODE_OF_SWIZZLE)


@record
class Descriptor:
    """A matrix descriptor; addresses and offsets in bytes, ``swizzle`` 0, 32, 64 or 128 bytes.

    ``lbo`` and ``sbo`` depend on the majorness and the swizzle:

    ======= ========= ============================== ===============================
    major   swizzle   lbo, from one to the next      sbo, from one to the next
    ======= ========= ============================== ===============================
    K       none      16 bytes along K               8 rows of M/N
    K       32/64/128 ignored (16 is written)        8 rows of M/N
    MN      none      8 along K                      16 bytes along M/N
    MN      32/64/128 swizzle width along M/N        8 along K
    ======= ========= ============================== ===============================

    Raises DescriptorError for a field out of range or off its alignment.
    """

    start: int
    lbo: int
    sbo: int
    base_offset: int = 0
    swizzle: int = 0

    def __post_init__(self) -> None:
        for name in ("start", "lbo", "sbo"):
            value = getattr(self, name)
            _FIELD.check("Descriptor", name, value)
            if not 0 <= value < _LIMIT or value % 16:
                raise DescriptorError(
                    what=f"{name} = {described(value)}", wanted=f"a multiple of 16 below {_LIMIT}"
                )
        _BASE_OFFSET.check("Descriptor", "base_offset", self.base_offset)
        _SWIZZLE.check("Descriptor", "swizzle", self.swizzle)

    def encode(self) -> int:
        """The descriptor as the hardware reads it, an unsigned 64-bit number."""
        return (
            self.start >> 4
            | self.lbo >> 4 << 16
            | self.sbo >> 4 << 32
            | self.base_offset << 49
            | MODE_OF_SWIZZLE[self.swizzle] << 62
        )

    @classmethod
    @checked(bits=integer(0, (1 << 64) - 1))
    def decode(cls, bits: int) -> Descriptor:
        """Inverse of `encode`; DescriptorError where a bit outside the five fields is set."""
        fields = cls(
            start=(bits & 0x3FFF) << 4,
            lbo=(bits >> 16 & 0x3FFF) << 4,
            sbo=(bits >> 32 & 0x3FFF) << 4,
            base_offset=bits >> 49 & 7,
            swizzle=SWIZZLE_OF_MODE[bits >> 62 & 3],
        )
        if fields.encode() != bits:
            raise DescriptorError(what=f"{bits:#018x}", wanted="bits inside the five fields alone")
        return fields

    def at(self, start: int) -> Descriptor:
        """The same operand at another start address."""
        return replace(self, start=start)


@checked(swizzle=one_of(*_TENSOR_MAP_SWIZZLE))
def tensor_map_swizzle(swizzle: int) -> int:
    """`CUtensorMapSwizzle` (CUDA driver API) for a swizzle of 0, 32, 64 or 128 bytes."""
    return _TENSOR_MAP_SWIZZLE[swizzle]
