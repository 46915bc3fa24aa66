"""Advice of the passes for every target, followed word by word in both languages: the program compiles."""

from __future__ import annotations

import pytest
from test_advice_followed import Case, check_followed

GROUP = ("parallel w by 1 : group { ", "for w in parallel(1, level='group'):\n")
FRAG = ("frag f32[64, 64] m {0.0f}; ", "    m = mma.frag('f32', 64, 64, init=0.0)\n")
OPERANDS = ("x = mma.load b; y = mma.load b; m = mma.fill.f32 0.0f; ",
            "    x, y, m = mma.load(b), mma.load(b), mma.fill(0.0, 'f32')\n")  # fmt: skip
ROLES = ("parallel g by 2 : group { inthreads.async (g == 0) { TRIGGER } inthreads.async (g == 1) { WAIT } }",
         "for g in parallel(2, level='group'):\n    with inthreads(g == 0, async_=True):\n        TRIGGER\n"
         "    with inthreads(g == 1, async_=True):\n        WAIT")  # fmt: skip


def roles(declare: tuple[str, str], trigger: tuple[str, str], wait: tuple[str, str]) -> tuple[str, str]:
    """A role that triggers and one that waits."""
    co, py = (
        ROLES[n]
        .replace("TRIGGER", trigger[n].replace("\n", "\n        "))
        .replace("WAIT", wait[n].replace("\n", "\n        "))
        for n in (0, 1)
    )
    return f"{declare[0]} {co}", f"{declare[1]}\n{py}"


