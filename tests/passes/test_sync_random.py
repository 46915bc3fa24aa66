"""Random kernels of copies, element work, loops, conditions and levels: decided, they have no race."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pass_kernels import BLOCK, GROUP, Builder, Space, Tile, dtypes
from race_oracle import races

from tests.sampling import examples
from tilemma import machine
from tilemma.compiler import compile_kernel
from tilemma.errors import CompileError
from tilemma.ir.expr import add, binary, const, mod, mul
from tilemma.ir.tile import Break, Continue
from tilemma.ir.types import THREAD, WARPGROUP
from tilemma.passes.scope import block_threads, blocks

ROWS = 4


class Writer:
    """Draws the statements of one block; ``scope`` holds the indices in reach with their extents."""

    def __init__(self, draw):
        self.draw = draw
        # The loops and parallels around the statement: whether it may leave the innermost.
        self.loops = []
        self.b = Builder("random")
        self.x = self.b.array_param("x", dtypes.f32, ["M", "K"])
        with self.b.parallel(["i"], [1], BLOCK):
            self.shared = [
                Tile.whole(self.b.alloc(f"s{n}", Space.SHARED, dtypes.f32, [ROWS, 64], init=0.0)) for n in range(2)
            ]
            self.body([], depth=0, inner=None)

    def kernel(self):
        return self.b.finish()

    def body(self, scope, depth, inner):
        for _ in range(self.draw(st.integers(1, 3))):
            self.statement(scope, depth, inner)

    def row(self, scope, mine):
        """A row of a shared tile: a constant, or an index in reach, or one turned round.

        ``mine``: no other instance that runs the same statement has the same row.
        """
        warps = [index for index, kind in scope if kind == "warps"]
        if mine and warps:
            return self.draw(st.sampled_from([warps[0], binary("sub", ROWS - 1, warps[0])]))
        choices = [const(self.draw(st.integers(0, ROWS - 1)))]
        for index, kind in scope:
            if kind == "loop" or not mine:
                turned = mod(index, ROWS)
                choices += [turned, mod(add(index, 1), ROWS), binary("sub", ROWS - 1, turned)]
            if kind == "loop":
                choices += [index, add(index, 1)]
        return self.draw(st.sampled_from(choices))

    def statement(self, scope, depth, inner):
        kinds = ["copy in", "copy out", "set"]
        if depth < 3:
            kinds += ["for", "if"]
            if self.loops and self.loops[-1]:
                kinds += ["jump", "jump"]
            if inner is None:
                kinds += ["warps", "threads", "warpgroups", "warps"]
        kind = self.draw(st.sampled_from(kinds))
        b, number = self.b, self.draw(st.integers(0, 1))
        s, other = self.shared[number], self.shared[1 - number]
        shared_by_all = [pair for pair in scope if pair[1] == "loop"]
        for_all = self.draw(st.booleans())
        match kind:
            case "copy in":
                row = self.row(shared_by_all if for_all or inner is THREAD else scope, True)
                tile = self.x.subspan([1, 64], [self.draw(st.integers(0, 9)), 0])
                b.copy(tile, s.subspan([1, 64], [row, 0]))
            case "copy out":
                row = self.row(shared_by_all if for_all or inner is THREAD else scope, True)
                b.copy(s.subspan([1, 64], [row, 0]), self.x.subspan([1, 64], [add(row, 100), 0]))
            case "set":
                column = next((index for index, kind in scope if kind == "threads"), const(3))
                across = self.draw(st.sampled_from([column, binary("sub", 63, column)]))
                value = b.element(other, [self.row(scope, False), across])
                b.set_element(s, [self.row(scope, True), column], value)
            case "for":
                with b.foreach("j", self.draw(st.integers(2, 3))) as j:
                    self.loops.append(True)
                    self.body([*scope, (j.value, "loop")], depth + 1, inner)
                    self.loops.pop()
            case "if":
                with b.if_(self.test(scope)):
                    self.body(scope, depth + 1, inner)
            case "jump":
                with b.if_(self.test(scope)):
                    if self.draw(st.booleans()):
                        self.statement(scope, 3, inner)
                    b.emit(self.draw(st.sampled_from([Break(), Continue()])))
            case "warps" | "warpgroups":
                level, count = (GROUP, self.draw(st.sampled_from([2, 4]))) if kind == "warps" else (WARPGROUP, 2)
                self.loops.append(False)
                with b.parallel(["w"], [count], level) as (w,):
                    self.body([*scope, (w.value, "warps")], depth + 1, level)
                self.loops.pop()
            case "threads":
                self.loops.append(False)
                with b.parallel(["t"], [64], THREAD) as (t,):
                    self.body([*scope, (t.value, "threads")], depth + 1, THREAD)
                self.loops.pop()

    def test(self, scope):
        """A condition on an index in reach."""
        tests = [binary("gt", mul(index, 2), const(1)) for index, _ in scope]
        tests += [binary("eq", index, const(1)) for index, _ in scope]
        return self.draw(st.sampled_from(tests or [const(True)]))


@st.composite
def kernels(draw):
    return Writer(draw).kernel()


def decided(kernel):
    """``kernel`` after all passes; None where it is refused."""
    try:
        return compile_kernel(kernel, "sm_80")
    except CompileError:
        return None


def block_of(write):
    """A kernel of one block with a shared tile of eight rows, and what ``write(builder, x, tile)`` writes."""
    b = Builder("f")
    x = b.array_param("x", dtypes.f32, ["M", "K"])
    with b.parallel(["i"], [1], BLOCK):
        write(b, x, Tile.whole(b.alloc("s", Space.SHARED, dtypes.f32, [8, 64], init=0.0)))
    return b.finish()


def races_of(kernel):
    kernel = compile_kernel(kernel, "sm_80").kernel
    (block,) = blocks(kernel)
    return races(kernel, {"M": 1, "K": 1}, block_threads(block))


def row(tile, at):
    return tile.subspan([1, 64], [at, 0])


def test_a_wait_of_some_threads_ends_no_copy_of_others():
    """The copies of two groups make their warps wait; the four warps that copied before have not all waited."""

    def write(b, x, s):
        b.copy(row(x, 9), row(s, 7))
        with b.parallel(["w"], [2], GROUP) as (w,):
            b.copy(row(x, 4), row(s, w.value))
            b.set_element(s, [w.value, const(3)], b.element(s, [w.value, const(5)]))
        with b.parallel(["w"], [4], GROUP):
            b.copy(row(x, 7), row(s, 7))

    assert races_of(block_of(write)) == []


def test_a_loop_entered_again_starts_at_another_index():
    """Rows j and j + 1 differ within an iteration, but not between two runs of the loop."""

    def write(b, x, s):
        with b.foreach("i", 2), b.foreach("j", 3) as j:
            b.copy(row(x, 3), row(s, add(j.value, 1)))
            b.copy(row(x, 5), row(s, j.value))
            with b.if_(binary("eq", j.value, const(1))):
                b.emit(Break())
            b.copy(row(s, add(j.value, 2)), row(x, 100))

    assert races_of(block_of(write)) == []


def test_instances_that_leave_a_loop_are_met_by_those_that_stay():
    """Group 2 writes row 2 and leaves; group 0 writes it in the next iteration, where no barrier can be."""

    def write(b, x, s, rows=4):
        with b.parallel(["w"], [4], GROUP) as (w,), b.foreach("j", 3) as j:
            with b.if_(binary("eq", j.value, const(1))), b.if_(binary("eq", w.value, const(0))):
                b.copy(row(s, 2), row(x, 102))
            with b.if_(binary("gt", mul(w.value, 2), const(1))):
                b.copy(row(s, w.value), row(x, add(w.value, 100 if rows == 4 else 103)))
                b.emit(Break())

    with pytest.raises(CompileError) as e:
        races_of(block_of(write))
    assert e.value.code == "barrier-not-uniform"
    assert races_of(block_of(lambda b, x, s: write(b, x, s, 7))) == []


def test_a_wait_between_two_runs_of_a_loop():
    """The copy of one run has been waited for outside the loop that carries it into the next run."""

    def write(b, x, s):
        with b.foreach("i", 3) as i:
            with b.parallel(["w"], [2], GROUP) as (w,):
                b.copy(row(x, 3), row(s, add(w.value, 6)))
                b.copy(row(s, add(w.value, 6)), row(x, add(w.value, 103)))
            with b.foreach("j", 3) as j, b.if_(binary("gt", mul(j.value, 2), const(1))):
                b.copy(row(x, 4), row(s, add(i.value, 1)))
                b.emit(Continue())

    assert races_of(block_of(write)) == []


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(kernels())
def test_random_kernels_have_no_race(kernel):
    compiled = decided(kernel)
    if compiled is not None:
        (block,) = blocks(compiled.kernel)
        assert races(compiled.kernel, {"M": 1, "K": 1}, block_threads(block)) == []


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(kernels(), st.integers(0, 99))
def test_random_kernels_give_one_result_on_the_machine(kernel, seed):
    compiled = decided(kernel)
    if compiled is None:
        return
    given_x = np.random.default_rng(seed).integers(0, 9, (128, 64)).astype(np.float32)
    results = []
    for schedule in ("early", "late", "random"):
        x = given_x.copy()
        (launch,) = compiled.launches
        machine.run(compiled.ptx, launch, {"x": x}, seed=seed, schedule=schedule, strict=True)
        results.append(x)
    assert all(np.array_equal(r, results[0]) for r in results)
