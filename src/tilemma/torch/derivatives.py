"""The derivatives of the operators: products in the layouts that they need.

Each function gets the arguments of a call by name, the gradient of its result, and the names of the arguments
whose gradients are needed.  It is written in differentiable operators, so that its own derivative exists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from tilemma.ops.refusals import MatmulGradient

Given = Mapping[str, Any]
Gradients = dict[str, Tensor | None]
_OPS = torch.ops.tilemma


def of_activation(g: Tensor, z: Tensor, activation: str | None) -> Tensor:
    """The gradient before an activation of ``z``."""
    if activation is None:
        return g
    g = g.to(z.dtype)
    if activation == "relu":
        return torch.ops.aten.threshold_backward(g, z, 0)
    if activation == "gelu":
        return torch.ops.aten.gelu_backward(g, z)
    return torch.ops.aten.silu_backward(g, z)


def applied(z: Tensor, activation: str | None) -> Tensor:
    """The activation of ``z``."""
    functions = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu}
    return z if activation is None else functions[activation](z)


def wide(kind: torch.dtype) -> torch.dtype:
    """The type that an activation's argument is kept in."""
    return torch.float64 if kind == torch.float64 else torch.float32


def summed(g: Tensor, like: Tensor) -> Tensor:
    """``g`` summed over the dimensions in which ``like`` was broadcast, in the type of ``like``."""
    if g.shape != like.shape:
        g = (g.float() if g.dtype in (torch.float16, torch.bfloat16) else g).sum_to_size(like.shape)
    return g.to(like.dtype)


def left(g: Tensor, b: Tensor, a: Tensor, compute: str | None = None, alpha: float = 1.0) -> Tensor:
    """The gradient of ``a`` in alpha * a @ b."""
    found = _OPS.matmul(g.to(b.dtype), b.transpose(-1, -2), alpha=alpha, compute=compute)
    return summed(found, a)


def right(a: Tensor, g: Tensor, b: Tensor, compute: str | None = None, alpha: float = 1.0) -> Tensor:
    """The gradient of ``b`` in alpha * a @ b."""
    g = g.to(a.dtype)
    if b.dim() == 2 and a.dim() > 2:
        # One product with the rows of all batches along K.
        a, g = a.reshape(-1, a.shape[-1]), g.reshape(-1, g.shape[-1])
    return summed(_OPS.matmul(a.transpose(-1, -2), g, alpha=alpha, compute=compute), b)


def matmul(given: Given, g: Tensor, needed: Collection[str]) -> Gradients:
    a, b, activation, compute = given["a"], given["b"], given["activation"], given["compute"]
    if activation is not None:
        parts = {n: given[n] for n in ("c", "bias", "alpha", "beta", "compute")}
        g = of_activation(g, _OPS.matmul(a, b, **parts, out_dtype=wide(a.dtype)), activation)
    found: Gradients = {}
    if "a" in needed:
        found["a"] = left(g, b, a, compute, given["alpha"])
    if "b" in needed:
        found["b"] = right(a, g, b, compute, given["alpha"])
    if "c" in needed:
        found["c"] = summed(given["beta"] * g, given["c"])
    if "bias" in needed:
        found["bias"] = of_bias(g, given["bias"])
    return found


def of_bias(g: Tensor, bias: Tensor) -> Tensor:
    return summed(g, bias)


def linear_end(given: Given, g: Tensor, product: Callable[[], Tensor]) -> Tensor:
    """The gradient of a product that bias and activation follow; ``product`` computes it in f32."""
    if given["activation"] is None:
        return g
    z = product()
    if given["bias"] is not None:
        z = z + given["bias"]
    return of_activation(g, z, given["activation"])


def scaled_matmul(given: Given, g: Tensor, needed: Collection[str]) -> Gradients:
    refuse("scaled_matmul", needed, {"bias"})
    operands = [given[n] for n in ("a", "b", "scale_a", "scale_b")]
    g = linear_end(given, g, lambda: _OPS.scaled_matmul(*operands, out_dtype=torch.float32, fast=given["fast"]))
    return {"bias": of_bias(g, given["bias"])}


def columns_of(values: Tensor, metadata: Tensor) -> Tensor:
    """The column of each stored element of a 2:4 matrix."""
    bits = 8 * metadata.element_size()
    shifts = torch.arange(0, bits, 2, device=metadata.device, dtype=torch.int64)
    words = metadata.view({8: torch.uint8, 16: torch.int16, 32: torch.int32}[bits]).to(torch.int64)
    positions = ((words[..., None] >> shifts) & 3).reshape(values.shape)
    return positions + torch.arange(values.shape[1], device=values.device) // 2 * 4


