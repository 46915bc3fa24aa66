from __future__ import annotations

from dataclasses import replace

import pytest
from pass_kernels import (
    BLOCK,
    GROUP,
    WARPGROUP,
    Builder,
    Contract,
    Dim,
    Space,
    Tile,
    cdiv,
    dtypes,
    find,
    listing1,
    listing2,
    listing3,
    one_multiply,
)
from race_oracle import races

from tilemma.ir.expr import add, binary, mod, mul
from tilemma.ir.tile import (
    Barrier,
    Copy,
    CopyCommit,
    CopyWait,
    For,
    InThreads,
    Kernel,
    Mma,
    MmaCommit,
    MmaFence,
    MmaWait,
    Op,
    ProxyFence,
    Store,
)
from tilemma.ir.types import THREAD
from tilemma.ir.walk import bodies
from tilemma.passes import FRONT_PASSES
from tilemma.passes.scope import block_threads, blocks, sites
from tilemma.passes.simplify import Simplify
from tilemma.targets.ptx.passes.assign_layouts import AssignLayouts
from tilemma.targets.ptx.passes.choose_atoms import ChooseAtoms
from tilemma.targets.ptx.passes.choose_copies import ChooseCopies
from tilemma.targets.ptx.passes.insert_sync import InsertSync
from tilemma.targets.ptx.passes.place_sync import BarrierNotUniform, BarrierPartialWarp

SYNC = (Barrier, CopyCommit, CopyWait, ProxyFence, MmaFence, MmaCommit, MmaWait)
DIMS = {"M": 1, "N": 1, "K": 400, "B": 1, "G": 1}


def synchronised(kernel: Kernel, arch="sm_80") -> Kernel:
    for p in (*FRONT_PASSES, Simplify(), ChooseAtoms(arch), AssignLayouts(), ChooseCopies(arch), InsertSync()):
        kernel = p.run(kernel, [])
    return kernel


def sync_ops(kernel: Kernel) -> list[str]:
    return [type(op).__name__ for op in find(kernel, SYNC)]


def found_races(kernel: Kernel) -> list[str]:
    (block,) = blocks(kernel)
    return races(kernel, DIMS, block_threads(block))


def without(kernel: Kernel, number: int) -> Kernel:
    """``kernel`` without synchronisation operation ``number``."""
    count = iter(range(10**6))

    def strip(body):
        out: list[Op] = []
        for op in body:
            if isinstance(op, SYNC) and next(count) == number:
                continue
            changes = {name: strip(inner) for name, inner in bodies(op)}
            out.append(replace(op, **changes) if changes else op)
        return tuple(out)

    return replace(kernel, body=strip(kernel.body))


LISTINGS = [
    (listing1, "sm_80"),
    (listing2, "sm_80"),
    (listing2, "sm_90a"),
    (listing3, "sm_80"),
    (listing3, "sm_90a"),
]


@pytest.mark.parametrize(("make", "arch"), LISTINGS)
def test_the_listings_are_ordered_and_nothing_can_be_left_out(make, arch):
    kernel = synchronised(make(), arch)
    assert found_races(kernel) == []
    ops = sync_ops(kernel)
    for i, name in enumerate(ops):
        # MmaFence orders registers, which the oracle does not follow.
        assert name == "MmaFence" or found_races(without(kernel, i)), f"{name} ({i} of {ops}) is superfluous"


def test_the_warpgroup_listing_waits_as_a_person_would_write_it():
    kernel = synchronised(listing3(), "sm_90a")
    (block,) = blocks(kernel)
    loop = next(op for op in block.body if isinstance(op, For))
    shape = [type(op).__name__ for op in loop.body]
    assert shape == [
        *("Copy", "Copy", "CopyCommit", "CopyWait", "ProxyFence", "Barrier"),
        *("Parallel", "MmaWait", "Barrier"),
    ]
    multiply = loop.body[6]
    assert [type(op).__name__ for op in multiply.body] == ["MmaFence", "For", "MmaCommit"]
    after = [type(op).__name__ for op in block.body[block.body.index(loop) + 1 :]]
    assert after == ["Parallel", "Barrier", "Copy"]
    assert {op.threads for op in find(kernel, Barrier)} == {256} and {op.id for op in find(kernel, Barrier)} == {0}


def test_a_loop_around_the_warpgroup_changes_places_with_it():
    """Listing 2 multiplies in a parallel inside the k loop: fence and commit still stand outside that loop."""
    kernel = synchronised(listing2(), "sm_90a")
    for s in sites(kernel.body):
        if isinstance(s.op, (MmaFence, MmaCommit, MmaWait)):
            loops = [p for p in s.parents if isinstance(p, For)]
            assert [p.index.name for p in loops] == ["iv_k"]


