"""Limits that the description of an operand states are those that are checked; names in errors are the program's."""

from __future__ import annotations

import re

import pytest

from tilemma import croqtile
from tilemma.errors import TilemmaError
from tilemma.ir.constructs import OPERANDS

STATED = {n: int(m[1]) for n, o in OPERANDS.items() if (m := re.search(r"more than (\d+)", o.meaning))}


def test_some_operands_state_a_limit() -> None:
    assert {"min-blocks", "max-registers"} <= STATED.keys()


@pytest.mark.parametrize("name", STATED)
def test_the_largest_value_is_the_stated_one(name: str) -> None:
    OPERANDS[name].checked_all((STATED[name],), None)
    with pytest.raises(TilemmaError):
        OPERANDS[name].checked_all((STATED[name] + 1,), None)


@pytest.mark.parametrize("name", [n for n, o in OPERANDS.items() if "never negative" in o.meaning])
def test_what_is_never_negative_may_be_zero(name: str) -> None:
    OPERANDS[name].checked_all((0,), None)
    with pytest.raises(TilemmaError):
        OPERANDS[name].checked_all((-1,), None)


@pytest.mark.parametrize("call", ["y.at(first = 1) = 1.0f;", "y.at(0) = y.at(first = 2);"])
def test_the_name_of_an_operand(call: str) -> None:
    text = f"__co__ void f(global f32 [4] y) {{ parallel b by 1 : block {{ {call} }} }}"
    with pytest.raises(TilemmaError, match=r"`first = \.\.\.`.*\n(.*\n)*.*leave out `first =`"):
        croqtile.load(text, "f.co").kernels["f"]
