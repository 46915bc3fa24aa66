"""cp.async.bulk and cp.async.bulk.tensor, with their groups (PTX ISA, "Bulk copy", "Tensor copy").

Each executing lane issues its own copy.  The accesses of a copy are checked and recorded in the shadow at issue;
the bytes move when the scheduler completes the agent.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tilemma.dtypes import dtype
from tilemma.machine import access, async_access, global_access
from tilemma.machine import catalogue as hz
from tilemma.machine.agents import Agent
from tilemma.machine.async_access import Knowledge
from tilemma.machine.clocks import NEVER
from tilemma.machine.decode import Decoder, instruction
from tilemma.machine.exec import mbarriers, tensormaps
from tilemma.machine.exec.boxes import BoxSource, Places, chunk_width, transfer, whole_box
from tilemma.machine.isa import numerics, tensormap
from tilemma.machine.limits import MAX_VARIABLE
from tilemma.machine.memory import SHARED_WINDOW, SHIFT
from tilemma.machine.native.blocks import AccessBlock, PlainAccess, address_of, block
from tilemma.machine.state import Access, Cta, Frame, Warp
from tilemma.machine.syntax import Instruction, Vector


class Bulk:
    """The bulk groups of one thread: the uncommitted copies, then the groups in order."""

    def __init__(self, w: Warp, lane: int) -> None:
        clocks = w.cta.cluster.clocks
        self.read_column = clocks.column(("bulk-read", w.first + lane))
        self.write_column = clocks.column(("bulk-write", w.first + lane))
        self.number = 0
        self.open: list[StoreAgent] = []
        self.groups: list[tuple[int, list[StoreAgent]]] = []


def bulk_of(w: Warp, lane: int) -> Bulk:
    found: Bulk | None = w.bulk.get(lane)
    if found is None:
        found = w.bulk[lane] = Bulk(w, lane)
        w.record.bulk = 1
    return found


class LoadAgent(Agent):
    """A bulk copy into the shared memory of one CTA, completing on an mbarrier."""

    kind = "tma"

    def __init__(
        self, w: Warp, ins: Instruction, cta: Cta, barrier: mbarriers.Mbarrier, move: Any, size: int, to: int
    ) -> None:
        super().__init__(w, ins)
        self.cta, self.barrier, self.move, self.size, self.to = cta, barrier, move, size, to

    @property
    def actor(self) -> str:
        return f"copies into {self.about}" if self.about else "copies"

    @property
    def about(self) -> str:
        return self.cta.machine.names.buffer(self.to)

    def ctas(self) -> Any:
        return (self.cta,)

    def complete(self) -> None:
        self.move()
        self.barrier.complete_tx(self.warp.place(self.instruction), self.size, self.event)


class StoreAgent(Agent):
    """A bulk copy out of shared memory, in a bulk group of its thread."""

    kind = "bulk-store"

    def __init__(
        self, w: Warp, ins: Instruction, move: Any, read_event: int, write_event: int, source: int
    ) -> None:
        super().__init__(w, ins)
        self.move, self.event, self.write_event, self.source = move, read_event, write_event, source

    @property
    def actor(self) -> str:
        return f"stores of warp {self.warp.index}"

    @property
    def about(self) -> str:
        return self.warp.cta.machine.names.buffer(self.source)

    def complete(self) -> None:
        self.move()


def knowledge_of(w: Warp, lane: int) -> Knowledge:
    """The clocks of the issuing thread."""
    clocks = w.cta.cluster.clocks
    row = w.first + lane
    return Knowledge(clocks.seen[row].copy(), clocks.fenced[row].copy())


def shared_offset(f: Frame, ins: Instruction, address: int) -> tuple[Cta, int]:
    """The CTA and the offset of a shared address in any window."""
    if address >= SHARED_WINDOW:
        address -= SHARED_WINDOW
    if address >> access.RANK_SHIFT:
        cta = access.cluster_cta(f, ins, (address >> access.RANK_SHIFT) - 1, address)
        return cta, address & access.OFFSET_MASK
    return f.w.cta, address


def one_thread(f: Frame, ins: Instruction, lanes: Any, operands: list[Any]) -> None:
    """Several lanes that issue the very same copy are a missing election."""
    if len(lanes) > 1 and all((o[lanes] == o[lanes[0]]).all() for o in operands):
        f.w.report(hz.ElectedOnce, ins, lanes=lanes, opcode=ins.opcode, n=len(lanes))


def check_same_cta(f: Frame, ins: Instruction, written: Cta, awaited: Cta) -> None:
    """A copy and the mbarrier that it completes on are in one CTA."""
    if written is not awaited:
        f.w.report(
            hz.MbarrierElsewhere, ins, opcode=ins.opcode, written=written.index, awaited=awaited.index, fatal=True
        )


def targets_of(
    f: Frame, ins: Instruction, destination: int, barrier: int, mask: int | None
) -> list[tuple[Cta, int, int]]:
    """(CTA, shared offset, barrier address) for each CTA that the copy writes."""
    cta, offset = shared_offset(f, ins, destination)
    if mask is None:
        owner, _ = shared_offset(f, ins, barrier)
        check_same_cta(f, ins, cta, owner)
        return [(cta, offset, barrier)]
    _, barrier_offset = shared_offset(f, ins, barrier)
    ctas = f.w.cta.cluster.ctas
    ranks = [r for r in range(16) if mask >> r & 1]
    out = []
    for rank in ranks:
        target = access.cluster_cta(f, ins, rank, destination) if rank < len(ctas) else None
        if target is None:
            f.w.report(
                hz.BadTensorMap,
                ins,
                what=f"the multicast mask {mask:#x} names CTA {rank} of a cluster of {len(ctas)}",
                fatal=True,
            )
        assert target is not None
        out.append((target, offset, (rank + 1) << access.RANK_SHIFT | barrier_offset))
    return out


def _tensor_map(f: Frame, ins: Instruction, lane: int, address: int) -> Any:
    """The tensor map at a generic address: a parameter, or one that the program has made in global memory."""
    found = f.w.cta.machine.tensor_maps.get(address) or tensormaps.in_memory(f, ins, lane, address)
    if found is None:
        f.w.report(hz.BadTensorMap, ins, what=f"there is no tensor map at address {address:#x}", fatal=True)
    return found


def _complain(f: Frame, ins: Instruction, problems: list[str]) -> None:
    if problems:
        f.w.report(hz.BadTensorMap, ins, what=problems[0], fatal=True)


def issue_load(
    f: Frame, ins: Instruction, lane: int, targets: Any, place_bytes: Any, size: int, source: Any, swizzle: int,
    read: tuple[Any, Any, int] | None = None,
) -> None:  # fmt: skip
    """Issue one copy into each of ``targets``; ``place_bytes(offset)`` gives the `Places`.

    ``read``: the global elements that it reads until it completes: allocation, offsets and size."""
    w = f.w
    machine, cluster = w.cta.machine, w.cta.cluster
    knowledge = knowledge_of(w, lane)
    for cta, offset, barrier_address in targets:
        barrier = mbarriers.for_copy(f, ins, barrier_address, w.first + lane)
        places = place_bytes(offset)
        info = Access("tma", w, ins, swizzle)
        event = cluster.events.new(barrier.column, int(NEVER), info, unordered=True)
        if read is not None and read[0].writable:
            # Of several targets the first stands for all: each thread that has one tile may write the source.
            allocation, offsets, element = read
            number, read = (cluster.serial + 1) << 32 | event, None
            index = offsets >> SHIFT[element]
            global_access.record_global_read(w, allocation, np.zeros_like(index), index, element, number)
        async_access.write_tile(
            w, ins, cta, places.units, places.width, knowledge, event, f"`{ins.opcode.split('.mbarrier')[0]}`"
        )
        agent = LoadAgent(w, ins, cta, barrier, _mover(cta, places, source), size, offset)
        agent.event = event
        machine.issue(agent)


def _mover(cta: Cta, places: Places, source: Any) -> Any:
    """The function that copies the bytes: ``source()`` gives (words, their global addresses or 0)."""
    addresses, element = places.addresses, places.size
    if isinstance(source, BoxSource) and cta.machine.native is not None:
        return partial(source.move, cta, places)

    def move() -> None:
        words, origin = source()
        native = cta.machine.native
        if native is not None and words.ndim == 1 and words.itemsize == element:
            origins = cta.shared.origins()
            to, words, origin = (np.ascontiguousarray(x) for x in (addresses, words, origin))
            native.move_elements(
                cta.shared.record.data, address_of(origins), address_of(to), len(to), element,
                address_of(words), address_of(origin),
            )  # fmt: skip
            return
        index = addresses >> SHIFT[element]
        cta.shared.words[element][index] = words
        step = np.arange(element)
        cta.shared.origins().reshape(-1, element)[index] = np.where(origin[:, None] > 0, origin[:, None] + step, 0)

    return move


def check_source(w: Warp, ins: Instruction, lane: int, allocation: Any, offsets: Any, element: int) -> None:
    """A copy's global source: inside the allocation, and ordered after its writers."""
    if len(offsets) == 0:
        return
    low, high = int(offsets.min()), int(offsets.max()) + element
    if low < 0 or high > allocation.size:
        w.report(
            hz.OutOfBounds,
            ins,
            lanes=(lane,),
            access="copy of",
            space=f"bytes {low} to {high - 1} of `{allocation.name}`",
            what=f"which has {allocation.size} bytes",
            fatal=True,
        )
    if not allocation.writable:
        return
    lanes = np.full(len(offsets), lane)
    if allocation.writer is not None:
        global_access.global_ordered(
            w, ins, allocation, lanes, offsets, element, allocation.writer, "ld", "the copy reads"
        )
        global_access.check_fenced(w, ins, allocation, offsets, element)


