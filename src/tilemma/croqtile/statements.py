"""Statements: scoping, control, declarations, assignments."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilemma.croqtile import ast
from tilemma.croqtile.atomics import ATOMICS, atomic
from tilemma.croqtile.refusals import (
    ImmutableAssignment,
    NotBuiltYet,
    OutsideParallel,
    SideEffect,
    WrongValue,
    has_suffix,
)
from tilemma.croqtile.scope import Redefinition
from tilemma.croqtile.values import (
    Events,
    Mutable,
    Operation,
    Promise,
    SpanValue,
    TupleValue,
    Value,
    kind,
)
from tilemma.errors import CompileError, Note
from tilemma.ir import tile as t
from tilemma.ir.constructs import checked_element
from tilemma.ir.expr import Const, Expr
from tilemma.ir.tiles import Bounded, FragmentValue, FutureValue, describe, scalar
from tilemma.ir.types import BLOCK

if TYPE_CHECKING:
    from tilemma.croqtile.build import Reader


class AssertionFails(CompileError):
    code = "assertion-fails"
    found = "this assertion fails when compiled: {message}"
    expected = "`{text}` to hold"
    fix = "change the constants it depends on"


_HOST = (
    ast.Block, ast.Declare, ast.DeclareSpan, ast.DeclareTuple, ast.Assert, ast.Parallel, ast.Return, ast.Assign,
    ast.Print, ast.With, ast.CallStatement, ast.DeclareFragment, ast.DeclareEvent,
)  # fmt: skip
_WORDS: dict[type[ast.Statement], str] = {
    ast.Foreach: "`foreach`", ast.While: "`while`", ast.If: "`if`", ast.InThreads: "`inthreads`",
    ast.Copy: "a copy", ast.Mma: "an `mma` operation", ast.Sync: "`sync`", ast.Wait: "`wait`",
    ast.Trigger: "`trigger`", ast.Apply: "`apply`", ast.Evaluate: "an expression", ast.Break: "`break`",
    ast.Continue: "`continue`", ast.Yield: "`yield`", ast.Exchange: "`swap`", ast.Reduce: "a reduction",
}  # fmt: skip


class Statements:
    """The part of a `Reader` that knows statements."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        control, declarations = reader.control, reader.declarations
        self.table: dict[type[ast.Statement], Callable[[Any], None]] = {
            ast.Block: self._block,
            ast.Declare: declarations.declare,
            ast.DeclareSpan: declarations.span,
            ast.DeclareTuple: declarations.tuple,
            ast.DeclareEvent: declarations.event,
            ast.DeclareFragment: reader.contraction.declare,
            ast.Assign: self._assign,
            ast.Evaluate: self._evaluate,
            ast.Parallel: control.parallel,
            ast.Foreach: control.foreach,
            ast.With: control.with_,
            ast.While: control.while_,
            ast.If: control.if_,
            ast.InThreads: control.inthreads,
            ast.Break: control.jump,
            ast.Continue: control.jump,
            ast.Return: reader.returned,
            ast.Sync: self._sync,
            ast.Wait: self._wait,
            ast.Trigger: self._trigger,
            ast.Copy: lambda n: self._operation(n, None),
            ast.Mma: lambda n: self._operation(n, None),
            ast.Print: self._print,
            ast.Assert: self._assert,
            ast.Apply: reader.contraction.apply,
            ast.Yield: lambda n: self._unbuilt(n, "`yield`", "put the rest under an `if`"),
            ast.Exchange: self._exchange,
            ast.CallStatement: self._call,
            ast.Reduce: lambda n: self._unbuilt(n, f"`{n.word}`", "reduce through shared memory"),
        }

    def statement(self, node: ast.Statement) -> None:
        r = self.reader
        r.b.span = node.span
        if not r.inside_parallel and not isinstance(node, _HOST):
            raise OutsideParallel(node.span, what=_WORDS.get(type(node), "this statement"))
        self.table[type(node)](node)
        for var, value in r.afterwards:
            r.b.span = node.span
            r.b.assign(var, value)
        r.afterwards.clear()

    def _unbuilt(self, node: ast.Statement, what: str, fix: str) -> None:
        raise NotBuiltYet(node.span, what=what, fix_text=fix)

    def body(self, node: ast.Statement) -> None:
        """``node`` in a block of its own."""
        with self.reader.scopes.block():
            if isinstance(node, ast.Block):
                for s in node.body:
                    self.statement(s)
            else:
                self.statement(node)

    def _block(self, node: ast.Block) -> None:
        self.body(node)

    # ---- assignments -------------------------------------------------------------------------------------

    def _assign(self, node: ast.Assign) -> None:
        if isinstance(node.target, ast.Name):
            self._assign_name(node, node.target)
            return
        if not isinstance(node.value, ast.Expr):
            raise WrongValue(
                node.value.span,
                what="an assignment",
                got="the result of an operation",
                wanted="a name before `=`",
                fix_text="give the result a name of its own",
            )
        target = node.target
        if isinstance(target, ast.Member) and target.name == "at":
            self._assign_element(node, target)
            return
        if isinstance(target, ast.Subscript) and self.reader.inside_parallel:
            value = self.reader.value(target)
            if isinstance(value, FragmentValue):
                self.reader.contraction.assign_whole(value, node)
                return
        raise WrongValue(
            target.span,
            what="an assignment",
            got="something that cannot be assigned",
            wanted="a name, or an element `x.at(i, j)`",
            fix_text="copy tiles with `dma.copy a => b`",
        )

    def _assign_element(self, node: ast.Assign, target: ast.Member) -> None:
        r = self.reader
        assert isinstance(node.value, ast.Expr)
        if not r.inside_parallel:
            raise OutsideParallel(node.span, what="an assignment to an element")
        value = r.expressions.plain(node.value, "an assignment")
        if node.op:
            old = r.expressions.plain(target, f"`{node.op}=`")
            value = r.expressions.arithmetic(node.op, old, value, node.span)
        base = r.value(target.base)
        if isinstance(base, FragmentValue):
            r.contraction.assign_element(base, target, value)
            return
        tile = r.views.as_tile(base, target.base, "an assignment")
        indices = r.views.scalars(target.args or (), "`.at`")
        view = tile.element(indices, target.span)
        if not r.b.unreachable:
            checked_element(tile, indices, target.span)
        r.b.set_element(tile, indices, r.expressions.converted(value, view.dtype, node.span))

    def _assign_name(self, node: ast.Assign, target: ast.Name) -> None:
        r = self.reader
        name = target.text
        binding = r.scopes.find(name)
        if not isinstance(node.value, ast.Expr):
            if node.op:
                raise WrongValue(
                    node.span, what=f"`{node.op}=`", got="an operation", wanted="a scalar", fix_text="use `=`"
                )
            self._operation(node.value, target)
            return
        if binding is None:
            if node.op:
                raise r.scopes.unknown(name, target.span)
            self._define(target, node.value)
            return
        value = binding.value
        if isinstance(value, Mutable) and value.mutable:
            new = r.expressions.plain(node.value, "an assignment")
            if node.op:
                new = r.expressions.arithmetic(node.op, value.var, new, node.span)
            if r.inside_parallel:
                r.b.assign(value.var, r.expressions.converted(new, value.var.dtype, node.span))
                return
            raise OutsideParallel(node.span, what=f"an assignment to `{name}`")
        if isinstance(value, FragmentValue):
            r.contraction.assign_whole(value, node)
            return
        scalars = isinstance(value, (Bounded, Expr, Mutable))
        raise ImmutableAssignment(
            node.span,
            name=name,
            kind=kind(value),
            fix_text=f"declare it `mutable {name} = ...;`" if scalars else "give the new value another name",
            notes=[Note("defined here", binding.span)],
        )

    def _define(self, target: ast.Name, node: ast.Expr) -> None:
        """``x = e`` for a new name: an alias of a view, a shape's element, a tuple, a scalar."""
        r = self.reader
        if isinstance(node, ast.SpanList):
            raise WrongValue(
                node.span,
                what=f"`{target.text} =`",
                got="a shape in brackets",
                wanted="`:` before a shape, braces for a tuple",
                fix_text=f"write `{target.text} : [...]` for a shape, `{target.text} = {{...}}` for a tuple",
            )
        value = r.value(node)
        if isinstance(value, (Bounded, Expr, Mutable)):
            plain = value.var if isinstance(value, Mutable) else value
            value = r.declarations.stored(target.text, plain, None, False)
        else:
            value = r.declarations.snapshot(target.text, value)
        r.scopes.define(target.text, value, target.span)

    def _operation(self, node: ast.Statement, target: ast.Name | None) -> None:
        """A statement that may have a result."""
        r = self.reader
        if not r.inside_parallel:
            raise OutsideParallel(node.span, what=_WORDS.get(type(node), "this statement"))
        name = target.text if target is not None else None
        if isinstance(node, ast.Copy):
            if target is not None:
                self._fresh_name(target, "the future of a copy")
            promised = node.suffixes[0].name == "any"
            value: Value | None = Promise() if promised else r.copies.copy(node, name)
        elif isinstance(node, ast.Mma):
            value = r.contraction.mma(node, name)
        else:
            raise r.declarations.no_result(node, name or "the result")
        if target is None or value is None:
            return
        binding = r.scopes.find(target.text)
        if binding is not None and isinstance(value, FragmentValue) and binding.value == value:
            return
        r.scopes.define(target.text, value, target.span)

    def _fresh_name(self, target: ast.Name, what: str) -> None:
        binding = self.reader.scopes.find(target.text)
        if binding is None or isinstance(binding.value, Promise):
            return
        if isinstance(binding.value, FutureValue) and binding.span != target.span:
            raise NotBuiltYet(
                target.span,
                what=f"giving `{target.text}`, {what}, a new copy",
                fix_text="declare the buffer (`shared f16 [h, w] s;`) and copy into it: `dma.copy src => s`",
                notes=[Note("the first copy", binding.span)],
            )
        raise Redefinition(target.span, name=target.text, notes=[Note("the first definition", binding.span)])

    def _evaluate(self, node: ast.Evaluate) -> None:
        """An expression for its effect."""
        r = self.reader
        value = node.value
        if isinstance(value, ast.Step) and isinstance(value.target, ast.Member) and value.target.name == "at":
            one = ast.Int(1, span=value.span)
            step = ast.Assign(value.target, one, "+" if value.sign > 0 else "-", span=node.span)
            self._assign_element(step, value.target)
            return
        if isinstance(value, ast.Call) and isinstance(value.function, ast.Name) and value.function.text in ATOMICS:
            atomic(r, value, value.function.text, used=False)
            return
        r.value(value)
        if not isinstance(value, ast.Step):
            raise SideEffect(node.span, what="a value that nothing uses", where="a statement")

    # ---- synchronisation and diagnostics -----------------------------------------------------------------

    def _sync(self, node: ast.Sync) -> None:
        what = node.suffixes[0].name
        r = self.reader
        if what == "shared" and node.level is None:
            r.b.emit(t.Sync("barrier", BLOCK))
        elif what in ("barrier", "fence") and not (node.level and node.level.args and what == "barrier"):
            level, _ = r.control.level(
                ast.LevelSpec(node.level.name, span=node.level.span) if node.level else None
            )
            r.b.emit(t.Sync("barrier" if what == "barrier" else "fence", level))
        elif what in ("global", "local"):
            raise NotBuiltYet(node.span, what=f"`sync.{what}`", fix_text="use `sync.barrier : block`")
        else:
            raise WrongValue(
                node.span,
                what="`sync`",
                got=f"`.{what}`",
                wanted="`sync.shared`, `sync.barrier : level` or `sync.fence : level`",
                fix_text="write one of these",
            )

    def _wait(self, node: ast.Wait) -> None:
        r = self.reader
        if node.phase is not None:
            raise NotBuiltYet(node.phase.span, what="`wait<phase>`", fix_text="write `wait e.at(order)`")
        futures: list[str] = []
        for target in node.targets:
            value = r.value(target)
            if isinstance(value, Events):
                r.b.emit(t.WaitEvent(r.event_ref(value, target)))
            elif isinstance(value, Operation) or (isinstance(value, FutureValue) and value.name):
                futures.append(value.name)
            else:
                synchronous = isinstance(value, FutureValue)
                raise WrongValue(
                    target.span,
                    what="`wait`",
                    got="a synchronous copy, which is complete" if synchronous else kind(value),
                    wanted="an event, or the future of an asynchronous operation",
                    fix_text="remove it" if synchronous else "name an event or a future",
                )
        if futures:
            r.b.emit(t.WaitFuture(tuple(futures)))

    def _exchange(self, node: ast.Exchange) -> None:
        """`swap` and `rotate`: what the names stand for moves on by one name."""
        names = []
        for target in node.names:
            value = self.reader.value(target)
            if not isinstance(value, FutureValue):
                raise WrongValue(
                    target.span,
                    what=f"`{node.word}`",
                    got=kind(value),
                    wanted="the results of copies",
                    fix_text="name the results, `f = dma.copy.async ... => shared`, and exchange those",
                )
            names.append(value.name or value.data.view.base.name)
        self.reader.b.emit(t.SwapFutures(tuple(names)))

    def _trigger(self, node: ast.Trigger) -> None:
        r = self.reader
        cluster = has_suffix(node.suffixes, "cluster", "`trigger`")
        after = []
        for f in node.after:
            value = r.value(f)
            if not isinstance(value, FutureValue) or not value.name:
                raise WrongValue(
                    f.span,
                    what="`after`",
                    got=kind(value),
                    wanted="the future of an asynchronous copy",
                    fix_text="name the result of a `tma.copy.async` or `dma.copy.async`",
                )
            after.append(value.name)
        for target in node.targets:
            value = r.value(target)
            if not isinstance(value, Events):
                raise WrongValue(
                    target.span, what="`trigger`", got=kind(value), wanted="an event", fix_text="name an event"
                )
            r.b.emit(t.TriggerEvent(r.event_ref(value, target), tuple(after), cluster))

    def _print(self, node: ast.Print) -> None:
        r = self.reader
        parts: list[str | Expr] = []
        for a in node.args:
            if isinstance(a, ast.Str):
                parts.append(a.value)
                continue
            value = r.value(a)
            if isinstance(value, (SpanValue, TupleValue)):
                items = value.dims if isinstance(value, SpanValue) else value.items
                for i, x in enumerate(items):
                    parts += [", " if i else "[", scalar(x)]
                parts.append("]")
            else:
                parts.append(r.expressions.plain(a, "`print`"))
        if node.compile_time:
            text = "".join(p if isinstance(p, str) else describe(p) for p in parts)
            r.notes.append(Note(text, node.span))
        elif not r.inside_parallel:
            raise OutsideParallel(node.span, what="`print`")
        else:
            r.b.emit(t.Print(tuple(parts), node.newline))

    def _assert(self, node: ast.Assert) -> None:
        r = self.reader
        with r.without_effects("an assertion"):
            cond = r.expressions.condition(node.cond, "`assert`")
        if isinstance(cond, Const):
            if not cond.value:
                raise AssertionFails(node.span, message=node.message or "no message", text=r.text(node.cond))
            return
        r.b.emit(t.Assert(cond, node.message))

    def _call(self, node: ast.CallStatement) -> None:
        what = f"`call {node.function}`"
        fix = "write it in the language itself"
        if node.function.startswith("croq::cuda::setreg_"):
            fix = "remove it: registers are shared out by the compiler"
        raise NotBuiltYet(node.span, what=what, fix_text=fix)
