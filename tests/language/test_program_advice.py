"""Advice about whole programs, followed word by word: parameters, grids, clusters, directives and definitions."""

from __future__ import annotations

from typing import Any

import pytest
from test_advice import py

from tilemma import croqtile
from tilemma.errors import TilemmaError
from tilemma.kernels import Kernel

KERNEL = "__co__ void k(global f32 [64, 64] c) { parallel p by 1 : block { c.at(0, 0) = 1.0f; } }\n"
BLOCK = "parallel p by 1 : block { c.at(0, 0) = 1.0f; }"


def file(text: str, defines: dict[str, Any] | None = None, arch: str = "sm_90a") -> None:
    sources = croqtile.load(text, "program.co", defines or {}).sources
    assert Kernel(next(iter(sources.values()))).compile(arch).ptx


def body(text: str) -> str:
    return KERNEL.replace(BLOCK, text)


def value(text: str, before: str = "") -> str:
    return before + KERNEL.replace("1.0f", text)


def q(text: str) -> str:
    """A kernel on 4-bit integers."""
    parameters = "global s4 [64, 64] q, global s32 [64, 64] d"
    return f"__co__ void k({parameters}) {{ parallel p by 1 : block {{ {text} }} }}\n"


def cluster(text: str, inner: str = "") -> str:
    copy = f"f = tma.copy{inner} b.subspan(16, 64).at(0, 0) => shared; c.at(0, 0) = f.data.at(0, 0);"
    text = text.replace("COPY", copy)
    return f"__co__ void k(global f16 [64, 64] b, global f32 [64, 64] c) {{ {text} }}\n"


RANKED = "parallel r by 2 : cluster { parallel p by 4 : block { BODY } }"
ROLES = "parallel g by 2 : group { inthreads.async (g == 0) { A } inthreads.async (g == 1) { B } }"


def roles(declared: str, a: str, b: str) -> str:
    text = declared + ROLES.replace("{ A }", f"{{ {a} }}").replace("{ B }", f"{{ {b} }}")
    return (
        f"__co__ void k(global f16 [64, 64] b, global f32 [64, 64] c) {{ parallel p by 1 : block {{ {text} }} }}\n"
    )


