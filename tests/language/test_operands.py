"""The table of operands, walked in both languages: one verdict, one error code, on every target."""

from __future__ import annotations

import linecache
import re
from itertools import count
from typing import Any

import pytest

from tilemma import croqtile
from tilemma.errors import CompileError, TilemmaError
from tilemma.ir.constructs import OPERANDS, Operand
from tilemma.kernels import Kernel
from tilemma.targets.ptx.target import targets

# Operand -> statements of a block in Croqtile and in Python, `§` the operand.  ``None``: not in this language.
PLACES: dict[str, list[tuple[str | None, str | None]]] = {
    "pending": [("mma.wait<§>;", "mma.wait(§)")],
    "swizzle": [
        ("f = dma.copy.swiz<§> b => shared;", "f = dma.copy(b, to='shared', swizzle=§)"),
        (
            "f = dma.copy b => shared; parallel w by 1 : group { m = mma.load.swiz<§> f.data; }",
            "f = dma.copy(b, to='shared')\nfor w in parallel(1, level='group'):\n    m = mma.load(f.data, swizzle=§)",
        ),
    ],
    "promote": [("f = tma.copy.promote<§> b => shared;", "f = tma.copy(b, to='shared', promote=§)")],
    "copies": [
        ("shared f16 [4] s[§];", "s = shared('f16', 4, copies=§)"),
        ("local f16 [4] s[§];", "s = local('f16', 4, copies=§)"),
        ("shared f16 [4] s[2][§];", "s = shared('f16', 4, copies=(2, §))"),
    ],
    "tiles": [
        ("frag f32[16, 16] mc[§];", "mc = mma.frag('f32', 16, 16, copies=§)"),
        ("frag f32[16, 16] mc[2][§];", "mc = mma.frag('f32', 16, 16, copies=(2, §))"),
    ],
    "extent": [
        ("shared f16 [§] s;", "s = shared('f16', §)"),
        ("local f16 [2, §] s;", "s = local('f16', 2, §)"),
    ],
    "fragment-extent": [
        ("frag f32[§, 16] mc;", "mc = mma.frag('f32', §, 16)"),
        ("frag f32[16, §] mc;", "mc = mma.frag('f32', 16, §)"),
    ],
    "slots": [("shared event e[§];", "e = event(§)")],
    "threads": [("shared event<§> e;", "e = event(threads=§)")],
    "unroll": [("foreach i in 8 : unroll(§) { c.at(0, i) = 1.0f; }", "for i in foreach(8, unroll=§):\n    c[0, i] = 1.0")],
    "stages": [
        ("[[pipeline(stages=§)]] foreach i in 8 { c.at(0, i) = 1.0f; }",
         "for i in foreach(8, pipeline=tm.Pipeline(stages=§)):\n    c[0, i] = 1.0"),
    ],
    "cluster": [("[[pipeline(cluster=§)]] __co__ c.at(0, 0) = 1.0f;", "p = tm.Pipeline(cluster=§)\nc[0, 0] = 1.0")],
    "blocks": [("[[pipeline(blocks=§)]] __co__ c.at(0, 0) = 1.0f;", "p = tm.Pipeline(blocks=§)\nc[0, 0] = 1.0")],
    "vectorize": [("foreach i in 8 : vectorize(i, §) { c.at(0, i) = 1.0f; }", None)],
    "max-threads": [("[[launch_bounds(§)]] parallel g by 1 : group { c.at(0, 0) = 1.0f; }", None)],
    "min-blocks": [
        ("[[launch_bounds(_, §)]] parallel g by 1 : group { c.at(0, 0) = 1.0f; }",
         "for g in parallel(1, level='group', min_blocks=§):\n    c[0, 0] = 1.0"),
    ],
    "max-registers": [
        ("[[maxnreg(§)]] parallel g by 1 : group { c.at(0, 0) = 1.0f; }",
         "for g in parallel(1, level='group', max_registers=§):\n    c[0, 0] = 1.0"),
    ],
    "start": [("with i in 8 { foreach i(§:) { c.at(0, i) = 1.0f; } }", "for i in foreach(8, start=§):\n    c[0, i] = 1.0")],
    "step": [("with i in 8 { foreach i(::§) { c.at(0, i) = 1.0f; } }", "for i in foreach(8, step=§):\n    c[0, i] = 1.0")],
    "padding": [
        ("f = dma.pad<{§, 0}, {0, 0}, {0, 0}, 0.0f> b => shared;", "f = dma.copy(b, to='shared', pad=((§, 0), (0, 0)))"),
        ("f = dma.pad<{0, 0}, {0, §}, {0, 0}, 0.0f> b => shared;", "f = dma.copy(b, to='shared', pad=((0, 0), (0, §)))"),
    ],
}  # fmt: skip
PLACED = [(name, i) for name, places in PLACES.items() for i in range(len(places))]
BOTH = [(name, i) for name, i in PLACED if None not in PLACES[name][i]]
# Values that are no integers known when compiled, in both languages, and the codes of their refusal.
KINDS = {
    "a float": ("1.5f", "1.5", "wrong-value"),
    "known at run time": ("n", "n", "not-constant"),
    "a float known at run time": ("x", "x", "wrong-value"),
    "a tile": ("b", "b", "wrong-value"),
}
# Operands that may also be known at run time, and what else they may be.
AT_RUN_TIME = {"extent", "start", "step"}
_number = count()


