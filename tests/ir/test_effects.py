"""Every operation declares its effect on each of its operands."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar

import pytest
from hypothesis import given
from ir_strategies import tile_kernels

from tilemma.dtypes import f32
from tilemma.ir import tile as t
from tilemma.ir.effects import Effect, Execution, Order, Reads, Writes, read_views, touches, written
from tilemma.ir.expr import Index, Var
from tilemma.ir.operation import require_all
from tilemma.ir.types import Buffer, Event, EventRef, Space, View
from tilemma.ir.walk import walk
from tilemma.records import record

RESOURCES = (View, t.FragmentRef, Var, Index, Buffer, Event, EventRef)


def held(v: Any) -> list[Any]:
    """The resources in a field's value, those inside expressions and nested operations left out."""
    if isinstance(v, RESOURCES):
        return [v]
    return [r for x in v for r in held(x)] if isinstance(v, tuple) else []


@given(tile_kernels())
def test_touches_hold_every_resource_that_a_field_holds(kernel: t.Kernel) -> None:
    for op in walk(kernel.body):
        declared = [x.what for x in touches(op) if not isinstance(x.what, str)]
        # Fields of scalar expressions may hold a variable or index: that is a read.
        plain = [f.name for f in fields(op) if f.name != "span" and "Expr" not in str(f.type)]
        assert declared == [r for name in plain for r in held(getattr(op, name))]


@pytest.mark.parametrize("cls", t.OPERATIONS, ids=lambda c: c.__name__)
def test_an_operation_touches_orders_or_holds_others(cls: Any) -> None:
    has_body = any(str(f.type) == "Body" for f in fields(cls))
    assert cls.fields_touched or has_body or isinstance(cls.order, Order)


def test_a_field_without_effect_cannot_be_defined() -> None:
    with pytest.raises(TypeError, match=r"Forgotten\.src: View does not say"):

        @record
        class Forgotten(t.Op):
            syntax: ClassVar[str] = "forgotten $src"
            src: View


def test_an_operation_that_touches_nothing_says_what_it_orders() -> None:
    with pytest.raises(TypeError, match="Nothing touches nothing"):

        @record
        class Nothing(t.Op):
            syntax: ClassVar[str] = "nothing"
            execution: ClassVar[Execution] = Execution.INSTANCE


def test_an_operation_says_which_threads_execute_it() -> None:
    with pytest.raises(TypeError, match="Unassigned does not say which threads execute it"):

        @record
        class Unassigned(t.Op):
            syntax: ClassVar[str] = "unassigned $src"
            src: Reads[View]


def test_a_new_operation_is_known_to_those_who_ask() -> None:
    @record
    class Negate(t.Op):
        syntax: ClassVar[str] = "negate $src => $dst"
        execution: ClassVar[Execution] = Execution.LANE
        src: Reads[View]
        dst: Writes[View]

    a, b = (Buffer(n, f32, (), Space.GLOBAL) for n in "ab")
    op = Negate(a.whole(), b.whole())
    assert [v.base.name for v in read_views(op)] == ["a"]
    assert list(written(op)) == ["b"]
    assert [x.effect for x in touches(op)] == [Effect.READ, Effect.WRITE]


def test_a_table_that_forgets_an_operation_cannot_be_imported() -> None:
    table = {c: None for c in t.OPERATIONS if c is not t.Copy}
    with pytest.raises(TypeError, match="a table has no entry for Copy"):
        require_all(table, t.OPERATIONS, "a table")
