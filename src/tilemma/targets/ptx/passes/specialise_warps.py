"""Automatic pipelining for wgmma: a producer warpgroup copies tiles ahead by TMA, the others multiply.

A synchronous loop becomes what a user could have written with events and roles::

    for k:                                 wg == 0:                          wg >= 1:
        copy A(k) => a_s                     for k:                            for k:
        copy B(k) => b_s        =>             wait empty[slot]                  wait full[slot]
        parallel p: mc += a_s x b_s            copy A(k) => a_s[slot], full      mc += a_s[slot] x b_s[slot]
                                               copy B(k) => b_s[slot], full      trigger empty[slot]
                                               trigger full[slot]                slot = next
                                               slot = next

Copies that follow each other in a loop share a ring of buffers and its two events.  The producer executes the
control flow that its copies need.  With persistent blocks both roles iterate over the tiles of the grid: the
producer copies the first stages of a tile while the consumers store the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from tilemma.ir.effects import read_views, written_views
from tilemma.ir.expr import (
    INDEX,
    Element,
    Expr,
    FragmentElement,
    Select,
    Var,
    add,
    binary,
    const,
    sub,
)
from tilemma.ir.expr import walk as terms
from tilemma.ir.pipeline import PipelineSettings
from tilemma.ir.substitution import Substitution
from tilemma.ir.tile import (
    Alloc,
    Assign,
    Atomic,
    Body,
    Commit,
    Copy,
    Declare,
    DeclareEvent,
    For,
    If,
    InThreads,
    Kernel,
    Load,
    Mma,
    MmaWait,
    Op,
    Parallel,
    TriggerEvent,
    WaitEvent,
    While,
)
from tilemma.ir.types import WARPGROUP, Buffer, Event, EventRef, Space, View
from tilemma.ir.walk import bodies, expressions, rewrite, walk
from tilemma.passes.contraction import fragment_uses
from tilemma.passes.decision import Decision
from tilemma.passes.scope import kind, names
from tilemma.records import record
from tilemma.targets.ptx.passes.persistent_grid import TileLoop, clustered
from tilemma.targets.ptx.passes.pipeline_model import pays
from tilemma.targets.ptx.passes.plan_roles import BY_HAND, BlockPlan, Ring, result_elements
from tilemma.targets.ptx.passes.promote_copies import promoted
from tilemma.targets.ptx.passes.warp_program import (
    NotPipelined,
    divided_copies,
    refuse,
)
from tilemma.targets.ptx.target import Target


@record(slots=False)
class SpecialiseWarps:
    """Divides blocks of synchronous loops into a producer and the program's warpgroups, where legal."""

    arch: str

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        target = Target.of(self.arch)
        if not target.wgmma or not target.tma:
            return kernel
        body = tuple(self._launch(op, kernel, log) for op in kernel.body)
        same = all(new is old for new, old in zip(body, kernel.body, strict=True))
        return kernel if same else replace(kernel, body=body, pipeline=None)

    def _launch(self, op: Op, kernel: Kernel, log: list[Decision]) -> Op:
        """``op`` if it is not a grid of blocks; clusters of the program stay as they are."""
        if (
            not isinstance(op, Parallel)
            or kind(op) != "block"
            or not any(isinstance(x, Mma) for x in walk(op.body))
        ):
            return op
        asked = kernel.pipeline is not None or any(isinstance(x, For) and x.pipeline for x in walk(op.body))
        bounded = op.cooperative or op.min_blocks is not None or op.max_registers is not None
        if not asked and (bounded or not pays(result_elements(op))):
            return op
        said: list[Decision] = []
        try:
            settings = kernel.pipeline or (None if asked else PipelineSettings())
            new = _Specialisation(replace(kernel, pipeline=settings), op, self.arch, said).result()
        except NotPipelined as e:
            if asked or e.obstacle.rule not in BY_HAND:
                log.append(e.decision(kernel))
            return op
        log += said
        return new


