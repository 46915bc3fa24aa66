"""Constructs that the hardware cannot execute or check: refused at their line, with the rule."""

from __future__ import annotations

import pytest
from pipeline_runs import from_co
from test_forms import AFTER, AFTER_DMA, HEAD, LHS, ONE, ONE_SLOT, OUT, RHS, RING, SYNCHRONOUS

from tilemma.compiler import compile_kernel
from tilemma.errors import CompileError
from tilemma.ir.tile import ArrayFacts
from tilemma.passes import FRONT_PASSES


def refused(text: str, arch: str = "sm_90a") -> CompileError:
    with pytest.raises(CompileError) as e:
        _ = compile_kernel(from_co(text), arch).ptx
    assert e.value.span is not None
    return e.value


def program(body: str, buffers: str = RING) -> str:
    return HEAD + buffers + body + "  }\n}\n"


def line_of(error: CompileError, text: str) -> str:
    assert error.span is not None
    return text.splitlines()[error.span.line - 1].strip()


def counter(following: str) -> str:
    """The consumer counts slots by itself."""
    text = AFTER.replace("mc = mma.fill.f32 0.0f;", "mc = mma.fill.f32 0.0f; mutable int i = 0;")
    return text.replace("wait full.at(k);", f"wait full[i]; i = {following};")


EVENTS = [
    ("nobody triggers", AFTER.replace("trigger empty.at(k);", ""), "event-never-triggered", "wait empty.at(k);"),
    ("no credits", AFTER.replace("empty[STAGES] = ready", "empty[STAGES]"), "event-stuck", "wait empty.at(k);"),
    ("beyond the ring", AFTER.replace("wait full.at(k)", "wait full[k]"), "event-slot", "wait full[k];"),
    ("slot 2 of 2", AFTER.replace("wait full.at(k)", "wait full[2]"), "index-out-of-range", "wait full[2];"),
    ("before the ring", AFTER.replace("wait full.at(k)", "wait full[k % STAGES - 1]"), "event-slot", "wait full["),
    ("wraps too late", counter("i == STAGES ? 0 : i + 1"), "event-slot", "wait full[i];"),
    ("counts down", counter("i - 1"), "event-slot", "wait full[i];"),
    (
        "one slot of two is given back",
        AFTER.replace("trigger empty.at(k)", "trigger empty[0]"),
        "event-never-triggered",
        "wait empty.at(k);",
    ),
    ("no subscript", AFTER.replace("wait full.at(k)", "wait full"), "wrong-value", "wait full;"),
    (
        "credits of slots that are ready",
        AFTER.replace("parallel p by 2 : group-4 {", "parallel p by 2 : group-4 {\n trigger empty[0];"),
        "event-ahead",
        "shared event",
    ),
    (
        "other counts",
        AFTER.replace(
            "mc = mma.fill.f32 0.0f;", "mc = mma.fill.f32 0.0f; parallel w by 2 : group { trigger empty[0]; }"
        ),
        "event-count",
        "trigger empty.at(k);",
    ),
    (
        "in a loop",
        "foreach i in 2 { shared event e; parallel p by 1 : group-4 { trigger e; wait e; } }",
        "event-place",
        "foreach i in 2 { shared event e; parallel p by 1 : group-4 { trigger e; wait e; } }",
    ),
    (
        "outside the block",
        "} parallel c by 1 : cluster { shared event e; parallel b by 1 : block {"
        " parallel p by 1 : group-4 { wait e; } }",
        "event-place",
        "} parallel c by 1 : cluster { shared event e;",
    ),
    (
        "too many threads counted",
        "shared event<256> e; parallel p by 1 : group-4 { trigger e; wait e; }",
        "event-threads",
        "shared event<256> e; parallel p by 1 : group-4 { trigger e; wait e; }",
    ),
]


def refused_everywhere(text: str) -> CompileError:
    """The refusal by the front ends or by the passes that precede every target."""
    with pytest.raises(CompileError) as e:
        kernel = from_co(text)
        for step in FRONT_PASSES:
            kernel = step.run(kernel, [])
    return e.value


@pytest.mark.parametrize(("body", "code", "line"), [e[1:] for e in EVENTS], ids=[e[0] for e in EVENTS])
def test_events(body, code, line):
    text = program(body)
    # The reference finds an event that is ahead of its waiters in the run itself.
    for error in [refused(text), *([] if code == "event-ahead" else [refused_everywhere(text)])]:
        assert error.code == code
        assert line in line_of(error, text)


@pytest.mark.parametrize("following", ["i == STAGES - 1 ? 0 : i + 1", "(i + 1) % STAGES", "1 - i"])
def test_slots_counted_rightly(following):
    assert compile_kernel(from_co(program(counter(following))), "sm_90a").ptx


