"""Wrong programs: the error, its column and its advice."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tilemma import croqtile
from tilemma.errors import KINDS, CompileError, LaunchError
from tilemma.kernels import Kernel

HEADER = "global f16 [M, K] a, global f16 [N, K] b, global f32 [M, N] c, int n, f32 x"


def error(body: str, header: str = HEADER, returns: str = "void", before: str = "") -> CompileError:
    """The error of a kernel whose body starts on line 3."""
    with pytest.raises(CompileError) as e:
        module = croqtile.load(f"{before}\n__co__ {returns} f({header}) {{\n{body}\n}}", "t.co")
        for name in module.kernels:
            module.kernels[name]
    return e.value


# (statements inside `parallel p by 4 : block { ... }`, code, column, part of the message or of the advice)
INSIDE = [
    # names
    ("c.at(0, 0) = y;", "unknown-name", 14, "`y` is not defined"),
    ("dma.copy aa => b;", "unknown-name", 10, "did you mean `a`?"),
    ("c.at(0, 0) = cdivv(4, 2);", "unknown-name", 14, "did you mean `cdiv`?"),
    ("c.at(0, 0) = __expp(x);", "unknown-name", 14, "did you mean `__exp`?"),
    ("y += 1;", "unknown-name", 1, "`y`"),
    ("{ int y = 1; } c.at(0, y) = x;", "unknown-name", 24, "`y`"),
    ("foreach i in 4 {} c.at(0, i) = x;", "unknown-name", 27, "`i`"),
    ("foreach k(1:) {}", "unknown-name", 9, "`k`"),
    # heads of statements
    ("foreach k(64) {}", "syntax", 13, "`foreach k in 4 { ... }`"),
    ("foreach k(cta::DIM) {}", "unknown-name", 9, "`k` is not defined"),
    ("foreach (k in 4) {}", "syntax", 9, "`foreach k in 4 { ... }`"),
    ("foreach k = 4 {}", "syntax", 13, "`foreach k in 4 { ... }`"),
    ("foreach k in [0:4] {}", "syntax", 16, "`foreach k in 4 { ... }`"),
    ("parallel q in 4 : group {}", "syntax", 12, "`parallel p by 4 : block { ... }`"),
    ("with k by 4 {}", "syntax", 8, "`with k in 8 { ... }`"),
    ("inthreads p == 0 {}", "syntax", 11, "`inthreads (p == 0) { ... }`"),
    ("if n > 4 {}", "syntax", 4, "`if (x < 4) { ... }"),
    ("if (n > 4 {}", "syntax", 11, "`if (x < 4) { ... }"),
    ("foreach i in 4 c.at(0, 0) = 1 2;", "syntax", 31, "`2` cannot stand here"),
    ("if (n > 4) c.at(0, 0) 2;", "syntax", 23, "`2` cannot stand here"),
    ("int y = 1; int y = 2;", "redefinition", 16, "`y` is defined twice"),
    ("shared f16 [4] s; shared f16 [4] s;", "redefinition", 34, "`s`"),
    ("shared f16 [4] s; s = dma.copy a.subspan(4, 4).at(0, 0) => shared;", "redefinition", 19, "`s`"),
    (
        "s = dma.copy a.subspan(4, 4).at(0, 0) => shared;\ns = dma.copy a.subspan(4, 4).at(0, 0) => shared;",
        "not-built-yet",
        1,
        "copy into it",
    ),
    ("parallel {i, i} by [2, 2] : group {}", "redefinition", 14, "`i`"),
    # assignment
    ("int y = 1; y = 2;", "immutable-assignment", 12, "mutable"),
    ("y = 1; y = 2;", "immutable-assignment", 8, "`y`"),
    ("p = 2;", "immutable-assignment", 1, "an index"),
    ("n = 2;", "immutable-assignment", 1, "a scalar"),
    ("a = b;", "immutable-assignment", 1, "a tile"),
    ("shared f16 [4] s[2]; s[0] = a;", "wrong-value", 22, "cannot be assigned"),
    ("int y;", "wrong-value", 5, "no value"),
    ("y = [4, 4];", "wrong-value", 5, "`:` before a shape"),
    ("x++;", "wrong-value", 1, "mutable"),
    ("x;", "side-effect", 1, "nothing uses"),
    ("mutable int i = 0; c.at(0, 0) = n ? i++ : 0;", "side-effect", 37, "a branch of `?:`"),
    ("mutable int i = 0; while (i++ < 4) {}", "side-effect", 27, "the condition of `while`"),
    ("mutable int i = 0; if (n && i++) {}", "side-effect", 29, "the right side of `&&`"),
    # views
    ("dma.copy a.chunkat(p) => b;", "wrong-rank", 10, "2 dimensions"),
    ("dma.copy a.subspan(4).at(0) => b;", "wrong-rank", 10, "2 dimensions"),
    ("dma.copy a.subspan(4, 4).at(0) => b;", "wrong-rank", 10, "`subspan(...).at` got 1"),
    ("dma.copy a.view(4, 4) => b;", "not-a-tile", 10, "`.from(...)` after `.view(...)`"),
    ("dma.copy a.subspan(4, 4).step(1).at(0, 0) => b;", "wrong-arity", 10, "step(p, q)"),
    ("dma.copy a.subspan(4, 4 : 1).at(0, 0) => b;", "wrong-arity", 10, "strides"),
    ("dma.copy a.view(4, 4).at(0, 0) => b;", "wrong-member", 22, "`.from`"),
    ("dma.copy a.subspan(4, 4).from(0, 0) => b;", "wrong-member", 25, "`.at`"),
    ("dma.copy a.view(4, 4).from(0, _) => b;", "wrong-value", 31, "`_`"),
    ("dma.copy a.chunkat(n, _) => shared;", "unbounded-chunk-index", 10, "`n`"),
    ("dma.copy a.chunkat(p * 2, _) => shared;", "unbounded-chunk-index", 10, "subspan"),
    ("dma.copy a.chunkat(p - 99, _) => shared;", "unbounded-chunk-index", 10, "subspan"),
    ("dma.copy a.chunkat(1.0f, _) => b;", "wrong-value", 20, "an integer"),
    ("dma.copy a.chukat(p, _) => b;", "wrong-member", 11, "did you mean `.chunkat`?"),
    ("c.at(0) = x;", "wrong-rank", 1, "`at` got 1"),
    ("c.at(0, 0, 0) = x;", "wrong-rank", 1, "`at` got 3"),
    ("c.at(0, _) = x;", "wrong-value", 9, "`_`"),
    ("c.at = x;", "wrong-rank", 1, "`at` got 0"),
    ("y = a.span(2);", "wrong-value", 12, "0 to 1"),
    ("y = a.span(n);", "not-constant", 12, "`n`"),
    ("y = a.span.at(0);", "wrong-member", 11, "a shape"),
    ("y = p.span;", "wrong-member", 6, "an index"),
    ("y = p(1);", "wrong-value", 7, "-1"),
    ("y = x(1);", "wrong-value", 5, "a scalar"),
    ("y = #n;", "wrong-value", 5, "upper bound"),
    ("y = n # p;", "wrong-value", 5, "upper bound"),
    ("y = n #+ 1;", "wrong-value", 5, "upper bound"),
    ("shared f16 [4, 4] s; y = s.span_as([3, 5]);", "element-count", 26, "16"),
    ("y = a.subspan(4, 4).at(0, 0).span_as([2, 8]);", "span-as-not-contiguous", 5, "`a`"),
    ("shared f16 [12, 4] s; foreach k in 5 { m = mma.load s.chunkat(k, _); }", "chunk-does-not-divide", 53, "5"),
    ("shared f16 [4] s[2]; dma.copy s => s;", "not-a-tile", 31, "[i]"),
    ("shared f16 [4] s[2]; dma.copy s[2] => s[0];", "index-out-of-range", 33, "0 to 1"),
    ("y = a[0];", "wrong-value", 5, ".at(i, j)`"),
    ("parallel a by 1 : group { m = mma.load a; }", "not-a-tile", 40, "an index"),
    # arithmetic
    ("y = 010;", "octal-literal", 5, "`10`"),
    ("y = x + 007;", "octal-literal", 9, "`7`"),
    ("y = 1 / 0;", "constant-division", 5, "division by zero"),
    ("y = n % 0;", "constant-division", 5, "division by zero"),
    ("y = 1 << 32;", "constant-division", 5, "shift of s32 by 32"),
    ("y = 2147483647 + 1;", "constant-overflow", 5, "s32"),
    ("y = x & 2.0f;", "wrong-value", 5, "a float"),
    ("mutable int y = 0; y = x;", "wrong-value", 20, "the scalar's type"),
    ("y = x << 1;", "wrong-value", 5, "a float"),
    ("y = ~x;", "wrong-value", 5, "an integer"),
    ("y = a + 1;", "wrong-value", 5, "a tile"),
    ("y = &x;", "not-built-yet", 5, "address"),
    ("y = cdiv(1);", "wrong-arity", 5, "cdiv(a, b)"),
    ("y = __exp(x, x);", "wrong-arity", 5, "__exp(a)"),
    ("y = __exp;", "wrong-value", 5, "a call"),
    ('y = "text";', "wrong-value", 5, "a string"),
    ("y = {1, 2} + {1, 2, 3};", "wrong-value", 5, "the same number"),
    ("y = __to<f17>(x);", "unknown-dtype", 10, "`f17`"),
    ("y = __to<f8_ue8m0>(x);", "not-built-yet", 5, "`f8_ue8m0`"),
    ("y = |s4|;", "wrong-value", 5, "4 bits"),
    ("u8 y = 300;", "constant-overflow", 4, "300"),
    # declarations
    ("shared f16 [p] s;", "extents-not-known", 16, "use constants as extents"),
    ("shared f16 [0] s;", "wrong-value", 13, "at least 1"),
    ("with k in 4 { shared f16 [k] s; }", "wrong-value", 27, "`#k`"),
    ("shared f16 [4] s[n];", "not-constant", 18, "`n`"),
    ("shared f16 [4] s[0];", "wrong-value", 18, "1 to"),
    ("shared f16 s;", "wrong-value", 12, "no scalar type"),
    ("f16 [4, 4] s;", "wrong-value", 12, "move it out of `parallel`"),
    ("local event e;", "not-built-yet", 1, "shared event"),
    ("shared event e[2][2];", "not-built-yet", 14, "rank 2"),
    ("shared event e = done;", "wrong-value", 14, "ready"),
    ("ituple<3> t = {1, 2};", "wrong-arity", 15, "the rank declared"),
    ("mdspan<3> t : [1, 2];", "wrong-arity", 15, "the rank declared"),
    ("t = 4; s : t;", "wrong-value", 12, "a shape"),
    ("frag mc[500] {0.0};", "wrong-value", 9, "1 to 256"),
    # copies
    ("dma.coppy a => b;", "wrong-member", 4, "did you mean `.copy`?"),
    ("dma.copy.asynk a => b;", "wrong-member", 9, "did you mean `.async`?"),
    ("dma.copy.swiz<5> a => b;", "wrong-value", 9, "128"),
    ("tma.copy.swiz<64>.swizzle<128> a => b;", "wrong-value", 18, "leave one out"),
    ("tma.copy.evict_first.evict_last a => b;", "wrong-value", 21, "leave one out"),
    ("dma.copy a => global;", "not-built-yet", 1, "=> global"),
    ("dma.copy a.zfill => b.zfill;", "not-a-tile", 21, ".zfill"),
    ("dma.transp<0, 0> a => b;", "wrong-value", 4, "a permutation"),
    ("dma.pad<{1}, {1, 1}, {0}, 0> a => b;", "wrong-value", 4, "low, high and inner"),
    ("dma.copy a.view(p + 1, 4).from(0, 0) => shared;", "extents-not-known", 1, "subspan"),
    ("dma.copy n => b;", "not-a-tile", 10, "a scalar"),
    ("tma.copy.async<n> a => b;", "wrong-value", 9, "an event"),
    ("dma.copy;", "wrong-arity", 1, "src => dst"),
    # mma
    ("mma.row mc, a, b;", "wrong-member", 4, "`.row`"),
    ("mma.rwo.row mc, a, b;", "wrong-member", 4, "did you mean `.row`?"),
    ("mc = mma.fill.f32 0.0f; mma.row.row mc, a;", "wrong-arity", 25, "mma.row.row mc, a, b"),
    ("mma.row.row a, a, b;", "not-built-yet", 13, "mma.store"),
    ("mma.row.row n, a, b;", "wrong-value", 13, "a register tile"),
    ("mc = mma.fill.f33 0.0f;", "unknown-dtype", 14, "`f33`"),
    ("mc = mma.fill;", "wrong-arity", 6, "mma.fill 0.0f"),
    ("frag mc[2] {0.0}; mma.store mc, c;", "wrong-value", 29, "[i]"),
    ("x2 = mma.commit;", "wrong-value", 6, "no result"),
    ("mma.wait<9>;", "wrong-value", 4, "mma.wait"),
    ("[[fast]] mma.commit;", "wrong-value", 10, "remove the attribute"),
    ("mc = mma.fill.f32 0.0f; y = mc.at(0, 0);", "wrong-value", 29, "apply"),
    ("mc = mma.fill.f32 0.0f; mc = mc + 1;", "tile-shape-unknown", 25, "whose shape"),
    ("mc = mma.fill.f32 0.0f; apply {i, j} in mc.span {}", "tile-shape-unknown", 25, "whose shape"),
    ("frag f32[8, 4] m {0.0}; m = m + a.subspan(3, 4).at(0, 0);", "wrong-value", 33, "[4] or [1, 4] (a row)"),
    ("frag f32[8, 4] m {0.0}; frag f32[4, 8] w {0.0}; m = m + w;", "wrong-value", 57, "`w` of [4, 8]"),
    ("frag f32[8, 4] m[2] {0.0}; m = m + 1;", "wrong-value", 28, "subscript it: [i]"),
    ("frag f32[8, 4] m[2] {0.0}; m[0] = m + 1;", "wrong-value", 35, "a whole array"),
    ("mc = mma.fill.f32 0.0f; [[schedule(k_tiles(0, 2))]] mma.row.row mc, a, b;", "k-tile-order", 53, "0, 2"),
    ("mc = mma.fill.f32 0.0f; mma.row.row.order<1, 1> mc, a, b;", "k-tile-order", 25, "each of 0 to 1 once"),
    ("[[fast(1)]] mma.row.row a, a, b;", "wrong-value", 3, "k_tiles"),
    # words that nearly match
    ("paralel q by 2 : group {}", "syntax", 1, "did you mean `parallel`?"),
    ("parallel q by 2 : grup {}", "wrong-value", 19, "did you mean `group`?"),
    ("forech i in 4 {}", "syntax", 1, "did you mean `foreach`?"),
    ("whil (1) {}", "syntax", 1, "did you mean `while`?"),
    ("sharred f16 [4] s;", "syntax", 1, "did you mean `shared`?"),
    ("shared f17 [4] s;", "unknown-dtype", 8, "did you mean `f16`?"),
    ("shared evnt e;", "syntax", 8, "did you mean `event`?"),
    ("mutable itn i = 0;", "unknown-dtype", 9, "did you mean `int`?"),
    ("dmaa.copy a => b;", "syntax", 1, "did you mean `dma`?"),
    ("trigerr e;", "syntax", 1, "did you mean `trigger`?"),
    ("frag f32[8, 4] m {0.0}; y = m * 2.0;", "wrong-value", 29, "a register tile"),
    ("apply {i, j} in a.span {}", "wrong-value", 17, "`mc.span`"),
    ("parallel g by 1 : group-4 { m = mma.load a.subspan(MMA_M, MMA_K).at(0, 0); }", "wrong-value", 52, "warp"),
    # control
    ("break;", "misplaced-jump", 1, "`break`"),
    ("foreach i in 4 { parallel q by 2 : group { continue; } }", "misplaced-jump", 44, "`continue`"),
    ("foreach {i, j} in [4] {}", "wrong-arity", 9, "names"),
    ("parallel {i, j} by [2, 2, 2] : group {}", "wrong-arity", 10, "names"),
    ("parallel q by [1, 1, 1, 1] : group {}", "wrong-arity", 15, "at most 3"),
    ("parallel q by 2 : group-0 {}", "wrong-value", 19, "group-0"),
    ("parallel q by 2 : device(gpu) {}", "wrong-value", 10, "`device`"),
    ("parallel q by x {}", "wrong-value", 15, "an integer"),
    ("parallel<n> q by 2 {}", "wrong-value", 10, "stream"),
    ("parallel.fast q by 2 {}", "wrong-value", 9, ".async"),
    ("[[unroll]] parallel q by 2 : group {}", "wrong-value", 3, "launch_bounds"),
    ("[[launch_bounds(1, 2, 3)]] parallel q by 2 : group {}", "wrong-value", 3, "`launch_bounds` of 3 operands"),
    ("[[maxnreg(40)]] foreach i in 2 {}", "wrong-value", 3, "`[[maxnreg]]`"),
    ("c.at(0, 0) = helper(1);", "unknown-name", 14, "#define helper(...)"),
    ("int y = call helper(1);", "not-built-yet", 9, "`call helper`"),
    ("if (call helper(1)) {}", "not-built-yet", 5, "make it a macro"),
    ("foreach n {}", "wrong-value", 9, "bound by `with`"),
    ("with {i, j} in [2, 2] foreach t(1:) {}", "unknown-name", 31, "`t`"),
    ("with k in 8 foreach k(::0) {}", "wrong-value", 25, "at least 1"),
    ("with k in 8 foreach k(::n) {}", "wrong-value", 25, "at least 1"),
    ("foreach i in 4 : fast {}", "wrong-value", 16, "unroll"),
    ("if (call g(x)) {}", "not-built-yet", 5, "call"),
    ("call g(x);", "not-built-yet", 1, "`call g`"),
    ("yield;", "not-built-yet", 1, "`yield`"),
    ("swap(a, b);", "wrong-value", 6, "`swap`"),
    ("reduce_max(a, b, 1);", "wrong-value", 12, "`reduce_max`"),
    ("return;", "bad-return", 1, "inside `parallel`"),
    # events
    ("wait n;", "wrong-value", 6, "an event"),
    ("f = dma.copy a.subspan(4, 4).at(0, 0) => shared; wait f;", "wrong-value", 55, "complete"),
    ("shared event e[2]; wait e;", "wrong-value", 25, "no subscript"),
    ("shared event e; wait e[0];", "wrong-value", 22, "single event"),
    ("shared event e; wait e.at(0);", "wrong-value", 22, "single event"),
    ("trigger a;", "wrong-value", 9, "an event"),
    ("shared event e; trigger e after n;", "wrong-value", 33, "future"),
    ("wait<0> a;", "not-built-yet", 6, "e.at(order)"),
    ("sync.global;", "not-built-yet", 1, "sync.global"),
    ("sync.all;", "wrong-value", 1, "sync.shared"),
    # diagnostics
    ('assert(1 > 2, "never");', "assertion-fails", 1, "never"),
    ("__atomic_add(c, 1);", "wrong-value", 14, "an element"),
    ("__atomic_add(c.at(0, 0));", "wrong-arity", 1, "__atomic_add(x.at(i), value)"),
    ("__bar_sync(1, 130);", "wrong-value", 15, "`__bar_sync`"),
]


def check(e: CompileError, code: str, line: int, column: int, text: str) -> None:
    """Code, place and words, the same as text and as JSON."""
    assert e.span is not None
    assert (e.code, e.span.line, e.span.column) == (code, line, column), e.render()
    assert text in e.render(), e.render()
    data = json.loads(e.json())
    assert (data["code"], data["span"]["line"], data["span"]["column"]) == (code, line, column)
    assert data["message"] in e.render() and data["expected"] in e.render() and data["fix"] in e.render()
    assert text in " ".join([data["message"], data["expected"], data["fix"]])


@pytest.mark.parametrize(("body", "code", "column", "text"), INSIDE, ids=[row[0] for row in INSIDE])
def test_inside_a_block(body: str, code: str, column: int, text: str) -> None:
    e = error("parallel p by 4 : block {\n" + body + "\n}")
    check(e, code, 4 + body.count("\n"), column, text)


OUTSIDE = [
    ("dma.copy a => b;", "outside-parallel", 1, "a copy"),
    ("mc = mma.fill 0.0;", "outside-parallel", 6, "an `mma` operation"),
    ("shared f16 [4] s;", "outside-parallel", 16, "a `shared` buffer"),
    ("c.at(0, 0) = x;", "outside-parallel", 1, "an assignment to an element"),
    ("foreach i in 4 {}", "outside-parallel", 1, "`foreach`"),
    ("if (n) {}", "outside-parallel", 1, "`if`"),
    ("mutable int i = 0; i = 1;", "outside-parallel", 13, "a scalar that changes"),
    ("f32 [M] out[2];", "not-built-yet", 9, "several arrays in global memory"),
]


@pytest.mark.parametrize(("body", "code", "column", "text"), OUTSIDE, ids=[row[0] for row in OUTSIDE])
def test_outside_every_parallel(body: str, code: str, column: int, text: str) -> None:
    check(error(body + "\nparallel p by 2 : block {}"), code, 3, column, text)


HEADERS = [
    ("shared f16 [M] a", "bad-parameter", 1, "`a` is `shared`"),
    ("global f16 a", "bad-parameter", 1, "a scalar with a storage"),
    ("f16 [M] a, f16 [M] a", "redefinition", 12, "`a` is defined twice"),
    ("int M, f16 [M] a", "bad-parameter", 8, "`M`, which is also a parameter"),
    ("f16 [a] a", "bad-parameter", 1, "a dimension of its own name"),
    ("f16 [M / 2] a", "unknown-name", 6, "`M`"),
    (f"f16 [{', '.join(17 * '1')}] a", "bad-parameter", 1, "17 dimensions"),
    ("mdspan<2> s", "bad-parameter", 1, "`mdspan`"),
    ("f8_ue4m3 [M] a", "not-built-yet", 1, "`f8_ue4m3`"),
    ("f16 [M a", "syntax", 8, "`a` cannot stand here"),
    ("f17 [M] a", "unknown-dtype", 1, "did you mean `f16`?"),
    ("gloabl f16 [M] a", "syntax", 1, "did you mean `global`?"),
]


@pytest.mark.parametrize(("header", "code", "column", "text"), HEADERS, ids=[row[0] for row in HEADERS])
def test_headers(header: str, code: str, column: int, text: str) -> None:
    check(error("", header), code, 2, len("__co__ void f(") + column, text)


RETURNS = [
    ("", "auto", 2, 8, "is missing"),
    ("return n;", "auto", 3, 1, "of a scalar"),
    ("f16 [M, N] out; return out;", "f32 [M, N]", 3, 17, "an array of f32"),
    ("f32 [M, N] out; parallel p by 2 : block { return out; }", "auto", 3, 43, "inside `parallel`"),
]


@pytest.mark.parametrize(("body", "returns", "line", "column", "text"), RETURNS, ids=[row[4] for row in RETURNS])
def test_returns(body: str, returns: str, line: int, column: int, text: str) -> None:
    check(error(body, returns=returns), "bad-return", line, column, text)


@pytest.mark.parametrize("order", ["3, 2, 1, 0", "0"])
def test_an_order_of_other_tiles(order: str) -> None:
    """How many tiles along K there are is the instruction's business."""
    text = (
        "__co__ void f(global f16 [64, 32] a, global f16 [64, 32] b, global f32 [64, 64] c) {\n"
        "parallel p by 1 : block, g by 4 : group {\n"
        "mc = mma.fill.f32 0.0f; ma = mma.load a.chunkat(g, _); mb = mma.load b;\n"
        f"[[schedule(k_tiles({order}))]] mma.row.row mc, ma, mb;\n"
        "mma.store mc, c.chunkat(g, _);\n}\n}"
    )
    with pytest.raises(CompileError) as e:
        Kernel(croqtile.load(text, "t.co").sources["f"]).compile("sm_80")
    check(e.value, "k-tile-order", 4, 25 + len(order), "takes K = 32 in 2 tiles of 16")


