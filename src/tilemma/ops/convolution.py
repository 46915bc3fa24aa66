"""`conv2d`: a convolution as a product whose left operand is gathered from the image."""

from __future__ import annotations

import math
import numbers
from dataclasses import replace
from typing import Any

from tilemma.errors import described
from tilemma.kernels import Kernel
from tilemma.ops import forms
from tilemma.ops.arguments import Call, Rules, ending
from tilemma.ops.convolution_kernels import add_tiles, convolution_tiles
from tilemma.ops.convolution_operands import Operands, operands
from tilemma.ops.convolution_plan import ConvolutionTile, tile
from tilemma.ops.forms import Prepared
from tilemma.ops.gradients import differentiable
from tilemma.ops.operand_layouts import transposed
from tilemma.ops.plan import hardware
from tilemma.ops.problem import Epilogue, Problem
from tilemma.ops.refusals import ConvolutionExtent
from tilemma.ops.steps import Source, Step, epilogue_constants, part
from tilemma.runtime.arrays import ArrayRef, describe, empty_like_first, row_major

# An array of a kernel call, and what it is a part of.
Given = tuple[ArrayRef, Source]
# The largest stride, padding and dilation.
MOST = 1024
RULES = Rules("conv2d", (("f16",), ("bf16",)), ("f16", "bf16", "f32"), (), names=("x", "w"))