@record(slots=False)
class _Channel:
    """Copies that follow each other in ``loop``, and the ring that holds their tiles."""

    loop: For
    copies: tuple[Copy, ...]
    stages: int
    full: Event
    empty: Event

    @property
    def buffers(self) -> dict[str, Buffer]:
        return {c.dst.base.name: replace(c.dst.base, copies=self.stages) for c in self.copies}

    def view(self, view: View, slot: Var) -> View:
        ring = self.buffers.get(view.base.name)
        return view if ring is None else replace(view, base=ring, slot=slot)

    def next(self, slot: Var) -> Op:
        after = Select(binary("eq", slot, self.stages - 1), const(0), add(slot, 1))
        return Assign(slot, after, span=self.loop.span)


class _Specialisation:
    """One block, divided into roles."""

    def __init__(self, kernel: Kernel, block: Parallel, arch: str, log: list[Decision]) -> None:
        self.kernel, self.block, self.log = kernel, block, log
        self.plan = BlockPlan(kernel, block, arch, log)
        self.channels = [self._channel(ring) for ring in self.plan.rings]
        self.slots = {"producer": self._slots("fill"), "consumer": self._slots("use")}

    def result(self) -> Op:
        producer = self._producer()
        consumer = divided_copies(self._consume(self.plan.program), self.plan.wg, self.plan.groups)
        consumer = rewrite(consumer, self._store_by_tma)
        shared = [op for op in walk(consumer) if isinstance(op, Alloc) and op.buffer.space is Space.SHARED]
        consumer = rewrite(consumer, lambda op: () if any(op is x for x in shared) else op)
        return self._assembled(shared, producer, consumer)

    # ---- rings ---------------------------------------------------------------------------------------------

    def _channel(self, ring: Ring) -> _Channel:
        loop, copies = ring.loop, ring.copies
        stages = self.plan.choice.stages if ring.settings.stages is None else ring.settings.stages
        suffix = copies[0].dst.base.name
        full = Event(self.plan.fresh("full"), stages)
        empty = Event(self.plan.fresh("empty"), stages, ready=True)
        text = f"{len(copies)} tiles in a ring of {stages} stages, copied ahead by TMA"
        self.log.append(
            Decision(
                "pipeline",
                suffix,
                text,
                {"stages": stages, "full": full.name, "empty": empty.name},
                span=loop.span,
            )
        )
        return _Channel(loop, copies, stages, full, empty)

    def _slots(self, name: str) -> list[Var]:
        return [Var(self.plan.fresh(f"{name}_slot"), INDEX) for _ in self.channels]

    def _of(self, op: Op, role: str) -> list[tuple[_Channel, Var]]:
        return [(c, s) for c, s in zip(self.channels, self.slots[role], strict=True) if c.loop is op]

    def _multicast(self, copy: Copy) -> bool:
        return self.plan.choice.cluster > 1 and not self.plan.differs(copy, self.block.indices[self.plan.row])

    # ---- consumers -----------------------------------------------------------------------------------------

    def _consume(self, body: Body) -> Body:
        out: list[Op] = []
        for op in body:
            mine = self._of(op, "consumer")
            if isinstance(op, For) and mine:
                op = replace(op, body=self._consumed(op, mine), pipeline=None)
            else:
                changes = {name: self._consume(inner) for name, inner in bodies(op)}
                op = replace(op, **changes) if changes else op  # type: ignore[arg-type]
            out.append(op)
        return tuple(out)

    def _consumed(self, loop: For, mine: list[tuple[_Channel, Var]]) -> Body:
        last = {id(c): _waited(loop.body, _last_use(loop.body, c)) for c, _ in mine}
        out: list[Op] = []
        for at, op in enumerate(loop.body):
            begins = next(((c, s) for c, s in mine if c.copies[0] is op), None)
            if begins is not None:
                c, s = begins
                out.append(WaitEvent(EventRef(c.full, s), span=op.span))
            if not any(op is x for c, _ in mine for x in c.copies):
                new = self._consume((op,))[0]
                for c, s in mine:
                    new = Substitution({}, lambda v, c=c, s=s: c.view(v, s)).operation(new)  # type: ignore[misc]
                out.append(new)
            for c, s in mine:
                if last[id(c)] == at:
                    out += self._release(c, s, op)
        return tuple(out)

    def _release(self, c: _Channel, slot: Var, after: Op) -> list[Op]:
        cluster = any(self._multicast(x) for x in c.copies)
        trigger = TriggerEvent(EventRef(c.empty, slot), cluster=cluster, span=after.span)
        return [Commit(span=after.span), trigger, c.next(slot)]

    def _store_by_tma(self, op: Op) -> Op:
        stores = isinstance(op, Copy) and op.dst.base.space is Space.GLOBAL and op.src.base.space is Space.SHARED
        if not stores:
            return op
        assert isinstance(op, Copy)
        new = promoted(op, self.plan.facts)
        return op if isinstance(new, str) else new

    # ---- producer ------------------------------------------------------------------------------------------

    def _producer(self) -> Body:
        needed: set[str] = set()
        while True:
            body = self._sliced(self.plan.program, needed)
            extents = (op.index.extent for op in walk(body) if isinstance(op, For))
            evaluated = (e for op in walk(body) for e in _evaluated(op))
            found = {n for e in (*evaluated, *extents) for n in names(e)}
            if found <= needed:
                break
            needed |= found
        self._check_slice(body)
        table: dict[str, Expr] = {}
        for op in walk(body):
            if isinstance(op, For):
                table[op.index.name] = replace(op.index, name=self.plan.fresh(op.index.name))
            elif isinstance(op, Declare):
                table[op.var.name] = replace(op.var, name=self.plan.fresh(op.var.name))
        return Substitution(table).body(body)

    def _sliced(self, body: Body, needed: set[str]) -> Body:
        """The operations that issue the copies, and those that compute the variables in ``needed``."""
        out: list[Op] = []
        for op in body:
            if isinstance(op, (Declare, Assign)):
                out += (op,) if op.var.name in needed else ()
            elif isinstance(op, For) and (mine := self._of(op, "producer")):
                out.append(replace(op, body=self._produced(op, mine, needed), pipeline=None))
            elif isinstance(op, (For, While, If)):
                changes = {name: self._sliced(inner, needed) for name, inner in bodies(op)}
                if any(changes.values()):
                    out.append(replace(op, **changes))  # type: ignore[arg-type]
        return tuple(out)

    def _produced(self, loop: For, mine: list[tuple[_Channel, Var]], needed: set[str]) -> Body:
        out: list[Op] = []
        for op in loop.body:
            begins = next(((c, s) for c, s in mine if c.copies[0] is op), None)
            if begins is not None:
                out += self._copies(*begins)
            elif not any(op is x for c, _ in mine for x in c.copies):
                out += self._sliced((op,), needed)
        return tuple(out)

    def _copies(self, c: _Channel, slot: Var) -> Iterator[Op]:
        span = c.copies[0].span
        yield WaitEvent(EventRef(c.empty, slot), span=span)
        for copy in c.copies:
            moved = promoted(copy, self.plan.facts)
            assert isinstance(moved, Copy)
            yield replace(
                moved,
                dst=c.view(copy.dst, slot),
                asynchronous=True,
                event=EventRef(c.full, slot),
                multicast=self._multicast(copy),
            )
        yield TriggerEvent(EventRef(c.full, slot), span=span)
        yield c.next(slot)

    def _check_slice(self, body: Body) -> None:
        """The producer may only depend on values that no other operation of the kernel provides."""
        written = {v.base.name for op in walk(self.kernel.body) for v in written_views(op)}
        given = {
            op.result.name for op in walk(self.plan.program) if isinstance(op, Atomic) and op.result is not None
        }
        for op in walk(body):
            for x in (x for e in expressions(op) for x in terms(e)):
                from_memory = isinstance(x, Element) and (
                    x.view.base.name in written or x.view.base.space is not Space.GLOBAL
                )
                if from_memory or isinstance(x, FragmentElement) or (isinstance(x, Var) and x.name in given):
                    raise refuse(
                        "address-from-memory",
                        "the place or the number of copies depends on data that the kernel computes",
                        "compute it from indices and parameters",
                        op.span,
                    )

    # ---- result --------------------------------------------------------------------------------------------

    def _assembled(self, shared: list[Alloc], producer: Body, consumer: Body) -> Op:
        span = self.block.span
        rings = {name: b for c in self.channels for name, b in c.buffers.items()}
        top: list[Op] = []
        for c in self.channels:
            top += (DeclareEvent(c.full, span=span), DeclareEvent(c.empty, span=span))
        top += (replace(a, buffer=rings.get(a.buffer.name, a.buffer)) for a in shared)
        tiles: TileLoop | None = None
        launch: Callable[[Body], Op] = partial(_launch_with, self.block)
        choice = self.plan.choice
        if choice.persistent:
            tiles = TileLoop(
                self.block.indices, choice.persistent, self.plan.row, choice.cluster, self.plan.fresh, span
            )
            launch = partial(tiles.around, self.block)
            text = f"persistent blocks in bands of rows, clusters of {choice.cluster}"
            self.log.append(Decision("pipeline", self.kernel.name, text, {"cluster": choice.cluster}, span=span))
        elif choice.cluster > 1:
            launch = partial(clustered, self.block, self.plan.row, choice.cluster, self.plan.fresh)
            text = f"clusters of {choice.cluster}"
            self.log.append(Decision("pipeline", self.kernel.name, text, {"cluster": choice.cluster}, span=span))
        starts = {
            role: tuple(Declare(s, const(0), span=span) for s in slots) for role, slots in self.slots.items()
        }
        first = (*starts["producer"], *self._tile_loop(tiles, producer, True))
        others = (*starts["consumer"], *self._tile_loop(tiles, consumer, False))
        roles = (
            InThreads(binary("eq", self.plan.wg, 0), first, True, span=span),
            InThreads(binary("ge", self.plan.wg, 1), others, True, span=span),
        )
        return launch((*top, Parallel((self.plan.wg,), roles, WARPGROUP, span=span)))

    def _tile_loop(self, tiles: TileLoop | None, body: Body, copies: bool) -> Body:
        """``body`` for each tile of a persistent block."""
        if tiles is None:
            return body
        t = tiles.index()
        if copies and self.plan.choice.reverse:
            body = rewrite(body, lambda op: _reversed(op, tiles.backward(t)) if _issues(op) else op)
            self.log.append(
                Decision(
                    "pipeline",
                    self.kernel.name,
                    "every other pass over the grid adds from the end of the loop: sums are rounded differently",
                    span=self.block.span,
                )
            )
        return (tiles.loop(Substitution(tiles.place(t)).body(body), t),)


