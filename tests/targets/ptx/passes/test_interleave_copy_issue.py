"""Copies of later iterations among the multiplies: no branches, zeros outside every edge."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_double_buffer_fragments import NAMES, built, inside, main_loop
from test_meaning import arrays_for

from tilemma import LaunchError, machine
from tilemma.compiler import compile_kernel
from tilemma.ir.expr import Binary, Const, Expr, Select, binary, const, value_of
from tilemma.ir.tile import Alloc, Barrier, Copy, CopyCommit, CopyWait, If, Kernel, Load, Mma, Op, Parallel
from tilemma.ir.walk import rewrite, walk
from tilemma.kernels import facts_of
from tilemma.modules import load_python
from tilemma.targets.cpu import execute
from tilemma.targets.ptx.passes import PASSES
from tilemma.targets.ptx.passes.interleave_copy_issue import InterleaveCopyIssue

TILES = {"TILE_M": 128, "TILE_N": 256, "WARP_M": 64, "WARP_N": 64, "TILE_K": 64}

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"


def before_the_pass(name: str, **constants: int) -> Kernel:
    kernel = built(name, **constants)
    for step in PASSES("sm_80"):
        if isinstance(step, InterleaveCopyIssue):
            return kernel
        kernel = step.run(kernel, [])
    raise AssertionError("the pass does not run")


def edges(op: Op) -> set[str]:
    return {x.plan.edge for x in walk((op,)) if isinstance(x, Copy) and x.plan is not None}


@pytest.mark.parametrize("name", NAMES)
def test_copies_are_asked_without_branches(name: str) -> None:
    """Branches are taken only in a turn in which an edge cuts vectors, at its start or its end."""
    body = [x for x in inside(name).body if not isinstance(x, (Alloc, CopyCommit))]
    ifs = [x for x in body if isinstance(x, If)]
    (cut,) = [x for x in ifs if edges(x) == {"cut vectors"}]
    assert cut in (body[0], body[-1]) and all(edges(x) == {"whole vectors"} for x in ifs if x is not cut)
    rest = tuple(x for x in body if not isinstance(x, If))
    assert all(not edges(x) for x in rest) and not any(isinstance(x, If) for x in walk(rest))


def test_a_group_closes_behind_all_its_copies() -> None:
    body = inside("double_buffer").body
    copies = [i for i, x in enumerate(body) if edges(x)]
    (commit,) = [i for i, x in enumerate(body) if isinstance(x, CopyCommit)]
    assert len(copies) == 2 and commit > max(copies)


def test_copies_of_three_buffers_stand_among_the_multiplies() -> None:
    _, first, second, *_ = (x for x in inside("multistage").body if isinstance(x, (Parallel, If)))
    assert isinstance(first, Parallel) and all(isinstance(x, Load) for x in first.body)
    assert isinstance(second, If) and edges(second) == {"whole vectors"}


@pytest.mark.parametrize("name", NAMES)
def test_a_turn_copies_and_waits_as_before(name: str) -> None:
    def counts(body: tuple[Op, ...]) -> Counter[type[Op]]:
        return Counter(type(x) for x in walk(body) if isinstance(x, (Barrier, CopyWait, CopyCommit)))

    kernel = before_the_pass(name)
    after = InterleaveCopyIssue().run(kernel, [])
    assert counts(main_loop(kernel).body) == counts(main_loop(after).body)

    def rows(kernel: Kernel, edge: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for x in walk(main_loop(kernel).body):
            if isinstance(x, Copy) and x.plan.edge == edge:
                found[x.dst.base.name] = found.get(x.dst.base.name, 0) + x.dst.static_shape[0]
        return found

    assert rows(kernel, "") == rows(after, "whole vectors") == rows(after, "cut vectors") != {}


def test_copies_are_cut_into_equal_shares() -> None:
    """Of 4 and 8 rows of instructions, each of three steps gets 4; the group closes behind the last."""
    body = inside("multistage", **TILES).body[3:]
    kinds = [type(x) for x in body if isinstance(x, (If, CopyCommit, Parallel))]
    step = [Parallel, If, Parallel]
    assert [x for x in kinds if x is not CopyCommit] == [*step * 3, Parallel]
    assert kinds.index(CopyCommit) > max(i for i, x in enumerate(kinds) if x is If)
    for name, end in (("lhs", 128), ("rhs", 256)):
        parts = [x for x in walk(body) if isinstance(x, Copy) and x.src.base.name == name]
        assert all(x.dst.static_shape == x.src.static_shape == (128, 64) for x in parts)
        assert [value_of(x.dst.offsets[0]) for x in parts] == list(range(0, end, 128))
        assert [x.src.offsets[0] for x in parts[1:]] == [binary("add", parts[0].src.offsets[0], const(128))][
            : end // 256
        ]


def test_copies_of_two_buffers_go_together() -> None:
    body = inside("double_buffer", **TILES).body
    (whole,) = [x for x in body if isinstance(x, If) and edges(x) == {"whole vectors"}]
    assert [x.dst.static_shape for x in whole.then] == [(128, 64), (256, 64)]


def test_two_buffers_ask_for_the_rare_branch_behind_the_multiplies() -> None:
    body = inside("double_buffer").body
    start = next(i for i, x in enumerate(body) if isinstance(x, Barrier)) + 1
    whole, group, cut, closed = body[start:]
    assert edges(whole) == {"whole vectors"} and edges(cut) == {"cut vectors"}
    assert any(isinstance(x, Mma) for x in walk((group,))) and isinstance(closed, CopyCommit)


def test_copies_awaited_in_their_turn_go_together() -> None:
    """Where they cannot start earlier: in the first step, before its multiplies."""
    kernel = before_the_pass("multistage", **TILES)

    def awaited(op: Op) -> Op:
        return replace(op, pending=0) if isinstance(op, CopyWait) else op

    body = main_loop(InterleaveCopyIssue().run(replace(kernel, body=rewrite(kernel.body, awaited)), [])).body
    at = [i for i, x in enumerate(body) if isinstance(x, If) and edges(x) == {"whole vectors"}]
    assert len(at) == 1 and not any(isinstance(x, Mma) for x in walk(body[: at[0]]))


@pytest.mark.parametrize(
    ("k", "turns"), [(0, []), (64, []), (69, [0]), (93, [0]), (96, []), (97, [1]), (127, [1]), (128, [])]
)
def test_the_turn_that_an_edge_cuts(k: int, turns: list[int]) -> None:
    """Turn n copies tile n + 2, of 32 columns in vectors of 8; those behind the edge may go either way."""
    cut, whole, *_ = (x for x in inside("multistage").body if isinstance(x, If))
    for n in range(6):
        found = evaluate(cut.cond, {"K": k, "k": n})
        assert found == 1 - evaluate(whole.cond, {"K": k, "k": n})
        if (n + 2) * 32 < k or k % 8 == 0:
            assert found == (n in turns)


def evaluate(e: Expr, values: dict[str, int]) -> int:
    if isinstance(e, Select):
        return evaluate(e.a if evaluate(e.cond, values) else e.b, values)
    if isinstance(e, Binary):
        found = value_of(binary(e.op, const(evaluate(e.a, values)), const(evaluate(e.b, values))))
        assert found is not None
        return int(found)
    if isinstance(e, Const):
        return int(e.value)
    return values[e.name.split(".")[0]]


@pytest.mark.parametrize("name", NAMES)
def test_an_extent_of_whole_vectors_has_no_such_turn(name: str) -> None:
    kernel = before_the_pass(name)

    def fixed(op: Op) -> Op:
        if isinstance(op, Copy) and op.future is not None:
            base = replace(op.src.base, shape=(op.src.base.shape[0], const(96)))
            return replace(op, src=replace(op.src, base=base))
        return op

    loop = main_loop(InterleaveCopyIssue().run(replace(kernel, body=rewrite(kernel.body, fixed)), []))
    assert not any(isinstance(x, If) for x in loop.body) and edges(loop) == {"whole vectors"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("k", [1, 31, 61, 69, 100, 163])
def test_edges_through_vectors(name: str, arch: str, k: int) -> None:
    """Rows of whole vectors whose last elements are not the array's: what is there is never multiplied."""
    compiled = compile_kernel(built(name), arch)
    dims = {"M": 40, "N": 56, "K": k}
    expected, found = arrays_for(compiled.source, dims), arrays_for(compiled.source, dims)
    execute(compiled.source, expected, {}, dims=dims)
    for side in ("lhs", "rhs"):
        rows = np.full((found[side].shape[0], k + 16 - k % 8), np.nan, np.float16)
        rows[:, :k] = found[side]
        found[side] = rows[:, :k]
    machine.run(compiled.ptx, compiled.launches[0], found, seed=2, schedule="random", strict=True)
    assert np.array_equal(expected["output"], found["output"])


def test_arrays_of_whole_rows_need_no_branch() -> None:
    """The facts of actual arrays exclude cut vectors; the launch checks that other arrays do too."""

    def arrays(k: int) -> dict[str, np.ndarray]:
        stored = -(-k // 8) * 8
        wide = {n: np.ones((rows, stored), np.float16)[:, :k] for n, rows in (("lhs", 64), ("rhs", 32))}
        return {**wide, "output": np.zeros((64, 32), np.float16)}

    kernel = load_python(EXAMPLES / "py" / "multistage.py").only()
    tiles = {"TILE_M": 64, "TILE_N": 32, "TILE_K": 32, "WARP_M": 32, "WARP_N": 32}
    compiled = kernel.compile("sm_80", facts=facts_of(arrays(72)), **tiles)
    assert edges(main_loop(compiled.kernel)) == {"whole vectors"}
    (launch,) = compiled.launches
    for k in (72, 64):
        given = arrays(k)
        assert machine.run(compiled.ptx, launch, given, strict=True).ok
        assert (given["output"] == k).all()
    with pytest.raises(LaunchError, match="rows of whole 16-byte units"):
        machine.run(compiled.ptx, launch, arrays(70))
