"""A record does what a frozen dataclass of the same text does."""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any

import pytest

from tilemma import records
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


@pytest.fixture(params=["marks", "no marks"])
def _marks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python whose `dataclasses` marks fields as ours does, and one that does not."""
    if request.param == "no marks":
        monkeypatch.setattr(records, "_ORDINARY", None)


@pytest.mark.usefixtures("_marks")
@pytest.mark.parametrize("slots", [True, False])
def test_it_is_what_the_dataclass_is(slots: bool) -> None:
    for ours, theirs in zip(family(record, slots), family(partial(dataclass, frozen=True), slots), strict=True):
        assert [(f.name, f.default, f.compare, f.kw_only) for f in fields(ours)] == [
            (f.name, f.default, f.compare, f.kw_only) for f in fields(theirs)
        ]
        assert ours.__match_args__ == theirs.__match_args__
        assert hasattr(ours, "__slots__") == hasattr(theirs, "__slots__") == slots


@pytest.mark.usefixtures("_marks")
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


def test_classes_of_one_shape_share_code() -> None:
    @record
    class Pair:
        one: int
        two: str = "x"

    compiled = records._code.cache_info().misses

    @record
    class Wider(Pair):
        pass

    assert records._code.cache_info().misses == compiled
    assert Wider(1) == Wider(1, "x") and str(inspect.signature(Wider)) == "(one, two='x')"


@pytest.mark.parametrize("frozen, slots", list(itertools.product([True, False], repeat=2)))
def test_classes_of_one_shape_keep_their_names_apart(frozen: bool, slots: bool) -> None:
    @record(frozen=frozen, slots=slots)
    class Point:
        x: int
        y: list[int] = field(default_factory=list)
        z: int = field(kw_only=True, default=3)

    @record(frozen=frozen, slots=slots)
    class Span:
        first: int
        lines: list[int] = field(default_factory=lambda: [0])
        last: int = field(kw_only=True, default=9)

    assert str(Point(1)).endswith("Point(x=1, y=[], z=3)") and str(Span(2)).endswith(
        "Span(first=2, lines=[0], last=9)"
    )
    assert Point(y=[2], x=1, z=4) == Point(1, [2], z=4) != Point(1, [2])
    assert Point(1).y is not Point(1).y
    for wrong, says in (((), "missing 1 required positional argument: 'first'"), ((1, [], 2), "positional")):
        with pytest.raises(TypeError, match=f"Span.__init__.*{says}"):
            Span(*wrong)
    with pytest.raises(TypeError, match="unexpected keyword argument 'x'"):
        Span(1, x=2)


def test_a_record_without_fields_takes_no_arguments() -> None:
    @record
    class Nothing:
        pass

    assert Nothing() == Nothing() and len({Nothing(), Nothing()}) == 1
    with pytest.raises(TypeError):
        Nothing(1)


def test_a_record_without_docstring_is_described_by_its_name() -> None:
    @record
    class Bare:
        x: int

    @record
    class Described:
        """A thing."""

    assert (Bare.__doc__, Described.__doc__) == ("Bare", "A thing.")
