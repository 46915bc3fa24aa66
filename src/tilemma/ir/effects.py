"""Effects of an operation on the entities that it names, declared on its fields.

A field that holds a view, a fragment, a variable, an event, a buffer, an index or a future has an annotation that
gives the effect on it: ``dst: Writes[View]``.  Scalar expressions are always read.  An operation that names none
of these declares what it ``order``s.  Hazard analysis, liveness, lowering, the reference executor and the launch
plan use these declarations, and do not depend on the classes of operations.  A class that leaves something
undeclared cannot be defined.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, Flag, auto
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from tilemma.ir.expr import Element, FragmentElement, Parted, Var
from tilemma.ir.expr import walk as terms
from tilemma.ir.types import EventRef, View
from tilemma.records import record

if TYPE_CHECKING:
    from tilemma.ir.tile import Op

_T = TypeVar("_T")


class Effect(Flag):
    """``ACQUIRE``: waits for a release by other threads.  ``RELEASE``: lets waiting threads continue.
    ``RECEIVE``, of what is written: memory or other lanes give the value, no expression of the operation."""

    READ = auto()
    WRITE = auto()
    DECLARE = auto()
    ACQUIRE = auto()
    RELEASE = auto()
    RECEIVE = auto()

    __hash__ = object.__hash__  # of `Flag` it is written in Python, and runs for each operation visited


class Order(Enum):
    """The effect of an operation without operands."""

    CONTROL = "the iterations of a loop"
    THREADS = "the threads of an instance"
    PROXY = "generic accesses before those of the async proxy"
    COPIES = "groups of cp.async copies"
    BULK_STORES = "groups of TMA stores"
    MULTIPLIES = "groups of asynchronous multiplies"
    OUTPUT = "what the user sees"


class Execution(Enum):
    """The threads that execute an operation."""

    LANE = "each lane by itself"
    LANES = "the lanes of a warp together, each with operands of its own"
    COLLECTIVE = "the lanes of an instance together, each with its part of the operands"
    INSTANCE = "an instance, once"
    CONTROL = "the threads that reach it: it decides which of them execute its bodies, and how often"
    LEVEL = "the instances of another level"


UPDATE = Effect.READ | Effect.WRITE
Reads = Annotated[_T, Effect.READ]
Writes = Annotated[_T, Effect.WRITE]
Updates = Annotated[_T, UPDATE]
Receives = Annotated[_T, Effect.WRITE | Effect.RECEIVE]
Declares = Annotated[_T, Effect.DECLARE]
Acquires = Annotated[_T, Effect.ACQUIRE]
Releases = Annotated[_T, Effect.RELEASE]

MARKERS: dict[str, Effect] = {
    name: alias.__metadata__[0]
    for name, alias in (
        ("Reads", Reads), ("Writes", Writes), ("Updates", Updates), ("Receives", Receives),
        ("Declares", Declares), ("Acquires", Acquires), ("Releases", Releases),
    )
}  # fmt: skip
# For each effect, those of fields that include it.
_INCLUDING = {effect: frozenset(e for e in MARKERS.values() if effect in e) for effect in Effect}
_MARKED = re.compile(r"(\w+)\[")
# The types with effects; annotations are text.
_RESOURCES = frozenset(
    ("View", "FragmentRef", "FragmentName", "Operand", "Var", "Buffer", "Event", "EventRef", "Index", "Future")
)


@record
class Touch:
    """``effect`` of an operation on ``what``, the value of its field ``name``.

    ``what``: a View, FragmentRef, Var, Index, Buffer, Event or EventRef, or the name of a future or fragment.
    """

    effect: Effect
    what: Any
    name: str


class Effective(Parted):
    """Base of operations: the effects of each field, found when the class is defined, and of each operation.

    Each class declares its ``execution``.
    """

    __slots__ = ("_operands", "_reads", "_touches")
    # The effect of each field, for each effect the fields that have it, and the fields that hold operations.
    fields_touched: ClassVar[tuple[tuple[str, Effect], ...]]
    fields_with: ClassVar[dict[Effect, tuple[str, ...]]]
    body_fields: ClassVar[tuple[str, ...]]
    execution: ClassVar[Execution]
    _touches: tuple[Touch, ...]
    _operands: dict[Effect, list[Any]]
    _reads: tuple[Element | FragmentElement, ...]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        marked: dict[str, Effect] = {}
        inside: list[str] = []
        for base in reversed(cls.__mro__):
            for name, annotation in vars(base).get("__annotations__", {}).items():
                text = str(annotation)
                if text.startswith("ClassVar") or name.startswith("_"):
                    continue
                if text == "Body":
                    inside.append(name)
                found = _MARKED.match(text)
                if found and found[1] in MARKERS:
                    marked[name] = MARKERS[found[1]]
                elif _RESOURCES & set(re.findall(r"\w+", text)):
                    raise TypeError(f"{cls.__name__}.{name}: {text} does not say whether it is read or written")
        if not (marked or inside or hasattr(cls, "order") or Effective in cls.__bases__):
            raise TypeError(f"{cls.__name__} touches nothing and does not say what it orders")
        if not (hasattr(cls, "execution") or Effective in cls.__bases__):
            raise TypeError(f"{cls.__name__} does not say which threads execute it")
        cls.fields_touched, cls.body_fields = tuple(marked.items()), tuple(inside)
        cls.fields_with = {
            effect: tuple(name for name, e in marked.items() if e in including)
            for effect, including in _INCLUDING.items()
        }


def touches(op: Op) -> tuple[Touch, ...]:
    """The effects of ``op`` itself, in the order of its fields.

    Bodies inside it and reads inside its expressions are left out; see `element_reads`.
    """
    try:
        return op._touches
    except AttributeError:
        found = tuple(
            Touch(effect, item, name)
            for name, effect in type(op).fields_touched
            for item in _items(getattr(op, name))
        )
        object.__setattr__(op, "_touches", found)
        return found


def _items(v: Any) -> tuple[Any, ...]:
    return () if v is None else v if isinstance(v, tuple) else (v,)


def touched_as(op: Op, effect: Effect) -> Sequence[Any]:
    """The operands of ``op`` itself with (at least) ``effect``."""
    names = type(op).fields_with[effect]
    if not names:
        return ()
    try:
        known = op._operands
    except AttributeError:
        known = {}
        object.__setattr__(op, "_operands", known)
    found = known.get(effect)
    if found is None:
        found = known[effect] = []
        for name in names:
            v = getattr(op, name)
            if isinstance(v, tuple):
                found += v
            elif v is not None:
                found.append(v)
    return found


def variables_set(op: Op) -> list[Var]:
    """The mutable scalars that ``op`` itself assigns or declares."""
    return [x for e in (Effect.WRITE, Effect.DECLARE) for x in touched_as(op, e) if isinstance(x, Var)]


def written_views(op: Op) -> list[View]:
    """The views that ``op`` itself writes."""
    return [x for x in touched_as(op, Effect.WRITE) if isinstance(x, View)]


def updated_views(op: Op) -> list[View]:
    """The views that ``op`` itself reads and writes in one step: those of atomic operations."""
    return [x.what for x in touches(op) if UPDATE in x.effect and isinstance(x.what, View)]


def overwritten_views(op: Op) -> list[View]:
    """The views that ``op`` itself writes without reading them."""
    return [x.what for x in touches(op) if x.effect & UPDATE is Effect.WRITE and isinstance(x.what, View)]


def received(op: Op) -> list[Var]:
    """The variables to which ``op`` gives a value from memory or from other lanes."""
    return [x for x in touched_as(op, Effect.RECEIVE) if isinstance(x, Var)]


def old_values(op: Op) -> list[Var]:
    """The variables in which an atomic operation returns the values that it replaces."""
    return received(op) if updated_views(op) else []


def awaited(op: Op) -> tuple[str, ...]:
    """The futures that ``op`` itself waits for."""
    return tuple([x for x in touched_as(op, Effect.ACQUIRE) if isinstance(x, str)])


def rotated(op: Op) -> tuple[str, ...]:
    """The futures whose names ``op`` rotates: the first then refers to the second's buffer, the last to the
    first's."""
    return tuple([x for x in touched_as(op, Effect.WRITE) if isinstance(x, str)])


