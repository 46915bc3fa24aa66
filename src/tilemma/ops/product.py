"""The products of `tilemma.ops`, and `tilemma.ops.plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilemma.errors import WrongArgumentType, described
from tilemma.ops import arguments, gradients, launch_cache, plans
from tilemma.ops.arguments import FLOAT8, GROUPED, PLAIN, SCALED, Call, Rules
from tilemma.ops.candidates import choose
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Plan
from tilemma.ops.problem import Problem
from tilemma.ops.steps import Step, steps, workspaces
from tilemma.ops.workspace import allocate, launch_template
from tilemma.runtime import arrays
from tilemma.runtime.arrays import ArrayRef, describe, empty_like_first

_WARM = launch_cache.WarmCalls()
_OPTIONS = ("alpha", "beta", "activation", "out_dtype", "compute", "fast")


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
    compute: str | None = None,
    tune: bool = False,
) -> Any:
    """activation(alpha * (a @ b) + beta * c + bias), accumulated in f32, in s32 for integers, in f64 for f64.

    ``a`` is [..., M, K], ``b`` is [..., K, N], both f16, bf16, f32 or f64, or each s8 or u8, with any strides;
    batch dimensions broadcast.  f32 is multiplied exactly on the CUDA cores, or with ``compute="tf32"`` as tf32 on
    the tensor cores.  ``c`` broadcasts to [..., M, N] and is not read where beta is 0; ``bias`` is [N] or
    [1, N] (for each column) or [M, 1] (for each row); ``activation`` is relu, gelu (with the error function) or
    silu.  ``out`` [..., M, N] has any strides, and is f16, bf16 or f32, or for integers s32, s8, u8, f16, bf16 or
    f32, or for f64 f64 or f32; without it the library of ``a`` allocates it, of type ``out_dtype`` (default: that
    of ``a``, or s32).
    ``out`` may be ``c`` itself, and may share memory with nothing else.  Sums of integers are exact below 2^31;
    alpha, beta, bias and activation are applied in f32 (f64 for f64, but gelu's and silu's factor of x has the
    precision of f32), and the result is rounded and saturated.
    ``tune``: measure the plans that the model likes best, once for each kind of call, and keep the winner.

    Returns the result.  NumPy arrays are computed by the CPU reference, CUDA arrays on their device, on their
    library's current stream.  The same arguments give the same bits.  Raises MatmulShape, MatmulType,
    MatmulScalar, MatmulAddend, MatmulCompute, MatmulGradient, UnknownActivation, MixedDevices, ReadOnlyArray,
    SelfOverlappingArray, OverlappingArrays and what `runtime.describe` raises, before anything is started.
    """
    arrays_ = (a, b, c, bias, out, None, None, None)
    return _computed(PLAIN, arrays_, (alpha, beta, activation, out_dtype, compute, True), tune)


def scaled_matmul(
    a: Any,
    b: Any,
    scale_a: Any = 1.0,
    scale_b: Any = 1.0,
    *,
    out: Any = None,
    out_dtype: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    bias: Any = None,
    activation: str | None = None,
    fast: bool = True,
    tune: bool = False,
) -> Any:
    """activation(alpha * (scale_a * a) @ (scale_b * b) + beta * c + bias).

    ``a`` [..., M, K] and ``b`` [..., K, N] are each f8_e4m3 or f8_e5m2, or each s8 or u8.  A scale is a number or
    an f32 array: of one element; [..., M, 1] and [..., 1, N] (one for each row of ``a``, each column of ``b``);
    [..., M, ceil(K/128)] and [..., ceil(K/128), N] (one for 128 elements along K); [..., ceil(M/128), ceil(K/128)]
    and [..., ceil(K/128), ceil(N/128)] (one for each block of 128 x 128).  The two may differ in form.

    Tensor cores add products of 8-bit floats with about 14 bits.  With ``fast=False``, and always where scales
    change along K, the products of each 128 of K are summed apart, and these sums are added in f32.

    ``out_dtype`` (default bf16) is bf16, f16, f32 or s8, for integers also s32 or u8.  The other arguments, the
    result and the errors are those of `matmul`; MatmulScale besides.
    """
    arrays_ = (a, b, c, bias, out, scale_a, scale_b, None)
    return _computed(SCALED, arrays_, (alpha, beta, activation, out_dtype, None, fast), tune)


def grouped_matmul(
    a: Any,
    b: Any,
    offsets: Any,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    bias: Any = None,
    activation: str | None = None,
    fast: bool = True,
    tune: bool = False,
) -> Any:
    """For each group e: result[begin:end] = activation(alpha * a[begin:end] @ b[e] + beta * c[begin:end] + bias).

    ``a`` is [T, K], ``b`` is [E, K, N] and ``offsets`` s32 [E], on the device of ``a``: group e has the rows from
    offsets[e - 1] (0 for the first) to offsets[e]; groups may be empty.  The host never reads offsets on a device.
    There a group that would end before it begins is empty, and rows beyond T do not exist; for arrays on the CPU
    both are refused.  Rows from offsets[E - 1] on are not written: in an allocated result they are undefined.

    Types and accumulation are those of `matmul` and `scaled_matmul`, the default type of the result that of ``a``
    (8-bit floats: bf16; integers: s32).  ``scale_a`` is for the rows of ``a``, [T, 1] or [T, ceil(K/128)],
    ``scale_b`` that of `scaled_matmul` with the groups as batch, [E, 1, N] for example; ``bias`` is [N], or [E, N]
    with a row for each group.  Raises what `scaled_matmul` raises, and MatmulOffsets.
    """
    arrays_ = (a, b, c, bias, out, scale_a, scale_b, offsets)
    return _computed(GROUPED, arrays_, (alpha, beta, activation, out_dtype, None, fast), tune)


def _computed(rules: Rules, arrays_: tuple[Any, ...], options: tuple[Any, ...], tune: Any) -> Any:
    """The result of a call; ``arrays_`` are those of `launch_cache.NAMES`."""
    if tune is not False:
        _check_flag(rules.function, "tune", tune)
    if options[-1] is not True:
        _check_flag(rules.function, "fast", options[-1])
    if gradients.are_recorded():
        named = dict(zip(launch_cache.NAMES, arrays_, strict=True))
        recorded = gradients.differentiable(rules.function, named)
        if recorded is not None:
            return recorded(**named, **dict(zip(_OPTIONS, options, strict=True)))
    a, out, keyed, scales = arrays_[0], arrays_[4], arrays_, arrays_[5:7]
    if scales[0] is not None or scales[1] is not None:
        # Scales that are numbers belong to the options, by their bits: 0.0 is not -0.0.
        scales = tuple([x.hex() if type(x) is float else None for x in scales])
        arrays_of_scales = [None if n is not None else x for n, x in zip(scales, arrays_[5:7], strict=True)]
        keyed = (*arrays_[:5], *arrays_of_scales, arrays_[7])
    alpha, beta = options[:2]
    plain = type(alpha) is float and alpha and type(beta) is float
    told = options if plain else launch_cache.exact(options)
    key = launch_cache.key_of(keyed, (rules.function, *told, tune, scales))
    if key is not None:
        entry = _WARM.find(key, rules.function, keyed)
        if entry is not None:
            return entry.run(a, out)
    problem, result, made = prepare(rules, arrays_, options)
    if problem.is_empty:
        return result
    chosen = plans.best(problem, tune) if problem.out.device[0] == "cuda" else choose(problem)
    if problem.out.device[0] == "cuda":
        recipe = template(problem, chosen, describe(a), problem_shape(problem) if made else None)
        if key is not None:
            recipe_entry = _WARM.put(key, recipe)
            return recipe_entry.run(a, out)
        for launch, _ in recipe.launches:
            launch.start(recipe.stream())
        return result
    run(problem, chosen)
    return result


def prepare(rules: Rules, arrays_: tuple[Any, ...], options: tuple[Any, ...]) -> tuple[Problem, Any, bool]:
    """A call checked: the problem, the array for its result, and whether that was allocated here."""
    a, b, c, bias, out, scale_a, scale_b, offsets = arrays_
    alpha, beta, activation, out_dtype, compute, fast = options
    left, right = describe(a), describe(b)
    given, addend, vector, ends = (None if x is None else describe(x) for x in (out, c, bias, offsets))
    if rules is GROUPED and ends is None:
        describe(offsets)
    scales = {"scale_a": scale_a, "scale_b": scale_b}
    scales = {n: describe(x) if arrays.is_array(x) else x for n, x in scales.items()}
    call = Call(
        left, right, given, out_dtype, alpha, beta, addend, vector, activation,
        offsets=ends, fast=fast, rules=rules, compute=compute, **scales,
    )  # fmt: skip
    shape, dtype = arguments.check(call)
    made = given is None
    if given is None:
        out = empty_like_first(left, shape, dtype)
        given = describe(out)._replace(writable=True)
    return arguments.problem(call, given, made=made), out, made


def run(problem: Problem, plan: Plan, target: str = "auto", **options: Any) -> None:
    """Compute ``problem`` as ``plan`` says, on ``target`` (as `Kernel.on`)."""
    planned = transposed_product(problem) if plan.swap else problem
    work = {name: describe(x) for name, x in allocate(planned, plan, problem.lhs).items()}
    for step in steps(planned, plan, work):
        step.kernel.on(target, **options)(*step.args, **step.constants)


def template(
    problem: Problem,
    plan: Plan,
    first: ArrayRef,
    shape: tuple[int, ...] | None,
    before: Sequence[Step] = (),
    needs: Mapping[str, tuple[tuple[int, ...], str]] | None = None,
    names: Mapping[str, str] | None = None,
) -> launch_cache.LaunchTemplate:
    """The launches of ``problem``, prepared for its arrays, after those of ``before``.

    ``first``: the call's first array.  ``shape``: that of the result, which each call allocates; None for one that
    is given.  ``needs``: further arrays that each call allocates, by source.  ``names``: the caller's names for
    the operands and scales, where they are others than those of `matmul`.
    """
    planned = transposed_product(problem) if plan.swap else problem
    work = {n: describe(x) for n, x in allocate(planned, plan, first).items()}
    made = {} if shape is None else {"out": (shape, problem.out.dtype.name)}
    made |= needs or {}
    made |= {f"work.{n}": spec for n, spec in workspaces(planned, plan).items()}
    called = {ours: (names or {}).get(theirs, theirs) for ours, theirs in caller_names(planned).items()}
    return launch_template([*before, *steps(planned, plan, work)], first, made, called)


def caller_names(problem: Problem) -> dict[str, str]:
    """The caller's name for each array of the problem."""
    left, right = ("b", "a") if problem.swapped else ("a", "b")
    return {"lhs": left, "rhs": right, "scale_lhs": f"scale_{left}", "scale_rhs": f"scale_{right}"}


