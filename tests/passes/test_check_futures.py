"""Copies without a wait: accepted forms, and the copy that the error names."""

from __future__ import annotations

import pytest

from tilemma import croqtile
from tilemma.passes.check_futures import CheckFutures, NeverWaitedFor

AT = "a.subspan(8, 64).at"


def kernel(body: str):
    text = f"__co__ void f(global f32 [M, 64] a, int n) {{\n  parallel i by 1 : block {{\n{body}\n  }}\n}}\n"
    return croqtile.load(text, "f.co", {}).sources["f"].build({}), text


START = f"f = dma.copy.async {AT}(0, 0) => shared;"
ACCEPTED = {
    "once": f"{START} wait f;",
    "in each turn": f"foreach k in n {{ g = dma.copy.async {AT}(k, 0) => shared; wait g; }}",
    "one ahead": f"""{START}
      foreach k in n {{ g = dma.copy.async {AT}(k, 0) => shared; wait f; swap(f, g); }} wait f;""",
    "two ahead": f"""{START} g = dma.copy.async {AT}(1, 0) => shared;
      foreach k in n {{ wait f; h = dma.copy.async {AT}(k + 2, 0) => shared; rotate(f, g, h); }}
      wait f, g;""",
    "both under the same condition": f"if (n > 1) {{ {START} wait f; }}",
    "a trigger": f"shared event e; {START} trigger e after f; wait e;",
    "after another copy": f"{START} dma.copy {AT}(1, 0) => shared after f;",
    "bound to an event": f"shared event e; dma.copy.async<e> {AT}(0, 0) => shared; wait e;",
    "a store": f"{START} wait f; g = dma.copy.async f.data => {AT}(1, 0); wait g;",
}  # fmt: skip
REFUSED = {
    "a store": (f"{START} wait f; g = dma.copy.async f.data => {AT}(1, 0);", "this asynchronous copy"),
    "nobody": (START, "this asynchronous copy"),
    "another name": (f"{START} g = dma.copy.async {AT}(1, 0) => shared; wait g;", "this asynchronous copy"),
    "in a loop": (f"foreach k in n {{ f = dma.copy.async {AT}(k, 0) => shared; }}", "this asynchronous copy"),
    "one ahead": (ACCEPTED["one ahead"].removesuffix(" wait f;"), "the last of these asynchronous copies"),
    "two ahead": (ACCEPTED["two ahead"].replace("wait f, g;", "wait f;"), "the last of these asynchronous copies"),
    "not swapped": (ACCEPTED["one ahead"].replace("swap(f, g);", ""), "asynchronous cop"),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_waited_for(name: str) -> None:
    built, _ = kernel(ACCEPTED[name])
    assert CheckFutures().run(built, []) is built


@pytest.mark.parametrize("name", REFUSED)
def test_left(name: str) -> None:
    body, which = REFUSED[name]
    built, text = kernel(body)
    with pytest.raises(NeverWaitedFor) as e:
        CheckFutures().run(built, [])
    assert which in e.value.message
    assert e.value.span is not None and "copy.async" in text.splitlines()[e.value.span.line - 1]
