"""Kernels for given sizes: dimensions and integer parameters that buffers in shared memory and registers have as
extents.

The compiler lays out shared memory, so the extents of its buffers are constants.  A kernel that gives a buffer a
run-time dimension, or an integer parameter as an extent, is compiled anew for each of its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from tilemma.errors import CompileError
from tilemma.ir import tile as t
from tilemma.ir.expr import Binary, Const, Dim, Expr, Scalar, binary, walk
from tilemma.ir.tiles import describe
from tilemma.ir.walk import walk as operations


class ExtentsNotKnown(CompileError):
    code = "extents-not-known"
    found = "`{what}` makes a buffer of {shape}, whose extents are not known when compiled"
    expected = "a tile of known extents: registers and shared memory are laid out by the compiler"
    fix = "{remedy}"


class SizesWanted(CompileError):
    code = "sizes-wanted"
    found = "`{what}` has the extents {shape}, and no {dims} is given"
    expected = "a value for each dimension that is an extent of a buffer: the kernel is compiled for these values"
    fix = "call the kernel with arrays, or define the sizes: `defines={{{example}}}`"
    python_fix = "call the kernel with arrays, or pass the sizes: `sizes={{{example}}}`"


def open_dimensions(shape: tuple[Expr, ...]) -> dict[str, Dim | Scalar] | None:
    """The dimensions and integer parameters in ``shape``; None if it depends on more than these and constants."""
    found: dict[str, Dim | Scalar] = {}
    for x in (x for e in shape for x in walk(e) if not isinstance(x, (Binary, Const))):
        if not (isinstance(x, Dim) or (isinstance(x, Scalar) and x.dtype.is_integer)):
            return None
        found[x.name] = x
    return found


def wanted_sizes(kernel: t.Kernel) -> dict[str, t.Alloc]:
    """Each dimension or parameter that is an extent of a shared or local buffer, with the first such buffer."""
    found: dict[str, t.Alloc] = {}
    for op in operations(kernel.body):
        if isinstance(op, t.Alloc):
            for name in sorted(open_dimensions(op.buffer.shape) or ()):
                found.setdefault(name, op)
    return found


def specialise(kernel: t.Kernel, sizes: Mapping[str, int]) -> t.Kernel:
    """``kernel`` for these values of what its buffers need; SizesWanted where one is missing.

    A launch checks that a parameter has its value.
    """
    wanted = wanted_sizes(kernel)
    missing = [n for n in wanted if n not in sizes]
    if missing:
        op = wanted[missing[0]]
        shape = "[" + ", ".join(describe(e) for e in op.buffer.shape) + "]"
        example = ", ".join(f'"{n}": 64' for n in missing)
        dims = ", ".join(f"`{n}`" for n in missing)
        raise SizesWanted(op.span, what=op.buffer.name, shape=shape, dims=dims, example=example)
    open_ = {n: (open_dimensions(op.buffer.shape) or {})[n] for n, op in wanted.items()}
    table = {n: Const(int(sizes[n]), x.type) for n, x in open_.items()}
    made: t.Kernel = replace(kernel, body=_replaced(kernel.body, table, {}))
    of_dims = {n: c for n, c in table.items() if isinstance(open_[n], Dim)}
    made = replace(made, **{f: _replaced(getattr(kernel, f), of_dims, {}) for f in ("params", "returns")})
    checks = tuple(
        t.Assert(
            binary("eq", x, table[n]), f"{n} is {table[n].value}: the kernel is compiled for it", span=made.span
        )
        for n, x in open_.items()
        if isinstance(x, Scalar)
    )
    return replace(made, body=(*checks, *made.body))


def _replaced(x: Any, table: Mapping[str, Const], known: dict[int, tuple[Any, Any]]) -> Any:
    """``x`` with the names in ``table`` replaced everywhere, the buffers of views included."""
    if isinstance(x, (Dim, Scalar)):
        return table.get(x.name, x)
    if not isinstance(x, tuple) and (not is_dataclass(x) or isinstance(x, type)):
        return x
    found = known.get(id(x))
    if found is not None:
        return found[1]
    if isinstance(x, tuple):
        items = tuple(_replaced(v, table, known) for v in x)
        made: Any = x if all(a is b for a, b in zip(items, x, strict=True)) else items
    else:
        changes = {f.name: _replaced(getattr(x, f.name), table, known) for f in fields(x) if f.name != "span"}
        changes = {k: v for k, v in changes.items() if v is not getattr(x, k)}
        if isinstance(x, Binary) and changes:
            made = binary(x.op, changes.get("a", x.a), changes.get("b", x.b))
        else:
            made = replace(x, **changes) if changes else x
    known[id(x)] = x, made
    return made
