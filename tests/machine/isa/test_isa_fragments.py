"""Fragment maps: the manual's case-wise formulas as an oracle, ownership laws, and whole products."""

from __future__ import annotations

import numpy as np
import pytest

from tilemma.dtypes import dtype
from tilemma.machine.isa import forms
from tilemma.machine.isa.fragments import (
    ldmatrix_map,
    mma_fragment,
    pack,
    quad_pair,
    stmatrix_map,
    unpack,
    wgmma_fragment,
)
from tilemma.machine.isa.numerics import mma

DENSE = list(forms.forms(forms.MMA))
SINGLE = [f for f in DENSE if not (f.shape == (8, 8, 4) and f.a == "f16")]
QUAD = [f for f in DENSE if f.shape == (8, 8, 4) and f.a == "f16"]


def ids(form: forms.Form) -> str:
    return f"{form.shape}-{form.d}.{form.a}.{form.b}.{form.c}"


# The manual's formulas for A and B, form by form: (row, column) of value i, with g = groupID and
# t = threadID_in_group.  Keyed by (m, k, bits of an element).
A_RULES = {
    (8, 4, 64): lambda g, t, i: (g, t),
    (16, 4, 64): lambda g, t, i: (g if i == 0 else g + 8, t),
    (16, 8, 64): lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4),
    (16, 16, 64): lambda g, t, i: (g if i % 2 == 0 else g + 8, i * 2 + t if i % 2 == 0 else i * 2 - 2 + t),
    (16, 4, 32): lambda g, t, i: (g if i == 0 else g + 8, t),
    (16, 8, 32): lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4),
    (16, 8, 16): lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    (16, 16, 16): lambda g, t, i: (
        g if i < 2 or 4 <= i < 6 else g + 8,
        t * 2 + (i & 1) + (0 if i < 4 else 8),
    ),
    (8, 16, 8): lambda g, t, i: (g, t * 4 + i),
    (16, 16, 8): lambda g, t, i: (g if i < 4 else g + 8, t * 4 + (i & 3)),
    (16, 32, 8): lambda g, t, i: (
        g if i < 4 or 8 <= i < 12 else g + 8,
        t * 4 + (i & 3) + (0 if i < 8 else 16),
    ),
    (8, 32, 4): lambda g, t, i: (g, t * 8 + i),
    (16, 32, 4): lambda g, t, i: (g if i < 8 else g + 8, t * 8 + (i & 7)),
    (16, 64, 4): lambda g, t, i: (
        g if i < 8 or 16 <= i < 24 else g + 8,
        t * 8 + (i & 7) + (0 if i < 16 else 32),
    ),
    (8, 128, 1): lambda g, t, i: (g, t * 32 + i),
    (16, 128, 1): lambda g, t, i: (g if i < 32 else g + 8, t * 32 + (i & 31)),
    (16, 256, 1): lambda g, t, i: (
        g if i < 32 or 64 <= i < 96 else g + 8,
        t * 32 + (i & 31) + (0 if i < 64 else 128),
    ),
}
B_RULES = {
    (4, 64): lambda g, t, i: (t, g),
    (8, 64): lambda g, t, i: (t if i == 0 else t + 4, g),
    (16, 64): lambda g, t, i: (t + i * 4, g),
    (4, 32): lambda g, t, i: (t, g),
    (8, 32): lambda g, t, i: (t if i == 0 else t + 4, g),
    (8, 16): lambda g, t, i: (t * 2 + i, g),
    (16, 16): lambda g, t, i: (t * 2 + (i & 1) + (0 if i < 2 else 8), g),
    (16, 8): lambda g, t, i: (t * 4 + i, g),
    (32, 8): lambda g, t, i: (t * 4 + (i & 3) + (0 if i < 4 else 16), g),
    (32, 4): lambda g, t, i: (t * 8 + i, g),
    (64, 4): lambda g, t, i: (t * 8 + (i & 7) + (0 if i < 8 else 32), g),
    (128, 1): lambda g, t, i: (t * 32 + i, g),
    (256, 1): lambda g, t, i: (t * 32 + (i & 31) + (0 if i < 32 else 128), g),
}


def c_rule(m, g, t, i):
    return (g, t * 2 + i) if m == 8 else (g if i < 2 else g + 8, t * 2 + (i & 1))


def expect(rows, cols, rule):
    for lane in range(32):
        for i in range(rows.shape[1]):
            assert (rows[lane, i], cols[lane, i]) == rule(lane >> 2, lane % 4, i), (lane, i)


@pytest.mark.parametrize("form", SINGLE, ids=ids)
def test_fragments_follow_the_manual_form_by_form(form):
    m, _, k = form.shape
    expect(*mma_fragment(form.shape, "A", form.a), A_RULES[m, k, dtype(form.a).bits])
    expect(*mma_fragment(form.shape, "B", form.b), B_RULES[k, dtype(form.b).bits])
    for operand, t in (("C", form.c), ("D", form.d)):
        expect(*mma_fragment(form.shape, operand, t), lambda g, lane, i: c_rule(m, g, lane, i))


