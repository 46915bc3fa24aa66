"""`tilemma.ops.matmul`."""

from __future__ import annotations

from typing import Any

from tilemma.ops import arguments
from tilemma.ops.plan import Plan, choose
from tilemma.ops.steps import steps
from tilemma.runtime.arrays import describe, empty_like_first


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
) -> Any:
    """activation(alpha * (a @ b) + beta * c + bias), accumulated in f32.

    ``a`` is [..., M, K], ``b`` is [..., K, N], both f16 or both bf16, with any strides; batch dimensions
    broadcast.  ``c`` broadcasts to [..., M, N] and is not read where beta is 0; ``bias`` is [N] or [1, N] (for each
    column) or [M, 1] (for each row); ``activation`` is relu, gelu (with the error function) or silu.  ``out``
    [..., M, N] is f16, bf16 or f32, with any strides; without it the library of ``a`` allocates it, of type
    ``out_dtype`` (default: that of ``a``).  ``out`` may be ``c`` itself, and may share memory with nothing else.

    Returns the result.  NumPy arrays are computed by the CPU reference, CUDA arrays on their device, on their
    library's current stream.  The same arguments give the same bits.  Raises MatmulShape, MatmulType,
    MatmulScalar, MatmulAddend, UnknownActivation, MixedDevices, ReadOnlyArray, SelfOverlappingArray,
    OverlappingArrays and what `runtime.describe` raises, before anything is started.
    """
    left, right = describe(a), describe(b)
    given = None if out is None else describe(out)
    addend, vector = (None if x is None else describe(x) for x in (c, bias))
    shape, dtype = arguments.check(left, right, given, out_dtype, alpha, beta, addend, vector, activation)
    made = given is None
    result = out
    if given is None:
        result = empty_like_first(left, shape, dtype)
        given = describe(result)._replace(writable=True)
    problem = arguments.problem(left, right, given, alpha, beta, addend, vector, activation, made=made)
    run(problem, choose(problem))
    return result


def run(problem: arguments.Problem, plan: Plan, target: str = "auto", **options: Any) -> None:
    """Compute ``problem`` as ``plan`` says, on ``target`` (as `Kernel.on`)."""
    for step in steps(problem, plan):
        step.kernel.on(target, **options)(*step.args, **step.constants)
