"""Loads a `.co` file as a module of kernels, which are built on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from itertools import dropwhile, pairwise
from typing import TYPE_CHECKING, Any

from tilemma.croqtile import ast
from tilemma.croqtile.build import kernel
from tilemma.croqtile.extract import extract
from tilemma.croqtile.parse import parse
from tilemma.croqtile.reader import Reader
from tilemma.croqtile.scope import Redefinition
from tilemma.croqtile.tokens import Token
from tilemma.errors import CompileError, FrontEndFailure, Note, Span, TilemmaError
from tilemma.ir import tile as t
from tilemma.ir.expr import plain
from tilemma.ir.refusals import NotBuiltYet
from tilemma.records import record

if TYPE_CHECKING:
    from tilemma.croqtile.device_functions import DeviceFunction, Unparsed

    DeviceFunctions = Mapping[str, DeviceFunction | Unparsed]


class BadDefine(CompileError):
    code = "bad-define"
    found = "`{name}` cannot be defined as {value}"
    expected = "a name, and a number, a truth value, or text such as `f16`"
    fix = "pass for instance `defines={{'TILE_K': 64}}`"


class KernelGone(CompileError):
    code = "kernel-gone"
    found = "with {given} the file has no kernel `{name}`"
    expected = "definitions with which its `#if`s keep the kernel"
    fix = "pass other values"


@contextmanager
def _explained(reader: Reader | None = None) -> Iterator[None]:
    """An unexpected exception is reported as a failure of the front end."""
    try:
        yield
    except TilemmaError:
        raise
    except Exception as e:  # an internal error, reported as one; `cause` keeps it
        place = None if reader is None else reader.b.span
        failure = FrontEndFailure(place, what=f"{type(e).__name__}: {e}")
        failure.cause = e
        raise failure from None


@record(eq=False)
class Refused:
    """A kernel with text that the language does not take (C++, a template): the others of its file are usable."""

    name: str
    span: Span
    error: NotBuiltYet

    @property
    def name_span(self) -> Span:
        return self.span


@record(slots=False, eq=False)
class KernelSource:
    """One kernel of a file; `build` gives its tile IR for given definitions.

    ``constants``: the object-like macros of the file, which a build may redefine.
    """

    name: str
    function: ast.Function | Refused
    device_functions: DeviceFunctions
    text: str = field(repr=False)
    file: str
    defines: Mapping[str, Any]
    constants: Mapping[str, Any]

    @property
    def span(self) -> Span:
        return self.function.name_span or self.function.span

    def build(self, given: Mapping[str, Any] | None = None) -> t.Kernel:
        """The tile IR; ``given`` overrides definitions of the file.  Raises the front end's errors."""
        function, device_functions = self.function, self.device_functions
        if given:
            read = _read(self.text, self.file, {**self.defines, **given})
            found, device_functions = read.functions, read.device_functions
            if self.name not in found:
                raise KernelGone(self.span, name=self.name, given=", ".join(f"{k}={v}" for k, v in given.items()))
            function = found[self.name]
        return _built(function, device_functions)[0]

    def notes(self) -> tuple[Note, ...]:
        """Output of the compilation: the texts of ``print!``."""
        return _built(self.function, self.device_functions)[1]


def _built(
    function: ast.Function | Refused, device_functions: DeviceFunctions
) -> tuple[t.Kernel, tuple[Note, ...]]:
    if isinstance(function, Refused):
        raise function.error
    reader = Reader(function, device_functions)
    with _explained(reader):
        return kernel(reader), tuple(reader.notes)


class Module:
    """The kernels of a file."""

    def __init__(self, file: str, sources: Mapping[str, KernelSource], notes: tuple[Note, ...]) -> None:
        self.file = file
        self.sources = dict(sources)
        self.notes = notes

    @property
    def kernels(self) -> Mapping[str, t.Kernel]:
        """name -> tile IR, built when taken."""
        return _Built(self.sources)


class _Built(Mapping[str, t.Kernel]):
    def __init__(self, sources: Mapping[str, KernelSource]) -> None:
        self._sources = sources

    def __getitem__(self, name: str) -> t.Kernel:
        return self._sources[name].build()

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


@record(slots=False)
class _Read:
    functions: dict[str, ast.Function | Refused]
    device_functions: DeviceFunctions
    notes: tuple[Note, ...]
    constants: Mapping[str, Any]


def _read(text: str, file: str, defines: Mapping[str, Any]) -> _Read:
    defines = {name: plain(value) for name, value in defines.items()}
    for name, value in defines.items():
        if not (isinstance(name, str) and name.isidentifier()) or not isinstance(value, (str, int, float)):
            raise BadDefine(name=name, value=repr(value)[:60])
    with _explained():
        found = extract(text, file, defines)
        parsed = [_parsed(tokens, found.templates.get(i)) for i, tokens in enumerate(found.kernels)]
        device_functions: DeviceFunctions = {}
        if found.functions:
            from tilemma.croqtile.device_functions import parse_device_functions  # most files have none

            device_functions = parse_device_functions(found.functions)
    if all(isinstance(f, Refused) for f in parsed):
        _built(parsed[0], {})
    functions: dict[str, ast.Function | Refused] = {}
    for f in parsed:
        if f.name in functions:
            place = functions[f.name].name_span
            notes = [Note("the first kernel of that name", place)]
            raise Redefinition(f.name_span, where="file", name=f.name, notes=notes)
        functions[f.name] = f
    return _Read(functions, device_functions, found.notes, found.constants)


def _parsed(tokens: Sequence[Token], template: Token | None) -> ast.Function | Refused:
    try:
        if template is not None:
            fix = "use macros, `#define T f16`, which `defines=` overrides"
            raise NotBuiltYet(template.span, what="templates of kernels", fix_text=fix)
        return parse(tokens)
    except NotBuiltYet as e:
        words = dropwhile(lambda token: token.text != "__co__", tokens)
        name = next((a for a, b in pairwise(words) if b.text == "(" and a.kind == "name"), tokens[0])
        return Refused(name.text, name.span, e)


def load(text: str, file: str, defines: Mapping[str, Any] | None = None) -> Module:
    """The kernels in ``text``; ``file`` names it in errors and is not opened.

    ``defines`` override definitions in the file: NAME -> number, truth value, or text.
    Raises CompileErrors of the preprocessor and the parser; those of building come from `KernelSource.build`,
    also NotBuiltYet of a kernel with text of another language, unless every kernel of the file has such text.
    """
    given = dict(defines or {})
    read = _read(text, file, given)
    sources = {
        name: KernelSource(name, f, read.device_functions, text, file, given, read.constants)
        for name, f in read.functions.items()
    }
    return Module(file, sources, read.notes)
