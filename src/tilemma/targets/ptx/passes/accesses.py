"""Dependence analysis: the memory and register accesses of each operation, and the threads that make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from math import prod

import numpy as np

from tilemma.atoms import catalogue
from tilemma.forking import cached_property
from tilemma.ir import tile as t
from tilemma.ir.effects import Effect, element_reads, touches, variables_set, written_views
from tilemma.ir.expr import Element, value_of
from tilemma.ir.types import WARP, Buffer, Level, Space, View
from tilemma.passes.scope import Dependence
from tilemma.passes.threads import Bools, Ints, Node, Tree, distinct
from tilemma.targets.ptx.passes.aliasing import Access, Agent, loop_name, overlap, same_mapping


def is_wgmma(op: t.Op) -> bool:
    """Whether ``op`` is a multiply by an asynchronous instruction."""
    return isinstance(op, t.Mma) and op.atom is not None and catalogue[op.atom].asynchronous


def constant_variables(
    tree: Tree, nodes: list[Node]
) -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]]:
    """The variables that keep the value of their declaration, with the loops in which each is declared: those with
    one value for all threads of the block, and those with one value for each instance of their level."""
    setters: dict[str, list[Node]] = {}
    written: set[str] = set()
    inner: set[str] = {Dependence.MEMORY}
    for n in nodes:
        for v in variables_set(n.op):
            setters.setdefault(v.name, []).append(n)
        written.update(v.base.name for v in written_views(n.op))
        if isinstance(n.op, t.Parallel):
            inner.update(i.name for i in n.op.indices)
    uniform, private = {}, {}
    for name, (first, *others) in setters.items():
        op = first.op
        if others or not isinstance(op, t.Declare):
            continue
        same = inner.isdisjoint(tree.dependence.closure({name}))
        same = same and all(isinstance(x, Element) and _constant(x.view, written) for x in element_reads(op))
        loops = frozenset(loop_name(n) for n in first.ancestors() if isinstance(n.op, (t.For, t.While)))
        if same:
            uniform[name] = loops
        elif not any(isinstance(n.op, t.Apply) for n in first.ancestors()):
            private[name] = loops
    return uniform, private


def _constant(view: View, written: set[str]) -> bool:
    """Whether ``view`` is global memory that the block does not write."""
    return view.base.space is Space.GLOBAL and view.base.name not in written


class Accesses:
    """The accesses of every node of a tree."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        nodes = list(tree.walk())
        self._loads: dict[str, list[t.Load]] = {}
        self._plans: dict[str, t.DeclareFragment] = {}
        for n in nodes:
            if isinstance(n.op, t.Load):
                self._loads.setdefault(n.op.fragment.name, []).append(n.op)
            elif isinstance(n.op, t.DeclareFragment):
                self._plans[n.op.name] = n.op
        # The instances that reach a body, by the body and their level.
        self._reaching: dict[tuple[int, Level | None], tuple[Ints, int]] = {}
        self._arrive = {n.op.event.name: n.op.by for n in nodes if isinstance(n.op, t.DeclareEvent)}
        steady, own = constant_variables(tree, nodes)
        found = {id(n): list(self._of(n)) for n in nodes}
        for n in nodes:
            if isinstance(n.op, t.TriggerEvent) and not n.op.ordered:
                found[id(n)] = list(self._releases(n, n.op, nodes, found))
        used: dict[str, list[Access]] = {}
        for accesses in found.values():
            for a in accesses:
                used.setdefault(a.resource, []).append(a)
        for a in (a for accesses in found.values() for a in accesses):
            a.steady, a.own = steady, own
        quiet = {name for name, accesses in used.items() if not any(a.write for a in accesses)}
        self._found = {key: [a for a in accesses if a.resource not in quiet] for key, accesses in found.items()}
        self._overlaps: dict[tuple[int, int, frozenset[str], frozenset[str]], Bools] = {}
        self._mappings: dict[tuple[int, int, frozenset[str]], bool] = {}

    def of(self, node: Node) -> list[Access]:
        return self._found.get(id(node), [])

    def only(self, keep: Callable[[Access], bool]) -> Accesses:
        """The accesses that satisfy ``keep``."""
        kept = copy(self)
        kept._found = {key: [a for a in accesses if keep(a)] for key, accesses in self._found.items()}
        return kept

    def overlap(self, x: Access, y: Access, carried: frozenset[str], advanced: frozenset[str]) -> Bools:
        """`aliasing.overlap` of two accesses, memoised for all walks."""
        key = id(x), id(y), carried & (x.moving | y.moving), advanced
        if key not in self._overlaps:
            self._overlaps[key] = overlap(x, y, key[2] | x.visited, advanced)
        return self._overlaps[key]

    def same_mapping(self, x: Access, y: Access, carried: frozenset[str]) -> bool:
        """`aliasing.same_mapping` of two accesses, memoised for all walks."""
        key = id(x), id(y), carried & (x.moving | y.moving)
        if key not in self._mappings:
            self._mappings[key] = same_mapping(x, y, key[2])
        return self._mappings[key]

    def _of(self, node: Node) -> Iterator[Access]:
        op = node.op
        if isinstance(op, t.Copy):
            yield from self._copy(node, op)
        elif isinstance(op, t.Load):
            if op.plan is None or op.plan.method != "descriptor":
                yield from self._synchronous(node)
        elif isinstance(op, t.Mma):
            if op.atom is not None and catalogue[op.atom].asynchronous:
                yield from self._wgmma(node, op)
        elif isinstance(op, t.Alloc):
            if op.init is not None:
                yield from self._initialisation(node, op.buffer)
        else:
            yield from self._synchronous(node)
        for x in element_reads(op):
            if isinstance(x, Element):
                yield from self._memory(node, x.view, False)
            else:
                yield self._registers(node, t.FragmentRef(x.fragment, x.index), False)

    def _synchronous(self, node: Node) -> Iterator[Access]:
        """The accesses of a synchronous operation: they complete before the next operation begins."""
        for x in touches(node.op):
            write = Effect.WRITE in x.effect
            if isinstance(x.what, t.FragmentRef):
                yield self._registers(node, x.what, write)
            elif isinstance(x.what, View):
                yield from self._memory(node, x.what, write, atomic=write and Effect.READ in x.effect)

    def _copy(self, node: Node, op: t.Copy) -> Iterator[Access]:
        assert op.plan is not None, op
        level, threads = op.plan.level, op.plan.threads
        if op.plan.engine == "tma":
            yield from self._by_tma(node, op, level)
            return
        for view, write in ((op.src, False), (op.dst, True)):
            if view.base.space is Space.LOCAL:
                continue
            # cp.async reads its source, and writes, at any time until a wait.
            agent: Agent = "cp.async" if op.plan.engine == "cp.async" else "thread"
            start = self._instances(node, level)[0]
            future = op.future if agent == "cp.async" else None
            yield Access(node, view.base.name, view, write, agent, start, threads, future=future)

    def _by_tma(self, node: Node, op: t.Copy, level: Level) -> Iterator[Access]:
        start = self._instances(node, level)[0]
        if op.dst.base.space is Space.SHARED:
            event = op.event.event.name if op.event is not None else None
            yield Access(node, op.src.base.name, op.src, False, "tma", start, 1, event=event)
            yield Access(node, op.dst.base.name, op.dst, True, "tma", start, 1, event=event)
        else:
            yield Access(node, op.src.base.name, op.src, False, "bulk", start, 1)
            yield Access(node, op.dst.base.name, op.dst, True, "bulk", start, 1)

    def _releases(
        self, node: Node, op: t.TriggerEvent, nodes: list[Node], found: dict[int, list[Access]]
    ) -> Iterator[Access]:
        """The shared buffers that a trigger releases: those that the waiting roles access."""
        name = op.event.event.name
        waits = [n for n in nodes if isinstance(n.op, t.WaitEvent) and n.op.event.event.name == name]
        # Threads that both trigger and wait are ordered by program order and by barriers.
        others = [n for n in waits if n.role is not node.role or (n.parent.mask & ~node.parent.mask).any()]
        waiting = {n.role for n in others}
        reached: dict[str, tuple[bool, bool]] = {}
        for n in nodes:
            if n.role not in waiting:
                continue
            for a in found[id(n)]:
                if not a.private and not a.release and a.view is not None and a.view.base.space is Space.SHARED:
                    write, proxied = reached.get(a.resource, (False, False))
                    reached[a.resource] = (write or a.write, proxied or a.proxy == "async")
        mine = np.flatnonzero(node.parent.mask).astype(np.int64)
        by = self._arrive.get(name, "instance")
        if by == "thread":
            start, kind = mine, "each"
        elif by == "warp":
            start, kind = distinct(mine // WARP * WARP)[0], "warp"
        else:
            start, kind = self._scope(node)[0], "elected"
        for resource, (write, proxied) in reached.items():
            proxy = "async" if proxied else "generic"
            yield Access(
                node, resource, None, write, "thread", start, 1, release=kind, waiters_proxy=proxy  # type: ignore[arg-type]
            )  # fmt: skip

    def _wgmma(self, node: Node, op: t.Mma) -> Iterator[Access]:
        start, threads = self._collective(node)
        for x in (op.a, op.b, *((op.meta,) if op.meta is not None else ())):
            if isinstance(x, View):
                yield Access(node, x.base.name, x, False, "wgmma", start, threads)
                continue
            plan = self._plans[x.name].plan
            if plan is not None and plan.residence == "shared":
                for load in self._loads[x.name]:
                    yield Access(node, load.src.base.name, load.src, False, "wgmma", start, threads)
            else:
                yield Access(node, f"%{x.name}", None, False, "wgmma", start, threads, subscript=x.index)
        yield Access(node, f"%{op.acc.name}", None, True, "wgmma", start, threads, subscript=op.acc.index)

    def _memory(self, node: Node, view: View, write: bool, atomic: bool = False) -> Iterator[Access]:
        if view.base.space is Space.LOCAL:
            return
        if isinstance(node.op, (t.Load, t.Store)):
            start, threads = self._collective(node)
        else:
            start, threads = self._scope(node)
        yield Access(node, view.base.name, view, write, "thread", start, threads, atomic)

    def _initialisation(self, node: Node, buffer: Buffer) -> Iterator[Access]:
        """Thread t initialises the elements t, t + threads, .. (lower/storage.py)."""
        count = prod(value_of(n) or 0 for n in buffer.shape)
        if node.parent.chain or buffer.space is Space.LOCAL or buffer.copies or count > self.tree.threads:
            yield from self._memory(node, buffer.whole(), True)
            return
        yield Access(node, buffer.name, buffer.whole(), True, "thread", np.arange(count), 1, each=True)

    def _registers(self, node: Node, f: t.FragmentRef, write: bool) -> Access:
        start, threads = self._collective(node)
        return Access(node, f"%{f.name}", None, write, "thread", start, threads, subscript=f.index)

    def _scope(self, node: Node) -> tuple[Ints, int]:
        """The instances of the innermost level here, and the threads of one."""
        chain = node.parent.chain
        op = chain[-1].op if chain else None
        assert op is None or isinstance(op, t.Parallel)
        return self._instances(node, None if op is None else op.level)

    def _collective(self, node: Node) -> tuple[Ints, int]:
        """The instances of the innermost group here; outside every group those of each warp."""
        for p in reversed(node.parent.chain):
            assert isinstance(p.op, t.Parallel) and p.op.level is not None
            if p.op.level.kind == "group":
                return self._instances(node, p.op.level)
        return self._warps

    @cached_property
    def _warps(self) -> tuple[Ints, int]:
        return np.arange(0, self.tree.threads, WARP, dtype=np.int64), WARP

    def _instances(self, node: Node, level: Level | None) -> tuple[Ints, int]:
        """The first threads of the innermost instances of ``level`` that reach ``node``; the threads of one."""
        key = id(node.parent), level
        if key not in self._reaching:
            level = None if level is not None and level.kind == "block" else level
            threads = self.tree.threads if level is None else level.threads
            self._reaching[key] = self._starts(node, level), threads
        return self._reaching[key]

    def _starts(self, node: Node, level: Level | None) -> Ints:
        body = node.parent
        for depth in range(len(body.chain), 0, -1):
            op = body.chain[depth - 1].op
            if isinstance(op, t.Parallel) and op.level == level:
                part = body.partition(depth)
                return distinct(part[part >= 0])[0]
        return np.zeros(1, dtype=np.int64)