def co(statements: str) -> Kernel:
    """The kernel with these statements; attributes of the kernel precede them and a `__co__`."""
    attributes, _, statements = statements.rpartition("__co__")
    text = f"""{attributes}__co__ void k(global f16 [64, 64] b, global f32 [64, 64] c, int n, f32 x) {{
  parallel p by 1 : block {{
    {statements}
  }}
}}
"""
    return Kernel(croqtile.load(text, f"operands{next(_number)}.co").sources["k"])


def py(statements: str) -> Kernel:
    body = "\n".join("        " + line for line in statements.split("\n"))
    text = f"""import tilemma as tm
from tilemma import *

@tm.kernel
def k(b: tm.Global["f16", 64, 64], c: tm.Global["f32", 64, 64], n: tm.Int, x: tm.Float):
    for p in parallel(1, level="block"):
{body}
"""
    name = f"<operands {next(_number)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {}
    exec(compile(text, name, "exec"), scope)
    kernel: Kernel = scope["k"]
    return kernel


def verdict(make: Any, statements: str) -> str:
    """The code of the refusal by the front end, or "" where it accepts the program."""
    try:
        make(statements).traced()
    except CompileError as e:
        assert e.span is not None and e.remedy and e.expectation, e.render()
        return e.code
    return ""


def interesting(o: Operand) -> list[int]:
    """Values at the edges of what the operand admits, and far outside of it."""
    edges = {-(2**31), -7, -1, 0, 1, 2, 3, 7, 8, 32, 33, 64, 100, 128, 255, 256, 257, 4096, 4097, 2**31 - 1}
    edges |= {o.low - 1, o.low, *o.choices}
    if o.high is not None:
        edges |= {o.high, o.high + 1}
    return sorted(edges)


def test_every_operand_has_its_places() -> None:
    assert set(PLACES) == set(OPERANDS)
    for name, o in OPERANDS.items():
        for language, form in enumerate((o.croqtile, o.python)):
            assert bool(form) == any(place[language] is not None for place in PLACES[name])


@pytest.mark.parametrize(("name", "place"), PLACED)
def test_integers(name: str, place: int) -> None:
    """What the table admits is accepted by both languages, anything else refused by both, with one code."""
    o = OPERANDS[name]
    for value in interesting(o):
        if name in ("extent", "padding", "fragment-extent") and value > 4096:
            continue  # what fits into memory is another matter
        for make, text in zip((co, py), PLACES[name][place], strict=True):
            if text is None:
                continue
            several = "[2][§" in text or "(2, §" in text
            fits = o.admits(value) and (not several or o.total is None or 2 * value <= o.total)
            single = make is py and value == 0 and name in ("slots", "copies", "tiles") and not several
            got = verdict(make, text.replace("§", str(value)))
            assert got == ("" if fits or single else "wrong-value"), (value, text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "place"), PLACED)