def test_one_warp_needs_no_named_barrier():
    kernel = synchronised(listing1(), "sm_80")
    assert {(b.id, b.threads) for b in find(kernel, Barrier)} == {(0, 32)}


# ---- scopes ----------------------------------------------------------------------------------------------


class Scene:
    """A block with a shared tile ``s`` of f32 [64, 64] and global arrays ``x`` and ``y``."""

    def __init__(self):
        self.b = Builder("k")
        self.x = self.b.array_param("x", dtypes.f32, ["M", "K"])
        self.y = self.b.array_param("y", dtypes.f32, ["M", "K"])

    def shared(self, name="s", shape=(64, 64), **options):
        return Tile.whole(self.b.alloc(name, Space.SHARED, dtypes.f32, shape, **options))

    def block(self):
        return self.b.parallel(["i"], [1], BLOCK)

    def done(self, arch="sm_80") -> Kernel:
        kernel = synchronised(self.b.finish(), arch)
        assert found_races(kernel) == []
        return kernel


def rows(tile, p, n):
    return tile.subspan([n, 64], [p, 0])


def test_warps_that_keep_to_their_rows_wait_for_themselves_only():
    k = Scene()
    with k.block():
        s = k.shared()
        with k.b.parallel(["w"], [4], GROUP) as (w,):
            k.b.copy(rows(k.x, w, 16), rows(s, w, 16))
            k.b.copy(rows(s, w, 16), rows(k.y, w, 16))
    kernel = k.done()
    assert [(b.id, b.threads) for b in find(kernel, Barrier)] == [(0, 32)]


def test_equal_parallels_hand_over_within_the_warps():
    k = Scene()
    with k.block():
        s = k.shared()
        with k.b.parallel(["w"], [2], WARPGROUP) as (w,):
            k.b.copy(rows(k.x, w, 32), rows(s, w, 32))
        with k.b.parallel(["w"], [2], WARPGROUP) as (w,):
            k.b.copy(rows(s, w, 32), rows(k.y, w, 32))
    (barrier,) = find(k.done(), Barrier)
    assert (barrier.threads, barrier.id_step) == (128, 1) and barrier.id > 0


def test_the_neighbours_rows_need_the_whole_block():
    k = Scene()
    with k.block():
        s = k.shared()
        with k.b.parallel(["w"], [2], WARPGROUP) as (w,):
            k.b.copy(rows(k.x, w, 32), rows(s, w, 32))
            other = binary("sub", 1, w.value)
            k.b.copy(rows(s, other, 32), rows(k.y, w, 32))
    (barrier,) = find(k.done(), Barrier)
    assert (barrier.id, barrier.threads) == (0, 256)


def test_rows_that_warps_have_read_themselves_are_not_yet_there_for_others():
    k = Scene()
    with k.block():
        s = k.shared()
        with k.b.parallel(["w"], [4], GROUP) as (w,):
            k.b.copy(rows(k.x, w, 16), rows(s, w, 16))
            k.b.copy(rows(s, w, 16), rows(k.y, w, 16))
            k.b.copy(rows(s, binary("sub", 3, w.value), 16), rows(k.y, add(w.value, 4), 16))
    assert [b.threads for b in find(k.done(), Barrier)] == [32, 128]


def test_a_barrier_among_some_warps_counts_only_those():
    k = Scene()
    with k.block():
        s = k.shared()
        with k.b.parallel(["w"], [8], GROUP):
            pass
        with k.b.parallel(["q"], [2], GROUP) as (q,):
            k.b.copy(rows(k.x, 0, 32), rows(s, 0, 32))
            k.b.copy(rows(s, q, 16), rows(k.y, q, 16))
        with k.b.parallel(["w"], [8], GROUP) as (w,):
            k.b.copy(rows(k.x, w, 1), rows(k.y, add(w.value, 64), 1))
    (barrier,) = find(k.done(), Barrier)
    assert barrier.threads == 64 and barrier.id > 0


def test_threads_that_keep_to_their_elements_need_no_barrier():
    k = Scene()
    with k.block():
        s = k.shared()
        with k.b.parallel(["t"], [64], THREAD) as (t,), k.b.foreach("j", 2) as j:
            k.b.set_element(s, [t, j], k.b.element(k.x, [t, j]))
            k.b.set_element(k.y, [t, j], k.b.element(s, [t, j]))
    assert find(k.done(), Barrier) == []