def problem_shape(problem: Problem) -> tuple[int, ...]:
    """The shape that the caller's result has."""
    shape: tuple[int, ...] = arrays.describe(problem.out.owner).shape
    return shape


def _check_flag(function: str, name: str, value: object) -> None:
    if not isinstance(value, (bool, np.bool_)):
        raise WrongArgumentType(function=function, name=name, got=described(value), wanted="True or False")


def plan(
    a: Any, b: Any, scale_a: Any = None, scale_b: Any = None, *, offsets: Any = None, tune: bool = False,
    out: Any = None, out_dtype: Any = None, alpha: float = 1.0, beta: float = 0.0, c: Any = None, bias: Any = None,
    activation: str | None = None, compute: str | None = None, fast: bool = True,
) -> plans.Report:  # fmt: skip
    """The plan of a call with these arguments: its text has the choice, the alternatives and the reasons.

    With ``offsets`` the call is one of `grouped_matmul`, with 8-bit floats or a scale one of `scaled_matmul`, else
    one of `matmul`.  Nothing is computed and no result is needed, but ``tune`` measures, and then computes the
    result, in ``out`` if that is given.  Arrays on the CPU are planned as for an H200.
    Raises what these functions raise.
    """
    _check_flag("plan", "tune", tune)
    scaled = scale_a is not None or scale_b is not None or describe(a).dtype.name in FLOAT8
    rules = GROUPED if offsets is not None else SCALED if scaled else PLAIN
    given = (a, b, c, bias, out, scale_a, scale_b, offsets)
    problem, _, _ = prepare(rules, given, (alpha, beta, activation, out_dtype, compute, fast))
    return plans.report(problem, tune)
