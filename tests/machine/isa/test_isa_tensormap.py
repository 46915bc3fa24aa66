"""Tensor maps: the limits of the encoding, boxes in and out of bounds, swizzled destinations."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilemma.launch import TensorMapArgument
from tilemma.machine.isa.tensormap import (
    TensorMapImage,
    box_transfer,
    destination_problems,
    from_launch,
    problems,
)

GOOD = TensorMapImage("f16", (136, 130), (272,), (64, 128), (1, 1), 128)

BAD = [
    (GOOD, 0x1008, "not a multiple of 16 bytes"),
    (replace(GOOD, dims=(0, 130)), 0, "dimension 0 has 0 elements"),
    (replace(GOOD, dims=(136, (1 << 32) + 1)), 0, "dimension 1 has"),
    (replace(GOOD, strides=(270,)), 0, "the stride of dimension 1"),
    (replace(GOOD, strides=(1 << 40,)), 0, "below 2**40"),
    (replace(GOOD, strides=()), 0, "entries each"),
    (replace(GOOD, box=(64, 257)), 0, "the box has 257"),
    (replace(GOOD, box=(0, 128)), 0, "the box has 0"),
    (replace(GOOD, box=(60, 128)), 0, "not a multiple of 16"),
    (replace(GOOD, box=(128, 128)), 0, "longer than the 128-byte swizzle"),
    (replace(GOOD, element_strides=(1, 9)), 0, "element stride of dimension 1 is 9"),
    (replace(GOOD, swizzle=16), 0, "none of 0, 32, 64, 128"),
    (replace(GOOD, interleave=32), 0, "rank 3"),
    (replace(GOOD, interleave=32), 16, "not a multiple of 32"),
    (replace(GOOD, dtype="s8", oob_nan=True), 0, "NaN fill"),
    (TensorMapImage("f16", (8,) * 6, (16,) * 5, (8,) * 6, (1,) * 6), 0, "rank 6"),
]


@pytest.mark.parametrize("image,base,reason", BAD, ids=[b[2] for b in BAD])
def test_a_limit_is_named(image, base, reason):
    found = problems(image, base)
    assert any(reason in p for p in found), found


def test_a_good_map_has_no_problems():
    assert problems(GOOD, 0x1000) == []
    assert problems(TensorMapImage("s8", (100,), (), (64,), (1,)), 16) == []
    assert destination_problems(GOOD, 1024, 2) == []
    assert "not a multiple of 128" in destination_problems(GOOD, 1024 + 64, 2)[0]
    assert "3 dimensions" in destination_problems(GOOD, 1024, 3)[0]


maps = st.integers(1, 4).flatmap(
    lambda rank: st.tuples(
        st.sampled_from(["f16", "f32", "s8"]),
        st.tuples(*[st.integers(1, 20)] * rank),
        st.tuples(*[st.integers(1, 5)] * rank),
        st.tuples(*[st.integers(1, 3)] * rank),
        st.tuples(*[st.integers(-6, 22)] * rank),
        st.sampled_from([0, 32, 64, 128]),
    )
)


@given(maps)
def test_box_transfer_is_the_nested_loop(case):
    """Element by element: in bounds or not, where from, where to (swizzled by lines of 128 bytes)."""
    name, dims, box, steps, coords, mode = case
    rank = len(dims)
    size = {"f16": 2, "f32": 4, "s8": 1}[name]
    inner = 16 // size
    box = (inner, *box[1:])
    strides = tuple(int(np.prod(dims[:i])) * 64 for i in range(1, rank))
    image = TensorMapImage(name, dims, strides, box, steps, mode)
    offsets, addresses = box_transfer(image, coords, 1024)
    counts = [inner] + [-(-b // s) for b, s in zip(box[1:], steps[1:], strict=True)]
    pitches = (size, *strides)
    line = mode or inner * size
    n = 0
    for index in itertools.product(*[range(c) for c in counts[::-1]]):
        index = index[::-1]
        at = [coords[0] + index[0]] + [c + i * s for c, i, s in zip(coords[1:], index[1:], steps[1:], strict=True)]
        inside = all(0 <= x < d for x, d in zip(at, dims, strict=True))
        assert offsets[n] == (sum(x * p for x, p in zip(at, pitches, strict=True)) if inside else -1)
        lines = 0
        for i in range(rank - 1, 0, -1):
            lines = lines * counts[i] + index[i]
        plain = 1024 + lines * line + index[0] * size
        y, x = plain // 128, plain % 128 // 16
        assert addresses[n] == y * 128 + (x ^ y % max(1, mode // 16)) * 16 + plain % 16
        n += 1
    assert n == offsets.size == addresses.size == np.unique(addresses).size
    assert image.transaction_bytes == n * size
    assert addresses.max() + size <= 1024 + max(image.footprint, 128)


def test_out_of_bounds_on_every_side():
    image = TensorMapImage("f32", (8, 4), (32,), (4, 2), (1, 1))
    inside = lambda coords: (box_transfer(image, coords, 0)[0] >= 0).reshape(2, 4).tolist()  # noqa: E731
    assert inside((0, 0)) == [[True] * 4] * 2
    assert inside((-1, -1)) == [[False] * 4, [False, True, True, True]]
    assert inside((6, 3)) == [[True, True, False, False], [False] * 4]
    assert inside((8, 0)) == [[False] * 4] * 2
    # Beyond the end of a row is out of bounds, not the next row.
    assert box_transfer(image, (7, 0), 0)[0].tolist() == [28, -1, -1, -1, 60, -1, -1, -1]


def test_traversal_strides_thin_out_the_box():
    image = TensorMapImage("f16", (16, 9), (32,), (8, 5), (1, 2))
    assert image.counts == (8, 3)
    offsets, addresses = box_transfer(image, (0, 1), 256)
    assert offsets.reshape(3, 8)[:, 0].tolist() == [32, 96, 160]
    assert addresses.tolist() == list(range(256, 256 + 48, 2))


def test_from_launch_evaluates_the_plan():
    argument = TensorMapArgument(
        "lhs", "f16", ("K", "M"), (("mul", "lhs.stride0", 2),), (64, 128), (1, 1), swizzle=128, interleave=0
    )
    image = from_launch(argument, {"M": 130, "K": 136, "lhs.stride0": 136})
    assert image == GOOD
