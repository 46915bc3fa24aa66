"""Random kernels that copy operands ahead of their multiplies: 2 to 4 buffers, tails, epilogues that read old
tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from dev.fuzz import programs as f

S32 = "s32"


@dataclass(frozen=True)
class _Operand:
    """``major``: whether the array's columns are K.

    ``block`` and ``tile``: how many of its other dimension a block and a group take; ``at`` and ``group``: the
    indices of both; ``future``: its copies are called so, and a number.
    """

    array: f.Array
    major: bool
    block: int
    tile: int
    at: str
    group: str
    future: str


@dataclass(frozen=True)
class Pipeline:
    """One loop over K, which copies ``depth`` elements along K in each iteration, and multiplies them in
    ``steps``."""

    a: _Operand
    b: _Operand
    k: str
    depth: int
    step: int
    level: str
    grid: tuple[int, int]
    fresh: Callable[[str], str]
    accumulator: str

    @property
    def contract(self) -> str:
        return ".".join("row" if x.major else "col" for x in (self.a, self.b))

    def start(self, n: int, k: f.Expr) -> tuple[f.Stmt, ...]:
        """Copies of tile ``k`` into buffer ``n``."""
        made: list[f.Stmt] = []
        for x in (self.a, self.b):
            shape, at = (x.block, self.depth), (f.Name(S32, x.at), k)
            view = f.View(x.array.name, "subspan", *((shape, at) if x.major else (shape[::-1], at[::-1])))
            made.append(f.Start(f"{x.future}{n}", view))
        return tuple(made)

    def wait(self, count: int) -> f.Stmt:
        return f.Wait(tuple(f"{x.future}{n}" for n in range(count) for x in (self.a, self.b)))

    def swap(self, count: int) -> tuple[f.Stmt, ...]:
        return tuple(f.Swap(tuple(f"{x.future}{n}" for n in range(count))) for x in (self.a, self.b))

    def multiply(self, steps: int) -> f.Stmt:
        """The first ``steps`` steps of buffer 0."""
        inner, ma, mb = (self.fresh(n) for n in ("step", "ma", "mb"))
        loads: list[f.Stmt] = []
        for x, tile in ((self.a, ma), (self.b, mb)):
            shape, at = (x.tile, self.step), (f.Name(S32, x.group), f.Name(S32, inner))
            view = f.View(f"{x.future}0.data", "subspan", *((shape, at) if x.major else (shape[::-1], at[::-1])))
            loads.append(f.Load(tile, view))
        body = (*loads, f.Mma(self.contract, self.accumulator, ma, mb))
        loop = f.For(inner, f.Lit(S32, steps), body)
        grid = tuple(f.Lit(S32, n) for n in self.grid)
        return f.Parallel((self.a.group, self.b.group), grid, self.level, (loop,))

    def loop(self, r: Random, buffers: int) -> tuple[f.Stmt, ...]:
        index, whole = self.fresh("k"), self.depth // self.step
        k: f.Expr = f.Name(S32, index)
        turns = f.Bin(S32, "cdiv", f.Name(S32, self.k), f.Lit(S32, self.depth))
        turn, swaps = self.multiply(whole), self.swap(buffers)
        if buffers == 2 and r.random() < 0.6:
            body = (*self.start(1, k), self.wait(1), turn, *swaps)
            tail = r.choice(((turn,), (turn,), (turn, turn), (self.multiply(max(1, whole - 1)),), ()))
            return (*self.start(0, f.Lit(S32, 0)), f.For(index, turns, body, 1), self.wait(1), *tail)
        before = tuple(s for n in range(buffers - 1) for s in self.start(n, f.Lit(S32, n)))
        copies = self.start(buffers - 1, f.Bin(S32, "+", k, f.Lit(S32, buffers - 1)))
        lead = (*copies, self.wait(1)) if buffers == 2 or r.random() < 0.4 else (self.wait(1), *copies)
        tail = (turn,) if r.random() < 0.2 else ()
        return (*before, f.For(index, turns, (*lead, turn, *swaps)), self.wait(buffers - 1), *tail)


def pipelined(
    r: Random,
    fresh: Callable[[str], str],
    sizes: dict[str, int],
    array: Callable[..., f.Array],
) -> tuple[f.Stmt, ...]:
    """A product of two matrices, whose operands come in pipelines; ``sizes`` gets its dimensions."""
    t = r.choice(("f16", "f16", "bf16"))
    level, warps = r.choice((("group", 1), ("group", 1), ("group", 1), ("group-2", 2), ("group-4", 4)))
    grid = (r.choice((1, 2)), r.choice((1, 2))) if warps < 4 else (r.choice((1, 2)), 1)
    rows, columns = r.choice((1, 2)) * 16 * warps if warps < 4 else 64, r.choice((8, 16, 32))
    depth = 16 * r.choice((1, 2, 2, 2, 3, 4))
    sizes |= {
        "M": r.choice((1, 5, rows, rows * grid[0] + 3)),
        "N": r.choice((1, 7, columns, columns * grid[1] + 9)),
        "K": r.choice((1, depth - 8, depth, depth + 8, 2 * depth, 2 * depth + 3, 3 * depth - 16, 4 * depth + 5)),
    }
    names = {n: fresh(n) for n in ("i", "j", "x", "y", "mc", "c_s")}
    majors = r.choice(((True, True), (True, True), (True, False), (False, True), (False, False)))
    operands = []
    for n, dim, major, tile, at, group in zip(
        "ab", "MN", majors, (rows, columns), (names["i"], names["j"]), (names["x"], names["y"]), strict=True
    ):
        made = array(n, t, (dim, "K") if major else ("K", dim))
        count = grid[0] if n == "a" else grid[1]
        operands.append(_Operand(made, major, tile * count, tile, at, group, fresh(f"{n}_f") + "_"))
    out = array("o", r.choice(("f32", t)), ("M", "N"), True)
    a, b = operands
    body: list[f.Stmt] = [f.Fill(names["mc"], "f32", float(r.choice((0, 0, 1))))]
    for _ in range(r.choice((1, 1, 1, 2))):
        p = Pipeline(a, b, "K", depth, 16, level, grid, fresh, names["mc"])
        body += p.loop(r, r.choice((2, 2, 3, 4)))
        a, b = (_Operand(x.array, x.major, x.block, x.tile, x.at, x.group, x.future + "n_") for x in (a, b))
    body += _epilogue(r, operands[0], out, names, grid, (rows, columns), level)
    extents = tuple(
        f.Bin(S32, "cdiv", f.Name(S32, d), f.Lit(S32, x.block)) for d, x in zip("MN", operands, strict=True)
    )
    return (f.Parallel((names["i"], names["j"]), extents, "block", tuple(body)),)


def _epilogue(
    r: Random, a: _Operand, out: f.Array, names: dict[str, str], grid: tuple[int, int], tile: tuple[int, int],
    level: str,
) -> list[f.Stmt]:  # fmt: skip
    """The result through shared memory, sometimes with an element of the last operand added."""
    i, j, x, y = (f.Name(S32, names[n]) for n in "ijxy")
    block, c_s = (tile[0] * grid[0], tile[1] * grid[1]), names["c_s"]
    store = f.Keep(names["mc"], f.View(c_s, "subspan", tile, (x, y)))
    group = f.Parallel((names["x"], names["y"]), tuple(f.Lit(S32, n) for n in grid), level, (store,))
    found: list[f.Stmt] = [f.Alloc("shared", c_s, out.t, block), group]
    if r.random() < 0.3:
        row = f.Name(S32, "row")
        seen = f.Elem(out.t, c_s, (row, f.Lit(S32, 0)))
        value: f.Expr = f.Elem(a.array.t, f"{a.future}0.data", (f.Lit(S32, 0), f.Lit(S32, 1)))
        value = value if out.t == a.array.t else f.Conv(out.t, value)
        change = f.Store(c_s, seen.at, f.Bin(out.t, "max", seen, value))
        found.append(f.Parallel(("row",), (f.Lit(S32, block[0]),), "thread", (change,)))
    found.append(f.Copy(c_s, f.View(out.name, "subspan", block, (i, j))))
    return found
