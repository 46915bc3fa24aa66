"""The layouts that published notes on Hopper's wgmma print, and CuTe's partitions of them."""

from __future__ import annotations

import pytest
from tensor_layouts import Layout

from tilemma.atoms import catalogue
from tilemma.cute import TiledMMA, check_tile, tile_refusals
from tilemma.errors import WrongArgument
from tilemma.layouts import (
    Descriptor,
    InstructionMisfit,
    SwizzleAtomMisfit,
    canonical_atom,
    cute_str,
    tile_to_shape,
)

SS = catalogue["SM90_64x64x16_F16F16F16_SS"]
MMA = TiledMMA(SS)
S_A = tile_to_shape(canonical_atom(16, "MN", 128), (128, 64, 3))
G_C = Layout((128, 128), (1, 512))


def _text(layout: object) -> str:
    return cute_str(layout)


def test_mn_major_tile_of_three_stages() -> None:
    text = "Sw<3,4,3> o smem_ptr[16b](unset) o ((_64,_2),(_8,_8),_3):((_1,_512),(_64,_1024),_8192)"
    assert cute_str(S_A, 16) == text


def test_k_major_tile_coalesces() -> None:
    tile = tile_to_shape(canonical_atom(16, "K", 128), (128, 64, 3))
    assert cute_str(tile, 16) == "Sw<3,4,3> o smem_ptr[16b](unset) o (_128,_64,_3):(_64,_1,_8192)"


@pytest.mark.parametrize(
    ("major", "swizzle", "text"),
    [
        ("MN", 0, "(_8,_8):(_1,_8)"),
        ("MN", 32, "Sw<1,4,3> o smem_ptr[16b](unset) o (_16,_8):(_1,_16)"),
        ("MN", 64, "Sw<2,4,3> o smem_ptr[16b](unset) o (_32,_8):(_1,_32)"),
        ("MN", 128, "Sw<3,4,3> o smem_ptr[16b](unset) o (_64,_8):(_1,_64)"),
        ("K", 0, "(_8,_8):(_8,_1)"),
        ("K", 32, "Sw<1,4,3> o smem_ptr[16b](unset) o (_8,_16):(_16,_1)"),
        ("K", 64, "Sw<2,4,3> o smem_ptr[16b](unset) o (_8,_32):(_32,_1)"),
        ("K", 128, "Sw<3,4,3> o smem_ptr[16b](unset) o (_8,_64):(_64,_1)"),
    ],
)
def test_the_eight_canonical_atoms(major: str, swizzle: int, text: str) -> None:
    assert cute_str(canonical_atom(16, major, swizzle), 16) == text


def test_partition_of_a_in_shared_memory_is_the_same_for_every_thread() -> None:
    expected = "((_64,(_8,_2)),_2,_4,_3):((_1,(_64,_1024)),_512,_2048,_8192)"
    for thread in (0, 1, 77, 127):
        part = MMA.thr_slice(thread).partition_A(S_A)
        assert cute_str(part, 16) == "Sw<3,4,3> o smem_ptr[16b](unset) o " + expected


def test_descriptor_iterator_counts_sixteen_bytes() -> None:
    thread = MMA.thr_slice(0)
    assert _text(thread.fragment_A(thread.partition_A(S_A))) == "(_1,_2,_4,_3):(_0,_64,_256,_1024)"


def test_descriptors_are_the_iterator_applied() -> None:
    thread = MMA.thr_slice(0)
    iterator = thread.fragment_A(thread.partition_A(S_A))
    found = dict(thread.descriptors("A", S_A, "MN"))
    assert len(found) == 2 * 4 * 3
    assert found[0, 0, 0] == Descriptor(start=0, lbo=64 * 16, sbo=128 * 16, swizzle=128)
    for index, descriptor in found.items():
        assert descriptor == found[0, 0, 0].at(16 * iterator((0, *index)))


def test_partition_of_the_accumulator() -> None:
    thread = MMA.thr_slice(0)
    part = thread.partition_C(G_C)
    assert _text(part) == "((_2,_2,_8),_2,_2):((_512,_8,_4096),_64,_32768)"
    assert _text(thread.fragment_C(part)) == "((_2,_2,_8),_2,_2):((_1,_2,_4),_32,_64)"


def test_sixteen_issues_a_stage() -> None:
    assert MMA.repetitions((128, 128, 64)) == (2, 2, 4)
    assert MMA.issues((128, 128, 64)) == 16


