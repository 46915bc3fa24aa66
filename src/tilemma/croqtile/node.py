"""The base of the syntax tree's nodes."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, field, fields
from typing import Any, NoReturn, TypeVar, dataclass_transform

from tilemma.errors import Span

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def node(cls: type[_T]) -> type[_T]:
    """A frozen dataclass that equals itself alone.  What a dataclass generates for each class is in `Node` once:
    the seventy classes here would take longer to make than a kernel to parse."""
    return dataclass(init=False, repr=False, eq=False)(cls)


@node
class Node:
    span: Span = field(kw_only=True)

    def __init__(self, *values: Any, **named: Any) -> None:
        # An attribute that is not given is the class's own: the default.
        self.__dict__.update(zip(type(self).__match_args__, values, strict=False))
        self.__dict__.update(named)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __repr__(self) -> str:
        shown = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.name != "span")
        return f"{type(self).__name__}({', '.join(shown)})"
