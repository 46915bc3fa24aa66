"""Advice of the constructs' errors, followed word by word in each language that has the construct."""

from __future__ import annotations

import pytest
from test_advice_followed import block

from tilemma.errors import CompileError

GROUP = ("parallel w by 1 : group { ", "for w in parallel(1, level='group'):\n    ")
LANES = ("parallel t by 32 : thread { ", "for t in parallel(32, level='thread'):\n    ")
FRAG = ("frag f32[64, 64] m {0.0f}; ", "m = mma.frag('f32', 64, 64, init=0.0)\n    ")
OPERANDS = ("x = mma.load b; y = mma.load b; m = mma.fill.f32 0.0f; ",
            "x, y, m = mma.load(b), mma.load(b), mma.fill(0.0, 'f32')\n    ")  # fmt: skip
STORE = (" mma.store m, c; }", "\n    mma.store(m, c)")
LANE_A = "x = load_matrix_a<16, 8, 12>(b, 0, 0); "
# (code, part of the advice, wrong statements of a block, right ones); of each pair the part for Croqtile and the one
# for Python, None for a language without the construct.
Text = str | None
Case = tuple[str, str | tuple[Text, Text], tuple[Text, Text], tuple[Text, Text]]
CASES: list[Case] = [
    ("immutable-assignment", "declare it `mutable y = ...;`", ("y = 1; y = 2;", None), ("mutable y = 1; y = 2;", None)),
    ("immutable-assignment", "declare it `mutable y = ...;`", ("int y = 1; y += n;", None), ("mutable y = 1; y += n;", None)),
    ("redefinition", "choose another name", ("int y = 1; int y = 2;", None), ("int y = 1; int z = 2;", None)),
    ("redefinition", "assign to the one that is there (declared `mutable`)", ("int y = 1; int y = 2;", None), ("mutable int y = 1; y = 2;", None)),
    ("unknown-name", "define `z` before this line", ("c.at(0, 0) = z;", None), ("z = 1.0f; c.at(0, 0) = z;", None)),
    ("unknown-name", "did you mean `cdiv`?", ("c.at(0, 0) = cdivv(n, 2);", None), ("c.at(0, 0) = cdiv(n, 2);", None)),
    ("k-tile-order", "name every tile of K once: 3, 2, 1, 0",
     (GROUP[0] + OPERANDS[0] + "[[schedule(k_tiles(3, 1))]] mma.row.row m, x, y;" + STORE[0],
      GROUP[1] + OPERANDS[1] + "mma.row.row(m, x, y, k_tiles=(3, 1))" + STORE[1]),
     (GROUP[0] + OPERANDS[0] + "[[schedule(k_tiles(3, 2, 1, 0))]] mma.row.row m, x, y;" + STORE[0],
      GROUP[1] + OPERANDS[1] + "mma.row.row(m, x, y, k_tiles=(3, 2, 1, 0))" + STORE[1])),
    ("constant-division", ("check the constants (and `#define`s)", "check the numbers"),
     ("c.at(0, 0) = n / 0;", "c[0, 0] = n // 0"), ("c.at(0, 0) = n / 2;", "c[0, 0] = n // 2")),
    ("constant-overflow", ("a wider type", "a wider element type"),
     ("mutable s8 v = 300; c.at(0, 0) = v;", "v = var(300, 's8')\nc[0, 0] = v"), ("mutable s16 v = 300; c.at(0, 0) = v;", "v = var(300, 's16')\nc[0, 0] = v")),
    ("constant-overflow", ("use smaller numbers", "use smaller numbers"),
     ("mutable s8 v = 300; c.at(0, 0) = v;", "v = var(300, 's8')\nc[0, 0] = v"), ("mutable s8 v = 30; c.at(0, 0) = v;", "v = var(30, 's8')\nc[0, 0] = v")),
    ("index-out-of-range", "use an index from 0 to 63", ("c.at(0, 64) = 1.0f;", "c[0, 64] = 1.0"), ("c.at(0, 63) = 1.0f;", "c[0, 63] = 1.0")),
    ("index-out-of-range", ("`x.span(0) - 1`", "`x.shape[0] - 1`"), ("c.at(-1, 0) = 1.0f;", "c[-1, 0] = 1.0"),
     ("c.at(c.span(0) - 1, 0) = 1.0f;", "c[c.shape[0] - 1, 0] = 1.0")),
    ("assertion-fails", "change the constants that it depends on", ("assert(1 == 2);", "assert_(1 == 2)"), ("assert(2 == 2);", "assert_(2 == 2)")),
    ("misplaced-jump", "remove it", ("break;", "break_()"), ("c.at(0, 0) = 1.0f;", "c[0, 0] = 1.0")),
    ("misplaced-jump", ("use `if`", "use `if_`"), ("continue; c.at(0, 0) = 1.0f;", "continue_()\nc[0, 0] = 1.0"),
     ("if (n > 4) { c.at(0, 0) = 1.0f; }", "with if_(n > 4):\n    c[0, 0] = 1.0")),
    ("side-effect", "put the effect into a statement of its own",
     ("mutable int i = 0; c.at(0, 0) = n > 1 ? i++ : 0;", None), ("mutable int i = 0; i++; c.at(0, 0) = n > 1 ? i : 0;", None)),
    ("not-constant", ("use a number, a `#define`", "pass a number"),
     ("shared f16 [4, 4] s[n];", "s = shared('f16', 4, 4, copies=n)"), ("shared f16 [4, 4] s[2];", "s = shared('f16', 4, 4, copies=2)")),
    ("extents-not-known", ("numbers or `#define`s", "numbers or compile-time keywords"),
     ("shared f16 [p + 1, 4] s;", "s = shared('f16', p + 1, 4)"), ("shared f16 [16, 4] s;", "s = shared('f16', 16, 4)")),
    ("wrong-arity", "write `cdiv(a, b)`", ("c.at(0, 0) = cdiv(n);", "c[0, 0] = cdiv(n)"), ("c.at(0, 0) = cdiv(n, 2);", "c[0, 0] = cdiv(n, 2)")),
    ("wrong-member", "did you mean `.chunkat`?", ("f = dma.copy b.chunkatt(p, _) => shared;", "f = dma.copy(b.chunkatt(p, full), to='shared')"),
     ("f = dma.copy b.chunkat(p, _) => shared;", "f = dma.copy(b.chunkat(p, full), to='shared')")),
    ("wrong-member", ("`dma.transp<1, 0> a => b;`", "`dma.copy(a, b, transp=(1, 0))`"),
     ("shared f16 [64, 64] s; dma.copy b.T => s;", "s = shared('f16', 64, 64)\ndma.copy(b.T, s)"),
     ("shared f16 [64, 64] s; dma.transp<1, 0> b => s;", "s = shared('f16', 64, 64)\ndma.copy(b, s, transp=(1, 0))")),
    ("wrong-member", (None, "`mma.row.row(acc, a, b)`"), (None, GROUP[1] + OPERANDS[1] + "mma.mul(m, x, y)" + STORE[1]),
     (None, GROUP[1] + OPERANDS[1] + "mma.row.row(m, x, y)" + STORE[1])),
    ("not-a-tile", ("say which one: `.at(...)` after `.chunk(...)`", "add `.at(i, j)`, which selects the tile"),
     ("f = dma.copy b.chunk(4, 4) => shared;", "f = dma.copy(b.chunk(4, 4), to='shared')"),
     ("f = dma.copy b.chunk(4, 4).at(0, 0) => shared;", "f = dma.copy(b.chunk(4, 4).at(0, 0), to='shared')")),
    ("not-built-yet", "and `mma.store mc, buffer`",
     ("parallel w by 1 : group-4 { mma.row.row c, b, b; }", None), ("parallel w by 1 : group { mc = mma.fill.f32 0.0f; mma.row.row mc, b, b; mma.store mc, c; }", None)),
    ("else-without-if", (None, "write `with else_():` directly after the block of `with if_(c):`"),
     (None, "with if_(n > 1):\n    c[0, 0] = 1.0\nc[0, 1] = 2.0\nwith else_():\n    c[0, 0] = 2.0"),
     (None, "with if_(n > 1):\n    c[0, 0] = 1.0\nwith else_():\n    c[0, 0] = 2.0\nc[0, 1] = 2.0")),
    ("syntax", "without a `;` after the closing `}`", ("if (n > 1) { c.at(0, 0) = 1.0f; }; else { c.at(0, 0) = 2.0f; }", None),
     ("if (n > 1) { c.at(0, 0) = 1.0f; } else { c.at(0, 0) = 2.0f; }", None)),
    ("syntax", "add `;`", ("c.at(0, 0) = 1.0f\nc.at(0, 1) = 1.0f;", None), ("c.at(0, 0) = 1.0f;\nc.at(0, 1) = 1.0f;", None)),
    ("syntax", "did you mean `foreach`?", ("foreac k in 4 { c.at(0, k) = 1.0f; }", None), ("foreach k in 4 { c.at(0, k) = 1.0f; }", None)),
    ("syntax", "write `foreach k in 4 { ... }`", ("foreach k(4) { c.at(0, k) = 1.0f; }", None), ("foreach k in 4 { c.at(0, k) = 1.0f; }", None)),
    ("syntax", "after `with k in 8`, for a part of its values, `foreach k(1:) { ... }`", ("foreach k(8) { c.at(0, k) = 1.0f; }", None),
     ("with k in 8 { foreach k(1:) { c.at(0, k) = 1.0f; } }", None)),
    ("syntax", "`parallel {i, j} by [4, 8] : thread { ... }`", ("parallel (i, j) by (4, 8) : thread { c.at(i, j) = 1.0f; }", None),
     ("parallel {i, j} by [4, 8] : thread { c.at(i, j) = 1.0f; }", None)),
    ("syntax", "choose another name, `in_` for instance", ("int in = 4; c.at(0, in) = 1.0f;", None), ("int in_ = 4; c.at(0, in_) = 1.0f;", None)),
    ("bad-token", "numbers have digits on both sides", ("c.at(0, 0) = 1.;", None), ("c.at(0, 0) = 1.0;", None)),
    ("bad-token", "remove it", ("c.at(0, 0) = 1.0f @;", None), ("c.at(0, 0) = 1.0f;", None)),
    ("bad-token", "use an integer", ("c.at(0, 0) = 'a';", None), ("c.at(0, 0) = 97;", None)),
    ("literal-too-large", "use a smaller number", (f"c.at(0, 0) = {2**63};", None), (f"c.at(0, 0) = {2**63 - 1};", None)),
    ("octal-literal", "write `10`", ("c.at(0, 010) = 1.0f;", None), ("c.at(0, 10) = 1.0f;", None)),
    ("octal-literal", "the octal number's value", ("c.at(0, 010) = 1.0f;", None), ("c.at(0, 0x8) = 1.0f;", None)),
    ("misplaced-attribute", "remove it", ("[[unroll(3)]] c.at(0, 0) = 1.0f;", None), ("c.at(0, 0) = 1.0f;", None)),
    ("misplaced-argument-name", "leave out `i =`", ("c.at(i = 0, 0) = 1.0f;", None), ("c.at(0, 0) = 1.0f;", None)),
    ("too-complex", "name inner parts", (f"c.at(0, 0) = {'(' * 90}n{')' * 90};", None),
     (f"x = {'(' * 45}n{')' * 45}; c.at(0, 0) = {'(' * 45}x{')' * 45};", None)),
    ("nested-too-deep", "give names to parts of it", (f"c.at(0, 0) = {' + '.join(['n'] * 400)};", None),
     ("".join(f"mutable x{i} = {' + '.join(['n'] * 40)}; " for i in range(10)) + "c.at(0, 0) = " + " + ".join(f"x{i}" for i in range(10)) + ";", None)),
    ("nested-too-deep", "or use loops", (f"c.at(0, 0) = {' + '.join(['n'] * 400)};", None),
     ("mutable x = 0; foreach i in 400 { x += n; } c.at(0, 0) = x;", None)),
    ("tile-extent", ("use a positive number; `_` keeps a dimension whole", "use a positive number; `full` keeps a dimension whole"),
     ("f = dma.copy b.subspan(16, 0).at(0, 0) => shared;", "f = dma.copy(b.subspan(16, 0).at(0, 0), to='shared')"),
     ("f = dma.copy b.subspan(16, _).at(0, 0) => shared;", "f = dma.copy(b.subspan(16, full).at(0, 0), to='shared')")),
    ("expression-too-large", ("declare a part as a scalar (`mutable int x = ...;`)", "in a `var(...)`"),
     ("a0 = n + 1; " + "".join(f"a{i + 1} = a{i} * a{i} + 1; " for i in range(12)) + "c.at(0, 0) = a12;",
      None),
     ("a0 = n + 1; " + "".join(f"mutable int a{i + 1} = a{i} * a{i} + 1; " for i in range(12)) + "c.at(0, 0) = a12;",
      None)),
    ("loops-too-deep", ("`i / n` and `i % n` in place of two indices", "`i // n` and `i % n` in place of two indices"),
     ("".join(f"foreach i{k} in 2 {{ " for k in range(11)) + "c.at(i0, i10) = 1.0f; " + "}" * 11,
      "\n".join("    " * k + f"for i{k} in foreach(2):" for k in range(11)) + "\n" + "    " * 11 + "c[i0, i10] = 1.0"),
     ("".join(f"foreach i{k} in 2 {{ " for k in range(9)) + "foreach j in 4 { c.at(i0, j % 2) = 1.0f; c.at(i0, j / 2) = 1.0f; } " + "}" * 9,
      "\n".join("    " * k + f"for i{k} in foreach(2):" for k in range(9)) + "\n" + "    " * 9 + "for j in foreach(4):\n" + "    " * 10
      + "c[i0, j % 2] = 1.0\n" + "    " * 10 + "c[i0, j // 2] = 1.0")),
    ("lane-divergence", "move it out of the condition, and choose between results afterwards",
     (LANES[0] + "if (t < 8) { c.at(0, t) = __shfl_xor(1.0f, 1); } }", LANES[1] + "with if_(t < 8):\n        c[0, t] = tm.lane.shfl_xor(1.0, 1)"),
     (LANES[0] + "v = __shfl_xor(1.0f, 1); if (t < 8) { c.at(0, t) = v; } }", LANES[1] + "v = tm.lane.shfl_xor(1.0, 1)\n    with if_(t < 8):\n        c[0, t] = v")),
    ("lane-scope", ("put it in `parallel t by 32 : thread`", "`for t in parallel(32, level=\"thread\")`"),
     ("c.at(0, 0) = __shfl_xor(1.0f, 1);", "c[0, 0] = tm.lane.shfl_xor(1.0, 1)"),
     (LANES[0] + "c.at(0, t) = __shfl_xor(1.0f, 1); }", LANES[1] + "c[0, t] = tm.lane.shfl_xor(1.0, 1)")),
    ("no-fragment", "use one of these shapes",
     (LANES[0] + LANE_A + "c.at(0, t) = x[0]; }", LANES[1] + "x = load_matrix_a[16, 8, 12](b, 0, 0)\n    c[0, t] = x[0]"),
     (LANES[0] + LANE_A.replace("12", "16") + "c.at(0, t) = x[0]; }", LANES[1] + "x = load_matrix_a[16, 8, 16](b, 0, 0)\n    c[0, t] = x[0]")),
    ("no-such-atom", "did you mean SM80_16x8x16_F32F16F16F32_TN or",
     (GROUP[0] + OPERANDS[0] + "[[atom(SM80_16x8x16_F32F16F16F32)]] mma.row.row m, x, y;" + STORE[0],
      GROUP[1] + OPERANDS[1] + "mma.row.row(m, x, y, atom='SM80_16x8x16_F32F16F16F32')" + STORE[1]),
     (GROUP[0] + OPERANDS[0] + "[[atom(SM80_16x8x16_F32F16F16F32_TN)]] mma.row.row m, x, y;" + STORE[0],
      GROUP[1] + OPERANDS[1] + "mma.row.row(m, x, y, atom='SM80_16x8x16_F32F16F16F32_TN')" + STORE[1])),
    ("atom-mismatch", "load A as bf16, or name an instruction of these types",
     (GROUP[0] + OPERANDS[0] + "[[atom(SM80_16x8x16_F32BF16BF16F32_TN)]] mma.row.row m, x, y;" + STORE[0],
      GROUP[1] + OPERANDS[1] + "mma.row.row(m, x, y, atom='SM80_16x8x16_F32BF16BF16F32_TN')" + STORE[1]),
     (GROUP[0] + OPERANDS[0] + "[[atom(SM80_16x8x16_F32F16F16F32_TN)]] mma.row.row m, x, y;" + STORE[0],
      GROUP[1] + OPERANDS[1].replace("mma.load(b)", "mma.load(b, dtype='bf16')") + "mma.row.row(m, x, y, atom='SM80_16x8x16_F32BF16BF16F32_TN')" + STORE[1])),
    ("multiply-never-awaited", ("name the result, `f = mma...async ...`, and write `wait f`", "name the result, `f = mma...(..., async_=True)`, and write `wait(f)`"),
     ("parallel w by 1 : group-4 { s = dma.copy b => shared; m = mma.fill.f32 0.0f; mma.row.row.async m, s.data, s.data; }",
      "for w in parallel(1, level='group-4'):\n    s, m = dma.copy(b, to='shared'), mma.fill(0.0, 'f32')\n    mma.row.row(m, s.data, s.data, async_=True)"),
     ("parallel w by 1 : group-4 { s = dma.copy b => shared; m = mma.fill.f32 0.0f; f = mma.row.row.async m, s.data, s.data; wait f; }",
      "for w in parallel(1, level='group-4'):\n    s, m = dma.copy(b, to='shared'), mma.fill(0.0, 'f32')\n    f = mma.row.row(m, s.data, s.data, async_=True)\n    wait(f)")),
    ("copy-clash", "give each instance its own part of `s`",
     ("shared f16 [16, 16] s; parallel w by 2 : group { dma.copy b.subspan(16, 16).at(w, 0) => s; }",
      "s = shared('f16', 16, 16)\nfor w in parallel(2, level='group'):\n    dma.copy(b.subspan(16, 16).at(w, 0), s)"),
     ("shared f16 [32, 16] s; parallel w by 2 : group { dma.copy b.subspan(16, 16).at(w, 0) => s.subspan(16, 16).at(w, 0); }",
      "s = shared('f16', 32, 16)\nfor w in parallel(2, level='group'):\n    dma.copy(b.subspan(16, 16).at(w, 0), s.subspan(16, 16).at(w, 0))")),
    ("fragment-roles", "load or fill a second fragment for the other use",
     (GROUP[0] + OPERANDS[0] + "mma.row.row m, x, y; q = mma.fill.f32 0.0f; mma.row.row q, y, x; mma.store q, c; }",
      GROUP[1] + OPERANDS[1] + "mma.row.row(m, x, y)\n    q = mma.fill(0.0, 'f32')\n    mma.row.row(q, y, x)\n    mma.store(q, c)"),
     (GROUP[0] + OPERANDS[0] + "mma.row.row m, x, y; q = mma.fill.f32 0.0f; z = mma.load b; v = mma.load b; mma.row.row q, z, v; mma.store q, c; }",
      GROUP[1] + OPERANDS[1] + "mma.row.row(m, x, y)\n    q, z, v = mma.fill(0.0, 'f32'), mma.load(b), mma.load(b)\n    mma.row.row(q, z, v)\n    mma.store(q, c)")),
    ("barrier-partial-warp", ("count 32 threads and let those beyond 20 skip each statement with its own `if`", "with its own `if_`"),
     ("shared f32 [64] s; parallel t by 20 : thread { s.at(t) = 1.0f; c.at(0, t) = s.at(19 - t); }",
      "s = shared('f32', 64)\nfor t in parallel(20, level='thread'):\n    s[t] = 1.0\n    c[0, t] = s[19 - t]"),
     ("shared f32 [64] s; parallel t by 32 : thread { if (t < 20) { s.at(t) = 1.0f; } if (t < 20) { c.at(0, t) = s.at(19 - t); } }",
      "s = shared('f32', 64)\nfor t in parallel(32, level='thread'):\n    with if_(t < 20):\n        s[t] = 1.0\n    with if_(t < 20):\n        c[0, t] = s[19 - t]")),
    ("bool-of-traced-value", (None, "`with if_(c):`"), (None, "if n > 2:\n    c[0, 0] = 1.0"), (None, "with if_(n > 2):\n    c[0, 0] = 1.0")),
    ("bool-of-traced-value", (None, "`with while_(lambda: c):`"), (None, "x = var(0)\nwhile x < n:\n    x += 1"), (None, "x = var(0)\nwith while_(lambda: x < n):\n    x += 1")),
    ("bool-of-traced-value", (None, "join conditions with `&`, `|`, `~`"), (None, "with if_(n > 2 and n < 4):\n    c[0, 0] = 1.0"), (None, "with if_((n > 2) & (n < 4)):\n    c[0, 0] = 1.0")),
    ("bool-of-traced-value", (None, "`tm.math.min(a, b)`"), (None, "c[0, min(n, 4)] = 1.0"), (None, "c[0, tm.math.min(n, 4)] = 1.0")),
    ("bool-of-traced-value", (None, "`select(c, x, y)`"), (None, "c[0, 0] = 1.0 if n > 2 else 2.0"), (None, "c[0, 0] = select(n > 2, 1.0, 2.0)")),
    ("traced-value-as-python-number", (None, "use `foreach` instead of `range`"), (None, "for i in range(n):\n    c[0, i] = 1.0"), (None, "for i in foreach(n):\n    c[0, i] = 1.0")),
    ("jump-in-traced-block", (None, "write `break_()`"), (None, "for i in foreach(4):\n    if True: break"), (None, "for i in foreach(4):\n    if True: break_()")),
    ("jump-in-traced-block", (None, "put the rest of the body under `with if_(...)`"), (None, "for i in foreach(4):\n    with if_(i > 2):\n        continue\n    c[0, i] = 1.0"),
     (None, "for i in foreach(4):\n    with if_(~(i > 2)):\n        c[0, i] = 1.0")),
    ("rebound-in-traced-block", (None, "write `x = var(...)` before the block and `x.set(...)` (or `x += ...`) inside"),
     (None, "x = 0\nfor i in foreach(4):\n    x = x + 1\nc[0, 0] = x"), (None, "x = var(0)\nfor i in foreach(4):\n    x.set(x + 1)\nc[0, 0] = x")),
    ("left-its-block", (None, "carry it out in a `var(...)` made before the block"),
     (None, "found = []\nfor i in foreach(4):\n    found.append(i)\nc[0, found[0]] = 1.0"), (None, "found = var(0)\nfor i in foreach(4):\n    found.set(i)\nc[0, found] = 1.0")),
    ("not-a-block", (None, "write `with if_(c):` and put its statements inside"), (None, "if_(n > 2)\nc[0, 0] = 1.0"), (None, "with if_(n > 2):\n    c[0, 0] = 1.0")),
    ("register-operand", "store it to a shared buffer, and multiply that",
     ("parallel w by 1 : group-4 { frag f16[64, 64] q {1.0f}; m = mma.fill.f32 0.0f; s = dma.copy b => shared; mma.row.row m, s.data, q;" + STORE[0],
      "for w in parallel(1, level='group-4'):\n    q, m = mma.frag('f16', 64, 64, init=1.0), mma.fill(0.0, 'f32')\n    s = dma.copy(b, to='shared')\n"
      "    mma.row.row(m, s.data, q)" + STORE[1]),
     ("parallel w by 1 : group-4 { frag f16[64, 64] q {1.0f}; m = mma.fill.f32 0.0f; s = dma.copy b => shared; shared f16 [64, 64] z; mma.store q, z; mma.row.row m, s.data, z;" + STORE[0],
      "for w in parallel(1, level='group-4'):\n    q, m = mma.frag('f16', 64, 64, init=1.0), mma.fill(0.0, 'f32')\n    s = dma.copy(b, to='shared')\n"
      "    z = shared('f16', 64, 64)\n    mma.store(q, z)\n    mma.row.row(m, s.data, z)" + STORE[1])),
    ("future-waited-for-twice", ("write `wait f` once, before the `if`, loop", "write `wait(f)` once, before the `if_`, loop"),
     ("f = tma.copy.async b => shared; foreach i in n { wait f; c.at(0, 0) = f.data.at(0, 0); } wait f;",
      "f = tma.copy(b, to='shared', async_=True)\nfor i in foreach(n):\n    wait(f)\n    c[0, 0] = f.data[0, 0]\nwait(f)"),
     ("f = tma.copy.async b => shared; wait f; foreach i in n { c.at(0, 0) = f.data.at(0, 0); }",
      "f = tma.copy(b, to='shared', async_=True)\nwait(f)\nfor i in foreach(n):\n    c[0, 0] = f.data[0, 0]")),
    ("scale-shape", "such as `subspan(64, 1).at(i, j)`",
     (GROUP[0] + OPERANDS[0] + "mma.row.row.scale m, x, y, c, 1.0f;" + STORE[0], GROUP[1] + OPERANDS[1] + "mma.row.row.scale(m, x, y, c, 1.0)" + STORE[1]),
     (GROUP[0] + OPERANDS[0] + "mma.row.row.scale m, x, y, c.subspan(64, 1).at(0, 0), 1.0f;" + STORE[0],
      GROUP[1] + OPERANDS[1] + "mma.row.row.scale(m, x, y, c.subspan(64, 1).at(0, 0), 1.0)" + STORE[1])),
    ("contract-shapes", "write `mma.col.col` if that is how the tiles are stored",
     (GROUP[0] + "m = mma.fill.f32 0.0f; mma.row.row m, b.subspan(64, 16).at(0, 0), b.subspan(64, 32).at(0, 0); mma.store m, c.subspan(16, 32).at(0, 0); }",
      GROUP[1] + "m = mma.fill(0.0, 'f32')\n    mma.row.row(m, mma.load(b.subspan(64, 16).at(0, 0)), mma.load(b.subspan(64, 32).at(0, 0)))\n    mma.store(m, c.subspan(16, 32).at(0, 0))"),
     (GROUP[0] + "m = mma.fill.f32 0.0f; mma.col.col m, b.subspan(64, 16).at(0, 0), b.subspan(64, 32).at(0, 0); mma.store m, c.subspan(16, 32).at(0, 0); }",
      GROUP[1] + "m = mma.fill(0.0, 'f32')\n    mma.col.col(m, mma.load(b.subspan(64, 16).at(0, 0)), mma.load(b.subspan(64, 32).at(0, 0)))\n    mma.store(m, c.subspan(16, 32).at(0, 0))")),
    ("contract-shapes", "cut both tiles so that their K extents agree",
     ("parallel w by 1 : group { m = mma.fill.f32 0.0f; mma.row.row m, b.subspan(16, 48).at(0, 0), b.subspan(32, 64).at(0, 0); mma.store m, c.subspan(16, 32).at(0, 0); }", None),
     ("parallel w by 1 : group { m = mma.fill.f32 0.0f; mma.row.row m, b.subspan(16, 64).at(0, 0), b.subspan(32, 64).at(0, 0); mma.store m, c.subspan(16, 32).at(0, 0); }", None)),
    ("tile-too-large", "process it in smaller tiles",
     ("shared f16 [256, 16] s {0.0f}; shared f16 [256, 256] z; " + GROUP[0] + "m = mma.fill.f32 0.0f; mma.row.row m, s, s; mma.store m, z; }",
      "s = shared('f16', 256, 16, init=0.0)\nz = shared('f16', 256, 256)\n" + GROUP[1] + "m = mma.fill(0.0, 'f32')\n    mma.row.row(m, mma.load(s), mma.load(s))\n    mma.store(m, z)"),
     ("shared f16 [256, 16] s {0.0f}; shared f16 [256, 256] z; " + GROUP[0]
      + "foreach i in 4 { m = mma.fill.f32 0.0f; mma.row.row m, s.subspan(64, 16).at(i, 0), s; mma.store m, z.subspan(64, 256).at(i, 0); } }",
      "s = shared('f16', 256, 16, init=0.0)\nz = shared('f16', 256, 256)\n" + GROUP[1]
      + "for i in foreach(4):\n        m = mma.fill(0.0, 'f32')\n        mma.row.row(m, mma.load(s.subspan(64, 16).at(i, 0)), mma.load(s))\n        mma.store(m, z.subspan(64, 256).at(i, 0))")),
    ("not-lowered", "convert the argument to f32 first", ("mutable f64 x = 1.0; x = __sin(x); c.at(0, 0) = x;", "x = var(1.0, 'f64')\nx.set(tm.math.sin(x))\nc[0, 0] = x"),
     ("mutable f64 x = 1.0; x = __sin(__to<f32>(x)); c.at(0, 0) = x;", "x = var(1.0, 'f64')\nx.set(tm.math.sin(x.astype('f32')))\nc[0, 0] = x")),
    ("barrier-not-uniform", ("move one of the two out of the `if`, `inthreads` or loop", "move one of the two out of the `if_`, `inthreads` or loop"),
     ("shared f32 [64] s; parallel w by 2 : group { foreach i in (c.at(w, 0) > 0.0f ? 2 : 3) { s.at(w) = 1.0f; c.at(0, w) = s.at(1 - w); } }",
      "s = shared('f32', 64)\nfor w in parallel(2, level='group'):\n    for i in foreach(select(c[w, 0] > 0.0, 2, 3)):\n        s[w] = 1.0\n        c[0, w] = s[1 - w]"),
     ("shared f32 [64] s; parallel w by 2 : group { foreach i in (c.at(w, 0) > 0.0f ? 2 : 3) { s.at(w) = 1.0f; } c.at(0, w) = s.at(1 - w); }",
      "s = shared('f32', 64)\nfor w in parallel(2, level='group'):\n    for i in foreach(select(c[w, 0] > 0.0, 2, 3)):\n        s[w] = 1.0\n    c[0, w] = s[1 - w]")),
    ("unknown-dtype", "did you mean `f32`?", ("shared f12 [4] s;", "s = shared('f12', 4)"), ("shared f32 [4] s;", "s = shared('f32', 4)")),
]  # fmt: skip
PAIRS = [(c, n) for c in CASES for n in (0, 1) if c[2][n] is not None]
FOLLOWED = frozenset(c[0] for c, _ in PAIRS)


@pytest.mark.parametrize(
    ("case", "language"), PAIRS, ids=lambda x: x[0] if isinstance(x, tuple) else ["co", "py"][x]
)
def test_followed_it_compiles(case: Case, language: int) -> None:
    code, advice, wrong, right = (case[0], case[1], case[2][language], case[3][language])
    assert wrong is not None and right is not None
    with pytest.raises(CompileError) as caught:
        _ = block(language, wrong).compile("sm_90a").ptx
    error = caught.value
    assert error.code == code, error.render()
    part = advice if isinstance(advice, str) else advice[language]
    assert part is not None and part in error.remedy, error.render()
    assert block(language, right).compile("sm_90a").ptx