CASES: list[Case] = [
    ("apply-order", ("write two `apply`s",) * 2,
     (GROUP[0] + FRAG[0] + "apply {i, j} in m.span { c.at(i, j) = m.at(i, j); m.at(i, j) = c.at(j, i); } }",
      GROUP[1] + FRAG[1] + "    for i, j in apply(m):\n        c[i, j] = m[i, j]\n        m[i, j] = c[j, i]"),
     (("m.at(i, j); m.at", "m.at(i, j); } apply {i, j} in m.span { m.at"),
      ("m[i, j]\n        m", "m[i, j]\n    for i, j in apply(m):\n        m"))),
    ("scale-without-products", ("write `mma.scale` directly after the multiplies that it scales",) * 2,
     (GROUP[0] + OPERANDS[0] + "mma.row.row m, x, y; m += 1.0f; mma.scale m, 2.0f, 2.0f; mma.store m, c; }",
      GROUP[1] + OPERANDS[1] + "    mma.row.row(m, x, y)\n    m += 1.0\n    mma.scale(m, 2.0, 2.0)\n    mma.store(m, c)"),
     (("m += 1.0f; mma.scale m, 2.0f, 2.0f;", "mma.scale m, 2.0f, 2.0f; m += 1.0f;"),
      ("m += 1.0\n    mma.scale(m, 2.0, 2.0)", "mma.scale(m, 2.0, 2.0)\n    m += 1.0"))),
    ("store-shape", ("cut it with `subspan(h, w).at(i, j)`",) * 2,
     (GROUP[0] + FRAG[0] + "mma.store m, c.span_as(4, 16, 64); }", GROUP[1] + FRAG[1] + "    mma.store(m, c.span_as(4, 16, 64))"),
     (("c.span_as(4, 16, 64)", "c.subspan(64, 64).at(0, 0)"),) * 2),
    ("operand-types", ("declare both tiles with one type",) * 2,
     ("shared bf16 [64, 64] s {0.0f}; " + GROUP[0] + OPERANDS[0].replace("y = mma.load b", "y = mma.load s") + "mma.row.row m, x, y; mma.store m, c; }",
      "s = shared('bf16', 64, 64, init=0.0)\n" + GROUP[1] + OPERANDS[1].replace("mma.load(b), mma.fill", "mma.load(s), mma.fill")
      + "    mma.row.row(m, x, y)\n    mma.store(m, c)"),
     (("bf16", "f16"),) * 2),
    ("accumulator-shape", ("use a tile of [64, 64] here",) * 2,
     (GROUP[0] + OPERANDS[0] + "mma.row.row m, x, y; mma.store m, c.subspan(32, 64).at(0, 0); }",
      GROUP[1] + OPERANDS[1] + "    mma.row.row(m, x, y)\n    mma.store(m, c.subspan(32, 64).at(0, 0))"),
     (("(32, 64)", "(64, 64)"),) * 2),
    ("view-outside", ("take the index modulo 2",) * 2,
     ("shared f32 [4] s[2]; foreach i in 3 { s[i].at(0) = 1.0f; }",
      "s = shared('f32', 4, copies=2)\nfor i in foreach(3):\n    s[i][0] = 1.0"),
     (("s[i]", "s[i % 2]"),) * 2),
    ("event-place", ("move the declaration to the top of",) * 2,
     ("foreach i in 2 { shared event e; " + ROLES[0].replace("TRIGGER", "trigger e;").replace("WAIT", "wait e;") + " }",
      "for i in foreach(2):\n    e = event()\n    " + ROLES[1].replace("TRIGGER", "trigger(e)").replace("WAIT", "wait(e)").replace("\n", "\n    ")),
     (("foreach i in 2 { shared event e;", "shared event e; foreach i in 2 {"),
      ("for i in foreach(2):\n    e = event()\n", "e = event()\nfor i in foreach(2):\n"))),
    ("event-slot", ("take the index modulo 2",) * 2,
     roles(("shared event e[2];", "e = event(2)"),
           ("foreach i in 2 { trigger e[i]; }", "for i in foreach(2):\n    trigger(e[i])"),
           ("foreach i in 4 { wait e[i + 1]; }", "for i in foreach(4):\n    wait(e[i + 1])")),
     (("4 { wait e[i + 1]", "2 { wait e[i % 2]"), ("4):\n            wait(e[i + 1]", "2):\n            wait(e[i % 2]"))),
    ("event-waiters", ("wait at one of the two levels only",) * 2,
     roles(("shared event e;", "e = event()"), ("trigger e;", "trigger(e)"),
           ("wait e; parallel t by 32 : thread { wait e; }",
            "wait(e)\nfor t in parallel(32, level='thread'):\n    wait(e)")),
     ((" parallel t by 32 : thread { wait e; }", ""), ("\n        for t in parallel(32, level='thread'):\n            wait(e)", ""))),
    ("event-count", ("declare `event<n>`", "declare `event(threads=n)`"),
     roles(("shared event e;", "e = event()"),
           ("trigger e; parallel t by 16 : thread { trigger e; }", "trigger(e)\nfor t in parallel(16, level='thread'):\n    trigger(e)"),
           ("wait e;", "wait(e)")),
     ((" parallel t by 16 : thread { trigger e; }", ""), ("\n        for t in parallel(16, level='thread'):\n            trigger(e)", ""))),
    ("event-never-waited-for", ("write `wait e`", "write `wait(e)`"),
     ("shared event e; shared f16 [64, 64] s; tma.copy.async<e> b => s; trigger e;",
      "e = event()\ns = shared('f16', 64, 64)\ntma.copy(b, s, async_=e)\ntrigger(e)"),
     (("trigger e;", "trigger e; wait e;"), ("trigger(e)", "trigger(e)\nwait(e)"))),
    ("trigger-outside-cluster", ("write `trigger e`", "write `trigger(e)`"),
     roles(("shared event e;", "e = event()"), ("trigger.cluster e;", "trigger(e, cluster=True)"), ("wait e;", "wait(e)")),
     ((".cluster", ""), (", cluster=True", ""))),
    ("variable-set-inside", ("declare `v` inside that `parallel`",) * 2,
     ("mutable int v = 0; parallel t by 32 : thread { v = t; } c.at(0, 0) = v;",
      "v = var(0)\nfor t in parallel(32, level='thread'):\n    v.set(t)\nc[0, 0] = v"),
     (("mutable int v = 0; parallel t by 32 : thread { v = t; } c.at(0, 0) = v;",
       "parallel t by 32 : thread { mutable int v = 0; v = t; c.at(0, t) = v; }"),
      ("v = var(0)\nfor t in parallel(32, level='thread'):\n    v.set(t)\nc[0, 0] = v",
       "for t in parallel(32, level='thread'):\n    v = var(0)\n    v.set(t)\n    c[0, t] = v"))),
    ("accumulator-shape", ("use a tile of [64, 64] here",) * 2,
     (GROUP[0] + FRAG[0] + "mma.store m, c.subspan(32, 64).at(0, 0); }",
      GROUP[1] + FRAG[1] + "    mma.store(m, c.subspan(32, 64).at(0, 0))"),
     (("(32, 64)", "(64, 64)"),) * 2),
    ("level-nesting", ("swap them",) * 2,
     ("parallel t by 32 : thread { parallel w by 1 : group { c.at(0, t) = 1.0f; } }",
      "for t in parallel(32, level='thread'):\n    for w in parallel(1, level='group'):\n        c[0, t] = 1.0"),
     (("parallel t by 32 : thread { parallel w by 1 : group {", "parallel w by 1 : group { parallel t by 32 : thread {"),
      ("for t in parallel(32, level='thread'):\n    for w in parallel(1, level='group'):",
       "for w in parallel(1, level='group'):\n    for t in parallel(32, level='thread'):"))),
    ("level-nesting", ("write one `parallel` with the indices of both",) * 2,
     ("parallel t by 4 : thread { parallel u by 8 : thread { c.at(t, u) = 1.0f; } }",
      "for t in parallel(4, level='thread'):\n    for u in parallel(8, level='thread'):\n        c[t, u] = 1.0"),
     (("parallel t by 4 : thread { parallel u by 8 : thread { c.at(t, u) = 1.0f; } }", "parallel {t, u} by [4, 8] : thread { c.at(t, u) = 1.0f; }"),
      ("for t in parallel(4, level='thread'):\n    for u in parallel(8, level='thread'):\n        c", "for t, u in parallel(4, 8, level='thread'):\n    c"))),
    ("level-nesting", ("make it `: thread`", 'make it `level="thread"`'),
     (GROUP[0] + "parallel u by 1 : group { c.at(0, u) = 1.0f; } }",
      GROUP[1] + "    for u in parallel(1, level='group'):\n        c[0, u] = 1.0"),
     (("u by 1 : group", "u by 1 : thread"), ("for u in parallel(1, level='group')", "for u in parallel(1, level='thread')"))),
    ("too-many-levels", ("merge two of the `parallel`s into one with several indices",) * 2,
     ("parallel t by 2 { parallel s by 2 { parallel u by 2 { c.at(t, s) = 1.0f; } } }",
      "for t in parallel(2):\n    for s in parallel(2):\n        for u in parallel(2):\n            c[t, s] = 1.0"),
     (("parallel s by 2 { parallel u by 2 { c.at(t, s) = 1.0f; } }", "parallel {s, u} by [2, 2] { c.at(t, s) = 1.0f; }"),
      ("for s in parallel(2):\n        for u in parallel(2):\n            c", "for s, u in parallel(2, 2):\n        c"))),
    ("level-empty", ("make every extent at least 1",) * 2,
     ("parallel t by 0 : thread { c.at(0, t) = 1.0f; }", "for t in parallel(0, level='thread'):\n    c[0, t] = 1.0"),
     (("by 0", "by 1"), ("parallel(0", "parallel(1"))),
    ("level-overflow", ("make the product of the extents at most 32",) * 2,
     (GROUP[0] + "parallel t by 33 : thread { c.at(0, t) = 1.0f; } }",
      GROUP[1] + "    for t in parallel(33, level='thread'):\n        c[0, t] = 1.0"),
     (("33", "32"),) * 2),
    ("fragment-home", ("use `parallel p by 1 : group` here too", "use the same extents and level here too"),
     ("m = mma.fill.f32 0.0f; " + GROUP[0] + "mma.row.row m, mma.load b, mma.load b; }".replace("mma.load b", "b.subspan(16, 16).at(0, 0)")
      + " parallel w by 2 : group { mma.store m, c.subspan(16, 16).at(w, 0); }",
      "m = mma.fill(0.0, 'f32')\n" + GROUP[1] + "    x, y = (mma.load(b.subspan(16, 16).at(0, 0)) for _ in range(2))\n    mma.row.row(m, x, y)\n"
      "for w in parallel(2, level='group'):\n    mma.store(m, c.subspan(16, 16).at(w, 0))"),
     (("by 2", "by 1"), ("parallel(2", "parallel(1"))),
    ("role-of-lanes", ("leave the lane out of the role's condition",) * 2,
     ("parallel w by 2 : group { parallel t by 32 : thread { inthreads.async (w == 0 && t == 0) { frag f32[16, 16] m {0.0f}; mma.store m, c.subspan(16, 16).at(0, 0); } } }",
      "for w in parallel(2, level='group'):\n    for t in parallel(32, level='thread'):\n        with inthreads((w == 0) & (t == 0), async_=True):\n"
      "            m = mma.frag('f32', 16, 16, init=0.0)\n            mma.store(m, c.subspan(16, 16).at(0, 0))"),
     ((" && t == 0", ""), (" & (t == 0)", ""))),
    ("event-stuck", ("declare `e` with `= ready`", "declare `e` with `ready=True`"),
     roles(("shared event e, f;", "e, f = event(), event()"),
           ("wait e; trigger f;", "wait(e)\ntrigger(f)"), ("wait f; trigger e;", "wait(f)\ntrigger(e)")),
     (("event e, f", "event e = ready, f"), ("e, f = event(), event()", "e, f = event(ready=True), event()"))),
    ("swap-refused", ("give both buffers the same type and shape",) * 2,
     ("f = dma.copy b => shared; g = dma.copy b.subspan(32, 64).at(0, 0) => shared; swap(f, g); c.at(0, 0) = f.data.at(0, 0);",
      "f, g = dma.copy(b, to='shared'), dma.copy(b.subspan(32, 64).at(0, 0), to='shared')\nswap(f, g)\nc[0, 0] = f.data[0, 0]"),
     ((".subspan(32, 64)", ".subspan(64, 64)"),) * 2),
    ("apply-reduction", ("use an atomic on an element of a shared or global array",) * 2,
     (GROUP[0] + FRAG[0] + "mutable float v = 0.0f; apply {i, j} in m.span { v += m.at(i, j); } c.at(0, 0) = v; }",
      GROUP[1] + FRAG[1] + "    v = var(0.0)\n    for i, j in apply(m):\n        v += m[i, j]\n    c[0, 0] = v"),
     (("v += m.at(i, j); } c.at(0, 0) = v;", "__atomic_add(c.at(0, 0), m.at(i, j)); }"),
      ("v += m[i, j]\n    c[0, 0] = v", "atomic.add(c[0, 0], m[i, j])"))),
    ("operand-loads", ("use a second name for the other tile",) * 2,
     (GROUP[0] + "frag x; " + OPERANDS[0].replace("x = mma.load b;", "mma.load b, x;") + "mma.row.row m, x, y; mma.load b.subspan(32, 64).at(0, 0), x; mma.store m, c; }",
      GROUP[1] + "    x = mma.frag('f16', 64, 64)\n" + OPERANDS[1].replace("x, y, m = mma.load(b), ", "mma.load(b, x)\n    y, m = ")
      + "    mma.row.row(m, x, y)\n    mma.load(b.subspan(32, 64).at(0, 0), x)\n    mma.store(m, c)"),
     (("mma.load b.subspan(32, 64).at(0, 0), x;", "z = mma.load b.subspan(32, 64).at(0, 0);"),
      ("mma.load(b.subspan(32, 64).at(0, 0), x)", "z = mma.load(b.subspan(32, 64).at(0, 0))"))),
    ("fragment-subscript", ("use constants, or indices of loops with constant bounds",) * 2,
     (GROUP[0] + "frag f32[64, 64] m[2] {0.0f}; mutable int i = b.at(0, 0); mma.store m[i], c; }",
      GROUP[1] + "    m = mma.frag('f32', 64, 64, copies=2, init=0.0)\n    i = tm.var(b[0, 0].astype('s32'))\n    mma.store(m[i], c)"),
     (("m[i]", "m[1]"),) * 2),
]  # fmt: skip
FOLLOWED = frozenset(c[0] for c in CASES)


@pytest.mark.parametrize("language", [0, 1], ids=["co", "py"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_followed_it_compiles(case: Case, language: int) -> None:
    check_followed(case, language)
