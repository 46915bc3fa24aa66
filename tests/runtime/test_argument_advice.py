"""Advice about the arguments of a call works: followed word by word, the call runs, or is bound, and is right."""

# A case is easier to read on one line.
# ruff: noqa: E501
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilemma as tm
from tilemma import ops, parallel
from tilemma.errors import TilemmaError
from tilemma.launch import ArrayParam, Launch, ScalarParam
from tilemma.runtime import binding


@tm.kernel
def scaled(a: tm.Global["f16", "M", "N"], y: tm.Global["f32", "M", "N"], s: tm.Int):
    M, N = a.shape
    for i, j in parallel(M, N, level="block"):
        y[i, j] = a[i, j] * s


@tm.kernel
def scaled_from_floats(a: tm.Global["f32", "M", "N"], y: tm.Global["f32", "M", "N"], s: tm.Int64):
    M, N = a.shape
    for i, j in parallel(M, N, level="block"):
        y[i, j] = a[i, j] * s


def half(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape)).reshape(shape).astype(np.float16)


def single(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.float32)


def read_only(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    x.flags.writeable = False
    return x


A = half(4, 4)
MEMORY = np.zeros(64, np.float32)
STRIDED = np.lib.stride_tricks.as_strided(MEMORY, (4, 4), (4, 4))
# name: code, part of the advice, wrong arguments, arguments with the advice followed.
CALLS: dict[str, tuple[str, str, tuple[Any, ...], tuple[Any, ...]]] = {
    "too few": ("wrong-call", "pass every parameter once", (A, single(4, 4)), (A, single(4, 4), 3)),
    "too many": ("wrong-call", "in this order", (A, single(4, 4), 3, 4), (A, single(4, 4), 3)),
    "type": ("array-dtype", "`a.astype('float16')`", (A.astype("f8"), single(4, 4), 3),
             (A.astype("f8").astype("float16"), single(4, 4), 3)),
    "rank": ("array-rank", "reshape or index it to [M, N]", (A.reshape(16), single(4, 4), 3),
             (A.reshape(16).reshape(4, 4), single(4, 4), 3)),
    "extent": ("array-dimension", "agree on N", (A, single(4, 5), 3), (A, single(4, 4), 3)),
    "read-only": ("array-read-only", "pass a copy of it", (A, read_only(single(4, 4)), 3),
                  (A, read_only(single(4, 4)).copy(), 3)),
    "broadcast": ("array-read-only", "pass a copy of it", (A, np.broadcast_to(single(4), (4, 4)), 3),
                  (A, np.broadcast_to(single(4), (4, 4)).copy(), 3)),
    "overlap": ("array-overlap", "pass a copy of `a`",
                (MEMORY[:8].view(np.float16).reshape(4, 4), MEMORY[:16].reshape(4, 4), 3),
                (MEMORY[:8].view(np.float16).reshape(4, 4).copy(), MEMORY[:16].reshape(4, 4), 3)),
    "self-overlap": ("array-self-overlap", "pass a contiguous array for `y`", (A, STRIDED, 3),
                     (A, np.ascontiguousarray(STRIDED), 3)),
    "float for an integer": ("scalar-type", "pass `int(s)`", (A, single(4, 4), 3.0), (A, single(4, 4), int(3.0))),
    "truth for an integer": ("scalar-type", "pass `int(s)`", (A, single(4, 4), True), (A, single(4, 4), 1)),
    "a NumPy float": ("scalar-type", "pass `int(s)`", (A, single(4, 4), np.float32(2)), (A, single(4, 4), 2)),
    "text for an integer": ("scalar-type", "pass a Python or NumPy integer", (A, single(4, 4), "3"),
                            (A, single(4, 4), np.int16(3))),
    "large": ("scalar-type", "pass a number of this range", (A, single(4, 4), 2**31),
              (A, single(4, 4), 2**31 - 1)),
    "small": ("scalar-type", "pass a number of this range", (A, single(4, 4), -(2**31) - 1),
              (A, single(4, 4), -(2**31))),
    "list": ("not-an-array", "numpy.asarray(x, dtype=...)", (A.tolist(), single(4, 4), 3),
             (np.asarray(A.tolist(), dtype=np.float16), single(4, 4), 3)),
    "other byte order": ("array-element-type", "x.astype('float16')", (A.astype(">f2"), single(4, 4), 3),
                         (A.astype(">f2").astype("float16"), single(4, 4), 3)),
    "masked": ("array-unusable", "use x.filled(0)", (np.ma.array(A, mask=A > 90), single(4, 4), 3),
               (np.ma.array(A, mask=A > 90).filled(0), single(4, 4), 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call(name: str) -> None:
    code, advice, wrong, right = CALLS[name]
    with pytest.raises(TilemmaError) as caught:
        scaled(*wrong)
    assert caught.value.code == code and advice in caught.value.remedy, caught.value.render()
    scaled(*right)
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(right[1], (right[0] * np.float16(right[2])).astype(np.float32))


def test_a_kernel_declared_as_the_advice_says() -> None:
    y = single(4, 4)
    scaled_from_floats(A.astype(np.float32), y, 2**31)
    np.testing.assert_array_equal(y, A.astype(np.float32) * np.float32(2**31))
    with pytest.raises(TilemmaError) as caught:
        scaled(A, y, 2**31)
    assert "declare `s` as a 64-bit integer" in caught.value.remedy
    with pytest.raises(TilemmaError) as caught:
        scaled_from_floats(A.astype(np.float32), y, 2**63)
    assert caught.value.remedy == "pass a number of this range"
    with pytest.raises(TilemmaError) as caught:
        scaled(A.astype(np.float32), y, 1)
    assert "declare `a` with elements of f32 in the kernel" in caught.value.remedy


def plan(*arrays: ArrayParam, scalars: tuple[ScalarParam, ...] = (), grid: Any = (1, 1, 1)) -> Launch:
    return Launch(entry="f", arch="sm_80", arrays=arrays, scalars=scalars, grid=grid, block=(32, 1, 1),
                  shared=0, arguments=())  # fmt: skip


def aligned(alignment: int, offset: int = 0) -> np.ndarray[Any, Any]:
    """64 bytes of f32 at so many bytes behind a multiple of ``alignment``."""
    memory = np.zeros(64 + 2 * alignment + offset, np.uint8)
    start = -memory.ctypes.data % alignment + offset
    return memory[start : start + 64].view(np.float32)


Facts = dict[str, Any]
# code, part of the advice, facts of the parameter, a wrong array, what the advice makes of it, facts then.
VARIANTS: dict[str, tuple[str, str, Facts, Callable[[], Any], Callable[[Any], Any], Facts]] = {
    "stride": ("array-strides", "pass a contiguous copy", {"contiguous": 0}, lambda: single(32)[::2], np.copy, {}),
    "other strides": ("array-strides", "compile the kernel for these strides", {"contiguous": 0},
                      lambda: single(32)[::2], lambda x: x, {"contiguous": None}),
    "address": ("array-alignment", "pass an aligned copy", {"contiguous": 0, "alignment": 16},
                lambda: aligned(16, 4), lambda x: aligned(16), {}),
    "other alignment": ("array-alignment", "for an alignment of 4", {"contiguous": 0, "alignment": 16},
                        lambda: aligned(16, 4), lambda x: x, {"alignment": 4}),
    "empty": ("array-empty", "facts without `nonempty`", {"contiguous": 0, "nonempty": True},
              lambda: single(0), lambda x: x, {"nonempty": False}),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant(name: str) -> None:
    code, advice, facts, wrong, cure, change = VARIANTS[name]
    x = wrong()
    with pytest.raises(TilemmaError) as caught:
        binding.bind(plan(ArrayParam("x", "f32", ("N",), False, **facts)), [x])
    assert caught.value.code == code and advice in caught.value.remedy, caught.value.render()
    bound = binding.bind(plan(ArrayParam("x", "f32", ("N",), False, **{**facts, **change})), [cure(x)])
    assert bound.names["N"] == len(x)


SCALARS = {
    "bool": ((1, "yes", None, 0.0), (True, np.bool_(False)), "`bool(s)`"),
    "f32": (
        ("1", b"1", True, None, [1.0], np.complex64(1)),
        (1, 2.5, np.float16(1), np.int8(3)),
        "a Python or NumPy number",
    ),
    "u8": ((-1, 256), (0, 255, np.uint64(7)), "a number of this range, or declare `s` as a 64-bit integer"),
    "s64": ((-(2**63) - 1, 2**63), (-(2**63), 2**63 - 1), "a number of this range"),
    "u64": ((-1, 2**64), (0, 2**64 - 1), "a number of this range"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALARS)
def test_scalars(name: str) -> None:
    wrong, right, advice = SCALARS[name]
    launch = plan(scalars=(ScalarParam("s", name),))
    for value in wrong:
        with pytest.raises(binding.WrongScalar) as caught:
            binding.bind(launch, [value])
        assert caught.value.remedy == f"pass {advice}", caught.value.render()
    for value in right:
        assert binding.bind(launch, [value]).values["s"] == value


GRID = plan(
    ArrayParam("x", "f32", ("N",), False),
    scalars=tuple(ScalarParam(n, "s32") for n in "abc"),
    grid=("a", "b", "c"),
)


@pytest.mark.parametrize("axis", range(3))
def test_limits_of_the_grid(axis: int) -> None:
    limit = (2**31 - 1, 65535, 65535)[axis]
    sizes = [1, 1, 1]
    for extra in (0, 1):
        sizes[axis] = limit + extra
        if limit + extra == 2**31:
            continue
        if extra == 0:
            assert binding.bind(GRID, [single(4), *sizes]).grid == tuple(sizes)
            continue
        with pytest.raises(binding.GridTooLarge) as caught:
            binding.bind(GRID, [single(4), *sizes])
        assert "put the largest extent first" in caught.value.remedy
        # Followed:
        assert binding.bind(GRID, [single(4), limit + extra, 1, 1]).grid == (limit + extra, 1, 1)
    sizes[axis] = -5
    assert binding.bind(GRID, [single(4), *sizes]).is_empty


B = half(4, 4)
F8 = np.ones((4, 4), ml_dtypes.float8_e4m3fn)
SCALE = np.ones((4, 1), np.float32)
# Products: code, part of the advice, the wrong call, the call with the advice followed.
PRODUCTS: dict[str, tuple[str, str, Callable[[], Any], Callable[[], Any]]] = {
    "no addend": ("matmul-addend", "leave beta out", lambda: ops.matmul(A, B, beta=2.0), lambda: ops.matmul(A, B)),
    "activation": ("matmul-activation", "did you mean `relu`", lambda: ops.matmul(A, B, activation="rellu"),
                   lambda: ops.matmul(A, B, activation="relu")),
    "another activation": ("matmul-activation", "apply it to the result",
                           lambda: ops.matmul(A, B, activation="hardswish"), lambda: np.abs(ops.matmul(A, B))),
    "scalar": ("matmul-scalar", "pass a Python number", lambda: ops.matmul(A, B, alpha=np.ones(4)),
               lambda: ops.matmul(A, B, alpha=1.0)),
    "compute": ("matmul-compute", "leave `compute` out", lambda: ops.matmul(A, B, compute="tf32"),
                lambda: ops.matmul(A, B)),
    "compute, converted": ("matmul-compute", "convert the operands to f32",
                           lambda: ops.matmul(A, B, compute="tf32"),
                           lambda: ops.matmul(A.astype("f4"), B.astype("f4"), compute="tf32")),
    "type": ("matmul-dtype", "convert `a` to f16", lambda: ops.matmul(A.astype("i4"), B), lambda: ops.matmul(A.astype("i4").astype("f2"), B)),
    "types": ("matmul-dtype", "convert `b` to f64", lambda: ops.matmul(A.astype("f8"), B.astype("f4")), lambda: ops.matmul(A.astype("f8"), B.astype("f4").astype("f8"))),
    "f16 by f32": ("matmul-dtype", "convert `b` to f16, or both to bf16", lambda: ops.matmul(A, B.astype("f4")), lambda: ops.matmul(A, B.astype("f4").astype("f2"))),
    "f32 by f16": ("matmul-dtype", "convert `a` to f16", lambda: ops.matmul(A.astype("f4"), B), lambda: ops.matmul(A.astype("f4").astype("f2"), B)),
    "both to bf16": ("matmul-dtype", "or both to bf16 where numbers exceed 65504", lambda: ops.matmul(A.astype("f4"), B), lambda: ops.matmul(A.astype(ml_dtypes.bfloat16), B.astype(ml_dtypes.bfloat16))),
    "inner extent": ("matmul-shape", "pass `b.T`", lambda: ops.matmul(half(4, 8), half(4, 8)), lambda: ops.matmul(half(4, 8), half(4, 8).T)),
    "inner extent of a": ("matmul-shape", "pass `a.T`", lambda: ops.matmul(half(8, 4), half(8, 5)), lambda: ops.matmul(half(8, 4).T, half(8, 5))[:, :4]),
    "exchanged": ("matmul-shape", "exchange `a` and `b`", lambda: ops.matmul(half(3, 4), half(5, 3)), lambda: ops.matmul(half(5, 3), half(3, 4))[:4]),
    "batches": ("matmul-shape", "pass `b.swapaxes(-1, -2)`", lambda: ops.matmul(half(4, 8), half(1, 4, 8)), lambda: ops.matmul(half(4, 8), half(1, 4, 8).swapaxes(-1, -2))[0]),
    "no transpose": ("matmul-shape", "no transposes of these have it", lambda: ops.matmul(half(4, 3), half(5, 6)), lambda: ops.matmul(half(4, 3), half(3, 4))),
    "scales of a type": ("matmul-scale", "convert `scale_a` to f32", lambda: ops.scaled_matmul(F8, F8, SCALE.astype("f2"), 1.0),
                         lambda: ops.scaled_matmul(F8, F8, SCALE.astype("f2").astype("f4"), 1.0)),
    "scales of a shape": ("matmul-scale", "reshape `scale_a` to one of these shapes", lambda: ops.scaled_matmul(F8, F8, SCALE.reshape(2, 2), 1.0),
                          lambda: ops.scaled_matmul(F8, F8, SCALE.reshape(2, 2).reshape(4, 1), 1.0)),
    "a number as scale": ("matmul-scale", "or pass a number", lambda: ops.scaled_matmul(F8, F8, SCALE.reshape(2, 2), 1.0),
                          lambda: ops.scaled_matmul(F8, F8, 0.5, 1.0)),
    "batch of scales": ("matmul-scale", "leave its batch dimensions out", lambda: ops.scaled_matmul(F8, F8, SCALE.reshape(1, 4, 1).repeat(3, 0), 1.0),
                        lambda: ops.scaled_matmul(F8, F8, SCALE, 1.0)),
    "offsets of a type": ("matmul-offsets", "convert `offsets` to s32", lambda: ops.grouped_matmul(A, np.stack([B, B]), np.array([1, 4])),
                          lambda: ops.grouped_matmul(A, np.stack([B, B]), np.array([1, 4]).astype(np.int32))),
    "offsets of a shape": ("matmul-offsets", "pass the cumulative sum of the rows of each group",
                           lambda: ops.grouped_matmul(A, np.stack([B, B]), np.int32([1, 1, 4])),
                           lambda: ops.grouped_matmul(A, np.stack([B, B]), np.cumsum(np.int32([1, 3]), dtype=np.int32))),
    "offsets that decrease": ("matmul-offsets", "pass the cumulative sum of the rows of each group",
                              lambda: ops.grouped_matmul(A, np.stack([B, B]), np.int32([3, 1])),
                              lambda: ops.grouped_matmul(A, np.stack([B, B]), np.cumsum(np.int32([3, 1]), dtype=np.int32))),
    "groups": ("convolution-extent", "convolve each group by a call of its own",
               lambda: ops.conv2d(half(1, 2, 2, 8), half(4, 1, 1, 4), groups=2),
               lambda: np.concatenate([ops.conv2d(half(1, 2, 2, 4), half(2, 1, 1, 4)).reshape(4, 2)] * 2, 1)),
    "stride": ("convolution-extent", "pass such a number", lambda: ops.conv2d(half(1, 2, 2, 4), half(4, 1, 1, 4), stride=0),
               lambda: ops.conv2d(half(1, 2, 2, 4), half(4, 1, 1, 4), stride=1).reshape(4, 4)),
    "rank": ("matmul-shape", "reshape `a`", lambda: ops.matmul(A.reshape(16), B),
             lambda: ops.matmul(A.reshape(16).reshape(4, 4), B)),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product(name: str) -> None:
    code, advice, wrong, right = PRODUCTS[name]
    with pytest.raises(TilemmaError) as caught:
        wrong()
    assert caught.value.code == code and advice in caught.value.remedy, caught.value.render()
    assert right().shape == (4, 4)


FOLLOWED = frozenset(c[0] for table in (CALLS, VARIANTS, PRODUCTS) for c in table.values()) | {
    "scalar-type",
    "grid-too-large",
}
