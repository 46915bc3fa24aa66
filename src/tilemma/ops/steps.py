"""From a problem and a plan to kernel calls: which kernel, with which arrays and compile-time values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilemma.kernels import Kernel
from tilemma.ops.arguments import Epilogue, Problem
from tilemma.ops.plan import Plan, cdiv
from tilemma.runtime.arrays import ArrayRef


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


def workspaces(problem: Problem, plan: Plan) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and element type of each array that the plan needs besides the caller's.

    "partial" holds the parts of a split product, [batch * parts, M, N]; "lhs" and "rhs" are operands in rows of
    whole cache lines.
    """
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    if plan.split > 1:
        found["partial"] = ((problem.batch * plan.split, *problem.shape[:2]), "f32")
    for name in plan.pack:
        x = problem.lhs if name == "lhs" else problem.rhs
        batch = 1 if x.strides[0] == 0 else x.shape[0]
        found[name] = ((batch, x.shape[1], -(-x.shape[2] // 64) * 64), x.dtype.name)
    return found


def steps(problem: Problem, plan: Plan, work: Mapping[str, ArrayRef] | None = None) -> Iterator[Step]:
    """The calls that compute ``problem`` (already transposed if the plan says so), in order; none for an
    empty result.  ``work`` has an array for each of `workspaces`.
    """
    if problem.out.is_empty:
        return
    work = work or {}
    for name in plan.pack:
        step, packed = _packed(problem.lhs if name == "lhs" else problem.rhs, name, work[name])
        yield step
        problem = replace(problem, lhs=packed) if name == "lhs" else replace(problem, rhs=packed)
    for offsets in problem.outer:
        for step in _product(problem, plan, offsets, work.get("partial")):
            renamed = tuple((f"work.{n}" if n in plan.pack else n, at) for n, at in step.sources)
            yield replace(step, sources=renamed)


def _packed(x: ArrayRef, name: str, work: ArrayRef) -> tuple[Step, ArrayRef]:
    """The call that copies an operand to aligned rows, and the copied operand."""
    from tilemma.ops.kernels import pack

    once = x.strides[0] == 0
    source = x._replace(shape=(1, *x.shape[1:])) if once else x
    step = Step(pack, (_part(source, 0), _part(work, 0)), {"T": x.dtype.name}, ((name, 0), (f"work.{name}", 0)))
    strides = (0 if once else work.strides[0], work.strides[1], 1)
    return step, work._replace(shape=x.shape, strides=strides)


def _part(x: ArrayRef, offset: int) -> ArrayRef:
    # The owner is wrapped: the kernel's view has another shape than its owner.
    return x._replace(pointer=x.pointer + offset, owner=(x.owner,))


def _once(x: ArrayRef) -> ArrayRef:
    """An operand that all batches share, as a single matrix: tensor maps have no stride 0."""
    return x._replace(shape=(1, *x.shape[1:])) if x.strides[0] == 0 else x


def _absent(problem: Problem, rank: int) -> ArrayRef:
    """A placeholder for a parameter that the kernel does not read: one element for each batch."""
    x = problem.lhs
    shape, strides = (1,) * rank, (0,) * rank
    if rank == 3:
        shape = (problem.batch, 1, 1)
    return x._replace(pointer=x.pointer & -16, shape=shape, strides=strides, owner=(x.owner,))


def _product(
    problem: Problem, plan: Plan, offsets: tuple[int, int, int, int], partial: ArrayRef | None
) -> Iterator[Step]:
    lhs, rhs = (_once(_part(x, at)) for x, at in zip((problem.lhs, problem.rhs), offsets[:2], strict=True))
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
    product = {**_constants(problem, plan), **_storage(problem)}
    scalars = (problem.alpha, problem.beta)
    finish = (c_from, bias_from, ("out", offsets[3]))
    if partial is None:
        yield Step(
            _kernel(plan.kernel), (lhs, rhs, c, bias, out, *scalars), {**product, **ending}, (*operands, *finish)
        )
        return
    from tilemma.ops.pipelined import add_parts

    parts, unused, vector = _part(partial, 0), _absent(problem, 3), _absent(problem, 1)
    plain = replace(problem, c=None, bias=None, epilogue=Epilogue())
    constants = {**product, **_epilogue(plain, unused, vector, parts)}
    args: tuple[Any, ...] = (lhs, rhs, unused, vector, parts, *scalars)
    yield Step(_kernel(plan.kernel), args, constants, (*operands, absent, absent, ("work.partial", 0)))
    args = (parts, c, bias, out, *scalars)
    yield Step(add_parts, args, {**ending, "SPLIT": plan.split}, (("work.partial", 0), *finish))


def _constants(problem: Problem, plan: Plan) -> dict[str, Any]:
    """The kernel's compile-time values: those of the plan, and those that simplify the computation of a block's
    task."""
    values = plan.constants
    if plan.kernel == "tiles":
        return values
    (m, n, _), (high, wide) = problem.shape, plan.cluster
    tiles_m, tiles_n = cdiv(m, plan.tile[0] * high), cdiv(n, plan.tile[1] * wide)
    if tiles_m <= plan.raster:
        values["RASTER"] = 0
    values["ONCE"] = problem.batch * tiles_m * tiles_n * plan.split <= plan.grid
    values["BACK"] = plan.back and not values["ONCE"]
    values["OUT"] = plan.split if problem.batch == 1 else "B" if plan.split == 1 else "PARTS"
    return values


def _epilogue(problem: Problem, c: ArrayRef, bias: ArrayRef, out: ArrayRef) -> dict[str, Any]:
    """Compile-time values that describe the epilogue: its inputs and its operations."""
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


def _batches(x: ArrayRef) -> str | int:
    """The first dimension of an operand's parameter."""
    return 1 if x.strides[0] == 0 or x.shape[0] == 1 else "B"


def _storage(problem: Problem) -> dict[str, Any]:
    """Element type of the operands, and which axis of each comes first in memory."""
    left = ("M", "K") if problem.lhs_major == "row" else ("K", "M")
    right = ("N", "K") if problem.rhs_major == "row" else ("K", "N")
    return {
        "T": problem.lhs.dtype.name,
        "LHS_BATCH": _batches(problem.lhs),
        "RHS_BATCH": _batches(problem.rhs),
        "LHS": problem.lhs_major,
        "RHS": problem.rhs_major,
        "LHS0": left[0],
        "LHS1": left[1],
        "RHS0": right[0],
        "RHS1": right[1],
    }
