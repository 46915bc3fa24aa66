"""Traced values: what a kernel's Python names hold while it is traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from tilemma.dtypes import DType
from tilemma.ir.builder import Builder, element_type
from tilemma.ir.expr import (
    BinaryOp,
    Cast,
    Const,
    Expr,
    Unary,
    Var,
    binary,
    const,
    floordiv,
    interval,
    mul,
    sub,
    value_of,
)
from tilemma.ir.tile import Assign
from tilemma.ir.tiles import Bounded, FragmentValue, FutureValue, Tile, describe, scalar
from tilemma.ir.types import Event, EventRef
from tilemma.lang.spans import caller_span
from tilemma.lang.tracing import BoolOfTraced, PythonNumber, WrongOperand, builder

Number = int | float | bool


class Full:
    """`full`: the whole dimension (``_`` in Croqtile)."""

    def __repr__(self) -> str:
        return "full"


full = Full()


class Value:
    """A scalar that is known when the kernel runs.  Arithmetic and comparison build expressions."""

    __slots__ = ("bounded", "expr")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, e: Expr | Bounded) -> None:
        self.bounded = e if isinstance(e, Bounded) else None
        self.expr = e.value if isinstance(e, Bounded) else e

    @property
    def last(self) -> Value:
        """The largest value that this index can have, ``k(-1)`` in Croqtile."""
        if self.bounded is None:
            raise WrongOperand(
                caller_span(),
                what=".last",
                got=f"`{describe(self.expr)}`, which has no upper bound",
                wanted="the index of a loop or a parallel level",
                fix_text="take `.last` of the index itself",
            )
        return Value(self.bounded.last)

    def __call__(self, index: int) -> Value:
        if index != -1:
            raise WrongOperand(
                caller_span(),
                what="index(...)",
                got=f"{index}",
                wanted="-1: `k(-1)` is the last value of an index",
                fix_text="write k(-1) or k.last",
            )
        return self.last

    def astype(self, name: str | DType) -> Value:
        """The value converted to another element type, as stores convert."""
        return Value(Cast(self.expr, element_type(str(name), caller_span())))

    def _binary(self, op: BinaryOp, other: Any, swap: bool = False) -> Any:
        e = _operand(other)
        if e is None:
            return NotImplemented
        a, b = (e, self.expr) if swap else (self.expr, e)
        a, b = _literal(a, b), _literal(b, a)
        return Value(binary(op, a, b))

    def __add__(self, o: Any) -> Any:
        return self._binary("add", o)

    def __radd__(self, o: Any) -> Any:
        return self._binary("add", o, True)

    def __sub__(self, o: Any) -> Any:
        return self._binary("sub", o)

    def __rsub__(self, o: Any) -> Any:
        return self._binary("sub", o, True)

    def __mul__(self, o: Any) -> Any:
        return self._binary("mul", o)

    def __rmul__(self, o: Any) -> Any:
        return self._binary("mul", o, True)

    def __floordiv__(self, o: Any) -> Any:
        return self._binary("floordiv", o)

    def __rfloordiv__(self, o: Any) -> Any:
        return self._binary("floordiv", o, True)

    def __truediv__(self, o: Any) -> Any:
        return self._true_division(o, False)

    def __rtruediv__(self, o: Any) -> Any:
        return self._true_division(o, True)

    def _true_division(self, other: Any, swap: bool) -> Any:
        e = _operand(other)
        if e is None:
            return NotImplemented
        if not self.expr.type.is_float and not e.type.is_float:
            raise WrongOperand(
                caller_span(),
                what="/",
                got="two integers, for which Python's `/` means a float",
                wanted="`//` for whole numbers, or a float operand",
                fix_text="write `//`, or convert one operand with `.astype('f32')`",
            )
        return self._binary("div", other, swap)

    def __mod__(self, o: Any) -> Any:
        return _modulo(self.expr, _operand(o))

    def __rmod__(self, o: Any) -> Any:
        return _modulo(_operand(o), self.expr)

    def __and__(self, o: Any) -> Any:
        return self._binary(self._logic("land", "and", o), o)

    def __rand__(self, o: Any) -> Any:
        return self._binary(self._logic("land", "and", o), o, True)

    def __or__(self, o: Any) -> Any:
        return self._binary(self._logic("lor", "or", o), o)

    def __ror__(self, o: Any) -> Any:
        return self._binary(self._logic("lor", "or", o), o, True)

    def __xor__(self, o: Any) -> Any:
        return self._binary("xor", o)

    def __rxor__(self, o: Any) -> Any:
        return self._binary("xor", o, True)

    def _logic(self, logical: BinaryOp, bitwise: BinaryOp, other: Any) -> BinaryOp:
        """``&`` and ``|`` join conditions, and bits otherwise."""
        e = _operand(other)
        conditions = self.expr.type.kind == "bool" and e is not None and e.type.kind == "bool"
        return logical if conditions else bitwise

    def __lshift__(self, o: Any) -> Any:
        return self._binary("shl", o)

    def __rlshift__(self, o: Any) -> Any:
        return self._binary("shl", o, True)

    def __rshift__(self, o: Any) -> Any:
        return self._binary("shr", o)

    def __rrshift__(self, o: Any) -> Any:
        return self._binary("shr", o, True)

    def __lt__(self, o: Any) -> Any:
        return self._binary("lt", o)

    def __le__(self, o: Any) -> Any:
        return self._binary("le", o)

    def __gt__(self, o: Any) -> Any:
        return self._binary("gt", o)

    def __ge__(self, o: Any) -> Any:
        return self._binary("ge", o)

    def __eq__(self, o: object) -> Any:
        return self._binary("eq", o)

    def __ne__(self, o: object) -> Any:
        return self._binary("ne", o)

    def __neg__(self) -> Value:
        return Value(Unary("neg", self.expr))

    def __pos__(self) -> Value:
        return self

    def __invert__(self) -> Value:
        return Value(Unary("lnot" if self.expr.type.kind == "bool" else "not", self.expr))

    def __bool__(self) -> NoReturn:
        raise BoolOfTraced(
            caller_span(),
            text=describe(self.expr),
            fix_text="use `with if_(c):`, `with while_(lambda: c):`, `select(c, x, y)`; "
            "join conditions with `&`, `|`, `~`",
        )

    def __index__(self) -> NoReturn:
        raise PythonNumber(caller_span(), text=describe(self.expr))

    __int__ = __index__
    __float__ = __index__

    def __repr__(self) -> str:
        return f"<traced {describe(self.expr)}: {self.expr.type}>"


def _modulo(a: Expr | None, b: Expr | None) -> Any:
    """Python's ``%``, which takes the sign of the divisor."""
    if a is None or b is None:
        return NotImplemented
    if a.type.is_integer and interval(a)[0] < 0:
        return Value(sub(a, mul(floordiv(a, b), b)))
    return Value(binary("mod", a, b))


