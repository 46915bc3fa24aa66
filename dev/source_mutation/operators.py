"""The mutation operators: the changes of one place of a source file.

Not mutated: assertions and `raise AssertionError` (they guard against our own mistakes, and users never meet
one), `raise NotImplementedError` of methods that every subclass has, annotations, decorators, text, what a class
shows as `repr`, and code for type checkers alone.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OPERATORS = {
    "comparison": "< with <=, > with >=, == with !=, in with not in, is with is not, each both ways",
    "off by one": "an integer literal plus 1, or minus 1; a subscript 0 becomes 1, and -1 becomes -2",
    "dropped update": "an augmented assignment, or one to an element or an attribute, left out",
    "swapped operands": "a - b, a / b, a // b, a % b, a << b, a >> b, a < b and the like become b - a and so on",
    "removed statement": "a call, `raise`, `break` or `continue` left out",
    "negated condition": "the condition of if, while, a conditional expression or a comprehension negated",
}
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.LShift, ast.RShift)
_SKIPPED = ("__repr__", "__str__")
_OWN_MISTAKES = ("AssertionError", "NotImplementedError")


@dataclass(frozen=True)
class Mutant:
    """``text`` takes the place of ``old`` in ``file``, from ``start`` to ``end`` (characters of the file).

    ``context``: the line as it is, with ``old`` between braces.
    """

    file: str
    line: int
    operator: str
    start: int
    end: int
    old: str
    text: str
    context: str = ""

    def applied(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]

    @property
    def key(self) -> str:
        """The mutant without the number of its line: stays when lines above change."""
        return f"{self.file}: {self.operator}: {self.context} -> {' '.join(self.text.split())}"


def mutants(root: Path, file: str) -> list[Mutant]:
    """All mutants of a file below ``root``."""
    source = (root / file).read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        # Columns of the syntax tree count bytes.
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    found = []
    for operator, node, new in _changes(ast.parse(source)):
        start = offset(node.lineno, node.col_offset)
        end = offset(node.end_lineno or node.lineno, node.end_col_offset or 0)
        old = source[start:end]
        # As many lines as before, so that the lines below keep their numbers.
        text = new
        if "\n" in old and isinstance(node, ast.expr):
            text = f"({new}{chr(10) * old.count(chr(10))})"
        stop = source.find("\n", end)
        context = f"{source[starts[node.lineno - 1] : start]}{{{old}}}{source[end : stop if stop >= 0 else None]}"
        found.append(Mutant(file, node.lineno, operator, start, end, old, text, " ".join(context.split())))
    return found


def _changes(tree: ast.Module) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """(operator, the node that is replaced, its new text)."""
    subscripts = set(_ends(tree))
    for node in _walk(tree):
        match node:
            case ast.Compare(ops=[op], left=left, comparators=[right]):
                yield "comparison", node, _operand(ast.Compare(left, [_COMPARISONS[type(op)]()], [right]))
                if isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
                    yield "swapped operands", node, _operand(ast.Compare(right, [op], [left]))
            case ast.Subscript(slice=ast.Constant(value=0) as at):
                # The last element, at -1, is the same one where there are no others.
                yield "off by one", at, "1"
            case ast.Subscript(slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1) as at)):
                yield "off by one", at, "2"
            case ast.Constant(value=int() as value) if not isinstance(value, bool) and node not in subscripts:
                # One is enough at a place.  The column decides which, since lines above it come and go.
                yield "off by one", node, str(value + 1) if node.col_offset % 2 else _less(value)
            case ast.BinOp(op=op, left=left, right=right) if isinstance(op, _ORDERED) and not _is_text(left):
                yield "swapped operands", node, _operand(ast.BinOp(right, op, left))
            case ast.AugAssign():
                yield "dropped update", node, "pass"
            case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
                yield "dropped update", node, "pass"
            case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Break() | ast.Continue():
                yield "removed statement", node, "pass"
        for test in _conditions(node):
            yield "negated condition", test, f"(not {_operand(test)})"


def _ends(tree: ast.Module) -> Iterator[ast.AST]:
    """The numbers 0 and 1 of the subscripts 0 and -1."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(slice=ast.Constant(value=0) as at):
                yield at
            case ast.Subscript(slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1) as at)):
                yield at


def _less(value: int) -> str:
    return str(value - 1) if value else "(-1)"


def _operand(e: ast.expr) -> str:
    return f"({ast.unparse(copy.deepcopy(e))})"


def _is_text(e: ast.expr) -> bool:
    return isinstance(e, ast.JoinedStr) or (isinstance(e, ast.Constant) and isinstance(e.value, str))


def _conditions(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            return [] if isinstance(test, ast.Constant) else [test]
        case ast.comprehension(ifs=ifs):
            return ifs
    return []


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below ``node`` that operators visit, outer ones first."""
    for child in ast.iter_child_nodes(node):
        if _is_skipped(child):
            continue
        yield child
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for part in (*child.args.defaults, *(d for d in child.args.kw_defaults if d is not None)):
                    yield part
                    yield from _walk(part)
                for statement in child.body:
                    if not _is_skipped(statement):
                        yield statement
                        yield from _walk(statement)
            case ast.AnnAssign(value=value):
                if value is not None:
                    yield value
                    yield from _walk(value)
            case ast.ClassDef():
                for statement in child.body:
                    if not _is_skipped(statement):
                        yield statement
                        yield from _walk(statement)
            case ast.JoinedStr():
                pass
            case _:
                yield from _walk(child)


def _is_skipped(node: ast.AST) -> bool:
    match node:
        case ast.Assert() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Raise(exc=ast.Call(func=ast.Name(id=name)) | ast.Name(id=name)):
            return name in _OWN_MISTAKES
        case ast.FunctionDef(name=name):
            return name in _SKIPPED
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]):
            return True
        case ast.Expr(value=ast.Constant()) | ast.JoinedStr():
            return True
    return False
