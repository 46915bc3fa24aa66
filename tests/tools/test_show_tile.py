"""Tiles shown as text and pictures."""

from __future__ import annotations

import itertools

import pytest

from tilemma.layouts import InstructionMisfit, SwizzleAtomMisfit, plain_layout, shared_layout
from tilemma.tools.show import NoSuchFormat
from tilemma.tools.show_tile import BadTile, core_matrices, shared_tile, show_shared, show_tile

SS = "SM90_64x64x16_F16F16F16_SS"


def test_a_tiled_mma_as_text() -> None:
    text = show_tile(SS, "128x128x64", "2x1x1")
    assert "256 threads; each unit issues 1 x 2 x 4 = 8 instructions" in text
    rows = [line for line in text.splitlines() if line.startswith("  m=")]
    assert len(rows) == 16
    assert rows[0].split()[1:] == ["0"] * 16 and rows[15].split()[1:] == ["7"] * 16
    assert show_tile(SS, "128,128,64", format="svg").startswith("<svg")


@pytest.mark.parametrize(
    ("spec", "tile"),
    [
        ("f16,128x64", shared_layout("f16", 128, 64, "K", 128)),
        ("f16,128x64,MN,32", shared_layout("f16", 128, 64, "MN", 32)),
        ("f8_e4m3, 16x32, K, 0", shared_layout("f8_e4m3", 16, 32, "K", 0)),
        ("f16,16x64,plain", plain_layout("f16", 16, 64)),
        ("f16,16x64,mn,pad=8", plain_layout("f16", 16, 64, "MN", 8)),
    ],
)
def test_a_tile_by_its_words(spec: str, tile: object) -> None:
    assert shared_tile(spec) == tile


def test_banks_as_text() -> None:
    assert "8x" in show_shared("f16,16x64,plain")
    swizzled = show_shared("f16,16x64")
    assert "8x" not in swizzled.replace("8x8", "") and "1x" in swizzled
    assert "Sw<3,4,3> o smem_ptr[16b](unset) o (_16,_64):(_64,_1)" in swizzled
    assert show_shared("f16,16x64", "svg").startswith("<svg")


class TestBadInput:
    @pytest.mark.parametrize(
        "spec", ["", "f16", "half64,8x8", "f16,8", "f16,8x64,K,100", "f16,8x64,K,128,7", "f16,0x8"]
    )
    def test_tiles(self, spec: str) -> None:
        with pytest.raises(BadTile):
            shared_tile(spec)

    def test_misfits_name_the_rule(self) -> None:
        with pytest.raises(SwizzleAtomMisfit, match="32 elements along K"):
            show_shared("f16,64x32,K,128")
        with pytest.raises(InstructionMisfit, match="M = 96"):
            show_tile(SS, "96x64x64")
        with pytest.raises(BadTile):
            show_tile(SS, "128x128")
        with pytest.raises(BadTile):
            show_tile("SM75_U32x4_LDSM_N", "128x128x64")
        with pytest.raises(NoSuchFormat):
            show_tile(SS, "64x64x16", format="csv")


@pytest.mark.parametrize(
    "spec", ["f16,64x128,K,128", "f16,128x16,MN,64", "bf16,16x32,K,0", "f8_e4m3,64x64,K,32", "tf32,8x64,K,128"]
)
def test_core_matrices_lie_in_their_atoms(spec: str) -> None:
    tile = shared_tile(spec)
    width = max(tile.swizzle, 16)
    found = core_matrices(tile)
    step = 128 // tile.dtype.bits
    for i, row in enumerate(found):
        for j, (atom, matrix) in enumerate(row):
            for line, x in itertools.product(range(8 * i, 8 * i + 8), range(step * j, step * j + step)):
                at = tile.offset(line, x) if tile.major == "K" else tile.offset(x, line)
                assert at // (8 * width) == atom and 0 <= matrix < width // 16
    every = [place for row in found for place in row]
    assert len(set(every)) == len(every)
    assert "core matrices" in show_shared(spec)


def test_a_padded_tile_has_no_core_matrices() -> None:
    assert "core matrices" not in show_shared("f16,64x64,K,pad=8")
