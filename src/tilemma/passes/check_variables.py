"""Checks uniformity of variables that an inner `parallel` sets: the scope around it has no single value of them.

A variable is held by every thread of the scope that declares it.  If an inner level assigns it, only the
threads of that level have the new value, and each instance its own if the value depends on the level's indices.
An equal level later reads these values again.
"""

from __future__ import annotations

from tilemma.errors import CompileError, Note, Span
from tilemma.ir.effects import old_values, variables_set
from tilemma.ir.expr import Expr, Index, Var, value_of, walk
from tilemma.ir.tile import Body, Declare, For, If, InThreads, Kernel, Op, Parallel, While
from tilemma.ir.walk import bodies, expressions
from tilemma.ir.walk import walk as operations
from tilemma.passes.decision import Decision
from tilemma.passes.scope import block_threads, control, count, kind, span_threads
from tilemma.records import record

# An inner `parallel` by its level and extents, and those around it: equal ones have the same threads.
_Levels = tuple[tuple[object, ...], ...]


class VariableSetInside(CompileError):
    code = "variable-set-inside"
    found = "`{name}` is read here, and its last value is that of the instances of an inner `parallel`"
    expected = "a variable that the scope itself assigned last, or a read in an equal `parallel`"
    fix = "declare `{name}` inside that `parallel`, or assign it again before this statement"


@record(slots=False)
class CheckVariables:
    """Refuses reads of variables whose value only the threads of an inner level have."""

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises VariableSetInside."""
        for op in operations(kernel.body):
            if isinstance(op, Parallel) and kind(op) == "block" and _sets_inside(op):
                _Check(block_threads(op)).body(op.body, ())
        return kernel


def _sets_inside(block: Parallel) -> bool:
    """Whether an inner level assigns a variable that it does not declare."""
    return any(isinstance(op, Parallel) and _outer_variables(op) for op in operations(block.body))


def _outer_variables(p: Parallel) -> set[str]:
    """The variables of the scopes around ``p`` that it assigns."""
    inside = list(operations(p.body))
    own = {v.name for x in inside if isinstance(x, Declare) for v in variables_set(x)}
    return {v.name for x in inside for v in variables_set(x)} - own


class _Check:
    """A walk over a block in program order; loops are walked twice."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        # The indices that each variable's value depends on.
        self._depends: dict[str, frozenset[str]] = {}
        # The variables whose value only the threads of an inner level have, with that level and its place.
        self._inside: dict[str, tuple[_Levels, Span | None]] = {}
        # The indices that decide whether the statement is executed.
        self._under: frozenset[str] = frozenset()
        self._conditional = False
        # The indices of all enclosing levels, and the threads of the innermost of them.
        self._instances: frozenset[str] = frozenset()

    def body(self, body: Body, levels: _Levels) -> None:
        for op in body:
            self._reads(op, levels)
            for v in variables_set(op):
                self._assigned(op, v)
            if isinstance(op, Parallel):
                self._parallel(op, levels)
            elif isinstance(op, (For, While, If, InThreads)):
                self._branch(op, levels)
            else:
                for _, inner in bodies(op):
                    self.body(inner, levels)

    def _reads(self, op: Op, levels: _Levels) -> None:
        targets = variables_set(op)
        for e in expressions(op):
            for x in walk(e) if e not in targets else ():
                if isinstance(x, Var) and x.name in self._inside:
                    where, span = self._inside[x.name]
                    if levels[: len(where)] != where:
                        notes = [Note("the inner `parallel`", span)]
                        raise VariableSetInside(op.span, name=x.name, notes=notes)

    def _assigned(self, op: Op, v: Var) -> None:
        new = self._under.union(*(self._of(e) for e in expressions(op) if e != v))
        if old_values(op):
            new |= self._instances
        if self._conditional and not isinstance(op, Declare):
            self._depends[v.name] = self._depends.get(v.name, frozenset()) | new
        else:
            self._depends[v.name] = new
            self._inside.pop(v.name, None)

    def _of(self, e: Expr) -> frozenset[str]:
        """The indices that ``e`` depends on."""
        found: frozenset[str] = frozenset()
        for x in walk(e):
            if isinstance(x, (Index, Var)):
                found |= self._depends.get(x.name, frozenset({x.name} if isinstance(x, Index) else ()))
        return found

    def _parallel(self, p: Parallel, levels: _Levels) -> None:
        names = frozenset(i.name for i in p.indices)
        before = self._instances, self._threads
        self._instances |= names
        inner = p.level is not None and kind(p) in ("group", "thread")
        whole = not inner or count(p) is None or span_threads(p) == self._threads
        if inner and p.level is not None:
            levels = (*levels, (p.level, tuple(value_of(i.extent) for i in p.indices)))
            self._threads = p.level.threads
        self.body(p.body, levels)
        self._instances, self._threads = before
        for name in _outer_variables(p) if inner else ():
            depends = self._depends.get(name, frozenset())
            if name not in self._inside and (depends & names or not whole):
                self._inside[name] = levels, p.span
            self._depends[name] = depends - names

    def _branch(self, op: For | While | If | InThreads, levels: _Levels) -> None:
        before = self._under, self._conditional
        deciding = frozenset().union(*(self._depends.get(n, frozenset((n,))) for n in control(op)))
        if isinstance(op, For):
            self._depends[op.index.name] = deciding
        self._under, self._conditional = self._under | deciding, True
        for _ in range(2 if isinstance(op, (For, While)) else 1):
            for _, inner in bodies(op):
                self.body(inner, levels)
        self._under, self._conditional = before
