"""wgmma's shared-memory matrix descriptors: their fields, and the bytes they make the tensor core read.

Sources: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", sections "Shared Memory Matrix
Layout", "Strides", "Canonical Layouts" and "Matrix Descriptor Format".

The descriptor, bit by bit: 0-13 start address, 16-29 leading dimension byte offset (LBO), 32-45 stride
dimension byte offset (SBO), each as ``(x & 0x3FFFF) >> 4``; 49-51 base offset; 62-63 swizzling mode, 0 for
none and then, largest first, 1 for 128 bytes, 2 for 64, 3 for 32.  All other bits are zero.

The canonical layouts, with T elements to 16 bytes, as shape : stride with T and the strides in elements:

    major  swizzle  M or N       K
    K      none     (8, m)       (T, k)       : ((T, SBO), (1, LBO))
    K      W bytes  (8, m)       (T, k)       : ((W, SBO), (1, T))
    MN     none     (T, m)       (8, k)       : ((1, SBO), (T, LBO))
    MN     W bytes  (W, m)       (8, k)       : ((1, LBO), (W, SBO))

So LBO is along K without swizzle, unused by K-major swizzled tiles, and along M/N in MN-major swizzled ones.

Swizzling exchanges 16-byte units: the three (two, one) address bits from bit 7 up are XORed into those from
bit 4 up.  It acts on the address itself, not on an offset within the tile; that is why a tile may start
inside a pattern (the next 32 bytes of K) and why the writer must have used the same addresses.  A
pattern repeats every 8 * W bytes.  When it starts elsewhere than at a multiple of that, the base offset says
by how many 128-byte lines, and is taken off the line number before the XOR.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

Major = Literal["K", "MN"]
Ints = npt.NDArray[np.int64]

_MODES = (0, 128, 64, 32)
# Line-number bits that a mode XORs into the unit number.
_PHASES = {0: 0, 32: 1, 64: 3, 128: 7}
_RESERVED = sum(((1 << (high - low + 1)) - 1) << low for low, high in ((14, 15), (30, 31), (46, 48), (52, 61)))


@dataclass(frozen=True, slots=True)
class SmemDescriptor:
    """A decoded descriptor: all in bytes but ``base_offset``, which counts 128-byte lines (0..7).

    ``reserved`` holds the bits that must be zero, in place.
    """

    start: int
    lbo: int
    sbo: int
    base_offset: int
    swizzle: int
    reserved: int = 0


@lru_cache(4096)
def decode(desc: int) -> SmemDescriptor:
    """The fields of a 64-bit descriptor."""
    return SmemDescriptor(
        start=(desc & 0x3FFF) << 4,
        lbo=(desc >> 16 & 0x3FFF) << 4,
        sbo=(desc >> 32 & 0x3FFF) << 4,
        base_offset=desc >> 49 & 7,
        swizzle=_MODES[desc >> 62 & 3],
        reserved=desc & _RESERVED,
    )


def encode(d: SmemDescriptor) -> int:
    """The 64 bits of a descriptor, the inverse of ``decode``; offsets are multiples of 16 below 2**18."""
    for x in (d.start, d.lbo, d.sbo):
        assert x % 16 == 0 and 0 <= x < 1 << 18, d
    return (
        d.start >> 4
        | d.lbo >> 4 << 16
        | d.sbo >> 4 << 32
        | d.base_offset << 49
        | _MODES.index(d.swizzle) << 62
        | d.reserved
    )


@overload
def swizzle(address: int, mode: int, base_offset: int = 0, *, unit: int = 16) -> int: ...
@overload
def swizzle(address: Ints, mode: int, base_offset: int = 0, *, unit: int = 16) -> Ints: ...
def swizzle(address: Any, mode: int, base_offset: int = 0, *, unit: int = 16) -> Any:
    """The address of the byte of shared-memory ``address`` in mode 0, 32, 64 or 128 bytes.

    An involution; a permutation of the units of 16 bytes of each 128-byte line.  Tensor maps can exchange units of
    32 and 64 bytes in the mode of 128, by as many bits of the line's number as units have.
    """
    if unit != 16 and mode == 128:
        return address ^ ((address >> 7) % (mode // unit)) * unit
    return address ^ ((((address >> 7) - base_offset) & _PHASES[mode]) << 4)


def operand_offsets(desc: SmemDescriptor, rows: int, k: int, elem_bits: int, major: Major) -> Ints:
    """Bytes from the descriptor's start to each element before swizzling: [rows, k], the canonical layouts.

    ``rows`` is 64 for A, n for B.  Elements below a byte share the address of their byte.
    """
    unit = 128 // elem_bits
    i, j = np.arange(rows, dtype=np.int64)[:, None], np.arange(k, dtype=np.int64)[None, :]
    if major == "K":
        row_pitch, unit_pitch = (desc.swizzle, 16) if desc.swizzle else (16, desc.lbo)
        along_rows = i % 8 * row_pitch + i // 8 * desc.sbo
        return along_rows + j // unit * unit_pitch + j % unit * elem_bits // 8
    if desc.swizzle:
        chunk, chunk_pitch, k_pitch, k_group_pitch = (
            desc.swizzle * 8 // elem_bits,
            desc.lbo,
            desc.swizzle,
            desc.sbo,
        )
    else:
        chunk, chunk_pitch, k_pitch, k_group_pitch = unit, desc.sbo, 16, desc.lbo
    along_rows = i % chunk * elem_bits // 8 + i // chunk * chunk_pitch
    return along_rows + j % 8 * k_pitch + j // 8 * k_group_pitch


def operand_addresses(desc: SmemDescriptor, rows: int, k: int, elem_bits: int, major: Major) -> Ints:
    """Shared-memory byte address of each element of a wgmma operand: [rows, k], after swizzling.

    ``rows`` is 64 for A (row i is A's row), n for B (row i is B's column); ``k`` is the instruction's.
    Elements below a byte share the address of their byte; element j of a row is then in bits
    ``j * elem_bits % 8`` upwards.
    """
    offsets = operand_offsets(desc, rows, k, elem_bits, major)
    return swizzle(desc.start + offsets, desc.swizzle, desc.base_offset)


def problems(
    desc: SmemDescriptor, rows: int, k: int, elem_bits: int, major: Major, shared_bytes: int | None = None
) -> list[str]:
    """Every reason for which the ISA does not let ``desc`` describe this operand tile; none if it may.

    ``shared_bytes`` is the size of the CTA's shared-memory window.  Fields that the layout does not use (LBO
    of a K-major swizzled tile, the stride of a dimension that fits one unit) are not looked at.
    """
    out = []
    if desc.reserved:
        bits = [b for b in range(64) if desc.reserved >> b & 1]
        out.append(f"reserved bits {bits} are set: an address or stride beyond 18 bits, or a field out of place")
    if major == "MN" and elem_bits != 16:
        out.append(f"MN-major is for 16-bit elements only, these have {elem_bits}")
    out += _base_offset_problems(desc)
    out += _stride_problems(desc, rows, k, elem_bits, major)
    if not out:
        # One element of each 16 bytes: all offsets are multiples of 16, so units coincide or are disjoint.
        step = 128 // elem_bits
        addresses = operand_addresses(desc, rows, k, elem_bits, major)
        units = (addresses[:, ::step] if major == "K" else addresses[::step]) >> 4
        if np.unique(units).size < units.size:
            out.append(
                f"rows overlap: LBO {desc.lbo} and SBO {desc.sbo} bytes are too small for a {rows} x {k} tile"
            )
        if shared_bytes is not None and int(units.max()) * 16 + 16 > shared_bytes:
            end = int(units.max()) * 16 + 16
            out.append(f"the tile ends at byte {end}, beyond the {shared_bytes} bytes of shared memory")
    return out


def _base_offset_problems(desc: SmemDescriptor) -> list[str]:
    phases = _PHASES[desc.swizzle]
    if not phases:
        return ["the base offset must be 0 without swizzling"] if desc.base_offset else []
    # The tile's first line is the first of its pattern: rows (K-major) and k (MN-major) start at 0 there.
    phase = desc.start >> 7
    if (phase - desc.base_offset) & phases:
        return [
            f"start address {desc.start:#x} lies {phase & phases} lines into a {desc.swizzle}-byte swizzle "
            f"pattern (a multiple of {desc.swizzle * 8} bytes); the base offset is {desc.base_offset}"
        ]
    return []


def _stride_problems(desc: SmemDescriptor, rows: int, k: int, elem_bits: int, major: Major) -> list[str]:
    if not desc.swizzle:
        return []
    out, pattern = [], desc.swizzle * 8
    chunk = desc.swizzle * 8 // elem_bits
    used = {"SBO": desc.sbo} if (rows if major == "K" else k) > 8 else {}
    if major == "MN" and rows > chunk:
        used["LBO"] = desc.lbo
    for name, stride in used.items():
        if stride % pattern:
            out.append(f"{name} {stride} is no multiple of the {pattern} bytes after which the swizzle repeats")
    first, extent = desc.start % desc.swizzle, k if major == "K" else min(rows, chunk)
    if first + extent * elem_bits // 8 > desc.swizzle:
        along = "K" if major == "K" else "M/N"
        out.append(
            f"{extent} elements along {along} from byte {first} of a {desc.swizzle}-byte swizzled line "
            "reach past its end"
        )
    return out
