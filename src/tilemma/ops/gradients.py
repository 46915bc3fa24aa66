"""Calls on tensors that require gradients: `tilemma.torch` registers the functions that compute them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from tilemma.ops.refusals import MatmulGradient

# From a function of `ops` to the one that computes its calls, with their keywords, and records them for autograd.
_DIFFERENTIABLE: dict[str, Callable[..., Any]] = {}


def register(function: str, compute: Callable[..., Any]) -> None:
    """Calls of ``function`` on tensors that require gradients become calls of ``compute``."""
    _DIFFERENTIABLE[function] = compute


def are_recorded() -> bool:
    """Whether torch is there and records gradients."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.is_grad_enabled()


def differentiable(function: str, arrays: Mapping[str, Any]) -> Callable[..., Any] | None:
    """The function for a call on ``arrays`` of which torch expects a gradient; None if it expects none.

    Raises MatmulGradient where no such function is registered, or a result is given.
    """
    if not are_recorded():
        return None
    torch = sys.modules["torch"]
    for name, x in arrays.items():
        if getattr(x, "requires_grad", False) is True and isinstance(x, torch.Tensor):
            if function not in _DIFFERENTIABLE or arrays.get("out") is not None:
                raise MatmulGradient(function=function, name=name)
            return _DIFFERENTIABLE[function]
    return None
