"""Batches whose rows along K are not aligned: what the model says of the kernels that compute them; its fit."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilemma import dtypes, testing
from tilemma.ops import arguments, product, unaligned_batches
from tilemma.ops.arguments import Call
from tilemma.ops.candidates import ranked
from tilemma.ops.plan import Hardware
from tilemma.ops.problem import Problem
from tilemma.runtime.arrays import ArrayRef, describe

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import fit_unaligned_batches

H200 = Hardware()


def batch(b: int, m: int, n: int, k: int, pitch: int = 0) -> Problem:
    """A batch of b products on a GPU, K contiguous in both operands; rows at a distance of ``pitch`` elements."""

    def array(where: int, *shape: int) -> ArrayRef:
        row = pitch if pitch and shape[2] == k else shape[2]
        strides = (shape[1] * row, row, 1)
        return ArrayRef(where << 40, shape, strides, dtypes.dtype("f16"), ("cuda", 0), None, "torch")

    rhs = array(2, b, n, k)
    (outer, row, one), turned = rhs.strides, (b, k, n)
    call = Call(array(1, b, m, k), rhs._replace(shape=turned, strides=(outer, one, row)))
    return arguments.problem(call, array(3, b, m, n), made=True)


def test_batches_with_unaligned_rows_in_both_operands() -> None:
    assert unaligned_batches.applies(batch(64, 96, 80, 44))
    assert unaligned_batches.applies(batch(64, 96, 80, 45))
    assert not unaligned_batches.applies(batch(64, 96, 80, 48))
    assert not unaligned_batches.applies(batch(64, 96, 80, 44, pitch=48))
    assert not unaligned_batches.applies(batch(1, 96, 80, 44))
    assert not unaligned_batches.applies(batch(64, 96, 80, 4 * unaligned_batches.LARGEST + 4))


def test_short_rows_of_small_products_are_read_where_they_are_and_large_products_are_copied() -> None:
    assert not ranked(batch(1400, 40, 48, 68), H200)[0].plan.pack
    assert ranked(batch(40, 900, 640, 506), H200)[0].plan.pack == ("lhs", "rhs")


@pytest.mark.parametrize("n", [64, 65])
def test_wider_loads_take_less_time(n: int) -> None:
    for way in unaligned_batches.WAYS:
        seconds = []
        for k in (60, 62, 63):
            found = (e for e in ranked(batch(900, 64, n, k), H200) if not e.plan.pack)
            seconds.append(next(e.seconds for e in found if unaligned_batches.way_of(e.plan) == way))
        assert seconds == sorted(seconds), way


def test_results_without_contiguous_rows_are_stored_from_registers() -> None:
    p = batch(64, 96, 80, 44)
    columns = replace(p, out=p.out._replace(strides=(96 * 80, 1, 96)))
    assert {x.store for x in unaligned_batches.plans(p)} == {"copy"}
    assert {x.store for x in unaligned_batches.plans(columns)} == {"direct"}


@pytest.mark.parametrize("way", unaligned_batches.WAYS, ids=str)
@pytest.mark.parametrize(("n", "k"), [(66, 44), (67, 45), (72, 46)])
def test_on_the_machine(way: unaligned_batches.Way, n: int, k: int) -> None:
    left, right = testing.random_array((2, 70, k), "f16", 0), testing.random_array((2, n, k), "f16", 1)
    out = np.full((2, 70, n), np.nan, np.float16)
    p = arguments.problem(Call(describe(left), describe(right.swapaxes(1, 2))), describe(out), made=False)
    (plan,) = (x for x in unaligned_batches.plans(p) if unaligned_batches.way_of(x) == way)
    product.run(p, plan, "machine", arch="sm_90a", strict=True)
    for a, b, found in zip(left, right, out, strict=True):
        np.testing.assert_array_less(abs(found - a.astype(np.float64) @ b.T), testing.error_bound(a, b.T))


def test_the_fit_finds_the_numbers() -> None:
    way, numbers = next(iter(unaligned_batches.WAYS.items()))
    terms = []
    for i in range(40):
        p = batch(100 + 37 * i, 40 + 8 * (i % 9), 48 + 8 * (i % 7), 42 + i)
        terms.append(unaligned_batches.terms_of_tiles(p, way.tile))
    a = np.array(terms)
    scale = a.max(0)
    found = fit_unaligned_batches.least_squares(a / scale, a @ numbers)
    np.testing.assert_allclose(a / scale @ found, a @ numbers, rtol=0.02)
