"""Reads a kernel's source before it is traced, and rejects what tracing would get silently wrong.

Tracing runs the function once.  A traced loop's body is therefore seen once, and so are both branches of an
`if_`: ``break`` would stop the tracing instead of the loop, and a plain Python name rebound inside would keep
its last traced value.  Python loops over `range` are real loops; nothing in them is restricted.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from tilemma.errors import CompileError, Note
from tilemma.lang import constructs
from tilemma.lang.spans import node_span

_LOOPS = (constructs.parallel, constructs.foreach)
_BLOCKS = (constructs.if_, constructs.else_, constructs.while_, constructs.inthreads)
_FRESH = (constructs.var,)


class JumpInTracedBlock(CompileError):
    code = "jump-in-traced-block"
    found = "`{word}` inside {block}"
    expected = "a block that runs to its end: it is traced once, so `{word}` would stop the tracing"
    fix = "{fix_text}"


class ReboundInTracedBlock(CompileError):
    code = "rebound-in-traced-block"
    found = "`{name}` is rebound inside {block} and used {where}"
    expected = "a mutable scalar: the block is traced once, so a plain Python name keeps one value for all turns"
    fix = "write `{name} = var(...)` before the block and `{name}.set(...)` (or `{name} += ...`) inside"


class PythonControlOnTraced(CompileError):
    code = "python-control-on-traced-value"
    found = "`{word}` on a value that is only known when the kernel runs"
    expected = "a condition known when compiled"
    fix = "{fix_text}"


_JUMP_FIX = {
    "break": "give the loop its own condition: `with while_(lambda: ...)`",
    "continue": "put the rest of the body under `with if_(...)`",
    "return": "return after the block; store results through parameters",
}


class Checker:
    """Checks one function.  ``resolve`` gives the object that a dotted name stands for, or None."""

    def __init__(self, file: str, function: ast.FunctionDef, resolve: Callable[[ast.expr], Any]) -> None:
        self.file = file
        self.function = function
        self.resolve = resolve
        self.variables = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and _calls(node.value, resolve, _FRESH)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def check(self) -> None:
        """Raises the first error found, in source order."""
        for block in self._blocks(self.function.body):
            self._check_jumps(block)
            self._check_rebinding(block)

    def _blocks(self, body: list[ast.stmt]) -> Iterator[ast.For | ast.With]:
        for node in body:
            for inner in ast.walk(node):
                if isinstance(inner, (ast.For, ast.With)) and self._kind(inner):
                    yield inner

    def _kind(self, node: ast.For | ast.With) -> str | None:
        """How to speak of a traced block; None for ordinary Python."""
        if isinstance(node, ast.For):
            if _calls(node.iter, self.resolve, _LOOPS):
                return f"a traced `{_callee(node.iter)}` loop"
            return None
        for item in node.items:
            if _calls(item.context_expr, self.resolve, _BLOCKS):
                return f"a traced `with {_callee(item.context_expr)}` block"
        return None

    def _check_jumps(self, block: ast.For | ast.With) -> None:
        for node in _own_statements(block, self._kind):
            word = _jump_word(node)
            if word:
                raise JumpInTracedBlock(
                    node_span(self.file, node), word=word, block=self._kind(block), fix_text=_JUMP_FIX[word]
                )

    def _check_rebinding(self, block: ast.For | ast.With) -> None:
        loop_targets = {
            n.id
            for inner in ast.walk(block)
            if isinstance(inner, ast.For)
            for n in ast.walk(inner.target)
            if isinstance(n, ast.Name)
        }
        stored: dict[str, ast.Name] = {}
        for store in _stores(block.body):
            if store.id not in self.variables and store.id not in loop_targets:
                stored.setdefault(store.id, store)
        updated = {
            n.target.id: n.target
            for n in ast.walk(block)
            if isinstance(n, ast.AugAssign)
            and isinstance(n.target, ast.Name)
            and n.target.id not in self.variables
        }
        if isinstance(block, ast.For):
            for name, target in updated.items():
                self._refuse_rebound(block, name, target, "in its next turn")
        end = (block.end_lineno or 0, block.end_col_offset or 0)
        for node in _in_order(self.function):
            if not isinstance(node, ast.Name) or node.id not in stored:
                continue
            store = stored[node.id]
            here = (node.lineno, node.col_offset)
            if isinstance(node.ctx, ast.Store) and here > end:
                del stored[node.id]
                continue
            if not isinstance(node.ctx, ast.Load):
                continue
            if here > end and not _rebound_between(self.function, node, end):
                self._refuse_rebound(block, node.id, store, "after it", node)
            inside = (block.lineno, block.col_offset) < here < (store.lineno, store.col_offset)
            if inside and isinstance(block, ast.For) and _within(block.body, node):
                self._refuse_rebound(block, node.id, store, "in its next turn", node)

    def _refuse_rebound(
        self, block: ast.For | ast.With, name: str, store: ast.AST, where: str, use: ast.AST | None = None
    ) -> None:
        notes = [] if use is None else [Note("used here", node_span(self.file, use))]
        raise ReboundInTracedBlock(
            node_span(self.file, store), notes=notes, name=name, block=self._kind(block), where=where
        )


def _calls(node: ast.AST, resolve: Callable[[ast.expr], Any], functions: tuple[Any, ...]) -> bool:
    return isinstance(node, ast.Call) and any(resolve(node.func) is f for f in functions)


def _callee(node: ast.AST) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ast.unparse(node)


def _jump_word(node: ast.AST) -> str | None:
    table: dict[type[ast.AST], str] = {ast.Break: "break", ast.Continue: "continue", ast.Return: "return"}
    return table.get(type(node))


def _own_statements(block: ast.For | ast.With, kind: Callable[[Any], str | None]) -> Iterator[ast.AST]:
    """Statements of ``block`` whose jumps leave it: those of inner Python loops only for ``return``."""

    def visit(nodes: list[ast.stmt], in_python_loop: bool) -> Iterator[ast.AST]:
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            if isinstance(node, (ast.Break, ast.Continue)) and in_python_loop:
                continue
            yield node
            loop = isinstance(node, ast.While) or (isinstance(node, ast.For) and kind(node) is None)
            for name in ("body", "orelse", "finalbody"):
                yield from visit(getattr(node, name, []), in_python_loop or (loop and name == "body"))
            for handler in getattr(node, "handlers", []):
                yield from visit(handler.body, in_python_loop)
            for case in getattr(node, "cases", []):
                yield from visit(case.body, in_python_loop)

    return visit(block.body, False)


def _stores(body: list[ast.stmt]) -> Iterator[ast.Name]:
    for statement in body:
        for node in _in_order(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes in source order."""
    found = [n for n in ast.walk(node) if hasattr(n, "lineno")]
    return iter(sorted(found, key=lambda n: (n.lineno, n.col_offset)))  # type: ignore[attr-defined]


def _within(body: list[ast.stmt], node: ast.AST) -> bool:
    return any(inner is node for statement in body for inner in ast.walk(statement))


def _rebound_between(function: ast.FunctionDef, use: ast.Name, end: tuple[int, int]) -> bool:
    """Whether the name is bound again after ``end`` and before (or in the loop header around) ``use``."""
    here = (use.lineno, use.col_offset)
    for node in ast.walk(function):
        same = isinstance(node, ast.Name) and node.id == use.id and isinstance(node.ctx, ast.Store)
        if same and end < (node.lineno, node.col_offset) < here:  # type: ignore[attr-defined]
            return True
        # A comprehension binds its names after the text that uses them.
        if isinstance(node, ast.comprehension) and any(
            isinstance(n, ast.Name) and n.id == use.id for n in ast.walk(node.target)
        ):
            return True
    return False