def test_a_loop_that_ends_with_the_slots():
    credits = "mutable int i = 0; while (i < STAGES) { trigger empty[i]; i += 1; }"
    text = AFTER.replace("empty[STAGES] = ready", "empty[STAGES]").replace("0.0f;", "0.0f; " + credits)
    assert compile_kernel(from_co(program(text)), "sm_90a").ptx


def test_an_event_that_nothing_triggers():
    text = program(AFTER.replace("trigger empty.at(k);", "").replace("empty[STAGES] = ready", "empty[STAGES]"))
    assert refused_everywhere(text).code in ("event-never-triggered", "event-stuck")
    alone = program("shared event e; parallel p by 1 : group-4 { wait e; }")
    assert refused_everywhere(alone).code == "event-never-triggered"


def test_a_copy_that_is_waited_for_too_late():
    body = f"""
    shared event full;
    mc = mma.fill.f32 0.0f;
    foreach k in cdiv(K, TILE_K) {{
      tma.copy.async<full> {LHS} => a;
      tma.copy {RHS} => b;
      trigger full;
      parallel p by 1 : group-4 {{ mma.row.row mc, a, b; }}
      wait full;
    }}
    parallel p by 1 : group-4 {{ mma.store mc, {OUT}; }}
"""
    text = program(body, ONE)
    error = refused(text)
    assert error.code == "copy-not-waited-for"
    assert "mma.row.row" in line_of(error, text)


@pytest.mark.parametrize("engine", ["dma", "tma"])
def test_a_future_that_is_waited_for_too_late(engine):
    body = f"""
    mc = mma.fill.f32 0.0f;
    dma.copy {RHS.replace("k)", "0)")} => b;
    foreach k in cdiv(K, TILE_K) {{
      f = {engine}.copy.async {LHS} => a;
      parallel p by 1 : group-4 {{ mma.row.row mc, a, b; }}
      wait f;
    }}
    parallel p by 1 : group-4 {{ mma.store mc, {OUT}; }}
"""
    text = program(body, ONE)
    error = refused(text)
    assert error.code == "copy-not-waited-for"
    assert "future `f`" in str(error)
    assert "mma.row.row" in line_of(error, text)


@pytest.mark.parametrize(
    "waits",
    [
        "if (block_m == 1) { wait f; }\n wait f;",
        "parallel p by 1 : group { wait f; }\n wait f;",
        "foreach i in 2 {\n wait f; }",
    ],
)
def test_a_load_that_is_waited_for_twice(waits):
    text = program(f"f = tma.copy.async {LHS.replace('k)', '0)')} => a;\n {waits}\n", ONE)
    error = refused(text)
    assert error.code == "future-waited-for-twice"
    assert line_of(error, text).startswith("wait f;")
    compile_kernel(from_co(text.replace("tma.copy", "dma.copy")), "sm_80")


def test_loads_that_nobody_waits_for():
    unbound = "    f = tma.copy.async lhs.subspan(TILE_M, TILE_K).at(block_m, 0) => a;\n"
    assert refused(program(unbound, ONE)).code == "future-never-waited-for"
    bound = "    shared event e;\n    tma.copy.async<e> lhs.subspan(TILE_M, TILE_K).at(block_m, 0) => a;\n"
    assert refused_everywhere(program(bound, ONE)).code == "event-never-waited-for"


def test_a_wait_at_two_levels():
    waits = "parallel p by 1 : group-4 { wait e; parallel w by 4 : group { wait e; } }"
    text = program(f"shared event e; parallel p by 1 : group-4 {{ trigger e; }} {waits}")
    assert refused_everywhere(text).code == "event-waiters"


def test_branches_that_are_never_taken_are_not_checked():
    never = "if (STAGES > 8) { parallel p by 1 : group-4 { wait empty[K]; } }"
    assert compile_kernel(from_co(program(AFTER + never)), "sm_90a").ptx


def test_a_future_that_nobody_waits_for():
    text = program(SYNCHRONOUS.replace("tma.copy", "dma.copy.async", 1).replace("tma.copy", "dma.copy"), ONE)
    assert refused(text).code == "future-never-waited-for"


def test_an_accumulator_read_before_its_wait():
    body = ONE_SLOT.replace("mma.row.row mc", "f = mma.row.row.async mc")
    assert refused(program(body, ONE)).code == "accumulator-not-awaited"
    unread = body.replace(f"mma.store mc, {OUT};", "")
    assert refused(program(unread, ONE)).code == "multiply-never-awaited"


def test_a_swizzle_that_writer_and_reader_do_not_share():
    text = program(AFTER.replace("swiz<128>", "swiz<64>", 1).replace("mma.row.row mc, a[k % STAGES]",
        "ma = mma.load.swiz<128> a[k % STAGES];\n          mma.row.row mc, ma"))  # fmt: skip
    assert refused(text).code == "swizzle-conflict"


