"""Wrong programs for the rules of the passes, those of PTX targets included: rows of `refused`, which see."""

from __future__ import annotations

from refused_text import block, group, thread

OPERANDS = "x = mma.load b; y = mma.load b; m = mma.fill.f32 0.0f; "
PRODUCT = OPERANDS + "mma.row.row m, x, y; "
FRAG = "frag f32[64, 64] m {0.0f}; "
ROWS = "frag f32[64] r {0.0f}; "
USE = " c.at(0, 0) = s.at(0, 0);"


def roles(declare: str, trigger: str, wait: str, around: str = "") -> str:
    """A role that triggers and one that waits."""
    both = f"inthreads.async (g == 0) {{ {trigger} }} inthreads.async (g == 1) {{ {wait} }}"
    return block(f"{declare} {around} parallel g by 2 : group {{ {both} }}")


def tma(declare: str, copy: str) -> str:
    return block(f"shared {declare} s; {copy};{USE}")


def cluster(blocks: str, extent: str = "2", level: str = "cluster-grid") -> str:
    return f"parallel p by {extent} : {level} {{ {blocks} }}"


def names(k: int) -> str:
    """Dimensions of one name are the last of A and the first of B, of tiles [16, k]."""
    loads = f"x = mma.load a.subspan(16, {k}).at(0, 0); y = mma.load b.subspan(16, {k}).at(0, 0);"
    body = group(f"{loads} m = mma.fill.f32 0.0f; mma.row.row m, x, y; mma.store m, c;")
    return f"__co__ void k(global f16 [M, K] a, global f16 [K, N] b, global f32 [16, 16] c) {{ {body} }}"


