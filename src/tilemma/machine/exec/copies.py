"""cp.async and its groups (PTX ISA, "Data Movement and Conversion Instructions: Non-bulk copy").

The copies are generic-proxy writes by an agent of each thread.  ``Copies`` keeps, for a warp, what is issued
and not committed, and each lane's groups in order; a group's number is its clock in the lane's agent column.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from tilemma.machine import access, global_access
from tilemma.machine.agents import Agent
from tilemma.machine.clocks import NEVER
from tilemma.machine.decode import Decoder, instruction
from tilemma.machine.exec import mbarriers
from tilemma.machine.memory import SHIFT
from tilemma.machine.native import blocks, records
from tilemma.machine.native.blocks import AccessBlock, PlainAccess, block
from tilemma.machine.patterns import GlobalPatterns, SharedPatterns
from tilemma.machine.state import LANES, Frame, Warp
from tilemma.machine.syntax import Instruction, Register


class Copies:
    """The cp.async state of one warp."""

    def __init__(self, warp: Warp) -> None:
        self.column = warp.cta.cluster.clocks.column(("cp.async", warp.row), 32)
        self.number = 0
        # Uncommitted copies; then, for each lane, the numbers of its groups and their copies.
        self.open: list[CopyAgent] = []
        # While all lanes have the same groups, one list is the list of each.
        self.groups: list[list[int]] = [[]] * 32
        self.content: dict[int, list[CopyAgent]] = {}
        # What the native library knows of them.
        self.record = records.GroupsRecord(plain=1)

    def tell(self, w: Warp) -> None:
        """Tell the native library what has changed."""
        if not w.native:
            return
        record, groups, events = self.record, self.groups[0], [agent.event for agent in self.open]
        if groups is not self.groups[1] or len(events) > record.MOST:
            record.plain = 0
        else:
            record.number, record.waited = self.number, groups[0] - 1 if groups else self.number
            record.opened = len(events)
            record.open[: len(events)] = events
        w.cta.machine.stale = True

    def has_committed(self) -> None:
        """The native library has put the open copies of all lanes into a new group."""
        self.number += 1
        for agent in self.open:
            agent.numbered, agent.group = True, self.number
        self.content[self.number], self.open = self.open, []
        self.groups[0].append(self.number)

    def has_awaited(self, last: int) -> None:
        """The native library has awaited the groups of all lanes up to ``last``."""
        groups = self.groups[0]
        while groups and groups[0] <= last:
            for agent in self.content.pop(groups.pop(0)):
                agent.waited = True


def copies_of(w: Warp) -> Copies:
    if w.copies is None:
        w.copies = Copies(w)
        w.record.copies = w.copies.column
        w.record.groups = records.address(w.copies.record)
    found: Copies = w.copies
    return found


class CopyAgent(Agent):
    """The cp.async of the lanes of one instruction."""

    kind = "cp.async"

    def __init__(
        self, w: Warp, ins: Instruction, lanes: Any, to: Any, sources: Any, width: int, sizes: Any, zeros: Any
    ) -> None:
        super().__init__(w, ins)
        # ``sizes`` of None: each lane copies all bytes, except those of ``zeros`` (positions), which copy none.
        self.lanes, self.to, self.sources, self.width, self.sizes = lanes, to, sources, width, sizes
        self.zeros = zeros
        # The copy as the native library has issued it.
        self.native: Any = None
        self.numbered = False
        # The group that it is in.
        self.group = 0

    @property
    def actor(self) -> str:
        return f"cp.async of warp {self.warp.index}"

    @property
    def about(self) -> str:
        return "" if self.to is None else self.warp.cta.machine.names.buffer(int(self.to[0]))

    @property
    def entry(self) -> tuple[int, int, int]:
        return 0 if self.native is None else self.native[1], self.warp.native, self.group

    def complete(self) -> None:
        """Copy the bytes, with zeros beyond each source's size."""
        if self.native is not None:
            blocks.copy_complete(self.warp, self.native)
            return
        shared, width = self.warp.cta.shared, self.width
        index = self.to >> SHIFT[width]
        step = np.arange(width)
        # Where a later write has taken the place over, its hazard has been reported.
        words, origins = shared.words[width], shared.origins().reshape(-1, width)
        if self.sizes is None:
            for allocation, where, offsets in self.sources:
                to = index if len(where) == len(index) else index[where]
                words[to] = allocation.words[width].take(offsets >> SHIFT[width], axis=0)
                origins[to] = (offsets + allocation.base)[:, None] + step
            if len(self.zeros):
                words[index[self.zeros]] = 0
                origins[index[self.zeros]] = 0
            return
        data = np.zeros((len(self.lanes), width), np.uint8)
        origin = np.zeros((len(self.lanes), width), np.int64)
        for allocation, where, offsets in self.sources:
            take = step < self.sizes[where][:, None]
            at = np.where(take, offsets[:, None] + step, 0)
            data[where] = np.where(take, allocation.data[at], 0)
            origin[where] = np.where(take, allocation.base + at, 0)
        shared.data.reshape(-1, width)[index] = data
        origins[index] = origin


