"""Random kernels of copies, element work, loops, conditions and levels: decided, they have no race."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pass_kernels import BLOCK, GROUP, Builder, Space, Tile, dtypes
from race_oracle import races

from tilemma.errors import CompileError
from tilemma.ir.expr import add, binary, const, mod, mul
from tilemma.ir.types import THREAD, WARPGROUP
from tilemma.passes import FRONT_PASSES, Simplify
from tilemma.passes.assign_layouts import AssignLayouts
from tilemma.passes.choose_atoms import ChooseAtoms
from tilemma.passes.choose_copies import ChooseCopies
from tilemma.passes.insert_sync import InsertSync
from tilemma.passes.scope import block_threads, blocks

ROWS = 4


class Writer:
    """Draws the statements of one block; ``scope`` holds the indices in reach with their extents."""

    def __init__(self, draw):
        self.draw = draw
        self.b = Builder("random")
        self.x = self.b.array_param("x", dtypes.f32, ["M", "K"])
        with self.b.parallel(["i"], [1], BLOCK):
            self.shared = [
                Tile.whole(self.b.alloc(f"s{n}", Space.SHARED, dtypes.f32, [ROWS, 64])) for n in range(2)
            ]
            self.body([], depth=0, inner=None)

    def kernel(self):
        return self.b.finish()

    def body(self, scope, depth, inner):
        for _ in range(self.draw(st.integers(1, 3))):
            self.statement(scope, depth, inner)

    def row(self, scope):
        """A row of a shared tile: a constant, an index in reach, or one turned round."""
        choices = [const(self.draw(st.integers(0, ROWS - 1)))]
        for index, extent in scope:
            choices += [mod(index, ROWS), mod(add(index, 1), ROWS), binary("sub", ROWS - 1, mod(index, ROWS))]
        return self.draw(st.sampled_from(choices))

    def statement(self, scope, depth, inner):
        kinds = ["copy in", "copy out", "set"]
        if depth < 3:
            kinds += ["for", "if"]
            if inner is None:
                kinds += ["warps", "threads", "warpgroups", "warps"]
        kind = self.draw(st.sampled_from(kinds))
        b, s = self.b, self.draw(st.sampled_from(self.shared))
        match kind:
            case "copy in":
                b.copy(
                    self.x.subspan([1, 64], [self.draw(st.integers(0, 9)), 0]),
                    s.subspan([1, 64], [self.row(scope), 0]),
                )
            case "copy out":
                row = self.row(scope)
                b.copy(s.subspan([1, 64], [row, 0]), self.x.subspan([1, 64], [add(row, 100), 0]))
            case "set":
                column = next((index for index, extent in scope if extent == 64), const(3))
                other = self.draw(st.sampled_from(self.shared))
                value = b.element(
                    other, [self.row(scope), self.draw(st.sampled_from([column, binary("sub", 63, column)]))]
                )
                b.set_element(s, [self.row(scope), column], value)
            case "for":
                with b.foreach("j", self.draw(st.integers(2, 3))) as j:
                    self.body([*scope, (j.value, 3)], depth + 1, inner)
            case "if":
                tests = [binary("gt", mul(index, 2), const(1)) for index, _ in scope] or [const(True)]
                with b.if_(self.draw(st.sampled_from(tests))):
                    self.body(scope, depth + 1, inner)
            case "warps" | "warpgroups":
                level, count = (GROUP, self.draw(st.sampled_from([2, 4]))) if kind == "warps" else (WARPGROUP, 2)
                with b.parallel(["w"], [count], level) as (w,):
                    self.body([*scope, (w.value, count)], depth + 1, level)
            case "threads":
                with b.parallel(["t"], [64], THREAD) as (t,):
                    self.body([*scope, (t.value, 64)], depth + 1, THREAD)


@st.composite
def kernels(draw):
    return Writer(draw).kernel()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(kernels())
def test_random_kernels_have_no_race(kernel):
    try:
        for p in (*FRONT_PASSES, Simplify(), ChooseAtoms("sm_80"), AssignLayouts(), ChooseCopies("sm_80")):
            kernel = p.run(kernel, [])
        kernel = InsertSync("sm_80").run(kernel, [])
    except CompileError:
        return
    (block,) = blocks(kernel)
    assert races(kernel, {"M": 1, "K": 1}, block_threads(block)) == []
