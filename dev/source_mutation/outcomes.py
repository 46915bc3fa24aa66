"""Which outcomes conditions have: of each comparison whether it held and whether its operands were equal, of each
operand of `and` and `or` and of each condition whether it was true.

A mutant of a comparison dies only of a test in which the two sides are equal, or where one of several conditions
decides alone: programs are chosen for tests by these outcomes, not by lines.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from types import CodeType, ModuleType
from typing import Any

from dev.source_mutation.probes import Probes, _Loader

# File, line and number on that line of the expression; whether it was true; whether its operands were equal.
Outcome = tuple[str, int, int, bool, bool]
_ORDERED = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge}
_NOTE, _COMPARE = "__condition_was__", "__compared__"


def _truth(value: Any) -> bool:
    """False for an array, which has none."""
    try:
        return bool(value)
    except ValueError:
        return False


class OutcomeProbes(Probes):
    """As `Probes`, for outcomes."""

    def __init__(self, *folders: Any) -> None:
        super().__init__(*folders)
        self.seen: set[Outcome] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        spec = super().find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, _Loader):
            spec.loader = _OutcomeLoader(spec.loader.name, spec.loader.path, spec.loader.file, self)
        return spec

    def take_outcomes(self) -> set[Outcome]:
        """The outcomes since the last call."""
        found = set(self.seen)
        self.seen.clear()
        return found


class _OutcomeLoader(_Loader):
    probes: OutcomeProbes

    def get_code(self, fullname: str) -> CodeType:
        tree = _Instrumented().visit(ast.parse(self.get_data(self.path)))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        seen, file = self.probes.seen, self.file

        def note(line: int, number: int, value: Any) -> Any:
            seen.add((file, line, number, _truth(value), False))
            return value

        def compared(line: int, number: int, how: str, a: Any, b: Any) -> Any:
            value = getattr(operator, how)(a, b)
            seen.add((file, line, number, _truth(value), _truth(a == b)))
            return value

        module.__dict__.update({_NOTE: note, _COMPARE: compared})
        exec(self.get_code(module.__name__), module.__dict__)


class _Instrumented(ast.NodeTransformer):
    """Calls around the conditions of functions."""

    def __init__(self) -> None:
        self.depth = 0
        self.numbers: Counter[int] = Counter()

    def _call(self, name: str, at: ast.expr, *operands: ast.expr) -> ast.expr:
        self.numbers[at.lineno] += 1
        places = [ast.Constant(at.lineno), ast.Constant(self.numbers[at.lineno])]
        return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), [*places, *operands], []), at)

    def _noted(self, e: ast.expr) -> ast.expr:
        known = isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and e.func.id in (_NOTE, _COMPARE)
        return e if known or not self.depth else self._call(_NOTE, e, e)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.depth += 1
        node.body = [self.visit(x) for x in node.body]
        self.depth -= 1
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = self.visit(node.value) if node.value is not None else None
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        node.guard = self._noted(self.visit(node.guard)) if node.guard is not None else None
        node.body = [self.visit(x) for x in node.body]
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) != 1 or not self.depth:
            return node
        how = _ORDERED.get(type(node.ops[0]))
        if how is None:
            return self._noted(node)
        return self._call(_COMPARE, node, ast.Constant(how.__name__), node.left, node.comparators[0])

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        node.values = [self._noted(x) for x in node.values]
        return node

    def _with_test(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        node.test = self._noted(node.test)
        return node  # type: ignore[no-any-return]

    visit_If = visit_While = visit_IfExp = _with_test

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        node.ifs = [self._noted(x) for x in node.ifs]
        return node
