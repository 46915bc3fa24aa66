"""Splitting of multiplies every 128 columns of K: for scales with a number for each block of K, and for sums of
8-bit floats that are promoted.

::

    load a, s[0 +: 64, 0 +: 256]              load a.k0, s[0 +: 64, 0 +: 128];  load a.k1, s[0 +: 64, 128 +: 128]
    mma.row.row.scale c, a, b, v[64, 2], w =>  mma.row.row.scale c, a.k0, b.k0, v[0 +: 64, 0 +: 1], w[0]
                                               mma.row.row.scale c, a.k1, b.k1, v[0 +: 64, 1 +: 1], w[1]
"""

from __future__ import annotations

from dataclasses import replace

from tilemma.arithmetic.sparsity import ORDERS
from tilemma.ir.checks import SCALE_BLOCK, checked_scale
from tilemma.ir.expr import const
from tilemma.ir.refusals import NotBuiltYet
from tilemma.ir.tile import Body, DeclareFragment, FragmentRef, Kernel, Load, Mma, Op, Operand
from tilemma.ir.types import View
from tilemma.ir.walk import rewrite, walk
from tilemma.passes.contraction import Fragments, extents, fragment_uses
from tilemma.passes.decision import Decision
from tilemma.records import record
from tilemma.targets.ptx.passes.promote_sums import operand_shape, promoted_accumulators


