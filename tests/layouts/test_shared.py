"""Laws of shared-memory tiles, their descriptors and their bank conflicts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilemma.atoms import catalogue
from tilemma.errors import WrongArgument
from tilemma.layouts import (
    SWIZZLES,
    Descriptor,
    DescriptorError,
    InstructionMisfit,
    SharedLayout,
    SwizzleAtomMisfit,
    bank_conflicts,
    plain_layout,
    shared_layout,
)
from tilemma.layouts.descriptor import tensor_map_swizzle

TYPES = st.sampled_from(["f16", "bf16", "f8_e4m3", "tf32", "f64"])
MAJORS = st.sampled_from(["K", "MN"])


@st.composite
def tiles(draw: st.DrawFn) -> SharedLayout:
    t, major, swizzle = draw(TYPES), draw(MAJORS), draw(st.sampled_from(SWIZZLES))
    bits = {"f16": 16, "bf16": 16, "f8_e4m3": 8, "tf32": 32, "f64": 64}[t]
    span = max(swizzle, 16) * 8 // bits
    extent, lines = span * draw(st.integers(1, 4)), 8 * draw(st.integers(1, 6))
    rows, cols = (lines, extent) if major == "K" else (extent, lines)
    return shared_layout(t, rows, cols, major, swizzle)


@given(tiles())
def test_every_byte_of_the_tile_holds_one_element(tile: SharedLayout) -> None:
    places = np.sort(tile.offsets().reshape(-1))
    assert np.array_equal(places, np.arange(places.size) * tile.dtype.bytes)
    assert tile.size_bytes == places.size * tile.dtype.bytes
    assert tile.size_bytes % tile.alignment == 0


@given(tiles(), st.data())
def test_offset_is_the_layout(tile: SharedLayout, data: st.DataObject) -> None:
    row, col = (data.draw(st.integers(0, extent - 1)) for extent in tile.shape)
    assert tile.offset(row, col) == tile.offsets()[row, col]
    assert tile.offset(row, col) == tile.layout(row, col) * tile.dtype.bytes
    assert tile.transposed().offset(col, row) == tile.offset(row, col)


@given(tiles())
def test_transposing_exchanges_the_majorness(tile: SharedLayout) -> None:
    turned = shared_layout(tile.dtype, *reversed(tile.shape), "MN" if tile.major == "K" else "K", tile.swizzle)
    assert tile.transposed() == turned
    assert tile.transposed().transposed() == tile


@given(tiles())
def test_a_column_of_atoms_is_contiguous_and_of_one_swizzle_width(tile: SharedLayout) -> None:
    along = tile.offsets() if tile.major == "K" else tile.offsets().T
    for column in range(tile.atom_columns):
        part = along[:, column * tile.span : (column + 1) * tile.span]
        assert part.min() == column * tile.atom_column_bytes
        assert part.max() == (column + 1) * tile.atom_column_bytes - tile.dtype.bytes


@given(tiles(), st.data())
def test_a_descriptor_finds_every_element(tile: SharedLayout, data: st.DataObject) -> None:
    k = 32 // tile.dtype.bytes
    rows = 8 * data.draw(st.integers(1, max(1, tile.shape[0] // 8)))
    row0 = 8 * data.draw(st.integers(0, 8))
    k0 = k * data.draw(st.integers(0, 4))
    try:
        found = tile.descriptor(row0, k0, rows, k)
    except (InstructionMisfit, SwizzleAtomMisfit):
        return
    places = tile.offsets()
    for r in range(rows):
        for c in range(k):
            assert places[row0 + r, k0 + c] == _where(found, tile, r, c)


def _where(d: Descriptor, tile: SharedLayout, r: int, c: int) -> int:
    """Where the hardware looks for (r, c) of the operand: PTX ISA, strides of the matrix descriptor."""
    size, line = tile.dtype.bytes, max(d.swizzle, 16)
    if tile.major == "K":
        byte = c * size
        stride = byte // 16 * d.lbo + byte % 16 if not d.swizzle else byte
        address = d.start + r // 8 * d.sbo + r % 8 * line + stride
    else:
        byte = r * size
        chunk, group = (d.lbo, d.sbo) if d.swizzle else (d.sbo, d.lbo)
        address = d.start + byte // line * chunk + byte % line + c // 8 * group + c % 8 * line
    bits = {0: 0, 32: 1, 64: 2, 128: 3}[d.swizzle]
    return address ^ (address >> 3) & (((1 << bits) - 1) << 4)


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("major", ["K", "MN"])
@pytest.mark.parametrize("n", range(8, 257, 8))
def test_every_n_has_a_descriptor_in_a_tile_of_its_own(n: int, major: str, swizzle: int) -> None:
    span = max(swizzle, 16) // 2
    rows, cols = (n, max(span, 32)) if major == "K" else (-(-n // span) * span, 32)
    tile = shared_layout("f16", rows, cols, major, swizzle)
    for k0 in range(0, cols, 16):
        assert tile.descriptor(0, k0, n, 16).swizzle == swizzle


class TestDescriptor:
    @given(
        st.integers(0, 2**14 - 1),
        st.integers(0, 2**14 - 1),
        st.integers(0, 2**14 - 1),
        st.integers(0, 7),
        st.sampled_from(SWIZZLES),
    )
    def test_encode_and_decode_are_inverse(self, start: int, lbo: int, sbo: int, base: int, swizzle: int) -> None:
        d = Descriptor(16 * start, 16 * lbo, 16 * sbo, base, swizzle)
        assert Descriptor.decode(d.encode()) == d

    def test_fields_stand_where_the_isa_puts_them(self) -> None:
        assert Descriptor(16, 0, 0).encode() == 1
        assert Descriptor(0, 16, 0).encode() == 1 << 16
        assert Descriptor(0, 0, 16).encode() == 1 << 32
        assert Descriptor(0, 0, 0, base_offset=1).encode() == 1 << 49
        assert [Descriptor(0, 0, 0, swizzle=s).encode() >> 62 for s in (0, 128, 64, 32)] == [0, 1, 2, 3]

    def test_a_tensor_map_counts_swizzles_the_other_way(self) -> None:
        assert [tensor_map_swizzle(s) for s in (0, 32, 64, 128)] == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        "fields", [(8, 0, 0), (0, 1 << 18, 0), (0, 0, -16), (0, 0, 0, 8), (0, 0, 0, 0, 16), (0, 24, 0)]
    )
    def test_a_field_that_does_not_fit_is_refused(self, fields: tuple[int, ...]) -> None:
        with pytest.raises((DescriptorError, WrongArgument)):
            Descriptor(*fields)

    def test_stray_bits_are_refused(self) -> None:
        with pytest.raises(DescriptorError):
            Descriptor.decode(1 << 14)


class TestRefusals:
    def test_the_swizzle_atom_has_to_divide_the_tile(self) -> None:
        with pytest.raises(SwizzleAtomMisfit, match="32 elements along K are no multiple of 64"):
            shared_layout("f16", 64, 32, "K", 128)
        with pytest.raises(SwizzleAtomMisfit, match="12 elements along M/N are no multiple of 8"):
            shared_layout("f16", 12, 64, "K", 128)

    def test_an_operand_starts_with_the_pattern(self) -> None:
        tile = shared_layout("f16", 128, 64, "MN", 128)
        assert tile.descriptor(32, 0, 32, 16).start == 64
        with pytest.raises(SwizzleAtomMisfit, match="core matrices"):
            tile.descriptor(32, 0, 64, 16)
        with pytest.raises(SwizzleAtomMisfit, match="4 lines into"):
            shared_layout("f16", 128, 64, "K", 128).descriptor(4, 0, 64, 16)

    def test_only_sixteen_bit_types_are_read_mn_major(self) -> None:
        with pytest.raises(InstructionMisfit, match="K-major only"):
            shared_layout("f8_e4m3", 128, 32, "MN", 128).descriptor(0, 0, 64, 32)

    def test_an_instruction_takes_32_or_64_bytes_along_k(self) -> None:
        with pytest.raises(InstructionMisfit, match="48 long along K"):
            shared_layout("f16", 128, 64).descriptor(0, 0, 64, 48)

    def test_a_plain_tile_has_no_core_matrices(self) -> None:
        with pytest.raises(SwizzleAtomMisfit):
            plain_layout("f16", 64, 64).descriptor(0, 0, 64, 16)


def _ldmatrix_rows(tile: SharedLayout) -> list[int]:
    """The addresses of an ldmatrix.x4 that reads a 16x16 operand at the origin."""
    copy = catalogue["SM75_U32x4_LDSM_N"]
    origins = catalogue["SM80_16x8x16_F32F16F16F32_TN"].a.matrices()
    addresses = [0] * 32
    for row in range(copy.rows):
        r, c = origins[row // 8]
        addresses[copy.lane_of_row(row)] = tile.offset(r + row % 8, c)
    return addresses


@pytest.mark.parametrize(
    ("tile", "wavefronts"),
    [
        (plain_layout("f16", 128, 64), 32),
        (plain_layout("f16", 128, 64, pad=8), 4),
        (shared_layout("f16", 128, 64, "K", 128), 4),
        # Lines of one swizzle width lie densely, so that eight of them meet all banks in every mode.
        (shared_layout("f16", 128, 64, "K", 64), 4),
        (shared_layout("f16", 128, 64, "K", 32), 4),
        (shared_layout("f16", 128, 64, "K", 0), 4),
        # 64-byte lines: every second one starts at the same bank.
        (plain_layout("f16", 128, 32), 16),
    ],
    ids=["plain", "padded", "SW128", "SW64", "SW32", "unswizzled", "plain, narrow"],
)
def test_bank_conflicts_of_ldmatrix(tile: SharedLayout, wavefronts: int) -> None:
    report = bank_conflicts(_ldmatrix_rows(tile), 16)
    assert (report.wavefronts, report.ideal) == (wavefronts, 4)


def test_lanes_that_read_one_word_share_it() -> None:
    assert bank_conflicts([0] * 32, 4).conflicts == 0
    assert bank_conflicts([2 * i for i in range(32)], 2).ways == 1
    assert bank_conflicts([128 * i for i in range(32)], 4).ways == 32
    assert bank_conflicts([4 * i for i in range(32)], 4).conflicts == 0
    with pytest.raises(ValueError, match=r"got 3 .* as `width`"):
        bank_conflicts([0], 3)