def test_size_counts_threads() -> None:
    assert MMA.size == 128
    assert TiledMMA(SS, (2, 1, 1)).size == 256
    with pytest.raises(WrongArgument):
        MMA.thr_slice(128)


@pytest.mark.parametrize(("swizzle", "inner", "k_stride"), [(0, 8, None), (32, 16, 8), (64, 32, 8), (128, 64, 8)])
def test_core_matrices_of_a_k_major_operand(swizzle: int, inner: int, k_stride: int | None) -> None:
    """The table of interleavings: the next row is 1, 2, 4, 8 core-matrix rows of T = 8 elements away, and the
    next core matrix along K is T elements away once there is a swizzle."""
    tile = tile_to_shape(canonical_atom(16, "K", swizzle), (64, max(16, inner)))
    affine = tile.inner if swizzle else tile
    assert affine((1, 0)) == inner
    assert affine((8, 0)) == 8 * inner
    assert affine((0, 8)) == (k_stride or 8 * 64)


class TestTwoConstraints:
    """The instruction's constraint on a tile and the shared-memory atom's are different rules."""

    @pytest.mark.parametrize("swizzle", [128, 64, 32, 0])
    def test_a_tile_that_satisfies_both(self, swizzle: int) -> None:
        assert tile_refusals(SS, (128, 128, 64), ("MN", swizzle), ("MN", swizzle)) == ()

    def test_bm_32_satisfies_the_swizzle_atom_but_not_the_instruction(self) -> None:
        (refusal,) = tile_refusals(SS, (32, 128, 64), ("MN", 32), ("MN", 32))
        assert isinstance(refusal, InstructionMisfit)
        assert "M = 32" in refusal.message

    def test_k_32_satisfies_the_instruction_but_not_the_swizzle_atom(self) -> None:
        refusals = tile_refusals(SS, (128, 128, 32), ("K", 128), ("MN", 128))
        assert [type(r) for r in refusals] == [SwizzleAtomMisfit]
        assert "K = 32" in refusals[0].message

    def test_fp8_is_never_read_mn_major(self) -> None:
        import dataclasses

        from tilemma.dtypes import e4m3

        a = dataclasses.replace(SS.a, dtype=e4m3, shape=(64, 32))
        b = dataclasses.replace(SS.b, dtype=e4m3, shape=(64, 32))
        fp8 = dataclasses.replace(SS, shape=(64, 64, 32), a=a, b=b)
        refusals = tile_refusals(fp8, (64, 64, 64), ("MN", 128), None)
        assert [type(r) for r in refusals] == [InstructionMisfit, SwizzleAtomMisfit]
        assert "K-major only" in refusals[0].message
        assert "M = 64 is no multiple of 128" in refusals[1].message
        assert tile_refusals(fp8, (64, 64, 128), ("K", 128), ("K", 128)) == ()

    def test_the_error_lists_all_of_them(self) -> None:
        with pytest.raises(InstructionMisfit) as e:
            check_tile(SS, (32, 128, 24), ("K", 128), ("MN", 128))
        assert {r.candidate for r in e.value.refusals} == {"tile-instruction", "tile-swizzle-atom"}
        check_tile(SS, (128, 128, 64), ("K", 128), ("MN", 128))

    def test_partitions_refuse_what_the_instruction_does_not_divide(self) -> None:
        with pytest.raises(InstructionMisfit):
            MMA.thr_slice(0).partition_C(Layout((96, 64)))
        with pytest.raises(InstructionMisfit):
            TiledMMA(SS, (2, 1, 1)).repetitions((64, 64, 16))


def test_two_warpgroups_split_the_rows() -> None:
    mma = TiledMMA(SS, (2, 1, 1))
    owners = mma.owners("C", (128, 64, 16))
    assert owners[63, 0].tolist() == [96 + 28, 2]
    assert owners[64, 0].tolist() == [128, 0]
    assert (owners[:64, :, 0] < 128).all() and (owners[64:, :, 0] >= 128).all()


def test_partitions_of_a_warp_instruction() -> None:
    mma = TiledMMA(catalogue["SM80_16x8x16_F32F16F16F32_TN"])
    shapes = []
    for thread in range(32):
        slice_ = mma.thr_slice(thread)
        a = slice_.partition_A(Layout((16, 16), (16, 1)))
        c = slice_.partition_C(Layout((16, 8)))
        shapes.append((len(slice_.fragment_A(a)), len(slice_.fragment_C(c))))
    assert set(shapes) == {(8, 4)}
