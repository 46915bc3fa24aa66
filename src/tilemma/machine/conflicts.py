"""Reports of conflicts: the hazard of an access that is not ordered after an earlier access to the same bytes.

``access`` (generic proxy) and ``async_access`` (async proxy) decide which earlier accesses are not ordered before
the new one; the functions here choose the hazard, its bytes and its repair.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilemma.dtypes import dtype
from tilemma.machine import catalogue as hz
from tilemma.machine import strong
from tilemma.machine.dead_values import only_stored
from tilemma.machine.state import Access, Cta, Warp
from tilemma.machine.syntax import Instruction, Register, Vector

Array = npt.NDArray[Any]
_least, _most = np.minimum.reduce, np.maximum.reduce

ASYNC_AGENT = {"cp.async": "cp.async", "tma": "bulk copy", "wgmma": "wgmma", "bulk-store": "bulk store"}

# By how much sums of the same numbers, rounded differently, may differ: small results are differences of large.
_ROUNDING = 2.0**-12

WAIT_FOR = {
    "cp.async": "wait with `cp.async.wait_group` (or `cp.async.mbarrier.arrive` and its mbarrier), then a barrier",
    "tma": "wait for the copy's mbarrier: `mbarrier.try_wait.parity` in a loop, on the phase that it completes",
    "wgmma": "add `wgmma.wait_group.sync.aligned` for its group, then tell the writer through a barrier",
    "bulk-store": "add `cp.async.bulk.commit_group` and `cp.async.bulk.wait_group.read`, then a barrier",
}


# The instructions with which a CTA waits for its own access.
_END = {
    "cp.async": "cp.async.wait_group 0;",
    "tma": "mbarrier.try_wait.parity",
    "wgmma": "wgmma.wait_group.sync.aligned 0;",
    "bulk-store": "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;",
}
# `.read` waits until the source has been read, not until the destination is written.
_WRITTEN = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"


def _wait_for(event: Access, w: Warp, written: bool) -> str:
    """How ``w`` comes to know the end of ``event``, which may be in another CTA; ``written``: a bulk store, whose
    destination is overwritten."""
    theirs, ours = event.warp.cta, w.cta
    if theirs is ours:
        return f"add `{_WRITTEN}`, then a barrier" if written else WAIT_FOR[event.kind]
    there, here = f"CTA {event.place.cta}", f"CTA {ours.index}"
    if theirs.cluster is ours.cluster:
        signal, sight = "`mbarrier.arrive.release.cluster.shared::cluster.b64`", "its mbarrier"
    else:
        signal, sight = "`red.release.gpu` on a flag", "`ld.acquire.gpu` in a loop"
    end = _WRITTEN if written else _END[event.kind]
    ordered = f"let {there} wait (`{end}`), then signal ({signal}), and {here} wait for the signal ({sight})"
    return (
        f"store each element from one CTA only, here from {here} or {there}; or {ordered}" if written else ordered
    )


def barrier_for(a: Warp, b: Warp) -> str:
    """The instruction that would order two warps."""
    if a is b:
        return "bar.warp.sync 0xffffffff;"
    if a.cta is b.cta:
        return "bar.sync 0;"
    if a.cta.cluster is b.cta.cluster:
        return "barrier.cluster.arrive; barrier.cluster.wait;"
    return "an atomic release-acquire pair of scope .gpu"


def report_unordered(
    w: Warp, ins: Instruction, cta: Cta, lanes: Any, addr: Array, events: Array, known: Array, verb: str, kind: str
) -> None:
    """Report the first access that is not ordered, by the kind of the event that it collides with."""
    table = w.cta.cluster.events
    bad_rows, bad_columns = np.nonzero(~known)
    others = _is_map_copy(ins) and any(
        e is not None and e.warp is not w for e in map(table.of, np.unique(events[bad_rows, bad_columns]).tolist())
    )
    for i, j in zip(bad_rows, bad_columns, strict=True):
        event = table.of(events[i, j])
        # An access of another warp counts more than one of the warp that copies a tensor map.
        if event is None or (_copies_map(event, w, ins) and others):
            continue
        # A lane that polls for a write by another lane of its warp is in another frame than that lane.
        together = strong.lockstep(event, w, ins) and int(events[i, j]) & 31 in lanes
        if event.kind == kind == "atom" and strong.morally_strong(event, w, ins) and not together:
            continue
        same = np.unique(bad_rows)
        report_conflict(
            w,
            ins,
            event,
            verb,
            f"shared byte {int(addr[i] + j):#x}",
            np.asarray(lanes)[same],
            addr[bad_rows] + bad_columns,
        )
        return


def _is_map_copy(ins: Instruction) -> bool:
    return ins.parts[:2] == ("tensormap", "cp_fenceproxy")


def _copies_map(event: Access, w: Warp, ins: Instruction) -> bool:
    """Whether ``ins`` is a warp's copy of a tensor map, and ``event`` an access by the same warp."""
    return event.warp is w and _is_map_copy(ins)


