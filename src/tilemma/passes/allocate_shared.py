"""Shared memory: where each buffer of a block lies, and that all of them fit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilemma.errors import CompileError, Note
from tilemma.ir.tile import Alloc, DeclareEvent, For, Kernel, Op, Parallel, While
from tilemma.ir.types import Space
from tilemma.ir.walk import rewrite
from tilemma.passes.accesses import Accesses
from tilemma.passes.decision import Decision
from tilemma.passes.hazards import Walk
from tilemma.passes.infer_levels import described
from tilemma.passes.rotation import Rotations
from tilemma.passes.scope import Dependence
from tilemma.passes.target import Target
from tilemma.passes.threads import Node, Tree


class SharedMemoryLimit(CompileError):
    code = "shared-memory-limit"
    found = "the shared buffers of this block take {total} bytes: {table}"
    expected = "at most {limit} bytes on {arch} (CUDA C++ Programming Guide, Compute Capabilities)"
    fix = "make the tiles smaller, or use fewer stages: the largest is `{largest}`"


# Bytes of an mbarrier, and their alignment (PTX ISA, mbarrier object).
_MBARRIER = 8


@dataclass(frozen=True, slots=True)
class _Placed:
    alloc: Alloc
    life: tuple[int, int]
    size: int
    offset: int


@dataclass(frozen=True)
class AllocateShared:
    """Fills `Alloc.offset`.

    Buffers whose lives do not overlap share memory where the synchronisation that is there already keeps
    their accesses apart; none is added for it.
    """

    arch: str
    reuse: bool = True

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises SharedMemoryLimit with a table by buffer."""
        dependence = Dependence(kernel.body)

        def settle(op: Op) -> Op:
            if isinstance(op, Parallel) and op.level is not None and op.level.kind == "block":
                return self._block(op, dependence, log)
            return op

        return replace(kernel, body=rewrite(kernel.body, settle))

    def _block(self, block: Parallel, dependence: Dependence, log: list[Decision]) -> Op:
        tree = Tree(block, dependence)
        accesses = Accesses(tree)
        order = {id(n): i for i, n in enumerate(tree.walk())}
        shared = [n for n in tree.walk() if isinstance(n.op, Alloc) and n.op.buffer.space is Space.SHARED]
        rotations = Rotations(block.body)
        lives = {n.op.buffer.name: _life(n, tree, accesses, order) for n in shared if isinstance(n.op, Alloc)}
        for group in rotations.groups:
            spans = [lives[name] for name in group]
            # What rotates is in use from the first of them to the last, whatever the names stand for.
            lives |= dict.fromkeys(group, (min(a for a, _ in spans), max(b for _, b in spans)))
        placed: list[_Placed] = []
        aliases: set[frozenset[str]] = set()
        for n in sorted(shared, key=lambda n: -_size(n.op)):
            assert isinstance(n.op, Alloc)
            life = lives[n.op.buffer.name]
            placed.append(self._place(n.op, life, placed, tree, accesses, aliases, rotations))
        total = max((p.offset + p.size for p in placed), default=0)
        events: dict[str, int] = {}
        for n in tree.walk():
            if isinstance(n.op, DeclareEvent):
                events[n.op.event.name] = total = -(-total // _MBARRIER) * _MBARRIER
                total += _MBARRIER * max(1, n.op.event.slots)
        self._check(block, placed, total)
        offsets = {p.alloc.buffer.name: p for p in placed}
        for p in placed:
            name = p.alloc.buffer.name
            shares = sorted(next(iter(a - {name})) for a in aliases if name in a)
            text = f"{p.size} bytes at {p.offset}" + (f", shared with {', '.join(shares)}" if shares else "")
            log.append(Decision("shared", name, text, {"bytes": p.size, "offset": p.offset, "shares": shares}))
        log.append(Decision("shared", described(block), f"{total} bytes of shared memory", {"bytes": total}))

        def fill(op: Op) -> Op:
            if isinstance(op, Alloc) and op.buffer.name in offsets:
                return replace(op, offset=offsets[op.buffer.name].offset)
            if isinstance(op, DeclareEvent) and op.event.name in events:
                return replace(op, offset=events[op.event.name])
            return op

        return replace(block, body=rewrite(block.body, fill))

    def _place(
        self,
        alloc: Alloc,
        life: tuple[int, int],
        placed: list[_Placed],
        tree: Tree,
        accesses: Accesses,
        aliases: set[frozenset[str]],
        rotations: Rotations,
    ) -> _Placed:
        """The lowest place that is free, or that buffers of other lives can lend."""
        assert alloc.layout is not None
        size, step = _size(alloc), alloc.layout.alignment
        starts = sorted({0, *(-(-(p.offset + p.size) // step) * step for p in placed)})
        for start in starts:
            over = [p for p in placed if p.offset < start + size and start < p.offset + p.size]
            if any(p.life[0] <= life[1] and life[0] <= p.life[1] for p in over) or (over and not self.reuse):
                continue
            mine = rotations.group(alloc.buffer.name)
            theirs = {name for p in over for name in rotations.group(p.alloc.buffer.name)}
            new = aliases | {frozenset((a, b)) for a in mine for b in theirs}
            if over and next(Walk(tree, accesses, frozenset(new)).hazards(), None) is not None:
                continue
            aliases |= new
            return _Placed(alloc, life, size, start)
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


def _size(op: Op) -> int:
    assert isinstance(op, Alloc) and op.layout is not None, op
    return op.layout.size * max(1, op.buffer.copies)


def _life(alloc: Node, tree: Tree, accesses: Accesses, order: dict[int, int]) -> tuple[int, int]:
    """First and last operation, in program order, between which the buffer holds something.

    An access in a loop that does not hold the declaration may meet that of another turn: all of the loop counts.
    """
    assert isinstance(alloc.op, Alloc)
    name = alloc.op.buffer.name
    found: list[int] = []
    inside = set(map(id, alloc.parent.path()))
    for n in tree.walk():
        if not any(a.resource == name for a in accesses.of(n)):
            continue
        found.append(order[id(n)])
        for around in n.ancestors():
            if isinstance(around.op, (For, While)) and id(around.inner[0]) not in inside:
                last = max([order[id(x)] for x in tree.walk(around.inner[0])], default=order[id(around)])
                found += [order[id(around)], last]
    return (min(found), max(found)) if found else (order[id(alloc)], order[id(alloc)])
