"""Substitution: bodies with indices, variables and views replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilemma.ir.expr import Element, Expr, Index, Var, with_bounds, with_operands
from tilemma.ir.operation import Body, Op
from tilemma.ir.types import View
from tilemma.ir.walk import map_expressions, with_bodies, with_fields


class Substitution:
    """``values`` replaces indices and variables by name; ``view`` is applied to every view afterwards.

    An index or variable that is replaced by another one of its class is also replaced where it is declared.
    """

    def __init__(self, values: Mapping[str, Expr], view: Callable[[View], View] = lambda v: v) -> None:
        self._values, self._view = values, view
        self._known: dict[int, tuple[Expr, Expr]] = {}

    def body(self, body: Body) -> Body:
        return tuple(self.operation(op) for op in body)

    def operation(self, op: Op) -> Op:
        op = map_expressions(op, self.expression)
        found = {name: getattr(op, name) for name, _ in type(op).fields_touched}
        views = {name: self._view(v) for name, v in found.items() if isinstance(v, View)}
        op = with_fields(op, views)
        return with_bodies(op, self.body)

    def expression(self, e: Expr) -> Expr:
        # The key keeps its expression alive: another one may not get its identity.
        if id(e) not in self._known:
            self._known[id(e)] = e, self._new(e)
        return self._known[id(e)][1]

    def _new(self, e: Expr) -> Expr:
        if isinstance(e, (Index, Var)):
            e = self._values.get(e.name, e)
            return with_bounds(e, self.expression) if isinstance(e, Index) else e
        if isinstance(e, Element):
            return Element(self._view(e.view.map(self.expression)))
        return with_operands(e, self.expression)
