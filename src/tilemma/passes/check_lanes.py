"""Legality of the synchronisation that the lanes of a group execute together, inside a `: thread` level.

A wait, a ``sync`` and a copy that completes an event belong to a whole group: the group counts their generations.
Inside a `: thread` level, all lanes of the group must therefore reach them together, with the same operands.
`PlaceFragments` has the same rule for the statements on register tiles.
"""

from __future__ import annotations

from tilemma.errors import CompileError
from tilemma.ir.tile import Copy, Kernel, Op, Parallel, SwapFutures, Sync, WaitEvent, WaitFuture
from tilemma.ir.walk import expressions, walk
from tilemma.passes.decision import Decision
from tilemma.passes.infer_levels import described
from tilemma.passes.scope import Dependence, Site, control, count, kind, sites
from tilemma.records import record


class LanesApart(CompileError):
    code = "lanes-apart"
    found = "{what} is inside `parallel {names} : thread`, and {reason}"
    expected = "all lanes of the group to execute it together, with the same operands: it belongs to the group"
    fix = "move it out of the `: thread` level"
    python_fix = 'move it out of the `parallel` with `level="thread"`'


_WORDS: dict[type[Op], str] = {
    WaitEvent: "a `wait` for an event",
    WaitFuture: "a `wait` for a copy",
    Sync: "a `sync`",
    SwapFutures: "a swap of copies",
    Copy: "a copy that completes an event",
}


@record(slots=False)
class CheckLanes:
    """Refuses synchronisation of a group that some of its lanes would execute, or each lane by itself."""

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises LanesApart."""
        if not any(_checked(op) for op in walk(kernel.body)):
            return kernel
        dependence = Dependence(kernel.body)
        for site in sites(kernel.body):
            if _checked(site.op):
                _check(site, dependence)
        return kernel


def _checked(op: Op) -> bool:
    return type(op) in _WORDS and (not isinstance(op, Copy) or op.event is not None)


def _check(site: Site, dependence: Dependence) -> None:
    start = 0 if site.group is None else site.parents.index(site.group) + 1
    inside = site.parents[start:]
    level = next((p for p in inside if isinstance(p, Parallel) and kind(p) == "thread"), None)
    if level is None:
        return
    lanes = {i.name for i in level.indices} | {Dependence.MEMORY}
    around = inside[inside.index(level) + 1 :]
    reason = ""
    if isinstance(site.op, Copy):
        reason = "each lane would execute it"
    elif any(dependence.closure(control(p)) & lanes for p in around):
        reason = "whether it is executed differs between lanes"
    elif any(dependence.of(e) & lanes for e in expressions(site.op)):
        reason = "its operands differ between lanes"
    elif site.group is not None and not isinstance(site.op, WaitFuture):
        assert site.group.level is not None
        group = site.group.level.threads
        if (have := count(level)) is not None and have < group:
            reason = f"it has {have} of the group's {group} lanes"
    if reason:
        raise LanesApart(site.op.span, what=_WORDS[type(site.op)], names=described(level), reason=reason)
