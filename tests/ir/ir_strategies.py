"""Random kernels of both IRs, built from the declared types of the operations' fields.

Nothing here knows an operation by name, except which of them declare things that others use.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hypothesis import strategies as st

from tilemma import dtypes
from tilemma.ir import expr as e
from tilemma.ir import lane, tile
from tilemma.ir import types as ty
from tilemma.ir.forms import MATH, alternatives, hints, is_body, operations
from tilemma.ir.lane import LaneLocal

DTYPES = st.sampled_from(sorted(dtypes.BY_NAME.values(), key=lambda t: t.name))
NAMES = st.one_of(
    st.sampled_from(
        ["a", "p1.1", "block_m", "to", "_", "as", "lhs_load_s.future", "fill", "if", "x.as", "true", "inf"]
    ),
    st.text(min_size=1, max_size=6),
)
TEXTS = st.one_of(
    NAMES, st.text(max_size=8), st.sampled_from(["mma.sync.m16n8k16", "bar.sync", "barrier", "_", ""])
)
FLOATS = st.floats(allow_nan=False)
INTEGERS = st.integers(-(2**70), 2**70)
LEVELS = st.sampled_from([ty.BLOCK, ty.CLUSTER, ty.GROUP, ty.WARPGROUP, ty.THREAD, ty.Level("group", 3)])


@dataclass
class World:
    """The names declared so far."""

    scalars: list[e.Expr] = field(default_factory=list)
    buffers: list[ty.Buffer] = field(default_factory=list)
    events: list[ty.Event] = field(default_factory=list)
    registers: list[lane.Reg] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def fresh(self, draw: Any) -> str:
        name = draw(NAMES)
        while name in self.used:
            name += "x"
        self.used.add(name)
        return name


class Maker:
    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.world = World()

    # -- expressions ------------------------------------------------------------------------------------

    def constant(self) -> e.Const:
        value = self.draw(st.one_of(st.booleans(), INTEGERS, FLOATS))
        return e.Const(value, self.draw(DTYPES))

    def expression(self, depth: int = 2) -> e.Expr:
        leaves = ["const"] + (["name"] * 2 if self.world.scalars else [])
        nodes = ["binary", "unary", "select", "cast", "call", "fragment"] + (
            ["element"] if self.world.buffers else []
        )
        match self.draw(st.sampled_from(leaves + (nodes if depth else []))):
            case "const":
                return self.constant()
            case "name":
                return self.draw(st.sampled_from(self.world.scalars))
            case "binary":
                op = self.draw(st.sampled_from(typing.get_args(e.BinaryOp)))
                return e.Binary(op, self.expression(depth - 1), self.expression(depth - 1))
            case "unary":
                return e.Unary(self.draw(st.sampled_from(typing.get_args(e.UnaryOp))), self.expression(depth - 1))
            case "select":
                return e.Select(*(self.expression(depth - 1) for _ in range(3)))
            case "cast":
                return e.Cast(self.expression(depth - 1), self.draw(DTYPES))
            case "call":
                name = self.draw(st.sampled_from(["exp", "fmaf", "min"]))
                assert MATH
                return e.Call(name, tuple(self.expression(depth - 1) for _ in range(self.draw(st.integers(1, 3)))))
            case "fragment":
                indices = tuple(self.expression(0) for _ in range(self.draw(st.integers(0, 2))))
                return e.FragmentElement(self.draw(NAMES), indices, self.draw(DTYPES))
            case _:
                return e.Element(self.view(depth - 1, axes=False))

    def maybe(self, make: Any) -> Any:
        return make() if self.draw(st.booleans()) else None

    # -- entities ---------------------------------------------------------------------------------------

    def buffer(self, space: ty.Space | None = None) -> ty.Buffer:
        shape = tuple(self.expression(1) for _ in range(self.draw(st.integers(0, 3))))
        space = space or self.draw(st.sampled_from(list(ty.Space)))
        b = ty.Buffer(self.world.fresh(self.draw), self.draw(DTYPES), shape, space, self.draw(st.integers(0, 4)))
        self.world.buffers.append(b)
        return b

    def view(self, depth: int = 1, axes: bool = True) -> ty.View:
        if not self.world.buffers:
            self.world.buffers.append(self.param_buffer)
        base = self.draw(st.sampled_from(self.world.buffers))
        slot = self.maybe(lambda: self.expression(0))
        if axes and self.draw(st.booleans()):
            return base.whole(slot)
        reshape = self.maybe(lambda: tuple(self.expression(0) for _ in range(self.draw(st.integers(0, 3)))))
        rank = base.rank if reshape is None else len(reshape)
        dims = self.draw(st.permutations(range(rank)))[: self.draw(st.integers(0, rank))] if axes else []
        cut = tuple(ty.Axis(d, self.expression(depth), self.expression(0)) for d in dims)
        return ty.View(base, tuple(self.expression(depth) for _ in range(rank)), cut, slot, reshape)

    def event(self) -> ty.Event:
        threads = self.maybe(lambda: self.draw(st.integers(1, 400)))
        x = ty.Event(self.world.fresh(self.draw), self.draw(st.integers(0, 5)), threads, self.draw(st.booleans()))
        self.world.events.append(x)
        return x

    def event_ref(self) -> ty.EventRef:
        known = self.draw(st.sampled_from(self.world.events))
        return ty.EventRef(known, self.maybe(lambda: self.expression(1)), self.maybe(lambda: self.expression(1)))

    def index(self) -> e.Index:
        extent = self.expression(1)
        found = e.Index(self.world.fresh(self.draw), extent)
        self.world.scalars.append(found)
        return found

    def var(self) -> e.Var:
        found = e.Var(self.world.fresh(self.draw), self.draw(DTYPES))
        self.world.scalars.append(found)
        return found

    def register(self) -> lane.Reg:
        if self.world.registers and self.draw(st.booleans()):
            return self.draw(st.sampled_from(self.world.registers))
        kinds = ["pred", "b32", "s32", "f32", "f16x2", "u64"]
        r = lane.Reg(self.world.fresh(self.draw), self.draw(st.sampled_from(kinds)), self.draw(st.booleans()))
        self.world.registers.append(r)
        return r

    def immediate(self) -> lane.Imm:
        return lane.Imm(self.draw(st.one_of(INTEGERS, FLOATS)), self.draw(st.sampled_from(["s32", "u64", "f32"])))

    def many(self, make: Any, most: int = 2) -> tuple[Any, ...]:
        return tuple(make() for _ in range(self.draw(st.integers(0, most))))

    # -- values by type -----------------------------------------------------------------------------------

    def value(self, hint: Any, depth: int) -> Any:
        kind = self.draw(st.sampled_from(alternatives(hint)))
        if kind is type(None):
            return None
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if is_body(kind, tile.Op) or is_body(kind, lane.LaneOp):
            return self.body(args[0], depth - 1)
        if origin is tuple:
            if len(args) == 2 and args[1] is Ellipsis:
                return self.many(lambda: self.value(args[0], depth))
            return tuple(self.value(a, depth) for a in args)
        if origin is typing.Literal:
            return self.draw(st.sampled_from(args))
        simple = {
            str: TEXTS, bool: st.booleans(), int: INTEGERS, dtypes.DType: DTYPES, ty.Level: LEVELS,
        }  # fmt: skip
        if kind in simple:
            return self.draw(simple[kind])
        if isinstance(kind, type) and issubclass(kind, Enum):
            return self.draw(st.sampled_from(list(kind)))
        makers = {
            e.Index: self.index, e.Var: self.var, ty.Buffer: self.buffer, ty.View: self.view, ty.Event: self.event,
            ty.EventRef: self.event_ref, lane.Reg: self.register, lane.Imm: self.immediate,
            lane.Special: lambda: lane.Special(self.draw(st.sampled_from(["%tid.x", "shared", "%to"]))),
            lane.Mem: lambda: lane.Mem(self.register(), self.draw(INTEGERS)),
            lane.Vec: lambda: lane.Vec(self.many(self.register)),
            lane.Coordinates: lambda: lane.Coordinates(self.register(), self.many(self.immediate)),
            tile.FragmentRef: lambda: tile.FragmentRef(self.draw(NAMES), self.many(lambda: self.expression(1))),
            e.Expr: self.expression,
        }  # fmt: skip
        if kind in makers:
            return makers[kind]()
        return kind(**{n: self.value(h, depth) for n, h in hints(kind).items()})

    def operation(self, base: type, depth: int) -> Any:
        classes = sorted(operations(base), key=lambda c: c.__name__)
        if depth <= 0:
            classes = [c for c in classes if not any(is_body(h, base) for h in hints(c).values())]
        if not self.world.events:
            classes = [c for c in classes if c not in (tile.WaitEvent, tile.TriggerEvent)]
        cls = self.draw(st.sampled_from(classes))
        return self.make(cls, depth)

    def make(self, cls: type, depth: int = 1) -> Any:
        values = {}
        for name, hint in hints(cls).items():
            if not self.world.events and ty.EventRef in alternatives(hint):
                values[name] = None
            else:
                values[name] = self.value(hint, depth)
        return cls(**values)

    def body(self, base: type, depth: int) -> tuple[Any, ...]:
        return tuple(self.operation(base, depth) for _ in range(self.draw(st.integers(0, 3))))

    # -- kernels ------------------------------------------------------------------------------------------

    def kernel(self, cls: type | None = None) -> tile.Kernel:
        params: list[tile.Parameter] = []
        for kind in self.draw(st.lists(st.sampled_from(["array", "scalar"]), max_size=3)):
            if kind == "scalar":
                s = e.Scalar(self.world.fresh(self.draw), self.draw(DTYPES))
                self.world.scalars.append(s)
                params.append(tile.ScalarParameter(s))
                continue
            dims = [e.Dim(self.draw(NAMES)) for _ in range(self.draw(st.integers(0, 3)))]
            b = ty.Buffer(self.world.fresh(self.draw), self.draw(DTYPES), tuple(dims), ty.Space.GLOBAL)
            self.world.scalars += dims
            self.world.buffers.append(b)
            facts = self.maybe(lambda: tile.ArrayFacts(self.draw(st.sampled_from([None, 0, 1])), 16))
            params.append(tile.ArrayParameter(b, facts))
        if not self.world.buffers:
            b = ty.Buffer(self.world.fresh(self.draw), dtypes.f16, (e.Const(4),), ty.Space.GLOBAL)
            self.world.buffers.append(b)
            params.append(tile.ArrayParameter(b))
        returns = self.maybe(lambda: self.buffer(ty.Space.GLOBAL))
        body = self.body(tile.Op, 2) if cls is None else self.of(tile.DeclareEvent, cls)
        return tile.Kernel(self.draw(NAMES), tuple(params), body, returns)

    def of(self, declares: type, cls: type) -> tuple[Any, ...]:
        return (self.make(declares), self.make(cls, 2))

    def lane_kernel(self, cls: type | None = None) -> lane.LaneKernel:
        body = self.body(lane.LaneOp, 2) if cls is None else (self.make(cls, 2),)
        rest = {n: self.value(h, 0) for n, h in hints(lane.LaneKernel).items() if n not in ("body", "params")}
        params = tuple(lane.LaneParam(self.world.fresh(self.draw), self.draw(TEXTS)) for _ in range(2))
        assert LaneLocal
        return lane.LaneKernel(body=body, params=params, **rest)


@st.composite
def tile_kernels(draw: Any, cls: type | None = None) -> tile.Kernel:
    return Maker(draw).kernel(cls)


@st.composite
def lane_kernels(draw: Any, cls: type | None = None) -> lane.LaneKernel:
    return Maker(draw).lane_kernel(cls)
