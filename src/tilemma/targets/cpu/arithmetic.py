"""Operators and the math library on values: one function for scalars, one for arrays over lanes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tilemma import dtypes
from tilemma.arithmetic import floats, integers, lanes
from tilemma.arithmetic.convert import carrier, store
from tilemma.dtypes import DType
from tilemma.targets.cpu.faults import NotInReference
from tilemma.targets.cpu.values import Value

Function = Callable[..., Any]


@cache
def scalar_binary(op: str, t: DType) -> Callable[[Any, Any], Any]:
    """``op`` on two scalars already promoted to ``t``."""
    if op in integers.COMPARISONS:
        compare = integers.COMPARISONS[op]
        return lambda a, b: bool(compare(a, b))
    if t.is_float:
        f = lane_binary(op, t)
        kind = np.float64 if t.bits == 64 else np.float32
        return lambda a, b: kind(f(a, b))
    f = integers.binary(op, t)
    return (lambda a, b: bool(f(int(a), int(b)))) if t.kind in ("bool", "bits") else f


@cache
def lane_binary(op: str, t: DType) -> Callable[[Any, Any], Any]:
    """``op`` on values of which one at least is an array over lanes, both promoted to ``t``.

    Integers are those of `tilemma.arithmetic`.
    """
    if op in integers.COMPARISONS:
        return integers.COMPARISONS[op]
    if t.is_float:
        return floats.binary(op, t)
    return lanes.binary(op, t)


def unary(op: str, t: DType) -> Callable[[Any], Any]:
    """neg, not (bitwise; logical for bool) and lnot on scalars and arrays; bool counts as not zero."""
    if op == "lnot" or (op == "not" and t.kind in ("bool", "bits")):
        return lambda a: np.logical_not(a) if isinstance(a, np.ndarray) else not a
    if t.is_float:
        return lambda a: -a
    numpy_op = np.negative if op == "neg" else np.invert
    return lambda a: numpy_op(a) if isinstance(a, np.ndarray) else integers.unary(op, a, t)


def call(name: str, t: DType) -> Callable[..., Value]:
    """The math function ``name`` on arguments already promoted to ``t``; its result has type ``t``."""
    if name not in floats.LIBRARY:
        raise NotInReference(what=f"the function `{name}`")
    if t.is_integer:
        return _integer_call(name, floats.LIBRARY[name], t)
    f = floats.call(name, t)

    def evaluate(*args: Any) -> Value:
        y = f(*args)
        return y if any(isinstance(a, np.ndarray) for a in args) else carrier(t).type(y[()])

    return evaluate


def _integer_call(name: str, f: Function, t: DType) -> Callable[..., Value]:
    if name in ("min", "max"):
        return _either(name, t)

    def evaluate(*args: Any) -> Value:
        y = f(*(np.asarray(a, np.float64) for a in args))
        if any(isinstance(a, np.ndarray) for a in args):
            return store(np.asarray(y, np.float64), dtypes.f64, t)
        return int(store(np.asarray([y], np.float64), dtypes.f64, t)[0])

    return evaluate


def _either(op: str, t: DType) -> Callable[[Any, Any], Value]:
    """``op`` on two scalars or on lanes."""
    scalar, lanes = scalar_binary(op, t), lane_binary(op, t)
    return lambda a, b: lanes(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else scalar(a, b)
