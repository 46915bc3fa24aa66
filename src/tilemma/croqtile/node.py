"""The base of the syntax tree's nodes."""

from __future__ import annotations

from dataclasses import KW_ONLY, FrozenInstanceError
from typing import Any, ClassVar, NoReturn, Self, dataclass_transform

from tilemma.errors import Span

# What a node's attributes hold besides nodes and tuples of them.
LEAVES = frozenset({str, int, float, bool, type(None), Span})


@dataclass_transform(frozen_default=True, eq_default=False)
class _Fields:
    """The annotations of a subclass are its fields, as in a frozen dataclass."""


class Node(_Fields):
    """A node equals itself alone.  ``span`` is passed by name.

    What a dataclass generates for each class is here once: the seventy classes would take longer to make than a
    kernel to parse.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ()
    _: KW_ONLY
    span: Span

    def __init_subclass__(cls) -> None:
        cls.__match_args__ = (*cls.__match_args__, *cls.__annotations__)  # type: ignore[misc]

    def __init__(self, *values: Any, **named: Any) -> None:
        # An attribute that is not given is the class's own: the default.
        self.__dict__.update(zip(self.__match_args__, values, strict=False), **named)

    def evolve(self, **changes: Any) -> Self:
        """A copy with other values."""
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__, **changes)
        return new

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__match_args__ if name != "name_span")
        return f"{type(self).__name__}({', '.join(shown)})"
