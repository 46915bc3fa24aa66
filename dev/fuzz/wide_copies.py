"""Copies, views of views, futures and register tiles of the wider programs."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

from dev.fuzz import programs as f
from dev.fuzz.generate import Scope, lit, name
from dev.fuzz.wide_statements import Statements


class Copies(Statements):
    # ---- views -------------------------------------------------------------------------------------------

    def cuts(self, array: str, shape: tuple[Any, ...], scope: Scope) -> tuple[tuple[f.Cut, ...], tuple[Any, ...]]:
        """A view of a view of an array, and its extents; only the first one may reach over an edge."""
        found: list[f.Cut] = []
        over = array.startswith("a")
        for n in range(self.r.choice((1, 1, 2, 3))):
            c, shape = self.cut(shape, scope, over and n == 0, whole=n == 0 and array[0] in "as")
            found.append(c)
        return tuple(found), shape

    def cut(self, shape: tuple[Any, ...], scope: Scope, over: bool, whole: bool) -> tuple[f.Cut, tuple[int, ...]]:
        """One step; ``over``: the view may reach beyond the edge, ``whole``: nothing is cut yet."""
        r = self.r
        static = all(isinstance(n, int) for n in shape)
        numbers = tuple(n if isinstance(n, int) else 3 for n in shape)
        if static and whole and r.random() < 0.3:
            other = self.reshaped(math.prod(numbers))
            return f.Cut("span_as", other), other
        if static and 1 in numbers and len(numbers) > 1 and r.random() < 0.3 and max(numbers) > 1:
            return f.Cut("sqz"), tuple(n for n in numbers if n != 1)
        kind = r.choice(("subspan", "subspan", "view", "view", "chunk"))
        if kind == "chunk" and static:
            counts = tuple(r.choice([d for d in range(1, n + 1) if n % d == 0]) for n in numbers)
            tile = tuple(n // d for n, d in zip(numbers, counts, strict=True))
            return f.Cut("chunk", counts, tuple(self.index(d, scope) for d in counts)), tile
        tile = tuple(r.randint(1, max(1, n)) for n in numbers)
        if kind == "view":
            strides = (
                tuple(r.choice((1, 1, 2)) if over or n < 2 else 1 for n in numbers) if r.random() < 0.3 else ()
            )
            room = [n if over else n - t + 1 for n, t in zip(numbers, tile, strict=True)]
            if strides and not over:
                strides = ()
            return f.Cut("view", tile, tuple(self.index(n, scope) for n in room), (), strides), tile
        step: tuple[int, ...] = ()
        if over and r.random() < 0.3:
            step = tuple(r.randint(1, 3) for _ in numbers)
        room = [n if over else n // t for n, t in zip(numbers, tile, strict=True)]
        return f.Cut("subspan", tile, tuple(self.index(n, scope) for n in room), step), tile

    def reshaped(self, size: int) -> tuple[int, ...]:
        """Extents of another shape with as many elements."""
        found: list[int] = []
        for _ in range(self.r.randint(0, 3)):
            d = self.r.choice([d for d in range(1, size + 1) if size % d == 0])
            found.append(d)
            size //= d
        return (*found, size)

    # ---- copies ------------------------------------------------------------------------------------------

    def source(self, scope: Scope, t: str, shape: tuple[int, ...]) -> f.Chain:
        """A view of an input with these extents."""
        r = self.r
        if r.random() < 0.25:
            a = self.array("a", t, self.reshaped(math.prod(shape)))
            return f.Chain(a.name, (f.Cut("span_as", shape),))
        dims: list[Any] = [max(1, n + r.randint(-2, 4)) for n in shape]
        if r.random() < 0.3 and len(self.sizes) < 4:
            dims[r.randrange(len(dims))] = self.dimension(1, 8)
        a = self.array("a", t, dims)
        room = [n if isinstance(n, int) else 2 for n in dims]
        kind = r.choice(("subspan", "subspan", "view", "modspan"))
        cuts: tuple[f.Cut, ...] = ()
        if r.random() < 0.3:
            larger = tuple(n + r.randint(0, 2) for n in shape)
            cuts = (f.Cut("view", larger, tuple(self.index(n, scope) for n in room)),)
            room = [b - n + 1 for b, n in zip(larger, shape, strict=True)]
            kind = "view"
        if kind == "view":
            return f.Chain(a.name, (*cuts, f.Cut("view", shape, tuple(self.index(n, scope) for n in room))))
        at = tuple(self.index(max(1, -(-n // s)), scope) for n, s in zip(room, shape, strict=True))
        step = tuple(r.randint(1, 3) for _ in shape) if kind == "subspan" and r.random() < 0.2 else ()
        return f.Chain(a.name, (f.Cut("subspan", shape, at, step),))

    def shape(self) -> tuple[int, ...]:
        """Extents of one to four dimensions."""
        r = self.r
        shape = tuple(r.choice((1, 2, 3, 4, 5, 8)) for _ in range(r.choice((1, 2, 2, 3, 4))))
        return shape if math.prod(shape) <= 96 else shape[:2]

    def fetched(self, scope: Scope) -> list[f.Stmt]:
        """A shared buffer filled by a copy."""
        r = self.r
        t, shape = self.stored(), self.shape()
        source = self.source(scope, t, shape)
        perm: tuple[int, ...] = ()
        pad: tuple[tuple[int, int, int], ...] = ()
        target = shape
        if len(shape) > 1 and r.random() < 0.25:
            perm = tuple(r.sample(range(len(shape)), len(shape)))
            target = tuple(shape[i] for i in perm)
        elif r.random() < 0.1 and t in ("s32", "f32", "f16", "u8"):
            pad = tuple((r.randint(0, 1), r.randint(0, 1), r.randint(0, 1)) for _ in shape)
            target = tuple(low + n + (n - 1) * mid + high for n, (low, high, mid) in zip(shape, pad, strict=True))
        kind = r.random()
        if kind < 0.2 and not pad:
            # Into a part of a larger buffer.
            larger = tuple(n + r.randint(0, 2) for n in target)
            made = f.Alloc("shared", self.fresh("sh"), t, larger, self.literal(t).value)
            at = tuple(lit(r.randint(0, m - n)) for m, n in zip(larger, target, strict=True))
            self.share(scope, made)
            return [made, f.Move(source, f.Chain(made.name, (f.Cut("view", target, at),)), perm)]
        made = f.Alloc("shared", self.fresh("sh"), t, target)
        self.share(scope, made)
        return [made, f.Move(source, made.name, perm, pad, 3 if pad else 0)]

    @abstractmethod
    def share(self, scope: Scope, made: f.Alloc) -> None:
        """Enter a shared buffer among those that later statements may use."""

    def sent(self, scope: Scope) -> list[f.Stmt]:
        """A shared buffer, or a part of it, copied to a place of the block's own in an output."""
        r = self.r
        known = {n for n, _, _ in scope.readable}
        usable = [b for b in self.shared if b.name in known]
        if not usable:
            return self.fetched(scope)
        b = r.choice(usable)
        shape: tuple[int, ...] = b.shape
        cuts: tuple[f.Cut, ...] = ()
        if r.random() < 0.4:
            cuts, shape = self.cuts(b.name, b.shape, scope)
        edge = [r.choice((0, 0, 1)) if n > 1 else 0 for n in shape]
        a = self.array(
            "o", b.t, (*(e for _, e in self.path), *(n - e for n, e in zip(shape, edge, strict=True))), True
        )
        front = tuple(name(n) for n, _ in self.path)
        at = (*front, *(lit(0) for _ in shape))
        ones = tuple(1 for _ in self.path)
        source = f.Chain(b.name, (*cuts, f.Cut("span_as", (*ones, *shape)))) if not cuts else None
        target: f.Chain = f.Chain(a.name, (f.Cut("subspan", (*ones, *shape), at),))
        if source is None:
            if any(n == 1 for n in shape) or len(a.dims) > 5:
                return []
            target = f.Chain(a.name, (*target.cuts, f.Cut("sqz")))
            source = f.Chain(b.name, cuts)
        return [f.Move(source, target)]

    def futures(self, scope: Scope) -> list[f.Stmt]:
        """Two copies under way, waited for and exchanged."""
        r = self.r
        t, shape = self.stored(), self.shape()
        first, second = self.fresh("copied"), self.fresh("copied")
        body: list[f.Stmt] = [f.Start(n, self.source(scope, t, shape)) for n in (first, second)]
        waits: list[f.Stmt] = (
            [f.Wait((first, second))] if r.random() < 0.5 else [f.Wait((first,)), f.Wait((second,))]
        )
        swap: list[f.Stmt] = [f.Swap((first, second))]
        body += (waits + swap) if r.random() < 0.6 else (swap + waits) if r.random() < 0.6 else waits
        scope.readable += [(f"{n}.data", t, shape) for n in (first, second)]
        return body

    # ---- register tiles ----------------------------------------------------------------------------------

    def tile(self, scope: Scope) -> list[f.Stmt]:
        """Groups with a register tile each, which they change and store element by element."""
        r = self.r
        word = r.choice(("group", "group", "group-2", "group-4"))
        groups, t = r.randint(1, 2), r.choice(("f32", "f32", "f16"))
        shape = ({"group": r.choice((16, 32)), "group-2": 32, "group-4": 64}[word], r.choice((8, 16)))
        outer = self.path
        g = self.fresh("p")
        self.path = [*outer, (g, groups)]
        inner = scope.inner(own=[])
        inner.scalars = [*inner.scalars, *inner.mutable, name(g)]
        inner.mutable = []
        source = self.array("a", t, (groups * shape[0], shape[1]))
        mc, i, j = self.fresh("mc"), self.fresh("i"), self.fresh("j")
        load = f.Frag(mc, t, shape, f.Chain(source.name, (f.Cut("chunk", (groups, 1), (name(g), lit(0))),)))
        visited = inner.inner(own=[f.Elem(t, mc, (name(i), name(j)))])
        visited.scalars += [name(i), name(j)]
        at = tuple(name(n) for n, _ in self.path)
        for _ in range(r.randint(0, 2)):
            out = self.array("o", self.stored(), (*(e for _, e in self.path), *shape), True)
            visited.own.append(f.Elem(out.t, out.name, (*at, name(i), name(j))))
        body: list[f.Stmt] = [load, f.ApplyBody(mc, (i, j), self.whole(visited, 2))]
        kept = self.array("o", r.choice(("f32", "f16")), (*(e for _, e in self.path), *shape), True)
        ones = tuple(1 for _ in at)
        cut = f.Cut("subspan", (*ones, *shape), (*at, lit(0), lit(0)))
        body.append(f.Keep(mc, f.Chain(kept.name, (cut, f.Cut("sqz")))))
        self.path = outer
        return [f.Parallel((g,), (lit(groups),), word, tuple(body))]
