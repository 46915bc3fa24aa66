"""A Python function as a kernel: its signature, its checks, and the tile IR that tracing it gives."""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import textwrap
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from keyword import iskeyword
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from tilemma.environment import Environment
from tilemma.errors import CompileError, FrontEndFailure, Span, TilemmaError, WrongArgumentType, described, nearest
from tilemma.forking import cached_property
from tilemma.ir import tile as t
from tilemma.ir.builder import Builder, element_type
from tilemma.ir.expr import Index, const, plain
from tilemma.ir.refusals import BadParameter, BadReturn, OutsideParallel
from tilemma.ir.types import BLOCK, Space
from tilemma.ir.usage import is_size
from tilemma.lang.annotations import ArrayType, ScalarType
from tilemma.lang.calls import refused_call
from tilemma.lang.checker import Checker
from tilemma.lang.scalars import Value, article
from tilemma.lang.spans import PACKAGE, Position, caller_span, forget_sources, node_span, statements, syntax_tree
from tilemma.lang.texts import keep_text, keep_typed, text_of
from tilemma.lang.tracing import Trace, trace, tracing
from tilemma.lang.views import TileValue
from tilemma.records import record


class NoKernelSource(CompileError):
    code = "no-kernel-source"
    found = "the source of `{name}` cannot be read"
    expected = (
        "a function in a file, a notebook, a REPL, or a text that is still there, which is read for mistakes"
    )
    fix = "{fix_text}"


class NotAKernel(CompileError):
    code = "not-a-kernel"
    found = "`{name}` {what}"
    expected = "a plain function, which is called once to trace it"
    fix = "write it with `def`, and results through parameters"


class UnknownConstant(CompileError):
    code = "unknown-compile-time-parameter"
    found = "`{name}` has no compile-time parameter `{param}`"
    expected = "one of: {known}"
    fix = "{fix_text}"


class MissingConstant(CompileError):
    code = "missing-compile-time-parameter"
    found = "`{name}` got no value for its compile-time parameter `{param}`"
    expected = "a value: it has no default"
    fix = "pass `{param}=...`"


class KernelInKernel(CompileError):
    code = "kernel-in-kernel"
    found = "the kernel `{name}` is called inside a kernel"
    expected = "kernels called by the program that launches them"
    fix = "make the part that both need a plain Python function: it is traced with the kernel that calls it"


