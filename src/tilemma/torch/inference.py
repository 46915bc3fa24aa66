"""Calls of layers that need nothing of torch's dispatcher, which takes longer than the products of few rows."""

from __future__ import annotations

import contextlib
import threading
from functools import cache

import torch
from torch import Tensor

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
