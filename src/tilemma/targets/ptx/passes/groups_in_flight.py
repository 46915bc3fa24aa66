"""wgmma wait counts: the groups of asynchronous multiplies that may be in flight at each wait, and superfluous
waits.

`DelayConsumerRelease` waits for all but the newest group before it releases a slot.  Where the results of a group
are read within the iteration, barrier insertion has put a wait for all groups in front of it: then at most the
newest group is in flight.
"""

from __future__ import annotations

from dataclasses import field

from tilemma.ir import tile as t
from tilemma.ir.walk import walk
from tilemma.passes.threads import Block, Node, Tree
from tilemma.records import record

# Of this many groups or more it is only known that they are many.
_MANY = 8


def superfluous_waits(tree: Tree) -> list[Node]:
    """The waits in front of a delayed release for which no group can be in flight.  A program's own waits stay."""
    count = _Count()
    count.body(tree.root, 0)
    return [n for n, groups in count.at.items() if groups <= _pending(n) and _before_release(n)]


def _pending(wait: Node) -> int:
    assert isinstance(wait.op, t.MmaWait)
    return wait.op.pending


def _before_release(wait: Node) -> bool:
    """Whether ``wait`` belongs to the release behind it: it has the place of the release's trigger."""
    around = wait.parent.nodes
    behind = around[around.index(wait) + 1 :]
    after = next((n for n in behind if not isinstance(n.op, (t.Barrier, t.MmaWait, t.Sync))), None)
    if after is None or not isinstance(after.op, (t.If, t.TriggerEvent)):
        return False
    return any(isinstance(x, t.TriggerEvent) and x.span == wait.op.span for x in walk((after.op,)))


@record(frozen=False, slots=False)
class _Count:
    """``at``: the most groups that may be in flight at each wait; ``exits``: at the jumps out of an iteration."""

    at: dict[Node, int] = field(default_factory=dict)
    exits: list[int] = field(default_factory=list)

    def body(self, body: Block, groups: int) -> int:
        """The most groups in flight behind ``body``, where ``groups`` are in front of it."""
        for node in body.nodes:
            op = node.op
            if isinstance(op, t.MmaCommit):
                groups = min(groups + 1, _MANY)
            elif isinstance(op, t.MmaWait):
                self.at[node] = max(groups, self.at.get(node, groups))
                groups = min(groups, op.pending)
            elif isinstance(op, (t.Break, t.Continue)):
                self.exits.append(groups)
            elif isinstance(op, (t.For, t.While)):
                groups = self._loop(node, groups)
            elif isinstance(op, (t.If, t.InThreads)):
                ways = [self.body(inner, groups) for inner in node.inner]
                groups = max(ways if len(ways) > 1 else [groups, *ways])
            else:
                for inner in node.inner:
                    groups = self.body(inner, groups)
        return groups

    def _loop(self, node: Node, groups: int) -> int:
        outer, self.exits = self.exits, []
        head = groups
        while True:
            end = max([self.body(node.inner[0], head), *self.exits])
            if end <= head:
                break
            head = end
        self.exits = outer
        return head
