"""Products of layers for which torch records nothing: from the launch cache, without torch's dispatcher.

The dispatcher, a view for each change of shape, and the search for each of several launches take longer than the
products of few rows.
"""

from __future__ import annotations

import contextlib
import threading
from functools import cache

import torch
from torch import Tensor

from tilemma.ops import launch_cache, plans
from tilemma.ops.arguments import PLAIN, SCALED
from tilemma.ops.product import prepare, template
from tilemma.ops.rounding import rounding
from tilemma.runtime.arrays import describe
from tilemma.torch import operators

_WARM = launch_cache.WarmCalls()
_ROWS = ("work.rows", "work.row_scales")
_CUDA = "cuda"


@cache
def _plain_keys() -> tuple[int, int]:
    """Of plain CUDA tensors, and of a thread without modes: the dispatch keys, as bits."""
    found: list[tuple[int, int]] = [(0, 0)]

    def ask() -> None:
        with contextlib.suppress(AttributeError, RuntimeError):
            tensor = torch._C._dispatch_keys(torch.empty(0, device=_CUDA)).raw_repr()
            found[0] = tensor, torch._C._dispatch_tls_local_include_set().raw_repr()

    # Modes are those of a thread: a new one has none.
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found[0]


def is_plain(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether a product of these is just its computation on a GPU: no gradient, mode, transform, tracer, autocast
    or subclass would see it."""
    if type(x) is not Tensor or not x.is_cuda or torch.compiler.is_compiling():
        return False
    if torch.is_grad_enabled() and (
        x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return False
    tensor, mode = _plain_keys()
    keys = torch._C._dispatch_keys
    inside = keys(x).raw_repr() | keys(weight).raw_repr()
    if inside & ~tensor or torch._C._dispatch_tls_local_include_set().raw_repr() & ~mode:
        return False
    return not (torch.is_autocast_enabled(_CUDA) or torch._C._len_torch_function_stack())


def product(x: Tensor, weight: Tensor, bias: Tensor | None, compute: str | None) -> Tensor:
    """x @ weight.T + bias, for operands that are `is_plain`."""
    key = launch_cache.key_of((x, weight, None, bias, None, None, None, None), ("rows", compute))
    entry = None if key is None else _WARM.find(key)
    if entry is None:
        if key is None or not _has_rows(x):
            return operators.matmul(x, weight.t(), None, bias, compute=compute)
        rows, shape = x.view(-1, x.shape[-1]), (*x.shape[:-1], weight.shape[0])
        arrays = (rows, weight.t(), None, bias, None, None, None, None)
        problem, _, _ = prepare(PLAIN, arrays, (1.0, 0.0, None, None, compute, True))
        recipe = template(problem, plans.best(problem), describe(rows), shape)
        entry = _WARM.put(key, recipe)
    found: Tensor = entry.run(x, None)
    return found


def rounded_product(x: Tensor, weight: Tensor, scales: Tensor, type: str, bias: Tensor | None) -> Tensor:
    """x @ (weight * scales).T + bias with rows of ``x`` rounded to ``type``, for operands that are `is_plain`."""
    key = launch_cache.key_of((x, weight, None, bias, None, None, scales, None), ("rounded rows", type))
    entry = None if key is None else _WARM.find(key)
    if entry is None:
        if key is None or not _has_rows(x) or x.dtype not in operators.ROUNDED:
            return operators.quantized_matmul(x, weight.t(), type, bias, scales)
        rows, shape = x.view(-1, x.shape[-1]), (*x.shape[:-1], weight.shape[0])
        left = torch.empty(rows.shape, dtype=weight.dtype, device=x.device)
        factors = torch.empty(rows.shape[0], dtype=torch.float32, device=x.device)
        arrays = (left, weight.t(), None, bias, None, factors[:, None], scales[None, :], None)
        problem, _, _ = prepare(SCALED, arrays, (1.0, 0.0, None, x.dtype, None, True))
        first = describe(rows)
        before = rounding(first, describe(left), describe(factors), ("a", *_ROWS))
        needs = {_ROWS[0]: (tuple(rows.shape), type), _ROWS[1]: (tuple(factors.shape), "f32")}
        names = {"a": _ROWS[0], "scale_a": _ROWS[1]}
        entry = _WARM.put(key, template(problem, plans.best(problem), first, shape, [before], needs, names))
    found: Tensor = entry.run(x, None)
    return found


def _has_rows(x: Tensor) -> bool:
    """Whether ``x`` has elements, and is a matrix of rows without a copy."""
    return x.dim() >= 2 and x.numel() > 0 and x.is_contiguous()
