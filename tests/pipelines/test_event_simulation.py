"""Event deadlocks are found at compile time; kernels whose events complete are accepted."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from configurations import CONFIGURATIONS, EXAMPLES
from pipeline_runs import from_co

from dev.gallery import ENTRIES, FOLDER
from tilemma.compiler import compile_kernel
from tilemma.errors import CompileError
from tilemma.ir.parser import parse_kernel
from tilemma.ir.tile import Kernel
from tilemma.ir.usage import waits_for_events
from tilemma.modules import load, load_python
from tilemma.targets.cpu import execute
from tilemma.targets.cpu.control_slice import Unknown, control_slice
from tilemma.targets.cpu.event_simulation import EventSimulation, simulate_events

FILES = sorted(
    p for p in EXAMPLES.rglob("*.*") if p.suffix in (".co", ".py") and p.parent.name not in ("notebooks", "ptx")
)


def kernels(path) -> list[Kernel]:
    module = load(path) if path.suffix == ".co" else load_python(path)
    sizes = ENTRIES[path.stem].example if path.parent == FOLDER else None
    return [k.build(sizes=sizes) for k in module.kernels.values()]


# Examples whose events, or whose legal extents, the arguments of a call decide.
DECIDED_BY_A_CALL = {
    "attention",
    "attention_roles",
    "convolution",
    "dequantized",
    "experts",
    "scan",
    "sparse",
    "w4a16",
}


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_examples_come_to_their_end(path):
    for kernel in kernels(path):
        found = simulate_events(kernel)
        if path.stem in DECIDED_BY_A_CALL:
            assert found.shapes or found.reason
            continue
        assert found.shapes and not found.reason
        assert len(found.shapes) == 2 or not waits_for_events(kernel)


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_configured_examples_come_to_their_end(configuration):
    for language in configuration.languages:
        kernel = configuration.kernel(language).build(**configuration.constants(language))
        assert len(simulate_events(kernel).shapes) == 2


def python(text: str) -> Kernel:
    """The only kernel of a Python text."""
    file = "<simulated>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"__name__": "simulated"}
    exec(compile(text, file, "exec"), scope)
    return next(x for x in scope.values() if hasattr(x, "build")).build()


@dataclass(frozen=True)
class Fault:
    """``change``: what becomes of which lines of examples/co/persistent.co and of examples/py/persistent.py, by
    occurrence; the line that is refused begins like ``line`` in both."""

    name: str
    code: str
    co: tuple[tuple[str, str], ...]
    py: tuple[tuple[str, str], ...]
    line: tuple[str, str]


CREDITS = ("            trigger.cluster empty[i];", "                        trigger(empty[i], cluster=True)")
RELEASE = (
    "              trigger.cluster empty[slot];",
    "                            trigger(empty[slot], cluster=True)",
)
FILLED = ("              trigger full[slot];", "                            trigger(full[slot])")
WAIT_EMPTY = ("              wait empty[slot];", "                            wait(empty[slot])")
WAIT_FULL = ("              wait full[slot];", "                            wait(full[slot])")
CONSUMED = (
    RELEASE[0] + "\n              slot = slot == STAGES - 1 ? 0 : slot + 1;",
    RELEASE[1] + "\n                            slot.set(select(slot == STAGES - 1, 0, slot + 1))",
)


def line(statement: tuple[str, str]) -> tuple[str, str]:
    return statement[0].strip(), statement[1].strip()


def instead(fault: str, code: str, statement: tuple[str, str], co: str, py: str, at: tuple[str, str]) -> Fault:
    """``co`` and ``py`` (lines of it) in the place of the statement."""
    indent = statement[1][: len(statement[1]) - len(statement[1].lstrip())]
    lines = "\n".join(indent + x for x in py.split("\n"))
    return Fault(fault, code, ((statement[0], co),), ((statement[1], lines),), at)


def twice(fault: str, code: str, statement: tuple[str, str], at: tuple[str, str]) -> Fault:
    co, py = line(statement)
    return instead(fault, code, statement, f"{statement[0]} {co}", f"{py}\n{py}", at)


def only_if(fault: str, code: str, condition: str, statement: tuple[str, str], at: tuple[str, str]) -> Fault:
    co, py = line(statement)
    return instead(fault, code, statement, f"if ({condition}) {{ {co} }}", f"with if_({condition}):\n    {py}", at)


STUCK, AHEAD, BEYOND = "event-deadlock", "event-ahead", "copy-beyond"
FIRST, PY_FIRST = "foreach i in STAGES {", "for i in foreach(STAGES):"
STEPS, PY_STEPS = "foreach k in STEPS {\n", "for k in foreach(steps):\n"
FILL = ("            mc = mma.fill.f32 0.0f;", '                        mc = mma.fill(0.0, "f32")')
FREE, FULL = line(WAIT_EMPTY), line(WAIT_FULL)
FAULTS = [
    Fault(
        "credits for one slot less", STUCK,
        ((FIRST, "foreach i in STAGES - 1 {"),), ((PY_FIRST, "for i in foreach(STAGES - 1):"),), FREE,
    ),
    Fault(
        "credits for the first slot alone", STUCK,
        ((FIRST, "foreach i in 1 {"),), ((PY_FIRST, "for i in foreach(1):"),), FREE,
    ),
    twice("credits twice", AHEAD, CREDITS, FREE),
    only_if("no credits", STUCK, "K < 0", CREDITS, FREE),
    only_if("released every second turn", STUCK, "k % 2 == 0", RELEASE, FREE),
    only_if("never released", STUCK, "M < 0", RELEASE, FREE),
    only_if("never filled", STUCK, "K < 0", FILLED, FULL),
    only_if("not filled once", STUCK, "k != 3", FILLED, FULL),
    instead(
        "another slot released", AHEAD, RELEASE,
        "trigger.cluster empty[STAGES - 1 - slot];", "trigger(empty[STAGES - 1 - slot], cluster=True)",
        ("shared event empty[STAGES];", "empty = event(STAGES)"),
    ),
    instead("another slot filled", AHEAD, FILLED, "trigger full[slot % 2];", "trigger(full[slot % 2])", FULL),
    twice("released twice", AHEAD, RELEASE, FREE),
    twice("waited twice", STUCK, WAIT_FULL, FULL),
    only_if("overwritten unasked", AHEAD, "K < 0", WAIT_EMPTY, FULL),
    only_if("read unasked", AHEAD, "k % 2 == 1", WAIT_FULL, ("if (k % 2 == 1) {", FULL[1])),
    instead(
        "wraps too late", BEYOND, CONSUMED,
        RELEASE[0] + " slot = slot + 1; if (slot > STAGES) { slot = 0; }",
        "trigger(empty[slot], cluster=True)\nslot += 1\nwith if_(slot > STAGES):\n    slot.set(0)",
        FULL,
    ),
    Fault(
        "a buffer beyond its copies", BEYOND,
        (("=> rhs_s[slot];", "=> rhs_s[slot + 1];"),), (("rhs_s[slot],", "rhs_s[slot + 1],"),),
        ("tma.copy.async<full[slot]>.multicast", "tma.copy("),
    ),
    Fault(
        "one step less is read", STUCK,
        ((STEPS + WAIT_FULL[0], "foreach k in STEPS - 1 {\n" + WAIT_FULL[0]),),
        ((PY_STEPS + WAIT_FULL[1], "for k in foreach(steps - 1):\n" + WAIT_FULL[1]),),
        FREE,
    ),
    Fault(
        "one step less is written", STUCK,
        ((STEPS + WAIT_EMPTY[0], "foreach k in STEPS - 1 {\n" + WAIT_EMPTY[0]),),
        ((PY_STEPS + WAIT_EMPTY[1], "for k in foreach(steps - 1):\n" + WAIT_EMPTY[1]),),
        FULL,
    ),
    instead(
        "each tile starts at slot 0", STUCK, FILL,
        FILL[0] + " slot = 0;", 'mc = mma.fill(0.0, "f32")\nslot.set(0)', FREE,
    ),
]  # fmt: skip


def broken(fault: Fault, language: str) -> str:
    text = (
        (EXAMPLES / language / f"persistent.{language}").read_text().replace("cdiv, event,", "cdiv, event, if_,")
    )
    for old, new in fault.co if language == "co" else fault.py:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("language", ["co", "py"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_faults_are_refused_where_they_are(fault, language):
    text = broken(fault, language)
    with pytest.raises(CompileError) as e:
        simulate_events(from_co(text) if language == "co" else python(text))
    error = e.value
    assert error.code == fault.code
    assert error.span is not None
    assert text.splitlines()[error.span.line - 1].strip().startswith(fault.line[language == "py"])
    assert "with M = " in error.message and "K = " in error.message
    assert error.expectation and error.remedy
    assert len(error.notes) >= (fault.code != "copy-beyond")


# ---- no false alarms ----------------------------------------------------------------------------------------


RING = """
__co__ void k(global f16 [M, K] lhs, global f16 [N, K] rhs, global f16 [M, N] output,
    global s32 [T] table, int n) {
  parallel {i, j} by [cdiv(M, 64), cdiv(N, 64)] : block {
    shared event full[2];
    shared event empty[2] = ready;
    shared f16 [64, 64] a_s[2];
    shared f16 [64, 64] b_s[2];
    PROLOGUE
    parallel p by 2 : group-4 {
      inthreads.async (p == 0) {
        foreach k in STEPS {
          wait empty[k % 2];
          tma.copy.async<full[k % 2]> lhs.subspan(64, 64).at(i, k) => a_s[k % 2];
          tma.copy.async<full[k % 2]> rhs.subspan(64, 64).at(j, k) => b_s[k % 2];
          trigger full[k % 2];
        }
      }
      inthreads.async (p == 1) {
        mc = mma.fill.f32 0.0f;
        mutable int seen = 0;
        foreach k in STEPS {
          wait full[k % 2];
          mma.row.row mc, a_s[k % 2], b_s[k % 2];
          mma.commit;
          COUNT
          RELEASE
        }
        mma.store mc, output.subspan(64, 64).at(i, j);
      }
    }
  }
}
"""


GIVE = "trigger empty[k % 2];"


def ring(
    steps: str = "cdiv(K, 64)", prologue: str = "", count: str = "", release: str = GIVE, text: str = RING
) -> Kernel:
    text = text.replace("STEPS", steps).replace("PROLOGUE", prologue).replace("COUNT", count)
    return from_co(text.replace("RELEASE", release))


def test_the_ring_of_the_guards_is_simulated():
    assert "simulated for M = 16" in str(simulate_events(ring()))
    with pytest.raises(CompileError, match="no thread can continue"):
        simulate_events(ring(release="if (k < 3) { trigger empty[k % 2]; }"))


@pytest.mark.parametrize(
    ("kernel", "who"),
    [
        (lambda: ring("n"), "the parameter `n` decides"),
        (lambda: ring("table.at(i)"), "elements of `table` decide"),
        (lambda: ring(prologue="mutable int s = table.at(0);", steps="s"), "elements of `table` decide"),
        (lambda: ring(release="if (table.at(k) > 0) { trigger empty[k % 2]; }"), "elements of `table` decide"),
        (lambda: ring(prologue="mutable int s = 0; if (table.at(0) > 0) s = 1;", release="trigger empty[s];"),
         "elements of `table` decide"),
        (lambda: ring(prologue="mutable int s = 0; while (s < n) { s = s + 1; }", release="trigger empty[s % 2];"),
         "the parameter `n` decides"),
        (lambda: ring(count="if (table.at(k) < 0) { break; }"), "elements of `table` decide"),
        (lambda: ring(prologue="while (table.at(0) == 0) { }"), "elements of `table` decide"),
        (lambda: ring(count="foreach r in 99 { if (table.at(k) == 1) { break; } }"), "elements of `table` decide"),
    ],
)  # fmt: skip
def test_what_data_decides_is_not_simulated(kernel, who):
    found = simulate_events(kernel())
    assert found.shapes == () and found.reason == f"{who} the waits"
    assert found.span is not None and str(found).startswith("not simulated: ")


@pytest.mark.parametrize(
    "kernel",
    [
        lambda: ring(count="seen = seen + table.at(k);"),
        lambda: ring(count="if (table.at(k) > n) { seen = seen + 1; }"),
        lambda: ring(prologue="mutable int s = 0; foreach r in n { s = s / 2; }"),
    ],
)
def test_data_that_decides_nothing_is_left_out(kernel):
    assert len(simulate_events(kernel()).shapes) == 2


def test_a_subscript_that_data_decide_is_not_looked_at():
    assert len(simulate_events(ring(text=RING.replace("a_s[k % 2], b_s", "a_s[n], b_s"))).shapes) == 2


def test_shapes_that_assertions_refuse_are_left_out():
    def asserted(condition: str) -> EventSimulation:
        block = "parallel {i, j} by"
        text = RING.replace(block, f'assert({condition}, "as it should be"); {block}')
        return simulate_events(ring("K / 64", text=text))

    assert {s["K"] for s in asserted("K % 128 == 0").shapes} == {512}
    assert [s["M"] for s in asserted("M == K && K == N").shapes] == [512]
    assert "as it should be" in str(asserted("K % 60000 == 1"))


MEETINGS = {
    "a barrier": "inthreads.async (p == 0) { trigger e; } inthreads.async (p == 1) { wait e; } sync.shared;",
    "roles that meet": "inthreads (p == 0) { trigger e; } inthreads (p == 1) { wait e; }",
    "a copy of all": "inthreads.async (p == 0) { trigger e; } inthreads.async (p == 1) { wait e; } "
    "dma.copy x.subspan(4, 4).at(k, 0) => s;",
    "the end of a role": "inthreads.async (p == 0) { trigger e; } inthreads.async (p == 1) { wait e; } "
    "inthreads (p == 0) { y.at(0, 0) = 1.0f; }",
    "nothing": "inthreads.async (p == 0) { trigger e; } inthreads.async (p == 1) { wait e; }",
}


@pytest.mark.parametrize("how", MEETINGS)
def test_who_meets_does_not_run_ahead(how):
    kernel = from_co(f"""
