"""Roles: how many registers each gets, and which of them one thread can play alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilemma.ir.tile import (
    Assign,
    BulkWait,
    Copy,
    Declare,
    DeclareEvent,
    For,
    If,
    InThreads,
    Kernel,
    Mma,
    Op,
    Parallel,
    TriggerEvent,
    WaitEvent,
    While,
)
from tilemma.ir.types import EventRef
from tilemma.ir.walk import rewrite_blocks, walk
from tilemma.passes.decision import Decision
from tilemma.passes.scope import Dependence
from tilemma.passes.target import Target
from tilemma.passes.threads import Node, Tree
from tilemma.records import record

# setmaxnreg takes multiples of 8 from 24 to 256 (PTX ISA); a thread can use 255.
_STEP, _LEAST, _MOST = 8, 24, 240
# What a warpgroup keeps that moves data together; one that plays a solo role needs the least.
_MOVER = 40
_WARPGROUP = 128


@record(slots=False)
class AssignRoles:
    """Fills `InThreads.solo` and `InThreads.registers`.

    A role that only waits, triggers, counts and starts TMA copies is played by one elected thread.  Where some
    warpgroups multiply and others do not, those give registers up for the others (setmaxnreg).
    """

    arch: str

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        dependence = Dependence(kernel.body)
        return rewrite_blocks(kernel, lambda block: self._block(block, dependence, log))

    def _block(self, block: Parallel, dependence: Dependence, log: list[Decision]) -> Op:
        tree = Tree(block, dependence)
        roles = [n for n in tree.walk() if isinstance(n.op, InThreads) and _outermost(n)]
        for node in roles:
            assert isinstance(node.op, InThreads)
            if node.op.asynchronous and _one_thread_does(node, tree):
                node.op = replace(node.op, solo=True)
                log.append(Decision("roles", _where(node), "one elected thread", span=node.op.span))
        self._registers(block, tree, roles, log)
        return tree.rebuilt()

    def _registers(self, block: Parallel, tree: Tree, roles: list[Node], log: list[Decision]) -> None:
        target = Target.of(self.arch)
        parts = [(n, n.inner[0].mask) for n in roles if isinstance(n.op, InThreads) and n.op.asynchronous]
        whole = all(_warpgroups(mask) for _, mask in parts) and tree.threads % _WARPGROUP == 0
        apart = sum(mask.astype(int) for _, mask in parts) if parts else np.zeros(1)
        if not target.has("setmaxnreg") or not whole or np.any(apart > 1) or block.max_registers is not None:
            return
        heavy = [n for n, _ in parts if _multiplies(n.op)]
        light = [n for n, _ in parts if not _multiplies(n.op)]
        if not heavy or not light:
            return
        most = target.registers_per_sm // (block.min_blocks or 1) // tree.threads
        entry = min(target.registers_per_thread, most) // _STEP * _STEP
        few = {n: _LEAST if _solo(n.op) else _MOVER for n in light}
        # setmaxnreg hands out what the block was launched with, not what the SM has besides.
        left = sum(_size(n) for n in (*heavy, *light)) * entry - sum(_size(n) * k for n, k in few.items())
        many = min(_MOST, left // sum(_size(n) for n in heavy) // _STEP * _STEP)
        if many <= entry or min(few.values()) >= entry:
            return
        for n, k in [*few.items(), *((n, many) for n in heavy)]:
            assert isinstance(n.op, InThreads)
            n.op = replace(n.op, registers=k)
            text = f"{k} registers a thread (setmaxnreg; {entry} at the start)"
            log.append(Decision("roles", _where(n), text, {"registers": k, "entry": entry}, span=n.op.span))


def _outermost(node: Node) -> bool:
    return not any(isinstance(a.op, (InThreads, For, While, If)) for a in list(node.ancestors())[1:])


def _warpgroups(mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> bool:
    """Whether ``mask`` consists of whole warpgroups."""
    if len(mask) % _WARPGROUP:
        return False
    groups = mask.reshape(-1, _WARPGROUP)
    return bool((groups.all(axis=1) | ~groups.any(axis=1)).all())


def _size(node: Node) -> int:
    return int(node.inner[0].mask.sum())


def _solo(op: Op) -> bool:
    return isinstance(op, InThreads) and op.solo


def _multiplies(op: Op) -> bool:
    return any(isinstance(x, Mma) for x in walk((op,)))


def _where(node: Node) -> str:
    from tilemma.ir.tiles import describe

    assert isinstance(node.op, InThreads)
    return f"inthreads ({describe(node.op.cond)})"


def _one_thread_does(node: Node, tree: Tree) -> bool:
    """Whether the role needs one thread of each instance only, and leaves nothing behind for the others."""
    inside = node.subtree()[1:]
    declared = {n.op.var.name for n in inside if isinstance(n.op, Declare)}
    mine = {id(n) for n in inside}
    by_one = {n.op.event.name for n in tree.walk() if isinstance(n.op, DeclareEvent) and n.op.by == "instance"}
    for n in inside:
        match n.op:
            case For() | While() | If() | Declare() | BulkWait():
                pass
            case Assign(var=v) if v.name in declared:
                pass
            case TriggerEvent(event=ref) if ref.event.name in by_one:
                pass
            case Copy(plan=plan) if plan is not None and plan.engine == "tma":
                pass
            case WaitEvent(event=EventRef() as ref) if not _waited_elsewhere(ref.event.name, n, mine, tree):
                pass
            case _:
                return False
    return True


def _waited_elsewhere(name: str, node: Node, mine: set[int], tree: Tree) -> bool:
    """Whether the role's threads count the event's generations outside the role too."""
    return any(
        id(n) not in mine
        and isinstance(n.op, WaitEvent)
        and n.op.event.event.name == name
        and bool((n.parent.mask & node.parent.mask).any())
        for n in tree.walk()
    )
