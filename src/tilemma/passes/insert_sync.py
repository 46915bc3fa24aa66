"""Synchronisation: the waits, fences and barriers that make statements take effect in the program's order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilemma.atoms import catalogue
from tilemma.errors import CompileError, Note
from tilemma.ir.tile import (
    Alloc,
    Assign,
    Barrier,
    Body,
    BulkWait,
    Copy,
    CopyCommit,
    CopyWait,
    Declare,
    DeclareFragment,
    For,
    If,
    InThreads,
    Kernel,
    Load,
    Mma,
    MmaCommit,
    MmaFence,
    MmaWait,
    Op,
    Parallel,
    ProxyFence,
    Sync,
    WaitFuture,
    While,
)
from tilemma.ir.types import Space
from tilemma.ir.walk import rewrite_blocks, walk, with_bodies
from tilemma.passes.accesses import Accesses
from tilemma.passes.check_futures import NotWaitedFor, never_waited_for
from tilemma.passes.copy_once import once
from tilemma.passes.decision import Decision
from tilemma.passes.hazards import Hazard, Walk, joined
from tilemma.passes.infer_levels import described
from tilemma.passes.scope import Dependence
from tilemma.passes.target import Target
from tilemma.passes.threads import Block, Ints, Node, Tree, distinct
from tilemma.records import record

_WARP = 32


class BarrierNotUniform(CompileError):
    code = "barrier-not-uniform"
    found = "`{name}` is shared here ({kind}), but not all threads that share it run this together"
    expected = "a barrier between the two accesses that all the threads concerned reach equally often"
    fix = "move one of the two out of the `if`, `inthreads` or loop that only some of the threads run"


class BarrierPartialWarp(CompileError):
    code = "barrier-partial-warp"
    found = "{threads} threads share `{name}` here ({kind}) and have to wait for each other"
    expected = "whole warps at a barrier: a multiple of 32 threads (PTX ISA, bar)"
    fix = "count {whole} threads and let those beyond {threads} skip each statement with its own `if`"


class TooManyBarriers(CompileError):
    code = "too-many-barriers"
    found = "the groups of a block wait for each other in {have} different sets of threads"
    expected = "at most {limit}: a block has {limit} named barriers besides that of the whole block"
    fix = "let fewer groups share data separately"


@record(slots=False)
class InsertSync:
    """Inserts CopyCommit, CopyWait, ProxyFence, Barrier, MmaFence, MmaCommit and MmaWait, as few as possible.

    Works on one block at a time: finds the first access that may meet an earlier one too early, inserts what
    orders them as late as possible before it and as far out as it goes (what one turn of a loop owes the next
    comes at the end of the turn), and starts again; then takes out what turned out to be superfluous.
    """

    arch: str

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises BarrierNotUniform, TooManyBarriers or NotBuilt."""
        dependence = Dependence(kernel.body)
        return rewrite_blocks(kernel, lambda block: _synchronised(block, dependence, self.arch, log))


def _synchronised(block: Parallel, dependence: Dependence, arch: str, log: list[Decision]) -> Parallel:
    block = once(block, dependence)
    if not any(isinstance(op, MmaFence) for op in walk(block.body)):
        block = replace(block, body=batched(block.body))
    tree = Tree(block, dependence)
    _written_barriers(tree)
    accesses = Accesses(tree)
    _wait_for_futures(tree, accesses)
    walker = Walk(tree, accesses)
    inserted = _resolve(tree, walker)
    kept = _merged(walker, _pruned(walker, inserted)) + _last_stores(tree)
    kept += _last_waits(tree, walker)
    _number(tree, Target.of(arch))
    counts: dict[str, int] = {}
    for n in kept:
        counts[type(n.op).__name__] = counts.get(type(n.op).__name__, 0) + 1
    text = ", ".join(f"{v} {k}" for k, v in sorted(counts.items())) or "nothing to wait for"
    log.append(Decision("sync", described(block), text, counts, span=block.span))
    return tree.rebuilt()


