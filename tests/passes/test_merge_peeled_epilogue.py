"""Multiplies after a pipelined loop are merged into it as one more iteration, if they are nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from test_double_buffer_fragments import built, main_loop
from test_meaning import arrays_for, keeps_meaning

from tilemma import machine
from tilemma.compiler import compile_kernel
from tilemma.ir.expr import Index, binary, const, substitute
from tilemma.ir.tile import Body, Copy, For, Kernel, Load, Mma, Op, Parallel, SwapFutures, WaitFuture
from tilemma.ir.walk import map_expressions, rewrite, walk
from tilemma.passes.merge_peeled_epilogue import MergePeeledEpilogue
from tilemma.targets.cpu import execute
from tilemma.targets.ptx.passes import PASSES


def before_the_pass(name: str = "double_buffer", **constants: int) -> Kernel:
    kernel = built(name, **constants)
    for step in PASSES("sm_80"):
        if isinstance(step, MergePeeledEpilogue):
            return kernel
        kernel = step.run(kernel, [])
    raise AssertionError("the pass does not run")


def multiplies(kernel: Kernel) -> int:
    return sum(isinstance(x, Mma) for x in walk(kernel.body))


def folded(kernel: Kernel) -> bool:
    after = MergePeeledEpilogue().run(kernel, [])
    assert (multiplies(after) < multiplies(kernel)) == (after != kernel)
    return after != kernel


def block_of(kernel: Kernel) -> tuple[Body, int]:
    """The body that the main loop stands in, and where."""
    (block,) = kernel.body
    assert isinstance(block, Parallel)
    return block.body, block.body.index(main_loop(kernel))


def with_block(kernel: Kernel, body: Body) -> Kernel:
    (block,) = kernel.body
    return replace(kernel, body=(replace(block, body=body),))


def test_one_more_turn() -> None:
    log: list = []
    kernel = before_the_pass()
    after = MergePeeledEpilogue().run(kernel, log)
    assert multiplies(kernel) == 2 and multiplies(after) == 1
    before, loop = main_loop(kernel), main_loop(after)
    assert loop.stop == binary("add", binary("max", before.stop, const(1)), const(1)) == loop.index.extent
    body, at = block_of(after)
    assert isinstance(body[at + 1], WaitFuture) and not any(isinstance(x, Load) for x in walk(body[at + 1 :]))
    assert [d.pass_name for d in log] == ["tail"]


@pytest.mark.parametrize("k", [0, 8, 32, 40, 64, 72, 160])
def test_the_meaning_stays(k: int) -> None:
    """Also with no turn at all before."""
    keeps_meaning(built("double_buffer"), "sm_80", {"M": 40, "N": 64, "K": k})


@pytest.mark.parametrize("k", [8, 32, 40, 64, 72])
def test_the_machine_agrees(k: int) -> None:
    compiled = compile_kernel(built("double_buffer"), "sm_80")
    assert multiplies(compiled.kernel) == len(
        [x for x in walk(main_loop(compiled.kernel).body) if isinstance(x, Mma)]
    )
    dims = {"M": 40, "N": 32, "K": k}
    expected, found = arrays_for(compiled.source, dims), arrays_for(compiled.source, dims)
    execute(compiled.source, expected, {}, dims=dims)
    for schedule in ("late", "early", "random"):
        machine.run(compiled.ptx, compiled.launches[0], found, seed=5, schedule=schedule, strict=True)
        assert np.array_equal(expected["output"], found["output"])


def test_a_loop_without_a_tail_stays() -> None:
    assert not folded(before_the_pass("multistage"))


def test_names_do_not_matter() -> None:
    kernel = before_the_pass()
    body, at = block_of(kernel)
    tail = body[at + 2]
    assert isinstance(tail, Parallel) and isinstance(tail.body[0], For)
    steps = tail.body[0]
    other = Index("other", steps.index.extent)

    def renamed(op: Op) -> Op:
        return map_expressions(op, lambda e: substitute(e, {steps.index.name: other}))

    tail = replace(tail, body=rewrite(tail.body, renamed))
    assert folded(with_block(kernel, (*body[: at + 2], tail, *body[at + 3 :])))


def edit_tail(edit: Callable[[Op], Op | Body]) -> Callable[[Kernel], Kernel]:
    def edited(kernel: Kernel) -> Kernel:
        body, at = block_of(kernel)
        return with_block(kernel, (*body[: at + 1], *rewrite(body[at + 1 : at + 3], edit), *body[at + 3 :]))

    return edited


def edit_loop(edit: Callable[[For], For]) -> Callable[[Kernel], Kernel]:
    def edited(kernel: Kernel) -> Kernel:
        body, at = block_of(kernel)
        return with_block(kernel, (*body[:at], edit(main_loop(kernel)), *body[at + 1 :]))

    return edited


def fewer_steps(op: Op) -> Op:
    return replace(op, stop=const(1)) if isinstance(op, For) else op


def other_rows(op: Op) -> Op:
    return replace(op, src=op.src.shift(0, 8)) if isinstance(op, Load) else op


def waits_for_one(op: Op) -> Op:
    return replace(op, futures=op.futures[:1]) if isinstance(op, WaitFuture) else op


def no_waits(op: Op) -> Op | Body:
    return () if isinstance(op, WaitFuture) else op


def edit_copies(edit: Callable[[Copy], Copy]) -> Callable[[For], For]:
    return lambda loop: replace(loop, body=tuple(edit(x) if isinstance(x, Copy) else x for x in loop.body))


def one_tile_on(copy: Copy) -> Copy:
    """Of the tile before: the last turn would read a tile that exists."""
    return replace(copy, src=copy.src.shift(1, -32))


def loop_to(stop: int) -> Callable[[For], For]:
    return lambda loop: replace(loop, stop=const(stop))


def two_apart(loop: For) -> For:
    return replace(loop, step=const(2))


def without_rotation(loop: For) -> For:
    return replace(loop, body=tuple(x for x in loop.body if not isinstance(x, SwapFutures)))


def one_rotation_less(loop: For) -> For:
    """The last copy into the other buffer would never be waited for."""
    swaps = [x for x in loop.body if isinstance(x, SwapFutures)]
    return replace(loop, body=tuple(x for x in loop.body if x is not swaps[-1]))


def rotation_first(loop: For) -> For:
    swaps = tuple(x for x in loop.body if isinstance(x, SwapFutures))
    return replace(loop, body=(*swaps, *without_rotation(loop).body))


def used_later(kernel: Kernel) -> Kernel:
    """A buffer of the loop is read again behind its tail."""
    body, at = block_of(kernel)
    return with_block(kernel, (*body[: at + 3], *body[at + 2 : at + 3], *body[at + 3 :]))


def declared_outside(kernel: Kernel) -> Kernel:
    """Operations outside the body that contains the loop may use the buffers."""
    body, at = block_of(kernel)
    return with_block(kernel, (*body[:at], Parallel((), body[at : at + 3]), *body[at + 3 :]))


@pytest.mark.parametrize(
    "edit",
    [
        edit_tail(fewer_steps),
        edit_tail(other_rows),
        edit_tail(waits_for_one),
        edit_tail(no_waits),
        edit_loop(edit_copies(one_tile_on)),
        edit_loop(edit_copies(lambda c: replace(c, future=None))),
        edit_loop(loop_to(3)),
        edit_loop(two_apart),
        edit_loop(without_rotation),
        edit_loop(one_rotation_less),
        edit_loop(rotation_first),
        used_later,
        declared_outside,
    ],
)
def test_anything_else_stays(edit: Callable[[Kernel], Kernel]) -> None:
    kernel = before_the_pass()
    assert folded(kernel)
    changed = edit(kernel)
    assert changed != kernel and not folded(changed)


def test_half_of_the_multiplies_are_left() -> None:
    tiles = {"TILE_M": 128, "TILE_N": 256, "WARP_M": 64, "WARP_N": 64, "TILE_K": 64}
    ptx = compile_kernel(built("double_buffer", **tiles), "sm_80").ptx
    assert ptx.count("mma.sync") == 4 * 4 * 8