# -- tensor copies
@instruction("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor")
def tensor(d: Decoder) -> None:
    d.needs(90)
    reduces = d.parts[1] == "reduce"
    rank = d.one_of({"1d": 1, "2d": 2, "3d": 3, "4d": 4, "5d": 5})
    if d.has("tile::gather4", "tile::scatter4", "im2col::w", "im2col::w::128"):
        d.needs(100)
        d.unsupported("gathering copies are not modelled")
    im2col = d.has("im2col", "im2col_no_offs")
    if im2col and rank < 3:
        d.refuse("the im2col mode needs 3 to 5 dimensions")
    multicast = d.has("multicast::cluster")
    if multicast and "shared::cluster" not in d.mods:
        d.refuse("`.multicast::cluster` copies to .shared::cluster")
    d.has("tile", "global", "shared::cluster", "shared::cta", "mbarrier::complete_tx::bytes", "bulk_group")
    if d.has("cta_group::1"):
        # The mbarrier is in the CTA that the copy writes, as without it.
        d.needs(100, accelerated=True)
        if d.program.arch.startswith("sm_12"):
            d.refuse("sm_120 has no pairs of CTAs")
    operation = d.one_of(("add", "min", "max", "and", "or", "xor", "inc", "dec"), "none")
    operands = d.without_policy()
    d.only("async", "bulk", "tensor", "reduce")
    is_load = d.mods.index("global") > min(
        (d.mods.index(s) for s in ("shared::cluster", "shared::cta") if s in d.mods), default=99
    )
    if is_load:
        if im2col and (len(operands) < 4 or not isinstance(operands[3], Vector)):
            d.bad("the im2col mode takes its offsets in `{ }` behind the mbarrier")
        offsets = [d.src(x, "u16") for x in d.items(operands.pop(3))] if im2col else []
        if im2col and len(offsets) != rank - 2:
            d.bad(f"{len(offsets)} im2col offsets; it takes {rank - 2}")
        _take(d, operands, 4 if multicast else 3)
        _tensor_load(d, rank, operands, multicast, offsets)
    else:
        _take(d, operands, 2)
        _tensor_store(d, rank, operands, operation if reduces else "none", im2col=im2col)


