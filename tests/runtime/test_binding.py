from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilemma.errors import LaunchError
from tilemma.launch import ArrayParam, Launch, PointerArgument, ScalarParam
from tilemma.runtime import ArrayRef, bind, describe, facts
from tilemma.runtime import binding as b
from tilemma.runtime.arrays import NotAnArray
from tilemma.runtime.overlap import overlap, overlaps_itself


def plan(**changes: Any) -> Launch:
    fields: dict[str, Any] = {
        "entry": "matmul",
        "arch": "sm_90a",
        "arrays": (
            ArrayParam("lhs", "f16", ("M", "K"), written=False, alignment=16, contiguous=1),
            ArrayParam("rhs", "f16", ("N", "K"), written=False, alignment=16, contiguous=1),
            ArrayParam("out", "f16", ("M", "N"), written=True, read=False, alignment=2, contiguous=1),
        ),
        "scalars": (),
        "arguments": (PointerArgument("lhs"), PointerArgument("rhs"), PointerArgument("out")),
        "grid": (("cdiv", "M", 128), ("cdiv", "N", 128), 1),
        "block": (256, 1, 1),
    }
    return Launch(**{**fields, **changes})


def arrays(m: int = 64, n: int = 48, k: int = 32, dtype: Any = np.float16) -> list[np.ndarray[Any, Any]]:
    return [np.zeros(s, dtype) for s in ((m, k), (n, k), (m, n))]


def aligned(shape: tuple[int, ...], dtype: Any = np.float16, offset: int = 0) -> np.ndarray[Any, Any]:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.zeros(size + 256, np.uint8)
    start = -room.ctypes.data % 128 + offset
    return room[start : start + size].view(dtype).reshape(shape)


def test_names_sizes_and_grid() -> None:
    bound = bind(plan(), [aligned((300, 32)), aligned((48, 32)), aligned((300, 48))])
    assert bound.names["M"] == 300 and bound.names["K"] == 32
    assert bound.names["lhs.stride0"] == 32 and bound.names["out.stride1"] == 1
    assert bound.grid == (3, 1, 1) and bound.device == ("cpu", 0)
    assert bound.size(("mul", "M", "N")) == 300 * 48


