"""Merge a peeled epilogue: the last multiplies of a pipelined loop become one more iteration of it.

A loop that copies the next tile while it multiplies the current one leaves the last tile to an epilogue, which
repeats the loop's body without the copies.  One more iteration does the same, with half the code::

    for k in a..b:                          for k in a..max(a, b) + 1:
        copy .. tile k .. => s                  copy .. tile k .. => s
        wait t; multiply t           =>         wait t; multiply t
        rotate t, s                             rotate t, s
    wait t; multiply t                      wait t

Tile b lies outside its array: it is filled with zeros without a read, and the zeros are never read.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.ir import tile as t
from tilemma.ir.effects import awaited, element_reads, rotated
from tilemma.ir.expr import Index, binary, const, depends_on, substitute, value_of
from tilemma.ir.types import Space
from tilemma.ir.walk import map_expressions, rewrite, touched, walk, with_bodies, with_fields
from tilemma.passes.decision import Decision
from tilemma.records import record, replace

# The operations of an epilogue: they change neither memory that outlives it nor control flow.
_MULTIPLIES = (t.WaitFuture, t.Parallel, t.For, t.DeclareFragment, t.Load, t.Mma)


@record(slots=False)
class MergePeeledEpilogue:
    """Adds an iteration to loops that copy ahead, in place of the same multiplies after them."""

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        def settle(body: t.Body) -> t.Body:
            out = list[t.Op]()
            rest = [with_bodies(op, settle) for op in body]
            while rest:
                op = rest.pop(0)
                iteration = _iteration(op) if isinstance(op, t.For) else None
                if isinstance(op, t.For) and iteration is not None and _continues(op, iteration, out, rest):
                    tail, rest = rest[: len(iteration.multiplies)], rest[len(iteration.multiplies) :]
                    text = "one more iteration in place of the multiplies after the loop"
                    log.append(Decision("tail", op.index.name, text, span=op.span))
                    out += [_longer(op), *(x for x in tail if isinstance(x, t.WaitFuture))]
                else:
                    out.append(op)
            return tuple(out)

        folded = settle(kernel.body)
        return kernel if folded == kernel.body else replace(kernel, body=folded)


@record
class _Iteration:
    """An iteration: ``copies`` into its own buffers or those of the enclosing body, ``multiplies``,
    ``rotations``."""

    copies: tuple[t.Copy, ...]
    multiplies: t.Body
    rotations: t.Body


def _iteration(loop: t.For) -> _Iteration | None:
    first = next((i for i, x in enumerate(loop.body) if not isinstance(x, (t.Alloc, t.Copy))), None)
    if first is None:
        return None
    last = next((i for i, x in enumerate(loop.body) if rotated(x)), None)
    if last is None or not all(map(rotated, loop.body[last:])):
        return None
    multiplies = loop.body[first:last]
    if not all(isinstance(x, _MULTIPLIES) for x in walk(multiplies)):
        return None
    copies = tuple(x for x in loop.body[:first] if isinstance(x, t.Copy))
    return _Iteration(copies, multiplies, loop.body[last:])


def _continues(loop: t.For, iteration: _Iteration, before: Sequence[t.Op], after: Sequence[t.Op]) -> bool:
    """Whether ``after`` begins with another iteration of ``loop`` without its copies, whose data is then never
    read."""
    count = len(iteration.multiplies)
    tail, rest = tuple(after[:count]), tuple(after[count:])
    if value_of(loop.step) != 1 or not iteration.copies or _plain(iteration.multiplies) != _plain(tail):
        return False
    if not all(_ends_with(loop, c) for c in iteration.copies):
        return False
    futures = {c.future: c.future for c in iteration.copies if c.future is not None}
    for swap in iteration.rotations:
        old = rotated(swap)
        names = dict(zip((*old[1:], old[0]), old, strict=True))
        futures = {f: names.get(now, now) for f, now in futures.items()}
    finished = {f for x in tail for f in awaited(x)}
    if not set(futures.values()) <= finished:
        return False
    # The buffers end with the body that contains the loop; the operations after it there use other buffers.
    declared = {x.buffer.name for x in (*before, *loop.body) if isinstance(x, t.Alloc)}
    used = {v.base.name for x in walk((*iteration.copies, *iteration.multiplies)) for v in touched(x)}
    shared = {v.base.name for x in walk(loop.body) for v in touched(x) if v.base.space is not Space.GLOBAL}
    later = {v.base.name for x in walk(rest) for v in touched(x)}
    named = {f for x in walk(rest) for f in (*awaited(x), *rotated(x))}
    return shared <= declared and not (used & shared & later) and not named & {*finished, *futures}


def _ends_with(loop: t.For, copy: t.Copy) -> bool:
    """Whether ``c`` is a plain asynchronous copy to one place, whose tiles lie outside its array after the end of
    ``loop``.

    Their position is not read from memory: the position of tile b in a table may lie outside the table.
    """
    if copy.engine != "dma" or copy.future is None or copy.event is not None or copy.after or copy.pad:
        return False
    if copy.src.base.space is not Space.GLOBAL or copy.src.reshape is not None or copy.transpose is not None:
        return False
    if copy.dst.base.space is Space.GLOBAL or any(
        depends_on(e, {loop.index.name}) for e in copy.dst.expressions()
    ):
        return False
    if element_reads(copy):
        return False
    for offset, extent in zip(copy.src.offsets, copy.src.base.shape, strict=True):
        first, second, third = (value_of(substitute(offset, {loop.index.name: const(n)})) for n in range(3))
        if first is None or second is None or third is None or first < 0:
            continue
        # With a step of 0 or less the stop would be one of a loop without iterations.
        step = second - first
        if third - second == step and loop.stop == binary("cdiv", extent, const(step)):
            return True
    return False


def _longer(loop: t.For) -> t.For:
    """``loop`` with one more iteration, and with one where it had none."""
    stop = binary("add", binary("max", loop.stop, loop.start), const(1))
    index = replace(loop.index, extent=stop)

    def renewed(op: t.Op) -> t.Op:
        return map_expressions(op, lambda e: substitute(e, {index.name: index}))

    return replace(loop, index=index, stop=stop, body=rewrite(loop.body, renewed))


def _plain(body: t.Body) -> t.Body:
    """``body`` with its own indices and fragments renumbered, for comparison."""
    indices, fragments = dict[str, Index](), dict[str, str]()
    for op in walk(body):
        for i in op.indices if isinstance(op, t.Parallel) else (op.index,) if isinstance(op, t.For) else ():
            indices[i.name] = replace(i, name=f"index {len(indices)}")
        if isinstance(op, t.DeclareFragment):
            fragments[op.name] = f"fragment {len(fragments)}"

    def numbered(op: t.Op) -> t.Op:
        op = map_expressions(op, lambda e: substitute(e, dict(indices)))
        if isinstance(op, t.DeclareFragment):
            return replace(op, name=fragments[op.name])
        changes = {}
        for name in ("fragment", "acc", "a", "b", "meta"):
            ref = getattr(op, name, None)
            if isinstance(ref, t.FragmentRef):
                changes[name] = replace(ref, name=fragments.get(ref.name, ref.name))
        return with_fields(op, changes)

    return rewrite(body, numbered)