def _take(d: Decoder, operands: list[Any], number: int) -> None:
    """Refuse operands that the modifiers do not announce, or that are missing."""
    if len(operands) != number:
        d.bad(f"{len(operands)} operands beside cache policy and im2col offsets; it takes {number}")


def _tensor_load(d: Decoder, rank: int, operands: Any, multicast: bool, im2col: list[int]) -> None:
    to, the_map = d.address(operands[0]), d.address(operands[1])
    coordinates = d.coordinates(operands[1], rank)
    barrier = d.address(operands[2])
    mask = d.src(operands[3], "u16") if multicast else -1
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        w = f.w
        lanes = f.lanes if m is None else np.flatnonzero(m)
        at, maps, barriers = (x.values(w, None) for x in (to, the_map, barrier))
        coords = [w.v[4][c] for c in coordinates]
        one_thread(f, ins, lanes, [at, maps, barriers, *coords])
        for lane in lanes:
            bound = _tensor_map(f, ins, int(lane), int(maps[lane]))
            corner = [int(c[lane]) for c in coords]
            the_mask = int(w.v[0][mask][lane]) if mask >= 0 else None
            targets = targets_of(f, ins, int(at[lane]), int(barriers[lane]), the_mask)
            offsets = [int(w.v[0][o][lane]) for o in im2col]
            load_box(f, ins, int(lane), bound, rank, corner, targets, offsets)

    d.visible(run)


