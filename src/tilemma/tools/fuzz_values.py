"""What a program of the fuzzer computes, in NumPy and Python alone: nothing of the compiler is used here."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tilemma.tools import fuzz_programs as f

NUMPY: dict[str, Any] = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "s64": np.int64,
    "s32": np.int32, "s16": np.int16, "s8": np.int8, "u32": np.uint32, "u16": np.uint16, "u8": np.uint8,
    "bool": np.bool_, "f8_e4m3": ml_dtypes.float8_e4m3fn, "f8_e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
LARGEST = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0}
Arrays = dict[str, Any]


class _Jump(Exception):
    pass


class _Break(_Jump):
    pass


class _Continue(_Jump):
    pass


def evaluate(p: f.Program, arrays: Arrays) -> Arrays:
    """The arrays after the call, those passed unchanged."""
    memory = {name: a.copy() for name, a in arrays.items()}
    names: Arrays = {n: NUMPY["s32"](v) for n, v in p.sizes.items()}
    names |= {n: NUMPY[t](v) for n, t, v in p.scalars}
    with np.errstate(all="ignore"):
        _Run(memory, set(arrays)).body(p.body, names)
    return {name: memory[name] for name in arrays}


def convert(x: Any, t: str) -> Any:
    """``x`` as stores convert it to ``t``."""
    kind = NUMPY[t]
    if t == "bool":
        return kind(x != 0)
    if t[0] in "su":
        if isinstance(x, np.bool_):
            return kind(int(x))
        info = np.iinfo(kind)
        if isinstance(x, np.integer):
            return kind(min(max(int(x), info.min), info.max))
        value = float(x)
        if np.isnan(value):
            return kind(0)
        if np.isinf(value):
            return kind(info.max if value > 0 else info.min)
        return kind(min(max(round(value), info.min), info.max))
    if t in LARGEST:
        # fp8 saturates, infinities too.
        return np.asarray(np.clip(np.float64(x), -LARGEST[t], LARGEST[t])).astype(kind)[()]
    if isinstance(x, np.integer) and t in ("f16", "bf16"):
        # Rounded once, from the whole number.
        return np.float64(int(x)).astype(kind) if abs(int(x)) < 2**53 else kind(float(int(x)))
    return np.asarray(x).astype(kind)[()]


class _Run:
    """``names`` are dictionaries for each block, so that inner ones see and change outer variables."""

    def __init__(self, memory: Arrays, given: set[str]) -> None:
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
                kind = s.t if isinstance(s, f.Var) else _type_name(names[s.name])
                names[s.name] = convert(self.value(s.value, names), kind)
            case f.Store():
                at = self.index(s.at, names)
                self.memory[s.buffer][at] = convert(self.value(s.value, names), self.type_of(s.buffer))
            case f.Atomic():
                at = self.index(s.at, names)
                array = self.memory[s.buffer]
                value = convert(self.value(s.value, names), self.type_of(s.buffer))
                sign = {"add": "+", "and": "&", "or": "|", "xor": "^"}.get(s.op, s.op)
                array[at] = _binary(sign, array[at], value)
            case f.Alloc():
                self.memory[s.name] = np.full(s.shape, 99 if s.init is None else s.init).astype(NUMPY[s.t])
            case f.For():
                for i in range(s.start, int(self.value(s.extent, names)), s.step):
                    names[s.name] = np.int32(i)
                    if self.turn(s.body, names):
                        break
            case f.While():
                while self.value(s.cond, names):
                    if self.turn(s.body, names):
                        break
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
        """One turn of a loop; whether it ends it."""
        try:
            self.body(body, names)
        except _Continue:
            return False
        except _Break:
            return True
        return False

    # ---- tiles -------------------------------------------------------------------------------------------

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

    def read(self, v: f.View | str, names: Arrays, like: tuple[int, ...]) -> Any:
        name, origin, extents = self.region(v, names, like)
        source = self.memory[name]
        out = np.zeros(extents, source.dtype)
        for where in np.ndindex(*extents):
            at = tuple(o + i for o, i in zip(origin, where, strict=True))
            if all(0 <= i < n for i, n in zip(at, source.shape, strict=True)):
                out[where] = source[at]
        return out

    def write(self, v: f.View | str, tile: Any, names: Arrays) -> None:
        name, origin, extents = self.region(v, names, tile.shape)
        target = self.memory[name]
        for where in np.ndindex(*extents):
            at = tuple(o + i for o, i in zip(origin, where, strict=True))
            if all(0 <= i < n for i, n in zip(at, target.shape, strict=True)):
                inside = all(i < n for i, n in zip(where, tile.shape, strict=True))
                target[at] = convert(tile[where], self.type_of(name)) if inside else 0

    def extents(self, v: f.View | str) -> tuple[int, ...] | None:
        return tuple(self.memory[v].shape) if isinstance(v, str) else v.extents

    def copy(self, s: f.Copy, names: Arrays) -> None:
        like = self.extents(s.dst) or self.extents(s.src)
        assert like is not None
        tile = self.read(s.src, names, like[::-1] if s.transposed else like)
        self.write(s.dst, tile.T if s.transposed else tile, names)

    def contraction(self, s: f.Stmt, names: Arrays) -> None:
        match s:
            case f.Fill():
                self.hold(s.tile, (s.t, s.value))
            case f.Load():
                like = self.extents(s.src)
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
                    new[i, j] = convert(self.value(s.value, inner), _type_name(old[i, j]))
                self.hold(s.tile, new)
            case f.Keep():
                tile = self.tile(s.tile)
                if isinstance(tile, tuple):
                    assert not isinstance(s.dst, str) and s.dst.extents is not None
                    tile = np.full(s.dst.extents, tile[1], NUMPY[tile[0]])
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

    # ---- expressions -------------------------------------------------------------------------------------

    def type_of(self, name: str) -> str:
        return _type_name(self.memory[name].dtype.type(0))

    def index(self, at: Sequence[f.Expr], names: Arrays) -> tuple[int, ...]:
        return tuple(int(self.value(e, names)) for e in at)

    def value(self, e: f.Expr, names: Arrays) -> Any:
        match e:
            case f.Lit():
                return NUMPY[e.t](e.value)
            case f.Name():
                return names[e.name]
            case f.Elem():
                array = self.memory[e.buffer] if e.buffer in self.memory else self.tile(e.buffer)
                return array[self.index(e.at, names)]
            case f.Sel():
                return self.value(e.a if self.value(e.c, names) else e.b, names)
            case f.Conv():
                return convert(self.value(e.a, names), e.t)
            case f.Un():
                return _unary(e.op, self.value(e.a, names))
            case f.Bin(op="and"):
                return np.bool_(self.value(e.a, names) and self.value(e.b, names))
            case f.Bin(op="or"):
                return np.bool_(self.value(e.a, names) or self.value(e.b, names))
            case f.Bin():
                return _binary(e.op, self.value(e.a, names), self.value(e.b, names))
        raise AssertionError(e)


def _type_name(x: Any) -> str:
    return next(n for n, t in NUMPY.items() if np.dtype(t) == np.asarray(x).dtype)


def _unary(op: str, a: Any) -> Any:
    match op:
        case "neg":
            return type(a)(-a)
        case "not":
            return ~a
        case "lnot":
            return np.bool_(not a)
        case "abs":
            return type(a)(abs(a))
    wide = {"floor": np.floor, "ceil": np.ceil, "sqrt": np.sqrt}[op](np.float64(a))
    return np.asarray(wide).astype(type(a))[()]


def _binary(op: str, a: Any, b: Any) -> Any:
    kind = type(a)
    assert kind is type(b), (op, a, b)
    match op:
        case "==":
            return np.bool_(a == b)
        case "!=":
            return np.bool_(a != b)
        case "<":
            return np.bool_(a < b)
        case "<=":
            return np.bool_(a <= b)
        case ">":
            return np.bool_(a > b)
        case ">=":
            return np.bool_(a >= b)
        case "min" | "max":
            # A number rather than NaN.
            if a != a:
                return b
            if b != b:
                return a
            return min(a, b) if op == "min" else max(a, b)
    if op in ("<<", ">>") or op in "&|^":
        table = {"<<": np.left_shift, ">>": np.right_shift, "&": np.bitwise_and, "|": np.bitwise_or,
                 "^": np.bitwise_xor}  # fmt: skip
        return kind(table[op](a, b))
    whole = np.issubdtype(kind, np.integer)
    if whole:
        x, y = int(a), int(b)
        whole_table = {
            "+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y, "//": lambda: x // y, "%": lambda: x % y,
            "cdiv": lambda: -(-x // y),
        }  # fmt: skip
        found = whole_table[op]()
        bits = np.dtype(kind).itemsize * 8
        wrapped = found % 2**bits
        return kind(wrapped - 2**bits if wrapped > np.iinfo(kind).max else wrapped)
    exact: dict[str, Any] = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}
    return np.asarray(exact[op](a, b)).astype(kind)[()]