@record(slots=False)
class SplitContractions:
    """Splits a multiply over more than 128 of K, and the loads of its operands."""

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises NotBuiltYet for scales by blocks of K of a multiply that cannot be split."""
        found = _Splits(kernel)
        if not found.multiplies:
            return kernel
        for name in dict.fromkeys(m.acc.name for m in found.multiplies.values()):
            log.append(Decision("contractions", name, f"multiplies are split every {SCALE_BLOCK} of K"))
        return replace(kernel, body=rewrite(kernel.body, found.split))


class _Splits:
    """The multiplies to split, by identity, and for each of their fragments its axis of K and extent of a part."""

    def __init__(self, kernel: Kernel) -> None:
        self.fragments = Fragments(kernel.body)
        self.sizes = {id(m): self._size(m) for m in self.fragments.multiplies}
        promoted = promoted_accumulators(kernel)
        long = [m for m in self.fragments.multiplies if self.sizes[id(m)][2] > SCALE_BLOCK]
        wanted = [m for m in long if m.acc.name in promoted or self._by_blocks(m)]
        other = {
            ref.name
            for op in walk(kernel.body)
            for use, ref in fragment_uses(op)
            if use not in ("load", "A", "B", "metadata")
        }
        self.axes: dict[str, tuple[int, int]] = {}
        self.multiplies: dict[int, Mma] = {}
        # A fragment has its parts for every multiply that uses it.
        while wanted:
            for m in wanted:
                operands = self._operands(m)
                names = {x.name for x, _, _ in operands if isinstance(x, FragmentRef)}
                wrong = (
                    "an order of its tiles"
                    if m.k_order
                    else "an operand with element work"
                    if names & other
                    else ""
                )
                for x, axis, part in operands:
                    if isinstance(x, FragmentRef) and self.axes.setdefault(x.name, (axis, part)) != (axis, part):
                        wrong = "an operand that another multiply reads transposed"
                if wrong and self._by_blocks(m):
                    raise NotBuiltYet(
                        m.span,
                        what=f"scales by blocks of K for a multiply with {wrong}",
                        fix_text=f"multiply tiles of {SCALE_BLOCK} of K",
                    )
                if not wrong:
                    self.multiplies[id(m)] = m
            wanted = [m for m in long if id(m) not in self.multiplies and self._shares(m)]
            if any(m.k_order for m in wanted):
                break

    def _size(self, m: Mma) -> tuple[int, int, int]:
        """M, N and K, in elements; packed operands have extents in bytes."""
        rows, columns, _, k = extents(m.contract, self._shape(m.a), self._shape(m.b))
        return rows, columns, k * self.fragments.packed(m.b)

    def _shape(self, x: Operand) -> tuple[int, int]:
        return operand_shape(self.fragments, x)

    def _operands(self, m: Mma) -> list[tuple[Operand, int, int]]:
        """Each operand with its axis of K and the extent of a part along it."""
        found = [(m.a, 0 if m.contract.a_transposed else 1), (m.b, 0 if m.contract.b_transposed else 1)]
        found += [(m.meta, 1)] if m.meta is not None else []
        depth = self.sizes[id(m)][2]
        return [(x, axis, self._shape(x)[axis] * SCALE_BLOCK // depth) for x, axis in found]

    def _by_blocks(self, m: Mma) -> bool:
        return any("k" in self._axes(m, letter) for letter in "AB")

    def _axes(self, m: Mma, letter: str) -> tuple[str, ...]:
        """The meaning of the axes of the scale of A or B."""
        view = m.scale_a if letter == "A" else m.scale_b
        rows, columns, depth = self.sizes[id(m)]
        if view is None:
            return ()
        return checked_scale(
            letter, view.static_shape or view.shape, rows if letter == "A" else columns, depth, m.span
        )

    def _shares(self, m: Mma) -> bool:
        return any(isinstance(x, FragmentRef) and x.name in self.axes for x, _, _ in self._operands(m))

    def split(self, op: Op) -> Op | Body:
        match op:
            case DeclareFragment(name=name) if name in self.axes:
                return tuple(
                    replace(op, name=_name(name, q), shape=self._part(name, op.shape, q))
                    for q in range(self._count(name))
                )
            case Load(fragment=f, src=src) if f.name in self.axes:
                axis, part = self.axes[f.name]
                if op.order is not None and ORDERS[op.order].in_blocks:
                    part *= 16
                views = _cut(src, axis, part)
                return tuple(replace(op, fragment=_ref(f, q), src=v) for q, v in enumerate(views))
            case Mma() if id(op) in self.multiplies:
                return self._multiply(op)
        return op

    def _count(self, name: str) -> int:
        axis, part = self.axes[name]
        return -(-self._shape(FragmentRef(name))[axis] // part)

    def _part(self, name: str, shape: tuple[int, ...] | None, q: int) -> tuple[int, ...] | None:
        if shape is None:
            return None
        axis, part = self.axes[name]
        length = min(part, shape[axis] - q * part)
        return (*shape[:axis], length, *shape[axis + 1 :])

    def _multiply(self, m: Mma) -> Body:
        cuts: list[list[Operand]] = []
        for x, axis, part in self._operands(m):
            if isinstance(x, View):
                cuts.append(list(_cut(x, axis, part)))
            else:
                cuts.append([_ref(x, q) for q in range(self._count(x.name))])
        scales = [self._scales(m, letter, len(cuts[1])) for letter in "AB"]
        return tuple(
            replace(
                m,
                a=cuts[0][q],
                b=cuts[1][q],
                meta=None if m.meta is None else _ref(m.meta, q),
                scale_a=scales[0][q],
                scale_b=scales[1][q],
            )
            for q in range(len(cuts[1]))
        )

    def _scales(self, m: Mma, letter: str, parts: int) -> list[View | None]:
        """The scale of each part."""
        view, axes = m.scale_a if letter == "A" else m.scale_b, self._axes(m, letter)
        return [*_cut(view, axes.index("k"), 1)] if view is not None and "k" in axes else [view] * parts


def _name(name: str, q: int) -> str:
    return f"{name}.k{q}"


def _ref(x: FragmentRef, q: int) -> FragmentRef:
    return replace(x, name=_name(x.name, q))


def _cut(view: View, axis: int, part: int) -> tuple[View, ...]:
    """``view`` in parts of so many elements along ``axis``."""
    shape = view.static_shape
    assert shape is not None
    found = []
    for at in range(0, shape[axis], part):
        moved = view.shift(axis, at)
        length = replace(moved.axes[axis], extent=const(min(part, shape[axis] - at)))
        found.append(replace(moved, axes=(*moved.axes[:axis], length, *moved.axes[axis + 1 :])))
    return tuple(found)
