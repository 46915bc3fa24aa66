"""Small programs of either language with their tile IR and their results.

``accepted/LANGUAGE.txt`` has below ``== N`` the digest of the tile IR that the front end makes of a program of the
tables here, how the elements of its arrays change on the CPU, and what it prints.  ``python
tests/language/accepted.py`` writes the files, after a comparison with the results of the emulated PTX.  Read the
difference.
"""

# ruff: noqa: E402
from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [x for x in (str(ROOT), str(Path(__file__).parent)) if x not in sys.path]

import edited
from refused_text import block, group, python, thread

from tilemma.ir.printer import print_kernel
from tilemma.kernels import Kernel

FOLDER = Path(__file__).parent / "accepted"
PARAMETERS = {
    "co": "global s32 [64, 64] v, global f32 [64, 64] c, global f16 [64, 64] b, int n",
    "py": 'v: tm.Global["s32", 64, 64], c: tm.Global["f32", 64, 64], b: tm.Global["f16", 64, 64], n: tm.Int',
}
LOADED = "m = mma.fill.f32 0.0f; x = mma.load b; y = mma.load b; mma.row.row m, x, y;"
PRODUCT = "m = mma.fill(0.0, 'f32'); x = mma.load(b); y = mma.load(b); mma.row.row(m, x, y)"

