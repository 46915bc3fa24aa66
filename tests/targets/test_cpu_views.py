"""The semantics of copies and views, and of unwritten storage: one small kernel each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_block import block, f32, kernel_of, ramp, run, s32

from tests.sampling import examples
from tilemma.ir import expr as e
from tilemma.ir import tile as t
from tilemma.ir.builder import Builder
from tilemma.ir.expr import Const, binary, const, mul
from tilemma.ir.tiles import Bounded, Tile
from tilemma.ir.types import BLOCK, GROUP, Axis, Space, View
from tilemma.targets.cpu import execute
from tilemma.targets.cpu.faults import (
    CopyMisfit,
    SlotOutside,
    TileMismatch,
    UnwrittenRead,
    ViewOutside,
)


@settings(deadline=None, max_examples=examples(150))
@given(st.data())
def test_views_of_parameters_clip(data: st.DataObject) -> None:
    """Any offset, extent, step and order of axes: zero outside on load, dropped on store."""
    rank = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.integers(1, 5)) for _ in range(rank))
    offsets = [data.draw(st.integers(-7, 7)) for _ in range(rank)]
    dims = data.draw(st.permutations(range(rank)))[: data.draw(st.integers(1, rank))]
    axes = [(d, data.draw(st.integers(0, 5)), data.draw(st.integers(1, 3))) for d in dims]
    extents = [n for _, n, _ in axes]
    source = ramp(*shape)
    target, back = np.full(extents, np.nan, np.float32), np.zeros(shape, np.float32)

    def body(b: Builder, x: Tile, y: Tile, z: Tile) -> None:
        def cut(base: Tile) -> Tile:
            cuts = tuple(Axis(d, const(n), const(s)) for d, n, s in axes)
            return Tile(View(base.view.base, tuple(const(o) for o in offsets), cuts))

        b.copy(cut(x), y)
        b.copy(y, cut(z))

    run(body, x=source, y=target, z=back)
    expected, returned = np.zeros(extents, np.float32), np.zeros(shape, np.float32)
    for i in np.ndindex(*extents):
        at = list(offsets)
        for (d, _, s), k in zip(axes, i, strict=True):
            at[d] += k * s
        if all(0 <= c < n for c, n in zip(at, shape, strict=True)):
            expected[i] = source[tuple(at)]
            returned[tuple(at)] = source[tuple(at)]
    np.testing.assert_array_equal(target, expected)
    np.testing.assert_array_equal(back, returned)


@pytest.mark.parametrize("dims", [(0, 1, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_axes_in_any_order(dims: tuple[int, ...]) -> None:
    shape = (2, 3, 4)

    def body(b: Builder, x: Tile, y: Tile, z: Tile) -> None:
        def turned(base: Tile) -> Tile:
            axes = tuple(Axis(d, const(shape[d])) for d in dims)
            return Tile(View(base.view.base, (const(0),) * 3, axes))

        b.copy(turned(x), y)
        b.copy(y, turned(z))

    x = ramp(*shape)
    got = run(body, x=x, y=np.zeros([shape[d] for d in dims], np.float32), z=np.zeros(shape, np.float32))
    np.testing.assert_array_equal(got["y"], x.transpose(dims))
    np.testing.assert_array_equal(got["z"], x)


@pytest.mark.parametrize(("offset", "extent", "step"), [(-1, 2, 1), (3, 2, 1), (0, 3, 2), (4, 1, 1)])
def test_views_of_shared_memory_must_fit(offset: int, extent: int, step: int) -> None:
    def body(b: Builder, x: Tile, v: Tile) -> None:
        s = b.alloc("s", Space.SHARED, f32, [4], init=0.0)
        o = b.declare("o", offset)
        b.copy(Tile(View(s, (o,), (Axis(0, const(extent), const(step)),))), x)

    with pytest.raises(ViewOutside, match="`s`"):
        run(body, x=ramp(extent), v=ramp(1))


def test_slots_must_exist() -> None:
    def body(b: Builder, x: Tile) -> None:
        s = b.alloc("s", Space.SHARED, f32, [4], copies=2)
        b.copy(x, Tile(s.whole(b.declare("slot", 2))))

    with pytest.raises(SlotOutside, match="slot 2 of `s`, which has 2"):
        run(body, x=ramp(4))


def test_arrays_of_tiles_are_separate() -> None:
    def body(b: Builder, x: Tile, y: Tile) -> None:
        s = b.alloc("s", Space.SHARED, f32, [3], copies=2)
        for i in (0, 1):
            b.copy(x.subspan([3], [i]), Tile(s.whole(const(i))))
        for i in (0, 1):
            b.copy(Tile(s.whole(const(1 - i))), y.subspan([3], [i]))

    assert run(body, x=ramp(6), y=np.zeros(6, np.float32))["y"].tolist() == [4, 5, 6, 1, 2, 3]


def test_span_as_reads_row_major() -> None:
    def body(b: Builder, x: Tile, y: Tile) -> None:
        s = Tile.whole(b.alloc("s", Space.SHARED, f32, [3, 4]))
        b.copy(x.span_as([3, 4]), s)
        b.copy(s.span_as([2, 6]).subspan([2, 3], [0, 1]), y)

    got = run(body, x=ramp(12), y=np.zeros((2, 3), np.float32))["y"]
    np.testing.assert_array_equal(got, ramp(12).reshape(2, 6)[:, 3:])


def test_span_as_of_strided_arrays() -> None:
    """The order of the elements counts, not how they lie in memory."""
    kernel = kernel_of(lambda b, x, y: b.copy(x.span_as([8]), y.span_as([8])), x=ramp(2, 4), y=ramp(4, 2))
    source, target = ramp(4, 4)[::2], np.zeros((2, 4), np.float32).T
    execute(kernel, {"x": source, "y": target}, {}, dims={})
    np.testing.assert_array_equal(target, source.reshape(4, 2))


def test_span_as_of_another_size_is_refused() -> None:
    b = Builder("f")
    x, y = b.array_param("x", f32, ["M", 4]), b.array_param("y", f32, [8])
    with block(b):
        b.copy(x.span_as([8]), y)
    with pytest.raises(TileMismatch, match="number of elements"):
        execute(b.finish(), {"x": ramp(3, 4), "y": ramp(8)}, {}, dims={"M": 3})


def test_strided_arrays() -> None:
    kernel = kernel_of(lambda b, x, y: b.copy(x, y), x=ramp(2, 4), y=ramp(2, 4))
    source, target = ramp(4, 8)[::-2, ::2], np.zeros((4, 2), np.float32).T
    execute(kernel, {"x": source, "y": target}, {}, dims={})
    np.testing.assert_array_equal(target, source)


def test_transposing_and_padding_copies() -> None:
    def body(b: Builder, x: Tile, y: Tile, z: Tile) -> None:
        b.copy(x, y, transpose=(1, 0))
        b.copy(x, z, pad=((1, 0, 0), (0, 2, 1)), pad_value=Const(-1.0, f32))

    got = run(body, x=ramp(2, 3), y=np.zeros((3, 2), np.float32), z=np.zeros((3, 7), np.float32))
    np.testing.assert_array_equal(got["y"], ramp(2, 3).T)
    expected = np.full((3, 7), -1, np.float32)
    expected[1:, 0:5:2] = ramp(2, 3)
    np.testing.assert_array_equal(got["z"], expected)


def test_smaller_run_time_views() -> None:
    """The rest of the buffer is zero on the way in, what is beyond is dropped on the way out."""

    def body(b: Builder, x: Tile, y: Tile) -> None:
        s = Tile.whole(b.alloc("s", Space.SHARED, f32, [4, 4], init=9.0))
        rows = b.declare("rows", 3)
        b.copy(x.window([rows, 2], [0, 0]), s)
        b.copy(s, y.window([4, rows], [0, 0]))

    got = run(body, x=ramp(4, 4), y=np.full((4, 4), 7, np.float32))["y"]
    expected = np.zeros((4, 4), np.float32)
    expected[:3, :2] = ramp(4, 4)[:3, :2]
    expected[:, 3] = 7
    np.testing.assert_array_equal(got, expected)


def test_copies_between_types_are_refused() -> None:
    with pytest.raises(CopyMisfit, match="f32 elements"):
        run(lambda b, x, y: b.copy(x, y), x=ramp(2), y=ramp(2, dtype=np.float16))


def test_copies_between_ranks_are_refused() -> None:
    with pytest.raises(CopyMisfit, match=r"\[2, 3\]"):
        run(lambda b, x, y: b.copy(x, y), x=ramp(2, 3), y=ramp(6))


def test_modspan_takes_the_remainder() -> None:
    def body(b: Builder, x: Tile, y: Tile) -> None:
        with b.foreach("k", 3) as k:
            s = Tile.whole(b.alloc("s", Space.SHARED, f32, [4]))
            b.copy(x.subspan([4], [k], remainder=True), s)
            b.copy(s, y.subspan([4], [k]))

    got = run(body, x=ramp(10), y=np.full(12, np.nan, np.float32))["y"]
    assert got.tolist() == [*range(1, 11), 0, 0]


@pytest.mark.parametrize("space", [Space.SHARED, Space.LOCAL])
def test_reading_what_was_never_written(space: Space) -> None:
    def body(b: Builder, x: Tile) -> None:
        s = Tile.whole(b.alloc("s", space, f32, [4, 4]))
        b.copy(x.window([4, 3], [0, 0]), s.window([4, 3], [0, 0]))
        b.copy(s, x)

    with pytest.raises(UnwrittenRead, match=r"4 elements, first \[0, 3\]"):
        run(body, x=ramp(4, 4))


def test_shared_memory_does_not_survive_its_block() -> None:
    b = Builder("f")
    x = b.array_param("x", f32, [4])
    with b.parallel(["i"], [2], BLOCK) as (i,):
        s = Tile.whole(b.alloc("s", Space.SHARED, f32, [4]))
        with b.if_(binary("eq", i.value, 0)):
            b.copy(x, s)
        with b.else_():
            b.copy(s, x)
    with pytest.raises(UnwrittenRead):
        execute(b.finish(), {"x": ramp(4)}, {}, dims={})


def test_initialised_buffers() -> None:
    def body(b: Builder, x: Tile) -> None:
        s = Tile.whole(b.alloc("s", Space.SHARED, f32, [4], init=3.5))
        b.copy(s, x)

    assert run(body, x=ramp(4))["x"].tolist() == [3.5] * 4


def test_shared_buffer_is_one_for_all_instances() -> None:
    def body(b: Builder, x: Tile) -> None:
        s = Tile.whole(b.alloc("s", Space.SHARED, f32, [4]))
        with b.parallel(["w"], [4], GROUP) as (w,):
            b.set_element(s, [w], w.value)
        b.copy(s, x)

    assert run(body, x=ramp(4))["x"].tolist() == [0, 1, 2, 3]


def test_synchronous_copies_are_seen_by_siblings() -> None:
    """Each warp copies a quarter; all read all of it, turn after turn."""

    def body(b: Builder, x: Tile, y: Tile) -> None:
        s = Tile.whole(b.alloc("s", Space.SHARED, f32, [4, 4]))
        with b.parallel(["w"], [4], GROUP) as (w,), b.foreach("k", 3) as k:
            b.copy(
                x.subspan([1, 4], [Bounded(e.add(mul(k.value, 4), w.value), const(12)), 0]),
                s.subspan([1, 4], [w, 0]),
            )
            turned = binary("mod", e.add(w.value, 1), 4)
            b.copy(s.subspan([1, 4], [turned, 0]), y.subspan([1, 4], [e.add(mul(k.value, 4), w.value), 0]))

    for seed in range(3):
        arrays = {"x": ramp(12, 4), "y": np.zeros((12, 4), np.float32)}
        execute(kernel_of(body, **arrays), arrays, {}, dims={}, seed=seed)
        expected = ramp(12, 4).reshape(3, 4, 4)[:, [1, 2, 3, 0]].reshape(12, 4)
        np.testing.assert_array_equal(arrays["y"], expected)


def test_barriers_between_groups() -> None:
    def body(b: Builder, y: Tile) -> None:
        s = Tile.whole(b.alloc("s", Space.SHARED, s32, [2]))
        with b.parallel(["w"], [2], GROUP) as (w,):
            b.set_element(s, [w], e.add(w.value, 10))
            b.emit(t.Sync("barrier", BLOCK))
            b.set_element(y, [w], b.element(s, [e.sub(1, w.value)]))

    assert run(body, y=ramp(2, dtype=np.int32))["y"].tolist() == [11, 10]


def test_inthreads_meets_afterwards() -> None:
    def body(b: Builder, y: Tile) -> None:
        s = Tile.whole(b.alloc("s", Space.SHARED, s32, [1]))
        with b.parallel(["w"], [3], GROUP) as (w,):
            with b.inthreads(binary("eq", w.value, 2)):
                b.set_element(s, [0], 5)
            b.set_element(y, [w], b.element(s, [0]))

    assert run(body, y=ramp(3, dtype=np.int32))["y"].tolist() == [5, 5, 5]
