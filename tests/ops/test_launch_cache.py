"""Repeated calls, on a driver that records its calls."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilemma import ops
from tilemma.errors import LaunchError
from tilemma.ops import convolution, forms, launch_cache, plans, product, tuning, workspace
from tilemma.ops.plan import Plan
from tilemma.ops.refusals import ConvolutionExtent
from tilemma.runtime import DeviceArray, cuda_device, cudadriver, zeroed
from tilemma.runtime.arrays import describe

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from fake_driver import FakeDriver, argument

PIPELINED = Plan("pipelined", (64, 64, 64), 1, stages=2, grid=4, store="direct")


@pytest.fixture
def fake() -> Iterator[FakeDriver]:
    recorder = FakeDriver()
    product._WARM.clear()
    with cudadriver.using(recorder):
        yield recorder
    product._WARM.clear()


def array(*shape: int, dtype: str = "f16") -> DeviceArray:
    return DeviceArray(cuda_device(0), shape, dtype)


def force(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> list[Any]:
    """Every call gets ``plan``; the list grows with each time a plan was asked for."""
    asked: list[Any] = []

    def best(problem: Any, tune: bool = False) -> Plan:
        asked.append(problem)
        return plan

    monkeypatch.setattr(plans, "best", best)
    return asked


def pointer(launch: dict[str, Any], index: int) -> int:
    return int.from_bytes(argument(launch, index), "little")


def test_a_second_call_plans_nothing(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = force(monkeypatch, Plan("tiles", (64, 64, 64), 1))
    a, b, out = array(70, 64), array(64, 80), array(70, 80)
    for _ in range(3):
        assert ops.matmul(a, b, out=out) is out
    assert len(asked) == 1 and len(fake.launches) == 3
    assert len({x["arguments"] for x in fake.launches}) == 1


def test_products_of_a_batch_that_lie_apart_begin_at_their_own_places(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operands have one place for all of a dimension that they lack."""
    force(monkeypatch, Plan("tiles", (64, 64, 64), 1))
    for left, right in (((2, 3), (3,)), ((3,), (2, 3))):
        for _ in range(2):  # the second call is known
            a, b, out = array(*left, 64, 64), array(*right, 64, 128), array(2, 3, 64, 128)
            del fake.launches[:]
            ops.matmul(a, b, out=out)
            places = [{pointer(x, i) for i in range(8)} for x in fake.launches]
            assert len(places) == 2
            for i, found in enumerate(places):
                for x, extents in ((a, left), (b, right), (out, (2, 3))):
                    each = x.size // 2 if len(extents) == 2 else 0
                    assert x.pointer + i * each in found


