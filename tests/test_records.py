"""A record does what a frozen dataclass of the same text does."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any

import pytest

from tilemma.records import record


def family(make: Callable[..., Any], slots: bool) -> tuple[Any, Any, Any]:
    """A base, one that inherits from it, one that compares by identity."""

    @make(slots=slots)
    class Base:
        name: str
        place: int | None = field(default=None, compare=False, kw_only=True, repr=False)

    @make(slots=slots)
    class Derived(Base):
        """Has a docstring."""

        items: list[int] = field(default_factory=list)
        scale: float = 1.0

        def __post_init__(self) -> None:
            assert self.scale > 0

    @make(slots=slots, eq=False)
    class Unique:
        value: int

        def __repr__(self) -> str:
            return f"<{self.value}>"

    return Base, Derived, Unique


@record
class Portable:
    a: int
    b: str = "b"


@record(slots=False)
class Counted:
    a: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counted) and self.a % 2 == other.a % 2

    @cached_property
    def twice(self) -> int:
        return 2 * self.a


@pytest.mark.parametrize("slots", [True, False])
def test_it_is_what_the_dataclass_is(slots: bool) -> None:
    for ours, theirs in zip(family(record, slots), family(partial(dataclass, frozen=True), slots), strict=True):
        assert [(f.name, f.default, f.compare, f.kw_only) for f in fields(ours)] == [
            (f.name, f.default, f.compare, f.kw_only) for f in fields(theirs)
        ]
        assert ours.__match_args__ == theirs.__match_args__
        assert hasattr(ours, "__slots__") == hasattr(theirs, "__slots__") == slots


@pytest.mark.parametrize("make", [record, partial(dataclass, frozen=True)])
@pytest.mark.parametrize("slots", [True, False])
def test_behaviour(make: Callable[..., Any], slots: bool) -> None:
    base, derived, unique = family(make, slots)
    x = derived("n", [1], place=3)
    assert (x.name, x.items, x.scale, x.place) == ("n", [1], 1.0, 3)
    assert derived("n").items is not derived("n").items
    assert repr(x).endswith("Derived(name='n', items=[1], scale=1.0)")
    assert x == derived("n", [1], place=4) and x != derived("n", [2]) and x != base("n")
    assert base("n", place=1) == base("n") and hash(base("n", place=1)) == hash(base("n"))
    assert x.__eq__(1) is NotImplemented
    assert replace(x, scale=2.0) == derived("n", [1], 2.0) and asdict(x)["place"] == 3
    assert unique(1) != unique(1) and repr(unique(1)) == "<1>"
    for broken in (lambda: setattr(x, "name", "m"), lambda: delattr(x, "name")):
        with pytest.raises(FrozenInstanceError):
            broken()
    with pytest.raises(AssertionError):
        derived("n", scale=0.0)
    for wrong in (lambda: base(), lambda: base("n", 1), lambda: base("n", other=1)):
        with pytest.raises(TypeError):
            wrong()


def test_copies() -> None:
    x = Portable(1)
    assert pickle.loads(pickle.dumps(x)) == copy.deepcopy(x) == copy.copy(x) == x
    y = Counted(2)
    assert y.twice == 4 and copy.copy(y).a == 2


def test_methods_of_the_class_stay() -> None:
    assert Counted(1) == Counted(3) != Counted(2)
    assert hash(Counted(1)) == hash(Counted(1))
