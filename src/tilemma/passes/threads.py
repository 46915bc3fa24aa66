"""Divergence analysis: an editable tree of a block's operations, with the set of threads that reach each of
them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tilemma.forking import cached_property
from tilemma.ir.expr import value_of
from tilemma.ir.tile import Barrier, If, InThreads, Op, Parallel
from tilemma.ir.types import WARP
from tilemma.ir.walk import bodies, with_fields
from tilemma.passes.index_values import Ints as Ints
from tilemma.passes.index_values import evaluate as evaluate
from tilemma.passes.rotations import Rotations
from tilemma.passes.scope import Dependence, block_threads, control, count

Bools = NDArray[np.bool_]


def distinct(threads: Ints) -> tuple[Ints, Ints]:
    """The numbers of threads in ``threads``, each once and in order, and how often each occurs.

    As numpy.unique finds them, which imports numpy.ma for it.
    """
    counts = np.bincount(threads)
    found = np.flatnonzero(counts)
    return found, counts[found]


@dataclass(eq=False)
class Block:
    """A body of the tree.  ``owner`` None: the body of the block itself.

    ``index``: the value of each inner index in every thread; ``mask``: the threads that can reach the body;
    ``chain``: the enclosing parallels inside the block, outermost first; ``starts``: for each of them, the first
    thread of each thread's instance.  ``varying``: the parallels whose instances may diverge at enclosing control
    flow that the mask does not describe (as positions in ``chain``; -1: threads of one instance may diverge).
    ``role``: the asynchronous role that contains the body.
    """

    owner: Node | None
    name: str
    chain: tuple[Node, ...]
    starts: tuple[Ints, ...]
    index: dict[str, Ints]
    mask: Bools
    varying: tuple[int, ...]
    role: Node | None = None
    nodes: list[Node] = field(default_factory=list)

    def path(self) -> Iterator[Block]:
        """This body and those around it, innermost first."""
        b: Block | None = self
        while b is not None:
            yield b
            b = b.owner.parent if b.owner is not None else None

    def partition(self, depth: int) -> Ints:
        """For each thread the first thread of its instance of ``chain[depth - 1]``; -1 for those not here.

        Depth 0 is the block.
        """
        start = self.starts[depth - 1] if depth else np.zeros_like(self.mask, dtype=np.int64)
        return np.where(self.mask, start, -1)

    def warps(self) -> Ints:
        """For each thread the first thread of its warp; -1 for those not here."""
        number = np.arange(len(self.mask), dtype=np.int64) // WARP * WARP
        return np.where(self.mask, number, -1)

    def uniform(self, depth: int) -> bool:
        """Whether all threads of an instance at ``depth`` that can reach the body always reach it together."""
        return all(0 <= v < depth for v in self.varying)


@dataclass(eq=False)
class Node:
    """An operation in the tree; its nested bodies are ``inner``, those of ``op`` itself are out of date."""

    op: Op
    parent: Block
    inner: list[Block] = field(default_factory=list)
    inserted: bool = False
    part: Ints | None = None

    @property
    def role(self) -> Node | None:
        """The asynchronous role that it is or belongs to: only events order the accesses of different roles."""
        here = self if isinstance(self.op, InThreads) and self.op.asynchronous else None
        return self.parent.role or here

    def ancestors(self) -> Iterator[Node]:
        """The node itself and those around it, innermost first."""
        n: Node | None = self
        while n is not None:
            yield n
            n = n.parent.owner

    def subtree(self) -> list[Node]:
        """The node itself and all inside it, in order."""
        found = [self]
        for inner in self.inner:
            for node in inner.nodes:
                if node.inner:
                    found += node.subtree()
                else:
                    found.append(node)
        return found

    def at(self, body: Block) -> Node:
        """The ancestor of this node (or itself) that is directly in ``body``."""
        return next(n for n in self.ancestors() if n.parent is body)


class Tree:
    """The tree of one block."""

    def __init__(self, block: Parallel, dependence: Dependence) -> None:
        self.threads = block_threads(block)
        self.dependence = dependence
        self.block = block
        mask = np.ones(self.threads, dtype=bool)
        self.root = Block(None, "body", (), (), {}, mask, ())
        self._fill(self.root, block.body)
        for node in self.walk():
            if isinstance(node.op, Barrier) and node.op.threads:
                node.part = _partition(node.parent, node.op)

    @cached_property
    def rotations(self) -> Rotations:
        """The swaps of the block."""
        return Rotations(self.block.body)

    def _fill(self, into: Block, body: tuple[Op, ...]) -> None:
        for op in body:
            node = Node(op, into)
            into.nodes.append(node)
            for name, inner in bodies(op):
                child = self._enter(node, name)
                node.inner.append(child)
                self._fill(child, inner)

    def _enter(self, node: Node, name: str) -> Block:
        around, op = node.parent, node.op
        chain, starts, index, mask, varying = (
            around.chain, around.starts, around.index, around.mask, around.varying,
        )  # fmt: skip
        if isinstance(op, Parallel):
            assert op.level is not None
            outer = starts[-1] if starts else np.zeros(self.threads, dtype=np.int64)
            number = (np.arange(self.threads) - outer) // op.level.threads
            mask = mask & (number < (count(op) or 0))
            index = {**index, **_unravel(op, number)}
            chain, starts = (*chain, node), (*starts, outer + number * op.level.threads)
        elif isinstance(op, (If, InThreads)):
            mask, varying = self._admit(node, op, name)
        else:
            varying = (*varying, *self._varies(self.dependence.closure(control(op)), around))
        return Block(node, name, chain, starts, index, mask, varying, node.role)

    def diverging(self, branch: Node) -> tuple[int, ...]:
        """The parallels whose instances may decide ``branch`` differently, as positions in the chain.

        -1: the threads of one instance may.
        """
        assert isinstance(branch.op, (If, InThreads))
        return self._varies(self.dependence.of(branch.op.cond), branch.parent)

    def units(self, branch: Node) -> Ints:
        """For each thread the first thread of those that decide the condition of ``branch`` with it."""
        on = self.diverging(branch)
        return np.arange(self.threads) if -1 in on else branch.parent.starts[max(on)]

    def _admit(self, node: Node, op: If | InThreads, name: str) -> tuple[Bools, tuple[int, ...]]:
        around = node.parent
        on = self.diverging(node)
        if not on:
            return around.mask, around.varying
        value = evaluate(op.cond, around.index)
        if value is None:
            return around.mask, (*around.varying, *on)
        admitted = np.broadcast_to(np.asarray(value).astype(bool), around.mask.shape)
        return around.mask & (~admitted if name == "otherwise" else admitted), around.varying

    def _varies(self, names: set[str], around: Block) -> tuple[int, ...]:
        """Positions in the chain of the parallels whose indices are among ``names``."""
        found = [
            d
            for d, p in enumerate(around.chain)
            if isinstance(p.op, Parallel) and names & {i.name for i in p.op.indices}
        ]
        return (*found, -1) if Dependence.MEMORY in names else tuple(found)

    def walk(self) -> list[Node]:
        """All nodes, in program order."""
        return [node for first in self.root.nodes for node in first.subtree()]

    def rebuilt(self) -> Parallel:
        """The block with the tree as its body."""
        return replace(self.block, body=_rebuild(self.root))


def _partition(body: Block, barrier: Barrier) -> Ints:
    """Which threads a decided barrier joins: the innermost instances here that have as many."""
    for depth in range(len(body.chain), -1, -1):
        part = body.partition(depth)
        if (distinct(part[part >= 0])[1] == barrier.threads).all():
            return part
    if barrier.threads == WARP:
        return body.warps()
    raise AssertionError(f"{barrier} is for other threads than those that get to it")


def _unravel(p: Parallel, number: Ints) -> dict[str, Ints]:
    values: dict[str, Ints] = {}
    rest = number
    for i in reversed(p.indices):
        extent = value_of(i.extent) or 1
        values[i.name] = rest % extent
        rest = rest // extent
    return values


def _rebuild(body: Block) -> tuple[Op, ...]:
    out = []
    for node in body.nodes:
        changes = {b.name: _rebuild(b) for b in node.inner}
        out.append(with_fields(node.op, changes))
    return tuple(out)
