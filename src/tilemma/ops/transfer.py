"""Compiled kernels of another process: a child compiles for a call, and its parent takes over the results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilemma.compiler import Ready
from tilemma.front_end_cache import Signature
from tilemma.kernels import Kernel, facts_of


@dataclass(frozen=True, slots=True)
class Made:
    """What compiling a kernel for a call gives, by the keys that its results have."""

    signatures: tuple[tuple[Any, Signature], ...]
    ready: tuple[tuple[Any, Ready], ...]


def make(target: str, where: str, kernel: Kernel, args: tuple[Any, ...], constants: Mapping[str, Any]) -> Made:
    """Compile ``kernel`` for a call with CUDA arrays, and assemble it for ``where``, without a use of the GPU.

    The kernel forgets the results: the parent may not get them, and asks for them again then.
    """
    known = kernel._known
    before = {*known.ready, *known.signatures}
    _, bound, _ = kernel.on("cuda")._bind(args, constants)
    facts = facts_of({a.name: bound.array(a.name) for a in bound.launch.arrays})
    kernel.ready(target, facts, assemble_for=where, sizes=bound.names, **constants)
    ready = [(key, found) for key, found in known.ready.items() if key not in before]
    signatures = tuple((key, found) for key, found in known.signatures.items() if key not in before)
    made = Made(signatures, tuple((key, replace(found, cubin=found.assembled(where))) for key, found in ready))
    for key, _ in signatures:
        del known.signatures[key]
    for key, _ in ready:
        del known.ready[key]
    return made


def adopt(kernel: Kernel, made: Made) -> None:
    """Take over what a child process made of the same kernel."""
    known = kernel._known
    with kernel._lock:
        for key, signature in made.signatures:
            known.signatures[key] = signature
        for key, ready in made.ready:
            known.ready[key] = ready
