"""The 64-bit matrix descriptor by which wgmma finds an operand in shared memory.

PTX ISA, 9.7.15.5.1 ("Matrix descriptor format"): bits 0-13 start address, 16-29 leading dimension byte
offset, 32-45 stride dimension byte offset, each shifted right by 4; bits 49-51 base offset; bits 62-63
swizzle mode.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tilemma.records import record

# The descriptor's own code.  CUtensorMapSwizzle counts the other way: see `tensor_map_swizzle`.
MODE_OF_SWIZZLE: Final = {0: 0, 128: 1, 64: 2, 32: 3}
SWIZZLE_OF_MODE: Final = {mode: swizzle for swizzle, mode in MODE_OF_SWIZZLE.items()}
_TENSOR_MAP_SWIZZLE: Final = {0: 0, 32: 1, 64: 2, 128: 3}
_LIMIT: Final = 1 << 18


class DescriptorError(ValueError):
    """A field that a matrix descriptor cannot hold: our own bug, never a user's."""


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
            if not 0 <= value < _LIMIT or value % 16:
                raise DescriptorError(f"{name} = {value}: a multiple of 16 below {_LIMIT} is needed")
        if not 0 <= self.base_offset < 8:
            raise DescriptorError(f"base offset {self.base_offset} does not fit 3 bits")
        if self.swizzle not in MODE_OF_SWIZZLE:
            raise DescriptorError(f"no swizzle mode for {self.swizzle} bytes")

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
            raise DescriptorError(f"{bits:#018x} has bits outside the descriptor's fields")
        return fields

    def at(self, start: int) -> Descriptor:
        """The same operand at another start address."""
        return replace(self, start=start)


def tensor_map_swizzle(swizzle: int) -> int:
    """`CUtensorMapSwizzle` (CUDA driver API) for a swizzle of 0, 32, 64 or 128 bytes; KeyError otherwise."""
    return _TENSOR_MAP_SWIZZLE[swizzle]