@instruction("cp.async")
def cp_async(d: Decoder) -> None:
    d.needs(80)
    d.one_of(("ca", "cg"))
    d.one_of(("shared", "shared::cta"))
    d.has("global")
    operands = d.without_policy()
    for m in d.mods:
        if m.startswith("L2::"):
            d.used.add(m)
    d.only("async")
    to, source = d.address(d.operands[0]), d.address(d.operands[1])
    width = d.immediate(d.operands[2])
    if width not in (4, 8, 16) or ("cg" in d.mods and width != 16):
        d.bad(f"a copy of {width} bytes; .ca takes 4, 8 or 16, .cg 16")
    if len(operands) not in (3, 4):
        d.bad(f"{len(operands)} operands beside a cache policy; it takes 3 or 4")
    rest = operands[3:]
    size = ignore = None
    if rest:
        if (isinstance(rest[0], Register) and rest[0].type == "pred") or type(rest[0]).__name__ == "Not":
            ignore = d.src_pred(rest[0])
        else:
            size = d.src(rest[0], "u32")
    ins = d.ins
    to_block, source_block = (AccessBlock.of(x, width, (), 0, False) for x in (to, source))
    to_patterns, patterns = SharedPatterns(to, width), GlobalPatterns(source, width)

    if ignore is None:
        issue = block([to_block.address, source_block.address, -1 if size is None else size])
        d.plain = PlainAccess("COPY", AccessBlock(*issue), agent=_Issued)

    def run(f: Frame, m: Any) -> None:
        w = f.w
        some = None if m is None else np.flatnonzero(m)
        lanes = LANES if some is None else some
        if w.native and ignore is None:
            row = -1 if size is None else size
            issued = blocks.copy_issue(w, ins, to_block, source_block, row, source, copies_of(w).column, m)
            if issued is not None:
                event, copy = issued
                # The timeline names the buffer.
                where = None if w.cta.machine.trace is None else to_patterns.of(w, some).addr
                agent = CopyAgent(w, ins, lanes, where, (), width, None, ())
                agent.event, agent.native = event + int(lanes[0]), copy
                copies_of(w).open.append(agent)
                w.cta.machine.issue(agent)
                copies_of(w).tell(w)
                return
        reads, sizes = lanes, None
        if size is not None:
            given = w.v[3][size]
            sizes = (given if some is None else given[some]).astype(np.int64)
            if sizes.max() > width:
                access.misaligned(f, ins, int(sizes.max()), width, lanes)
        elif ignore is not None:
            row, negated = ignore
            flags = w.v[9][row] ^ negated
            sizes = np.where(flags if some is None else flags[some], 0, width)
        chosen = None
        if sizes is not None:
            chosen = np.flatnonzero(sizes)
            reads = lanes[chosen]
            if (sizes[chosen] == width).all():
                sizes = None
                chosen = None if len(chosen) == len(lanes) else chosen
        target = to_patterns.of(w, some)
        if not target.own:
            _refuse_target(f, ins, lanes, target.addr, width)
        machine, copies = w.cta.machine, copies_of(w)
        event = w.cta.cluster.events.new(copies.column, _NEVER, w.access("cp.async", ins), unordered=True)
        found = patterns.of(w, some if chosen is None else reads) if sizes is None and len(reads) else None
        sources: list[Any] = []
        zeros = LANES[:0]
        if found is not None:
            allocation, offsets, extra = found
            _order_source(w, ins, allocation, reads, offsets, width, event)
            machine.performance.add("uncoalesced", ins, extra)
            sources = [(allocation, np.arange(len(lanes)) if chosen is None else chosen, offsets)]
            if chosen is not None:
                zeros = np.setdiff1d(np.arange(len(lanes)), chosen)
        elif len(reads):
            if sizes is None:
                sizes = np.full(len(lanes), width, np.int64)
                if chosen is not None:
                    sizes[np.setdiff1d(np.arange(len(lanes)), chosen)] = 0
            sources = _sources(f, ins, lanes, source.values(w, some), width, sizes, event)
        else:
            sizes, zeros = None, np.arange(len(lanes))
        access.check_write(w, ins, w.cta, lanes, target.addr, width, "cp.async")
        w.cta.shared.write(width, target.index, (lanes + event)[:, None], event + 31)
        machine.performance.add("bank-conflict", ins, target.extra)
        agent = CopyAgent(w, ins, lanes, target.addr, sources, width, sizes, zeros)
        agent.event = event + int(lanes[0])
        copies.open.append(agent)
        machine.issue(agent)
        copies.tell(w)

    d.visible(run)


