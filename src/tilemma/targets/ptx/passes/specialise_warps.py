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

from collections import Counter
from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from functools import partial

from tilemma.errors import Span
from tilemma.ir import tile as t
from tilemma.ir.effects import received, variables_set, written_views
from tilemma.ir.expr import (
    INDEX,
    Element,
    Expr,
    FragmentElement,
    Index,
    Select,
    Var,
    add,
    binary,
    const,
    sub,
    value_of,
)
from tilemma.ir.expr import walk as terms
from tilemma.ir.pipeline import PipelineSettings
from tilemma.ir.substitution import Substitution
from tilemma.ir.types import WARPGROUP, Buffer, Event, EventRef, Space, View
from tilemma.ir.walk import bodies, expressions, rewrite, walk, with_fields
from tilemma.passes.decision import Decision
from tilemma.passes.pipeline_legality import is_load, loop_copies
from tilemma.passes.scope import kind, names
from tilemma.records import record
from tilemma.targets.ptx.passes.persistent_grid import TileLoop, clustered
from tilemma.targets.ptx.passes.pipeline_model import Work, is_profitable, waits_alone
from tilemma.targets.ptx.passes.plan_roles import BY_HAND, BlockPlan, Ring, result_elements
from tilemma.targets.ptx.passes.promote_copies import promoted, reordered_stores
from tilemma.targets.ptx.passes.warp_program import NotPipelined, divided_copies, refuse
from tilemma.targets.ptx.target import Target


@record(slots=False)
class SpecialiseWarps:
    """Divides blocks of synchronous loops into a producer and the program's warpgroups, where legal."""

    arch: str

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        target = Target.of(self.arch)
        if not target.wgmma or not target.tma:
            return kernel
        body = list(kernel.body)
        for at, op in enumerate(kernel.body):
            # Names are fresh in all launches: events and buffers are found by them.
            body[at] = self._launch(op, replace(kernel, body=tuple(body)), log)
        same = all(new is old for new, old in zip(body, kernel.body, strict=True))
        return kernel if same else replace(kernel, body=tuple(body), pipeline=None)

    def _explain(self, op: t.Parallel, kernel: t.Kernel, bounded: bool, log: list[Decision]) -> None:
        """Why a block that says nothing about pipelining stays as written."""
        loops = loop_copies(replace(kernel, body=(op,)), role=True)
        try:
            if loops and not any(found.ahead for found in loops):
                # Loops that copy into the same buffers are analysed together.
                BlockPlan(replace(kernel, pipeline=PipelineSettings()), op, self.arch, [])
        except NotPipelined as e:
            if e.obstacle.rule not in BY_HAND:
                log.append(e.decision(kernel))
            return
        if loops:
            log.append(_left_as_written(kernel, op, bounded))

    def _launch(self, op: t.Op, kernel: t.Kernel, log: list[Decision]) -> t.Op:
        """``op`` if it is not a grid of blocks; clusters of the program stay as they are."""
        if (
            not isinstance(op, t.Parallel)
            or kind(op) != "block"
            or not any(isinstance(x, t.Mma) for x in walk(op.body))
        ):
            return op
        asked = kernel.pipeline is not None or any(isinstance(x, t.For) and x.pipeline for x in walk(op.body))
        bounded = op.cooperative or op.min_blocks is not None or op.max_registers is not None
        if not asked and (bounded or not is_profitable(result_elements(op), _work(op))):
            if result_elements(op):
                self._explain(op, kernel, bounded, log)
            return op
        said: list[Decision] = []
        try:
            settings = kernel.pipeline or (None if asked else PipelineSettings())
            found = _Specialisation(replace(kernel, pipeline=settings), op, self.arch, said)
            if not asked and not found.plan.complete and not waits_alone(result_elements(op)):
                # One block with copies that it waits for is slower than several.
                log.append(_left_as_written(kernel, op, bounded))
                return op
            new = found.result()
        except NotPipelined as e:
            if asked or e.obstacle.rule not in BY_HAND:
                log.append(e.decision(kernel))
            return op
        log += said
        return new