TMA = [
    ("both in shared memory", "tma.copy a => b;", ONE, "a parameter on one side"),
    (
        "rows too long",
        "tma.copy lhs.subspan(8, 264).at(block_m, block_n) => s;",
        "shared f16 [8, 264] s;",
        "at most 256",
    ),
    (
        "rows too short",
        "tma.copy lhs.subspan(8, 4).at(block_m, block_n) => s;",
        "shared f16 [8, 4] s;",
        "16 bytes",
    ),
    ("extents at run time", "tma.copy lhs.modspan(64, 64).at(block_m, block_n) => a;", ONE, "known extents"),
    ("steps", "tma.copy lhs.subspan(64, 64 : 9, 1).at(block_m, block_n) => a;", ONE, "steps of 1 to 8"),
]


@pytest.mark.parametrize(("body", "buffers", "rule"), [e[1:] for e in TMA], ids=[e[0] for e in TMA])
def test_tma(body, buffers, rule):
    use = "parallel p by 1 : group-4 { }"
    error = refused(program(body + use, buffers))
    assert error.code == "tma-refused"
    assert rule in str(error)


@pytest.mark.parametrize("facts", [ArrayFacts(1, 8), ArrayFacts(None, 16)], ids=["alignment", "strides"])
def test_tma_needs_aligned_rows(facts):
    kernel = from_co(program(SYNCHRONOUS, ONE))
    with pytest.raises(CompileError) as e:
        compile_kernel(kernel, "sm_90a", {"lhs": facts})
    assert e.value.code == "tma-refused"
    assert "use `dma" in str(e.value)
    text = program(SYNCHRONOUS.replace("tma.copy", "dma.copy"), ONE)
    compile_kernel(from_co(text), "sm_90a", {"lhs": facts})


def test_tma_needs_hopper():
    assert refused(program(SYNCHRONOUS, ONE), "sm_80").code == "tma-refused"
    compile_kernel(from_co(program(AFTER_DMA)), "sm_80")


CLUSTER = HEAD.replace(": block {", ": cluster-grid { parallel r by 2 : block {")


def cluster(body: str, count: str = "2") -> str:
    return CLUSTER.replace("parallel r by 2", f"parallel r by {count}") + ONE + body + "  } }\n}\n"


def test_clusters():
    assert refused(cluster(SYNCHRONOUS), "sm_80").code in ("cluster-refused", "tma-refused")
    assert refused(cluster(SYNCHRONOUS, "16")).code == "cluster-refused"
    assert refused(cluster(SYNCHRONOUS, "cdiv(K, 64)")).code == "cluster-refused"
    outside = program(SYNCHRONOUS.replace("tma.copy", "tma.copy.multicast", 1), ONE)
    assert refused(outside).code == "multicast-outside-cluster"
    alone = program("shared event e; parallel p by 1 : group-4 { trigger.cluster e; wait e; }")
    assert refused(alone).code == "trigger-outside-cluster"
    uneven = cluster(SYNCHRONOUS.replace("tma.copy", "tma.copy.multicast", 1), "3")
    assert refused(uneven).code == "tma-refused"


def test_shared_memory_that_no_staging_saves():
    text = program(AFTER).replace("STAGES 2", "STAGES 16")
    assert refused(text).code == "shared-memory-limit"


def test_swapping_what_is_swizzled_differently():
    body = """
    fa = dma.copy.async.swiz<128> lhs.subspan(TILE_M, TILE_K).at(block_m, 0) => shared;
    fb = dma.copy.async.swiz<64> lhs.subspan(TILE_M, TILE_K).at(block_m, 1) => shared;
    wait fa, fb;
    swap(fa, fb);
"""
    text = program(body, "")
    error = refused(text)
    assert error.code == "swizzle-conflict"
    assert "swiz<64>" in line_of(error, text)
    compile_kernel(from_co(text.replace("<64>", "<128>")), "sm_80")


def test_swapping_what_is_not_alike():
    body = """
    fa = dma.copy.async lhs.subspan(TILE_M, TILE_K).at(block_m, 0) => shared;
    fb = dma.copy.async rhs.subspan(32, TILE_K).at(block_n, 0) => shared;
    wait fa, fb;
    swap(fa, fb);
"""
    assert refused(program(body, "")).code == "swap-refused"


@pytest.mark.parametrize("engine", ["dma", "tma"])
def test_stores_do_not_change_places(engine):
    body = f"""
    foreach i in 2 {{
      fa = {engine}.copy.async a => {OUT.replace("block_m", "0")};
      fb = {engine}.copy.async b => {OUT.replace("block_m", "1")};
      wait fa, fb;
      swap(fa, fb);
    }}
"""
    error = refused(program(body, ONE))
    assert error.code == "swap-refused"
    assert "`fa` cannot" in str(error) and "not in shared memory" in str(error)
