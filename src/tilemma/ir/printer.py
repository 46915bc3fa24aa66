"""Tile IR and lane IR as text, from each class's ``syntax`` and the types of its fields.

``tilemma.ir.parser`` reads it back: parsing what was printed gives an equal kernel.  Source positions are not
printed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from tilemma.dtypes import DType
from tilemma.ir import expr as e
from tilemma.ir import forms, lane, tile, walk
from tilemma.ir import types as ty

INDENT = "  "


def print_kernel(kernel: tile.Kernel) -> str:
    """A tile kernel as text."""
    p = Printer(_dimension_names(kernel))
    params = ", ".join(p.parameter(x) for x in kernel.params)
    returns = "" if kernel.returns is None else f" -> {p.buffer(kernel.returns)}"
    given = p.attributes(tile.Kernel, kernel, ("name", "params", "body", "returns"))
    return f"kernel {p.name(kernel.name)}({params}){returns}{given} {p.block(kernel.body, 0)}\n"


def print_lane(kernel: lane.LaneKernel) -> str:
    """A lane kernel as text."""
    p = Printer()
    params = ", ".join(f"{p.name(x.name)}: {p.word(x.type)}" for x in kernel.params)
    given = p.attributes(lane.LaneKernel, kernel, ("name", "params", "body"))
    return f"lane {p.name(kernel.name)}({params}){given} {p.block(kernel.body, 0)}\n"


def print_op(op: tile.Op | lane.LaneOp) -> str:
    """One operation as text."""
    return Printer().operation(op, 0)


def _dimension_names(kernel: tile.Kernel) -> frozenset[str] | None:
    """Dimensions identified by their name alone: used in parameters only."""
    named = {x.name for p in kernel.arrays for s in p.buffer.shape for x in e.walk(s) if isinstance(x, e.Dim)}
    taken = {p.scalar.name for p in kernel.scalars}
    for op in walk.walk(kernel.body):
        for f in forms.hints(type(op)):
            v = getattr(op, f)
            for x in v if isinstance(v, tuple) else (v,):
                if isinstance(x, (e.Index, e.Var)):
                    taken.add(x.name)
    return frozenset(named - taken)


class Printer:
    """``dims``: the dimensions that may be printed as bare names (None: all)."""

    def __init__(self, dims: frozenset[str] | None = None) -> None:
        self.dims = dims
        self.registers: dict[str, str] = {}

    # ---- operations --------------------------------------------------------------------------------------

    def block(self, body: Iterable[Any], depth: int) -> str:
        lines = [INDENT * (depth + 1) + self.operation(op, depth + 1) for op in body]
        return "{}" if not lines else "\n".join(("{", *lines, INDENT * depth + "}"))

    def operation(self, op: Any, depth: int) -> str:
        cls = type(op)
        base: type = tile.Op if isinstance(op, tile.Op) else lane.LaneOp
        types = forms.hints(cls)
        text = ""
        for literal, field in forms.template(cls).parts:
            if field is None:
                text += literal
                continue
            value, hint = getattr(op, field), types[field]
            if forms.is_body(hint, base):
                if value == () and forms.default(cls, field) == ():
                    continue
                text += literal + self.block(value, depth)
            else:
                text += literal + self.value(value, hint)
        return text + self.attributes(cls, op, exclude=None)

    def attributes(self, cls: type, x: Any, exclude: tuple[str, ...] | None) -> str:
        names = (
            forms.template(cls).extras
            if exclude is None
            else tuple(n for n in forms.hints(cls) if n not in exclude)
        )
        pairs = [
            f"{n} = {self.value(getattr(x, n), forms.hints(cls)[n])}"
            for n in names
            if not _equal(getattr(x, n), forms.default(cls, n))
        ]
        return f" {{{', '.join(pairs)}}}" if pairs else ""

    # ---- values, by type ---------------------------------------------------------------------------------

    def value(self, x: Any, hint: Any) -> str:
        if x is None:
            return forms.NONE
        kinds = forms.alternatives(hint)
        if isinstance(x, tuple):
            return self._tuple(x, next(k for k in kinds if getattr(k, "__origin__", None) is tuple))
        if isinstance(x, str) and not isinstance(x, Enum):
            return self.word(x) if len([k for k in kinds if k is not type(None)]) == 1 else json.dumps(x)
        if isinstance(x, bool):
            return str(x).lower()
        if isinstance(x, (e.Index, e.Var)) and type(x) in kinds:
            return self.declared(x)
        for cls, form in FORMS:
            if isinstance(x, cls):
                return form(self, x)
        return f"{type(x).__name__}{self.record(x)}"

    def _tuple(self, x: tuple[Any, ...], hint: Any) -> str:
        args = hint.__args__
        inner = [args[0]] * len(x) if len(args) == 2 and args[1] is Ellipsis else list(args)
        return f"({', '.join(self.value(v, h) for v, h in zip(x, inner, strict=True))})"

    def record(self, x: Any) -> str:
        """``(field = value, ..)``, without fields at their defaults."""
        types = forms.hints(type(x))
        given = [n for n in types if not _equal(getattr(x, n), forms.default(type(x), n))]
        return f"({', '.join(f'{n} = {self.value(getattr(x, n), types[n])}' for n in given)})"

    def name(self, text: str) -> str:
        """A name, quoted if it could be parsed as another token."""
        if forms.NAME.fullmatch(text) and text not in forms.RESERVED and text != forms.NONE:
            return text
        escaped = json.dumps(text)[1:-1].replace("`", "\\u0060")
        return f"`{escaped}`"

    def word(self, text: str) -> str:
        """Free text: bare when it is a word that starts no operation."""
        plain = (
            forms.WORD.fullmatch(text)
            and text not in forms.RESERVED
            and text != forms.NONE
            and not _opens_operation(text)
        )
        return text if plain else json.dumps(text)

    # ---- expressions -------------------------------------------------------------------------------------

    def expression(self, x: e.Expr, strength: int = 0) -> str:
        match x:
            case e.Const():
                return self.constant(x)
            case e.Dim():
                return (
                    self.name(x.name) if self.dims is None or x.name in self.dims else f"dim({self.name(x.name)})"
                )
            case e.Scalar() | e.Index() | e.Var():
                return self.name(x.name)
            case e.Binary(op) if op in forms.FUNCTIONS:
                return f"{op}({self.expression(x.a)}, {self.expression(x.b)})"
            case e.Binary(op):
                sign, own = forms.SIGNS[op]
                text = f"{self.expression(x.a, own)} {sign} {self.expression(x.b, own + 1)}"
                return f"({text})" if own < strength else text
            case e.Unary():
                return f"{x.op}({self.expression(x.a)})"
            case e.Select():
                return f"select({self.expression(x.cond)}, {self.expression(x.a)}, {self.expression(x.b)})"
            case e.Cast():
                return f"{x.dtype}({self.expression(x.a)})"
            case e.Element():
                return self.view(x.view, shorten=False)
            case e.FragmentElement():
                inner = ", ".join(self.expression(i) for i in x.indices)
                index = f"[{', '.join(self.expression(i) for i in x.index)}]" if x.index else ""
                return f"%{self.name(x.fragment)}{index}({inner}):{x.dtype}"
            case e.Call():
                return f"{forms.MATH}{x.name}({', '.join(self.expression(a) for a in x.args)})"
        raise AssertionError(f"{type(x).__name__} has no text")

    def constant(self, c: e.Const) -> str:
        """A literal, with its type unless it is the literal's default type."""
        if isinstance(c.value, bool):
            return ("true" if c.value else "false") + _typed(c.dtype, "bool")
        if isinstance(c.value, int):
            return str(c.value) + _typed(c.dtype, "s32")
        return repr(float(c.value)) + _typed(c.dtype, "f32")

    def declared(self, x: e.Index | e.Var) -> str:
        if isinstance(x, e.Var):
            return f"{self.name(x.name)}: {x.dtype}"
        return f"{self.name(x.name)}: {self.expression(x.extent)}"

    # ---- buffers, views, fragments, events ----------------------------------------------------------------

    def parameter(self, p: tile.Parameter) -> str:
        if isinstance(p, tile.ScalarParameter):
            return f"{self.name(p.scalar.name)}: {p.scalar.dtype}"
        facts = "" if p.facts is None else f" ArrayFacts{self.record(p.facts)}"
        return f"{self.buffer(p.buffer)}{facts}{' scratch' if p.scratch else ''}"

    def buffer(self, b: ty.Buffer) -> str:
        shape = ", ".join(self.expression(s) for s in b.shape)
        copies = f" copies {b.copies}" if b.copies else ""
        return f"{b.space.value} {b.dtype} {self.name(b.name)}[{shape}]{copies}"

    def view(self, v: ty.View, shorten: bool = True) -> str:
        text = self.name(v.base.name)
        if v.slot is not None:
            text += f"{{{self.expression(v.slot)}}}"
        if shorten and v.is_whole:
            return text
        if v.reshape is not None:
            text += f" as [{', '.join(self.expression(s) for s in v.reshape)}] "
        by_dim = {a.dim: a for a in v.axes}
        assert len(by_dim) == len(v.axes), "a view has at most one axis along a dimension"
        order = [a.dim for a in v.axes]
        parts = [self._coordinate(o, by_dim.get(d)) for d, o in enumerate(v.offsets)]
        text += f"[{', '.join(parts)}]"
        return text if order == sorted(order) else f"{text} order ({', '.join(map(str, order))})"

    def _coordinate(self, offset: e.Expr, axis: ty.Axis | None) -> str:
        at = self.expression(offset)
        if axis is None:
            return at
        step = "" if axis.step == e.Const(1) else f" step {self.expression(axis.step)}"
        return f"{at} +: {self.expression(axis.extent)}{step}"

    def fragment(self, r: tile.FragmentRef) -> str:
        index = f"[{', '.join(self.expression(i) for i in r.index)}]" if r.index else ""
        return f"%{self.name(r.name)}{index}"

    def event(self, x: ty.Event) -> str:
        text = self.name(x.name) + (f"[{x.slots}]" if x.slots else "")
        return text + ("" if x.threads is None else f" threads {x.threads}") + (" ready" if x.ready else "")

    def event_ref(self, r: ty.EventRef) -> str:
        text = self.name(r.event.name)
        if r.slot is not None:
            text += f"[{self.expression(r.slot)}]"
        return text if r.order is None else f"{text} at ({self.expression(r.order)})"

    # ---- operands of lanes --------------------------------------------------------------------------------

    def register(self, r: lane.Reg) -> str:
        """With its type where it is met first."""
        name = f"%{self.name(r.name)}"
        if self.registers.get(r.name) == r.type:
            return name
        self.registers[r.name] = r.type
        return f"{name}:{r.type}" + (".uniform" if r.uniform else "")

    def immediate(self, i: lane.Imm) -> str:
        return (repr(i.value) if isinstance(i.value, float) else str(i.value)) + _typed(i.type, "s32")

    def memory(self, m: lane.Mem) -> str:
        return f"[{self.value(m.base, None)} + {m.offset}]"

    def vector(self, v: lane.Vec) -> str:
        return f"{{{', '.join(self.value(r, None) for r in v.regs)}}}"

    def coordinates(self, c: lane.Coordinates) -> str:
        return f"tensor[{', '.join((self.register(c.map), *(self.value(x, None) for x in c.coords)))}]"


