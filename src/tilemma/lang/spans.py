"""The source position of a call in a user's kernel, and the names that its result is bound to.

CPython keeps the column range of every instruction (PEP 657), so the position of a running call is known;
the names on the left of its assignment come from the syntax tree of the file.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType

from tilemma.errors import Span

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Library kernels are written in the language like a user's.
_KERNELS = PACKAGE + "ops" + os.sep


def user_frame() -> FrameType | None:
    """The innermost frame that is not inside this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        # contextlib runs the front end's generators between the user's `with` and the front end.
        inside = name.startswith(PACKAGE) and not name.startswith(_KERNELS)
        if not inside and not name.endswith("contextlib.py"):
            return frame
        frame = frame.f_back
    return None


def caller_span() -> Span | None:
    """The source range of the expression that the user's code is evaluating."""
    frame = user_frame()
    return None if frame is None else instruction_span(frame.f_code, frame.f_lasti)


def instruction_span(code: CodeType, offset: int) -> Span | None:
    """The source range of the instruction at ``offset`` of ``code``."""
    return _span(code, offset // 2)


@lru_cache(maxsize=4096)
def _span(code: CodeType, instruction: int) -> Span | None:
    return make_span(code.co_filename, *_positions(code)[instruction])


@lru_cache(maxsize=64)
def _positions(code: CodeType) -> tuple[tuple[int | None, int | None, int | None, int | None], ...]:
    """(line, end line, column, end column) of each instruction."""
    return tuple(code.co_positions())


def make_span(
    file: str, line: int | None, end_line: int | None, column: int | None, end_column: int | None
) -> Span | None:
    """A span from CPython's positions: lines from 1, columns from 0 in UTF-8 bytes."""
    if line is None:
        return None
    end_line = line if end_line is None else end_line
    return Span(
        file,
        line,
        _characters(file, line, column or 0) + 1,
        end_line,
        _characters(file, end_line, end_column or 0) + 1,
    )


def _characters(file: str, line: int, byte_column: int) -> int:
    text = linecache.getline(file, line)
    if text.isascii():
        return min(byte_column, len(text)) if text else byte_column
    return len(text.encode()[:byte_column].decode(errors="replace"))


def node_span(file: str, node: ast.AST) -> Span:
    """The span of a syntax node whose line numbers are those of ``file``."""
    span = make_span(
        file,
        getattr(node, "lineno", 1),
        getattr(node, "end_lineno", None),
        getattr(node, "col_offset", 0),
        getattr(node, "end_col_offset", None),
    )
    assert span is not None
    return span


Position = tuple[int, int, int, int]


def bound_names() -> tuple[str, ...]:
    """Names that the result of the running call is assigned to; empty where there are none.

    ``x = shared(..)`` gives ("x",), ``a, b = shared(..), shared(..)`` one of them for each call, and
    ``for i, j in parallel(..)`` ("i", "j").
    """
    frame = user_frame()
    key = None if frame is None else position(frame)
    if frame is None or key is None:
        return ()
    return _targets(frame.f_code.co_filename).get(key, ())


def position(frame: FrameType) -> Position | None:
    """The position of the running instruction of ``frame``, as in syntax trees; None where it is not recorded."""
    line, end_line, column, end_column = place = _positions(frame.f_code)[frame.f_lasti // 2]
    if None in place:
        return None
    return (line or 0, column or 0, end_line or 0, end_column or 0)


def node_position(node: ast.expr) -> Position:
    return (node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)


@lru_cache(maxsize=16)
def syntax_tree(file: str) -> ast.Module | None:
    """The syntax tree of ``file``; None when there is none."""
    lines = linecache.getlines(file)
    try:
        return ast.parse("".join(lines)) if lines else None
    except (SyntaxError, ValueError):
        return None


def statements(root: ast.AST) -> Iterator[ast.stmt]:
    """``root`` and the statements inside it, outer ones first; expressions are not visited."""
    todo = deque([root])
    while todo:
        node = todo.popleft()
        if isinstance(node, ast.stmt):
            yield node
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            todo.extend(getattr(node, name, ()))


@lru_cache(maxsize=64)
def _targets(file: str) -> dict[Position, tuple[str, ...]]:
    tree = syntax_tree(file)
    found: dict[Position, tuple[str, ...]] = {}
    if tree is None:
        return found
    for node in statements(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            _bind(node.targets[0], node.value, found)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            _bind(node.target, node.value, found)
        elif isinstance(node, ast.For):
            _bind(node.target, node.iter, found)
    if any(":=" in line for line in linecache.getlines(file)):
        for expression in ast.walk(tree):
            if isinstance(expression, ast.NamedExpr):
                _bind(expression.target, expression.value, found)
    return found


def _bind(target: ast.expr, value: ast.expr, found: dict[Position, tuple[str, ...]]) -> None:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for t, v in zip(target.elts, value.elts, strict=True):
            _bind(t, v, found)
        return
    if not isinstance(value, ast.Call):
        return
    names = [n.id for n in ([target] if isinstance(target, ast.Name) else getattr(target, "elts", []))
             if isinstance(n, ast.Name)]  # fmt: skip
    found[node_position(value)] = tuple(names)


def forget_sources() -> None:
    """Drop the cached data of files that may have changed (a REPL redefining a function)."""
    linecache.checkcache()
    for known in (syntax_tree, _targets, _span):
        known.cache_clear()
