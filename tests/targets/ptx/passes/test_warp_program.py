"""Work of a block divided among its warpgroups: together they do all of it, each part once."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from tilemma import dtypes
from tilemma.ir.expr import Binary, Const, Dim, Expr, Index, Var, add, const, mul, sub, substitute, value_of
from tilemma.ir.tile import Copy, Declare, FragmentRef, InThreads, Op, Parallel, SetElement, Store
from tilemma.ir.types import BLOCK, Axis, Buffer, Level, Space, View
from tilemma.targets.ptx.passes.warp_program import FreshNames, NotPipelined, divided_copies, flattened, warpgroups

WG, MEMBER = Index("wg", const(9)), Index("member", const(9))
OUT = Buffer("out", dtypes.f16, (Dim("M"), Dim("N")), Space.GLOBAL)
COLUMNS = 2


def number(e: Expr, **names: int) -> int:
    found = value_of(substitute(e, {n: Const(v) for n, v in names.items()}))
    assert found is not None
    return int(found)


def places(view: View, wg: int) -> list[tuple[int, ...]]:
    """The elements of the base that ``view`` has for a warpgroup, in order."""
    found = []
    for at in product(*(range(number(a.extent, wg=wg)) for a in view.axes)):
        where = [number(o, wg=wg) for o in view.offsets]
        for a, n in zip(view.axes, at, strict=True):
            where[a.dim] += n * number(a.step)
        found.append(tuple(where))
    return found


def copied(op: Op, wg: int) -> Counter[tuple[tuple[int, ...], tuple[int, ...]]]:
    """What a warpgroup copies: source and destination of each element."""
    if isinstance(op, InThreads):
        return copied(op.body[0], wg) if number(op.cond, wg=wg) else Counter()
    assert isinstance(op, Copy)
    return Counter(zip(places(op.src, wg), places(op.dst, wg), strict=True))


def part(buffer: Buffer, start: Expr, rows: int, step: int = 1) -> View:
    axes = (Axis(0, const(rows), const(step)), Axis(1, const(COLUMNS)))
    return View(buffer, (start, const(0)), axes)


@pytest.mark.parametrize("load", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_parts_of_copies_make_up_the_copy(groups: int, load: bool) -> None:
    for rows in (8, 16, 24, 32, 48):
        shared = Buffer("s", dtypes.f16, (const(rows), const(COLUMNS)), Space.SHARED)
        whole, there = shared.whole(), part(OUT, const(40), rows)
        op = Copy("dma", there, whole) if load else Copy("dma", whole, there)
        starts = [mul(sub(WG, 1), n) for n in (rows // groups, 8, 0)] + [
            sub(const(rows - rows // groups), mul(sub(WG, 1), rows // groups)), add(mul(sub(WG, 1), 8), 8)
        ]  # fmt: skip
        for start, size in product(starts, (rows // groups, 8, rows)):
            stored = Store(FragmentRef("mc"), part(shared, start, size))
            written = [places(stored.dst, wg) for wg in range(1, groups + 1)]
            if not {place for x in written for place in x} <= set(places(whole, 1)):
                continue
            (*_, found) = divided_copies((stored, op), WG, groups)
            total = Counter[tuple[tuple[int, ...], tuple[int, ...]]]()
            mine = [copied(found, wg) for wg in range(1, groups + 1)]
            for x in mine:
                total += x
            assert total == copied(op, 1), (rows, size, start)
            each_once = Counter(place for x in written for place in x) == Counter(places(whole, 1))
            if not load and each_once:
                # Nobody waits for another: a warpgroup copies what it has stored.
                assert [sorted(s for s, _ in x) for x in mine] == [sorted(x) for x in written]
            assert isinstance(found, InThreads) == (
                rows % (8 * groups) > 0 and (load or not each_once) and groups > 1
            )


def test_copies_that_are_not_divided() -> None:
    shared = Buffer("s", dtypes.f16, (const(32), const(COLUMNS)), Space.SHARED)
    local = Buffer("l", dtypes.f16, (const(32), const(COLUMNS)), Space.LOCAL)
    whole, there = shared.whole(), part(OUT, const(0), 32)
    for op, first in (
        (Copy("dma", whole, there, transpose=(1, 0)), True),
        (Copy("dma", whole, there, pad=((0, 0, 0), (0, 0, 0))), True),
        (Copy("dma", part(shared, const(0), 16), part(OUT, const(0), 16)), True),
        (Copy("dma", whole, shared.whole()), True),
        (Copy("dma", whole, local.whole()), False),
        (Copy("dma", local.whole(), whole), False),
        (Copy("dma", whole, part(OUT, mul(WG, 32), 32)), False),
    ):
        (found,) = divided_copies((op,), WG, 2)
        assert isinstance(found, InThreads) == first and (first or found == op), op
    steps = Store(FragmentRef("mc"), part(shared, sub(WG, 1), 16, 2))
    (*_, found) = divided_copies((steps, Copy("dma", whole, there)), WG, 2)
    assert isinstance(found, Copy) and sorted(places(found.src, 2)) == [
        (n, c) for n in range(16, 32) for c in range(2)
    ]


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
def test_instances_of_a_level_are_divided(groups: int) -> None:
    """Each combination of the indices is executed by one warpgroup, and each executes as many."""
    for extents in ((groups,), (2 * groups,), (groups, 3), (2, groups), (1, groups, 2)):
        indices = tuple(Index(f"i{n}", const(e)) for n, e in enumerate(extents))
        coded: Expr = const(0)
        for i in indices:
            coded = Binary("add", Binary("mul", coded, Const(10)), i)
        levels = Parallel(indices, (Declare(Var("v", dtypes.s32), coded),), Level("group", 4))
        seen: list[list[int]] = []
        for member in range(groups):
            (op,) = flattened((levels,), MEMBER, groups, FreshNames(set()))
            body, inner = (op.body, op.indices[0]) if isinstance(op, Parallel) else ((op,), None)
            declared = body[0]
            assert isinstance(declared, Declare)
            turns = range(number(inner.extent)) if inner else range(1)
            name = inner.name if inner else "none"
            seen.append([number(declared.value, **{"member": member, name: n}) for n in turns])
        wanted = [int("0" + "".join(map(str, at))) for at in product(*map(range, extents))]
        assert sorted(x for s in seen for x in s) == sorted(wanted)
        assert len({len(s) for s in seen}) == 1


def test_levels_of_fewer_threads_are_executed_by_the_first_warpgroups() -> None:
    body = (Declare(Var("v", dtypes.s32), const(0)),)
    for extent, level, wanted in (
        (1, "thread", 1),
        (96, "thread", 1),
        (3, "group", 1),
        (2, "group-4", 2),
        (4, "group-4", 4),
    ):
        levels = Parallel((Index("i", const(extent)),), body, Level.parse(level))
        (op,) = flattened((levels,), MEMBER, 4, FreshNames(set()))
        inside = [not isinstance(op, InThreads) or bool(number(op.cond, member=n)) for n in range(4)]
        assert inside == [n < wanted for n in range(4)], (extent, level)
        assert flattened((levels,), MEMBER, 1, FreshNames(set())) == (levels,) or wanted > 1


def test_statements_of_the_block_are_executed_once() -> None:
    op = SetElement(View(OUT, (const(0), const(0)), ()), Const(1.0, dtypes.f16))
    assert flattened((op,), MEMBER, 1, FreshNames(set())) == (op,)
    (found,) = flattened((op,), MEMBER, 2, FreshNames(set()))
    assert isinstance(found, InThreads) and [number(found.cond, member=n) for n in range(3)] == [1, 0, 0]
    with pytest.raises(NotPipelined):
        flattened((found,), MEMBER, 2, FreshNames(set()))


def test_warpgroups_of_levels() -> None:
    """A level inside a block has a whole number of warpgroups, of 1, 2 or 4 warps a group, or fewer threads."""

    def inside(*levels: tuple[int | None, str]) -> Parallel:
        extents = (const(n) if n else Dim("N") for n, _ in levels)
        made = (
            Parallel((Index("i", e),), (), Level.parse(level))
            for e, (_, level) in zip(extents, levels, strict=True)
        )
        return Parallel((Index("b", const(1)),), tuple(made), BLOCK)

    for levels, wanted in (
        (((1, "group-4"),), 1), (((3, "group-4"),), 3), (((4, "group"),), 1), (((4, "group-2"),), 2),
        (((128, "thread"),), 1), (((256, "thread"), (2, "group-4"), (8, "group")), 2),
        (((2, "group-2"), (2, "group-4")), 2), (((2, "group-4"), (1, "thread"), (3, "group")), 2),
    ):  # fmt: skip
        assert warpgroups(inside(*levels)) == wanted
    for levels in (
        ((None, "group-4"),), ((1, "block"),), ((4, "group-3"),), ((1, "group-8"),), ((3, "group"),),
        ((192, "thread"), (2, "group-4")), ((3, "group-2"), (2, "group-4")),
        ((100, "thread"),), (),
    ):  # fmt: skip
        with pytest.raises(NotPipelined):
            warpgroups(inside(*levels))