def _operand(x: Any) -> Expr | None:
    if isinstance(x, Value):
        return x.expr
    if isinstance(x, (bool, int, float)):
        return const(x)
    return None


def _literal(e: Expr, beside: Expr) -> Expr:
    """A Python number takes the type of the value it stands beside, where that loses nothing."""
    if isinstance(e, Const) and not isinstance(beside, Const) and not isinstance(e.value, bool):
        if beside.type.is_float:
            return Const(float(e.value), beside.type)
        if beside.type.is_integer and isinstance(e.value, int):
            return Const(e.value, beside.type)
    return e


class Variable(Value):
    """A mutable scalar: `var(e)`.  ``x.set(e)`` or ``x += e`` changes it."""

    __slots__ = ("var",)

    def __init__(self, var: Var) -> None:
        super().__init__(var)
        self.var = var

    def set(self, value: Value | Number) -> None:
        builder("set").assign(self.var, number(value, "set"))

    def _update(self, op: BinaryOp, o: Any) -> Variable:
        e = _operand(o)
        if e is None:
            raise _not_a_number(o, f"{self.var.name} {op}=")
        b = builder(op)
        b.emit(Assign(self.var, Builder.converted(binary(op, self.var, _literal(e, self.var)), self.var.dtype)))
        return self

    def __iadd__(self, o: Any) -> Variable:
        return self._update("add", o)

    def __isub__(self, o: Any) -> Variable:
        return self._update("sub", o)

    def __imul__(self, o: Any) -> Variable:
        return self._update("mul", o)

    def __ifloordiv__(self, o: Any) -> Variable:
        return self._update("floordiv", o)

    def __itruediv__(self, o: Any) -> Variable:
        return self._update("div", o)


def number(x: Any, what: str) -> Bounded | Expr:
    """``x`` as a bounded value or an expression; WrongOperand for anything else."""
    if isinstance(x, Value):
        return x.bounded if x.bounded is not None else x.expr
    if isinstance(x, (bool, int, float)):
        return const(x)
    if hasattr(x, "__index__"):
        return const(int(x))
    raise _not_a_number(x, what)


