"""Which statements of the package run: a store to a byte array before each statement of a function.

The modules of the package are compiled with these stores when they are imported.  The stores cost little beside a
trace function, and are the same in every version of Python.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

STORE = "__statement_ran__"


def instrument(tree: ast.Module) -> list[list[int]]:
    """Insert the stores into ``tree``; returns the lines of each statement, without those inside it."""
    places: list[list[int]] = []
    for node in list(ast.walk(tree)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for statement in node.body:
                _instrument_within(statement, places)
            node.body = _with_stores(node.body, places)
    return places


def _instrument_within(statement: ast.stmt, places: list[list[int]]) -> None:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    for owner in (statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(owner, field, None)
            if body:
                for inner in body:
                    _instrument_within(inner, places)
                setattr(owner, field, _with_stores(body, places))


def _with_stores(body: Sequence[ast.stmt], places: list[list[int]]) -> list[ast.stmt]:
    result: list[ast.stmt] = []
    for n, statement in enumerate(body):
        is_docstring = n == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not is_docstring and not isinstance(statement, (ast.Nonlocal, ast.Global)):
            store = ast.parse(f"{STORE}[{len(places)}] = 1").body[0]
            for part in ast.walk(store):
                ast.copy_location(part, statement)
            result.append(store)
            places.append(_own_lines(statement))
        result.append(statement)
    return result


def _own_lines(statement: ast.stmt) -> list[int]:
    inner = {n for s in _statements_within(statement) for n in range(s.lineno, (s.end_lineno or s.lineno) + 1)}
    return [n for n in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1) if n not in inner]


def _statements_within(node: ast.AST) -> Iterator[ast.stmt]:
    """The outermost statements below ``node``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif not isinstance(child, ast.expr):
            yield from _statements_within(child)


class Probes:
    """Finds the modules below ``package`` for the import system, and says which lines ran."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.ran: dict[str, bytearray] = {}
        self.places: dict[str, list[list[int]]] = {}

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith("tilemma."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        origin = Path(spec.origin) if spec is not None and spec.origin else None
        if spec is None or origin is None or origin.suffix != ".py":
            return None
        file = origin.relative_to(self.package).as_posix()
        spec.loader = _Loader(name, str(origin), file, self)
        return spec

    def take(self) -> dict[str, list[int]]:
        """file -> lines of functions that ran since the last call."""
        found = {}
        for file, ran in self.ran.items():
            if 1 in ran:
                places = self.places[file]
                found[file] = sorted({line for n, hit in enumerate(ran) if hit for line in places[n]})
                ran[:] = bytes(len(ran))
        return found


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, file: str, probes: Probes) -> None:
        super().__init__(name, path)
        self.file, self.probes = file, probes

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self.get_data(self.path))
        self.probes.places[self.file] = instrument(tree)
        return compile(tree, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        code = self.get_code(module.__name__)
        ran = self.probes.ran[self.file] = bytearray(len(self.probes.places[self.file]))
        module.__dict__[STORE] = ran
        exec(code, module.__dict__)
