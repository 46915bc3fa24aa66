"""The page of a kernel: its content, its limits, and its script in a real browser where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import NARROW, ask
from click.testing import CliRunner

import tilemma as tm
from tilemma.cli import main
from tilemma.errors import WrongArgumentType
from tilemma.ir.tile import Parallel
from tilemma.tools import picture
from tilemma.tools.picture import PictureTooLarge, draw, program
from tilemma.tools.picture.model import spelled
from tilemma.tools.problem import read_module

ROOT = Path(__file__).parents[2]
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
HOSTILE = """
__co__ void k(global f32 [N] x, global f32 [N] y) { // EVIL
  parallel b by 1 : block {
    shared f32 [8] s;
    foreach i in 8 { s.at(i) = x.at(i); }
    foreach i in 8 { y.at(i) = s.at(i); }
  }
}
""".replace("EVIL", EVIL)


@pytest.fixture(scope="module")
def kernel() -> Any:
    return tm.load(ROOT / "examples" / "co" / "warp_specialized.co").warp_specialized


@pytest.fixture(scope="module")
def page(kernel: Any) -> str:
    return draw(kernel, {}, shape="M=128,N=256,K=192").html


class Elements(HTMLParser):
    """The start tags of a page; every element that needs an end has one."""

    VOID = frozenset({"meta", "input", "img", "br", "path", "rect"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def having(self, name: str) -> list[str]:
        return [a[name] or "" for _, a in self.found if name in a]


def test_the_page_needs_nothing_from_outside(page: str) -> None:
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert not re.findall(r"<(?:link|img|iframe|object)|\bsrc=|@import|url\((?!#)", page)
    assert page.count("</script>") == 2


def test_every_part_of_the_program_is_there(page: str) -> None:
    elements = Elements(page)
    assert {"lhs_s[0]", "lhs_s[3]", "rhs_s[2]", "full", "empty", "output_s"} <= set(elements.having("data-n"))
    assert {"0,0,0"} == set(elements.having("data-block"))
    sections = [a["id"] for tag, a in elements.found if tag == "section"]
    assert sections == ["plan", "grid", "warps", "memory", "fragments", "timeline"]
    for text in (
        "wg == 0",
        "wg &gt;= 1",
        "full[1]",
        "copies into lhs_s[0]",
        "warpgroup 2",
        "24 registers a thread",
    ):
        assert text in page
    assert "mbarrier 0x" not in page


def test_acts_have_names_of_the_program() -> None:
    """Also where the compiler pipelines: it keeps slots and tiles, and makes second indices."""
    compiled = tm.load(ROOT / "examples" / "co" / "plain.co").only().compile("sm_90a")
    [block] = [op for op in compiled.kernel.body if isinstance(op, Parallel)]
    found = program.roles(block, compiled.launches[0].block[0])
    texts = [act.text for role in found for act in role.acts] + [
        i for x in program.levels(block) for i in x.indices
    ]
    assert "trigger empty[the slot before]" in texts
    assert any(text.startswith("mc of the tile before => output_s") for text in texts)
    assert [text for text in texts if re.search(r"[a-z_]\.(?!at\()", text)] == []


def test_every_link_leads_to_a_line_of_the_source(page: str, kernel: Any) -> None:
    elements = Elements(page)
    text = (ROOT / "examples" / "co" / "warp_specialized.co").read_text().split("\n")
    lines = {int(n) for n in elements.having("data-l")}
    assert lines <= set(range(1, len(text) + 1))
    # What the machine did, and the code, at the lines of the copies and the multiply.
    for wanted in ("tma.copy.async<full[k % STAGES]> lhs", "mma.row.row", "wait full"):
        line = next(i for i, x in enumerate(text, 1) if wanted in x)
        assert page.count(f'data-l="{line}"') > 3, wanted


def test_hostile_text_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "k.co"
    path.write_text(HOSTILE)
    page = draw(tm.load(path).k, {}, shape="N=8").html
    tags = [tag for tag, _ in Elements(page).found]
    assert tags.count("script") == 2 and "img" not in tags
    assert "alert(1)" in page


def test_a_kernel_without_its_scalars_says_why_it_has_no_run() -> None:
    page = draw(tm.load(ROOT / "examples" / "co" / "attention_roles.co").attention_roles, {}).html
    assert "There is no run on the PTX machine" in page and "scale" in page
    Elements(page)


def test_a_kernel_that_is_compiled_for_its_sizes_needs_no_scalars_to_be_drawn() -> None:
    page = draw(tm.load(ROOT / "examples" / "gallery" / "layer_norm.co").layer_norm, {}).html
    assert "There is no run on the PTX machine" in page and "no value for" in page


def test_sizes_have_a_limit_that_the_error_names(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "MAX_PAGE", 1000)
    with pytest.raises(PictureTooLarge, match=r"at most 1000 characters"):
        draw(kernel, {}, shape="M=128,N=256,K=64")


def test_timelines_that_are_left_out_are_counted(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture.run, "MAX_BARS", 100)
    page = draw(kernel, {}, shape="M=256,N=512,K=64").html
    assert "Of 3 more blocks the page has no timeline" in page


def test_python_and_the_command_line(tmp_path: Path) -> None:
    kernel = read_module(str(ROOT / "examples" / "py" / "hello_mma.py"), {}).micro_gemm
    shown = kernel.show(arch="sm_80")
    assert "sm_80" in shown.html and "<iframe" in shown._repr_html_() and len(repr(shown)) < 100
    assert shown.save(tmp_path / "a.html") and (tmp_path / "a.html").read_text() == shown.html
    with pytest.raises(WrongArgumentType):
        kernel.show(shape="M=8")
    out = tmp_path / "b.html"
    done = CliRunner().invoke(
        main, ["show", str(ROOT / "examples/py/hello_mma.py"), "micro_gemm", "--html", "-o", str(out)]
    )
    assert done.exit_code == 0 and "b.html" in done.output and out.read_text().startswith("<!DOCTYPE html>")
    refused = CliRunner().invoke(main, ["show", str(ROOT / "examples/py/hello_mma.py"), "micro_gemm"])
    assert refused.exit_code == 2 and "--html" in refused.output


def test_the_script_is_javascript() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on PATH")
    path = Path(picture.__file__).parent / "page.js"
    subprocess.run([node, "--check", str(path)], check=True, timeout=60)


@pytest.mark.parametrize("width", [NARROW, 1500])
def test_nothing_overflows_sideways(page: str, tmp_path: Path, width: int) -> None:
    wide, room, columns = ask(
        tmp_path,
        page,
        "return [document.documentElement.scrollWidth, innerWidth,"
        " getComputedStyle(document.getElementById('columns')).gridTemplateColumns.split(' ').length]",
        width,
    )
    assert wide <= room == width
    assert columns == (1 if width == NARROW else 2)


def test_a_click_pins_a_line_everywhere_and_escape_unpins_it(page: str, tmp_path: Path) -> None:
    said = ask(
        tmp_path,
        page,
        "const press = key => document.body.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));"
        "const counts = () => all('.pinned').map(e => e.closest('.strip') ? 'bar' :"
        " e.closest('.code') ? 'code' + e.parentElement.dataset.code : 'other').sort();"
        "document.querySelector('.act.multiply').click();"
        "const first = counts(), said = byId('status').textContent;"
        "press('j'); const next = counts().length; press('Escape'); return [first, said, next, counts().length]",
    )
    first, status, after_j, after_escape = said
    assert {"bar", "code0", "code1", "other"} <= set(first)
    assert "mma.row.row" in status and "lines of PTX" in status
    assert after_j > 0 and after_escape == 0


def test_search_theme_zoom_and_lanes_by_keyboard(page: str, tmp_path: Path) -> None:
    said = ask(
        tmp_path,
        page,
        "const press = (key, on) => (on || document.body).dispatchEvent(new KeyboardEvent('keydown',"
        " {key, bubbles: true})); const box = byId('search');"
        "press('/'); const focused = document.activeElement === box; box.value = 'wgmma.mma_async';"
        "box.dispatchEvent(new Event('input')); const found = byId('found').textContent; press('Enter', box);"
        "const pane = all('.code').find(p => !p.hidden).dataset.code; box.blur();"
        "const theme = document.documentElement.dataset.theme; press('t');"
        "const other = document.documentElement.dataset.theme;"
        "const svg = document.querySelector('.strip svg'), before = svg.getAttribute('width'); press('+');"
        "const after = svg.getAttribute('width'); press('0'); const back = svg.getAttribute('width');"
        "const map = byId('canvas'); map.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}));"
        "return [focused, found, pane, [theme, other], [before, after, back].map(Number),"
        " byId('element').textContent, byId('lane').value]",
    )
    focused, found, pane, themes, widths, element, lane = said
    assert focused and re.fullmatch(r"[1-9]\d* found", found) and pane == "1"
    assert set(themes) == {"light", "dark"}
    assert widths[0] < widths[1] and abs(widths[0] - widths[2]) < 1
    assert element == "C(0, 1): warp 0, lane 0, c1, f32 register 1" and lane == "0"


def test_an_address_opens_with_its_line_pinned(page: str, tmp_path: Path) -> None:
    assert ask(tmp_path, page, "return pinned", fragment="#line-18") == 18


def test_each_block_s_timeline_is_complete_when_it_is_shown(kernel: Any, tmp_path: Path) -> None:
    page = draw(kernel, {}, shape="M=256,N=256,K=64").html
    ids = re.findall(r'<pattern id="([^"]+)"', page)
    assert len(ids) == len(set(ids)) == 2
    shown = ask(
        tmp_path,
        page,
        "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: ']', bubbles: true}));"
        "const strips = all('.strip').filter(s => !s.hidden), bar = strips[0].querySelector('rect[fill^=url]');"
        "return [strips.length, strips[0].dataset.block,"
        " !!strips[0].querySelector(bar.getAttribute('fill').slice(4, -1))]",
    )
    assert shown == [1, "0,1,0", True]


def test_sizes_of_a_launch_are_formulas() -> None:
    size = ("cdiv", ("max", ("wrap", ("mul", ("cdiv", "N", 64), ("add", "M", 1))), 1), 66)
    assert spelled(size) == "cdiv(max(cdiv(N, 64) * (M + 1), 1), 66)"


def test_pictures_fit_their_frames_in_a_common_window(page: str, tmp_path: Path) -> None:
    cut = ask(
        tmp_path,
        page,
        "return all('.scroll').filter(e => e.scrollWidth > e.clientWidth + 1 && e.querySelector('svg'))"
        ".map(e => (e.querySelector('svg').getAttribute('aria-label') || 'svg') + ' ' + e.scrollWidth)",
        1280,
    )
    assert cut == []
