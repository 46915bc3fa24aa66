"""Tiles in shared memory: the canonical wgmma atoms, tiles built from them, plain row-major tiles.

Coordinates are always (row, col) = (M or N, K), whatever the majorness: ``major`` says which of the two is
contiguous in memory, "K" (col) or "MN" (row).  A buffer that is not an operand is the case "K": row-major.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from tensor_layouts import Layout

from tilemma.checked import checked, integer, one_of
from tilemma.display import Displayed
from tilemma.dtypes import DType, dtype
from tilemma.errors import CompileError
from tilemma.forking import cached_property
from tilemma.layouts.algebra import (
    ELEMENT_BITS,
    LARGEST,
    LayoutLike,
    cute_str,
    element_swizzle,
    join,
    offsets,
    split,
    tile_to_shape,
)
from tilemma.layouts.descriptor import Descriptor, DescriptorError
from tilemma.records import record

Major = Literal["K", "MN"]
SWIZZLES: Final = (0, 32, 64, 128)
SWIZZLE: Final = one_of(*SWIZZLES)
MAJOR: Final = one_of("K", "MN")
# Offsets stay below 2^63 bytes.
EXTENT: Final = integer(0, LARGEST)


class TileMisfit(CompileError):
    """A tile that an instruction or a shared-memory layout cannot have."""


class InstructionMisfit(TileMisfit):
    code = "tile-instruction"
    found = "{tile} does not fit the instruction: {reason}"
    expected = "{rule}"
    fix = "{remedy}"


class SwizzleAtomMisfit(TileMisfit):
    code = "tile-swizzle-atom"
    found = "{tile} does not fit the shared-memory layout: {reason}"
    expected = "{rule}"
    fix = "{remedy}"


@checked(bits=one_of(*ELEMENT_BITS), major=MAJOR, swizzle=SWIZZLE)
@cache
def canonical_atom(bits: int, major: Major, swizzle: int) -> LayoutLike:
    """One of the 8 canonical shared-memory atoms of wgmma, for elements of ``bits`` bits.

    Eight lines of ``swizzle`` bytes (16 without swizzle), contiguous along K or along M/N; the coordinates
    are (M/N, K).  CuTe calls them `GMMA::Layout_{K,MN}_{INTER,SW32,SW64,SW128}_Atom`.
    """
    span = max(swizzle, 16) * 8 // bits
    affine = Layout((8, span), (span, 1)) if major == "K" else Layout((span, 8), (1, span))
    return join(element_swizzle(bits, swizzle), affine)


@record(slots=False)
class SharedLayout(Displayed):
    """A tile in shared memory, ``shape`` = (rows, cols) = (M/N extent, K extent) elements of ``dtype``.

    ``layout`` maps (row, col) to an element offset, swizzle included.  In bytes, with x the coordinate along
    the contiguous dimension and y the other::

        address = Sw((x // span) * atom_column_bytes + y * line_bytes + (x % span) * element bytes)

    The buffer has to start on a multiple of ``alignment`` bytes: the swizzle is a function of the address.
    A TMA box of ``span`` x (extent of y) elements with the same swizzle writes exactly one column of atoms.
    """

    dtype: DType
    shape: tuple[int, int]
    major: Major
    swizzle: int
    span: int
    line_bytes: int
    atom_column_bytes: int
    alignment: int
    layout: LayoutLike

    @property
    def extent(self) -> int:
        """Elements along the contiguous dimension."""
        return self.shape[1] if self.major == "K" else self.shape[0]

    @property
    def lines(self) -> int:
        """Elements along the other dimension."""
        return self.shape[0] if self.major == "K" else self.shape[1]

    @property
    def atom_columns(self) -> int:
        """Number of columns of swizzle atoms, each ``span`` elements wide, along the contiguous dimension."""
        return -(-self.extent // self.span)

    @property
    def size_bytes(self) -> int:
        """Bytes of one copy; a multiple of ``alignment`` for canonical layouts, so copies pack densely."""
        return self.atom_columns * self.atom_column_bytes

    @checked(row=EXTENT, col=EXTENT)
    def offset(self, row: int, col: int) -> int:
        """Byte offset of element (row, col) from the start of the buffer, swizzle included."""
        x, y = (col, row) if self.major == "K" else (row, col)
        line = x // self.span * self.atom_column_bytes + y * self.line_bytes + x % self.span * self.dtype.bits // 8
        return self.swizzled(line)

    @checked(address=integer(0, (1 << 63) - 1))
    def swizzled(self, address: int) -> int:
        """The byte address to which the hardware maps ``address`` with the swizzle."""
        bits = {0: 0, 32: 1, 64: 2, 128: 3}[self.swizzle]
        return address ^ (address >> 3 & ((1 << bits) - 1) << 4)

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        table = offsets(self.layout) * self.dtype.bits // 8
        table.flags.writeable = False
        return table

    def offsets(self) -> NDArray[np.int64]:
        """`offset` of every element, shape (rows, cols); read-only."""
        return self._offsets

    def transposed(self) -> SharedLayout:
        """The same bytes with the coordinates exchanged: (M/N, K) seen as (K, M/N), the other majorness."""
        swizzle, affine = split(self.layout)
        turned = Layout((affine.shape[1], affine.shape[0]), (affine.stride[1], affine.stride[0]))
        return SharedLayout(
            dtype=self.dtype,
            shape=(self.shape[1], self.shape[0]),
            major="MN" if self.major == "K" else "K",
            swizzle=self.swizzle,
            span=self.span,
            line_bytes=self.line_bytes,
            atom_column_bytes=self.atom_column_bytes,
            alignment=self.alignment,
            layout=join(swizzle, turned),
        )

    @checked(row0=EXTENT, k0=EXTENT, rows=EXTENT, k=EXTENT)
    def descriptor(self, row0: int, k0: int, rows: int, k: int) -> Descriptor:
        """The matrix descriptor of the wgmma operand ``rows`` x ``k`` at element (row0, k0).

        ``start`` is relative to the buffer's first byte.  Raises InstructionMisfit where the instruction
        cannot have such an operand, SwizzleAtomMisfit where the layout does not offer it there.
        """
        return _descriptor(self, row0, k0, rows, k)

    def __str__(self) -> str:
        return cute_str(self.layout, self.dtype.bits)


@checked(rows=EXTENT, cols=EXTENT, major=MAJOR, swizzle=SWIZZLE)
def shared_layout(
    element: DType | str, rows: int, cols: int, major: Major = "K", swizzle: int = 128
) -> SharedLayout:
    """A tile of ``rows`` x ``cols`` (M/N x K) elements built from the canonical atom of this swizzle.

    Atoms are stacked along the strided dimension first, so that each column of one swizzle width is
    contiguous: the layout that TMA boxes write, and that of CUTLASS's `tile_to_shape` with the strided mode first.
    Swizzle 0 is the canonical layout without swizzle (16-byte lines), not a plain row-major tile: for that
    see `plain_layout`.

    Raises SwizzleAtomMisfit where the atom does not divide the tile.
    """
    return _swizzled_layout(dtype(element), int(rows), int(cols), major, int(swizzle))


@lru_cache(maxsize=1024)
def _swizzled_layout(t: DType, rows: int, cols: int, major: Major, swizzle: int) -> SharedLayout:
    atom = canonical_atom(t.bits, major, swizzle)
    span = max(swizzle, 16) * 8 // t.bits
    extent, lines = (cols, rows) if major == "K" else (rows, cols)
    contiguous, strided = ("K", "M/N") if major == "K" else ("M/N", "K")
    for axis, have, need in ((contiguous, extent, span), (strided, lines, 8)):
        if have < 1 or have % need:
            raise SwizzleAtomMisfit(
                tile=f"a {rows}x{cols} {t} tile, {major}-major",
                reason=f"{have} elements along {axis} are no multiple of {need}",
                rule=f"the {_mode(swizzle)} atom is {span} elements ({max(swizzle, 16)} bytes) along {contiguous} "
                f"and 8 along {strided}, and divides the tile",
                remedy=f"make the tile a multiple of {need} along {axis}"
                + (", or take a narrower swizzle" if axis == contiguous and swizzle else ""),
            )
    line = max(swizzle, 16)
    return SharedLayout(
        dtype=t,
        shape=(rows, cols),
        major=major,
        swizzle=swizzle,
        span=span,
        line_bytes=line,
        atom_column_bytes=line * lines,
        alignment=8 * line,
        layout=tile_to_shape(atom, (rows, cols), (0, 1) if major == "K" else (1, 0)),
    )


@checked(rows=EXTENT, cols=EXTENT, major=MAJOR, pad=EXTENT)
def plain_layout(element: DType | str, rows: int, cols: int, major: Major = "K", pad: int = 0) -> SharedLayout:
    """A tile without swizzle, line after line, each line followed by ``pad`` unused elements."""
    t = dtype(element)
    extent, lines = (cols, rows) if major == "K" else (rows, cols)
    pitch = extent + pad
    affine = Layout((rows, cols), (pitch, 1) if major == "K" else (1, pitch))
    return SharedLayout(
        dtype=t,
        shape=(rows, cols),
        major=major,
        swizzle=0,
        span=extent,
        line_bytes=pitch * t.bits // 8,
        atom_column_bytes=pitch * lines * t.bits // 8,
        alignment=16,
        layout=affine,
    )


def _mode(swizzle: int) -> str:
    return f"SW{swizzle}" if swizzle else "unswizzled"


@lru_cache(maxsize=4096)
def _descriptor(tile: SharedLayout, row0: int, k0: int, rows: int, k: int) -> Descriptor:
    what = f"a {rows}x{k} {tile.dtype} operand, {tile.major}-major, at ({row0}, {k0}) of a {tile.shape} tile"
    check_operand(tile.dtype, tile.major, rows, k, what)
    if row0 < 0 or k0 < 0 or row0 + rows > tile.shape[0] or k0 + k > tile.shape[1]:
        raise SwizzleAtomMisfit(
            tile=what,
            reason="it reaches out of the tile",
            rule="the operand lies inside",
            remedy="use a larger tile",
        )
    found = descriptor_of(tile.layout, tile.dtype.bits, tile.major, row0, k0, rows, k)
    if isinstance(found, str):
        raise SwizzleAtomMisfit(
            tile=what,
            reason=found,
            rule=f"core matrices lie as the {_mode(tile.swizzle)} mode of the descriptor says, the pattern "
            "starting with the operand (PTX ISA, 9.7.15.5.1)",
            remedy="start the operand on a whole number of swizzle atoms, or choose another swizzle",
        )
    return found


def check_operand(t: DType, major: Major, rows: int, k: int, what: str) -> None:
    """Raise InstructionMisfit unless wgmma can read ``rows`` x ``k`` of ``t`` with this majorness."""
    if major == "MN" and t.bits != 16:
        raise InstructionMisfit(
            tile=what,
            reason=f"{t} is read K-major only",
            rule="wgmma transposes only f16 and bf16 read through descriptors (PTX ISA, 9.7.15.5.2)",
            remedy="store the tile with K contiguous",
        )
    if k * t.bits not in (256, 512):
        raise InstructionMisfit(
            tile=what,
            reason=f"it is {k} long along K",
            rule=f"one wgmma takes 32 bytes along K, {256 // t.bits} elements of {t}; 64 of B where A is sparse "
            "(PTX ISA, 9.7.15.2)",
            remedy=f"split K into pieces of {256 // t.bits}",
        )
    if rows % 8 or not 8 <= rows <= 256:
        raise InstructionMisfit(
            tile=what,
            reason=f"it has {rows} rows",
            rule="M is 64, N a multiple of 8 up to 256 (PTX ISA, 9.7.15.2)",
            remedy="split M/N into legal pieces",
        )


def descriptor_of(
    layout: LayoutLike, bits: int, major: Major, row0: int, k0: int, rows: int, k: int
) -> Descriptor | str:
    """The descriptor under which the hardware finds every element where ``layout`` puts it, or why none does.

    ``layout`` maps (M/N, K) to element offsets, with the swizzle outermost.  LBO and SBO are read off the
    layout, then every element's address is computed back from them and compared.
    """
    swizzle, affine = split(layout)
    width = 0 if swizzle is None else 16 << swizzle.bits
    if swizzle is not None and (width not in SWIZZLES or swizzle != element_swizzle(bits, width)):
        return f"{swizzle} is none of the descriptor's swizzle modes"
    place = offsets(affine)[row0 : row0 + rows, k0 : k0 + k] * bits // 8
    start = int(place[0, 0])
    line = max(width, 16)
    if start % (8 * line) >= line and width:
        return f"it starts {start % (8 * line) // line} lines into the {8 * line}-byte swizzle pattern"

    def step(r: int, c: int, otherwise: int) -> int:
        """Bytes from the operand's first element to (r, c); ``otherwise`` where the operand ends before."""
        return int(place[r, c]) - start if r < rows and c < k else otherwise

    unit, span = 128 // bits, line * 8 // bits
    if major == "K":
        lbo, sbo = step(0, unit, 16) if not width else 16, step(8, 0, 8 * line)
        r, c = np.arange(rows)[:, None], np.arange(k)[None, :]
        there = r // 8 * sbo + r % 8 * line + c // unit * lbo + c % unit * bits // 8
    else:
        along, groups = step(span, 0, 8 * line), step(0, 8, 8 * line)
        lbo, sbo = (along, groups) if width else (groups, along)
        r, c = np.arange(rows)[:, None], np.arange(k)[None, :]
        there = r // span * along + r % span * bits // 8 + c // 8 * groups + c % 8 * line
    if not np.array_equal(there, place - start):
        return "its core matrices do not lie at one LBO and one SBO from each other"
    try:
        return Descriptor(start=start, lbo=lbo, sbo=sbo, swizzle=width)
    except DescriptorError as e:
        return f"{e.message}: {e.expectation}"
