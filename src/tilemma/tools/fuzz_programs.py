"""Programs of the fuzzer: a small syntax tree, printed as a Python kernel and as a Croqtile kernel.

Operands of an operation have one type (conversions are written out), so that what a program computes does not
depend on rules of promotion; `tilemma.tools.fuzz_values` says what that is, in NumPy alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

FLOATS = ("f32", "f16", "bf16", "f64")
FP8 = ("f8_e4m3", "f8_e5m2")


@dataclass(frozen=True, slots=True)
class Expr:
    """``t``: the element type of the value."""

    t: str


@dataclass(frozen=True, slots=True)
class Lit(Expr):
    """A number; it stands beside a value of its type."""

    value: int | float


@dataclass(frozen=True, slots=True)
class Name(Expr):
    """An index, a dimension, a scalar parameter or a variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Elem(Expr):
    buffer: str
    at: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Bin(Expr):
    """``op``: + - * / // % & | ^ << >> min max cdiv == != < <= > >= and or.

    / is for floats, // and % round down.
    """

    op: str
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class Un(Expr):
    """``op``: neg, not (bits), lnot, abs, floor, ceil, sqrt."""

    op: str
    a: Expr


@dataclass(frozen=True, slots=True)
class Sel(Expr):
    c: Expr
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class Conv(Expr):
    """As stores convert: to nearest even, narrow integers saturate."""

    a: Expr


@dataclass(frozen=True, slots=True)
class View:
    """A tile of ``array``: ``kind`` is subspan, modspan, chunkat or view, ``at`` the tile's number or origin.

    ``extents`` None: the other side's, for chunkat.  ``step``: what one tile number is, where not the extents.
    """

    array: str
    kind: str
    extents: tuple[int, ...] | None
    at: tuple[Expr, ...]
    step: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Stmt:
    pass


@dataclass(frozen=True, slots=True)
class Var(Stmt):
    name: str
    t: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Set(Stmt):
    name: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Store(Stmt):
    buffer: str
    at: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class Atomic(Stmt):
    """``op``: add, min, max, and, or, xor."""

    op: str
    buffer: str
    at: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class Alloc(Stmt):
    space: str
    name: str
    t: str
    shape: tuple[int, ...]
    init: int | float | None = None


@dataclass(frozen=True, slots=True)
class For(Stmt):
    """``name`` from ``start`` to below ``extent``."""

    name: str
    extent: Expr
    body: tuple[Stmt, ...]
    start: int = 0
    step: int = 1


@dataclass(frozen=True, slots=True)
class If(Stmt):
    cond: Expr
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()


@dataclass(frozen=True, slots=True)
class While(Stmt):
    cond: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Jump(Stmt):
    word: str


@dataclass(frozen=True, slots=True)
class Parallel(Stmt):
    names: tuple[str, ...]
    extents: tuple[Expr, ...]
    level: str
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Copy(Stmt):
    src: View | str
    dst: View | str
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Start(Stmt):
    """An asynchronous copy of ``src`` to shared memory: ``name`` is its future, ``name.data`` the buffer."""

    name: str
    src: View


@dataclass(frozen=True, slots=True)
class Wait(Stmt):
    futures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Swap(Stmt):
    futures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fill(Stmt):
    tile: str
    t: str
    value: float


@dataclass(frozen=True, slots=True)
class Load(Stmt):
    tile: str
    src: View | str


@dataclass(frozen=True, slots=True)
class Mma(Stmt):
    contract: str
    acc: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Apply(Stmt):
    """Each element of ``tile``, at (i, j), becomes ``value``; `Elem(tile, (i, j))` is its old value."""

    tile: str
    names: tuple[str, str]
    value: Expr


@dataclass(frozen=True, slots=True)
class Keep(Stmt):
    """`mma.store`."""

    tile: str
    dst: View | str
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Array:
    """``dims``: names of run-time dimensions, or numbers."""

    name: str
    t: str
    dims: tuple[str | int, ...]


