"""Happens-before between two accesses: the pairs of instances that a barrier, a wait for an event or an
instruction orders."""

from __future__ import annotations

import numpy as np

from tilemma.ir.tile import Load, WaitEvent
from tilemma.ir.types import WARP, Space
from tilemma.passes.threads import Bools, Ints, Node
from tilemma.targets.ptx.passes.aliasing import Access


def in_different_roles(x: Access, y: Access) -> bool:
    """Whether they belong to different asynchronous roles."""
    return x.role is not y.role and x.role is not None and y.role is not None


def ordered_by_events(x: Access, y: Access) -> bool:
    """Whether only the program's own waits and triggers order ``x`` before ``y``.

    A load by TMA is awaited by the threads that read its data, and its slot released by those threads.
    """
    if x.agent != "tma":
        return False
    return y.agent == "tma" or bool(y.release) or x.view is None or x.view.base.space is Space.GLOBAL


def are_stores_by_tma(x: Access, y: Access) -> bool:
    """Whether both write an array by TMA, which keeps no order between them."""
    return x.agent == y.agent == "bulk" and x.write and y.write


def ordered_by(barrier: Node, x: Access, y: Access) -> Bools:
    """The instances for which ``barrier`` (or the wait for an event) orders ``y`` after ``x``."""
    if isinstance(barrier.op, WaitEvent):
        mask = barrier.parent.mask
        last = len(mask) - 1
        waited = np.array([bool(mask[s : min(s + y.threads, last + 1)].all()) for s in y.start.tolist()])
        return np.broadcast_to(waited[None, :], (len(x.start), len(y.start)))
    assert barrier.part is not None
    return joined(barrier.part, x, y)


def by_ldmatrix(node: Node) -> bool:
    return isinstance(node.op, Load) and node.op.plan is not None and node.op.plan.method == "ldmatrix"


def within(y: Access, x: Access) -> Bools:
    """Whether each instance of ``y`` is among the threads of each instance of ``x``."""
    inside: Bools = (x.start[:, None] <= y.start[None, :]) & (y.start[None, :] < x.start[:, None] + x.threads)
    return inside


def arriving(release: Access) -> Bools:
    """The threads for which the arrivals of ``release`` count, as a mask."""
    body = release.node.parent
    if release.release == "each":
        return body.mask
    if release.release == "warp":
        return np.isin(body.warps(), release.start)
    part = body.partition(len(body.chain))
    return np.isin(part, release.start)


def arrives_itself(x: Access, release: Access) -> Bools:
    """For which instances of ``x`` and of the trigger ``release`` that of ``x`` arrives at the same trigger, in
    another instance: the waiting threads then wait for both arrivals."""
    part = release.node.parent.partition(len(release.node.parent.chain))
    cx, cy = _class(part, x), part[release.start]
    apart: Bools = (cx[:, None] != cy[None, :]) & np.isin(cx, release.start)[:, None]
    return apart


def shares(x: Access, y: Access) -> Bools:
    """Whether each instance of ``x`` and the warp that each of ``y`` answers for have a thread in common."""
    first, last = x.start[:, None], x.start[:, None] + x.threads
    shared: Bools = (first < y.start[None, :] + WARP) & (y.start[None, :] < last)
    return shared


def joined(part: Ints, x: Access, y: Access) -> Bools:
    """For which instances of ``x`` and ``y`` a barrier with this partition joins all threads of both."""
    cx, cy = _class(part, x), _class(part, y)
    met: Bools = (cx[:, None] == cy[None, :]) & (cx >= 0)[:, None]
    return met


def _class(part: Ints, a: Access) -> Ints:
    """The class of each instance; -1 for one that is not wholly in a class."""
    if a.threads == 1:
        return part[a.start]
    members = part[np.minimum(a.start[:, None] + np.arange(a.threads)[None, :], len(part) - 1)]
    return np.where((members == members[:, :1]).all(axis=1), members[:, 0], -1)
