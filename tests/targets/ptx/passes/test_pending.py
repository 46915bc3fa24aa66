"""The join of the states of an access: as safe as the state in which it is least safe."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from tilemma.targets.ptx.passes.pending import Pending, StateInterner, _worse


class Issued:
    """What the state of an access keeps of it."""

    resource, future, agent = "s", None, "thread"


ACCESS: Any = Issued()
ONE, TWO = (SimpleNamespace(name=n) for n in ("one", "two"))
BASE = Pending((0, frozenset(), "s"), ACCESS, "s")
# Of each field: states in pairs, and the one that is left of both.
JOINED: dict[str, list[tuple[Any, Any, Any]]] = {
    "future": [("f", "g", None), ("f", None, None), ("f", "f", "f")],
    "committed": [(True, False, False), (True, True, True)],
    "done": [(True, False, False), (True, True, True)],
    "fenced": [(True, False, False), (True, True, True)],
    "barriers": [(frozenset("ab"), frozenset("bc"), frozenset("b"))],
    "fenced_barriers": [(frozenset("ab"), frozenset("bc"), frozenset("b"))],
    "barriers_crossed": [(("a", "b", "c"), ("c", "b"), ("b", "c"))],
    "newer": [(0, 2, 0), (3, 1, 1), (2, 2, 2)],
    "ended": [(ONE, ONE, ONE), (ONE, TWO, None), (ONE, None, None)],
    "signalled_writers": [(True, False, False), (True, True, True)],
    "signalled_readers": [(True, False, False), (True, True, True)],
    "acknowledgements": [(frozenset("ab"), frozenset("bc"), frozenset("b"))],
    "left": [(ONE, ONE, ONE), (ONE, TWO, None), (ONE, None, None), (None, None, None)],
}


def test_every_field_is_here() -> None:
    described = {"key", "access", "resource", "carried", "ended_in"}
    assert set(BASE.__dict__) == {*JOINED, *described}


@pytest.mark.parametrize("name", JOINED)
def test_the_less_safe_state_is_left(name: str) -> None:
    for a, b, left in JOINED[name]:
        p, q = BASE.evolve(**{name: a}), BASE.evolve(**{name: b})
        assert _worse(p, q).__dict__ == BASE.evolve(**{name: left}).__dict__
        found = _worse(q, p).__dict__[name]
        assert (set(found), len(found)) == (set(left), len(left)) if isinstance(left, tuple) else found == left


def test_a_wait_counts_with_its_loops() -> None:
    """Only where both states ended at the same wait, and neither began again."""
    p = BASE.evolve(ended=ONE, ended_in=frozenset("k"))
    for q, ended, loops in (
        (p, ONE, frozenset("k")),
        (BASE.evolve(ended=TWO, ended_in=frozenset("k")), None, frozenset()),
        (p.evolve(done=False), None, frozenset("k")),
    ):
        for found in (_worse(p, q), _worse(q, p)):
            assert (found.ended, found.ended_in) == (ended, loops)


def test_joins_in_any_order_and_again() -> None:
    r = random.Random(0)

    def drawn() -> Pending:
        chosen = {name: r.choice(r.choice(pairs)[:2]) for name, pairs in JOINED.items()}
        return BASE.evolve(**chosen)

    def plain(p: Pending) -> dict[str, Any]:
        return {**p.__dict__, "barriers_crossed": frozenset(p.barriers_crossed)}

    for _ in range(200):
        p, q, s = drawn(), drawn(), drawn()
        assert plain(_worse(p, q)) == plain(_worse(q, p))
        assert plain(_worse(p, _worse(q, s))) == plain(_worse(_worse(p, q), s))
        assert _worse(_worse(p, q), q).__dict__ == _worse(p, q).__dict__


def test_equal_states_are_one_object() -> None:
    interner = StateInterner()
    (p,) = interner.begin([ACCESS], {}).values()
    q = p.evolve(newer=3)
    first, second = interner.join([{p.key: q}, {p.key: p}]), interner.join([{p.key: p}, {p.key: q}])
    assert first[p.key] is second[p.key] is p
