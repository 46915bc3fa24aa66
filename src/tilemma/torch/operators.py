"""The implementation of each operator on tensors of a CPU or GPU, and the shape and type of its result.

On the CPU the reference executor computes: slowly, and with the errors that `tilemma.testing.error_bound` states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tilemma import ops
from tilemma.ops.rounding import rounded
from tilemma.ops.rounding_kernels import LARGEST, LEAST
from tilemma.quantized import Quantized
from tilemma.sparse import Sparse
from tilemma.torch import rows


def flat_rows(a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the batch dimensions of ``a`` can be rows: one matrix ``b`` serves all."""
    if a.dim() <= 2 or b.dim() != 2 or (bias is not None and bias.dim() != 1):
        return False
    return c is None or c.shape[:-1] == a.shape[:-1]


def matmul(
    a: Tensor, b: Tensor, c: Tensor | None = None, bias: Tensor | None = None, *, alpha: float = 1.0,
    beta: float = 0.0, activation: str | None = None, out_dtype: torch.dtype | None = None,
    compute: str | None = None,
) -> Tensor:  # fmt: skip
    if c is None and activation is None and out_dtype is None and alpha == 1.0:
        direct = rows.product(a, b, False, bias, compute)
        if direct is not None:
            return direct
    shape = None
    if flat_rows(a, b, c, bias):
        shape = (*a.shape[:-1], b.shape[-1])
        a, c = a.reshape(-1, a.shape[-1]), None if c is None else c.reshape(-1, c.shape[-1])
    found = ops.matmul(
        a, b, c=c, bias=bias, alpha=alpha, beta=beta, activation=activation, out_dtype=out_dtype, compute=compute
    )
    return found if shape is None else found.reshape(shape)


def scaled_matmul(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None, *,
    activation: str | None = None, out_dtype: torch.dtype | None = None, fast: bool = True,
) -> Tensor:  # fmt: skip
    return ops.scaled_matmul(
        a, b, scale_a, scale_b, bias=bias, activation=activation, out_dtype=out_dtype, fast=fast
    )


