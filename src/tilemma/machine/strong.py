"""Release and acquire through ordinary memory: flags, locks and counters (PTX ISA, "Memory Consistency Model").

A release stores a message at its address; an acquire at the address takes it.  Atomics continue the
release sequence that they find.  Relaxed accesses count together with a fence on their side.

Two operations synchronise only where each one's scope includes the other's thread ("Morally strong operations"):
`.cta` that of the CTA, `.cluster` that of the cluster, `.gpu` and `.sys` all threads of the grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tilemma.machine import sequential
from tilemma.machine.clocks import Message, continued
from tilemma.machine.memory import SHARED_WINDOW
from tilemma.machine.state import Access, Cta, Frame, Warp
from tilemma.machine.syntax import Instruction

# Scopes from the narrowest to the widest; `membar.gl` is `.gpu`.
_RANK = {"cta": 0, "cluster": 1, "gpu": 2, "gl": 2, "sys": 3}
GPU = 2


@dataclass(slots=True)
class Released:
    """The message of a release at an address, its CTA and its scope; ``fenced``: what `fence.sc` before it has
    released."""

    message: Message
    cta: Cta
    scope: int
    fenced: Message | None = None


def scope_of(ins: Instruction) -> int:
    """The scope of a strong operation: that of its opcode, else `.gpu`; for volatile ones `.sys`."""
    return _scope_of(ins.parts)


@cache
def _scope_of(parts: tuple[str, ...]) -> int:
    for part in parts[1:]:
        if part in _RANK:
            return _RANK[part]
    return _RANK["sys"] if "volatile" in parts else GPU


def includes(scope: int, owner: Cta, other: Cta) -> bool:
    """Whether ``scope`` of an operation of CTA ``owner`` includes the threads of ``other``."""
    if scope >= GPU or owner is other:
        return True
    return scope == _RANK["cluster"] and owner.cluster is other.cluster


def morally_strong(event: Access, w: Warp, ins: Instruction) -> bool:
    """Whether two strong operations each include the other's thread in their scope."""
    mine, theirs = w.cta, event.warp.cta
    return mine is theirs or (
        includes(scope_of(ins), mine, theirs) and includes(scope_of(event.instruction), theirs, mine)
    )


def lockstep(event: Access, w: Warp, ins: Instruction) -> bool:
    """Whether two volatile accesses of one warp rely on its lanes being in lockstep.

    Volatile accesses order nothing: on sm_70 and later the lanes of a warp may run apart.
    """
    return event.warp is w and "volatile" in ins.parts and "volatile" in event.instruction.parts


def _rows(f: Frame, lanes: Any) -> Any:
    first = f.w.first
    return slice(first, first + 32) if len(lanes) == 32 else first + np.asarray(lanes)


@dataclass(slots=True)
class At:
    """The keys of an instruction's addresses, and what has been released there; ``same``: one release at all."""

    keys: list[Any]
    releases: list[Released | None]
    same: bool

    @staticmethod
    def of(f: Frame, addr: Any) -> At:
        keys = _keys(f, addr)
        table = f.w.cta.machine.released
        releases = list(map(table.get, keys))
        return At(keys, releases, len(set(map(id, releases))) == 1)


def before_read(
    f: Frame, lanes: Any, addr: Any, order: str, ins: Instruction, known: At | None = None
) -> At | None:
    """A strong read by ``lanes``: acquire the releases at its addresses; what has been released there, if it was
    looked up."""
    if order == "weak":
        return known
    w, table = f.w, f.w.cta.machine.released
    if not table:
        return known
    scope = scope_of(ins)
    # The addresses of one instruction may hold one release.
    takers: dict[int, tuple[Released, list[int]]] = {}
    known = known or At.of(f, addr)
    releases = known.releases
    if releases[0] is not None and known.same:
        takers[0] = releases[0], lanes.tolist()
    else:
        for lane, found in zip(lanes.tolist(), releases, strict=True):
            if found is not None:
                takers.setdefault(id(found), (found, []))[1].append(lane)
    for found, takes in takers.values():
        if not (includes(scope, w.cta, found.cta) and includes(found.scope, found.cta, w.cta)):
            continue
        if order in ("acquire", "acq_rel"):
            w.cta.cluster.clocks.acquire(_rows(f, takes), found.message)
        elif order != "release":
            if w.brought is None:
                w.brought = []
            # A loop that polls reads the same release again and again.
            if not any(lanes == takes and release is found for lanes, release in w.brought[-2:]):
                w.brought.append((takes, found))
        if found.fenced is not None and scope >= GPU:
            w.record.fences = 1
            w.fences.observe(sequential.bits(np.asarray(takes)), found.fenced)
    return known


