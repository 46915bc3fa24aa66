"""Checks that `mma.scale` follows products, and finds the uses of an accumulator that precede its `mma.scale`.

`mma.scale` scales the products since the fill or load of the accumulator, the last assignment to its elements, or
the last `mma.scale`: each of these *ends* the sum.  A read does not.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilemma.dtypes import f32, f64
from tilemma.errors import CompileError, Note
from tilemma.ir import tile as t
from tilemma.ir.checks import checked_constant
from tilemma.ir.expr import Binary, Const, Expr, value_of
from tilemma.ir.walk import bodies, jumps, walk
from tilemma.passes.contraction import fragment_uses
from tilemma.passes.decision import Decision
from tilemma.records import record


class ScaleWithoutProducts(CompileError):
    code = "scale-without-products"
    found = "`mma.scale` of `{name}`, into which nothing is multiplied since {since}"
    expected = (
        "a multiply into `{name}` before it: `mma.scale` scales the products since then (docs/language.md, Scales)"
    )
    fix = "write `mma.scale` directly after the multiplies that it scales"


@record(slots=False)
class CheckScales:
    """Changes nothing.  Loops are taken to run, and each branch of an `if` is taken to be possible."""

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        """Raises ScaleWithoutProducts, or ConstantValue for a number that is none of the type of the scales."""
        types = {op.name: op.dtype for op in walk(kernel.body) if isinstance(op, t.DeclareFragment)}
        for op in walk(kernel.body):
            if isinstance(op, (t.Mma, t.ScaleMma)) and op.factor is not None:
                wide = types.get(op.acc.name) is f64
                for number in _constants(op.factor):
                    checked_constant(number, f64 if wide else f32, op.span)
        for acc in dict.fromkeys(op.acc for op in walk(kernel.body) if isinstance(op, t.ScaleMma)):
            _follow(kernel.body, acc, None)
        return kernel


def _constants(factor: Expr) -> Iterator[Expr]:
    """The numbers that ``factor`` is a product of, and the product of two that are constants."""
    if isinstance(factor, Binary) and factor.op == "mul":
        yield from (factor.a, factor.b)
        if isinstance(factor.a, Const) and isinstance(factor.b, Const):
            yield Const(float(factor.a.value) * float(factor.b.value), factor.type)
    else:
        yield factor


def accumulators_used(op: t.Op) -> tuple[t.FragmentRef, ...]:
    """The register tiles that a store, a reduction, or an `apply` with all that is in it reads or assigns."""
    if not isinstance(op, (t.Store, t.Reduce, t.Apply)):
        return ()
    return tuple(dict.fromkeys(ref for x in walk((op,)) for _, ref in fragment_uses(x)))


def assigns(op: t.Op, acc: t.FragmentRef) -> bool:
    """Whether ``op`` is an `apply` that assigns elements of ``acc``."""
    return isinstance(op, t.Apply) and any(
        isinstance(x, t.SetFragmentElement) and x.fragment == acc for x in walk(op.body)
    )


def _may_be(one: t.FragmentRef, other: t.FragmentRef) -> bool:
    """Whether both may be one tile: subscripts may be indices of loops."""
    subscripts = [(value_of(i), value_of(j)) for i, j in zip(one.index, other.index, strict=False)]
    return one.name == other.name and all(i is None or j is None or i == j for i, j in subscripts)


def _is(one: t.FragmentRef, other: t.FragmentRef) -> bool:
    """Whether both are one tile, in every iteration."""
    return one == other and all(value_of(i) is not None for i in one.index)


def _ends_sum(op: t.Op, acc: t.FragmentRef) -> bool:
    match op:
        case t.Fill(fragment=f) | t.Load(fragment=f):
            return _is(f, acc) or (f.name == acc.name and not f.index)
        case t.ScaleMma(acc=f):
            return _is(f, acc)
    return assigns(op, acc) and _is(acc, acc)


def _follow(body: t.Body, acc: t.FragmentRef, ended: t.Op | None, check: bool = True) -> t.Op | None:
    """The operation that ended the sum before the end of ``body``; None if a multiply may have followed."""
    for op in body:
        match op:
            case t.Mma(acc=into) if _may_be(into, acc):
                ended = None
            case t.ScaleMma(acc=into) if _is(into, acc) and ended is not None and check:
                raise _without_products(op, ended)
            case t.For() | t.While() if jumps(op):
                _follow(op.body, acc, None, check)
                ended = None
            case t.For() | t.While():
                last = _follow(op.body, acc, ended, check=False)
                ended = _follow(op.body, acc, last and ended, check)
            case t.If() | t.InThreads():
                ways = [_follow(inner, acc, ended, check) for _, inner in bodies(op)]
                ways += [ended] if isinstance(op, t.InThreads) else []
                ended = None if None in ways else ways[0]
            case _ if not _ends_sum(op, acc):
                for _, inner in bodies(op):
                    ended = _follow(inner, acc, ended, check)
        if _ends_sum(op, acc):
            ended = op
    return ended


def _without_products(op: t.ScaleMma, ended: t.Op) -> ScaleWithoutProducts:
    since, note = {
        t.Fill: ("its fill", "the fill"),
        t.Load: ("its load", "the load"),
        t.ScaleMma: ("the last `mma.scale`", "the last `mma.scale`"),
        t.Apply: ("its elements were assigned", "the assignment"),
    }[type(ended)]
    return ScaleWithoutProducts(op.span, name=op.acc.name, since=since, notes=[Note(note, ended.span)])


def scaled_later(body: t.Body, acc: t.FragmentRef) -> set[int]:
    """The identities of the operations of ``body`` that use ``acc`` while its sum may still be scaled."""
    found: set[int] = set()
    _kept(body, acc, False, found)
    return found


def _kept(body: t.Body, acc: t.FragmentRef, kept: bool, found: set[int]) -> bool:
    """Whether an `mma.scale` may follow the start of ``body`` before the sum ends, ``kept``: so at its end."""
    for op in reversed(body):
        match op:
            case t.ScaleMma(acc=into) if _may_be(into, acc):
                kept = True
                continue
            case t.Break() | t.Continue():
                kept = True
                continue
            case t.For() | t.While():
                once = _kept(op.body, acc, kept, found)
                kept = _kept(op.body, acc, kept or once, found) or kept
                continue
            case t.If() | t.InThreads():
                ways = [_kept(inner, acc, kept, found) for _, inner in bodies(op)]
                kept = any(ways) or (kept and isinstance(op, t.InThreads))
                continue
        if kept and acc in accumulators_used(op):
            found.add(id(op))
        if _ends_sum(op, acc):
            kept = False
        elif not isinstance(op, t.Apply):
            for _, inner in reversed(bodies(op)):
                kept = _kept(inner, acc, kept, found)
    return kept
