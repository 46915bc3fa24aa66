"""Reading tile IR and lane IR from the text that `tilemma.ir.printer` writes.

The text is read character by character, guided by each operation's ``syntax`` and the types of its fields.
Operations get the span of their text.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable
from dataclasses import MISSING
from typing import Any

from tilemma import dtypes
from tilemma.dtypes import DType
from tilemma.ir import expr as e
from tilemma.ir import forms, lane, tile
from tilemma.ir import types as ty
from tilemma.ir.ranges import count_check, loop_index
from tilemma.ir.scanner import BLANK, IRSyntax, IRUnknownName, Scanner
from tilemma.ir.usage import is_size

_ATTRIBUTE = re.compile(r"\{\s*\w+ = ")
_LEVEL = re.compile(r"[a-z]+(-\d+)?")
_SPACE_NAME = re.compile(r"(global|shared|local) ")
_NUMBER = re.compile(r"-?(?:(?:inf|nan)\b|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")
_OPERATORS = tuple(sorted(((sign, op, own) for op, (sign, own) in forms.SIGNS.items()), key=lambda x: -len(x[0])))


def parse_kernel(text: str, file: str = "<ir>") -> tile.Kernel:
    """Parse a tile kernel; IRSyntax and IRUnknownName with the position in ``text``."""
    p = Parser(text, file)
    p.take("kernel")
    name = p.name()
    params = tuple(p.sequence("(", ")", p.parameter))
    returns = p.buffer() if p.accept("->") else None
    given = p.attributes(tile.Kernel)
    kernel = tile.Kernel(name, params, p.block(tile.Op), returns, **given)
    p.end()
    return kernel


def parse_lane(text: str, file: str = "<ir>") -> lane.LaneKernel:
    """Parse a lane kernel; errors as `parse_kernel`."""
    p = Parser(text, file)
    p.take("lane")
    name = p.name()
    params = tuple(p.sequence("(", ")", p.lane_parameter))
    given = p.attributes(lane.LaneKernel)
    kernel = lane.LaneKernel(name=name, params=params, body=p.block(lane.LaneOp), **given)
    p.end()
    return kernel


class Parser(Scanner):
    def __init__(self, text: str, file: str = "<ir>") -> None:
        super().__init__(text, file)
        self.scalars: dict[str, e.Expr] = {}
        self.buffers: dict[str, ty.Buffer] = {}
        self.events: dict[str, ty.Event] = {}
        self.registers: dict[str, lane.Reg] = {}
        self.dims: set[str] = set()
        self.in_header = False

    # ---- operations --------------------------------------------------------------------------------------

    def block(self, base: type) -> Any:
        self.take("{")
        ops: list[Any] = []
        while not self.accept("}"):
            with self.nested():
                ops.append(self.operation(base))
        return tuple(ops)

    def operation(self, base: type) -> Any:
        self.skip()
        start = self.at
        for cls in forms.operations(base):
            head = forms.template(cls).head.rstrip()
            if not head or self.looking_at(head):
                values = self.fields(cls, base)
                return cls(**values, span=self.span(start))
        self.fail("an operation")
        return None

    def fields(self, cls: type, base: type) -> dict[str, Any]:
        values: dict[str, Any] = {}
        types = forms.hints(cls)
        for literal, field in forms.template(cls).parts:
            if field is None:
                self.literal(literal)
                continue
            body = forms.is_body(types[field], base)
            if body and forms.default(cls, field) == () and not self.looking_at(literal.strip()):
                values[field] = ()
                continue
            self.literal(literal)
            values[field] = self.block(base) if body else self.value(types[field])
            if cls is tile.For and field == "stop":
                values["index"] = self.bounded(values["index"], values["start"], values["stop"])
        values |= self.attributes(cls)
        self.complete(cls, values)
        return values

    def literal(self, text: str) -> None:
        for piece in text.split():
            self.take(piece)

    def attributes(self, cls: type) -> dict[str, Any]:
        """``{name = value, ..}`` on the same line, if there are any."""
        m = BLANK.match(self.text, self.at)
        if m is None or not _ATTRIBUTE.match(self.text, m.end()):
            return {}
        return dict(self.sequence("{", "}", lambda: self.pair(cls)))

    def pair(self, cls: type) -> tuple[str, Any]:
        """``name = value`` of a field of ``cls``."""
        self.skip()
        start = self.at
        name = self.name()
        types = forms.hints(cls)
        if name not in types:
            self.unknown("field", name, start, types)
        self.take("=")
        return name, self.value(types[name])

    def complete(self, cls: type, values: dict[str, Any]) -> None:
        """Every field of ``cls`` without a default has been given."""
        for f in forms.hints(cls):
            if f not in values and forms.default(cls, f) is MISSING:
                self.fail(f"`{f} = ..`, which `{cls.__name__}` needs")

    # ---- values, by type ---------------------------------------------------------------------------------

    def value(self, hint: Any) -> Any:
        kinds = forms.alternatives(hint)
        if type(None) in kinds and self._accept_none():
            return None
        kinds = tuple(k for k in kinds if k is not type(None))
        if len(kinds) == 1:
            return self.single(kinds[0])
        return self.choice(kinds)

    def _accept_none(self) -> bool:
        self.skip()
        m = forms.WORD.match(self.text, self.at)
        if m is None or m.group() != forms.NONE:
            return False
        self.at = m.end()
        return True

    def single(self, kind: Any) -> Any:
        origin = typing.get_origin(kind)
        if origin is tuple:
            return self.fixed_tuple(typing.get_args(kind))
        if origin is typing.Literal:
            start = self.at
            word = self.word()
            if word not in typing.get_args(kind):
                self.at = start
                self.fail(f"one of {', '.join(map(str, typing.get_args(kind)))}")
            return word
        form = FORMS.get(kind)
        if form is not None:
            return form(self)
        if isinstance(kind, type) and issubclass(kind, e.Expr):
            return self.expression()
        return self.record(kind)

    def choice(self, kinds: tuple[Any, ...]) -> Any:
        """One of several types, distinguished by their first token."""
        self.skip()
        text = self.text[self.at :]
        if lane.Reg in kinds and text.startswith("%"):
            return self.register()
        if lane.Imm in kinds and _NUMBER.match(text):
            return self.immediate()
        if tile.FragmentRef in kinds and text.startswith("%"):
            return self.fragment()
        if str in kinds and text.startswith('"'):
            return self.quoted(forms.QUOTED.match)
        if bool in kinds and not text.startswith('"'):
            return self.boolean()
        for kind in kinds:
            if typing.get_origin(kind) is typing.Literal:
                return self.single(kind)
        for kind, opening in (
            (lane.Special, "@"),
            (lane.Mem, "["),
            (lane.Vec, "{"),
            (lane.Coordinates, "tensor["),
        ):
            if kind in kinds and text.startswith(opening):
                return self.single(kind)
        if int in kinds and lane.Reg in kinds:
            return self.integer()
        if ty.View in kinds:
            return self.view()
        if e.Expr in kinds:
            return self.expression()
        self.fail("an operand")
        return None

    def fixed_tuple(self, args: tuple[Any, ...]) -> Any:
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(self.sequence("(", ")", lambda: self.value(args[0])))
        self.take("(")
        values: list[Any] = []
        for i, a in enumerate(args):
            if i:
                self.take(",")
            values.append(self.value(a))
        self.take(")")
        return tuple(values)

    def record(self, kind: Any) -> Any:
        start = self.at
        name = self.name()
        cls = forms.records().get(name)
        if cls is None or not (isinstance(kind, type) and issubclass(cls, kind)):
            self.at = start
            self.fail(f"`{getattr(kind, '__name__', kind)}(..)`")
        values = dict(self.sequence("(", ")", lambda: self.pair(cls)))
        self.complete(cls, values)
        return cls(**values)

    def boolean(self) -> bool:
        if self.accept("true"):
            return True
        self.take("false")
        return False

    def dtype(self) -> DType:
        self.skip()
        start = self.at
        name = self.name()
        if name not in dtypes.BY_NAME:
            self.unknown("element type", name, start, dtypes.BY_NAME)
        return dtypes.BY_NAME[name]

    def level(self) -> ty.Level:
        self.skip()
        start = self.at
        try:
            return ty.Level.parse(self.match(_LEVEL.match, "a level"))
        except ValueError:
            self.at = start
            self.fail("a level: cluster, block, group, group-N or thread")

    def contract(self) -> ty.Contract:
        self.skip()
        start = self.at
        try:
            return ty.Contract(self.match(forms.WORD.match, "a layout contract"))
        except ValueError:
            self.at = start
            self.fail("a layout contract: row.row, row.col, col.row or col.col")

    # ---- expressions -------------------------------------------------------------------------------------

    def expression(self, strength: int = 1) -> e.Expr:
        with self.nested():
            left = self.primary()
        while True:
            op, own, length = self.operator()
            if not op or own < strength:
                return left
            self.at += length
            left = e.Binary(typing.cast(e.BinaryOp, op), left, self.expression(own + 1))

    def operator(self) -> tuple[str, int, int]:
        self.skip()
        if self.text.startswith("+:", self.at):
            return "", 0, 0
        for sign, op, own in _OPERATORS:
            if self.text.startswith(sign, self.at):
                return op, own, len(sign)
        return "", 0, 0

    def primary(self) -> e.Expr:
        self.skip()
        if self.looking_at("("):
            return self.enclosed("(", ")", self.expression)
        if _NUMBER.match(self.text, self.at):
            return self.number()
        for literal in ("true", "false"):
            if self.accept(literal):
                return e.Const(literal == "true", self.typed(dtypes.boolean))
        if self.looking_at("%"):
            return self.fragment_element()
        start = self.at
        quoted = self.looking_at("`")
        name = self.name()
        subscripted = self.text.startswith(("[", "{"), self.at)
        if self.looking_at("(") and not quoted:
            return self.function(name, start)
        if subscripted or self.looking_at("as"):
            self.at = start
            view = self.view()
            return e.Element(view)
        found = self.scalars.get(name)
        if found is not None:
            return found
        if self.in_header:
            self.dims.add(name)
        if name not in self.dims:
            self.unknown("scalar", name, start, (*self.scalars, *self.dims))
        return e.Dim(name)

    def typed(self, implied: DType) -> DType:
        """A literal's type: the one after the colon that follows at once, or the implied one."""
        if self.text.startswith(":", self.at):
            self.at += 1
            return self.dtype()
        return implied

    def literal_value(self) -> int | float:
        text = self.match(_NUMBER.match, "a number")
        return self.digits(text) if re.fullmatch(r"-?\d+", text) else float(text)

    def number(self) -> e.Const:
        value = self.literal_value()
        return e.Const(value, self.typed(dtypes.s32 if isinstance(value, int) else dtypes.f32))

    def function(self, name: str, start: int) -> e.Expr:
        if name == "dim":
            return e.Dim(self.enclosed("(", ")", self.name))
        args = self.sequence("(", ")", self.expression)
        arity = 2 if name in forms.FUNCTIONS else 3 if name == "select" else 1
        if len(args) != arity and not name.startswith(forms.MATH):
            self.fail(f"{arity} arguments for `{name}`")
        if name in forms.FUNCTIONS:
            return e.Binary(typing.cast(e.BinaryOp, name), *args)
        if name in forms.UNARY:
            return e.Unary(typing.cast(e.UnaryOp, name), args[0])
        if name == "select":
            return e.Select(*args)
        if name.startswith(forms.MATH):
            return e.Call(name.removeprefix(forms.MATH), tuple(args))
        if name in dtypes.BY_NAME:
            return e.Cast(args[0], dtypes.BY_NAME[name])
        self.unknown("function", name, start, (*forms.FUNCTIONS, *forms.UNARY, "select", *dtypes.BY_NAME))
        return None

    def fragment_element(self) -> e.FragmentElement:
        ref = self.fragment()
        indices = tuple(self.sequence("(", ")", self.expression))
        self.take(":")
        return e.FragmentElement(ref.name, indices, self.dtype(), ref.index)

    # ---- declarations ------------------------------------------------------------------------------------

    def index(self) -> e.Index:
        name = self.name()
        self.take(":")
        index = e.Index(name, self.expression())
        self.scalars[name] = index
        return index

    def bounded(self, index: e.Index, start: e.Expr, stop: e.Expr) -> e.Index:
        """``index`` of a loop from ``start`` to ``stop``, as the builder makes it."""
        check = count_check(start, stop)
        checked = check is not None and is_size(check)
        self.scalars[index.name] = made = loop_index(index.name, index.extent, start, stop, checked)
        return made

    def variable(self) -> e.Var:
        name = self.name()
        self.take(":")
        var = e.Var(name, self.dtype())
        self.scalars[name] = var
        return var

    def parameter(self) -> tile.Parameter:
        self.skip()
        start = self.at
        if _SPACE_NAME.match(self.text, self.at):
            self.in_header = True
            buffer = self.buffer()
            self.in_header = False
            facts = self.record(tile.ArrayFacts) if self.looking_at("ArrayFacts") else None
            return tile.ArrayParameter(buffer, facts, self.accept("scratch"), span=self.span(start))
        name = self.name()
        self.take(":")
        scalar = e.Scalar(name, self.dtype())
        self.scalars[name] = scalar
        return tile.ScalarParameter(scalar, span=self.span(start))

    def lane_parameter(self) -> lane.LaneParam:
        name = self.name()
        self.take(":")
        return lane.LaneParam(name, self.word())

    def buffer(self) -> ty.Buffer:
        start = self.at
        try:
            space = ty.Space(self.match(forms.WORD.match, "a memory space"))
        except ValueError:
            self.at = start
            self.fail("a memory space: global, shared or local")
        dtype = self.dtype()
        name = self.name()
        shape = tuple(self.sequence("[", "]", self.expression))
        copies = self.integer() if self.accept("copies") else 0
        buffer = ty.Buffer(name, dtype, shape, space, copies)
        self.buffers[name] = buffer
        return buffer

    def event(self) -> ty.Event:
        name = self.name()
        slots = self.enclosed("[", "]", self.integer) if self.looking_at("[") else 0
        threads = self.integer() if self.accept("threads") else None
        event = ty.Event(name, slots, threads, self.accept("ready"))
        self.events[name] = event
        return event

    # ---- uses --------------------------------------------------------------------------------------------

    def view(self) -> ty.View:
        self.skip()
        start = self.at
        name = self.name()
        base = self.buffers.get(name)
        if base is None:
            self.unknown("buffer", name, start, self.buffers)
        slot = None
        if self.text.startswith("{", self.at):
            slot = self.enclosed("{", "}", self.expression)
        reshape = tuple(self.sequence("[", "]", self.expression)) if self.accept("as") else None
        if reshape is None and not self.text.startswith("[", self.at):
            return base.whole(slot)
        coordinates = self.sequence("[", "]", self.coordinate)
        axes = [ty.Axis(d, *axis) for d, (_, axis) in enumerate(coordinates) if axis is not None]
        if self.accept("order"):
            order = self.sequence("(", ")", self.integer)
            by_dim = {a.dim: a for a in axes}
            if sorted(order) != sorted(by_dim):
                self.fail("the dimensions that have an axis, in the order of the axes")
            axes = [by_dim[d] for d in order]
        return ty.View(base, tuple(o for o, _ in coordinates), tuple(axes), slot, reshape)

    def coordinate(self) -> tuple[e.Expr, tuple[e.Expr, e.Expr] | None]:
        offset = self.expression()
        if not self.accept("+:"):
            return offset, None
        extent = self.expression()
        return offset, (extent, self.expression() if self.accept("step") else e.Const(1))

    def fragment(self) -> tile.FragmentRef:
        self.take("%")
        name = self.name()
        index = tuple(self.sequence("[", "]", self.expression)) if self.text.startswith("[", self.at) else ()
        return tile.FragmentRef(name, index)

    def event_ref(self) -> ty.EventRef:
        self.skip()
        start = self.at
        name = self.name()
        event = self.events.get(name)
        if event is None:
            self.unknown("event", name, start, self.events)
        slot = order = None
        if self.text.startswith("[", self.at):
            slot = self.enclosed("[", "]", self.expression)
        if self.accept("at"):
            order = self.enclosed("(", ")", self.expression)
        return ty.EventRef(event, slot, order)

    # ---- operands of lanes --------------------------------------------------------------------------------

    def register(self) -> lane.Reg:
        self.take("%")
        start = self.at
        name = self.name()
        if self.text.startswith(":", self.at):
            self.at += 1
            kind, _, uniform = self.match(forms.WORD.match, "a register type").partition(".")
            self.registers[name] = lane.Reg(name, kind, uniform == "uniform")
        if name not in self.registers:
            self.unknown("register", name, start, self.registers)
        return self.registers[name]

    def immediate(self) -> lane.Imm:
        value = self.literal_value()
        if self.text.startswith(":", self.at):
            self.at += 1
            return lane.Imm(value, self.match(forms.WORD.match, "a type"))
        return lane.Imm(value)

    def special(self) -> lane.Special:
        self.take("@")
        return lane.Special(self.name()) if self.accept("@") else lane.Special("%" + self.name())

    def memory(self) -> lane.Mem:
        self.take("[")
        base = self.choice((lane.Reg, lane.Special))
        self.take("+")
        offset = self.integer()
        self.take("]")
        return lane.Mem(base, offset)

    def vector(self) -> lane.Vec:
        return lane.Vec(tuple(self.sequence("{", "}", lambda: self.choice((lane.Reg, lane.Imm)))))

    def coordinates(self) -> lane.Coordinates:
        self.take("tensor[")
        tensor = self.register()
        found: list[Any] = []
        while self.accept(","):
            found.append(self.choice((lane.Reg, lane.Imm)))
        self.take("]")
        return lane.Coordinates(tensor, tuple(found))


FORMS: dict[Any, Callable[[Parser], Any]] = {
    str: Parser.word,
    bool: Parser.boolean,
    int: Parser.integer,
    DType: Parser.dtype,
    ty.Level: Parser.level,
    ty.Contract: Parser.contract,
    ty.Buffer: Parser.buffer,
    ty.View: Parser.view,
    ty.Event: Parser.event,
    ty.EventRef: Parser.event_ref,
    tile.FragmentRef: Parser.fragment,
    e.Index: Parser.index,
    e.Var: Parser.variable,
    lane.Reg: Parser.register,
    lane.Imm: Parser.immediate,
    lane.Special: Parser.special,
    lane.Mem: Parser.memory,
    lane.Vec: Parser.vector,
    lane.Coordinates: Parser.coordinates,
}


__all__ = ["IRSyntax", "IRUnknownName", "parse_kernel", "parse_lane"]
