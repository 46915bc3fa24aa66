"""Wrong programs, each with the whole text of its error: message, place, caret, notes, advice.

``refused/LANGUAGE.txt`` has below ``== N`` a program of the tables here and what the compiler says about it.
``python tests/language/refused.py`` writes the files: read the difference.
"""

# ruff: noqa: E402
from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [x for x in (str(ROOT), str(Path(__file__).parent)) if x not in sys.path]

import edited
import refused_guards
import refused_passes
from refused_text import PARAMETERS, block, group, python, thread

from tilemma.errors import TilemmaError

FOLDER = Path(__file__).parent / "refused"
ARCH = "sm_90a"

# fmt: off
CROQTILE = (
    group("frag f32[64, 64] m {0.0f}; apply {i, j, k} in m.span { m.at(i, j) = 0.0f; }"),
    group("m = mma.fill.f32 0.0f; apply {i, j} in m.span { m.at(i, j) = 0.0f; } x = m.span;"),
    group("m = mma.fill 0.0f; n2 = |m.span|;"),
    group("frag f32[64] r {0.0f}; frag f32[64, 64] m {0.0f}; reduce_max(r);"),
    group("frag f32[64] r {0.0f}; frag f32[64, 64] m {0.0f}; reduce_max(r, m, r, r);"),
    group("frag f32[64] r {0.0f}; frag f32[64, 64] m {0.0f}; reduce_max(c, m);"),
    group("frag f32[64] r {0.0f}; frag f32[64, 64] m {0.0f}; copy(r, m);"),
    group("frag f32[64] r {0.0f}; frag f32[64, 64] m {0.0f}; reduce_sum(m, r);"),
    group("frag f32[32] r {0.0f}; frag f32[64, 64] m {0.0f}; reduce_sum(r, m);"),
    group("frag f32[64] r {0.0f}; m = mma.fill 0.0f; reduce_sum(r, m);"),
    group("frag f32[64, 64] m[2] {0.0f}; y = m; y.at(0, 0) = 1.0f;"),
    block("event e[2]; x = e; trigger x;"),
    block("shared event e[2]; x = e[n]; trigger x;"),
    block("shared event e[2][2]; trigger e[0];"),
    block("local event e; trigger e;"),
    block("shared event e; trigger e[1];"),
    block("shared event e[2]; trigger e;"),
    block("x = c[0, 0];"),
    block("x = c[0];"),
    block("x = n[0];"),
    block("x = c.span_as(64).foo;"),
    block("c.at(0, 0) = 1e999;"),
    block("c.at(0, 0) = 1e999f;"),
    block("mdspan<64> x {1, 2};"),
    block("mdspan<3> x {1, 2};"),
    thread("c.at(i, 0) = alignup(i, n) + aligndown(i, 4) + __max(i, n) + __min(i, n) + __abs(i - 7) + __fabs(i);"),
    block("sync.shared; sync.global; sync.local;"),
    block("sync;"),
    "parallel p by 1 : block, w by 2 : group-4 { sync.group; }",
    block("foreach i in n : step(0) { c.at(0, 0) = i; }"),
    block("foreach i in 4 : unroll(0) { c.at(0, 0) = i; }"),
    block("foreach i { c.at(0, 0) = 1.0f; }"),
    block("parallel q by 2 : block { c.at(0, 0) = 1.0f; }"),
    thread("parallel j by 2 : thread { c.at(i, j) = 1.0f; }"),
    thread("parallel w by 1 : group { c.at(i, 0) = 1.0f; }"),
    "x = n + 1; x = 2;",
    "wait c;",
    block("wait c;"),
    block("swap(b, c);"),
    block("f = dma.copy.async b => shared; swap(f, f); wait f;"),
    block("f = dma.copy.async b => shared; g = dma.copy.async b => shared; swap(f, g, f); wait f, g;"),
    group("x = mma.load b; m = mma.fill.f32 0.0f; mma.row.row m, x;"),
    group("mma.row.foo m, b, b;"),
    group("x = mma.load.foo b;"),
    group("x = mma.load;"),
    group("mma.store c;"),
    group("mma.commit 1;"),
    group("mma.wait;"),
    group("mma.wait -1;"),
    group("x = mma.load.swiz b;"),
    group("x = mma.load.swiz<1,2> b;"),
    group("x = dma.copy.foo b => shared;"),
    block("f = dma.copy.async<1> b => shared; wait f;"),
    block("f = dma.copy.async<e, e> b => shared; wait f;"),
    block("f = dma.transp b => shared;"),
    block("f = dma.transp<0, 0> b => shared;"),
    block("f = dma.pad<1> b => shared;"),
    block("assert(c.at(0, 0) > 0.0f, n);"),
    block("x = !c;"),
    block("x = b + c;"),
    block('x = "a";'),
    "return c;",
    "return n;",
    block("return c;"),
    block("break;"),
    block("continue;"),
    block("where n > 1 { }"),
    block("x = #p; y = #n;"),
    block("x = p # n;"),
    block("x = c.at(_, 0);"),
    block("x = c.chunkat(p, _, _);"),
    block("x = c.subspan(8).at(0);"),
    block("x = c.subspan(8, 8 : 2).at(0, 0);"),
    block("x = c.subspan(8, 8 : 0, 1).at(0, 0);"),
    block("x = c.view(8, 8).from(0);"),
    block("x = c.span(0); y = c.span(7);"),
    block("x = c.foo;"),
    block("x = c.at;"),
    block("__atomic_add(c, 1.0f);"),
    block("__atomic_add(c.at(0, 0));"),
    block("__atomic_foo(c.at(0, 0), 1.0f);"),
    block("__atomic_cas(c.at(0, 0), 1.0f);"),
    block("c.at(0,0) += c;"),
    block("c += 1.0f;"),
    block("n += 1;"),
    block("n = 1;"),
    block("p = 1;"),
    block("[[launch_bounds(64)]] foreach i in 4 { }"),
    block("[[unrolled]] foreach i in 4 { }"),
    block("[[unroll(2, 3)]] foreach i in 4 { }"),
    block("[[3]] foreach i in 4 { }"),
    block("foreach i in 4 : unroll(1, 2) { }"),
    block("foreach i in 4 : vectorize(i) { }"),
    block("foreach i in 4 : vectorize(i, 2, 3) { }"),
    block("[[pipeline(stages=17)]] foreach i in 4 { }"),
    block("[[pipeline(3, 4)]] foreach i in 4 { }"),
    block("dma.copy => shared;"),
    block("dma.copy b;"),
    block("dma.copy b, c => shared;"),
    block("dma.copy b => ;"),
    block("shared f16 [4] s[0]; s[0].at(0) = 1.0f;"),
    block("shared f16 [4] s[4097]; s[0].at(0) = 1.0f;"),
    block("x = c.span(2) + 1;"),
    block("x = |c|; y = |n|;"),
    block("frag f32[64, 64, 64] m {0.0f};"),
    group("frag f32[0, 64] m {0.0f};"),
    group("frag f32[64, 64] m[257] {0.0f};"),
    group("x = mma.load b; mma.row.row x, x, x;"),
    group("mma.fill 0.0f;"),
    group("m = mma.fill.f99 0.0f;"),
    thread("c.at(i, 0) = __shfl(1.0f);"),
    thread("c.at(i, 0) = __exp(1.0f, 2.0f);"),
    thread("c.at(i, 0) = __alignup(1.5f, 2);"),
    thread("c.at(i, 0) = i ? b : c;"),
    thread("int x = 1; int x = 2;"),
    thread("u8 x = 300; c.at(i, 0) = x;"),
    thread("mutable f32 x = 0.0f; x %= 2.0f; x <<= 1;"),
    thread("c.at(i, 0) += b;"),
    thread("c.at(i) = 1.0f;"),
    thread("c.at(i, 0, 0) = 1.0f;"),
    thread("c.at(64, 0) = 1.0f;"),
    thread("c.at(-1, 0) = 1.0f;"),
    block("t = {1, 2}; u = t {1, 2, 3};"),
    block("t : [n, 2]; u : t [4];"),
)
PYTHON = (
    python("x = mma.fill()"),
    python("mma.fill(0.0, 'f32', 3)"),
    python("m = mma.fill(0.0); s = m.shape", 2),
    python("c[0, 0] = c"),
    python("c.subspan(8, 8)[0, 0] = c.subspan(8, 8)[1, 1]"),
    python("c.foo"),
    python("x = c[0]"),
    python("x = c[0, 0, 0]"),
    python("x = c[0:2, 0]"),
    python("x = c.chunkat(p, None)"),
    python("x = int(c[0, 0])"),
    python("m = mma.frag('f32', 64, 64, init=0.0); r = m.sum(axis=0)", 2),
    python("m = mma.frag('f32', 64, 64, init=0.0); r = m.sum(axis=1); q = m + r; z = m + m.max(axis=1); u = r + m", 2),
    python("m = mma.frag('f32', 64, 64, init=0.0, copies=2); m[0, 1] = 3; q = m.foo", 2),
    python("f = dma.copy(b, to='shared', transp=(0, 0))"),
    python("f = dma.copy(b, to='shared', transp=3)"),
    python("f = dma.copy(b, to='nowhere')"),
    python("f = dma.copy(b)"),
    python("mma.reduce_max(c, c)", 2),
    python("x = c[0, 0] << 2"),
    python("x = ~c[0, 0]"),
    python("dma.copy(b, c, b, c, b)"),
    python("dma.copy()"),
    python("dma.copy(b, c, foo=1)"),
    python("dma.copy(b, c, asink=True)"),
    python("mma.fill()", 2),
    python("mma.load()", 2),
    python("mma.load(b, b, b, b)", 2),
    python("mma.row.row(b)", 2),
    python("mma.store(c)", 2),
    python("sync.shared(1)"),
    python("x = var()"),
    python("x = var(1, 's32', 2)"),
    python("x = event(1, 2)"),
    python("x = event(33)"),
    python("x = c.at(1)"),
    python("x = tm.cdiv(1)"),
    python("x = tm.cdiv(1, 2, 3)"),
    python("x = select(n)"),
    python("x = select(n > 1, 1, 2, 3)"),
    python("x = shared()"),
    python("x = shared('f16', 4, copies=4097)"),
    python("x = mma.frag('f32', 64, 64, copies=257)", 2),
    python("x = mma.frag('f32', 0, 64)", 2),
    python("atomic.add(c[0, 0])"),
    python("atomic.add(c[0, 0], 1.0, 2.0)"),
    python("atomic.foo(c[0, 0], 1.0)"),
    python("x = tm.math.exp()"),
    python("x = tm.math.foo(1.0)"),
    python("x = n.astype()"),
    python("x = n.astype('f32', 1)"),
    python("e = event(2); wait(e); trigger(e[0], 1, 2)"),
    python("wait(c)"),
    python("swap(c)"),
    python("c[0, 0] = None"),
    python("c[None, 0] = 1.0"),
    python("c[..., 0] = 1.0"),
    python("c[64, 0] = 1.0"),
    python("m = mma.fill(0.0); m.foo", 2),
    python("m = mma.fill(0.0); m[0] = 1.0", 2),
    python("m = mma.fill(0.0); x = m + c", 2),
    python("m = mma.fill(0.0); x = m.sum()", 2),
    python("with inthreads(): pass"),
    python("with inthreads(c): pass"),
    python("with if_(): pass"),
    python("x = foreach(4)"),
    python("x = [i for i in foreach(4, 5, 6, stop=1)]"),
)
# fmt: on


