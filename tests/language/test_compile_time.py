"""Compile-time values: definitions of `.co` kernels, keywords of Python kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilemma as tm
from tilemma import parallel
from tilemma.errors import CompileError
from tilemma.kernels import Kernel

CO = """
#define TILE 4
__co__ void first(global s32 [TILE] x, global f32 [TILE] y) {
  parallel p by 1 : block, i by TILE : thread { y.at(i) = x.at(i); }
}
"""


class Eight:
    def __index__(self) -> int:
        return 8


@tm.kernel
def first(x: tm.Global["s32", "TILE"], y: tm.Global["f32", "TILE"], *, TILE=4):
    for _ in parallel(1, level="block"):
        for i in parallel(TILE, level="thread"):
            y[i] = x[i]


@tm.kernel
def scaled(x: tm.Global["s32", "N"], y: tm.Global["f32", "N"], *, BY: Any = 1):
    for _ in parallel(1, level="block"):
        for i in parallel(4, level="thread"):
            y[i] = BY(x[i]) if callable(BY) else x[i] * BY


def croqtile(folder: Path, defines: dict[str, Any] | None = None) -> Kernel:
    path = folder / "first.co"
    path.write_text(CO)
    return tm.load(path, defines).first


@pytest.mark.parametrize(
    "eight", [8, np.int64(8), np.uint8(8), np.array(8), Eight()], ids=lambda x: type(x).__name__
)
def test_whatever_counts_is_an_integer(eight: Any, tmp_path: Path) -> None:
    co = croqtile(tmp_path)
    calls: list[Callable[..., Any]] = [
        lambda *a: first(*a, TILE=eight),
        lambda *a: co(*a, TILE=eight),
        croqtile(tmp_path, {"TILE": eight}),
    ]
    for call in calls:
        x, y = np.arange(8, dtype=np.int32), np.zeros(8, np.float32)
        call(x, y)
        assert (x == y).all()
    assert first.traced(TILE=eight) == first.traced(TILE=8)
    assert co.traced(TILE=eight) == co.traced(TILE=8)


def test_what_does_not_count_is_refused(tmp_path: Path) -> None:
    for wrong in (np.bool_(True), np.float32(8), np.array([8, 8]), None):
        with pytest.raises(CompileError) as e:
            croqtile(tmp_path, {"TILE": wrong})
        assert e.value.code == "bad-define"
        with pytest.raises(CompileError):
            first.traced(TILE=wrong)


def test_equal_values_of_other_types_are_traced_anew() -> None:
    """2**30 + 1 four times wraps to 4 in integers."""
    x, y = np.full(4, 2**30 + 1, np.int32), np.zeros(4, np.float32)
    for by, wanted in ((4, 4), (4.0, 2.0**32), (4, 4)):
        scaled(x, y, BY=by)
        assert (y == wanted).all()
    for by in (0.0, -0.0):
        scaled(x, y, BY=by)
        assert (np.signbit(y) == np.signbit(by)).all()
    assert scaled.traced(BY=True) is not scaled.traced(BY=1)


def test_constants_with_elements_are_told_apart_by_them() -> None:
    @tm.kernel
    def table(y: tm.Global["f32", 1], *, OF: Any):
        for _ in parallel(1, level="block"):
            y[0] = float(OF["all"][0][1500])

    y, values = np.zeros(1, np.float32), np.zeros(3000)
    for wanted in (1.0, 2.0):
        values[1500] = wanted
        table(y, OF={"all": [values.copy()]})
        assert y[0] == wanted


def test_a_function_made_at_the_address_of_an_earlier_one_is_another() -> None:
    x, y = np.full(4, 3, np.int32), np.zeros(4, np.float32)
    for k in range(4):
        scaled(x, y, BY=lambda v, k=k: v * k)
        assert (y == 3 * k).all()