# fmt: off
CROQTILE = (
    # Clusters.
    cluster("parallel q by 2 : block { c.at(q, 0) = 1.0f; } parallel q by 2 : block { c.at(q, 1) = 1.0f; }"),
    cluster("parallel q by n : block { c.at(q, 0) = 1.0f; }"),
    cluster("parallel q by 9 : block { c.at(q, 0) = 1.0f; }"),
    cluster("parallel q by 17 : block { c.at(q, 0) = 1.0f; }"),
    cluster("parallel q by 0 : block { c.at(q, 0) = 1.0f; }"),
    cluster("parallel q by 16 : block { c.at(q, 0) = 1.0f; }", "n", "cluster-rank"),
    cluster("parallel q by 2 : block { c.at(q, 0) = 1.0f; } parallel q by 2 : block { c.at(q, 1) = 1.0f; }", level="cluster"),
    # Copies by TMA.
    tma("f16 [64, 64]", "tma.copy.swiz<128> b.subspan(64, 32).at(0, 0) => s.subspan(64, 32).at(0, 0)"),
    tma("f16 [64, 64]", "tma.copy.swiz<128> b.view(60, 64).from(0, 0) => s.view(60, 64).from(4, 0)"),
    tma("f16 [64, 96]", "tma.copy.swiz<128> b.subspan(64, 96).at(0, 0) => s"),
    tma("f16 [60, 8]", "tma.copy b.view(60, 4).from(0, 0) => s.view(60, 4).from(0, 0)"),
    tma("f16 [60, 4]", "tma.copy b.view(60, 4).from(0, 0) => s"),
    tma("f32 [64, 8]", "tma.copy c.subspan(8, 64).at(0, 0).span_as(64, 8) => s"),
    tma("f16 [514, 8]", "tma.copy b.view(514, 8).from(0, 0) => s"),
    tma("f32 [2, 512]", "tma.copy c.view(2, 512).from(0, 0) => s"),
    tma("f32 [2, 260]", "tma.copy c.view(2, 260).from(0, 0) => s"),
    tma("f32 [16, 16]", "tma.copy c.view(16, 16).from(0, 1) => s"),
    tma("f32 [64, 64]", "tma.copy c.view(16, 16).from(0, 0) => s.view(16, 16).from(0, 2)"),
    tma("f32 [64, 4]", "tma.copy c.view(8, 4).from(0, 0) => s.view(8, 4).from(1, 0)"),
    tma("f16 [32, 64]", "tma.copy b.subspan(32, 64 : 9, 1).at(0, 0) => s"),
    tma("f16 [32, 32]", "tma.copy b.subspan(32, 32 : 1, 2).at(0, 0) => s"),
    tma("f16 [64, 64]", "tma.copy b => s; tma.copy s.subspan(32, 64 : 2, 1).at(0, 0) => b.subspan(32, 64).at(0, 0)"),
    tma("f16 [64, 64]", "tma.copy b => s; tma.copy s.subspan(32, 64).at(0, 0) => b.subspan(32, 64 : 2, 1).at(0, 0)"),
    tma("f16 [64, 64]", "tma.copy b.view(n, 64).from(0, 0) => s"),
    tma("f16 [64, 64]", "shared f16 [64, 64] t; tma.copy b => s; tma.copy s => t; c.at(0, 1) = t.at(0, 0)"),
    block("local f16 [64, 64] s; tma.copy b => s;" + USE),
    block("f = tma.copy.multicast b => shared; c.at(0, 0) = f.data.at(0, 0);"),
    tma("f16 [64, 64]", "foreach k in 2 { tma.copy.multicast b => s; }"),
    # Multiplies and their operands.
    group(OPERANDS + "mma.row.row.scale m, x, b.subspan(32, 64).at(0, 0), c.subspan(64, 1).at(0, 0), c.subspan(1, 64).at(0, 0);"),
    group("m = mma.fill.f32 0.0f; x = mma.load b; y = mma.load b.subspan(32, 64).at(0, 0); mma.row.row.scale m, x, y, c.subspan(64, 1).at(0, 0), c.subspan(1, 64).at(0, 0);"),
    group("m = mma.fill.f32 0.0f; x = mma.load b.subspan(32, 64).at(0, 0); y = mma.load b; mma.row.row.scale m, x, y, c.subspan(64, 1).at(0, 0), c.subspan(1, 64).at(0, 0);"),
    group(PRODUCT + "m += 1.0f; mma.scale m, 2.0f, 2.0f; mma.store m, c;"),
    group(PRODUCT + "mma.scale m, 2.0f, 2.0f; mma.scale m, 2.0f, 2.0f; mma.store m, c;"),
    group(PRODUCT + "foreach k in 2 { m += 1.0f; mma.scale m, 2.0f, 2.0f; } mma.store m, c;"),
    group("m = mma.fill.f32 0.0f; x = mma.load b.subspan(64, 32).at(0, 0); y = mma.load b; mma.row.row m, x, y; mma.store m, c;"),
    group("m = mma.fill.f32 0.0f; x = mma.load b.subspan(64, 32).at(0, 0); y = mma.load b.subspan(32, 64).at(0, 0); mma.row.row m, x, y; mma.store m, c;"),
    group("m = mma.fill.s32 0; x = mma.load b; y = mma.load b; mma.row.row m, x, y; mma.store m, c;"),
    group("m = mma.fill.f32 0.0f; x = mma.load c; y = mma.load b; mma.row.row m, x, y; mma.store m, c;"),
    group("m = mma.fill.f64 0.0f; x = mma.load b; y = mma.load b; mma.row.row m, x, y; mma.store m, c;"),
    group(PRODUCT + "mma.store m, c.subspan(32, 64).at(0, 0);"),
    group(PRODUCT + "mma.store m, c.span_as(4, 16, 64);"),
    group("frag.f32 m; x = mma.load b; y = mma.load b; mma.row.row m, x, y; mma.store m, c;"),
    group("x = mma.load b; m = mma.fill.f32 0.0f; mma.row.row m, x, x; mma.store m, c;"),
    group("x = mma.load b.view(n, 64).from(0, 0); y = mma.load b; m = mma.fill.f32 0.0f; mma.row.row m, x, y; mma.store m, c;"),
    group("frag f32[64, 64] m[2] {0.0f}; x = mma.load b; y = mma.load b; mma.row.row m[2], x, y; mma.store m[0], c;"),
    group("frag f32[64, 64] m[2] {0.0f}; x = mma.load b; y = mma.load b; foreach k in 3 { mma.row.row m[k], x, y; } mma.store m[0], c;"),
    group("frag f32[64, 64] m[2] {0.0f}; x = mma.load b; y = mma.load b; mma.row.row m[n], x, y; mma.store m[0], c;"),
    block("m = mma.fill.f32 0.0f; mma.store m, c;"),
    block("parallel t by 16 : thread { m = mma.fill.f32 0.0f; mma.store m, c; }"),
    "parallel p by 1 : block { parallel w by 2 : group { m = mma.fill.f32 0.0f; } parallel w by 2 : group { mma.store m, c; } }",
    # Names of dimensions; the contract that is advised fits the tiles.
    names(16), names(32),
    # Register tiles without multiplies.
    group("frag f32[40, 16] t {0.0f}; mma.store t, c.subspan(40, 16).at(0, 0);"),
    group("frag f32[16, 12] t {0.0f}; mma.store t, c.subspan(16, 12).at(0, 0);"),
    block("parallel w by 1 : group-2 { frag f32[16, 16] t {1.0f}; frag f32[16] r {0.0f}; reduce_sum(r, t, 1); mma.store r, c.span_as(4096).subspan(16).at(0); }"),
    block("parallel w by 1 : group-4 { frag f32[48] r {0.0f}; mma.store r, c.span_as(4096).subspan(48).at(0); }"),
    group("frag f32[1024, 1024] t {0.0f}; mma.store t, c;"),
    # Element work.
    group(FRAG + "apply {i, j} in m.span { c.at(i, j) = m.at(i, j); m.at(i, j) = c.at(j, i); }"),
    group(FRAG + "apply {i, j} in m.span { c.at(0, 0) += m.at(i, j); }"),
    group(FRAG + "mutable f32 x = 0.0f; apply {i, j} in m.span { x += m.at(i, j); } c.at(0, 0) = x;"),
    group(FRAG + "local f32 [2] x {0.0f}; apply {i, j} in m.span { x.at(0) += m.at(i, j); } c.at(0, 0) = x.at(0);"),
    group(FRAG + "apply {i, j} in m.span { sync.shared; }"),
    group(FRAG + "apply {i, j} in m.span { dma.copy b => shared; }"),
    group(FRAG + "frag f32[64, 32] q {0.0f}; apply {i, j} in m.span { m.at(i, j) = q.at(i, j); } mma.store m, c;"),
    group(FRAG + ROWS + "apply {i, j} in m.span { r.at(i) = m.at(i, j); } mma.store m, c;"),
    group(FRAG + ROWS + "apply {i, j} in m.span { if (j == 0) { r.at(i) = 1.0f; m.at(i, j) = 2.0f; } } mma.store m, c;"),
    group(FRAG + ROWS + "apply {i, j} in m.span { mutable f32 x = 0.0f; x += 1.0f; r.at(i) = x; } mma.store m, c;"),
    # Copies and their futures.
    block("f = dma.copy.async b => shared; c.at(0, 0) = f.data.at(0, 0); wait f;"),
    block("f = dma.copy.async b => shared;"),
    block("f = dma.copy.async b => shared; if (n > 0) { wait f; } c.at(0, 0) = f.data.at(0, 0);"),
    block("shared f32 [64, 64] s; dma.copy b => s;" + USE),
    block("shared f16 [16, 64] s; dma.copy b => s;" + USE),
    block("shared f16 [64, 64] s; dma.copy.swiz<128> b => s; dma.copy.swiz<64> b => s;" + USE),
    block("shared f16 [64, 40] s; dma.copy.swiz<128> b.subspan(64, 40).at(0, 0) => s;" + USE),
    block("shared f16 [64, 24] s; dma.copy.swiz<64> b.subspan(64, 24).at(0, 0) => s;" + USE),
    block("shared f32 [200, 200] s; shared f32 [160, 160] t; s.at(0, 0) = 1.0f; t.at(0, 0) = s.at(0, 0); c.at(0, 0) = t.at(0, 0) + s.at(0, 1);"),
    block("shared f32 [4] s[2]; foreach i in 3 { s[i].at(0) = 1.0f; }"),
    block("shared f32 [4] s[2]; s[2].at(0) = 1.0f;"),
    block("shared f32 [4, 4] s; s.subspan(4, 4).at(1, 0).at(0, 0) = 1.0f;"),
    # Events.
    block("shared event e; wait e; c.at(0, 0) = 1.0f;"),
    block("shared event e; shared f16 [64, 64] s; tma.copy.async<e> b => s; trigger e;"),
    block("shared event<64> e; parallel w by 2 : group-4 { inthreads.async (w == 0) { trigger e; } inthreads.async (w == 1) { wait e; c.at(0, 0) = 1.0f; } }"),
    roles("shared event e[2];", "foreach i in 2 { trigger e[i]; }", "foreach i in 4 { wait e[i + 1]; }"),
    roles("shared event e[2];", "foreach i in 2 { trigger e[i]; }", "foreach i in 2 { wait e[i - 1]; }"),
    roles("shared event e[2];", "trigger e[0]; trigger e[1];", "mutable int k = 0; foreach i in 4 { wait e[k]; k = k + 1; }"),
    roles("shared event e[3];", "foreach i in n { trigger e.at(i); }", "mutable int k = 1; foreach i in n { wait e[k]; k = (k + 2) % 5; }"),
    roles("shared event e;", "trigger e;", "wait e; parallel t by 32 : thread { wait e; }"),
    roles("shared event e;", "trigger e; parallel t by 16 : thread { trigger e; }", "wait e;"),
    roles("shared event e;", "trigger.cluster e;", "wait e;"),
    roles("", "trigger e;", "wait e;", "foreach i in 2 { shared event e; }"),
    roles("shared event e; shared event f;", "wait f; trigger e;", "wait e; trigger f;"),
    roles("shared event e; shared event f;", "wait f; trigger e; trigger e;", "if (n > 0) { wait e; } wait e; trigger f;"),
    block("foreach i in 2 { shared event e; parallel g by 2 : group { inthreads.async (g == 0) { trigger e; } inthreads.async (g == 1) { wait e; } } }"),
    # Threads, levels and barriers.
    block("shared f32 [64] s; parallel t by 64 : thread { if (t < 40) { s.at(t) = 1.0f; sync.shared; c.at(0, t) = s.at(39 - t); } }"),
    block("parallel t by 64 : thread { if (c.at(0, t) > 0.0f) { sync.shared; c.at(0, t) = 1.0f; } }"),
    "parallel p by 1 : block { parallel t by 2048 : thread { c.at(0, t) = 1.0f; } }",
    "parallel p by 1 : block { parallel g by 40 : group { parallel t by 32 : thread { c.at(g, t) = 1.0f; } } }",
    "parallel p by 1 : block { parallel g by 2 : group { parallel t by 64 : thread { c.at(g, t) = 1.0f; } } }",
    "parallel p by 1 : block { parallel t by n : thread { c.at(0, t) = 1.0f; } }",
    "parallel p by 1 : block { parallel t by 0 : thread { c.at(0, t) = 1.0f; } }",
    "parallel a by 1, b2 by 1, c2 by 1, d by 1 { c.at(0, 0) = 1.0f; }",
    block("shared f32 [64] s; parallel t by 64 : thread { foreach k in [t] { s.at(t) = 1.0f; c.at(0, t) = s.at(63 - t); } }"),
    block("mutable int v = 0; parallel t by 32 : thread { v = t; } c.at(0, 0) = v;"),
    block("mutable int v = 0; foreach k in 2 { c.at(0, k) = v; parallel t by 32 : thread { v = t; } }"),
    block("mutable int v = 0; mutable int i = 0; while (i < 3) { c.at(0, i) = v; i += 1; parallel t by 32 : thread { v = t; } }"),
    thread("mutable int v = 0; foreach k in 3 { v += k; parallel u by 2 : thread { v = u; } } c.at(i, 0) = v;"),
)
# fmt: on
