"""Expands copies that transpose, pad or drop unit dimensions into copies between views."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilemma.ir.expr import Const, Expr, Index, add, binary, const, floordiv, mod, mul, value_of
from tilemma.ir.tile import Copy, For, If, Kernel, Op, Parallel, SetElement
from tilemma.ir.types import THREAD, Axis, Space, View
from tilemma.ir.walk import rewrite, walk
from tilemma.passes.decision import Decision
from tilemma.passes.scope import Dependence, Site, block_threads, control, count, kind, sites
from tilemma.passes.unsupported import NotBuilt
from tilemma.records import record


@record(slots=False)
class ExpandCopies:
    """Removes `Copy.transpose` and `Copy.pad`, and gives both sides of a copy the same rank.

    A transposed source is a view with its axes in another order.  A padded copy is a fill of the destination
    by all threads that share it, and a copy to every (inner + 1)-th element of it from ``low`` on.
    """

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises NotBuilt for padding into extents that are not constants."""
        names = _Names(kernel)
        dependence = Dependence(kernel.body)
        expanded: dict[int, tuple[Op, ...]] = {}
        for site in sites(kernel.body):
            op = site.op
            if not isinstance(op, Copy):
                continue
            before: list[Op] = []
            if any(p != (0, 0, 0) for p in op.pad) and site.block is not None:
                before.append(_fill(op, site, dependence, names))
                text = "the destination is filled first, then the source copied to its places"
                log.append(Decision("copies", f"{op.src.base.name} => {op.dst.base.name}", text, span=op.span))
            expanded[id(op)] = (*before, _plain(op))
        return replace(kernel, body=rewrite(kernel.body, lambda op: expanded.get(id(op), op)))


def _plain(op: Copy) -> Copy:
    """``op`` with transposition and padding in its views."""
    if op.transpose is not None:
        axes = tuple(op.src.axes[i] for i in op.transpose)
        op = replace(op, src=replace(op.src, axes=axes), transpose=None)
    if op.pad:
        op = replace(op, dst=_spread(op.dst, op.pad), pad=(), pad_value=None)
    if op.rearranges:
        op = replace(op, src=_squeezed(op.src), dst=_squeezed(op.dst))
    return op


def _spread(view: View, pad: tuple[tuple[int, int, int], ...]) -> View:
    """The places of the source's elements in a padded destination."""
    axes: list[Axis] = []
    for i, (low, high, inner) in enumerate(pad):
        a = view.axes[i]
        view = view.shift(i, low)
        room = add(a.extent, const(inner - low - high))
        axes.append(replace(a, extent=floordiv(room, inner + 1), step=mul(a.step, inner + 1)))
    return replace(view, axes=tuple(axes))


def _squeezed(view: View) -> View:
    axes = tuple(a for a in view.axes if value_of(a.extent) != 1)
    return replace(view, axes=axes or view.axes[-1:])


def _fill(op: Copy, site: Site, dependence: Dependence, names: _Names) -> Op:
    """``dst`` filled with the padding, each element by one of the threads that have it in common."""
    shape = [n for e in op.dst.shape if (n := value_of(e)) is not None]
    if len(shape) != len(op.dst.shape):
        what = "`dma.pad` into extents known only at run time"
        remedy = "pad into a buffer or a tile of known extents"
        raise NotBuilt(op.span, what=what, arch="any target", remedy=remedy)
    if op.dst.base.space is Space.LOCAL:
        # Each thread has a buffer of its own.
        return _elements(op, shape, const(0), 1, names)
    instance, instances = _shared_by(op, site, dependence)
    inner = site.inner[-1] if site.inner else None
    if inner is not None and kind(inner) == "thread":
        return _elements(op, shape, instance, instances, names)
    assert site.block is not None
    threads = block_threads(site.block)
    if inner is not None and inner.level is not None:
        threads = inner.level.threads
    lane = Index(names("lane"), const(threads))
    thread = add(mul(instance, threads), lane)
    return Parallel((lane,), (_elements(op, shape, thread, instances * threads, names),), THREAD, span=op.span)


def _shared_by(op: Copy, site: Site, dependence: Dependence) -> tuple[Expr, int]:
    """The number of the instance here among those that fill one destination together, and how many they are."""
    mine = set().union(*(dependence.of(e) for v in (op.src, op.dst) for e in v.expressions()))
    number: Expr = const(0)
    total = 1
    for p in site.inner:
        inside = site.parents[site.parents.index(p) + 1 :]
        decided = set().union(*(dependence.closure(control(q)) for q in inside))
        if {i.name for i in p.indices} & (mine | decided):
            number, total = const(0), 1
            continue
        for i in p.indices:
            number = add(mul(number, i.extent), i)
        total *= count(p) or 1
    return number, total


def _elements(op: Copy, shape: list[int], first: Expr, step: int, names: _Names) -> Op:
    """Elements first, first + step, ... of the destination, row-major, set to the padding."""
    total = prod(shape)
    trip_count = -(-total // step)
    iteration = Index(names("fill"), const(trip_count))
    number = add(mul(iteration, step), first)
    rest, at = number, []
    for n in reversed(shape):
        at.append(mod(rest, n))
        rest = floordiv(rest, n)
    zero = Const(0.0 if op.dst.dtype.is_float else 0, op.dst.dtype)
    value = zero if op.pad_value is None else op.pad_value
    write: Op = SetElement(op.dst.element(tuple(reversed(at))), value, span=op.span)
    if total % step:
        write = If(binary("lt", number, total), (write,), span=op.span)
    return For(iteration, const(0), const(trip_count), const(1), (write,), span=op.span)


class _Names:
    """Index names that the kernel does not use yet."""

    def __init__(self, kernel: Kernel) -> None:
        self._used = {i.name for op in walk(kernel.body) if isinstance(op, Parallel) for i in op.indices}
        self._used |= {op.index.name for op in walk(kernel.body) if isinstance(op, For)}

    def __call__(self, name: str) -> str:
        found, n = name, 0
        while found in self._used:
            n += 1
            found = f"{name}.{n}"
        self._used.add(found)
        return found
