"""Arrays that a call allocates: the one that the kernel returns, and its scratch memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilemma.errors import WrongArgument
from tilemma.launch import ArrayParam, evaluate
from tilemma.runtime import arrays


def with_allocated(
    params: Sequence[ArrayParam],
    order: Sequence[str],
    returns: str | None,
    scratch: Sequence[str],
    args: Sequence[Any],
    named: Mapping[str, Any],
) -> tuple[list[Any], dict[str, Any], frozenset[str]]:
    """Arguments by position and by name, with the allocated arrays, whose names are the third result.

    ``order``: all parameters.  The arrays ``scratch`` are no parameters of the call; ``returns`` is one that the
    caller may leave out.
    """
    missing = [n for n in scratch if n not in named]
    passable = [n for n in order if n not in missing]
    if returns is not None and returns not in named and len(args) + len(named) < len(passable):
        missing.append(returns)
    given = dict(zip([n for n in order if n not in missing], args, strict=False))
    if not missing or len(args) > len(given) or given.keys() & named.keys():
        return list(args), dict(named), frozenset()
    made = _allocated(params, given | dict(named), missing)
    if made.keys() | given.keys() | named.keys() != set(order):
        return list(args), dict(named), frozenset()
    values = {**given, **named, **made}
    return [values[n] for n in order], {}, frozenset(made)


def _allocated(params: Sequence[ArrayParam], given: Mapping[str, Any], missing: Sequence[str]) -> dict[str, Any]:
    """New arrays for ``missing``, by the library and on the device of the first array that is given, else NumPy's.

    Empty ones where their extents are not known: the call does not fit the kernel."""
    names: dict[str, int] = {n: int(v) for n, v in given.items() if isinstance(v, (int, float, np.generic))}
    first: arrays.ArrayRef | None = None
    for p in params:
        if p.name in missing or p.name not in given:
            continue
        ref = arrays.describe(given[p.name])
        first = first or ref
        names |= {dim: extent for dim, extent in zip(p.dims, ref.shape, strict=False) if isinstance(dim, str)}
    if first is None:
        first = arrays.describe(np.empty(0, np.uint8))
    made = {}
    for p in params:
        if p.name in missing:
            try:
                shape = tuple(evaluate(d, names) for d in p.dims)
            except KeyError:
                shape = (0,) * len(p.dims)
            if min(shape, default=0) < 0:
                wanted = "arguments that give it extents of at least 0"
                raise WrongArgument(function=p.name, name="extents", got=str(list(shape)), wanted=wanted)
            made[p.name] = arrays.empty_like_first(first, shape, p.dtype)
    return made
