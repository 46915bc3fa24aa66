"""Statements and expressions of the wider programs: edges of types, mixed types, jumps out of unrolled loops."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import Any

from dev.fuzz import generate as narrow
from dev.fuzz import programs as f
from dev.fuzz.arithmetic import promoted
from dev.fuzz.generate import NARROW, S32, STORED, Scope, add, lit, name

INTS = ("s32", "u32", "s8", "u8", "s16", "u16", "s64", "u64")
TYPES = (*INTS, *f.FLOATS)
_LARGE = {"f64": 1e300, "f32": 3e38, "f16": 65504.0, "bf16": 3e38, "f8_e4m3": 448.0, "f8_e5m2": 57344.0}
_SMALL = {"f64": 1e-300, "f32": 1e-38, "f16": 6e-5, "bf16": 1e-38, "f8_e4m3": 0.015625, "f8_e5m2": 6.1e-5}
# The code that narrow floats need on sm_80 is long: they are rarer.
_RARE = ("bf16", *f.FP8)
_PAIRS = {
    t: [(a, b) for a in (*TYPES, *f.FP8) for b in (*TYPES, *f.FP8) if promoted(a, b) == t and a != b]
    for t in ("s32", "u32", "s64", "u64", *f.FLOATS)
}
_PAIRS = {t: [*pairs, *[p for p in pairs if not {*p} & {*_RARE}] * 4] for t, pairs in _PAIRS.items()}
ATOMIC = ("add", "sub", "exch", "min", "max", "and", "or", "xor", "cas")


def floor_mod(e: f.Expr, n: int) -> f.Expr:
    return f.Bin(S32, "%", e, lit(n))


def extremes(t: str) -> tuple[int | float, ...]:
    """Numbers near the ends of a type that both languages can write."""
    if t in _LARGE:
        return (0.0, 1.0, -1.0, _LARGE[t], -_LARGE[t], _SMALL[t], -0.5, 2.5)
    bits = int(t[1:])
    if t[0] == "u":
        return (0, 1, 2**bits - 1, 2**bits - 2, 2 ** (bits - 1), 2 ** (bits - 1) - 1)
    return (0, 1, -1, 2 ** (bits - 1) - 1, 2 ** (bits - 1) - 2, -(2 ** (bits - 1)) + 1, -2)


class Statements(narrow.Generator, ABC):
    """``path``: the indices of all levels around, with their extents; ``truncates``: Croqtile's own / and %;
    ``viewed``: the array that each named view is of."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.r = random.Random(f"wide {seed}")
        self.path: list[tuple[str, Any]] = []
        self.shared: list[f.Alloc] = []
        self.looping = 0
        self.viewed: dict[str, str] = {}
        self.truncates = self.r.random() < 0.25

    def stored(self) -> str:
        """The type of an array or a buffer."""
        return self.r.choice(STORED if self.r.random() < 0.2 else tuple(t for t in TYPES if t not in _RARE))

    def computed(self) -> str:
        return self.r.choice(TYPES if self.r.random() < 0.3 else tuple(t for t in TYPES if t not in _RARE))

    # ---- expressions -------------------------------------------------------------------------------------

    def edge(self, t: str) -> int | float:
        return self.r.choice(extremes(t)) if self.r.random() < 0.5 else super().literal(t).value

    def literal(self, t: str) -> f.Lit:
        return f.Lit(t, self.edge(t))

    def leaf(self, t: str, scope: Scope) -> f.Expr:
        if self.r.random() < 0.25:
            views = [b for b in scope.readable if b[1] == t]
            if views:
                return self.seen(self.r.choice(views), scope)
        return super().leaf(t, scope)

    def seen(self, buffer: tuple[str, str, tuple[Any, ...]], scope: Scope) -> f.Expr:
        """An element of a view of ``buffer``."""
        array, t, shape = buffer
        cuts, extents = self.cuts(array, shape, scope)
        return f.ViewElem(t, f.Chain(array, cuts), self.place(extents, scope))

    @abstractmethod
    def cuts(self, array: str, shape: tuple[Any, ...], scope: Scope) -> tuple[tuple[f.Cut, ...], tuple[Any, ...]]:
        """A view of an array, as the cuts that make it, and its extents."""

    def value(self, t: str, scope: Scope, depth: int = 2) -> f.Expr:
        r = self.r
        if depth > 0 and t in _PAIRS and r.random() < 0.25:
            kinds = r.choice(_PAIRS[t])
            ops = ("+", "-", "*", "min", "max") if t in f.FLOATS else ("+", "-", "*", "&", "|", "^", "min", "max")
            return f.Mixed(
                t, r.choice(ops), self.value(kinds[0], scope, depth - 1), self.leaf_or_conv(kinds[1], scope)
            )
        if depth > 0 and t in ("s32", "u32", "s64", "u64") and r.random() < 0.25:
            a = self.value(t, scope, depth - 1)
            b: f.Expr = self.literal(t) if r.random() < 0.4 else self.leaf(t, scope)
            ops = ("//", "%", "<<", ">>", "<<", ">>", *(("quot", "rem") * 2 if self.truncates else ()))
            op = r.choice(ops)
            # A literal divisor of 0 is refused.
            return f.Bin(t, op, a, f.Lit(t, 3) if op not in ("<<", ">>") and b == f.Lit(t, 0) else b)
        return super().value(t, scope, depth)

    def leaf_or_conv(self, t: str, scope: Scope) -> f.Expr:
        """No literal: a literal takes the type beside it."""
        found = self.leaf(t, scope)
        return f.Conv(t, self.leaf("f32", scope)) if isinstance(found, f.Lit) else found

    def any_value(self, t: str, scope: Scope) -> f.Expr:
        """An element of an input, whatever its type."""
        buffer, kind, shape = scope.readable[0]
        e: f.Expr = f.Elem(kind, buffer, tuple(lit(0) for _ in shape))
        if kind != t and t in f.FP8 and kind not in narrow.SOURCES[t]:
            e = f.Conv("f32", e)
        return e if e.t == t else f.Conv(t, e)

    # ---- statements --------------------------------------------------------------------------------------

    def statement(self, scope: Scope) -> list[f.Stmt]:
        r = self.r
        kind = r.random()
        if kind < 0.06 and scope.own:
            return self.old_value(scope)
        if kind < 0.12:
            return self.named_view(scope)
        if kind < 0.2 and scope.depth > 0:
            return [f.InThreads(self.condition(scope), self.statements(scope.inner(in_loop=False), 2))]
        if kind < 0.3 and scope.depth > 0:
            return [self.loop(scope)]
        if kind < 0.34 and scope.own:
            return [self.stored_in_view(scope)]
        return super().statement(scope)

    def stored_in_view(self, scope: Scope) -> f.Stmt:
        """An element of the instance's own, written as one of a view around it."""
        target = self.r.choice(scope.own)
        value = self.value(target.t, scope)
        if target.buffer.startswith("mc"):
            return f.Store(target.buffer, target.at, value)
        ones = tuple(1 for _ in target.at)
        cut = f.Cut(self.r.choice(("subspan", "view")), ones, target.at)
        return f.ViewStore(f.Chain(target.buffer, (cut,)), tuple(lit(0) for _ in ones), value)

    def named_view(self, scope: Scope) -> list[f.Stmt]:
        array, t, shape = self.r.choice(scope.readable)
        if t not in TYPES or array.startswith("w") or "." in array:
            return self.table(scope)
        cuts, extents = self.cuts(array, shape, scope)
        made = f.Let(self.fresh("w"), f.Chain(array, cuts))
        self.viewed[made.name] = array
        scope.readable.append((made.name, t, extents))
        return [made]

    def old_value(self, scope: Scope) -> list[f.Stmt]:
        """An atomic operation on an element of the instance's own, and the value that it had."""
        r = self.r
        places = [e for e in scope.own if e.t in ("s32", "u32", "s64", "u64", "f32", "s16", "u16", "f16")]
        if not places:
            return self.table(scope)
        place = r.choice(places)
        op = r.choice(("add", "exch")) if place.t in f.FLOATS else r.choice(ATOMIC)
        expected = self.literal(place.t) if op == "cas" else None
        old = f.Old(place.t, op, place, self.value(place.t, scope, 1), expected)
        declared = f.Name(place.t, self.fresh("v"))
        scope.mutable.append(declared)
        return [f.Var(declared.name, place.t, old)]

    def loop(self, scope: Scope) -> f.Stmt:
        r = self.r
        index = self.fresh("k")
        inner = scope.inner(in_loop=True)
        inner.scalars.append(name(index))
        outer = [x for x in scope.scalars if x.name[0] in "kp"]
        most = r.randint(0, 5)
        extent: f.Expr = lit(most)
        unroll = r.choice((None, None, 0, 1, 2, 3, 4))
        kind = r.random()
        if outer and kind < 0.25:
            # A triangle.
            extent = r.choice((r.choice(outer), add(r.choice(outer), lit(r.randint(0, 2)))))
        elif kind < 0.4:
            extent = floor_mod(self.leaf(S32, scope), 5)
        unroll = None if unroll == 0 and not isinstance(extent, f.Lit) else unroll
        start: int | f.Expr = 0
        step, short = 1, 0
        if r.random() < 0.4:
            start, step, short = r.randint(0, 2), r.randint(1, 3), r.choice((0, 0, 1))
            if outer and r.random() < 0.3:
                start = r.choice(outer)
                unroll = None if unroll == 0 else unroll
        condition = self.condition(inner)
        jump: tuple[f.Stmt, ...] = (f.Jump(r.choice(("break", "continue", "continue"))),)
        if r.random() < 0.3:
            jump = (*self.statements(inner.inner(), 1), *jump)
        body = list(self.statements(inner, 2))
        if r.random() < 0.5:
            body.insert(r.randint(0, len(body)), f.If(condition, jump))
        return f.For(index, extent, tuple(body), start, step, short, unroll)

    def table(self, scope: Scope) -> list[f.Stmt]:
        """A local array, one element of which is written."""
        t, size = self.stored(), self.r.randint(1, 5)
        made = f.Alloc("local", self.fresh("l"), t, (size,), self.literal(t).value)
        value = self.value(t, scope, 2)
        written = f.Store(made.name, (self.index(size, scope),), value)
        scope.readable.append((made.name, t, (size,)))
        return [made, written]


__all__ = ["INTS", "NARROW", "TYPES", "Statements", "extremes", "floor_mod"]