def _not_a_number(x: Any, what: str) -> WrongOperand:
    return WrongOperand(
        caller_span(),
        what=what,
        got=f"{_article(x)}",
        wanted="a number or a traced scalar",
        fix_text="pass an index, a dimension, an element `x[i, j]`, or a Python number",
    )


def _article(x: Any) -> str:
    names = {TileValue: "a tile", Fragment: "a register tile", Full: "`full`", FutureHandle: "a future"}
    return next((text for cls, text in names.items() if isinstance(x, cls)), f"a Python {type(x).__name__}")


def maybe_index(x: Any, what: str) -> Bounded | Expr | None:
    return None if isinstance(x, Full) else number(x, what)


def unwrap(e: Expr) -> Any:
    """``e`` for the user: a Python int where its value is known."""
    known = value_of(e)
    return known if known is not None else Value(e)


class TileValue:
    """A tile of a tensor or buffer: views of it, its elements, its shape."""

    __slots__ = ("slots", "tile")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tile: Tile, slots: int = 0) -> None:
        self.tile = tile
        self.slots = slots

    @property
    def shape(self) -> tuple[Any, ...]:
        """Extents: Python ints where they are known when compiled, traced values elsewhere."""
        return tuple(unwrap(e) for e in self.tile.shape)

    @property
    def dtype(self) -> DType:
        return self.tile.view.dtype

    @property
    def data(self) -> TileValue:
        return self

    def subspan(self, *extents: Any) -> Subspan:
        """The tile of these extents that ``.at(i, j)`` selects: its origin is (i * h, j * w)."""
        return Subspan(self, extents, "subspan")

    def modspan(self, *extents: Any) -> Subspan:
        """As `subspan`, but the last tile of a dimension is its remainder."""
        return Subspan(self, extents, "modspan")

    def chunk(self, *extents: Any) -> Subspan:
        return Subspan(self, extents, "chunk")

    def view(self, *extents: Any, strides: Sequence[Any] | None = None) -> Window:
        """The tile of these extents whose first element ``.from_(r, c)`` gives."""
        return Window(self, extents, strides)

    def chunkat(self, *indices: Any) -> TileValue:
        """The chunk number ``indices``; ``full`` keeps a dimension.  In a copy it has the other side's extents."""
        span = caller_span()
        tile = self.tile.chunkat([maybe_index(i, "chunkat") for i in indices], span)
        return TileValue(tile)

    def span_as(self, *shape: Any) -> TileValue:
        return TileValue(self.tile.span_as([number(s, "span_as") for s in shape], caller_span()))

    def sqz(self) -> TileValue:
        return TileValue(self.tile.sqz())

    def at(self, *indices: Any) -> Any:
        return self[indices]

    def __getitem__(self, indices: Any) -> Any:
        keys = indices if isinstance(indices, tuple) else (indices,)
        if self.slots:
            slot = scalar(number(keys[0], "copy number"))
            tile = TileValue(Tile.whole(self.tile.view.base, slot))
            return tile if len(keys) == 1 else tile.__getitem__(keys[1:])
        b = builder("element")
        return Value(b.element(self.tile, [number(i, "element index") for i in keys], b.span))

    def __setitem__(self, indices: Any, value: Any) -> None:
        keys = indices if isinstance(indices, tuple) else (indices,)
        if self.slots:
            TileValue(Tile.whole(self.tile.view.base, scalar(number(keys[0], "copy number"))))[keys[1:]] = value
            return
        b = builder("element")
        e = number(value, "element")
        b.set_element(self.tile, [number(i, "element index") for i in keys], e)

    def __repr__(self) -> str:
        shape = ", ".join(describe(e) for e in self.tile.view.shape)
        return f"<tile {self.tile.view.base.name}[{shape}]: {self.dtype}>"


class Subspan:
    """`subspan(h, w)` before ``.at``: optionally ``.step(sh, sw)``."""

    __slots__ = ("extents", "kind", "of", "steps", "strides")

    def __init__(self, of: TileValue, extents: Sequence[Any], kind: str) -> None:
        self.of, self.extents, self.kind = of, extents, kind
        self.steps: Sequence[Any] | None = None

    def step(self, *steps: Any) -> Subspan:
        """Neighbouring tiles start this many elements apart (default: the extents)."""
        self.steps = steps
        return self

    def at(self, *indices: Any) -> TileValue:
        tile = self.of.tile.subspan(
            [maybe_index(e, self.kind) for e in self.extents],
            [maybe_index(i, f"{self.kind}(...).at") for i in indices],
            step=None if self.steps is None else [number(s, "step") for s in self.steps],
            remainder=self.kind == "modspan",
            name=self.kind,
            span=caller_span(),
        )
        return TileValue(tile)