def program(language: str, body: str) -> str:
    """The program of a body, or of a row that is a whole program of Croqtile."""
    if "__co__" in body:
        return body
    if language == "co":
        return f"__co__ void k({PARAMETERS['co']}) {{\n  {body}\n}}"
    return f"import tilemma as tm\nfrom tilemma import *\n\n@tm.kernel\ndef k({PARAMETERS['py']}):\n{body}\n"


def told(language: str, body: str) -> str:
    """The error as a user sees it, and what its JSON has besides."""
    try:
        for kernel in edited.read(language, program(language, body)):
            kernel.compile(ARCH)
    except TilemmaError as e:
        facts = json.loads(e.json())
        span = facts["span"]
        end = f"{span['end_line']}:{span['end_column']}" if span else "nowhere"
        return f"{e.render()}\n  to {end}, exit status {facts['exit_status']}"
    return "compiled"


@cache
def bodies(language: str) -> tuple[str, ...]:
    rows = (CROQTILE, PYTHON), (refused_guards.CROQTILE, refused_guards.PYTHON), (refused_passes.CROQTILE, ())
    return tuple(body for table in rows for body in table[language == "py"])


@cache
def recorded(language: str) -> list[str]:
    text = (FOLDER / f"{language}.txt").read_text(encoding="utf-8")
    return [x.partition("\n")[2].strip("\n") for x in ("\n" + text).split("\n== ")[1:]]


def update() -> None:
    FOLDER.mkdir(exist_ok=True)
    for language in ("co", "py"):
        entries = (f"== {n}\n{told(language, body)}\n" for n, body in enumerate(bodies(language)))
        (FOLDER / f"{language}.txt").write_text("".join(entries), encoding="utf-8")


if __name__ == "__main__":
    update()