_NEVER = int(NEVER)


class _Issued(CopyAgent):
    """The agent of a copy that the native library has issued: its integers, which live on with it, and where they
    are."""

    to = sizes = None
    sources: Any = ()
    zeros: Any = ()
    issued = group = 0
    waited = numbered = False

    def __init__(self, w: Warp, ins: Instruction, copy: Any, place: int) -> None:
        self.warp, self.instruction, self.native = w, ins, (copy, place)
        self.event, self.width = int(copy[-1]) + int(copy[2]), int(copy[1])

    @property
    def lanes(self) -> Any:
        """The lanes that copy."""
        copy = self.native[0]
        return copy[2 : 2 + int(copy[0])]


def _refuse_target(f: Frame, ins: Instruction, lanes: Any, to: Any, width: int) -> None:
    """Report a destination that is misaligned, in another CTA or out of bounds."""
    for _, where, _ in access.owner(f, ins, to, width):
        if where is not None:
            access.misaligned(f, ins, int(to[where[0]]), width, lanes)
    access.shared_bounds(f.w, ins, f.w.cta.shared, to, width, lanes, "write to")


def _sources(f: Frame, ins: Instruction, lanes: Any, source: Any, width: int, sizes: Any, event: int) -> list[Any]:
    """The sources of copies, some of them of less than ``width`` bytes: (allocation, positions, offsets)."""
    w, sources = f.w, []
    reads = np.flatnonzero(sizes > 0)
    src = source[reads]
    bad = np.flatnonzero(src & (width - 1))
    if len(bad):
        access.misaligned(f, ins, int(src[bad[0]]), width, lanes[reads[bad]])
    whole = sizes[reads] == width
    for full in (True, False):
        chosen = reads[whole == full]
        # Where less than the whole is read, only that much need be inside the array.
        for lane in [chosen] if full and len(chosen) else [np.array([i]) for i in chosen if not full]:
            n = width if full else 1
            if not full:
                global_access.locate(f, ins, lanes[lane], source[lane] + sizes[lane] - 1, 1, "read of")
            for allocation, where, offsets in global_access.locate(
                f, ins, lanes[lane], source[lane], n, "read of"
            ):
                picked = lane if where is None else lane[where]
                _order_source(w, ins, allocation, lanes[picked], offsets, n, event)
                sources.append((allocation, picked, offsets))
    w.cta.machine.performance.global_(ins, src, width)
    return sources


def _order_source(
    w: Warp, ins: Instruction, allocation: Any, lanes: Any, offsets: Any, width: int, event: int
) -> None:
    """Check that the source has been written, and enter that the copy reads it until it completes."""
    if not allocation.writable:
        return
    if allocation.writer is not None:
        global_access.global_ordered(
            w, ins, allocation, lanes, offsets, width, allocation.writer, "ld", "`cp.async` reads"
        )
    read = (w.cta.cluster.serial + 1) << 32 | event
    global_access.record_global_read(w, allocation, lanes, offsets >> SHIFT[width], width, read)


@instruction("cp.async.commit_group")
def commit(d: Decoder) -> None:
    d.needs(80)
    d.only("async", "commit_group")
    d.plain = PlainAccess("COMMIT", AccessBlock(*block([])))

    def run(f: Frame, m: Any) -> None:
        w = f.w
        copies = copies_of(w)
        _commit(w, copies, f.lanes if m is None else np.flatnonzero(m))
        copies.tell(w)

    d.visible(run)


def _commit(w: Warp, copies: Copies, lanes: Any) -> None:
    """Put the open copies of ``lanes`` into a new group."""
    copies.number += 1
    _close(w, copies, lanes, copies.number)
    for groups in _lists(copies, lanes):
        groups.append(copies.number)


def _lists(copies: Copies, lanes: Any) -> list[list[int]]:
    """The lists of groups of ``lanes``: one for all where the warp has always been together."""
    groups = copies.groups
    if groups[0] is groups[1]:
        if len(lanes) == 32:
            return groups[:1]
        copies.groups = groups = [list(x) for x in groups]
    return [groups[lane] for lane in lanes]


