"""Shared-memory allocation: liveness of buffers, their offsets, and the check against the target's limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from tilemma.errors import CompileError, Note
from tilemma.ir.tile import Alloc, Barrier, DeclareEvent, For, Kernel, Op, Parallel, While
from tilemma.ir.types import Space
from tilemma.ir.walk import rewrite, rewrite_blocks
from tilemma.passes.decision import Decision
from tilemma.passes.infer_levels import described
from tilemma.passes.rotations import Rotations
from tilemma.passes.scope import Dependence, block_threads
from tilemma.passes.threads import Node, Tree
from tilemma.records import record
from tilemma.targets.ptx.passes.accesses import Accesses
from tilemma.targets.ptx.passes.double_buffer_fragments import registers_of_multiplies
from tilemma.targets.ptx.passes.hazards import Walk
from tilemma.targets.ptx.passes.pipeline_model import resident_blocks, shared_of_each
from tilemma.targets.ptx.target import Target


class SharedMemoryLimit(CompileError):
    code = "shared-memory-limit"
    found = "the shared buffers of this block take {total} bytes: {table}"
    expected = "at most {limit} bytes on {arch} (CUDA C++ Programming Guide, Compute Capabilities)"
    fix = "make the tiles smaller, or use fewer stages: the largest is `{largest}`"


# Bytes of an mbarrier, and their alignment (PTX ISA, mbarrier object).
_MBARRIER = 8


@record
class _Placed:
    alloc: Alloc
    live: tuple[int, int]
    size: int
    offset: int


@record
class _Layout:
    """The offsets of all buffers and events, the pairs of buffers that share memory, and the total size in
    bytes."""

    placed: list[_Placed]
    aliases: set[frozenset[str]]
    events: dict[str, int]
    total: int


@record
class _Block:
    """A block's tree, in which barriers are tried, and what they do not change."""

    tree: Tree
    accesses: Accesses

    @staticmethod
    def of(block: Parallel, dependence: Dependence) -> _Block:
        tree = Tree(block, dependence)
        return _Block(tree, Accesses(tree))

    @property
    def nodes(self) -> list[Node]:
        return self.tree.root.nodes

    def barrier(self, before: Node) -> Node:
        """A new barrier of the whole block in front of ``before``."""
        root = self.tree.root
        made = Node(Barrier(0, self.tree.threads, span=before.op.span), root, part=root.partition(0))
        root.nodes.insert(root.nodes.index(before), made)
        return made