SLOTS = "foreach i in 3 { SLOT tma.copy.async<e.at(i)> b.subspan(16, 16).at(i, 0) => s[N]; trigger e.at(i); }"
# code, part of the advice, the arguments of `file` for the wrong program, and for the right one.
Arguments = tuple[Any, ...]
CASES: list[tuple[str, str, Arguments, Arguments]] = [
    ("bad-condition", "complete the condition", (f"#if 1 +\n{KERNEL}#endif\n",), (f"#if 1 + 1\n{KERNEL}#endif\n",)),
    ("bad-condition", "make the divisor something else", (f"#if 1 / 0\n{KERNEL}#endif\n",), (f"#if 1 / 1\n{KERNEL}#endif\n",)),
    ("bad-condition", "write `defined(NAME)`", (f"#if !defined(3)\n{KERNEL}#endif\n",), (f"#if !defined(NAME)\n{KERNEL}#endif\n",)),
    ("bad-directive", "write `#define NAME value`", (f"#define\n{KERNEL}",), (f"#define NAME 3\n{KERNEL}",)),
    ("bad-directive", "write `#undef NAME`", (f"#undef\n{KERNEL}",), (f"#undef NAME\n{KERNEL}",)),
    ("macro-recursion", "rename the macro, or the names in its body", (value("X", "#define X Y\n#define Y X\n"),), (value("X", "#define X Y\n#define Y 1.0f\n"),)),
    ("unknown-directive", "did you mean `#define`?", (f"#defin X 3\n{KERNEL}",), (f"#define X 3\n{KERNEL}",)),
    ("error-directive", "change the definitions that its conditions test (`defines=`", (f"#ifndef T\n#error no T\n#endif\n{KERNEL}",),
     (f"#ifndef T\n#error no T\n#endif\n{KERNEL}", {"T": 4})),
    ("macro-arguments", "call it as `F(a, b)`", (value("F(1.0f)", "#define F(a, b) a\n"),), (value("F(1.0f, 2.0f)", "#define F(a, b) a\n"),)),
    ("unbalanced-conditional", "add `#endif`", (f"#if 1\n{KERNEL}",), (f"#if 1\n{KERNEL}#endif\n",)),
    ("unbalanced-conditional", "remove it", (f"{KERNEL}#endif\n",), (KERNEL,)),
    ("unbalanced-conditional", "open a section before `#endif`", (f"{KERNEL}#endif\n",), (f"#if 1\n{KERNEL}#endif\n",)),
    ("macro-explosion", "use loops (`foreach`) where a macro repeats text",
     ("".join(f"#define M{i + 1} M{i} M{i}\n" for i in range(30)) + "#define M0 x = x + 1.0f;\n" + body("parallel p by 1 : block { mutable x = 0.0f; M30 c.at(0, 0) = x; }"),),
     (body("parallel p by 1 : block { mutable x = 0.0f; foreach i in 1 << 30 { x = x + 1.0f; } c.at(0, 0) = x; }"),)),
    ("unknown-define", "did you mean `TILE`?", (value("TILE", "#ifndef TILE\n#define TILE 3\n#endif\n"), {"TILLE": 4}),
     (value("TILE", "#ifndef TILE\n#define TILE 3\n#endif\n"), {"TILE": 4})),
    ("unknown-define", "remove the definition", (KERNEL, {"T": 4}), (KERNEL,)),
    ("bad-define", "pass for instance `defines={'TILE_K': 64}`", (value("TILE_K"), {"TILE_K": [64]}), (value("TILE_K"), {"TILE_K": 64})),
    ("unterminated-comment", "close the comment with `*/`", (f"/* a kernel\n{KERNEL}",), (f"/* a kernel */\n{KERNEL}",)),
    ("unterminated-string", "close the string with `)\"`", (f'const char* s = R"(text;\n{KERNEL}',), (f'const char* s = R"(text)";\n{KERNEL}',)),
    ("unfinished-kernel", "add the missing `}`", (KERNEL.rstrip()[:-1],), (KERNEL,)),
    ("unfinished-kernel", "give it one: `{ ... }` after the parameters", (KERNEL.partition("{")[0],), (KERNEL,)),
    ("unfinished-kernel", "give it a body", (KERNEL.partition("{")[0] + ";",), (KERNEL,)),
    ("no-kernel", "write `__co__ void name(...) { ... }`", ("",), (KERNEL,)),
    ("redefinition", "choose another name", (KERNEL + KERNEL,), (KERNEL + KERNEL.replace("void k", "void k2"),)),
    ("misplaced-colon", "separate the arguments with `,`", (body("parallel p by 1 : block { c.at(0, 0) = __max(1.0f : 2.0f); }"),),
     (body("parallel p by 1 : block { c.at(0, 0) = __max(1.0f, 2.0f); }"),)),
    ("outside-parallel", "move it into the `parallel`", (body("shared f32 [4] s; parallel p by 1 : block { c.at(0, 0) = 1.0f; }"),),
     (body("parallel p by 1 : block { shared f32 [4] s; c.at(0, 0) = 1.0f; }"),)),
    ("assertion-not-computable", "move it into the `parallel`", (body(f"assert(c.at(0, 0) > 0.0f); {BLOCK}"),), (body("parallel p by 1 : block { assert(c.at(0, 0) > 0.0f); }"),)),
    ("bad-parameter", "make it `global`", (KERNEL.replace("global", "shared"),), (KERNEL,)),
    ("bad-parameter", "declare the buffer in the kernel", (KERNEL.replace("c)", "c, shared f32 [4] s)"),), (KERNEL.replace("block {", "block { shared f32 [4] s;"),)),
    ("bad-return", "make the kernel's type `auto`", (body(f"f32 [4] r; {BLOCK} return r;"),), (body(f"f32 [4] r; {BLOCK} return r;").replace("void", "auto"),)),
    ("bad-return", "return a whole global array", (body(f"{BLOCK} return 3;").replace("void", "auto"),), (body(f"f32 [4] r; {BLOCK} return r;").replace("void", "auto"),)),
    ("grid-not-computable", "loop inside the block", (KERNEL.replace("c)", "c, global s32 [4] v)").replace("by 1", "by v.at(0)"),),
     (KERNEL.replace("c)", "c, global s32 [4] v)").replace("block {", "block { foreach i in v.at(0) {").replace("; }", "; } }"),)),
    ("sizes-wanted", "`defines={\"M\": 64}`", (KERNEL.replace("64, 64", "M, N").replace("block {", "block { shared f32 [M] s;"),),
     (KERNEL.replace("64, 64", "M, N").replace("block {", "block { shared f32 [M] s;"), {"M": 64})),
    ("contract-names", "write `mma.row.row`, which contracts `K`", *(
        ("__co__ void k(global f16 [M, K] a, global f16 [N, K] b, global f32 [M, N] c) { parallel p by 1 : block, w by 1 : group { m = mma.fill.f32 0.0f; "
         f"mma.{way} m, a.subspan(16, 16).at(0, 0), b.subspan(16, 16).at(0, 0); mma.store m, c.subspan(16, 16).at(0, 0); }} }}",) for way in ("row.col", "row.row"))),
    ("cluster-without-grid", "put the grid inside", (body("parallel r by 2 : cluster { parallel w by 4 : group { c.at(0, 0) = 1.0f; } }"),),
     (body("parallel r by 2 : cluster { parallel p by 4 : block { c.at(0, 0) = 1.0f; } }"),)),
    ("cluster-without-grid", "write the level `cluster-grid`", (body("parallel p by 4 : cluster { parallel q by 2 : block { c.at(0, 0) = 1.0f; } parallel q by 2 : block { } }"),),
     (body("parallel p by 4 : cluster-grid { parallel q by 2 : block { c.at(0, 0) = 1.0f; } }"),)),
    ("cluster-refused", "use fewer blocks", (body("parallel r by 32 : cluster { parallel p by 64 : block { c.at(0, 0) = 1.0f; } }"),),
     (body("parallel r by 2 : cluster { parallel p by 64 : block { c.at(0, 0) = 1.0f; } }"),)),
    ("cluster-refused", "put the blocks inside: `parallel p by 2 : block { ... }`", (body("parallel r by 32 : cluster-grid { shared f32 [4] s; }"),),
     (body("parallel r by 32 : cluster-grid { parallel p by 2 : block { c.at(0, 0) = 1.0f; } }"),)),
    ("cluster-refused", "compile for sm_90a", (body("parallel r by 2 : cluster { parallel p by 4 : block { c.at(0, 0) = 1.0f; } }"), None, "sm_80"),
     (body("parallel r by 2 : cluster { parallel p by 4 : block { c.at(0, 0) = 1.0f; } }"), None, "sm_90a")),
    ("cluster-refused", "or remove the level of the cluster", (body("parallel r by 2 : cluster { parallel p by 4 : block { c.at(0, 0) = 1.0f; } }"), None, "sm_80"), (KERNEL, None, "sm_80")),
    ("multicast-apart", "the branch", (cluster(RANKED.replace("BODY", "if (p > 1) { COPY }"), ".multicast"),), (cluster(RANKED.replace("BODY", "COPY"), ".multicast"),)),
    ("multicast-depends", "leave `.multicast` out", (cluster(RANKED.replace("BODY", "COPY").replace("at(0, 0) =>", "at(r, 0) =>"), ".multicast").replace("at(0, 0) =>", "at(r, 0) =>"),),
     (cluster(RANKED.replace("BODY", "COPY")).replace("at(0, 0) =>", "at(r, 0) =>"),)),
    ("multicast-depends", "take a tile that the blocks of a cluster share", (cluster(RANKED.replace("BODY", "COPY"), ".multicast").replace("at(0, 0) =>", "at(r, 0) =>"),),
     (cluster(RANKED.replace("BODY", "COPY"), ".multicast"),)),
    ("event-ahead", "make the triggering side wait for a release before its next iteration",
     (roles("shared event e[2];", "foreach i in 8 { trigger e.at(i); }", "foreach i in 8 { wait e.at(i); c.at(0, i) = 1.0f; }"),),
     (roles("shared event e[2], f[2] = ready;", "foreach i in 8 { wait f.at(i); trigger e.at(i); }", "foreach i in 8 { wait e.at(i); c.at(0, i) = 1.0f; trigger f.at(i); }"),)),
    ("copy-beyond", "index it modulo its number of slots",
     (roles("shared event e[2], f[2] = ready; shared f16 [16, 16] s[2];", SLOTS.replace("SLOT", "wait f.at(i);").replace("N", "i"), "foreach i in 3 { wait e.at(i); trigger f.at(i); }"),),
     (roles("shared event e[2], f[2] = ready; shared f16 [16, 16] s[2];", SLOTS.replace("SLOT", "wait f.at(i);").replace("N", "i % 2"), "foreach i in 3 { wait e.at(i); trigger f.at(i); }"),)),
    ("not-built", "use synchronous copies", (body("parallel p by 1 : block { shared event e; trigger e; wait e; c.at(0, 0) = 1.0f; }"), None, "sm_75"), (KERNEL, None, "sm_75")),
    ("not-built", "or compile for sm_80 or later", (body("parallel p by 1 : block { shared event e; trigger e; wait e; c.at(0, 0) = 1.0f; }"), None, "sm_75"),
     (body("parallel p by 1 : block { shared event e; trigger e; wait e; c.at(0, 0) = 1.0f; }"), None, "sm_80")),
    ("packed-write", "write a u8 array", (q("q.at(0, 0) = 1;"),), (q("q.at(0, 0) = 1;").replace("s4", "u8"),)),
    ("packed-width", "use a multiple of 2 there", (q("f = dma.copy q.subspan(64, 33).at(0, 0) => shared; d.at(0, 0) = f.data.at(0, 0);"),),
     (q("f = dma.copy q.subspan(64, 34).at(0, 0) => shared; d.at(0, 0) = f.data.at(0, 0);"),)),
    ("packed-step", "keep the last dimension whole", (q("f = dma.copy q.subspan(64, 32 : 1, 2).at(0, 0) => shared; d.at(0, 0) = f.data.at(0, 0);"),),
     (q("f = dma.copy q => shared; d.at(0, 0) = f.data.at(0, 2);"),)),
    ("packed-step", "use elements of 8 bits", (q("f = dma.copy q.subspan(64, 32 : 1, 2).at(0, 0) => shared; d.at(0, 0) = f.data.at(0, 0);"),),
     (q("f = dma.copy q.subspan(64, 32 : 1, 2).at(0, 0) => shared; d.at(0, 0) = f.data.at(0, 0);").replace("s4", "s8"),)),
    ("packed-major", "write `mma.row.row`", *((q(f"parallel w by 1 : group {{ m = mma.fill.s32 0; mma.{way} m, q, q; mma.store m, d; }}"),) for way in ("row.col", "row.row"))),
]  # fmt: skip