def _close(w: Warp, copies: Copies, lanes: Any, number: int) -> None:
    """Put the open copies of ``lanes`` into group ``number``."""
    if len(lanes) == 32:
        mine, copies.open = copies.open, []
    else:
        mine = [a for a in copies.open if np.isin(a.lanes, lanes).all()]
        copies.open = [a for a in copies.open if a not in mine]
    copies.content[number] = mine
    for agent in mine:
        agent.group = number
    _number(w, mine, number)


def _number(w: Warp, agents: Sequence[CopyAgent], number: int) -> None:
    """Assign the clock ``number`` to the copies that have none: a thread that has seen it is ordered after them.

    A copy keeps its first number: a wait for that covers the copy.
    """
    for agent in agents:
        if not agent.numbered:
            agent.numbered = True
            w.cta.cluster.events.complete(agent.event, number)


@instruction("cp.async.wait_group", "cp.async.wait_all")
def wait(d: Decoder) -> None:
    d.needs(80)
    d.only("async", "wait_group", "wait_all")
    everything = "wait_all" in d.mods
    keep = 0 if everything else d.immediate(d.operands[0])
    d.plain = PlainAccess("AWAIT", AccessBlock(*block([])), keep=-1 if everything else keep)

    def run(f: Frame, m: Any) -> None:
        w = f.w
        copies = copies_of(w)
        lanes = f.lanes if m is None else np.flatnonzero(m)
        if everything:
            _commit(w, copies, lanes)
        machine = w.cta.machine
        last: list[int] = []
        finished: set[int] = set()
        for groups in _lists(copies, lanes):
            done = groups[: len(groups) - keep]
            last.append(done[-1] if done else 0)
            finished.update(done)
            del groups[: len(done)]
        clocks = np.array(last, np.int64)
        for number in sorted(finished):
            for agent in copies.content.pop(number, []):
                agent.waited = True
                machine.complete(agent)
        w.cta.cluster.clocks.learn(w.first + lanes, copies.column + lanes, clocks, fenced=False)
        copies.tell(w)

    d.visible(run)


class ArriveAgent(Agent):
    """`cp.async.mbarrier.arrive`: arrives once the lanes' earlier copies are complete."""

    kind = "cp.async.arrive"

    def __init__(self, w: Warp, ins: Instruction, copies: Sequence[Agent], then: Any) -> None:
        super().__init__(w, ins)
        self.copies, self.then = copies, then

    def before(self) -> Sequence[Agent]:
        return self.copies

    def complete(self) -> None:
        self.then()


@instruction("cp.async.mbarrier.arrive")
def copy_arrive(d: Decoder) -> None:
    d.needs(80)
    keep_count = d.has("noinc")
    d.has("shared", "shared::cta", "b64")
    d.only("async", "mbarrier", "arrive")
    address = d.address(d.operands[0])
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        w = f.w
        copies = copies_of(w)
        lanes = f.lanes if m is None else np.flatnonzero(m)
        copies.number += 1
        number = copies.number
        # Its number is that of no group.
        copies.record.plain = 0
        # All copies of these lanes so far, in groups or not.
        earlier = [*(a for group in copies.content.values() for a in group), *copies.open]
        mine = earlier if len(lanes) == 32 else [a for a in earlier if np.isin(a.lanes, lanes).any()]
        for agent in mine:
            agent.waited = True
        _number(w, mine, number)
        at = address.values(w, None if m is None else lanes)
        # Each barrier in the order of the lanes, with the number of them in a row that name it.
        barriers = [
            (mbarriers.find(f, ins, a, "an arrival on"), len(list(same))) for a, same in groupby(at.tolist())
        ]
        if not keep_count:
            for barrier, count in barriers:
                barrier.pending += count
        place = w.place(ins)
        clocks = w.cta.cluster.clocks
        message = clocks.release(w.rows_of(m), w.row)

        def then() -> None:
            size = max(len(message.seen), copies.column + 32)
            # Ordered, but not fenced: cp.async writes through the generic proxy.
            table = np.zeros(size, np.int32)
            table[: len(message.seen)] = message.seen
            table[copies.column + lanes] = np.maximum(table[copies.column + lanes], number)
            message.seen = table
            for barrier, count in barriers:
                barrier.arrive_one_by_one(place, count, message)

        arrival = ArriveAgent(w, ins, [a for a in mine if a in w.cta.machine.pending], then)
        w.cta.machine.issue(arrival)

    d.visible(run)
