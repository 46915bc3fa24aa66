"""From a kernel's syntax tree to tile IR: what names mean, and which call of the builder a form is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tilemma.croqtile import ast
from tilemma.croqtile.atomics import ATOMICS, atomic
from tilemma.croqtile.contraction import Contraction
from tilemma.croqtile.control import Control
from tilemma.croqtile.copies import Copies
from tilemma.croqtile.declarations import Declarations
from tilemma.croqtile.expressions import BUILTINS, Expressions, guard_effects
from tilemma.croqtile.node import Node
from tilemma.croqtile.refusals import NotBuiltYet, OutsideParallel, WrongArity, WrongValue
from tilemma.croqtile.scope import Scopes
from tilemma.croqtile.statements import Statements
from tilemma.croqtile.values import Events, Scalar, SpanValue, TupleValue, Value, kind
from tilemma.croqtile.views import Views
from tilemma.dtypes import DType
from tilemma.errors import CompileError, Note, Span, source_line
from tilemma.ir import tile as t
from tilemma.ir.builder import Builder
from tilemma.ir.constructs import OPERANDS
from tilemma.ir.expr import Const, Dim, Element, Expr, FragmentElement, Var, const, mul, walk
from tilemma.ir.tiles import Bounded, Tile, scalar
from tilemma.ir.types import BLOCK, Buffer, EventRef, Level, Space

MAX_RANK = 8
MAX_PARAMETERS = 128
# At warp scope these name the four-step tile, unless the file defines them.
WARP_NAMES = {"MMA_M": 16, "MMA_N": 16, "MMA_K": 16}


class BadParameter(CompileError):
    code = "bad-parameter"
    found = "parameter `{name}` {problem}"
    expected = "`global f16 [M, K] x`, `int n`, ...: arrays in global memory and scalars"
    fix = "{fix_text}"


class BadReturn(CompileError):
    code = "bad-return"
    found = "`return` {problem}"
    expected = "{wanted}"
    fix = "{fix_text}"


class Reader:
    """Reads one kernel.  The parts know expressions, views, copies, contractions and statements."""

    def __init__(self, function: ast.Function) -> None:
        self.function = function
        self.here = function.name_span or function.span
        self.b = Builder(function.name, self.here)
        self.scopes = Scopes()
        self.notes: list[Note] = []
        self.afterwards: list[tuple[Var, Expr]] = []
        self.assigned = frozenset(_assigned(function))
        self.expressions = Expressions(self)
        self.views = Views(self)
        self.copies = Copies(self)
        self.contraction = Contraction(self)
        self.declarations = Declarations(self)
        self.control = Control(self)
        self.statements = Statements(self)
        self._implicit = False
        self._pure: list[str] = []
        self._bases: list[tuple[Scalar, ...]] = []
        self._warp: list[bool] = [True]

    # ---- kernels -----------------------------------------------------------------------------------------

    def kernel(self) -> t.Kernel:
        f = self.function
        if len(f.params) > MAX_PARAMETERS:
            raise WrongArity(
                f.params[-1].span, what=f.name, got=len(f.params), want=f"at most {MAX_PARAMETERS}", form="fewer"
            )
        for i, p in enumerate(f.params):
            self._parameter(p, p.name or f"arg{i}")
        parallel = any(isinstance(n, ast.Parallel) for n in _statements(f.body))
        if parallel:
            self.statements.body(f.body)
        else:
            # A kernel without `parallel` is one instance that does everything.
            self._implicit = True
            with self.b.parallel(["p"], [1], BLOCK, span=f.body.span):
                self.statements.body(f.body)
        if f.returns.name != "void" and self.b.returns is None:
            raise BadReturn(
                f.returns.span,
                problem="is missing",
                wanted=f"a returned array: the kernel's type is `{f.returns.name}`",
                fix_text="return an array declared at the top of the kernel, or make the type `void`",
            )
        self.b.span = self.here
        return self.b.finish()

    def _parameter(self, p: ast.Parameter, name: str) -> None:
        self.b.span = p.span
        if p.storage in ("shared", "local"):
            raise self._bad(p, name, f"is `{p.storage}`", "make it `global`, or declare the buffer in the kernel")
        kind_ = p.type
        if kind_.name == "stream":
            raise NotBuiltYet(
                p.span, what="a stream parameter", fix_text="calls run on the caller's current stream"
            )
        if kind_.name in ("void", "auto", "mdspan", "ituple"):
            raise self._bad(
                p, name, f"has the type `{kind_.name}`", "give it an element type, and extents for an array"
            )
        dtype = self.expressions.element_type(kind_.name, kind_.span)
        if kind_.dims is None and kind_.rank is None:
            if p.storage is not None:
                raise self._bad(p, name, "is a scalar with a storage", "remove `global`, or give it extents")
            self.scopes.define(name, self.b.scalar_param(name, dtype, p.span), p.span)
            return
        dims: list[str | int | None] = [None] * (kind_.rank or 0)
        if kind_.dims is not None:
            dims = [self._dimension(p, name, d) for d in kind_.dims]
        if not 1 <= len(dims) <= MAX_RANK:
            raise self._bad(p, name, f"has {len(dims)} dimensions", f"use 1 to {MAX_RANK} dimensions")
        if name in dims:
            raise self._bad(p, name, "has a dimension of its own name", "give the dimension another name")
        tile = self.b.array_param(name, dtype, dims, p.span)
        self.scopes.define(name, tile, p.span)
        for e in tile.view.base.shape:
            if isinstance(e, Dim) and self.scopes.find(e.name) is None:
                self.scopes.define(e.name, e, p.span)

    def _dimension(self, p: ast.Parameter, name: str, node: ast.Expr) -> str | int | None:
        """A name (a run-time dimension), a number, or None."""
        if isinstance(node, ast.Unknown):
            return None
        if isinstance(node, ast.Name):
            known = self.scopes.find(node.text)
            if known is not None and not isinstance(known.value, Dim):
                raise self._bad(
                    p,
                    name,
                    f"has a dimension `{node.text}`, which is also a parameter",
                    "give the dimension another name; sizes are taken from the arrays",
                )
            return node.text
        value = self.expressions.plain(node, f"a dimension of `{name}`")
        if not isinstance(value, Const) or not value.dtype.is_integer or value.value < 0:
            raise self._bad(
                p, name, "has a dimension that is neither a name nor a number", "name it: `f16 [M, K]`, and assert"
            )
        return int(value.value)

    @staticmethod
    def _bad(p: ast.Parameter, name: str, problem: str, fix: str) -> BadParameter:
        return BadParameter(p.span, name=name, problem=problem, fix_text=fix)

    # ---- results -----------------------------------------------------------------------------------------

    def returned_array(self, item: ast.Item, dtype: DType, shape: Sequence[Expr]) -> None:
        """``f32 [M, N] out;``: the array that the kernel returns."""
        names = {n.value.text for n in _statements(self.function.body)
                 if isinstance(n, ast.Return) and isinstance(n.value, ast.Name)}  # fmt: skip
        if (self.inside_parallel and not self._implicit) or item.name not in names or item.sizes:
            raise NotBuiltYet(
                item.span,
                what=f"`{item.name}`, an array in global memory that is not the kernel's result",
                fix_text="make it a parameter, or put it into `shared` memory",
            )
        if isinstance(item.value, ast.Expr):
            raise NotBuiltYet(
                item.span, what="an initialiser of the returned array", fix_text="write its elements in the kernel"
            )
        buffer = Buffer(self.b.fresh(item.name), dtype, tuple(shape), Space.GLOBAL)
        self.b.params.append(t.ArrayParameter(buffer, span=item.span))
        self.scopes.define(item.name, Tile.whole(buffer), item.span)

    def returned(self, node: ast.Return) -> None:
        wanted = "an array declared at the top of the kernel (`f32 [M, N] out; ... return out;`)"
        if node.value is None:
            if self.function.returns.name != "void":
                raise BadReturn(node.span, problem="without a value", wanted=wanted, fix_text="return the array")
            return
        if self.function.returns.name == "void":
            raise BadReturn(
                node.span,
                problem="with a value in a kernel of type `void`",
                wanted="no value",
                fix_text="make the kernel's type `auto`",
            )
        if self.inside_parallel and not self._implicit:
            raise BadReturn(
                node.span,
                problem="inside `parallel`",
                wanted="`return` at the end of the kernel",
                fix_text="move it",
            )
        value = self.value(node.value)
        buffer = value.view.base if isinstance(value, Tile) and value.view.is_whole else None
        if buffer is None or buffer.space is not Space.GLOBAL:
            raise BadReturn(
                node.span, problem=f"of {kind(value)}", wanted=wanted, fix_text="return a whole global array"
            )
        declared = self.function.returns
        if declared.name != "auto" and self.expressions.element_type(declared.name, declared.span) != buffer.dtype:
            raise BadReturn(
                node.span,
                problem=f"of an array of {buffer.dtype}",
                wanted=f"an array of {declared.name}, the kernel's type",
                fix_text="declare the array with that type, or make the kernel's type `auto`",
            )
        self.b.returns = buffer

    # ---- where we are ------------------------------------------------------------------------------------

    @property
    def inside_parallel(self) -> bool:
        return self.b.inside_parallel

    @contextmanager
    def warp_names(self, level: Level | None) -> Iterator[None]:
        """While reading what belongs to ``level``: MMA_M .. are known unless it is wider than a warp."""
        self._warp.append(self._warp[-1] and (level is None or level.kind != "group" or level.warps == 1))
        try:
            yield
        finally:
            self._warp.pop()

    @contextmanager
    def without_effects(self, where: str) -> Iterator[None]:
        self._pure.append(where)
        try:
            yield
        finally:
            self._pure.pop()

    def effect(self, span: Span, what: str) -> None:
        """Raises SideEffect where effects may not stand."""
        guard_effects(self._pure, span, what)
        if not self.inside_parallel:
            raise OutsideParallel(span, what=what)

    @contextmanager
    def derivation(self, base: tuple[Scalar, ...]) -> Iterator[None]:
        """While reading ``s [(0)/2]``: ``(0)`` is an element of ``base``."""
        self._bases.append(base)
        try:
            yield
        finally:
            self._bases.pop()

    # ---- values ------------------------------------------------------------------------------------------

    def value(self, node: ast.Expr) -> Value:
        """What an expression stands for."""
        e = self.expressions
        match node:
            case ast.Name():
                return self._name(node)
            case ast.Int():
                return self._integer(node)
            case ast.Float():
                return Const(node.value, e.element_type("f32" if node.single else "f64", node.span), True)
            case ast.Bool():
                return const(node.value)
            case ast.Inf():
                return const(float("inf"))
            case ast.Paren():
                return self._paren(node)
            case ast.Unary():
                return e.unary(node)
            case ast.Binary():
                return e.binary(node)
            case ast.Ternary():
                return e.ternary(node.cond, node.a, node.b, node.span)
            case ast.Step():
                return e.step(node)
            case ast.Bound():
                return self._bound(node)
            case ast.Count():
                return self._count(node)
            case ast.SizeOf():
                return const(self._bytes(node))
            case ast.Convert():
                return e.convert(node)
            case ast.Call():
                return self._call(node)
            case ast.Subscript():
                return self.views.subscript(node)
            case ast.Member():
                return self.views.member(node)
            case ast.Tuple():
                return self._tuple(node)
            case ast.SpanList():
                return SpanValue(tuple(scalar(x) for x in self.views.scalars(node.items, "a shape")))
        names = {ast.Str: "a string", ast.Whole: "`_`", ast.Nullptr: "`nullptr`", ast.Unknown: "an open extent"}
        what = names.get(type(node), "this")
        raise WrongValue(
            node.span,
            what="an expression",
            got=what,
            wanted="a value",
            fix_text="use it where the language takes it",
        )

    def _name(self, node: ast.Name) -> Value:
        binding = self.scopes.find(node.text)
        if binding is not None:
            return binding.value
        if node.text in WARP_NAMES:
            if self._warp[-1]:
                return const(WARP_NAMES[node.text])
            raise WrongValue(
                node.span,
                what=f"`{node.text}`",
                got="a level wider than a warp",
                wanted="warp scope: there it is 16, the extent of the four-step tile",
                fix_text=f"`#define {node.text}` with the tile's extent",
            )
        if node.text in BUILTINS or node.text in ATOMICS:
            raise WrongValue(
                node.span,
                what="an expression",
                got=f"the built-in function `{node.text}`",
                wanted="a call of it",
                fix_text=f"write `{node.text}(...)`",
            )
        more = tuple(WARP_NAMES) if self._warp[-1] else ()
        raise self.scopes.unknown(node.text, node.span, more)

    def _integer(self, node: ast.Int) -> Expr:
        unsigned, long = (
            "u" in node.suffix,
            "l" in node.suffix or node.value >= 2 ** (32 if "u" in node.suffix else 31),
        )
        name = ("u" if unsigned else "s") + ("64" if long else "32")
        return Const(node.value, self.expressions.element_type(name, node.span), True)

    def _paren(self, node: ast.Paren) -> Value:
        if self._bases and isinstance(node.inner, ast.Int):
            return self.views.dimension(self._bases[-1], (node.inner,), node)
        return self.value(node.inner)

    def _bound(self, node: ast.Bound) -> Value:
        value = self.value(node.operand)
        if isinstance(value, Bounded):
            return value.extent
        if isinstance(value, TupleValue) and all(isinstance(i, Bounded) for i in value.items):
            return TupleValue(tuple(i.extent for i in value.items if isinstance(i, Bounded)))
        raise WrongValue(
            node.span,
            what="`#`",
            got=f"{kind(value)} without an upper bound",
            wanted="an index of `parallel`, `foreach` or `with`",
            fix_text="take the bound of the index itself",
        )

    def _count(self, node: ast.Count) -> Expr:
        value = self.value(node.operand)
        dims: Sequence[Expr]
        if isinstance(value, SpanValue):
            dims = value.dims
        else:
            dims = self.views.as_tile(value, node.operand, "`|...|`").shape
        total: Expr = const(1)
        for d in dims:
            total = mul(total, d)
        return self.expressions.checked(total, node.span)

    def _bytes(self, node: ast.SizeOf) -> int:
        dtype = self.expressions.element_type(node.dtype, node.span)
        if dtype.bits % 8:
            raise WrongValue(
                node.span,
                what="`|...|`",
                got=f"{dtype}, of {dtype.bits} bits",
                wanted="a type of whole bytes",
                fix_text="count bits instead",
            )
        return dtype.bytes

    def _call(self, node: ast.Call) -> Value:
        function = node.function
        if isinstance(function, ast.Name) and self.scopes.find(function.text) is None:
            name = function.text
            if name in BUILTINS:
                return self.expressions.call(name, node)
            if name in ATOMICS:
                old = atomic(self, node, name)
                assert old is not None
                return old
            if name.startswith("__lib_") or name in ("__bar_arrive", "__bar_sync") or "::" in name:
                raise NotBuiltYet(
                    node.span, what=f"`{name}`", fix_text="use events, `sync` or the language's own forms"
                )
            if name not in WARP_NAMES:
                raise self.scopes.unknown(name, function.span, (*BUILTINS, *ATOMICS))
        return self.views.access(node)

    def _tuple(self, node: ast.Tuple) -> Value:
        if node.of is None:
            return TupleValue(tuple(self.views.scalars(node.items, "a tuple")))
        base = self.value(node.of)
        if not isinstance(base, (TupleValue, SpanValue)):
            raise WrongValue(
                node.of.span,
                what="`{...}`",
                got=kind(base),
                wanted="a tuple or a shape",
                fix_text="name one before `{`",
            )
        items = base.items if isinstance(base, TupleValue) else base.dims
        return TupleValue(self.views.derived(items, node.items, "a tuple"))

    def shape(self, node: ast.Expr, what: str) -> SpanValue:
        """A shape: ``[a, b]``, another shape, arithmetic on one."""
        value = self.value(node)
        if isinstance(value, TupleValue):
            return SpanValue(tuple(scalar(i) for i in value.items))
        if not isinstance(value, SpanValue):
            raise WrongValue(
                node.span, what=what, got=kind(value), wanted="a shape", fix_text="write `[a, b]`, or `x.span`"
            )
        return value

    # ---- small things that several parts need ------------------------------------------------------------

    def operand(self, name: str, node: ast.Expr) -> int:
        """The value of an operand of the table in `ir.constructs`."""
        about = OPERANDS[name]
        return about.checked(self.expressions.constant(node, f"`{about.croqtile}`"), node.span)

    def operands(self, name: str, nodes: Sequence[ast.Expr]) -> tuple[int, ...]:
        """The values of an operand that may stand there several times."""
        found = [self.operand(name, n) for n in nodes]
        return OPERANDS[name].checked_all(found, nodes[0].span) if nodes else ()

    def fill_value(self, node: ast.Expr, what: str, dtype: DType | None = None) -> Expr:
        """The value of a fill: a float without suffix has no type of its own, its target decides."""
        e = self.expressions.plain(node, what)
        if isinstance(e, Const) and e.dtype.name == "f64":
            return const(float(e.value), dtype if dtype is not None and dtype.is_float else None)
        return e

    def event_ref(self, value: Events, node: ast.Expr) -> EventRef:
        if value.event.slots and value.slot is None and value.order is None:
            raise WrongValue(
                node.span,
                what=f"the event array `{value.event.name}`",
                got="no subscript",
                wanted="one event of it",
                fix_text=f"write `{value.event.name}[s]` or `{value.event.name}.at(order)`",
            )
        return EventRef(value.event, value.slot, value.order)

    @staticmethod
    def depends_on_memory(e: Expr) -> bool:
        """Whether ``e`` may have another value later: it reads an element or a mutable scalar."""
        return any(isinstance(x, (Element, Var, FragmentElement)) for x in walk(e))

    @staticmethod
    def text(node: ast.Expr) -> str:
        """The source text of an expression on one line."""
        line = source_line(node.span.file, node.span.line)
        if line is None or node.span.end_line != node.span.line:
            return "the condition"
        return line[node.span.column - 1 : node.span.end_column - 1]


def _statements(node: object) -> Iterator[ast.Statement]:
    """Every statement inside ``node``."""
    stack = [node]
    while stack:
        x = stack.pop()
        if isinstance(x, tuple):
            stack.extend(x)
        elif isinstance(x, Node):
            if isinstance(x, ast.Statement):
                yield x
            if not isinstance(x, ast.Expr):
                stack.extend(vars(x).values())


def _assigned(function: ast.Function) -> Iterator[str]:
    """Names that some statement assigns again."""
    stack: list[object] = [function.body]
    while stack:
        x = stack.pop()
        if isinstance(x, tuple):
            stack.extend(x)
        elif isinstance(x, Node):
            target = x.target if isinstance(x, (ast.Assign, ast.Step)) else None
            if isinstance(target, ast.Name):
                yield target.text
            stack.extend(vars(x).values())