@pytest.mark.parametrize("n", range(len(CASES)), ids=lambda n: f"{CASES[n][0]}-{n}")
def test_followed_it_compiles(n: int) -> None:
    code, advice, wrong, right = CASES[n]
    with pytest.raises(TilemmaError) as caught:
        file(*wrong)
    assert caught.value.code == code and advice in caught.value.remedy, caught.value.render()
    file(*right)


LOOP = "for p in parallel(1, level='block'):\n    c[0, 0] = 1.0"
C = 'c: tm.Global["f32", 64, 64]'
# code, part of the advice; body, parameters and compile-time values of the wrong kernel and of the right one.
PYTHON: list[tuple[str, str, Arguments, Arguments]] = [
    ("bad-parameter", 'write `c: tm.Global["f16", "M", "K"]`', (LOOP, "c"), (LOOP, 'c: tm.Global["f16", "M", "K"]')),
    ("bad-parameter", "write `n: tm.Int`", (LOOP, f"{C}, n: int"), (LOOP, f"{C}, n: tm.Int")),
    ("bad-parameter", "write `n: tm.Float`", (LOOP, f"{C}, n: float"), (LOOP, f"{C}, n: tm.Float")),
    ("bad-parameter", "name each parameter", (LOOP, f"{C}, *n"), (LOOP, f"{C}, n: tm.Int, m: tm.Int")),
    ("bad-return", "write results through an output parameter", (f"{LOOP}\nreturn 3", C), (f"{LOOP.replace('1.0', '3')}", C)),
    ("missing-compile-time-parameter", "pass `T=...`", (LOOP.replace("1.0", "T"), f"{C}, *, T"), (LOOP.replace("1.0", "T"), f"{C}, *, T", {"T": 4})),
    ("unknown-compile-time-parameter", "did you mean `T`?", (LOOP.replace("1.0", "T"), f"{C}, *, T=1", {"TT": 4}), (LOOP.replace("1.0", "T"), f"{C}, *, T=1", {"T": 4})),
    ("cluster-refused", 'put the blocks inside: `for p in parallel(2, level="block"):`', ("for r in parallel(2, level='cluster'):\n    c[0, 0] = 1.0", C),
     ("for r in parallel(2, level='cluster'):\n    for p in parallel(2, level='block'):\n        c[0, 0] = 1.0", C)),
    ("cluster-without-grid", "put the grid inside", ("for p in parallel(2, level='block'):\n    for r in parallel(2, level='cluster-rank'):\n        c[0, 0] = 1.0", C),
     ("for r in parallel(2, level='cluster-rank'):\n    for p in parallel(2, level='block'):\n        c[0, 0] = 1.0", C)),
]  # fmt: skip


def python(body: str, parameters: str, constants: dict[str, Any] | None = None) -> None:
    assert py(body, parameters).compile("sm_90a", **(constants or {})).ptx


@pytest.mark.parametrize("n", range(len(PYTHON)), ids=lambda n: f"{PYTHON[n][0]}-{n}")
def test_followed_in_python_it_compiles(n: int) -> None:
    code, advice, wrong, right = PYTHON[n]
    with pytest.raises(TilemmaError) as caught:
        python(*wrong)
    assert caught.value.code == code and advice in caught.value.remedy, caught.value.render()
    python(*right)


FOLLOWED = frozenset(c[0] for c in (*CASES, *PYTHON))
