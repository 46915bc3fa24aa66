"""From a problem and a plan to kernel calls: which kernel, with which arrays and compile-time values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tilemma.kernels import Kernel
from tilemma.ops.arguments import Epilogue, Problem
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


def _kernel(name: str) -> Kernel:
    from tilemma.ops import kernels, pipelined

    return {"tiles": kernels.matmul_tiles, "pipelined": pipelined.matmul_pipelined}[name]


def partial_shape(problem: Problem, plan: Plan) -> tuple[int, int, int] | None:
    """The f32 array that a split product needs besides the caller's, [batch * parts, M, N]."""
    if plan.split == 1:
        return None
    return (problem.batch * plan.split, *problem.shape[:2])


def steps(problem: Problem, plan: Plan, partial: ArrayRef | None = None) -> Iterator[Step]:
    """The calls that compute ``problem``, in order; none for an empty result.

    ``partial`` is an array of `partial_shape` where there is one.
    """
    if problem.out.is_empty:
        return
    for offsets in problem.outer:
        yield from _product(problem, plan, offsets, partial)


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


def _product(
    problem: Problem, plan: Plan, offsets: tuple[int, int, int, int], partial: ArrayRef | None
) -> Iterator[Step]:
    lhs, rhs = _part(problem.lhs, offsets[0]), _part(problem.rhs, offsets[1])
    out = _part(problem.out, offsets[3])
    absent = ("lhs", 0)
    c, c_from = _absent(problem, 3), absent
    if problem.c is not None:
        c, c_from = _part(problem.c, offsets[2]), ("c", offsets[2])
    bias, bias_from = _absent(problem, 1), absent
    if problem.bias is not None:
        bias, bias_from = _part(problem.bias, 0), ("bias", 0)
    operands = (("lhs", offsets[0]), ("rhs", offsets[1]))
    ending = _epilogue(problem, c, bias, out)
    product = {**plan.constants, **_storage(problem)}
    scalars = (problem.alpha, problem.beta)
    if partial is None:
        args = (lhs, rhs, c, bias, out, *scalars)
        sources = (*operands, c_from, bias_from, ("out", offsets[3]))
        yield Step(_kernel(plan.kernel), args, {**product, **ending}, sources)
        return
    from tilemma.ops.pipelined import add_parts

    parts = _part(partial, 0)
    nothing = _epilogue(replace(problem, c=None, bias=None, epilogue=Epilogue()), _absent(problem, 3), bias, parts)
    args = (lhs, rhs, _absent(problem, 3), _absent(problem, 1), parts, *scalars)
    nothing |= {"TB": problem.lhs.dtype.name, "OUT": "PARTS"}
    yield Step(
        _kernel(plan.kernel), args, {**product, **nothing}, (*operands, absent, absent, ("partial", 0))
    )
    args = (parts, c, bias, out, *scalars)
    yield Step(
        add_parts, args, {**ending, "SPLIT": plan.split}, (("partial", 0), c_from, bias_from, ("out", offsets[3]))
    )


def _epilogue(problem: Problem, c: ArrayRef, bias: ArrayRef, out: ArrayRef) -> dict[str, Any]:
    """Compile-time values that say what is read besides the operands, and what is done with it."""
    e = problem.epilogue
    return {
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
