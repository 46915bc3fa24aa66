"""Checks the futures of asynchronous multiplies: the program waits for every result before it reads it.

The futures are removed after the check: barrier insertion (`insert_sync`) places the wgmma waits by its own
analysis of accumulator reads and slot releases.
"""

from __future__ import annotations

from dataclasses import field, replace

from tilemma.errors import CompileError, Note
from tilemma.ir import tile as t
from tilemma.ir.effects import element_reads
from tilemma.ir.expr import FragmentElement
from tilemma.ir.tiles import written
from tilemma.ir.walk import bodies, rewrite, walk
from tilemma.passes.advice import for_wait
from tilemma.passes.decision import Decision
from tilemma.records import record


class AccumulatorNotAwaited(CompileError):
    code = "accumulator-not-awaited"
    found = "`{name}` is read here while a multiply into it may still be under way"
    expected = "a `wait` for the multiply's future before the accumulator is read"
    fix = "{remedy}, or leave `.async` out of the multiply"
    python_fix = "{remedy}, or leave `async_=True` out of the multiply"


class MultiplyNeverAwaited(CompileError):
    code = "multiply-never-awaited"
    found = "nothing waits for this asynchronous multiply into `{name}`"
    expected = "a `wait` for its future"
    fix = "name the result, `f = mma...async ...`, and write `wait f`; or leave `.async` out"
    python_fix = "name the result, `f = mma...(..., async_=True)`, and write `wait(f)`; or leave `async_=True` out"


@record(frozen=False, slots=False)
class _Order:
    """A walk in program order: the multiplies not yet waited for, by accumulator, and the futures waited for."""

    pending: dict[str, t.Mma] = field(default_factory=dict)
    awaited: set[str] = field(default_factory=set)

    def visit(self, body: t.Body) -> None:
        for op in body:
            match op:
                case t.Mma(future=str()):
                    self.pending[op.acc.name] = op
                case t.WaitFuture(futures=names):
                    self.awaited |= set(names)
                    self.pending = {a: m for a, m in self.pending.items() if m.future not in names}
                case t.Store(fragment=ref) | t.Apply(fragment=ref) | t.ScaleMma(acc=ref) | t.Reduce(src=ref):
                    self._read(ref.name, op)
            for x in element_reads(op):
                if isinstance(x, FragmentElement):
                    self._read(x.fragment, op)
            if isinstance(op, t.If):
                before = self.pending
                ways = [self._way(inner, before) for _, inner in bodies(op)]
                self.pending = {a: m for way in ways for a, m in way.items()}
                continue
            for _, inner in bodies(op):
                for _ in range(2 if isinstance(op, (t.For, t.While)) else 1):
                    self.visit(inner)

    def _read(self, name: str, op: t.Op) -> None:
        """Raises AccumulatorNotAwaited where ``op`` reads the register tile ``name`` too early."""
        if name in self.pending:
            multiply = self.pending[name]
            remedy = for_wait(written(str(multiply.future)), op.span)
            notes = [Note("the multiply", multiply.span)]
            raise AccumulatorNotAwaited(op.span, name=name, remedy=remedy, notes=notes)

    def _way(self, body: t.Body, before: dict[str, t.Mma]) -> dict[str, t.Mma]:
        """The multiplies that are pending after one branch of an `if`."""
        self.pending = dict(before)
        self.visit(body)
        return self.pending


@record(slots=False)
class AwaitMultiplies:
    """Checks and removes the futures of multiplies."""

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        """Raises AccumulatorNotAwaited or MultiplyNeverAwaited."""
        multiplies = [op for op in walk(kernel.body) if isinstance(op, t.Mma) and op.future is not None]
        if not multiplies:
            return kernel
        order = _Order()
        order.visit(kernel.body)
        for m in multiplies:
            if m.future not in order.awaited:
                raise MultiplyNeverAwaited(m.span, name=m.acc.name)
        futures = {m.future for m in multiplies}

        def strip(op: t.Op) -> t.Op | t.Body:
            if isinstance(op, t.Mma) and op.future is not None:
                # A group of its own: a wait for an older multiply leaves this one under way.
                return replace(op, future=None), t.Commit(span=op.span)
            if isinstance(op, t.WaitFuture):
                rest = tuple(f for f in op.futures if f not in futures)
                return replace(op, futures=rest) if rest else ()
            return op

        return replace(kernel, body=rewrite(kernel.body, strip))
