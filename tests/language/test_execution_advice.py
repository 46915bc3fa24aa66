"""Advice of errors that a run or a target finds, followed word by word in each language: the result is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_advice import co, py

from tilemma.errors import TilemmaError
from tilemma.kernels import Kernel

PARAMS = (
    "global f16 [64, 64] b, global f32 [64, 64] c, global s8 [64, 64] q, global s32 [64, 64] d, int n",
    'b: tm.Global["f16", 64, 64], c: tm.Global["f32", 64, 64], q: tm.Global["s8", 64, 64], '
    'd: tm.Global["s32", 64, 64], n: tm.Int',
)
B = (np.arange(64 * 64).reshape(64, 64) % 7 - 3).astype(np.float16)
Q = (np.arange(64 * 64).reshape(64, 64) % 9 - 4).astype(np.int8)
PRODUCT = B[:16, :16].astype(np.float32) @ B[:16, :16].astype(np.float32).T
N = 3
GROUP = ("parallel w by 1 : group { ", "for w in parallel(1, level='group'):\n    ")
FRAG = ("frag f32[64, 64] m {1.0f}; ", "m = mma.frag('f32', 64, 64, init=1.0)\n    ")
ROWS = ("frag f32[64] r {0.0f}; ", "r = mma.frag('f32', 64, init=0.0)\n    ")
SMALL = ("b.subspan(16, 16).at(0, 0)", "mma.load(b.subspan(16, 16).at(0, 0))")
MULTIPLY = (f"mma.row.row z, {SMALL[0]}, {SMALL[0]}; ", f"mma.row.row(z, {SMALL[1]}, {SMALL[1]})\n    ")
SHOW = (" apply {i, j} in m.span { c.at(i, j) = m.at(i, j) + r.at(i); } }",
        "\n    for i, j in apply(m):\n        c[i, j] = m[i, j] + r[i]")  # fmt: skip
Pair = tuple[str | None, str | None]


def applied(co_body: str, py_body: str) -> Pair:
    """A block with a tile ``m`` of ones and a vector ``r`` of zeros; c = m + r in the end."""
    return GROUP[0] + FRAG[0] + ROWS[0] + co_body + SHOW[0], GROUP[1] + FRAG[1] + ROWS[1] + py_body + SHOW[1]


def over(tile: str, co_body: str, py_body: str) -> tuple[str, str]:
    indices = ("{i, j}", "i, j") if tile != "r" else ("{i}", "i")
    return (
        f"apply {indices[0]} in {tile}.span {{ {co_body} }} ",
        f"for {indices[1]} in apply({tile}):\n        " + py_body.replace("\n", "\n        ") + "\n    ",
    )


def both(*parts: tuple[str, str]) -> Pair:
    return applied("".join(p[0] for p in parts), "".join(p[1] for p in parts).rstrip())


def roles(declared: tuple[str, str], *parts: tuple[str, str]) -> Pair:
    """One role for each of ``parts``."""
    count = len(parts)
    text = f"{declared[0]} parallel g by {count} : group {{ "
    python = f"{declared[1]}\nfor g in parallel({count}, level='group'):"
    for number, (x, y) in enumerate(parts):
        text += f"inthreads.async (g == {number}) {{ {x} }} "
        python += f"\n    with inthreads(g == {number}, async_=True):\n        " + y.replace("\n", "\n        ")
    return text + "}", python


def loop(n: int, co_body: str, py_body: str) -> tuple[str, str]:
    return (
        f"foreach i in {n} {{ {co_body} }}",
        f"for i in foreach({n}):\n    " + py_body.replace("\n", "\n    "),
    )


def rows_of(values: Any, count: int = 64) -> Any:
    found = np.ones((64, 64), np.float32)
    found[:count] += np.asarray(values, np.float32)[:, None]
    return found


def first_row(*values: float) -> Any:
    found = np.zeros((64, 64), np.float32)
    found[0, : len(values)] = values
    return found


E, EF = (
    ("shared event e;", "e = event()"),
    ("shared event e, f[2] = ready;", "e, f = event(), event(2, ready=True)"),
)
TRIGGER, SHOWN = ("trigger e;", "trigger(e)"), ("wait e; c.at(0, i) = 1.0f;", "wait(e)\nc[0, i] = 1.0")
BYTES = (
    GROUP[0] + "x = mma.load q.subspan(16, 32).at(0, 0); y = mma.load q.subspan(32, 32).at(0, 0); mc = mma.fill.s32 0; mma.row.row mc, x, y; ",
    GROUP[1] + "x, y, mc = mma.load(q.subspan(16, 32).at(0, 0)), mma.load(q.subspan(32, 32).at(0, 0)), mma.fill(0, 's32')\n    mma.row.row(mc, x, y)\n    ",
)  # fmt: skip
LAYOUTS = (
    GROUP[0] + f"x = mma.load {SMALL[0]}; z = mma.fill.f32 0.0f; y = mma.fill.f32 0.0f; [[atom(SM80_16x8x8_F32F16F16F32_TN)]] mma.row.row z, x, {SMALL[0]}; "
    f"SECOND mma.row.row y, x, {SMALL[0]}; mma.store y, c.subspan(16, 16).at(0, 0); }}",
    GROUP[1] + f"x, z, y = {SMALL[1]}, mma.fill(0.0, 'f32'), mma.fill(0.0, 'f32')\n    mma.row.row(z, x, {SMALL[1]}, atom='SM80_16x8x8_F32F16F16F32_TN')\n"
    f"    SECOND\n    mma.row.row(y, x, {SMALL[1]})\n    mma.store(y, c.subspan(16, 16).at(0, 0))",
)  # fmt: skip


def edited(texts: tuple[str, str], *pairs: tuple[tuple[str, str], tuple[str, str]]) -> Pair:
    found = list(texts)
    for old, new in pairs:
        for n in (0, 1):
            assert old[n] in found[n]
            found[n] = found[n].replace(old[n], new[n])
    return found[0], found[1]


# Code; part of the advice; the wrong program and the right one, in Croqtile and in Python; what the right one writes
# to c (or d); where the wrong one is refused.
Case = tuple[str, str | tuple[str, str], Pair, Pair, Any, str]
CASES: list[Case] = [
    ("apply-other-tile", "go over `z` in an `apply` of its own",
     (GROUP[0] + FRAG[0] + "z = mma.fill.f32 0.0f; foreach k in 2 { apply {i, j} in m.span { m.at(i, j) = 2.0f; z.at(i, j) = 3.0f; } " + MULTIPLY[0] + "} mma.store m, c; mma.store z, c.subspan(16, 16).at(0, 0); }",
      GROUP[1] + FRAG[1] + "z = mma.fill(0.0, 'f32')\n    for k in foreach(2):\n        for i, j in apply(m):\n            m[i, j] = 2.0\n            z[i, j] = 3.0\n        " + MULTIPLY[1] + "mma.store(m, c)\n    mma.store(z, c.subspan(16, 16).at(0, 0))"),
     (GROUP[0] + FRAG[0] + "frag f32[16, 16] z {0.0f}; foreach k in 2 { apply {i, j} in m.span { m.at(i, j) = 2.0f; } apply {i, j} in z.span { z.at(i, j) = 3.0f; } " + MULTIPLY[0] + "} mma.store m, c; mma.store z, c.subspan(16, 16).at(0, 0); }",
      GROUP[1] + FRAG[1] + "z = mma.frag('f32', 16, 16, init=0.0)\n    for k in foreach(2):\n        for i, j in apply(m):\n            m[i, j] = 2.0\n        for i, j in apply(z):\n            z[i, j] = 3.0\n        " + MULTIPLY[1] + "mma.store(m, c)\n    mma.store(z, c.subspan(16, 16).at(0, 0))"),
     np.pad(3 + PRODUCT, (0, 48), constant_values=2), "cpu"),
    ("apply-other-tile", "store `z` to a buffer with `mma.store`, and use the elements that the buffer has",
     (GROUP[0] + FRAG[0] + "z = mma.fill.f32 0.0f; foreach k in 2 { apply {i, j} in m.span { m.at(i, j) = z.at(i, j); } " + MULTIPLY[0] + "} mma.store m, c; }",
      GROUP[1] + FRAG[1] + "z = mma.fill(0.0, 'f32')\n    for k in foreach(2):\n        for i, j in apply(m):\n            m[i, j] = z[i, j]\n        " + MULTIPLY[1] + "mma.store(m, c)"),
     ("shared f32 [16, 16] s; " + GROUP[0] + FRAG[0] + "z = mma.fill.f32 0.0f; foreach k in 2 { mma.store z, s; apply {i, j} in m.span { if (i < 16 && j < 16) { m.at(i, j) = s.at(i, j); } } " + MULTIPLY[0] + "} mma.store m, c; }",
      "s = shared('f32', 16, 16)\n" + GROUP[1] + FRAG[1] + "z = mma.fill(0.0, 'f32')\n    for k in foreach(2):\n        mma.store(z, s)\n        for i, j in apply(m):\n            with if_((i < 16) & (j < 16)):\n"
      "                m[i, j] = s[i, j]\n        " + MULTIPLY[1] + "mma.store(m, c)"),
     np.pad(PRODUCT, (0, 48), constant_values=1), "cpu"),
    ("apply-row", ("`reduce_sum(v, m, 1);`", "`mma.reduce_sum(v, m)`"),
     both(over("m", "r.at(i) = m.at(i, j) - r.at(i);", "r[i] = m[i, j] - r[i]")),
     both(("frag f32[64] v {0.0f}; reduce_sum(v, m, 1); ", "v = mma.frag('f32', 64, init=0.0)\n    mma.reduce_sum(v, m)\n    "), over("m", "r.at(i) = r.at(i) + v.at(i);", "r[i] = r[i] + v[i]")),
     rows_of([64] * 64), "cpu"),
    ("apply-row", ("`reduce_sum(v, m, 1);`", "`mma.reduce_sum(v, m)`"),
     both(over("m", "f32 x = m.at(i, j); r.at(i) = x;", "x = var(m[i, j])\nr[i] = x")),
     both(("frag f32[64] v {0.0f}; reduce_sum(v, m, 1); ", "v = mma.frag('f32', 64, init=0.0)\n    mma.reduce_sum(v, m)\n    "), over("r", "f32 x = v.at(i); r.at(i) = x;", "x = var(v[i])\nr[i] = x")),
     rows_of([64] * 64), "cpu"),
    ("apply-row", ("`apply {i} in r.span { ... }`", "`for i in apply(r):`"),
     both(over("m", "mutable f32 x = i; x += 1.0f; r.at(i) = x; m.at(i, j) = 1.0f;", "x = var(i, 'f32')\nx += 1.0\nr[i] = x\nm[i, j] = 1.0")),
     both(over("r", "mutable f32 x = i; x += 1.0f; r.at(i) = x;", "x = var(i, 'f32')\nx += 1.0\nr[i] = x"), over("m", "m.at(i, j) = 1.0f;", "m[i, j] = 1.0")),
     rows_of(range(1, 65)), "cpu"),
    ("apply-row", "write the number of the column, or the row's index, in its place",
     both(over("m", "r.at(i) = j;", "r[i] = j")), both(over("m", "r.at(i) = i;", "r[i] = i")), rows_of(range(64)), "cpu"),
    ("apply-row", ("one `if` for each of the two", "one `if_` for each of the two"),
     both(over("m", "if (i > 3) { r.at(i) = 1.0f; m.at(i, j) = 2.0f; }", "with if_(i > 3):\n    r[i] = 1.0\n    m[i, j] = 2.0")),
     both(over("m", "if (i > 3) { r.at(i) = 1.0f; } if (i > 3) { m.at(i, j) = 2.0f; }", "with if_(i > 3):\n    r[i] = 1.0\nwith if_(i > 3):\n    m[i, j] = 2.0")),
     rows_of([0] * 4 + [2] * 60), "cpu"),
    ("apply-row", "write it in an `apply` of its own, before or after this one",
     both(over("m", "foreach k in 4 { if (k > 2) break; m.at(i, j) += 1.0f; } r.at(i) = 1.0f;", "for k in foreach(4):\n    with if_(k > 2):\n        break_()\n    m[i, j] += 1.0\nr[i] = 1.0")),
     both(over("m", "foreach k in 4 { if (k > 2) break; m.at(i, j) += 1.0f; }", "for k in foreach(4):\n    with if_(k > 2):\n        break_()\n    m[i, j] += 1.0"), over("m", "r.at(i) = 1.0f;", "r[i] = 1.0")),
     rows_of([4] * 64), "cpu"),
    ("apply-row", "write it in an `apply` of its own, before or after this one",
     both(over("m", "if (i > 3) { r.at(i) = 1.0f; d.at(i, 0) = 2; }", "with if_(i > 3):\n    r[i] = 1.0\n    d[i, 0] = 2")),
     both(over("m", "if (i > 3) { r.at(i) = 1.0f; }", "with if_(i > 3):\n    r[i] = 1.0"), over("m", "if (i > 3) { d.at(i, 0) = 2; }", "with if_(i > 3):\n    d[i, 0] = 2")),
     rows_of([0] * 4 + [1] * 60), "cpu"),
    ("event-deadlock", ("trigger `f` once for each wait, in every iteration that waits for it",) * 2,
     roles(("shared event e, f;", "e, f = event(), event()"), loop(4, "trigger e; wait f;", "trigger(e)\nwait(f)"), loop(2, "wait e; c.at(0, i) = 1.0f; trigger f;", "wait(e)\nc[0, i] = 1.0\ntrigger(f)")),
     roles(("shared event e, f;", "e, f = event(), event()"), loop(4, "trigger e; wait f;", "trigger(e)\nwait(f)"), loop(4, "wait e; c.at(0, i) = 1.0f; trigger f;", "wait(e)\nc[0, i] = 1.0\ntrigger(f)")),
     first_row(1, 1, 1, 1), "sm_90a"),
    ("event-deadlock", "trigger it as often as the others do",
     ("shared event e[2]; shared event f[2] = ready; parallel g by 3 : group { inthreads.async (g == 0) { foreach i in 8 { wait f.at(i); trigger e.at(i); } } "
      "inthreads.async (g > 0) { foreach i in 8 { wait e.at(i); c.at(0, i) = 1.0f; if (i < 2 || g == 1) { trigger f.at(i); } } } }",
      "e, f = event(2), event(2, ready=True)\nfor g in parallel(3, level='group'):\n    with inthreads(g == 0, async_=True):\n        for i in foreach(8):\n            wait(f.at(i))\n            trigger(e.at(i))\n"
      "    with inthreads(g > 0, async_=True):\n        for i in foreach(8):\n            wait(e.at(i))\n            c[0, i] = 1.0\n            with if_((i < 2) | (g == 1)):\n                trigger(f.at(i))"),
     ("shared event e[2]; shared event f[2] = ready; parallel g by 3 : group { inthreads.async (g == 0) { foreach i in 8 { wait f.at(i); trigger e.at(i); } } "
      "inthreads.async (g > 0) { foreach i in 8 { wait e.at(i); c.at(0, i) = 1.0f; trigger f.at(i); } } }",
      "e, f = event(2), event(2, ready=True)\nfor g in parallel(3, level='group'):\n    with inthreads(g == 0, async_=True):\n        for i in foreach(8):\n            wait(f.at(i))\n            trigger(e.at(i))\n"
      "    with inthreads(g > 0, async_=True):\n        for i in foreach(8):\n            wait(e.at(i))\n            c[0, i] = 1.0\n            trigger(f.at(i))"),
     first_row(*[1] * 8), "sm_90a"),
    ("event-twice", "wait, between two triggers, for an event that depends on all triggers of this one",
     roles(E, loop(4, *TRIGGER), loop(4, *TRIGGER), loop(4, *SHOWN)),
     roles(EF, loop(4, "wait f[0]; trigger e;", "wait(f[0])\ntrigger(e)"), loop(4, "wait f[1]; trigger e;", "wait(f[1])\ntrigger(e)"),
           loop(4, SHOWN[0] + " trigger f[0]; trigger f[1];", SHOWN[1] + "\ntrigger(f[0])\ntrigger(f[1])")),
     first_row(1, 1, 1, 1), "cpu"),
    ("fragment-unset", "fill or load `z` first",
     (GROUP[0] + "frag.f32 z; foreach k in n - 3 { z = mma.fill.f32 0.0f; " + MULTIPLY[0] + "} mma.store z, c.subspan(16, 16).at(0, 0); }", None),
     (GROUP[0] + "frag.f32 z; z = mma.fill.f32 2.0f; foreach k in n - 3 { z = mma.fill.f32 0.0f; " + MULTIPLY[0] + "} mma.store z, c.subspan(16, 16).at(0, 0); }", None),
     np.pad(np.full((16, 16), 2), (0, 48)), "cpu"),
    ("fragment-not-filled", "write `z = mma.fill 0.0` before the `if` as well",
     (GROUP[0] + "frag.f32 z; foreach k in 4 { if (k == 0) { mma.fill z, 0.0f; } " + MULTIPLY[0] + "} mma.store z, c.subspan(16, 16).at(0, 0); }", None),
     (GROUP[0] + "frag.f32 z; z = mma.fill 0.0; foreach k in 4 { if (k == 0) { mma.fill z, 0.0f; } " + MULTIPLY[0] + "} mma.store z, c.subspan(16, 16).at(0, 0); }", None),
     np.pad(4 * PRODUCT, (0, 48)), "cpu"),
    ("fragment-not-filled", "before the `inthreads` as well",
     (GROUP[0] + "frag.f16 x; inthreads (n > 2) { mma.load b.subspan(16, 16).at(0, 0), x; } z = mma.fill.f32 0.0f; mma.row.row z, x, b.subspan(16, 16).at(0, 0); mma.store z, c.subspan(16, 16).at(0, 0); }", None),
     (GROUP[0] + "frag.f16 x; x = mma.load b.subspan(16, 16).at(0, 0); inthreads (n > 2) { mma.load b.subspan(16, 16).at(0, 0), x; } z = mma.fill.f32 0.0f; mma.row.row z, x, b.subspan(16, 16).at(0, 0); mma.store z, c.subspan(16, 16).at(0, 0); }", None),
     np.pad(PRODUCT, (0, 48)), "cpu"),
    ("in-flight-read", "wait for the copy first",
     ("shared f16 [64, 64] s; f = dma.copy.async b => s; c.at(0, 0) = s.at(1, 1); wait f;", "s = shared('f16', 64, 64)\nf = dma.copy(b, s, async_=True)\nc[0, 0] = s[1, 1]\nwait(f)"),
     ("shared f16 [64, 64] s; f = dma.copy.async b => s; wait f; c.at(0, 0) = s.at(1, 1);", "s = shared('f16', 64, 64)\nf = dma.copy(b, s, async_=True)\nwait(f)\nc[0, 0] = s[1, 1]"),
     first_row(B[1, 1]), "cpu"),
    ("in-flight-write", "wait for the copy first",
     ("shared f16 [64, 64] s; f = dma.copy.async b => s; s.at(0, 0) = 5.0f; wait f; c.at(0, 0) = s.at(0, 0);", "s = shared('f16', 64, 64)\nf = dma.copy(b, s, async_=True)\ns[0, 0] = 5.0\nwait(f)\nc[0, 0] = s[0, 0]"),
     ("shared f16 [64, 64] s; f = dma.copy.async b => s; wait f; s.at(0, 0) = 5.0f; c.at(0, 0) = s.at(0, 0);", "s = shared('f16', 64, 64)\nf = dma.copy(b, s, async_=True)\nwait(f)\ns[0, 0] = 5.0\nc[0, 0] = s[0, 0]"),
     first_row(5), "cpu"),
    ("in-flight-source", "wait for the copy before writing to `s` again",
     ("shared f32 [1, 64] s {1.0f}; f = tma.copy.async s => c.subspan(1, 64).at(0, 0); s.at(0, 0) = 2.0f; wait f;",
      "s = shared('f32', 1, 64, init=1.0)\nf = tma.copy(s, c.subspan(1, 64).at(0, 0), async_=True)\ns[0, 0] = 2.0\nwait(f)"),
     ("shared f32 [1, 64] s {1.0f}; f = tma.copy.async s => c.subspan(1, 64).at(0, 0); wait f; s.at(0, 0) = 2.0f;",
      "s = shared('f32', 1, 64, init=1.0)\nf = tma.copy(s, c.subspan(1, 64).at(0, 0), async_=True)\nwait(f)\ns[0, 0] = 2.0"),
     first_row(*[1] * 64), "cpu"),
    ("unwaited-copy", ("add `wait f`", "add `wait(f)`"),
     ("if (n > 1) { f = dma.copy.async b => shared; if (n > 5) { wait f; } }", "with if_(n > 1):\n    f = dma.copy(b, to='shared', async_=True)\n    with if_(n > 5):\n        wait(f)"),
     ("if (n > 1) { f = dma.copy.async b => shared; wait f; }", "with if_(n > 1):\n    f = dma.copy(b, to='shared', async_=True)\n    wait(f)"),
     first_row(), "cpu"),
    ("unwaited-multiply", ("add `wait f` before this statement", "add `wait(f)` before this statement"),
     ("s = dma.copy b => shared; parallel w by 1 : group-4 { m = mma.fill.f32 0.0f; f = mma.row.row.async m, s.data, s.data; mma.store m, c; wait f; }",
      "s = dma.copy(b, to='shared')\nfor w in parallel(1, level='group-4'):\n    m = mma.fill(0.0, 'f32')\n    f = mma.row.row(m, s.data, s.data, async_=True)\n    mma.store(m, c)\n    wait(f)"),
     ("s = dma.copy b => shared; parallel w by 1 : group-4 { m = mma.fill.f32 0.0f; f = mma.row.row.async m, s.data, s.data; wait f; mma.store m, c; }",
      "s = dma.copy(b, to='shared')\nfor w in parallel(1, level='group-4'):\n    m = mma.fill(0.0, 'f32')\n    f = mma.row.row(m, s.data, s.data, async_=True)\n    wait(f)\n    mma.store(m, c)"),
     B.astype(np.float32) @ B.astype(np.float32).T, "cpu"),
    ("lanes-apart", ("move it out of the `: thread` level", 'move it out of the `parallel` with `level="thread"`'),
     roles(E, TRIGGER, ("parallel t by 32 : thread { if (b.at(0, t) > 0.0f) { wait e; } c.at(0, t) = 1.0f; }", "for t in parallel(32, level='thread'):\n    with if_(b[0, t] > 0.0):\n        wait(e)\n    c[0, t] = 1.0")),
     roles(E, TRIGGER, ("wait e; parallel t by 32 : thread { c.at(0, t) = 1.0f; }", "wait(e)\nfor t in parallel(32, level='thread'):\n    c[0, t] = 1.0")),
     first_row(*[1] * 32), "cpu"),
    ("too-many-barriers", "let fewer groups share data separately",
     ("shared f32 [64, 64] s; parallel w by 16 : group-2 { parallel t by 64 : thread { s.at(w, t) = t; c.at(w, t) = s.at(w, 63 - t); } }",
      "s = shared('f32', 64, 64)\nfor w in parallel(16, level='group-2'):\n    for t in parallel(64, level='thread'):\n        s[w, t] = t\n        c[w, t] = s[w, 63 - t]"),
     ("shared f32 [64, 64] s; parallel w by 8 : group-2 { foreach h in 2 { parallel t by 64 : thread { s.at(h # w, t) = t; c.at(h # w, t) = s.at(h # w, 63 - t); } } }",
      "s = shared('f32', 64, 64)\nfor w in parallel(8, level='group-2'):\n    for h in foreach(2):\n        for t in parallel(64, level='thread'):\n            s[compose(h, w), t] = t\n            c[compose(h, w), t] = s[compose(h, w), 63 - t]"),
     np.pad(np.tile(np.arange(63.0, -1, -1), (16, 1)), ((0, 48), (0, 0))), "sm_90a"),
    ("element-tiles", "in place of `x`, use the elements of the memory that it was loaded from",
     (BYTES[0] + "apply {i, j} in mc.span { mc.at(i, j) += x.at(i, j); } mma.store mc, d.subspan(16, 32).at(0, 0); }",
      BYTES[1] + "for i, j in apply(mc):\n        mc[i, j] += x[i, j]\n    mma.store(mc, d.subspan(16, 32).at(0, 0))"),
     (BYTES[0] + "apply {i, j} in mc.span { mc.at(i, j) += q.at(i, j); } mma.store mc, d.subspan(16, 32).at(0, 0); }",
      BYTES[1] + "for i, j in apply(mc):\n        mc[i, j] += q[i, j]\n    mma.store(mc, d.subspan(16, 32).at(0, 0))"),
     np.pad(Q[:16, :32].astype(np.int32) @ Q[:32, :32].astype(np.int32).T + Q[:16, :32], ((0, 48), (0, 32))), "sm_90a"),
    ("fragment-layouts", "load it a second time under another name for the other use",
     edited(LAYOUTS, (("SECOND ", "SECOND\n    "), ("", ""))),
     edited(LAYOUTS, (("SECOND mma.row.row y, x", "SECOND\n    mma.row.row(y, x"), (f"v = mma.load {SMALL[0]}; mma.row.row y, v", f"v = {SMALL[1]}\n    mma.row.row(y, v"))),
     np.pad(PRODUCT, (0, 48)), "sm_90a"),
    ("negated-operand", "multiply into an accumulator of its own, and subtract it: `mc -= md`",
     (GROUP[0] + "x = mma.load q.subspan(16, 32).at(0, 0); y = mma.load q.subspan(16, 32).at(0, 0); mc = mma.fill.s32 5; mma.row.row mc, -x, y; mma.store mc, d.subspan(16, 16).at(0, 0); }",
      GROUP[1] + "x, y, mc = mma.load(q.subspan(16, 32).at(0, 0)), mma.load(q.subspan(16, 32).at(0, 0)), mma.fill(5, 's32')\n    mma.row.row(mc, -x, y)\n    mma.store(mc, d.subspan(16, 16).at(0, 0))"),
     (GROUP[0] + "x = mma.load q.subspan(16, 32).at(0, 0); y = mma.load q.subspan(16, 32).at(0, 0); frag s32[16, 16] mc {5}; md = mma.fill.s32 0; mma.row.row md, x, y; mc -= md; mma.store mc, d.subspan(16, 16).at(0, 0); }",
      GROUP[1] + "x, y, mc = mma.load(q.subspan(16, 32).at(0, 0)), mma.load(q.subspan(16, 32).at(0, 0)), mma.frag('s32', 16, 16, init=5)\n    md = mma.fill(0, 's32')\n    mma.row.row(md, x, y)\n    mc -= md\n    mma.store(mc, d.subspan(16, 16).at(0, 0))"),
     np.pad(5 - Q[:16, :32].astype(np.int32) @ Q[:16, :32].astype(np.int32).T, (0, 48)), "sm_80"),
]  # fmt: skip
PAIRS = [(n, language) for n, c in enumerate(CASES) for language in (0, 1) if c[2][language] is not None]
FOLLOWED = frozenset(c[0] for c in CASES)


def block(language: int, statements: str) -> Kernel:
    if language == 0:
        return co(f"parallel p by 1 : block {{ {statements} }}", PARAMS[0])
    body = "\n".join("    " + line for line in statements.split("\n"))
    return py(f"for p in parallel(1, level='block'):\n{body}", PARAMS[1])


def run(kernel: Kernel) -> dict[str, Any]:
    c, d = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.int32)
    kernel(B.copy(), c, Q.copy(), d, N)
    return {"c": c, "d": d}


def attempt(kernel: Kernel, where: str) -> Callable[[], Any]:
    return (lambda: run(kernel)) if where == "cpu" else (lambda: kernel.compile(where).ptx)


@pytest.mark.parametrize(
    ("number", "language"), PAIRS, ids=[f"{CASES[n][0]}-{n}-{('co', 'py')[language]}" for n, language in PAIRS]
)
def test_followed_it_computes_what_was_meant(number: int, language: int) -> None:
    code, advice, wrong, right, expected, where = CASES[number]
    texts = wrong[language], right[language]
    assert texts[0] is not None and texts[1] is not None
    with pytest.raises(TilemmaError) as caught:
        attempt(block(language, texts[0]), where)()
    error = caught.value
    assert error.code == code, error.render()
    assert (advice if isinstance(advice, str) else advice[language]) in error.remedy, error.render()
    kernel = block(language, texts[1])
    found = run(kernel)["d" if "d.subspan" in texts[1] else "c"]
    np.testing.assert_array_equal(found, np.asarray(expected).astype(found.dtype))
    assert kernel.compile("sm_90a").ptx
