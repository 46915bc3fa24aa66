"""Advice followed word by word: a replacement in the refused program, in both languages, and it compiles."""

from __future__ import annotations

from typing import Any

import pytest
from test_advice import co, py, refusal

PARAMS = (
    "global f16 [64, 64] b, global f32 [64, 64] c, int n",
    'b: tm.Global["f16", 64, 64], c: tm.Global["f32", 64, 64], n: tm.Int',
)
# (code, part of the advice in each language, refused statements of a block, what replaces what), Croqtile and Python.
Case = tuple[str, tuple[str, str], tuple[str, str], tuple[tuple[str, str], tuple[str, str]]]
CASES: list[Case] = [
    ("tile-without-layout", ("`frag f32[64, 64] m {0.0f};`", '`m = mma.frag("f32", 64, 64, init=0.0)`'),
     ("parallel w by 1 : group { m = mma.fill.f32 0.0f; mma.store m, c.view(n, 64).from(0, 0); }",
      "for w in parallel(1, level='group'):\n    m = mma.fill(0.0, 'f32')\n    mma.store(m, c.view(n, 64).from_(0, 0))"),
     (("m = mma.fill.f32 0.0f;", "frag f32[64, 64] m {0.0f};"),
      ("mma.fill(0.0, 'f32')", "mma.frag('f32', 64, 64, init=0.0)"))),
    ("tile-shape-unknown", ("frag f32[64, 128] m {0.0f}", 'mma.frag("f32", 64, 128, init=0.0)'),
     ("parallel w by 1 : group { m = mma.fill.f32 0.0f; m = m + 1.0f; }",
      "for w in parallel(1, level='group'):\n    m = mma.fill(0.0, 'f32')\n    m += 1.0"),
     (("m = mma.fill.f32 0.0f;", "frag f32[64, 128] m {0.0f};"),
      ("mma.fill(0.0, 'f32')", 'mma.frag("f32", 64, 128, init=0.0)'))),
    ("wrong-value", ("`__to<s32>(x)`", "`.astype('s32')`"),
     ("mutable int y = 0; y = c.at(0, 0); c.at(0, 0) = y;", "y = var(0)\ny.set(c[0, 0])\nc[0, 0] = y"),
     (("y = c.at(0, 0)", "y = __to<s32>(c.at(0, 0))"), ("y.set(c[0, 0])", "y.set(c[0, 0].astype('s32'))"))),
    ("copy-option", ("write `tma.copy`",) * 2,
     ("f = dma.copy.promote<128> b => shared;", "f = dma.copy(b, to='shared', promote=128)"),
     (("dma.copy", "tma.copy"),) * 2),
    ("bits-of-floats", ("use an integer array",) * 2,
     ("shared f32 [4] s; __atomic_or(s.at(0), 1);", "s = shared('f32', 4)\natomic.or_(s[0], 1)"),
     (("f32 [4]", "u32 [4]"), ("'f32', 4", "'u32', 4"))),
    ("atomic-type", ("use an array of s32",) * 2,
     ("shared s8 [4] s; __atomic_add(s.at(0), 1);", "s = shared('s8', 4)\natomic.add(s[0], 1)"),
     (("s8 [4]", "s32 [4]"), ("'s8', 4", "'s32', 4"))),
    ("extents-not-known", ("`subspan(h, w).at(i, j)`, with constants",) * 2,
     ("f = dma.copy b.view(p + 1, 64).from(0, 0) => shared;", "f = dma.copy(b.view(p + 1, 64).from_(0, 0), to='shared')"),
     (("b.view(p + 1, 64).from(0, 0)", "b.subspan(16, 64).at(0, 0)"), ("b.view(p + 1, 64).from_(0, 0)", "b.subspan(16, 64).at(0, 0)"))),
    ("element-count", ("make the product of the new extents 4096",) * 2,
     ("f = dma.copy b.span_as(64, 63) => shared;", "f = dma.copy(b.span_as(64, 63), to='shared')"),
     (("64, 63", "32, 128"),) * 2),
    ("span-as-not-contiguous", ("apply `span_as` to `b` itself and cut the view from the result",) * 2,
     ("f = dma.copy b.subspan(16, 16).at(0, 0).span_as(256) => shared;",
      "f = dma.copy(b.subspan(16, 16).at(0, 0).span_as(256), to='shared')"),
     (("b.subspan(16, 16).at(0, 0).span_as(256)", "b.span_as(4096).subspan(256).at(0)"),) * 2),
    ("unbounded-chunk-index", ("use `subspan(h, w).at(i, j)`",) * 2,
     ("f = dma.copy b.chunkat(n, _) => shared;", "f = dma.copy(b.chunkat(n, full), to='shared')"),
     (("b.chunkat(n, _)", "b.subspan(16, 64).at(n, 0)"), ("b.chunkat(n, full)", "b.subspan(16, 64).at(n, 0)"))),
    ("chunk-does-not-divide", ("use `subspan(",) * 2,
     ("foreach i in 3 { c.at(0, 0) = b.subspan(10, 64).at(0, 0).chunkat(i, _).at(0, 0); }",
      "for i in foreach(3):\n    c[0, 0] = b.subspan(10, 64).at(0, 0).chunkat(i, full)[0, 0]"),
     ((".chunkat(i, _)", ".subspan(5, 64).at(i, 0)"), (".chunkat(i, full)", ".subspan(5, 64).at(i, 0)"))),
    ("copy-types", ("declare `s` as f16",) * 2,
     ("shared f32 [64, 64] s; dma.copy b => s;", "s = shared('f32', 64, 64)\ndma.copy(b, s)"),
     (("shared f32", "shared f16"), ("'f32'", "'f16'"))),
    ("copy-extents", ("take a tile of the buffer's extents on the other side: `.subspan(16, 64).at(...)`",) * 2,
     ("shared f16 [16, 64] s; dma.copy b => s;", "s = shared('f16', 16, 64)\ndma.copy(b, s)"),
     (("copy b", "copy b.subspan(16, 64).at(0, 0)"), ("copy(b", "copy(b.subspan(16, 64).at(0, 0)"))),
    ("operand-shape", ("cut it with `subspan(h, w).at(i, j)`",) * 2,
     ("parallel w by 1 : group { x = mma.load b.view(n, 64).from(0, 0); y = mma.load b; m = mma.fill.f32 0.0f;"
      " mma.row.row m, x, y; mma.store m, c; }",
      "for w in parallel(1, level='group'):\n    x, y = mma.load(b.view(n, 64).from_(0, 0)), mma.load(b)\n"
      "    m = mma.fill(0.0, 'f32')\n    mma.row.row(m, x, y)\n    mma.store(m, c)"),
     (("b.view(n, 64).from(0, 0)", "b.subspan(64, 64).at(0, 0)"),
      ("b.view(n, 64).from_(0, 0)", "b.subspan(64, 64).at(0, 0)"))),
    ("fragment-roles", ("load or fill a second fragment",) * 2,
     ("parallel w by 1 : group { x = mma.load b; m = mma.fill.f32 0.0f; mma.row.row m, x, x; mma.store m, c; }",
      "for w in parallel(1, level='group'):\n    x, m = mma.load(b), mma.fill(0.0, 'f32')\n    mma.row.row(m, x, x)\n"
      "    mma.store(m, c)"),
     (("mma.row.row m, x, x;", "y = mma.load b; mma.row.row m, x, y;"),
      ("mma.row.row(m, x, x)", "y = mma.load(b)\n    mma.row.row(m, x, y)"))),
    ("swizzle-conflict", ("use one of the two everywhere",) * 2,
     ("f = dma.copy.swiz<64> b => shared; parallel w by 1 : group { m = mma.load.swiz<128> f.data; }",
      "f = dma.copy(b, to='shared', swizzle=64)\nfor w in parallel(1, level='group'):\n    m = mma.load(f.data, swizzle=128)"),
     (("swiz<64>", "swiz<128>"), ("swizzle=64", "swizzle=128"))),
    ("too-many-threads", ("use fewer or smaller groups",) * 2,
     ("parallel t by 2000 : thread { c.at(0, 0) = 1.0f; }", "for t in parallel(2000, level='thread'):\n    c[0, 0] = 1.0"),
     (("2000", "256"),) * 2),
    ("level-extent", ("use a constant there and loop over the rest",) * 2,
     ("parallel t by n : thread { c.at(0, t) = 1.0f; }", "for t in parallel(n, level='thread'):\n    c[0, t] = 1.0"),
     (("parallel t by n : thread { c.at(0, t)", "parallel t by 32 : thread { foreach i in cdiv(n, 32) c.at(0, i # t)"),
      ("parallel(n, level='thread'):\n    c[0, t]", "parallel(32, level='thread'):\n    for i in foreach(cdiv(n, 32)):\n        c[0, compose(i, t)]"))),
    ("collective-lanes", ("move it out of the `: thread` level", 'move it out of the `parallel` with `level="thread"`'),
     ("parallel w by 1 : group { frag f32[64, 64] m {0.0f}; parallel t by 16 : thread { mma.store m, c; } }",
      "for w in parallel(1, level='group'):\n    m = mma.frag('f32', 64, 64, init=0.0)\n"
      "    for t in parallel(16, level='thread'):\n        mma.store(m, c)"),
     (("parallel t by 16 : thread { mma.store m, c; }", "mma.store m, c;"),
      ("    for t in parallel(16, level='thread'):\n        mma.store(m, c)", "    mma.store(m, c)"))),
    ("lanes-apart", ("move it out of the `: thread` level", 'move it out of the `parallel` with `level="thread"`'),
     ("shared event e = ready; parallel w by 1 : group { parallel t by 16 : thread { wait e; c.at(0, t) = 1.0f; } trigger e; }",
      "e = event(ready=True)\nfor w in parallel(1, level='group'):\n    for t in parallel(16, level='thread'):\n"
      "        wait(e)\n        c[0, t] = 1.0\n    trigger(e)"),
     (("parallel t by 16 : thread { wait e;", "wait e; parallel t by 16 : thread {"),
      ("    for t in parallel(16, level='thread'):\n        wait(e)", "    wait(e)\n    for t in parallel(16, level='thread'):"))),
    ("accumulator-units", ("sum the products in two accumulators",) * 2,
     ("parallel w by 1 : group { m = mma.fill.f32 0.0f; m2 = mma.fill.f32 0.0f; x = mma.load b; mma.row.row m, x, b;"
      " y = mma.load c; mma.row.row m, y, c; mma.store m, c; mma.store m2, c; }",
      "for w in parallel(1, level='group'):\n    m, m2 = mma.fill(0.0, 'f32'), mma.fill(0.0, 'f32')\n"
      "    mma.row.row(m, mma.load(b), b)\n    mma.row.row(m, mma.load(c), c)\n    mma.store(m, c)\n    mma.store(m2, c)"),
     (("mma.row.row m, y, c", "mma.row.row m2, y, c"), ("mma.row.row(m, mma.load(c)", "mma.row.row(m2, mma.load(c)"))),
    ("fragment-several-instances", ("put it inside `parallel", "put it inside a `parallel` of the same extents and level"),
     ("mc = mma.fill.f32 0.0f; parallel w by 2 : group { mma.row.row mc, b.subspan(16, 16).at(w, 0), b.subspan(16, 16).at(0, 0); }"
      " mma.store mc, c.subspan(16, 16).at(0, 0);",
      "mc = mma.fill(0.0, 'f32')\nfor w in parallel(2, level='group'):\n"
      "    mma.row.row(mc, mma.load(b.subspan(16, 16).at(w, 0)), mma.load(b.subspan(16, 16).at(0, 0)))\n"
      "mma.store(mc, c.subspan(16, 16).at(0, 0))"),
     (("mma.store mc, c.subspan(16, 16).at(0, 0);", "parallel w by 2 : group { mma.store mc, c.subspan(16, 16).at(w, 0); }"),
      ("\nmma.store(mc, c.subspan(16, 16).at(0, 0))", "\nfor w in parallel(2, level='group'):\n    mma.store(mc, c.subspan(16, 16).at(w, 0))"))),
    ("shared-memory-limit", ("make the tiles smaller",) * 2,
     ("shared f32 [300, 300] s; foreach i in 4 { s.at(i, 0) = 1.0f; } c.at(0, 0) = s.at(n, 0);",
      "s = shared('f32', 300, 300)\nfor i in foreach(4):\n    s[i, 0] = 1.0\nc[0, 0] = s[n, 0]"),
     (("300, 300", "64, 64"),) * 2),
    ("swizzle-refused", ("leave the swizzle out",) * 2,
     ("f = tma.copy.swiz<128> b.subspan(64, 24).at(0, 0) => shared; c.at(0, 0) = f.data.at(0, 0);",
      "f = tma.copy(b.subspan(64, 24).at(0, 0), to='shared', swizzle=128)\nc[0, 0] = f.data[0, 0]"),
     ((".swiz<128>", ""), (", swizzle=128", ""))),
    ("apply-statement", ("write it before or after the `apply`",) * 2,
     ("parallel w by 1 : group { frag f32[64, 64] m {0.0f}; apply {i, j} in m.span { mma.store m, c; } }",
      "for w in parallel(1, level='group'):\n    m = mma.frag('f32', 64, 64, init=0.0)\n    for i, j in apply(m):\n        mma.store(m, c)"),
     (("apply {i, j} in m.span { mma.store m, c; }", "mma.store m, c;"),
      ("    for i, j in apply(m):\n        mma.store(m, c)", "    mma.store(m, c)"))),
]  # fmt: skip