__co__ void k(global f32 [M, 4] x, global f32 [M, 4] y) {{
  parallel i by 1 : block {{
    shared event e;
    shared f32 [4, 4] s;
    parallel p by 2 : group {{
      foreach k in cdiv(M, 4) {{ {MEETINGS[how]} }}
    }}
  }}
}}
""")
    if how == "nothing":
        with pytest.raises(CompileError, match="completes") as e:
            simulate_events(kernel)
        assert e.value.code == AHEAD
        return
    assert len(simulate_events(kernel).shapes) == 2
    x = np.zeros((12, 4), np.float32)
    execute(kernel, {"x": x, "y": x.copy()}, {}, dims={"M": 12})


def test_a_subscript_by_a_loop_of_its_own_is_looked_at():
    with pytest.raises(CompileError) as e:
        simulate_events(ring(count="foreach c in 3 { ma = mma.load a_s[c]; }"))
    assert e.value.code == BEYOND and "slot 2 of `a_s`" in e.value.message
    assert simulate_events(ring(count="foreach c in 2 { ma = mma.load a_s[c]; }")).shapes


def test_too_many_iterations_end_the_simulation():
    assert "loop iterations" in simulate_events(ring("cdiv(K, 64) * 1000000")).reason


def test_a_kernel_without_waits_is_not_simulated():
    compiled = load(EXAMPLES / "co" / "matmul_wgmma.co").only().compile()
    assert "simulated" not in compiled.explain().render()


def test_the_simulation_is_part_of_the_plan():
    plan = load(EXAMPLES / "co" / "tma_pipeline.co").only().compile().explain()
    assert "\n  events simulated for M = 16, K = " in plan.render()
    (decision,) = [d for d in plan.decisions if d.pass_name == "event simulation"]
    assert len(decision.data["shapes"]) == 2 and not decision.data["reason"]
    data = compile_kernel(ring("n"), "sm_90a").explain()
    assert "events not simulated: the parameter `n` decides the waits" in data.render()


def test_nothing_is_compiled_whose_events_come_to_nothing():
    kernel = ring(release="if (k < 3) { trigger empty[k % 2]; }")
    with pytest.raises(CompileError, match="no thread can continue") as e:
        _ = compile_kernel(kernel, "sm_90a").ptx
    assert e.value.code == STUCK


@pytest.mark.parametrize("loop", ["foreach k in 8 {", "mutable int k = 0; while (k < 2) {"])
def test_fixed_sizes_are_simulated_once(loop):
    text = RING.replace("foreach k in STEPS {", loop).replace("[M, K]", "[64, 512]").replace("[N, K]", "[64, 512]")
    text = text.replace("[M, N]", "[64, 64]").replace("[T]", "[4]").replace("[cdiv(M, 64), cdiv(N, 64)]", "[1, 1]")
    on = " k = k + 1;" if "while" in loop else ""
    text = text.replace("trigger full[k % 2];", f"trigger full[k % 2];{on}")
    found = simulate_events(ring(text=text, release=GIVE + on))
    assert found.shapes == ({},) and str(found) == "simulated for its fixed shape: no deadlock"
    with pytest.raises(CompileError, match="with its fixed shape, no thread can continue"):
        simulate_events(
            ring(text=text.replace("wait full[k % 2];", "wait full[k % 2]; wait full[k % 2];"), release=GIVE + on)
        )


def test_a_loop_by_its_condition_turns_often_enough():
    text = RING.replace("foreach k in STEPS {", "mutable int k = 0; while (k * 64 < K) {")
    text = text.replace("trigger full[k % 2];", "trigger full[k % 2]; k = k + 1;")
    assert max(s["K"] for s in simulate_events(ring(release=f"{GIVE} k = k + 1;", text=text)).shapes) > 4 * 64
    with pytest.raises(CompileError, match="no thread can continue"):
        simulate_events(ring(release=f"if (k != 2) {{ {GIVE} }} k = k + 1;", text=text))


BALLOT = """
kernel k(global s32 a[4]) {
  parallel (b: 1) : block {
    event e {arrivals = 32}
    parallel (t: 32) : thread {
      var x: u32 = 0
      exchange.ballot x: u32, t
      if x != 0 {
        trigger e
      }
      wait e
    }
  }
}
"""


def test_values_of_other_lanes_that_decide_waits_are_not_known():
    """The slice has no lanes: it would take the variable's first value, and find a deadlock that is none."""
    with pytest.raises(Unknown, match="`x`, a value of other lanes, decides"):
        control_slice(parse_kernel(BALLOT))
