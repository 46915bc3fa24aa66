"""The generated page and pictures are those of the catalogue as it stands."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from dev.pages.atoms import PICTURES, atoms_page
from dev.pages.proofs import read_proofs
from tilemma.atoms import catalogue
from tilemma.cute import TiledMMA
from tilemma.layouts import plain_layout, shared_layout
from tilemma.tools.show_svg import shared_svg, tiled_svg

DOCS = Path(__file__).parents[2] / "docs"
AGAIN = "run `python -m dev.pages.atoms docs`"


def test_the_page_is_current() -> None:
    assert (DOCS / "atoms.md").read_text() == atoms_page(read_proofs(DOCS / "proofs")), AGAIN


@pytest.mark.parametrize("name", PICTURES)
def test_the_pictures_are_current(name: str) -> None:
    picture = PICTURES[name]()
    assert (DOCS / "img" / name).read_text() == picture, AGAIN
    ET.fromstring(picture)


def test_the_page_names_every_family() -> None:
    page = atoms_page({})
    for atom in catalogue.values():
        assert re.sub(r"^(SM90_(?:SPARSE_)?64x)\d+(x\d+_)", r"\1N\2", atom.name) in page


def test_a_plain_tile_shows_its_conflicts_and_a_swizzled_one_none() -> None:
    plain, swizzled = (shared_svg(t) for t in (plain_layout("f16", 8, 64), shared_layout("f16", 8, 64)))
    assert plain.count('class="x">8x<') == 8
    assert 'class="x"' not in swizzled and swizzled.count(">1x<") == 8
    banks = [int(b) for b in re.findall(r">bank (\d+)<", swizzled)]
    assert sorted(banks[:8]) == sorted(banks[8:16]) and banks[:8] != banks[8:16]
    assert shared_svg(shared_layout("f16", 64, 8, "MN", 128)).count("k=") == 8


def test_a_tiled_mma_shows_warps_and_instructions() -> None:
    picture = tiled_svg(TiledMMA(catalogue["SM90_64x64x16_F16F16F16_SS"], (2, 1, 1)), (128, 128, 64))
    assert len(re.findall(r">w\d<", picture)) == 256
    assert picture.count('class="o"') == 4
    assert "256 threads, 1 x 2 x 4 instructions each" in picture
