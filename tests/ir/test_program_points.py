"""What a front end may still read where it is used: nothing that anyone may have written since."""

from __future__ import annotations

import pytest

from tilemma import dtypes
from tilemma.ir import tile as t
from tilemma.ir.expr import Var, const
from tilemma.ir.program_points import ProgramPoint, WriteLog
from tilemma.ir.types import Event, EventRef

X, Y = Var("x", dtypes.s32), Var("y", dtypes.s32)
MEETINGS = [
    t.Sync("barrier"),
    t.WaitEvent(EventRef(Event("e"))),
    t.WaitFuture(("f",)),
    t.InThreads(const(True), ()),
]


@pytest.mark.parametrize("op", MEETINGS, ids=lambda op: type(op).__name__)
def test_what_others_wrote_may_be_seen_behind_every_meeting(op):
    log = WriteLog()
    log.note(t.Assign(X, const(1)))
    before = log.count
    assert not log.changed(frozenset(("s",)), before, memory=True)
    log.note(op)
    assert log.changed(frozenset(("s",)), before, memory=True)
    assert not log.changed(frozenset(("s",)), before, memory=False)
    assert not log.changed(frozenset(("s",)), log.count, memory=True), "a reading behind it is not affected"


def test_a_write_changes_what_it_names_and_nothing_before_it():
    log = WriteLog()
    log.note(t.Assign(X, const(1)))
    between = log.count
    log.note(t.Assign(Y, const(1)))
    assert not log.changed(frozenset("x"), between, memory=False)
    assert log.changed(frozenset("y"), between, memory=False)
    assert log.changed(frozenset("xy"), between, memory=False)
    assert log.changed(frozenset("x"), between - 1, memory=False)
    assert not log.changed(frozenset("y"), log.count, memory=False)


def test_what_is_put_in_earlier_moves_what_follows_and_nothing_else():
    log, body = WriteLog(), []
    points = []
    for n in range(4):
        op = t.Assign(X, const(n))
        points.append(ProgramPoint(body, len(body), log.count, ()))
        body.append(op)
        log.note(op)
    for n in (2, 1, 3, 0):
        log.insert(points[n], [t.Assign(Y, const(n))])
    found = [(op.var.name, op.value.value) for op in body]
    assert found == [(name, n) for n in range(4) for name in ("y", "x")]


def test_a_point_behind_what_was_put_in_stays_where_it_is():
    log, body = WriteLog(), []
    first = ProgramPoint(body, 0, log.count, ())
    body.append(t.Assign(X, const(0)))
    log.note(body[-1])
    log.insert(first, [t.Assign(Y, const(0))])
    later = ProgramPoint(body, len(body), log.count, ())
    body.append(t.Assign(X, const(1)))
    log.note(body[-1])
    log.insert(later, [t.Assign(Y, const(1))])
    found = [(op.var.name, op.value.value) for op in body]
    assert found == [("y", 0), ("x", 0), ("y", 1), ("x", 1)]