def _size_problems(image: tensormap.TensorMapImage) -> list[str]:
    """Reasons why no CTA can hold the box; a program that changes a map may give it any extents."""
    most = MAX_VARIABLE["shared"]
    return [f"its box takes {image.footprint} bytes of shared memory"] if image.footprint > most else []


def load_box(
    f: Frame,
    ins: Instruction,
    lane: int,
    bound: Any,
    rank: int,
    corner: list[int],
    targets: Any,
    im2col: list[int],
) -> None:
    """Issue a tensor copy of the box at ``corner`` into ``targets``; ``im2col`` has that mode's offsets."""
    image, allocation = bound.image, bound.allocation
    for _, offset, _ in targets:
        _complain(f, ins, tensormap.destination_problems(image, offset, rank, im2col=bool(im2col)))
    _complain(f, ins, _size_problems(image))
    _complain(f, ins, tensormap.corner_problems(image, corner))
    size = image.element_bytes
    box = whole_box(image, corner, im2col, targets[0][1])
    if len(box.within) and (
        allocation.writable or box.low + bound.start < 0 or box.high + bound.start > allocation.size
    ):
        check_source(f.w, ins, lane, allocation, box.within + bound.start, size)
    fill = 0
    if image.oob_nan:
        fill = int(np.array(np.nan, dtype(image.dtype).numpy).view(f"u{size}"))
    issue_load(
        f, ins, lane, targets, lambda offset: whole_box(image, corner, im2col, offset).places,
        image.transaction_bytes, BoxSource(box, allocation, bound.start, fill), image.swizzle,
        (allocation, box.within + bound.start, size) if len(box.within) else None,
    )  # fmt: skip


def _tensor_store(d: Decoder, rank: int, operands: Any, operation: str, *, im2col: bool) -> None:
    the_map, source = d.address(operands[0]), d.address(operands[1])
    coordinates = d.coordinates(operands[0], rank)
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        w = f.w
        lanes = f.lanes if m is None else np.flatnonzero(m)
        maps, at = the_map.values(w, None), source.values(w, None)
        coords = [w.v[4][c] for c in coordinates]
        one_thread(f, ins, lanes, [at, maps, *coords])
        for lane in lanes:
            bound = _tensor_map(f, ins, int(lane), int(maps[lane]))
            image, allocation = bound.image, bound.allocation
            _, offset = shared_offset(f, ins, int(at[lane]))
            corner = [int(c[lane]) for c in coords]
            problems = tensormap.destination_problems(image, offset, rank, im2col=im2col)
            problems = problems or _size_problems(image) or tensormap.corner_problems(image, corner)
            _complain(f, ins, problems or tensormap.store_problems(image, corner))
            offsets, addresses = transfer(image, corner, [], offset)
            inside = offsets >= 0
            issue_store(
                f, ins, int(lane), allocation, offsets[inside] + bound.start, addresses, addresses[inside],
                image.element_bytes, operation, image.dtype,
            )  # fmt: skip

    d.visible(run)


