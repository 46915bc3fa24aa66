"""Grids and parameters: every block index is taken exactly once, whatever the sizes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from lanes import Lane

import tilemma as tm
from tilemma import dtypes
from tilemma.errors import TilemmaError
from tilemma.ir.expr import Const, Dim, Index, Scalar, cdiv, const
from tilemma.ir.lane import LaneExit, LaneIf
from tilemma.ir.tile import Alloc, ArrayParameter, Kernel, Parallel, ScalarParameter, SetElement
from tilemma.ir.types import BLOCK, GROUP, THREAD, Buffer, Space, View
from tilemma.launch import PointerArgument, ValueArgument, evaluate
from tilemma.targets.ptx.lower import GridNotComputable, lower
from tilemma.targets.ptx.lower.context import Lowering
from tilemma.targets.ptx.lower.control import bind_blocks, launch_threads

GRIDS = [
    ((const(3),), {}),
    ((Dim("A"), Dim("B")), {"A": 5, "B": 4}),
    ((cdiv(Dim("A"), 2), const(7)), {"A": 5}),
    ((const(3), const(4), const(5)), {}),
    ((Dim("A"), Dim("B"), Dim("C")), {"A": 3, "B": 4, "C": 5}),
    ((const(2), Dim("A"), const(2), Dim("B")), {"A": 3, "B": 4}),
]


def kernel(extents) -> tuple[Kernel, tuple[Index, ...]]:
    indices = tuple(Index(f"i{n}", e) for n, e in enumerate(extents))
    return Kernel("k", (), (Parallel(indices, (), BLOCK),)), indices


def blocks(extents, sizes, grid) -> list[tuple[int, ...]]:
    """The indices of every block of ``grid`` that does not leave at once."""
    k, indices = kernel(extents)
    lo = Lowering(k, "sm_80", 32)
    bind_blocks(lo, indices)
    values = [lo.e.value(lo.indices[i.name]) for i in indices]
    found = []
    for z in range(grid[2]):
        for y in range(grid[1]):
            for x in range(grid[0]):
                lane = Lane({"%ctaid.x": x, "%ctaid.y": y, "%ctaid.z": z}, sizes)
                lane.run(op for op in lo.e.regions[0].ops if not isinstance(op, LaneIf))
                exits = [op for op in lo.e.regions[0].ops if isinstance(op, LaneIf)]
                assert all(isinstance(op.then[0], LaneExit) for op in exits)
                if not any(lane.get(op.cond) for op in exits):
                    found.append(tuple(lane.get(v) for v in values))
    return found


@pytest.mark.parametrize(("extents", "sizes"), GRIDS, ids=range(len(GRIDS)))
def test_every_block_once(extents, sizes) -> None:
    k, _ = kernel(extents)
    (unit,) = lower(k, "sm_80")
    grid = tuple(evaluate(g, sizes) for g in unit.launch.grid)
    counts = [evaluate(size_of(e), sizes) for e in extents]
    total = 1
    for n in counts:
        total *= n
    found = blocks(extents, sizes, grid)
    assert len(found) == len(set(found)) == total
    assert all(0 <= i < n for index in found for i, n in zip(index, counts, strict=True))


def size_of(e):
    from tilemma.targets.ptx.lower.params import size

    found = size(e)
    assert found is not None
    return found


@pytest.mark.parametrize("rows", [65535, 65536, 200_000])
def test_more_rows_than_a_grid_has(rows: int) -> None:
    """The device has 65535 blocks along y; the rest goes on in z, and what is too much leaves."""
    k, indices = kernel((Dim("A"), Dim("B")))
    (unit,) = lower(k, "sm_80")
    grid = tuple(evaluate(g, {"A": rows, "B": 3}) for g in unit.launch.grid)
    assert grid[0] == 3 and grid[1] <= 65535 and grid[1] * grid[2] >= rows
    lo = Lowering(k, "sm_80", 32)
    bind_blocks(lo, indices)
    first = lo.e.value(lo.indices["i0"])
    leaves = next(op for op in lo.e.regions[0].ops if isinstance(op, LaneIf)).cond
    seen = set()
    for z in range(grid[2]):
        for y in (0, 1, 65534):
            lane = Lane({"%ctaid.x": 0, "%ctaid.y": y, "%ctaid.z": z}, {"A": rows, "B": 3})
            lane.run(op for op in lo.e.regions[0].ops if not isinstance(op, LaneIf))
            assert bool(lane.get(leaves)) == (lane.get(first) >= rows)
            seen.add(lane.get(first))
    assert max(seen) >= rows - 1 and len(seen) == 3 * grid[2]


def test_an_extent_from_memory_is_refused() -> None:
    a = Buffer("a", dtypes.s32, (Dim("M"),), Space.GLOBAL)
    from tilemma.ir.expr import Element

    extent = Element(View(a, (const(0),), ()))
    k = Kernel("k", (ArrayParameter(a),), (Parallel((Index("i", extent),), (), BLOCK),))
    with pytest.raises(GridNotComputable):
        lower(k, "sm_80")


def par(count: int, level, *body) -> Parallel:
    return Parallel((Index(f"p{id(body)}", const(count)),), body, level)


@pytest.mark.parametrize(
    ("body", "threads"),
    [
        ((), 32),
        ((par(2, GROUP),), 64),
        ((par(2, GROUP), par(3, GROUP)), 96),
        ((par(2, GROUP, par(32, THREAD)),), 64),
        ((par(100, THREAD),), 128),
        ((par(4, THREAD, par(8, THREAD)),), 32),
    ],
)
def test_threads_are_the_most_that_a_level_asks_for(body, threads: int) -> None:
    assert launch_threads(Parallel((), body, BLOCK)) == threads


def test_parameters_are_what_the_code_reads() -> None:
    a = Buffer("a", dtypes.f32, (Dim("M"), Dim("N")), Space.GLOBAL)
    b = Buffer("b", dtypes.f32, (Dim("N"),), Space.GLOBAL)
    n = Scalar("n", dtypes.s32)
    write = SetElement(View(a, (const(0), n), ()), Const(1.0, dtypes.f32))
    k = Kernel("k", (ArrayParameter(a), ArrayParameter(b), ScalarParameter(n)), (Parallel((), (write,), BLOCK),))
    (unit,) = lower(k, "sm_80")
    assert unit.launch.arguments[:2] == (PointerArgument("a"), PointerArgument("b"))
    assert set(unit.launch.arguments[2:]) == {
        ValueArgument("M", "s32"),
        ValueArgument("N", "s32"),
        ValueArgument("n", "s32"),
    }
    assert [(x.name, x.read, x.written) for x in unit.launch.arrays] == [("a", False, True), ("b", False, False)]
    assert [p.type for p in unit.lane.params] == ["u64", "u64", "s32", "s32", "s32"]


def test_several_blocks_are_several_entries() -> None:
    k = Kernel("k", (), (Parallel((), (), BLOCK), Parallel((), (par(2, GROUP),), BLOCK)))
    units = lower(k, "sm_90a")
    assert [u.lane.name for u in units] == ["k_0", "k_1"] == [u.launch.entry for u in units]
    assert [u.launch.block[0] for u in units] == [32, 64]


def test_shared_memory_ends_with_its_last_buffer() -> None:
    s = Buffer("s", dtypes.f16, (const(16), const(16)), Space.SHARED, copies=3)
    k = Kernel("k", (), (Parallel((), (Alloc(s, offset=1024),), BLOCK),))
    (unit,) = lower(k, "sm_80")
    assert unit.launch.shared == unit.lane.shared == 1024 + 3 * 512


def test_overlapping_launches_wait_before_they_touch_memory() -> None:
    """After the events are set up, and on targets that can; the plan says how to start them."""
    from tilemma import event, parallel

    @tm.kernel
    def store(out: tm.Global["f32", "N"], *, OVERLAP=True):
        for i in parallel(out.shape[0], level="block", overlap=OVERLAP):
            event(2)
            for t in parallel(1, level="thread"):
                out[i] = 1.0 + t

    text = store.compile(arch="sm_90a").ptx
    places = [text.index(x) for x in ("mbarrier.init", "griddepcontrol.wait", "launch_dependents", "st.global")]
    assert places == sorted(places) and text.count("griddepcontrol") == 2
    assert store.compile(arch="sm_90a").launch["overlap"]
    before = store.compile(arch="sm_90a", OVERLAP="before")
    assert before.launch["overlap"] and "griddepcontrol.wait" in before.ptx
    assert "launch_dependents" not in before.ptx
    for other in (store.compile(arch="sm_80"), store.compile(arch="sm_90a", OVERLAP=False)):
        assert "griddepcontrol" not in other.ptx and not other.launch["overlap"]


def test_what_reads_no_memory_is_computed_before_the_wait() -> None:
    from tilemma import parallel, var

    @tm.kernel
    def gather(x: tm.Global["f32", "N"], out: tm.Global["f32", "N"], n: tm.Int):
        for i in parallel(out.shape[0], level="block", overlap=True):
            place = var(i // n)
            value = var(x[place])
            again = var(i % n)
            for t in parallel(1, level="thread"):
                out[i] = value + again

    text = gather.compile(arch="sm_90a").ptx
    places = [text.index(x) for x in ("div.", "griddepcontrol.wait", "ld.global", "st.global")]
    assert places == sorted(places)


def test_blocks_of_a_cluster_compute_their_places_while_they_wait_for_each_other() -> None:
    from tilemma import event, parallel, trigger, var, wait

    @tm.kernel
    def places(out: tm.Global["s32", "C", 2], n: tm.Int):
        for i in parallel(out.shape[0], level="cluster", overlap=True):
            for rank in parallel(2, level="block"):
                place = var(i // n)
                done = event()
                for _ in parallel(1, level="group"):
                    trigger(done, cluster=True)
                    wait(done)
                for t in parallel(1, level="thread"):
                    out[i, rank] = place + t

    text = places.compile(arch="sm_90a").ptx
    order = ("mbarrier.init", "cluster.arrive.relaxed", "div.", "cluster.wait", "griddepcontrol.wait", "st.global")
    found = [text.index(x) for x in order]
    assert found == sorted(found)


def test_first_tiles_of_what_is_read_once_are_prefetched_before_the_wait() -> None:
    """As many as 20 KiB hold; not in a branch, not where memory decides the place, and not without a wait.

    Variables that are computed before the wait, or from these, decide the place too; but none that change."""
    from tilemma import foreach, if_, parallel, shared, tma, var

    @tm.kernel
    def stream(
        x: tm.Global["f16", "M", "K"], at: tm.Global["s32", "A"], out: tm.Global["f16", "M"], *,
        EVICT="first", OVERLAP=True, READ=False, BRANCH=False, HELD=False, CHANGED=False,
    ):  # fmt: skip
        for m in parallel(tm.cdiv(x.shape[0], 64), level="block", overlap=OVERLAP):
            row = var(m // 3) if HELD else m
            tile = shared("f16", 64, 64)
            after = var(row + 1) if HELD else row
            for k in foreach(tm.cdiv(x.shape[1], 64)):
                there = x.subspan(64, 64).at(at[m] if READ else after, k + 1)
                if CHANGED:
                    after.set(after + 1)
                if BRANCH:
                    with if_(k < 9):
                        tma.copy(there, tile, evict=EVICT)
                else:
                    tma.copy(there, tile, evict=EVICT)
                for t in parallel(64, level="thread"):
                    out[m * 64 + t] = tile[t, 0]

    name = "cp.async.bulk.prefetch.tensor.2d.L2.global.tile.L2::cache_hint"
    text = stream.compile(arch="sm_90a").ptx
    places = [text.index(x) for x in ("mbarrier.init", name, "griddepcontrol.wait", "cp.async.bulk.tensor")]
    assert places == sorted(places)
    assert re.findall(re.escape(name) + r" \[%x_map\w*, \{(\d+), %coord", text) == ["64", "128"]
    held = stream.compile(arch="sm_90a", HELD=True).ptx
    places = [held.index(x) for x in ("mbarrier.init", "mul.hi", name, "griddepcontrol.wait")]
    assert places == sorted(places)
    others: tuple[dict[str, Any], ...] = ({"EVICT": "last"}, {"OVERLAP": False}, {"READ": True}, {"BRANCH": True})
    for other in (*others, {"HELD": True, "CHANGED": True}):
        assert name not in stream.compile(arch="sm_90a", **other).ptx, other


def test_overlap_is_for_launches() -> None:
    from tilemma import parallel

    @tm.kernel
    def inner(out: tm.Global["f32", "N"]):
        for i in parallel(out.shape[0], level="block"):
            for t in parallel(1, level="thread", overlap=True):
                out[i] = 1.0 + t

    with pytest.raises(TilemmaError, match="outermost level"):
        inner.build()


@pytest.mark.parametrize(("kilobytes", "alone"), [(48, None), (82, None), (83, 1), (160, 1)])
def test_a_block_that_fills_its_multiprocessor_says_so(kilobytes: int, alone: int | None) -> None:
    """sm_80 has 164 KB for the blocks of a multiprocessor; ptxas need not save registers for a second one."""
    buffer = Buffer("s", dtypes.u8, (const(kilobytes * 1024),), Space.SHARED)
    body = (Parallel((Index("i", const(1)),), (Alloc(buffer, offset=0),), BLOCK),)
    (unit,) = lower(Kernel("k", (), body), "sm_80")
    assert unit.lane.shared == kilobytes * 1024 and unit.lane.min_blocks == alone
