from __future__ import annotations

from dataclasses import replace

import pytest
from pass_kernels import (
    BLOCK,
    GROUP,
    WARPGROUP,
    Builder,
    Dim,
    Space,
    Tile,
    dtypes,
    find,
    listing1,
    listing2,
    listing3,
    one_multiply,
)

from tilemma.ir.expr import binary
from tilemma.ir.plans import CopyPlan
from tilemma.ir.tile import ArrayFacts, Copy, Store
from tilemma.ir.types import THREAD
from tilemma.passes import FRONT_PASSES
from tilemma.targets.ptx.passes.assign_layouts import AssignLayouts
from tilemma.targets.ptx.passes.choose_atoms import ChooseAtoms
from tilemma.targets.ptx.passes.choose_copies import ChooseCopies, ClashingCopies, CopyOutsideBlock
from tilemma.targets.ptx.tensor_copies import TmaRefused


def chosen(kernel, arch="sm_80"):
    for p in (*FRONT_PASSES, ChooseAtoms(arch), AssignLayouts(), ChooseCopies(arch)):
        kernel = p.run(kernel, [])
    return kernel


def with_facts(kernel, facts):
    params = tuple(replace(p, facts=facts) if hasattr(p, "buffer") else p for p in kernel.params)
    return replace(kernel, params=params)


@pytest.mark.parametrize(("make", "threads"), [(listing1, 32), (listing2, 128), (listing3, 256)])
def test_the_listings_copy_with_all_threads_of_the_block(make, threads):
    into_l, into_r, out = find(chosen(make()), Copy)
    assert into_l.plan == into_r.plan == CopyPlan("cp.async", 16, BLOCK, threads)
    assert out.plan == CopyPlan("ldst", 16, BLOCK, threads)


@pytest.mark.parametrize(
    ("facts", "engine", "vector"),
    [
        (ArrayFacts(1, 16), "cp.async", 16),
        (ArrayFacts(1, 8), "cp.async", 8),
        (ArrayFacts(1, 4), "cp.async", 4),
        (ArrayFacts(1, 2), "ldst", 2),
        (ArrayFacts(0, 16), "ldst", 2),
        (ArrayFacts(None, 16), "ldst", 2),
    ],
)
def test_vectors_follow_the_facts(facts, engine, vector):
    plans = [c.plan for c in find(chosen(with_facts(listing3(), facts)), Copy)]
    assert {(p.engine, p.vector) for p in plans[:2]} == {(engine, vector)}
    assert plans[2].vector == vector


def one_copy(shape, origin=(0, 0), buffer=None, dtype=dtypes.f16, view=None):
    b = Builder("k")
    src = b.array_param("src", dtype, ["M", "K"])
    with b.parallel(["i"], [Dim("G")], BLOCK) as (i,):
        s = Tile.whole(b.alloc("s", Space.SHARED, dtype, buffer or shape))
        b.copy(
            view(src, i) if view else src.window(shape, origin), s if buffer is None else s.window(shape, [0, 0])
        )
    (copy,) = find(chosen(b.finish()), Copy)
    return copy.plan


@pytest.mark.parametrize(
    ("shape", "origin", "vector"),
    [
        ((16, 64), (0, 0), 16),
        ((16, 64), (3, 8), 16),
        ((16, 64), (0, 4), 8),
        ((16, 64), (0, 3), 2),
        ((16, 12), (0, 0), 8),
        ((16, 9), (0, 0), 2),
        ((1, 6), (0, 0), 4),
    ],
)
def test_vectors_follow_extents_and_origins(shape, origin, vector):
    assert one_copy(shape, origin).vector == vector


def test_rows_of_the_buffer_that_are_not_aligned_narrow_the_vector():
    assert one_copy((16, 8), buffer=(16, 12)).vector == 8


def test_a_strided_view_moves_single_elements():
    plan = one_copy((8, 8), view=lambda src, i: src.subspan([8, 8], [i, 0], strides=[1, 2]))
    assert plan.vector == 2