def sparse_matmul(given: Given, g: Tensor, needed: Collection[str]) -> Gradients:
    refuse("sparse_matmul", needed, {"values", "b", "bias"})
    values, metadata, b = given["values"], given["metadata"], given["b"]
    operands = values, metadata, given["K"], b
    g = linear_end(given, g, lambda: _OPS.sparse_matmul(*operands, out_dtype=torch.float32))
    columns = columns_of(values, metadata)
    found: Gradients = {}
    if "b" in needed:
        whole = torch.zeros(values.shape[0], given["K"], dtype=values.dtype, device=values.device)
        found["b"] = right(whole.scatter_add(1, columns, values), g, b)
    if "values" in needed:
        whole = _OPS.matmul(g.to(b.dtype), b.transpose(-1, -2))
        found["values"] = whole.sum_to_size((values.shape[0], given["K"])).gather(1, columns)
    if "bias" in needed:
        found["bias"] = of_bias(g, given["bias"])
    return found


def dequantized(given: Given, kind: torch.dtype) -> Tensor:
    """The weights [K, N] of a mixed product, as it rounds them."""
    values = given["values"]
    if given["type"] == "s4":
        values = torch.stack([values & 15, values >> 4], dim=-1).flatten(1)
        values = (values.to(torch.int32) ^ 8) - 8
    whole = values.float().t()
    if given["zeros"] is not None:
        whole = whole - given["zeros"].float().repeat_interleave(given["group"], 0)
    return (whole * given["scales"].float().repeat_interleave(given["group"], 0)).to(kind)


def mixed_matmul(given: Given, g: Tensor, needed: Collection[str]) -> Gradients:
    refuse("mixed_matmul", needed, {"a", "bias"})
    a = given["a"]
    weights = [given[n] for n in ("values", "scales", "zeros", "type", "group")]
    g = linear_end(given, g, lambda: _OPS.mixed_matmul(a, *weights, out_dtype=torch.float32))
    found: Gradients = {}
    if "a" in needed:
        found["a"] = left(g, dequantized(given, a.dtype), a)
    if "bias" in needed:
        found["bias"] = of_bias(g, given["bias"])
    return found


def grouped_matmul(given: Given, g: Tensor, needed: Collection[str]) -> Gradients:
    a, b, offsets = given["a"], given["b"], given["offsets"]
    refuse(
        "grouped_matmul", needed, {"a", "b"} if given["scale_a"] is None and given["scale_b"] is None else set()
    )
    # Rows of no group have no result, and memory that was never written.
    inside = torch.arange(a.shape[0], device=a.device)[:, None] < offsets[-1:]
    if given["activation"] is not None:
        z = _OPS.grouped_matmul(a, b, offsets, bias=given["bias"], out_dtype=torch.float32)
        g = of_activation(g, torch.where(inside, z, 0), given["activation"])
    g = torch.where(inside, g, 0)
    found: Gradients = {}
    if "a" in needed:
        found["a"] = torch.where(inside, _OPS.grouped_matmul(g.to(b.dtype), b.transpose(1, 2), offsets), 0)
    if "b" in needed:
        found["b"] = _OPS.grouped_outer(a, g.to(a.dtype), offsets)
    return found


def gated_matmul(given: Given, g: Tensor, needed: Collection[str]) -> Gradients:
    x, gate, up, activation = (given[n] for n in ("x", "gate", "up", "activation"))
    first, second = (_OPS.matmul(x, w, out_dtype=torch.float32) for w in (gate, up))
    g = g.float()
    of_gate, of_up = of_activation(g * second, first, activation), g * applied(first, activation)
    found: Gradients = {}
    if "x" in needed:
        found["x"] = left(of_gate, gate, x) + left(of_up, up, x)
    if "gate" in needed:
        found["gate"] = right(x, of_gate, gate)
    if "up" in needed:
        found["up"] = right(x, of_up, up)
    return found


