"""Checks a kernel's source before tracing, and rejects statements whose tracing would be silently wrong.

Tracing runs the function once.  A traced loop's body is therefore seen once, and so are both branches of an
`if_`: ``break`` would stop the tracing instead of the loop, and a plain Python name rebound inside would keep
its last traced value.  Python loops over `range` are real loops; nothing in them is restricted.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from tilemma.errors import CompileError, Note
from tilemma.lang import control, registers, storage
from tilemma.lang.contraction import MmaNamespace
from tilemma.lang.evaluation import Evaluation
from tilemma.lang.spans import Position, node_position, node_span, statements

_LOOPS = (control.parallel, control.foreach, registers.apply)
_BLOCKS = (control.if_, control.else_, control.while_, control.inthreads)
# Operations under which ``+=`` changes the object in place.
_FRESH = (storage.var, MmaNamespace.fill, MmaNamespace.load, MmaNamespace.frag)


class JumpInTracedBlock(CompileError):
    code = "jump-in-traced-block"
    found = "`{word}` inside {block}"
    expected = "a block that runs to its end: it is traced once, so `{word}` would stop the tracing"
    fix = "{fix_text}"


class ReboundInTracedBlock(CompileError):
    code = "rebound-in-traced-block"
    found = "`{name}` is rebound inside {block} and used {where}"
    expected = (
        "a mutable scalar: the block is traced once, so a plain Python name keeps one value for all iterations"
    )
    fix = "write `{name} = var(...)` before the block and `{name}.set(...)` (or `{name} += ...`) inside"


_JUMP_FIX = {
    "break": "write `break_()`, which leaves the loop when the kernel comes there",
    "continue": "write `continue_()`, or put the rest of the body under `with if_(...)`",
    "return": "return after the block; store results through parameters",
}


class Checker:
    """Checks one function.  ``resolve`` gives the object of a dotted name, or None."""

    def __init__(
        self, file: str, function: ast.FunctionDef | ast.AsyncFunctionDef, resolve: Callable[[ast.expr], Any]
    ) -> None:
        self.file = file
        self.function = function
        self.resolve = resolve
        self.evaluation = Evaluation(lambda value: _calls(value, resolve, _FRESH))
        self.evaluation.statements(function.body)

    def check(self) -> frozenset[Position]:
        """Raises the first error found, in source order; returns the positions of calls that open traced
        blocks."""
        headers = set()
        for block in self._blocks(self.function.body):
            self._check_jumps(block)
            self._check_rebinding(block)
            if isinstance(block, ast.For) and isinstance(block.iter, ast.Call):
                headers.add(node_position(block.iter))
            elif isinstance(block, ast.With):
                headers |= {node_position(item.context_expr) for item in block.items}
        return frozenset(headers)

    def _blocks(self, body: list[ast.stmt]) -> Iterator[ast.For | ast.With]:
        for node in body:
            for inner in statements(node):
                if isinstance(inner, (ast.For, ast.With)) and self._kind(inner):
                    yield inner

    def _kind(self, node: ast.For | ast.With) -> str | None:
        """The description of a traced block in errors; None for ordinary Python."""
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
        events = self.evaluation.events
        start, end = self.evaluation.ranges[block]
        first: dict[str, int] = {}
        for i in range(start, end):
            if events[i].bound and not events[i].target:
                first.setdefault(events[i].name, i)
        for name, at in first.items():
            store = events[at].node
            if self._repeats(block) and (use := self._read(name, start, at)):
                self._refuse_rebound(block, name, store, "in its next iteration", use)
            if use := self._read(name, end, len(events)):
                self._refuse_rebound(block, name, store, "after it", use)
            for loop, (begin, stop) in self.evaluation.ranges.items():
                outer = isinstance(loop, (ast.For, ast.While)) and begin <= start and end <= stop
                if outer and loop is not block and (use := self._read(name, begin, start)):
                    self._refuse_rebound(block, name, store, "in the next iteration of the loop around it", use)

    def _repeats(self, block: ast.For | ast.With) -> bool:
        """Whether the kernel runs the block several times, one iteration after the other or at once."""
        return isinstance(block, ast.For) or any(
            _calls(item.context_expr, self.resolve, (control.while_,)) for item in block.items
        )

    def _read(self, name: str, start: int, end: int) -> ast.Name | None:
        """The places where ``name`` is read in a range of events before it is bound there."""
        for e in self.evaluation.events[start:end]:
            if e.name == name:
                return None if e.bound else e.node
        return None

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