# ---- wgmma batches ---------------------------------------------------------------------------------------


def batched(body: Body) -> Body:
    """``body`` with a fence before and a commit after each run of statements that only issue wgmma.

    They stand inside the parallel that multiplies and outside the loop that does: a loop around such a
    parallel changes places with it.
    """
    if not any(_is_wgmma(op) for op in walk(body)):
        return body
    out: list[Op] = []
    run: list[Op] = []

    def close() -> None:
        issuing = [i for i, op in enumerate(run) if _issues(op)]
        if len(issuing) == 1 and isinstance(run[issuing[0]], Parallel):
            p = run[issuing[0]]
            assert isinstance(p, Parallel)
            run[issuing[0]] = replace(p, body=batched(p.body))
        elif issuing:
            span = run[issuing[0]].span
            run.insert(issuing[-1] + 1, MmaCommit(span=span))
            run.insert(issuing[0], MmaFence(span=span))
        out.extend(run)
        run.clear()

    for op in body:
        if _quiet(op):
            run.append(_exchanged(op))
            continue
        close()
        out.append(with_bodies(op, batched))
    close()
    return tuple(out)


def _exchanged(op: Op) -> Op:
    """A loop of multiplies whose body is one parallel, as a parallel of loops."""
    if isinstance(op, For) and len(op.body) == 1 and isinstance(op.body[0], Parallel):
        p = op.body[0]
        return replace(p, body=(_exchanged(replace(op, body=p.body)),))
    return op


def _is_wgmma(op: Op) -> bool:
    return isinstance(op, Mma) and op.atom is not None and catalogue[op.atom].kind == "wgmma"


def _issues(op: Op) -> bool:
    return any(_is_wgmma(x) for x in walk((op,)))


def _quiet(op: Op) -> bool:
    """Whether ``op`` may stand between two multiplies of one batch: it touches no memory and no registers of
    theirs, and all threads of a warpgroup run it."""
    match op:
        case Mma():
            return _is_wgmma(op)
        case Load(plan=plan):
            return plan is not None and plan.method == "descriptor"
        case DeclareFragment() | Declare() | Assign():
            return True
        case For(body=body):
            return _issues(op) and all(_quiet(x) for x in body)
        case Parallel(body=body, level=level):
            whole = level is not None and level.kind == "group" and level.warps % 4 == 0
            return whole and _issues(op) and all(_quiet(x) for x in body)
    return False


# ---- what the program wrote ------------------------------------------------------------------------------


def _written_barriers(tree: Tree) -> None:
    for node in tree.walk():
        if isinstance(node.op, Sync) and node.op.what == "barrier":
            level, body = node.op.level, node.parent
            depth = 0
            if level is not None and level.kind in ("group", "thread"):
                depth = len(body.chain) if level.kind == "group" else 0
                groups = [
                    d + 1
                    for d, p in enumerate(body.chain)
                    if isinstance(p.op, Parallel) and p.op.level is not None and p.op.level.kind == "group"
                ]
                depth = groups[-1] if level.kind == "group" and groups else 0
            if not body.uniform(depth):
                raise BarrierNotUniform(node.op.span, name="sync.barrier", kind="written barrier")
            node.op, node.part = Barrier(0, 0, span=node.op.span), body.partition(depth)


def _wait_for_futures(tree: Tree, accesses: Accesses) -> None:
    """Asynchronous copies that are always waited for together make one group, any other one of its own; a wait
    leaves open those that are certainly newer."""
    waits = [node.op.futures for node in tree.walk() if isinstance(node.op, WaitFuture)]
    for node in tree.walk():
        here, future = node.parent.nodes, _group_of_copies(node)
        if future is None:
            continue
        after = here.index(node) + 1
        following = next((_group_of_copies(n) for n in here[after:] if not isinstance(n.op, Alloc)), None)
        if following is None or any((future in names) != (following in names) for names in waits):
            here.insert(after, Node(CopyCommit(span=node.op.span), node.parent))
    if not waits and not any(a.future for n in tree.walk() for a in accesses.of(n)):
        return
    walker = Walk(tree, accesses.only(lambda a: a.future is not None), frozenset())
    for _ in walker.hazards():
        pass
    for node in tree.walk():
        for a in accesses.of(node):
            if a.future is not None and id(a) not in walker.awaited:
                assert isinstance(node.op, Copy)
                raise never_waited_for(node.op)
        if isinstance(node.op, WaitFuture):
            if id(node) in walker.waits:
                node.op = CopyWait(walker.waits[id(node)], span=node.op.span)
            else:
                node.parent.nodes.remove(node)


