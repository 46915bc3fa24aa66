"""Promotion of FP8 accumulation: sums of products of 8-bit floats are added in f32 every 128 columns of K.

The tensor cores keep 13 bits after the point of such a sum.  At least every 128 columns of K it is added to an
accumulator of f32, unless the program says `fast`.

::

    fill mc, v                      fill mc, v;  fill part, 0
    for k                           for k
      mma mc, a, b (64 of K)   =>     mma part, a, b
                                      if (k % 2 == 1) { mc[i, j] += part[i, j];  fill part, 0 }
    store mc                        mc[i, j] += part[i, j];  fill part, 0;  store mc
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from tilemma.dtypes import DType, f32
from tilemma.ir import tile as t
from tilemma.ir.checks import SCALE_BLOCK
from tilemma.ir.expr import Const, Expr, FragmentElement, Index, binary, const
from tilemma.ir.walk import bodies, rewrite, trip_count, walk, with_fields
from tilemma.passes.check_scales import accumulators_used
from tilemma.passes.contraction import Fragments, extents, fragment_uses
from tilemma.passes.decision import Decision
from tilemma.passes.scope import kind
from tilemma.records import record


def promoted_accumulators(kernel: t.Kernel) -> set[str]:
    """The f32 accumulators of products of 8-bit floats that no fill calls fast."""
    fragments = Fragments(kernel.body)
    fast = {name for name, fills in fragments.fills.items() if any(f.fast for f in fills)}
    return {
        m.acc.name
        for m in fragments.multiplies
        if fragments.declared[m.acc.name].dtype == f32 and _is_float8(fragments.dtype(m.a))
    } - fast


def _is_float8(dtype: DType | None) -> bool:
    return dtype is not None and dtype.is_float and dtype.bits == 8


def _without_effect(kernel: t.Kernel) -> Iterator[Decision]:
    """What a `fast` fill does not change: sums that no one promotes."""
    fragments = Fragments(kernel.body)
    for name, fills in fragments.fills.items():
        if not any(f.fast for f in fills):
            continue
        total = fragments.declared[name].dtype
        operands = [fragments.dtype(m.a) for m in fragments.multiplies if m.acc.name == name]
        others = sorted({str(x) for x in operands if not _is_float8(x)})
        if others or total != f32:
            what = f"a sum in {total}" if total != f32 else f"a sum of products of {' and '.join(others)}"
            text = f"`fast` has no effect on {what}: only f32 sums of products of 8-bit floats are promoted"
            yield Decision("promotion", name, text)


@record(slots=False)
class PromoteSums:
    """Sums products of 8-bit floats in a second accumulator, which is added to the program's every 128 of K."""

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        log += _without_effect(kernel)
        for name in sorted(promoted_accumulators(kernel)):
            sums = _Sums(kernel, name)
            if sums.longest(kernel.body, 0)[1] <= SCALE_BLOCK:
                continue
            text = (
                "the tensor cores keep 13 bits after the point of a sum of 8-bit floats: it is made in "
                f"{sums.part}, which is added every {SCALE_BLOCK} of K; `fast` in the fill leaves it there"
            )
            log.append(Decision("promotion", name, text))
            kernel = replace(kernel, body=sums.promoted(kernel.body))
        return kernel


