"""`gated_matmul`: two products that share an operand, one of them the gate of the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilemma.ops import forms
from tilemma.ops.arguments import Call, Rules, activation_of, result_shape, stored
from tilemma.ops.form_kernels import gated_tiles
from tilemma.ops.forms import Operand, Prepared
from tilemma.ops.gradients import differentiable
from tilemma.ops.operand_layouts import transposed
from tilemma.ops.steps import batches
from tilemma.runtime.arrays import describe

RULES = Rules("gated_matmul", (("f16",), ("bf16",)), ("f16", "bf16", "f32"), (), names=("x", "gate"))


def gated_matmul(
    x: Any,
    gate: Any,
    up: Any,
    *,
    activation: str | None = "silu",
    out: Any = None,
    out_dtype: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    bias: Any = None,
) -> Any:
    """alpha * activation(x @ gate) * (x @ up) + beta * c + bias, in one kernel that reads ``x`` once.

    ``x`` is [..., M, K], ``gate`` and ``up`` are [..., K, N], of one shape, all f16 or all bf16, with any strides;
    batch dimensions broadcast.  Both products are summed in f32 and not rounded before they are multiplied.  The
    other arguments, the result and the errors are those of `matmul`.
    """
    named = {"x": x, "gate": gate, "up": up, "c": c, "bias": bias, "out": out}
    recorded = differentiable("gated_matmul", named)
    if recorded is not None:
        return recorded(**named, activation=activation, out_dtype=out_dtype, alpha=alpha, beta=beta)
    arrays = (x, gate, c, bias, out, up, None, None)
    options = (activation, out_dtype, alpha, beta)
    return forms.compute("gated_matmul", arrays, options, lambda: prepare(arrays, options))


def prepare(arrays: tuple[Any, ...], options: tuple[Any, ...]) -> Prepared:
    """A call of `gated_matmul`, checked."""
    a, gate, c, bias, out, up, _, _ = arrays
    activation, out_dtype, alpha, beta = options
    given = [None if x is None else describe(x) for x in (c, bias, out)]
    call = Call(
        describe(a), describe(gate), given[2], out_dtype, alpha, beta, given[0], given[1], activation, rules=RULES
    )
    shape = result_shape(call)
    second = describe(up)
    if second.shape != call.b.shape:
        wanted = f"that of `gate`, {list(call.b.shape)}"
        raise call.bad_shape(f"`up` has shape {list(second.shape)}", wanted, "pass weights of one shape")
    if second.dtype is not call.b.dtype:
        raise call.bad_type("up", second.dtype, f"{call.b.dtype}, as in `gate`", "convert one of them")
    gating = activation_of(call)
    call = replace(call, activation=None)
    out, result, made = forms.allocated(call, shape, out)
    if call.b.rank == 2:
        call, result = forms.one_product(call, result, call.b)
        shape = result.shape
    operands: list[Operand] = []
    values: dict[str, Any] = {}
    for x, name, source, letter in (
        (call.a, "X", "a", "M"),
        (transposed(call.b), "GATE", "b", "N"),
        (transposed(second), "UP", "scale_a", "N"),
    ):
        wide = forms.widened(x, shape)
        array, major = stored(wide)
        operands.append(Operand(array, source))
        axes = (letter, "K") if major == "row" else ("K", letter)
        values |= {name: major, f"{name[0]}0": axes[0], f"{name[0]}1": axes[1], f"{name[0]}B": batches(array, "B")}
    named = {"x": call.a, "gate": call.b, "up": second}
    # Each column is one of ``gate`` and one of ``up``.
    tile = forms.tile(result, shape[-2], shape[-1], 64, lambda m, n: forms.clocks(m, 2 * n, 128, 128), columns=128)
    values |= {"T": call.a.dtype.name, "GATED": gating, **tile}
    return forms.prepared(call, out, result, made, gated_tiles, operands, named, values)
