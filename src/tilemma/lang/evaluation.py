"""Name analysis of a traced function: the names that it reads and binds, in Python's order of evaluation."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field

from tilemma.records import record


@record
class Event:
    """A name read or bound.  ``target``: bound as the target of a `for`."""

    name: str
    node: ast.Name
    bound: bool
    target: bool = False


@record(frozen=False, eq=False)
class Evaluation:
    """``events`` of a function; ``ranges`` gives for each compound statement the events of its body.

    ``mutable``: whether an expression makes an object that ``+=`` changes in place.
    """

    mutable: Callable[[ast.expr], bool]
    events: list[Event] = field(default_factory=list)
    ranges: dict[ast.stmt, tuple[int, int]] = field(default_factory=dict)
    # Names of comprehensions and lambdas, which are their own.
    _hidden: list[set[str]] = field(default_factory=list)
    # Whether every binding of a name that may reach this place gave it a mutable object.
    _in_place: dict[str, bool] = field(default_factory=dict)

    def statements(self, body: Iterable[ast.stmt]) -> None:
        for s in body:
            self.statement(s)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign():
                self.visit(node.value)
                for target in node.targets:
                    self.visit(target)
                self._in_place.update(self._assigned(node))
            case ast.AnnAssign():
                if node.value is not None:
                    self.visit(node.value)
                    self.visit(node.target)
                self._in_place.update(self._assigned(node))
            case ast.If():
                self.visit(node.test)
                before = dict(self._in_place)
                self.statements(node.body)
                after, self._in_place = self._in_place, before
                self.statements(node.orelse)
                self._join(after)
            case ast.AugAssign():
                self._augmented(node)
            case ast.For() | ast.AsyncFor():
                self.visit(node.iter)
                self._targets(node.target)
                before = self._reached_again(node)
                self._block(node, node.body)
                self._join(before)
                self.statements(node.orelse)
            case ast.While():
                start = len(self.events)
                before = self._reached_again(node)
                self.visit(node.test)
                self.statements(node.body)
                self.ranges[node] = (start, len(self.events))
                self._join(before)
                self.statements(node.orelse)
            case ast.Try() | ast.Match():
                before = self._reached_again(node)
                self._children(node)
                self._join(before)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self.visit(item.context_expr)
                    if item.optional_vars is not None:
                        self.visit(item.optional_vars)
                self._block(node, node.body)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node.args, node.body)
            case _:
                self._children(node)

    def _assigned(self, node: ast.Assign | ast.AnnAssign) -> Iterator[tuple[str, bool]]:
        """The names that ``node`` binds; whether to a mutable object."""
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if node.value is not None:
            for target in targets:
                yield from ((name, self.mutable(value)) for name, value in _pairs(target, node.value))

    def _reached_again(self, node: ast.stmt) -> dict[str, bool]:
        """Joins to the bindings here those of the statement ``node``, which may come before any part of it;
        returns the result."""
        for inner in _inside(node):
            if isinstance(inner, (ast.Assign, ast.AnnAssign)):
                self._join(dict(self._assigned(inner)))
        return dict(self._in_place)

    def _join(self, other: dict[str, bool]) -> None:
        for name, mutable in other.items():
            self._in_place[name] = mutable and self._in_place.get(name, True)

    def _block(self, node: ast.stmt, body: list[ast.stmt]) -> None:
        start = len(self.events)
        self.statements(body)
        self.ranges[node] = (start, len(self.events))

    def _children(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self.statement(child)
            else:
                self.visit(child)

    def _augmented(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._note(node.target, False)
            self.visit(node.value)
            if not self._in_place.get(node.target.id, False):
                self._note(node.target, True)
            return
        self.visit(node.target)
        self.visit(node.value)

    def _targets(self, node: ast.expr) -> None:
        for n in ast.walk(node):
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
                self.events.append(Event(n.id, n, True, True))
                self._in_place[n.id] = False

    def _function(self, args: ast.arguments, body: list[ast.stmt] | ast.expr) -> None:
        """A nested function: its reads count at its definition."""
        for default in (*args.defaults, *(d for d in args.kw_defaults if d is not None)):
            self.visit(default)
        own = {a.arg for a in ast.walk(args) if isinstance(a, ast.arg)}
        if isinstance(body, list):
            shared = {
                n for s in body for x in ast.walk(s) if isinstance(x, (ast.Nonlocal, ast.Global)) for n in x.names
            }
            bound = {
                n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            }
            own |= bound - shared
        self._hidden.append(own)
        before = dict(self._in_place)
        if isinstance(body, list):
            self.statements(body)
        else:
            self.visit(body)
        self._join(before)
        self._hidden.pop()

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.Name():
                self._note(node, isinstance(node.ctx, ast.Store))
            case ast.NamedExpr():
                self.visit(node.value)
                self.visit(node.target)
            case ast.Lambda():
                self._function(node.args, node.body)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                self._comprehension(node)
            case _:
                self._children(node)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        own = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        self.visit(node.generators[0].iter)
        self._hidden.append(own)
        for i, g in enumerate(node.generators):
            for part in (*(() if i == 0 else (g.iter,)), *g.ifs):
                self.visit(part)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.visit(part)
        self._hidden.pop()

    def _note(self, node: ast.Name, bound: bool) -> None:
        if not any(node.id in names for names in self._hidden):
            self.events.append(Event(node.id, node, bound))
            if bound:
                self._in_place[node.id] = False


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """``node``, and the statements inside it: `ast.walk` without the expressions, which hold none."""
    waiting = [node]
    while waiting:
        found = waiting.pop()
        yield found
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(found, name, None)
            if isinstance(inner, list):
                waiting += inner


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Names with their assigned values."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, (ast.Tuple, ast.List)):
        values = [value] * len(target.elts)
        if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(values):
            values = value.elts
        for t, v in zip(target.elts, values, strict=True):
            yield from _pairs(t, v)
