"""What each construct means, one small kernel each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilemma import dtypes
from tilemma.ir import expr as e
from tilemma.ir import tile as t
from tilemma.ir.builder import Builder
from tilemma.ir.expr import Const, Element, Index, Var, binary, cdiv, const, mul
from tilemma.ir.tiles import Bounded, Tile
from tilemma.ir.types import BLOCK, GROUP, THREAD, WARPGROUP, Axis, Buffer, Contract, Level, Space, View
from tilemma.targets.cpu import execute
from tilemma.targets.cpu.faults import (
    ArgumentMisfit,
    AssertionFailed,
    CopyMisfit,
    DivisionByZero,
    FragmentElsewhere,
    FragmentUnset,
    NotInReference,
    SlotOutside,
    TileMismatch,
    UnwrittenRead,
    VariableDiverged,
    ViewOutside,
    WriteConflict,
)

f16, f32, s32 = dtypes.f16, dtypes.f32, dtypes.s32


def block(b: Builder):
    return b.parallel(["blk"], [1], BLOCK)


def kernel_of(body, level: Level | None = None, lanes: int = 0, **params) -> t.Kernel:
    """A kernel of one block (one instance of ``level``, ``lanes`` lanes); ``body(b, tiles.., index?)``."""
    b = Builder("f")
    tiles = [b.array_param(n, typed(a), list(a.shape)) for n, a in params.items()]
    with block(b):
        if lanes:
            with b.parallel(["t"], [lanes], THREAD) as (lane,):
                body(b, *tiles, lane)
        elif level is not None:
            with b.parallel(["p"], [1], level):
                body(b, *tiles)
        else:
            body(b, *tiles)
    return b.finish()


def typed(a: np.ndarray) -> dtypes.DType:
    found = dtypes.from_numpy(a.dtype)
    assert found is not None
    return found


def run(body, level: Level | None = None, lanes: int = 0, out=None, **params) -> dict[str, np.ndarray]:
    execute(kernel_of(body, level, lanes, **params), params, {}, dims={}, out=out)
    return params


def ramp(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(dtype)


# ---- copies and views ------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
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


# ---- storage that has not been written --------------------------------------------------------------------------


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


# ---- register tiles ------------------------------------------------------------------------------------------


def operands(m=8, n=4, k=6, dtype=np.float16):
    rng = np.random.default_rng(0)
    return rng.integers(-3, 4, (m, k)).astype(dtype), rng.integers(-3, 4, (n, k)).astype(dtype)


@pytest.mark.parametrize("contract", list(Contract))
@pytest.mark.parametrize("name", ["f16", "bf16", "f8_e4m3", "f64", "s8", "f32"])
def test_contracts(contract: Contract, name: str) -> None:
    dtype = dtypes.dtype(name)
    a, b_ = operands()
    acc = dtypes.dtype(dtype.accumulators[0]) if dtype.accumulators else f32
    stored_a = (a.T if contract.a_transposed else a).astype(dtype.numpy)
    stored_b = (b_.T if contract.b_transposed else b_).astype(dtype.numpy)

    def body(b: Builder, x: Tile, y: Tile, z: Tile) -> None:
        mc = b.fill("mc", 2 if acc.is_integer else 2.0)
        b.mma(contract, mc, b.load("ma", x), b.load("mb", y))
        b.mma(contract, mc, x, y)
        b.store(mc, z)

    arrays = {"x": stored_a, "y": stored_b, "z": np.zeros((8, 4), acc.numpy)}
    execute(kernel_of(body, WARPGROUP, **arrays), arrays, {}, dims={})
    expected = 2 * (a.astype(np.float64) @ b_.astype(np.float64).T) + 2
    np.testing.assert_array_equal(arrays["z"].astype(np.float64), expected)


def test_f16_accumulators_round_after_each_multiply() -> None:
    one = np.ones((1, 1), np.float16)

    def body(b: Builder, x: Tile, z: Tile) -> None:
        mc = b.fill("mc", 2048.0)
        for _ in range(4):
            b.mma(Contract.ROW_ROW, mc, x, x)
        b.store(mc, z)

    assert run(body, GROUP, x=one, z=np.zeros((1, 1), np.float32))["z"] == 2048


def test_integer_accumulators_wrap() -> None:
    x = np.full((1, 4), 127, np.int8)

    def body(b: Builder, x: Tile, z: Tile) -> None:
        mc = b.fill("mc", 2**31 - 1)
        b.mma(Contract.ROW_ROW, mc, x, x)
        b.store(mc, z)

    assert run(body, GROUP, x=x, z=np.zeros((1, 1), np.int32))["z"] == 4 * 127**2 - 1 - 2**31


@pytest.mark.parametrize(
    ("acc", "value", "out", "expected"),
    [
        (f32, 1e6, dtypes.f16, np.inf),
        (f32, 1e6, dtypes.e4m3, 448),
        (f32, -1e6, dtypes.e5m2, -57344),
        (f32, 2.5, dtypes.s8, 2),
        (f32, 1e6, dtypes.s8, 127),
        (f32, -3.0, dtypes.u8, 0),
        (f32, 1 + 2**-8, dtypes.bf16, 1),
    ],
)
def test_stores_convert(acc, value: float, out, expected: float) -> None:
    def body(b: Builder, z: Tile) -> None:
        b.store(b.fill("mc", value, acc), z)

    arrays = {"z": np.zeros((2, 2), out.numpy)}
    execute(kernel_of(body, WARPGROUP, **arrays), arrays, {}, dims={})
    assert arrays["z"].astype(np.float64).tolist() == [[expected] * 2] * 2


def test_transposed_and_masked_stores() -> None:
    def body(b: Builder, x: Tile, y: Tile, z: Tile) -> None:
        mc = b.fill("mc", 0.0, f32)
        b.mma(Contract.ROW_ROW, mc, x, x)
        b.store(mc, y, transpose=True)
        b.store(mc, z, rows=const(1), columns=const(2))

    x = np.array([[1], [2], [3]], np.float16)
    got = run(body, GROUP, x=x, y=np.zeros((3, 3), np.float32), z=np.full((3, 3), 7, np.float32))
    np.testing.assert_array_equal(got["y"], x @ x.T)
    assert got["z"].tolist() == [[1, 2, 7], [7, 7, 7], [7, 7, 7]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_load_is_a_snapshot(dtype) -> None:
    def body(b: Builder, x: Tile, z: Tile) -> None:
        mc = b.fill("mc", 0.0, f32)
        ma = b.load("ma", x)
        b.set_element(x, [0, 0], 100.0)
        b.mma(Contract.ROW_ROW, mc, ma, b.load("mb", x))
        b.store(mc, z)

    assert run(body, GROUP, x=np.ones((1, 1), dtype), z=np.zeros((1, 1), np.float32))["z"] == 100


def test_accumulators_are_private_and_found_again() -> None:
    def body(b: Builder, x: Tile, z: Tile) -> None:
        mc = b.fill("mc", 1.0, f32)
        for _ in range(2):
            with b.parallel(["p"], [2], WARPGROUP) as (p,):
                b.mma(Contract.ROW_ROW, mc, x.subspan([1, 1], [p, 0]), x.subspan([1, 1], [p, 0]))
        with b.parallel(["p"], [2], WARPGROUP) as (p,):
            b.store(mc, z.subspan([1, 1], [p, 0]))

    x = np.array([[2], [3]], np.float16)
    assert run(body, x=x, z=np.zeros((2, 1), np.float32))["z"].tolist() == [[9], [19]]


def test_an_outer_fill_starts_all_instances_again() -> None:
    def body(b: Builder, x: Tile, z: Tile) -> None:
        mc = b.fragment("mc")
        with b.foreach("k", 2):
            b.fill(mc, 1.0, f32)
            with b.parallel(["p"], [2], WARPGROUP):
                b.mma(Contract.ROW_ROW, mc, x, x)
        with b.parallel(["p"], [2], WARPGROUP) as (p,):
            b.store(mc, z.subspan([1, 1], [p, 0]))

    x = np.array([[3]], np.float16)
    assert run(body, x=x, z=np.zeros((2, 1), np.float32))["z"].tolist() == [[10], [10]]


def test_storing_what_several_instances_hold() -> None:
    def body(b: Builder, x: Tile, z: Tile) -> None:
        mc = b.fill("mc", 1.0, f32)
        with b.parallel(["p"], [2], WARPGROUP):
            b.mma(Contract.ROW_ROW, mc, x, x)
        b.store(mc, z)

    with pytest.raises(FragmentElsewhere, match="2 instances"):
        run(body, x=np.ones((1, 1), np.float16), z=np.zeros((1, 1), np.float32))


def test_fragment_used_before_it_is_filled() -> None:
    def body(b: Builder, x: Tile, z: Tile) -> None:
        mc = b.fragment("mc")
        b.mma(Contract.ROW_ROW, mc, x, x)

    with pytest.raises(FragmentUnset, match="`mc`"):
        run(body, GROUP, x=np.ones((1, 1), np.float16), z=np.zeros((1, 1), np.float32))


@pytest.mark.parametrize("which", ["K", "acc", "store"])
def test_shapes_that_disagree(which: str) -> None:
    def body(b: Builder, x: Tile, y: Tile, z: Tile) -> None:
        mc = b.fill("mc", 0.0, f32)
        b.mma(Contract.ROW_ROW, mc, x, x)
        if which == "K":
            b.mma(Contract.ROW_ROW, mc, x, y)
        elif which == "acc":
            b.mma(Contract.ROW_ROW, mc, y, y)
        b.store(mc, z)

    with pytest.raises(TileMismatch):
        run(
            body,
            GROUP,
            x=np.ones((2, 2), np.float16),
            y=np.ones((3, 3), np.float16),
            z=np.zeros((5, 5), np.float32),
        )


def test_arrays_of_accumulators() -> None:
    def body(b: Builder, x: Tile, z: Tile) -> None:
        mc = b.fragment("mc", (2, 2))
        b.fill(mc, 0.0, f32)
        with b.foreach("i", 2) as i, b.foreach("j", 2) as j:
            b.mma(Contract.ROW_ROW, mc[i][j], x.subspan([1, 2], [i, 0]), x.subspan([1, 2], [j, 0]))
        with b.foreach("i", 2) as i, b.foreach("j", 2) as j:
            b.store(mc[i][j], z.subspan([1, 1], [i, j]))

    x = np.array([[1, 2], [3, 4]], np.float16)
    np.testing.assert_array_equal(run(body, GROUP, x=x, z=np.zeros((2, 2), np.float32))["z"], x @ x.T)


def test_accumulator_loaded_from_memory() -> None:
    def body(b: Builder, x: Tile, z: Tile) -> None:
        mc = b.load("mc", z)
        b.mma(Contract.ROW_ROW, mc, x, x)
        b.store(mc, z)

    x = np.array([[1, 2], [3, 4]], np.float16)
    got = run(body, GROUP, x=x, z=np.full((2, 2), 0.5, np.float32))["z"]
    np.testing.assert_array_equal(got, x @ x.T + 0.5)


def test_scaled_multiplies() -> None:
    def body(b: Builder, x: Tile, s: Tile, y: Tile, z: Tile) -> None:
        plain = {"scale_a": s.view, "scale_b": Const(2.0, f32)}
        mc = b.fill("mc", 1.0, f32)
        b.mma(Contract.ROW_ROW, mc, x, x, **plain)
        b.store(mc, y)
        md = b.fill("md", 1.0, f32)
        for _ in range(2):
            b.mma(Contract.ROW_ROW, md, x, x)
        b.emit(t.ScaleMma(md.ref, s.view, Const(2.0, f32)))
        b.mma(Contract.ROW_ROW, md, x, x)
        b.store(md, z)

    x, s = np.array([[1, 2], [3, 4]], np.float16), np.array([[0.5], [4]], np.float32)
    out = np.zeros((2, 2), np.float32)
    got = run(body, WARPGROUP, x=x, s=s, y=out, z=out.copy())
    np.testing.assert_array_equal(got["y"], 1 + (x @ x.T) * s * 2)
    np.testing.assert_array_equal(got["z"], 1 + (2 * x @ x.T) * s * 2 + x @ x.T)


def test_accumulate_is_a_decision_to_start_from_zero() -> None:
    def body(b: Builder, x: Tile, z: Tile) -> None:
        mc = b.fill("mc", 77.0, f32)
        with b.foreach("k", 3) as k:
            b.mma(Contract.ROW_ROW, mc, x, x, accumulate=binary("gt", k.value, 0))
        b.store(mc, z)

    x = np.array([[2]], np.float16)
    assert run(body, WARPGROUP, x=x, z=np.zeros((1, 1), np.float32))["z"] == 12


def test_apply_is_element_work_on_fragments() -> None:
    def body(b: Builder, x: Tile, bias: Tile, z: Tile) -> None:
        mc = b.fill("mc", 0.0, f32)
        b.mma(Contract.ROW_ROW, mc, x, x)
        i, j = Index("i", const(2)), Index("j", const(2))
        here = e.FragmentElement("mc", (i, j), f32)
        added = binary("add", here, Element(bias.view.element((j,))))
        diagonal = t.If(binary("eq", i, j), (t.SetFragmentElement(mc.ref, Const(-1.0, f32)),))
        b.emit(t.Apply(mc.ref, (i, j), (t.SetFragmentElement(mc.ref, added), diagonal)))
        b.store(mc, z)

    x, bias = np.array([[1, 2], [3, 4]], np.float16), np.array([10, 20], np.float32)
    got = run(body, GROUP, x=x, bias=bias, z=np.zeros((2, 2), np.float32))["z"]
    expected = x @ x.T + bias
    np.fill_diagonal(expected, -1)
    np.testing.assert_array_equal(got, expected)


# ---- scalars, lanes ------------------------------------------------------------------------------------------


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


def test_division_by_zero_has_a_place() -> None:
    b = Builder("f")
    x = b.array_param("x", s32, [1])
    with block(b):
        zero = b.declare("zero", 0)
        b.set_element(x, [0], binary("div", 1, zero))
    with pytest.raises(DivisionByZero):
        execute(b.finish(), {"x": ramp(1, dtype=np.int32)}, {}, dims={})


# ---- kernels -------------------------------------------------------------------------------------------------


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


def test_what_is_not_built_is_refused_by_name() -> None:
    def body(b: Builder, x: Tile) -> None:
        mc = b.fill("mc", 0.0, f32)
        b.mma(Contract.ROW_ROW, mc, x, x, meta=b.load("me", x).ref)

    with pytest.raises(NotInReference, match="sparse"):
        run(body, GROUP, x=np.ones((2, 2), np.float16))


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