def test_arguments_by_name_and_in_the_kernels_order() -> None:
    launch = plan(scalars=(ScalarParam("n", "s32"),))
    lhs, rhs, out = aligned((64, 32)), aligned((48, 32)), aligned((64, 48))
    bound = bind(launch, [lhs, 7, rhs], {"out": out}, order=["lhs", "n", "rhs", "out"])
    assert bound.values["n"] == 7 and bound.array("out").owner is out


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ([0, 1, 2, 3], {}, "4 arguments were passed, it takes 3"),
        ([], {"lhs": 0, "rhs": 0}, "no value for `out`"),
        ([0], {"lhs": 0}, "`lhs` was passed twice"),
        ([0], {"lsh": 0}, "no parameter `lsh` (did you mean `lhs`?)"),
        ([0], {"tile_m": 0}, "no parameter `tile_m` (did you mean `TILE_M`?)"),
        ([0], {"zzzzzz": 0}, "no parameter `zzzzzz`"),
    ],
)
def test_a_wrong_call_shows_the_signature(args: list[Any], kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(b.WrongCall) as caught:
        bind(plan(), args, kwargs, kernel="f", constants=("TILE_M", "TILE_K"))
    assert says in caught.value.message and caught.value.expectation == "f(lhs, rhs, out, *, TILE_M, TILE_K)"


def refused(error: type[LaunchError], *args: Any, launch: Launch | None = None) -> LaunchError:
    with pytest.raises(error) as caught:
        bind(launch or plan(), list(args), kernel="matmul")
    text = caught.value.render()
    assert "matmul" in text and "{" not in text
    return caught.value


def test_wrong_element_type_rank_and_dimension() -> None:
    lhs, rhs, out = arrays()
    error = refused(b.WrongElementType, lhs.astype(np.float32), rhs, out)
    assert "`lhs` holds f32" in error.message and "f16" in error.expectation
    error = refused(b.WrongRank, lhs, rhs[0], out)
    assert "`rhs` has 1" in error.message and "[N, K]" in error.expectation
    error = refused(b.WrongDimension, lhs, rhs[:, :16], out)
    assert "dimension 1 of `rhs` is 16" in error.message
    assert "K = 32, by dimension 1 of `lhs`" in error.expectation


def test_computed_and_fixed_dimensions_are_held_against_the_arrays() -> None:
    launch = plan(
        arrays=(
            ArrayParam("a", "f32", ("M", 8), written=False),
            ArrayParam("b", "f32", (("mul", 2, "M"),), written=True),
        ),
        grid=("M", 1, 1),
    )
    assert bind(launch, [np.zeros((3, 8), "f4"), np.zeros(6, "f4")]).grid == (3, 1, 1)
    error = refused(b.WrongDimension, np.zeros((3, 7), "f4"), np.zeros(6, "f4"), launch=launch)
    assert error.expectation == "8, which the kernel declares"
    assert error.remedy == "pass an array whose dimension 1 is 8"
    error = refused(b.WrongDimension, np.zeros((3, 8), "f4"), np.zeros(5, "f4"), launch=launch)
    assert "(2 * M) = 6" in error.expectation


def test_strides_and_alignment() -> None:
    lhs, rhs, out = aligned((64, 32)), aligned((48, 32)), aligned((64, 48))
    error = refused(b.WrongStrides, aligned((32, 64)).T, rhs, out)
    assert "stride 64 in dimension 1" in error.message
    error = refused(b.WrongAlignment, aligned((64, 33))[:, :32], rhs, out)
    assert "the stride of dimension 0 of `lhs` is 66 bytes, a multiple of 2 only" in error.message
    error = refused(b.WrongAlignment, aligned((64, 32), offset=8), rhs, out)
    assert "a multiple of 8 only" in error.message and "16" in error.expectation
    bind(plan(), [lhs, rhs, aligned((64, 49), offset=2)[:, :48]])


def test_the_reason_of_an_alignment() -> None:
    lhs, rhs, _ = arrays()
    error = refused(b.WrongAlignment, lhs, rhs, aligned((64, 48), offset=1))
    assert "compiled for it" in error.render()
    whole = plan(arrays=tuple(replace(a, alignment=1) for a in plan().arrays))
    bind(whole, [lhs, rhs, aligned((64, 48), offset=1)])
    param = ArrayParam("out", "f16", ("M", "N"), written=True, alignment=1, contiguous=1)
    with pytest.raises(b.WrongAlignment) as caught:
        b._check_alignment("matmul", param, describe(aligned((64, 48), offset=1))._replace(device=("cuda", 0)))
    assert "the hardware needs whole elements" in caught.value.render()


def test_strides_of_single_rows_and_empty_arrays_do_not_matter() -> None:
    lhs = np.lib.stride_tricks.as_strided(aligned((1, 32)), (1, 32), (6, 2))
    bound = bind(plan(), [lhs, aligned((48, 32)), aligned((1, 48))])
    assert bound.names["lhs.stride0"] % 8 == 0 and bound.names["lhs.stride0"] >= 32
    column = np.lib.stride_tricks.as_strided(aligned((64, 8)), (64, 1), (16, 6))
    bound = bind(
        plan(), [column, np.lib.stride_tricks.as_strided(aligned((48, 8)), (48, 1), (16, 2)), aligned((64, 48))]
    )
    assert bound.names["lhs.stride1"] == 1 and bound.names["lhs.stride0"] == 8
    bound = bind(plan(), [np.zeros((64, 0), np.float16), np.zeros((48, 0), np.float16), aligned((64, 48))])
    assert bound.names["K"] == 0 and not bound.is_empty
    bound = bind(plan(), [aligned((0, 32)), aligned((48, 32)), aligned((0, 48))])
    assert bound.is_empty


def test_what_is_no_array_is_named() -> None:
    error = refused(NotAnArray, *arrays()[:2], [1.0])
    assert "`out` of matmul" in error.notes[0].text


def test_written_arrays() -> None:
    lhs, rhs, out = aligned((64, 32)), aligned((48, 32)), aligned((64, 48))
    frozen = out.copy()
    frozen.flags.writeable = False
    refused(b.ReadOnlyArray, lhs, rhs, frozen)
    assert bind(plan(), [lhs, rhs, frozen], created=frozenset({"out"})).array("out").writable
    refused(b.SelfOverlappingArray, lhs, rhs, np.lib.stride_tricks.as_strided(out, (64, 48), (0, 2)))
    square = aligned((32, 32))
    error = refused(b.OverlappingArrays, square, aligned((32, 32)), square)
    assert "`out`" in error.message and "`lhs`" in error.message
    both = aligned((64, 96))
    bind(plan(), [both[:, :32], rhs, both[:, 32:80]])
    refused(b.OverlappingArrays, both[:, :32], rhs, both[:, 24:72])
    bind(plan(), [lhs, lhs, aligned((64, 64))])


def test_scalars() -> None:
    launch = plan(scalars=(ScalarParam("n", "u8"), ScalarParam("x", "f32")))
    good = [aligned((64, 32)), aligned((48, 32)), aligned((64, 48))]
    bound = bind(launch, [*good, np.int64(255), ml_dtypes.bfloat16(1.5)])
    assert bound.values["n"] == 255 and bound.values["x"] == 1.5
    for n, x in ((256, 1.0), (-1, 1.0), (1.0, 1.0), (True, 1.0), (1, "1"), (1, True), (1, np.str_("a"))):
        error = refused(b.WrongScalar, *good, n, x, launch=launch)
        assert "`n`" in error.message or "`x`" in error.message


def test_checks_of_the_plan() -> None:
    launch = plan(checks=((("eq", ("mod", "K", 64), 0), "K must be a multiple of 64"),))
    error = refused(
        b.LaunchCheckFailed,
        *arrays(),
        launch=plan(
            checks=launch.checks,
            arrays=tuple(ArrayParam(a.name, a.dtype, a.dims, a.written) for a in launch.arrays),
        ),
    )
    assert "K must be a multiple of 64" in error.message and "K = 32" in error.expectation


def test_the_grid_has_limits() -> None:
    launch = plan(arrays=(ArrayParam("a", "u8", ("M",), written=False),), grid=(1, "M", 1))
    refused(b.GridTooLarge, np.zeros(65536, np.uint8), launch=launch)


def gpu(ref: ArrayRef, ordinal: int = 0) -> ArrayRef:
    return ref._replace(device=("cuda", ordinal))


def test_devices_must_agree_and_elements_be_whole_on_a_gpu() -> None:
    lhs, rhs, out = (describe(x) for x in (aligned((64, 32)), aligned((48, 32)), aligned((64, 48))))
    error = refused(b.MixedDevices, gpu(lhs), gpu(rhs, 1), gpu(out))
    assert "cuda:1" in error.message and "cuda:0" in error.message
    refused(b.MixedDevices, lhs, rhs, gpu(out))
    launch = plan(arrays=(ArrayParam("a", "f32", ("M",), written=False),), grid=("M", 1, 1))
    odd = describe(aligned((4,), np.float32, offset=2))
    refused(b.WrongAlignment, gpu(odd), launch=launch)
    bind(launch, [odd])


@st.composite
def views(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    base = np.zeros(draw(st.integers(1, 400)), np.int16)
    rank = draw(st.integers(0, 3))
    shape = [draw(st.integers(0, 5)) for _ in range(rank)]
    strides = [draw(st.integers(-8, 8)) for _ in range(rank)]
    low = sum(min(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
    high = sum(max(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
    room = np.zeros(high - low + 1, np.int16)
    return np.ndarray(shape, np.int16, room, -low * 2, [2 * s for s in strides])


def addresses(ref: ArrayRef) -> list[int]:
    return [
        ref.pointer + ref.itemsize * sum(i * s for i, s in zip(index, ref.strides, strict=True))
        for index in np.ndindex(*ref.shape)
    ]


@given(views())
def test_span_and_self_overlap_agree_with_enumeration(x: np.ndarray[Any, Any]) -> None:
    ref = describe(x)
    places = addresses(ref)
    low, high = ref.span()
    if places:
        assert (low, high) == (min(places), max(places) + 2)
    collide = len(set(places)) < len(places)
    if ref.rank <= 2:
        assert overlaps_itself(ref) == collide
    else:
        assert overlaps_itself(ref) or not collide


def test_self_overlap_of_every_small_matrix() -> None:
    for s, t in itertools.product(range(-7, 8), range(9)):
        for m, n in itertools.product(range(1, 6), repeat=2):
            ref = describe(np.zeros(1, np.int16))._replace(shape=(m, n), strides=(s, t))
            assert overlaps_itself(ref) == (len({i * s + j * t for i in range(m) for j in range(n)}) < m * n)


@given(views(), views(), st.integers(-40, 40))
def test_overlap_agrees_with_enumeration(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], shift: int) -> None:
    a = describe(x)
    c = describe(y)._replace(pointer=a.pointer + shift)
    touched = {p + i for p in addresses(a) for i in (0, 1)}
    assert overlap(a, c) == any(p in touched or p + 1 in touched for p in addresses(c))


@given(views())
def test_facts_hold_for_every_address(x: np.ndarray[Any, Any]) -> None:
    ref = describe(x)
    found = facts(ref)
    assert found.alignment in (1, 2, 4, 8, 16) and found.nonempty == (x.size > 0)
    for index in np.ndindex(*ref.shape):
        steps = [(i, s) for d, (i, s) in enumerate(zip(index, ref.strides, strict=True)) if d != found.contiguous]
        assert (ref.pointer + ref.itemsize * sum(i * s for i, s in steps)) % found.alignment == 0
        if found.contiguous is not None and index[found.contiguous]:
            assert ref.strides[found.contiguous] == 1


@given(views())
def test_a_plan_made_from_the_facts_takes_the_array(x: np.ndarray[Any, Any]) -> None:
    found = facts(describe(x))
    dims = tuple(f"D{d}" for d in range(x.ndim))
    known = {"alignment": found.alignment, "contiguous": found.contiguous, "nonempty": found.nonempty}
    param = ArrayParam("x", "s16", dims, written=False, **known)
    bound = bind(Launch("k", "sm_80", (param,), (), (), (1, 1, 1), (32, 1, 1)), [x])
    ref = bound.array("x")
    assert all(
        n <= 1 or 0 in x.shape or s == t
        for n, s, t in zip(ref.shape, ref.strides, describe(x).strides, strict=True)
    )
