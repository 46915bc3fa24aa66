"""Random programs of every level and type: blocks with regions of groups and threads, and shared buffers.

No two instances touch one element: each region of a block has output arrays of its own, indexed by the indices of
all levels around it, and writes a shared buffer only at a place that belongs to the instance.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from dev.fuzz import programs as f
from dev.fuzz.generate import S32, Scope, add, lit, name
from dev.fuzz.wide_copies import Copies
from dev.fuzz.wide_statements import floor_mod

GROUPS = (("group", 1), ("group", 1), ("group-2", 2), ("group-3", 3), ("group-4", 4))
# What lies in memory how: `dev.fuzz.arguments`.
HOSTED = ("rows", "rows", "packed", "turned", "stepped", "late")


class Wide(Copies):
    """Makes one program.  The same seed gives the same program."""

    def program(self) -> f.Program:
        r = self.r
        types = r.choices((S32, "f32", "s64", "f16", "u8", "u32", "u64", "f64", "s16"), k=r.randint(0, 2))
        scalars = tuple((f"n{i}", t, self.edge(t)) for i, t in enumerate(types))
        scope = Scope([f.Name(t, n) for n, t, _ in scalars])
        for _ in range(r.randint(1, 3)):
            self.input(scope)
        archs: tuple[str, ...] = ("sm_80", "sm_90a")
        clusters = r.random() < 0.04
        if clusters:
            archs = ("sm_90a",)
            scope = self.indices(scope, (r.randint(1, 2),))
        outer = self.path
        extents: tuple[Any, ...] = tuple(r.randint(1, 2) for _ in range(r.choice((1, 1, 2))))
        if not clusters and r.random() < 0.4:
            extents = (self.dimension(1, 3), *extents[1:])
            scope.scalars.append(name(extents[0]))
        inner = self.indices(scope, extents)
        names, sizes = tuple(n for n, _ in self.path[len(outer) :]), tuple(self.extent(e) for e in extents)
        body: tuple[f.Stmt, ...] = (f.Parallel(names, sizes, "block", self.block(inner)),)
        if clusters:
            body = (f.Parallel(tuple(n for n, _ in outer), tuple(lit(e) for _, e in outer), "cluster", body),)
        self.path = []
        if r.random() < 0.1:
            body = (*body, *self.second_launch(scope))
        hosted = tuple((a.name, r.choice(HOSTED)) for a in self.arrays)
        languages = ("croqtile",) if self.truncates else ("python", "croqtile")
        return f.Program(
            tuple(self.arrays), scalars, body, self.sizes, tuple(self.outputs), self.seed, r.random() < 0.7,
            hosted, languages, archs,
        )  # fmt: skip

    def input(self, scope: Scope) -> None:
        r = self.r
        dims: list[Any] = [r.randint(1, 6) for _ in range(r.choice((1, 2, 2, 2, 3, 4)))]
        if r.random() < 0.3 and len(self.sizes) < 2:
            dims[0] = self.dimension(1, 6)
            scope.scalars.append(name(dims[0]))
        a = self.array("a", self.stored(), dims)
        scope.readable.append((a.name, a.t, a.dims))

    @staticmethod
    def extent(n: Any) -> f.Expr:
        return lit(n) if isinstance(n, int) else name(n)

    def indices(self, scope: Scope, extents: tuple[Any, ...]) -> Scope:
        """The scope of a level with these extents, whose indices join the path."""
        inner = scope.inner(own=[], in_loop=False)
        new = [(self.fresh("p"), e) for e in extents]
        self.path = [*self.path, *new]
        inner.scalars += [name(n) for n, _ in new]
        return inner

    def outputs_here(self, count: int) -> list[f.Elem]:
        """Elements of output arrays that belong to the instance."""
        found = []
        for _ in range(count):
            slots = self.r.randint(1, 3)
            a = self.array("o", self.stored(), (*(e for _, e in self.path), slots), True)
            at = tuple(name(n) for n, _ in self.path)
            found.append(f.Elem(a.t, a.name, (*at, lit(self.r.randrange(slots)))))
        return found

    # ---- a block -----------------------------------------------------------------------------------------

    def block(self, scope: Scope) -> tuple[f.Stmt, ...]:
        r = self.r
        scope.own = self.outputs_here(1) if r.random() < 0.6 else []
        self.shared = []
        body: list[f.Stmt] = []
        if r.random() < 0.06:
            return (*body, *self.tile(scope))
        for _ in range(r.randint(1, 3)):
            body += self.item(scope)
        if not any(isinstance(x, f.Parallel) for x in f.parts(tuple(body))):
            body += self.region(scope)
        return tuple(body)

    def item(self, scope: Scope, depth: int = 1) -> list[f.Stmt]:
        """Something that the block does together, or a region of its parts."""
        kind = self.r.random()
        if kind < 0.2:
            return list(self.statements(scope, 2))
        if kind < 0.35:
            return self.buffer(scope)
        if kind < 0.45:
            return self.fetched(scope)
        if kind < 0.5:
            return self.futures(scope)
        if kind < 0.62 and depth:
            return self.block_loop(scope)
        if kind < 0.68 and depth:
            return [f.If(self.condition(scope), tuple(self.item(scope.inner(), 0)))]
        if kind < 0.76:
            return self.sent(scope)
        return self.region(scope)

    def block_loop(self, scope: Scope) -> list[f.Stmt]:
        r = self.r
        inner = scope.inner(in_loop=True)
        index = self.fresh("k")
        inner.scalars.append(name(index))
        condition = self.condition(inner)
        self.looping += 1
        body = [s for _ in range(r.randint(1, 2)) for s in self.item(inner, 0)]
        self.looping -= 1
        if r.random() < 0.5:
            jump = f.If(condition, (f.Jump(r.choice(("break", "continue"))),))
            body.insert(0 if any(isinstance(s, f.Start) for s in body) else r.randint(0, len(body)), jump)
        unroll = r.choice((None, None, None, 0, 2))
        return [f.For(index, lit(r.randint(1, 3)), tuple(body), unroll=unroll)]

    def buffer(self, scope: Scope) -> list[f.Stmt]:
        """A shared buffer, from the start with a value in each element."""
        r = self.r
        t = self.stored()
        shape = tuple(r.choice((1, 2, 3, 4, 5, 8)) for _ in range(r.choice((1, 2, 2, 3))))
        shape = shape if math.prod(shape) <= 64 else shape[:2]
        made = f.Alloc("shared", self.fresh("sh"), t, shape, self.literal(t).value)
        self.share(scope, made)
        return [made]

    def share(self, scope: Scope, made: f.Alloc) -> None:
        scope.readable.append((made.name, made.t, made.shape))
        self.shared.append(made)

    # ---- regions -----------------------------------------------------------------------------------------

    def region(self, scope: Scope) -> list[f.Stmt]:
        """A level below the block."""
        r = self.r
        outer, levels = self.path, r.choice(("t", "t", "gt", "gt", "g"))
        written = self.written(scope)
        if levels == "t":
            extents = (
                (r.choice((1, 3, 5, 8, 17, 32, 33)),) if r.random() < 0.6 else (r.randint(1, 5), r.randint(1, 6))
            )
            body = self.instances(self.inside(scope, written, extents), written, outer)
            made = self.level(extents, "thread", body)
        else:
            word, warps = r.choice(GROUPS)
            extents = (r.randint(1, 2),) if warps > 1 or r.random() < 0.7 else (r.randint(1, 2), 2)
            group = self.inside(scope, written, extents)
            if levels == "g":
                body = self.instances(group, written, outer)
            else:
                group.own = self.outputs_here(1) if r.random() < 0.5 else []
                before = self.statements(group, 2) if r.random() < 0.7 else ()
                here = self.path
                lanes = (r.choice((1, 5, 8, 31, 32)),) if r.random() < 0.6 else (r.randint(1, 4), r.randint(1, 8))
                threads = self.instances(self.inside(group, written, lanes), written, outer)
                level = self.level(lanes, "thread", threads)
                body = (*before, level)
                self.path = here
                self.settle(group, level)
                if r.random() < 0.3:
                    body = (*body, *self.statements(group, 1))
            made = self.level(extents, word, body)
        self.path = outer
        self.settle(scope, made)
        return [made]

    def settle(self, scope: Scope, level: f.Parallel) -> None:
        """The variables that instances of ``level`` change have no value in the scope around it."""
        changed = {s.name for s in f.parts(level) if isinstance(s, f.Set)}
        scope.mutable = [v for v in scope.mutable if v.name not in changed]

    def level(self, extents: tuple[int, ...], word: str, body: tuple[f.Stmt, ...]) -> f.Parallel:
        names = tuple(n for n, _ in self.path[len(self.path) - len(extents) :])
        return f.Parallel(names, tuple(lit(e) for e in extents), word, body)

    def written(self, scope: Scope) -> f.Alloc | None:
        """The shared buffer that a region writes."""
        known = {n for n, _, _ in scope.readable}
        usable = [b for b in self.shared if b.name in known]
        return self.r.choice(usable) if usable and self.r.random() < 0.7 else None

    def sees(self, array: str, buffer: str) -> bool:
        """Whether ``array`` is ``buffer``, or a name for a view of it."""
        return array == buffer or self.viewed.get(array) == buffer

    def inside(self, scope: Scope, written: f.Alloc | None, extents: tuple[int, ...]) -> Scope:
        inner = self.indices(scope, extents)
        inner.readable = [b for b in inner.readable if written is None or not self.sees(b[0], written.name)]
        # Variables of outer levels are read; now and then an instance changes its own copy of one.
        if self.looping or self.r.random() < 0.85:
            inner.scalars += inner.mutable
            inner.mutable = []
        return inner

    def instances(self, scope: Scope, written: f.Alloc | None, outer: Any) -> tuple[f.Stmt, ...]:
        """The statements of each instance of the innermost level."""
        r = self.r
        scope.own = self.outputs_here(r.randint(1, 2))
        body = list(self.whole(scope, 3))
        if written is not None:
            below = self.path[len(outer) :]
            line: f.Expr = name(below[0][0])
            for index, extent in below[1:]:
                line = add(f.Bin(S32, "*", line, lit(extent)), name(index))
            size = math.prod(written.shape)
            inner = replace(scope, own=[*scope.own, f.Elem(written.t, written.name, self.unravel(line, written))])
            stores = self.whole(inner, 2) if r.random() < 0.5 else (self.copied(inner),)
            fits = math.prod(e for _, e in below) <= size
            inside = f.Bin("bool", "<", line, lit(size))
            guard = f.InThreads if r.random() < 0.5 else f.If
            body += stores if fits else (guard(inside, stores),)
        return tuple(body)

    def copied(self, scope: Scope) -> f.Stmt:
        own = scope.own[-1]
        return f.Store(own.buffer, own.at, self.value(own.t, scope, 2))

    def unravel(self, line: f.Expr, buffer: f.Alloc) -> tuple[f.Expr, ...]:
        """Another place of ``buffer`` for each value of ``line``."""
        size = math.prod(buffer.shape)
        if self.r.random() < 0.3:
            line = f.Bin(S32, "-", lit(size - 1), line)
        at: list[f.Expr] = []
        for n, extent in enumerate(buffer.shape):
            rest = math.prod(buffer.shape[n + 1 :])
            place = f.Bin(S32, "//", line, lit(rest)) if rest > 1 else line
            at.append(place if n == 0 else floor_mod(place, extent))
        return tuple(at)


def generate(seed: int) -> f.Program:
    return Wide(seed).program()