def test_a_tile_smaller_than_its_buffer_at_run_time_moves_as_the_buffer():
    """`modspan`: the remainder's extent is not known, the missing rest is zero-filled as over an edge."""
    plan = one_copy((64, 64), view=lambda src, i: src.subspan([64, 64], [i, 0], remainder=True))
    assert (plan.engine, plan.vector) == ("cp.async", 16)


def scoped(write, levels=((2, WARPGROUP),)):
    b = Builder("k")
    src = b.array_param("src", dtypes.f16, ["M", "K"])
    s = None
    with b.parallel(["i"], [4], BLOCK) as (_i,):
        s = Tile.whole(b.alloc("s", Space.SHARED, dtypes.f16, [64, 64]))

        def nest(rest, found):
            if not rest:
                return write(b, src, s, *found)
            with b.parallel(["p"], [rest[0][0]], rest[0][1]) as (p,):
                nest(rest[1:], [*found, p])
            return None

        nest(levels, [])
    (copy,) = find(chosen(b.finish()), Copy)
    return copy.plan


def half(tile, p):
    return tile.subspan([32, 64], [p, 0])


def test_each_instance_copies_its_own_part():
    plan = scoped(lambda b, src, s, p: b.copy(half(src, p), half(s, p)))
    assert (plan.level, plan.threads) == (WARPGROUP, 128)


def test_what_does_not_depend_on_the_index_is_copied_once():
    plan = scoped(lambda b, src, s, p: b.copy(half(src, 0), half(s, 1)))
    assert (plan.level, plan.threads) == (BLOCK, 256)


def test_a_variable_carries_the_dependence():
    def write(b, src, s, p):
        x = b.declare("x", 0)
        b.assign(x, binary("add", x, p.value))
        b.copy(half(src, x), half(s, x))

    assert scoped(write).level == WARPGROUP


def test_one_role_copies():
    def write(b, src, s, p):
        with b.inthreads(binary("eq", p.value, 1)):
            b.copy(half(src, 0), half(s, 0))

    plan = scoped(write)
    assert (plan.level, plan.threads) == (WARPGROUP, 128)


def test_threads_copy_their_own_rows():
    def write(b, src, s, t):
        b.copy(src.subspan([1, 64], [t, 0]), s.subspan([1, 64], [t, 0]))

    plan = scoped(write, [(64, THREAD)])
    assert (plan.level, plan.threads, plan.engine) == (THREAD, 1, "cp.async")


def test_different_data_for_one_place():
    with pytest.raises(ClashingCopies) as caught:
        scoped(lambda b, src, s, p: b.copy(half(src, p), half(s, 0)))
    assert "`src`" in caught.value.message and "`s`" in caught.value.message


def test_a_copy_at_kernel_level():
    b = Builder("k")
    src, dst = b.array_param("src", dtypes.f16, [64]), b.array_param("dst", dtypes.f16, [64])
    b.copy(src, dst)
    with pytest.raises(CopyOutsideBlock):
        chosen(b.finish())


def with_options(**options):
    b = Builder("k")
    src = b.array_param("src", dtypes.f16, ["M", "K"])
    with b.parallel(["i"], [4], BLOCK):
        s = Tile.whole(b.alloc("s", Space.SHARED, dtypes.f16, [64, 64]))
        b.copy(src.subspan([64, 64], [0, 0]), s, **options)
    return b.finish()


def test_the_tensor_memory_accelerator_is_refused_where_there_is_none():
    with pytest.raises(TmaRefused, match="sm_80"):
        chosen(with_options(engine="tma"))


@pytest.mark.parametrize(
    ("facts", "vector"),
    [(ArrayFacts(1, 16), 4), (ArrayFacts(1, 4), 4), (ArrayFacts(1, 2), 2), (ArrayFacts(0, 16), 2)],
)
def test_stores_to_global_memory(facts, vector):
    (store,) = find(chosen(with_facts(one_multiply(level=GROUP), facts)), Store)
    assert store.plan.vector == vector