def sparse_matmul(
    values: Tensor, metadata: Tensor, K: int, b: Tensor, bias: Tensor | None = None, *,
    activation: str | None = None, out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    a = Sparse(values, words(metadata), (values.shape[0], K))
    return ops.sparse_matmul(a, b, bias=bias, activation=activation, out_dtype=out_dtype)


def words(metadata: Tensor) -> Tensor:
    """Metadata, which torch may keep as signed integers, as the unsigned ones of the same bits."""
    unsigned = {torch.int32: torch.uint32, torch.int16: torch.uint16, torch.int8: torch.uint8}
    return metadata.view(unsigned[metadata.dtype]) if metadata.dtype in unsigned else metadata


def mixed_matmul(
    a: Tensor, values: Tensor, scales: Tensor, zeros: Tensor | None, type: str, group: int,
    bias: Tensor | None = None, *, activation: str | None = None, out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    weights = Quantized(values, scales, zeros, type, group, (a.shape[-1], values.shape[0]))
    shape = (*a.shape[:-1], values.shape[0])
    flat = a.reshape(-1, a.shape[-1]) if a.dim() > 2 else a
    found = ops.mixed_matmul(flat, weights, bias=bias, activation=activation, out_dtype=out_dtype)
    return found.reshape(shape) if a.dim() > 2 else found


def grouped_matmul(
    a: Tensor, b: Tensor, offsets: Tensor, scale_a: Tensor | None = None, scale_b: Tensor | None = None,
    bias: Tensor | None = None, *, activation: str | None = None, out_dtype: torch.dtype | None = None,
    fast: bool = True,
) -> Tensor:  # fmt: skip
    return ops.grouped_matmul(
        a, b, offsets, scale_a=scale_a, scale_b=scale_b, bias=bias, activation=activation, out_dtype=out_dtype,
        fast=fast,
    )  # fmt: skip


def grouped_outer(a: Tensor, g: Tensor, offsets: Tensor) -> Tensor:
    """For each group e: a[begin:end].T @ g[begin:end].  The host reads the offsets."""
    found = a.new_zeros((offsets.shape[0], a.shape[1], g.shape[1]))
    begin = 0
    for e, end in enumerate(offsets.tolist()):
        if end > begin:
            ops.matmul(a[begin:end].t(), g[begin:end], out=found[e])
        begin = max(begin, end)
    return found


def gated_matmul(
    x: Tensor, gate: Tensor, up: Tensor, *, activation: str | None = "silu", out_dtype: torch.dtype | None = None
) -> Tensor:
    shape = (*x.shape[:-1], gate.shape[-1])
    flat = x.dim() > 2 and gate.dim() == 2
    left = x.reshape(-1, x.shape[-1]) if flat else x
    found = ops.gated_matmul(left, gate, up, activation=activation, out_dtype=out_dtype)
    return found.reshape(shape) if flat else found


def conv2d(
    x: Tensor, w: Tensor, stride: Sequence[int] = (1, 1), padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1), bias: Tensor | None = None, *, activation: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    return ops.conv2d(
        x, w, stride=tuple(stride), padding=tuple(padding), dilation=tuple(dilation), bias=bias,
        activation=activation, out_dtype=out_dtype,
    )  # fmt: skip


def quantized_matmul(
    x: Tensor, w: Tensor, type: str, bias: Tensor | None = None, scales: Tensor | None = None
) -> Tensor:
    direct = rows.rounded_product(x, w, scales, type, bias)
    if direct is not None:
        return direct
    left, scale_a = quantize(x.reshape(-1, x.shape[-1]), type, 1)
    right, scale_b = quantize(w, type, 0) if scales is None else (w, scales[None, :])
    found = ops.scaled_matmul(left, right, scale_a, scale_b, bias=bias, out_dtype=x.dtype)
    return found.reshape(*x.shape[:-1], w.shape[-1])


def quantize(x: Tensor, type: str, axis: int) -> tuple[Tensor, Tensor]:
    """``x`` in 8 bits, and its f32 scales, one for each row (``axis`` 1) or column (0)."""
    kind = rows.TYPES[type]
    if x.is_cuda and x.dtype in rows.ROUNDED and x.numel():
        values, scales = rounded(x if axis else x.t(), type)
        return (values, scales[:, None]) if axis else (values.t(), scales[None, :])
    wide = x.float()
    scale = wide.abs().amax(dim=axis, keepdim=True).clamp_min(LEAST) / LARGEST[type]
    scaled = wide / scale
    return scaled.round().to(kind) if type == "s8" else scaled.to(kind), scale


# ---- shapes and types of results, for fake and meta tensors --------------------------------------------------


def kind_of(out_dtype: torch.dtype | None, default: torch.dtype) -> torch.dtype:
    integers = (torch.int8, torch.uint8)
    eight = (torch.float8_e4m3fn, torch.float8_e5m2)
    if out_dtype is not None:
        return out_dtype
    return torch.int32 if default in integers else torch.bfloat16 if default in eight else default


def fake_product(a: Tensor, b: Tensor, out_dtype: torch.dtype | None, default: torch.dtype) -> Tensor:
    """The result of a @ b.  What does not fit is refused where it is computed, by the checks of `tilemma.ops`."""
    if a.dim() < 2 or b.dim() < 2:
        return a.new_empty((), dtype=kind_of(out_dtype, default))
    batch: Any = a.shape[:-2] if b.dim() == 2 else torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]), dtype=kind_of(out_dtype, default))


def fake_matmul(
    a: Tensor, b: Tensor, c: Any = None, bias: Any = None, *, out_dtype: Any = None, **_: Any
) -> Tensor:
    return fake_product(a, b, out_dtype, a.dtype)


def fake_scaled(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Any = None, *, out_dtype: Any = None, **_: Any
) -> Tensor:
    return fake_product(a, b, out_dtype, torch.bfloat16)


