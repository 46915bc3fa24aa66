"""TMA legality and boxes: which copies the tensor memory accelerator can do, and how they are cut into boxes.

PTX ISA, cp.async.bulk.tensor, and CUDA driver API, cuTensorMapEncodeTiled: bases and strides are multiples of
16 bytes, a box has at most 256 elements along each dimension, its innermost extent is a multiple of 16 bytes and
no wider than the swizzle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import gcd, prod

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
LARGEST_RANK, LARGEST_ELEMENT_STRIDE = 5, 8
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
    assert layout is not None, here.base.name
    if here.reshape is not None and not _dense(here, layout):
        raise refuse(
            f"the tile of `{here.base.name}` is a `span_as` of rows that are not consecutive", "plain rows"
        )
    here, layout = unfolded(here, layout)
    outer, inner = _axes(there, here, facts, refuse)
    if shares > 1:
        _check_shares(op, [axis for axis, _ in outer], layout, shares, refuse)
    width = _inner_extent(here, inner, size, layout, refuse)
    _check_corner(there.offsets[inner.dim], size, refuse)
    _check_address(here, layout, refuse)
    extents = _outer_extents(outer, here, layout, width * size, shares, refuse)
    extents[inner.dim] = width
    order = dimension_order(there.base.rank, facts.contiguous)
    for axis, _ in outer:
        if extents.get(axis.dim, 1) * _step(axis) > LARGEST_BOX:
            raise refuse(
                f"{extents[axis.dim]} elements in steps of {_step(axis)}",
                f"a box of at most {LARGEST_BOX} elements ({_MANUAL})",
            )
    return tuple(extents.get(d, 1) for d in order)


def _dense(here: View, layout: SharedLayoutPlan) -> bool:
    """Whether the elements of the buffer follow one another."""
    row = value_of(here.base.shape[-1]) or 1
    return layout.swizzle_atom == 0 and layout.pitch == row * here.dtype.bits // 8


def unfolded(here: View, layout: SharedLayoutPlan) -> tuple[View, SharedLayoutPlan]:
    """A view of a shared buffer in another shape (``span_as``) as a view of a buffer of that shape."""
    if here.reshape is None:
        return here, layout
    extents = [value_of(e) or 1 for e in here.reshape]
    pitch = extents[-1] * here.dtype.bits // 8
    base = replace(here.base, shape=here.reshape)
    return replace(here, base=base, reshape=None), replace(layout, pitch=pitch, rows=prod(extents[:-1]))


def element_strides(op: Copy, contiguous: int) -> tuple[int, ...]:
    """The distance of neighbouring elements of the tile along each dimension of the tensor map."""
    there, _ = sides(op)
    steps = {a.dim: _step(a) for a in there.axes if value_of(a.extent) != 1}
    return tuple(steps.get(d, 1) for d in dimension_order(there.base.rank, contiguous))


def _step(axis: Axis) -> int:
    step = value_of(axis.step)
    assert step is not None, axis
    return step


def _check_shares(op: Copy, outer: list[Axis], layout: SharedLayoutPlan, shares: int, refuse: Refuse) -> None:
    """Several blocks load equal parts of the rows of a matrix.

    A part may start within a swizzle atom: TMA exchanges the units of a line by bits of their address (CUDA
    programming guide, "TMA swizzle").
    """
    what = rule = ""
    unit = SHARED_ALIGNMENT // gcd(SHARED_ALIGNMENT, layout.swizzle_atom or layout.pitch)
    if not outer:
        what, rule = "it has one row to divide among several blocks", "a row for each block"
    elif len(outer) > 1:
        what, rule = "its tile has more than two axes longer than 1", "a matrix, whose rows several blocks divide"
    elif (n := value_of(outer[0].extent) or 1) % (unit * shares):
        what = f"its {n} rows cannot be divided among {shares} blocks" + f" in multiples of {unit}" * (unit > 1)
        rule = f"as many rows for each block of the cluster, in multiples of {SHARED_ALIGNMENT} bytes"
    if what:
        other = f", or use a tile of a multiple of {unit * shares} rows" if len(outer) == 1 else ""
        multicast = spelled(op.span, "`.multicast`", "`multicast=True`")
        raise refuse(what, rule, f"leave {multicast} out{other}")


def _outer_extents(
    outer: list[tuple[Axis, int]],
    here: View,
    layout: SharedLayoutPlan,
    row_bytes: int,
    shares: int,
    refuse: Refuse,
) -> dict[int, int]:
    """The extents of a box along the axes but the innermost.

    A box is dense in shared memory, its dimensions in the order of the tensor map.  It takes an axis as a whole
    if the rows that this adds follow those of the axes before; along any other axis it has one element, and the
    tile several boxes.
    """
    extents: dict[int, int] = {}
    rows = 1
    for axis, distance in outer:
        n = (value_of(axis.extent) or 1) // shares
        joins = distance == rows
        extents[axis.dim] = taken = _split(n, rows * row_bytes, refuse) if joins else 1
        rows *= taken
        if n > 1 and not joins and distance * layout.pitch % _start(layout):
            raise refuse(
                f"its boxes start {distance} rows of {layout.pitch} bytes apart in `{here.base.name}`",
                f"boxes that start on multiples of {_start(layout)} bytes of shared memory",
            )
    return extents


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
    if there.reshape is not None:
        raise refuse(f"the tile of `{there.base.name}` is a `span_as`", "tiles of the array's own dimensions")
    for v in (there, here):
        if v.static_shape is None:
            raise refuse(
                f"the extents of the tile of `{v.base.name}` are not known at compile time",
                "a box of known extents (" + _MANUAL + ")",
                "cut it with `subspan(h, w).at(i, j)`, or use `dma.copy`",
            )
    if any(value_of(a.step) != 1 for a in here.axes):
        raise refuse(f"the tile of `{here.base.name}` skips elements", "adjacent elements along every axis")
    most = LARGEST_ELEMENT_STRIDE if is_load(op) else 1
    if any((value_of(a.step) or 0) not in range(1, most + 1) for a in there.axes):
        raise refuse(
            f"the tile of `{there.base.name}` skips elements",
            f"steps of 1 to {LARGEST_ELEMENT_STRIDE} in loads, of 1 in stores ({_MANUAL}, elementStrides)",
        )


def _axes(there: View, here: View, facts: ArrayFacts, refuse: Refuse) -> tuple[list[tuple[Axis, int]], Axis]:
    """The array's axes that are longer than 1, as (all but the innermost, the innermost): the others in the order
    of the tensor map, each with the distance of its neighbours in the buffer, in rows.

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
    pairs = list(zip(mine, theirs, strict=False))
    fits = [value_of(a.extent) for a in mine] == [value_of(a.extent) for a in theirs]
    if not fits or any((a is inner) != (b is last) for a, b in pairs):
        raise refuse(
            f"the contiguous dimension of `{there.base.name}` is not the last of `{here.base.name}`",
            "the same innermost axis on both sides",
        )
    if value_of(inner.step) != 1:
        raise refuse(
            f"the tile of `{there.base.name}` skips elements of its contiguous dimension",
            f"adjacent elements along it ({_MANUAL}, elementStrides)",
        )
    extents = [value_of(e) or 1 for e in here.base.shape]
    outer = [(a, prod(extents[b.dim + 1 : -1])) for a, b in pairs if a is not inner]
    return sorted(outer, key=lambda pair: -pair[0].dim), inner


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


def _start(layout: SharedLayoutPlan) -> int:
    """The alignment of a box in shared memory, in bytes: it starts with whole swizzle atoms."""
    return 8 * layout.swizzle_atom if layout.swizzle_atom > 16 else SHARED_ALIGNMENT


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
    return max(found, key=lambda b: (b % 8 == 0, b))
