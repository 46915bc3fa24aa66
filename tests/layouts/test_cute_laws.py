"""Laws of TiledMMA: partitions cover their tensor, fragments are dense, descriptors follow the units."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_layouts import ComposedLayout, Layout, size

from tests.sampling import examples
from tilemma.atoms import catalogue
from tilemma.cute import TiledMMA
from tilemma.errors import TilemmaError, WrongArgument
from tilemma.layouts import SwizzleAtomMisfit, canonical_atom, cute_str, shared_layout, tile_to_shape

NAMES = ["SM80_16x8x8_F32F16F16F32_TN", "SM80_16x8x16_F16F16F16F16_TN", "SM90_64x8x16_F32F16F16_RS"]


@st.composite
def cases(draw: st.DrawFn) -> tuple[TiledMMA, tuple[int, int, int]]:
    mma = TiledMMA(catalogue[draw(st.sampled_from(NAMES))], draw(st.tuples(*[st.integers(1, 2)] * 3)))
    m, n, k = (extent * draw(st.integers(1, 2)) for extent in mma.tile_shape)
    return mma, (m, n, k)


def _visited(part: object) -> list[int]:
    affine = part.inner if isinstance(part, ComposedLayout) else part
    base = part.offset if isinstance(part, ComposedLayout) else 0
    return [base + affine(i) for i in range(size(affine))]


@settings(max_examples=examples(48), deadline=None)
@given(cases(), st.sampled_from("ABC"))
def test_partitions_cover_the_tensor_as_often_as_there_are_copies(
    case: tuple[TiledMMA, tuple[int, int, int]], letter: str
) -> None:
    mma, tile = case
    if not mma.atom.operands[letter].in_registers:
        return
    axes = {"A": (0, 2), "B": (1, 2), "C": (0, 1)}[letter]
    tensor = Layout(tuple(tile[a] for a in axes))
    seen = Counter(x for t in range(mma.size) for x in _visited(mma.thr_slice(t).partition(letter, tensor)))
    # Units along the axis that the operand lacks hold the same part of it.
    (missing,) = {0, 1, 2} - set(axes)
    assert seen == Counter(dict.fromkeys(range(size(tensor)), mma.atom_layout[missing]))


@settings(max_examples=examples(48), deadline=None)
@given(cases())
def test_fragments_are_dense_and_shaped_like_their_partition(case: tuple[TiledMMA, tuple[int, int, int]]) -> None:
    mma, (m, n, k) = case
    slice_ = mma.thr_slice(mma.size - 1)
    for part, fragment in (
        (slice_.partition_C(Layout((m, n))), slice_.fragment_C),
        (slice_.partition_A(Layout((m, k))), slice_.fragment_A),
    ):
        found = fragment(part)
        assert found.shape == (part.inner if isinstance(part, ComposedLayout) else part).shape
        assert sorted(found(i) for i in range(size(found))) == list(range(size(found)))


@settings(max_examples=10, deadline=None)
@given(cases())
def test_owners_agree_with_the_record(case: tuple[TiledMMA, tuple[int, int, int]]) -> None:
    mma, tile = case
    owners = mma.owners("C", tile)
    am, an, _ = mma.atom.shape
    for row, col in itertools.product(range(0, tile[0], 5), range(0, tile[1], 3)):
        thread, value = owners[row, col]
        unit = (row // am % mma.atom_layout[0]) + mma.atom_layout[0] * (col // an % mma.atom_layout[1])
        assert thread // mma.atom.threads == unit
        inside = mma.atom.c.coordinates(thread % mma.atom.threads, value % mma.atom.c.values)
        assert inside == (row % am, col % an)


def test_descriptors_follow_the_unit() -> None:
    mma = TiledMMA(catalogue["SM90_64x64x16_F16F16F16_SS"], (2, 1, 1))
    tile = shared_layout("f16", 128, 64, "K", 128)
    for thread, row0 in ((0, 0), (127, 0), (128, 64)):
        found = dict(mma.thr_slice(thread).descriptors("A", tile.layout, "K"))
        assert list(found) == [(0, kk) for kk in range(4)]
        for (_, kk), descriptor in found.items():
            assert descriptor == tile.descriptor(row0, 16 * kk, 64, 16)
    for thread in (0, 128):
        b = dict(mma.thr_slice(thread).descriptors("B", tile.layout, "K"))
        assert b[1, 3] == tile.descriptor(64, 48, 64, 16)


def test_a_layout_that_no_descriptor_describes() -> None:
    mma = TiledMMA(catalogue["SM90_64x64x16_F16F16F16_SS"])
    with pytest.raises(SwizzleAtomMisfit, match="core matrices"):
        list(mma.thr_slice(0).descriptors("A", Layout((64, 16), (16, 1)), "K"))
    # The order of CuTe's default, M tiles first, still has one LBO and one SBO.
    tile = tile_to_shape(canonical_atom(16, "MN", 64), (128, 64))
    assert len(list(mma.thr_slice(0).descriptors("A", tile, "MN"))) == 8


def test_a_bad_atom_layout_is_refused() -> None:
    for bad in ((0, 1, 1), (1, 1)):
        with pytest.raises(WrongArgument):
            TiledMMA(catalogue[NAMES[0]], bad)


@pytest.mark.parametrize("thread", [0, 1, 7, 31])
def test_the_part_of_any_thread_is_printed(thread: int) -> None:
    mma = TiledMMA(catalogue["SM80_16x8x16_F32F16F16F32_TN"])
    plain = cute_str(mma.thr_slice(thread).partition_C(Layout((16, 8))))
    start = thread // 4 + 16 * 2 * (thread % 4)
    assert plain == ("" if thread == 0 else f"_{start} o ") + "((_2,_2),_1,_1):((_16,_8),_0,_0)"
    swizzled = mma.thr_slice(thread).partition_A(tile_to_shape(canonical_atom(16, "K", 128), (128, 64)))
    assert cute_str(swizzled).startswith("Sw<3,3,3> o _") and cute_str(swizzled).endswith(
        ":((_1,_512,_8),_1024,_16)"
    )


def test_a_composition_of_two_layouts_is_refused() -> None:
    for layout in (ComposedLayout(Layout((64, 64)), Layout((4, 4))), ComposedLayout(Layout(8), Layout(4))):
        with pytest.raises(TilemmaError, match="at most one swizzle, outermost"):
            cute_str(layout)
