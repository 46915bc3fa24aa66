"""Random well-typed programs whose threads do not race, from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dev.fuzz import programs as f
from dev.fuzz.pipelines import pipelined

INTS = ("s32", "u32", "s8", "u8", "s16", "s64")
NARROW = ("s8", "u8", "s16", "u16")
TYPES = (*INTS, *f.FLOATS)
# Of arrays: memory holds fp8, arithmetic on it is done in f32.
STORED = (*TYPES, *f.FP8)
# Not from f64: two roundings.  fp8 comes from floats alone.
SOURCES = {
    "f16": (*INTS, "f32", "bf16"),
    "bf16": (*INTS, "f32", "f16"),
    **dict.fromkeys(f.FP8, ("f32", "f16", "bf16")),
}
S32 = "s32"


def lit(n: int) -> f.Lit:
    return f.Lit(S32, n)


def name(n: str) -> f.Name:
    return f.Name(S32, n)


@dataclass
class Scope:
    """The names that an expression may use here.

    ``readable``: buffers with their extents (numbers, or names of dimensions) that no thread is writing now;
    ``own``: elements that only this instance writes.  ``depth``: how deep statements may nest.
    """

    scalars: list[f.Name] = field(default_factory=list)
    mutable: list[f.Name] = field(default_factory=list)
    readable: list[tuple[str, str, tuple[Any, ...]]] = field(default_factory=list)
    own: list[f.Elem] = field(default_factory=list)
    depth: int = 3
    in_loop: bool = False

    def inner(self, **changes: Any) -> Scope:
        copied = replace(
            self,
            scalars=list(self.scalars),
            mutable=list(self.mutable),
            readable=list(self.readable),
            own=list(self.own),
            depth=self.depth - 1,
        )
        return replace(copied, **changes)


class Generator:
    """Makes one program.  The same seed gives the same program."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.seed = seed
        self.count = 0
        self.sizes: dict[str, int] = {}
        self.arrays: list[f.Array] = []
        self.outputs: list[str] = []
        self.turned = False
        self.operation = self.r.choice(("add", "add", "min", "max", "and", "or", "xor"))

    def program(self) -> f.Program:
        make = self.r.choice(
            (self.elements, self.elements, self.staged, self.staged, self.contraction, self.pipelined)
        )
        scalars = tuple(
            (f"n{i}", t, self.literal(t).value)
            for i, t in enumerate(self.r.choices((S32, "f32", "s64", "f16", "u8"), k=self.r.randint(0, 2)))
        )
        scope = Scope([f.Name(t, n) for n, t, _ in scalars])
        body = make(scope)
        if self.r.random() < 0.2:
            body = (*body, *self.second_launch(scope))
        return f.Program(tuple(self.arrays), scalars, body, self.sizes, tuple(self.outputs), self.seed)

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def computed(self) -> str:
        """The type of a variable or a comparison."""
        return self.r.choice(TYPES)

    # ---- expressions -------------------------------------------------------------------------------------

    def literal(self, t: str) -> f.Lit:
        r = self.r
        if t in (*f.FLOATS, *f.FP8):
            return f.Lit(t, r.choice((0.5, 1.0, 2.0, 3.0, 0.25, 1.5, 7.0)))
        return f.Lit(t, r.randint(0, 9))

    def leaf(self, t: str, scope: Scope) -> f.Expr:
        """A value of type ``t`` that is no literal."""
        r = self.r
        found: list[f.Expr] = [x for x in (*scope.scalars, *scope.mutable, *scope.own) if x.t == t]
        for buffer, kind, shape in scope.readable:
            if kind == t and scope.depth > 0:
                found.append(f.Elem(t, buffer, self.place(shape, scope)))
        if found and r.random() < 0.9:
            return r.choice(found)
        others = [x for x in (*scope.scalars, *scope.mutable, *scope.own) if x.t not in (t, "bool")]
        others = [x for x in others if x.t in SOURCES.get(t, STORED)]
        if others:
            return f.Conv(t, r.choice(others))
        return r.choice(found) if found else self.any_value(t, scope)

    def any_value(self, t: str, scope: Scope) -> f.Expr:
        """An element of an input; by way of f32 where ``t`` is not made from its type."""
        buffer, kind, shape = scope.readable[0]
        e: f.Expr = f.Elem(kind, buffer, tuple(lit(0) for _ in shape))
        if kind != t and kind not in SOURCES.get(t, STORED):
            e = f.Conv("f32", e)
        return e if e.t == t else f.Conv(t, e)

    def place(self, shape: Sequence[Any], scope: Scope) -> tuple[f.Expr, ...]:
        """Indices within ``shape``, whatever their values."""
        return tuple(self.index(n, scope) for n in shape)

    def index(self, extent: Any, scope: Scope) -> f.Expr:
        """An index below ``extent``, a number or the name of a dimension."""
        size = lit(extent) if isinstance(extent, int) else name(extent)
        last = lit(extent - 1) if isinstance(extent, int) else f.Bin(S32, "-", size, lit(1))
        indices = [x for x in scope.scalars if x.t == S32]
        if not indices or self.r.random() < 0.1:
            return lit(0)
        e: f.Expr = self.r.choice(indices)
        if self.r.random() < 0.5:
            e = f.Bin(S32, self.r.choice("+-*"), e, self.r.choice((lit(1), lit(2), *indices)))
        if self.r.random() < 0.5:
            return f.Bin(S32, "max", f.Bin(S32, "min", e, last), lit(0))
        return f.Bin(S32, "%", e, size)

    def value(self, t: str, scope: Scope, depth: int = 3) -> f.Expr:
        r = self.r
        if depth == 0 or r.random() < 0.2:
            return self.leaf(t, scope)
        if t in f.FP8:
            return f.Conv(t, self.value("f32", scope, depth - 1))
        if t in NARROW:
            # Arithmetic on narrow integers is done in s32.
            return f.Conv(t, self.value(S32, scope, depth - 1))
        kind = r.random()
        if kind < 0.1:
            return f.Sel(t, self.condition(scope, depth - 1), self.value(t, scope, depth - 1), self.leaf(t, scope))
        if kind < 0.2:
            source = r.choice([x for x in TYPES if x in SOURCES.get(t, TYPES)])
            return f.Conv(t, self.value(source, scope, depth - 1)) if source != t else self.leaf(t, scope)
        a = self.value(t, scope, depth - 1)
        if kind < 0.35:
            choices = ["neg", "abs"] if t not in ("u8", "u32") else ["not"]
            choices += ["floor", "ceil"] if t in f.FLOATS else ["not"]
            return f.Un(t, r.choice(choices), a)
        b = self.literal(t) if r.random() < 0.4 else self.value(t, scope, depth - 1)
        if t in f.FLOATS:
            op = r.choice(("+", "-", "*", "min", "max", "/"))
            if op == "/":
                b = self.literal(t) if isinstance(b, f.Lit) else f.Bin(t, "max", f.Un(t, "abs", b), f.Lit(t, 0.5))
            return f.Bin(t, op, a, b)
        op = r.choice(("+", "-", "*", "min", "max", "&", "|", "^", "//", "%", "<<", ">>"))
        if op in ("//", "%"):
            b = f.Lit(t, r.choice((1, 2, 3, 7, 8)))
        if op in ("<<", ">>"):
            b = f.Lit(t, r.randint(0, 7))
        return f.Bin(t, op, a, b)

    def condition(self, scope: Scope, depth: int = 2) -> f.Expr:
        r = self.r
        if depth > 1 and r.random() < 0.3:
            a, b = self.condition(scope, depth - 1), self.condition(scope, depth - 1)
            return f.Bin("bool", r.choice(("and", "or")), a, b)
        if depth > 1 and r.random() < 0.1:
            return f.Un("bool", "lnot", self.condition(scope, depth - 1))
        t = r.choice((S32, "f32", self.computed()))
        other: f.Expr = self.literal(t) if r.random() < 0.5 else self.leaf(t, scope)
        return f.Bin("bool", r.choice(("==", "!=", "<", "<=", ">", ">=")), self.value(t, scope, 1), other)

    # ---- statements of one instance ----------------------------------------------------------------------

    def statements(self, scope: Scope, most: int = 3) -> tuple[f.Stmt, ...]:
        """Declarations are added to ``scope``."""
        return tuple(s for _ in range(self.r.randint(1, most)) for s in self.statement(scope))

    def whole(self, scope: Scope, most: int) -> tuple[f.Stmt, ...]:
        """`statements`, and then each element of the instance's own gets a value that depends on them."""
        body = list(self.statements(scope, most))
        for target in scope.own:
            known = [v for v in scope.mutable if v.t == target.t or v.t in SOURCES.get(target.t, STORED)]
            value = self.value(target.t, scope, 2)
            if known:
                chosen = known[-1] if self.r.random() < 0.7 else self.r.choice(known)
                last = chosen if chosen.t == target.t else f.Conv(target.t, chosen)
                value = f.Bin(target.t, "+", value, last) if target.t not in (*NARROW, *f.FP8) else last
            body.append(f.Store(target.buffer, target.at, value))
        return tuple(body)

    def statement(self, scope: Scope) -> list[f.Stmt]:
        r = self.r
        kind = r.random()
        if scope.own and kind < 0.35:
            target = r.choice(scope.own)
            value = self.literal(target.t) if r.random() < 0.05 else self.value(target.t, scope)
            return [f.Store(target.buffer, target.at, value)]
        if kind < 0.5 or not scope.mutable:
            t = r.choice((S32, "f32", self.computed()))
            declared = f.Name(t, self.fresh("v"))
            made = f.Var(declared.name, t, self.value(t, scope))
            scope.mutable.append(declared)
            return [made]
        if kind < 0.7 or scope.depth <= 0:
            changed = r.choice(scope.mutable)
            return [f.Set(changed.name, self.value(changed.t, scope))]
        if kind < 0.8:
            then = self.statements(scope.inner(), 2)
            otherwise = self.statements(scope.inner(), 2) if r.random() < 0.5 else ()
            return [f.If(self.condition(scope), then, otherwise)]
        if kind < 0.92:
            return [self.loop(scope)]
        return self.counted(scope) if kind < 0.97 else self.table(scope)

    def table(self, scope: Scope) -> list[f.Stmt]:
        """A local array, one element of which is written."""
        t, size = self.r.choice(STORED), self.r.randint(1, 5)
        made = f.Alloc("local", self.fresh("l"), t, (size,), self.literal(t).value)
        value = self.value(t, scope, 2)
        written = f.Store(made.name, (self.index(size, scope),), value)
        scope.readable.append((made.name, t, (size,)))
        return [made, written]

    def loop(self, scope: Scope) -> f.Stmt:
        r = self.r
        index = self.fresh("k")
        inner = scope.inner(in_loop=True)
        inner.scalars.append(name(index))
        extent: f.Expr = lit(r.randint(0, 4))
        dims = [d for d, n in self.sizes.items() if n <= 8]
        if dims and r.random() < 0.3:
            extent = name(r.choice(dims))
        leave = f.If(self.condition(inner), (f.Jump(r.choice(("break", "continue"))),))
        body = self.statements(inner, 2)
        start, step = (r.randint(0, 2), r.randint(1, 3)) if r.random() < 0.3 else (0, 1)
        return f.For(index, extent, (leave, *body) if r.random() < 0.3 else body, start, step)

    def counted(self, scope: Scope) -> list[f.Stmt]:
        """A loop whose condition is evaluated again and again; its counter is its own."""
        counter = f.Name(S32, self.fresh("c"))
        inner = scope.inner(in_loop=True)
        inner.scalars.append(counter)
        body = self.statements(inner, 2)
        step = f.Set(counter.name, f.Bin(S32, "+", counter, lit(1)))
        limit = f.Bin("bool", "<", counter, lit(self.r.randint(0, 3)))
        if self.r.random() < 0.4:
            limit = f.Bin("bool", "and", limit, self.condition(scope, 1))
        return [
            f.Var(counter.name, S32, f.Bin(S32, "*", self.leaf(S32, scope), lit(0))),
            f.While(limit, (step, *body)),
        ]

    # ---- programs ----------------------------------------------------------------------------------------

    def dimension(self, low: int, high: int) -> str:
        d = "MNKPQ"[len(self.sizes)]
        self.sizes[d] = self.r.randint(low, high)
        return d

    def array(self, prefix: str, t: str, dims: Sequence[Any], output: bool = False) -> f.Array:
        a = f.Array(self.fresh(prefix), t, tuple(dims))
        self.arrays.append(a)
        if output:
            self.outputs.append(a.name)
        return a

    def inputs(self, scope: Scope, dims: Sequence[Any]) -> None:
        for _ in range(self.r.randint(1, 3)):
            shape = self.r.choice((tuple(dims), (dims[0],), (dims[-1],)))
            a = self.array("a", self.r.choice(STORED), shape)
            scope.readable.append((a.name, a.t, a.dims))

    def elements(self, scope: Scope) -> tuple[f.Stmt, ...]:
        """Each instance works on its own elements, reading all inputs."""
        r = self.r
        m, n = self.dimension(1, 9), self.dimension(1, 9)
        scope.scalars += [name(m), name(n)]
        self.inputs(scope, (m, n))
        outs = [self.array("o", r.choice(STORED), (m, n), True) for _ in range(r.randint(1, 2))]
        total = self.array("total", r.choice(("s32", "u32")), (2,), True) if r.random() < 0.3 else None
        if r.random() < 0.5:
            i, j = self.fresh("i"), self.fresh("j")
            at: tuple[f.Expr, ...] = (name(i), name(j))
            inner = scope.inner(own=[f.Elem(o.t, o.name, at) for o in outs])
            inner.scalars += [name(i), name(j)]
            body = self.with_total(self.whole(inner, 5), total, inner)
            return (f.Parallel((i, j), (name(m), name(n)), "block", body),)
        height, width = r.randint(1, 5), r.randint(1, 8)
        return self.tiled(scope, outs, total, m, n, height, width)

    def second_launch(self, scope: Scope) -> tuple[f.Stmt, ...]:
        """Another launch, which reads the results of the first."""
        written = [a for a in self.arrays if a.name in self.outputs]
        m, n = written[0].dims if len(written[0].dims) == 2 else (1, 1)
        after = Scope([name(d) for d in (m, n) if isinstance(d, str)])
        after.scalars += [x for x in scope.scalars if x.name.startswith("n")]
        after.readable = [(a.name, a.t, a.dims) for a in written]
        out = self.array("o", self.r.choice(STORED), (m, n), True)
        i, j = self.fresh("i"), self.fresh("j")
        inner = after.inner(own=[f.Elem(out.t, out.name, (name(i), name(j)))])
        inner.scalars += [name(i), name(j)]
        extents = tuple(name(d) if isinstance(d, str) else lit(d) for d in (m, n))
        return (f.Parallel((i, j), extents, "block", self.whole(inner, 3)),)

    def tiled(
        self, scope: Scope, outs: Sequence[f.Array], total: f.Array | None, m: str, n: str, height: int, width: int
    ) -> tuple[f.Stmt, ...]:
        """Blocks of threads over the elements; those beyond the edge do nothing, or read zeros of a view."""
        i, j, x, y = (self.fresh(p) for p in "ijxy")
        row = f.Bin(S32, "+", f.Bin(S32, "*", name(i), lit(height)), name(x))
        col = f.Bin(S32, "+", f.Bin(S32, "*", name(j), lit(width)), name(y))
        inner = scope.inner(own=[f.Elem(o.t, o.name, (row, col)) for o in outs])
        inner.scalars += [name(v) for v in (i, j, x, y)]
        inside = f.Bin("bool", "and", f.Bin("bool", "<", row, name(m)), f.Bin("bool", "<", col, name(n)))
        body = self.with_total(self.whole(inner, 5), total, inner)
        threads = f.Parallel((x, y), (lit(height), lit(width)), "thread", (f.If(inside, body),))
        return (f.Parallel((i, j), (cdiv(m, height), cdiv(n, width)), "block", (threads,)),)

    def with_total(self, body: tuple[f.Stmt, ...], total: f.Array | None, scope: Scope) -> tuple[f.Stmt, ...]:
        """``body`` and an atomic operation on integers, one for the whole kernel: their order does not matter."""
        if total is None:
            return body
        outer = replace(scope, mutable=[])
        value = self.value(total.t, outer, 2)
        return (*body, f.Atomic(self.operation, total.name, (self.index(2, scope),), value))

    def staged(self, scope: Scope) -> tuple[f.Stmt, ...]:
        """Tiles through shared memory, changed there in phases that read what others wrote before."""
        r = self.r
        m, n = self.dimension(1, 20), self.dimension(1, 20)
        scope.scalars += [name(m), name(n)]
        height, width = r.choice((2, 3, 4, 8)), r.choice((4, 5, 8, 16))
        t = r.choice(STORED)
        turned = r.random() < 0.2
        source = self.array("a", t, (n, m) if turned else (m, n))
        target = self.array("o", t, (m, n), True)
        i, j = self.fresh("i"), self.fresh("j")
        scope.scalars += [name(i), name(j)]
        first, second = f.Alloc("shared", self.fresh("tile"), t, (height, width)), None
        at = (name(i), name(j))
        kind = r.choice(("subspan", "subspan", "chunkat", "modspan"))
        step = (r.randint(1, height), r.randint(1, width)) if kind != "chunkat" and r.random() < 0.2 else ()
        view = f.View(source.name, kind, _for(kind, height, width), at, step)
        if turned:
            view = f.View(source.name, "subspan", (width, height), at[::-1])
        body: list[f.Stmt] = [first, f.Copy(view, first.name, turned)]
        if r.random() < 0.5:
            other = r.choice(TYPES)
            second = f.Alloc("shared", self.fresh("tile"), other, (height, width), self.literal(other).value)
            body.append(second)
        buffers = [first, *([second] if second else [])]
        for _ in range(r.randint(1, 3)):
            body.append(self.phase(scope, buffers, height, width))
        if r.random() < 0.3:
            index = self.fresh("k")
            inner = scope.inner()
            inner.scalars.append(name(index))
            body.append(f.For(index, lit(r.randint(0, 3)), (self.phase(inner, buffers, height, width),)))
        out = r.choice(("subspan", "subspan", "chunkat"))
        body.append(f.Copy(first.name, f.View(target.name, out, _for(out, height, width), at)))
        return (f.Parallel((i, j), (cdiv(m, height), cdiv(n, width)), "block", tuple(body)),)

    def phase(self, scope: Scope, buffers: Sequence[f.Alloc], height: int, width: int) -> f.Stmt:
        """Every thread writes its element of one buffer, at a place of its own; the other buffers are read."""
        r = self.r
        x, y = self.fresh("x"), self.fresh("y")
        written = r.choice(buffers)
        row: f.Expr = name(x) if r.random() < 0.7 else f.Bin(S32, "-", lit(height - 1), name(x))
        col: f.Expr = name(y) if r.random() < 0.7 else f.Bin(S32, "-", lit(width - 1), name(y))
        inner = scope.inner(own=[f.Elem(written.t, written.name, (row, col))])
        inner.readable += [(b.name, b.t, b.shape) for b in buffers if b is not written]
        inner.scalars += [name(x), name(y)]
        body = self.whole(inner, 4)
        if r.random() < 0.5 and height % 2 == 0:
            # By warps: each has half of the rows.
            w = self.fresh("w")
            half = height // 2
            place = f.Bin(S32, "+", f.Bin(S32, "*", name(w), lit(half)), name(x))
            moved = tuple(_with(s, x, place) for s in body)
            threads = f.Parallel((x, y), (lit(half), lit(width)), "thread", moved)
            return (
                f.Parallel((w,), (lit(2),), "group", (threads,))
                if half * width <= 32
                else self._plain(x, y, height, width, body)
            )
        return self._plain(x, y, height, width, body)

    @staticmethod
    def _plain(x: str, y: str, height: int, width: int, body: tuple[f.Stmt, ...]) -> f.Stmt:
        return f.Parallel((x, y), (lit(height), lit(width)), "thread", body)

    # ---- contraction -------------------------------------------------------------------------------------

    def contraction(self, scope: Scope) -> tuple[f.Stmt, ...]:
        r = self.r
        t = r.choice(("f16", "bf16"))
        acc = "f32" if t == "bf16" else r.choice(("f32", "f16"))
        level, warps = r.choice((("group", 1), ("group", 1), ("group-4", 4), ("group-2", 2)))
        grid = (r.choice((1, 2)), r.choice((1, 2))) if warps < 4 else (r.choice((1, 2)), 1)
        tile = (
            r.choice((1, 2)) * 16 * (4 if warps == 4 else warps),
            r.choice((8, 16, 24, 32)),
            r.choice((16, 32)),
        )
        block = (tile[0] * grid[0], tile[1] * grid[1], tile[2] * r.choice((1, 2)))
        contract = r.choice(("row.row", "row.row", "row.col", "col.row", "col.col"))
        m, n, k = self.dimension(1, 70), self.dimension(1, 70), self.dimension(1, 70)
        a = self.array("a", t, (m, k) if contract.startswith("row") else (k, m))
        b = self.array("b", t, (n, k) if contract.endswith("row") else (k, n))
        self.turned = r.random() < 0.2
        out = self.array("o", r.choice(("f32", t, "f16")), (n, m) if self.turned else (m, n), True)
        names = {x: self.fresh(x) for x in ("i", "j", "x", "y", "k", "kk")}
        body = self._multiply(scope, contract, t, acc, level, grid, tile, block, (a, b, out), names, k)
        return (f.Parallel((names["i"], names["j"]), (cdiv(m, block[0]), cdiv(n, block[1])), "block", body),)

    def pipelined(self, scope: Scope) -> tuple[f.Stmt, ...]:
        return pipelined(self.r, self.fresh, self.sizes, self.array)

    def _multiply(
        self, scope: Scope, contract: str, t: str, acc: str, level: str, grid: tuple[int, int],
        tile: tuple[int, int, int], block: tuple[int, int, int], arrays: tuple[f.Array, f.Array, f.Array],
        names: dict[str, str], k: str,
    ) -> tuple[f.Stmt, ...]:  # fmt: skip
        r = self.r
        a, b, out = arrays
        i, j, x, y, kk = (name(names[v]) for v in ("i", "j", "x", "y", "k"))
        inner_k = name(names["kk"])
        rows, columns = contract.split(".")
        a_s, b_s, c_s, mc, ma, mb = (self.fresh(v) for v in ("a_s", "b_s", "c_s", "mc", "ma", "mb"))
        a_shape = (block[0], block[2]) if rows == "row" else (block[2], block[0])
        b_shape = (block[1], block[2]) if columns == "row" else (block[2], block[1])
        a_at = (i, kk) if rows == "row" else (kk, i)
        b_at = (j, kk) if columns == "row" else (kk, j)
        a_tile = (tile[0], tile[2]) if rows == "row" else (tile[2], tile[0])
        b_tile = (tile[1], tile[2]) if columns == "row" else (tile[2], tile[1])
        multiply = (
            f.Load(ma, f.View(a_s, "subspan", a_tile, (x, inner_k) if rows == "row" else (inner_k, x))),
            f.Load(mb, f.View(b_s, "subspan", b_tile, (y, inner_k) if columns == "row" else (inner_k, y))),
            f.Mma(contract, mc, ma, mb),
        )
        allocs: tuple[f.Stmt, ...] = (f.Alloc("shared", a_s, t, a_shape), f.Alloc("shared", b_s, t, b_shape))
        copies = (
            f.Copy(f.View(a.name, "subspan", a_shape, a_at), a_s),
            f.Copy(f.View(b.name, "subspan", b_shape, b_at), b_s),
        )
        turns = f.For(names["kk"], lit(block[2] // tile[2]), multiply)
        loop = f.For(names["k"], cdiv(k, block[2]), (*copies, turns))
        at = (add(mul(i, grid[0]), x), add(mul(j, grid[1]), y))
        direct = f.View(out.name, "subspan", tile[:2], at)
        turned = f.View(out.name, "subspan", tile[1::-1], at[::-1])
        loaded = out.t == acc and not self.turned and r.random() < 0.4
        start = f.Load(mc, direct) if loaded else f.Fill(mc, acc, float(r.choice((0, 0, 1, 3))))
        work: list[f.Stmt] = [start, loop]
        if r.random() < 0.5:
            row, col = self.fresh("r"), self.fresh("c")
            visited = Scope(scalars=[*scope.scalars, name(row), name(col), f.Name(acc, "")])
            visited.scalars.pop()
            visited.own = [f.Elem(acc, mc, (name(row), name(col)))]
            work.append(f.Apply(mc, (row, col), self.value(acc, visited, 2)))
        if self.turned or r.random() < 0.5:
            work.append(f.Keep(mc, turned, True) if self.turned else f.Keep(mc, direct))
            after: tuple[f.Stmt, ...] = ()
        else:
            allocs = (*allocs, f.Alloc("shared", c_s, out.t, block[:2]))
            work.append(f.Keep(mc, f.View(c_s, "subspan", tile[:2], (x, y))))
            after = (f.Copy(c_s, f.View(out.name, "subspan", block[:2], (i, j))),)
        group = f.Parallel((names["x"], names["y"]), (lit(grid[0]), lit(grid[1])), level, tuple(work))
        return (*allocs, group, *after)


def cdiv(d: str, by: int) -> f.Expr:
    return f.Bin(S32, "cdiv", name(d), lit(by))


def add(a: f.Expr, b: f.Expr) -> f.Expr:
    return f.Bin(S32, "+", a, b)


def mul(a: f.Expr, n: int) -> f.Expr:
    return f.Bin(S32, "*", a, lit(n))


def _for(kind: str, height: int, width: int) -> tuple[int, ...] | None:
    return None if kind == "chunkat" else (height, width)


def _with(x: Any, old: str, new: f.Expr) -> Any:
    """``x`` with the index ``old`` replaced."""
    from dataclasses import fields

    if isinstance(x, f.Name) and x.name == old:
        return new
    if isinstance(x, (f.Expr, f.Stmt, f.View)):
        return replace(x, **{fl.name: _with(getattr(x, fl.name), old, new) for fl in fields(x)})
    if isinstance(x, tuple):
        return tuple(_with(y, old, new) for y in x)
    return x


def generate(seed: int) -> f.Program:
    return Generator(seed).program()
