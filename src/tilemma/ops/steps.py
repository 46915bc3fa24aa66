"""From a problem and a plan to kernel calls: which kernel, with which arrays and compile-time values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tilemma.kernels import Kernel
from tilemma.ops.arguments import Problem
from tilemma.ops.plan import Plan
from tilemma.runtime.arrays import ArrayRef

# The caller's arrays, by the names that the kernels' parameters stand for.
SOURCES = ("lhs", "rhs", "c", "bias", "out", "partial")


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel call.

    ``sources``: for each array parameter, in order, the array of the problem that it is a part of, and how many
    bytes into it.
    """

    kernel: Kernel
    args: tuple[Any, ...]
    constants: dict[str, Any]
    sources: tuple[tuple[str, int], ...]


def _kernels() -> dict[str, Kernel]:
    from tilemma.ops import kernels

    return {"tiles": kernels.matmul_tiles}


def steps(problem: Problem, plan: Plan) -> Iterator[Step]:
    """The calls that compute ``problem``, in order; none for an empty result."""
    if problem.out.is_empty:
        return
    for offsets in problem.outer:
        yield from _product(problem, plan, offsets)


def _part(x: ArrayRef, offset: int) -> ArrayRef:
    # The owner is wrapped: what the kernel sees is not the owner's own shape.
    return x._replace(pointer=x.pointer + offset, owner=(x.owner,))


def _absent(problem: Problem, rank: int) -> ArrayRef:
    """Stands for a parameter that the kernel does not read: one element for each batch."""
    x = problem.lhs
    shape, strides = (1,) * rank, (0,) * rank
    if rank == 3:
        shape = (problem.batch, 1, 1)
    return x._replace(pointer=x.pointer & -16, shape=shape, strides=strides, owner=(x.owner,))


def _product(problem: Problem, plan: Plan, offsets: tuple[int, int, int, int]) -> Iterator[Step]:
    e = problem.epilogue
    lhs, rhs = _part(problem.lhs, offsets[0]), _part(problem.rhs, offsets[1])
    out = _part(problem.out, offsets[3])
    c = _absent(problem, 3) if problem.c is None else _part(problem.c, offsets[2])
    bias = _absent(problem, 1) if problem.bias is None else _part(problem.bias, 0)
    constants = {
        **plan.constants,
        **_storage(problem),
        "TC": c.dtype.name,
        "TB": bias.dtype.name,
        "TO": out.dtype.name,
        "C0": "M" if problem.c is not None else 1,
        "C1": "N" if problem.c is not None else 1,
        "BIAS": {"columns": "N", "rows": "M", "": 1}[e.bias],
        "SCALE": e.scaled,
        "ADDEND": e.addend,
        "ALONG": e.bias,
        "ACTIVATION": e.activation,
    }
    sources = (
        ("lhs", offsets[0]),
        ("rhs", offsets[1]),
        ("c", offsets[2]) if problem.c is not None else ("lhs", 0),
        ("bias", 0) if problem.bias is not None else ("lhs", 0),
        ("out", offsets[3]),
    )
    args = (lhs, rhs, c, bias, out, problem.alpha, problem.beta)
    yield Step(_kernels()[plan.kernel], args, constants, sources)


def _storage(problem: Problem) -> dict[str, Any]:
    """Element type of the operands, and which axis of each comes first in memory."""
    left = ("M", "K") if problem.lhs_major == "row" else ("K", "M")
    right = ("N", "K") if problem.rhs_major == "row" else ("K", "N")
    return {
        "T": problem.lhs.dtype.name,
        "LHS": problem.lhs_major,
        "RHS": problem.rhs_major,
        "LHS0": left[0],
        "LHS1": left[1],
        "RHS0": right[0],
        "RHS1": right[1],
    }
