"""Registers `torch.ops.tilemma.*`: computation, fake tensors, gradients, autocast and vmap."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tilemma import dtypes
from tilemma.ops import gradients
from tilemma.ops.arguments import type_name
from tilemma.ops.refusals import MatmulGradient, TorchTransform
from tilemma.runtime.binding import MixedDevices
from tilemma.torch.operators import TABLE

# The namespace's definitions live as long as this object.
LIBRARY = torch.library.Library("tilemma", "DEF")
# Floating types that autocast converts.
_CAST = (torch.float32, torch.float16, torch.bfloat16)


class Parameter(NamedTuple):
    """A parameter of an operator."""

    name: str
    kwarg_only: bool
    default_value: Any


@cache
def parameters(name: str) -> tuple[Parameter, ...]:
    """The parameters of an operator's schema, in order."""
    found = getattr(torch.ops.tilemma, name).default._schema.arguments
    return tuple(Parameter(p.name, p.kwarg_only, p.default_value) for p in found)


def bound(name: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, defaults included."""
    known = parameters(name)
    positional = [p.name for p in known if not p.kwarg_only]
    given = dict(zip(positional, args, strict=False)) | keywords
    return {p.name: given.get(p.name, p.default_value) for p in known}


def call(name: str, given: dict[str, Any]) -> Tensor:
    """The operator on arguments by name."""
    positional = [p.name for p in parameters(name) if not p.kwarg_only]
    rest = {n: x for n, x in given.items() if n not in positional}
    return getattr(torch.ops.tilemma, name).default(*(given[n] for n in positional), **rest)


def _computed(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(*args: Any, **keywords: Any) -> Tensor:
        if not torch.is_grad_enabled():
            return compute(*args, **keywords)
        # Autograd has recorded the call already.
        with torch.no_grad():
            return compute(*args, **keywords)

    return run


def _define(name: str, schema: str, compute: Callable[..., Tensor], fake: Callable[..., Tensor]) -> None:
    # Results have the strides that the operator gives them: no layout of the compiler's choice.
    LIBRARY.define(f"{name}({schema}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(name, _computed(compute), device)
    torch.library.register_fake(f"tilemma::{name}", _on_one_device(name, fake), lib=LIBRARY)


def _on_one_device(name: str, fake: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``fake`` after a check that meta tensors meet no others; compiled code is refused when it runs."""

    def run(*args: Any, **keywords: Any) -> Tensor:
        if torch._guards.TracingContext.try_get() is None:
            tensors = {n: x for n, x in bound(name, args, keywords).items() if isinstance(x, Tensor)}
            first, place = next((n, str(x.device)) for n, x in tensors.items())
            for n, x in tensors.items():
                if str(x.device) != place:
                    raise MixedDevices(kernel=name, name=n, device=str(x.device), other=first, other_device=place)
        return fake(*args, **keywords)

    return run


@cache
def _plain_keys(device: str) -> int:
    """The dispatch keys of plain tensors, as bits; 0 where torch does not say."""
    found = [0]

    def ask() -> None:
        with contextlib.suppress(AttributeError, RuntimeError):
            found[0] = torch._C._dispatch_keys(torch.empty(0, device=device)).raw_repr()

    # Modes, in which tensors are of other kinds, are those of a thread: a new one has none.
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found[0]


def _is_plain(keys: Any, values: tuple[Any, ...]) -> bool:
    """Whether a call with these dispatch keys is just its computation: no mode, transform, subclass or lazy
    negation would see it."""
    first = values[0]
    device = "cuda" if first.is_cuda else "cpu"
    return (first.is_cuda or first.is_cpu) and not keys.raw_repr() & ~_plain_keys(device)


def _differentiate(name: str, compute: Callable[..., Tensor]) -> None:
    """Gradients by `derivatives`; positional arguments alone may require one, and keywords that are tensors."""

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, given: dict[str, Any], names: tuple[str, ...], *tensors: Any) -> Tensor:
            given = {**given, **dict(zip(names, tensors, strict=True))}
            with torch._C._AutoDispatchBelowAutograd():
                found = call(name, given)
            ctx.given, ctx.names = {n: x for n, x in given.items() if n not in names}, names
            ctx.save_for_backward(*tensors)
            return found

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            from tilemma.torch.derivatives import DERIVATIVES

            given = {**ctx.given, **dict(zip(ctx.names, ctx.saved_tensors, strict=True))}
            needed = [n for n, need in zip(ctx.names, ctx.needs_input_grad[2:], strict=True) if need]
            found = DERIVATIVES[name](given, grads[0], needed)
            return None, None, *(found.get(n) for n in ctx.names)

    operator = getattr(torch.ops.tilemma, name).default

    def run(keys: Any, *args: Any, **keywords: Any) -> Tensor:
        values = (*args, *keywords.values())
        if not (torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in values)):
            # The dispatcher would come to the same, in as much time of the host as the computation itself.
            if _is_plain(keys, values):
                return compute(*args, **keywords)
            with torch._C._AutoDispatchBelowAutograd():
                return operator(*args, **keywords)
        if torch._C._are_functorch_transforms_active():
            raise TorchTransform(function=name)
        given = bound(name, args, keywords)
        tensors = {n: x for n, x in given.items() if isinstance(x, Tensor)}
        rest = {n: x for n, x in given.items() if n not in tensors}
        return Recorded.apply(rest, tuple(tensors), *tensors.values())

    LIBRARY.impl(name, run, "Autograd", with_keyset=True)


