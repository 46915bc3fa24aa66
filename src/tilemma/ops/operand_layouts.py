"""Layouts of a problem's arrays: which of them TMA and wgmma read in place, which are copied first, and the
transposed product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from tilemma.ops.problem import Problem, Scaling
from tilemma.runtime.arrays import ArrayRef, facts


def aligned(x: ArrayRef) -> bool:
    """Whether TMA can read or write ``x``: contiguous along the last dimension, other strides multiples of 16
    bytes."""
    found = facts(x)
    return found.contiguous == x.rank - 1 and found.alignment == 16


def transposed(x: ArrayRef) -> ArrayRef:
    """Matrices with rows and columns exchanged."""
    shape, strides = x.shape, x.strides
    return x._replace(shape=(*shape[:-2], shape[-1], shape[-2]), strides=(*strides[:-2], strides[-1], strides[-2]))


def transposed_product(problem: Problem) -> Problem:
    """The transposed product: out^T = rhs x lhs^T."""
    return replace(
        problem,
        lhs=problem.rhs,
        rhs=problem.lhs,
        lhs_major=problem.rhs_major,
        rhs_major=problem.lhs_major,
        out=transposed(problem.out),
        c=None if problem.c is None else transposed(problem.c),
        epilogue=problem.epilogue.swapped(),
        swapped=not problem.swapped,
        outer=tuple((r, left, c, o, sr, sl) for left, r, c, o, sl, sr in problem.outer),
        left=problem.right,
        right=problem.left,
        grouped=_OTHER_AXIS[problem.grouped],
    )


_OTHER_AXIS: dict[str, Literal["", "rows", "columns"]] = {"": "", "rows": "columns", "columns": "rows"}


def by_columns(problem: Problem) -> bool:
    """Whether the result is column-major."""
    return problem.out.strides[2] != 1 and problem.out.strides[1] == 1


def must_transpose(p: Problem, name: str) -> bool:
    """Whether the pipelined kernel needs K contiguous in an operand, "lhs" or "rhs", that has it otherwise.

    wgmma reads all but 16-bit operands so only, and TMA starts at multiples of 16 bytes of a row, but groups
    anywhere.
    """
    major, divided = (p.lhs_major, "rows") if name == "lhs" else (p.rhs_major, "columns")
    return major == "col" and (p.lhs.dtype.bits != 16 or p.grouped == divided)


def packed(p: Problem) -> tuple[str, ...]:
    """The arrays that TMA or wgmma cannot read where they are."""
    found = [n for n, x in (("lhs", p.lhs), ("rhs", p.rhs)) if not aligned(x) or must_transpose(p, n)]
    # The scales of the columns go through the ring, those of the rows are read from memory.
    if p.right.kind == "steps" and p.right.array is not None and not aligned(p.right.array):
        found.append("scale_rhs")
    return tuple(found)


def packs(p: Problem) -> Iterator[tuple[str, ...]]:
    """The arrays that a plan copies first: those of `packed`, or besides them the scales that TMA could otherwise
    not bring with the tiles."""
    needed = packed(p)
    yield needed
    scales = (("scale_lhs", p.left), ("scale_rhs", p.right))
    far = [n for n, x in scales if p.promote and far_scales(x) and n not in needed]
    if far:
        yield (*needed, *far)


def brought(scale: Scaling) -> Scaling:
    """``scale`` as TMA can bring it with the tiles: blocks whose steps are neighbours in memory as [batch, extent,
    steps]."""
    x = scale.array
    if scale.kind != "blocks" or x is None or aligned(x) or not aligned(transposed(x)):
        return scale
    return replace(scale, array=transposed(x), turned=True)


def far_scales(scale: Scaling) -> bool:
    """Whether the scales of each step are read from memory, because TMA cannot bring them with the tiles."""
    found = brought(scale).array
    return scale.stepwise and found is not None and not aligned(found)