def test_what_is_no_constant_integer(name: str, place: int, kind: str) -> None:
    *values, code = KINDS[kind]
    if name in AT_RUN_TIME or (name, kind) == ("padding", "known at run time"):
        return
    for make, text, value in zip((co, py), PLACES[name][place], values, strict=True):
        if text is not None:
            assert verdict(make, text.replace("§", value)) == code, text


@pytest.mark.parametrize("name", OPERANDS)
def test_the_advice_works(name: str) -> None:
    """A refused value, replaced by the one that the advice names, is accepted, in the language at hand."""
    o = OPERANDS[name]
    wrong = next(v for v in interesting(o) if not o.admits(v) and v not in (0,))
    for make, text in zip((co, py), PLACES[name][0], strict=True):
        if text is None:
            continue
        with pytest.raises(CompileError) as caught:
            make(text.replace("§", str(wrong))).traced()
        if name != "step":
            advised = re.search(r"write `(.*)`, for instance", caught.value.remedy)
            assert advised is not None
            own, other = (o.croqtile, o.python) if make is co else (o.python, o.croqtile)
            assert advised[1] == own.replace("N", str(o.usual))
        assert verdict(make, text.replace("§", str(o.usual))) == ""


REPEATED = [
    "mc = mma.fill.f16.f32 0.0f;",
    "f = dma.copy b => shared; parallel w by 1 : group { m = mma.load.swiz<64>.swiz<128> f.data; }",
    "f = dma.copy b => shared; parallel w by 1 : group { m = mma.load.swiz<64>.swizzle<64> f.data; }",
    "frag f32[64, 64] mc {0.0}; parallel w by 1 : group { mma.store.transp.transp mc, c; }",
]


@pytest.mark.parametrize("text", REPEATED)
def test_nothing_is_said_twice(text: str) -> None:
    with pytest.raises(TilemmaError) as caught:
        co(text).traced()
    assert caught.value.code == "wrong-value" and "leave one out" in caught.value.remedy


SWIZZLES_DISAGREE = (
    "f = dma.copy.swiz<64> b => shared; parallel w by 1 : group { m = mma.load.swiz<128> f.data; }",
    "f = dma.copy(b, to='shared', swizzle=64)\nfor w in parallel(1, level='group'):\n    m = mma.load(f.data, swizzle=128)",
)
ARRANGED = [
    ("f = dma.transp<0, 1, 2> b => shared;", "f = dma.copy(b, to='shared', transp=(0, 1, 2))", "wrong-value"),
    ("f = dma.transp<0> b => shared;", "f = dma.copy(b, to='shared', transp=(0,))", "wrong-value"),
    ("f = dma.transp<1, -1> b => shared;", "f = dma.copy(b, to='shared', transp=(1, -1))", "wrong-value"),
    ("f = dma.pad<{1}, {0}, {0}, 0> b => shared;", "f = dma.copy(b, to='shared', pad=((1, 0),))", "wrong-value"),
    ("frag f32[16, 16, 16] mc;", "mc = mma.frag('f32', 16, 16, 16)", "wrong-value"),
    ("with i in 8 { foreach i(:1) { c.at(0, i) = 1.0f; } }", "for i in foreach(8, stop=9):\n    c[0, i] = 1.0", "wrong-value"),
    ("f = dma.copy.async b => shared; g = dma.copy.async b.subspan(32, 64).at(0, 0) => shared; swap(f, g); wait f, g;",
     "f = dma.copy(b, to='shared', async_=True)\ng = dma.copy(b.subspan(32, 64).at(0, 0), to='shared', async_=True)\n"
     "swap(f, g)\nwait(f, g)", "swap-refused"),
    (*SWIZZLES_DISAGREE, "swizzle-conflict"),
    ("parallel w by 1 : group { m = mma.fill.f32 0.0f; mma.store m, c.view(n, 64).from(0, 0); }",
     "for w in parallel(1, level='group'):\n    m = mma.fill(0.0, 'f32')\n    mma.store(m, c.view(n, 64).from_(0, 0))",
     "tile-without-layout"),
]  # fmt: skip


