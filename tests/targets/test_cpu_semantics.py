"""The semantics of scalars, lanes and whole kernels: one small kernel each."""

from __future__ import annotations

import numpy as np
import pytest
from one_block import block, f32, kernel_of, ramp, run, s32

from tilemma import dtypes
from tilemma.ir import expr as e
from tilemma.ir import tile as t
from tilemma.ir.builder import Builder
from tilemma.ir.expr import Const, Var, binary, cdiv, const, mul
from tilemma.ir.tiles import Bounded, Tile
from tilemma.ir.types import BLOCK, GROUP, THREAD, WARPGROUP, Buffer, Contract, Level, Space
from tilemma.targets.cpu import execute
from tilemma.targets.cpu.faults import (
    ArgumentMisfit,
    AssertionFailed,
    VariableDiverged,
    ViewOutside,
    WriteConflict,
)


def test_scalar_matmul_in_threads() -> None:
    def body(b: Builder, x: Tile, y: Tile, z: Tile, lane: Bounded) -> None:
        i, j = binary("floordiv", lane.value, 4), binary("mod", lane.value, 4)
        total = b.declare("total", 0.0)
        with b.foreach("k", 5) as k:
            product = binary("mul", b.element(x, [i, k]), b.element(y, [j, k]))
            b.assign(total, binary("add", total, product))
        b.set_element(z, [i, j], total)

    x, y = ramp(3, 5), ramp(4, 5)
    got = run(body, lanes=12, x=x, y=y, z=np.zeros((3, 4), np.float32))["z"]
    np.testing.assert_array_equal(got, x @ y.T)


def test_divergent_control() -> None:
    """Each lane runs its own number of turns, skips some, leaves early, as plain Python would."""

    def body(b: Builder, y: Tile, lane: Bounded) -> None:
        n = b.declare("n", 0)
        with b.foreach("k", 16, stop=lane.value) as k:
            with b.if_(binary("eq", binary("mod", k.value, 3), 1)):
                b.emit(t.Continue())
            with b.if_(binary("land", binary("gt", n, 12), binary("eq", k.value, 8))):
                b.emit(t.Break())
            with b.if_(binary("lt", k.value, 4)):
                b.assign(n, e.add(n, k.value))
            with b.else_():
                b.assign(n, e.add(n, 5))
        w = b.declare("w", lane.value)
        with b.while_(binary("gt", w, 1)):
            b.assign(w, binary("sub", w, 2))
            b.assign(n, e.add(n, 100))
        b.set_element(y, [lane], n)

    got = run(body, lanes=16, y=np.zeros(16, np.int32))["y"]
    expected = []
    for lane in range(16):
        n = 0
        for k in range(lane):
            if k % 3 == 1:
                continue
            if n > 12 and k == 8:
                break
            n += k if k < 4 else 5
        w = lane
        while w > 1:
            w -= 2
            n += 100
        expected.append(n)
    assert got.tolist() == expected


def test_break_and_continue_at_block_scope() -> None:
    def body(b: Builder, y: Tile) -> None:
        n = b.declare("n", 0)
        with b.foreach("k", 10) as k:
            with b.if_(binary("eq", k.value, 2)):
                b.emit(t.Continue())
            with b.if_(binary("eq", k.value, 5)):
                b.emit(t.Break())
            b.assign(n, e.add(mul(n, 10), k.value))
        with b.while_(binary("lt", n, 10**6)):
            b.assign(n, mul(n, 10))
        b.set_element(y, [0], n)

    assert run(body, y=np.zeros(1, np.int32))["y"] == 1340000


def test_local_buffers_are_private_to_lanes() -> None:
    def body(b: Builder, x: Tile, y: Tile, lane: Bounded) -> None:
        mine = Tile.whole(b.alloc("mine", Space.LOCAL, f32, [2]))
        b.copy(x.subspan([2], [lane]), mine)
        b.set_element(y, [lane], binary("sub", b.element(mine, [1]), b.element(mine, [0])))

    x = np.array([1, 5, 2, 8, 3, 4], np.float32)
    assert run(body, lanes=3, x=x, y=np.zeros(3, np.float32))["y"].tolist() == [4, 6, 1]


@pytest.mark.parametrize("level", [THREAD, GROUP], ids=str)
def test_local_buffers_of_the_block_are_found_again_by_equal_levels(level: Level) -> None:
    def body(b: Builder, y: Tile) -> None:
        mine = Tile.whole(b.alloc("mine", Space.LOCAL, s32, [1]))
        b.set_element(mine, [0], 1)
        for _ in range(2):
            with b.parallel(["t"], [4], level) as (lane,):
                b.set_element(mine, [0], e.add(b.element(mine, [0]), lane.value))
        with b.parallel(["t"], [4], level) as (lane,):
            b.set_element(y, [lane], b.element(mine, [0]))
            b.set_element(mine, [0], 0)

    assert run(body, y=np.zeros(4, np.int32))["y"].tolist() == [1, 3, 5, 7]


