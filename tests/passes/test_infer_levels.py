from __future__ import annotations

import pytest
from pass_kernels import levels_kernel

from tilemma.ir.expr import Dim
from tilemma.ir.tile import Parallel
from tilemma.ir.types import BLOCK, GROUP, THREAD, WARPGROUP, Level
from tilemma.ir.walk import walk
from tilemma.modules import load
from tilemma.passes.infer_levels import (
    EmptyLevel,
    InferLevels,
    LevelExtent,
    LevelNesting,
    LevelOverflow,
    TooManyLevels,
    TooManyThreads,
)
from tilemma.passes.scope import block_threads, blocks


def inferred(*levels: tuple[object, Level | None]) -> list[Level | None]:
    kernel = InferLevels().run(levels_kernel(*levels), [])
    return [op.level for op in walk(kernel.body) if isinstance(op, Parallel)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([None], [BLOCK]),
        ([None, None], [BLOCK, THREAD]),
        ([None, None, None], [BLOCK, GROUP, THREAD]),
        ([None, WARPGROUP], [BLOCK, WARPGROUP]),
        ([BLOCK, None], [BLOCK, THREAD]),
        ([BLOCK, None, THREAD], [BLOCK, GROUP, THREAD]),
        ([None, BLOCK, None], [Level("cluster"), BLOCK, THREAD]),
        ([BLOCK, GROUP, None], [BLOCK, GROUP, THREAD]),
    ],
)
def test_unannotated_levels(given, expected):
    assert inferred(*((2, level) for level in given)) == expected


def test_a_second_run_changes_nothing():
    once = InferLevels().run(levels_kernel((4, None), (8, None)), [])
    assert InferLevels().run(once, []) == once


@pytest.mark.parametrize(
    ("levels", "error"),
    [
        ([(2, BLOCK), (2, BLOCK)], LevelNesting),
        ([(2, BLOCK), (2, THREAD), (2, GROUP)], LevelNesting),
        ([(2, BLOCK), (2, GROUP), (2, WARPGROUP)], LevelNesting),
        ([(2, None), (2, None), (2, None), (2, None)], TooManyLevels),
        ([(2, BLOCK), (Dim("M"), GROUP)], LevelExtent),
        ([(2, BLOCK), (0, GROUP)], EmptyLevel),
        ([(2, BLOCK), (9, WARPGROUP)], TooManyThreads),
        ([(2, BLOCK), (2, WARPGROUP), (5, GROUP)], LevelOverflow),
        ([(2, BLOCK), (2, GROUP), (33, THREAD)], LevelOverflow),
    ],
)
def test_refused(levels, error):
    with pytest.raises(error) as caught:
        InferLevels().run(levels_kernel(*levels), [])
    assert caught.value.render()


@pytest.mark.parametrize(
    ("levels", "threads"),
    [
        ([(2, BLOCK)], 32),
        ([(2, BLOCK), (3, WARPGROUP)], 384),
        ([(2, BLOCK), (40, THREAD)], 64),
        ([(2, BLOCK), (3, WARPGROUP), (128, THREAD)], 384),
        ([(2, BLOCK), (2, WARPGROUP), (4, GROUP)], 256),
    ],
)
def test_threads_of_a_block(levels, threads):
    kernel = InferLevels().run(levels_kernel(*levels), [])
    (block,) = blocks(kernel)
    assert block_threads(block) == threads


def test_a_compiled_kernel_tells_what_was_inferred_once(tmp_path):
    text = "__co__ void k(global s32 [A, 8] out) { parallel i by A { parallel j by 8 { out.at(i, j) = j; } } }"
    (tmp_path / "k.co").write_text(text)
    told = [str(d) for d in load(tmp_path / "k.co").only().compile("sm_80").decisions if d.pass_name == "levels"]
    assert told == ["levels: i by A: inferred `block`", "levels: j by 8: inferred `thread`",
                    "levels: i by A: 32 threads a block"]  # fmt: skip