def test_an_addend_and_an_allocated_result(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The addend's place says nothing about that of the result."""
    asked = force(monkeypatch, Plan("tiles", (64, 64, 64), 1))
    a, b = array(70, 64), array(64, 80)
    for c in (array(70, 80), array(70, 80)):
        made = ops.matmul(a, b, c=c, beta=1.0)
        pointers = {pointer(fake.launches[-1], i) for i in range(8)}
        assert {a.pointer, b.pointer, c.pointer, made.pointer} <= pointers
    assert len(asked) == 1


def test_other_addresses_reach_the_kernel(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = force(monkeypatch, Plan("tiles", (64, 64, 64), 1))
    a, b, outs = array(70, 64), array(64, 80), [array(70, 80) for _ in range(3)]
    for out in outs:
        ops.matmul(a, b, out=out)
    assert len(asked) == 1
    pointers = [{pointer(x, i) for i in range(8)} for x in fake.launches]
    for out, found in zip(outs, pointers, strict=True):
        assert {a.pointer, b.pointer, out.pointer} <= found


@pytest.mark.parametrize("plan", [Plan("tiles", (64, 64, 64), 1), replace(PIPELINED, split=2)], ids=str)
@pytest.mark.parametrize("name", ["a", "b", "c", "bias"])
def test_a_result_at_another_address_that_is_an_operands_is_refused(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, name: str, plan: Plan
) -> None:
    """Of several launches none has both arrays."""
    force(monkeypatch, plan)
    given = {n: array(64, 64) for n in "abc"} | {"bias": array(64)}
    ops.matmul(**given, beta=1.0, out=array(64, 64))
    started = len(fake.launches)
    out = array(64, 64)
    out.pointer = given[name].pointer + 128 * (name == "c")
    with pytest.raises(LaunchError) as caught:
        ops.matmul(**given, beta=1.0, out=out)
    assert caught.value.code == "array-overlap" and len(fake.launches) == started


def test_a_result_may_lie_in_what_is_not_read(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, replace(PIPELINED, split=2))
    a, b, c = array(64, 64), array(64, 64), array(64, 64)
    for out in (array(64, 64), c):
        ops.matmul(a, b, c=c, out=out)
    for addend in (c, array(64, 64)):
        ops.matmul(a, b, c=addend, beta=1.0, out=addend)
    assert len(fake.launches) == 8


def test_results_are_allocated_for_every_call(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = force(monkeypatch, Plan("tiles", (64, 64, 64), 1))
    a, b = array(70, 64), array(64, 80)
    results = [ops.matmul(a, b, out_dtype="f32") for _ in range(3)]
    assert len({r.pointer for r in results}) == 3 and len(asked) == 1
    assert all(r.shape == (70, 80) and r.dtype.name == "f32" for r in results)
    for r, x in zip(results, fake.launches, strict=True):
        assert r.pointer in {pointer(x, i) for i in range(8)}


@pytest.mark.parametrize("change", [{"alpha": 2.0}, {"activation": "relu"}, {"out_dtype": "f32"}])
def test_another_call_is_planned_anew(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    asked = force(monkeypatch, Plan("tiles", (64, 64, 64), 1))
    a, b = array(70, 64), array(64, 80)
    ops.matmul(a, b)
    ops.matmul(a, b, **change)
    assert len(asked) == 2


@pytest.mark.parametrize("wrong", [True, False, np.True_, np.False_, Decimal(1), Decimal(0), 1 + 0j, 0j], ids=repr)
@pytest.mark.parametrize("name", ["alpha", "beta", "scale_a", "scale_b"])
def test_what_equals_a_known_number_but_is_none_is_refused(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, name: str, wrong: Any
) -> None:
    """And other numbers of the same value are not."""
    force(monkeypatch, Plan("tiles", (64, 64, 64), 1))
    known = float(abs(wrong))
    call: Callable[..., Any]
    if name.startswith("scale"):
        call = partial(ops.scaled_matmul, array(64, 64, dtype="s8"), array(64, 64, dtype="s8"), out_dtype="f16")
    else:
        call = partial(ops.matmul, array(64, 64), array(64, 64), c=array(64, 64))
    for right in (known, int(known), np.float32(known), np.float64(known)):
        call(**{name: right})
    started = len(fake.launches)
    with pytest.raises(LaunchError) as caught:
        call(**{name: wrong})
    assert caught.value.code in ("matmul-scalar", "matmul-scale") and len(fake.launches) == started == 4


def test_signs_of_zeros_are_kept(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = force(monkeypatch, Plan("tiles", (64, 64, 64), 1))
    a, b = array(64, 64), array(64, 64)
    for alpha in (0.0, -0.0, 0.0, -0.0):
        ops.matmul(a, b, alpha=alpha)
    assert [math.copysign(1, p.alpha) for p in asked] == [1, -1]
    a, b = array(64, 64, dtype="s8"), array(64, 64, dtype="s8")
    for scale in (0.0, -0.0, 0.0, -0.0):
        ops.scaled_matmul(a, b, scale, 1.0)
    assert len(asked) == 4


def test_numbers_of_a_known_form_are_refused_as_in_its_first_call(fake: FakeDriver) -> None:
    forms._WARM.clear()
    x, w = array(64, 64), array(64, 64)
    ops.gated_matmul(x, w, w)
    ops.conv2d(array(2, 8, 8, 64), array(64, 3, 3, 64))
    with pytest.raises(LaunchError, match="alpha"):
        ops.gated_matmul(x, w, w, alpha=True)
    with pytest.raises(LaunchError, match="beta"):
        ops.conv2d(array(2, 8, 8, 64), array(64, 3, 3, 64), beta=False)
    forms._WARM.clear()


def test_a_known_convolution_is_not_prepared_again(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers and pairs that mean the same are one kind of call; another stride is another kind."""
    prepared: list[Any] = []
    original = convolution.prepare
    monkeypatch.setattr(convolution, "prepare", lambda *a: prepared.append(a) or original(*a))
    forms._WARM.clear()
    x, w, out = array(2, 8, 8, 64), array(64, 3, 3, 64), array(2, 8, 8, 64)
    for padding in (1, (1, 1), [1, 1], np.int64(1)):
        ops.conv2d(x, w, padding=padding, out=out)
    assert len(prepared) == 1 and len(fake.launches) == 4
    ops.conv2d(x, w, stride=2, padding=1)
    assert len(prepared) == 2
    for wrong in (True, 1.0, -1, (1,), convolution.MOST + 1):
        with pytest.raises(ConvolutionExtent):
            ops.conv2d(x, w, padding=wrong, out=out)
    forms._WARM.clear()


def test_other_strides_are_planned_anew(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = force(monkeypatch, Plan("tiles", (64, 64, 64), 1))
    device = cuda_device(0)
    b = array(64, 64)
    for strides in ((64, 1), (1, 64), (72, 1)):
        ops.matmul(DeviceArray(device, (64, 64), "f16", strides), b)
    assert len(asked) == 3
    assert [p.lhs_major for p in asked] == ["row", "col", "row"]


def test_overlap_is_refused_when_the_call_is_known(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, Plan("tiles", (64, 64, 64), 1))
    a, b = array(64, 64), array(64, 64)
    ops.matmul(a, b, out=array(64, 64))
    launched = len(fake.launches)
    with pytest.raises(LaunchError, match="shares memory"):
        ops.matmul(a, b, out=a)
    assert len(fake.launches) == launched


def test_c_as_the_result_is_another_kind_of_call(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = force(monkeypatch, Plan("tiles", (64, 64, 64), 1))
    a, b, c = array(64, 64), array(64, 64), array(64, 64)
    ops.matmul(a, b, c=c, beta=1.0, out=array(64, 64))
    ops.matmul(a, b, c=c, beta=1.0, out=c)
    ops.matmul(a, b, c=array(64, 64), beta=1.0, out=c)
    assert [p.epilogue.addend for p in asked] == ["c", "out"]


def test_split_and_packed_products_get_their_memory(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan("pipelined", (64, 64, 64), 1, stages=2, grid=4, split=2, pack=("lhs", "rhs"))
    force(monkeypatch, plan)
    a, b = array(70, 301), array(301, 80)
    out = ops.matmul(a, b)
    names = [x["function"][1] for x in fake.launches]
    assert names == ["pack_pair", "product_of_tiles", "add_parts"]
    assert pointer(fake.launches[0], 0) == a.pointer or a.pointer in {pointer(fake.launches[0], i) for i in (0, 1)}
    assert out.pointer in {pointer(fake.launches[2], i) for i in range(6)}
    ops.matmul(a, b)
    assert len(fake.launches) == 6


def test_empty_results_start_nothing(fake: FakeDriver) -> None:
    assert ops.matmul(array(0, 64), array(64, 8)).shape == (0, 8)
    assert not fake.launches


def test_tuning_measures_and_remembers(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path))
    monkeypatch.setattr(plans, "used", {})
    monkeypatch.setattr(tuning, "MEASURED", 2)
    monkeypatch.setattr(tuning, "neighbours", lambda *_: [])
    a, b = array(70, 64), array(64, 80)
    ops.matmul(a, b, tune=True)
    measured = len(fake.launches)
    assert measured > 10 and len(plans.used) == 1
    (winner,) = (x.plan for x in plans.used.values())
    monkeypatch.setattr(plans, "used", {})
    monkeypatch.setattr(plans, "measured", lambda *a: pytest.fail("measured again"))
    product._WARM.clear()
    ops.matmul(a, b, tune=True)
    assert len(fake.launches) == measured + 1 + (winner.split > 1) + len(winner.pack)
    assert [x.plan for x in plans.used.values()] == [winner]


def test_numpy_arrays_are_never_kept() -> None:
    a = np.ones((3, 3), np.float16)
    ops.matmul(a, a)
    assert not product._WARM._entries


def test_counters_belong_to_the_stream_or_to_the_launch_in_a_graph(fake: FakeDriver) -> None:
    """Launches beside each other have no counters in common: each launch in a graph has its own."""
    like = describe(array(64, 64))
    mine = zeroed(cuda_device(0), 0, 8)
    make = workspace.maker(f"work.{workspace.COUNTERS}", like, ((1, 1), "s64"))

    def places(calls: int) -> list[int]:
        return [make(like)[1] for _ in range(calls)]

    assert places(2) == [mine, mine]
    fake.capturing.add(0)
    found = places(2)
    fake.capturing.clear()
    assert len({mine, *found}) == 3 and places(1) == [mine]
    assert fake.count("allocate_zeroed") == 1


def test_a_number_in_the_place_of_an_array_has_no_key(fake: FakeDriver) -> None:
    x = array(4, 4)
    absent = launch_cache.key_of((x, x, *[None] * 6), ())
    assert absent is not None
    for number in (0, 2, 0.0, False):
        assert launch_cache.key_of((x, x, None, None, None, number, None, None), ()) is None
    assert launch_cache.key_of((x, x, *[None] * 6), ()) == absent
