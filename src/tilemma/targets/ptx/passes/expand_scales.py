"""Expansion of scaled multiplies: the product goes to an accumulator of its own, which is added scaled.

::

    mma.row.row.scale mc, a, b, sa, sb   =>   fill part, 0
                                              mma part, a, b
                                              mc[i, j] += part[i, j] * sa[i] * sb[j]

    fill mc, v                           =>   fill mc, v;  fill part, 0
    mma mc, a, b                              mma part, a, b
    mma.scale mc, sa, sb                      mc[i, j] += part[i, j] * sa[i] * sb[j];  fill part, 0
    store mc                                  mc[i, j] += part[i, j];  fill part, 0;  store mc
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce

from tilemma.dtypes import f32
from tilemma.ir.checks import SCALE_BLOCK, checked_scale
from tilemma.ir.expr import Cast, Const, Element, Expr, FragmentElement, Index, binary, const
from tilemma.ir.tile import (
    Apply,
    Body,
    DeclareFragment,
    Fill,
    FragmentRef,
    Kernel,
    Load,
    Mma,
    Op,
    ScaleMma,
    SetFragmentElement,
    Store,
)
from tilemma.ir.types import View
from tilemma.ir.walk import rewrite, walk
from tilemma.passes.contraction import fragment_uses
from tilemma.passes.decision import Decision
from tilemma.records import record


@record(slots=False)
class ExpandScales:
    """Replaces `ScaleMma` and the scales of `Mma` by element work on a second accumulator."""

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        found = _Scaled(kernel)
        beside = [*found.sums.items(), *found.products.items()]
        if not beside:
            return kernel
        for name, part in beside:
            text = f"products are summed in {part.name} ({part.dtype}), and added scaled"
            log.append(Decision("scales", name, text))
        return replace(kernel, body=rewrite(kernel.body, found.expanded))


def is_scaled(op: Op) -> bool:
    """Whether ``op`` is a multiply whose product is scaled before it is added."""
    return isinstance(op, Mma) and not (op.scale_a is None and op.scale_b is None and op.factor is None)


class _Scaled:
    """The accumulators that take scaled products, and the declarations of additional ones.

    ``sums`` are products that wait for a later `mma.scale`, ``products`` those of one scaled multiply.
    """

    def __init__(self, kernel: Kernel) -> None:
        operations = list(walk(kernel.body))
        self.fast = {op.fragment.name for op in operations if isinstance(op, Fill) and op.fast}
        self.declared = {op.name: op for op in operations if isinstance(op, DeclareFragment)}
        later = [op.acc.name for op in operations if isinstance(op, ScaleMma)]
        fused = [op.acc.name for op in operations if isinstance(op, Mma) and is_scaled(op)]
        self.sums = {name: self._beside(name, "sum") for name in dict.fromkeys(later)}
        self.products = {name: self._beside(name, "product") for name in dict.fromkeys(fused)}
        self._index = 0

    def _beside(self, name: str, what: str) -> DeclareFragment:
        whole = self.declared[name]
        fresh = next(
            n for i in range(len(self.declared) + 1) if (n := f"{name}.{what}{i or ''}") not in self.declared
        )
        assert whole.dtype is not None and whole.shape is not None, whole
        t = f32 if whole.dtype.is_float and whole.dtype.bits < 32 else whole.dtype
        self.declared[fresh] = made = replace(whole, name=fresh, dtype=t)
        return made

    def expanded(self, op: Op) -> Op | Body:
        match op:
            case DeclareFragment(name=name) if name in self.sums or name in self.products:
                return (op, *(x[name] for x in (self.sums, self.products) if name in x))
            case Fill(fragment=f) | Load(fragment=f) if f.name in self.sums:
                return (op, self._cleared(f, self.sums[f.name], op))
            case Mma(acc=acc) if is_scaled(op):
                product = self.products[acc.name]
                multiply = replace(op, acc=_named(acc, product), scale_a=None, scale_b=None, factor=None)
                return (self._cleared(acc, product, op), multiply, self._added(self._sum(acc), product, op))
            case Mma(acc=acc) if acc.name in self.sums:
                return replace(op, acc=self._sum(acc))
            case ScaleMma(acc=acc):
                total = self.sums[acc.name]
                return (self._added(acc, total, op), self._cleared(acc, total, op))
            case Store() | Apply():
                read = dict.fromkeys(ref for _, ref in fragment_uses(op) if ref.name in self.sums)
                return (*(x for r in read for x in self._settled(r, op)), op)
        return op

    def _sum(self, acc: FragmentRef) -> FragmentRef:
        """Where products that go to ``acc`` are summed."""
        return _named(acc, self.sums[acc.name]) if acc.name in self.sums else acc

    def _settled(self, acc: FragmentRef, op: Op) -> Body:
        total = self.sums[acc.name]
        return (self._added(acc, total, op), self._cleared(acc, total, op))

    def _cleared(self, acc: FragmentRef, part: DeclareFragment, op: Op) -> Fill:
        assert part.dtype is not None
        fast = acc.name in self.fast
        return Fill(_named(acc, part), Const(0.0, part.dtype), part.dtype, fast, span=op.span)

    def _added(self, acc: FragmentRef, part: DeclareFragment, op: Op) -> Apply:
        """``acc[i, j] += part[i, j]``, times the scales of ``op`` if it has any, in the type of the part."""
        whole = self.declared[acc.name].dtype
        assert part.dtype is not None and part.shape is not None and whole is not None, part
        self._index += 1
        i, j = (Index(f"{axis}.scaled{self._index}", const(n)) for axis, n in zip("ij", part.shape, strict=True))
        value: Expr = FragmentElement(part.name, (i, j), part.dtype, acc.index)
        if isinstance(op, (Mma, ScaleMma)):
            given = (("A", op.scale_a, i), ("B", op.scale_b, j))
            scales: list[Expr] = [
                Cast(Element(_element(x, v, at)), part.dtype) for x, v, at in given if v is not None
            ]
            scales += [Cast(op.factor, part.dtype)] if op.factor is not None else []
            if scales:
                value = binary("mul", value, reduce(partial(binary, "mul"), scales))
        total = binary("add", Cast(FragmentElement(acc.name, (i, j), whole, acc.index), part.dtype), value)
        body = (SetFragmentElement(acc, Cast(total, whole), span=op.span),)
        return Apply(acc, (i, j), body, span=op.span)


def _named(acc: FragmentRef, part: DeclareFragment) -> FragmentRef:
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
