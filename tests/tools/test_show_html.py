"""The page with the hovering map, in a real browser where there is one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from browser import NARROW, ask, dom

from tilemma.tools.show import show
from tilemma.tools.show_tile import show_shared, show_tile

NAME = "SM80_16x8x16_F32F16F16F32_TN"


def test_the_page_needs_nothing_from_outside() -> None:
    page = show(NAME, format="html")
    assert "http" not in page.replace("http://www.w3.org", "")
    assert re.findall(r"<(?:link|img|iframe)|src=", page) == []
    assert page.count("</script>") == 2


def _lit(dom: str, css: str) -> set[str]:
    cells = re.findall(r"<td id=\"([^\"]+)\"[^>]*class=\"([^\"]*)\"", dom)
    return {name for name, classes in cells if css in classes.split()}


def _answer(dom: str) -> str:
    found = re.search(r'<div id="answer">(.*?)</div>', dom)
    assert found is not None
    return found[1]


def test_an_address_lights_an_element_and_its_lane(tmp_path: Path) -> None:
    document = dom(tmp_path, show(NAME, format="html"), "#A.3.5")
    assert _lit(document, "hit") == {"A.3.5", "A.lane14.1"}
    assert _answer(document) == "A(3, 5) is a1 of lane 14: register 0, bits 16-31"
    # Everything else of lane 14: 8 values of A, 4 of B, 4 of C, each as element and as register.
    assert len(_lit(document, "lane")) == 2 * (8 + 4 + 4)
    assert {"B.3.4", "C.3.4", "C.lane14.3"} <= _lit(document, "lane")


def _hover(page: str, *cells: str) -> str:
    moves = "".join(
        f"document.getElementById('{c}').dispatchEvent(new MouseEvent('mouseover', {{bubbles: true}}));"
        for c in cells
    )
    return page.replace("</body>", f"<script>{moves}</script></body>")


def test_hovering_an_element_lights_its_register_and_the_reverse(tmp_path: Path) -> None:
    page = show(NAME, format="html")
    document = dom(tmp_path, _hover(page, "A.0.0", "C.9.3"))
    assert _lit(document, "hit") == {"C.9.3", "C.lane5.3"}
    assert _answer(document) == "C(9, 3) is c3 of lane 5: register 3"
    document = dom(tmp_path, _hover(page, "B.lane7.2"))
    assert _lit(document, "hit") == {"B.lane7.2", "B.1.14"}


def test_a_warpgroup_s_accumulator(tmp_path: Path) -> None:
    document = dom(tmp_path, show("SM90_64x16x16_F16F16F16_SS", format="html"), "#C.lane127.7")
    assert _lit(document, "hit") == {"C.63.15", "C.lane127.7"}
    assert "A: 64x16 f16, read from shared memory" in document


# Chromium takes seconds for a page of 256 columns.
@pytest.mark.parametrize(
    "name, width",
    [
        ("SM90_64x64x16_F32F16F16_RS", NARROW),
        ("SM90_64x256x16_F32F16F16_SS", 1500),
        pytest.param("SM90_64x64x16_F32F16F16_RS", 1500, marks=pytest.mark.slow),
        pytest.param("SM90_64x256x16_F32F16F16_SS", NARROW, marks=pytest.mark.slow),
    ],
)
def test_wide_instructions_scroll_inside_the_page(tmp_path: Path, name: str, width: int) -> None:
    wide, room = ask(
        tmp_path, show(name, format="html"), "return [document.documentElement.scrollWidth, innerWidth]", width
    )
    assert wide <= room == width


def test_tiles_are_pages_too(tmp_path: Path) -> None:
    pages = [show_tile(NAME, "128x128x64", "2x2x1", "html"), show_shared("f16,128x64,K,128", "html")]
    for page in pages:
        assert page.count("<svg") == 1 and "http" not in page.replace("http://www.w3.org/2000/svg", "")
    # The page has every line; the picture alone says how many it leaves out.
    assert "mn=127" in pages[1] and "not shown" not in pages[1]
    assert "lines 0 to 31 of 128: 96 more, not shown" in show_shared("f16,128x64,K,128", "svg")


def test_warps_have_colours_of_their_own() -> None:
    drawn = show_tile(NAME, "128x128x64", "2x2x1", "svg")
    fills = re.findall(r'fill="(#[0-9a-f]{6})"/>\s*<text[^>]*>w(\d)<', drawn)
    colours = {warp: colour for colour, warp in fills}
    rgb = [[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in colours.values()]
    assert len(rgb) == 4
    assert all(max(abs(a - b) for a, b in zip(p, q, strict=True)) > 40 for p in rgb for q in rgb if p is not q)
