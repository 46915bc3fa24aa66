"""Barrier insertion: the waits, fences and barriers that make statements take effect in program order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilemma.errors import CompileError
from tilemma.ir import tile as t
from tilemma.ir.constructs import LIMITS
from tilemma.ir.ranges import Known
from tilemma.ir.types import WARP, Space
from tilemma.ir.usage import nonzero
from tilemma.ir.walk import rewrite_blocks, walk, with_bodies
from tilemma.passes.check_futures import never_waited_for
from tilemma.passes.contraction import fragment_uses
from tilemma.passes.decision import Decision
from tilemma.passes.infer_levels import described
from tilemma.passes.scope import Dependence, kind
from tilemma.passes.threads import Node, Tree, distinct
from tilemma.records import record
from tilemma.targets.ptx.passes.accesses import Accesses, is_wgmma
from tilemma.targets.ptx.passes.deduplicate_copies import once
from tilemma.targets.ptx.passes.groups_in_flight import superfluous_waits
from tilemma.targets.ptx.passes.hazards import Walk
from tilemma.targets.ptx.passes.place_sync import BarrierNotUniform, pruned, resolve


class TooManyBarriers(CompileError):
    code = "too-many-barriers"
    found = "the groups of a block wait for each other in {have} different sets of threads"
    expected = "at most {limit}: a block has {limit} named barriers besides that of the whole block"
    fix = "let fewer groups share data separately"


@record(slots=False)
class InsertSync:
    """Inserts CopyCommit, CopyWait, ProxyFence, Barrier, MmaFence, MmaCommit and MmaWait, as few as possible.

    Works on one block at a time: finds the first access that may conflict with an earlier one, inserts the
    synchronisation between them, as late and as far out as possible (loop-carried dependences are synchronised at
    the end of the loop's body), and starts again; then removes the operations that turned out to be redundant.
    """

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        """Raises BarrierNotUniform, TooManyBarriers or NotBuilt."""
        dependence, known = Dependence(kernel.body), Known(nonzero(kernel))
        return rewrite_blocks(kernel, lambda block: _synchronised(block, dependence, known, log))


def _synchronised(block: t.Parallel, dependence: Dependence, known: Known, log: list[Decision]) -> t.Parallel:
    block = once(block, dependence)
    if not any(isinstance(op, t.MmaFence) for op in walk(block.body)):
        block = replace(block, body=batched(block.body))
    tree = Tree(block, dependence)
    _written_barriers(tree)
    accesses = Accesses(tree)
    _wait_for_futures(tree, accesses)
    walker = Walk(tree, accesses)
    kept = _merged(walker, pruned(walker, resolve(walker))) + _last_stores(tree)
    if _without_outer_waits(tree, walker):
        walker = Walk(tree, accesses, known=known)
    kept += _last_waits(tree, walker)
    for node in superfluous_waits(tree):
        node.parent.nodes.remove(node)
    _fence_during_multiplies(tree)
    number_barriers(tree)
    counts: dict[str, int] = {}
    for n in kept:
        counts[type(n.op).__name__] = counts.get(type(n.op).__name__, 0) + 1
    text = ", ".join(f"{v} {k}" for k, v in sorted(counts.items())) or "nothing to wait for"
    log.append(Decision("sync", described(block), text, counts, span=block.span))
    return tree.rebuilt()


# ---- wgmma batches ---------------------------------------------------------------------------------------


def batched(body: t.Body) -> t.Body:
    """``body`` with a fence before and a commit after each run of statements that only issue wgmma.

    They are inside the parallel that multiplies and outside the loop that does: a loop around such a
    parallel changes places with it.
    """
    if not any(is_wgmma(op) for op in walk(body)):
        return body
    out: list[t.Op] = []
    run: list[t.Op] = []

    def close(following: t.Body) -> None:
        issuing = [i for i, op in enumerate(run) if _issues(op)]
        if len(issuing) == 1 and isinstance(run[issuing[0]], t.Parallel):
            p = run[issuing[0]]
            assert isinstance(p, t.Parallel)
            run[issuing[0]] = replace(p, body=batched(p.body))
        elif issuing:
            span = run[issuing[0]].span
            for last in _ends_of_groups(run, issuing, following):
                run.insert(last + 1, t.MmaCommit(span=span))
            run.insert(issuing[0], t.MmaFence(span=span))
        out.extend(run)
        run.clear()

    for at, op in enumerate(body):
        if _quiet(op):
            run.append(_exchanged(op))
            continue
        close(body[at:])
        out.append(with_bodies(op, batched))
    close(())
    return tuple(out)


def _ends_of_groups(run: Sequence[t.Op], issuing: Sequence[int], following: t.Body) -> Iterator[int]:
    """The positions of the last multiplies of the groups of ``run``, from last to first.

    Sums that are read first end a group of their own: the others stay in flight during that work.
    """
    yield issuing[-1]
    sums = [{x.acc.name for x in walk((run[i],)) if isinstance(x, t.Mma)} for i in issuing]
    every = set[str]().union(*sums)
    uses = ({ref.name for x in walk((op,)) for _, ref in fragment_uses(x)} & every for op in following)
    read = next(filter(None, uses), every)
    last = max(i for i, found in zip(issuing, sums, strict=True) if found & read)
    if last != issuing[-1]:
        yield last


def _exchanged(op: t.Op) -> t.Op:
    """A loop of multiplies whose body is one parallel, as a parallel of loops."""
    if isinstance(op, t.For) and len(op.body) == 1 and isinstance(op.body[0], t.Parallel):
        p = op.body[0]
        return replace(p, body=(_exchanged(replace(op, body=p.body)),))
    return op


def _issues(op: t.Op) -> bool:
    return any(is_wgmma(x) for x in walk((op,)))


def _quiet(op: t.Op) -> bool:
    """Whether ``op`` may stand between two multiplies of one batch: it touches no memory and no registers of
    theirs, and all threads of a warpgroup run it."""
    match op:
        case t.Mma():
            return is_wgmma(op)
        case t.Load(plan=plan):
            return plan is not None and plan.method == "descriptor"
        case t.DeclareFragment() | t.Declare() | t.Assign():
            return True
        case t.For(body=body):
            return _issues(op) and all(_quiet(x) for x in body)
        case t.Parallel(body=body, level=level):
            whole = level is not None and level.kind == "group" and level.warps % 4 == 0
            return whole and _issues(op) and all(_quiet(x) for x in body)
    return False


# ---- the program's own synchronisation -------------------------------------------------------------------


def _written_barriers(tree: Tree) -> None:
    for node in tree.walk():
        if isinstance(node.op, t.Sync) and node.op.what == "barrier":
            level, body = node.op.level, node.parent
            depth = 0
            if level is not None and level.kind == "group":
                groups = (
                    d
                    for d, p in enumerate(body.chain, 1)
                    if isinstance(p.op, t.Parallel) and kind(p.op) == "group"
                )
                depth = max(groups, default=0)
            if not body.uniform(depth):
                raise BarrierNotUniform(node.op.span, name="sync.barrier", kind="written barrier")
            cluster = level is not None and level.kind == "cluster"
            node.op, node.part = t.Barrier(0, 0, cluster=cluster, span=node.op.span), body.partition(depth)


def _wait_for_futures(tree: Tree, accesses: Accesses) -> None:
    """Asynchronous copies that are always waited for together make one group, any other one of its own; a wait
    leaves open those that are certainly newer.

    A copy in a branch that waits for none belongs to a group that is closed behind the branch, and is empty where
    the branch is not taken: so the number of groups since any copy is known.
    """
    waits = [node.op.futures for node in tree.walk() if isinstance(node.op, t.WaitFuture)]
    closed: set[Node] = set()
    for node in list(tree.walk()):
        future = _group_of_copies(node)
        if future is None:
            continue
        last = node
        while _is_branch(owner := last.parent.owner) and not any(map(_copies_in, _behind(last))):
            assert owner is not None
            last = owner
        # A group that follows directly, or that closes behind a branch there.
        following = next(iter(_behind(last)), None)
        whole = following is not None and (_group_of_copies(following) is not None or _is_branch(following))
        first = next(iter(_copies_in(following)), None) if whole and following is not None else None
        apart = first is None or any((future in names) != (first in names) for names in waits)
        if apart and last not in closed:
            closed.add(last)
            here = last.parent.nodes
            here.insert(here.index(last) + 1, Node(t.CopyCommit(span=node.op.span), last.parent))
    if not waits and not any(a.future for n in tree.walk() for a in accesses.of(n)):
        return
    walker = Walk(tree, accesses.only(lambda a: a.future is not None), frozenset())
    for _ in walker.hazards():
        pass
    for node in tree.walk():
        for a in accesses.of(node):
            if a.future is not None and id(a) not in walker.awaited:
                assert isinstance(node.op, t.Copy)
                raise never_waited_for(node.op)
        if isinstance(node.op, t.WaitFuture):
            if id(node) in walker.waits:
                node.op = t.CopyWait(walker.waits[id(node)], span=node.op.span)
            else:
                node.parent.nodes.remove(node)


def _is_branch(node: Node | None) -> bool:
    """Whether ``node`` is a branch that waits for no copy, and has none in a loop."""
    if node is None or not isinstance(node.op, t.If):
        return False
    inside = [n for n in node.subtree() if n is not node]
    looped = (n for n in inside if n.inner and not isinstance(n.op, t.If) and _copies_in(n))
    return not any(isinstance(n.op, t.WaitFuture) for n in inside) and next(looped, None) is None


def _behind(node: Node) -> list[Node]:
    """The statements that follow ``node`` in its body."""
    here = node.parent.nodes
    return [n for n in here[here.index(node) + 1 :] if not isinstance(n.op, t.Alloc)]


def _copies_in(node: Node) -> list[str]:
    """The futures of the copies by cp.async in ``node``."""
    return [future for n in node.subtree() if (future := _group_of_copies(n)) is not None]


def _group_of_copies(node: Node) -> str | None:
    """The future of a copy that runs as groups of cp.async."""
    op = node.op
    if isinstance(op, t.Copy) and op.plan is not None and op.plan.engine == "cp.async":
        return op.future
    return None


def _without_outer_waits(tree: Tree, walker: Walk) -> bool:
    """Removes the waits of a pipelined loop, in it and behind it, and the groups that they count, where waits of a
    loop inside it order its copies as well; whether there are any."""
    found = []
    for loop in (n for n in tree.walk() if isinstance(n.op, t.For)):
        waits = [n for n in loop.subtree() if isinstance(n.op, t.CopyWait)]
        own = [n for n in waits if n.parent is loop.inner[0] and n.op.span == loop.op.span]
        if own and len(own) < len(waits):
            behind = (n for n in loop.parent.nodes if isinstance(n.op, t.CopyWait) and n.op.span == loop.op.span)
            found += [*own, *behind]
    if len(pruned(walker, found)) == len(found):
        return False
    pruned(walker, [n for n in tree.walk() if isinstance(n.op, t.CopyCommit)])
    return True


# ---- ends ------------------------------------------------------------------------------------------------


def _last_waits(tree: Tree, walker: Walk) -> list[Node]:
    """Waits at the end for accesses still in flight: a block may not end while its shared memory is in use."""
    made: list[Node] = []
    agents = {a.agent for a in walker.unfinished()}
    ops: list[t.Op] = [t.CopyCommit(), t.CopyWait(0)] if "cp.async" in agents else []
    ops += [t.MmaWait(0)] if "wgmma" in agents else []
    for op in ops:
        made.append(Node(replace(op, span=tree.block.span), tree.root, inserted=True))
    tree.root.nodes += made
    return made


def _fence_during_multiplies(tree: Tree) -> None:
    """A proxy fence behind a wait for multiplies changes places with it.  It is for what the threads have accessed
    before, and takes time in which the tensor cores work."""
    for node in list(tree.walk()):
        where = node.parent.nodes
        at = where.index(node)
        if isinstance(node.op, t.ProxyFence) and at > 0 and isinstance(where[at - 1].op, t.MmaWait):
            where[at - 1], where[at] = node, where[at - 1]


def _last_stores(tree: Tree) -> list[Node]:
    """Insert a wait at the end of each body that stores by TMA: the source must stay valid until it has been
    read."""
    made: list[Node] = []
    for node in tree.walk():
        if not isinstance(node.op, t.Copy) or node.op.plan is None or node.op.plan.engine != "tma":
            continue
        if node.op.dst.base.space is Space.SHARED:
            continue
        body = next(
            b
            for b in node.parent.path()
            if b.owner is None or (isinstance(b.owner.op, (t.Parallel, t.InThreads)) and not _in_loop(b.owner))
        )
        if not (body.nodes and isinstance(body.nodes[-1].op, t.BulkWait)):
            made.append(Node(t.BulkWait(0, span=node.op.span), body, inserted=True))
            body.nodes.append(made[-1])
    return made


def _in_loop(node: Node) -> bool:
    return any(isinstance(a.op, (t.For, t.While)) for a in node.ancestors())


# ---- merging and numbering barriers ----------------------------------------------------------------------


def _merged(walker: Walk, kept: list[Node]) -> list[Node]:
    """Merge two barriers: if copies are issued between a wait and the barrier that publishes its data, the barrier
    directly after the wait also orders those copies after the other threads' reads."""
    for node in [n for n in kept if n.part is not None]:
        where = node.parent.nodes
        at = where.index(node)
        wait = at - 1
        while wait >= 0 and _issues_copies(where[wait]):
            wait -= 1
        if wait < 0 or wait == at - 1 or not isinstance(where[wait].op, t.CopyWait):
            continue
        del where[at]
        where.insert(wait + 1, node)
        if next(walker.hazards(), None) is None:
            fewer = pruned(walker, [n for n in kept if n is not node and n.part is not None])
            if len(fewer) < sum(n.part is not None for n in kept) - 1:
                return [n for n in kept if n.part is None or n is node or n in fewer]
        where.remove(node)
        where.insert(at, node)
    return kept


def _issues_copies(node: Node) -> bool:
    """Whether ``node`` is a copy or belongs to the issue of copies, perhaps in branches."""
    if isinstance(node.op, t.If):
        return all(_issues_copies(n) for inner in node.inner for n in inner.nodes)
    return isinstance(node.op, (t.Copy, t.CopyCommit, t.Alloc, t.DeclareFragment))


def number_barriers(tree: Tree) -> None:
    """Fills in the barriers' numbers and thread counts: one number for each set of threads.

    Raises TooManyBarriers.
    """
    numbers: dict[bytes, int] = {}
    free = 1
    for node in tree.walk():
        if node.part is None:
            continue
        classes, sizes = distinct(node.part[node.part >= 0])
        threads = int(sizes[0])
        if threads == tree.threads or threads == WARP:
            assert isinstance(node.op, t.Barrier)
            node.op = t.Barrier(0, threads, cluster=node.op.cluster, span=node.op.span)
            continue
        key = node.part.tobytes()
        if key not in numbers:
            numbers[key] = free
            # Instance n starts at thread n * threads, and has the n-th number if there are several.
            free += int(classes[-1]) // threads + 1 if len(classes) > 1 else 1
        node.op = t.Barrier(numbers[key], threads, int(len(classes) > 1), span=node.op.span)
    if free > LIMITS["barriers"].most:
        raise TooManyBarriers(tree.block.span, have=free - 1, limit=LIMITS["barriers"].most - 1)
