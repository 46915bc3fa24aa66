"""Expansion of scaled multiplies: the product goes to an accumulator of its own, which is added scaled.

::

    mma.row.row.scale mc, a, b, sa, sb   =>   fill part, 0;  mma part, a, b;  mc[i, j] += part[i, j] * sa[i] * sb

    fill mc, v                           =>   fill mc, v;  fill part, 0
    mma mc, a, b                              mma part, a, b
    mma.scale mc, sa, sb                      mc[i, j] += part[i, j] * sa[i] * sb;  fill part, 0
    store mc                                  mc[i, j] += part[i, j];  fill part, 0;  store mc
"""

from __future__ import annotations

from dataclasses import replace

from tilemma.dtypes import DType, f32
from tilemma.ir.expr import Cast, Const, Element, Expr, FragmentElement, Index, binary, const, value_of
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
        if not found.parts:
            return kernel
        for name, part in found.parts.items():
            text = f"products are summed in {part.name} ({part.dtype}), and added scaled"
            log.append(Decision("scales", name, text))
        return replace(kernel, body=rewrite(kernel.body, found.expanded))


class _Scaled:
    """The accumulators that take scaled products; ``parts`` has the declaration of the second one of each."""

    def __init__(self, kernel: Kernel) -> None:
        operations = list(walk(kernel.body))
        taken = {op.name for op in operations if isinstance(op, DeclareFragment)}
        declared = {op.name: op for op in operations if isinstance(op, DeclareFragment)}
        # Accumulators whose products wait for a later `mma.scale`.
        self.later = {op.acc.name for op in operations if isinstance(op, ScaleMma)}
        names = dict.fromkeys(
            op.acc.name
            for op in operations
            if isinstance(op, ScaleMma) or (isinstance(op, Mma) and op.scale_a is not None)
        )
        self.parts: dict[str, DeclareFragment] = {}
        self.types: dict[str, DType] = {}
        self._index = 0
        for name in names:
            fresh = next(n for i in range(len(taken) + 1) if (n := f"{name}.part{i or ''}") not in taken)
            whole = declared[name]
            assert whole.dtype is not None, whole
            self.types[name] = whole.dtype
            t = f32 if whole.dtype.is_float and whole.dtype.bits < 32 else whole.dtype
            self.parts[name] = replace(whole, name=fresh, dtype=t)

    def expanded(self, op: Op) -> Op | Body:
        match op:
            case DeclareFragment(name=name) if name in self.parts:
                return (op, self.parts[name])
            case Fill(fragment=f) | Load(fragment=f) if f.name in self.later:
                return (op, self._cleared(f, op))
            case Mma(acc=acc, scale_a=View() as rows) if acc.name in self.parts:
                part = replace(op, acc=self._part(acc), scale_a=None, scale_b=None)
                if acc.name in self.later:
                    before = (self._added(acc, None, None, op), self._cleared(acc, op))
                    return (*before, part, self._added(acc, rows, op.scale_b, op), self._cleared(acc, op))
                return (self._cleared(acc, op), part, self._added(acc, rows, op.scale_b, op))
            case Mma(acc=acc) if acc.name in self.later:
                return replace(op, acc=self._part(acc))
            case ScaleMma(acc=acc):
                return (self._added(acc, op.scale_a, op.scale_b, op), self._cleared(acc, op))
            case Store() | Apply() if any(ref.name in self.later for _, ref in fragment_uses(op)):
                read = dict.fromkeys(ref for _, ref in fragment_uses(op) if ref.name in self.later)
                return (*(x for r in read for x in (self._added(r, None, None, op), self._cleared(r, op))), op)
        return op

    def _part(self, acc: FragmentRef) -> FragmentRef:
        return replace(acc, name=self.parts[acc.name].name)

    def _cleared(self, acc: FragmentRef, op: Op) -> Fill:
        t = self.parts[acc.name].dtype
        assert t is not None
        return Fill(self._part(acc), Const(0.0, t), t, span=op.span)

    def _added(self, acc: FragmentRef, rows: View | None, factor: Expr | None, op: Op) -> Apply:
        """``acc[i, j] += part[i, j] * rows[i] * factor``, in the type of the part."""
        part = self.parts[acc.name]
        assert part.dtype is not None and part.shape is not None, part
        self._index += 1
        i, j = (Index(f"{axis}.scaled{self._index}", const(n)) for axis, n in zip("ij", part.shape, strict=True))
        value: Expr = FragmentElement(part.name, (i, j), part.dtype, acc.index)
        scale: Expr | None = None
        if rows is not None:
            scale = Cast(Element(_row(rows, i)), part.dtype)
        if factor is not None:
            other = Cast(factor, part.dtype)
            scale = other if scale is None else binary("mul", scale, other)
        if scale is not None:
            value = binary("mul", value, scale)
        old_type = self.types[acc.name]
        total = binary("add", Cast(FragmentElement(acc.name, (i, j), old_type, acc.index), part.dtype), value)
        body = (SetFragmentElement(acc, Cast(total, old_type), span=op.span),)
        return Apply(acc, (i, j), body, span=op.span)


def _row(rows: View, i: Index) -> View:
    """The element of a view [M, 1] or [1, M] for row ``i``."""
    shape = [value_of(e) for e in rows.shape]
    axis = max(range(len(shape)), key=lambda a: shape[a] or 1)
    return rows.element(tuple(i if a == axis else const(0) for a in range(len(shape))))
