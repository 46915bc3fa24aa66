"""The text of a random program: a Python module and a `.co` file, each with one kernel, `k`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dev.fuzz.programs import (
    FLOATS,
    FP8,
    Alloc,
    Apply,
    ApplyBody,
    Atomic,
    Bin,
    Chain,
    Conv,
    Copy,
    Elem,
    Expr,
    Fill,
    For,
    Frag,
    If,
    InThreads,
    Jump,
    Keep,
    Let,
    Lit,
    Load,
    Mixed,
    Mma,
    Move,
    Name,
    Old,
    Parallel,
    Program,
    Sel,
    Set,
    Start,
    Stmt,
    Store,
    Swap,
    Un,
    Var,
    View,
    ViewElem,
    ViewStore,
    Wait,
    While,
)

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
        case For() | While() | Parallel() | InThreads() | ApplyBody():
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
            extent = e(s.extent)
            ranged = f", start={_start(s, e)}, step={s.step}" if s.ranged else ""
            ranged += f", stop={extent} - {s.short}" if s.short else ""
            unroll = "" if s.unroll is None else f", unroll={s.unroll or True}"
            return [f"for {s.name} in foreach({extent}{ranged}{unroll}):"]
        case If():
            return [f"with if_({e(s.cond)}):"]
        case InThreads():
            return [f"with inthreads({e(s.cond)}):"]
        case Let():
            return [f"{s.name} = {_python_view(s.view)}"]
        case ViewStore():
            return [f"{_python_view(s.view)}[{_list(s.at, e)}] = {e(s.value)}"]
        case Move():
            options = f", transp={s.perm}" if s.perm else ""
            options += f", pad={s.pad}, pad_value={s.fill}" if s.pad else ""
            return [f"dma.copy({_python_view(s.src)}, {_python_view(s.dst)}{options})"]
        case Frag():
            made = f'{s.tile} = mma.frag("{s.t}", {s.shape[0]}, {s.shape[1]}, init=0.0)'
            return [made, f"mma.load({_python_view(s.src)}, {s.tile})"]
        case ApplyBody():
            return [f"for {', '.join(s.names)} in apply({s.tile}):"]
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


def _start(s: For, text: Any) -> str:
    return str(s.start) if isinstance(s.start, int) else text(s.start)


def _chain(v: Chain, text: Any, shape: str, strides: str, origin: str, whole: str) -> str:
    """``shape``: around the extents of span_as; ``strides``: before those of a view."""
    found = v.array
    for c in v.cuts:
        extents = ", ".join(map(str, c.extents))
        at = ", ".join(whole if i is None else text(i) for i in c.at)
        if c.strides:
            extents += strides.format(", ".join(map(str, c.strides)))
        match c.kind:
            case "sqz":
                found += ".sqz()"
            case "span_as":
                found += f".span_as({shape.format(extents)})"
            case "chunkat":
                found += f".chunkat({at})"
            case "view":
                found += f".view({extents}).{origin}({at})"
            case _:
                step = f".step({', '.join(map(str, c.step))})" if c.step else ""
                found += f".{c.kind}({extents}){step}.at({at})"
    return found


def _python_view(v: View | Chain | str) -> str:
    if isinstance(v, str):
        return v
    if isinstance(v, Chain):
        return _chain(v, python_expr, "{}", ", strides=({},)", "from_", "full")
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
        case ViewElem():
            return f"{_python_view(e.view)}[{_list(e.at, python_expr)}]"
        case Old():
            given = [x for x in (e.expected, e.value) if x is not None]
            name = e.op + "_" * (e.op in ("and", "or"))
            return f"atomic.{name}({python_expr(e.place)}, {_list(given, python_expr)})"
        case Bin(op=("min" | "max") as op) | Mixed(op=("min" | "max") as op):
            return f"tm.math.{op}({python_expr(e.a)}, {python_expr(e.b)})"
        case Bin(op="cdiv"):
            return f"cdiv({python_expr(e.a)}, {python_expr(e.b)})"
        case Bin() | Mixed():
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
            unroll = "" if s.unroll is None else " : unroll" + (f"({s.unroll})" if s.unroll else "")
            if s.ranged:
                short = f"-{s.short}" if s.short else ""
                part = f"{s.name}({_start(s, e)}:{short}:{s.step})"
                return [f"with {s.name} in {e(s.extent)} foreach {part}{unroll} {{"]
            return [f"foreach {s.name} in {e(s.extent)}{unroll} {{"]
        case If():
            return [f"if ({e(s.cond)}) {{"]
        case InThreads():
            return [f"inthreads ({e(s.cond)}) {{"]
        case Let():
            return [f"{s.name} = {_croqtile_view(s.view)};"]
        case ViewStore():
            return [f"{_croqtile_view(s.view)}.at({_list(s.at, e)}) = {e(s.value)};"]
        case Move():
            kind = "copy"
            if s.perm:
                kind = f"transp<{', '.join(map(str, s.perm))}>"
            if s.pad:
                counts = (f"{{{', '.join(str(d[i]) for d in s.pad)}}}" for i in range(3))
                kind = f"pad<{', '.join(counts)}, {s.fill}>"
            return [f"dma.{kind} {_croqtile_view(s.src)} => {_croqtile_view(s.dst)};"]
        case Frag():
            made = f"frag {s.t}[{s.shape[0]}, {s.shape[1]}] {s.tile} {{0.0}};"
            return [made, f"mma.load {_croqtile_view(s.src)}, {s.tile};"]
        case ApplyBody():
            return [f"apply {{{', '.join(s.names)}}} in {s.tile}.span {{"]
        case While():
            return [f"while ({e(s.cond)}) {{"]
        case Jump():
            return [f"{s.word};"]
        case Parallel():
            # `cluster` alone has the grid inside: its index is a rank.
            level = "cluster-grid" if s.level == "cluster" else s.level
            return [f"parallel {{{', '.join(s.names)}}} by [{_list(s.extents, e)}] : {level} {{"]
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


def _croqtile_view(v: View | Chain | str) -> str:
    if isinstance(v, str):
        return v
    if isinstance(v, Chain):
        return _chain(v, croqtile_expr, "[{}]", " : {}", "from", "_")
    where = _list(v.at, croqtile_expr)
    if v.kind == "chunkat":
        return f"{v.array}.chunkat({where})"
    assert v.extents is not None
    place = "from" if v.kind == "view" else "at"
    step = f".step({', '.join(map(str, v.step))})" if v.step else ""
    return f"{v.array}.{v.kind}({', '.join(map(str, v.extents))}){step}.{place}({where})"


_SUFFIX = {"u64": "ull", "f32": "f", "f16": "f", "bf16": "f", "u32": "u", "s64": "ll", **dict.fromkeys(FP8, "f")}


def croqtile_expr(e: Expr) -> str:
    x = croqtile_expr
    match e:
        case Lit():
            literal = f"{e.value!r}{_SUFFIX.get(e.t, '')}"
            literal = f"({literal})" if e.value < 0 else literal
            return f"__to<{e.t}>({literal})" if e.t in ("f16", "bf16", *FP8) else literal
        case Name():
            return e.name
        case Elem():
            return f"{e.buffer}.at({_list(e.at, x)})"
        case ViewElem():
            return f"{_croqtile_view(e.view)}.at({_list(e.at, x)})"
        case Old():
            given = [v for v in (e.expected, e.value) if v is not None]
            return f"__atomic_{e.op}({x(e.place)}, {_list(given, x)})"
        case Bin(op=("min" | "max") as op) | Mixed(op=("min" | "max") as op):
            return f"__{op}({x(e.a)}, {x(e.b)})"
        case Bin(op="cdiv"):
            return f"cdiv({x(e.a)}, {x(e.b)})"
        case Bin(op="//"):
            return f"(__aligndown({x(e.a)}, {x(e.b)}) / {x(e.b)})"
        case Bin(op="%"):
            return f"({x(e.a)} - __aligndown({x(e.a)}, {x(e.b)}))"
        case Bin(op="quot"):
            return f"({x(e.a)} / {x(e.b)})"
        case Bin(op="rem"):
            return f"({x(e.a)} % {x(e.b)})"
        case Bin() | Mixed():
            return f"({x(e.a)} {_CO_WORDS.get(e.op, e.op)} {x(e.b)})"
        case Un(op="abs") if e.t in FLOATS:
            return f"__fabs({x(e.a)})"
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
