"""Verifier of both IRs: the invariants on which every stage relies.

Mistakes of the program are reported earlier, by errors of their own.  A violation found here is a bug in tilemma.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from tilemma.errors import CompileError, Span
from tilemma.ir import expr as e
from tilemma.ir import tile, walk
from tilemma.ir import types as ty
from tilemma.ir.effects import Execution, assigned, awaited, declared, rotated, written_views
from tilemma.ir.expr import value_of
from tilemma.ir.lane_verifier import verify_lane
from tilemma.ir.printer import print_op


class InvalidIR(CompileError):
    code = "invalid-ir"
    found = "{what}, in `{operation}`"
    expected = "{rule}"
    fix = "this is a mistake in tilemma, not in your program: please report it with the program"


def verify(kernel: tile.Kernel) -> None:
    """Check a tile kernel, before or after any pass; InvalidIR names the operation.

    Names are declared before their use and in scope, views agree with their bases, expressions have the types
    that their places need.
    """
    Verifier(kernel).run()


class Verifier:
    def __init__(self, kernel: tile.Kernel) -> None:
        self.kernel = kernel
        self.scopes: list[dict[tuple[str, str], Any]] = [{}]
        self.op: tile.Op | None = None
        self.loops = 0
        self.applies = 0
        # Enclosing conditions: the operations that they guard may never run.
        self.guards = 0
        self.levels: list[ty.Level | None] = []
        ops = list(walk.walk(kernel.body))
        made = {x.future for x in ops if isinstance(x, (tile.Copy, tile.Mma)) and x.future is not None}
        self.futures = made.union(*map(rotated, ops))
        dims = (x for b in self._buffers() for s in b.shape for x in e.walk(s))
        self.dims = {x.name for x in dims if isinstance(x, e.Dim)}

    def _buffers(self) -> Iterator[ty.Buffer]:
        for p in self.kernel.arrays:
            yield p.buffer
        if self.kernel.returns is not None:
            yield self.kernel.returns

    def run(self) -> None:
        for p in self.kernel.scalars:
            self.declare("scalar", p.scalar.name, p.scalar)
        for b in (p.buffer for p in self.kernel.arrays):
            self.require(b.space is ty.Space.GLOBAL, f"parameter `{b.name}` is not global", "global memory")
            self.declare("buffer", b.name, b)
        returned = self.kernel.returns
        if returned is not None and not self.find("buffer", returned.name):
            allocated = any(
                isinstance(x, tile.Alloc) and x.buffer == returned for x in walk.walk(self.kernel.body)
            )
            if not allocated:
                self.declare("buffer", returned.name, returned)
        self.body(self.kernel.body)

    # ---- scopes ------------------------------------------------------------------------------------------

    def fail(self, what: str, rule: str) -> NoReturn:
        op = self.op
        text = f"kernel {self.kernel.name}" if op is None else print_op(op).split("\n")[0]
        span: Span | None = self.kernel.span if op is None else op.span
        raise InvalidIR(span, what=what, operation=text, rule=rule)

    def require(self, holds: bool, what: str, rule: str) -> None:
        if not holds:
            self.fail(what, rule)

    # A condition of every expression whose message is formatted only when it fails.

    def declare(self, kind: str, name: str, entity: Any) -> None:
        if self.find(kind, name) is not None:
            self.fail(f"{kind} `{name}` is declared twice", "names to be unique")
        self.scopes[-1][kind, name] = entity

    def find(self, kind: str, name: str) -> Any:
        key = kind, name
        for scope in reversed(self.scopes):
            if key in scope:
                return scope[key]
        return None

    def known(self, kind: str, name: str, entity: Any = None) -> Any:
        found = self.find(kind, name)
        if found is None:
            self.fail(f"{kind} `{name}` is not declared", "a name declared earlier, in scope")
        if entity is not None and found is not entity and found != entity:
            self.fail(f"{kind} `{name}` is not what was declared", f"{found!r} everywhere")
        return found

    @contextmanager
    def scope(self, op: tile.Op) -> Iterator[None]:
        outer, guards = self.op, self.guards
        self.guards += isinstance(op, (tile.If, tile.InThreads, tile.While))
        self.scopes.append({})
        yield
        self.scopes.pop()
        self.op, self.guards = outer, guards

    def body(self, ops: tile.Body) -> None:
        for op in ops:
            self.op = op
            self.expressions(op)
            self.effects(op)
            check = CHECKS.get(type(op))
            if check is not None:
                check(self, op)
            if type(op) not in STRUCTURED:
                for _, inner in walk.bodies(op):
                    with self.scope(op):
                        self.body(inner)

    # ---- expressions and views -----------------------------------------------------------------------------

    def expressions(self, op: tile.Op) -> None:
        """Every expression, view, fragment and event that ``op`` itself mentions."""
        own = ("body", "then", "otherwise", "span", "indices", "index")
        for name in e.field_names(op):
            if name not in own and not (isinstance(op, tile.Declare) and name == "var"):
                self.part(getattr(op, name))
        if isinstance(op, (tile.Parallel, tile.Apply)):
            for i in op.indices:
                self.integer(i.extent, "an extent")
        if isinstance(op, tile.For):
            self.integer(op.index.extent, "an extent")

    def effects(self, op: tile.Op) -> None:
        """Declares the entities that ``op`` declares, and looks up those that it changes or waits for."""
        if op.execution in (Execution.COLLECTIVE, Execution.LANES):
            self.require(bool(self.levels), "no level around it", "to stand inside `parallel`")
        if op.execution is Execution.LANE:
            for view in written_views(op):
                self.require(not view.axes, "an element's view has axes left", "a view without axes")
        for x in declared(op):
            if type(x) in _KINDS:
                self.declare(_KINDS[type(x)], x.name, x)
        for v in assigned(op):
            found = self.known("scalar", v.name)
            self.require(isinstance(found, e.Var), f"`{v.name}` cannot be assigned", "a variable")
        for name in (*awaited(op), *rotated(op)):
            self.require(name in self.futures, f"`{name}` is no future", "a future of a copy or a multiply")

    def part(self, x: Any) -> None:
        if isinstance(x, tuple):
            for v in x:
                self.part(v)
        elif isinstance(x, e.Expr):
            self.expression(x)
        elif isinstance(x, ty.View):
            self.view(x)
        elif isinstance(x, tile.FragmentRef):
            self.fragment(x)
        elif isinstance(x, ty.EventRef):
            self.event(x)

    def integer(self, x: e.Expr, what: str) -> None:
        self.expression(x)
        if not x.type.is_integer:
            self.fail(f"{what} is {x.type}", "an integer")

    def expression(self, x: e.Expr) -> None:
        kind = type(x)
        if kind is e.Const:
            return
        check = EXPRESSIONS.get(kind)
        if check is not None:
            check(self, x)
        if kind is e.Element:
            return
        guards = self.guards
        # The operands of `? :`, `&&` and `||` are evaluated only where they count.
        self.guards += kind is e.Select or (isinstance(x, e.Binary) and x.op in e.LOGICAL)
        for child in e.children(x):
            self.expression(child)
        self.guards = guards

    def dimension(self, x: e.Dim) -> None:
        if x.name not in self.dims:
            self.fail(f"dimension `{x.name}` is in no parameter", "a named dimension")

    def scalar(self, x: e.Scalar | e.Var) -> None:
        self.known("scalar", x.name, x)

    def index(self, x: e.Index) -> None:
        if not isinstance(self.known("scalar", x.name), e.Index):
            self.fail(f"`{x.name}` is not an index", "an index")

    def read_element(self, x: e.Element) -> None:
        self.require(not x.view.axes, "an element's view has axes left", "a view without axes")
        self.view(x.view)

    def fragment_element(self, x: e.FragmentElement) -> None:
        self.require(self.applies > 0, "an element of a fragment outside `apply`", "to stand inside it")
        self.known("fragment", x.fragment)

    def bits(self, x: e.Binary) -> None:
        if x.op in e.BITWISE and (x.a.type.is_float or x.b.type.is_float):
            self.fail(f"`{x.op}` on {x.a.type} and {x.b.type}", "integers")

    def inverse(self, x: e.Unary) -> None:
        if x.op == "not" and x.a.type.is_float:
            self.fail(f"`not` on {x.a.type}", "an integer")

    def view(self, v: ty.View) -> None:
        self.known("buffer", v.base.name, v.base)
        rank = len(v.base_shape)
        if len(v.offsets) != rank:
            self.fail(f"{len(v.offsets)} offsets into {rank} dimensions", "one for each")
        dims = [a.dim for a in v.axes]
        if len(set(dims)) != len(dims) or not all(0 <= d < rank for d in dims):
            self.fail(f"axes along dimensions {dims} of {rank}", "each dimension at most once")
        if (v.slot is not None) != (v.base.copies > 0):
            self.fail(
                f"a view {'without' if v.slot is None else 'with'} a slot of `{v.base.name}`",
                "a slot for an array of tiles, none otherwise",
            )
        for x in v.expressions():
            self.integer(x, "a part of a view")
        for s in v.reshape or ():
            self.integer(s, "an extent")
        slot = None if v.slot is None else value_of(v.slot)
        if slot is not None and not self.guards and not 0 <= slot < v.base.copies:
            self.fail(f"slot {slot} of {v.base.copies}", "a slot of the array")
        if v.base.space is not ty.Space.GLOBAL and not self.guards:
            self._fits(v)

    def _fits(self, v: ty.View) -> None:
        """If all extents and offsets are constants, a view of shared or local memory lies inside its base."""
        extents = {a.dim: (value_of(a.extent), value_of(a.step)) for a in v.axes}
        for d, (offset, size) in enumerate(zip(v.offsets, v.base_shape, strict=True)):
            first, limit = value_of(offset), value_of(size)
            extent, step = extents.get(d, (1, 1))
            if first is not None and limit is not None and extent is not None and step is not None and extent > 0:
                last = first + (extent - 1) * step
                if first < 0 or last >= limit:
                    self.fail(
                        f"elements {first} to {last} of dimension {d} of `{v.base.name}`, which has {limit}",
                        "a view inside its buffer",
                    )

    def fragment(self, r: tile.FragmentRef) -> None:
        declared: tile.DeclareFragment = self.known("fragment", r.name)
        whole = isinstance(self.op, tile.Fill) and not r.index
        self.require(
            whole or len(r.index) == len(declared.copies),
            f"{len(r.index)} subscripts of `%{r.name}`, declared with {len(declared.copies)}",
            "as many subscripts as the array has",
        )
        for i in r.index:
            self.integer(i, "a subscript")

    def event(self, r: ty.EventRef) -> None:
        self.known("event", r.event.name, r.event)
        given = (r.slot is not None) + (r.order is not None)
        self.require(
            given == (1 if r.event.slots else 0),
            f"event `{r.event.name}` of {r.event.slots} slots with {given} subscripts",
            "a slot or an order for an array of events, none otherwise",
        )
        for x in (r.slot, r.order):
            if x is not None:
                self.integer(x, "a slot of an event")

    # ---- operations ----------------------------------------------------------------------------------------

    def parallel(self, op: tile.Parallel) -> None:
        level, outer = op.level, next((x for x in reversed(self.levels) if x is not None), None)
        if level is not None and outer is not None:
            inside = level.depth > outer.depth or (
                level.kind == outer.kind == "group" and level.warps < outer.warps
            )
            self.require(inside or level == ty.THREAD == outer, f"`{level}` inside `{outer}`", "an inner level")
        self.levels.append(level)
        self._loop_body(op, op.indices)
        self.levels.pop()

    def for_(self, op: tile.For) -> None:
        for x, what in ((op.start, "a start"), (op.stop, "a stop"), (op.step, "a step")):
            self.require(x.type.is_integer, f"{what} of {x.type}", "an integer")
        self.loops += 1
        self._loop_body(op, (op.index,))
        self.loops -= 1

    def apply(self, op: tile.Apply) -> None:
        self.applies += 1
        self._loop_body(op, op.indices)
        self.applies -= 1

    def _loop_body(self, op: tile.Parallel | tile.For | tile.Apply, indices: tuple[e.Index, ...]) -> None:
        outer_loops = self.loops
        if not isinstance(op, tile.For):
            self.loops = 0
        with self.scope(op):
            for i in indices:
                self.declare("scalar", i.name, i)
            self.body(op.body)
        self.loops = outer_loops

    def while_(self, op: tile.While) -> None:
        self.condition(op)
        self.loops += 1
        with self.scope(op):
            self.body(op.body)
        self.loops -= 1

    def condition(self, op: Any) -> None:
        t = op.cond.type
        self.require(t.kind == "bool" or t.is_integer, f"a condition of {t}", "a truth value or an integer")

    def leave(self, op: tile.Op) -> None:
        self.require(self.loops > 0, "no loop around it", "to stand inside a loop of the same level")

    def copy(self, op: tile.Copy) -> None:
        self.require(
            op.src.dtype == op.dst.dtype, f"a copy from {op.src.dtype} to {op.dst.dtype}", "equal element types"
        )
        rank = len(op.src.axes)
        if op.transpose is not None:
            self.require(sorted(op.transpose) == list(range(rank)), f"axes {op.transpose}", "a permutation")
        self.require(not op.pad or len(op.pad) == rank, f"{len(op.pad)} paddings of {rank} axes", "one for each")

    def declare_fragment(self, op: tile.DeclareFragment) -> None:
        self.declare("fragment", op.name, op)

    def set_fragment_element(self, op: tile.SetFragmentElement) -> None:
        self.require(self.applies > 0, "an element of a fragment is set outside `apply`", "to stand inside it")


# Indices are declared inside their operation, futures anywhere, fragments with their operation.
_KINDS: dict[type, str] = {e.Var: "scalar", ty.Buffer: "buffer", ty.Event: "event"}
# What effects do not say.
CHECKS: dict[type, Callable[[Verifier, Any], None]] = {
    tile.Parallel: Verifier.parallel,
    tile.For: Verifier.for_,
    tile.Apply: Verifier.apply,
    tile.While: Verifier.while_,
    tile.If: Verifier.condition,
    tile.InThreads: Verifier.condition,
    tile.Assert: Verifier.condition,
    tile.Break: Verifier.leave,
    tile.Continue: Verifier.leave,
    tile.DeclareFragment: Verifier.declare_fragment,
    tile.Copy: Verifier.copy,
    tile.SetFragmentElement: Verifier.set_fragment_element,
}
EXPRESSIONS: dict[type, Callable[[Verifier, Any], None]] = {
    e.Dim: Verifier.dimension,
    e.Scalar: Verifier.scalar,
    e.Var: Verifier.scalar,
    e.Index: Verifier.index,
    e.Element: Verifier.read_element,
    e.FragmentElement: Verifier.fragment_element,
    e.Binary: Verifier.bits,
    e.Unary: Verifier.inverse,
}
# Operations whose check visits the body.
STRUCTURED = (tile.Parallel, tile.For, tile.Apply, tile.While)

__all__ = ["InvalidIR", "verify", "verify_lane"]