def _group_of_copies(node: Node) -> str | None:
    """The future of a copy that runs as groups of cp.async."""
    op = node.op
    if isinstance(op, Copy) and op.plan is not None and op.plan.engine == "cp.async":
        return op.future
    return None


# ---- placing ---------------------------------------------------------------------------------------------


def _resolve(tree: Tree, walker: Walk) -> list[Node]:
    inserted: list[Node] = []
    limit = 4 * len(tree.walk()) + 64
    for _ in range(limit):
        hazard = next(walker.hazards(), None)
        if hazard is None:
            return inserted
        inserted += _place(hazard)
    raise AssertionError(f"synchronisation does not settle: {hazard}")


def _place(hazard: Hazard) -> list[Node]:
    """Insert what orders ``hazard``; returns the new nodes."""
    # At an earlier barrier fewer stores by TMA have been started since: the wait would be for more of them.
    if hazard.barrier and not (hazard.wait and hazard.pending.access.agent == "bulk"):
        for barrier in reversed(hazard.pending.missed):
            assert barrier.part is not None
            met = joined(barrier.part, hazard.pending.access, hazard.later)
            if bool((met | ~hazard.pairs).all()) and not _carried_past(hazard, barrier):
                return _insert(barrier.parent, barrier.parent.nodes.index(barrier), hazard, None)
    body, position, inward = _anchor(hazard)
    if not hazard.barrier:
        body, position, _ = _narrowed(hazard, body, position, inward, None)
        return _insert(body, position, hazard, None)
    if hazard.later.release == "warp":
        return _insert(body, position, hazard, body.warps())
    depth = _depth(hazard, body)
    if depth is None:
        raise _no_barrier(hazard, body)
    body, position, part = _narrowed(hazard, body, position, inward, body.partition(depth))
    if position and isinstance(body.nodes[position - 1].op, MmaFence):
        position -= 1
    return _insert(body, position, hazard, part)


def _carried_past(hazard: Hazard, barrier: Node) -> bool:
    """Whether a wait in front of ``barrier`` could be skipped: it stands in a branch that may not be taken."""
    x, y = hazard.pending.access.node, hazard.later.node
    around = {id(n) for n in (*x.ancestors(), *y.ancestors())}
    return any(id(n) not in around and isinstance(n.op, (If, InThreads)) for n in barrier.ancestors())


def _anchor(hazard: Hazard) -> tuple[Block, int, Node]:
    """(body, position, the operation next to it that leads to one of the two accesses).

    Before the later access, in the innermost body that holds both; for what a loop carries, at its end.
    """
    p = hazard.pending
    x, y = p.ended or p.access.node, hazard.later.node
    turns = p.carried - p.ended_in
    loops = [n for n in y.ancestors() if isinstance(n.op, (For, While)) and _name(n) in turns]
    # A store by TMA reads on while the next turn computes: it is waited for only before its source changes.
    if loops and p.access.agent != "bulk":
        body = loops[-1].inner[0]
        return body, len(body.nodes), x.at(body)
    # What a condition reads and a branch of it writes is ordered inside the branch.
    around = [*(b for b in x.inner if b in list(y.parent.path())), *x.parent.path()]
    body = next(b for b in y.parent.path() if b in around)
    before = y.at(body)
    return body, body.nodes.index(before), before


