"""Expansion of scaled multiplies: the product goes to an accumulator of its own, which is added scaled.

::

    mma.row.row.scale mc, a, b, sa, sb   =>   fill part, 0
                                              mma part, a, b
                                              mc[i, j] = fma(part[i, j], sa[i] * sb[j], mc[i, j])

    fill mc, v                           =>   fill mc, v;  fill part, 0
    mma mc, a, b                              mma part, a, b
    mma.scale mc, sa, sb                      mc[i, j] = fma(part[i, j], sa[i] * sb[j], mc[i, j]);  fill part, 0
    store mc                                  mc[i, j] += part[i, j];  fill part, 0;  store mc

Where an `mma.scale` may follow the store, the part stays as it is, and a copy is stored: whole[i, j] = mc[i, j] +
part[i, j].
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce

from tilemma.dtypes import f32
from tilemma.ir import tile as t
from tilemma.ir.checks import SCALE_BLOCK, checked_scale
from tilemma.ir.expr import Call, Cast, Const, Element, Expr, FragmentElement, Index, binary, const, with_operands
from tilemma.ir.types import View
from tilemma.ir.walk import map_expressions, rewrite, walk, with_bodies
from tilemma.passes.check_scales import accumulators_used, assigns, scaled_later
from tilemma.passes.decision import Decision
from tilemma.records import record


@record(slots=False)
class ExpandScales:
    """Replaces `ScaleMma` and the scales of `Mma` by element work on a second accumulator."""

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        found = _Scaled(kernel)
        beside = [*found.sums.items(), *found.products.items()]
        if not beside:
            return kernel
        for name, part in beside:
            text = f"products are summed in {part.name} ({part.dtype}), and added scaled"
            log.append(Decision("scales", name, text))
        return replace(kernel, body=rewrite(kernel.body, found.expanded))


def is_scaled(op: t.Op) -> bool:
    """Whether ``op`` is a multiply whose product is scaled before it is added."""
    return isinstance(op, t.Mma) and not (op.scale_a is None and op.scale_b is None and op.factor is None)


class _Scaled:
    """The accumulators that take scaled products, and the declarations of additional ones.

    ``sums`` are products that wait for a later `mma.scale`, ``products`` those of one scaled multiply, ``wholes``
    copies of accumulators with their sums.  ``kept``: the operations that read such a copy.
    """

    def __init__(self, kernel: t.Kernel) -> None:
        operations = list(walk(kernel.body))
        self.fast = {op.fragment.name for op in operations if isinstance(op, t.Fill) and op.fast}
        self.declared = {op.name: op for op in operations if isinstance(op, t.DeclareFragment)}
        later = [op.acc.name for op in operations if isinstance(op, t.ScaleMma)]
        fused = [op.acc.name for op in operations if isinstance(op, t.Mma) and is_scaled(op)]
        self.sums = {name: self._beside(name, "sum") for name in dict.fromkeys(later)}
        self.products = {name: self._beside(name, "product") for name in dict.fromkeys(fused)}
        used = dict.fromkeys(ref for op in operations for ref in accumulators_used(op) if ref.name in self.sums)
        self.kept = {ref: scaled_later(kernel.body, ref) for ref in used}
        copied = [ref.name for op in operations for ref in used if self._reads_copy(op, ref)]
        self.wholes = {name: self._beside(name, "whole", narrow=True) for name in dict.fromkeys(copied)}
        self._index = 0

    def _reads_copy(self, op: t.Op, acc: t.FragmentRef) -> bool:
        """Whether ``op`` reads ``acc`` while its sum stays as it is, for a later `mma.scale`."""
        return id(op) in self.kept[acc] and not assigns(op, acc)

    def _beside(self, name: str, what: str, narrow: bool = False) -> t.DeclareFragment:
        whole = self.declared[name]
        fresh = next(
            n for i in range(len(self.declared) + 1) if (n := f"{name}.{what}{i or ''}") not in self.declared
        )
        assert whole.dtype is not None and whole.shape is not None, whole
        dtype = f32 if whole.dtype.is_float and whole.dtype.bits < 32 and not narrow else whole.dtype
        self.declared[fresh] = made = replace(whole, name=fresh, dtype=dtype)
        return made

    def expanded(self, op: t.Op) -> t.Op | t.Body:
        match op:
            case t.DeclareFragment(name=name) if name in self.sums or name in self.products:
                beside = (self.sums, self.products, self.wholes)
                return (op, *(x[name] for x in beside if name in x))
            case t.Fill(fragment=f) | t.Load(fragment=f) if f.name in self.sums:
                return (op, self._cleared(f, self.sums[f.name], op))
            case t.Mma(acc=acc) if is_scaled(op):
                product = self.products[acc.name]
                multiply = replace(op, acc=_named(acc, product), scale_a=None, scale_b=None, factor=None)
                return (self._cleared(acc, product, op), multiply, self._added(self._sum(acc), product, op))
            case t.Mma(acc=acc) if acc.name in self.sums:
                return replace(op, acc=self._sum(acc))
            case t.ScaleMma(acc=acc):
                total = self.sums[acc.name]
                return (self._added(acc, total, op), self._cleared(acc, total, op))
        used = [ref for ref in accumulators_used(op) if ref.name in self.sums]
        kept = [ref for ref in used if self._reads_copy(op, ref)]
        settled = [x for ref in used if ref not in kept for x in self._settled(ref, op)]
        copies = [x for ref in kept for x in self._copied(ref, op)]
        return (*settled, *copies, self._of_copies(op, kept)) if used else op

    def _sum(self, acc: t.FragmentRef) -> t.FragmentRef:
        """The fragment in which products that go to ``acc`` are summed."""
        return _named(acc, self.sums[acc.name]) if acc.name in self.sums else acc

    def _settled(self, acc: t.FragmentRef, op: t.Op) -> t.Body:
        total = self.sums[acc.name]
        return (self._added(acc, total, op), self._cleared(acc, total, op))

    def _copied(self, acc: t.FragmentRef, op: t.Op) -> t.Body:
        """``whole = acc + sum``."""
        whole, total = self.wholes[acc.name], self.sums[acc.name]
        return (self._cleared(acc, whole, op), self._added(acc, total, op, _named(acc, whole)))

    def _of_copies(self, op: t.Op, kept: list[t.FragmentRef]) -> t.Op:
        """``op``, and what is inside it, on the copies of ``kept``."""
        if not kept:
            return op

        def of_copy(e: Expr) -> Expr:
            if isinstance(e, FragmentElement) and t.FragmentRef(e.fragment, e.index) in kept:
                e = replace(e, fragment=self.wholes[e.fragment].name)
            return with_operands(e, of_copy)

        changed = with_bodies(map_expressions(op, of_copy), lambda b: tuple(self._of_copies(x, kept) for x in b))
        match changed:
            case t.Store(fragment=f) | t.Apply(fragment=f) if f in kept:
                return replace(changed, fragment=_named(f, self.wholes[f.name]))
            case t.Reduce(src=f) if f in kept:
                return replace(changed, src=_named(f, self.wholes[f.name]))
        return changed

    def _cleared(self, acc: t.FragmentRef, part: t.DeclareFragment, op: t.Op) -> t.Fill:
        assert part.dtype is not None
        fast = acc.name in self.fast
        return t.Fill(_named(acc, part), Const(0.0, part.dtype), part.dtype, fast, span=op.span)

    def _added(
        self, acc: t.FragmentRef, part: t.DeclareFragment, op: t.Op, into: t.FragmentRef | None = None
    ) -> t.Apply:
        """``into[i, j] = acc[i, j] + part[i, j]`` (``into`` None: ``acc``), times the scales of ``op`` if it has
        any, in the type of the part."""
        whole = self.declared[acc.name].dtype
        assert part.dtype is not None and part.shape is not None and whole is not None, part
        self._index += 1
        i, j = (Index(f"{axis}.scaled{self._index}", const(n)) for axis, n in zip("ij", part.shape, strict=True))
        value: Expr = FragmentElement(part.name, (i, j), part.dtype, acc.index)
        before = Cast(FragmentElement(acc.name, (i, j), whole, acc.index), part.dtype)
        total = binary("add", before, value)
        if isinstance(op, (t.Mma, t.ScaleMma)):
            given = (("A", op.scale_a, i), ("B", op.scale_b, j))
            # A sum of integers is scaled in f32, and rounded to the nearest integer before it is added.
            dtype = part.dtype if part.dtype.is_float else f32
            scales: list[Expr] = [Cast(Element(_element(x, v, at)), dtype) for x, v, at in given if v is not None]
            scales += [Cast(op.factor, dtype)] if op.factor is not None else []
            if scales:
                scale = reduce(partial(binary, "mul"), scales)
                if part.dtype.is_float:
                    total = Call("fmaf", (value, scale, before))
                else:
                    total = binary("add", before, Cast(binary("mul", Cast(value, dtype), scale), part.dtype))
        into = acc if into is None else into
        body = (t.SetFragmentElement(into, Cast(total, whole), span=op.span),)
        return t.Apply(into, (i, j), body, span=op.span)


def _named(acc: t.FragmentRef, part: t.DeclareFragment) -> t.FragmentRef:
    return replace(acc, name=part.name)


def _element(letter: str, view: View, at: Index) -> View:
    """The number of a scale for row or column ``at``; the contracts are checked, and K has one block."""
    assert isinstance(at.extent, Const)
    shape = view.static_shape
    assert shape is not None
    axes = checked_scale(letter, shape, int(at.extent.value), 1, None)
    found = {"each": at, "block": binary("div", at, const(SCALE_BLOCK)), "one": const(0)}
    chosen = iter(axes)
    return view.element(
        tuple(const(0) if n == 1 and len(axes) < len(shape) else found[next(chosen)] for n in shape)
    )
