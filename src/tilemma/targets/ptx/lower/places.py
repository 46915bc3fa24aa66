"""The places of tiles in arrays, which divisions of the tile's number give, computed when nothing waits for them.

The producer of persistent blocks finds the place of its first tile while another warp initialises the events, and
that of each further tile when it has issued the copies of the one before.  The consumers find the place of the
result behind the first multiplications of a tile, which the tensor cores still execute.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field

from tilemma.ir import tile, walk
from tilemma.ir.effects import element_reads
from tilemma.ir.expr import INDEX, Binary, Const, Element, Expr, Index, value_of
from tilemma.ir.expr import walk as parts
from tilemma.ir.lane import Imm, LaneBody, Reg
from tilemma.ir.tile import Body, Op, Parallel
from tilemma.ir.types import Space
from tilemma.records import record
from tilemma.targets.ptx.lower.context import Lowering
from tilemma.targets.ptx.lower.expressions import linear, predicate
from tilemma.targets.ptx.lower.linear import Linear

_DIVISIONS = ("floordiv", "floormod", "div", "mod", "cdiv")


@record(frozen=False)
class Places:
    """Places that depend on indices alone, in registers.

    ``values``: the places by their value numbers.  ``made``: a register for the variable part of each.  ``found``:
    each place, by value number, as a sum of a register and a constant.
    """

    values: dict[int, Expr]
    made: dict[object, Reg] = field(default_factory=dict)
    found: dict[int, Linear] = field(default_factory=dict)

    @staticmethod
    def loaded(lo: Lowering, loop: tile.For) -> Places | None:
        """The places of loads by TMA in ``loop`` that depend on its index, and on no index inside it."""
        if walk.jumps(loop):
            return None  # the end of an iteration finds the next place
        first = lo.first_places.get(loop.index.name)
        if isinstance(first, Places):
            return first
        copies = (x for x in _by_tma(walk.walk(loop.body)) if x.src.base.space is Space.GLOBAL)
        sources = [e for x in copies for e in x.src.offsets]
        values = _divided(lo, sources, _declared(loop.body), loop.index.name)
        return Places(values) if values else None

    @staticmethod
    def stored(lo: Lowering, op: Op, after: Body) -> Places | None:
        """The places to which ``after`` stores tiles, or the values of variables that will hold one, if ``op`` is
        the main loop before it."""
        if not isinstance(op, tile.For) or walk.jumps(op):
            return None
        inside = {type(x) for x in walk.walk(op.body)}
        if tile.Mma not in inside or tile.Apply in inside:
            return None  # element work needs all registers
        rest = tuple(walk.walk(after))
        if any(isinstance(x, tile.Load) or any(isinstance(e, Element) for e in element_reads(x)) for x in rest):
            return None  # and so do numbers from memory
        copies = (x for x in _by_tma(rest) if x.dst.base.space is Space.GLOBAL)
        targets = [e for x in copies for e in x.dst.offsets]
        targets += [x.value for x in rest if isinstance(x, tile.Assign) and x.var.dtype == INDEX]
        values = _divided(lo, targets, _declared(after))
        return Places(values) if values else None

    def compute(self, lo: Lowering) -> None:
        """Assign the registers."""
        for number, place in self.values.items():
            value = linear(lo, place)
            base = value.variable
            if not base.terms:
                continue
            if number not in self.found:
                made = lo.e.reg("place", "s32", uniform=base.uniform, mutable=True)
                reg = lo.e.bounded(self.made.setdefault(base.terms, made), *lo.e.range_of(base))
                self.found[number] = Linear.of(reg) + value.const
            ((reg, _),) = self.found[number].terms
            lo.e.do("mov.b32", (reg,), (lo.e.value(base),))

    def compute_at(self, lo: Lowering, index: str, at: Linear) -> None:
        """Assign the registers, for the value ``at`` of an index."""
        before = dict(lo.indices)
        lo.indices[index] = at
        self.compute(lo)
        lo.indices = before

    def computed_before(self, lo: Lowering, index: str = "", at: Linear | None = None) -> LaneBody:
        """The operations of `compute`, for a branch, before which the registers are 0."""
        with lo.e.collect() as computed:
            if at is None:
                self.compute(lo)
            else:
                self.compute_at(lo, index, at)
            ops = tuple(computed)
        for reg in self.made.values():
            lo.e.do("mov.b32", (reg,), (Imm(0),))
        return ops


def compute_first(lo: Lowering, body: Body) -> bool:
    """Compute the places of the first loads of the role that a block's first warp executes, in that warp; returns
    whether there are any."""
    for group in body:
        if isinstance(group, Parallel) and len(group.indices) == 1 and lo.threads > 32:
            roles = (x for x in group.body if isinstance(x, tile.InThreads) and x.solo)
            loops = [x for role in roles if _is_first(lo, role, group.indices[0]) for x in role.body]
            for loop in loops:
                if isinstance(loop, tile.For) and isinstance(loop.start, Index) and loop.start.name in lo.indices:
                    places = Places.loaded(lo, loop)
                    if places is not None:
                        ops = places.computed_before(lo, loop.index.name, linear(lo, loop.start))
                        producer = lo.e.compare("eq", lo.warp, Linear(), hint="producer")
                        assert isinstance(producer, Reg), producer
                        lo.e.select_branch(producer, ops, ())
                        lo.first_places[loop.index.name] = places
    return bool(lo.first_places)


def _is_first(lo: Lowering, role: tile.InThreads, instance: Index) -> bool:
    """Whether the first instance executes ``role``, and no other."""
    if lo.value_numbers.of(role.cond) is None:
        return False
    taken = []
    for i in range(value_of(instance.extent) or 0):
        lo.indices[instance.name] = Linear(const=i)
        taken.append(predicate(lo, role.cond))
        del lo.indices[instance.name]
    return taken[:1] == [True] and all(x is False for x in taken[1:])


def _by_tma(ops: Iterable[Op]) -> Iterator[tile.Copy]:
    return (x for x in ops if isinstance(x, tile.Copy) and x.plan is not None and x.plan.engine == "tma")


def _declared(body: Body) -> set[str]:
    """The indices of loops and levels in ``body``."""
    found: set[str] = set()
    for op in walk.walk(body):
        if isinstance(op, tile.For):
            found.add(op.index.name)
        elif isinstance(op, Parallel):
            found |= {i.name for i in op.indices}
    return found


def _divided(lo: Lowering, places: Iterable[Expr], inside: set[str], index: str = "") -> dict[int, Expr]:
    """Those of ``places`` that divide, and depend on known indices alone, on ``index`` if that is given; by value
    number."""
    found: dict[int, Expr] = {}
    for place in places:
        value = lo.value_numbers.of(place)
        if value is None or any(i in inside or not (i in lo.indices or i == index) for i in value.indices):
            continue
        divides = any(
            isinstance(x, Binary) and x.op in _DIVISIONS and not isinstance(x.b, Const) for x in parts(place)
        )
        if divides and (not index or index in value.indices):
            found[value.number] = place
    return found
