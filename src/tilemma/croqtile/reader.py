"""The state of reading one kernel, and the table of the functions that read its nodes.

A function that reads a kind of node is in the file of its construct, under `reads`.  It takes the `Reader` and the
node; for an expression it returns its value, for a statement with a result that result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from tilemma.croqtile import ast
from tilemma.croqtile.node import LEAVES, Node
from tilemma.croqtile.scope import Scopes
from tilemma.croqtile.values import Scalar, Value, Word
from tilemma.errors import Note, Span
from tilemma.ir.builder import Builder
from tilemma.ir.element_work import Visited
from tilemma.ir.expr import Expr, Index, Var
from tilemma.ir.refusals import OutsideParallel, SideEffect
from tilemma.ir.types import Level

F = TypeVar("F", bound=Callable[..., Any])
_READERS: dict[type[Node], Callable[..., Any]] = {}
_INSIDE: dict[type[Node], str] = {}
# At warp scope these name the four-step tile, unless the file defines them.
WARP_NAMES = {"MMA_M": 16, "MMA_N": 16, "MMA_K": 16}
# Built-in function -> the function that reads a call of it.
FUNCTIONS: dict[str, Callable[..., Value]] = {}
# Those whose calls are statements.
EFFECTS: set[str] = set()
# The element of operations on whole register tiles: its indices, and the extents of the tile.
Whole = tuple[tuple[Index, ...], tuple[int, ...]]


def reads(*kinds: type[Node], inside: str = "") -> Callable[[F], F]:
    """Register the function that reads ``kinds`` of nodes.

    ``inside``: the name of a statement that is legal only inside `parallel`.
    """

    def register(function: F) -> F:
        for kind in kinds:
            assert kind not in _READERS, f"{kind.__name__} has two readers"
            _READERS[kind] = function
            if inside:
                _INSIDE[kind] = inside
        return function

    return register


def readers() -> frozenset[type[Node]]:
    """The kinds of nodes that a function reads."""
    return frozenset(_READERS)


def defines(*names: str, effect: bool = False) -> Callable[[F], F]:
    """Register the function that reads calls of the built-in functions ``names``.

    ``effect``: a call may be a statement by itself; the function has a parameter ``used`` for its result.
    """

    def register(function: F) -> F:
        FUNCTIONS.update(dict.fromkeys(names, function))
        EFFECTS.update(names if effect else ())
        return function

    return register


class Reader:
    """The state of reading one kernel.

    ``afterwards``: assignments of ``i++``, which follow the statement.  ``assigned``: the names that a statement
    assigns again.  ``implicit``: the kernel has no `parallel`.  ``visiting``: inside `apply`; ``whole``: inside
    ``mc = mc + x``.  ``device_functions``: the functions that can be called; ``calls``: those being inlined.
    """

    def __init__(self, function: ast.Function, device_functions: Mapping[str, Any] | None = None) -> None:
        self.function = function
        self.device_functions = device_functions or {}
        self.calls: list[Any] = []
        # Device functions of one `return` whose results are being read: they have no entry in `calls`.
        self.results: list[str] = []
        self.here = function.name_span or function.span
        self.b = Builder(function.name, self.here)
        self.scopes = Scopes()
        self.notes: list[Note] = []
        self.afterwards: list[tuple[Var, Expr]] = []
        self.assigned = frozenset(
            n.target.text
            for n in nodes_in(function.body)
            if isinstance(n, (ast.Assign, ast.Step)) and isinstance(n.target, ast.Name)
        )
        self.implicit = False
        self.visiting: Visited | None = None
        self.whole: Whole | None = None
        self.sizes: dict[int, tuple[Expr, int, int]] = {}
        # Why effects are refused, the bases of derivations, and whether `MMA_M` is known; the innermost last.
        self.pure: list[str] = []
        self.bases: list[tuple[Scalar, ...]] = []
        self.warp: list[bool] = [True]
        # The names that `where` pairs.
        self.pairs: list[tuple[str, str]] = []

    def value(self, node: ast.Expr) -> Value:
        """The value of an expression."""
        value: Value = _READERS[type(node)](self, node)
        return value

    def statement(self, node: ast.Statement) -> None:
        self.b.span = node.span
        self.result(node)
        for var, value in self.afterwards:
            self.b.span = node.span
            self.b.assign(var, value)
        self.afterwards.clear()

    def result(self, node: ast.Statement, **options: Any) -> Any:
        """Emit a statement; its result, for those that have one."""
        if not self.inside_parallel and type(node) in _INSIDE:
            raise OutsideParallel(node.span, what=_INSIDE[type(node)])
        return _READERS[type(node)](self, node, **options)

    def body(self, node: ast.Statement) -> None:
        """Read ``node`` in a new block scope."""
        with self.scopes.block():
            for s in node.body if isinstance(node, ast.Block) else (node,):
                self.statement(s)

    # ---- the current context -------------------------------------------------------------------------------

    @property
    def inside_parallel(self) -> bool:
        return self.b.inside_parallel

    @contextmanager
    def warp_names(self, level: Level | None) -> Iterator[None]:
        """While reading the body of ``level``: MMA_M .. are defined unless it is wider than a warp."""
        self.warp.append(self.warp[-1] and (level is None or level.kind != "group" or level.warps == 1))
        try:
            yield
        finally:
            self.warp.pop()

    @contextmanager
    def paired(self, names: list[tuple[str, str]]) -> Iterator[None]:
        """While reading the body of ``with ... where a <-> b``."""
        self.pairs += names
        try:
            yield
        finally:
            del self.pairs[len(self.pairs) - len(names) :]

    @contextmanager
    def without_effects(self, where: str) -> Iterator[None]:
        self.pure.append(where)
        try:
            yield
        finally:
            self.pure.pop()

    def effect(self, span: Span, what: str) -> None:
        """SideEffect where effects are refused, OutsideParallel outside `parallel`."""
        if self.pure:
            raise SideEffect(span, what=what, where=self.pure[-1])
        if not self.inside_parallel:
            raise OutsideParallel(span, what=what)

    @contextmanager
    def derivation(self, base: tuple[Scalar, ...]) -> Iterator[None]:
        """While reading ``s [(0)/2]``: ``(0)`` is an element of ``base``."""
        self.bases.append(base)
        try:
            yield
        finally:
            self.bases.pop()


@reads(ast.Block)
def _block(r: Reader, node: ast.Block) -> None:
    r.body(node)


def nodes_in(node: object) -> Iterator[Node]:
    """Every node of the tree below ``node``."""
    stack: list[object] = [node]
    while stack:
        x = stack.pop()
        if type(x) is tuple:
            stack += x
        elif isinstance(x, Node):
            yield x
            stack += [v for v in x.__dict__.values() if type(v) not in LEAVES]


@reads(ast.Str, ast.Whole, ast.Nullptr, ast.Unknown, ast.Ratio)
def _word(r: Reader, node: ast.Expr) -> Value:
    words = {ast.Str: "a string", ast.Whole: "`_`", ast.Nullptr: "`nullptr`", ast.Ratio: "a ratio"}
    return Word(words.get(type(node), "an open extent"))