@pytest.mark.parametrize(
    ("name", "expected"), [("add", 16), ("max", 6), ("min", 0), ("sub", 4), ("xor", 10 ^ 2 ^ 4 ^ 6)]
)
def test_atomics_in_lanes(name: str, expected: int) -> None:
    def body(b: Builder, x: Tile, y: Tile, lane: Bounded) -> None:
        old = b.declare("old", 0)
        b.emit(t.Atomic(name, x.element([0]), mul(lane.value, 2), result=old))
        b.set_element(y, [lane], old)

    start = {"add": 4, "max": 1, "min": 9, "sub": 16, "xor": 10}[name]
    got = run(body, lanes=4, x=np.array([start], np.int32), y=np.zeros(4, np.int32))
    assert got["x"] == expected
    assert got["y"][0] == start


def test_compare_and_swap() -> None:
    def body(b: Builder, x: Tile) -> None:
        b.emit(t.Atomic("cas", x.element([0]), const(9), compare=const(4)))
        b.emit(t.Atomic("cas", x.element([1]), const(9), compare=const(4)))
        b.emit(t.Atomic("exch", x.element([2]), const(9)))

    assert run(body, x=np.array([4, 5, 6], np.int32))["x"].tolist() == [9, 5, 9]


def test_lanes_that_write_different_values_to_one_place() -> None:
    with pytest.raises(WriteConflict):
        run(lambda b, y, lane: b.set_element(y, [0], lane.value), lanes=2, y=np.zeros(1, np.int32))
    same = run(lambda b, y, lane: b.set_element(y, [0], mul(lane.value, 0)), lanes=2, y=np.ones(1, np.int32))
    assert same["y"] == 0


@pytest.mark.parametrize("differ", [True, False])
@pytest.mark.parametrize("kind", ["copy", "store", "element"])
@pytest.mark.parametrize("read", [True, False])
def test_instances_that_write_to_one_place(kind: str, differ: bool, read: bool) -> None:
    def body(b: Builder, x: Tile, y: Tile) -> None:
        s = Tile.whole(b.alloc("s", Space.SHARED, f32, [1, 2]))
        with b.parallel(["w"], [2], GROUP) as (w,), b.foreach("k", 2) as k:
            row = e.add(mul(k.value, 2), w.value if differ else 0)
            if kind == "copy":
                b.copy(x.subspan([1, 2], [row, 0]), s)
            elif kind == "store":
                b.store(b.load("mc", x.subspan([1, 2], [row, 0])), s)
            else:
                b.set_element(s, [0, 0], b.element(x, [row, 0]))
                b.set_element(s, [0, 1], 1.0)
            if read:
                b.copy(s, y)
        b.copy(s, y)

    arrays = {"x": ramp(4, 2), "y": np.zeros((1, 2), np.float32)}
    if differ:
        with pytest.raises(WriteConflict, match="instances"):
            run(body, **arrays)
    else:
        assert run(body, **arrays)["y"][0, 0] == 5


def test_copies_in_lanes_of_several_groups() -> None:
    """Uniform ones happen once for the group, others lane by lane; the groups still meet."""

    def body(b: Builder, x: Tile, y: Tile) -> None:
        s = Tile.whole(b.alloc("s", Space.SHARED, f32, [2, 32]))
        with b.parallel(["w"], [2], GROUP) as (w,), b.parallel(["t"], [32], THREAD) as (lane,):
            b.copy(x.subspan([1, 32], [w, 0]), s.subspan([1, 32], [w, 0]))
            b.copy(s.subspan([1, 1], [e.sub(1, w.value), lane]), y.subspan([1, 1], [w, lane]))
            b.copy(x.subspan([1, 1], [e.sub(1, w.value), lane]), s.subspan([1, 1], [w, lane]))
            b.set_element(y, [w, lane], e.add(b.element(y, [w, lane]), b.element(s, [e.sub(1, w.value), lane])))

    x = ramp(2, 32)
    got = run(body, x=x, y=np.zeros((2, 32), np.float32))["y"]
    np.testing.assert_array_equal(got, x[::-1] + x)


def test_elements_outside_parameters() -> None:
    def body(b: Builder, x: Tile, y: Tile, lane: Bounded) -> None:
        moved = e.sub(lane.value, 1)
        b.set_element(y, [lane], b.element(x, [moved]))
        b.set_element(y, [e.add(lane.value, 3)], 9.0)

    got = run(body, lanes=4, x=ramp(2), y=np.zeros(4, np.float32))["y"]
    assert got.tolist() == [0, 1, 2, 9]


def test_elements_outside_shared_memory_are_refused() -> None:
    def body(b: Builder, y: Tile, lane: Bounded) -> None:
        s = Tile.whole(b.alloc("s", Space.SHARED, f32, [2], init=0.0))
        b.set_element(y, [lane], b.element(s, [lane]))

    with pytest.raises(ViewOutside, match="index 2 of 2"):
        run(body, lanes=3, y=ramp(3))


