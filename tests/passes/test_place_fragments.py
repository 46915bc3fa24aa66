from __future__ import annotations

import pytest
from pass_kernels import BLOCK, GROUP, WARPGROUP, Builder, Contract, dtypes, find, listing1, listing2, listing3

from tilemma.ir.tile import DeclareFragment, Parallel, Store
from tilemma.ir.types import THREAD
from tilemma.passes.infer_levels import InferLevels
from tilemma.passes.place_fragments import (
    AccumulatorType,
    CollectiveLanes,
    CollectiveScope,
    FragmentHome,
    FragmentNotFilled,
    FragmentRoles,
    PlaceFragments,
    SeveralInstances,
)
from tilemma.passes.scope import sites


def placed(kernel, log=None):
    return PlaceFragments().run(InferLevels().run(kernel, []), [] if log is None else log)


def dtype_of(kernel, name):
    return next(f.dtype for f in find(kernel, DeclareFragment) if f.name == name)


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (listing1, dtypes.f16),
        (listing2, dtypes.f16),
        (listing3, dtypes.f32),
        (lambda: listing1(dtypes.bf16), dtypes.f32),
    ],
)
def test_accumulator_types(make, dtype):
    assert dtype_of(placed(make()), "mc") is dtype


def test_an_f16_accumulator_is_warned_about():
    log = []
    placed(listing2(), log)
    assert any(d.warning and "f16" in d.text for d in log)
    log = []
    placed(listing3(), log)
    assert not any(d.warning for d in log)


def test_a_store_at_block_scope_moves_into_the_single_instance():
    kernel = placed(listing2())
    (store,) = [s for s in sites(kernel.body) if isinstance(s.op, Store)]
    assert store.group is not None and store.group.level == WARPGROUP
    assert placed(kernel) == kernel


def around(level=WARPGROUP, groups=1):
    """A builder with operands in shared memory, inside a block."""
    b = Builder("k")
    src = b.array_param("src", dtypes.f16, [64, 64])
    return b, src


def test_storing_outside_several_instances():
    b, src = around()
    with b.parallel(["i"], [1], BLOCK):
        mc = b.fill("mc", 0.0)
        with b.parallel(["p"], [2], WARPGROUP):
            b.mma(Contract.ROW_ROW, mc, b.load("ma", src), b.load("mb", src))
        b.store(mc, src)
    with pytest.raises(SeveralInstances, match="2 instances"):
        placed(b.finish())


def test_multiplying_at_block_scope():
    b, src = around()
    with b.parallel(["i"], [1], BLOCK):
        mc = b.fill("mc", 0.0)
        b.mma(Contract.ROW_ROW, mc, b.load("ma", src), b.load("mb", src))
    with pytest.raises(CollectiveScope):
        placed(b.finish())


def test_two_roles():
    b, src = around()
    with b.parallel(["i"], [1], BLOCK), b.parallel(["p"], [1], WARPGROUP):
        mc, ma = b.fill("mc", 0.0), b.load("ma", src)
        b.mma(Contract.ROW_ROW, mc, ma, ma)
    with pytest.raises(FragmentRoles) as caught:
        placed(b.finish())
    assert "operand A" in caught.value.message and "operand B" in caught.value.message


def test_nothing_filled():
    b, src = around()
    with b.parallel(["i"], [1], BLOCK), b.parallel(["p"], [1], WARPGROUP):
        mc = b.fragment("mc")
        b.mma(Contract.ROW_ROW, mc, b.load("ma", src), b.load("mb", src))
        b.fill(mc, 0.0)
    with pytest.raises(FragmentNotFilled, match="mc"):
        placed(b.finish())


def test_homes_of_two_shapes():
    b, src = around()
    with b.parallel(["i"], [1], BLOCK):
        mc = b.fill("mc", 0.0)
        with b.parallel(["p"], [1], WARPGROUP):
            b.mma(Contract.ROW_ROW, mc, b.load("ma", src), b.load("mb", src))
        with b.parallel(["p"], [4], GROUP):
            b.store(mc, src)
    with pytest.raises(FragmentHome):
        placed(b.finish())


def test_an_accumulator_type_that_no_operand_of_this_type_has():
    b, src = around()
    with b.parallel(["i"], [1], BLOCK), b.parallel(["p"], [1], WARPGROUP):
        mc = b.fill("mc", 0, dtypes.s32)
        b.mma(Contract.ROW_ROW, mc, b.load("ma", src), b.load("mb", src))
    with pytest.raises(AccumulatorType) as caught:
        placed(b.finish())
    assert "f16" in caught.value.expectation


def lanes(count, index=0):
    b, src = around()
    with (
        b.parallel(["i"], [1], BLOCK),
        b.parallel(["p"], [1], WARPGROUP),
        b.parallel(["t"], [count], THREAD) as (t,),
    ):
        mc = b.fill("mc", 0.0)
        tile = src.subspan([16, 16], [t if index else 0, 0])
        b.mma(Contract.ROW_ROW, mc, b.load("ma", tile), b.load("mb", tile))
    return b.finish()


def test_a_collective_statement_below_all_lanes():
    assert find(placed(lanes(128)), Parallel)


@pytest.mark.parametrize("kernel", [lanes(64), lanes(128, index=1)])
def test_a_collective_statement_below_some_or_differing_lanes(kernel):
    with pytest.raises(CollectiveLanes):
        placed(kernel)


def test_a_multiply_at_thread_level_alone():
    b, src = around()
    with b.parallel(["i"], [1], BLOCK), b.parallel(["t"], [32], THREAD):
        mc = b.fill("mc", 0.0)
        b.mma(Contract.ROW_ROW, mc, b.load("ma", src), b.load("mb", src))
    with pytest.raises(CollectiveScope, match="thread"):
        placed(b.finish())
