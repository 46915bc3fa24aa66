"""Arguments of public functions, checked against conditions that are declared beside the function.

    @checked(bits=one_of(8, 16, 32), shape=integers(1, 1 << 28))
    def tile(bits, shape): ...

A call with another value raises WrongArgumentType or WrongArgument, before the function runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from itertools import takewhile
from typing import Any, ParamSpec, TypeVar

import numpy as np

from tilemma.errors import WrongArgument, WrongArgumentType, described
from tilemma.records import record

P = ParamSpec("P")
T = TypeVar("T")


@record
class Condition:
    """``wanted`` in words, the test of an argument's type, and the test of its value."""

    wanted: str
    has_type: Callable[[Any], bool]
    holds: Callable[[Any], bool] = lambda _: True

    def check(self, function: str, name: str, value: object) -> None:
        """Raises WrongArgumentType or WrongArgument where ``value`` does not fulfil the condition."""
        if not self.has_type(value):
            raise WrongArgumentType(function=function, name=name, got=described(value), wanted=self.wanted)
        if not self.holds(value):
            raise WrongArgument(function=function, name=name, got=described(value), wanted=self.wanted)


def is_integer(value: object) -> bool:
    """Whether ``value`` is an integer of Python or NumPy, not a truth value."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def integer(low: int, high: int) -> Condition:
    """An integer from ``low`` to ``high``."""
    return Condition(f"an integer from {low} to {high}", is_integer, lambda x: low <= x <= high)


def real(low: float, high: float, unit: str = "") -> Condition:
    """A number from ``low`` to ``high``."""
    return Condition(
        f"a number from {low:g} to {high:g}{unit and ' ' + unit}",
        lambda x: isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool),
        lambda x: low <= x <= high,
    )


def integers(low: int, high: int, *counts: int, most: int = 1 << 16) -> Condition:
    """A tuple or list of integers from ``low`` to ``high``: one of ``counts`` many, or at most ``most``."""
    many = " or ".join(map(str, counts)) or f"at most {most}"
    return Condition(
        f"a tuple of {many} integers from {low} to {high}",
        lambda v: isinstance(v, (tuple, list)) and all(map(is_integer, v)),
        lambda v: (len(v) in counts if counts else len(v) <= most) and all(low <= x <= high for x in v),
    )


def one_of(*values: int | str) -> Condition:
    """One of ``values``, which are all integers or all texts."""
    has_type = is_integer if isinstance(values[0], int) else lambda v: isinstance(v, str)
    return Condition(f"one of {', '.join(map(str, values))}", has_type, lambda v: v in values)


def instance(wanted: str, *types: type) -> Condition:
    """An object of one of ``types``."""
    return Condition(wanted, lambda v: isinstance(v, types))


def function(wanted: str) -> Condition:
    """A function or another object that can be called."""
    return Condition(wanted, callable)


FLAG = instance("True or False", bool)


def optional(condition: Condition) -> Condition:
    """None, or a value that satisfies ``condition``."""
    return Condition(
        f"{condition.wanted}, or None",
        lambda v: v is None or condition.has_type(v),
        lambda v: v is None or condition.holds(v),
    )


def checked(**conditions: Condition) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator: check the arguments named in ``conditions`` at each call."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        parameters = inspect.signature(function).parameters
        assert set(conditions) <= set(parameters), f"{function}: {set(conditions) - set(parameters)}"
        order = tuple(takewhile(lambda n: parameters[n].kind != inspect.Parameter.VAR_POSITIONAL, parameters))

        @wraps(function)
        def call(*args: P.args, **keywords: P.kwargs) -> T:
            for name, value in (*zip(order, args, strict=False), *keywords.items()):
                if name in conditions:
                    conditions[name].check(call.__name__, name, value)
            return function(*args, **keywords)

        return call

    return decorate