def test_threads_that_read_their_neighbours_wait():
    k = Scene()
    with k.block():
        s = k.shared()
        with k.b.parallel(["t"], [64], THREAD) as (t,):
            k.b.set_element(s, [0, t], k.b.element(k.x, [0, t]))
            k.b.set_element(k.y, [0, t], k.b.element(s, [0, binary("sub", 63, t.value)]))
    (barrier,) = find(k.done(), Barrier)
    assert barrier.threads == 64


def test_what_one_turn_leaves_is_ordered_before_the_next():
    k = Scene()
    with k.block():
        s = k.shared()
        with k.b.foreach("j", 4) as j, k.b.parallel(["t"], [64], THREAD) as (t,):
            k.b.set_element(s, [0, t], k.b.element(k.x, [j, t]))
            k.b.set_element(k.y, [j, t], k.b.element(s, [0, binary("sub", 63, t.value)]))
    assert len(find(k.done(), Barrier)) == 2


def test_two_slots_need_one_barrier_a_turn():
    """A ring of two: what turn j reads is overwritten in turn j + 2, and turn j + 1 has a barrier."""
    k = Scene()
    with k.block():
        s = k.b.alloc("s", Space.SHARED, dtypes.f32, (8, 64), copies=2)
        with k.b.parallel(["w"], [4], GROUP) as (w,), k.b.foreach("j", 6) as j:
            slot = Tile.whole(s, mod(j.value, 2))
            k.b.copy(rows(k.x, j, 8), slot)
            k.b.copy(rows(slot, w, 2), rows(k.y, add(w.value, 100), 2))
    kernel = k.done()
    assert len(find(kernel, Barrier)) <= 2


def test_initial_values_are_there_for_everyone():
    k = Scene()
    with k.block():
        s = k.shared(init=0.0)
        with k.b.parallel(["t"], [64], THREAD) as (t,):
            k.b.set_element(k.y, [0, t], k.b.element(s, [0, t]))
    assert len(find(synchronised(k.b.finish()), Barrier)) == 1


def test_one_warp_feeds_the_others():
    k = Scene()
    with k.block():
        s = k.shared()
        with k.b.parallel(["w"], [4], GROUP) as (w,):
            with k.b.inthreads(binary("eq", w.value, 0)):
                k.b.copy(rows(k.x, 0, 64), s)
            k.b.copy(rows(s, w, 16), rows(k.y, w, 16))
    kernel = k.done()
    (barrier,) = find(kernel, Barrier)
    assert barrier.threads == 128
    assert [type(op).__name__ for op in find(kernel, (CopyWait, Barrier))] == ["CopyWait", "Barrier"]


def test_of_several_admitted_the_first_copies_for_all():
    k = Scene()
    with k.block():
        s = k.shared()
        with k.b.parallel(["w"], [4], GROUP) as (w,), k.b.inthreads(binary("ge", w.value, 1)):
            k.b.copy(rows(k.x, 0, 64), s)
            k.b.copy(rows(s, w, 16), rows(k.y, w, 16))
    kernel = k.done()
    (barrier,) = find(kernel, Barrier)
    assert barrier.threads == 96
    (site, other) = [x for x in sites(kernel.body) if isinstance(x.op, Copy)]
    assert [p.cond.b.value for p in site.parents if isinstance(p, InThreads)] == [1, 1]
    assert sum(isinstance(p, InThreads) for p in other.parents) == 1


def test_what_nobody_reads_is_still_waited_for_at_the_end():
    k = Scene()
    with k.block():
        s = k.shared()
        with k.b.parallel(["w"], [4], GROUP):
            k.b.copy(rows(k.x, 0, 64), s)
    kernel = k.done()
    (block,) = blocks(kernel)
    assert [type(op).__name__ for op in block.body[-2:]] == ["CopyCommit", "CopyWait"]


def test_inside_a_condition_only_those_admitted_wait():
    k = Scene()
    with k.block():
        s = k.shared()
        with k.b.parallel(["w"], [4], GROUP) as (w,), k.b.inthreads(binary("ge", w.value, 2)):
            k.b.set_element(s, [0, w], 1.0)
            k.b.set_element(k.y, [0, w], k.b.element(s, [0, binary("sub", 5, w.value)]))
    (barrier,) = find(k.done(), Barrier)
    assert barrier.threads == 64 and barrier.id > 0


def test_each_of_seven_roles_takes_one_named_barrier():
    """Of 15: none is left out for the instances before."""
    k = Scene()
    with k.block():
        s = k.shared()
        with k.b.parallel(["g"], [7], WARPGROUP) as (g,):
            for role in range(7):
                with k.b.inthreads(binary("eq", g.value, role)), k.b.parallel(["t"], [128], THREAD) as (t,):
                    k.b.set_element(s, [role, t], k.b.element(k.x, [role, t]))
                    k.b.set_element(k.y, [role, t], k.b.element(s, [role, binary("sub", 127, t.value)]))
    found = find(k.done(), Barrier)
    assert {b.threads for b in found} == {128} and len(found) == 7
    assert sorted(b.id for b in found) == list(range(1, 8))


