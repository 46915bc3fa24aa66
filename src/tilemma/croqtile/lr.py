"""Runs the LR parse table: a builder computes the values of terminals and rules, bottom up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilemma.croqtile.tables import Rule, Tables
from tilemma.records import record

END = "$END"


class Leaf(str):
    """The text of token number ``place``, of terminal ``type``."""

    __slots__ = ("place", "type")
    place: int
    type: str


class Unexpected(Exception):
    """No rule continues with token number ``place`` (one past the last: the end); ``accepted``: the legal
    terminals."""

    def __init__(self, place: int, accepted: set[str]) -> None:
        super().__init__(place)
        self.place = place
        self.accepted = accepted


@record
class TokenRange:
    """The tokens that a value covers, ``last`` included; none where ``first`` is negative."""

    first: int
    last: int


_NOTHING = TokenRange(-1, -1)


def recognise(tables: Tables, terminals: Sequence[str]) -> list[int]:
    """The steps that derive ``terminals``: -1 to take the next one, else the rule to reduce by.

    Rules that pass on are left out: most steps are those from an operand up through all kinds of expression.
    Raises Unexpected.
    """
    states, reductions, end = tables.states, tables.reductions, tables.end
    stack, steps = [0], []
    for place, terminal in enumerate((*terminals, END)):
        while True:
            action = states[stack[-1]].get(terminal)
            if action is None:
                raise Unexpected(place, _accepted(tables, stack))
            if action >= 0:
                stack.append(action)
                steps.append(-1)
                break
            size, origin, passes_on = reductions[-1 - action]
            if passes_on:
                stack[-1] = states[stack[-2]][origin]
            else:
                del stack[len(stack) - size :]
                stack.append(states[stack[-1]][origin])
                steps.append(-1 - action)
            if terminal == END and stack[-1] == end:
                return steps
    raise AssertionError("the end is never shifted")


def _accepted(tables: Tables, stack: Sequence[int]) -> set[str]:
    """The terminals that may come next."""
    return {t for t in tables.states[stack[-1]] if t.isupper() and _continues(tables, list(stack), t)}


def _continues(tables: Tables, stack: list[int], terminal: str) -> bool:
    """Whether ``terminal`` is shifted, or ends the text, after the reductions it causes."""
    while True:
        action = tables.states[stack[-1]].get(terminal)
        if action is None:
            return False
        if action >= 0:
            return True
        rule = tables.rules[-1 - action]
        del stack[len(stack) - rule.size :]
        stack.append(tables.states[stack[-1]][rule.origin])
        if terminal == END and stack[-1] == tables.end:
            return True


def evaluate(tables: Tables, steps: Sequence[int], leaves: Sequence[Leaf], builder: Any) -> Any:
    """The value of the text: a reduction calls ``builder.NAME(covered, children)``; an omitted child is None."""
    rules = tables.rules
    values: list[Any] = []
    reaches: list[TokenRange] = []
    taken = 0
    for step in steps:
        if step < 0:
            values.append(leaves[taken])
            reaches.append(TokenRange(taken, taken))
            taken += 1
            continue
        rule = rules[step]
        base = len(values) - rule.size
        children, covered = _children(rule, values[base:]), _covered(reaches[base:])
        if rule.inline and len(children) == 1:
            value = children[0]
        else:
            value = children if rule.part else getattr(builder, rule.name)(covered, children)
        values[base:] = (value,)
        reaches[base:] = (covered,)
    return values[-1]


def _children(rule: Rule, values: Sequence[Any]) -> list[Any]:
    children: list[Any] = []
    for place, spread, missing in rule.kept:
        if missing:
            children += [None] * missing
        if spread:
            children += values[place]
        else:
            children.append(values[place])
    return children + [None] * rule.left_out if rule.left_out else children


def _covered(reaches: Sequence[TokenRange]) -> TokenRange:
    if len(reaches) == 1:
        return reaches[0]
    there = [r for r in reaches if r.first >= 0]
    return TokenRange(there[0].first, there[-1].last) if there else _NOTHING
