"""ldmatrix and stmatrix of 8-bit elements, and of packed 6- and 4-bit elements, from sm_100a on (PTX ISA, "Warp
Level Matrix Multiply-Accumulate Instructions").

Rows have 16 bytes.  Packed elements stand in the low 12 or 8 bytes of a row, and become bytes with zeros above.
The layout of the transposed forms is that of `SM100_U8x8_LDSM_T` and `SM100_U8x4_STSM_T` of CUTLASS.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilemma.machine import access
from tilemma.machine.decode import AddressRow, Decoder
from tilemma.machine.exec import aligned
from tilemma.machine.state import LANES, Frame

# Bits of an element of a packed row.
PACKED = {"b4x16_p64": 4, "b6x16_p32": 6}
_COUNTS = {"x1": 1, "x2": 2, "x4": 4}
# A lane's place in the warp, and the bytes of its register.
_GROUP, _IN_GROUP, _BYTE = LANES[:, None] // 4, LANES[:, None] % 4, np.arange(4)[None, :]


def unpacked(rows: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Rows [n, 16] of packed elements as rows of bytes."""
    low = np.unpackbits(rows, axis=1, bitorder="little")[:, : 16 * bits].reshape(-1, 16, bits)
    return np.packbits(low, axis=2, bitorder="little")[:, :, 0]


def load(d: Decoder, address: AddressRow, rows: Any) -> None:
    """``ldmatrix`` of m16n16 (transposed: two registers for each matrix) or m8n16."""
    num, bits, transposed = d.one_of(_COUNTS), d.one_of(PACKED, 8), d.has("m16n16")
    d.has("m8n16", "trans", "b8", "b8x16", "shared", "shared::cta")
    d.only("sync", "aligned")
    height = 16 if transposed else 8
    if len(rows) != num * height // 8:
        d.bad(f"{len(rows)} registers; it takes {num * height // 8}")
    register = np.arange(len(rows))[:, None, None]
    if transposed:
        # Four rows of one column: of columns 0 to 7 in the first register of a matrix, 8 to 15 in the second.
        row, column = 16 * (register // 2) + 4 * _IN_GROUP + _BYTE, _GROUP + 8 * (register % 2)
    else:
        row, column = 8 * register + _GROUP, 4 * _IN_GROUP + _BYTE
    lanes, ins = LANES[: num * height], d.ins
    ids = [d.register_id(x) for x in d.items(d.operands[0])]

    def run(f: Frame, m: Any) -> None:
        w = f.w
        aligned.whole_warp(f, ins, m)
        words = access.shared_load(f, ins, lanes, address.values(w, lanes), 16, "ldmatrix")
        loaded = np.ascontiguousarray(words).view(np.uint8).reshape(-1, 16)
        if bits < 8:
            loaded = unpacked(loaded, bits)
        values = np.ascontiguousarray(loaded[row, column]).view(np.uint32)[:, :, 0]
        for value, to, number in zip(values, rows, ids, strict=True):
            w.v[3][to][:] = value
            w.origins.pop(number, None)

    d.visible(run)


def store(d: Decoder, address: AddressRow, rows: Any) -> None:
    """``stmatrix`` of m16n8, transposed: each row in memory is a column of the matrix."""
    num = d.one_of(_COUNTS)
    d.has("m16n8", "trans", "b8", "shared", "shared::cta")
    d.only("sync", "aligned")
    if len(rows) != num:
        d.bad(f"{len(rows)} registers; it takes {num}")
    row = 8 * np.arange(num)[:, None, None] + 2 * _IN_GROUP + _BYTE % 2
    column = _GROUP + 8 * (_BYTE // 2)
    lanes, ins = LANES[: 8 * num], d.ins

    def run(f: Frame, m: Any) -> None:
        w = f.w
        aligned.whole_warp(f, ins, m)
        registers = np.ascontiguousarray(w.cta.registers["32"][w.index, rows])
        tiles = np.empty((8 * num, 16), np.uint8)
        tiles[row, column] = registers.view(np.uint8).reshape(num, 32, 4)
        access.shared_store(f, ins, lanes, address.values(w, lanes), 16, tiles.view(np.uint64))

    d.visible(run)
