"""Elementwise work on whole register tiles: every function, operator and broadcast, in both languages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilemma as tm
from tilemma import full, mma, parallel, select
from tilemma.ir.constructs import FUNCTIONS

CO = """
__co__ void work(global f32 [32, 16] x, global f32 [16] row, global f32 [32, 1] column, global f32 [6, 32, 16] out) {
  parallel g by 1 : block, w by 2 : group {
    frag f32[16, 16] t {0.0};
    frag f32[16, 16] u {0.0};
    mma.load x.chunkat(w, _), t;
    u = __max(t, row);
    mma.store u, out.subspan(1, 32, 16).at(0, 0, 0).span_as(32, 16).chunkat(w, _);
    u = select(t > row, t, column.subspan(16, 1).at(w, 0));
    mma.store u, out.subspan(1, 32, 16).at(1, 0, 0).span_as(32, 16).chunkat(w, _);
    u = __fmaf(t, row, 2.0f) - __abs(t);
    mma.store u, out.subspan(1, 32, 16).at(2, 0, 0).span_as(32, 16).chunkat(w, _);
    u = __clamp(t, -0.5f, column.subspan(16, 1).at(w, 0));
    mma.store u, out.subspan(1, 32, 16).at(3, 0, 0).span_as(32, 16).chunkat(w, _);
    u = __pow(__abs(t), 1.5f) + (t * t);
    mma.store u, out.subspan(1, 32, 16).at(4, 0, 0).span_as(32, 16).chunkat(w, _);
    u = (t > 0.0f && !(t > row)) ? __relu(t) : __silu(t);
    mma.store u, out.subspan(1, 32, 16).at(5, 0, 0).span_as(32, 16).chunkat(w, _);
  }
}
"""


@tm.kernel
def work(
    x: tm.Global["f32", 32, 16],
    row: tm.Global["f32", 16],
    column: tm.Global["f32", 32, 1],
    out: tm.Global["f32", 6, 32, 16],
):
    for _ in parallel(1, level="block"):
        for w in parallel(2, level="group"):
            t = mma.frag("f32", 16, 16, init=0.0)
            mma.load(x.chunkat(w, full), t)
            mine = column.subspan(16, 1).at(w, 0)
            results = (
                tm.math.max(t, row),
                select(t > row, t, mine),
                tm.math.fma(t, row, 2.0) - abs(t),
                tm.math.clamp(t, -0.5, mine),
                abs(t) ** 1.5 + t**2,
                select((t > 0) & ~(t > row), tm.math.relu(t), tm.math.silu(t)),
            )
            for n, result in enumerate(results):
                mma.store(result, out.subspan(1, 32, 16).at(n, 0, 0).span_as(32, 16).chunkat(w, full))


def expected(x: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
    return np.stack(
        [
            np.maximum(x, row),
            np.where(x > row, x, column),
            x * row + 2 - abs(x),
            np.minimum(np.maximum(x, -0.5), column),
            abs(x) ** 1.5 + x**2,
            np.where((x > 0) & ~(x > row), np.maximum(x, 0), x / (1 + np.exp(-x))),
        ]
    )


@pytest.mark.parametrize("target", ["cpu", "machine"])
@pytest.mark.parametrize("language", ["py", "co"])
def test_tiles_are_computed_element_by_element(language: str, target: str, tmp_path: Path) -> None:
    path = tmp_path / "work.co"
    path.write_text(CO)
    kernel = work if language == "py" else tm.load(path).only()
    shapes = ((32, 16), (16,), (32, 1))
    given = [tm.testing.random_array(shape, "f32", seed) for seed, shape in enumerate(shapes)]
    out = np.full((6, 32, 16), np.nan, np.float32)
    kernel.on(target)(*given, out)
    np.testing.assert_allclose(out, expected(*(a.astype(np.float64) for a in given)), rtol=2e-6, atol=2e-6)


def test_every_function_takes_tiles() -> None:
    """Each float function of the table, on a tile and on arithmetic, gives what it gives on scalars."""
    names = [n for n, f in FUNCTIONS.items() if f.kind == "scalar"]
    out = np.zeros((len(names), 16, 8), np.float32)
    scalars = out.copy()

    @tm.kernel
    def tiles(
        x: tm.Global["f32", 16, 8], out: tm.Global["f32", "R", 16, 8], scalars: tm.Global["f32", "R", 16, 8]
    ):
        for _ in parallel(1, level="block"):
            for _ in parallel(1, level="group"):
                t = mma.frag("f32", 16, 8, init=0.0)
                mma.load(x, t)
                for n, name in enumerate(names):
                    function, count = getattr(tm.math, name), FUNCTIONS[name].arguments
                    mma.store(
                        function(t, *[t + 0.5, 0.75][: count - 1]),
                        out.subspan(1, 16, 8).at(n, 0, 0).span_as(16, 8),
                    )
                for i in tm.foreach(16):
                    for j in tm.foreach(8):
                        for n, name in enumerate(names):
                            function, count = getattr(tm.math, name), FUNCTIONS[name].arguments
                            scalars[n, i, j] = function(x[i, j], *[x[i, j] + 0.5, 0.75][: count - 1])

    x = tm.testing.random_array((16, 8), "f32", 3)
    with np.errstate(all="ignore"):
        tiles.on("cpu")(x, out, scalars)
    np.testing.assert_array_equal(out, scalars)


@pytest.mark.parametrize(
    ("spelling", "fix"),
    [
        (lambda t: t.relu(), "tm.math.relu(t)"),
        (lambda t: t.maximum(0.0), "tm.math.max(t, b)"),
        (lambda t: t.where(t), "tm.select(c, t, b)"),
        (lambda t: (t + 1).exp(), "tm.math.exp("),
        (lambda t: tm.relu(t), "tm.math.relu(a)"),
        (lambda t: tm.math.maximum(t, 0.0), "tm.math.max(a, b)"),
        (lambda t: tm.where(t > 0, t, 0.0), "tm.select(condition, a, b)"),
        (lambda t: max(t, 0.0), "tm.math.max(a, b)"),
        (lambda t: np.maximum(t, 0.0), "tm.math.max(a, b)"),
        (lambda t: np.exp(t), "tm.math.exp(a)"),
        (lambda t: t if t > 0 else 0.0, "select(c, x, y)"),
        (lambda t: t.T, "transp=True"),
    ],
)
def test_a_refused_spelling_names_the_right_one(spelling, fix: str) -> None:
    @tm.kernel
    def refused(x: tm.Global["f32", 16, 8]):
        for _ in parallel(1, level="block"):
            for _ in parallel(1, level="group"):
                t = mma.frag("f32", 16, 8, init=0.0)
                mma.load(x, t)
                t.set(spelling(t))

    with pytest.raises((tm.CompileError, AttributeError)) as caught:
        refused.build()
    assert fix in str(caught.value)


@tm.kernel
def memory(
    x: tm.Global["f32", 32, 16],
    row: tm.Global["f32", 16],
    column: tm.Global["f32", 32, 1],
    out: tm.Global["f32", 5, 32, 16],
):
    for _ in parallel(1, level="block"):
        for w in parallel(2, level="group"):
            t = mma.frag("f32", 16, 16, init=0.0)
            mma.load(x.chunkat(w, full), t)
            here, whole = column.subspan(16, 1).at(w, 0), x.chunkat(w, full)
            for i, e in enumerate((
                t * (row * row + 1.0),
                t - abs(whole) ** 2,
                tm.math.exp(-row) + t,
                select((row > 0.0) & (here < 0.5), t, -1.0),
                tm.math.max(2.0**here, t),
            )):  # fmt: skip
                mma.store(e, out.subspan(1, 32, 16).at(i, 0, 0).span_as(32, 16).chunkat(w, full))


@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
def test_arithmetic_on_memory_beside_a_register_tile(target: str) -> None:
    rng = np.random.default_rng(3)
    x, row, column = (rng.standard_normal(s).astype(np.float32) for s in ((32, 16), 16, (32, 1)))
    out = np.zeros((5, 32, 16), np.float32)
    (memory if target == "cpu" else memory.on("machine", arch=target))(x, row, column, out)
    chosen = np.where((row > 0) & (column < 0.5), x, -1)
    wanted = [x * (row * row + 1), x - x * x, np.exp(-row) + x, chosen, np.maximum(2**column, x)]
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-6)


def test_arithmetic_on_memory_is_refused_where_the_memory_may_have_changed() -> None:
    @tm.kernel
    def stale(x: tm.Global["f32", 16, 8], row: tm.Global["f32", 8]):
        for _ in parallel(1, level="block"):
            for _ in parallel(1, level="group"):
                t = mma.frag("f32", 16, 8, init=0.0)
                doubled = row * 2.0
                row[0] = 1.0
                t.set(t + doubled)

    with pytest.raises(tm.CompileError, match="may have changed"):
        stale.build()


def test_a_shape_of_extents_in_a_tuple() -> None:
    @tm.kernel
    def two(y: tm.Global["f32", 16, 8]):
        for _ in parallel(1, level="group"):
            mma.store(mma.frag("f32", (16, 8), init=2.0), y)

    y = np.zeros((16, 8), np.float32)
    two(y)
    assert (y == 2).all()
