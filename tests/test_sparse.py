"""`tm.sparse`: pruning and compressing, against definitions that are written out here."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilemma as tm
from tilemma.errors import WrongArgument

TYPES = (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int8, np.uint8, np.float32)


def matrix(t: Any, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-8 if np.dtype(t).kind != "u" else 0, 9, (6, 64)).astype(t)


@pytest.mark.parametrize("t", TYPES, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("words", ["u8", "u16", "u32"])
def test_what_is_compressed_comes_back(t: Any, words: str) -> None:
    x = tm.sparse.prune(matrix(t))
    found = tm.sparse.compress(x, words)
    assert found.shape == x.shape and found.values.shape == (6, 32) and found.values.dtype == x.dtype
    chunk = 2 if t is np.float32 else 4
    assert found.metadata.shape == (6, 64 // chunk * 4 // int(words[1:]))
    np.testing.assert_array_equal(found.decompress(), x)


def test_the_two_largest_of_four_are_kept() -> None:
    x = matrix(np.float16).astype(np.float64)
    pruned = tm.sparse.prune(x.astype(np.float16)).astype(np.float64)
    for row, kept in zip(x.reshape(-1, 4), pruned.reshape(-1, 4), strict=True):
        assert (kept != 0).sum() <= 2 and set(kept[kept != 0]) <= set(row)
        assert abs(kept).sum() == max(abs(row[list(pair)]).sum() for pair in combinations(range(4), 2))


def test_two_bits_for_each_kept_element_the_lowest_first() -> None:
    x = np.array([[0, 5, 0, 7, 3, 2, 0, 0]], np.float16)
    found = tm.sparse.compress(x, "u8")
    np.testing.assert_array_equal(found.values, [[5, 7, 3, 2]])
    assert found.metadata.tolist() == [[0b0100_1101]]
    one = tm.sparse.compress(np.array([[0, 5, 3, 0]], np.float32), "u8")
    assert one.metadata.tolist() == [[0b0100_1110]] and one.values.tolist() == [[5, 3]]


@pytest.mark.parametrize(
    ("x", "words", "wrong"),
    [
        (np.ones((2, 8), np.float16), "u8", "pattern 2:4"),
        (np.zeros((2, 12), np.float16), "u16", "16 divides"),
        (np.zeros((2, 2, 8), np.float16), "u8", r"\[M, K\]"),
        (np.zeros((2, 8), np.float16), "s8", "'u8', 'u16' or 'u32'"),
    ],
)
def test_what_does_not_fit_is_refused(x: Any, words: str, wrong: str) -> None:
    with pytest.raises(WrongArgument, match=wrong):
        tm.sparse.compress(x, words)


@pytest.mark.parametrize("shape", [(0, 64), (16, 0), (0, 0), (3, 64)])
def test_sizes_of_zero_are_sizes(shape: tuple[int, int]) -> None:
    pruned = tm.sparse.prune(np.ones(shape, np.float16))
    assert (tm.sparse.compress(pruned).decompress() == pruned).all()


@pytest.mark.parametrize(
    "values, words, shape",
    [
        ((32,), (1, 2), (1, 64)),
        ((16, 32), (16, 3), (16, 64)),
        ((16, 32), (15, 2), (16, 64)),
        ((16, 32), (16, 2), (16, 63)),
    ],
)
def test_parts_of_different_matrices_are_refused(values: Any, words: Any, shape: Any) -> None:
    with pytest.raises(WrongArgument):
        tm.sparse.Sparse(np.ones(values, np.float16), np.zeros(words, np.uint32), shape).decompress()


def lanes(words: Any, order: str) -> Any:
    """Croqtile's prepacked words by their definition: word by word, as a lane of wgmma or mma.sp holds them."""
    rows, columns = words.shape
    out = np.zeros(words.size, np.uint32)
    first = np.zeros_like(words)
    for r in range(rows):
        block, upper, row = r // 16 * 16, r % 16 // 8, r % 8
        for c in range(columns):
            if order == "prepack_v2_fp8":
                lane = row << 2 | (c % 2) << 1 | upper
                out[(r // 16 * (columns // 2) + c // 2) * 32 + lane] = words[r, c]
                continue
            for half in (0, 1):
                sixteen = int(words[r, c]) >> 16 * half & 0xFFFF
                first[block + 2 * row + half, c] |= np.uint32(sixteen << 16 * upper)
    if order == "prepack":
        return first
    for r in range(rows):
        for c in range(columns if order == "prepack_v2" else 0):
            out[(r // 16 * columns + c) * 16 + r % 16] = first[r, c]
    return out.reshape(words.shape)


@pytest.mark.parametrize("order", ["prepack", "prepack_v2", "prepack_v2_fp8"])
@pytest.mark.parametrize("shape", [(16, 2), (48, 6), (64, 4)])
def test_prepacked_metadata(order: str, shape: tuple[int, int]) -> None:
    words = np.random.default_rng(1).integers(0, 2**32, shape, dtype=np.uint32)
    packed = tm.sparse.prepack(words, order)
    np.testing.assert_array_equal(packed, lanes(words, order))
    np.testing.assert_array_equal(tm.sparse.unpack(packed, order), words)


@pytest.mark.parametrize("call", [tm.sparse.prepack, tm.sparse.unpack])
@pytest.mark.parametrize(
    ("words", "order", "name"),
    [
        (np.zeros((16, 2), np.uint32), "v2", "order"),
        (np.zeros((16, 2), np.uint32), 2, "order"),
        (np.zeros((16, 2), np.uint16), "prepack", "metadata"),
        (np.zeros((24, 2), np.uint32), "prepack_v2", "metadata"),
        (np.zeros((16, 3), np.uint32), "prepack_v2_fp8", "metadata"),
        (np.zeros(16, np.uint32), "prepack", "metadata"),
    ],
)
def test_words_that_no_order_has(call: Any, words: Any, order: Any, name: str) -> None:
    with pytest.raises(WrongArgument) as caught:
        call(words, order)
    assert f"`{name}`" in str(caught.value)


def test_an_empty_matrix_has_no_words() -> None:
    none = np.zeros((0, 4), np.uint32)
    assert tm.sparse.prepack(none).shape == tm.sparse.unpack(none, "prepack_v2_fp8").shape == (0, 4)