def fake_sparse(
    values: Tensor, metadata: Tensor, K: int, b: Tensor, bias: Any = None, *, out_dtype: Any = None, **_: Any
) -> Tensor:
    return b.new_empty((*b.shape[:-2], values.shape[0], b.shape[-1]), dtype=kind_of(out_dtype, values.dtype))


def fake_mixed(
    a: Tensor, values: Tensor, scales: Tensor, zeros: Tensor | None, type: str, group: int, bias: Any = None, *,
    out_dtype: Any = None, **_: Any,
) -> Tensor:  # fmt: skip
    return a.new_empty((*a.shape[:-1], values.shape[0]), dtype=kind_of(out_dtype, a.dtype))


def fake_grouped(
    a: Tensor,
    b: Tensor,
    offsets: Tensor,
    scale_a: Any = None,
    scale_b: Any = None,
    bias: Any = None,
    *,
    out_dtype: Any = None,
    **_: Any,
) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[-1]), dtype=kind_of(out_dtype, a.dtype))


def fake_outer(a: Tensor, g: Tensor, offsets: Tensor) -> Tensor:
    return a.new_empty((offsets.shape[0], a.shape[1], g.shape[1]))


def fake_gated(x: Tensor, gate: Tensor, up: Tensor, *, out_dtype: Any = None, **_: Any) -> Tensor:
    return fake_product(x, gate, out_dtype, x.dtype)


def fake_conv2d(
    x: Tensor, w: Tensor, stride: Sequence[int] = (1, 1), padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1), bias: Any = None, *, out_dtype: Any = None, **_: Any,
) -> Tensor:  # fmt: skip
    extents = [
        (x.shape[1 + i] + 2 * padding[i] - dilation[i] * (w.shape[1 + i] - 1) - 1) // stride[i] + 1 for i in (0, 1)
    ]
    return x.new_empty((x.shape[0], *extents, w.shape[0]), dtype=kind_of(out_dtype, x.dtype))


def fake_quantized(x: Tensor, w: Tensor, type: str, bias: Any = None, scales: Any = None) -> Tensor:
    return x.new_empty((*x.shape[:-1], w.shape[-1]))


_END = "Tensor? bias=None, *, str? activation=None, ScalarType? out_dtype=None"
# Name -> (parameters, computation, shape and type of the result).
TABLE: dict[str, tuple[str, Callable[..., Tensor], Callable[..., Tensor]]] = {
    "matmul": (
        "Tensor a, Tensor b, Tensor? c=None, Tensor? bias=None, *, float alpha=1.0, float beta=0.0, "
        "str? activation=None, ScalarType? out_dtype=None, str? compute=None",
        matmul, fake_matmul,
    ),
    "scaled_matmul": (
        f"Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, {_END}, bool fast=True", scaled_matmul, fake_scaled
    ),
    "sparse_matmul": (f"Tensor values, Tensor metadata, int K, Tensor b, {_END}", sparse_matmul, fake_sparse),
    "mixed_matmul": (
        f"Tensor a, Tensor values, Tensor scales, Tensor? zeros, str type, int group, {_END}",
        mixed_matmul, fake_mixed,
    ),
    "grouped_matmul": (
        f"Tensor a, Tensor b, Tensor offsets, Tensor? scale_a=None, Tensor? scale_b=None, {_END}, bool fast=True",
        grouped_matmul, fake_grouped,
    ),
    "grouped_outer": ("Tensor a, Tensor g, Tensor offsets", grouped_outer, fake_outer),
    "gated_matmul": (
        "Tensor x, Tensor gate, Tensor up, *, str? activation='silu', ScalarType? out_dtype=None",
        gated_matmul, fake_gated,
    ),
    "conv2d": (
        f"Tensor x, Tensor w, SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] dilation=1, {_END}",
        conv2d, fake_conv2d,
    ),
    "quantized_matmul": (
        "Tensor x, Tensor w, str type, Tensor? bias=None, Tensor? scales=None", quantized_matmul, fake_quantized
    ),
}  # fmt: skip
