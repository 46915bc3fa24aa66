"""Events, roles, futures: pipelines that are right under every schedule, and mistakes that are reported."""

from __future__ import annotations

import numpy as np
import pytest

from tilemma import dtypes
from tilemma.errors import TilemmaError
from tilemma.ir import tile as t
from tilemma.ir.builder import Builder
from tilemma.ir.expr import Expr, binary, cdiv, mod
from tilemma.ir.tile import Kernel
from tilemma.ir.tiles import Tile
from tilemma.ir.types import BLOCK, THREAD, WARPGROUP, Contract, EventRef, Space
from tilemma.targets.cpu import execute
from tilemma.targets.cpu.faults import (
    Deadlock,
    EventCount,
    EventOverrun,
    InFlightRead,
    InFlightSource,
    InFlightWrite,
    LaneDependent,
    SlotOutside,
    UnwaitedCopy,
    UnwaitedMultiply,
    UnwrittenRead,
)

f16, f32 = dtypes.f16, dtypes.f32
M, N, K = 192, 96, 200
TM, TN, TK = 64, 64, 64


def run(kernel: Kernel, seed: int = 0, shape: tuple[int, int, int] = (M, N, K)) -> tuple[np.ndarray, np.ndarray]:
    m, n, k = shape
    rng = np.random.default_rng(1)
    a = rng.integers(-4, 5, (m, k)).astype(np.float16)
    b = rng.integers(-4, 5, (n, k)).astype(np.float16)
    c = np.full((m, n), np.nan, np.float32)
    execute(kernel, {"lhs": a, "rhs": b, "output": c}, {}, dims={"M": m, "N": n, "K": k}, seed=seed)
    return c, a.astype(np.float32) @ b.astype(np.float32).T


def arrays(b: Builder):
    lhs, rhs = b.array_param("lhs", f16, ["M", "K"]), b.array_param("rhs", f16, ["N", "K"])
    output = b.array_param("output", f32, ["M", "N"])
    (m, k), n = lhs.view.base.shape, rhs.view.base.shape[0]
    return lhs, rhs, output, m, n, k


def eq(a: Expr, b: int) -> Expr:
    return binary("eq", a, b)


def slot(buffer, s) -> Tile:
    return Tile(buffer.whole(s))


def specialised(
    stages: int = 2,
    consumers: int = 1,
    *,
    ordered: bool = False,
    ready: bool = True,
    credits: bool = False,
    wait_full: bool = True,
    wait_empty: bool = True,
    release: bool = True,
    after: bool = False,
    lanes: bool = False,
    extra_slot: int = 0,
) -> Kernel:
    """One producer warpgroup, ``consumers`` consumer warpgroups that split M."""
    b = Builder("pipeline")
    lhs, rhs, output, m, n, k = arrays(b)
    rows = TM * consumers
    with b.parallel(["bm", "bn"], [cdiv(m, rows), cdiv(n, TN)], BLOCK) as (bm, bn):
        a_s = b.alloc("a_s", Space.SHARED, f16, [rows, TK], copies=stages)
        b_s = b.alloc("b_s", Space.SHARED, f16, [TN, TK], copies=stages)
        full = b.event("full", stages)
        empty = b.event("empty", stages, ready=ready)

        def ref(e, order) -> EventRef:
            return EventRef(e, order=order) if ordered else EventRef(e, slot=mod(order, stages))

        with b.parallel(["wg"], [1 + consumers], WARPGROUP) as (wg,):
            scope = b.parallel(["t"], [128], THREAD) if lanes else None
            if scope:
                scope.__enter__()
            mc = b.fill("mc", 0.0, f32)
            with b.inthreads(eq(wg.value, 0), asynchronous=True), b.foreach("k", cdiv(k, TK)) as ki:
                s = binary("add", mod(ki.value, stages), extra_slot)
                if wait_empty:
                    b.emit(t.WaitEvent(ref(empty, ki.value)))
                if after:
                    f = b.copy(
                        lhs.subspan([rows, TK], [bm, ki]), slot(a_s, s), engine="tma", asynchronous=True, name="f"
                    )
                    g = b.copy(
                        rhs.subspan([TN, TK], [bn, ki]), slot(b_s, s), engine="tma", asynchronous=True, name="g"
                    )
                    b.emit(t.TriggerEvent(ref(full, ki.value), after=(f.name, g.name)))
                else:
                    e = ref(full, ki.value)
                    b.copy(
                        lhs.subspan([rows, TK], [bm, ki]), slot(a_s, s), engine="tma", asynchronous=True, event=e
                    )
                    b.copy(rhs.subspan([TN, TK], [bn, ki]), slot(b_s, s), engine="tma", asynchronous=True, event=e)
                    b.emit(t.TriggerEvent(e))
            consuming = binary("gt", wg.value, 0)
            with b.inthreads(consuming, asynchronous=True):
                if credits:
                    with b.foreach("s0", stages) as s0:
                        b.emit(t.TriggerEvent(EventRef(empty, slot=s0.value)))
                with b.foreach("kc", cdiv(k, TK)) as kc:
                    s = mod(kc.value, stages)
                    if wait_full:
                        b.emit(t.WaitEvent(ref(full, kc.value)))
                    with b.foreach("kk", TK // 16) as kk:
                        mine = slot(a_s, s).subspan([TM, TK], [binary("sub", wg.value, 1), 0])
                        ma = b.load("ma", mine.chunkat([None, kk]))
                        mb = b.load("mb", slot(b_s, s).chunkat([None, kk]))
                        b.mma(Contract.ROW_ROW, mc, ma, mb)
                    b.emit(t.Commit())
                    if release:
                        b.emit(t.TriggerEvent(ref(empty, kc.value)))
                row = binary("add", binary("mul", bm.value, consumers), binary("sub", wg.value, 1))
                b.store(mc, output.subspan([TM, TN], [row, bn]))
            if scope:
                scope.__exit__(None, None, None)
    return b.finish()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"consumers": 2},
        {"consumers": 3, "ordered": True},
        {"ready": False, "credits": True, "consumers": 2},
        {"after": True},
        {"lanes": True, "consumers": 2},
    ],
    ids=str,
)
def test_warp_specialised_pipeline(options: dict, stages: int, seed: int) -> None:
    got, expected = run(specialised(stages, **options), seed)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"wait_full": False}, (UnwrittenRead, InFlightRead)),
        ({"ready": False}, Deadlock),
        ({"release": False}, Deadlock),
        ({"wait_empty": False, "release": False}, (InFlightRead, InFlightWrite, EventOverrun)),
        ({"wait_empty": False}, (InFlightRead, InFlightWrite, EventOverrun)),
        ({"extra_slot": 1}, (SlotOutside, InFlightRead, UnwrittenRead)),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(3))
