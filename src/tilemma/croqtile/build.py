"""From a kernel's syntax tree to tile IR: its parameters, its body and its result."""

from __future__ import annotations

from tilemma.croqtile import (
    assignments,
    ast,
    atomics,
    contraction,
    control,
    copies,
    diagnostics,
    events,
    functions,
    math,
    registers,
    scalars,
    shapes,
    storage,
    unbuilt,
    views,
)
from tilemma.croqtile.operands import known_type, plain
from tilemma.croqtile.pipeline import kernel_settings
from tilemma.croqtile.reader import Reader, nodes_in
from tilemma.croqtile.values import Stream
from tilemma.errors import Note
from tilemma.ir import tile as t
from tilemma.ir.expr import Const, Dim
from tilemma.ir.refusals import BadParameter, BadReturn
from tilemma.ir.types import BLOCK

# Each registers the readers of its constructs.
CONSTRUCTS = (assignments, atomics, contraction, control, copies, diagnostics, events, functions, math, registers,
              scalars, shapes, storage, unbuilt, views)  # fmt: skip


def kernel(r: Reader) -> t.Kernel:
    f = r.function
    for i, p in enumerate(f.params):
        _parameter(r, p, p.name or f"arg{i}")
    r.b.pipeline = kernel_settings(r)
    parallel = any(isinstance(n, ast.Parallel) for n in nodes_in(f.body))
    if parallel:
        r.body(f.body)
    else:
        # A kernel without `parallel` is executed by a single instance.
        r.implicit = True
        with r.b.parallel(["p"], [1], BLOCK, span=f.body.span):
            r.body(f.body)
    if f.returns.name != "void" and r.b.returns is None:
        raise BadReturn(
            f.returns.span,
            problem="is missing",
            wanted=f"a returned array: the kernel's type is `{f.returns.name}`",
            fix_text="return an array declared at the top of the kernel, or make the type `void`",
        )
    r.b.span = r.here
    return r.b.finish()


def _parameter(r: Reader, p: ast.Parameter, name: str) -> None:
    r.b.span = p.span
    if p.storage in ("shared", "local"):
        raise _bad(p, name, f"is `{p.storage}`", "make it `global`, or declare the buffer in the kernel")
    kind_ = p.type
    if kind_.name == "stream":
        r.scopes.define(name, Stream(), p.span)
        r.notes.append(Note("calls run on the caller's current stream and pass no stream", p.span))
        return
    if kind_.name in ("void", "auto", "mdspan", "ituple"):
        raise _bad(p, name, f"has the type `{kind_.name}`", "give it an element type, and extents for an array")
    dtype = known_type(kind_.name, kind_.span)
    if kind_.dims is None and kind_.rank is None:
        if p.storage is not None:
            raise _bad(p, name, "is a scalar with a storage", "remove `global`, or give it extents")
        r.scopes.define(name, r.b.scalar_param(name, dtype, p.span), p.span)
        return
    dims: list[str | int | None] = [None] * (kind_.rank or 0)
    if kind_.dims is not None:
        dims = [_dimension(r, p, name, d) for d in kind_.dims]
    if not dims:
        raise _bad(p, name, "has no dimensions", "give it extents")
    if name in dims:
        raise _bad(p, name, "has a dimension of its own name", "give the dimension another name")
    tile = r.b.array_param(name, dtype, dims, p.span)
    r.scopes.define(name, tile, p.span)
    for e in tile.view.base.shape:
        if isinstance(e, Dim) and r.scopes.find(e.name) is None:
            r.scopes.define(e.name, e, p.span)


def _dimension(r: Reader, p: ast.Parameter, name: str, node: ast.Expr) -> str | int | None:
    """A name (a run-time dimension), a number, or None."""
    if isinstance(node, ast.Unknown):
        return None
    if isinstance(node, ast.Name):
        known = r.scopes.find(node.text)
        if known is not None and not isinstance(known.value, Dim):
            raise _bad(
                p,
                name,
                f"has a dimension `{node.text}`, which is also a parameter",
                "give the dimension another name; sizes are taken from the arrays",
            )
        return node.text
    value = plain(r, node, f"a dimension of `{name}`")
    if not isinstance(value, Const) or not value.dtype.is_integer or value.value < 0:
        raise _bad(
            p, name, "has a dimension that is neither a name nor a number", "name it: `f16 [M, K]`, and assert"
        )
    return int(value.value)


def _bad(p: ast.Parameter, name: str, problem: str, fix: str) -> BadParameter:
    return BadParameter(p.span, name=name, problem=problem, fix_text=fix)
