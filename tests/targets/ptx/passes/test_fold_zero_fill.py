"""Accumulators without a zero fill: a fill for a loop without iterations remains unless a fact excludes that
case."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilemma as tm
from tilemma import cdiv, dma, foreach, machine, mma, parallel, shared
from tilemma.compiler import default_facts
from tilemma.errors import TilemmaError
from tilemma.ir.expr import Dim, Expr, Index, const, substitute, value_of
from tilemma.ir.tile import ArrayFacts, Body, Fill, For, FragmentRef, If, Kernel, Mma
from tilemma.ir.types import Contract
from tilemma.ir.walk import walk
from tilemma.kernels import facts_of
from tilemma.runtime import binding
from tilemma.targets.ptx.passes.fold_zero_fill import FoldZeroFill

ARCH = "sm_90a"
FULL = ArrayFacts(1, 16, nonempty=True)
ALL_FULL = {"lhs": FULL, "rhs": FULL, "out": FULL}


@tm.kernel
def multiplied(
    lhs: tm.Global["f16", "M", "K"],
    rhs: tm.Global["f16", "N", "K"],
    out: tm.Global["f32", "M", "N"],
    *,
    FIRST=0,
    ROUND=1,
    NUMBERED=0,
):
    (M, K), N = lhs.shape, rhs.shape[0]
    for m, n in parallel(cdiv(M, 64), cdiv(N, 8), level="block"):
        a, b = shared("f16", 64, 16), shared("f16", 8, 16)
        mc = mma.fill(0.0, "f32")
        steps = cdiv(K, 16) if ROUND else K // 16
        done = (m * cdiv(N, 8) + n) * steps if NUMBERED else 0
        for k in foreach(done + steps, start=done + FIRST):
            dma.copy(lhs.subspan(64, 16).at(m, k - done), a)
            dma.copy(rhs.subspan(8, 16).at(n, k - done), b)
            for p in parallel(1, level="group-4"):
                mma.row.row(mc, mma.load(a), mma.load(b))
        for p in parallel(1, level="group-4"):
            mma.store(mc, out.subspan(64, 8).at(m, n))


def problem(k, m=64, n=8):
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-4, 5, (rows, k)).astype(np.float16) for rows in (m, n))
    return a, b, np.full((m, n), 7, np.float32)


def fills(compiled):
    """How many fills there are, and how many of them are for a loop without turns."""
    guarded = [
        x for op in walk(compiled.kernel.body) if isinstance(op, If) for x in op.then if isinstance(x, Fill)
    ]
    return sum(isinstance(op, Fill) for op in walk(compiled.kernel.body)), len(guarded)


def test_no_fill_where_the_extents_give_a_turn():
    assert fills(multiplied.compile(ARCH)) == (1, 1)
    assert fills(multiplied.compile(ARCH, facts=ALL_FULL)) == (0, 0)
    # K is known by either operand, and not by the result.
    assert fills(multiplied.compile(ARCH, facts={"rhs": FULL})) == (0, 0)
    assert fills(multiplied.compile(ARCH, facts={"out": FULL})) == (1, 1)


def test_a_loop_that_has_a_turn_for_sure_is_not_tested_before_the_first():
    """ptxas would find a path around the multiplies, and let each wait for the one before."""
    tested = re.compile(r"mov\.b32 (%k\w*), \d+;\s+setp\.ge\.s32 %\w+, \1,")
    assert tested.search(multiplied.compile(ARCH).ptx)
    assert not tested.search(multiplied.compile(ARCH, facts=ALL_FULL).ptx)
    assert tested.search(multiplied.compile(ARCH, facts=ALL_FULL, FIRST=1).ptx)


@pytest.mark.parametrize("k", [16, 40])
def test_turns_that_are_numbered_through(k):
    """The steps of a tile begin where those of the one before end, which is known at run time only."""
    compiled = multiplied.compile(ARCH, facts=ALL_FULL, NUMBERED=1)
    assert fills(compiled) == (0, 0)
    a, b, out = problem(k, 128, 24)
    machine.run(compiled.ptx, compiled.launch, {"lhs": a, "rhs": b, "out": out})
    assert np.array_equal(out, a.astype(np.float32) @ b.astype(np.float32).T)


@pytest.mark.parametrize("constants", [{"FIRST": 1}, {"ROUND": 0}, {"ROUND": 0, "NUMBERED": 1}], ids=str)
def test_extents_that_give_no_turn_for_sure(constants):
    assert fills(multiplied.compile(ARCH, facts=ALL_FULL, **constants)) == (1, 1)
    a, b, out = problem(8)
    multiplied.on("machine", arch=ARCH)(a, b, out, **constants)
    assert not out.any()


def test_calls_find_the_variant_of_their_arrays():
    run = multiplied.on("machine", arch=ARCH)
    for k in (40, 0, 16):
        a, b, out = problem(k)
        run(a, b, out)
        assert np.array_equal(out, a.astype(np.float32) @ b.astype(np.float32).T)
        assert fills(multiplied.compile(ARCH, facts=facts_of({"lhs": a, "rhs": b, "out": out})))[0] == (k == 0)


@pytest.mark.parametrize("k", [0, 40])
def test_what_is_exported_serves_every_extent(k):
    compiled = multiplied.compile(ARCH)
    assert not any(f.nonempty for f in default_facts(multiplied.build()).values())
    a, b, out = problem(k)
    machine.run(compiled.ptx, compiled.launch, {"lhs": a, "rhs": b, "out": out})
    assert np.array_equal(out, a.astype(np.float32) @ b.astype(np.float32).T)


def test_the_variant_without_is_refused_empty_arrays():
    compiled = multiplied.compile(ARCH, facts=ALL_FULL)
    a, b, out = problem(0)
    (launch,) = compiled.launches
    with pytest.raises(binding.EmptyArray, match="`lhs` has no elements"):
        binding.bind(launch, [a, b, out])
    with pytest.raises(TilemmaError, match="`lhs` has no elements"):
        machine.run(compiled.ptx, compiled.launch, {"lhs": a, "rhs": b, "out": out})


ACC = FragmentRef("mc")
WITH_SCALE, WITHOUT = "SM90_64x8x16_F32F16F16_SS", "SM80_16x8x16_F32F16F16F32_TN"


def known(e: Expr, values: dict[str, int]) -> int:
    found = value_of(substitute(e, {name: const(v) for name, v in values.items()}))
    assert found is not None
    return found


def sums(body: Body, values: dict[str, int], held: list[object]) -> list[object]:
    """What the accumulator holds in the end: the multiplies since it was last zero, of what it held at first."""
    for op in body:
        match op:
            case Fill():
                held = []
            case Mma(accumulate=condition):
                kept = condition is None or known(condition, values)
                held = [*(held if kept else []), (op.a, tuple(values.items()))]
            case For(index=index):
                for v in range(known(op.start, values), known(op.stop, values), known(op.step, values)):
                    held = sums(op.body, {**values, index.name: v}, held)
            case If():
                held = sums(op.then if known(op.cond, values) else op.otherwise, values, held)
    return held


@st.composite
def multiplies(draw, depth: int = 0) -> Body:
    """Loops in each other, with multiplies in the innermost and perhaps beside it."""
    atom = draw(st.sampled_from([WITH_SCALE, WITH_SCALE, WITH_SCALE, WITHOUT]))
    name = f"a{draw(st.integers(0, 99))}"
    multiply = Mma(Contract.ROW_ROW, ACC, FragmentRef(name), FragmentRef("b"), atom=atom)
    if depth == 3 or (depth and draw(st.booleans())):
        return (multiply,)
    start = draw(st.integers(-2, 3))
    stop = draw(st.sampled_from([Dim("K"), *(const(start + n) for n in (-1, 0, 1, 3))]))
    index, step = Index(f"i{depth}", stop), draw(st.integers(1, 2))
    loop = For(index, const(start), stop, const(step), draw(multiplies(depth + 1)))
    return draw(st.sampled_from([(loop,), (loop,), (loop, multiply), (multiply, loop) if depth else (loop,)]))


@settings(deadline=None)
@given(multiplies(), st.integers(0, 4))
def test_every_sum_starts_from_zero(loops: Body, extent: int) -> None:
    """Whatever the registers hold at first, and whichever loops have no turn."""
    body = (Fill(ACC, const(0.0)), *loops)
    folded = FoldZeroFill().run(Kernel("k", (), body), [])
    given_first = [object()]
    assert sums(folded.body, {"K": extent}, given_first) == sums(body, {"K": extent}, given_first)
