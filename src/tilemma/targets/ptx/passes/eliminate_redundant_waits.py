"""Elimination of redundant waits for asynchronous copies, and waits for copies that start after others."""

from __future__ import annotations

from dataclasses import replace

from tilemma.errors import CompileError
from tilemma.ir.effects import rotated
from tilemma.ir.tile import Body, Copy, For, Kernel, Mma, Op, WaitFuture, While
from tilemma.ir.tiles import written
from tilemma.ir.walk import bodies, rewrite, walk, with_fields
from tilemma.passes.decision import Decision
from tilemma.records import record
from tilemma.targets.ptx.passes.assign_tma_barriers import by_tma

Futures = frozenset[str]
_NONE: Futures = frozenset()


class WaitedForTwice(CompileError):
    code = "future-waited-for-twice"
    found = "some threads may wait a second time for the copy of `{name}` here"
    expected = "one wait for each copy by TMA: its event completes once"
    fix = "write `wait {name}` once, before the `if`, loop or `parallel` with the other"
    python_fix = "write `wait({name})` once, before the `if_`, loop or `parallel` with the other"


@record(slots=False)
class EliminateRedundantWaits:
    """Turns `Copy.after` into waits, and removes waits that an earlier wait in the same or an enclosing body
    covers.

    A second wait on an mbarrier would wait for a generation that is never completed.
    """

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises WaitedForTwice."""
        body = rewrite(kernel.body, _started_after)
        loads = frozenset(op.future for op in walk(body) if isinstance(op, Copy) and op.future and by_tma(op))
        return replace(kernel, body=_once(body, _NONE, _NONE, loads))


def _started_after(op: Op) -> Op | Body:
    if isinstance(op, Copy) and op.after:
        return WaitFuture(op.after, span=op.span), replace(op, after=())
    return op


def _once(body: Body, met: Futures, perhaps: Futures, loads: Futures) -> Body:
    """``met`` and ``perhaps``: the futures that have certainly, or by some threads, been waited for before."""
    out: list[Op] = []
    for op in body:
        if isinstance(op, WaitFuture):
            rest = tuple(f for f in op.futures if f not in met)
            for again in perhaps.intersection(rest):
                raise WaitedForTwice(op.span, name=written(again))
            met |= frozenset(rest)
            if rest:
                out.append(op if rest == op.futures else replace(op, futures=rest))
            continue
        renewed = _renewed(op)
        inside = frozenset(f for x in walk((op,)) if isinstance(x, WaitFuture) for f in x.futures) & loads
        if isinstance(op, (For, While)):
            # The next iteration would wait again for futures that the loop does not define again.
            changes = {
                n: _once(b, met - renewed, perhaps | (inside - renewed - met), loads) for n, b in bodies(op)
            }
        else:
            changes = {n: _once(b, met, perhaps, loads) for n, b in bodies(op)}
        perhaps = (perhaps | (inside - met)) - renewed
        met -= renewed
        out.append(with_fields(op, changes))
    return tuple(out)


def _renewed(op: Op) -> Futures:
    """Futures that stand for another operation after ``op``."""
    found: set[str] = set()
    for x in walk((op,)):
        found.update(rotated(x))
        if isinstance(x, (Copy, Mma)) and x.future is not None:
            found.add(x.future)
    return frozenset(found)