def test_broken_pipeline_is_refused(options: dict, error, seed: int) -> None:
    with pytest.raises(error) as caught:
        run(specialised(2, **options), seed)
    assert "\n" in caught.value.render()


def test_deadlock_names_who_waits_for_what() -> None:
    with pytest.raises(Deadlock) as caught:
        run(specialised(2, ready=False))
    message = str(caught.value)
    assert "wg=0 waits for generation 0 of empty[0] (0 of 128 triggers)" in message
    assert "wg=1 waits for generation 0 of full[0]" in message


def test_triggers_that_disagree() -> None:
    b = Builder("f")
    b.array_param("x", f16, [4])
    with b.parallel(["i"], [1], BLOCK):
        e = b.event("e")
        with b.parallel(["w"], [2], WARPGROUP) as (w,):
            b.emit(t.TriggerEvent(EventRef(e)))
            with b.if_(eq(w.value, 0)):
                b.emit(t.TriggerEvent(EventRef(e)))
    with pytest.raises(EventCount, match="128 and 256"):
        execute(b.finish(), {"x": np.zeros(4, np.float16)}, {}, dims={})


def test_explicit_thread_count() -> None:
    b = Builder("f")
    x = b.array_param("x", f32, [4])
    with b.parallel(["i"], [1], BLOCK):
        e = b.event("e", threads=3)
        with b.parallel(["w"], [2], WARPGROUP) as (w,), b.parallel(["t"], [128], THREAD) as (lane,):
            first = b.inthreads(eq(w.value, 0), asynchronous=True)
            with first, b.if_(binary("lt", lane.value, 3)):
                b.emit(t.TriggerEvent(EventRef(e)))
            with b.inthreads(eq(w.value, 1), asynchronous=True):
                b.emit(t.WaitEvent(EventRef(e)))
                with b.if_(binary("lt", lane.value, 4)):
                    b.set_element(x, [lane], 1.0)
    out = np.zeros(4, np.float32)
    execute(b.finish(), {"x": out}, {}, dims={})
    assert out.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("producers", [1, 2])