@pytest.mark.parametrize("language", [0, 1], ids=["co", "py"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_followed_it_compiles(case: Case, language: int) -> None:
    check_followed(case, language)


def check_followed(case: Case, language: int) -> None:
    code, advice, wrong, replaced = case
    old, new = replaced[language]
    assert old in wrong[language]
    error = refusal(lambda: block(language, wrong[language]), "sm_90a")
    assert error.code == code, error.render()
    assert advice[language] in error.remedy, error.render()
    block(language, wrong[language].replace(old, new)).compile("sm_90a")


def block(language: int, statements: str) -> Any:
    if language == 0:
        return co(f"parallel p by 1 : block {{ {statements} }}", PARAMS[0])
    body = "\n".join("    " + line for line in statements.split("\n"))
    return py(f"for p in parallel(1, level='block'):\n{body}", PARAMS[1])


FOLLOWED = frozenset(c[0] for c in CASES) | {"tma-refused"}

# Tiles that the tensor memory accelerator cannot copy: (Croqtile, Python).
TMA = [
    ("tma.copy b.view(n, 64).from(0, 0) => s;", "tma.copy(b.view(n, 64).from_(0, 0), s)"),
    ("tma.copy b.subspan(32, 64 : 9, 1).at(0, 0) => s.subspan(32, 64).at(0, 0);",
     "tma.copy(b.subspan(32, 64, strides=(9, 1)).at(0, 0), s.subspan(32, 64).at(0, 0))"),
    ("tma.copy b.span_as(64, 64) => s;", "tma.copy(b.span_as(64, 64), s)"),
    ("tma.copy b.subspan(64, 15).at(0, 0) => s.subspan(64, 15).at(0, 0);",
     "tma.copy(b.subspan(64, 15).at(0, 0), s.subspan(64, 15).at(0, 0))"),
    ("shared f16 [64, 64] t; tma.copy s => t;", "t = shared('f16', 64, 64)\ntma.copy(s, t)"),
]  # fmt: skip


@pytest.mark.parametrize("language", [0, 1], ids=["co", "py"])
@pytest.mark.parametrize("case", TMA, ids=lambda c: c[0])
def test_dma_copies_what_tma_cannot(case: tuple[str, str], language: int) -> None:
    """`tma` replaced by `dma`, as the advice says, gives a program that compiles."""
    setup = ("shared f16 [64, 64] s {0.0f}; ", "s = shared('f16', 64, 64, init=0.0)\n")[language]
    for arch in ("sm_80", "sm_90a"):
        error = refusal(lambda: block(language, setup + case[language]), arch)
        assert error.code == "tma-refused", error.render()
        assert "use `dma" in error.remedy, error.render()
        block(language, setup + case[language].replace("tma.", "dma.")).compile(arch)
