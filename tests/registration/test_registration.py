"""A new element type and a new instruction, each from one file of its own, and a product with them."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilemma as tm
from tilemma import dtypes
from tilemma.dtypes import DType, Format, TypeNotRegistered
from tilemma.kernels import Kernel
from tilemma.targets.cpu import execute

HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    before = set(dtypes.BY_NAME)
    for name in ("toy_type", "toy_instruction"):
        spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
        assert spec is not None and spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    yield
    for name in set(dtypes.BY_NAME) - before:
        del dtypes.BY_NAME[name]


def product() -> Kernel:
    @tm.kernel
    def multiply(
        a: tm.Global["f8_e3m4", "M", "K"], b: tm.Global["f8_e3m4", "N", "K"], c: tm.Global["f32", "M", "N"]
    ):
        for i, j in tm.parallel(tm.cdiv(a.shape[0], 32), tm.cdiv(b.shape[0], 32), level="block"):
            mc = tm.mma.fill(0.0)
            for k in tm.foreach(tm.cdiv(a.shape[1], 64)):
                a_s = tm.dma.copy(a.subspan(32, 64).at(i, k), to="shared")
                b_s = tm.dma.copy(b.subspan(32, 64).at(j, k), to="shared")
                for _ in tm.parallel(1, level="group-2"):
                    tm.mma.row.row(mc, tm.mma.load(a_s), tm.mma.load(b_s))
            for _ in tm.parallel(1, level="group-2"):
                tm.mma.store(mc, c.subspan(32, 32).at(i, j))

    return multiply


CROQTILE = """__co__ void multiply(global f8_e3m4 [M, K] a, global f8_e3m4 [N, K] b, global f32 [M, N] c) {
  parallel {i, j} by [cdiv(M, 32), cdiv(N, 32)] : block {
    mc = mma.fill 0.0f;
    foreach k in [cdiv(K, 64)] {
      a_s = dma.copy a.subspan(32, 64).at(i, k) => shared;
      b_s = dma.copy b.subspan(32, 64).at(j, k) => shared;
      parallel g by 1 : group-2 {
        ma = mma.load a_s.data; mb = mma.load b_s.data;
        mma.row.row mc, ma, mb;
      }
    }
    parallel g by 1 : group-2 { mma.store mc, c.subspan(32, 32).at(i, j); }
  }
}"""


def operands(m: int, n: int, k: int) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-8, 9, shape).astype(ml_dtypes.float8_e3m4) for shape in ((m, k), (n, k)))
    return a, b, np.zeros((m, n), np.float32), a.astype(np.float64) @ b.T.astype(np.float64)


def croqtile(folder: Path, text: str) -> Kernel:
    path = folder / "k.co"
    path.write_text(text)
    return tm.load(path).only()


@pytest.mark.parametrize("language", ["python", "croqtile"])
@pytest.mark.parametrize("extents", [(32, 32, 64), (40, 36, 150)])
def test_a_product_with_both(language: str, extents: tuple[int, int, int], tmp_path: Path) -> None:
    kernel = product() if language == "python" else croqtile(tmp_path, CROQTILE)
    a, b, c, exact = operands(*extents)
    kernel(a, b, c)
    np.testing.assert_array_equal(c, exact)
    kernel.on("machine", arch="sm_80")(a, b, again := np.zeros_like(c))
    np.testing.assert_array_equal(again, exact)
    assert "TOY_16x8x32_F32E3M4" in str(kernel.compile("sm_80").explain())
    decided = kernel.compile("sm_80").kernel
    m, n, k = extents
    execute(decided, {"a": a, "b": b, "c": (third := np.zeros_like(c))}, {}, dims={"M": m, "N": n, "K": k})
    np.testing.assert_array_equal(third, exact)


OTHERS = ("f32", "f16", "bf16", "f8_e4m3", "s32", "s8")


PAIRS = [*itertools.product(["f8_e3m4"], OTHERS), *itertools.product(OTHERS[:3], ["f8_e3m4"])]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_its_conversions_are_those_of_the_library(source: str, target: str) -> None:
    """Every bit pattern, or as many of f32; NumPy rounds the value once too."""

    @tm.kernel
    def convert(x: tm.Global["S", "N"], y: tm.Global["D", "N"], *, S="f16", D="f16"):
        for _ in tm.parallel(1, level="block"):
            for n in tm.foreach(tm.cdiv(x.shape[0], 32)):
                for t in tm.parallel(32, level="thread"):
                    with tm.if_(32 * n + t < x.shape[0]):
                        y[32 * n + t] = x[32 * n + t]

    have, want = dtypes.dtype(source), dtypes.dtype(target)
    if have.bits == 8:
        x = np.arange(256, dtype=np.uint8).view(have.numpy)
    else:
        x = np.concatenate([np.arange(-40, 40, 0.0859375), [0.0, 15.5, 15.74, 15.75, 16, np.inf, -np.inf]])
        x = x.astype(have.numpy)
    y, z = np.zeros(len(x), want.numpy), np.zeros(len(x), want.numpy)
    convert(x, y, S=source, D=target)
    convert.on("machine", arch="sm_80")(x, z, S=source, D=target)
    np.testing.assert_array_equal(y.astype(np.float64), z.astype(np.float64))
    if want.is_float and not want.floating.saturates:
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(y.astype(float), x.astype(float).astype(want.numpy).astype(float))


def test_it_takes_part_in_the_ranking_of_types() -> None:
    e3m4, f16, f32, s32 = map(dtypes.dtype, ("f8_e3m4", "f16", "f32", "s32"))
    assert dtypes.promote(e3m4, f16) is f16 and dtypes.promote(e3m4, s32) is e3m4
    assert dtypes.from_numpy(ml_dtypes.float8_e3m4) is e3m4 and dtypes.from_library("float8_e3m4") is e3m4
    assert dtypes.promote(e3m4, dtypes.e4m3) is f32 or dtypes.promote(e3m4, dtypes.e4m3).floating.holds(
        e3m4.floating
    )


def test_a_name_keeps_its_first_meaning() -> None:
    same = DType("f8_e3m4", 8, "float", np.dtype(ml_dtypes.float8_e3m4), "e3m4", "b8", ("f32",), Format(3, 4))
    assert dtypes.register(same) is dtypes.dtype("f8_e3m4")
    other = DType("f8_e3m4", 8, "float", np.dtype(ml_dtypes.float8_e3m4), "e3m4", "b8", ("f32",), Format(4, 3))
    named = DType("half", 16, "float", np.dtype(np.float16), "f16", "b16", ("f32",), Format(5, 10))
    for entry in (other, named, "f8_e3m4"):
        with pytest.raises(TypeNotRegistered):
            dtypes.register(entry)


@pytest.mark.parametrize(
    ("numpy", "form", "reason"),
    [
        (ml_dtypes.float8_e4m3b11fnuz, Format(4, 3, infinite=False), "reads 0x1 of"),
        (ml_dtypes.float8_e4m3fnuz, Format(4, 3, infinite=False), "reads 0x1 of"),
        (ml_dtypes.float8_e4m3fn, Format(4, 3), "reads 0x78 of"),
        (ml_dtypes.float8_e5m2, Format(4, 3), "reads 0x1 of"),
        (ml_dtypes.float8_e8m0fnu, Format(8, 0), "9 bits for the 8"),
    ],
)
def test_a_format_that_is_not_that_of_the_numpy_type_is_refused(numpy: Any, form: Format, reason: str) -> None:
    """GPU code converts by the format and the reference by NumPy: they would differ."""
    with pytest.raises(TypeNotRegistered, match=reason):
        dtypes.register(DType("another", 8, "float", np.dtype(numpy), "another", "b8", ("f32",), form))
    assert "another" not in dtypes.BY_NAME


@pytest.mark.parametrize("t", [t for t in dtypes.BY_NAME.values() if t.format and t.bits <= 16], ids=str)
def test_a_format_gives_each_bit_pattern_its_number(t: DType) -> None:
    with np.errstate(all="ignore"):
        have = np.arange(2 << t.floating.sign, dtype=f"u{t.bytes}").view(t.numpy).astype(np.float64)
    np.testing.assert_array_equal(t.floating.values(), have)


def test_what_was_compiled_without_the_type_is_not_used_with_it() -> None:
    with_type = dtypes.registered_key()
    kept = dtypes.BY_NAME.pop("f8_e3m4")
    assert with_type != dtypes.registered_key() == ""
    dtypes.BY_NAME["f8_e3m4"] = kept
