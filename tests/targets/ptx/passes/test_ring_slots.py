"""The decided slots of a ring, compared with the slots that a loop uses."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import examples
from tilemma import dtypes
from tilemma.ir.expr import Index, Select, Var, add, binary, const, mod, mul, substitute, value_of
from tilemma.ir.tile import Assign, Body, Declare, For, Kernel, WaitEvent
from tilemma.ir.types import Event, EventRef
from tilemma.ir.walk import walk
from tilemma.targets.ptx.passes.delay_consumer_release import advances
from tilemma.targets.ptx.passes.unify_ring_parity import UnifyRingParity

K = Index("k", const(1000))
SLOT = Var("slot", dtypes.s32)
ROUNDS = 12


def loop(start: int, step: int, body: Body) -> For:
    return For(K, const(start), const(start + ROUNDS * step), const(step), body)


def known(e, values: dict[str, int]) -> int:
    found = substitute(e, {name: const(v) for name, v in values.items()})
    if isinstance(found, Select):
        found = found.a if value_of(found.cond) else found.b
    value = value_of(found)
    assert value is not None
    return value


def marked(body: Body) -> bool:
    kernel = UnifyRingParity().run(Kernel("k", (), body), [])
    return any(op.one_parity for op in walk(kernel.body) if isinstance(op, WaitEvent))


small = st.integers(0, 5)
steps = st.integers(1, 5)
slots = st.integers(2, 4)


@settings(max_examples=examples(300), deadline=None)
@given(slots, small, small, steps, small, st.booleans())
def test_another_slot_each_iteration(size, factor, offset, step, start, by_order):
    e = add(mul(K, factor), offset)
    event = Event("e", size)
    ref = EventRef(event, order=e) if by_order else EventRef(event, slot=mod(e, size))
    around = loop(start, step, ())
    taken = [known(e, {"k": k}) % size for k in range(start, start + ROUNDS * step, step)]
    assert advances(ref, around) == all(a != b for a, b in pairwise(taken))


@settings(max_examples=examples(300), deadline=None)
@given(slots, small, steps, st.integers(2, 4))
def test_the_loop_s_own_counter_in_turn(size, start, step, by):
    body = loop(start, step, (WaitEvent(EventRef(Event("e", size), slot=mod(K, by))),))
    taken = [k % by for k in range(start, start + ROUNDS * step, step)]
    right = taken == [n % size for n in range(ROUNDS)]
    assert right or not marked((body,))
    if (start, step, by) == (0, 1, size):
        assert right and marked((body,))


def following(form: int, size: int, by: int):
    """The slot after ``SLOT``, in the forms that programs use, right or slightly wrong."""
    on = add(SLOT, by)
    return [
        mod(on, size),
        Select(binary("eq", SLOT, size - 1), const(0), on),
        Select(binary("eq", on, size), const(0), on),
        Select(binary("lt", SLOT, size - 1), on, const(0)),
        Select(binary("ge", SLOT, size - 1), const(0), on),
        Select(binary("ne", SLOT, size - 1), on, const(0)),
    ][form]


COUNTERS = list(product((2, 3, 4), (0, 1, 2), range(6), (2, 3, 4), (0, 1, 2), (False, True)))


@pytest.mark.parametrize("form", range(6))
def test_a_counter_in_turn(form):
    """Marked only where it goes through all slots from 0 on; always where it does so by one of the known forms."""
    for size, first, other, wrap, by, behind in COUNTERS:
        if other == form:
            one_counter(size, first, form, wrap, by, behind)


def one_counter(size, first, form, wrap, by, behind):
    wait = WaitEvent(EventRef(Event("e", size), slot=SLOT))
    step = Assign(SLOT, following(form, wrap, by))
    body = (Declare(SLOT, const(first)), loop(0, 1, (wait, step) if behind else (step, wait)))
    taken, now = [], first
    for _ in range(ROUNDS):
        taken.append(now)
        now = known(step.value, {"slot": now})
    taken = taken if behind else [*taken[1:], now]
    right = taken == [n % size for n in range(ROUNDS)]
    assert right or not marked(body)
    if behind and right and wrap == size:
        assert marked(body)


@pytest.mark.parametrize("first", [1, 2])
def test_a_counter_that_starts_elsewhere_is_out_of_turn(first):
    wait = WaitEvent(EventRef(Event("e", 3), slot=SLOT))
    inner = loop(0, 1, (wait, Assign(SLOT, mod(add(SLOT, 1), 3))))
    assert not marked((Declare(SLOT, const(first)), inner))
    assert not marked((loop(0, 1, (Declare(SLOT, const(0)), inner)),)), "it starts anew in each iteration"