class _Sums:
    """One accumulator: the columns of K that are summed in it, and their promotion."""

    def __init__(self, kernel: t.Kernel, name: str) -> None:
        fragments = Fragments(kernel.body)
        self.name, self.declared = name, fragments.declared[name]
        used = set(fragments.declared)
        self.part = next(n for i in range(len(used) + 1) if (n := f"{name}.part{i or ''}") not in used)
        self.depths: dict[int, int] = {}
        for m in fragments.multiplies:
            if m.acc.name == name:
                a, b = (operand_shape(fragments, x) for x in (m.a, m.b))
                self.depths[id(m)] = extents(m.contract, a, b)[3]
        self._index = 0

    # ---- the columns of K that one sum covers -------------------------------------------------------------

    def longest(self, body: t.Body, start: float) -> tuple[float, float]:
        """Columns summed after ``body``, which follows ``start`` of them, and the most at any multiply."""
        most = start
        for op in body:
            match op:
                case t.Mma(acc=acc) if acc.name == self.name:
                    start += self.depths[id(op)]
                case t.Fill(fragment=f) | t.Load(fragment=f) if f.name == self.name:
                    start = 0
                case t.For(body=inner):
                    start, peak = self._iterated(op, inner, start)
                    most = max(most, peak)
                case t.If(then=then, otherwise=otherwise):
                    ways = [self.longest(x, start) for x in (then, otherwise)]
                    start, most = max(w[0] for w in ways), max(most, *(w[1] for w in ways))
                case _:
                    for _, inner in bodies(op):
                        start, peak = self.longest(inner, start)
                        most = max(most, peak)
            most = max(most, start)
        return start, most

    def _iterated(self, loop: t.For, body: t.Body, start: float) -> tuple[float, float]:
        once, peak = self.longest(body, start)
        twice, again = self.longest(body, once)
        if twice <= once:
            return once, max(peak, again)
        count = trip_count(loop)
        end = inf if count is None else start + (once - start) * count
        return end, max(end, peak, again)

    def depth(self, op: t.Op) -> float:
        """The columns of K that ``op`` adds, without promotions in it."""
        match op:
            case t.Mma(acc=acc) if acc.name == self.name:
                return self.depths[id(op)]
            case t.For(body=body):
                inside = sum(map(self.depth, body))
                count = trip_count(op)
                return inside * (inf if count is None else count) if inside else 0
            case t.If(then=then, otherwise=otherwise):
                return max(sum(map(self.depth, then)), sum(map(self.depth, otherwise)))
        found = sum(self.depth(x) for _, body in bodies(op) for x in body)
        return inf if found and not isinstance(op, (t.Parallel, t.InThreads)) else found

    # ---- promotion ---------------------------------------------------------------------------------------

    def promoted(self, body: t.Body) -> t.Body:
        refs = dict.fromkeys(m.acc for m in walk(body) if isinstance(m, t.Mma) and m.acc.name == self.name)
        placed = self._placed(body, tuple(refs))

        def renamed(op: t.Op) -> t.Op | t.Body:
            match op:
                case t.DeclareFragment(name=name) if name == self.name:
                    return (op, replace(op, name=self.part))
                case t.Mma(acc=acc) if acc.name == self.name:
                    return replace(op, acc=self._part(acc))
                case t.Fill(fragment=f) | t.Load(fragment=f) if f.name == self.name:
                    return (op, self._cleared(f, op))
                case t.Store() | t.Apply() | t.Reduce() if not self._is_promotion(op):
                    read = [ref for ref in accumulators_used(op) if ref.name == self.name]
                    return (*(x for r in read for x in self._promotion(r, op)), op)
            return op

        return rewrite(placed, renamed)

    def _placed(self, body: t.Body, refs: tuple[t.FragmentRef, ...]) -> t.Body:
        """``body`` with a promotion wherever more than 128 columns would be summed."""
        out: list[t.Op] = []
        count = 0.0
        for op in body:
            depth = self.depth(op)
            if depth and count and count + depth > SCALE_BLOCK:
                out, count = list(self._appended(tuple(out), refs)), 0.0
            if depth > SCALE_BLOCK and not isinstance(op, t.Mma):
                out.append(self._inside(op, refs))
            else:
                out.append(op)
                count += depth
        return tuple(out)

    def _inside(self, op: t.Op, refs: tuple[t.FragmentRef, ...]) -> t.Op:
        """``op``, which sums more than 128 columns, with promotions inside it."""
        if isinstance(op, t.For):
            once = sum(map(self.depth, op.body))
            every = int(SCALE_BLOCK // once) if once <= SCALE_BLOCK else 1
            body = self._placed(op.body, refs)
            if every == 1:
                return replace(op, body=self._appended(body, refs))
            turn = binary("mod", binary("div", binary("sub", op.index, op.start), op.step), const(every))
            return replace(op, body=self._appended(body, refs, binary("eq", turn, const(every - 1))))
        changed = {
            n: self._appended(self._placed(inner, refs), refs) for n, inner in bodies(op) if self._sums(inner)
        }
        return with_fields(op, changed)

    def _sums(self, body: t.Body) -> bool:
        return any(isinstance(x, t.Mma) and x.acc.name == self.name for x in walk(body))

    def _appended(self, body: t.Body, refs: tuple[t.FragmentRef, ...], when: Expr | None = None) -> t.Body:
        """``body`` with a promotion after its last multiply, in the scope of that multiply."""
        at = max(i for i, op in enumerate(body) if self._sums((op,)))
        op = body[at]
        if any(isinstance(x, t.DeclareFragment) and x.name == self.name for x in walk((op,))):
            return body  # The accumulator exists in ``op`` only, which ends with its own promotion.
        if _opens_group(op):
            if isinstance(op, t.For):
                last = binary("sub", op.stop, binary("add", op.index, op.step))
                done = binary("le", last, const(0))
                when = done if when is None else binary("land", when, done)
            inner = {n: self._appended(x, refs, when) for n, x in bodies(op) if self._sums(x)}
            return (*body[:at], with_fields(op, inner), *body[at + 1 :])
        added = tuple(x for r in refs for x in self._promotion(r, op))
        if when is not None:
            added = (t.If(when, added, (), span=op.span),)
        return (*body[: at + 1], *added, *body[at + 1 :])

    def _promotion(self, acc: t.FragmentRef, op: t.Op) -> t.Body:
        """``acc[i, j] += part[i, j]``, and the part is zero again."""
        assert self.declared.shape is not None
        self._index += 1
        i, j = (
            Index(f"{x}.{self.part}{self._index}", const(n))
            for x, n in zip("ij", self.declared.shape, strict=True)
        )
        total, part = (FragmentElement(n, (i, j), f32, acc.index) for n in (acc.name, self.part))
        body = (t.SetFragmentElement(acc, binary("add", total, part), span=op.span),)
        return (t.Apply(acc, (i, j), body, span=op.span), self._cleared(acc, op))

    def _is_promotion(self, op: t.Op) -> bool:
        return isinstance(op, t.Apply) and any(ref.name == self.part for _, ref in fragment_uses(op.body[-1]))

    def _part(self, acc: t.FragmentRef) -> t.FragmentRef:
        return replace(acc, name=self.part)

    def _cleared(self, acc: t.FragmentRef, op: t.Op) -> t.Fill:
        return t.Fill(self._part(acc), Const(0.0, f32), f32, span=op.span)


def operand_shape(fragments: Fragments, x: t.Operand) -> tuple[int, int]:
    """The extents of an operand as it is stored."""
    view = fragments.view(x)
    prepacked = isinstance(x, t.FragmentRef) and any(load.order for load in fragments.loads.get(x.name, ()))
    if view is not None and not prepacked:
        shape = view.static_shape
    else:
        assert isinstance(x, t.FragmentRef)
        shape = fragments.declared[x.name].shape
    assert shape is not None, x
    return shape[0], shape[1]


def _opens_group(op: t.Op) -> bool:
    """Whether ``op`` contains the `parallel` whose instances hold the accumulator."""
    return any(isinstance(x, t.Parallel) and kind(x) == "group" for x in walk((op,)))