@record(slots=False)
class AllocateShared:
    """Fills `Alloc.offset`.

    Buffers with disjoint live ranges share memory if the existing synchronisation orders their accesses; a barrier
    is added for that purpose only if the buffers would not fit otherwise, or fewer blocks that multiply would fit
    on a multiprocessor.  The buffer of an asynchronous copy is live until a wait for the copy returns, whether
    its data is read or not.
    """

    arch: str
    reuse: bool = True

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises SharedMemoryLimit with a table by buffer."""
        dependence = Dependence(kernel.body)
        return rewrite_blocks(kernel, lambda block: self._block(block, dependence, log))

    def _block(self, block: Parallel, dependence: Dependence, log: list[Decision]) -> Op:
        limit = Target.of(self.arch).shared_limit
        studied = _Block.of(block, dependence)
        layout = self._parted(studied, self._layout(studied), limit, log)
        self._check(block, layout.placed, layout.total)
        registers = registers_of_multiplies(block)
        blocks = resident_blocks(self.arch, registers, block_threads(block)) if registers else 1
        if blocks > 1 and layout.total > (room := shared_of_each(blocks)):
            said: list[Decision] = []
            before = list(studied.nodes)
            smaller = self._parted(studied, layout, room, said)
            if smaller.total <= room:
                layout = smaller
                log += said
            else:
                studied.nodes[:] = before
        offsets = {p.alloc.buffer.name: p for p in layout.placed}
        for p in layout.placed:
            name = p.alloc.buffer.name
            shares = sorted(next(iter(a - {name})) for a in layout.aliases if name in a)
            text = f"{p.size} bytes at {p.offset}" + (f", shared with {', '.join(shares)}" if shares else "")
            log.append(Decision("shared", name, text, {"bytes": p.size, "offset": p.offset, "shares": shares}))
        text = f"{layout.total} bytes of shared memory"
        log.append(Decision("shared", described(block), text, {"bytes": layout.total}))

        def fill(op: Op) -> Op:
            if isinstance(op, Alloc) and op.buffer.name in offsets:
                return replace(op, offset=offsets[op.buffer.name].offset)
            if isinstance(op, DeclareEvent) and op.event.name in layout.events:
                return replace(op, offset=layout.events[op.event.name])
            return op

        return replace(block, body=rewrite(tuple(n.op for n in studied.nodes), fill))

    def _parted(self, studied: _Block, layout: _Layout, limit: int, log: list[Decision]) -> _Layout:
        """The layout with barriers in ``studied`` before buffers that then reuse memory, until ``limit`` bytes
        suffice."""
        for node in [n for n in reversed(studied.nodes) if _is_shared(n.op)]:
            if layout.total <= limit or not self.reuse:
                break
            # After a barrier the buffer can reuse the memory of buffers that are no longer live.
            barrier = studied.barrier(node)
            parted = self._layout(studied)
            if parted.total < layout.total:
                layout = parted
                assert isinstance(node.op, Alloc)
                text = f"a barrier before it, so that it reuses memory: {limit} bytes would not suffice otherwise"
                log.append(Decision("shared", node.op.buffer.name, text, span=node.op.span))
            else:
                studied.nodes.remove(barrier)
        return layout

    def _layout(self, studied: _Block) -> _Layout:
        tree, accesses, rotations = studied.tree, studied.accesses, studied.tree.rotations
        nodes = tree.walk()
        shared = [n for n in nodes if _is_shared(n.op)]
        lives = _live_ranges(shared, nodes, accesses)
        for group in rotations.groups:
            spans = [lives[name] for name in group]
            # Buffers whose names rotate have one live range: the union of all.
            lives |= dict.fromkeys(group, (min(a for a, _ in spans), max(b for _, b in spans)))
        placed: list[_Placed] = []
        aliases: set[frozenset[str]] = set()

        @cache
        def hazard_free(aliases: frozenset[frozenset[str]]) -> bool:
            """Whether no hazard arises if these pairs share memory.  Buffers whose names rotate ask the same
            question."""
            names = frozenset().union(*aliases)
            walk = Walk(tree, accesses.only(lambda a: a.resource in names), aliases)
            return next(walk.hazards(), None) is None

        for n in sorted(shared, key=lambda n: -_size(n.op)):
            assert isinstance(n.op, Alloc)
            live = lives[n.op.buffer.name]
            placed.append(self._place(n.op, live, placed, aliases, rotations, hazard_free))
        total = max((p.offset + p.size for p in placed), default=0)
        events: dict[str, int] = {}
        for n in nodes:
            if isinstance(n.op, DeclareEvent):
                events[n.op.event.name] = total = -(-total // _MBARRIER) * _MBARRIER
                total += _MBARRIER * max(1, n.op.event.slots)
        return _Layout(placed, aliases, events, total)

    def _place(
        self,
        alloc: Alloc,
        live: tuple[int, int],
        placed: list[_Placed],
        aliases: set[frozenset[str]],
        rotations: Rotations,
        hazard_free: Callable[[frozenset[frozenset[str]]], bool],
    ) -> _Placed:
        """The lowest offset that is free, or that buffers with disjoint live ranges occupy."""
        assert alloc.layout is not None
        size, step = _size(alloc), alloc.layout.alignment
        starts = sorted({0, *(-(-(p.offset + p.size) // step) * step for p in placed)})
        for start in starts:
            over = [p for p in placed if p.offset < start + size and start < p.offset + p.size]
            if any(p.live[0] <= live[1] and live[0] <= p.live[1] for p in over) or (over and not self.reuse):
                continue
            mine = rotations.group(alloc.buffer.name)
            theirs = {name for p in over for name in rotations.group(p.alloc.buffer.name)}
            new = frozenset(frozenset((a, b)) for a in mine for b in theirs)
            if over and not hazard_free(new):
                continue
            aliases |= new
            return _Placed(alloc, live, size, start)
        raise AssertionError("there is always room at the end")

    def _check(self, block: Parallel, placed: list[_Placed], total: int) -> None:
        limit = Target.of(self.arch).shared_limit
        if total <= limit:
            return
        by_size = sorted(placed, key=lambda p: -p.size)
        table = ", ".join(f"`{p.alloc.buffer.name}` {p.size}" for p in by_size)
        raise SharedMemoryLimit(
            by_size[0].alloc.span or block.span,
            total=total,
            table=table,
            limit=limit,
            arch=self.arch,
            largest=by_size[0].alloc.buffer.name,
            notes=[Note(f"`{p.alloc.buffer.name}`: {p.size} bytes", p.alloc.span) for p in by_size[1:]],
        )


def _is_shared(op: Op) -> bool:
    return isinstance(op, Alloc) and op.buffer.space is Space.SHARED


def _size(op: Op) -> int:
    assert isinstance(op, Alloc) and op.layout is not None, op
    return op.layout.total(op.buffer.copies)


def _live_ranges(allocs: list[Node], nodes: list[Node], accesses: Accesses) -> dict[str, tuple[int, int]]:
    """The live range of each buffer: the first and the last of ``nodes`` between which it holds data.

    If a loop contains an access but not the declaration, the data is live across iterations: the live range
    contains the whole loop.
    """
    order = {n: i for i, n in enumerate(nodes)}
    using: dict[str, list[Node]] = {}
    for n in nodes:
        for a in accesses.of(n):
            using.setdefault(a.resource, []).append(n)
    lives = {}
    for alloc in allocs:
        assert isinstance(alloc.op, Alloc)
        name, inside = alloc.op.buffer.name, list(alloc.parent.path())
        found = set[int]()
        for n in using.get(name, ()):
            loops = [a for a in n.ancestors() if isinstance(a.op, (For, While)) and a.inner[0] not in inside]
            outer = loops[-1] if loops else n
            found |= {order[outer], order[outer] + len(outer.subtree()) - 1 if loops else order[n]}
        lives[name] = (min(found), max(found)) if found else (order[alloc], order[alloc])
    return lives
