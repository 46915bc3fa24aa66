"""Convolutions of several kernels: steps divided into parts, and images of few channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from form_cases import convolved

from tilemma import ops, testing
from tilemma.ops import convolution, forms
from tilemma.ops.convolution_operands import Operands, joined
from tilemma.ops.convolution_plan import ConvolutionTile, Reach, tile
from tilemma.ops.plan import Hardware
from tilemma.runtime.arrays import describe

TARGETS = pytest.mark.parametrize("target", ["cpu", "machine"])
Kernels = list[str]


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch, target: str) -> Kernels:
    """The names of the kernels that calls run, on ``target``."""
    compute, seen = forms.run, []

    def run(ready: forms.Prepared) -> None:
        seen.extend(s.kernel.name for s in ready.steps)
        compute(ready, "machine", arch="sm_90a", seed=1) if target == "machine" else compute(ready)

    monkeypatch.setattr(forms, "run", run)
    return seen


def agree(x: Any, w: Any, got: Any, how: dict[str, tuple[int, int]], ending: Any = lambda y: y) -> None:
    wanted = ending(convolved(x, w, how["stride"], how["padding"], how["dilation"]))
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=2**-9, atol=2**-5)


@TARGETS
def test_parts_of_the_steps_are_added(target: str, kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of unequal length, with images that the tiles do not divide, and an epilogue."""
    monkeypatch.setattr(convolution, "tile", lambda *_, **__: ConvolutionTile(2, 4, 8, 64, 64, 1, SPLIT=4))
    x, w = testing.random_array((3, 9, 11, 72), "f16", 1), testing.random_array((40, 3, 2, 72), "f16", 2)
    how = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)}
    bias, c = testing.random_array((40,), "f32", 3), testing.random_array((3, 5, 13, 40), "f16", 4)
    got = ops.conv2d(x, w, **how, bias=bias, c=c, beta=2.0, alpha=0.5, activation="relu")
    assert kernels == ["convolution_tiles", "add_tiles"]
    agree(x, w, got, how, lambda y: np.maximum(0.5 * y + 2.0 * c.astype(np.float64) + bias, 0))


@TARGETS
@pytest.mark.parametrize("stride, dilation", [((1, 1), 1), ((1, 2), 2), ((3, 4), 1), ((2, 2), 2), ((2, 2), 1)])
@pytest.mark.parametrize("parts", [1, 2])
def test_rows_of_few_channels_are_contracted_as_runs(
    target: str, kernels: Kernels, stride: tuple[int, int], dilation: int, parts: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(convolution, "operands", lambda *given: joined(Operands(*given[:5]), given[5].shape))
    monkeypatch.setattr(convolution, "tile", lambda *_, **__: ConvolutionTile(2, 4, 8, 64, 32, 1, SPLIT=parts))
    x, w = testing.random_array((3, 10, 13, 3), "f16", 1), testing.random_array((40, 3, 5, 3), "f16", 2)
    how = {"stride": stride, "padding": (1, 2), "dilation": (dilation, 1)}
    got = ops.conv2d(np.asfortranarray(x), w[::-1], **how)
    assert kernels[:3] == ["padded_images", "joined_filters", "convolution_tiles"]
    agree(x, w[::-1], got, how)


def test_few_tiles_are_divided_into_parts() -> None:
    reach = Reach(3, 1), Reach(3 * 1280, 1280)
    few, many = ((8, 8, 8, 1280), (1280, 3, 3, 1280), reach), ((8, 64, 64, 320), (320, 3, 3, 320), reach)
    assert tile(*few, Hardware(), on_cpu=False).SPLIT > 1
    assert tile(*many, Hardware(), on_cpu=False).SPLIT == 1


def test_overlapping_windows_are_neighbours_in_a_tile() -> None:
    """Of equally fast tiles the one whose pixels share their windows."""
    x = describe(testing.random_array((4, 64, 64, 3), "f16", 0))
    w = describe(testing.random_array((64, 7, 7, 3), "f16", 0))
    result = (4, 32, 32, 64)
    given = joined(Operands(x, w, (2, 2), (3, 3), (1, 1)), result)
    assert tile(result, given.w.shape, given.reach, Hardware(), on_cpu=False).TILE_Q >= 8
