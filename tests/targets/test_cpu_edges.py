"""The reference at the edges of buffers, where an index is known at run time only: the last place is inside, the
next one is reported with its number."""

from __future__ import annotations

import numpy as np
import pytest
from differential import croqtile_kernel

from tilemma.errors import TilemmaError

EIGHT = {-1: "index -1 of 8", 8: "index 8 of 8"}
FOUR = {-1: "index -1 of 4", 4: "index 4 of 4"}
PARTS = {-1: "elements -4 to -1 of 8", 2: "elements 8 to 11 of 8"}
# Declarations, a statement on the run-time `n`, the last `n` that is right, what is said of others.
PROGRAMS = {
    "an element stored": ("shared f32 [8] s;", "s.at(n) = 1.0f;", 7, EIGHT),
    "an element loaded": ("shared f32 [8] s{1.0f};", "x.at(0) = s.at(n);", 7, EIGHT),
    "the first of two indices": ("shared f32 [4, 8] s{1.0f};", "x.at(0) = s.at(n, 3);", 3, FOUR),
    "the second of two indices": ("shared f32 [8, 4] s{1.0f};", "x.at(0) = s.at(3, n);", 3, FOUR),
    "a local array": ("local f32 [8] s{1.0f};", "x.at(0) = s.at(n);", 7, EIGHT),
    "a part copied": ("shared f32 [8] s{1.0f}; shared f32 [4] t;", "dma.copy s.subspan(4).at(n) => t;", 1, PARTS),
    "a part filled": ("shared f32 [8] s; shared f32 [4] t{1.0f};", "dma.copy t => s.subspan(4).at(n);", 1, PARTS),
    "a view": (
        "shared f32 [8] s{1.0f}; shared f32 [4] t;", "dma.copy s.view(4).from(n) => t;", 4,
        {-1: "elements -1 to 2 of 8", 5: "elements 5 to 8 of 8"},
    ),
    "a slot": (
        "shared f32 [4] s[2]{1.0f};", "s[n].at(0) = 2.0f;", 1,
        {-1: "slot -1 of `s`, which has 2", 2: "slot 2 of `s`, which has 2"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_index_at_run_time(name: str) -> None:
    declared, statement, last, outside = PROGRAMS[name]
    text = f"__co__ void f(global f32 [8] x, int n) {{ parallel p by 1 : block {{ {declared} {statement} }} }}"
    kernel = croqtile_kernel(text).on("cpu")
    for n in (0, last):
        kernel(np.zeros(8, np.float32), n)
    for n, said in outside.items():
        with pytest.raises(TilemmaError) as caught:
            kernel(np.zeros(8, np.float32), n)
        assert caught.value.code == ("slot-outside" if name == "a slot" else "view-outside")
        assert said in str(caught.value) and "`s`" in str(caught.value)
        assert caught.value.span is not None and caught.value.span.column == text.index(statement) + 1


@pytest.mark.parametrize("written", range(-1, 4))
def test_a_place_that_is_read_first(written: int) -> None:
    """Of four places one is not written."""
    text = """__co__ void f(global f32 [4] x, int n) { parallel p by 1 : block {
      shared f32 [4] s; foreach i in 4 { if (i != n) { s.at(i) = 1.0f; } } dma.copy s => x; } }"""
    kernel, x = croqtile_kernel(text).on("cpu"), np.zeros(4, np.float32)
    if written < 0:
        kernel(x, written)
        assert (x == 1).all()
        return
    with pytest.raises(TilemmaError) as caught:
        kernel(x, written)
    assert caught.value.code == "unwritten-read" and f"1 element, first [{written}]" in str(caught.value)