def _name(n: Node) -> str:
    return n.op.index.name if isinstance(n.op, For) else f"while {id(n)}"


def _depth(hazard: Hazard, body: Block) -> int | None:
    """The depth of the smallest instances within which all pairs meet; None where no barrier is possible."""
    for depth in range(len(body.chain), -1, -1):
        part = body.partition(depth)
        met = joined(part, hazard.pending.access, hazard.later)
        if bool((met | ~hazard.pairs).all()):
            if not body.uniform(depth):
                return None
            if _regular(part, depth):
                return depth
    return None


def _no_barrier(hazard: Hazard, body: Block) -> CompileError:
    """Why no barrier in ``body`` can order ``hazard``."""
    x, y = hazard.pending.access.node.op, hazard.later.node.op
    facts: dict[str, Any] = {"name": hazard.later.resource, "kind": str(hazard)}
    notes = [Note("the earlier access", x.span)]
    here = int(body.mask.sum())
    if body.uniform(0) and here % _WARP:
        whole = -(-here // _WARP) * _WARP
        return BarrierPartialWarp(y.span, threads=here, whole=whole, notes=notes, **facts)
    return BarrierNotUniform(y.span, notes=notes, **facts)


def _regular(part: Ints, depth: int) -> bool:
    """Whether one barrier serves every class: equal numbers of threads, in whole warps.

    Several classes of more than a warp take numbers one after the other by the instance's own number, which is
    unique among those directly below the block.
    """
    sizes = distinct(part[part >= 0])[1].tolist()
    if len(set(sizes)) != 1 or sizes[0] % _WARP:
        return False
    return len(sizes) == 1 or sizes[0] == _WARP or depth <= 1


def _narrowed(
    hazard: Hazard, body: Block, position: int, inward: Node, part: Ints | None
) -> tuple[Block, int, Ints | None]:
    """The place moved into the parallels that lead to ``inward``'s access, where fewer threads do."""
    x, y = hazard.pending.access, hazard.later
    target = y.node if position < len(body.nodes) and body.nodes[position] is inward else x.node
    after = target is x.node
    while isinstance(inward.op, Parallel) and inward is not target:
        inner = inward.inner[0]
        if not inner.mask[x.start].all() or (x.agent == "wgmma" and not _whole(inner, hazard)):
            break
        if part is not None:
            smaller = inner.partition(len(inner.chain))
            if not bool((joined(smaller, x, y) | ~hazard.pairs).all()) or not _regular(smaller, len(inner.chain)):
                break
            part = smaller
        inward = target.at(inner)
        body, position = inner, len(inner.nodes) if after else inner.nodes.index(inward)
    return body, position, part


def _whole(body: Block, hazard: Hazard) -> bool:
    """Whether the warpgroups of the earlier access get to ``body`` whole."""
    x = hazard.pending.access
    return all(bool(body.mask[s : s + x.threads].all()) for s in x.start.tolist())


def _insert(body: Block, position: int, hazard: Hazard, part: Ints | None) -> list[Node]:
    p = hazard.pending
    span = hazard.later.node.op.span
    if hazard.wait and (p.access.agent == "tma" or p.future is not None):
        waited, future, _ = (p.access.event or p.future or "").partition(".future")
        notes = [Note("the copy", p.access.node.op.span)]
        raise NotWaitedFor(span, name=p.resource, kind="future" if future else "event", waited=waited, notes=notes)
    ops: list[Op] = []
    if hazard.wait and p.access.agent == "cp.async":
        ops += [] if p.committed else [CopyCommit(span=span)]
        ops.append(CopyWait(p.newer if p.committed else 0, span=span))
    if hazard.wait and p.access.agent == "wgmma":
        ops.append(MmaWait(0, span=span))
    if hazard.wait and p.access.agent == "bulk":
        ops.append(BulkWait(p.newer, p.access.write, span=span))
    if hazard.fence:
        ops.append(ProxyFence(span=span))
    nodes = [Node(op, body, inserted=True) for op in ops]
    if hazard.barrier and part is not None:
        nodes.append(Node(Barrier(0, 0, span=span), body, inserted=True, part=part))
    assert nodes, hazard
    body.nodes[position:position] = nodes
    return nodes


def _last_waits(tree: Tree, walker: Walk) -> list[Node]:
    """Waits at the end for what nobody has waited for: a block may not end while its shared memory is in use."""
    made: list[Node] = []
    agents = {a.agent for a in walker.unfinished()}
    ops: list[Op] = [CopyCommit(), CopyWait(0)] if "cp.async" in agents else []
    ops += [MmaWait(0)] if "wgmma" in agents else []
    for op in ops:
        made.append(Node(replace(op, span=tree.block.span), tree.root, inserted=True))
    tree.root.nodes += made
    return made


def _last_stores(tree: Tree) -> list[Node]:
    """A wait at the end of whoever stores by TMA: the source has to be there until it has been read."""
    made: list[Node] = []
    for node in tree.walk():
        if not isinstance(node.op, Copy) or node.op.plan is None or node.op.plan.engine != "tma":
            continue
        if node.op.dst.base.space is Space.SHARED:
            continue
        body = next(
            b
            for b in node.parent.path()
            if b.owner is None or (isinstance(b.owner.op, (Parallel, InThreads)) and not _in_loop(b.owner))
        )
        if not (body.nodes and isinstance(body.nodes[-1].op, BulkWait)):
            made.append(Node(BulkWait(0, span=node.op.span), body, inserted=True))
            body.nodes.append(made[-1])
    return made


def _in_loop(node: Node) -> bool:
    return any(isinstance(a.op, (For, While)) for a in node.ancestors())


# ---- what is left out ------------------------------------------------------------------------------------


def _pruned(walker: Walk, inserted: list[Node]) -> list[Node]:
    """Removes each inserted operation without which there is still no hazard."""
    kept = []
    for node in inserted:
        where = node.parent.nodes
        at = where.index(node)
        del where[at]
        if next(walker.hazards(), None) is not None:
            where.insert(at, node)
            kept.append(node)
    return kept


def _merged(walker: Walk, kept: list[Node]) -> list[Node]:
    """One barrier for two: where copies are issued between a wait and the barrier that publishes what it waited
    for, the barrier directly after the wait also keeps those copies off what others still read."""
    for node in [n for n in kept if n.part is not None]:
        where = node.parent.nodes
        at = where.index(node)
        wait = at - 1
        while wait >= 0 and isinstance(where[wait].op, (Copy, CopyCommit, Alloc, DeclareFragment)):
            wait -= 1
        if wait < 0 or wait == at - 1 or not isinstance(where[wait].op, CopyWait):
            continue
        del where[at]
        where.insert(wait + 1, node)
        if next(walker.hazards(), None) is None:
            fewer = _pruned(walker, [n for n in kept if n is not node and n.part is not None])
            if len(fewer) < sum(n.part is not None for n in kept) - 1:
                return [n for n in kept if n.part is None or n is node or n in fewer]
        where.remove(node)
        where.insert(at, node)
    return kept


def _number(tree: Tree, target: Target) -> None:
    """Fills in the barriers' numbers and thread counts: one number for each set of threads."""
    numbers: dict[bytes, int] = {}
    free = 1
    for node in tree.walk():
        if node.part is None:
            continue
        classes, sizes = distinct(node.part[node.part >= 0])
        threads = int(sizes[0])
        if threads == tree.threads or threads == _WARP:
            node.op = Barrier(0, threads, span=node.op.span)
            continue
        key = node.part.tobytes()
        if key not in numbers:
            numbers[key] = free
            # Instance n starts at thread n * threads.
            free += int(classes[-1]) // threads + 1
        node.op = Barrier(numbers[key], threads, int(len(classes) > 1), span=node.op.span)
    if free > target.barriers:
        raise TooManyBarriers(tree.block.span, have=free - 1, limit=target.barriers - 1)
