"""Legality of the places of events on every target."""

from __future__ import annotations

from tilemma.errors import CompileError
from tilemma.ir.tile import DeclareEvent, For, If, Kernel, Op, Parallel, While
from tilemma.passes.decision import Decision
from tilemma.passes.scope import kind, sites
from tilemma.records import record


class EventPlace(CompileError):
    code = "event-place"
    found = "`{event}` is declared {where}"
    expected = "events at the block's own level: they keep their generations for the whole kernel"
    fix = "move the declaration to the top of the `parallel ... : block`"
    python_fix = 'move the declaration to the top of the `for ... in parallel(..., level="block"):`'


@record(slots=False)
class CheckEvents:
    """Refuses events that are declared inside a loop or a branch of a block."""

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises EventPlace."""
        for site in sites(kernel.body):
            if isinstance(site.op, DeclareEvent):
                for op in _inside_block(site.parents):
                    where = {For: "inside a loop", While: "inside a loop", If: "inside an `if`"}.get(type(op))
                    if where is not None:
                        raise EventPlace(site.op.span, event=site.op.event.name, where=where)
        return kernel


def _inside_block(parents: tuple[Op, ...]) -> tuple[Op, ...]:
    """Those of ``parents`` that are inside a block."""
    at = next((i for i, p in enumerate(parents) if isinstance(p, Parallel) and kind(p) == "block"), len(parents))
    return parents[at + 1 :]