def test_copies_alone_complete_an_event(producers: int) -> None:
    """No trigger anywhere: a generation is all the copies bound to the event."""
    b = Builder("f")
    x, y = b.array_param("x", f32, [2, 4]), b.array_param("y", f32, [2, 4])
    with b.parallel(["i"], [1], BLOCK):
        e = b.event("e")
        s = Tile.whole(b.alloc("s", Space.SHARED, f32, [2, 4]))
        with b.parallel(["w"], [3], WARPGROUP) as (w,):
            with b.inthreads(binary("lt", w.value, producers), asynchronous=True):
                height = 2 // producers
                mine = [height, 4], [w, 0]
                b.copy(x.subspan(*mine), s.subspan(*mine), engine="tma", asynchronous=True, event=EventRef(e))
            with b.inthreads(eq(w.value, 2), asynchronous=True):
                b.emit(t.WaitEvent(EventRef(e)))
                b.copy(s, y)
    for seed in range(4):
        given, out = np.arange(8, dtype=np.float32).reshape(2, 4), np.zeros((2, 4), np.float32)
        execute(b.finish(), {"x": given, "y": out}, {}, dims={}, seed=seed)
        np.testing.assert_array_equal(out, given)


def double_buffered(*, swap: bool = True, wait: bool = True, futures: int = 2) -> Kernel:
    """cp.async into one buffer while the other is multiplied; handles rotate."""
    b = Builder("double")
    lhs, rhs, output, m, n, k = arrays(b)
    with b.parallel(["bm", "bn"], [cdiv(m, TM), cdiv(n, TN)], BLOCK) as (bm, bn):
        a0 = b.alloc("a0", Space.SHARED, f16, [TM, TK])
        a1 = b.alloc("a1", Space.SHARED, f16, [TM, TK])
        b_s = b.alloc("b_s", Space.SHARED, f16, [TN, TK])
        mc = b.fill("mc", 0.0, f32)
        now = b.copy(lhs.subspan([TM, TK], [bm, 0]), Tile.whole(a0), asynchronous=True, name="now")
        later = b.copy(lhs.subspan([TM, TK], [bm, 1]), Tile.whole(a1), asynchronous=True, name="later")
        steps = cdiv(k, TK)
        with b.foreach("k", steps) as ki:
            if wait:
                b.emit(t.WaitFuture((now.name,)))
            b.copy(rhs.subspan([TN, TK], [bn, ki]), Tile.whole(b_s))
            with b.parallel(["p"], [1], WARPGROUP):
                ma = b.load("ma", now.data)
                mb = b.load("mb", Tile.whole(b_s))
                b.mma(Contract.ROW_ROW, mc, ma, mb)
            b.emit(
                t.Copy(
                    "dma",
                    lhs.subspan([TM, TK], [bm, binary("add", ki.value, 2)]).view,
                    now.data.view,
                    True,
                    None,
                    now.name,
                )
            )
            if swap:
                b.emit(t.SwapFutures((now.name, later.name)))
        b.emit(t.WaitFuture((now.name, later.name)))
        with b.parallel(["p"], [1], WARPGROUP):
            b.store(mc, output.subspan([TM, TN], [bm, bn]))
    return b.finish()


@pytest.mark.parametrize("seed", range(4))
def test_double_buffering_with_swapped_futures(seed: int) -> None:
    got, expected = run(double_buffered(), seed)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("options", [{"wait": False}], ids=str)
def test_broken_double_buffering(options: dict) -> None:
    with pytest.raises(InFlightRead):
        run(double_buffered(**options))


def simple(body) -> TilemmaError | np.ndarray:
    """Run ``body(b, x, shared 8x8 tile)`` in one block of two warpgroups' worth of threads."""
    b = Builder("f")
    x = b.array_param("x", f32, [8, 8])
    with b.parallel(["i"], [1], BLOCK):
        s = Tile.whole(b.alloc("s", Space.SHARED, f32, [8, 8]))
        body(b, x, s)
    out = np.arange(64, dtype=np.float32).reshape(8, 8)
    execute(b.finish(), {"x": out}, {}, dims={})
    return out


def test_copy_never_waited_for() -> None:
    def body(b: Builder, x: Tile, s: Tile) -> None:
        b.copy(x, s, asynchronous=True, name="f")

    with pytest.raises(UnwaitedCopy, match="add `wait f`"):
        simple(body)


@pytest.mark.parametrize("shared", [True, False])
def test_source_overwritten_under_way(shared: bool) -> None:
    def body(b: Builder, x: Tile, s: Tile) -> None:
        b.copy(x, s)
        source, target = (s, x) if shared else (x, s)
        f = b.copy(source, target, asynchronous=True, name="f")
        b.set_element(source, [0, 0], -5.0)
        b.emit(t.WaitFuture((f.name,)))

    with pytest.raises(InFlightSource, match="`s`" if shared else "`x`"):
        simple(body)


