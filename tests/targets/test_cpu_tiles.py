"""The semantics of register tiles: one small kernel each."""

from __future__ import annotations

import numpy as np
import pytest
from one_block import f32, kernel_of, run

from tilemma import dtypes
from tilemma.errors import CompileError
from tilemma.ir import expr as e
from tilemma.ir import tile as t
from tilemma.ir.builder import Builder
from tilemma.ir.checks import ScaleShape, SparseMetadata
from tilemma.ir.expr import Const, Element, Index, binary, const
from tilemma.ir.tiles import Tile
from tilemma.ir.types import GROUP, WARPGROUP, Contract
from tilemma.modules import loads
from tilemma.passes.check_contracts import CheckContracts
from tilemma.targets.cpu import execute
from tilemma.targets.cpu.faults import (
    FragmentElsewhere,
    FragmentUnset,
    TileMismatch,
)


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


METADATA = [((4, 4), "f16"), ((4, 2), "u8"), ((4,), "u16"), ((2, 2), "u16"), ((1, 1, 4, 2), "s16")]


@pytest.mark.parametrize(("shape", "words"), METADATA)
def test_metadata_of_another_shape_or_type(shape: tuple[int, ...], words: str) -> None:
    """The stored half [4, 16] of f16 [4, 32] has metadata u8 [4, 4], u16 [4, 2] or u32 [4, 1].  The reference,
    which no pass has to precede, and the pass refuse the others by one rule."""

    def body(b: Builder, x: Tile, y: Tile, e: Tile) -> None:
        b.mma(Contract.ROW_ROW, b.fill("mc", 0.0, f32), x, y, meta=b.load("me", e).ref)

    given = {
        "x": np.zeros((4, 16), np.float16),
        "y": np.zeros((4, 32), np.float16),
        "e": np.zeros(shape, dtypes.dtype(words).numpy),
    }
    refused_by_both(body, SparseMetadata, given)
    given["e"] = np.zeros((1, 4, 2), np.uint16)
    run(body, GROUP, **given)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("shape", [(2, 2), (4, 2), (2,), (1, 8)])
def test_scales_of_another_shape(shape: tuple[int, ...], fused: bool) -> None:
    def body(b: Builder, x: Tile, y: Tile, v: Tile) -> None:
        mc, view = b.fill("mc", 0.0, f32), b.settle(v).view
        scales = {"scale_a": view, "factor": const(2.0)}
        b.mma(Contract.ROW_ROW, mc, x, y, **(scales if fused else {}))
        if not fused:
            b.emit(t.ScaleMma(mc.ref, **scales))

    given = {"x": np.zeros((4, 16), np.float16), "y": np.zeros((8, 16), np.float16)}
    refused_by_both(body, ScaleShape, given | {"v": np.zeros(shape, np.float32)})
    for right in ((4, 1), (1, 4), (4,)):
        run(body, GROUP, **given, v=np.zeros(right, np.float32))


def refused_by_both(body, error: type[CompileError], given: dict[str, np.ndarray]) -> None:
    with pytest.raises(error) as by_reference:
        run(body, GROUP, **given)
    with pytest.raises(CompileError) as by_pass:
        CheckContracts().run(kernel_of(body, GROUP, **given), [])
    # The pass also refuses tiles of other dimensions than two, as those of any operand.
    assert by_pass.value.code in (by_reference.value.code, "operand-shape")


@pytest.mark.parametrize("shape", [(), (16,), (2, 2, 4)])
def test_operands_of_other_dimensions(shape: tuple[int, ...]) -> None:
    def body(b: Builder, x: Tile) -> None:
        b.mma(Contract.ROW_ROW, b.fill("mc", 0.0, f32), x, x)

    with pytest.raises(TileMismatch, match="two dimensions"):
        run(body, GROUP, x=np.ones(shape, np.float16))
    run(body, GROUP, x=np.ones((1, 4, 1, 16), np.float16))


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
        plain = {"scale_a": s.view, "factor": Const(2.0, f32)}
        mc = b.fill("mc", 1.0, f32)
        b.mma(Contract.ROW_ROW, mc, x, x, **plain)
        b.store(mc, y)
        md = b.fill("md", 1.0, f32)
        for _ in range(2):
            b.mma(Contract.ROW_ROW, md, x, x)
        b.emit(t.ScaleMma(md.ref, s.view, factor=Const(2.0, f32)))
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


@pytest.mark.parametrize("arch", [None, "sm_80", "sm_90a"])
def test_instances_write_all_elements_of_a_tile_of_the_block(arch: str | None) -> None:
    """The reference took the tile of the second warpgroup for one without values, as the first one had its own."""
    text = """__co__ void numbers(global f32 [128, 64] y) {
      parallel by 1 : block {
        frag f32[64, 64] p;
        parallel g by 2 : group-4 {
          apply {r, c} in p.span p.at(r, c) = __to<f32>(g * 1000 + r);
          mma.store p, y.subspan(64, 64).at(g, 0);
        }
      }
    }"""
    y = np.zeros((128, 64), np.float32)
    kernel = loads(text).kernels["numbers"]
    (kernel.on("cpu") if arch is None else kernel.on("machine", arch=arch, strict=True))(y)
    rows = np.arange(128)
    np.testing.assert_array_equal(y, np.repeat((rows // 64 * 1000 + rows % 64)[:, None], 64, 1))