@dataclass(frozen=True)
class Program:
    """``sizes``: the run-time dimensions of the call; ``scalars``: (name, type, value)."""

    arrays: tuple[Array, ...]
    scalars: tuple[tuple[str, str, int | float], ...]
    body: tuple[Stmt, ...]
    sizes: dict[str, int] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    seed: int = 0

    def shape(self, a: Array) -> tuple[int, ...]:
        return tuple(self.sizes[d] if isinstance(d, str) else d for d in a.dims)


def parts(x: Any) -> Iterator[Any]:
    """``x`` and everything inside it."""
    yield x
    if isinstance(x, (Expr, Stmt, View)):
        for f in fields(x):
            yield from parts(getattr(x, f.name))
    elif isinstance(x, tuple):
        for y in x:
            yield from parts(y)


# ---- text ------------------------------------------------------------------------------------------------

_PY_WORDS = {"and": "&", "or": "|"}
_CO_WORDS = {"and": "&&", "or": "||"}


def python_text(p: Program) -> str:
    """The program as a module with one kernel, `k`."""
    params = [f'{a.name}: tm.Global["{a.t}", {", ".join(repr(d) for d in a.dims)}]' for a in p.arrays]
    params += [f'{n}: tm.Scalar["{t}"]' for n, t, _ in p.scalars]
    lines = [
        "import tilemma as tm",
        "from tilemma import *",
        "",
        "@tm.kernel",
        "def k(" + ", ".join(params) + "):",
    ]
    for d in p.sizes:
        a = next(a for a in p.arrays if d in a.dims)
        lines.append(f"    {d} = {a.name}.shape[{a.dims.index(d)}]")
    return "\n".join([*lines, *_python(p.body, 1)]) + "\n"


def _python(body: Sequence[Stmt], depth: int) -> Iterator[str]:
    pad = "    " * depth
    for s in body:
        for line in _python_statement(s):
            yield pad + line
        inner = _bodies(s)
        for header, nested in inner:
            if header:
                yield pad + header
            yield from _python(nested, depth + 1) if nested else [pad + "    pass"]


def _bodies(s: Stmt) -> list[tuple[str, tuple[Stmt, ...]]]:
    match s:
        case For() | While() | Parallel():
            return [("", s.body)]
        case If():
            return [("", s.then), *([("with else_():", s.otherwise)] if s.otherwise else [])]
    return []


def _python_statement(s: Stmt) -> list[str]:
    e = python_expr
    match s:
        case Var():
            return [f'{s.name} = var({e(s.value)}, "{s.t}")']
        case Set():
            return [f"{s.name}.set({e(s.value)})"]
        case Store():
            return [f"{s.buffer}[{_list(s.at, e)}] = {e(s.value)}"]
        case Atomic():
            name = s.op + "_" * (s.op in ("and", "or"))
            return [f"atomic.{name}({s.buffer}[{_list(s.at, e)}], {e(s.value)})"]
        case Alloc():
            init = "" if s.init is None else f", init={s.init!r}"
            return [f'{s.name} = {s.space}("{s.t}", {", ".join(map(str, s.shape))}{init})']
        case For():
            ranged = f", start={s.start}, step={s.step}" if (s.start, s.step) != (0, 1) else ""
            return [f"for {s.name} in foreach({e(s.extent)}{ranged}):"]
        case If():
            return [f"with if_({e(s.cond)}):"]
        case While():
            return [f"with while_(lambda: {e(s.cond)}):"]
        case Jump():
            return [f"{s.word}_()"]
        case Parallel():
            return [f'for {", ".join(s.names)} in parallel({_list(s.extents, e)}, level="{s.level}"):']
        case Copy():
            transposed = ", transp=(1, 0)" if s.transposed else ""
            return [f"dma.copy({_python_view(s.src)}, {_python_view(s.dst)}{transposed})"]
        case Start():
            return [f'{s.name} = dma.copy({_python_view(s.src)}, to="shared", async_=True)']
        case Wait() | Swap():
            return [f"{type(s).__name__.lower()}({', '.join(s.futures)})"]
        case Fill():
            return [f'{s.tile} = mma.fill({s.value!r}, "{s.t}")']
        case Load():
            return [f"{s.tile} = mma.load({_python_view(s.src)})"]
        case Mma():
            return [f"mma.{s.contract}({s.acc}, {s.a}, {s.b})"]
        case Apply():
            i, j = s.names
            return [f"for {i}, {j} in apply({s.tile}):", f"    {s.tile}[{i}, {j}] = {e(s.value)}"]
        case Keep():
            return [f"mma.store({s.tile}, {_python_view(s.dst)}{', transp=True' if s.transposed else ''})"]
    raise AssertionError(s)