def touches_mbarrier(w: Warp, ins: Instruction, cta: Cta, lanes: Any, addr: Array, width: int, verb: str) -> None:
    """Report ordinary accesses to the bytes of an mbarrier in use."""
    barriers = cta.shared.mbarriers
    if not barriers:
        return
    low, high = int(_least(addr)), int(_most(addr)) + width
    hit = [at for at in barriers if low < at + 8 and high > at and ((addr < at + 8) & (addr + width > at)).any()]
    if hit:
        at = min(hit)
        w.report(
            hz.MbarrierReinit,
            ins,
            lanes=lanes,
            at_bytes=range(at, at + 8),
            other=barriers[at].init.place,
            address=at,
            what=f"{verb} its bytes with an ordinary access while it is in use",
            fix_text="give the data another place, or `mbarrier.inval` the barrier first",
        )


def is_wgmma(reader: Any) -> bool:
    return isinstance(reader, tuple) and reader[0] == "wgmma"


def first_unordered(w: Warp, events: Array, bad: Array, addr: Array) -> tuple[Access, Array, str]:
    """The first of ``events[row, byte]`` that is ``bad``, the bytes of all bad ones, and a text for the first
    byte.

    The bytes of a row begin at its ``addr``.
    """
    i, j = np.nonzero(bad)
    event = w.cta.cluster.events.of(events[i[0], j[0]])
    return event, np.sort(addr[i] + j), f"shared byte {int(addr[i[0]] + j[0]):#x}"


def check_warps_waited(
    w: Warp,
    ins: Instruction,
    events: Array,
    rows: Any,
    table: Any,
    addr: Array,
    verb: str,
    hazard: type[hz.OverwriteOfOtherWarps] = hz.OverwriteOfOtherWarps,
) -> None:
    """Report the overwrite of wgmma operands, if some warp of the warpgroup is not known to have waited for the
    wgmma.

    The columns of the warps follow that of the warpgroup.  ``table[rows, column]`` is the writer's clock; with
    rows of None, ``table`` is one row.
    """
    last = int(_most(events, None))
    if last == 0:
        return
    log = w.cta.cluster.events
    if last == _least(events, None):
        column, clock = log.stand(last)
        known = table[column + 1 : column + 5] if rows is None else table[rows[:, 0], column + 1 : column + 5]
        if _least(known, None) >= clock:
            return
    column, clock = log.stand(events)
    bad = np.zeros(events.shape, bool)
    for warp in range(1, 5):
        known = table[column + warp] if rows is None else table[rows, column + warp]
        bad |= (known < clock) & (events != 0)
    if bad.any():
        event, at_bytes, space = first_unordered(w, events, bad, addr)
        w.report(hazard, ins, at_bytes=at_bytes, other=event.place, access=verb, space=space)