# fmt: off
CROQTILE = (
    thread("v.at(i, 0)++; v.at(i, 1)--; v.at(i, 2) += i; v.at(i, 3) -= i; v.at(i, 4) *= 3; v.at(i, 5) %= 7;"),
    thread("v.at(i, 0) = v.at(i, 0) << 2; v.at(i, 1) = v.at(i, 1) >> 1; v.at(i, 5) /= 3;"),
    thread("mutable int x = i; x++; v.at(i, 0) = x; x--; x--; v.at(i, 1) = x; x += 7; x -= 2; x *= i; x %= 31; v.at(i, 2) = x;"),
    thread("mutable int x = i; x = x << 2 ^ 5 | 64 & 0x7e; x /= 3; v.at(i, 0) = x;"),
    thread("mutable f32 y = 1.5f; y *= i; y -= 0.25f; y /= 2; c.at(i, 0) = y;"),
    thread("v.at(i, 0) = i < 3 ? 1 : i == 4 ? 2 : 3; v.at(i, 1) = !(i > 3) ? ~i : -i;"),
    thread("v.at(i, 0) = i > 2 && i < 7 || !(i != 9) ? 1 : 0; v.at(i, 1) = (i & 3) == 1 ? i | 8 : i ^ 3;"),
    thread("v.at(i, 0) = 1 + 2 * i - 3 % 2 << 1; v.at(i, 1) = i - 3 - 2; v.at(i, 2) = 64 / 4 / 2 * i;"),
    thread("bool odd = i % 2 == 1; if (odd) v.at(i, 0) = 1; else if (i > 20) v.at(i, 0) = 2; else v.at(i, 0) = 3;"),
    thread("if (i == 0 || v.at(i, 0) > 3) { v.at(i, 0) = -9; }"),
    thread("u32 x = __to<u32>(i); v.at(i, 0) = __to<s32>(x * 4000000000u >> 3); u8 y = 250; v.at(i, 1) = __to<s32>(y);"),
    thread("f16 h = 0.1f; c.at(i, 0) = h; bf16 g = 0.1f; c.at(i, 1) = g; f64 d = 0.1; c.at(i, 2) = __to<f32>(d);"),
    block("foreach i in 5 { v.at(i, 0) = i; } foreach {i, j} in [2, 3] { v.at(i, j) = i * 10 + j; }"),
    block("foreach i in 20 : unroll(3) { v.at(0, i) = i; } foreach i in n { v.at(1, i) = i; }"),
    block("foreach i in 7 : unroll { v.at(i, i) = i; } foreach i in 7 : unroll(2) { v.at(i, 0) = i + 1; }"),
    block("foreach i in 9 { if (i == 2) continue; if (i == 6) break; v.at(i, 0) = 77; }"),
    block("mutable int k = 0; while (k < n) { v.at(k, 0) = k; k += 2; } v.at(60, 0) = k;"),
    block("mutable int k = 9; while (k > 0) { k--; if (k == 3) continue; if (k == 1) break; v.at(k, 0) = 5; }"),
    block("foreach i in 4 { foreach j in i + 1 { if (j == 2) break; v.at(i, j) = i * 8 + j; } }"),
    thread("foreach j in i { v.at(i, j) = j; } mutable int k = i; while (k > 28) { k--; v.at(i, k) = 1; }"),
    thread("foreach j in 6 { if (j > i) break; if (j == 1) continue; v.at(i, j) = 3; }"),
    block("parallel i by 32 : thread { foreach j in 4 : unroll { v.at(i, j) = i; } }"),
    block("parallel {i, j} by [4, 8] : thread { v.at(i, j) = i * 8 + j; }"),
    block("parallel w by 2 : group, i by 32 : thread { v.at(w, i) = w * 32 + i; }"),
    "parallel {p, q} by [2, 3] : block { v.at(p, q) = p * 3 + q; }",
    "parallel p by 2 : block, q by 2 : group-4 { v.at(p, q) = 9; }",
    "parallel p by n : block { v.at(p, 0) = n; }",
    "parallel p by 3 : block, k by 2 : group { v.at(p, k) = k + 1; }",
    "parallel p by 2 : block { v.at(p, 0) = 1; } parallel p by 2 : block { v.at(p, 1) = v.at(p, 0) + 1; }",
    block("shared s32 [4] s {7}; s.at(1) = 2; foreach i in 4 { v.at(i, 0) = s.at(i); }"),
    block("shared s32 [4] s[2] {7}; s[1].at(1) = 2; foreach i in 4 { v.at(i, 0) = s[0].at(i) + s[1].at(i); }"),
    block("local s32 [4] s {1}; s.at(1) += 2; s.at(2)++; foreach i in 4 { v.at(0, i) = s.at(i); }"),
    thread("local s32 [2, 2] s {1}; s.at(1, 0) = i; s.at(0, 1) -= 3; v.at(i, 0) = s.at(1, 0) + s.at(0, 1);"),
    block("s = dma.copy b => shared; foreach i in 4 { c.at(i, 0) = s.data.at(i, 1); }"),
    block("foreach k in 2 { s = dma.copy b.chunkat(k, _) => shared; foreach i in 4 { c.at(k, i) = s.data.at(3, i); } }"),
    block("dma.copy c.subspan(8, 16).at(1, 2) => c.subspan(8, 16).at(3, 0);"),
    block("shared f32 [8, 8] s; dma.copy c.subspan(8, 8).at(1, 1) => s; dma.copy s => c.view(8, 8).from(3, 5);"),
    block("shared f32 [8, 8] s; f = dma.copy.async c.subspan(8, 8).at(1, 1) => s; wait f; c.at(0, 0) = s.at(2, 3);"),
    block("v.at(0, 0) = 1;"),
    block("v.at(0, 1) = |c.span|;"),
    block("shared f32 [4, 6] s {1.0f}; t = s.span_as([24]); t.at(5) = 2.0f; c.at(0, 0) = s.at(0, 5);"),
    block("v.at(0, 2) = 1;"),
    block("shared event e; parallel w by 2 : group { inthreads.async (w == 0) { v.at(0, 0) = 5; trigger e; } inthreads.async (w == 1) { wait e; v.at(0, 1) = v.at(0, 0) + 1; } }"),
    block("shared s32 [2] s {0}; parallel w by 2 : group { inthreads (w == 1) { s.at(0) = 4; } } v.at(0, 0) = s.at(0);"),
    block("shared s32 [32] s; parallel i by 32 : thread { s.at(i) = i; } sync.shared; parallel i by 32 : thread { v.at(i, 0) = s.at(31 - i); }"),
    group(LOADED + " mma.store m, c;"),
    group(LOADED + " m = m * 2.0f; m += 1.0f; m -= 0.5f; m = -m; mma.store m, c;"),
    group(LOADED + " apply {i, j} in m.span { m.at(i, j) = i * 64 + j; } mma.store m, c;"),
    group(LOADED + " mma.store.transp m, c;"),
    group(LOADED + " frag f32[64] r {0.0f}; reduce_sum(r, m, 1); m = m * r; mma.store m, c;"),
    group(LOADED + " frag f32[64] r {0.0f}; reduce_max(r, m, 1); m -= r; mma.store m, c;"),
    group("frag f32[64, 64] m {3.0f}; mma.store m, c;"),
    thread("v.at(i, 0) = __atomic_add(v.at(40, i), 2); __atomic_max(v.at(41, 0), i);"),
    thread("c.at(i, 0) = __shfl_xor(c.at(i, 1), 3); v.at(i, 0) = __shfl_up(i, 2); v.at(i, 1) = __shfl_down(i, 1);"),
    thread("v.at(i, 0) = __to<s32>(__ballot(i % 3 == 0)); v.at(i, 1) = __shfl_idx(i * 2, 5);"),
    thread("c.at(i, 0) = __max(c.at(i, 0), 1.0f) + __min(i, 3) + __fabs(-1.5f) + __abs(i - 9);"),
    thread("v.at(i, 0) = cdiv(i, 4) + __alignup(i, 8) + __aligndown(i, 8);"),
    block('print("n is", n, " "); println("and c is ", c.at(0, 1)); println();'),
    thread('if (i == 3) println("lane ", i, " has ", v.at(i, 0));'),
    block("assert(n > 0, \"n\"); v.at(0, 0) = n;"),
    block("f = dma.copy.async c.subspan(8, 8).at(0, 1) => shared; g = dma.copy.async c.subspan(8, 8).at(2, 1) => shared; swap(f, g); wait f, g; c.at(0, 0) = f.data.at(1, 1) + g.data.at(2, 2);"),
    block("x = c.span; v.at(0, 0) = |x|; v.at(0, 1) = |b.span| + |c.subspan(8, 4).at(0, 0).span|;"),
    block("mdspan<2> x: [3, 4]; shared s32 [x] s {2}; v.at(0, 0) = s.at(2, 3) + |x|;"),
    group(LOADED + " frag f32[64] r {0.0f}; apply {i, j} in m.span { r.at(i) += m.at(i, j); } m -= r; mma.store m, c;"),
    group(LOADED + " frag f32[64] r {-inf}; apply {i, j} in m.span { r.at(i) = __max(r.at(i), m.at(i, j)); } m -= r; mma.store m, c;"),
    group(LOADED + " m = m * m - 2.0f; m = 1.0f - m; m /= 2.0f; mma.store m, c;"),
    group(LOADED + " apply {i, j} in m.span { if (i > j) m.at(i, j) = m.at(i, j) * 2.0f; else m.at(i, j) += n; } mma.store m, c;"),
    group("frag f32[64, 64] m; mma.load c, m; m = __abs(m); mma.store m, c;"),
    group("m = mma.fill.f32 0.0f; x = mma.load b; y = mma.load b; mma.row.row m, -x, y; mma.row.col m, x, y; mma.store m, c;"),
    group("m = mma.fill.f16 1.0; x = mma.load b; y = mma.load b; mma.row.row m, x, y; mma.store m, b;") ,
    group("frag.f32 m[2] {0.0f}; x = mma.load b; y = mma.load b; foreach j in 2 : unroll { mma.row.row m[j], x, y; m[j] *= 2.0f; } mma.store m[1], c;"),
    thread("x = load_matrix_a<16, 8, 16>(b, 16, 8); y = load_matrix_b<16, 8, 16>(b, 8, 0); d = load_matrix_c<16, 8, 16>(c, 2, 3); mma.row.col d, x, y; store_matrix_d<16, 8, 16>(c, d, 4, 0);"),
    thread("local f32 [4] d {1.0f}; store_matrix_d<16, 8, 16>(c, d, 0, 8); v.at(i, 0) = i;"),
    thread("int old = __atomic_add(v.at(40, 0), 0); v.at(i, 0) = old; mutable int w = __atomic_max(v.at(41, i), 3); w += 2; v.at(i, 1) = w;"),
    thread("int e = v.at(i, 0); v.at(i, 0) = 100; v.at(i, 1) = e; s32 g = v.at(i, 2); g = g + 1; v.at(i, 2) = g;"),
    block("{ int x = 3; v.at(0, 0) = x; } { int x = 4; v.at(0, 1) = x; } y = n + 1; v.at(0, 2) = y;"),
    "int z = n * 2; assert(z > 4, \"z\"); parallel p by z : block { v.at(p, 0) = z; }",
    "parallel p by 2 : cluster { parallel q by 3 : block { v.at(q, 0) = p * 10 + q; } }",
    "parallel p by 1 : block { parallel w by 1 : group { parallel i by 32 : thread { if (i < 4) { v.at(i, 0) = 1; } else { if (i == 9) v.at(i, 0) = 2; } } } }",
    thread("f32 x = 2.5; c.at(i, 0) = __sqrt(x * i); c.at(i, 1) = __floor(-1.5f); c.at(i, 2) = __ceil(2.25f);"),
    thread("v.at(i, 1) = 0x1F + 1e1 > 40 ? 1 : 0; v.at(i, 2) = true ? 3 : 4;"),
    block("foreach {i, j} in [n, 2] { v.at(i, j) = i + j; } foreach i in 2, j in 3 { v.at(j, 9 + i) = i; }"),
)