def _work(block: t.Parallel) -> Work:
    """What the loops of ``block`` around copies into shared memory do with the tiles."""
    loops = (
        op for op in walk(block.body) if isinstance(op, (t.For, t.While)) and any(map(is_load, walk(op.body)))
    )
    found: set[Work] = {_work_of(op) for loop in loops for op in walk(loop.body)}
    return next((x for x in _MOST_FIRST if x in found), "products")


_MOST_FIRST: tuple[Work, ...] = ("elements", "tiles")


def _work_of(op: t.Op) -> Work:
    match op:
        case t.Mma():
            plain = op.scale_a is None and op.scale_b is None and op.meta is None
        case t.Load():
            plain = op.element == op.stored == op.src.dtype
        case t.SetElement() | t.ScaleMma() | t.InThreads() | t.Atomic():
            plain = False
        case _:
            return "products" if isinstance(op, _OF_PRODUCTS) else "tiles"
    return "products" if plain else "elements"


_OF_PRODUCTS = (t.For, t.If, t.Parallel, t.Copy, t.Alloc, t.DeclareFragment, t.Fill, t.Declare, t.Assign)


def _left_as_written(kernel: t.Kernel, block: t.Parallel, bounded: bool) -> Decision:
    """The decision for a kernel that says nothing about pipelining and gets none."""
    why = (
        "the program states the blocks or registers of a multiprocessor"
        if bounded
        else f"a block computes {result_elements(block)} elements, and others of its multiprocessor fill its waits"
    )
    text = f"left as written: {why}; `pipeline` asks for copies ahead"
    return Decision("pipeline", kernel.name, text, {"elements": result_elements(block)}, span=block.span)


@record(slots=False)
class _Channel:
    """``rings`` that fill the same ``stages`` in turn; ``buffers``: the buffer of each destination."""

    rings: tuple[Ring, ...]
    buffers: dict[str, Buffer]
    stages: int
    full: Event
    empty: Event

    @property
    def copies(self) -> tuple[t.Copy, ...]:
        return tuple(c for ring in self.rings for c in ring.copies)

    def view(self, view: View, slot: Var) -> View:
        ring = self.buffers.get(view.base.name)
        return view if ring is None else replace(view, base=ring, slot=slot)

    def next(self, slot: Var, span: Span | None) -> t.Op:
        after = Select(binary("eq", slot, self.stages - 1), const(0), add(slot, 1))
        return t.Assign(slot, after, span=span)


