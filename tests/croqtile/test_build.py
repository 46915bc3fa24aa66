"""The meaning of each construct: kernels and their tile IR."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest

from tilemma import croqtile
from tilemma.ir import tile as t
from tilemma.ir.printer import print_kernel
from tilemma.ir.walk import walk

HEADER = "global f16 [M, K] a, global f16 [N, K] b, global f32 [M, N] c, int n, f32 x"


def kernel(body: str, header: str = HEADER, before: str = "", returns: str = "void", **defines: Any) -> t.Kernel:
    text = f"{before}\n__co__ {returns} f({header}) {{\n{body}\n}}\n"
    return croqtile.load(text, "t.co", defines).kernels["f"]


def inside(body: str, **more: Any) -> str:
    """The IR of statements inside one block, without the frame."""
    lines = print_kernel(kernel(f"parallel p by 4 : block {{\n{body}\n}}", **more)).split("\n")
    # What the launch checks stands before the block.
    start = next(i for i, line in enumerate(lines) if line.lstrip().startswith("parallel"))
    return dedent("\n".join(lines[start + 1 : -3])).strip()


def ir(body: str, **more: Any) -> str:
    lines = print_kernel(kernel(body, **more)).split("\n")
    return dedent("\n".join(lines[1:-2])).strip()


ELEMENT = "element c[0, 0] = "


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # literals and arithmetic
        ("1 + 2 * 3", "7"),
        ("7 / 2", "3"),
        ("-7 / 2", "-3"),
        ("-7 % 3", "-1"),
        ("0x10 << 2", "64"),
        ("n / 2", "n / 2"),
        ("p / 2", "p // 2"),
        ("p % 2", "p % 2"),
        ("cdiv(M, 16)", "cdiv(M, 16)"),
        ("cdiv(33, 16)", "3"),
        ("x * 2.0", "x * 2.0"),
        ("x * 2", "x * 2.0"),
        ("x * 2.0f", "x * 2.0"),
        ("n > 0 ? x : 0.0f", "select(n > 0, x, 0.0)"),
        ("1 > 0 ? x : 0.0f", "x"),
        ("select(n, x, 1.0f)", "select(n != 0, x, 1.0)"),
        ("!n", "lnot(n != 0)"),
        ("!n == p", "lnot(n != 0) == p"),
        ("!(n == p)", "lnot(n == p)"),
        ("!n != 3 && p", "lnot(n != 0) != 3 && p != 0"),
        ("!n & 1", "lnot(n & 1 != 0)"),
        ("(!n) == p", "lnot(n != 0) == p"),
        ("0", "0"),
        ("n && p", "n != 0 && p != 0"),
        ("~3", "-4"),
        ("-x", "neg(x)"),
        ("__exp(x)", "math.exp(x)"),
        ("__fmaf(x, x, 1.0)", "math.fmaf(x, x, 1.0)"),
        ("__max(n, 3)", "max(n, 3)"),
        ("__alignup(n, 16)", "cdiv(n, 16) * 16"),
        ("__to<f16>(x)", "f16(x)"),
        ("__to<f16>(1.0f / 3.0f)", "f16(1.0 / 3.0)"),
        ("__to<f16>(0.1f)", "0.0999755859375"),
        # shapes, bounds, sizes
        ("a.span(1)", "K"),
        ("|a.span|", "M * K"),
        ("|a|", "M * K"),
        ("|f16|", "2"),
        ("#p", "4"),
        ("a.at(p, 3)", "a[p, 3]"),
        ("a.subspan(16, 8).at(p, 1).at(2, 3)", "a[p * 16 + 2, 11]"),
        ("MMA_M", "16"),
        # precedence: `#` before `*`, `&` before `*`
        ("n * 6 & 3", "n * 2"),
    ],
)
def test_scalars(source: str, expected: str) -> None:
    written = inside(f"c.at(0, 0) = {source};").removeprefix(ELEMENT)
    assert written in (expected, f"{expected}.0", f"f32({expected})")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a.subspan(16, 8).at(p, 2)", "a[p * 16 +: 16, 16 +: 8]"),
        ("a.subspan(16, _).at(p, 0)", "a[p * 16 +: 16, 0 +: K]"),
        ("a.subspan(16, 8).step(32, 4).at(p, 2)", "a[p * 32 +: 16, 8 +: 8]"),
        ("a.subspan(16, 8 : 2, 1).at(p, 0)", "a[p * 16 +: 16 step 2, 0 +: 8]"),
        ("a.modspan(16, 8).at(p, 2)", "a[p * 16 +: min(16, M - p * 16), 16 +: min(8, K - 16)]"),
        ("a.view(16, 8).from(n, 3)", "a[n +: 16, 3 +: 8]"),
        ("a.view(16, 8 : 2, 3).from(n, 3)", "a[n +: 16 step 2, 3 +: 8 step 3]"),
        ("a.chunkat(p, _)", "a[p * (M // 4) +: M // 4, 0 +: K]"),
        ("a.chunkat(p # q, _)", "a[(p * 2 + q) * (M // 8) +: M // 8, 0 +: K]"),
        ("a.chunk(4, 8).at(1, n)", "a[M // 4 +: M // 4, n * (K // 8) +: K // 8]"),
        ("a.chunkat(idx)", "a[i * (M // 2) +: M // 2, j * (K // 8) +: K // 8]"),
        ("a.span_as([K, M])", "a as [K, M] [0 +: K, 0 +: M]"),
        ("s.subspan(1, 8).at(p, 0).sqz()", "s[p, 0 +: 8]"),
        ("a.subspan(16, 8).at(p, 2).subspan(4, 8).at(1, 0)", "a[p * 16 + 4 +: 4, 16 +: 8]"),
        ("u[1]", "u{1}"),
        ("u[p % 3].subspan(4, 4).at(0, 1)", "u{p % 3}[0 +: 4, 4 +: 4]"),
        ("w[1][p]", "w{3 + p}"),
        ("f", "g"),
        ("f.data", "g"),
    ],
)
def test_views(source: str, expected: str) -> None:
    body = f"""
    shared f16 [4, 8] s;  shared f16 [8, 8] u[3];  shared f16 [8, 8] w[2][3];
    f = dma.copy a.subspan(16, 8).at(0, 0) => shared;
    parallel q by 2 : group {{ foreach idx = {{i, j}} in [2, 8] {{ mma.load {source}, m; }} }}
    """.replace("mma.load", "frag m;  mma.load")
    k = print_kernel(kernel(f"parallel p by 4 : block {{\n{body}\n}}"))
    (line,) = [x.strip() for x in k.split("\n") if x.strip().startswith("load ")]
    assert line.removeprefix("load %m, ").replace(" f", " g") == expected.replace(
        "g", "f" if expected == "g" else "g"
    )


def test_scalars_that_nothing_changes_are_their_value() -> None:
    assert inside("int y = n + 1; f32 z = x; h = p * 2; c.at(h, y) = z;") == "element c[p * 2, n + 1] = x"


def test_scalars_that_change_are_stored() -> None:
    assert inside("mutable int i = 0; i = i + 1; i += 2; f32 s = 0.0; s += x; i++;") == dedent("""\
        var i: s32 = 0
        set i: s32 = i + 1
        set i: s32 = i + 2
        var s: f32 = 0.0
        set s: f32 = s + x
        set i: s32 = i + 1""")


def test_a_value_read_from_memory_is_read_where_it_is_defined() -> None:
    assert inside("v = a.at(0, 0); a.at(0, 0) = 1.0f; c.at(0, 0) = v;") == dedent("""\
        var v: f16 = a[0, 0]
        element a[0, 0] = 1.0:f16
        element c[0, 0] = f32(v)""")


def test_names_of_views_keep_the_offsets_they_were_given() -> None:
    source = """
    mutable int i = 0; q = a.subspan(16, 8).at(i, p); t = {i, 2}; i = 5;
    shared f16 [16, 8] s; dma.copy q => s; c.at(t) = x; foreach k in i { i = 7; }
    """
    assert inside(source) == dedent("""\
        var i: s32 = 0
        var q: s32 = max(min(i, 134152193), -134152193) * 16
        var t: s32 = i
        set i: s32 = 5
        alloc shared f16 s[16, 8]
        copy.dma a[q +: 16, p * 8 +: 8] => s
        element c[t, 2] = x
        var extent: s32 = i
        for k: extent = 0 to extent step 1 {
          set i: s32 = 7
        }""")


def test_a_counter_steps_after_its_statement() -> None:
    text = "mutable int k = 0; shared event e[2]; trigger e.at(k++); wait e.at(++k);"
    assert inside(text) == dedent("""\
        var k: s32 = 0
        event e[2]
        trigger e at (k)
        set k: s32 = k + 1
        set k: s32 = k + 1
        wait e at (k)""")


def test_blocks_hide_names() -> None:
    assert inside("int y = 1; { int y = 2; c.at(0, y) = x; } c.at(0, y) = x;") == dedent("""\
        element c[0, 2] = x
        element c[0, 1] = x""")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("parallel p by 6 {}", "parallel (p: 6) : ? {"),
        ("parallel by 6 : block {}", "parallel (p: 6) : block {"),
        ("parallel {i, j} by [M, 4] : block {}", "parallel (i: M, j: 4) : block {"),
        ("parallel t = {i, j} by [2, 4] : block<cooperative> {}", "parallel (i: 2, j: 4) : block {"),
        ("parallel t by [2, 4] {}", "parallel (t_0: 2, t_1: 4) : ? {"),
        ("parallel p by 2 : block, q by 32 : thread {}", "parallel (p: 2) : block {"),
        ("parallel p by 2 : group-4 {}", "parallel (p: 2) : group-4 {"),
        ("parallel p by a.span {}", "parallel (p_0: M, p_1: K) : ? {"),
    ],
)
def test_parallel(source: str, expected: str) -> None:
    assert ir(source.replace("{}", "{ println(); }")).split("\n")[0] == expected.replace("?", "_")


def test_parallel_options() -> None:
    k = kernel("[[launch_bounds(_, 2)]] [[maxnreg(40)]] [[overlap]] parallel.async p by 2 : block<cooperative> {}")
    (op,) = k.body
    assert isinstance(op, t.Parallel)
    assert (op.asynchronous, op.cooperative, op.min_blocks, op.max_registers) == (True, True, 2, 40)
    assert op.overlap is True
    (op,) = kernel("[[overlap(before)]] parallel p by 2 : block {}").body
    assert isinstance(op, t.Parallel) and op.overlap == "before"


def test_a_barrier_of_a_cooperative_grid() -> None:
    text = "parallel p by {} : block<cooperative> {{ sync.{}; }}"
    assert kernel(text.format(1, "barrier : block")) and kernel(text.format(2, "shared"))
    first, second = kernel(text.format(2, "barrier : block")).body
    assert isinstance(first, t.Parallel) and isinstance(second, t.Parallel) and first.cooperative
    assert {i.name for i in first.indices}.isdisjoint(i.name for i in second.indices)


def test_an_index_named_as_a_dimension_hides_it() -> None:
    assert inside("foreach K in 4 { c.at(K, a.span(1)) = x; }").split("\n")[1] == "  element c[K.1, K] = x"


def test_several_launches() -> None:
    assert len(kernel("parallel p by 2 : block {} parallel q by 3 : block {}").body) == 2


def test_a_kernel_without_parallel_is_one_instance() -> None:
    assert ir("c.at(0, 0) = x;") == "parallel (p: 1) : block {\n  element c[0, 0] = x\n}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("foreach k in 8 {}", "for k: 8 = 0 to 8 step 1 {"),
        ("foreach k in [8] {}", "for k: 8 = 0 to 8 step 1 {"),
        ("foreach k in M / 16 {}", "for k: M // 16 = 0 to M // 16 step 1 {"),
        ("with k in 8 foreach k(1:) {}", "for k: 8 = 1 to 8 step 1 {"),
        ("with k in 8 foreach k(1:-1:2) {}", "for k: 8 = 1 to 7 step 2 {"),
        ("with k in 8 foreach k(1::) {}", "for k: 8 = 1 to 8 step 1 {"),
        ("with k in 8 foreach k(1:0:) {}", "for k: 8 = 1 to 8 step 1 {"),
        ("with k in 8 foreach k(::2) {}", "for k: 8 = 0 to 8 step 2 {"),
        ("with k in 8 foreach h = k(:-1) {}", "for h: 8 = 0 to 7 step 1 {"),
    ],
)
def test_foreach(source: str, expected: str) -> None:
    assert inside(source.replace("{}", "{ println(); }")).split("\n")[0] == expected


def test_loops_nest_from_left_to_right() -> None:
    expected = "for i: 2 = 0 to 2 step 1 {\n  for j: 3 = 0 to 3 step 1 {\n    element c[i, j] = x\n  }\n}"
    assert inside("foreach {i, j} in [2, 3] c.at(i, j) = x;") == expected
    assert inside("foreach t = {i, j} in [2, 3] c.at(t) = x;") == expected
    assert inside("with {i, j} in [2, 3] { foreach i, j { c.at(i, j) = x; } }") == expected
    assert inside("with t = {i, j} in [2, 3] { foreach t { c.at(i, j) = x; } }") == expected
    assert inside("foreach i in 2, j in 3 c.at(i, j) = x;") == expected


def test_unroll() -> None:
    assert "{unroll = 4}" in inside("foreach i in 8 : unroll(4) { c.at(0, i) = x; }")
    assert "{unroll = 0}" in inside("foreach i in 8 : unroll { c.at(0, i) = x; }")


def test_outside_foreach_an_index_is_zero() -> None:
    assert inside("with k in 8 { c.at(k, #k) = x; c.at(k(-1), 0) = x; }") == dedent("""\
        element c[0, 8] = x
        element c[7, 0] = x""")


def test_the_last_value_of_an_index() -> None:
    assert inside("c.at(p(-1), p(0)) = x;") == "element c[3, p] = x"


def test_control() -> None:
    source = "mutable int i = 0; while (i < n) { if (i == 2) break; else if (p) continue; else { i++; } }"
    assert inside(source) == dedent("""\
        var i: s32 = 0
        while i < n {
          if i == 2 {
            break
          } else {
            if p != 0 {
              continue
            } else {
              set i: s32 = i + 1
            }
          }
        }""")


def test_shapes_and_tuples() -> None:
    source = """
    s : [M, 32]; s2_ : s [(0) / 2, (1) + 1]; s3 : s / {2, 4}; s4_ : [s, 6]; s5 : a.span;
    t = {1, 2, 3}; t2 = t {(0), 9}; t3 = {t, 4}; t4 = t + 1;
    c.at(s2_(0), s2_(1)) = x; c.at(s3(0), s3(1)) = x;
    c.at(s4_(2), s5(1)) = x; c.at(t2(1), t3(3)) = x; c.at(t4(2), |s|) = x;
    """
    assert inside(source) == dedent("""\
        element c[M // 2, 33] = x
        element c[M // 2, 8] = x
        element c[6, K] = x
        element c[9, 4] = x
        element c[4, M * 32] = x""")


def test_buffers() -> None:
    assert inside("shared f16 [16, 8] s, u[2] {0.0f}; local f32 [4] l {1}; local bf16 [2] v[2][3];") == dedent("""\
        alloc shared f16 s[16, 8]
        alloc shared f16 u[16, 8] copies 2 {init = 0.0:f16}
        alloc local f32 l[4] {init = 1.0}
        alloc local bf16 v[2] copies 6""")


def test_copies() -> None:
    source = """
    shared f16 [16, 8] s;
    dma.copy a.subspan(16, 8).at(p, 0) => s;
    dma.copy.swiz<3>.zfill a.subspan(16, 8).at(p, 0) => s;
    dma.copy a.subspan(16, 8).at(p, 0).zfill => s;
    g = dma.copy.async a.chunkat(p, _).subspan(4, 4).at(0, 0) => local;
    h = dma.transp<1, 0> s => shared;
    q = dma.pad<{1, 0}, {0, 1}, {0, 0}, 0.0f> s => shared;
    tma.copy.swiz<128> a.subspan(16, 8).at(p, 0) => s;
    v = tma.load.async.evict_first a.subspan(16, 8).at(p, 0) => s;
    wait g, v;
    """
    assert inside(source) == dedent("""\
        alloc shared f16 s[16, 8]
        copy.dma a[p * 16 +: 16, 0 +: 8] => s
        copy.dma a[p * 16 +: 16, 0 +: 8] => s {swizzle = 128, zfill = true}
        copy.dma a[p * 16 +: 16, 0 +: 8] => s {zfill = true}
        alloc local f16 g[4, 4]
        copy.dma a[p * (M // 4) +: 4, 0 +: 4] => g {asynchronous = true, future = g.future}
        alloc shared f16 h[8, 16]
        copy.dma s => h {transpose = (1, 0)}
        alloc shared f16 q[17, 9]
        copy.dma s => q {pad = ((1, 0, 0), (0, 1, 0)), pad_value = 0.0}
        copy.tma a[p * 16 +: 16, 0 +: 8] => s {swizzle = 128}
        copy.tma a[p * 16 +: 16, 0 +: 8] => s {asynchronous = true, future = v.future, evict = first}
        wait_future (g.future, v.future)""")


def test_contraction() -> None:
    source = """
    shared f16 [64, 16] s, u; shared f16 [64, 64] d; shared f32 [64, 1] sa;
    parallel g by 1 : group-4 {
      mc = mma.fill.f32 0.0f;
      ma = mma.load.swiz<128> s; mb = mma.load u;
      mma.row.row mc, ma, mb; mma.row.row mc, s, u; mma.row.row mc, ma, u;
      mma.row.row.scale mc, ma, mb, sa, 2.0f;
      ma = mma.load u;
      [[schedule(k_tiles(1, 0))]] mma.row.row mc, ma, mb;
      f = mma.row.row.async mc, ma, mb; wait f;
      mma.commit;
      mma.fill mc, 1.0f;
      mma.store.transp mc, d; mma.store.mask mc, d, n, 8;
    }
    """
    body = inside(source).split("group-4 {\n")[1].removesuffix("\n}")
    assert dedent(body).rstrip("}\n ") == dedent("""\
        fragment %mc {dtype = f32}
        fill %mc, 0.0 {dtype = f32}
        fragment %ma
        load %ma, s {swizzle = 128}
        fragment %mb
        load %mb, u
        mma.row.row %mc, %ma, %mb
        mma.row.row %mc, s, u
        mma.row.row %mc, %ma, u
        mma.row.row %mc, %ma, %mb {scale_a = sa, factor = 2.0}
        load %ma, u
        mma.row.row %mc, %ma, %mb {k_order = (1, 0)}
        mma.row.row %mc, %ma, %mb {future = f.future}
        wait_future (f.future)
        mma.commit
        fill %mc, 1.0 {dtype = f32}
        store %mc, d {transpose = true}
        store %mc, d {rows = n, columns = 8""")


def test_fragment_arrays_and_element_work() -> None:
    source = """
    parallel g by 1 : group {
      frag mc[2] {0.0}; frag f32[16, 8] m {0.0f};
      mma.fill mc[1], 2.0f;
      apply {i, j} in m.span { if (i > j) m.at(i, j) = m.at(i, j) * 2.0 + x; }
    }
    """
    body = inside(source).split(": group {\n")[1].removesuffix("\n}")
    assert dedent(body).rstrip("}\n ") == dedent("""\
        fragment %mc {copies = (2)}
        fill %mc[0], 0.0
        fill %mc[1], 0.0
        fragment %m {dtype = f32, shape = (16, 8)}
        fill %m, 0.0 {dtype = f32}
        fill %mc[1], 2.0
        apply (i: 16, j: 8) in %m {
          if i > j {
            fragment_element %m = %m(i, j):f32 * 2.0 + x""")


def test_the_accumulator_learns_its_shape_and_type() -> None:
    source = """
    shared f16 [64, 16] s; shared f16 [16, 32] u;
    parallel g by 1 : group {
      mc = mma.fill 0.0; mma.row.col mc, s, u; apply {i, j} in mc.span mc.at(i, j) *= 2.0;
    }
    """
    assert "apply (i: 64, j: 32) in %mc" in inside(source)
    assert "%mc(i, j):f16 * 2.0" in inside(source)


def test_arithmetic_on_whole_register_tiles() -> None:
    source = """
    parallel g by 1 : group {
      frag f32[16, 8] m {0.0}; frag f16[16, 8] w {0.0};
      m = m * 2.0 + w;
      m += a.subspan(1, 8).at(p, 0);
      m -= a.subspan(1, 8).at(p, 0).sqz();
      m = m > 0.0 ? m : x;
    }
    """
    body = inside(source).split("{dtype = f16}\n")[-1].removesuffix("\n}")
    assert dedent(body).rstrip("}\n ") == dedent("""\
        apply (i: 16, j: 8) in %m {
          fragment_element %m = %m(i, j):f32 * 2.0 + %w(i, j):f16
        }
        apply (i.1: 16, j.1: 8) in %m {
          fragment_element %m = %m(i.1, j.1):f32 + a[p, j.1]
        }
        apply (i.2: 16, j.2: 8) in %m {
          fragment_element %m = %m(i.2, j.2):f32 - a[p, j.2]
        }
        apply (i.3: 16, j.3: 8) in %m {
          fragment_element %m = select(%m(i.3, j.3):f32 > 0.0, %m(i.3, j.3):f32, x)""")


def test_roles_and_events() -> None:
    source = """
    shared event full[2], empty[2] = ready, one; shared event<256> counted;
    parallel wg by 2 : group-4 {
      inthreads.async (wg == 0) { wait empty[1]; trigger full[0]; trigger.cluster one; }
      inthreads (wg == 1) { wait full.at(n); trigger counted; }
    }
    sync.shared; sync.barrier : group; sync.fence : block;
    """
    text = inside(source)
    for line in (
        "event full[2]", "event empty[2] ready", "event one", "inthreads wg == 0 {", "wait empty[1]",
        "trigger full[0]", "wait full at (n)", "{asynchronous = true}",
    ):  # fmt: skip
        assert line in text
    syncs = [op for op in walk(kernel(f"parallel p by 4 : block {{ {source} }}").body) if isinstance(op, t.Sync)]
    assert [(s.what, str(s.level)) for s in syncs] == [
        ("barrier", "block"),
        ("barrier", "group"),
        ("fence", "block"),
    ]


def test_atomics() -> None:
    source = "__atomic_add(c.at(0, 0), 1); int old = __atomic_cas(c.at(p, 0), x, 2.0f); c.at(1, 1) = old;"
    text = inside(source)
    assert text.startswith("atomic.add c[0, 0], 1.0\n")
    assert "atomic.cas c[p, 0], 2.0 {compare = x, result = old: f32}" in text


def test_diagnostics() -> None:
    k = kernel(
        'parallel p by 4 : block { print("p ", p, a.span); println(x); assert(n > 0, "n"); assert(2 > 1, "no"); }'
    )
    prints = [op for op in walk(k.body) if isinstance(op, t.Print)]
    assert [p.newline for p in prints] == [False, True] and prints[0].parts[0] == "p "
    assert [op.message for op in walk(k.body) if isinstance(op, t.Assert)] == ["n"]


def test_compile_time_print_is_a_note() -> None:
    source = croqtile.load('__co__ void f(f32 [M, 4] a) { print!("shape ", a.span); }', "t.co").sources["f"]
    assert [n.text for n in source.notes()] == ["shape [M, 4]"]


def test_returns() -> None:
    k = kernel("f32 [M, N] out;\nparallel p by M : block { out.at(p, 0) = x; }\nreturn out;", returns="auto")
    assert k.returns is not None and k.returns.name == "out"
    assert k.params[-1] == t.ArrayParameter(k.returns)


def test_parameters() -> None:
    k = kernel(
        "",
        header="f32 [M, ?, 3] a, global f16 mdspan<2> b, int n, half h, f8 [T * 2] q",
        before="#define T 4",
    )
    assert print_kernel(k).split("\n")[0] == (
        "kernel f(global f32 a[M, a_1, 3], global f16 b[b_0, b_1], n: s32, h: f16, global f8_e4m3 q[8]) {"
    )


def test_element_types_are_definitions() -> None:
    text = "#define T f16\n__co__ void f(global T [M] a, global T [M] b) { b.at(0) = a.at(0); }"
    source = croqtile.load(text, "t.co").sources["f"]
    assert [p.buffer.dtype.name for p in source.build({"T": "bf16"}).arrays] == ["bf16", "bf16"]
    assert [p.buffer.dtype.name for p in source.build().arrays] == ["f16", "f16"]