def read_views(op: Op) -> list[View]:
    """The views that ``op`` itself reads, those of the elements in its expressions included."""
    found = [x for x in touched_as(op, Effect.READ) if isinstance(x, View)]
    return found + [x.view for x in element_reads(op) if isinstance(x, Element)]


def element_reads(op: Op) -> tuple[Element | FragmentElement, ...]:
    """The elements of arrays and register tiles that the expressions of ``op`` read."""
    try:
        return op._reads
    except AttributeError:
        from tilemma.ir.walk import expressions

        found = tuple([x for e in expressions(op) for x in terms(e) if isinstance(x, (Element, FragmentElement))])
        object.__setattr__(op, "_reads", found)
        return found


def assigned(op: Op) -> list[Var]:
    """The variables to which ``op`` gives a new value."""
    return [x for x in touched_as(op, Effect.WRITE) if isinstance(x, Var)]


def written(op: Op) -> list[str]:
    """Names of the buffers, fragments and variables that ``op`` itself writes."""
    return [name_of(x) for x in touched_as(op, Effect.WRITE)]


def declared(op: Op) -> Sequence[Any]:
    """The declarations of ``op`` itself: variables, indices, buffers, events, fragments and futures by name."""
    return touched_as(op, Effect.DECLARE)


def name_of(x: Any) -> str:
    """The name of the operand of a `Touch`."""
    match x:
        case str():
            return x
        case View():
            return x.base.name
        case EventRef():
            return x.event.name
    name: str = x.name
    return name