SAXPY = """
__co__ void saxpy(global f32 [N] x, global f32 [N] y, f32 a) {
  parallel i by N : block
    y.at(i) = a * x.at(i) + y.at(i);
}
"""
X, Y = np.ones(8, np.float32), np.zeros(8, np.float32)
CALLS = [
    ("too few", (X,), {}, "wrong-call", ["`y`, `a`"]),
    ("too many", (X, Y, 1.0, 2), {}, "wrong-call", ["4 arguments", "takes 3"]),
    ("types", (X, Y.astype(np.float64), 1.0), {}, "array-dtype", ["`y`", "f64", "f32"]),
    ("rank", (X, Y.reshape(2, 4), 1.0), {}, "array-rank", ["`y`", "2 dimension", "[2, 4]"]),
    ("sizes", (X, np.zeros(9, np.float32), 1.0), {}, "array-dimension", ["`y` is 9", "N = 8"]),
    ("a scalar", (X, Y, "one"), {}, "scalar-type", ["`a`", "'one'"]),
    ("read only", (X, np.broadcast_to(np.float32(0), 8), 1.0), {}, "array-read-only", ["`y`"]),
    ("overlap", (X, X, 1.0), {}, "array-overlap", ["`y`", "`x`"]),
]


@pytest.mark.parametrize(("name", "args", "kwargs", "code", "texts"), CALLS, ids=[c[0] for c in CALLS])
@pytest.mark.parametrize("target", ["cpu", "machine"])
def test_calls(name: str, args: tuple, kwargs: dict, code: str, texts: list[str], target: str) -> None:
    """Launch errors name the kernel, the parameter and the numbers."""
    with pytest.raises(LaunchError) as caught:
        Kernel(croqtile.load(SAXPY, "t.co").sources["saxpy"]).on(target)(*args, **kwargs)
    assert caught.value.code == code, caught.value.render()
    data = json.loads(caught.value.json())
    said = " ".join([data["message"], data["expected"], data["fix"]])
    assert data["code"] == code and all(t in said for t in ["saxpy", *texts]), said