def in_turn(f: Frame, lanes: Any, addr: Any, order: str, ins: Instruction) -> None:
    """Atomic operations of one instruction take effect in the order of ``lanes``, of which some share an address:
    each observes those before it there."""
    w = f.w
    clocks = w.cta.cluster.clocks
    fence_scope, message = w.fence_message or (GPU, None)
    if order == "release" or (order != "acq_rel" and message is None):
        return
    groups: dict[int, list[int]] = {}
    for lane, address in zip(lanes.tolist(), addr.tolist(), strict=True):
        groups.setdefault(address, []).append(lane)
    if order == "acq_rel":
        for group in groups.values():
            clocks.pass_on(w.first + np.array(group))
        return
    assert message is not None
    later = [lane for group in groups.values() for lane in group[1:]]
    if order == "acquire":
        clocks.acquire(_rows(f, later), message)
        return
    w.brought = w.brought or []
    for i, (takes, found) in enumerate(w.brought):
        if found.message is message:
            w.brought[i] = sorted({*takes, *later}), found
            return
    w.brought.append((later, Released(message, w.cta, min(scope_of(ins), fence_scope))))


def _keys(f: Frame, addr: Any) -> list[Any]:
    """The key of each address."""
    keys: list[Any] = addr.tolist()
    if keys and min(keys) >= 1 << 32 and max(keys) < SHARED_WINDOW:
        return keys
    return [_key(f, a) for a in keys]


def _key(f: Frame, address: int) -> Any:
    """Shared addresses are those of one CTA, global ones of all."""
    if SHARED_WINDOW <= address < SHARED_WINDOW + (1 << 32):
        address -= SHARED_WINDOW
    if address < 1 << 32:
        rank = (address >> 24) - 1
        cta = f.w.cta if rank < 0 else f.w.cta.cluster.ctas[min(rank, len(f.w.cta.cluster.ctas) - 1)]
        return cta.index, address & 0xFFFFFF
    return address


def before_write(
    f: Frame, lanes: Any, addr: Any, order: str, ins: Instruction, known_there: At | None = None
) -> None:
    """A strong write by ``lanes``: store the clocks that a release, or an earlier fence, publishes."""
    w = f.w
    scope = scope_of(ins)
    message: Message | None
    if order in ("release", "acq_rel"):
        message = w.cta.cluster.clocks.release(_rows(f, lanes), w.row)
    else:
        fence_scope, message = w.fence_message or (GPU, None)
        scope = min(scope, fence_scope)
    fenced = w.fences.before_write(sequential.bits(lanes)) if w.fences.released and scope >= GPU else None
    if message is None:
        if fenced is None:
            return
        message = Message(fenced.seen[:0], fenced.fenced[:0], fenced.cluster)
    table = w.cta.machine.released
    # The same release leaves the same message.
    groups: dict[int, tuple[Released | None, list[Any]]] = {}
    at = known_there or At.of(f, addr)
    keys, releases = at.keys, at.releases
    if at.same:
        groups[0] = releases[0], keys
    else:
        for key, release in zip(keys, releases, strict=True):
            groups.setdefault(id(release), (release, []))[1].append(key)
    for known, same in groups.values():
        # A release sequence continues only among operations whose scopes include each other.
        if known is not None and includes(known.scope, known.cta, w.cta) and includes(scope, w.cta, known.cta):
            fresh = Released(continued(message, known.message), w.cta, scope, fenced)
            if known.fenced is not None:
                fresh.fenced = known.fenced if fenced is None else continued(fenced, known.fenced)
        else:
            fresh = Released(message.copy(), w.cta, scope, fenced)
        table.update(dict.fromkeys(same, fresh))


def fence(f: Frame, rows: Any, scope: int = GPU, *, lanes: int = 0) -> None:
    """`fence.acq_rel`, `fence.sc` and `membar`: earlier relaxed reads acquire, later relaxed writes release.

    ``lanes``: those of a sequentially consistent fence, as bits.
    """
    w = f.w
    clocks = w.cta.cluster.clocks
    if w.brought:
        kept = []
        for takes, found in w.brought:
            if includes(scope, w.cta, found.cta):
                clocks.acquire(_rows(f, takes), found.message)
            else:
                kept.append((takes, found))
        w.brought = kept or None
    sequential_here = lanes and scope >= GPU
    if sequential_here:
        for known in w.fences.take(lanes):
            clocks.acquire(w.first + np.array([i for i in range(32) if known.lanes >> i & 1]), known.message)
    w.fence_message = scope, clocks.release(rows, w.row)
    if sequential_here:
        w.record.fences = 1
        w.fences.fenced(lanes, w.fence_message[1])
