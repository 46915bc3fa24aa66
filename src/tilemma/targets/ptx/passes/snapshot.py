"""Stale operand analysis: fragments that are multiplied after the memory they were loaded from may have changed.

Such a fragment needs registers: wgmma would read the changed shared memory.
"""

from __future__ import annotations

from dataclasses import field

from tilemma.ir import tile as t
from tilemma.ir.effects import written_views
from tilemma.ir.walk import bodies, walk
from tilemma.passes.contraction import fragment_uses
from tilemma.records import record


@record(frozen=False, slots=False)
class _State:
    """``source``: the buffers each fragment was loaded from; ``stale``: the write that may have changed one."""

    source: dict[str, set[str]] = field(default_factory=dict)
    stale: dict[str, t.Op] = field(default_factory=dict)

    def copy(self) -> _State:
        return _State({f: set(names) for f, names in self.source.items()}, dict(self.stale))

    def equals(self, other: _State) -> bool:
        """Whether both are the same facts, about the same operations."""
        return (
            self.source == other.source
            and self.stale.keys() == other.stale.keys()
            and all(op is other.stale[f] for f, op in self.stale.items())
        )

    def join(self, other: _State) -> None:
        """The facts after a join of two paths."""
        for f, names in other.source.items():
            self.source.setdefault(f, set()).update(names)
        self.stale = other.stale | self.stale


def stale_fragments(body: t.Body) -> dict[str, t.Op]:
    """Fragment -> the operation that may write its source between a load and a multiply that uses it.

    Fragments that an `Apply` reads or changes need registers too.
    """
    found: dict[str, t.Op] = {}
    for op in walk(body):
        if isinstance(op, t.Apply):
            found |= {f.name: op for x in walk((op,)) for _, f in fragment_uses(x)}
    _visit(body, _State(), found)
    return found


def _visit(body: t.Body, state: _State, found: dict[str, t.Op]) -> None:
    for op in body:
        match op:
            case t.Load(fragment=f, src=src):
                state.source[f.name] = (
                    {src.base.name, *state.source.get(f.name, set())} if f.index else {src.base.name}
                )
                if not f.index:
                    state.stale.pop(f.name, None)
            case t.Mma():
                for use, f in fragment_uses(op):
                    if use in ("A", "B", "metadata") and f.name in state.stale:
                        found.setdefault(f.name, state.stale[f.name])
            case t.Apply(fragment=f) if any(isinstance(x, t.SetFragmentElement) for x in walk(op.body)):
                state.stale.setdefault(f.name, op)
        changed = {v.base.name for v in written_views(op)} if state.source else set()
        for fragment, sources in state.source.items():
            if changed & sources:
                state.stale.setdefault(fragment, op)
        if isinstance(op, (t.If, t.InThreads)):
            otherwise = state.copy()
            _visit(op.then if isinstance(op, t.If) else op.body, state, found)
            if isinstance(op, t.If):
                _visit(op.otherwise, otherwise, found)
            state.join(otherwise)
            continue
        skipped = state.copy() if isinstance(op, (t.For, t.While)) else None
        for _, inner in bodies(op):
            before = state.copy()
            _visit(inner, state, found)
            # A loop, and instances that run at the same time, come to a statement again.
            if not state.equals(before):
                _visit(inner, state, found)
        if skipped is not None:
            state.join(skipped)