def test_a_kernel_that_definitions_remove() -> None:
    k = Kernel(
        croqtile.load(
            "#define N 4\n#if N > 2\n__co__ void f(int n) {}\n#endif\n__co__ void g() {}", "t.co"
        ).sources["f"]
    )
    k.build(N=3)
    with pytest.raises(CompileError) as e:
        k.build(N=1)
    check(e.value, "kernel-gone", 3, 13, "N=1")


def test_two_kernels_of_one_name() -> None:
    e = error("}\n__co__ void f() {")
    assert e.code == "redefinition" and e.notes


def test_files_without_kernels() -> None:
    with pytest.raises(CompileError) as e:
        croqtile.load("int main() {}", "t.co")
    assert e.value.code == "no-kernel"
    assert e.value.remedy.count("check the conditions") == 1


def test_definitions_must_be_values() -> None:
    bad: tuple[tuple[Any, Any], ...] = (("a b", 1), ("T", [1]), (3, 4))
    for name, value in bad:
        with pytest.raises(CompileError) as e:
            croqtile.load("__co__ void f() {}", "t.co", {name: value})
        assert e.value.code == "bad-define"


def test_the_caret_stands_under_the_macro() -> None:
    e = error("parallel p by 4 : block {\n  c.at(0, BAD) = x;\n}", before="#define BAD (missing + 1)")
    assert e.render().split("\n")[1:5] == [
        "  --> t.co:4:11",
        "   |",
        " 4 |   c.at(0, BAD) = x;",
        "   |           ^^^",
    ]


def test_every_error_here_is_in_the_catalogue() -> None:
    assert {row[1] for row in (*INSIDE, *OUTSIDE, *HEADERS)} <= set(KINDS)


@pytest.mark.parametrize(
    "body",
    [
        "if (n > 0) { return; } x.at(0) = 1.0f;",
        "return; x.at(0) = 1.0f;",
        "foreach i in 2 { x.at(i) = 1.0f; return; }",
        "parallel p by 2 : block { x.at(p) = 1.0f; } return; parallel p by 2 : block { x.at(p) = 2.0f; }",
        "parallel p by 2 : block { if (n > 0) { return; } x.at(p) = 1.0f; }",
    ],
)
def test_a_return_that_would_leave_statements_out(body: str) -> None:
    text = f"__co__ void k(f32 [4] x, int n) {{ {body} }}"
    with pytest.raises(CompileError) as refused:
        croqtile.load(text, "k.co").sources["k"].build()
    assert refused.value.code == "bad-return" and "last statement" in str(refused.value)
