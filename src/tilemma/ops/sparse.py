"""`sparse_matmul`: a matrix of which half is stored, times a dense one."""

from __future__ import annotations

from typing import Any

from tilemma.arithmetic import sparsity
from tilemma.checked import is_integer
from tilemma.errors import WrongArgument, WrongArgumentType, described
from tilemma.ops import forms
from tilemma.ops.arguments import INTEGER_RESULTS, INTEGERS, Call, Rules, stored
from tilemma.ops.form_kernels import sparse_tiles
from tilemma.ops.forms import Operand, Prepared
from tilemma.ops.gradients import differentiable
from tilemma.ops.operand_layouts import transposed
from tilemma.ops.steps import batches
from tilemma.runtime.arrays import ArrayRef, describe
from tilemma.sparse import Sparse

E4M3 = ("f8_e4m3",)
RULES = Rules("sparse_matmul", (("f16",), ("bf16",), E4M3, INTEGERS), ("f16", "bf16", "f32"), INTEGER_RESULTS)
# Bytes of ``b``'s rows in a step: several stages of 128 x 256 tiles fit into shared memory.
_STEP = 128
# Columns whose metadata take 16 bytes.
_SPAN = 128


def sparse_matmul(
    a: Sparse,
    b: Any,
    *,
    out: Any = None,
    out_dtype: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    bias: Any = None,
    activation: str | None = None,
    fast: bool = True,
) -> Any:
    """activation(alpha * (a @ b) + beta * c + bias) of ``a`` with the 2:4 pattern, stored by half.

    ``a`` is what `tilemma.sparse.compress` makes of a matrix [M, K], ``b`` is [..., K, N], any strides: both f16,
    bf16 or f8_e4m3, or each s8 or u8.  8-bit floats give bf16 unless ``out_dtype`` says otherwise, and are summed
    with about 14 bits where ``fast``.  The other arguments, the result and the errors are those of `matmul`.
    """
    if not isinstance(a, Sparse):
        wanted = "what `tilemma.sparse.compress` makes"
        raise WrongArgumentType(function="sparse_matmul", name="a", got=described(a), wanted=wanted)
    if not isinstance(a.shape, tuple) or len(a.shape) != 2 or not all(map(is_integer, a.shape)):
        got = f"a matrix of shape {described(a.shape)}"
        raise WrongArgument(function="sparse_matmul", name="a", got=got, wanted="one of shape (M, K)")
    if fast is not True and fast is not False:
        raise WrongArgumentType(function="sparse_matmul", name="fast", got=described(fast), wanted="True or False")
    named = {"values": a.values, "metadata": a.metadata, "b": b, "c": c, "bias": bias, "out": out}
    recorded = differentiable("sparse_matmul", named)
    if recorded is not None:
        end = {"out_dtype": out_dtype, "alpha": alpha, "beta": beta, "activation": activation}
        return recorded(**named, K=a.shape[1], **end)
    arrays = (a.values, b, c, bias, out, a.metadata, None, None)
    options = (a.shape, out_dtype, alpha, beta, activation, fast)
    return forms.compute("sparse_matmul", arrays, options, lambda: prepare(arrays, options))


def prepare(arrays: tuple[Any, ...], options: tuple[Any, ...]) -> Prepared:
    """A call of `sparse_matmul`, checked."""
    values, b, c, bias, out, metadata, _, _ = arrays
    extents, out_dtype, alpha, beta, activation, fast = options
    given = [None if x is None else describe(x) for x in (c, bias, out)]
    call = Call(
        describe(values), describe(b), given[2], out_dtype, alpha, beta, given[0], given[1], activation,
        fast=fast, rules=RULES,
    )  # fmt: skip
    words = describe(metadata)
    shape = _result_shape(call, words, extents)
    out, result, made = forms.allocated(call, shape, out)
    right, major = stored(transposed(forms.widened(call.b, shape)))
    right_axes = ("N", "K") if major == "row" else ("K", "N")
    operands = [
        Operand(forms.widened(call.a, shape), "a"),
        Operand(right, "b"),
        Operand(forms.widened(words, shape), "scale_a"),
    ]
    acc = "s32" if call.a.dtype.is_integer else "f32"
    # Registers do not hold 256 columns together with an epilogue and the addresses of direct stores, nor with
    # their integers converted.
    plain = call.alpha == 1 and call.beta == 0 and call.bias is None and not call.activation
    columns = 256 if (plain or forms.staged(result)) and acc in (result.dtype.name, "f32") else 128
    depth = _STEP // call.a.dtype.bytes
    constants = {
        "TA": call.a.dtype.name, "TB_": call.b.dtype.name, "TE": words.dtype.name, "ACC": acc, "RHS": major,
        "B0": right_axes[0], "B1": right_axes[1], "BB": batches(right, "B"),
        "WORD": sparsity.unit(call.a.dtype, words.dtype),
        **forms.tile(result, shape[-2], shape[-1], depth, _clocks, columns),
        "SPAN": _SPAN // depth, "FAST": fast,
    }  # fmt: skip
    named = {"a": call.a, "b": call.b, "metadata": words}
    return forms.prepared(call, out, result, made, sparse_tiles, operands, named, constants)


def _clocks(rows: int, columns: int) -> float:
    """Clocks of a step of a tile: half of ``a`` and its metadata are read, and multiplied twice as fast."""
    return forms.clocks(rows, columns, _STEP // 2 + _STEP // 16, _STEP, rate=2)


def _result_shape(call: Call, words: ArrayRef, extents: tuple[int, int]) -> tuple[int, ...]:
    """Raises MatmulShape, MatmulType."""
    a, b = call.a, call.b
    known = [t for group in RULES.operands for t in group]
    for name, x in (("a", a), ("b", b)):
        if x.dtype.name not in known:
            raise call.bad_type(name, x.dtype, f"one of {', '.join(known)}", f"convert `{name}`")
    partners = next(group for group in RULES.operands if a.dtype.name in group)
    if b.dtype.name not in partners:
        raise call.bad_type("b", b.dtype, f"{' or '.join(partners)}, as in `a`", "convert one of them")
    if words.dtype.name not in ("u8", "u16", "u32"):
        raise call.bad_type("metadata", words.dtype, "u8, u16 or u32", "use `tilemma.sparse.compress`")
    rows, depth = extents
    width = sparsity.unit(a.dtype, words.dtype)
    wanted = (rows, depth // width)
    if a.shape != (rows, depth // 2) or words.shape != wanted or depth % width:
        raise call.bad_shape(
            f"`a` of shape {[rows, depth]} has values {list(a.shape)} and metadata {list(words.shape)}",
            f"values {[rows, depth // 2]} and metadata {list(wanted)}",
            "use `tilemma.sparse.compress`",
        )
    if b.rank < 2 or b.shape[-2] != depth:
        what = f"`a` is {[rows, depth]} and `b` {list(b.shape)}"
        raise call.bad_shape(what, f"b [..., {depth}, N]", "transpose or reshape `b`")
    return (*b.shape[:-2], rows, b.shape[-1])
