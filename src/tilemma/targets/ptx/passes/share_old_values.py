"""Broadcast of the old values of atomics through shared memory, where more than a warp executes the atomic.

::

    v = atomic.add x[i], 1      =>      one = atomic.add x[i], 1      (of the thread that acts)
                                        v_shared[n] = one
                                        v = v_shared[n]

n is the number of the instance; the synchronisation pass orders the two accesses.
"""

from __future__ import annotations

from dataclasses import replace

from tilemma.ir.expr import Const, Element, Expr, Var, add, const, mul
from tilemma.ir.tile import Alloc, Apply, Assign, Atomic, Body, Declare, Kernel, Op, Parallel, SetElement
from tilemma.ir.types import WARP, Buffer, Space
from tilemma.ir.walk import rewrite_blocks, walk, with_bodies
from tilemma.passes.decision import Decision
from tilemma.passes.scope import block_threads, kind, span_threads
from tilemma.records import record


@record(slots=False)
class ShareOldValues:
    """Passes the old values of atomics of large instances through shared memory."""

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        if not any(isinstance(op, Atomic) and op.result is not None for op in walk(kernel.body)):
            return kernel

        def shared(block: Parallel) -> Op:
            found: list[Alloc] = []
            body = _visit(block.body, block_threads(block), const(0), 1, found)
            for alloc in found:
                text = "its threads have the old value through shared memory"
                log.append(Decision("atomics", alloc.buffer.name, text))
            return replace(block, body=(*found, *body)) if found else block

        return rewrite_blocks(kernel, shared)


def _visit(body: Body, threads: int, number: Expr, count: int, found: list[Alloc]) -> Body:
    """``body`` of an instance of so many threads, the one with this ``number`` of ``count``."""
    out: list[Op] = []
    for op in body:
        if isinstance(op, Parallel) and op.level is not None and kind(op) in ("group", "thread"):
            instances = span_threads(op) // op.level.threads
            inner: Expr = const(0)
            for i in op.indices:
                inner = add(mul(inner, i.extent), i)
            within = add(mul(number, instances), inner)
            inside = _visit(op.body, op.level.threads, within, count * instances, found)
            out.append(op if inside is op.body else replace(op, body=inside))
        elif isinstance(op, Atomic) and op.result is not None and threads > WARP:
            out += _through_shared(op, op.result, number, count, found)
        elif isinstance(op, Apply):
            # Each lane executes the body for its own elements, and has its own old values.
            out.append(op)
        else:
            out.append(with_bodies(op, lambda inner: _visit(inner, threads, number, count, found)))
    same = len(out) == len(body) and all(a is b for a, b in zip(out, body, strict=True))
    return body if same else tuple(out)


def _through_shared(op: Atomic, result: Var, number: Expr, count: int, found: list[Alloc]) -> list[Op]:
    name = f"{result.name}_shared" + (f"_{len(found)}" if found else "")
    buffer = Buffer(name, result.dtype, (const(count),), Space.SHARED)
    found.append(Alloc(buffer, span=op.span))
    one = Var(f"{name}_one", result.dtype)
    place = buffer.whole().element((number,))
    return [
        Declare(one, Const(0.0 if one.dtype.is_float else 0, one.dtype), span=op.span),
        replace(op, result=one),
        SetElement(place, one, span=op.span),
        Assign(result, Element(place), span=op.span),
    ]