class Window:
    """`view(h, w)` before ``.from_(r, c)``."""

    __slots__ = ("extents", "of", "strides")

    def __init__(self, of: TileValue, extents: Sequence[Any], strides: Sequence[Any] | None) -> None:
        self.of, self.extents, self.strides = of, extents, strides

    def from_(self, *origin: Any) -> TileValue:
        tile = self.of.tile.window(
            [maybe_index(e, "view") for e in self.extents],
            [number(o, "from_") for o in origin],
            strides=None if self.strides is None else [number(s, "strides") for s in self.strides],
            span=caller_span(),
        )
        return TileValue(tile)


def tile_of(x: Any, what: str) -> Tile:
    """The tile that ``x`` is, or stands for; WrongOperand for anything else."""
    if isinstance(x, FutureHandle):
        return x.future.data
    if isinstance(x, TileValue):
        if x.slots:
            raise WrongOperand(
                caller_span(),
                what=what,
                got=f"`{x.tile.view.base.name}`, an array of {x.slots} tiles",
                wanted="one tile of it",
                fix_text=f"choose one: `{x.tile.view.base.name}[i]`",
            )
        return x.tile
    if isinstance(x, (Subspan, Window)):
        call = ".from_(r, c)" if isinstance(x, Window) else ".at(i, j)"
        kind = "view" if isinstance(x, Window) else x.kind
        raise WrongOperand(
            caller_span(),
            what=what,
            got=f"`{kind}(...)` without `{call}`",
            wanted="a tile",
            fix_text=f"add `{call}`: `{kind}` names the extents, `{call}` which tile",
        )
    raise WrongOperand(
        caller_span(),
        what=what,
        got=_article(x),
        wanted="a tile: a tensor or buffer, or a view of one",
        fix_text="pass a parameter, `shared(...)`, or a `subspan`/`chunkat`/`view` of one",
    )


class Fragment:
    """An opaque register tile, or with copies an array of them."""

    __slots__ = ("fragment",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, fragment: FragmentValue) -> None:
        self.fragment = fragment

    def __getitem__(self, i: Any) -> Fragment:
        keys = i if isinstance(i, tuple) else (i,)
        f = self.fragment
        for k in keys:
            f = f[scalar(number(k, "fragment index"))]
        return Fragment(f)


def fragment_of(x: Any, what: str) -> FragmentValue:
    if isinstance(x, Fragment):
        return x.fragment
    raise WrongOperand(
        caller_span(),
        what=what,
        got=_article(x),
        wanted="a register tile",
        fix_text="make one with `mma.fill(0.0, 'f32')` or `mma.load(tile)`",
    )


class FutureHandle(TileValue):
    """What a copy returns: `.data` is where it writes; it can stand for that tile itself."""

    __slots__ = ("future",)

    def __init__(self, future: FutureValue) -> None:
        super().__init__(future.data)
        self.future = future

    @property
    def data(self) -> TileValue:
        return TileValue(self.future.data)


class EventHandle:
    """An event: `e[s]` is slot s, `e.at(order)` slot order % S of generation order // S."""

    __slots__ = ("ref",)

    def __init__(self, event: Event | EventRef) -> None:
        self.ref = event if isinstance(event, EventRef) else EventRef(event)

    def __getitem__(self, slot: Any) -> EventHandle:
        return EventHandle(EventRef(self.ref.event, slot=scalar(number(slot, "event slot"))))

    def at(self, order: Any) -> EventHandle:
        return EventHandle(EventRef(self.ref.event, order=scalar(number(order, "event order"))))


def event_of(x: Any, what: str) -> EventRef:
    if isinstance(x, EventHandle):
        return x.ref
    raise WrongOperand(
        caller_span(),
        what=what,
        got=_article(x),
        wanted="an event, `e`, `e[s]` or `e.at(order)`",
        fix_text="declare one with `full = event(S)`",
    )


def boolean(x: Any, what: str) -> Expr:
    """``x`` as a condition."""
    e = scalar(number(x, what))
    return e if e.type.kind == "bool" else binary("ne", e, Const(0, e.type))
