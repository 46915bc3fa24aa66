"""The page with the hovering map, in a real browser where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tilemma.tools.show import show

NAME = "SM80_16x8x16_F32F16F16F32_TN"
BROWSER = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)


def test_the_page_needs_nothing_from_outside() -> None:
    page = show(NAME, format="html")
    assert "http" not in page.replace("http://www.w3.org", "")
    assert re.findall(r"<(?:link|img|iframe)|src=", page) == []
    assert page.count("</script>") == 2


def _dom(tmp_path: Path, page: str, fragment: str = "") -> str:
    if BROWSER is None:
        pytest.skip("no Chromium on PATH")
    file = tmp_path / "show.html"
    file.write_text(page)
    command = [
        *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
        f"--user-data-dir={tmp_path / 'profile'}",
        file.as_uri() + fragment,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "</html>" in done.stdout, done.stderr[-2000:]
    return done.stdout


def _lit(dom: str, css: str) -> set[str]:
    cells = re.findall(r"<td id=\"([^\"]+)\"[^>]*class=\"([^\"]*)\"", dom)
    return {name for name, classes in cells if css in classes.split()}


def _answer(dom: str) -> str:
    found = re.search(r'<div id="answer">(.*?)</div>', dom)
    assert found is not None
    return found[1]


def test_an_address_lights_an_element_and_its_lane(tmp_path: Path) -> None:
    dom = _dom(tmp_path, show(NAME, format="html"), "#A.3.5")
    assert _lit(dom, "hit") == {"A.3.5", "A.lane14.1"}
    assert _answer(dom) == "A(3, 5) is a1 of lane 14: register 0, bits 16-31"
    # Everything else of lane 14: 8 values of A, 4 of B, 4 of C, each as element and as register.
    assert len(_lit(dom, "lane")) == 2 * (8 + 4 + 4)
    assert {"B.3.4", "C.3.4", "C.lane14.3"} <= _lit(dom, "lane")


def _hover(page: str, *cells: str) -> str:
    moves = "".join(
        f"document.getElementById('{c}').dispatchEvent(new MouseEvent('mouseover', {{bubbles: true}}));"
        for c in cells
    )
    return page.replace("</body>", f"<script>{moves}</script></body>")


def test_hovering_an_element_lights_its_register_and_the_reverse(tmp_path: Path) -> None:
    page = show(NAME, format="html")
    dom = _dom(tmp_path, _hover(page, "A.0.0", "C.9.3"))
    assert _lit(dom, "hit") == {"C.9.3", "C.lane5.3"}
    assert _answer(dom) == "C(9, 3) is c3 of lane 5: register 3"
    dom = _dom(tmp_path, _hover(page, "B.lane7.2"))
    assert _lit(dom, "hit") == {"B.lane7.2", "B.1.14"}


def test_a_warpgroup_s_accumulator(tmp_path: Path) -> None:
    dom = _dom(tmp_path, show("SM90_64x16x16_F16F16F16_SS", format="html"), "#C.lane127.7")
    assert _lit(dom, "hit") == {"C.63.15", "C.lane127.7"}
    assert "A: 64x16 f16, read from shared memory" in dom