def check_lanes_ordered(
    w: Warp, ins: Instruction, events: Array, rows: Any, table: Any, addr: Array, verb: str
) -> None:
    """Report the overwrite of bytes of a collective read, if some lane of the reader is not ordered before the
    write.

    Later instructions of the reading warp need no more than its `.sync`.  ``table[rows, column]`` is the writer's
    clock; with rows of None, ``table`` is one row.
    """
    log = w.cta.cluster.events
    if not log.collective:
        return
    column, clock = log.stand(events)
    alone = log.alone_column(events)
    if (alone == column).all():
        return
    known, each = (table[c] if rows is None else table[rows, c] for c in (column, alone))
    bad = (each < clock) & (known >= clock) & (events != 0) & (alone // 32 != w.row)
    if bad.any():
        event, at_bytes, space = first_unordered(w, events, bad, addr)
        w.report(
            hz.RaceOfLanes,
            ins,
            at_bytes=at_bytes,
            other=event.place,
            access=verb,
            space=space,
            first_line=event.instruction.line,
        )


def report_conflict(
    w: Warp, ins: Instruction, event: Access, verb: str, space: str, lanes: Any, at_bytes: Any, *,
    source: bool = False, stored: bool = False,
) -> None:  # fmt: skip
    """The hazard of an access that is not ordered after ``event``: of a copy the read of its ``source``, of a
    store by bulk copy the read too, or what it has ``stored``."""
    machine, place = w.cta.machine, w.place(ins)
    reads = "read" in verb
    other = event.place
    facts: dict[str, Any] = {"lanes": lanes, "at_bytes": at_bytes, "other": other, "access": verb, "space": space}
    if event.kind in ("cp.async", "tma") and reads:
        machine.report(
            hz.ReadBeforeArrival.at(place, agent=ASYNC_AGENT[event.kind], wait=WAIT_FOR[event.kind], **facts)
        )
    elif (source or event.kind in ("wgmma", "bulk-store")) and not reads:
        written = stored and event.kind == "bulk-store"
        facts |= {"doing": "writing" if written else "reading", "wait": _wait_for(event, w, written)}
        machine.report(hz.OverwriteInFlight.at(place, agent=ASYNC_AGENT[event.kind], **facts))
    else:
        barrier = barrier_for(event.warp, w)
        race = hz.RaceOfTensorMapCopy if _copies_map(event, w, ins) else hz.Race
        pair = (ins, event.instruction) if reads else (event.instruction, ins)
        if race is hz.Race and {event.kind, "ld" if reads else "st"} == {"ld", "st"}:
            race = hz.RaceOfUnusedValue if only_stored(machine.program, *pair) else race
        machine.report(
            race.at(
                place,
                barrier=barrier,
                first_line=event.instruction.line,
                second_line=ins.line,
                carried=_carried(w, event.instruction, ins, barrier),
                **facts,
            )
        )


def _carried(w: Warp, first: Instruction, second: Instruction, barrier: str) -> bool:
    """Whether two accesses collide as parts of two iterations of a loop: in the text, a barrier like ``barrier``
    stands between them."""
    low, high = sorted((first.line, second.line))
    steps = w.cta.machine.program.steps
    loops = (s for s in steps if 0 <= s.target < len(steps) and s.instruction.line >= high)
    if not any(steps[s.target].instruction.line <= low for s in loops):
        return False
    # `bar.sync 0;`, `bar.warp.sync ...;` or `barrier.cluster...;`: the second part tells them apart.
    kind = barrier.split(" ")[0].rstrip(";").split(".")[1:2]
    between = (s.instruction for s in steps if low < s.instruction.line < high)
    barriers = (ins for ins in between if ins.parts[0] in ("bar", "barrier") and list(ins.parts[1:2]) == kind)
    # With a count, a barrier of the CTA is one for some of its warps.
    return any(kind != ["sync"] or len(ins.operands) == 1 for ins in barriers)


def report_same_instruction(
    w: Warp, ins: Instruction, lanes: Any, addr: Array, landed: Array, values: Array, width: int
) -> None:
    """Lanes of one instruction wrote the same bytes: harmless when they wrote the same."""
    different = np.flatnonzero((landed != values).reshape(len(addr), -1).any(axis=1))
    if len(different):
        w.report(
            hz.RaceOfRoundedValues if _rounded(w, ins, landed, values, width) else hz.Race,
            ins,
            lanes=np.asarray(lanes)[different],
            at_bytes=addr[different],
            access=f"`{ins.opcode}` writes",
            space=f"different values by several lanes to shared byte {int(addr[different[0]]):#x}",
            barrier="bar.warp.sync 0xffffffff;",
            first_line=ins.line,
            second_line=ins.line,
        )


def _rounded(w: Warp, ins: Instruction, a: Array, b: Array, width: int) -> bool:
    """Whether ``a`` and ``b``, words that ``ins`` has stored, are floating-point numbers that are nearly equal."""
    kind = {4: "f32", 8: "f64"}.get(width)
    data = ins.operands[-1]
    items = data.items if isinstance(data, Vector) else (data,)
    known = w.cta.machine.program.float_registers
    if kind is None or not all(isinstance(x, Register) and known.get(x.name) == {kind} for x in items):
        return False
    first, second = (x.view(dtype(kind).numpy).astype(np.float64) for x in (a, b))
    near = np.abs(first - second) <= _ROUNDING * np.maximum(np.abs(first), np.abs(second))
    return bool((near | (a == b)).all())
