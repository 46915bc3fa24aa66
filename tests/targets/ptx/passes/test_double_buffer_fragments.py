"""Operand fragments are loaded one step ahead, also across iterations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_meaning import arrays_for, keeps_meaning

from tests.sampling import pairwise
from tilemma import machine
from tilemma.compiler import compile_kernel
from tilemma.ir.expr import Dim, binary, const, substitute
from tilemma.ir.tile import (
    Barrier,
    Body,
    Copy,
    CopyCommit,
    CopyWait,
    DeclareFragment,
    For,
    If,
    Kernel,
    Load,
    Mma,
    Parallel,
    WaitFuture,
)
from tilemma.ir.walk import map_expressions, rewrite, walk
from tilemma.modules import load_python
from tilemma.passes import Decision
from tilemma.targets.cpu import execute
from tilemma.targets.ptx.passes import PASSES, decide
from tilemma.targets.ptx.passes.double_buffer_fragments import DoubleBufferFragments

EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "py"
SMALL = {"TILE_M": 32, "TILE_N": 32, "WARP_M": 16, "WARP_N": 16, "TILE_K": 32}
NAMES = ["double_buffer", "multistage"]


def built(name: str, **constants: int) -> Kernel:
    return load_python(EXAMPLES / f"{name}.py").only().build(**{**SMALL, **constants})


def main_loop(kernel: Kernel) -> For:
    """The loop over K, which has copies in it."""
    (loop,) = (
        x for x in walk(kernel.body) if isinstance(x, For) and any(isinstance(y, Copy) for y in walk(x.body))
    )
    return loop


def ahead(kernel: Kernel) -> bool:
    return any(isinstance(x, DeclareFragment) and x.copies == (2,) for x in walk(kernel.body))


def inside(name: str, arch: str = "sm_80", **constants: int) -> For:
    return main_loop(decide(built(name, **constants), arch)[0])


@pytest.mark.parametrize("name", NAMES)
def test_one_barrier_a_turn_and_loads_behind_it(name: str) -> None:
    body = inside(name).body
    at = [i for i, x in enumerate(body) if isinstance(x, Barrier)]
    assert len(at) == 1 and isinstance(body[at[0] - 1], CopyWait)
    behind = body[at[0] + 1 :]
    # Copies into two alternating buffers start where one of them becomes free; of three, one is always free.
    early = [If, Parallel, If, CopyCommit] if name == "double_buffer" else [Parallel]
    assert [type(x) for x in behind] == early
    (last,) = (x for x in behind if isinstance(x, Parallel))
    assert [type(x) for x in last.body] == [Load, Load, Mma]


@pytest.mark.parametrize("name", NAMES)
def test_a_step_multiplies_what_the_step_before_loaded(name: str) -> None:
    """Of the two sets of registers, loads write the one that the multiplies after them do not read."""
    for x in walk(inside(name, TILE_K=64).body):
        if isinstance(x, (For, Parallel)) and any(isinstance(y, Load) for y in x.body):
            loads = [str(y.fragment.index) for y in x.body if isinstance(y, Load)]
            reads = [str(y.a.index) for y in x.body if isinstance(y, Mma)]
            assert not set(loads) & set(reads)


@pytest.mark.parametrize(("name", "k", "tile_k"), pairwise(NAMES, [8, 32, 40, 100, 160], [32, 64]))
def test_the_meaning_stays(name: str, k: int, tile_k: int) -> None:
    """Also without a turn, and with tiles over every edge."""
    keeps_meaning(built(name, TILE_K=tile_k), "sm_80", {"M": 40, "N": 64, "K": k})


@pytest.mark.parametrize(
    ("name", "arch", "m", "n", "k"),
    pairwise(NAMES, ["sm_80", "sm_90a"], [(64, 64, 128), (40, 56, 72), (32, 32, 16)]),
)
def test_the_machine_agrees(name: str, arch: str, m: int, n: int, k: int) -> None:
    dims = {"M": m, "N": n, "K": k}
    kernel = built(name)
    compiled = compile_kernel(kernel, arch)
    assert ahead(compiled.kernel)
    expected, found = arrays_for(kernel, dims), arrays_for(kernel, dims)
    execute(kernel, expected, {}, dims=dims)
    for schedule in ("late", "early", "random"):
        machine.run(compiled.ptx, compiled.launches[0], found, seed=3, schedule=schedule, strict=True)
        assert np.array_equal(expected["output"], found["output"])


@pytest.mark.parametrize(
    ("constants", "why"),
    [
        ({"TILE_K": 16}, "one step"),
        ({"TILE_K": 48}, "an odd number of steps"),
        ({"TILE_M": 128, "TILE_N": 256, "WARP_M": 32, "WARP_N": 64}, "registers of 16 warps"),
    ],
)
def test_left_alone(constants: dict[str, int], why: str) -> None:
    kernel, log = decide(built("double_buffer", **constants), "sm_80")
    assert not ahead(kernel), why
    if "registers" in why:
        assert any(d.pass_name == "ahead" and "registers" in d.text for d in log)


def before_the_pass(kernel: Kernel) -> Kernel:
    for step in PASSES("sm_80"):
        if isinstance(step, DoubleBufferFragments):
            return kernel
        kernel = step.run(kernel, [])
    raise AssertionError("the pass does not run")


def changed(kernel: Kernel, loop: Callable[[For], Body]) -> Kernel:
    """``kernel`` with another body in its main loop."""
    main = main_loop(kernel)
    return replace(
        kernel, body=rewrite(kernel.body, lambda op: replace(op, body=loop(main)) if op == main else op)
    )


def copy_into_what_is_loaded(loop: For) -> Body:
    (first, *_) = [x.src.base for x in walk(loop.body) if isinstance(x, Load)]
    copies = [i for i, x in enumerate(loop.body) if isinstance(x, Copy)]
    body = list(loop.body)
    body[copies[0]] = replace(body[copies[0]], dst=replace(body[copies[0]].dst, base=first))
    return tuple(body)


def wait_for_what_is_copied_now(loop: For) -> Body:
    futures = tuple(x.future for x in loop.body if isinstance(x, Copy))
    return tuple(replace(x, futures=futures) if isinstance(x, WaitFuture) else x for x in loop.body)


def synchronous_copies(loop: For) -> Body:
    return tuple(replace(x, future=None) if isinstance(x, Copy) else x for x in loop.body)


def no_waits(loop: For) -> Body:
    return tuple(x for x in loop.body if not isinstance(x, WaitFuture))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "edit", [copy_into_what_is_loaded, wait_for_what_is_copied_now, synchronous_copies, no_waits]
)
def test_loads_stay_behind_what_they_depend_on(name: str, edit: Callable[[For], Body]) -> None:
    kernel = before_the_pass(built(name))
    assert ahead(DoubleBufferFragments("sm_80").run(changed(kernel, lambda loop: loop.body), []))
    assert not ahead(DoubleBufferFragments("sm_80").run(changed(kernel, edit), []))


def test_a_buffer_that_may_be_empty_is_not_loaded() -> None:
    """Of the buffers that change places, each has been copied to whenever its turn comes."""
    kernel = before_the_pass(built("multistage"))
    (block,) = kernel.body
    copies = [x for x in block.body if isinstance(x, Copy) and x.future is not None]
    assert len(copies) == 4
    for maybe in copies:
        body = tuple(If(binary("gt", Dim("K"), const(0)), (x,)) if x is maybe else x for x in block.body)
        assert not ahead(
            DoubleBufferFragments("sm_80").run(replace(kernel, body=(replace(block, body=body),)), [])
        )


@pytest.mark.parametrize("name", NAMES)
def test_tiles_over_an_edge_are_clipped(name: str) -> None:
    """Each bound is asked for: dropping any of them reads outside an array."""
    compiled = compile_kernel(built(name), "sm_80")
    for dims in ({"M": 40, "N": 64, "K": 96}, {"M": 64, "N": 40, "K": 96}, {"M": 64, "N": 64, "K": 88}):
        expected, found = arrays_for(compiled.source, dims), arrays_for(compiled.source, dims)
        execute(compiled.source, expected, {}, dims=dims)
        machine.run(compiled.ptx, compiled.launches[0], found, strict=True)
        assert np.array_equal(expected["output"], found["output"])


def started_early(kernel: Kernel) -> bool:
    log: list[Decision] = []
    DoubleBufferFragments("sm_80").run(kernel, log)
    return any(d.pass_name == "early" for d in log)


def read_after(main: For) -> Body:
    (first, *_) = [x for x in main.body if isinstance(x, Copy)]
    return main, replace(first, src=first.dst, future=None)


def written_after(main: For) -> Body:
    (first, *_) = [x for x in main.body if isinstance(x, Copy)]
    return main, replace(first, dst=first.src, future=None)


def backwards(main: For) -> Body:
    turns = main.stop
    swap = {main.index.name: binary("sub", turns, main.index)}
    copies = {id(x): map_expressions(x, lambda e: substitute(e, swap)) for x in main.body if isinstance(x, Copy)}
    return (replace(main, body=tuple(copies.get(id(x), x) for x in main.body)),)


@pytest.mark.parametrize("edit", [read_after, written_after, backwards])
def test_copies_start_early_only_where_one_too_many_does_no_harm(edit: Callable[[For], Body]) -> None:
    kernel = before_the_pass(built("double_buffer"))
    main = main_loop(kernel)
    assert started_early(kernel)
    assert not started_early(
        replace(kernel, body=rewrite(kernel.body, lambda op: edit(main) if op == main else op))
    )


def test_three_buffers_leave_a_turn_to_every_copy() -> None:
    assert not started_early(before_the_pass(built("multistage")))
