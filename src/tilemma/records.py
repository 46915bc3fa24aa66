"""Records: dataclasses, frozen by default, whose classes and instances are cheap to create.

`dataclasses` compiles six methods for each frozen class, which takes half a millisecond, and asks what each
annotation means; there are some three hundred classes.  Here ``__init__`` alone is code of its own, compiled once
for all classes of one shape, and fills slots directly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import cache
from operator import attrgetter
from types import CodeType, FunctionType, MemberDescriptorType
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
        cls.__doc__ = cls.__doc__ or cls.__name__
        found = _declared(cls)
        made = _with_slots(cls, found) if slots else cls
        for name, method in _methods(made, found, frozen, eq).items():
            # Python gives a class that defines __eq__ a __hash__ of None.
            if vars(cls).get(name) is None:
                setattr(made, name, method)
        return made

    return make if cls is None else make(cls)


@dataclass(init=False, repr=False, eq=False)
class _Sample:
    field: int


# What `dataclasses` marks its fields and its classes with; a Python that has no such marks declares fields itself.
_ORDINARY: Any = getattr(fields(_Sample)[0], "_field_type", None)
_PARAMETERS: Any = getattr(_Sample, "__dataclass_params__", None)


def _declared(cls: Any) -> tuple[Any, ...]:
    """The fields of ``cls``, as `dataclass` finds them; it becomes a dataclass without methods."""
    if _ORDINARY is None or _PARAMETERS is None:
        return fields(dataclass(init=False, repr=False, eq=False)(cls))
    found: dict[str, Any] = {}
    for base in cls.__mro__[-1:0:-1]:
        found |= base.__dict__.get("__dataclass_fields__", {})
    for name, text in cls.__annotations__.items():
        if str(text).startswith(("ClassVar", "typing.ClassVar")):
            continue
        given: Any = getattr(cls, name, MISSING)  # a base may have a default, or a slot
        if isinstance(given, MemberDescriptorType):
            given = MISSING
        f: Any = given if isinstance(given, Field) else field(default=given)
        f.name, f.type, f.kw_only, f._field_type = name, text, f.kw_only is True, _ORDINARY
        found[name] = f
        if f.default is not MISSING:
            setattr(cls, name, f.default)
        elif f is given:
            delattr(cls, name)
    cls.__dataclass_fields__, cls.__dataclass_params__ = found, _PARAMETERS
    every = tuple(found.values())
    cls.__match_args__ = tuple([f.name for f in every if not f.kw_only])  # type: ignore[misc]
    return every


def _with_slots(cls: Any, found: Sequence[Any]) -> Any:
    """``cls`` made anew, with a slot for each field that no base has one for."""
    names = [f.name for f in found]
    inherited = {name for base in cls.__mro__[1:-1] for name in base.__dict__.get("__slots__", ())}
    inside = {k: v for k, v in cls.__dict__.items() if k not in names and k not in ("__dict__", "__weakref__")}
    inside["__slots__"] = tuple([name for name in names if name not in inherited])
    made = type(cls)(cls.__name__, cls.__bases__, inside)
    made.__qualname__ = cls.__qualname__
    return made


def _methods(cls: type[Any], found: Sequence[Any], frozen: bool, eq: bool) -> dict[str, Any]:
    methods: dict[str, Any] = {"__repr__": _text}
    if found or hasattr(cls, "__post_init__"):
        methods["__init__"] = _initialiser(cls, found, frozen)
    if eq:
        equal, hashed = _comparison([f.name for f in found if f.compare])
        methods |= {"__eq__": equal, "__hash__": hashed if frozen else None}
    if frozen:
        methods |= {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}
        methods |= {"__getstate__": _state, "__setstate__": _restore}
    return methods


def _initialiser(cls: type[Any], found: Sequence[Any], frozen: bool) -> Callable[..., None]:
    """``__init__``; the slots of frozen records are set through their descriptors, which is faster than by
    name.

    Compiling takes longer than all the rest: classes of one shape share code, in which the names alone differ.
    """
    ordered = sorted(found, key=lambda f: f.kw_only)
    names = {f"f{i}": f.name for i, f in enumerate(ordered)}
    scope: dict[str, Any] = {"MISSING": MISSING, "set_attribute": object.__setattr__}
    shape = list[str]()
    for i, f in enumerate(ordered):
        place = getattr(cls, f.name, None)
        if not frozen:
            kind = "attribute"
        elif isinstance(place, MemberDescriptorType):
            kind, scope[f"set_{i}"] = "slot", place.__set__
        else:
            kind, scope[f"name_{i}"] = "frozen", f.name
        if f.default_factory is not MISSING:
            kind, scope[f"make_{i}"] = f"{kind} made", f.default_factory
        shape.append(kind)
    code = _code(tuple(shape), sum([f.kw_only for f in ordered]), hasattr(cls, "__post_init__"))

    def named(used: Sequence[str]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in used)

    code = code.replace(co_varnames=named(code.co_varnames), co_names=named(code.co_names))
    # MISSING stands for a default that is made.
    defaults = [f for f in ordered if f.default is not MISSING or f.default_factory is not MISSING]
    positional = [f for f in defaults if not f.kw_only]
    last = [f for f in ordered if not f.kw_only][-len(positional) :]
    assert not positional or positional == last, f"{cls}: a field without default is behind one with a default"
    made = FunctionType(code, scope, "__init__", tuple(f.default for f in positional))
    made.__kwdefaults__ = {f.name: f.default for f in defaults if f.kw_only}
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


@cache
def _code(shape: tuple[str, ...], keywords: int, checked: bool) -> CodeType:
    """The code of ``__init__`` for fields f0, f1, .. of these kinds; the last ``keywords`` are passed by name."""
    body = list[str]()
    for i, kind in enumerate(shape):
        if kind.endswith(" made"):
            body.append(f"if f{i} is MISSING: f{i} = make_{i}()")
        statements = {
            "attribute": f"self.f{i} = f{i}",
            "slot": f"set_{i}(self, f{i})",
            "frozen": f"set_attribute(self, name_{i}, f{i})",
        }
        body.append(statements[kind.removesuffix(" made")])
    if checked:
        body.append("self.__post_init__()")
    parameters = ["self", *(f"f{i}" for i in range(len(shape)))]
    if keywords:
        parameters.insert(-keywords, "*")
    scope: dict[str, Any] = {}
    # The name of the file tells that the frame belongs to this package.
    text = f"def __init__({', '.join(parameters)}):\n " + "\n ".join(body or ["pass"])
    exec(compile(text, _FILE, "exec"), scope)
    code: CodeType = scope["__init__"].__code__
    return code


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


_copying: dict[type[Any], tuple[Callable[[Any], Any], dict[str, int], Callable[..., None]]] = {}


def _copied(cls: type[Any]) -> tuple[Callable[[Any], Any], dict[str, int], Callable[..., None]]:
    """The values of the fields of a record, each one's place among them, and ``__init__`` with all by place."""
    found: list[Any] = sorted(fields(cls), key=lambda f: bool(f.kw_only))
    names = [f.name for f in found]
    values: Callable[[Any], Any] = attrgetter(*names, "__class__")  # of one name, it returns the value itself
    init: Any = cls.__init__
    if not isinstance(init, FunctionType) or init.__code__.co_filename != _FILE:
        raise TypeError(f"{cls.__name__} is not a record with fields")
    code = init.__code__.replace(co_argcount=len(names) + 1, co_kwonlyargcount=0)
    known = values, {name: i for i, name in enumerate(names)}, FunctionType(code, init.__globals__)
    _copying[cls] = known
    return known


def replace(x: _T, /, **changes: Any) -> _T:
    """`dataclasses.replace` of a record: that function asks each field what it is."""
    cls: Any = x.__class__
    get, places, fill = _copying.get(cls) or _copied(cls)
    *values, _ = get(x)
    for name, value in changes.items():
        values[places[name]] = value
    made: _T = _new(cls)
    fill(made, *values)
    return made


_new: Any = object.__new__


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for f, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)
