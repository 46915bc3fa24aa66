"""Execution of `gated_matmul`, `sparse_matmul`, `mixed_matmul` and `conv2d`: from a checked call to launches, and
to the result.

`sparse`, `mixed`, `gated` and `convolution` have one kernel each.  A kernel takes its operands, then the addend
[B, M, N], the bias [1, N or M], the result [B, M, N], alpha and beta; `steps.epilogue_constants` names the
compile-time values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilemma.arithmetic.integers import cdiv
from tilemma.kernels import Kernel
from tilemma.ops import arguments, launch_cache, plans
from tilemma.ops.arguments import Call
from tilemma.ops.candidates import choose
from tilemma.ops.operand_layouts import aligned, transposed_product
from tilemma.ops.plan import PORT, Hardware, hardware
from tilemma.ops.problem import UNSCALED, Problem
from tilemma.ops.product import caller_names
from tilemma.ops.shared_operands import Operands, merged
from tilemma.ops.steps import Source, Step, absent, epilogue_constants, once, part, workspaces
from tilemma.ops.steps import steps as product_steps
from tilemma.ops.workspace import allocate, launch_template
from tilemma.runtime.arrays import ArrayRef, describe, empty_like_first

_WARM = launch_cache.WarmCalls()
# Rows and columns of tiles, of equally fast ones the first; clocks of a step besides transfers and multiplies.
TILES, STEP = ((128, 256), (128, 128), (128, 64), (64, 128), (64, 64)), 60.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked call: its kernel calls, the array for the result, and whether that was allocated for it."""

    steps: tuple[Step, ...]
    out: Any
    made: bool
    result: ArrayRef
    work: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand [.., rows, columns] with the batch of the result, and its name in `launch_cache.NAMES`."""

    array: ArrayRef
    source: str


def compute(
    function: str, arrays: tuple[Any, ...], options: tuple[Any, ...], prepare: Callable[[], Prepared]
) -> Any:
    """The result of a call; ``arrays`` are those of `launch_cache.NAMES`, `prepare` checks and prepares it."""
    key = launch_cache.key_of(arrays, (function, *launch_cache.exact(options)))
    if key is not None:
        entry = _WARM.find(key, function, arrays)
        if entry is not None:
            return entry.run(arrays[0], arrays[4])
    ready = prepare()
    if ready.result.is_empty:
        return ready.out
    if ready.result.device[0] != "cuda":
        run(ready)
        return ready.out
    template = _template(ready, arrays[0])
    if key is not None:
        return _WARM.put(key, template).run(arrays[0], arrays[4])
    for launch, _ in template.launches:
        launch.start(template.stream())
    return ready.out


def run(ready: Prepared, target: str = "auto", **options: Any) -> None:
    """Run the kernels of a call on ``target`` (as `Kernel.on`)."""
    for step in ready.steps:
        step.kernel.on(target, **options)(*step.args, **step.constants)


def _template(ready: Prepared, first: Any) -> launch_cache.LaunchTemplate:
    needs = {"out": (describe(ready.out).shape, ready.result.dtype.name)} if ready.made else {}
    needs |= {f"work.{n}": spec for n, spec in ready.work.items()}
    return launch_template(ready.steps, describe(first), needs, {})


def allocated(call: Call, shape: tuple[int, ...], out: Any) -> tuple[Any, ArrayRef, bool]:
    """(the array for the result, the same described, whether it was allocated here)."""
    dtype = arguments.check_epilogue(call, shape)
    if call.out is not None:
        return out, call.out, False
    made = empty_like_first(call.a, shape, dtype)
    return made, describe(made)._replace(writable=True), True


def one_product(call: Call, result: ArrayRef, weights: ArrayRef) -> tuple[Call, ArrayRef]:
    """``call`` and its result with the rows of all products of a batch by the same ``weights`` [K, N] as those of
    one product, where they continue."""
    c = None if call.c is None or call.beta == 0 else arguments.broadcast(call, "c", call.c, result.shape)
    along = "" if call.bias is None else arguments.bias_of(call, call.bias, *result.shape[-2:])[1]
    shared = widened(weights, (*result.shape[:-2], *weights.shape))
    one = merged(Operands(widened(call.a, result.shape), shared, result, c, UNSCALED, UNSCALED), along)
    return replace(call, a=one.lhs, c=call.c if c is None else one.c), one.out


def prepared(
    call: Call,
    out: Any,
    result: ArrayRef,
    made: bool,
    kernel: Kernel,
    operands: Sequence[Operand],
    named: Mapping[str, ArrayRef | None],
    constants: Mapping[str, Any],
    room: Sequence[tuple[ArrayRef, Source]] = (),
) -> Prepared:
    """The kernel calls for at most four ``operands``; ``named`` are the caller's arrays, for the checks of memory,
    and ``room`` follows the result.

    Raises MixedDevices, ReadOnlyArray, SelfOverlappingArray, OverlappingArrays.
    """
    c, bias, alpha, beta, epilogue = arguments.ending(call, result, made, dict(named))
    given = [*operands, *[None] * (4 - len(operands))]
    arrays = [None if x is None else x.array for x in given]
    addend = c if epilogue.addend == "c" else None
    flat, outer = arguments.flat_batch((arrays[0], arrays[1], addend, result, arrays[2], arrays[3]))
    lhs, target = flat[0], flat[3]
    assert lhs is not None and target is not None
    problem = Problem(
        lhs, lhs, target, flat[2], bias, "row", "row", alpha, beta, epilogue, swapped=False, outer=outer
    )
    steps = []
    for at in () if problem.is_empty else outer:
        places = [(flat[i], at[i], x.source) for i, x in zip((0, 1, 4, 5), given, strict=True) if x is not None]
        taken = [(once(part(x, o)), (source, o)) for x, o, source in places if x is not None]
        addends = nothing(problem, (problem.batch, 1, 1))
        if flat[2] is not None:
            addends = part(flat[2], at[2]), ("c", at[2])
        biases = nothing(problem, (1, 1)) if bias is None else (part(bias, 0), ("bias", 0))
        taken += [addends, biases, (part(target, at[3]), ("out", at[3])), *room]
        values = epilogue_constants(problem, addends[0], biases[0], target)
        steps.append(
            Step(
                kernel, (*(x for x, _ in taken), alpha, beta), {**values, **constants}, tuple(s for _, s in taken)
            )
        )
    return Prepared(tuple(steps), out, made, result)


def as_product(
    call: Call, out: Any, result: ArrayRef, matrix: ArrayRef, made: bool, like: ArrayRef | None = None
) -> Prepared:
    """The kernel calls of `matmul` for the operands of ``call``; ``matrix`` is ``result``, as the product's.

    ``like``: the caller's array whose library allocates, where that of ``call`` is a view of it.
    """
    problem = arguments.problem(call, matrix, made=made)
    plan = plans.best(problem) if matrix.device[0] == "cuda" else choose(problem)
    planned = transposed_product(problem) if plan.swap else problem
    work = {n: describe(x) for n, x in allocate(planned, plan, like or call.a).items()}
    names = caller_names(planned)
    found = [
        replace(s, sources=tuple((names.get(n, n), at) for n, at in s.sources))
        for s in product_steps(planned, plan, work)
    ]
    return Prepared(tuple(found), out, made, result, workspaces(planned, plan))


def product_seconds(call: Call, result: ArrayRef, made: bool) -> float:
    """The time of `matmul` for the operands of ``call``, by its model."""
    return plans.usable(arguments.problem(call, result, made=made), hardware(result.device))[0].seconds


def nothing(problem: Problem, shape: tuple[int, ...]) -> tuple[ArrayRef, Source]:
    """A placeholder for a parameter that the kernel does not read."""
    return absent(problem, shape)[0], ("a", 0)


def widened(x: ArrayRef, shape: tuple[int, ...]) -> ArrayRef:
    """An operand with the batch dimensions of ``shape``, which it broadcasts to."""
    lead, own = shape[:-2], x.shape[:-2]
    strides = (0,) * (len(lead) - len(own)) + x.strides[:-2]
    own = (1,) * (len(lead) - len(own)) + own
    steps = tuple(0 if e == 1 and n != 1 else s for e, n, s in zip(own, lead, strides, strict=True))
    return x._replace(shape=(*lead, *x.shape[-2:]), strides=(*steps, *x.strides[-2:]))


def tile(
    result: ArrayRef, m: int, n: int, depth: int, step: Callable[[int, int], float], columns: int = 256
) -> dict[str, int]:
    """The tile of a block, of at most ``columns``: the fastest, or on the CPU one as large as the result.

    ``step``: the clocks of a step of ``depth`` of a tile of so many rows and columns.
    """
    if result.device[0] == "cpu":
        return {"TILE_M": padded(m, 64, 512), "TILE_N": padded(n, 64, 512), "TILE_K": depth, "GROUPS": 1}
    sms, batch = hardware(result.device).sms, math.prod(result.shape[:-2])

    def cost(size: tuple[int, int]) -> float:
        tiles = batch * cdiv(m, size[0]) * cdiv(n, size[1])
        return cdiv(tiles, sms) * step(*size)

    rows, wide = min((s for s in TILES if s[1] <= columns), key=cost)
    return {"TILE_M": rows, "TILE_N": wide, "TILE_K": depth, "GROUPS": rows // 64}


def clocks(rows: int, columns: int, left: int, right: int, rate: float = 1.0) -> float:
    """Clocks of a step of a tile whose rows and columns have ``left`` and ``right`` bytes in it; ``rate``: how
    many times as fast as two dense operands they are multiplied."""
    on = Hardware()
    return max(rows * columns * right / (on.tensor * rate), (rows * left + columns * right) / PORT) + STEP


def staged(result: ArrayRef) -> bool:
    """Whether the compiler stages results through shared memory: TMA can write them in whole units of 16 bytes."""
    whole = result.shape[-1] * result.dtype.bytes % 16 == 0
    return result.device[0] != "cpu" and result.dtype.bytes <= 2 and whole and aligned(result)


def padded(extent: int, unit: int, largest: int) -> int:
    """The smallest multiple of ``unit`` that holds ``extent``, up to ``largest``."""
    return min(cdiv(max(extent, 1), unit) * unit, largest)
