"""Asynchronous copies whose data somebody waits for: on every way through the kernel, each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from tilemma.errors import CompileError
from tilemma.ir.tile import (
    Body,
    Copy,
    For,
    If,
    Kernel,
    Op,
    SwapFutures,
    TriggerEvent,
    WaitFuture,
    While,
)
from tilemma.ir.types import Space
from tilemma.ir.walk import bodies, walk
from tilemma.passes.decision import Decision


class NeverWaitedFor(CompileError):
    code = "future-never-waited-for"
    found = "nothing waits for {which} to `{name}`"
    expected = "a `wait` for its future, or for the event that it completes, before the kernel ends"
    fix = "name the result, `f = tma.copy.async ...`, and write `wait f`{where}; or leave `.async` out"


@dataclass(frozen=True)
class CheckFutures:
    """Changes nothing.  What stands under an `if` is given the benefit of the doubt, as the conditions that start
    and await a copy may be the same; loops are taken to run."""

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises NeverWaitedFor."""
        awaited = {f for op in walk(kernel.body) for f in _awaited(op)}
        for op in walk(kernel.body):
            if isinstance(op, SwapFutures) and awaited & set(op.futures):
                awaited |= set(op.futures)
        for op in walk(kernel.body):
            if _starts(op) and op.future not in awaited:
                raise NeverWaitedFor(op.span, name=op.dst.base.name, which="this asynchronous copy", where="")
        started: Started = {}
        _follow(kernel.body, started, certain=True)
        for copies in started.values():
            which = "the last of these asynchronous copies"
            raise NeverWaitedFor(copies[0].span, name=copies[0].dst.base.name, which=which, where=" at the end")
        return kernel


# The copies that each name may stand for and that nothing has waited for yet.
Started = dict[str, tuple[Copy, ...]]


def _awaited(op: Op) -> tuple[str, ...]:
    match op:
        case WaitFuture(futures=names):
            return names
        case TriggerEvent(after=names) | Copy(after=names):
            return names
    return ()


def _follow(body: Body, started: Started, certain: bool) -> None:
    """``body`` once, changing ``started``; ``certain``: it runs whenever what is around it does."""
    for op in body:
        for name in _awaited(op):
            started.pop(name, None)
        match op:
            case Copy(future=str() as name) if certain and _starts(op):
                started[name] = (op,)
            case SwapFutures(futures=names):
                held = [started.pop(n, ()) for n in names]
                for name, copies in zip(names, (*held[1:], held[0]), strict=True):
                    if copies:
                        started[name] = copies
            case For() | While():
                _turns(op, started, certain)
            case _:
                for _, inner in bodies(op):
                    _follow(inner, started, certain and not isinstance(op, If))


def _turns(loop: For | While, started: Started, certain: bool) -> None:
    """Turns until every name of a rotation has stood for every copy, and what any of them may leave."""
    swaps = [op for op in walk(loop.body) if isinstance(op, SwapFutures)]
    left: Started = {}
    for _ in range(1 + max((len(s.futures) for s in swaps), default=1)):
        _follow(loop.body, started, certain)
        for name, copies in started.items():
            left[name] = tuple(dict.fromkeys((*left.get(name, ()), *copies)))
    started.clear()
    started.update(left)


def _starts(op: Op) -> TypeGuard[Copy]:
    """Whether ``op`` is a copy whose future tells when its data is there; stores end with their kernel."""
    if not isinstance(op, Copy) or not op.asynchronous or op.event is not None or op.future is None:
        return False
    return op.dst.base.space is not Space.GLOBAL