def conv2d(given: Given, g: Tensor, needed: Collection[str]) -> Gradients:
    x, w, stride, padding, dilation = (given[n] for n in ("x", "w", "stride", "padding", "dilation"))
    how = {"stride": stride, "padding": padding, "dilation": dilation}
    g = linear_end(given, g, lambda: _OPS.conv2d(x, w, **how, out_dtype=torch.float32))
    found: Gradients = {}
    if "bias" in needed:
        found["bias"] = of_bias(g, given["bias"])
    g = g.to(x.dtype)
    if "x" in needed:
        found["x"] = of_image(g, x, w, stride, padding, dilation)
    if "w" in needed:
        found["w"] = of_filter(g, x, w, stride, padding, dilation)
    return found


def of_image(g: Tensor, x: Tensor, w: Tensor, stride: Any, padding: Any, dilation: Any) -> Tensor:
    """The convolution of ``g``, spread by the stride, with the turned filter."""
    (_, high, wide_, _), (_, p, q, _), (_, r, s, _) = x.shape, g.shape, w.shape
    reach = [dilation[0] * (r - 1), dilation[1] * (s - 1)]
    # Zeros before and after, so that the result has the extents of the padded image.
    spread = g.new_zeros(
        (g.shape[0], high + 2 * padding[0] + reach[0], wide_ + 2 * padding[1] + reach[1], g.shape[3])
    )
    rows = slice(reach[0], reach[0] + (p - 1) * stride[0] + 1, stride[0])
    columns = slice(reach[1], reach[1] + (q - 1) * stride[1] + 1, stride[1])
    index = (slice(None), rows, columns, slice(None))
    spread = spread.index_put(
        (torch.arange(g.shape[0], device=g.device)[:, None, None],
         torch.arange(rows.start, rows.stop, rows.step, device=g.device)[:, None],
         torch.arange(columns.start, columns.stop, columns.step, device=g.device)), g,
    ) if g.requires_grad else _filled(spread, index, g)  # fmt: skip
    turned = w.flip(1, 2).permute(3, 1, 2, 0)
    whole = _OPS.conv2d(spread, turned, dilation=dilation)
    return whole[:, padding[0] : padding[0] + high, padding[1] : padding[1] + wide_].contiguous()


def _filled(whole: Tensor, index: Any, part: Tensor) -> Tensor:
    whole[index] = part
    return whole


def of_filter(g: Tensor, x: Tensor, w: Tensor, stride: Any, padding: Any, dilation: Any) -> Tensor:
    """For each element of the filter the product of ``g`` and the pixels that it met, over all pixels."""
    (_, p, q, o), (_, r, s, c) = g.shape, w.shape
    x = torch.nn.functional.pad(x, (0, 0, padding[1], padding[1], padding[0], padding[0]))
    flat, parts = g.reshape(-1, o).t(), []
    for i in range(r):
        for j in range(s):
            rows = slice(i * dilation[0], i * dilation[0] + (p - 1) * stride[0] + 1, stride[0])
            columns = slice(j * dilation[1], j * dilation[1] + (q - 1) * stride[1] + 1, stride[1])
            parts.append(_OPS.matmul(flat, x[:, rows, columns].reshape(-1, c)))
    return torch.stack(parts, dim=1).reshape(o, r, s, c)


def quantized_matmul(given: Given, g: Tensor, needed: Collection[str]) -> Gradients:
    """Of the product before rounding to 8 bits, in the operands' own types; weights that are kept in 8 bits have
    no gradient."""
    x, w, scales = given["x"], given["w"], given["scales"]
    if scales is not None:
        refuse("quantized_matmul", needed, {"x", "bias"})
        w = (w.float() * scales).to(x.dtype)
    found: Gradients = {}
    if "x" in needed:
        found["x"] = left(g, w, x)
    if "w" in needed:
        found["w"] = right(x, g, w)
    if "bias" in needed:
        found["bias"] = of_bias(g, given["bias"])
    return found


def refuse(function: str, needed: Collection[str], known: Collection[str]) -> None:
    """Raises MatmulGradient if another gradient than those of ``known`` is needed."""
    for name in needed:
        if name not in known:
            raise MatmulGradient(function=function, name=name)


DERIVATIVES: dict[str, Callable[[Given, Tensor, Collection[str]], Gradients]] = {
    "matmul": matmul,
    "scaled_matmul": scaled_matmul,
    "sparse_matmul": sparse_matmul,
    "mixed_matmul": mixed_matmul,
    "grouped_matmul": grouped_matmul,
    "gated_matmul": gated_matmul,
    "conv2d": conv2d,
    "quantized_matmul": quantized_matmul,
}