@pytest.mark.parametrize(("croqtile_text", "python_text", "code"), ARRANGED)
def test_refused_on_every_target(croqtile_text: str, python_text: str, code: str) -> None:
    """The CPU reference refuses what GPU targets refuse, with the same code in both languages."""
    import numpy as np

    b, c = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float32)
    for make, text in ((co, croqtile_text), (py, python_text)):
        for arch in targets():
            with pytest.raises(CompileError) as caught:
                make(text).compile(arch)
            assert caught.value.code == code, text
        with pytest.raises(CompileError) as caught:
            make(text).on("cpu")(b, c, 1, 1.0)
        assert caught.value.code == code, text


# Statements with an index or an extent `§`, which both languages accept, or both refuse.
INDEXED = [
    (
        "t = b.subspan(§, 16).at(0, 0); c.at(0, 0) = t.at(0, 0);",
        "t = b.subspan(§, 16).at(0, 0)\nc[0, 0] = t[0, 0]",
    ),
    (
        "f = dma.copy b.subspan(16, 16).at(§, 0) => shared;",
        "f = dma.copy(b.subspan(16, 16).at(§, 0), to='shared')",
    ),
    ("f = dma.copy b.view(§, 16).from(0, 0) => shared;", "f = dma.copy(b.view(§, 16).from_(0, 0), to='shared')"),
    ("f = dma.copy b.view(16, 16).from(§, 0) => shared;", "f = dma.copy(b.view(16, 16).from_(§, 0), to='shared')"),
    ("f = dma.copy b.span_as(§, 64) => shared;", "f = dma.copy(b.span_as(§, 64), to='shared')"),
    (
        "f = dma.copy b.subspan(16, 16).step(§, 1).at(0, 0) => shared;",
        "f = dma.copy(b.subspan(16, 16).step(§, 1).at(0, 0), to='shared')",
    ),
    ("foreach i in § { c.at(0, 0) = 1.0f; }", "for i in foreach(§):\n    c[0, 0] = 1.0"),
    ("parallel g by § : group { c.at(0, 0) = 1.0f; }", "for g in parallel(§, level='group'):\n    c[0, 0] = 1.0"),
    (
        "parallel g by 1 : group-§ { c.at(0, 0) = 1.0f; }",
        "for g in parallel(1, level='group-§'):\n    c[0, 0] = 1.0",
    ),
    ("c.at(§, 0) = 1.0f;", "c[§, 0] = 1.0"),
    ("c.at(0, 0) = c.at(0, §);", "c[0, 0] = c[0, §]"),
    ("shared f32 [64, 4] s; s.at(§, 0) = 1.0f;", "s = shared('f32', 64, 4)\ns[§, 0] = 1.0"),
    ("shared f32 [4] s[2]; s[§].at(0) = 1.0f;", "s = shared('f32', 4, copies=2)\ns[§][0] = 1.0"),
    ("shared event e[2]; trigger e[§];", "e = event(2)\ntrigger(e[§])"),
    (
        "frag f32[16, 16] m[2] {0.0}; m[§] = m[§] * 2.0f;",
        "m = mma.frag('f32', 16, 16, copies=2, init=0.0)\nm[§].set(m[§] * 2.0)",
    ),
]


@pytest.mark.parametrize(("croqtile_text", "python_text"), INDEXED)
def test_indices_and_extents(croqtile_text: str, python_text: str) -> None:
    """Refused before any target by both languages, or by neither."""

    def refused(make: Any, text: str) -> bool:
        try:
            make(text).build()
        except CompileError:
            return True
        return False

    for value in (-1, 0, 1, 2, 64, 65, 4097, 2**31, 2**40):
        texts = croqtile_text.replace("§", str(value)), python_text.replace("§", str(value))
        assert refused(co, texts[0]) == refused(py, texts[1]), texts