@record(slots=False, eq=False)
class KernelSource:
    """A kernel function, read and checked once; `build` traces it for given compile-time values."""

    function: Callable[..., Any]
    name: str
    arrays: tuple[str, ...]
    parameters: Mapping[str, ArrayType | ScalarType]
    constants: Mapping[str, Any]
    required: frozenset[str]
    spans: Mapping[str, Span]
    span: Span
    file: str
    headers: frozenset[Position]
    pipeline: t.PipelineSettings | None = None

    @cached_property
    def environment(self) -> Environment:
        """The outside values that the function reads, the defaults of its compile-time parameters included."""
        assert isinstance(self.function, FunctionType)
        return Environment(self.function, self.constants.values())

    def resolved(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Compile-time values: the defaults with ``given`` put over them."""
        for param in given:
            if param not in self.constants:
                near = nearest(param, list(self.constants))
                raise UnknownConstant(
                    self.span,
                    name=self.name,
                    param=param,
                    known=", ".join(self.constants) or "none",
                    fix_text=f"did you mean `{near}`?" if near else "remove it",
                )
        values = {name: plain(value) for name, value in {**self.constants, **given}.items()}
        for param in self.required:
            if param not in given:
                raise MissingConstant(self.spans.get(param, self.span), name=self.name, param=param)
        return values

    def build(self, given: Mapping[str, Any] | None = None) -> t.Kernel:
        """Trace the function; the errors of the front end and of the builder carry the user's line."""
        if trace() is not None:
            raise KernelInKernel(caller_span(), name=self.name)
        constants = self.resolved(given or {})
        b = Builder(self.name, self.span)
        b.pipeline = self.pipeline
        args: dict[str, Any] = {}
        for param, annotation in self.parameters.items():
            span = self.spans.get(param, self.span)
            if isinstance(annotation, ScalarType):
                kind = element_type(constants.get(annotation.dtype, annotation.dtype), span)
                args[param] = Value(b.scalar_param(param, kind, span))
                continue
            kind = element_type(constants.get(annotation.dtype, annotation.dtype), span)
            dims = tuple(self._dimension(param, d, constants) for d in annotation.dims)
            args[param] = TileValue(b.array_param(param, kind, dims, span))
        with tracing(Trace(b, check_frame, {self.function.__code__: self.headers})):
            try:
                result = self.function(**args, **constants)
            except TilemmaError:
                raise
            except Exception as e:
                # The body is the user's Python: `_explained` tells its errors from internal ones.
                raise _explained(e) from None
        b.span = self.span
        if result is not None:
            b.returns = self._returned(result, b)
        self._enclose(b)
        return b.finish()

    def _dimension(self, param: str, d: Any, constants: Mapping[str, Any]) -> str | int | None:
        """A dimension of a parameter's type, compile-time names replaced; BadParameter for other expressions."""
        value = constants.get(d, d) if isinstance(d, str) else d
        named = isinstance(value, str) and value.isidentifier() and not iskeyword(value)
        counted = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
        if not (value is None or named or counted):
            problem = f"has the dimension {value!r}"
            raise _bad(
                self.spans.get(param, self.span),
                param,
                self.name,
                problem,
                "use a name, a number of at least 0, or None for one without a name",
            )
        if named and isinstance(self.parameters.get(value), ScalarType):
            problem = f"has the dimension `{value}`, which is also a scalar parameter"
            fix = "give the dimension another name; sizes are taken from the arrays"
            raise _bad(self.spans.get(param, self.span), param, self.name, problem, fix)
        return value  # type: ignore[no-any-return]

    def _enclose(self, b: Builder) -> None:
        """Put the work of a kernel without `parallel` into one block."""
        ops = b.host_operations
        work = [op for op in ops if not (isinstance(op, t.Parallel) or _at_launch(op))]
        if not work:
            return
        if any(isinstance(op, t.Parallel) for op in ops):
            raise OutsideParallel(work[0].span, what="this work")
        before = [op for op in ops if _at_launch(op)]
        ops[:] = [*before, t.Parallel((Index(b.fresh("p"), const(1)),), tuple(work), BLOCK, span=self.span)]

    def _returned(self, result: Any, b: Builder) -> Any:
        if isinstance(result, TileValue) and result.tile.view.is_whole:
            buffer = result.tile.view.base
            if buffer.space is Space.GLOBAL:
                return buffer
        raise BadReturn(
            self.span,
            problem=f"of {article(result)}",
            wanted="nothing, or one of the kernel's whole arrays",
            fix_text="write results through an output parameter",
        )


def _explained(e: Exception) -> Exception:
    """``e`` if the program raised it; for an exception of the front end, a FrontEndFailure at the user's call."""
    frames = [(f, line) for f, line in traceback.walk_tb(e.__traceback__)]
    # A name that the package does not have is the program's mistake.
    own = [f.f_code.co_filename.startswith(PACKAGE) and f.f_code.co_name != "__getattr__" for f, _ in frames]
    if not frames or not own[-1]:
        return refused_call(e) or e
    users = [(f, line) for (f, line), ours in zip(frames, own, strict=True) if not ours]
    place = None
    if users:
        frame, line = users[-1]
        place = Span(frame.f_code.co_filename, line, 1, line, 10**6)
    failure = FrontEndFailure(place, what=f"{type(e).__name__}: {e}")
    failure.cause = e
    return failure


def _at_launch(op: t.Op) -> bool:
    return isinstance(op, t.Assert) and is_size(op.cond)


def read_kernel(
    function: Callable[..., Any], text: str | None = None, pipeline: t.PipelineSettings | None = None
) -> KernelSource:
    """Read the source of ``function``, check it, and take its signature apart.  ``text``: where it is defined."""
    forget_sources()
    if not isinstance(function, FunctionType):
        raise NotAKernel(name=getattr(function, "__name__", described(function)), what="is no function")
    if function.__name__ == "<lambda>":
        raise NotAKernel(name="lambda", what="has no statements")
    if text is not None and not isinstance(text, str):
        wanted = "the text of a program"
        raise WrongArgumentType(function="kernel", name="source", got=described(text), wanted=wanted)
    if text is not None or _node_of(function.__code__) is None:
        kept = keep_text(function, text)
        if text is not None and not kept:
            fix = f"pass the text that defines `{function.__name__}`, unchanged"
            raise NoKernelSource(name=function.__name__, fix_text=fix)
    name, file = function.__name__, function.__code__.co_filename
    node = _function_node(function)
    span = node_span(file, node)
    start = span.column + len("async def " if isinstance(node, ast.AsyncFunctionDef) else "def ")
    span = Span(span.file, span.line, start, span.line, start + len(name))
    if isinstance(node, ast.AsyncFunctionDef):
        raise NotAKernel(span, name=name, what="is `async`")
    if inspect.isgeneratorfunction(function):
        raise NotAKernel(span, name=name, what="uses `yield`")
    a = node.args
    every = (*a.args, *a.kwonlyargs, *a.posonlyargs, *(x for x in (a.vararg, a.kwarg) if x is not None))
    spans = {x.arg: node_span(file, x) for x in every}
    closure = inspect.getclosurevars(function)
    scopes = ({**closure.nonlocals}, function.__globals__)
    headers = Checker(file, node, lambda e: _resolve(e, scopes)).check()
    parameters: dict[str, ArrayType | ScalarType] = {}
    constants: dict[str, Any] = {}
    required = set()
    annotations = _annotations(function, closure.nonlocals)
    for p in inspect.signature(function).parameters.values():
        place = spans.get(p.name, span)
        if p.kind is p.KEYWORD_ONLY:
            constants[p.name] = None if p.default is p.empty else p.default
            if p.default is p.empty:
                required.add(p.name)
            continue
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise _bad(place, p.name, name, "collects a varying number of arguments", "name each parameter")
        kind = annotations.get(p.name)
        if not isinstance(kind, (ArrayType, ScalarType)):
            shown = f"`{kind.__name__}`" if isinstance(kind, type) else described(kind)
            problem = "has no type" if kind is None else f"has the type {shown}, which is not a kernel type"
            fix = f'write `{p.name}: tm.Global["f16", "M", "K"]`'
            if kind in (int, float, bool):
                fix = f"write `{p.name}: tm.{kind.__name__.capitalize()}`"
            if isinstance(kind, str) and (unknown := _unknown_names(kind, scopes)):
                problem = f"has a type that names `{unknown[0]}`, which is not defined here"
                fix = f"define `{unknown[0]}` before the kernel, or write what it stands for"
            raise _bad(place, p.name, name, problem, fix)
        parameters[p.name] = kind
    arrays = tuple(n for n, k in parameters.items() if isinstance(k, ArrayType))
    return KernelSource(
        function, name, arrays, parameters, constants, frozenset(required), spans, span, file, headers, pipeline
    )


def _bad(span: Span, param: str, name: str, problem: str, fix: str) -> BadParameter:
    return BadParameter(span, name=param, problem=f"of the kernel `{name}` {problem}", fix_text=fix)


def _annotations(function: Callable[..., Any], nonlocals: Mapping[str, Any]) -> dict[str, Any]:
    """The types of the parameters.  One that is text (PEP 563) may name what the scope around it defines.

    The text stays where it has no value: what it names is looked up as it stands, and refused there.
    """
    found: dict[str, Any] = dict(function.__annotations__)
    around = {**_scope_around(function), **nonlocals}
    for name, given in found.items():
        if isinstance(given, str):
            with suppress(Exception):
                found[name] = eval(given, function.__globals__, around)
    return found


def _scope_around(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The local names where ``function`` is defined, if that is being executed."""
    frame, code = sys._getframe(), function.__code__
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename == code.co_filename and code in frame.f_code.co_consts:
            return frame.f_locals
    return {}


def _unknown_names(text: str, scopes: tuple[Mapping[str, Any], ...]) -> list[str]:
    """The names in the type ``text`` that have no value."""
    try:
        used = [x.id for x in ast.walk(ast.parse(text, mode="eval")) if isinstance(x, ast.Name)]
    except SyntaxError:
        return []
    return [x for x in used if not any(x in scope for scope in (*scopes, vars(builtins)))]


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _function_node(function: Callable[..., Any]) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """The syntax tree of ``function``, its line numbers those of its file."""
    found = _node_of(function.__code__)
    if found is None:
        fix = "put the kernel into a file, or pass its text: `@tm.kernel(source=text)`"
        if function.__code__.co_filename.startswith("<stdin"):
            fix = (
                "run the program from a file, `python kernel.py`, or redirect it, `python - < kernel.py`: "
                "a pipe cannot be read again"
            )
        raise NoKernelSource(name=function.__name__, fix_text=fix)
    return found


def _node_of(code: CodeType, search: bool = False) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The syntax tree of a function, from its file; with ``search`` also from a text that is not in a file."""
    keep_typed(code)
    tree = syntax_tree(code.co_filename)
    if tree is None and search and (typed := text_of(code)) is not None:
        tree = ast.parse(typed)
    for node in statements(tree) if tree is not None else ():
        if isinstance(node, _FUNCTIONS) and node.name == code.co_name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    try:
        text = inspect.getsource(code)
        dedented = textwrap.dedent(text)
        found = ast.parse(dedented).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if not isinstance(found, _FUNCTIONS):
        return None
    ast.increment_lineno(found, code.co_firstlineno - 1)
    indent = len(text.split("\n", 1)[0]) - len(dedented.split("\n", 1)[0])
    for n in ast.walk(found):
        if hasattr(n, "col_offset") and hasattr(n, "end_col_offset"):
            n.col_offset, n.end_col_offset = n.col_offset + indent, n.end_col_offset + indent
    return found


def _resolve(e: ast.expr, scopes: Sequence[Mapping[str, Any]]) -> Any:
    """The object of a dotted name, looked up in ``scopes``; None if it cannot be determined."""
    if isinstance(e, ast.Name):
        return next((scope[e.id] for scope in scopes if e.id in scope), None)
    if isinstance(e, ast.Attribute):
        base = _resolve(e.value, scopes)
        if isinstance(base, ModuleType):
            return getattr(base, e.attr, None)
        return inspect.getattr_static(base, e.attr, None) if base is not None else None
    return None


def check_frame(frame: FrameType) -> frozenset[Position]:
    """Check the function that runs in ``frame``, which a kernel calls and which opens traced blocks."""
    code = frame.f_code
    node = _node_of(code, search=True) if not code.co_name.startswith("<") else None
    if node is None:
        return frozenset()
    scopes = (frame.f_locals, frame.f_globals)
    return Checker(code.co_filename, node, lambda e: _resolve(e, scopes)).check()
