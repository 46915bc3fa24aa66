"""What hardware cannot check in a pipeline is refused in both languages: by name, at the line, with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilemma as tm
from tilemma import (
    cdiv,
    croqtile,
    dma,
    event,
    foreach,
    if_,
    inthreads,
    mma,
    parallel,
    shared,
    swap,
    tma,
    trigger,
    var,
    wait,
)
from tilemma.errors import CompileError
from tilemma.ir.tile import ArrayFacts
from tilemma.kernels import Kernel

CO = """\
__co__ void pipeline(global f16 [M, K] a, global f16 [N, K] b, global f32 [M, N] c) {
  parallel i by cdiv(M, 64) : block {
    shared event full[2];
    shared event empty[2] = ready;
    shared f16 [64, 64] a_s[2];
    shared f16 [64, 64] b_s[2];
    parallel p by 2 : group-4 {
      inthreads.async (p == 0) {
        foreach k in cdiv(K, 64) {
          wait empty.at(k);
          tma.copy.async<full.at(k)>.swiz<128> a.subspan(64, 64).at(i, k) => a_s[k % 2];
          tma.copy.async<full.at(k)> b.subspan(64, 64).at(0, k) => b_s[k % 2];
          trigger full.at(k);
        }
      }
      inthreads.async (p == 1) {
        mc = mma.fill.f32 0.0f;
        mutable int n = 0;
        foreach k in cdiv(K, 64) {
          wait full.at(k);
          ma = mma.load a_s[k % 2];
          mma.row.row mc, ma, b_s[k % 2];
          trigger empty.at(k);
        }
        mma.store mc, c.subspan(64, 64).at(i, 0);
      }
    }
  }
}
"""


@tm.kernel
def pipeline(
    a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], c: tm.Global["f32", "M", "N"], *, FAULT=""
):
    (M, K) = a.shape
    for i in parallel(cdiv(M, 64), level="block"):
        full = event(2)
        empty = event(2, ready=FAULT != "credits", threads={"threads": 256, "more": 96}.get(FAULT))
        a_s, b_s = shared("f16", 64, 64, copies=2), shared("f16", 64, 64, copies=2)
        for p in parallel(2, level="group-4"):
            if FAULT == "counts":
                trigger(empty[0])
            with inthreads(p == 0, async_=True):
                for k in foreach(cdiv(K, 64)):
                    wait(empty.at(k))
                    tma.copy(a.subspan(64, 64).at(i, k), a_s[k % 2], async_=full.at(k), swizzle=128)
                    tma.copy(b.subspan(64, 64).at(0, k), b_s[k % 2], async_=full.at(k))
                    trigger(full.at(k))
            with inthreads(p == 1, async_=True):
                mc = mma.fill(0.0, "f32")
                n = var(0)
                for k in foreach(cdiv(K, 64)):
                    if FAULT == "slot":
                        wait(full[k])
                    elif FAULT == "counter":
                        wait(full[n])
                        n += 1
                    elif FAULT != "ignored":
                        wait(full.at(k))
                    ma = mma.load(a_s[k % 2], swizzle=64 if FAULT == "swizzle" else None)
                    if FAULT == "accumulator":
                        f = mma.row.row(mc, ma, b_s[k % 2], async_=True)
                    elif FAULT == "perhaps":
                        f = mma.row.row(mc, ma, b_s[k % 2], async_=True)
                        with if_(M > 8):
                            wait(f)
                    else:
                        mma.row.row(mc, ma, b_s[k % 2])
                    if FAULT != "untriggered":
                        trigger(empty.at(k))
                mma.store(mc, c.subspan(64, 64).at(i, 0))


# fault, (text of the .co file, what stands there instead), code, the line in Croqtile and in Python, the message.
EVENTS = [
    ("credits", ("empty[2] = ready", "empty[2]"), "event-stuck", "wait empty.at(k)", "wait(empty.at(k))", "can pass this wait"),
    ("untriggered", ("          trigger empty.at(k);\n", ""), "event-never-triggered", "wait empty", "wait(empty", "nothing"),
    ("slot", ("wait full.at(k)", "wait full[k]"), "event-slot", "wait full[k]", "wait(full[k])", "of 2"),
    ("counter", ("wait full.at(k);", "wait full[n]; n = n + 1;"), "event-slot", "wait full[n]", "wait(full[n])", "of 2"),
    ("ignored", ("          wait full.at(k);\n", ""), "event-never-waited-for", "tma.copy.async", "tma.copy(", "nothing waits"),
    (
        "threads",
        ("shared event empty[2]", "shared event<256> empty[2]"),
        "event-threads",
        "trigger empty",
        "trigger(empty",
        "256 threads",
    ),
    (
        "counts",
        ("      inthreads.async (p == 0)", "      trigger empty[0];\n      inthreads.async (p == 0)"),
        "event-ahead",
        "shared event empty",
        "empty = event(",
        "before a waiter",
    ),
    (
        "accumulator",
        ("mma.row.row mc, ma", "f = mma.row.row.async mc, ma"),
        "accumulator-not-awaited",
        "mma.store mc",
        "mma.store(mc",
        "`mc`",
    ),
    (
        "more",
        ("shared event empty[2]", "shared event<96> empty[2]"),
        "event-threads",
        "trigger empty",
        "trigger(empty",
        "counts 96 threads, and 128 trigger it",
    ),
    (
        "perhaps",
        ("mma.row.row mc, ma, b_s[k % 2];", "f = mma.row.row.async mc, ma, b_s[k % 2]; if (M > 8) { wait f; }"),
        "accumulator-not-awaited",
        "mma.store mc",
        "mma.store(mc",
        "`mc`",
    ),
    (
        "swizzle",
        ("ma = mma.load a_s", "ma = mma.load.swiz<64> a_s"),
        "swizzle-conflict",
        "swiz<",
        "swizzle=",
        "swizzle",
    ),
]  # fmt: skip


def refused(kernel: Kernel, text: str, **constants: str) -> tuple[CompileError, str]:
    """(the error, the source line it points at)."""
    with pytest.raises(CompileError) as e:
        _ = kernel.compile("sm_90a", **constants).ptx
    assert e.value.span is not None and e.value.remedy
    return e.value, text.splitlines()[e.value.span.line - 1]


def from_text(text: str) -> Kernel:
    (source,) = croqtile.load(text, "pipeline.co", {}).sources.values()
    return Kernel(source)


PYTHON = Path(__file__).read_text(encoding="utf-8")


def test_the_pipeline_itself_compiles() -> None:
    assert pipeline.compile("sm_90a").ptx
    assert from_text(CO).compile("sm_90a").ptx


@pytest.mark.parametrize(("fault", "change", "code", "co", "py", "message"), EVENTS, ids=[e[0] for e in EVENTS])
def test_refused(fault: str, change: tuple[str, str], code: str, co: str, py: str, message: str) -> None:
    assert change[0] in CO
    text = CO.replace(*change)
    error, line = refused(from_text(text), text)
    assert (error.code, co in line, message in str(error)) == (code, True, True), (str(error), line)
    error, line = refused(pipeline, PYTHON, FAULT=fault)
    assert (error.code, py in line, message in str(error)) == (code, True, True), (str(error), line)


@tm.kernel
def copies(a: tm.Global["f16", "M", "N"], c: tm.Global["f16", "M", "N"], *, FAULT=""):
    for i in parallel(1, level="block"):
        if FAULT == "long":
            s = shared("f16", 8, 264)
            tma.copy(a.subspan(8, 264).at(i, 0), s)
        elif FAULT == "short":
            s = shared("f16", 8, 4)
            tma.copy(a.subspan(8, 4).at(i, 0), s)
        elif FAULT == "steps":
            s = shared("f16", 8, 64)
            tma.copy(a.subspan(8, 64, strides=(9, 1)).at(i, 0), s)
        elif FAULT == "unawaited":
            s = shared("f16", 8, 64)
            f = dma.copy(a.subspan(8, 64).at(i, 0), s, async_=True)
        elif FAULT == "early":
            s = shared("f16", 8, 64)
            f = tma.copy(a.subspan(8, 64).at(i, 0), s, async_=True)
            dma.copy(s, c.subspan(8, 64).at(i, 0))
            wait(f)
        elif FAULT == "last":
            f = dma.copy(a.subspan(8, 64).at(i, 0), to="shared", async_=True)
            for k in foreach(cdiv(a.shape[0], 8), start=1):
                wait(f)
                dma.copy(f.data, c.subspan(8, 64).at(k, 0))
                g = dma.copy(a.subspan(8, 64).at(k, 0), to="shared", async_=True)
                swap(f, g)
        elif FAULT == "way":
            s = shared("f16", 8, 64)
            f = tma.copy(a.subspan(8, 64).at(i, 0), s, async_=True)
            with if_(a.shape[0] > 8):
                wait(f)
        elif FAULT == "place":
            s = shared("f16", 8, 64)
            f = tma.copy(a.subspan(8, 64).at(i, 0), s, async_=True)
            g = tma.copy(a.subspan(8, 64).at(i, 1), s, async_=True)
            wait(f, g)
        elif FAULT == "overwritten":
            s = shared("f16", 8, 64)
            f = dma.copy(a.subspan(8, 64).at(i, 0), s, async_=True)
            dma.copy(a.subspan(8, 64).at(i, 1), s)
            wait(f)
        elif FAULT == "hint":
            s = shared("f16", 8, 64)
            dma.copy(a.subspan(8, 64).at(i, 0), s, evict="first")
        else:
            s = shared("f16", 8, 64)
            tma.copy(a.subspan(8, 64).at(i, 0), s)


TMA = "    shared f16 [8, 64] s;\n    tma.copy a.subspan(8, 64).at(i, 0) => s;\n"
COPIES = [
    ("long", TMA.replace("64", "264"), "tma-refused", "264", "264", "at most 256"),
    ("short", TMA.replace("64", "4"), "tma-refused", "subspan(8, 4)", "subspan(8, 4)", "16 bytes"),
    ("steps", TMA.replace("(8, 64)", "(8, 64 : 9, 1)"), "tma-refused", "64 : 9, 1", "(9, 1)", "skips elements"),
    (
        "unawaited",
        TMA.replace("tma.copy a", "f = dma.copy.async a"),
        "future-never-waited-for",
        "dma.copy.async",
        "dma.copy(",
        "nothing waits for this asynchronous copy",
    ),
    (
        "early",
        TMA.replace("tma.copy a", "f = tma.copy.async a") + "    dma.copy s => c.subspan(8, 64).at(i, 0);\n    wait f;\n",
        "copy-not-waited-for",
        "dma.copy s",
        "dma.copy(s",
        "may still be under way",
    ),
    (
        "last",
        """
    f = dma.copy.async a.subspan(8, 64).at(i, 0) => shared;
    with k in cdiv(M, 8) { foreach k(1:) {
      wait f;
      dma.copy f.data => c.subspan(8, 64).at(k, 0);
      g = dma.copy.async a.subspan(8, 64).at(k, 0) => shared;
      swap(f, g);
    } }
