"""Warp specialisation: the registers of each role (setmaxnreg), and the roles that one elected thread executes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilemma.ir import tile as t
from tilemma.ir.expr import Var
from tilemma.ir.expr import walk as walk_expression
from tilemma.ir.tiles import describe
from tilemma.ir.types import WARPGROUP, EventRef, Space
from tilemma.ir.walk import expressions, rewrite_blocks, walk
from tilemma.passes.decision import Decision
from tilemma.passes.scope import Dependence
from tilemma.passes.threads import Node, Tree, distinct
from tilemma.records import record
from tilemma.targets.ptx.passes.accesses import Accesses
from tilemma.targets.ptx.target import MOST_REGISTERS, MOVER_REGISTERS, Target

# The step of setmaxnreg, and the least that it gives: enough for a role of one thread.
_STEP, _LEAST = 8, 24


@record(slots=False)
class AssignRoles:
    """Fills `InThreads.solo` and `InThreads.registers`.

    One elected thread executes a role that only waits, triggers, counts and starts TMA copies.  If some warpgroups
    multiply and others do not, the others release registers to them (setmaxnreg).
    """

    arch: str

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        dependence = Dependence(kernel.body)
        return rewrite_blocks(kernel, lambda block: self._block(block, dependence, log))

    def _block(self, block: t.Parallel, dependence: Dependence, log: list[Decision]) -> t.Op:
        tree = Tree(block, dependence)
        roles = [n for n in tree.walk() if isinstance(n.op, t.InThreads) and _outermost(n)]
        for node in tree.walk():
            if _executed_by_whole_groups(node) and _one_thread_does(node, tree):
                assert isinstance(node.op, t.InThreads)
                node.op = replace(node.op, solo=True)
                log.append(Decision("roles", _where(node), "one elected thread", span=node.op.span))
        self._registers(block, tree, roles, log)
        return tree.rebuilt()

    def _registers(self, block: t.Parallel, tree: Tree, roles: list[Node], log: list[Decision]) -> None:
        target = Target.of(self.arch)
        parts = [(n, n.inner[0].mask) for n in roles if isinstance(n.op, t.InThreads) and n.op.asynchronous]
        whole = all(_warpgroups(mask) for _, mask in parts) and tree.threads % WARPGROUP.threads == 0
        apart = sum(mask.astype(int) for _, mask in parts) if parts else np.zeros(1)
        if not target.has("setmaxnreg") or not whole or np.any(apart > 1) or block.max_registers is not None:
            return
        heavy = [n for n, _ in parts if _multiplies(n.op)]
        light = [n for n, _ in parts if not _multiplies(n.op)]
        if not heavy or not light:
            return
        most = target.registers_per_sm // (block.min_blocks or 1) // tree.threads
        entry = min(target.registers_per_thread, most) // _STEP * _STEP
        few = {n: _LEAST if _solo(n.op) else MOVER_REGISTERS for n in light}
        # setmaxnreg distributes the registers that the block was launched with, not the remaining ones of the SM.
        left = sum(_size(n) for n in (*heavy, *light)) * entry - sum(_size(n) * k for n, k in few.items())
        many = min(MOST_REGISTERS, left // sum(_size(n) for n in heavy) // _STEP * _STEP)
        if many <= entry or min(few.values()) >= entry:
            return
        for n, k in [*few.items(), *((n, many) for n in heavy)]:
            assert isinstance(n.op, t.InThreads)
            n.op = replace(n.op, registers=k)
            text = f"{k} registers a thread (setmaxnreg; {entry} at the start)"
            log.append(Decision("roles", _where(n), text, {"registers": k, "entry": entry}, span=n.op.span))


def _outermost(node: Node) -> bool:
    return not any(isinstance(a.op, (t.InThreads, t.For, t.While, t.If)) for a in list(node.ancestors())[1:])


def _executed_by_whole_groups(node: Node) -> bool:
    """Whether ``node`` is an asynchronous role, in no other, that whole groups get to together."""
    op, body = node.op, node.parent
    if not isinstance(op, t.InThreads) or not op.asynchronous or body.role is not None:
        return False
    levels = [p.op.level for p in body.chain if isinstance(p.op, t.Parallel)]
    by_threads = any(level is not None and level.kind == "thread" for level in levels)
    return not by_threads and node.inner[0].uniform(len(body.chain))


def _warpgroups(mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> bool:
    """Whether ``mask`` consists of whole warpgroups."""
    if len(mask) % WARPGROUP.threads:
        return False
    groups = mask.reshape(-1, WARPGROUP.threads)
    return bool((groups.all(axis=1) | ~groups.any(axis=1)).all())


def _size(node: Node) -> int:
    return int(node.inner[0].mask.sum())


def _solo(op: t.Op) -> bool:
    return isinstance(op, t.InThreads) and op.solo


def _multiplies(op: t.Op) -> bool:
    return any(isinstance(x, t.Mma) for x in walk((op,)))


def _where(node: Node) -> str:
    assert isinstance(node.op, t.InThreads)
    return f"inthreads ({describe(node.op.cond)})"


def _one_thread_does(node: Node, tree: Tree) -> bool:
    """Whether the role needs one thread of each instance only, and no other thread reads its variables."""
    inside = node.subtree()[1:]
    declared = {n.op.var.name for n in inside if isinstance(n.op, t.Declare)}
    mine = {id(n) for n in inside}
    again = not _outermost(node)
    by_one = {n.op.event.name for n in tree.walk() if isinstance(n.op, t.DeclareEvent) and n.op.by == "instance"}
    for n in inside:
        match n.op:
            case t.For() | t.While() | t.Declare():
                pass
            case t.If() | t.InThreads() if _same_for_all(n, node):
                pass
            case t.BulkWait() if not again:
                pass
            case t.Assign(var=v) if v.name in declared or not _read_elsewhere(v, node, mine, tree):
                pass
            case t.Copy(plan=plan, dst=dst) if again and plan is not None and dst.base.space is not Space.SHARED:
                # The wait for a store by TMA follows the loop, where the group's first thread executes it.
                return False
            case t.TriggerEvent(event=ref) if ref.event.name in by_one:
                pass
            case t.Copy(plan=plan) if plan is not None and plan.engine == "tma":
                pass
            case t.WaitEvent(event=EventRef() as ref) if not _waited_elsewhere(ref.event.name, n, mine, tree):
                pass
            case _:
                return False
    return not _memory_used_elsewhere(node, mine, tree)


def _same_for_all(branch: Node, role: Node) -> bool:
    """Whether one group executes the role, or all groups of the role take each branch together, in lockstep."""
    around = role.inner[0]
    part = around.partition(len(around.chain))
    one = len(distinct(part[part >= 0])[0]) == 1
    return one or all(b.varying == around.varying and np.array_equal(b.mask, around.mask) for b in branch.inner)


def _memory_used_elsewhere(node: Node, mine: set[int], tree: Tree) -> bool:
    """Whether the role's threads use shared memory outside the role too: they may count on its waits."""
    accesses = Accesses(tree)
    return any(
        a.view is not None and a.view.base.space is Space.SHARED
        for n in tree.walk()
        if id(n) not in mine and bool((n.parent.mask & node.inner[0].mask).any())
        for a in accesses.of(n)
    )


def _read_elsewhere(variable: Var, node: Node, mine: set[int], tree: Tree) -> bool:
    """Whether the role's threads read ``variable``, which each of them has for itself, outside the role too."""
    return any(
        x == variable
        for n in tree.walk()
        if id(n) not in mine and bool((n.parent.mask & node.inner[0].mask).any())
        for e in expressions(n.op)
        if not (isinstance(n.op, (t.Assign, t.Declare)) and e is n.op.var)
        for x in walk_expression(e)
    )


def _waited_elsewhere(name: str, node: Node, mine: set[int], tree: Tree) -> bool:
    """Whether the role's threads count the event's generations outside the role too."""
    return any(
        id(n) not in mine
        and isinstance(n.op, t.WaitEvent)
        and n.op.event.event.name == name
        and bool((n.parent.mask & node.parent.mask).any())
        for n in tree.walk()
    )
