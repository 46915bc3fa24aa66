"""Rendezvous of the instances of a `Parallel`: they exchange elements of shared buffers in program order.

The language orders accesses to shared memory: the statements after a write read what it has written, in all
instances.  Instances run as coroutines here, so they meet before each statement that accesses a buffer through
which they exchange elements.  Where a condition or the bounds of a loop differ between instances or lanes, they
meet before the whole `if` or loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from tilemma.ir.effects import read_views, written_views
from tilemma.ir.expr import Expr, Index, value_of
from tilemma.ir.expr import walk as terms
from tilemma.ir.tile import Apply, Body, For, If, InThreads, Op, Parallel, SetElement, While
from tilemma.ir.types import Space, View
from tilemma.ir.walk import bodies, walk
from tilemma.passes.index_values import evaluate
from tilemma.passes.scope import Dependence, control

# Larger sets of places are taken to overlap.
_MOST_PLACES = 1 << 14


class Meetings:
    """Of the instances of ``siblings``.

    ``before`` has the identities of the operations before which they meet, ``apart`` those of operations that only
    some of the instances or lanes execute.
    """

    def __init__(self, siblings: Parallel, dependence: Dependence) -> None:
        self.before = set[int]()
        self.apart = set[int]()
        self._dependence = dependence
        self._exchanged = frozenset(_exchanged(siblings))
        if self._exchanged:
            self._visit(siblings.body, {i.name for i in siblings.indices} | {Dependence.MEMORY}, set())

    def _visit(self, body: Body, varying: set[str], lanes: set[str]) -> None:
        for op in body:
            found = self._dependence.closure(control(op))
            match op:
                case Parallel():
                    own = {i.name for i in op.indices}
                    is_lanes = op.level is not None and op.level.kind == "thread"
                    self._visit(op.body, varying | own, lanes | own if is_lanes else lanes)
                case If() | For() | While() if not found & varying and not self._reads(op):
                    for _, inner in bodies(op):
                        self._visit(inner, varying, lanes)
                case InThreads() if not found & lanes:
                    # Those that are admitted meet among themselves, and all of them after it.
                    if not op.asynchronous and self._uses(op):
                        self.before.add(id(op))
                    self._visit(op.body, varying, lanes)
                case _:
                    if self._uses(op):
                        self.before.add(id(op))
                    if isinstance(op, (If, For, While, InThreads, Apply)):
                        self.apart |= {id(x) for x in walk((op,))}

    def _reads(self, op: Op) -> bool:
        """Whether the condition or the bounds of ``op`` read an exchanged element."""
        return any(v.base.name in self._exchanged for v in read_views(op))

    def _uses(self, op: Op) -> bool:
        return any(
            v.base.name in self._exchanged for x in walk((op,)) for v in (*written_views(x), *read_views(x))
        )


def _exchanged(siblings: Parallel) -> Iterator[str]:
    """The shared buffers of which one instance may access an element that another one assigns."""
    views: dict[str, list[View]] = {}
    assigned = set[str]()
    for op in walk(siblings.body):
        for view in (*written_views(op), *read_views(op)):
            if view.base.space is Space.SHARED:
                views.setdefault(view.base.name, []).append(view)
                if isinstance(op, SetElement) and view is op.view:
                    assigned.add(view.base.name)
    for name in sorted(assigned):
        if len(views[name]) > 1 and not _own_parts(views[name], siblings):
            yield name


def _own_parts(views: list[View], siblings: Parallel) -> bool:
    """Whether a coordinate keeps the accesses of different instances apart."""
    if any(v.reshape is not None for v in views):
        return False
    tiled = {a.dim for v in views for a in v.axes if value_of(a.extent) != 1}
    columns = enumerate(zip(*(v.offsets for v in views), strict=True))
    return any(len(set(column)) == 1 and d not in tiled and _apart(column[0], siblings) for d, column in columns)


def _apart(e: Expr, siblings: Parallel) -> bool:
    """Whether ``e`` has no value in two instances, whatever the indices of the levels inside are."""
    inside = {i.name: i for op in walk(siblings.body) if isinstance(op, Parallel) for i in op.indices}
    used = {t.name for t in terms(e) if isinstance(t, Index)} - {i.name for i in siblings.indices}
    if not used <= inside.keys():
        return False
    indices = (*siblings.indices, *(inside[n] for n in sorted(used)))
    extents = [n for i in indices if isinstance(n := value_of(i.extent), int)]
    if len(extents) < len(indices) or not 0 < prod(extents) <= _MOST_PLACES:
        return False
    grid = np.indices(extents).reshape(len(extents), -1)
    places = evaluate(e, {i.name: g for i, g in zip(indices, grid, strict=True)})
    if not isinstance(places, np.ndarray):
        return False
    owners = np.arange(grid.shape[1]) // prod(extents[len(siblings.indices) :])
    return len(np.unique(np.stack([places, owners]), axis=1)[0]) == len(np.unique(places))
