"""Records: dataclasses, frozen by default, whose classes and instances are cheap to create.

`dataclasses` compiles six methods for each frozen class, which takes half a millisecond; there are some three
hundred classes.  Here ``__init__`` alone is compiled for a class, and fills slots directly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from types import MemberDescriptorType
from typing import Any, NoReturn, TypeVar, dataclass_transform, overload

_T = TypeVar("_T")
_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "<initialiser>")


@overload
def record(cls: type[_T], /) -> type[_T]: ...
@overload
def record(*, frozen: bool = True, slots: bool = True, eq: bool = True) -> Callable[[type[_T]], type[_T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[Any] | None = None, /, *, frozen: bool = True, slots: bool = True, eq: bool = True) -> Any:
    """``dataclass(frozen=frozen, slots=slots, eq=eq)``: the same fields, construction, equality, hash and text.

    `dataclasses.fields`, ``replace`` and ``asdict`` take its instances.  Methods that the class itself defines
    stay, and ``__post_init__`` is called.  Records inherit from records, and from classes without fields.
    """

    def make(cls: type[Any]) -> type[Any]:
        # Where there is no docstring `dataclass` writes one, from a signature that takes longer than the rest.
        cls.__doc__ = cls.__doc__ or cls.__name__
        made: type[Any] = dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
        for name, method in _methods(made, frozen, eq).items():
            # Python gives a class that defines __eq__ a __hash__ of None.
            if vars(cls).get(name) is None:
                setattr(made, name, method)
        return made

    return make if cls is None else make(cls)


def _methods(cls: type[Any], frozen: bool, eq: bool) -> dict[str, Callable[..., Any] | None]:
    methods: dict[str, Callable[..., Any] | None] = {"__init__": _initialiser(cls, frozen), "__repr__": _text}
    if eq:
        equal, hashed = _comparison([f.name for f in fields(cls) if f.compare])
        methods |= {"__eq__": equal, "__hash__": hashed if frozen else None}
    if frozen:
        methods |= {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}
        methods |= {"__getstate__": _state, "__setstate__": _restore}
    return methods


def _initialiser(cls: type[Any], frozen: bool) -> Callable[..., None]:
    """``__init__``; the slots of frozen records are set through their descriptors, which is faster than by
    name."""
    scope: dict[str, Any] = {"MISSING": MISSING, "set_attribute": object.__setattr__}
    ordered, named, body = ["self"], list[str](), list[str]()
    for f in fields(cls):
        name, value = f.name, f.name
        if f.default is not MISSING:
            scope[f"default_{name}"] = f.default
            value = f"{name}=default_{name}"
        elif f.default_factory is not MISSING:
            scope[f"make_{name}"] = f.default_factory
            value = f"{name}=MISSING"
            body.append(f"if {name} is MISSING: {name} = make_{name}()")
        (named if f.kw_only else ordered).append(value)
        place = getattr(cls, name, None)
        if not frozen:
            body.append(f"self.{name} = {name}")
        elif isinstance(place, MemberDescriptorType):
            scope[f"set_{name}"] = place.__set__
            body.append(f"set_{name}(self, {name})")
        else:
            body.append(f"set_attribute(self, {name!r}, {name})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join([*ordered, *(["*", *named] if named else [])])
    # The name of the file tells that the frame belongs to this package.
    text = f"def __init__({parameters}):\n " + "\n ".join(body or ["pass"])
    exec(compile(text, _FILE, "exec"), scope)
    made: Callable[..., None] = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _comparison(names: Sequence[str]) -> tuple[Callable[..., Any], Callable[..., int]]:
    """``__eq__`` and ``__hash__`` by the attributes called ``names``."""
    # `attrgetter` of one name returns the value itself and of none fails: the class is appended.
    values = attrgetter(*names, *["__class__"] * (2 - len(names)))

    def equal(self: Any, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: Any) -> int:
        return hash(values(self))

    return equal, hashed


def _text(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{type(self).__qualname__}({shown})"


def _refuse_set(self: Any, name: str, value: Any) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for f, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)