class _Specialisation:
    """One block, divided into roles."""

    def __init__(self, kernel: t.Kernel, block: t.Parallel, arch: str, log: list[Decision]) -> None:
        self.kernel, self.block, self.log = kernel, block, log
        self.plan = BlockPlan(kernel, block, arch, log)
        self.channels = self._channels()
        self.slots = {"producer": self._slots("fill"), "consumer": self._slots("use")}

    def result(self) -> t.Op:
        producer = self._producer()
        consumer = divided_copies(self._consume(self.plan.program), self.plan.wg, self.plan.groups)
        reordered = reordered_stores(self.plan.program)
        consumer = rewrite(consumer, lambda op: self._store_by_tma(op, reordered))
        shared = [op for op in walk(consumer) if isinstance(op, t.Alloc) and op.buffer.space is Space.SHARED]
        consumer = rewrite(consumer, lambda op: () if any(op is x for x in shared) else op)
        return self._assembled(shared, producer, consumer)

    # ---- rings ---------------------------------------------------------------------------------------------

    def _channels(self) -> list[_Channel]:
        rings: dict[str, list[Ring]] = {}
        for ring in self.plan.rings:
            first = ring.buffers[0]
            rings.setdefault(self.plan.shared.get(first, first), []).append(ring)
        return [self._channel(tuple(found)) for found in rings.values()]

    def _channel(self, rings: tuple[Ring, ...]) -> _Channel:
        first = rings[0]
        stages = self.plan.stages[first.buffers[0]]
        suffix, tiles = first.buffers[0], [replace(c.dst.base, copies=stages) for c in first.copies]
        buffers = {name: tile for ring in rings for name, tile in zip(ring.buffers, tiles, strict=True)}
        full = Event(self.plan.fresh("full"), stages)
        empty = Event(self.plan.fresh("empty"), stages, ready=True)
        text = f"{len(tiles)} tile{'s' * (len(tiles) > 1)} in a ring of {stages} stages, copied ahead by TMA"
        if len(rings) > 1:
            text += f", by {len(rings)} statements in turn"
        self.log.append(
            Decision(
                "pipeline",
                suffix,
                text,
                {"stages": stages, "full": full.name, "empty": empty.name},
                span=first.loop.span,
            )
        )
        return _Channel(rings, buffers, stages, full, empty)

    def _slots(self, name: str) -> list[Var]:
        return [Var(self.plan.fresh(f"{name}_slot"), INDEX) for _ in self.channels]

    def _begins(self, op: t.Op, role: str) -> tuple[Ring, _Channel, Var] | None:
        """The ring whose first copy is ``op``, with its channel and the slot of ``role``."""
        for c, slot in zip(self.channels, self.slots[role], strict=True):
            for ring in c.rings:
                if ring.copies[0] is op:
                    return ring, c, slot
        return None

    def _multicast(self, copy: t.Copy) -> bool:
        return self.plan.choice.cluster > 1 and not self.plan.differs(copy, self.block.indices[self.plan.row])

    # ---- consumers -----------------------------------------------------------------------------------------

    def _consume(self, body: t.Body) -> t.Body:
        mine = [found for op in body if (found := self._begins(op, "consumer")) is not None]
        out: list[t.Op] = []
        for at, op in enumerate(body):
            for ring, c, slot in mine:
                if ring.copies[0] is op:
                    out.append(t.WaitEvent(EventRef(c.full, slot), span=op.span))
            if not any(op is copy for ring, _, _ in mine for copy in ring.copies):
                new = self._plain(op)
                for _, c, slot in mine:
                    new = Substitution({}, partial(c.view, slot=slot)).operation(new)
                out.append(new)
            for ring, c, slot in mine:
                if ring.released == at:
                    out += self._release(c, slot, op)
        return tuple(out)

    def _plain(self, op: t.Op) -> t.Op:
        """``op``, which is no copy of a ring, with the operations inside it."""
        changes: dict[str, object] = {name: self._consume(inner) for name, inner in bodies(op)}
        return with_fields(op, {**changes, **self._met(op)}) if changes else op

    def _met(self, op: t.Op) -> dict[str, None]:
        """The settings of a loop are carried out where its copies are in a ring."""
        met = isinstance(op, t.For) and any(ring.loop is op for ring in self.plan.rings)
        return {"pipeline": None} if met else {}

    def _release(self, c: _Channel, slot: Var, after: t.Op) -> list[t.Op]:
        cluster = any(self._multicast(x) for x in c.copies)
        trigger = t.TriggerEvent(EventRef(c.empty, slot), cluster=cluster, span=after.span)
        return [t.Commit(span=after.span), trigger, c.next(slot, after.span)]

    def _store_by_tma(self, op: t.Op, reordered: Set[str]) -> t.Op:
        stores = isinstance(op, t.Copy) and op.dst.base.space is Space.GLOBAL and op.src.base.space is Space.SHARED
        if not stores or (isinstance(op, t.Copy) and op.dst.base.name in reordered):
            return op
        assert isinstance(op, t.Copy)
        new = promoted(op, self.plan.facts)
        return op if isinstance(new, str) else new

    # ---- producer ------------------------------------------------------------------------------------------

    def _producer(self) -> t.Body:
        needed: set[str] = set()
        while True:
            body = self._sliced(self.plan.program, needed)
            extents = (op.index.extent for op in walk(body) if isinstance(op, t.For))
            evaluated = (e for op in walk(body) for e in _evaluated(op))
            found = {n for e in (*evaluated, *extents) for n in names(e)}
            if found <= needed:
                break
            needed |= found
        self._check_slice(body, needed)
        table: dict[str, Expr] = {}
        for op in walk(body):
            if isinstance(op, t.For):
                table[op.index.name] = replace(op.index, name=self.plan.fresh(op.index.name))
            elif isinstance(op, t.Declare):
                table[op.var.name] = replace(op.var, name=self.plan.fresh(op.var.name))
        return Substitution(table).body(body)

    def _sliced(self, body: t.Body, needed: set[str]) -> t.Body:
        """The operations that issue the copies, and those that compute the variables in ``needed``."""
        out: list[t.Op] = []
        for op in body:
            begins = self._begins(op, "producer")
            if begins is not None:
                out += self._copies(*begins)
            elif isinstance(op, (t.Declare, t.Assign)):
                out += (op,) if op.var.name in needed else ()
            elif isinstance(op, (t.Break, t.Continue)):
                out.append(op)
            elif isinstance(op, (t.For, t.While, t.If)):
                changes: dict[str, object] = {name: self._sliced(inner, needed) for name, inner in bodies(op)}
                new = with_fields(op, {**changes, **self._met(op)})
                if any(changes.values()) and (isinstance(op, t.If) or not _only_leaves(new)):
                    out.append(new)
        return tuple(out)

    def _copies(self, ring: Ring, c: _Channel, slot: Var) -> Iterator[t.Op]:
        span = ring.copies[0].span
        yield t.WaitEvent(EventRef(c.empty, slot), span=span)
        for copy in ring.copies:
            moved = promoted(copy, self.plan.facts)
            assert isinstance(moved, t.Copy)
            yield replace(
                moved,
                dst=c.view(copy.dst, slot),
                asynchronous=True,
                event=EventRef(c.full, slot),
                multicast=self._multicast(copy),
            )
        yield t.TriggerEvent(EventRef(c.full, slot), span=span)
        yield c.next(slot, span)

    def _check_slice(self, body: t.Body, needed: set[str]) -> None:
        """The producer may only depend on values that no other operation of the kernel provides."""
        own = Counter(v.name for op in walk(body) for v in variables_set(op))
        for op in walk(self.plan.program):
            for v in variables_set(op):
                own[v.name] -= 1
                if v.name in needed and own[v.name] < 0:
                    raise refuse(
                        "address-from-variable",
                        f"the place or the number of copies depends on `{v.name}`, which a `parallel` assigns",
                        "assign it outside the inner levels, or compute the place from indices and parameters",
                        op.span,
                    )
        written = {v.base.name for op in walk(self.kernel.body) for v in written_views(op)}
        given = {v.name for op in walk(self.plan.program) for v in received(op)}
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

    def _assembled(self, shared: list[t.Alloc], producer: t.Body, consumer: t.Body) -> t.Op:
        span = self.block.span
        rings = {name: b for c in self.channels for name, b in c.buffers.items()}
        top: list[t.Op] = []
        for c in self.channels:
            top += (t.DeclareEvent(c.full, span=span), t.DeclareEvent(c.empty, span=span))
        shared = [a for a in shared if a.buffer.name not in self.plan.shared]
        for a in shared:
            ring = rings.get(a.buffer.name)
            # An initial value of a tile is never read.
            top.append(a if ring is None else replace(a, buffer=ring, init=None))
        tiles: TileLoop | None = None
        launch: Callable[[t.Body], t.Parallel] = partial(_launch_with, self.block)
        choice = self.plan.choice
        if choice.persistent:
            tiles = TileLoop(
                self.block.indices, choice.persistent, self.plan.row, choice.cluster, self.plan.fresh, span
            )
            launch = partial(tiles.around, self.block)
            text = f"persistent blocks in bands of rows, clusters of {choice.cluster}{self._variant()}"
            self.log.append(Decision("pipeline", self.kernel.name, text, {"cluster": choice.cluster}, span=span))
        elif choice.cluster > 1:
            launch = partial(clustered, self.block, self.plan.row, choice.cluster, self.plan.fresh)
            text = f"clusters of {choice.cluster}{self._variant()}"
            self.log.append(Decision("pipeline", self.kernel.name, text, {"cluster": choice.cluster}, span=span))
        starts = {
            role: tuple(t.Declare(s, const(0), span=span) for s in slots) for role, slots in self.slots.items()
        }
        first = (*starts["producer"], *self._tile_loop(tiles, producer, True))
        others = (*starts["consumer"], *self._tile_loop(tiles, consumer, False))
        roles = (
            t.InThreads(binary("eq", self.plan.wg, 0), first, True, span=span),
            t.InThreads(binary("ge", self.plan.wg, 1), others, True, span=span),
        )
        made = launch((*top, t.Parallel((self.plan.wg,), roles, WARPGROUP, span=span)))
        paired = self._paired()
        return made if paired is None else replace(made, clustered=paired.name, tiles=paired.extent)

    def _paired(self) -> Index | None:
        """The index in which the blocks of clusters that the program does not ask for differ; None where there is
        no other choice."""
        settings = self.kernel.pipeline
        index = self.block.indices[self.plan.row]
        asked = settings is not None and settings.cluster is not None
        return None if asked or self.plan.choice.cluster == 1 or value_of(index.extent) is not None else index

    def _variant(self) -> str:
        paired = self._paired()
        return "" if paired is None else f" (another variant where `{paired.source_name}` has one tile)"

    def _tile_loop(self, tiles: TileLoop | None, body: t.Body, copies: bool) -> t.Body:
        """``body`` for each tile of a persistent block."""
        if tiles is None:
            return body
        number = tiles.index()
        if copies and self.plan.choice.reverse:
            body = rewrite(body, lambda op: _reversed(op, tiles.backward(number)) if _issues(op) else op)
            self.log.append(
                Decision(
                    "pipeline",
                    self.kernel.name,
                    "every other pass over the grid adds from the end of the loop: sums are rounded differently",
                    span=self.block.span,
                )
            )
        return (tiles.loop(Substitution(tiles.place(number)).body(body), number),)


def _launch_with(block: t.Parallel, body: t.Body) -> t.Parallel:
    return replace(block, body=body)


def _issues(op: t.Op) -> bool:
    return isinstance(op, t.For) and any(isinstance(x, t.Copy) for x in op.body)


def _reversed(op: t.Op, backward: Expr) -> t.Op:
    """The copies of a loop from 0 on, from its end if ``backward`` is 1."""
    assert isinstance(op, t.For)
    k = op.index
    from_end = Select(binary("eq", backward, 1), sub(sub(op.stop, 1), k), k)

    def turned(x: t.Op) -> t.Op:
        if not isinstance(x, t.Copy):
            return x
        return replace(x, src=x.src.map(Substitution({k.name: from_end}).expression))

    return replace(op, body=tuple(turned(x) for x in op.body))


def _only_leaves(loop: t.Op) -> bool:
    """Whether ``loop`` does nothing but decide when to end."""
    return all(isinstance(op, (t.If, t.Break, t.Continue)) for _, inner in bodies(loop) for op in walk(inner))


def _evaluated(op: t.Op) -> Iterator[Expr]:
    yield from (e for e in expressions(op) if not (isinstance(op, (t.Declare, t.Assign)) and e is op.var))
