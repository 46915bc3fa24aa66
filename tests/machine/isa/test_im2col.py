"""Tensor copies in im2col mode, against the patches of a convolution in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilemma import machine
from tilemma.machine.isa import tensormap

PIXELS, CHANNELS = 32, 8


def kernel(rank: int, loads: bool = True) -> str:
    """Loads (or stores) one column of pixels; the coordinates and the offsets in the filter are in `at`."""
    coordinates = ", ".join(f"%c{i}" for i in range(rank))
    offsets = ", ".join(f"%h{i}" for i in range(rank - 2))
    reads = "\n".join(f"  ld.global.b32 %c{i}, [%d1+{4 * i}];" for i in range(2 * rank - 2))
    narrow = "\n".join(f"  cvt.u16.u32 %h{i}, %c{rank + i};" for i in range(rank - 2))
    size = 2 * PIXELS * CHANNELS
    load = f"""
  mbarrier.init.shared.b64 [%r1], 1; fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared.b64 _, [%r1], {size};
  cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes
    [%r0], [%d0, {{{coordinates}}}], [%r1], {{{offsets}}};
W: mbarrier.try_wait.parity.shared.b64 %p, [%r1], 0; @!%p bra W;
  cp.async.bulk.global.shared::cta.bulk_group [%d2], [%r0], {size};"""
    store = f"""
  mbarrier.init.shared.b64 [%r1], 1; fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared.b64 _, [%r1], {size};
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d2], {size}, [%r1];
W: mbarrier.try_wait.parity.shared.b64 %p, [%r1], 0; @!%p bra W;
  cp.async.bulk.tensor.{rank}d.global.shared::cta.im2col_no_offs.bulk_group [%d0, {{{coordinates}}}], [%r0];"""
    return f""".version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .align 128 .b8 map[128], .param .u64 at, .param .u64 out) {{
  .reg .b64 %d<4>; .reg .b32 %r<4>, %c<12>; .reg .b16 %h<4>; .reg .pred %p;
  .shared .align 128 .b8 tile[{size}]; .shared .align 8 .b8 bar[8];
  mov.b64 %d0, map; cvta.param.u64 %d0, %d0; ld.param.u64 %d1, [at]; ld.param.u64 %d2, [out];
  mov.u32 %r0, tile; mov.u32 %r1, bar; mov.u32 %r2, %tid.x; setp.ne.u32 %p, %r2, 0; @%p bra END;
{reads}
{narrow}
{load if loads else store}
  cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
END: ret;
}}
"""


def patches(
    x: Any, lower: tuple[int, ...], upper: tuple[int, ...], steps: tuple[int, ...], tap: tuple[int, ...]
) -> Any:
    """[pixels, channels] of a tensor [batch, ..., channels] at one tap of a filter; corners, steps and the tap are
    given with the outermost dimension first."""
    margin = 16
    padded = np.pad(x, [(0, 0), *[(margin, margin)] * (x.ndim - 2), (0, 0)])
    index = [slice(None)]
    for n, low, high, step, t in zip(x.shape[1:-1], lower, upper, steps, tap, strict=True):
        index.append(np.arange(low, n + high, step) + t + margin)
    return padded[np.ix_(np.arange(x.shape[0]), *index[1:])].reshape(-1, x.shape[-1])


# Shape without channels, corners of the pixel box, element strides, all outermost first.
CASES: list[Any] = [
    ((3, 20), (-1,), (-1,), (1,)),
    ((3, 9, 7), (-1, -1), (-1, -1), (1, 1)),
    ((2, 10, 9), (-1, 0), (-1, -2), (2, 2)),
    ((2, 4, 5, 6), (0, -1, -1), (-2, -1, -1), (1, 1, 1)),
]


@pytest.mark.parametrize(("shape", "lower", "upper", "steps"), CASES)
def test_a_column_holds_the_patches_of_a_convolution(
    shape: Any, lower: Any, upper: Any, steps: Any, assembles: Callable[[str, str], None]
) -> None:
    rank = len(shape) + 1
    ptx = kernel(rank)
    assembles(ptx, "sm_90a")
    x = np.random.default_rng(3).standard_normal((*shape, 2 * CHANNELS)).astype(np.float16)
    the_map = machine.TensorMap(
        x, (CHANNELS, PIXELS), element_strides=(1, *reversed(steps), 1), im2col=(lower[::-1], upper[::-1])
    )
    for tap in (tuple(0 for _ in lower), tuple(2 - i % 2 for i, _ in enumerate(lower))):
        at = np.array([CHANNELS, *lower[::-1], 0, *tap[::-1]], np.int32)
        out = np.zeros((PIXELS, CHANNELS), np.float16)
        verdict = machine.check(ptx, {"grid": 1, "block": 32}, {"m": the_map, "at": at, "out": out}, schedules=2)
        assert verdict.ok, verdict.render()
        assert (out == patches(x, lower, upper, steps, tap)[:PIXELS, CHANNELS:]).all()


def test_a_column_is_stored_without_offsets(assembles: Callable[[str, str], None]) -> None:
    ptx = kernel(4, loads=False)
    assembles(ptx, "sm_90a")
    x, column = np.zeros((3, 5, 6, CHANNELS), np.float16), np.arange(1, PIXELS * CHANNELS + 1).astype(np.float16)
    the_map = machine.TensorMap(x, (CHANNELS, PIXELS), im2col=((-1, -1), (1, 1)))
    at = np.array([0, 0, 0, 0, 0, 0], np.int32)
    args = {"m": the_map, "at": at, "out": column.reshape(PIXELS, CHANNELS)}
    verdict = machine.check(ptx, {"grid": 1, "block": 32}, args, schedules=2)
    assert verdict.ok, verdict.render()
    # The walk is from pixel (0, 0) of a box that is wider than the image: what lies outside is dropped.
    walk = [(h, w) for h in range(6) for w in range(-1, 7)][1:][:PIXELS]
    want = np.zeros_like(x)
    for (h, w), pixel in zip(walk, column.reshape(PIXELS, CHANNELS), strict=True):
        if 0 <= h < 5 and 0 <= w < 6:
            want[0, h, w] = pixel
    assert (x == want).all()


def test_a_mode_that_the_map_does_not_have_and_corners_out_of_range_are_refused() -> None:
    x = np.zeros((3, 9, 7, CHANNELS), np.float16)
    args = {
        "m": machine.TensorMap(x, (CHANNELS, 7, 9, 1)),
        "at": np.zeros(6, np.int32),
        "out": np.zeros(256, np.float16),
    }
    with pytest.raises(machine.HazardError, match="im2col mode uses a tensor map of the tiled mode"):
        machine.run(kernel(4), {"grid": 1, "block": 32}, args)
    image = tensormap.TensorMapImage(
        "f16", (8, 7, 9, 3), (16, 112, 1008), (8, 32), (1,) * 4, 0, 0, False, ((-1, -1), (1, 1))
    )
    assert tensormap.problems(image, 0) == []
    assert tensormap.decoded(tensormap.encoded(image, 256)) == (image, 256)
    for bad, what in (
        (replace(image, corners=((-1, -200), (1, 1))), "lower corner"),
        (replace(image, box=(8, 2000)), "1024"),
        (replace(image, dims=(8, 7), strides=(16,), element_strides=(1, 1)), "rank 3 to 5"),
    ):
        assert any(what in p for p in tensormap.problems(bad, 0)), what