def test_collective_statements_inside_lanes() -> None:
    """The tutorial's `parallel wg by 2 : group-4, t by 128 : thread`."""

    def body(b: Builder, x: Tile, z: Tile) -> None:
        with b.parallel(["wg"], [2], WARPGROUP) as (wg,), b.parallel(["t"], [128], THREAD) as (lane,):
            mc = b.fill("mc", 0.0, f32)
            n = b.declare("n", 0)
            with b.foreach("k", 3):
                b.mma(Contract.ROW_ROW, mc, x, x)
                b.assign(n, e.add(n, 1))
            b.store(mc, z.subspan([1, 1], [wg, 0]))
            with b.if_(binary("eq", lane.value, 5)):
                b.set_element(z, [wg, 1], n)

    x = np.array([[2]], np.float16)
    assert run(body, x=x, z=np.zeros((2, 2), np.float32))["z"].tolist() == [[12, 3], [12, 3]]


def test_variables_must_not_diverge() -> None:
    def body(value):
        def inner(b: Builder, y: Tile) -> None:
            n = b.declare("n", 0)
            with b.parallel(["p"], [2], GROUP) as (p,):
                b.assign(n, value(p))
            b.set_element(y, [0], n)

        return inner

    with pytest.raises(VariableDiverged, match="`n`"):
        run(body(lambda p: p.value), y=ramp(1, dtype=np.int32))
    assert run(body(lambda p: const(4)), y=ramp(1, dtype=np.int32))["y"] == 4


def test_prints() -> None:
    def body(b: Builder, y: Tile, lane: Bounded) -> None:
        with b.if_(binary("gt", lane.value, 0)):
            b.emit(t.Print(("lane ", lane.value, ": ", b.element(y, [lane])), True))

    lines: list[str] = []
    run(body, lanes=3, out=lines.append, y=np.array([0, 1.5, 1e30], np.float32))
    assert lines == ["lane 1: 1.5\n", "lane 2: 1.00000002e+30\n"]


@pytest.mark.parametrize("lanes", [0, 3])
def test_assertions(lanes: int) -> None:
    def body(limit: int):
        def inner(b: Builder, y: Tile, lane: Bounded | None = None) -> None:
            value = Const(2) if lane is None else lane.value
            b.emit(t.Assert(binary("lt", value, limit), "too large"))

        return inner

    run(body(3), lanes=lanes, y=ramp(1))
    with pytest.raises(AssertionFailed, match="too large"):
        run(body(2), lanes=lanes, y=ramp(1))


def test_levels_are_inferred_and_launches_follow_one_another() -> None:
    b = Builder("f")
    x = b.array_param("x", s32, ["N"])
    n = x.view.base.shape[0]
    for step in (1, 10):
        with b.parallel(["i"], [cdiv(n, 4)]) as (i,), b.parallel(["j"], [4]) as (j,):
            at = i.compose(j)
            b.set_element(x, [at], e.add(b.element(x, [at]), mul(at.value, step)))
    out = np.zeros(6, np.int32)
    execute(b.finish(), {"x": out}, {}, dims={"N": 6})
    assert out.tolist() == [0, 11, 22, 33, 44, 55]


def test_scalar_parameters_and_returned_buffers() -> None:
    b = Builder("f")
    x = b.array_param("x", f32, ["N"])
    alpha = b.scalar_param("alpha", f32)
    y = Buffer("y", f32, x.view.base.shape, Space.GLOBAL)
    b.returns = y
    with b.parallel(["i"], [x.view.base.shape[0]], BLOCK) as (i,):
        b.set_element(Tile.whole(y), [i], binary("mul", alpha, b.element(x, [i])))
    out = np.zeros(3, np.float32)
    execute(b.finish(), {"x": ramp(3), "y": out}, {"alpha": 0.1}, dims={"N": 3})
    np.testing.assert_array_equal(out, np.float32(0.1) * ramp(3))


def test_a_dimension_may_be_called_like_an_index() -> None:
    b = Builder("f")
    x = b.array_param("x", s32, ["k"])
    with b.parallel(["i"], [1], BLOCK), b.foreach("k", x.view.base.shape[0]) as k:
        b.set_element(x, [k], e.add(k.value, x.view.base.shape[0]))
    out = np.zeros(3, np.int32)
    execute(b.finish(), {"x": out}, {}, dims={"k": 3})
    assert out.tolist() == [3, 4, 5]


@pytest.mark.parametrize(
    "arrays", [{}, {"x": ramp(3)}, {"x": ramp(2, dtype=np.float64)}], ids=["missing", "shape", "type"]
)
def test_arguments_that_do_not_fit(arrays) -> None:
    kernel = kernel_of(lambda b, x: None, x=ramp(2))
    with pytest.raises(ArgumentMisfit, match="`f`"):
        execute(kernel, arrays, {}, dims={})


def test_index_arithmetic_wraps_at_32_bits() -> None:
    b = Builder("f")
    x = b.array_param("x", dtypes.s64, [1])
    with block(b):
        v = b.declare("v", 2**31 - 1)
        b.set_element(x, [0], e.Cast(binary("add", v, 1), dtypes.s64))
    out = np.zeros(1, np.int64)
    execute(b.finish(), {"x": out}, {}, dims={})
    assert out[0] == -(2**31)
    assert isinstance(v, Var)
