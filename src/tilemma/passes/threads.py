"""The operations of one block as a tree that can be edited, and which threads of the block reach each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilemma.ir.expr import Binary, Const, Expr, Index, Select, Unary, value_of
from tilemma.ir.tile import Barrier, If, InThreads, Op, Parallel
from tilemma.ir.walk import bodies
from tilemma.passes.scope import WARP, Dependence, block_threads, control, count

Ints = NDArray[np.int64]
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

    ``index`` gives each inner index its value in every thread, ``mask`` the threads that can get here, ``chain``
    the parallels below the block, outermost first, with the first thread of each thread's instance in
    ``starts``.  ``varying`` lists, for the control on the way here that is not in the mask, the parallels
    whose instances may differ in it (as positions in ``chain``; -1: even threads of one instance may).
    ``role``: the asynchronous role that it belongs to.
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
        """Whether all threads of one instance at ``depth`` that can get here always get here together."""
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
        """The asynchronous role that it is or belongs to: roles order their accesses by events alone."""
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
        """The ancestor of this node (or itself) that stands directly in ``body``."""
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
            mask, varying = self._admit(op, name, around)
        else:
            varying = (*varying, *self._varies(self.dependence.closure(control(op)), around))
        return Block(node, name, chain, starts, index, mask, varying, node.role)

    def _admit(self, op: If | InThreads, name: str, around: Block) -> tuple[Bools, tuple[int, ...]]:
        on = self._varies(self.dependence.of(op.cond), around)
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
        return (*found, -1) if Dependence.ATOMIC in names else tuple(found)

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
        out.append(replace(node.op, **changes) if changes else node.op)  # type: ignore[arg-type]
    return tuple(out)


_NUMPY: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide,
    "cdiv": lambda a, b: -(-a // b), "div": lambda a, b: np.trunc(a / b).astype(np.int64), "mod": np.fmod,
    "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": np.left_shift, "shr": np.right_shift, "eq": np.equal, "ne": np.not_equal, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "land": np.logical_and, "lor": np.logical_or,
}  # fmt: skip


def evaluate(e: Expr, index: dict[str, Ints]) -> Any | None:
    """``e`` in every thread at once; None where it needs more than the indices of ``index``."""
    match e:
        case Const(value=v) if not e.type.is_float:
            return int(v)
        case Index(name=n):
            return index.get(n)
        case Unary(op=op, a=a):
            x = evaluate(a, index)
            return None if x is None else {"neg": np.negative, "not": np.invert, "lnot": np.logical_not}[op](x)
        case Select(cond=c, a=a, b=b):
            cond, x, y = (evaluate(part, index) for part in (c, a, b))
            return None if cond is None or x is None or y is None else np.where(cond, x, y)
        case Binary(op=op, a=a, b=b):
            x, y = evaluate(a, index), evaluate(b, index)
            if x is None or y is None or (op in ("floordiv", "cdiv", "div", "mod") and np.any(np.equal(y, 0))):
                return None
            return _NUMPY[op](x, y)
    return None
