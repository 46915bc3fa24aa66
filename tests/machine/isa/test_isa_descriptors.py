"""Descriptors: bit fields, swizzles, canonical layouts against a walk over atoms, and refusals."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilemma.machine.isa.descriptors import (
    SmemDescriptor,
    decode,
    encode,
    operand_addresses,
    operand_offsets,
    problems,
    swizzle,
)
from tilemma.machine.isa.tensormap import TensorMapImage, box_transfer

MODES = (0, 32, 64, 128)
units = st.integers(0, (1 << 14) - 1).map(lambda x: x * 16)


@given(units, units, units, st.integers(0, 7), st.sampled_from(MODES))
def test_decode_is_the_inverse_of_encode(start, lbo, sbo, base_offset, mode):
    d = SmemDescriptor(start, lbo, sbo, base_offset, mode)
    assert decode(encode(d)) == d


def test_fields_lie_where_the_manual_says():
    assert decode(0x3FFF) == SmemDescriptor(0x3FFF0, 0, 0, 0, 0)
    assert decode(0x3FFF << 16).lbo == 0x3FFF0
    assert decode(0x3FFF << 32).sbo == 0x3FFF0
    assert decode(7 << 49).base_offset == 7
    assert [decode(m << 62).swizzle for m in range(4)] == [0, 128, 64, 32]
    field_bits = {*range(14), *range(16, 30), *range(32, 46), *range(49, 52), 62, 63}
    for bit in range(64):
        d = decode(1 << bit)
        assert d.reserved == (0 if bit in field_bits else 1 << bit), bit


@pytest.mark.parametrize("mode", MODES)
def test_swizzle_is_an_involution_that_stays_in_its_pattern(mode):
    address = np.arange(4096)
    moved = swizzle(address, mode)
    assert (swizzle(moved, mode) == address).all()
    # A bijection of each block of 1024 bytes, of each line of 128, and of each run of the mode's width.
    for block in (1024, 128, mode or 16):
        assert (moved // block == address // block).all()
        assert (np.sort(moved.reshape(-1, block)) == address.reshape(-1, block)).all()
    assert (moved % 16 == address % 16).all()
    assert swizzle(0x1470, mode) == int(swizzle(np.array([0x1470]), mode)[0])


@pytest.mark.parametrize("mode,period", [(32, 2), (64, 4), (128, 8)])
def test_swizzle_is_the_programming_guides_index_relation(mode, period):
    """CUDA programming guide, TMA swizzle: smem[y][x] is smem[y][(y % period) ^ x], y lines, x units of 16."""
    for y, x in itertools.product(range(16), range(8)):
        assert swizzle(128 * y + 16 * x, mode) == 128 * y + 16 * ((y % period) ^ x)


def atom_walk(d, rows, k, bits, major):
    """The tile by hand: atoms of 8 lines of the swizzle's width, 16-byte units placed one by one."""
    width, size = d.swizzle or 16, bits // 8
    out = np.full((rows, k), -1, np.int64)
    for i, j in itertools.product(range(rows), range(k)):
        # Position along the contiguous dimension in bytes, and along the other in lines.
        along, line = (j * size, i) if major == "K" else (i * size, j)
        atom_along, atom_line = along // width, line // 8
        if d.swizzle:
            # One stride steps over lines; the other, for MN-major tiles only, over widths.
            base = atom_line * d.sbo + (atom_along * d.lbo if major == "MN" else 0)
        elif major == "K":
            base = atom_line * d.sbo + atom_along * d.lbo
        else:
            base = atom_line * d.lbo + atom_along * d.sbo
        inside = (line % 8) * width + along % width
        unit, byte = divmod(inside, 16)
        if d.swizzle:
            # 8 lines of W bytes are W // 16 whole 128-byte rows of 8 units each.
            row, column = divmod(unit, 8)
            unit = row * 8 + (column ^ (row % (width // 16)))
        out[i, j] = d.start + base + unit * 16 + byte
    return out


def canonical(mode, major, rows, k, bits, start=2048):
    """A descriptor of a tile stored atom after atom, along K first."""
    size = bits // 8
    if mode == 0:
        units_k, units_mn = k * size // 16, rows * size // 16
        return (
            SmemDescriptor(start, 128, 128 * units_k, 0, 0)
            if major == "K"
            else SmemDescriptor(start, 128 * units_mn, 128, 0, 0)
        )
    pattern = 8 * mode
    if major == "K":
        return SmemDescriptor(start, 16, pattern, 0, mode)
    return SmemDescriptor(start, pattern * (k // 8), pattern, 0, mode)


TILES = [
    (mode, major, rows, k, bits)
    for mode in MODES
    for major, rows, k, bits in (
        ("K", 64, 16, 16),
        ("K", 256, 16, 16),
        ("K", 8, 16, 16),
        ("K", 64, 8, 32),
        ("K", 24, 32, 8),
        ("MN", 64, 16, 16),
        ("MN", 256, 16, 16),
        ("MN", 24, 16, 16),
        ("MN", 8, 16, 16),
    )
]


@pytest.mark.parametrize("mode,major,rows,k,bits", TILES)
def test_canonical_layouts_are_the_walk_over_atoms(mode, major, rows, k, bits):
    d = canonical(mode, major, rows, k, bits)
    assert problems(d, rows, k, bits, major) == []
    addresses = operand_addresses(d, rows, k, bits, major)
    assert (addresses == atom_walk(d, rows, k, bits, major)).all()
    assert np.unique(addresses).size == rows * k


def shape_stride(shape, stride, index):
    """A CuTe mode written out: index in colexicographic order over ``shape``."""
    out = 0
    for extent, step in zip(shape, stride, strict=True):
        out += index % extent * step
        index //= extent
    return out


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_offsets_are_the_manuals_shapes_and_strides(mode, bits):
    """PTX ISA, canonical layouts: T = 128 / bits, everything in elements."""
    t, w, big = 128 // bits, mode // 16, 1 << 20
    d = SmemDescriptor(0, 0x1230 * 16, 0x770 * 16, 0, mode)
    lbo, sbo = d.lbo * 8 // bits, d.sbo * 8 // bits
    for i, j in itertools.product(range(40), range(2 * t)):
        if mode == 0:
            want = shape_stride((8, big), (t, sbo), i) + shape_stride((t, 2), (1, lbo), j)
        else:
            want = shape_stride((8, big), (w * t, sbo), i) + shape_stride((t, 2), (1, t), j)
        assert operand_offsets(d, 40, 2 * t, bits, "K")[i, j] == want * bits // 8
    mn = operand_offsets(d, 256, 16, bits, "MN")
    for i, j in itertools.product(range(0, 256, 3), range(16)):
        if mode == 0:
            want = shape_stride((t, 1, big), (1, t, sbo), i) + shape_stride((8, big), (t, lbo), j)
        else:
            want = shape_stride((t, w, big), (1, t, lbo), i) + shape_stride((8, big), (w * t, sbo), j)
        assert mn[i, j] == want * bits // 8


# PTX ISA, canonical layouts, examples: "exact layout" with LBO and SBO, all in elements.
EXAMPLES = [
    ("K", 0, 32, ((8, 2), (4, 4)), ((4, 32), (1, 64)), 64, 32),
    # The manual prints four units of K; the swizzled line has two.
    ("K", 32, 32, ((8, 2), (4, 2)), ((8, 64), (1, 4)), 0, 64),
    ("MN", 0, 16, ((8, 1, 2), (8, 2)), ((1, 8, 64), (8, 128)), 128, 64),
    ("MN", 32, 16, ((8, 2, 2), (8, 2)), ((1, 8, 128), (16, 256)), 128, 256),
    ("MN", 64, 16, ((8, 4, 2), (8, 2)), ((1, 8, 256), (32, 512)), 256, 512),
]


@pytest.mark.parametrize("major,mode,bits,shape,stride,lbo,sbo", EXAMPLES)
def test_the_manuals_examples(major, mode, bits, shape, stride, lbo, sbo):
    size = bits // 8
    d = SmemDescriptor(0, lbo * size, sbo * size, 0, mode)
    rows, k = int(np.prod(shape[0])), int(np.prod(shape[1]))
    got = operand_offsets(d, rows, k, bits, major)
    for i, j in itertools.product(range(rows), range(k)):
        assert got[i, j] == size * (shape_stride(shape[0], stride[0], i) + shape_stride(shape[1], stride[1], j))


@pytest.mark.parametrize("mode", [32, 64, 128])
@pytest.mark.parametrize("name,bits", [("f16", 16), ("tf32", 32), ("s8", 8)])
def test_reads_back_what_a_swizzled_tensor_copy_wrote(mode, name, bits):
    """K-major: a box of 64 rows by one swizzle width, then every k step by moving the start address."""
    size, k = bits // 8, 256 // bits
    columns = mode // size
    image = TensorMapImage(name, (columns, 64), (columns * size,), (columns, 64), (1, 1), mode)
    source, target = box_transfer(image, (0, 0), 3072)
    memory = {int(a): int(o) // size for o, a in zip(source, target, strict=True)}
    matrix = np.arange(64 * columns).reshape(64, columns)
    for step in range(columns // k):
        d = SmemDescriptor(3072 + step * 32, 16, 8 * mode, 0, mode)
        assert problems(d, 64, k, bits, "K") == []
        read = np.vectorize(memory.__getitem__)(operand_addresses(d, 64, k, bits, "K"))
        assert (read == matrix[:, step * k : step * k + k]).all()


@pytest.mark.parametrize("mode", [32, 64, 128])
def test_reads_back_an_mn_major_tile_of_several_boxes(mode):
    """MN-major: B[k=64][n=256] row-major; one box for each swizzle width of n, all 64 k in each."""
    width = mode // 2
    image = TensorMapImage("f16", (256, 64), (512,), (width, 64), (1, 1), mode)
    memory = {}
    for chunk in range(256 // width):
        source, target = box_transfer(image, (chunk * width, 0), 1024 + chunk * 64 * mode)
        memory.update((int(a), int(o) // 2) for o, a in zip(source, target, strict=True))
    matrix = np.arange(64 * 256).reshape(64, 256)
    for step in range(4):
        d = SmemDescriptor(1024 + step * 16 * mode, 64 * mode, 8 * mode, 0, mode)
        assert problems(d, 256, 16, 16, "MN") == []
        read = np.vectorize(memory.__getitem__)(operand_addresses(d, 256, 16, 16, "MN"))
        assert (read == matrix[step * 16 : step * 16 + 16].T).all()


def test_base_offset_moves_the_phase_of_the_pattern():
    """A pattern that starts 3 lines past a multiple of 1024 bytes reads like one that starts at it."""
    aligned = SmemDescriptor(4096, 16, 1024, 0, 128)
    shifted = replace(aligned, start=4096 + 3 * 128, base_offset=3)
    assert problems(shifted, 64, 16, 16, "K") == []
    moved = operand_addresses(shifted, 64, 16, 16, "K") - operand_addresses(aligned, 64, 16, 16, "K")
    assert (moved == 384).all()


GOOD = SmemDescriptor(1024, 16, 1024, 0, 128)
BAD = [
    (replace(GOOD, reserved=1 << 14), (64, 16, 16, "K"), "reserved bits [14]"),
    (replace(GOOD, start=1024 + 128), (64, 16, 16, "K"), "1 lines into a 128-byte swizzle pattern"),
    (replace(GOOD, base_offset=1), (64, 16, 16, "K"), "the base offset is 1"),
    (replace(GOOD, sbo=512), (64, 16, 16, "K"), "SBO 512 is no multiple"),
    (replace(GOOD, sbo=1152), (16, 16, 16, "K"), "SBO 1152 is no multiple"),
    (replace(GOOD, sbo=0), (64, 16, 16, "K"), "rows overlap"),
    (replace(GOOD, start=1024 + 112), (64, 16, 16, "K"), "reach past its end"),
    (GOOD, (64, 8, 32, "MN"), "16-bit elements only"),
    (replace(GOOD, lbo=1024), (128, 16, 16, "MN"), "rows overlap"),
    (replace(GOOD, lbo=512), (128, 16, 16, "MN"), "LBO 512 is no multiple"),
    (SmemDescriptor(1024, 128, 256, 1, 0), (64, 16, 16, "K"), "must be 0 without swizzling"),
    (SmemDescriptor(1024, 0, 256, 0, 0), (64, 16, 16, "K"), "rows overlap"),
    (replace(GOOD, start=7168), (64, 16, 16, "K"), "beyond the 8192 bytes"),
    (replace(GOOD, swizzle=32, sbo=256), (64, 32, 16, "K"), "reach past its end"),
]


@pytest.mark.parametrize("descriptor,tile,reason", BAD, ids=[b[2] for b in BAD])
def test_an_inadmissible_descriptor_is_told_why(descriptor, tile, reason):
    found = problems(descriptor, *tile, shared_bytes=8192)
    assert any(reason in p for p in found), found


def test_unused_fields_are_not_looked_at():
    # LBO of a K-major swizzled tile, SBO of a single row group, LBO of a single chunk.
    assert problems(replace(GOOD, lbo=48), 64, 16, 16, "K") == []
    assert problems(replace(GOOD, sbo=0), 8, 16, 16, "K") == []
    assert problems(replace(GOOD, lbo=0), 64, 16, 16, "MN") == []


def test_b1_elements_share_the_address_of_their_byte():
    d = SmemDescriptor(1024, 16, 1024, 0, 128)
    assert problems(d, 64, 256, 1, "K") == []
    bits = operand_addresses(d, 64, 256, 1, "K")
    assert (bits == np.repeat(operand_addresses(d, 64, 32, 8, "K"), 8, axis=1)).all()