def _list(items: Sequence[Expr], text: Any) -> str:
    return ", ".join(text(i) for i in items)


def _python_view(v: View | str) -> str:
    if isinstance(v, str):
        return v
    where = _list(v.at, python_expr)
    if v.kind == "chunkat":
        return f"{v.array}.chunkat({where})"
    assert v.extents is not None
    place = "from_" if v.kind == "view" else "at"
    step = f".step({', '.join(map(str, v.step))})" if v.step else ""
    return f"{v.array}.{v.kind}({', '.join(map(str, v.extents))}){step}.{place}({where})"


def python_expr(e: Expr) -> str:
    match e:
        case Lit():
            return repr(e.value)
        case Name():
            return e.name
        case Elem():
            return f"{e.buffer}[{_list(e.at, python_expr)}]"
        case Bin(op=("min" | "max") as op):
            return f"tm.math.{op}({python_expr(e.a)}, {python_expr(e.b)})"
        case Bin(op="cdiv"):
            return f"cdiv({python_expr(e.a)}, {python_expr(e.b)})"
        case Bin():
            return f"({python_expr(e.a)} {_PY_WORDS.get(e.op, e.op)} {python_expr(e.b)})"
        case Un():
            a = python_expr(e.a)
            return {"neg": f"(-{a})", "not": f"(~{a})", "lnot": f"(~{a})", "abs": f"abs({a})"}.get(
                e.op, f"tm.math.{e.op}({a})"
            )
        case Sel():
            return f"select({python_expr(e.c)}, {python_expr(e.a)}, {python_expr(e.b)})"
        case Conv():
            return f'{python_expr(e.a)}.astype("{e.t}")'
    raise AssertionError(e)


def croqtile_text(p: Program) -> str:
    """The program as a `.co` file with one kernel, `k`."""
    params = [f"global {a.t} [{', '.join(map(str, a.dims))}] {a.name}" for a in p.arrays]
    params += [f"{t} {n}" for n, t, _ in p.scalars]
    return "\n".join([f"__co__ void k({', '.join(params)}) {{", *_croqtile(p.body, 1), "}"]) + "\n"


def _croqtile(body: Sequence[Stmt], depth: int) -> Iterator[str]:
    pad = "  " * depth
    for s in body:
        for line in _croqtile_statement(s):
            yield pad + line
        for header, nested in _bodies(s):
            if header:
                yield pad + "else {"
            yield from _croqtile(nested, depth + 1)
            yield pad + "}"


