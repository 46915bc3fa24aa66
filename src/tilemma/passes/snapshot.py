"""Loads as snapshots: which fragments are multiplied after the memory they were loaded from may have changed."""

from __future__ import annotations

from dataclasses import field

from tilemma.ir.tile import (
    Apply,
    Atomic,
    Body,
    Copy,
    For,
    Load,
    Mma,
    Op,
    Parallel,
    SetElement,
    SetFragmentElement,
    Store,
    While,
)
from tilemma.ir.walk import bodies, walk
from tilemma.passes.contraction import fragment_uses
from tilemma.records import record


@record(frozen=False, slots=False)
class _State:
    """``source``: the buffers each fragment shows; ``stale``: the write that may have changed one of them."""

    source: dict[str, set[str]] = field(default_factory=dict)
    stale: dict[str, Op] = field(default_factory=dict)


def stale_fragments(body: Body) -> dict[str, Op]:
    """Fragment -> the operation that may write its source between a load and a multiply that uses it.

    Fragments changed in registers after their load are stale too: the memory no longer shows them.
    """
    found: dict[str, Op] = {}
    _visit(body, _State(), found)
    return found


def written(op: Op) -> str | None:
    """The buffer that ``op`` writes, if any."""
    match op:
        case Copy(dst=v) | SetElement(view=v) | Atomic(view=v) | Store(dst=v):
            return v.base.name
    return None


def _visit(body: Body, state: _State, found: dict[str, Op]) -> None:
    for op in body:
        match op:
            case Load(fragment=f, src=src):
                state.source[f.name] = (
                    {src.base.name, *state.source.get(f.name, set())} if f.index else {src.base.name}
                )
                if not f.index:
                    state.stale.pop(f.name, None)
            case Mma():
                for use, f in fragment_uses(op):
                    if use in ("A", "B", "metadata") and f.name in state.stale:
                        found.setdefault(f.name, state.stale[f.name])
            case Apply(fragment=f) if any(isinstance(x, SetFragmentElement) for x in walk(op.body)):
                state.stale.setdefault(f.name, op)
        name = written(op)
        for fragment, sources in state.source.items():
            if name in sources:
                state.stale.setdefault(fragment, op)
        for _, inner in bodies(op):
            # Twice through what repeats, or runs in other instances at the same time.
            for _ in range(2 if isinstance(op, (For, While, Parallel)) else 1):
                _visit(inner, state, found)
