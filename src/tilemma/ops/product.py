"""`tilemma.ops.matmul` and `tilemma.ops.plan`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilemma.errors import WrongArgumentType, described
from tilemma.ops import arguments, launch_cache, plans
from tilemma.ops.arguments import Problem
from tilemma.ops.plan import Plan, choose, turned
from tilemma.ops.steps import steps, workspaces
from tilemma.runtime import arrays
from tilemma.runtime.arrays import ArrayRef, describe, empty_like_first, stream_source

_WARM = launch_cache.WarmCalls()


def matmul(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    out_dtype: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    bias: Any = None,
    activation: str | None = None,
    tune: bool = False,
) -> Any:
    """activation(alpha * (a @ b) + beta * c + bias), accumulated in f32.

    ``a`` is [..., M, K], ``b`` is [..., K, N], both f16 or both bf16, with any strides; batch dimensions
    broadcast.  ``c`` broadcasts to [..., M, N] and is not read where beta is 0; ``bias`` is [N] or [1, N] (for
    each column) or [M, 1] (for each row); ``activation`` is relu, gelu (with the error function) or silu.  ``out``
    [..., M, N] is f16, bf16 or f32, with any strides; without it the library of ``a`` allocates it, of type
    ``out_dtype`` (default: that of ``a``).  ``out`` may be ``c`` itself, and may share memory with nothing else.
    ``tune``: measure the plans that the model likes best, once for each kind of call, and keep the winner.

    Returns the result.  NumPy arrays are computed by the CPU reference, CUDA arrays on their device, on their
    library's current stream.  The same arguments give the same bits.  Raises MatmulShape, MatmulType,
    MatmulScalar, MatmulAddend, UnknownActivation, MixedDevices, ReadOnlyArray, SelfOverlappingArray,
    OverlappingArrays and what `runtime.describe` raises, before anything is started.
    """
    if tune is not False:
        _check_tune("matmul", tune)
    key = launch_cache.key_of((a, b, c, bias, out), (alpha, beta, activation, out_dtype, tune))
    if key is not None:
        entry = _WARM.find(key)
        if entry is not None:
            return entry.run(a, out)
    problem, result, made = prepare(a, b, out, out_dtype, alpha, beta, c, bias, activation)
    if problem.out.is_empty:
        return result
    chosen = plans.best(problem, tune) if problem.out.device[0] == "cuda" else choose(problem)
    if problem.out.device[0] == "cuda":
        recipe = _template(problem, chosen, a, made)
        if key is not None:
            recipe_entry = _WARM.put(key, recipe)
            return recipe_entry.run(a, out)
        for launch, _ in recipe.launches:
            launch.start(recipe.stream())
        return result
    run(problem, chosen)
    return result


def prepare(
    a: Any,
    b: Any,
    out: Any = None,
    out_dtype: Any = None,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    c: Any = None,
    bias: Any = None,
    activation: Any = None,
) -> tuple[Problem, Any, bool]:
    """A call checked: the problem, the array for its result, and whether that was allocated here."""
    left, right = describe(a), describe(b)
    given = None if out is None else describe(out)
    addend, vector = (None if x is None else describe(x) for x in (c, bias))
    shape, dtype = arguments.check(left, right, given, out_dtype, alpha, beta, addend, vector, activation)
    made = given is None
    if given is None:
        out = empty_like_first(left, shape, dtype)
        given = describe(out)._replace(writable=True)
    return arguments.problem(left, right, given, alpha, beta, addend, vector, activation, made=made), out, made


def run(problem: Problem, plan: Plan, target: str = "auto", **options: Any) -> None:
    """Compute ``problem`` as ``plan`` says, on ``target`` (as `Kernel.on`)."""
    planned = turned(problem) if plan.swap else problem
    work = {name: describe(x) for name, x in allocate(planned, plan, problem.lhs).items()}
    for step in steps(planned, plan, work):
        step.kernel.on(target, **options)(*step.args, **step.constants)


def allocate(problem: Problem, plan: Plan, like: ArrayRef) -> dict[str, Any]:
    """The arrays that ``plan`` needs, by the library of ``like``."""
    return {n: empty_like_first(like, shape, dtype) for n, (shape, dtype) in workspaces(problem, plan).items()}


def _template(problem: Problem, plan: Plan, first: Any, made: bool) -> launch_cache.LaunchTemplate:
    """The launches of ``problem``, prepared for its arrays."""
    planned = turned(problem) if plan.swap else problem
    like = describe(first)
    work = allocate(planned, plan, like)
    sources = _sources(planned)
    launches = []
    for step in steps(planned, plan, {n: describe(x) for n, x in work.items()}):
        # Results of libraries with immutable arrays are written before the caller receives them.
        args = tuple(x._replace(writable=True) if isinstance(x, ArrayRef) else x for x in step.args)
        names = [p.buffer.name for p in step.kernel.build(**step.constants).arrays]
        places = {n: (sources.get(s, s), offset) for n, (s, offset) in zip(names, step.sources, strict=True)}
        prepared = step.kernel.on("cuda").prepare(*args, **step.constants)
        launches += [(launch, places) for launch in prepared]
    needs = {"out": (problem_shape(problem), problem.out.dtype.name)} if made else {}
    needs |= {f"work.{n}": spec for n, spec in workspaces(planned, plan).items()}
    makes = [(source, launch_cache.maker(like, *spec)) for source, spec in needs.items()]
    return launch_cache.LaunchTemplate(tuple(launches), tuple(makes), stream_source(like))


def _sources(problem: Problem) -> dict[str, str]:
    """The caller's name for each array of the problem."""
    lhs, rhs = ("b", "a") if problem.swapped else ("a", "b")
    return {"lhs": lhs, "rhs": rhs}


def problem_shape(problem: Problem) -> tuple[int, ...]:
    """The shape that the caller's result has."""
    shape: tuple[int, ...] = arrays.describe(problem.out.owner).shape
    return shape


def _check_tune(function: str, tune: object) -> None:
    if not isinstance(tune, (bool, np.bool_)):
        raise WrongArgumentType(function=function, name="tune", got=described(tune), wanted="True or False")


def plan(a: Any, b: Any, *, tune: bool = False, **keywords: Any) -> plans.Report:
    """How `matmul` would compute a call with these arguments: print it for the choice, the alternatives and why.

    Nothing is computed and no result is needed; keywords are those of `matmul`.  Arrays on the CPU are planned as
    for an H200.  Raises what `matmul` raises.
    """
    _check_tune("plan", tune)
    problem, _, _ = prepare(a, b, **keywords)
    return plans.report(problem, tune)


__all__ = ["matmul", "plan"]
