"""Barrier insertion: placement of the waits, fences and barriers that order one hazard.

Placement terminates for any control flow: loops, branches, `break` and `continue` at any level. The walk over a
block (`hazards.Walk`) is monotone: an operation in between only ever makes an access safer, since `Pending`
gains waits, fences and barriers and never loses one. Inserting therefore adds no hazard, and the needs of each
pair of accesses (a wait, a fence, the pairs of instances that no barrier keeps apart) can only shrink. For each
pair and each set of needs the places of `_attempts` are tried once, in order, so that there are finitely many
insertions. The last of them orders the pair for certain: directly in front of the statement with the later
access, in the innermost body that holds both. No path leads from the earlier access to the later one but past
that place, because a statement is entered only from in front of it, and the earlier access is not inside it:
otherwise that statement's body would hold both. All threads of the earlier access get there, as it stands in
that body, and the walk joins the states of all paths. What is inserted there waits for everything (zero open
groups), so nothing issued meanwhile matters; where no barrier can join the threads, the program is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilemma.errors import CompileError, Note
from tilemma.ir import tile as t
from tilemma.ir.types import WARP
from tilemma.passes.check_futures import not_waited_for
from tilemma.passes.threads import Block, Ints, Node, distinct
from tilemma.records import record
from tilemma.targets.ptx.passes.aliasing import loop_name
from tilemma.targets.ptx.passes.hazards import Hazard, Walk
from tilemma.targets.ptx.passes.ordering import joined, shares


class BarrierNotUniform(CompileError):
    code = "barrier-not-uniform"
    found = "`{name}` is shared here ({kind}), but not all threads that share it run this together"
    expected = "a barrier between the two accesses that all the threads concerned reach equally often"
    fix = "move one of the two out of the `if`, `inthreads` or loop that only some of the threads run"
    python_fix = "move one of the two out of the `if_`, `inthreads` or loop that only some of the threads run"


class BarrierPartialWarp(CompileError):
    code = "barrier-partial-warp"
    found = "{threads} threads share `{name}` here ({kind}) and have to wait for each other"
    expected = "whole warps at a barrier: a multiple of 32 threads (PTX ISA, bar)"
    fix = "count {whole} threads and let those beyond {threads} skip each statement with its own `if`"
    python_fix = "count {whole} threads and let those beyond {threads} skip each statement with its own `if_`"


@record(slots=False)
class _Place:
    """In ``body``, in front of its node number ``position``.

    ``inward`` leads to one of the two accesses: parallels on the way to it may be entered; None: they may not.
    ``joined``: a barrier is there already.  ``everything``: wait for all groups, not only for those as old as
    the access.
    """

    body: Block
    position: int
    inward: Node | None = None
    joined: bool = False
    everything: bool = False


def resolve(walker: Walk) -> list[Node]:
    """Insert the synchronisation for every hazard that ``walker`` finds; returns the new nodes.

    Raises BarrierNotUniform, BarrierPartialWarp or NotWaitedFor.
    """
    inserted: list[Node] = []
    tried: dict[Any, int] = {}
    while (hazard := next(walker.hazards(), None)) is not None:
        needs = hazard.pending.key, hazard.later, hazard.wait, hazard.fence, hazard.pairs.tobytes()
        places = list(_attempts(hazard))
        nodes: list[Node] = []
        while not nodes:
            at = tried.get(needs, 0)
            assert at < len(places), f"synchronisation does not settle: {hazard}"
            tried[needs] = at + 1
            nodes = _place(hazard, places[at], last=at + 1 == len(places))
        inserted += nodes
    return inserted


def pruned(walker: Walk, inserted: list[Node]) -> list[Node]:
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


def _attempts(hazard: Hazard) -> Iterator[_Place]:
    """Places for the synchronisation of ``hazard``, best first; the last of them is always correct."""
    p = hazard.pending
    # At an earlier barrier fewer stores by TMA have been started since: the wait would be for more of them.  A
    # hazard without wait and fence, because a fence stands behind that barrier, needs another barrier.
    joins = (hazard.wait or hazard.fence) and not (hazard.wait and p.access.agent == "bulk")
    if hazard.barrier and joins:
        for barrier in reversed(p.barriers_crossed):
            assert barrier.part is not None
            met = joined(barrier.part, p.access, hazard.later)
            if bool((met | ~hazard.pairs).all()) and not _carried_past(hazard, barrier):
                yield _Place(barrier.parent, barrier.parent.nodes.index(barrier), joined=True)
                break
    x, y = p.ended or p.access.node, hazard.later.node
    carried = p.carried - p.ended_in
    around = set(x.ancestors())
    loops = [
        n for n in y.ancestors() if isinstance(n.op, (t.For, t.While)) and loop_name(n) in carried and n in around
    ]
    # A store by TMA reads on while the next iteration computes: it is waited for only before its source changes.
    if loops and p.access.agent != "bulk":
        body = loops[-1].inner[0]
        yield _Place(body, len(body.nodes), x.at(body))
        # A `continue` skips the end of the loop's body, and never its start.
        yield _Place(body, 0, everything=True)
    # A read by a condition and a write in its branch are ordered inside the branch.
    bodies = [*(b for b in x.inner if b in list(y.parent.path())), *x.parent.path()]
    body = next(b for b in y.parent.path() if b in bodies)
    before = y.at(body)
    yield _Place(body, body.nodes.index(before), before)
    yield _Place(body, body.nodes.index(before), everything=True)


def _carried_past(hazard: Hazard, barrier: Node) -> bool:
    """Whether a wait before ``barrier`` could be skipped: it is in a branch that may not be taken."""
    x, y = hazard.pending.access.node, hazard.later.node
    around = {id(n) for n in (*x.ancestors(), *y.ancestors())}
    return any(id(n) not in around and isinstance(n.op, (t.If, t.InThreads)) for n in barrier.ancestors())


def _place(hazard: Hazard, place: _Place, last: bool) -> list[Node]:
    """Insert the synchronisation of ``hazard`` at ``place``; returns the new nodes, none if no barrier is possible
    there.

    Raises BarrierNotUniform or BarrierPartialWarp where it is the ``last`` place.
    """
    body, position, everything = place.body, place.position, place.everything
    if place.joined:
        return _insert(body, position, hazard, None, everything)
    if not hazard.barrier:
        if place.inward is not None:
            body, position, _ = _narrowed(hazard, body, position, place.inward, None)
        return _insert(body, position, hazard, None, everything)
    within_warps = shares(hazard.pending.access, hazard.later)
    if hazard.later.release == "warp" and bool((within_warps | ~hazard.pairs).all()):
        return _insert(body, position, hazard, body.warps(), everything)
    depth = _depth(hazard, body)
    if depth is None:
        if last:
            raise _no_barrier(hazard, body)
        return []
    part: Ints | None = body.partition(depth)
    if place.inward is not None:
        body, position, part = _narrowed(hazard, body, position, place.inward, part)
    if position and isinstance(body.nodes[position - 1].op, t.MmaFence):
        position -= 1
    return _insert(body, position, hazard, part, everything)


def _depth(hazard: Hazard, body: Block) -> int | None:
    """The depth of the smallest instances within which all pairs can synchronise; None where no barrier is
    possible."""
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
    """The reason why no barrier in ``body`` can order ``hazard``."""
    x, y = hazard.pending.access.node.op, hazard.later.node.op
    facts: dict[str, Any] = {"name": hazard.later.resource, "kind": str(hazard)}
    notes = [Note("the earlier access", x.span)]
    here = int(body.mask.sum())
    if body.uniform(0) and here % WARP:
        whole = -(-here // WARP) * WARP
        return BarrierPartialWarp(y.span, threads=here, whole=whole, notes=notes, **facts)
    return BarrierNotUniform(y.span, notes=notes, **facts)


def _regular(part: Ints, depth: int) -> bool:
    """Whether one barrier serves every class: equal numbers of threads, in whole warps.

    Several classes of more than a warp take numbers one after the other by the instance's own number, which is
    unique among those directly below the block.
    """
    sizes = distinct(part[part >= 0])[1].tolist()
    if len(set(sizes)) != 1 or sizes[0] % WARP:
        return False
    return len(sizes) == 1 or sizes[0] == WARP or depth <= 1


def _narrowed(
    hazard: Hazard, body: Block, position: int, inward: Node, part: Ints | None
) -> tuple[Block, int, Ints | None]:
    """The place moved into the parallels that lead to ``inward``'s access, where fewer threads do."""
    x, y = hazard.pending.access, hazard.later
    before = position < len(body.nodes) and body.nodes[position] is inward
    # An access that a wait has ended is over where the wait is, which may be in another parallel.
    target = y.node if before else hazard.pending.ended or x.node
    while isinstance(inward.op, t.Parallel) and inward is not target:
        inner = inward.inner[0]
        if not hazard.pending.reaches(inner):
            break
        if part is not None:
            smaller = inner.partition(len(inner.chain))
            if not bool((joined(smaller, x, y) | ~hazard.pairs).all()) or not _regular(smaller, len(inner.chain)):
                break
            part = smaller
        inward = target.at(inner)
        body, position = inner, inner.nodes.index(inward) if before else len(inner.nodes)
    return body, position, part