PYTHON = (
    python("for t in parallel(32, level='thread'):;     v[t, 0] += t;     v[t, 1] -= t;     v[t, 2] *= 3;     v[t, 3] //= 3;     v[t, 4] %= 7;     v[t, 5] <<= 1"),
    python("for t in parallel(32, level='thread'):;     v[t, 0] >>= 1;     v[t, 1] &= 6;     v[t, 2] |= 8;     v[t, 3] ^= t;     c[t, 0] /= 4.0;     c[t, 1] **= 2"),
    python("x = var(n); x += 3; x -= 1; x *= 5; x //= 2; x %= 9; v[0, 0] = x; x <<= 3; x |= 5; x &= 62; x ^= 3; x >>= 1; v[0, 1] = x"),
    python("x = var(1.5); x += n; x /= 2; x *= 3; x -= 0.25; x **= 2; c[0, 0] = x"),
    python("x = var(2.0, 'f32'); y = var(3, 's32'); x += y; y += 4; c[0, 0] = x; v[0, 0] = y"),
    python("v[0, 0] = select(n > 3, 1, 2); v[0, 1] = ~n; v[0, 2] = -n; v[0, 3] = +n; v[0, 4] = abs(n - 9); v[0, 5] = n ** 2"),
    python("v[0, 0] = 7 - n; v[0, 1] = 70 // n; v[0, 2] = 70 % n; v[0, 3] = 1 << n; v[0, 4] = 999 >> n; v[0, 5] = 12 & n; v[0, 6] = 8 | n; v[0, 7] = 3 ^ n; c[0, 0] = 7.0 / n; c[0, 1] = (n - 3.5) ** 2"),
    python("with if_(n > 3):;     v[0, 0] = 1; with else_():;     v[0, 0] = 2; with if_((n > 3) & (n < 9) | ~(n != 2)):;     v[0, 1] = 5"),
    python("for i in foreach(5):;     v[i, 0] = i; for i, j in foreach(2, 3):;     v[i, j] = i * 10 + j"),
    python("for i in foreach(20, step=3):;     v[0, i] = i; for i in foreach(n):;     v[1, i] = i; for i in foreach(7, unroll=True):;     v[i, i] = i"),
    python("for i in foreach(9):;     with if_(i == 2):;         continue_();     with if_(i == 6):;         break_();     v[i, 0] = 77"),
    python("k = var(0); with while_(lambda: k < n):;     v[k, 0] = k;     k += 2; v[60, 0] = k"),
    python("for i in foreach(4):;     for j in foreach(i):;         v[i, j] = i * 8 + j"),
    python("for t in parallel(32, level='thread'):;     for j in foreach(t):;         v[t, j] = j"),
    python("for i, j in parallel(4, 8, level='thread'):;     v[i, j] = i * 8 + j"),
    python("for w in parallel(2, level='group'):;     for t in parallel(32, level='thread'):;         v[w, t] = w * 32 + t"),
    python("for p, q in parallel(2, 3, level='block'):;     v[p, q] = p * 3 + q", 0),
    python("for p in parallel(n, level='block'):;     v[p, 0] = n", 0),
    python("for p in parallel(3, level='block'):;     for k in foreach(7, start=2, step=3):;         v[p, k] = k + 1", 0),
    python("s = shared('s32', 4, init=7); s[1] = 2; for i in foreach(4):;     v[i, 0] = s[i]"),
    python("s = shared('s32', 4, copies=2, init=7); s[1][1] = 2; s[0, 2] = 5; for i in foreach(4):;     v[i, 0] = s[0][i] + s[1, i]"),
    python("s = local('s32', 2, 2, init=1); s[1, 0] = n; s[0, 1] -= 3; v[0, 0] = s[1, 0] + s[0, 1]"),
    python("s = dma.copy(b, to='shared'); c[0, 0] = s.data[3, 4]; c[0, 1] = s.data.at(5, 6)"),
    python("dma.copy(c.subspan(8, 16).at(1, 2), c.subspan(8, 16).at(3, 0))"),
    python("s = shared('f32', 8, 8); dma.copy(c.subspan(8, 8).at(1, 1), s); dma.copy(s, c.view(8, 8).from_(3, 5))"),
    python("s = shared('f32', 8, 8); f = dma.copy(c.subspan(8, 8).at(1, 1), s, async_=True); wait(f); c[0, 0] = s[2, 3]"),
    python("s = shared('f32', 4, 6, init=1); t = s.span_as(24); t[5] = 2.0; c[0, 0] = s[0, 5]; v[0, 0] = s.shape[0] * s.shape[1]; v[0, 1] = s.rank"),
    python("s = shared('f32', 1, 6, init=1); t = s.sqz(); t[5] = 2.0; c[0, 0] = s[0, 5]"),
    python("e = event(); for w in parallel(2, level='group'):;     with inthreads(w == 0, async_=True):;         v[0, 0] = 5;         trigger(e);     with inthreads(w == 1, async_=True):;         wait(e);         v[0, 1] = v[0, 0] + 1"),
    python("s = shared('s32', 2, init=0); for w in parallel(2, level='group'):;     with inthreads(w == 1):;         s[0] = 4; v[0, 0] = s[0]"),
    python("for t in parallel(32, level='thread'):;     v[t, 0] = atomic.add(v[40, t], 2);     atomic.max(v[41, 0], t)"),
    python("for t in parallel(32, level='thread'):;     c[t, 0] = tm.lane.shfl_xor(c[t, 1], 3);     v[t, 0] = tm.lane.shfl_up(t, 2);     v[t, 1] = tm.lane.shfl_down(t, 1);     v[t, 2] = tm.lane.ballot(t % 3 == 0).astype('s32')"),
    python("for t in parallel(32, level='thread'):;     x = load_matrix_a[16, 8, 16](b);     y = load_matrix_b[16, 8, 16](b);     d = local('f32', 4, init=0.0);     mma.row.col(d, x, y);     store_matrix_d[16, 8, 16](c, d)"),
    python("for t in parallel(32, level='thread'):;     x = load_matrix_a[16, 8, 16](b, 16, 8);     y = load_matrix_b[16, 8, 16](b, 8);     d = load_matrix_c[16, 8, 16](c, 2, 3);     mma.row.col(d, x, y);     store_matrix_d[16, 8, 16](c, d, 4)"),
    python(PRODUCT + "; mma.store(m, c)", 2),
    python(PRODUCT + "; m *= 2.0; m += 1.0; m -= 0.5; m /= 4.0; mma.store(m, c)", 2),
    python(PRODUCT + "; k = mma.fill(0.0, 'f32'); mma.row.row(k, -x, y); mma.row.row(k, x, y); mma.row.row(k, x, -y); mma.store(k, c)", 2),
    python(PRODUCT + "; for i, j in apply(m):;     m[i, j] = i * 64 + j; mma.store(m, c)", 2),
    python(PRODUCT + "; mma.store(m, c, transp=True)", 2),
    python("m = mma.frag('f32', 64, 64, init=3.0); r = mma.frag('f32', 64, init=0.0); mma.reduce_sum(r, m); for i, j in apply(m):;     m[i, j] = m[i, j] - r[i]; mma.store(m, c)", 2),
    python("m = mma.frag('f32', 64, 64, init=3.0); k = m * m + 1.0; q = k - m / 2.0; q = 2.0 - q; mma.store(q, c)", 2),
    python("m = mma.frag('f32', 64, 64, init=3.0); q = tm.math.max(m, 1.0) + abs(-m); mma.store(q, c)", 2),
    python("tm.print('n is', n, ' '); tm.print('and c is ', c[0, 1], end=''); tm.print()"),
    python("assert_(n > 0, 'n'); v[0, 0] = n"),
    python("c[0, 0] = tm.math.max(c[0, 1], 1.0) + tm.math.sqrt(4.0); v[0, 0] = cdiv(n, 2)"),
    python("for i in foreach(3):;     x = v[i, 0] + 1;     v[i, 0] = 9;     v[i, 1] = x"),
    python("x = c[0, 1]; c[0, 1] = 5.0; c[0, 2] = x"),
    python("f = dma.copy(c.subspan(8, 8).at(0, 1), to='shared', async_=True); g = dma.copy(c.subspan(8, 8).at(2, 1), to='shared', async_=True); swap(f, g); wait(f, g); c[0, 0] = f.data[1, 1] + g.data[2, 2]"),
    python("for k in foreach(2):;     s = dma.copy(b.chunkat(k, full), to='shared');     for i in foreach(4):;         c[k, i] = s.data[3, i]"),
    python(PRODUCT + "; m = m * m - 2.0; m = 1.0 - m; m = m / 2.0; mma.store(m, c)", 2),
    python(PRODUCT + "; m //= 3.0; m = abs(m); m = -(m + 1.0); mma.store(m, c)", 2),
    python(PRODUCT + "; r = mma.frag('f32', 64, init=0.0); mma.reduce_min(r, m); for i, j in apply(m):;     m[i, j] -= r[i]; mma.store(m, c)", 2),
    python(PRODUCT + "; r = mma.frag('f32', 64, init=0.0); mma.reduce_max(r, m); r *= 2.0; for i, j in apply(m):;     m[i, j] += r[i] + j; mma.store(m, c)", 2),
    python(PRODUCT + "; m.set(m + 2.0); mma.store(m, c)", 2),
    python("m = mma.fill(0.0, 'f32'); x = mma.load(b); y = mma.load(b); mma.row.col(m, x, y); mma.row.row(m, x, y); mma.store(m, c, rows=n, columns=9)", 2),
    python("m = mma.frag('f32', 64, 64, copies=2, init=0.0); x = mma.load(b); y = mma.load(b); for j in foreach(2, unroll=True):;     mma.row.row(m[j], x, y);     m[j] *= 2.0; mma.store(m[1], c)", 2),
    python("m = mma.frag('f32', 64, 64); mma.load(c, m); m = tm.math.abs(m); mma.store(m, c)", 2),
    python("m = mma.fill(0.0, 'f32'); x = mma.load(b); y = mma.load(b); mma.col.row(m, x, y); mma.col.col(m, x, y); mma.store(m, c)", 2),
    python("x = 3; v[0, 1] = x; y = [1, 2, 3]; y[1] += 5; v[0, 2] = sum(y); z = {'a': n}; z['a'] += 1; v[0, 3] = z['a']"),
    python("s = shared('s32', 32); for t in parallel(32, level='thread'):;     s[t] = t; sync.shared(); for t in parallel(32, level='thread'):;     v[t, 0] = s[31 - t]"),
    python("i = var(v[3, 1]); with if_(i > 0):;     i += 1;     v[0, 0] = i; v[0, 1] = i"),
    python("x = tm.math.min(n, 3).astype('f32'); c[0, 0] = x ** 3; c[0, 1] = tm.math.exp2(x); c[0, 2] = tm.math.floor(-x / 2); v[0, 0] = tm.math.max(n, 9, ) % 4"),
    python("a, q = v[0, 0], v[0, 1]; v[0, 0], v[0, 1] = q, a; w = v.subspan(2, 2).at(1, 1); w[0, 1] = w[1, 0] + 50; v[5, 5] = w.shape[0]"),
    python("e = event(slots=2); for w in parallel(2, level='group'):;     with inthreads(w == 0, async_=True):;         v[0, 0] = 5;         trigger(e[1]);     with inthreads(w == 1, async_=True):;         wait(e[1]);         v[0, 1] = v[0, 0] + 1"),
    python("for p in foreach(n - 2):;     v[p, 0] = 1;     v[p, p] += 1"),
    python("for t in parallel(32, level='thread'):;     with if_(t < 4):;         v[t, 0] = 1;     with else_():;         with if_(t == 9):;             v[t, 0] = 2"),
    python("for t in parallel(32, level='thread'):;     k = var(t);     with while_(lambda: k > 28):;         k -= 1;         v[t, k] = 1"),
    python("for t in parallel(32, level='thread'):;     x = var(0);     for j in foreach(6):;         with if_(j > t):;             break_();         with if_(j == 1):;             continue_();         x += 1;     v[t, 3] = x"),
    python("for p in parallel(2, level='cluster'):;     for q in parallel(3, level='block'):;         v[q, p] = p * 10 + q", 0),
)
# fmt: on
PROGRAMS = {"co": CROQTILE, "py": PYTHON}


