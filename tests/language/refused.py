"""Wrong programs, each with the whole text of its error: message, place, caret, notes, advice.

``refused/LANGUAGE.txt`` has below ``== N`` a program of the tables here and what the compiler says about it.
``python tests/language/refused.py`` writes the files: read the difference.
"""

# ruff: noqa: E402
from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [x for x in (str(ROOT), str(Path(__file__).parent)) if x not in sys.path]

import edited

from tilemma.errors import TilemmaError

FOLDER = Path(__file__).parent / "refused"
ARCH = "sm_90a"
PARAMETERS = {
    "co": "global f16 [64, 64] b, global f32 [64, 64] c, int n",
    "py": 'b: tm.Global["f16", 64, 64], c: tm.Global["f32", 64, 64], n: tm.Int',
}


def block(statements: str) -> str:
    return f"parallel p by 1 : block {{ {statements} }}"


def group(statements: str) -> str:
    return block(f"parallel w by 1 : group {{ {statements} }}")


def thread(statements: str) -> str:
    return block(f"parallel i by 32 : thread {{ {statements} }}")


def python(statements: str, levels: int = 1) -> str:
    """Statements of a block, or of a group (2) or thread (3) in it; parted by `; `."""
    heads = ["for p in parallel(1, level='block'):", "for w in parallel(1, level='group'):"][:levels]
    lines = [*heads, *statements.split("; ")]
    return "\n".join("    " * (min(n, len(heads)) + 1) + line for n, line in enumerate(lines))


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
)
# fmt: on


def program(language: str, body: str) -> str:
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


def bodies(language: str) -> tuple[str, ...]:
    return CROQTILE if language == "co" else PYTHON


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
