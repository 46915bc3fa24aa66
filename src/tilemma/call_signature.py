"""`inspect.signature` of kernels: their own parameters, for completion, `help()` and notebooks."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from keyword import iskeyword
from types import FunctionType
from typing import Any

from tilemma.errors import TilemmaError


class CallSignature:
    """The attribute `__signature__` of kernels.  A class has none, nor has a kernel that cannot be read."""

    def __get__(self, kernel: Any, owner: type | None = None) -> inspect.Signature:
        if kernel is None:
            raise AttributeError("__signature__")
        function = getattr(kernel, "__wrapped__", None)
        try:
            if isinstance(function, FunctionType):
                return _of_function(function)
            return inspect.Signature(list(_parameters(kernel)))
        except TilemmaError as e:
            raise AttributeError(f"{kernel!r} has no signature: {e}", name="__signature__", obj=kernel) from e


def _of_function(function: FunctionType) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # annotations whose text does not evaluate
        return inspect.signature(function)


def _parameters(kernel: Any) -> Iterator[inspect.Parameter]:
    """Of a `.co` kernel."""
    from tilemma.lang.annotations import ArrayType, ScalarType

    passed = kernel.signature()
    arrays = {a.name: a for a in passed.plan.arrays}
    kinds: dict[str, Any] = {s.name: ScalarType(s.dtype) for s in passed.plan.scalars}
    for name, a in arrays.items():
        # The front end names a dimension without a name after its array and its position.
        named = [None if d == f"{name}_{i}" else d for i, d in enumerate(a.dims)]
        kinds[name] = ArrayType(a.dtype, tuple(d if isinstance(d, (int, str)) else None for d in named))
    for name in (n for n in passed.order if n not in passed.scratch):
        legal = f"{name}_" if iskeyword(name) else name
        default = None if name == passed.returns else inspect.Parameter.empty
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        yield inspect.Parameter(legal, kind, annotation=kinds[name], default=default)