def _insert(body: Block, position: int, hazard: Hazard, part: Ints | None, everything: bool) -> list[Node]:
    p = hazard.pending
    open_groups = 0 if everything else p.newer
    span = hazard.later.node.op.span
    if hazard.wait and (p.access.agent == "tma" or p.future is not None):
        copy = p.access.node.op
        assert isinstance(copy, t.Copy)
        raise not_waited_for(span, p.resource, copy, p.future)
    ops: list[t.Op] = []
    if hazard.wait and p.access.agent == "cp.async":
        ops += [] if p.committed else [t.CopyCommit(span=span)]
        ops.append(t.CopyWait(open_groups if p.committed else 0, span=span))
    if hazard.wait and p.access.agent == "wgmma":
        ops.append(t.MmaWait(open_groups if p.committed else 0, span=span))
    if hazard.wait and p.access.agent == "bulk":
        ops.append(t.BulkWait(open_groups, p.access.write, span=span))
    if hazard.fence or (everything and hazard.proxies and hazard.barrier):
        # Where another access needs less, the fence that is there may stand behind this barrier.
        ops.append(t.ProxyFence(span=span))
    nodes = [Node(op, body, inserted=True) for op in ops]
    if hazard.barrier and part is not None:
        nodes.append(Node(t.Barrier(0, 0, span=span), body, inserted=True, part=part))
    assert nodes, hazard
    body.nodes[position:position] = nodes
    return nodes