def _autocast(name: str, device: str) -> None:
    """Floating operands of at most 32 bits take the type of `torch.autocast`, as those of torch.mm."""
    key = f"Autocast{device}"
    others = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
        torch._C.DispatchKey.AutocastCUDA
    )

    def run(*args: Any, **keywords: Any) -> Tensor:
        kind = torch.get_autocast_dtype(device.lower())
        given = bound(name, args, keywords)
        for n, x in given.items():
            if isinstance(x, Tensor) and x.dtype in _CAST and "scale" not in n and n != "zeros":
                given[n] = x.to(kind)
        with torch._C._ExcludeDispatchKeyGuard(others):
            return call(name, given)

    LIBRARY.impl(name, run, key)


def _batched(name: str) -> None:
    """vmap: `matmul` of operands with a further batch dimension, and every other call by a loop."""

    def run(info: Any, in_dims: tuple[Any, ...], *args: Any, **keywords: Any) -> tuple[Tensor, int]:
        given = bound(name, args, keywords)
        positional = [p.name for p in parameters(name) if not p.kwarg_only]
        dims = dict(zip(positional, in_dims, strict=False))
        if name == "matmul" and not any(given[n] is not None for n in ("c", "bias")):
            moved = {n: given[n] if dims[n] is None else given[n].movedim(dims[n], 0) for n in "ab"}
            rank = max(x.dim() - (dims[n] is not None) for n, x in moved.items())
            for n, x in moved.items():
                if dims[n] is not None:
                    given[n] = x.reshape(x.shape[0], *[1] * (rank + 1 - x.dim()), *x.shape[1:])
            return call(name, given), 0
        results = []
        for i in range(info.batch_size):
            picked = {
                n: x.select(dims[n], i) if isinstance(x, Tensor) and dims.get(n) is not None else x
                for n, x in given.items()
            }
            results.append(call(name, picked))
        return torch.stack(results), 0

    torch.library.register_vmap(f"tilemma::{name}", run, lib=LIBRARY)


for _name, (_schema, _compute, _fake) in TABLE.items():
    _define(_name, _schema, _compute, _fake)
    if _name != "grouped_outer":
        _differentiate(_name, _computed(_compute))
        _autocast(_name, "CPU")
        _autocast(_name, "CUDA")
        _batched(_name)


# Arguments of `tilemma.ops` that some operators do not have, where they have no effect.
_NOTHING = {"alpha": 1.0, "beta": 0.0, "fast": True}

# ---- tilemma.ops on tensors that require gradients -----------------------------------------------------------


def _with_gradients(name: str) -> Callable[..., Any]:
    known = inspect.signature(TABLE[name][1]).parameters

    def run(**keywords: Any) -> Any:
        for n, x in keywords.items():
            if n not in known and not (x is None or _NOTHING.get(n) == x):
                # The operator has no such argument.
                raise MatmulGradient(function=name, name=n)
        given = {n: x for n, x in keywords.items() if n in known}
        if given["out_dtype"] is not None:
            given["out_dtype"] = getattr(torch, dtypes.dtype(type_name(given["out_dtype"])).library_name)
        like = next(x for x in given.values() if isinstance(x, Tensor))
        for n in ("scale_a", "scale_b"):
            if isinstance(given.get(n), (int, float)):
                given[n] = torch.full((), given[n], dtype=torch.float32, device=like.device)
        return call(name, bound(name, (), given))

    return run


for _name in (
    "matmul",
    "scaled_matmul",
    "sparse_matmul",
    "mixed_matmul",
    "grouped_matmul",
    "gated_matmul",
    "conv2d",
):
    gradients.register(_name, _with_gradients(_name))