def conv2d(
    x: Any,
    w: Any,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    bias: Any = None,
    activation: str | None = None,
    out: Any = None,
    out_dtype: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
) -> Any:
    """activation(alpha * conv(x, w) + beta * c + bias): a cross-correlation, as in the layers of networks.

    ``x`` is [B, H, W, C], ``w`` is [O, R, S, C], both f16 or both bf16, with any strides.  The result is
    [B, P, Q, O], P = (H + 2 * padding - dilation * (R - 1) - 1) // stride + 1, and Q the same of W and S.
    ``stride``, ``padding`` and ``dilation`` are a number, or one for each of H and W.  ``bias`` is [O], ``c``
    broadcasts to the result.  ``groups`` other than 1 are not built.  The other arguments and the errors are as of
    `matmul`; ConvolutionExtent besides.
    """
    steps = [
        _pair(n, v, least)
        for n, v, least in (("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1))
    ]
    if _integer(groups) != 1:
        raise ConvolutionExtent(
            name="groups", value=described(groups), wanted="1: grouped convolutions are not built",
            remedy="convolve each group by a call of its own",
        )  # fmt: skip
    named = {"x": x, "w": w, "c": c, "bias": bias, "out": out}
    recorded = differentiable("conv2d", named)
    if recorded is not None:
        how = dict(zip(("stride", "padding", "dilation"), steps, strict=True))
        end = {"out_dtype": out_dtype, "alpha": alpha, "beta": beta, "activation": activation}
        return recorded(**named, **how, **end)
    arrays = (x, w, c, bias, out, None, None, None)
    options = (*steps, out_dtype, alpha, beta, activation)
    return forms.compute("conv2d", arrays, options, lambda: prepare(arrays, options))


def prepare(arrays: tuple[Any, ...], options: tuple[Any, ...]) -> Prepared:
    """A call of `conv2d`, checked."""
    x, w, c, bias, out, *_ = arrays
    stride, padding, dilation, out_dtype, alpha, beta, activation = options
    given = [None if y is None else describe(y) for y in (c, bias, out)]
    call = Call(
        describe(x), describe(w), given[2], out_dtype, alpha, beta, given[0], given[1], activation, rules=RULES
    )
    shape = _result_shape(call, stride, padding, dilation)
    out, result, made = forms.allocated(call, shape, out)
    c_, bias_, alpha, beta, epilogue = ending(call, result, made, {"x": call.a, "w": call.b})
    if epilogue.bias == "rows":
        raise call.bad_shape(f"`bias` has shape {list(call.bias.shape)}", f"[{shape[3]}]", "reshape it")  # type: ignore[union-attr]
    if result.is_empty:
        return Prepared((), out, made, result)
    if _pointwise(call, (stride, padding, dilation), result, c_):
        return _product(call, out, result, made)
    read = operands(call.a, call.b, stride, padding, dilation, result)
    problem = Problem(
        call.a, call.b, result, c_ if epilogue.addend == "c" else None, bias_, "row", "row", alpha, beta, epilogue,
        swapped=False, outer=(),
    )  # fmt: skip
    on_cpu, on = result.device[0] == "cpu", hardware(result.device)
    block = tile(result.shape, read.w.shape, read.reach, on, on_cpu=on_cpu)
    steps = _in_parts(read, problem, block) if block.SPLIT > 1 else (_whole(read, problem, block),)
    work = dict(read.work)
    if block.SPLIT > 1:
        work["partial"] = (steps[0].args[4].shape, "f32")
    return Prepared((*read.before, *steps), out, made, result, work)


def _whole(given: Operands, problem: Problem, block: ConvolutionTile) -> Step:
    """The call of the kernel that computes ``problem``."""
    addend, biases, values = _ending(problem)
    for name, pair in (("STRIDE", given.stride), ("PADDING", given.padding), ("DILATION", given.dilation)):
        values |= {f"{name}_H": pair[0], f"{name}_W": pair[1]}
    values |= {"T": given.x.dtype.name, **block.constants}
    taken = [(part(x, 0), (n, 0)) for x, n in zip((given.x, given.w), given.sources, strict=True)]
    taken += [addend, biases, (part(problem.out, 0), ("out", 0))]
    return _step(convolution_tiles, taken, problem, values)


def _in_parts(given: Operands, problem: Problem, block: ConvolutionTile) -> tuple[Step, Step]:
    """The call that computes sums of parts of the steps, and the one that adds these in order and applies the
    epilogue."""
    result = problem.out
    tiles = block.tiles(result.shape)
    shape = (block.SPLIT, tiles, block.rows, result.shape[3])
    partial = describe(empty_like_first(problem.lhs, shape, "f32"))._replace(writable=True)
    plain = replace(problem, out=partial, c=None, bias=None, alpha=1.0, beta=0.0, epilogue=Epilogue())
    first = _whole(given, plain, block)
    sources = (*first.sources[:-1], ("work.partial", 0))
    names = {"OUT0": "PARTS", "OUT1": "TILES", "OUT2": "PIXELS"}
    first = replace(first, sources=sources, constants={**first.constants, **names})
    addend, biases, values = _ending(problem)
    values |= {name: block.constants[name] for name in ("TILE_B", "TILE_P", "TILE_Q", "SPLIT")}
    taken = [(partial, ("work.partial", 0)), addend, biases, (part(result, 0), ("out", 0))]
    return first, _step(add_tiles, taken, problem, values)


def _ending(problem: Problem) -> tuple[Given, Given, dict[str, Any]]:
    """The addend and the bias of ``problem``, and the compile-time values of its epilogue."""
    addend = forms.nothing(problem, (1, 1, 1, 1)) if problem.c is None else (part(problem.c, 0), ("c", 0))
    biases = forms.nothing(problem, (1, 1)) if problem.bias is None else (part(problem.bias, 0), ("bias", 0))
    values = epilogue_constants(problem, addend[0], biases[0], problem.out)
    values |= {"BIAS": "O" if problem.bias is not None else 1}
    for name in ("C0", "C1"):
        del values[name]
    if problem.c is None:
        values |= dict.fromkeys(("C_IMAGES", "C_P", "C_Q", "C_O"), 1)
    return addend, biases, values


def _step(kernel: Kernel, taken: list[Given], problem: Problem, values: dict[str, Any]) -> Step:
    given = (*(x for x, _ in taken), problem.alpha, problem.beta)
    return Step(kernel, given, values, tuple(s for _, s in taken))


def _pair(name: str, value: Any, least: int) -> tuple[int, int]:
    """A number for H and one for W.  Raises ConvolutionExtent."""
    # Every call comes here, also a known one: the general checks below take longer than the rest of such a call.
    if type(value) is int and least <= value <= MOST:
        return value, value
    both = value if isinstance(value, (tuple, list)) else (value, value)
    found = [n for n in map(_integer, both) if n is not None and least <= n <= MOST]
    if len(both) != 2 or len(found) != 2:
        wanted = f"an integer from {least} to {MOST}, or two"
        raise ConvolutionExtent(name=name, value=described(value), wanted=wanted, remedy="pass such a number")
    return found[0], found[1]


def _integer(value: Any) -> int | None:
    """``value`` as an integer, None if it is none."""
    if type(value) is int:
        return value
    if isinstance(value, (bool, str, bytes)) or not isinstance(value, numbers.Integral):
        return None
    return int(value)


def _result_shape(
    call: Call, stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int]
) -> tuple[int, ...]:
    """Raises MatmulShape, MatmulType, ConvolutionExtent."""
    x, w = call.a, call.b
    for name, y in (("x", x), ("w", w)):
        if y.dtype.name not in ("f16", "bf16"):
            raise call.bad_type(name, y.dtype, "f16 or bf16", f"convert `{name}`")
    if w.dtype is not x.dtype:
        raise call.bad_type("w", w.dtype, f"{x.dtype}, as in `x`", "convert one of them")
    if x.rank != 4 or w.rank != 4 or x.shape[3] != w.shape[3]:
        what = f"`x` is {list(x.shape)} and `w` {list(w.shape)}"
        remedy = "permute them: channels come last"
        raise call.bad_shape(what, "x [B, H, W, C] and w [O, R, S, C] of one C", remedy)
    extents = []
    for axis in (0, 1):
        room = x.shape[1 + axis] + 2 * padding[axis] - dilation[axis] * (w.shape[1 + axis] - 1) - 1
        if room < 0 or w.shape[1 + axis] < 1:
            raise call.bad_shape(
                f"`x` is {list(x.shape)} and `w` {list(w.shape)}, with padding {list(padding)}",
                "a filter of at least one element that is no larger than the padded image",
                "pad more, or use a smaller filter",
            )
        extents.append(room // stride[axis] + 1)
    return x.shape[0], *extents, w.shape[0]


def _pointwise(call: Call, steps: tuple[tuple[int, int], ...], result: ArrayRef, c: ArrayRef | None) -> bool:
    """Whether it is a product of the matrices [B * H * W, C] and [C, O], which are views of its arrays."""
    arrays = [call.a, call.b, result] + ([] if c is None else [c])
    return (
        steps[:2] == ((1, 1), (0, 0))
        and call.b.shape[1:3] == (1, 1)
        and all(x.strides == row_major(x.shape) for x in arrays)
    )


def _rows(x: ArrayRef) -> ArrayRef:
    """A contiguous array as a matrix of its pixels."""
    shape = math.prod(x.shape[:-1]), x.shape[-1]
    return x._replace(shape=shape, strides=(x.shape[-1], 1), owner=(x.owner,))


def _product(call: Call, out: Any, result: ArrayRef, made: bool) -> Prepared:
    """A convolution with filters of one element, as a product of matrices."""
    matrices = replace(
        call, a=_rows(call.a), b=transposed(_rows(call.b)), out=None, c=None if call.c is None else _rows(call.c),
    )  # fmt: skip
    return forms.as_product(matrices, out, result, _rows(result), made, like=call.a)
