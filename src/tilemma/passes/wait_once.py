"""Waits for copies: before those that are to start after others, and none for what has certainly arrived."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilemma.ir.tile import Body, Copy, For, Kernel, Mma, Op, SwapFutures, WaitFuture, While
from tilemma.ir.walk import bodies, rewrite, walk
from tilemma.passes.decision import Decision


@dataclass(frozen=True)
class WaitOnce:
    """Turns `Copy.after` into waits, and takes out waits for what was waited for in the same body or around it.

    A second wait on an mbarrier would be for a generation that never comes.
    """

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        return replace(kernel, body=_once(rewrite(kernel.body, _started_after), frozenset()))


def _started_after(op: Op) -> Op | Body:
    if isinstance(op, Copy) and op.after:
        return WaitFuture(op.after, span=op.span), replace(op, after=())
    return op


def _once(body: Body, met: frozenset[str]) -> Body:
    """``met``: the futures that have certainly been waited for when ``body`` begins."""
    out: list[Op] = []
    for op in body:
        if isinstance(op, WaitFuture):
            rest = tuple(f for f in op.futures if f not in met)
            met |= frozenset(rest)
            if rest:
                out.append(op if rest == op.futures else replace(op, futures=rest))
            continue
        renewed = _renewed((op,))
        before = met - renewed if isinstance(op, (For, While)) else met
        changes = {name: _once(inner, before) for name, inner in bodies(op)}
        met -= renewed
        out.append(replace(op, **changes) if changes else op)  # type: ignore[arg-type]
    return tuple(out)


def _renewed(body: Body) -> frozenset[str]:
    """Futures that stand for another operation after ``body``."""
    found: set[str] = set()
    for op in walk(body):
        if isinstance(op, SwapFutures):
            found |= set(op.futures)
        elif isinstance(op, (Copy, Mma)) and op.future is not None:
            found.add(op.future)
    return frozenset(found)
