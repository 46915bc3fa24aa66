"""The HTML of objects in notebooks: well-formed, and with the program's text escaped."""

from __future__ import annotations

import base64
import re
import sys
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import tilemma as tm
from tilemma.errors import CompileError, WrongArgument, shown_file
from tilemma.layouts import plain_layout, shared_layout
from tilemma.machine.run import Report, Verdict

TAGS = {"div", "pre", "b", "code", "details", "summary", "table", "tr", "th", "td", "img"}
EVIL = "<script>alert(1)</script> & \"'\x1b\u202e\uffff</pre>"
PROGRAM = """
__co__ auto k(f32 [N] x, f32 [N] y) { // <b>&
  parallel b by 1 : block
    foreach i in [N] { y.at(i) = x.at(i); }
}
"""


@tm.kernel
def copied(x: tm.Global["f32", "N"], y: tm.Global["f32", "N"]) -> None:  # <b>&
    for _ in tm.parallel(1, level="block"):
        for i in tm.foreach(8):
            y[i] = x[i]


def shown(value: Any) -> ElementTree.Element:
    """The parsed HTML; its images are well-formed too."""
    tree = ElementTree.fromstring(value._repr_html_())
    assert tree.tag == "div"
    assert {e.tag for e in tree.iter()} <= TAGS
    for image in tree.iter("img"):
        ElementTree.fromstring(base64.b64decode(image.attrib["src"].partition("base64,")[2]))
    return tree


def words(value: Any) -> str:
    return "".join(shown(value).itertext())


def test_errors_and_hazards_are_escaped() -> None:
    error = WrongArgument(function=EVIL, name=EVIL, got=EVIL, wanted=EVIL)
    for value in (error, Report(EVIL, 0, EVIL, hazards=[error]), Verdict(1, hazards=[error])):
        assert words(value).count("<script>alert(1)</script>") >= 4
        assert "error[wrong-argument]" in words(value)


def test_kernels_show_their_source(tmp_path: Any) -> None:
    path = tmp_path / "k.co"
    path.write_text(PROGRAM)
    assert "// <b>&" in words(tm.load(path).k)
    assert "# <b>&" in words(copied)
    with pytest.raises(CompileError) as caught:
        tm.load(path).absent  # noqa: B018
    assert "absent" in words(caught.value)


def test_plans_show_every_decision() -> None:
    compiled = copied.compile("sm_90a", sizes={"N": 8})
    plan = compiled.explain()
    assert words(compiled) == words(plan)
    assert all(d.text in words(plan) for d in plan.decisions)
    assert plan.render() in words(plan)


def test_instructions_show_a_picture_where_it_is_small() -> None:
    small, large, copy = (
        tm.atoms[n] for n in ("SM80_16x8x16_F32F16F16F32_TN", "SM90_64x256x16_F32F16F16_SS", "SM75_U32x4_LDSM_N")
    )
    assert [len(list(shown(a).iter("img"))) for a in (small, large, copy)] == [1, 0, 1]
    for atom in (small, large, copy):
        assert atom.ptx.split()[0] in words(atom) and atom.name in words(atom)
    assert len(large._repr_html_()) < 10_000


@pytest.mark.parametrize("lines", [8, 128])
def test_layouts_show_their_banks_and_what_is_left_out(lines: int) -> None:
    for layout in (shared_layout("f16", lines, 64), plain_layout("f32", lines, 4)):
        assert str(layout) in words(layout)
        assert len(list(shown(layout).iter("img"))) == 1
        assert ("the first 32 of 128 lines" in words(layout)) == (lines == 128)
    wide = plain_layout("f32", 8, 4096)
    assert not re.search("<img", wide._repr_html_())
    assert np.prod(wide.shape) == 8 * 4096


def test_modules_show_their_kernels() -> None:
    text = words(tm.loads(PROGRAM, name="<b>.co"))
    assert "<b>.co" in text and "kernel k" in text and "// <b>&" in text


def failing(t: Any) -> Any:
    return t.softmax()


@tm.kernel
def refused(x: tm.Global["f32", 16, 16]) -> None:
    for _ in tm.parallel(1, level="group"):
        failing(tm.mma.frag("f32", 16, 16))


def test_a_notebook_shows_the_frames_of_the_program_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython asks an exception for `_render_traceback_`."""
    with pytest.raises(CompileError) as caught:
        refused(np.zeros((16, 16), np.float32))
    text = "\n".join(caught.value._render_traceback_())
    assert "in refused" in text and "in failing" in text and "return t.softmax()" in text
    assert "kernels.py" not in text and "sources.py" not in text
    assert text.endswith(caught.value.render())
    monkeypatch.setenv("TILEMMA_DEBUG", "1")
    assert "kernels.py" in "\n".join(caught.value._render_traceback_())


def test_cells_of_a_notebook_have_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {"/tmp/ipykernel_7/12.py": ("Cell", "In[4]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=cells.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert shown_file("/tmp/ipykernel_7/12.py") == "In[4]"
    assert shown_file("/tmp/ipykernel_7/13.py") == "/tmp/ipykernel_7/13.py"
