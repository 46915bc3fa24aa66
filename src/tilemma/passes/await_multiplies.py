"""Asynchronous multiplies: every result is waited for before it is read; the waits themselves are placed later.

The synchronisation pass knows when an accumulator is read and a slot released, so that the program's futures
are promises to be checked, and are taken out.
"""

from __future__ import annotations

from dataclasses import field, replace

from tilemma.errors import CompileError, Note
from tilemma.ir.tile import Apply, Body, For, If, Kernel, Mma, Op, ScaleMma, Store, WaitFuture, While
from tilemma.ir.tiles import written
from tilemma.ir.walk import bodies, rewrite, walk
from tilemma.passes.decision import Decision
from tilemma.records import record


class AccumulatorNotAwaited(CompileError):
    code = "accumulator-not-awaited"
    found = "`{name}` is read here while a multiply into it may still be under way"
    expected = "a `wait` for the multiply's future before the accumulator is read"
    fix = "write `wait {future}` before this statement, or leave `.async` out of the multiply"


class MultiplyNeverAwaited(CompileError):
    code = "multiply-never-awaited"
    found = "nothing waits for this asynchronous multiply into `{name}`"
    expected = "a `wait` for its future"
    fix = "name the result, `f = mma...async ...`, and write `wait f`; or leave `.async` out"


@record(frozen=False, slots=False)
class _Order:
    """Program order: the multiplies that nothing has waited for yet, by accumulator, and the futures awaited."""

    pending: dict[str, Mma] = field(default_factory=dict)
    awaited: set[str] = field(default_factory=set)

    def visit(self, body: Body) -> None:
        for op in body:
            match op:
                case Mma(future=str()):
                    self.pending[op.acc.name] = op
                case WaitFuture(futures=names):
                    self.awaited |= set(names)
                    self.pending = {a: m for a, m in self.pending.items() if m.future not in names}
                case Store(fragment=ref) | Apply(fragment=ref) | ScaleMma(acc=ref) if ref.name in self.pending:
                    multiply = self.pending[ref.name]
                    future = written(str(multiply.future))
                    notes = [Note("the multiply", multiply.span)]
                    raise AccumulatorNotAwaited(op.span, name=ref.name, future=future, notes=notes)
            if isinstance(op, If):
                before = self.pending
                ways = [self._way(inner, before) for _, inner in bodies(op)]
                self.pending = {a: m for way in ways for a, m in way.items()}
                continue
            for _, inner in bodies(op):
                for _ in range(2 if isinstance(op, (For, While)) else 1):
                    self.visit(inner)

    def _way(self, body: Body, before: dict[str, Mma]) -> dict[str, Mma]:
        """What one way through an `if` leaves pending."""
        self.pending = dict(before)
        self.visit(body)
        return self.pending


@record(slots=False)
class AwaitMultiplies:
    """Checks and removes the futures of multiplies."""

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises AccumulatorNotAwaited or MultiplyNeverAwaited."""
        multiplies = [op for op in walk(kernel.body) if isinstance(op, Mma) and op.future is not None]
        if not multiplies:
            return kernel
        order = _Order()
        order.visit(kernel.body)
        for m in multiplies:
            if m.future not in order.awaited:
                raise MultiplyNeverAwaited(m.span, name=m.acc.name)
        futures = {m.future for m in multiplies}

        def strip(op: Op) -> Op | Body:
            if isinstance(op, Mma) and op.future is not None:
                return replace(op, future=None)
            if isinstance(op, WaitFuture):
                rest = tuple(f for f in op.futures if f not in futures)
                return replace(op, futures=rest) if rest else ()
            return op

        return replace(kernel, body=rewrite(kernel.body, strip))