def text_of(language: str, body: str) -> str:
    if language == "co":
        return f"__co__ void k({PARAMETERS['co']}) {{ {body} }}"
    return f"{edited.HEADER}@tm.kernel\ndef k({PARAMETERS['py']}):\n{body}\n"


def kernel_of(language: str, n: int) -> Kernel:
    (kernel,) = edited.read(language, text_of(language, PROGRAMS[language][n]))
    return kernel


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    """Small numbers, such that sums are exact."""
    i = np.arange(4096).reshape(64, 64)
    return {"v": (i * 7 % 23 - 5).astype(np.int32), "c": (i % 19 - 6).astype(np.float32) / 2,
            "b": (i * 5 % 9 - 4).astype(np.float16)}  # fmt: skip


def results(kernel: Kernel, target: str) -> tuple[dict[str, np.ndarray[Any, Any]], str]:
    """The arrays after a run, and the output."""
    after, out = arrays(), io.StringIO()
    with redirect_stdout(out):
        kernel.on(target)(*after.values(), 5)
    return after, out.getvalue()


def told(kernel: Kernel) -> str:
    lines = [f"ir {edited.digest(print_kernel(kernel.build()))}"]
    after, out = results(kernel, "cpu")
    for name, before in arrays().items():
        changed = np.argwhere(before != after[name])
        if len(changed):
            shown = ", ".join(f"{[int(x) for x in at]} = {after[name][tuple(at)]:g}" for at in changed[:3])
            lines.append(f"{name} {edited.digest(after[name].tobytes().hex())}: {len(changed)} elements, {shown}")
    return "\n".join([*lines, *(f"prints {line!r}" for line in out.splitlines())])


def recorded(language: str) -> list[str]:
    text = (FOLDER / f"{language}.txt").read_text(encoding="utf-8")
    return [x.partition("\n")[2].strip("\n") for x in ("\n" + text).split("\n== ")[1:]]


def write() -> None:
    for language, bodies in PROGRAMS.items():
        entries = []
        for n in range(len(bodies)):
            kernel = kernel_of(language, n)
            (have, said), (want, expected) = (results(kernel, target) for target in ("machine", "cpu"))
            for name in want:
                np.testing.assert_array_equal(have[name], want[name], f"{language} {n}: {bodies[n]}")
            assert said == expected, (language, n, said, expected)
            entries.append(f"== {n}\n{told(kernel)}\n")
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{language}.txt").write_text("".join(entries), encoding="utf-8")


if __name__ == "__main__":
    write()
