"""Scalar expressions as Python closures over a frame.

A frame is a list: slot 0 the `Instance` that executes, slot 1 the mask of active lanes (None: all), then one
slot for each name of the kernel.  Where many lanes execute as one (a `: thread` level, `Apply`), a value that
differs between lanes is a NumPy array over them, and a uniform value is a scalar.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from tilemma.arithmetic.convert import carrier
from tilemma.dtypes import DType, promote
from tilemma.ir import expr
from tilemma.ir.types import View
from tilemma.targets.cpu.arithmetic import call, lane_binary, scalar_binary, unary
from tilemma.targets.cpu.faults import VariableDiverged
from tilemma.targets.cpu.perturbation import Perturbation
from tilemma.targets.cpu.values import Value, converted, promoted, scalar_value

Frame = list[Any]
INSTANCE, MASK, FIRST = 0, 1, 2
Evaluate = Callable[[Frame], Value]


class Names:
    """Slot numbers for the names of a kernel; a name gets one when it is first met.

    ``reshaped``: the buffers that some view reads in another shape; ``diverging``: the variables that a level
    inside the scope of their declaration assigns.
    """

    def __init__(self) -> None:
        self.slots: dict[tuple[str, str], int] = {}
        self.reshaped: set[str] = set()
        self.diverging: set[str] = set()

    def slot(self, kind: str, name: str) -> int:
        """``kind`` keeps scalars, buffers, fragments, events and futures apart."""
        return self.slots.setdefault((kind, name), FIRST + len(self.slots))

    @property
    def frame_size(self) -> int:
        return FIRST + len(self.slots)


class Diverged:
    """A variable after a level whose instances left different values in it.

    ``values`` has that of each instance, by its threads, for an equal level to find; the scope that declares the
    variable has none until it assigns one.
    """

    __slots__ = ("name", "values")

    def __init__(self, name: str, values: dict[tuple[int, int], Any]) -> None:
        self.name, self.values = name, values


def settled(value: Any) -> Any:
    """``value`` of a variable that is read; VariableDiverged where each instance has another."""
    if type(value) is Diverged:
        raise VariableDiverged(name=value.name)
    return value


class ElementReader(Protocol):
    """Gives the evaluator of one element of a view, and of a fragment's element."""

    def element(self, view: View) -> Evaluate: ...

    def fragment_element(self, e: expr.FragmentElement) -> Evaluate: ...


class Expressions:
    """Compiles expressions; ``reader`` reads elements."""

    def __init__(self, names: Names, reader: ElementReader, perturbation: Perturbation | None = None) -> None:
        self.names = names
        self.reader = reader
        self.perturbation = perturbation

    def compile(self, e: expr.Expr) -> Evaluate:
        match e:
            case expr.Const():
                value = scalar_value(e.value, e.dtype)
                return lambda f: value
            case expr.Var() if e.name in self.names.diverging:
                place = self.names.slot("scalar", e.name)
                return lambda f: settled(f[place])
            case expr.Dim() | expr.Scalar() | expr.Index() | expr.Var():
                slot = self.names.slot("dim" if isinstance(e, expr.Dim) else "scalar", e.name)
                return lambda f: f[slot]
            case expr.Binary() if e.op in expr.LOGICAL:
                return self._logical(e)
            case expr.Binary():
                return self._binary(e)
            case expr.Unary():
                t = e.a.type if e.op == "lnot" else e.type
                a, apply = self.operand(e.a, t), unary(e.op, t)
                return lambda f: apply(a(f))
            case expr.Select():
                return self._select(e)
            case expr.Cast():
                a, source, target = self.compile(e.a), e.a.type, e.dtype
                return self._converted(a, source, target)
            case expr.Element():
                return self.reader.element(e.view)
            case expr.FragmentElement():
                return self.reader.fragment_element(e)
            case expr.Call():
                return self._call(e)
        raise AssertionError(f"unknown expression {type(e).__name__}")

    def operand(self, e: expr.Expr, target: Any) -> Evaluate:
        """``e`` promoted to ``target`` as C does it."""
        a, source = self.compile(e), e.type
        return a if source == target else lambda f: promoted(a(f), source, target)

    def stored(self, e: expr.Expr, target: Any) -> Evaluate:
        """``e`` converted to ``target`` as stores convert."""
        return self._converted(self.compile(e), e.type, target)

    def _converted(self, a: Evaluate, source: DType, target: DType) -> Evaluate:
        if source == target:
            return a
        if self.perturbation is None:
            return lambda f: converted(a(f), source, target)
        change = self.perturbation.conversion

        def evaluate(f: Frame) -> Value:
            x = a(f)
            return change(x, converted(x, source, target), source, target)

        return evaluate

    def _binary(self, e: expr.Binary) -> Evaluate:
        t = promote(e.a.type, e.b.type) if e.op in expr.COMPARISON else e.type
        a, b = self.operand(e.a, t), self.operand(e.b, t)
        scalar, lanes = scalar_binary(e.op, t), lane_binary(e.op, t)

        def evaluate(f: Frame) -> Value:
            x, y = a(f), b(f)
            if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
                return lanes(x, y)
            return scalar(x, y)

        return evaluate

    def _logical(self, e: expr.Binary) -> Evaluate:
        """The right operand is evaluated only where the left one leaves the result open."""
        a, b = self.compile(e.a), self.compile(e.b)
        both = e.op == "land"

        def evaluate(f: Frame) -> Value:
            x = a(f)
            if not isinstance(x, np.ndarray):
                return (_truth(b(f)) if x else False) if both else (True if x else _truth(b(f)))
            x = x != 0
            y = under_mask(f, x if both else ~x, b)
            return (x & _truth(y)) if both else (x | _truth(y))

        return evaluate

    def _select(self, e: expr.Select) -> Evaluate:
        t = e.type
        cond, a, b = self.compile(e.cond), self.operand(e.a, t), self.operand(e.b, t)

        def evaluate(f: Frame) -> Value:
            c = cond(f)
            if not isinstance(c, np.ndarray):
                return a(f) if c else b(f)
            c = c != 0
            return merged(c, under_mask(f, c, a), under_mask(f, ~c, b), t)

        return evaluate

    def _call(self, e: expr.Call) -> Evaluate:
        t = e.type
        args = [self.operand(a, t) for a in e.args]
        function = call(e.name, t)
        if self.perturbation is None:
            return lambda f: function(*(a(f) for a in args))
        change = self.perturbation.function
        return lambda f: change(e.name, function(*(a(f) for a in args)), t)


def merged(mask: Any, new: Value, old: Value, t: DType) -> Value:
    """``new`` in the lanes of ``mask``, ``old`` in the others, as an array of ``t``'s carrier."""
    # NumPy would choose no type of its own for a Python integer that needs 64 bits without sign.
    kind = carrier(t)
    both: Any = np.where(mask, np.asarray(new, dtype=kind), np.asarray(old, dtype=kind))
    return both


def _truth(x: Value) -> Value:
    return x != 0 if isinstance(x, np.ndarray) else bool(x)


def under_mask(f: Frame, mask: Any, g: Evaluate) -> Value:
    """``g`` evaluated with the active lanes narrowed to ``mask``."""
    outer = f[MASK]
    f[MASK] = mask if outer is None else outer & mask
    try:
        return g(f)
    finally:
        f[MASK] = outer