def issue_store(
    f: Frame,
    ins: Instruction,
    lane: int,
    allocation: Any,
    to: Any,
    read: Any,
    taken: Any,
    size: int,
    operation: str = "none",
    name: str = "",
) -> None:
    """Issue one copy out of the own CTA's shared memory: element offsets ``to`` from shared ``taken``.

    ``read`` are all the elements read, also those that are dropped outside the tensor.
    """
    w = f.w
    cluster = w.cta.cluster
    bulk = bulk_of(w, lane)
    info = w.access("bulk-store", ins)
    read_event = cluster.events.new(bulk.read_column, int(NEVER), info, unordered=True)
    write_event = cluster.events.new(bulk.write_column, int(NEVER), info, unordered=True)
    units, width = chunk_width(read, size)
    async_access.async_read(
        w, ins, w.cta, units, width, knowledge_of(w, lane), read_event, ("bulk", w.first + lane), f"`{ins.opcode}`"
    )
    how = "atom" if operation != "none" else "st"
    if len(to):
        lanes = np.full(len(to), lane)
        if int(to.max()) + size > allocation.size:
            check_source(w, ins, lane, allocation, to, size)
        global_access.check_global_write(w, ins, allocation, lanes, to, size, how, "the copy writes")
        packed = (cluster.serial + 1) << 32 | write_event
        allocation.shadow().reshape(-1, size)[to >> SHIFT[size]] = packed
    shared = w.cta.shared

    def move() -> None:
        words = shared.words[size][taken >> SHIFT[size]]
        index = to >> SHIFT[size]
        target = allocation.words[size]
        if operation == "none":
            target[index] = words
        else:
            target[index] = reduce(operation, name, target[index], words)
        if w.cta.machine.history is not None:
            w.cta.machine.history.stored(w, ins, allocation, np.full(len(to), lane), to, size, target[index])

    agent = StoreAgent(w, ins, move, read_event, write_event, int(read[0]) if len(read) else 0)
    bulk.open.append(agent)
    w.cta.machine.issue(agent)


def reduce(operation: str, name: str, old: Any, new: Any) -> Any:
    t = dtype(name)
    if t.is_float:
        return numerics.arith(operation, t.name, old.view(t.numpy), new.view(t.numpy)).view(old.dtype)
    a, b = (x.view(t.numpy) for x in (old, new))
    if operation == "inc":
        return np.where(a >= b, 0, a + 1).astype(old.dtype)
    if operation == "dec":
        return np.where((a == 0) | (a > b), b, a - 1).astype(old.dtype)
    function = {
        "add": np.add, "min": np.minimum, "max": np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }[operation]  # fmt: skip
    return function(a, b).view(old.dtype)


# -- groups
@instruction("cp.async.bulk.commit_group")
def commit(d: Decoder) -> None:
    d.needs(90)
    d.only("async", "bulk", "commit_group")

    def run(f: Frame, m: Any) -> None:
        w = f.w
        for lane in f.lanes if m is None else np.flatnonzero(m):
            bulk = bulk_of(w, int(lane))
            bulk.number += 1
            for agent in bulk.open:
                w.cta.cluster.events.complete(agent.event, bulk.number)
                w.cta.cluster.events.complete(agent.write_event, bulk.number)
            bulk.groups.append((bulk.number, bulk.open))
            bulk.open = []

    d.visible(run)


@instruction("cp.async.bulk.wait_group")
def wait(d: Decoder) -> None:
    d.needs(90)
    reads_only = d.has("read")
    d.only("async", "bulk", "wait_group")
    keep = d.immediate(d.operands[0])

    def run(f: Frame, m: Any) -> None:
        w = f.w
        clocks = w.cta.cluster.clocks
        for lane in f.lanes if m is None else np.flatnonzero(m):
            bulk = w.bulk.get(int(lane))
            if bulk is None:
                continue
            done = bulk.groups[: len(bulk.groups) - keep]
            if not reads_only:
                del bulk.groups[: len(done)]
            for number, agents in done:
                for agent in agents:
                    agent.waited = True
                    w.cta.machine.complete(agent)
                rows = w.first + np.array([lane])
                clocks.learn(rows, bulk.read_column, number)
                if not reads_only:
                    clocks.learn(rows, bulk.write_column, number)

    d.plain = PlainAccess("BULK_AWAIT", AccessBlock(*block([])))
    d.visible(run)
