"""The meaning of a program of the fuzzer, in NumPy and Python alone, independent of the compiler."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from dev.fuzz import programs as f
from dev.fuzz.arithmetic import NUMPY, binary, convert, meet, name_of, promoted, unary
from dev.fuzz.cuts import cut

Arrays = dict[str, Any]


class _Jump(Exception):
    pass


class _Break(_Jump):
    pass


class _Continue(_Jump):
    pass


def evaluate(p: f.Program, arrays: Arrays, language: str = "python") -> Arrays:
    """The arrays after the call, those passed unchanged.

    ``language``: Croqtile writes a quotient rounded down as ``__aligndown(a, b) / b``, which may wrap, and
    the remainder as ``a - __aligndown(a, b)``.
    """
    memory = {name: a.copy() for name, a in arrays.items()}
    names: Arrays = {n: NUMPY["s32"](v) for n, v in p.sizes.items()}
    names |= {n: NUMPY[t](v) for n, t, v in p.scalars}
    with np.errstate(all="ignore"):
        _Run(memory, set(arrays), language).body(p.body, names)
    return {name: memory[name] for name in arrays}


class _Run:
    """``names`` are dictionaries for each block, so that inner ones see and change outer variables."""

    def __init__(self, memory: Arrays, given: set[str], language: str) -> None:
        self.aligns = language == "croqtile"
        self.memory = memory
        self.given = given
        # By name and by the instance of a group that holds it; what is filled for all of them stands under ().
        self.tiles: dict[tuple[str, tuple[int, ...]], Any] = {}
        self.group: tuple[int, ...] = ()

    def body(self, body: Sequence[f.Stmt], names: Arrays) -> None:
        for s in body:
            self.statement(s, names)

    def statement(self, s: f.Stmt, names: Arrays) -> None:
        match s:
            case f.Var() | f.Set():
                kind = s.t if isinstance(s, f.Var) else name_of(names[s.name])
                names[s.name] = convert(self.value(s.value, names), kind)
            case f.Store():
                at = self.index(s.at, names)
                array = self.memory[s.buffer] if s.buffer in self.memory else self.tile(s.buffer)
                array[at] = convert(self.value(s.value, names), name_of(array))
            case f.Let():
                names[s.name] = self.chain(s.view, names)
            case f.ViewStore():
                base, places = self.chain(s.view, names)
                place = places[self.index(s.at, names)]
                value = convert(self.value(s.value, names), self.type_of(base))
                if place >= 0:
                    self.memory[base].flat[place] = value
            case f.Atomic():
                at = self.index(s.at, names)
                array = self.memory[s.buffer]
                value = convert(self.value(s.value, names), self.type_of(s.buffer))
                sign = {"add": "+", "and": "&", "or": "|", "xor": "^"}.get(s.op, s.op)
                array[at] = binary(sign, array[at], value)
            case f.Alloc():
                self.memory[s.name] = np.full(s.shape, 99 if s.init is None else s.init).astype(NUMPY[s.t])
            case f.For():
                start = s.start if isinstance(s.start, int) else int(self.value(s.start, names))
                for i in range(start, int(self.value(s.extent, names)) - s.short, s.step):
                    names[s.name] = np.int32(i)
                    if self.turn(s.body, names):
                        break
            case f.While():
                while self.value(s.cond, names):
                    if self.turn(s.body, names):
                        break
            case f.InThreads():
                if self.value(s.cond, names):
                    self.body(s.body, names)
            case f.If():
                self.body(s.then if self.value(s.cond, names) else s.otherwise, names)
            case f.Jump():
                raise _Break if s.word == "break" else _Continue
            case f.Parallel():
                extents = [range(int(self.value(e, names))) for e in s.extents]
                for where in itertools.product(*extents):
                    inner = {**names, **{n: np.int32(i) for n, i in zip(s.names, where, strict=True)}}
                    self.group = where if s.level.startswith("group") else ()
                    self.body(s.body, inner)
                self.group = ()
            case f.Copy():
                self.copy(s, names)
            case f.Move():
                self.move(s, names)
            case f.Start():
                self.memory[f"{s.name}.data"] = self.read(s.src, names, ())
            case f.Wait():
                pass
            case f.Swap():
                held = [self.memory.get(f"{n}.data") for n in s.futures]
                for n, data in zip(s.futures, (*held[1:], held[0]), strict=True):
                    self.memory[f"{n}.data"] = data
            case _:
                self.contraction(s, names)

    def turn(self, body: Sequence[f.Stmt], names: Arrays) -> bool:
        """One iteration of a loop; whether it ends the loop."""
        try:
            self.body(body, names)
        except _Continue:
            return False
        except _Break:
            return True
        return False

    # ---- tiles -------------------------------------------------------------------------------------------

    def chain(self, v: f.Chain | str, names: Arrays) -> tuple[str, Any]:
        """(array, where the view's elements are in it; -1 beyond its edges)."""
        if isinstance(v, str):
            v = f.Chain(v, ())
        if isinstance(names.get(v.array), tuple):
            base, places = names[v.array]
        else:
            base, places = v.array, np.arange(self.memory[v.array].size).reshape(self.memory[v.array].shape)
        for c in v.cuts:
            places = cut(places, c, tuple(0 if i is None else int(self.value(i, names)) for i in c.at))
        return base, places

    def gathered(self, v: f.Chain | str, names: Arrays) -> Any:
        base, places = self.chain(v, names)
        array = self.memory[base]
        return np.where(places >= 0, array.reshape(-1)[places], array.dtype.type(0)).astype(array.dtype)

    def move(self, s: f.Move, names: Arrays) -> None:
        tile = self.gathered(s.src, names)
        if s.perm:
            tile = tile.transpose(s.perm)
        if s.pad:
            shape = [
                low + max(0, n + (n - 1) * between) + high
                for n, (low, high, between) in zip(tile.shape, s.pad, strict=True)
            ]
            whole = np.full(shape, s.fill).astype(tile.dtype)
            inner = tuple(
                slice(low, low + n + (n - 1) * between, between + 1)
                for n, (low, _, between) in zip(tile.shape, s.pad, strict=True)
            )
            whole[inner] = tile
            tile = whole
        base, places = self.chain(s.dst, names)
        kept = places >= 0
        self.memory[base].reshape(-1)[places[kept]] = tile[kept]

    def region(self, v: f.View | str, names: Arrays, like: tuple[int, ...]) -> tuple[str, list[int], list[int]]:
        """(array, origin, extents)."""
        if isinstance(v, str):
            shape = list(self.memory[v].shape)
            return v, [0] * len(shape), shape
        at = self.index(v.at, names)
        extents = list(like if v.extents is None else v.extents)
        steps = v.step or ([1] * len(at) if v.kind == "view" else extents)
        origin = [i * n for i, n in zip(at, steps, strict=True)]
        if v.kind == "modspan":
            shape = self.memory[v.array].shape
            extents = [max(0, min(n, m - o)) for n, m, o in zip(extents, shape, origin, strict=True)]
        return v.array, origin, extents

    def read(self, v: f.View | f.Chain | str, names: Arrays, like: tuple[int, ...]) -> Any:
        if isinstance(v, f.Chain):
            return self.gathered(v, names)
        name, origin, extents = self.region(v, names, like)
        source = self.memory[name]
        out = np.zeros(extents, source.dtype)
        for where in np.ndindex(*extents):
            at = tuple(o + i for o, i in zip(origin, where, strict=True))
            if all(0 <= i < n for i, n in zip(at, source.shape, strict=True)):
                out[where] = source[at]
        return out

    def write(self, v: f.View | f.Chain | str, tile: Any, names: Arrays) -> None:
        if isinstance(v, f.Chain):
            base, places = self.chain(v, names)
            for where in np.ndindex(*tile.shape):
                if places[where] >= 0:
                    self.memory[base].flat[places[where]] = convert(tile[where], self.type_of(base))
            return
        name, origin, extents = self.region(v, names, tile.shape)
        target = self.memory[name]
        for where in np.ndindex(*extents):
            at = tuple(o + i for o, i in zip(origin, where, strict=True))
            if all(0 <= i < n for i, n in zip(at, target.shape, strict=True)):
                inside = all(i < n for i, n in zip(where, tile.shape, strict=True))
                target[at] = convert(tile[where], self.type_of(name)) if inside else 0

    def extents(self, v: f.View | f.Chain | str, names: Arrays) -> tuple[int, ...] | None:
        if isinstance(v, f.Chain):
            return tuple(self.chain(v, names)[1].shape)
        return tuple(self.memory[v].shape) if isinstance(v, str) else v.extents

    def copy(self, s: f.Copy, names: Arrays) -> None:
        like = self.extents(s.dst, names) or self.extents(s.src, names)
        assert like is not None
        tile = self.read(s.src, names, like[::-1] if s.transposed else like)
        self.write(s.dst, tile.T if s.transposed else tile, names)

    def contraction(self, s: f.Stmt, names: Arrays) -> None:
        match s:
            case f.Fill():
                self.hold(s.tile, (s.t, s.value))
            case f.Frag():
                self.hold(s.tile, self.gathered(s.src, names))
            case f.Load():
                like = self.extents(s.src, names)
                assert like is not None
                self.hold(s.tile, self.read(s.src, names, like))
            case f.Mma():
                first, second = s.contract.split(".")
                a, b = (np.asarray(self.tile(x), np.float64) for x in (s.a, s.b))
                product = (a if first == "row" else a.T) @ (b.T if second == "row" else b)
                acc = self.tile(s.acc)
                if isinstance(acc, tuple):
                    acc = np.full(product.shape, acc[1], NUMPY[acc[0]])
                self.hold(s.acc, (acc.astype(np.float64) + product).astype(acc.dtype))
            case f.Apply():
                old = self.tile(s.tile)
                new = old.copy()
                for i, j in np.ndindex(*old.shape):
                    inner = {**names, s.names[0]: np.int32(i), s.names[1]: np.int32(j)}
                    new[i, j] = convert(self.value(s.value, inner), name_of(old[i, j]))
                self.hold(s.tile, new)
            case f.ApplyBody():
                self.hold(s.tile, self.tile(s.tile).copy())
                for i, j in np.ndindex(*self.tile(s.tile).shape):
                    self.body(s.body, {**names, s.names[0]: np.int32(i), s.names[1]: np.int32(j)})
            case f.Keep():
                tile = self.tile(s.tile)
                if isinstance(tile, tuple):
                    shape = self.extents(s.dst, names)
                    assert shape is not None
                    tile = np.full(shape, tile[1], NUMPY[tile[0]])
                self.write(s.dst, tile.T if s.transposed else tile, names)
            case _:
                raise AssertionError(s)

    def tile(self, name: str) -> Any:
        own = (name, self.group)
        return self.tiles[own if own in self.tiles else (name, ())]

    def hold(self, name: str, tile: Any) -> None:
        if not self.group:
            self.tiles = {key: t for key, t in self.tiles.items() if key[0] != name}
        self.tiles[name, self.group] = tile

    def atomic(self, e: f.Old, names: Arrays) -> Any:
        array, at = self.memory[e.place.buffer], self.index(e.place.at, names)
        kind, old = self.type_of(e.place.buffer), array[at]
        value = convert(self.value(e.value, names), kind)
        if e.expected is not None:
            array[at] = value if old == convert(self.value(e.expected, names), kind) else old
        elif e.op == "exch":
            array[at] = value
        else:
            sign = {"add": "+", "sub": "-", "and": "&", "or": "|", "xor": "^"}.get(e.op, e.op)
            array[at] = binary(sign, old, value)
        return old

    # ---- expressions -------------------------------------------------------------------------------------

    def type_of(self, name: str) -> str:
        return name_of(self.memory[name])

    def index(self, at: Sequence[f.Expr], names: Arrays) -> tuple[int, ...]:
        return tuple(int(self.value(e, names)) for e in at)

    def value(self, e: f.Expr, names: Arrays) -> Any:
        match e:
            case f.Lit():
                return NUMPY[e.t](e.value)
            case f.Name():
                return names[e.name]
            case f.ViewElem():
                base, places = self.chain(e.view, names)
                place = places[self.index(e.at, names)]
                return self.memory[base].reshape(-1)[place] if place >= 0 else self.memory[base].dtype.type(0)
            case f.Old():
                return self.atomic(e, names)
            case f.Mixed():
                x, y = self.value(e.a, names), self.value(e.b, names)
                t = promoted(name_of(x), name_of(y))
                return binary(e.op, meet(x, t), meet(y, t))
            case f.Elem() if isinstance(names.get(e.buffer), tuple):
                return self.value(f.ViewElem(e.t, f.Chain(e.buffer, ()), e.at), names)
            case f.Elem():
                array = self.memory[e.buffer] if e.buffer in self.memory else self.tile(e.buffer)
                return array[self.index(e.at, names)]
            case f.Sel():
                return self.value(e.a if self.value(e.c, names) else e.b, names)
            case f.Conv():
                return convert(self.value(e.a, names), e.t)
            case f.Un():
                return unary(e.op, self.value(e.a, names))
            case f.Bin(op="and"):
                return np.bool_(self.value(e.a, names) and self.value(e.b, names))
            case f.Bin(op="or"):
                return np.bool_(self.value(e.a, names) or self.value(e.b, names))
            case f.Bin(op="//" | "%") if self.aligns and e.t[0] in "su":
                dividend, divisor = self.value(e.a, names), self.value(e.b, names)
                aligned = binary("*", binary("//", dividend, divisor), divisor)
                return binary("quot", aligned, divisor) if e.op == "//" else binary("-", dividend, aligned)
            case f.Bin():
                return binary(e.op, self.value(e.a, names), self.value(e.b, names))
        raise AssertionError(e)