def _typed(found: object, implied: str) -> str:
    return "" if str(found) == implied else f":{found}"


def _equal(a: Any, b: Any) -> bool:
    """Equality that distinguishes 0 from False and from 0.0."""
    return type(a) is type(b) and bool(a == b)


def _opens_operation(text: str) -> bool:
    return any(text == forms.template(c).head.strip() for b in (tile.Op, lane.LaneOp) for c in forms.operations(b))


FORMS: tuple[tuple[type, Callable[[Printer, Any], str]], ...] = (
    (e.Expr, Printer.expression),
    (Enum, lambda p, x: str(x.value)),
    (DType, lambda p, x: x.name),
    (int, lambda p, x: str(x)),
    (float, lambda p, x: repr(x)),
    (ty.Level, lambda p, x: str(x)),
    (ty.Buffer, Printer.buffer),
    (ty.View, Printer.view),
    (ty.Event, Printer.event),
    (ty.EventRef, Printer.event_ref),
    (tile.FragmentRef, Printer.fragment),
    (lane.Reg, Printer.register),
    (lane.Imm, Printer.immediate),
    (
        lane.Special,
        lambda p, x: "@" + p.name(x.name.removeprefix("%")) if x.name.startswith("%") else f"@@{p.name(x.name)}",
    ),
    (lane.Mem, Printer.memory),
    (lane.Vec, Printer.vector),
    (lane.Coordinates, Printer.coordinates),
)
