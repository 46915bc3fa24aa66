"""TMA copies of tiles with three to five dimensions: the machine and the reference read the same elements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilemma as tm
from tests.sampling import examples
from tilemma import croqtile, ops, testing
from tilemma.errors import CompileError
from tilemma.kernels import Kernel
from tilemma.targets.ptx.tensor_copies import TmaRefused

COPIES = """
__co__ void copies(global f16 [{dims}] x, global f16 [{dims}] y, global f16 [{dims}] z) {{
  parallel b by 1 : block {{
    shared f16 [{extents}] s;
    tma.copy x.view({tile} : {steps}).from({origin}) => s.subspan({tile}).at({zeros});
    dma.copy s.subspan({tile}).at({zeros}) => y.view({tile}).from({zeros});
    tma.copy s.subspan({tile}).at({zeros}) => z.view({tile}).from({origin});
  }}
}}
"""


@dataclass(frozen=True)
class Case:
    """A tile [extents of it], its steps and its origin in an array, in a buffer that may be larger."""

    dims: tuple[int, ...]
    extents: tuple[int, ...]
    tile: tuple[int, ...]
    steps: tuple[int, ...]
    origin: tuple[int, ...]

    @property
    def text(self) -> str:
        lists = {k: ", ".join(map(str, getattr(self, k))) for k in ("dims", "extents", "tile", "steps", "origin")}
        return COPIES.format(**lists, zeros=", ".join("0" * len(self.dims)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    outer = draw(st.integers(2, 4))
    tile = [draw(st.integers(1, 4)) for _ in range(outer)]
    last = draw(st.sampled_from((8, 16, 64)))
    extents = [n + draw(st.sampled_from((0, 0, 0, 4))) for n in tile]
    dims = [draw(st.integers(n, n + 3)) for n in tile]
    steps = [draw(st.sampled_from((1, 1, 2, 3))) for _ in range(outer)]
    origin = [draw(st.integers(-2, 2)) for _ in range(outer)]
    wide = draw(st.sampled_from((last, last + 8)))
    return Case(
        (*dims, wide), (*extents, last), (*tile, last), (*steps, 1), (*origin, draw(st.sampled_from((0, 0, 8))))
    )


def loaded(text: str) -> Kernel:
    (source,) = croqtile.load(text, "copies.co", {}).sources.values()
    return Kernel(source)


def legal(case: Case) -> bool:
    """Whether each box, dense in shared memory, starts on 128 bytes."""
    rows = 1
    for axis in reversed(range(len(case.tile) - 1)):
        n, distance = case.tile[axis], prod(case.extents[axis + 1 : -1])
        if n == 1:
            continue
        if distance == rows:
            rows *= n
        elif distance * case.tile[-1] * 2 % 128:
            return False
    return True


@given(cases())
@settings(max_examples=examples(12), deadline=None)
def test_a_tile_is_copied_as_the_reference_copies_it(case: Case) -> None:
    kernel = loaded(case.text)
    x = testing.random_array(case.dims, "f16", seed=1)
    wanted, got = ([np.full_like(x, 7) for _ in range(2)] for _ in range(2))
    if not legal(case):
        with pytest.raises(TmaRefused, match="bytes apart"):
            kernel.compile(arch="sm_90a")
        return
    kernel.on("cpu")(x, *wanted)
    kernel.on("machine", arch="sm_90a")(x, *got)
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_array_equal(a, b)
    assert kernel.compile(arch="sm_90a").ptx.count("cp.async.bulk.tensor") >= 2


@tm.kernel
def rows_for_all(
    x: tm.Global["f16", "M", "K"],
    out: tm.Global["f16", "B", "M", "K"],
    *,
    SWIZZLE=128,
    BLOCKS=4,
    ROWS=12,
    WIDTH=64,
):
    for _ in tm.parallel(1, level="cluster"):
        for block in tm.parallel(BLOCKS, level="block"):
            s = tm.shared("f16", ROWS, WIDTH)
            tm.tma.copy(x.subspan(ROWS, WIDTH).at(0, 0), s, multicast=True, swizzle=SWIZZLE)
            tm.dma.copy(s, out.subspan(1, ROWS, WIDTH).at(block, 0, 0).sqz())


@pytest.mark.parametrize("swizzle, rows", [(128, 12), (128, 4), (64, 24), (32, 16), (0, 12)])
def test_parts_of_a_multicast_start_within_a_swizzle_atom(swizzle: int, rows: int) -> None:
    """Wherever their first line is a multiple of 128 bytes."""
    width = (swizzle or 128) // 2
    x = testing.random_array((rows, width), "f16", seed=rows)
    out = np.full((4, rows, width), np.nan, np.float16)
    rows_for_all.on("machine", arch="sm_90a")(x, out, SWIZZLE=swizzle, ROWS=rows, WIDTH=width)
    assert (out == x).all()
    with pytest.raises(TmaRefused, match="divided among 4 blocks"):
        odd = rows // 2 if rows % 8 == 0 else rows + 2
        rows_for_all.compile(arch="sm_90a", SWIZZLE=swizzle, ROWS=odd, WIDTH=width)


def test_steps_beyond_the_tensor_map_are_refused() -> None:
    case = Case((64, 4, 64), (4, 4, 64), (4, 4, 64), (9, 1, 1), (0, 0, 0))
    with pytest.raises(CompileError, match="skips elements"):
        loaded(case.text).compile(arch="sm_90a")


def test_a_tile_that_a_span_as_makes_a_matrix_is_read_by_wgmma() -> None:
    """The dimensions before the last one are rows of shared memory, however many they are."""
    from tilemma.ops.convolution_kernels import convolution_tiles

    extents = {"TILE_B": 1, "TILE_P": 8, "TILE_Q": 16, "TILE_O": 64, "TILE_C": 64, "GROUPS": 2}
    absent = {"C_IMAGES": 1, "C_P": 1, "C_Q": 1, "C_O": 1, "BIAS": 1}
    plan = convolution_tiles.compile(arch="sm_90a", **extents, **absent, STRIDE_H=2).explain().render()
    assert "_SS," in plan and "copy x[1 x 8 x 16 x 64] => x_s: tma" in plan


def test_the_tile_of_a_convolution_covers_what_registers_hold() -> None:
    """The accumulators of a warpgroup, and the extents of a box, for images of all sizes."""
    from tilemma.ops.convolution_plan import Reach, tile
    from tilemma.ops.plan import Hardware

    for result in ((1, 1, 1, 8), (32, 7, 7, 512), (2, 1, 300, 64), (1, 1000, 3, 72), (64, 14, 14, 1024)):
        for filters in ((1, 1, 8), (3, 3, 72), (7, 7, 1280)):
            reach = Reach(filters[0], 1), Reach(filters[1] * filters[2], filters[2])
            t = tile(result, (result[3], *filters), reach, Hardware(), on_cpu=False)
            assert t.rows // t.GROUPS % 64 == 0 and t.rows // t.GROUPS * t.TILE_O <= 64 * 256
            assert max(t.TILE_B, t.TILE_P, t.TILE_Q, t.TILE_O) <= 256 and t.TILE_C in (16, 32, 64)


def test_a_convolution_of_the_pipelined_kernel_is_right() -> None:
    """Strides, padding and dilation, images that no tile divides, on the machine."""
    from tilemma.ops import forms

    x, w = testing.random_array((2, 9, 11, 72), "f16", 1), testing.random_array((40, 3, 2, 72), "f16", 2)
    options = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)}
    wanted = ops.conv2d(x, w, **options)
    compute, got = forms.run, np.zeros_like(wanted)
    extents = {"TILE_B": 2, "TILE_P": 4, "TILE_Q": 8, "TILE_O": 64, "TILE_C": 64, "GROUPS": 1}

    def run(ready: forms.Prepared) -> None:
        (step,) = ready.steps
        step = replace(step, constants={**step.constants, **extents})
        compute(replace(ready, steps=(step,)), "machine", arch="sm_90a")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "run", run)
        ops.conv2d(x, w, out=got, **options)
    np.testing.assert_allclose(got, wanted, rtol=2**-8, atol=2**-4)