@pytest.mark.parametrize("form", SINGLE, ids=ids)
def test_every_element_has_one_owner(form):
    m, n, k = form.shape
    for operand, t, extent in (("A", form.a, (m, k)), ("B", form.b, (k, n)), ("C", form.c, (m, n))):
        owners = np.zeros(extent, int)
        np.add.at(owners, mma_fragment(form.shape, operand, t), 1)
        assert (owners == 1).all(), operand


@pytest.mark.parametrize("layouts", [(a, b) for a in ("row", "col") for b in ("row", "col")])
@pytest.mark.parametrize("form", QUAD, ids=ids)
def test_m8n8k4_quad_pairs_own_a_product_each(form, layouts):
    group = quad_pair()
    assert [list(np.flatnonzero(group == q)) for q in range(4)] == [
        [4 * q + i for i in range(4)] + [16 + 4 * q + i for i in range(4)] for q in range(4)
    ]
    for operand, t, extent in (("A", form.a, (8, 4)), ("B", form.b, (4, 8)), ("C", form.c, (8, 8))):
        layout = {"A": layouts[0], "B": layouts[1]}.get(operand)
        rows, cols = mma_fragment(form.shape, operand, t, layout)
        for q in range(4):
            owners = np.zeros(extent, int)
            np.add.at(owners, (rows[group == q], cols[group == q]), 1)
            assert (owners == 1).all(), (operand, q)


def test_m8n8k4_accumulators_follow_the_manual():
    rows, cols = mma_fragment((8, 8, 4), "C", "f32")
    for lane in range(32):
        for i in range(8):
            x = (lane & 0b1) + (i & 0b10)
            assert rows[lane, i] == (x if lane < 16 else x + 4)
            assert cols[lane, i] == (i & 0b100) + (lane & 0b10) + (i & 0b1)
    rows, cols = mma_fragment((8, 8, 4), "D", "f16")
    assert (rows[:, 0] == [lane % 4 if lane < 16 else lane % 4 + 4 for lane in range(32)]).all()
    assert (cols == np.arange(8)).all()


@pytest.mark.parametrize(
    "operand,layout,rule",
    [
        ("A", "row", lambda lane, i: (lane % 4 + (4 if lane >= 16 else 0), i)),
        ("A", "col", lambda lane, i: (i % 4 + (4 if lane >= 16 else 0), lane % 4)),
        ("B", "row", lambda lane, i: (lane % 4, i + (4 if lane >= 16 else 0))),
        ("B", "col", lambda lane, i: (i, lane % 4 + (4 if lane >= 16 else 0))),
    ],
)
def test_m8n8k4_operands_follow_the_manual(operand, layout, rule):
    rows, cols = mma_fragment((8, 8, 4), operand, "f16", layout)
    for lane in range(32):
        for i in range(4):
            assert (rows[lane, i], cols[lane, i]) == rule(lane, i)


def small_integers(rng, extent, name):
    t = dtype(name)
    low, high = {"b1": (0, 2), "u4": (0, 16), "s4": (-8, 8), "u8": (0, 256), "s8": (-128, 128)}.get(name, (-3, 4))
    values = rng.integers(low, high, extent)
    return values.astype(t.numpy) if t.is_float else values


def through_registers(matrix, fragment, name):
    """The matrix as a warp holds it: scattered to lanes, packed, unpacked and put back."""
    lanes = unpack(pack(matrix[fragment], name), name)
    out = np.zeros(matrix.shape, lanes.dtype)
    out[fragment] = lanes
    return out


@pytest.mark.parametrize("form", SINGLE, ids=ids)
def test_gather_multiply_scatter_is_the_product(form):
    rng = np.random.default_rng(0)
    m, n, k = form.shape
    a, b = small_integers(rng, (m, k), form.a), small_integers(rng, (k, n), form.b)
    c = rng.integers(-9, 9, (m, n)).astype(dtype(form.c).numpy)
    held_a = through_registers(a, mma_fragment(form.shape, "A", form.a), form.a)
    held_b = through_registers(b, mma_fragment(form.shape, "B", form.b), form.b)
    assert (held_a.astype(float) == a.astype(float)).all()
    bitop = "xor" if form.a == "b1" else None
    d = mma(held_a, held_b, c, form.a, form.b, form.d, bitop=bitop)
    wide_a, wide_b = a.astype(np.int64), b.astype(np.int64)
    if bitop:
        expected = (wide_a[:, :, None] ^ wide_b[None]).sum(1) + c
    else:
        expected = wide_a @ wide_b + c.astype(np.int64)
    assert d.dtype == dtype(form.d).numpy
    assert (d.astype(np.int64) == expected).all()