def _croqtile_statement(s: Stmt) -> list[str]:
    e = croqtile_expr
    match s:
        case Var():
            return [f"{s.t} {s.name} = {e(s.value)};"]
        case Set():
            return [f"{s.name} = {e(s.value)};"]
        case Store():
            return [f"{s.buffer}.at({_list(s.at, e)}) = {e(s.value)};"]
        case Atomic():
            return [f"__atomic_{s.op}({s.buffer}.at({_list(s.at, e)}), {e(s.value)});"]
        case Alloc():
            init = "" if s.init is None else f" {{{croqtile_expr(Lit(s.t, s.init))}}}"
            return [f"{s.space} {s.t} [{', '.join(map(str, s.shape))}] {s.name}{init};"]
        case For():
            if (s.start, s.step) != (0, 1):
                return [f"with {s.name} in {e(s.extent)} foreach {s.name}({s.start}::{s.step}) {{"]
            return [f"foreach {s.name} in {e(s.extent)} {{"]
        case If():
            return [f"if ({e(s.cond)}) {{"]
        case While():
            return [f"while ({e(s.cond)}) {{"]
        case Jump():
            return [f"{s.word};"]
        case Parallel():
            return [f"parallel {{{', '.join(s.names)}}} by [{_list(s.extents, e)}] : {s.level} {{"]
        case Copy():
            what = "transp<1, 0>" if s.transposed else "copy"
            return [f"dma.{what} {_croqtile_view(s.src)} => {_croqtile_view(s.dst)};"]
        case Start():
            return [f"{s.name} = dma.copy.async {_croqtile_view(s.src)} => shared;"]
        case Wait():
            return [f"wait {', '.join(s.futures)};"]
        case Swap():
            return [f"{'swap' if len(s.futures) == 2 else 'rotate'}({', '.join(s.futures)});"]
        case Fill():
            return [f"{s.tile} = mma.fill.{s.t} {s.value!r}f;"]
        case Load():
            return [f"{s.tile} = mma.load {_croqtile_view(s.src)};"]
        case Mma():
            return [f"mma.{s.contract} {s.acc}, {s.a}, {s.b};"]
        case Apply():
            i, j = s.names
            return [f"apply {{{i}, {j}}} in {s.tile}.span {{", f"  {s.tile}.at({i}, {j}) = {e(s.value)};", "}"]
        case Keep():
            return [f"mma.store{'.transp' if s.transposed else ''} {s.tile}, {_croqtile_view(s.dst)};"]
    raise AssertionError(s)


def _croqtile_view(v: View | str) -> str:
    if isinstance(v, str):
        return v
    where = _list(v.at, croqtile_expr)
    if v.kind == "chunkat":
        return f"{v.array}.chunkat({where})"
    assert v.extents is not None
    place = "from" if v.kind == "view" else "at"
    step = f".step({', '.join(map(str, v.step))})" if v.step else ""
    return f"{v.array}.{v.kind}({', '.join(map(str, v.extents))}){step}.{place}({where})"


_SUFFIX = {"f32": "f", "f16": "f", "bf16": "f", "u32": "u", "s64": "ll", **dict.fromkeys(FP8, "f")}


def croqtile_expr(e: Expr) -> str:
    x = croqtile_expr
    match e:
        case Lit():
            literal = f"{e.value!r}{_SUFFIX.get(e.t, '')}"
            return f"__to<{e.t}>({literal})" if e.t in ("f16", "bf16", *FP8) else literal
        case Name():
            return e.name
        case Elem():
            return f"{e.buffer}.at({_list(e.at, x)})"
        case Bin(op=("min" | "max") as op):
            return f"__{op}({x(e.a)}, {x(e.b)})"
        case Bin(op="cdiv"):
            return f"cdiv({x(e.a)}, {x(e.b)})"
        case Bin(op="//"):
            return f"(__aligndown({x(e.a)}, {x(e.b)}) / {x(e.b)})"
        case Bin(op="%"):
            return f"({x(e.a)} - __aligndown({x(e.a)}, {x(e.b)}))"
        case Bin():
            return f"({x(e.a)} {_CO_WORDS.get(e.op, e.op)} {x(e.b)})"
        case Un():
            a = x(e.a)
            return {"neg": f"(-{a})", "not": f"(~{a})", "lnot": f"(!{a})", "abs": f"({a} < 0 ? -{a} : {a})"}.get(
                e.op, f"__{e.op}({a})"
            )
        case Sel():
            return f"({x(e.c)} ? {x(e.a)} : {x(e.b)})"
        case Conv():
            return f"__to<{e.t}>({x(e.a)})"
    raise AssertionError(e)
