"""Kernels for given sizes: dimensions and integer parameters that are extents of buffers in shared memory and
registers, counts of padding, or subscripts of arrays of register tiles.

The compiler lays out shared memory and registers, so these values are constants when it compiles.  A kernel that
computes one of them from a run-time dimension or an integer parameter is compiled anew for each of its values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from tilemma.errors import CompileError, Span
from tilemma.ir import tile as t
from tilemma.ir.constructs import OPERANDS
from tilemma.ir.effects import element_reads
from tilemma.ir.expr import (
    Binary,
    Const,
    Dim,
    Expr,
    FragmentElement,
    Index,
    Scalar,
    binary,
    const,
    field_names,
    value_of,
    walk,
)
from tilemma.ir.substitution import Substitution
from tilemma.ir.tiles import describe
from tilemma.ir.types import BLOCK
from tilemma.ir.walk import rewrite, rewrite_blocks
from tilemma.ir.walk import walk as operations
from tilemma.launch import APART
from tilemma.records import record


class ExtentsNotKnown(CompileError):
    code = "extents-not-known"
    found = "`{what}` makes a buffer of {shape}, whose extents are not known when compiled"
    expected = "a tile of known extents: registers and shared memory are laid out by the compiler"
    fix = "{remedy}"


class SizesWanted(CompileError):
    code = "sizes-wanted"
    found = "{what}, and no {dims} is given"
    expected = (
        "a value for each dimension and parameter that is an extent of a buffer, a count of padding or a "
        "subscript of register tiles: the kernel is compiled for these values"
    )
    fix = "call the kernel with arrays, or define the sizes: `defines={{{example}}}`"
    python_fix = "call the kernel with arrays, or pass the sizes: `sizes={{{example}}}`"


@record
class Need:
    """``values`` that the compiler has to know: in words ``what``, at ``span``."""

    what: str
    values: tuple[Expr, ...]
    span: Span | None


def open_dimensions(shape: tuple[Expr, ...]) -> dict[str, Dim | Scalar] | None:
    """The dimensions and integer parameters in ``shape``; None if it depends on more than these and constants."""
    found: dict[str, Dim | Scalar] = {}
    for x in (x for e in shape for x in walk(e) if not isinstance(x, (Binary, Const))):
        if not (isinstance(x, Dim) or (isinstance(x, Scalar) and x.dtype.is_integer)):
            return None
        found[x.name] = x
    return found


def _needs(op: t.Op) -> Iterator[Need]:
    """The values in ``op`` that have to be constants when it is compiled."""
    if isinstance(op, t.Alloc):
        yield Need(f"`{op.buffer.name}` has the extents {_listed(op.buffer.shape)}", op.buffer.shape, op.span)
    if isinstance(op, t.Copy) and op.pad_counts:
        counts = tuple(e for of_axis in op.pad_counts for e in of_axis)
        yield Need(f"the padding of a copy has the counts {_listed(counts)}", counts, op.span)
    held = [v for name in field_names(op) if isinstance(v := getattr(op, name), t.FragmentRef)]
    read = [x for x in element_reads(op) if isinstance(x, FragmentElement)]
    for name, index in (*((x.name, x.index) for x in held), *((x.fragment, x.index) for x in read)):
        leaves = [x for e in index for x in walk(e) if not isinstance(x, (Binary, Const, Index))]
        if leaves and open_dimensions(tuple(leaves)) is not None:
            yield Need(f"`{name}` has the subscripts {_listed(index)}", tuple(leaves), op.span)


def _listed(values: tuple[Expr, ...]) -> str:
    return "[" + ", ".join(describe(e) for e in values) + "]"


def wanted_sizes(kernel: t.Kernel) -> dict[str, Need]:
    """Each dimension or parameter that has to be known when the kernel is compiled, with the first such need."""
    found: dict[str, Need] = {}
    for op in operations(kernel.body):
        for need in _needs(op):
            for e in need.values:
                for name in sorted(open_dimensions((e,)) or ()):
                    found.setdefault(name, need)
    return found


def specialise(kernel: t.Kernel, sizes: Mapping[str, int]) -> t.Kernel:
    """``kernel`` for these values of what its buffers, paddings and subscripts of register tiles need; SizesWanted
    where one is missing.

    A launch checks that a parameter has its value.
    """
    wanted = wanted_sizes(kernel)
    missing = [n for n in wanted if n not in sizes]
    if missing:
        need = wanted[missing[0]]
        example = ", ".join(f'"{n}": 64' for n in missing)
        raise SizesWanted(need.span, what=need.what, dims=", ".join(f"`{n}`" for n in missing), example=example)
    if not wanted:
        return kernel
    open_ = {
        n: x for need in wanted.values() for e in need.values for n, x in (open_dimensions((e,)) or {}).items()
    }
    table = {n: Const(int(sizes[n]), x.type) for n, x in open_.items()}
    body = rewrite(_replaced(kernel.body, table, {}), _padded)
    params = tuple(_replaced(p, table, {}) if isinstance(p, t.ArrayParameter) else p for p in kernel.params)
    made = replace(kernel, body=body, params=params, returns=_replaced(kernel.returns, table, {}))
    checks = tuple(
        t.Assert(
            binary("eq", x, table[n]), f"{n} is {table[n].value}: the kernel is compiled for it", span=made.span
        )
        for n, x in open_.items()
        if isinstance(x, Scalar)
    )
    return replace(made, body=(*checks, *made.body))


def _padded(op: t.Op) -> t.Op:
    """A copy whose counts of padding are known now; WrongValue for one that is negative."""
    if not isinstance(op, t.Copy) or not op.pad_counts:
        return op
    pad = []
    for counts in op.pad_counts:
        low, high, inner = (value_of(e) for e in counts)
        assert low is not None and high is not None and inner is not None
        OPERANDS["padding"].checked_all((low, high, inner), op.span)
        pad.append((low, high, inner))
    return replace(op, pad=tuple(pad), pad_counts=())


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


def as_variant(kernel: t.Kernel, variant: Collection[str]) -> t.Kernel:
    """``kernel`` for launches with one tile along the indices in ``variant`` of its grids; where `launch.APART` is
    in it, blocks are not joined."""
    if APART in variant:
        kernel = rewrite_blocks(kernel, lambda block: replace(block, apart=True))
    grids = [op for op in operations(kernel.body) if isinstance(op, t.Parallel) and op.level == BLOCK]
    found = {i.name: i for op in grids for i in op.indices if i.name in variant}
    if not found:
        return kernel
    checks = tuple(
        t.Assert(binary("le", i.extent, 1), f"the kernel is compiled for one tile along `{i.source_name}`")
        for i in found.values()
    )
    one = {name: replace(i, extent=const(1)) for name, i in found.items()}
    return replace(kernel, body=(*checks, *Substitution(one).body(kernel.body)))