@pytest.mark.parametrize("n", forms.wgmma_widths("f16"))
def test_wgmma_accumulator_follows_the_manual(n):
    rows, cols = wgmma_fragment(n, 16, "D", "f32")
    assert rows.shape == (128, n // 2)
    owners = np.zeros((64, n), int)
    np.add.at(owners, (rows, cols), 1)
    assert (owners == 1).all()
    for thread in (0, 1, 5, 31, 32, 77, 127):
        for i in range(n // 2):
            row = 16 * (thread // 32) + thread % 32 // 4 + (8 if i % 4 >= 2 else 0)
            col = 8 * (i // 4) + 2 * (thread % 4) + i % 2
            assert (rows[thread, i], cols[thread, i]) == (row, col)


@pytest.mark.parametrize("form", list(forms.forms(forms.WGMMA)), ids=ids)
def test_wgmma_register_operand_is_a_warp_fragment_for_each_16_rows(form):
    k = form.shape[2]
    rows, cols = wgmma_fragment(8, k, "A", form.a)
    assert rows.shape == (128, 64 * k // 128)
    # Four 32-bit registers whatever the type.
    assert rows.shape[1] * dtype(form.a).bits == 128
    for warp in range(4):
        part = slice(32 * warp, 32 * warp + 32)
        expect(rows[part] - 16 * warp, cols[part], A_RULES[16, k, dtype(form.a).bits])


@pytest.mark.parametrize("name", ["f64", "f32", "tf32", "f16", "bf16", "f8_e4m3", "s8", "u8", "s4", "u4", "b1"])
def test_pack_is_the_inverse_of_unpack(name):
    rng = np.random.default_rng(1)
    word = np.uint64 if name == "f64" else np.uint32
    regs = rng.integers(0, np.iinfo(word).max, (32, 4), dtype=word, endpoint=True)
    if name == "tf32":
        regs &= np.uint32(0xFFFFE000)
    values = unpack(regs, name)
    assert values.shape == (32, 4 * (word(0).itemsize * 8 // dtype(name).bits))
    assert (pack(values, name) == regs).all()


def test_unpack_numbers_elements_from_the_low_bits():
    assert unpack(np.array([0x00013C00], np.uint32), "f16")[0] == 1.0
    assert list(unpack(np.array([0x0403FF01], np.uint32), "s8")) == [1, -1, 3, 4]
    assert list(unpack(np.array([0x7654F21F], np.uint32), "s4")) == [-1, 1, 2, -1, 4, 5, 6, 7]
    assert list(unpack(np.array([0x7654F21F], np.uint32), "u4")) == [15, 1, 2, 15, 4, 5, 6, 7]
    assert list(np.flatnonzero(unpack(np.array([0x80000005], np.uint32), "b1"))) == [0, 2, 31]
    # The hardware does not look at the low 13 bits of a tf32 operand.
    assert unpack(np.array([0x3F801FFF], np.uint32), "tf32")[0] == 1.0


def ldmatrix(memory, addresses, m):
    """[32, num, 2] elements: ``addresses[lane]`` indexes rows of 8 elements of ``memory``."""
    tiles = memory[np.asarray(addresses)[m.address_lane]]
    j = np.arange(m.num)[None, :, None]
    return tiles[j, m.rows, m.cols]


def test_ldmatrix_x4_loads_an_a_fragment():
    a = np.arange(256).reshape(16, 16)
    rows8 = a.reshape(16, 2, 8).transpose(1, 0, 2).reshape(32, 8)  # row index: 16 * column block + row
    loaded = ldmatrix(rows8, np.arange(32), ldmatrix_map(4, False)).reshape(32, 8)
    assert (loaded == a[mma_fragment((16, 8, 16), "A", "f16")]).all()


def test_ldmatrix_trans_loads_a_b_fragment_from_rows_along_n():
    b = np.arange(128).reshape(16, 8)  # rows along k, each 8 elements of n
    loaded = ldmatrix(b, np.arange(32) % 16, ldmatrix_map(2, True)).reshape(32, 4)
    assert (loaded == b[mma_fragment((16, 8, 16), "B", "f16")]).all()
    # Without .trans the same fragment comes from the transposed tile: rows along n.
    halves = b.T.reshape(8, 2, 8).transpose(1, 0, 2).reshape(16, 8)
    plain = ldmatrix(halves, np.arange(32) % 16, ldmatrix_map(2, False)).reshape(32, 4)
    assert (plain == loaded).all()


@pytest.mark.parametrize("num", [1, 2, 4])
@pytest.mark.parametrize("trans", [False, True])
def test_matrix_maps_cover_every_element_once(num, trans):
    for m in (ldmatrix_map(num, trans), stmatrix_map(num, trans)):
        assert (m.address_lane.ravel() == np.arange(8 * num)).all()
        owners = np.zeros((num, 8, 8), int)
        np.add.at(owners, (np.arange(num)[None, :, None], m.rows, m.cols), 1)
        assert (owners == 1).all()
        # The manual: thread 0 holds the first two elements of a row, or of a column with .trans.
        first = [(int(r), int(c)) for r, c in zip(m.rows[0, 0], m.cols[0, 0], strict=True)]
        assert first == ([(0, 0), (1, 0)] if trans else [(0, 0), (0, 1)])


def test_maps_are_shared_and_cannot_be_written():
    rows, _ = mma_fragment((16, 8, 16), "A", "f16")
    with pytest.raises(ValueError, match="read-only"):
        rows[0, 0] = 1
