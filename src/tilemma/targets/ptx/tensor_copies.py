"""TMA legality and boxes: which copies the tensor memory accelerator can do, and how they are cut into boxes.

PTX ISA, cp.async.bulk.tensor, and CUDA driver API, cuTensorMapEncodeTiled: bases and strides are multiples of
16 bytes, a box has at most 256 elements along each dimension, its innermost extent is a multiple of 16 bytes and
no wider than the swizzle.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from tilemma.errors import CompileError, spelled
from tilemma.ir.expr import Binary, Const, Expr, Index, value_of
from tilemma.ir.plans import SharedLayoutPlan
from tilemma.ir.tile import ArrayFacts, Copy
from tilemma.ir.tiles import describe
from tilemma.ir.types import Axis, Space, View
from tilemma.passes.contraction import divides, divisor

LARGEST_BOX = 256
# What divides the address of a box in shared memory (PTX ISA, cp.async.bulk.tensor), and the place in bytes where
# it starts in a row of the array (observed on an H200: at another place the instruction is illegal).
SHARED_ALIGNMENT, CORNER_ALIGNMENT = 128, 16
LARGEST_RANK = 5
_MANUAL = "CUDA driver API, cuTensorMapEncodeTiled"


class TmaRefused(CompileError):
    code = "tma-refused"
    found = "`tma.copy` of `{src}` to `{dst}`: {what}"
    expected = "{rule}"
    fix = "{remedy}"


Refuse = Callable[..., TmaRefused]


def is_load(op: Copy) -> bool:
    """Whether the copy goes into shared memory."""
    return op.dst.base.space is Space.SHARED


def sides(op: Copy) -> tuple[View, View]:
    """The two sides of the copy as (global view, shared view)."""
    return (op.src, op.dst) if is_load(op) else (op.dst, op.src)


def boxes(op: Copy, layout: SharedLayoutPlan | None, facts: ArrayFacts, shares: int = 1) -> tuple[int, ...]:
    """The extents of the boxes of ``op`` in elements, innermost dimension first; TmaRefused names the broken rule.

    Each of ``shares`` blocks loads an equal part.
    """

    def refuse(
        what: str, rule: str, remedy: str = "use `dma` in place of `tma`: it copies any tile"
    ) -> TmaRefused:
        return TmaRefused(op.span, src=op.src.base.name, dst=op.dst.base.name, what=what, rule=rule, remedy=remedy)

    _check_sides(op, refuse)
    there, here = sides(op)
    name, size = there.base.name, there.dtype.bits // 8
    if there.dtype.bits not in (8, 16, 32, 64):
        raise refuse(f"elements of {there.dtype}", f"elements of 1, 2, 4 or 8 bytes ({_MANUAL})")
    if facts.contiguous is None:
        raise refuse(
            f"no dimension of `{name}` has stride 1", f"a dimension whose elements are adjacent ({_MANUAL})"
        )
    if facts.alignment < 16:
        raise refuse(
            f"the base or a stride of `{name}` is aligned to only {facts.alignment} bytes",
            f"a base address and outer strides that are multiples of 16 bytes ({_MANUAL})",
            f"use `dma.copy`, or pass `{name}` with rows of a multiple of 16 bytes",
        )
    if there.base.rank > LARGEST_RANK:
        raise refuse(f"`{name}` has {there.base.rank} dimensions", f"at most {LARGEST_RANK} ({_MANUAL})")
    outer, inner = _axes(there, here, facts, refuse)
    if shares > 1 and not outer:
        raise refuse(
            "it has one row to divide among several blocks",
            "8 rows for each block",
            f"leave {spelled(op.span, '`.multicast`', '`multicast=True`')} out",
        )
    assert layout is not None, here.base.name
    width = _inner_extent(here, inner, size, layout, refuse)
    _check_corner(there.offsets[inner.dim], size, refuse)
    _check_address(here, layout, refuse)
    extents = [1] * there.base.rank
    for axis in outer:
        n = value_of(axis.extent) or 1
        if shares > 1 and n % (8 * shares):
            raise refuse(
                f"its {n} rows cannot be divided among {shares} blocks in multiples of 8",
                "whole swizzle atoms (8 rows) for each block of the cluster",
                f"leave {spelled(op.span, '`.multicast`', '`multicast=True`')} out, or use a taller tile",
            )
        extents[axis.dim] = _split(n // shares, width * size, refuse)
    extents[inner.dim] = width
    return tuple(extents[d] for d in dimension_order(there.base.rank, facts.contiguous))


def dimension_order(rank: int, contiguous: int) -> tuple[int, ...]:
    """The array's dimensions in the order of a tensor map: the contiguous one first, then the others from last to
    first."""
    return (contiguous, *(d for d in reversed(range(rank)) if d != contiguous))


def _check_sides(op: Copy, refuse: Refuse) -> None:
    spaces = {op.src.base.space, op.dst.base.space}
    if spaces != {Space.GLOBAL, Space.SHARED}:
        raise refuse(
            "both sides are in the same memory", "a parameter on one side and a shared buffer on the other"
        )
    there, here = sides(op)
    if there.reshape is not None or here.reshape is not None:
        raise refuse("a side is a `span_as`", "tiles of the array's own dimensions")
    for v in (there, here):
        if v.static_shape is None:
            raise refuse(
                f"the extents of the tile of `{v.base.name}` are not known at compile time",
                "a box of known extents (" + _MANUAL + ")",
                "cut it with `subspan(h, w).at(i, j)`, or use `dma.copy`",
            )
        if any(value_of(a.step) != 1 for a in v.axes):
            raise refuse(f"the tile of `{v.base.name}` skips elements", "adjacent elements along every axis")


def _axes(there: View, here: View, facts: ArrayFacts, refuse: Refuse) -> tuple[list[Axis], Axis]:
    """The array's axes that are longer than 1, as (all but the innermost, the innermost).

    A tensor map orders its dimensions by their strides in memory: the array's contiguous axis becomes the
    innermost of the buffer, so the copy has to pair these two axes.  Equal extents are not enough.
    """
    mine = [a for a in there.axes if value_of(a.extent) != 1]
    theirs = [a for a in here.axes if value_of(a.extent) != 1]
    inner = next((a for a in there.axes if a.dim == facts.contiguous), None)
    last = next((a for a in here.axes if a.dim == here.base.rank - 1), None)
    if inner is None or last is None:
        raise refuse(
            f"the tile has no axis along the contiguous dimension of `{there.base.name}`",
            "a tile at least 16 bytes wide along it",
        )
    outer = [a for a in mine if a is not inner]
    pairs = list(zip(mine, theirs, strict=False))
    fits = [value_of(a.extent) for a in mine] == [value_of(a.extent) for a in theirs]
    if not fits or any((a is inner) != (b is last) for a, b in pairs):
        raise refuse(
            f"the contiguous dimension of `{there.base.name}` is not the last of `{here.base.name}`",
            "the same innermost axis on both sides",
        )
    if len(outer) > 1:
        raise refuse("its tile has more than two axes longer than 1", "a matrix")
    return outer, inner


def _inner_extent(here: View, inner: Axis, size: int, layout: SharedLayoutPlan, refuse: Refuse) -> int:
    """Elements of a box along the innermost dimension."""
    n = value_of(inner.extent) or 1
    column = here.offsets[-1]
    if layout.swizzle_atom:
        atom = layout.swizzle_atom // size
        if n % atom or not divides(atom, column):
            raise refuse(
                f"{n} elements along the innermost axis of `{here.base.name}` are no whole atoms of {atom}",
                f"a tile of whole swizzle atoms ({layout.swizzle_atom} bytes)",
            )
        if layout.swizzle_atom > 16 and any(divisor(e) * n % 8 for e, n in _rows_before(here)):
            raise refuse(
                "it does not start on a multiple of 8 rows", "a tile that starts with a whole swizzle atom"
            )
        return atom
    row = value_of(here.base.shape[-1]) or 1
    if layout.pitch != row * size or n != row:
        raise refuse(f"the rows of `{here.base.name}` are not consecutive", "rows without a gap")
    if n * size % 16:
        raise refuse(
            f"its rows are {n * size} bytes", f"a multiple of 16 bytes along the innermost axis ({_MANUAL})"
        )
    if n > LARGEST_BOX:
        raise refuse(
            f"its rows have {n} elements", f"at most {LARGEST_BOX} ({_MANUAL})", "cut the tile, or swizzle it"
        )
    return n


def _rows_before(v: View) -> list[tuple[Expr, int]]:
    """The rows of a shared buffer before the view, as a sum: expressions, each times a number."""
    out, rows = [], 1
    for offset, extent in zip(reversed(v.offsets[:-1]), reversed(v.base.shape[:-1]), strict=True):
        out.append((offset, rows))
        rows *= value_of(extent) or 1
    return out


def _check_corner(offset: Expr, size: int, refuse: Refuse) -> None:
    """A box starts on a multiple of 16 bytes of its row.  A place known only at run time passes: the instruction
    traps there."""
    step = CORNER_ALIGNMENT // gcd(CORNER_ALIGNMENT, size)
    if _affine(offset) and divisor(offset) % step:
        raise refuse(
            f"its tile starts at element {describe(offset)} of a row",
            f"a start on a multiple of {step} elements ({CORNER_ALIGNMENT} bytes)",
        )


def _check_address(here: View, layout: SharedLayoutPlan, refuse: Refuse) -> None:
    """A box of plain rows, or of core matrices, starts on a multiple of 128 bytes of shared memory."""
    if layout.swizzle_atom > 16:
        return
    for offset, rows in _rows_before(here):
        if _affine(offset) and divisor(offset) * rows * layout.pitch % SHARED_ALIGNMENT:
            raise refuse(
                f"it starts {describe(offset)} rows of {rows * layout.pitch} bytes into `{here.base.name}`",
                f"a tile that starts on a multiple of {SHARED_ALIGNMENT} bytes (PTX ISA, cp.async.bulk.tensor)",
            )


def starts_on_unit(there: View, contiguous: int) -> bool:
    """Whether every launch's boxes start on a multiple of 16 bytes of their rows."""
    size = there.dtype.bits // 8
    return divides(CORNER_ALIGNMENT // gcd(CORNER_ALIGNMENT, size), there.offsets[contiguous])


def _affine(e: Expr) -> bool:
    """Whether ``e`` is a sum of constants and of indices times constants."""
    match e:
        case Const() | Index():
            return True
        case Binary(op="add" | "sub", a=a, b=b):
            return _affine(a) and _affine(b)
        case Binary(op="mul", a=a, b=b):
            return (value_of(a) is not None and _affine(b)) or (value_of(b) is not None and _affine(a))
    return False


def _split(n: int, row_bytes: int, refuse: Refuse) -> int:
    """The largest box extent up to 256 that divides ``n`` rows: a multiple of 8 rows if there is one.

    Each box but the first starts where another ends, on a multiple of 128 bytes.
    """
    if n <= LARGEST_BOX:
        return n
    found = [b for b in range(LARGEST_BOX, 0, -1) if n % b == 0 and b * row_bytes % SHARED_ALIGNMENT == 0]
    if not found:
        raise refuse(
            f"its {n} rows of {row_bytes} bytes are no equal boxes of at most {LARGEST_BOX} rows",
            f"boxes of a multiple of {SHARED_ALIGNMENT} bytes (PTX ISA, cp.async.bulk.tensor)",
        )
    return next((b for b in found if b % 8 == 0), found[0])


__all__ = ["TmaRefused", "boxes", "dimension_order", "is_load", "sides", "starts_on_unit"]