def _launch_with(block: Parallel, body: Body) -> Parallel:
    return replace(block, body=body)


def _issues(op: Op) -> bool:
    return isinstance(op, For) and any(isinstance(x, Copy) for x in op.body)


def _reversed(op: Op, backward: Expr) -> Op:
    """The copies of a loop from 0 on, from its end if ``backward`` is 1."""
    assert isinstance(op, For)
    k = op.index
    from_end = Select(binary("eq", backward, 1), sub(sub(op.stop, 1), k), k)

    def turned(x: Op) -> Op:
        if not isinstance(x, Copy):
            return x
        return replace(x, src=x.src.map(Substitution({k.name: from_end}).expression))

    return replace(op, body=tuple(turned(x) for x in op.body))


def _last_use(body: Body, c: _Channel) -> int:
    """The position of the last operation that reads the tiles of ``c``, or a fragment loaded from them."""
    buffers, last = c.buffers, 0
    fragments = {op.fragment.name for op in walk(body) if isinstance(op, Load) and op.src.base.name in buffers}
    for at, op in enumerate(body):
        inside = list(walk((op,)))
        reads = any(v.base.name in buffers for x in inside for v in read_views(x))
        uses = any(ref.name in fragments for x in inside for _, ref in fragment_uses(x))
        if reads or uses or any(op is x for x in c.copies):
            last = at
    return last


def _waited(body: Body, at: int) -> int:
    """The position of the program's next wait for all multiplies after ``at``, or ``at``: a release there waits
    for no multiply that is issued later."""
    return next((i for i, op in enumerate(body) if i > at and isinstance(op, MmaWait) and op.pending == 0), at)


def _evaluated(op: Op) -> Iterator[Expr]:
    yield from (e for e in expressions(op) if not (isinstance(op, (Declare, Assign)) and e is op.var))