# Wrong in both languages, in equal words: (Croqtile, Python, the code of both).
ONE_CODE = [
    # Constant indices and subscripts.
    ("c.at(64, 0) = 1.0f;", "c[64, 0] = 1.0", "index-out-of-range"),
    ("c.at(0, -1) = 1.0f;", "c[0, -1] = 1.0", "index-out-of-range"),
    ("c.at(0, 0) = c.at(64, 0);", "c[0, 0] = c[64, 0]", "index-out-of-range"),
    ("c.at(0, 64) += 1.0f;", "c[0, 64] += 1.0", "index-out-of-range"),
    ("__atomic_add(c.at(64, 0), 1.0f);", "atomic.add(c[64, 0], 1.0)", "index-out-of-range"),
    ("t = c.subspan(16, 16).at(0, 0); t.at(16, 0) = 1.0f;", "t = c.subspan(16, 16).at(0, 0)\nt[16, 0] = 1.0",
     "index-out-of-range"),
    ("shared f32 [4, 4] s; s.at(4, 0) = 1.0f;", "s = shared('f32', 4, 4)\ns[4, 0] = 1.0", "index-out-of-range"),
    ("local f32 [4] s; s.at(-1) = 1.0f;", "s = local('f32', 4)\ns[-1] = 1.0", "index-out-of-range"),
    ("shared f32 [4] s[2]; s[2].at(0) = 1.0f;", "s = shared('f32', 4, copies=2)\ns[2][0] = 1.0", "index-out-of-range"),
    ("shared f32 [4] s[2][3]; s[0][3].at(0) = 1.0f;", "s = shared('f32', 4, copies=(2, 3))\ns[0][3][0] = 1.0",
     "index-out-of-range"),
    ("shared event e[2]; trigger e[2];", "e = event(2)\ntrigger(e[2])", "index-out-of-range"),
    ("frag f32[16, 16] m[2] {0.0}; m[-1] = m[0] * 2.0f;",
     "m = mma.frag('f32', 16, 16, copies=2, init=0.0)\nm[-1].set(m[0] * 2.0)", "index-out-of-range"),
    ("shared event e; trigger e[0];", "e = event()\ntrigger(e[0])", "wrong-value"),
    ("shared event e[2]; trigger e[1.5f];", "e = event(2)\ntrigger(e[1.5])", "wrong-value"),
    ("shared event e[2]; trigger e.at(x);", "e = event(2)\ntrigger(e.at(x))", "wrong-value"),
    ("shared event e[2]; trigger e.at(2147483648);", "e = event(2)\ntrigger(e.at(2147483648))", "wrong-value"),
    ("c.at(1.5f, 0) = 1.0f;", "c[1.5, 0] = 1.0", "wrong-value"),
    ("c.at(x, 0) = 1.0f;", "c[x, 0] = 1.0", "wrong-value"),
    ("parallel w by 1 : group { frag f32[16, 16] m {0.0}; mma.store.mask m, c, 2147483648; }",
     "for w in parallel(1, level='group'):\n    m = mma.frag('f32', 16, 16, init=0.0)\n"
     "    mma.store(m, c, rows=2147483648)", "wrong-value"),
    # Words.
    ("parallel w by 1 : group-0 { c.at(0, 0) = 1.0f; }", "for w in parallel(1, level='group-0'):\n    c[0, 0] = 1.0",
     "wrong-value"),
    ("f = tma.copy.evict_never b => shared;", "f = tma.copy(b, to='shared', evict='never')", "wrong-value"),
    # Lists.
    ("f = dma.transp<n, 0> b => shared;", "f = dma.copy(b, to='shared', transp=(n, 0))", "not-constant"),
    ("f = dma.transp<1.5f, 0> b => shared;", "f = dma.copy(b, to='shared', transp=(1.5, 0))", "wrong-value"),
    ("f = dma.transp<0, 0> b => shared;", "f = dma.copy(b, to='shared', transp=(0, 0))", "wrong-value"),
    ("f = dma.pad<{1, 0}, {0}, {0, 0}, 0.0f> b => shared;", "f = dma.copy(b, to='shared', pad=((1,), (0, 0)))",
     "wrong-value"),
    ("f = dma.pad<{1, 0}> b => shared;", "f = dma.copy(b, to='shared', pad=(1, 0))", "wrong-value"),
    ("f = dma.pad<{n, 0}, {0, 0}, {0, 0}, 0.0f> b => shared;", "f = dma.copy(b, to='shared', pad=((n, 0), (0, 0)))",
     ""),
    # Constants that no value of the type is.
    ("s32 y = 2147483648; c.at(0, 0) = y;", "y = var(2147483648, 's32')\nc[0, 0] = y", "constant-overflow"),
    ("u8 y = 1; y = 300; c.at(0, 0) = y;", "y = var(1, 'u8')\ny.set(300)\nc[0, 0] = y", "constant-overflow"),
    ("shared s32 [4] s; s.at(0) = 2147483648;", "s = shared('s32', 4)\ns[0] = 2147483648", "constant-overflow"),
    ("shared u8 [4] s; s.at(0) = -1;", "s = shared('u8', 4)\ns[0] = -1", "constant-overflow"),
    ("shared s32 [4] s {2147483648};", "s = shared('s32', 4, init=2147483648)", "constant-overflow"),
    ("frag s32[16, 16] m {2147483648};", "m = mma.frag('s32', 16, 16, init=2147483648)", "constant-overflow"),
    ("m = mma.fill.s32 2147483648;", "m = mma.fill(2147483648, 's32')", "constant-overflow"),
    ("m = mma.fill.s32 0.5f;", "m = mma.fill(0.5, 's32')", "constant-value"),
    ("m = mma.fill.s32 3e9;", "m = mma.fill(3e9, 's32')", "constant-value"),
    ("m = mma.fill.s32 inf;", "m = mma.fill(float('inf'), 's32')", "constant-value"),
    ("m = mma.fill.s32 2.0f;", "m = mma.fill(2.0, 's32')", ""),
    ("m = mma.fill.f16 1e9f;", "m = mma.fill(1e9, 'f16')", "constant-value"),
    ("m = mma.fill.f16 70000;", "m = mma.fill(70000, 'f16')", "constant-value"),
    ("m = mma.fill.f16 inf;", "m = mma.fill(float('inf'), 'f16')", ""),
    ("m = mma.fill.f32 1e300;", "m = mma.fill(1e300, 'f32')", "constant-value"),
    ("shared s32 [4] s {0.5f};", "s = shared('s32', 4, init=0.5)", "constant-value"),
    ("shared f8_e4m3 [4] s {449};", "s = shared('f8_e4m3', 4, init=449)", "constant-value"),
    ("shared b1 [32] s {2};", "s = shared('b1', 32, init=2)", "constant-value"),
    ("frag s32[16, 16] m {0.5f};", "m = mma.frag('s32', 16, 16, init=0.5)", "constant-value"),
    ("s32 y = 1.5f; c.at(0, 0) = y;", "y = var(1.5, 's32')\nc[0, 0] = y", "constant-value"),
    ("shared s32 [2, 2] s {1}; f = dma.pad<{1, 0}, {0, 0}, {0, 0}, 0.5f> s => shared;",
     "s = shared('s32', 2, 2, init=1)\nf = dma.copy(s, to='shared', pad=((1, 0, 0), (0, 0, 0)), pad_value=0.5)",
     "constant-value"),
    ("shared s32 [4] s; __atomic_add(s.at(0), 0.5f);", "s = shared('s32', 4)\natomic.add(s[0], 0.5)",
     "constant-value"),
    ("frag s32[16, 16] m {1}; m = 0.5f;", "m = mma.frag('s32', 16, 16, init=1)\nm.set(0.5)", "constant-value"),
    ("frag f16[16, 16] m {1}; apply {i, j} in m.span { m.at(i, j) = 1e9f; }",
     "m = mma.frag('f16', 16, 16, init=1)\nfor i, j in apply(m):\n    m[i, j] = 1e9", "constant-value"),
    ("shared f16 [4] s {1}; c.at(0, 0) = s.at(0) * 1e9;", "s = shared('f16', 4, init=1)\nc[0, 0] = s[0] * 1e9",
     "constant-value"),
    ("shared f16 [4] s {1}; c.at(0, 0) = __max(s.at(0), -1e9);",
     "s = shared('f16', 4, init=1)\nc[0, 0] = tm.math.max(s[0], -1e9)", "constant-value"),
    ("shared s32 [4] s; __atomic_add(s.at(0), 2147483648);", "s = shared('s32', 4)\natomic.add(s[0], 2147483648)",
     "constant-overflow"),
    # Divisions by a constant 0.
    ("c.at(0, 0) = n / 0;", "c[0, 0] = n // 0", "constant-division"),
    ("c.at(0, 0) = n % 0;", "c[0, 0] = n % 0", "constant-division"),
    ("mutable int y = n; y /= 0; c.at(0, 0) = y;", "y = var(n)\ny //= 0\nc[0, 0] = y", "constant-division"),
    ("c.at(0, 0) = cdiv(n, 0);", "c[0, 0] = cdiv(n, 0)", "constant-division"),
    ("c.at(0, 0) = __alignup(n, 0);", "c[0, 0] = tm.math.alignup(n, 0)", "constant-division"),
    ("c.at(0, 0) = __aligndown(n, 0);", "c[0, 0] = tm.math.aligndown(n, 0)", "constant-division"),
    # Jumps, assertions, members, types.
    ("break;", "break_()", "misplaced-jump"),
    ("continue;", "continue_()", "misplaced-jump"),
    ("foreach i in 4 { parallel g by 1 : group { break; } }",
     "for i in foreach(4):\n    for g in parallel(1, level='group'):\n        break_()", "misplaced-jump"),
    ('assert(1 > 2, "m");', "assert_(1 > 2, 'm')", "assertion-fails"),
    ("z = b.chunkt(0, 0);", "z = b.chunkt(0, 0)", "wrong-member"),
    ("shared f17 [4] s;", "s = shared('f17', 4)", "unknown-dtype"),
    ("mutable f17 y = 0;", "y = var(0, 'f17')", "unknown-dtype"),
    ("parallel w by 1 : warp { c.at(0, 0) = 1.0f; }", "for w in parallel(1, level='warp'):\n    c[0, 0] = 1.0", "wrong-value"),
    ("sync.barrier : grid;", "sync.barrier('grid')", "wrong-value"),
    ("sync.fence : grid;", "sync.fence('grid')", "wrong-value"),
    ("f = dma.copy b => shard;", "f = dma.copy(b, to='shard')", "wrong-value"),
    ("mutable int y = 0; while (__atomic_add(c.at(0, 0), 1.0f) < 3) { y = 1; }",
     "y = var(0)\nwith while_(lambda: atomic.add(c[0, 0], 1.0) < 3):\n    y.set(1)", "side-effect"),
    ("mc = mma.fill.f32 0.0f; mc = mc + 1.0f;", "mc = mma.fill(0.0, 'f32')\nmc += 1.0", "tile-shape-unknown"),
    ("parallel {i, j, k, l} by [1, 1, 1, 1] : group { c.at(0, 0) = 1.0f; }",
     "for i, j, k, l in parallel(1, 1, 1, 1, level='group'):\n    c[0, 0] = 1.0", "wrong-arity"),
    # Conversions: a declaration converts, an assignment of a float to an integer scalar does not.
    ("mutable s32 y = 0; y = x; c.at(0, 0) = y;", "y = var(0)\ny.set(x)\nc[0, 0] = y", "wrong-value"),
    ("mutable s32 y = 0; y = 1.5f; c.at(0, 0) = y;", "y = var(0)\ny.set(1.5)\nc[0, 0] = y", "wrong-value"),
    ("mutable s32 y = 0; y += x; c.at(0, 0) = y;", "y = var(0)\ny += x\nc[0, 0] = y", "wrong-value"),
    ("mutable s32 y = 0; y = 2.0f; c.at(0, 0) = y;", "y = var(0)\ny.set(2.0)\nc[0, 0] = y", ""),
    ("mutable s32 y = x; y = n; c.at(0, 0) = y;", "y = var(x, 's32')\ny.set(n)\nc[0, 0] = y", ""),
    ("c.at(0, 0) = __to<u8>((p * 0) + 300);", "c[0, 0] = ((p * 0) + 300).astype('u8')", "constant-overflow"),
    ("c.at(0, 0) = select(0, c.at(99, 0), 1.0f);", "c[0, 0] = select(0, c[99, 0], 1.0)", "index-out-of-range"),
    ("c.at(0, 0) = 0 ? c.at(99, 0) : 1.0f;", "c[0, 0] = c[99, 0] if 0 else 1.0", ""),
    ('println("a\\0b", n);', 'tm.print("a\\0b", n)', "wrong-value"),
    ('assert(n > 0, "a\\0b");', 'tm.assert_(n > 0, "a\\0b")', "wrong-value"),
    # Limits.
    (f"shared f32 [{', '.join('1' * 17)}] s;", f"s = shared('f32', {', '.join('1' * 17)})", "wrong-value"),
    (f"t = b.span_as(64, 64, {', '.join('1' * 15)});", f"t = b.span_as(64, 64, {', '.join('1' * 15)})", "wrong-value"),
    (f"foreach {{{', '.join(f'i{n}' for n in range(17))}}} in [{', '.join('1' * 17)}] {{ c.at(0, 0) = 1.0f; }}",
     f"for {', '.join(f'i{n}' for n in range(17))} in foreach({', '.join('1' * 17)}):\n    c[0, 0] = 1.0",
     "wrong-value"),
    # Right in both.
    ("c.at(0, 0) = x % 2;", "c[0, 0] = x % 2", ""),
    # Right in both: computed values that fold to a number are no constants.
    ("c.at(0, 0) = n / (p * 0);", "c[0, 0] = n // (p * 0)", ""),
    ("c.at(0, 0) = ((p * 0) + 1) << 32;", "c[0, 0] = ((p * 0) + 1) << 32", ""),
    ("c.at(0, 0) = (p % 1) >> -1;", "c[0, 0] = (p % 1) >> -1", ""),
    ("c.at(0, 0) = ((p * 0) + 2147483647) * 2;", "c[0, 0] = ((p * 0) + 2147483647) * 2", ""),
    ("c.at(0, 0) = ~((p * 0u) + 1u);", "c[0, 0] = ~((p.astype('u32') * 0) + 1)", ""),
    ("c.at(0, 0) = -((p * 0u) + 1u);", "c[0, 0] = -((p.astype('u32') * 0) + 1)", ""),
    ("c.at(0, 0) = n << 40;", "c[0, 0] = n << 40", ""),
    ("c.at(0, 0) = n >> 32;", "c[0, 0] = n >> 32", ""),
    ("c.at(0, 0) = x / 0;", "c[0, 0] = x / 0", ""),
    ("if (0) { c.at(99, 0) = 1.0f; } else { c.at(1, 0) = 1.0f; }",
     "with if_(0):\n    c[99, 0] = 1.0\nwith else_():\n    c[1, 0] = 1.0", ""),
    ("if (1) { c.at(1, 0) = 1.0f; } else { shared f32 [4] s[2]; s[2].at(0) = 1.0f; }",
     "with if_(1):\n    c[1, 0] = 1.0\nwith else_():\n    s = shared('f32', 4, copies=2)\n    s[2][0] = 1.0", ""),
    ("shared u8 [4] s; foreach i in 4 { s.at(i) = i - 1; }",
     "s = shared('u8', 4)\nfor i in foreach(4):\n    s[i] = i - 1", ""),
]  # fmt: skip


@pytest.mark.parametrize(("croqtile_text", "python_text", "code"), ONE_CODE)
def test_one_code_in_both_languages(croqtile_text: str, python_text: str, code: str) -> None:
    assert (verdict(co, croqtile_text), verdict(py, python_text)) == (code, code)
