"""Advice about a launch on a device works: followed, the launch reaches the driver (a fake one)."""

# A case is easier to read on one line.
# ruff: noqa: E501
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver
from test_loading import MAP, DeviceArray, LoadedKernel, Protocol, Torchlike, device_arrays, plan, start

from tilemma import dtypes
from tilemma.arithmetic.packing import pack
from tilemma.errors import TilemmaError
from tilemma.launch import ArrayParam, PointerArgument, ValueArgument
from tilemma.runtime import cuda_device, empty_like_first, stream_handle
from tilemma.runtime.arrays import describe
from tilemma.runtime.packed import for_gpu

TMA = plan(arrays=(ArrayParam("a", "f16", ("M", "K"), written=False, contiguous=1),), scalars=(), arguments=(MAP,))
POINTER = replace(TMA, arguments=(PointerArgument("a"),))
NIBBLES = (ArrayParam("a", "s4", ("N",), False),)


def on(ordinal: int, **more: Any) -> DeviceArray:
    return DeviceArray(cuda_device(ordinal), (200, 64), "f16", **more)


# name: code, part of the advice, the wrong launch, the launch with the advice followed.
CASES: dict[str, tuple[str, str, Callable[[], Any], Callable[[], Any]]] = {
    "shared memory": ("device-shared-memory", "use smaller tiles or fewer pipeline stages",
                      lambda: start(plan(shared=232449), *device_arrays(), 1.0),
                      lambda: start(plan(shared=116224), *device_arrays(), 1.0)),
    "architecture": ("kernel-arch", "arch='sm_90a'", lambda: LoadedKernel(b"x", plan(), cuda_device(0), arch="sm_100a"),
                     lambda: LoadedKernel(b"x", plan(), cuda_device(0), arch="sm_90a")),
    "older device": ("kernel-arch", "arch='sm_80'", lambda: LoadedKernel(b"x", plan(), cuda_device(1), arch="sm_90a"),
                     lambda: LoadedKernel(b"x", plan(), cuda_device(1), arch="sm_80")),
    "stride of a tensor map": ("tensor-map", "pass an aligned copy of `a`", lambda: start(TMA, on(0, strides=(68, 1))), lambda: start(TMA, on(0))),
    "address of a tensor map": ("tensor-map", "pass an aligned copy of `a`", lambda: start(TMA, on(0, misalignment=8)), lambda: start(TMA, on(0))),
    "tensor map or dma": ("tensor-map", "dma.copy", lambda: start(TMA, on(0, strides=(68, 1))), lambda: start(POINTER, on(0, strides=(68, 1)))),
    "two devices": ("array-devices", "move `out` to cuda:0", lambda: start(plan(), on(0), on(1), 1.0), lambda: start(plan(), on(0), on(0), 1.0)),
    "host and device": ("array-devices", "move `out` to cuda:0", lambda: start(plan(), on(0), np.zeros((200, 64), np.float16), 1.0),
                        lambda: start(plan(), on(0), on(0), 1.0)),
    "a value of 64 bits": ("launch-value", "should take this value in 64 bits",
                           lambda: start(plan(arguments=(ValueArgument(("mul", "K", 2**26), "u32"),)), *device_arrays(), 1.0),
                           lambda: start(plan(arguments=(ValueArgument(("mul", "K", 2**26), "s64"),)), *device_arrays(), 1.0)),
    "smaller arrays": ("launch-value", "use smaller arrays",
                       lambda: start(plan(arguments=(ValueArgument(("mul", "K", 2**26), "u32"),)), *device_arrays(), 1.0),
                       lambda: start(plan(arguments=(ValueArgument(("mul", "K", 2**26), "u32"),)), *device_arrays(k=32), 1.0)),
    "a stream's object": ("not-a-stream", "pass such a stream", lambda: stream_handle("0"), lambda: [stream_handle(s) for s in (0, Torchlike(), Protocol())]),
    "no stream": ("not-a-stream", "or none", lambda: start(plan(), *device_arrays(), 1.0, stream="0"), lambda: start(plan(), *device_arrays(), 1.0)),
    "a library that allocates": ("cannot-allocate", "pass arrays of such a library",
                                 lambda: empty_like_first(describe(np.zeros(3))._replace(library="cai", device=("cuda", 0)), (2,), "f16"),
                                 lambda: empty_like_first(describe(np.zeros(3)), (2,), "f16")),
    "packed elements": ("array-sub-byte", "`tilemma.arithmetic.packing.pack` does for NumPy arrays",
                        lambda: for_gpu(NIBBLES, ("a",), [DeviceArray(cuda_device(), (8,), "s4")]),
                        lambda: for_gpu(NIBBLES, ("a",), [pack(np.zeros(8, np.int8), dtypes.s4)])),
    "an odd number of nibbles": ("packed-extent", "pad the array with zeros",
                                 lambda: for_gpu(NIBBLES, ("a",), [np.zeros(7, dtypes.s4.numpy)]),
                                 lambda: for_gpu(NIBBLES, ("a",), [np.pad(np.zeros(7, np.int8), (0, 1)).astype(dtypes.s4.numpy)])),
}  # fmt: skip
FOLLOWED = frozenset(c[0] for c in CASES.values())


@pytest.mark.parametrize("name", CASES)
def test_followed_it_launches(name: str, fake: FakeDriver) -> None:
    code, advice, wrong, right = CASES[name]
    with pytest.raises(TilemmaError) as caught:
        wrong()
    assert caught.value.code == code and advice in caught.value.remedy, caught.value.render()
    assert right() is not None
