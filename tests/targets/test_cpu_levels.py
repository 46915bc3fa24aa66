"""Buffers and register tiles of an enclosing level that the instances of an inner one change, on the CPU."""

from __future__ import annotations

import edited
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import examples
from tilemma import dtypes
from tilemma.errors import TilemmaError
from tilemma.targets.cpu.registers import Registers, Tile

HEAD = "__co__ void k(global s32 [8] y) { parallel p by 1 : block { local s32 [2] v; v.at(0) = 1; v.at(1) = 2; "


def result(body: str) -> list[int] | str:
    """The array that the kernel writes on the CPU, or the code of the error."""
    (kernel,) = edited.read("co", f"{HEAD}{body} }} }}")
    y = np.full(8, -1, np.int32)
    try:
        kernel.on("cpu")(y)
    except TilemmaError as e:
        return e.code
    return [int(x) for x in y]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_instances_that_agree_change_the_buffer(count: int) -> None:
    """Also where there is one instance alone."""
    found = result(f"parallel w by {count} : group {{ v.at(0) = 7; }} y.at(0) = v.at(0); y.at(1) = v.at(1);")
    assert found == [7, 2, -1, -1, -1, -1, -1, -1]


@pytest.mark.parametrize("apart", [0, 1, 2])
def test_instances_that_differ_leave_no_value(apart: int) -> None:
    """Each of them, the first and the last one too; each finds its own value again where it writes again."""
    write = f"parallel w by 3 : group {{ if (w == {apart}) v.at(0) = 7; }} "
    assert result(f"{write} y.at(0) = v.at(0);") == "variable-diverged"
    again = "parallel w by 3 : group { v.at(1) = w; y.at(w) = v.at(0); } "
    assert result(write + again) == [7 if w == apart else 1 for w in range(3)] + [-1] * 5


@pytest.mark.parametrize("value", ["7", "p + 7"])
def test_lanes_that_agree_change_the_buffer(value: str) -> None:
    body = f"parallel w by 1 : group {{ parallel i by 32 : thread {{ v.at(0) = {value}; }} y.at(0) = v.at(0); }} "
    assert result(f"{body} y.at(1) = v.at(0);") == [7, 7, -1, -1, -1, -1, -1, -1]


@pytest.mark.parametrize("apart", [0, 1, 31])
def test_lanes_that_differ_leave_no_value(apart: int) -> None:
    write = f"parallel i by 32 : thread {{ if (i == {apart}) v.at(0) = 7; }} "
    assert result(f"parallel w by 1 : group {{ {write} y.at(0) = v.at(0); }}") == "variable-diverged"
    again = "parallel i by 32 : thread { v.at(1) = i; if (i % 31 < 2) y.at(i % 29) = v.at(0); }"
    assert (
        result(f"parallel w by 1 : group {{ {write} {again} }}")
        == [7 if apart == lane else 1 for lane in (0, 1, 31)] + [-1] * 5
    )


RANGES = [(first, count) for count in (32, 64, 128) for first in range(0, 128, count)]


@settings(max_examples=examples(200))
@given(st.lists(st.sampled_from(RANGES), min_size=1, max_size=8))
def test_threads_hold_the_tile_that_was_written_last(writes: list[tuple[int, int]]) -> None:
    """Of one register tile: threads that all saw one write last read its value."""
    held, last = Registers("m"), dict[int, int]()
    for n, (first, count) in enumerate(writes):
        held.write((), (first, count), Tile(dtypes.f32, np.full((1, 1), n, np.float32), None))
        last.update(dict.fromkeys(range(first, first + count, 32), n))
        for start, size in RANGES:
            values = {last.get(w) for w in range(start, start + size, 32)}
            if len(values) == 1 and values != {None}:
                assert float(held.read((), (start, size)).values((1, 1))[0, 0]) == values.pop()