def test_loops_of_different_lengths_cannot_wait_for_one_another():
    k = Scene()
    with k.block():
        s = k.shared()
        with k.b.parallel(["w"], [4], GROUP) as (w,), k.b.foreach("j", 4, stop=w.value):
            k.b.set_element(s, [0, w], 1.0)
            k.b.set_element(k.y, [0, w], k.b.element(s, [0, binary("sub", 3, w.value)]))
    with pytest.raises(BarrierNotUniform) as caught:
        synchronised(k.b.finish())
    assert "`s`" in caught.value.message


def test_part_of_a_warp_cannot_wait():
    k = Scene()
    with k.block():
        s = k.shared()
        with k.b.parallel(["t"], [50], THREAD) as (t,):
            k.b.set_element(s, [0, t], 1.0)
            k.b.set_element(k.y, [0, t], k.b.element(s, [0, binary("sub", 49, t.value)]))
    with pytest.raises(BarrierPartialWarp) as caught:
        synchronised(k.b.finish())
    assert "50 threads" in caught.value.message and "64" in caught.value.remedy


def test_what_skips_with_its_own_condition_may_wait():
    k = Scene()
    with k.block():
        s = k.shared()
        with k.b.parallel(["t"], [64], THREAD) as (t,):
            with k.b.if_(binary("lt", t.value, 50)):
                k.b.set_element(s, [0, t], 1.0)
            with k.b.if_(binary("lt", t.value, 50)):
                k.b.set_element(k.y, [0, t], k.b.element(s, [0, binary("sub", 49, t.value)]))
    (barrier,) = find(k.done(), Barrier)
    assert barrier.threads == 64


def test_a_condition_of_run_time_values_is_the_same_for_all():
    k = Scene()
    with k.block():
        s = k.shared()
        with k.b.if_(binary("gt", Dim("M"), 3)), k.b.parallel(["t"], [64], THREAD) as (t,):
            k.b.set_element(s, [0, t], 1.0)
            k.b.set_element(k.y, [0, t], k.b.element(s, [0, binary("sub", 63, t.value)]))
    assert len(find(synchronised(k.b.finish()), Barrier)) == 1


def test_a_global_array_written_and_read_again():
    k = Scene()
    with k.block(), k.b.parallel(["t"], [64], THREAD) as (t,):
        k.b.set_element(k.y, [0, t], k.b.element(k.x, [0, t]))
        k.b.set_element(k.x, [1, t], k.b.element(k.y, [0, binary("sub", 63, t.value)]))
    assert len(find(k.done(), Barrier)) == 1


def test_the_source_of_a_copy_is_overwritten_after_a_wait():
    """By the same threads: cp.async reads until it completes."""
    k = Scene()
    with k.block():
        s, u = k.shared(), k.shared("u")
        k.b.copy(rows(k.x, 0, 64), s)
        k.b.copy(u, rows(k.x, 0, 64))
        with k.b.parallel(["t"], [64], THREAD) as (t,):
            k.b.set_element(k.y, [0, t], k.b.element(s, [0, t]))
    ops = [type(op).__name__ for op in find(k.done(), (Copy, CopyWait, Barrier))]
    assert ops == ["Copy", "CopyWait", "Copy", "Barrier"]


# The height of a tile of 64 columns, its number, and whether other threads have written some of its rows.  128
# threads have 16 bytes each, of every eighth row.
ROW_BY_ROW = [(32, 0, False), (32, 1, False), (6, 4, False), (4, 2, False), (6, 3, True), (12, 1, True)]


@pytest.mark.parametrize(("height", "at", "others"), ROW_BY_ROW)
def test_threads_read_the_rows_that_they_have_written(height, at, others):
    k = Scene()
    with k.block():
        u, s = k.shared("u"), k.shared("s", (height, 64))
        k.b.copy(u, rows(k.x, 0, 64))
        k.b.copy(rows(k.x, at, height), s)
        with k.b.parallel(["t"], [128], THREAD) as (t,):
            k.b.set_element(k.y, [0, t], 1.0)
    assert len(find(k.done(), Barrier)) == others


# The end of a loop inside another, and whether it runs in each iteration of that but the first.
ENDS = [
    (lambda i: i, True),
    (lambda i: mul(2, i), True),
    (lambda i: mul(binary("floordiv", i, 2), 2), False),
    (lambda i: binary("sub", i, 1), False),
]