""",
        "future-never-waited-for",
        "at(k, 0) => shared",
        'at(k, 0), to="shared"',
        "the last of these asynchronous copies",
    ),
    (
        "way",
        TMA.replace("tma.copy a", "f = tma.copy.async a") + "    if (M > 8) { wait f; }\n",
        "future-never-waited-for",
        "tma.copy.async",
        "tma.copy(",
        "where the `if` around its `wait` is not taken",
    ),
    (
        "place",
        TMA.replace("tma.copy a", "f = tma.copy.async a")
        + "    g = tma.copy.async a.subspan(8, 64).at(i, 1) => s;\n    wait f, g;\n",
        "copy-not-waited-for",
        "at(i, 1)",
        "at(i, 1)",
        "write `wait",
    ),
    (
        "overwritten",
        TMA.replace("tma.copy a", "f = dma.copy.async a")
        + "    dma.copy a.subspan(8, 64).at(i, 1) => s;\n    wait f;\n",
        "copy-not-waited-for",
        "at(i, 1)",
        "at(i, 1)",
        "write `wait",
    ),
    ("hint", TMA.replace("tma.copy", "dma.copy.evict_first"), "copy-option", "dma.copy", "dma.copy", "`tma.copy`"),
]  # fmt: skip


def around(body: str) -> str:
    head = "__co__ void copies(global f16 [M, N] a, global f16 [M, N] c) {\n  parallel i by 1 : block {\n"
    return head + body + "  }\n}\n"


@pytest.mark.parametrize(("fault", "body", "code", "co", "py", "message"), COPIES, ids=[e[0] for e in COPIES])
def test_copies_refused(fault: str, body: str, code: str, co: str, py: str, message: str) -> None:
    text = around(body)
    error, line = refused(from_text(text), text)
    assert (error.code, co in line, message in str(error)) == (code, True, True), (str(error), line)
    error, line = refused(copies, PYTHON, FAULT=fault)
    assert (error.code, py in line, message in str(error)) == (code, True, True), (str(error), line)


@pytest.mark.parametrize("facts", [ArrayFacts(1, 8), ArrayFacts(None, 16)], ids=["base", "stride"])
def test_arrays_that_the_copy_engine_cannot_take(facts: ArrayFacts) -> None:
    for kernel, text in ((from_text(around(TMA)), around(TMA)), (copies, PYTHON)):
        with pytest.raises(CompileError) as e:
            kernel.compile("sm_90a", facts={"a": facts})
        assert e.value.code == "tma-refused" and "use `dma" in str(e.value)
        assert e.value.span is not None and "tma.copy" in text.splitlines()[e.value.span.line - 1]