@pytest.mark.parametrize("wait", [True, False])
def test_old_data_is_not_read_while_new_data_is_under_way(wait: bool) -> None:
    def body(b: Builder, x: Tile, s: Tile) -> None:
        b.copy(x, s)
        f = b.copy(x, s, asynchronous=True, name="f")
        if wait:
            b.emit(t.WaitFuture((f.name,)))
        b.set_element(x, [0, 0], b.element(s, [1, 1]))
        if not wait:
            b.emit(t.WaitFuture((f.name,)))

    if wait:
        assert simple(body)[0, 0] == 9
    else:
        with pytest.raises(InFlightRead, match="`s`"):
            simple(body)


def test_event_that_runs_ahead_of_its_waiter() -> None:
    def body(b: Builder, x: Tile, s: Tile) -> None:
        e = EventRef(b.event("e"))
        with b.parallel(["w"], [2], WARPGROUP) as (w,):
            with b.inthreads(eq(w.value, 0), asynchronous=True):
                b.emit(t.TriggerEvent(e))
                b.emit(t.TriggerEvent(e))
            with b.inthreads(eq(w.value, 1), asynchronous=True):
                b.emit(t.WaitEvent(e))

    with pytest.raises(EventOverrun, match="completes generation 1 before a waiter"):
        simple(body)


def test_barrier_that_one_sibling_never_reaches() -> None:
    """One waits for an event that the other would trigger behind the barrier of their copies."""

    def body(b: Builder, x: Tile, s: Tile) -> None:
        e = EventRef(b.event("e"))
        with b.parallel(["w"], [2], WARPGROUP) as (w,):
            with b.if_(eq(w.value, 0)):
                b.emit(t.WaitEvent(e))
            b.copy(x.subspan([4, 8], [w, 0]), s.subspan([4, 8], [w, 0]))
            b.copy(s.subspan([4, 8], [w, 0]), x.subspan([4, 8], [w, 0]))
            with b.if_(eq(w.value, 1)):
                b.emit(t.TriggerEvent(e))

    with pytest.raises(Deadlock, match=r"w=0 waits for generation 0 of e .*; .*w=1 waits for a barrier"):
        simple(body)


def test_store_never_waited_for() -> None:
    def body(b: Builder, x: Tile, s: Tile) -> None:
        b.copy(x, s)
        b.set_element(s, [0, 0], -5.0)
        b.copy(s, x, asynchronous=True, engine="tma")

    with pytest.raises(UnwaitedCopy):
        simple(body)


def test_multiply_read_before_its_wait() -> None:
    def body(wait: bool):
        def inner(b: Builder, x: Tile, s: Tile) -> None:
            b.copy(x, s)
            with b.parallel(["p"], [1], WARPGROUP):
                mc = b.fill("mc", 0.0, f32)
                b.mma(Contract.ROW_ROW, mc, s, s, future="m")
                if wait:
                    b.emit(t.WaitFuture(("m",)))
                b.store(mc, x)

        return inner

    with pytest.raises(UnwaitedMultiply, match="`m`"):
        simple(body(False))
    start = np.arange(64, dtype=np.float32).reshape(8, 8)
    np.testing.assert_array_equal(simple(body(True)), start @ start.T)


def test_collective_under_lane_control() -> None:
    def body(b: Builder, x: Tile, s: Tile) -> None:
        b.copy(x, s)
        scope = b.parallel(["t"], [128], THREAD)
        with b.parallel(["w"], [1], WARPGROUP), scope as (lane,), b.if_(binary("lt", lane.value, 5)):
            b.fill("mc", 0.0, f32)

    with pytest.raises(LaneDependent, match="control"):
        simple(body)


def test_collective_in_too_few_lanes() -> None:
    def body(b: Builder, x: Tile, s: Tile) -> None:
        with b.parallel(["w"], [1], WARPGROUP), b.parallel(["t"], [64], THREAD):
            b.fill("mc", 0.0, f32)

    with pytest.raises(LaneDependent, match="64 of 128"):
        simple(body)


@pytest.mark.parametrize("again", ["copy", "element"])
def test_a_destination_written_while_a_copy_into_it_is_under_way(again: str) -> None:
    """Which of the two would stay is not said."""

    def body(b: Builder, x: Tile, s: Tile) -> None:
        f = b.copy(x, s, asynchronous=True, name="f")
        if again == "copy":
            b.copy(x, s)
        else:
            b.set_element(s, [0, 0], 1.0)
        b.emit(t.WaitFuture((f.name,)))

    with pytest.raises(InFlightWrite, match="`s`"):
        simple(body)