@pytest.mark.parametrize(("end", "runs"), ENDS)
def test_a_barrier_in_a_loop_up_to_the_index_orders_iterations(end, runs):
    k = Scene()
    with k.block():
        s, u = k.shared(), k.shared("u")
        with k.b.foreach("j", 3) as j:
            with k.b.foreach("m", end(j.value)) as m, k.b.parallel(["t"], [32], THREAD) as (t,):
                k.b.set_element(u, [m, t], k.b.element(k.x, [m, t]))
                k.b.set_element(k.y, [m, t], k.b.element(u, [m, binary("sub", 31, t.value)]))
            with k.b.parallel(["t2"], [32], THREAD) as (t,):
                k.b.set_element(s, [0, t], 1.0)
            with k.b.parallel(["t3"], [32], THREAD) as (t,):
                k.b.set_element(k.y, [add(64, j.value), t], k.b.element(s, [0, binary("sub", 31, t.value)]))
    kernel = k.done()
    outer = next(op for op in find(kernel, For) if op.index.name == "j")
    assert isinstance(outer.body[-1], Barrier) != runs


# ---- the async proxy -------------------------------------------------------------------------------------


def test_what_threads_write_is_passed_to_the_tensor_cores():
    b = Builder("k")
    src = b.array_param("src", dtypes.f16, ["M", "K"])
    with b.parallel(["i"], [1], BLOCK):
        s = Tile.whole(b.alloc("s", Space.SHARED, dtypes.f16, [64, 64]))
        with b.parallel(["t"], [128], THREAD) as (t,), b.foreach("j", 2) as j:
            at = add(mul(mod(t.value, 2), 32), j.value)
            b.set_element(s, [binary("div", t.value, 2), at], 1.0)
        with b.parallel(["p"], [1], WARPGROUP):
            mc = b.fill("mc", 0.0, dtypes.f32)
            b.mma(Contract.ROW_ROW, mc, b.load("ma", s), b.load("mb", s))
            b.store(mc, src.subspan([64, 64], [0, 0]))
    kernel = synchronised(b.finish(), "sm_90a")
    assert sync_ops(kernel) == ["ProxyFence", "Barrier", "MmaFence", "MmaCommit", "MmaWait"]
    assert found_races(kernel) == []


def test_ldmatrix_needs_no_proxy_fence():
    assert find(synchronised(one_multiply(level=GROUP), "sm_90a"), ProxyFence) == []


def test_accumulators_are_waited_for_once():
    kernel = synchronised(one_multiply(), "sm_90a")
    ops = [type(op).__name__ for op in find(kernel, (Copy, Mma, MmaCommit, MmaWait, Store))]
    assert ops == ["Copy", "Copy", "Mma", "MmaCommit", "MmaWait", "Store"]


def test_a_wait_goes_before_a_barrier_that_is_there_anyway():
    """Double buffering by hand: turn j multiplies slot j % 2 while the copy for turn j + 1 is under way."""
    b = Builder("k")
    src = b.array_param("src", dtypes.f16, ["M", "K"])
    out = b.array_param("out", dtypes.f16, ["M", "N"])
    with b.parallel(["i"], [1], BLOCK):
        ring = b.alloc("ring", Space.SHARED, dtypes.f16, (64, 64), copies=2)
        mc = b.fill("mc", 0.0, dtypes.f32)
        b.copy(src.subspan([64, 64], [0, 0]), Tile.whole(ring, mod(Dim("M"), 1)))
        with b.foreach("j", cdiv(Dim("K"), 64)) as j:
            here = Tile.whole(ring, mod(j.value, 2))
            with b.parallel(["p"], [1], WARPGROUP):
                b.mma(Contract.ROW_ROW, mc, b.load("ma", here), b.load("mb", here))
            b.copy(src.subspan([64, 64], [0, add(j.value, 1)]), Tile.whole(ring, mod(add(j.value, 1), 2)))
        with b.parallel(["p"], [1], WARPGROUP):
            b.store(mc, out.subspan([64, 64], [0, 0]))
    kernel = synchronised(b.finish(), "sm_90a")
    assert found_races(kernel) == []
    loop = next(op for op in find(kernel, For) if op.index.name == "j")
    assert sum(isinstance(op, Barrier) for op in find(replace(kernel, body=loop.body), Barrier)) <= 2


def test_a_second_run_adds_nothing():
    for make, arch in LISTINGS:
        once = synchronised(make(), arch)
        assert sync_ops(InsertSync().run(once, [])) == sync_ops(once)
