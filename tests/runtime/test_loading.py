from __future__ import annotations

import gc
import struct
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver, argument

from tilemma.launch import (
    ArrayParam,
    Launch,
    PointerArgument,
    ScalarParam,
    TensorMapArgument,
    ValueArgument,
)
from tilemma.runtime import (
    CallCache,
    DeviceArray,
    DriverError,
    LoadedKernel,
    NoGPU,
    PreparedLaunch,
    assembly_arch,
    bind,
    copy_back,
    cuda_device,
    driver,
    stream_handle,
    to_device,
)
from tilemma.runtime.arrays import describe, facts
from tilemma.runtime.binding import OverlappingArrays
from tilemma.runtime.device import KernelArchMismatch, check_cubin_arch, runs_on
from tilemma.runtime.loading import SharedMemoryExceeded, ValueOutOfRange
from tilemma.runtime.streams import NotAStream
from tilemma.runtime.tensormap import TensorMapRefused, _encode

MAP = TensorMapArgument("a", "f16", ("K", "M"), (("mul", "a.stride0", 2),), (64, 128), (1, 1), swizzle=128)


def plan(**changes: Any) -> Launch:
    fields: dict[str, Any] = {
        "entry": "scale",
        "arch": "sm_90a",
        "arrays": (
            ArrayParam("a", "f16", ("M", "K"), written=False, alignment=16, contiguous=1),
            ArrayParam("out", "f16", ("M", "K"), written=True, contiguous=1),
        ),
        "scalars": (ScalarParam("x", "f32"),),
        "arguments": (
            PointerArgument("out"),
            ValueArgument("x", "f32"),
            ValueArgument("M", "u32"),
            ValueArgument(("sub", "K", 100), "s64"),
            MAP,
        ),
        "grid": (("cdiv", "M", 128), 1, 1),
        "block": (128, 1, 1),
        "shared": 1024,
    }
    return Launch(**{**fields, **changes})


def device_arrays(m: int = 200, k: int = 64, ordinal: int = 0) -> tuple[DeviceArray, DeviceArray]:
    where = cuda_device(ordinal)
    return DeviceArray(where, (m, k), "f16"), DeviceArray(where, (m, k), "f16")


def start(launch: Launch, *args: Any, ordinal: int = 0, stream: Any = None) -> PreparedLaunch:
    loaded = LoadedKernel(b"cubin", launch, cuda_device(ordinal), arch="sm_90a")
    prepared = loaded.prepare(bind(launch, args))
    prepared(stream)
    return prepared


def test_arguments_grid_and_stream_reach_the_driver(fake: FakeDriver) -> None:
    a, out = device_arrays()
    prepared = start(plan(), a, out, 1.5, stream=77)
    (launch,) = fake.launches
    assert launch["grid"] == (2, 1, 1) and launch["block"] == (128, 1, 1)
    assert launch["stream"] == 77 and launch["shared"] == 1024 and launch["cluster"] is None
    assert argument(launch, 0) == struct.pack("<Q", out.pointer)
    assert argument(launch, 1, 4) == struct.pack("<f", 1.5)
    assert argument(launch, 2, 4) == struct.pack("<I", 200)
    assert argument(launch, 3) == struct.pack("<q", -36)
    assert argument(launch, 4, 128) == bytes([1]) * 128
    (call,) = [c for c in fake.calls if c[0] == "tensor_map"]
    assert call[1:] == ("FLOAT16", a.pointer, (64, 200), (128,), (64, 128), (1, 1), 0, 3, 0, 0)
    del prepared


def test_the_callers_context_is_current_again_afterwards(fake: FakeDriver) -> None:
    a, out = device_arrays()
    start(plan(), a, out, 1.0)
    assert fake.context_stack == [] and fake.launches[-1]["context"] == 1000
    fake.context_stack.append(1000)
    pushed = fake.count("push_context")
    start(plan(), a, out, 1.0)
    assert fake.count("push_context") == pushed and fake.context_stack == [1000]


def test_a_module_is_loaded_once_for_each_context_even_by_many_threads(fake: FakeDriver) -> None:
    threads = [
        threading.Thread(target=LoadedKernel, args=(b"threads", plan(arch="sm_80"), cuda_device(i % 2)))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fake.modules.count(b"threads") == 2


def test_tensor_maps_are_remembered_by_address_and_shape(fake: FakeDriver) -> None:
    a, out = device_arrays()
    for _ in range(3):
        start(plan(), a, out, 1.0)
    assert fake.count("tensor_map") == 1
    start(plan(), out, a, 1.0)
    assert fake.count("tensor_map") == 2


def test_tensor_map_of_an_empty_array_is_legal(fake: FakeDriver) -> None:
    _encode.cache_clear()
    launch = plan(arrays=(plan().arrays[0],), scalars=(), arguments=(MAP,))
    start(launch, DeviceArray(cuda_device(), (200, 0), "f16"))
    (call,) = [c for c in fake.calls if c[0] == "tensor_map"]
    assert call[2] % 16 == 0 and call[2] and call[3] == (1, 1) and call[4] == (16,)


@pytest.mark.parametrize(
    ("array", "says"),
    [
        ({"strides": (68, 1)}, "stride in dimension 1 (from the innermost) is 136 bytes"),
        ({"strides": (-64, 1)}, "stride in dimension 1 (from the innermost) is -128 bytes"),
        ({"misalignment": 8}, "its address is 0x"),
    ],
)
def test_tensor_maps_that_the_hardware_refuses(fake: FakeDriver, array: dict[str, Any], says: str) -> None:
    launch = plan(
        arrays=(ArrayParam("a", "f16", ("M", "K"), written=False, contiguous=1),), scalars=(), arguments=(MAP,)
    )
    with pytest.raises(TensorMapRefused) as caught:
        start(launch, DeviceArray(cuda_device(), (200, 64), "f16", **array))
    assert says in caught.value.message and "`a`" in caught.value.remedy
    assert not fake.launches


def test_an_empty_grid_starts_nothing(fake: FakeDriver) -> None:
    a, out = device_arrays(m=0)
    start(plan(), a, out, 1.0)
    assert not fake.launches


def test_values_that_do_not_fit_are_refused(fake: FakeDriver) -> None:
    launch = plan(arguments=(ValueArgument(("sub", "K", 100), "u32"),))
    a, out = device_arrays()
    with pytest.raises(ValueOutOfRange, match="-36, is no u32"):
        start(launch, a, out, 1.0)


def test_shared_memory_above_48_kb_is_asked_for_and_limited(fake: FakeDriver) -> None:
    a, out = device_arrays()
    start(plan(shared=200 * 1024), a, out, 1.0)
    assert ("set_function_attribute", "MAX_DYNAMIC_SHARED_SIZE_BYTES", 200 * 1024) in fake.calls
    fake.static_shared = 30 * 1024
    with pytest.raises(SharedMemoryExceeded) as caught:
        start(plan(shared=200 * 1024), a, out, 1.0)
    assert "235520" in caught.value.message and "232448" in caught.value.expectation


def test_a_cluster_is_stated_at_launch_only_without_reqnctapercluster(fake: FakeDriver) -> None:
    a, out = device_arrays()
    start(plan(cluster=(2, 1, 1)), a, out, 1.0)
    assert fake.launches[-1]["cluster"] == (2, 1, 1)
    fake.required_cluster = 2
    start(plan(cluster=(2, 1, 1)), a, out, 1.0)
    assert fake.launches[-1]["cluster"] is None
    start(plan(cluster=(16, 1, 1)), a, out, 1.0)
    assert ("set_function_attribute", "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1) in fake.calls


def test_code_for_other_devices_is_refused(fake: FakeDriver) -> None:
    for arch in ("sm_80", "sm_100a", "sm_91"):
        with pytest.raises(KernelArchMismatch) as caught:
            LoadedKernel(b"x", plan(), cuda_device(0), arch=arch)
        assert "sm_90a" in caught.value.remedy
    LoadedKernel(b"x", plan(), cuda_device(0), arch="sm_90")


def test_assembly_architectures(fake: FakeDriver) -> None:
    hopper, ampere = cuda_device(0), cuda_device(1)
    assert assembly_arch("sm_80", hopper) == "sm_90" and assembly_arch("sm_80", ampere) == "sm_80"
    assert assembly_arch("sm_90a", hopper) == "sm_90a"
    for target in ("sm_86", "sm_90a", "sm_90"):
        with pytest.raises(KernelArchMismatch):
            assembly_arch(target, ampere)


CAPABILITIES = ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0))
# CUDA C++ programming guide, Binary compatibility; PTX ISA, .target.
RUNS = {
    "sm_80": ((8, 0), (8, 6), (8, 9)),
    "sm_86": ((8, 6), (8, 9)),
    "sm_89": ((8, 9),),
    "sm_90": ((9, 0),),
    "sm_90a": ((9, 0),),
    "sm_100": ((10, 0), (10, 3)),
    "sm_100a": ((10, 0),),
    "sm_103a": ((10, 3),),
}


@pytest.mark.parametrize("arch", RUNS)
def test_machine_code_and_the_devices_that_run_it(arch: str, fake: FakeDriver) -> None:
    """PTX runs on later devices as well, unless its target has features of one device alone."""
    found, from_text = [], []
    for capability in CAPABILITIES:
        where = replace(cuda_device(0), compute_capability=capability)
        try:
            check_cubin_arch(arch, where, "k")
            found.append(capability)
        except KernelArchMismatch as e:
            rule = "exactly, which" if arch.endswith("a") else f"or later (machine code: {RUNS[arch][0][0]}.x)"
            assert rule in e.message + e.expectation + e.remedy
        if runs_on(arch, capability):
            from_text.append(capability)
    later = [c for c in CAPABILITIES if c >= RUNS[arch][0]]
    assert found == list(RUNS[arch])
    assert from_text == (found if arch.endswith("a") else later)
    assert [c for c in CAPABILITIES if runs_on("sm_100f", c)] == [(10, 0), (10, 3)]


def test_devices_that_are_not_there(fake: FakeDriver) -> None:
    with pytest.raises(NoGPU, match="no device 2, only 2"):
        cuda_device(2)
    assert driver() is fake


class Torchlike:
    cuda_stream = 5


class Cupylike:
    ptr = 6


class Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 7


def test_streams_of_several_libraries() -> None:
    assert [stream_handle(s) for s in (4, Torchlike(), Cupylike(), Protocol())] == [4, 5, 6, 7]
    for wrong in (True, "0", None, object()):
        with pytest.raises(NotAStream):
            stream_handle(wrong)


def test_numpy_arrays_go_to_the_device_and_back_with_their_layout(fake: FakeDriver) -> None:
    where = cuda_device()
    whole = np.arange(40, dtype=np.float32).reshape(5, 8)
    for array in (whole, whole[::2, 1:4], whole.T, whole[::-1], whole[:, :0], whole[2]):
        before = whole.copy()
        values = [array, 3]
        staged = to_device(values, where)
        ref = staged[0].__tilemma_array__()
        assert ref.shape == array.shape and tuple(s * 4 for s in ref.strides) == array.strides
        assert ref.pointer % 16 == array.ctypes.data % 16 or not array.size
        assert np.array_equal(staged[0].to_host(), array)
        copy_back(values, staged, [True, False])
        assert np.array_equal(whole, before)
    assert len(fake.memory) == 1
    del staged, ref
    assert not fake.memory


def test_copies_on_the_device_keep_the_alignment_class_and_begin_a_cache_line(fake: FakeDriver) -> None:
    room = np.zeros(4096 + 512, np.uint8)
    start = -room.ctypes.data % 256
    for misalignment in (0, 2, 6, 8, 16, 48, 128):
        array = room[start + misalignment :][:4096].view(np.float16).reshape(32, 64)
        (staged,) = to_device([array], cuda_device())
        assert facts(describe(staged)) == facts(describe(array))
        assert describe(staged).pointer % 128 == misalignment % 16


def test_cpu_arrays_of_any_library_are_brought(fake: FakeDriver) -> None:
    class Foreign:
        def __init__(self) -> None:
            self.x = np.arange(6.0).reshape(2, 3)

        def __dlpack__(self, **options: Any) -> Any:
            return self.x.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.x.__dlpack_device__()

    values = [Foreign(), 2.5, np.float32(1)]
    staged = to_device(values, cuda_device())
    assert isinstance(staged[0], DeviceArray) and staged[1:] == values[1:]
    room, view = staged[0]._host_span()
    view[...] = 4
    fake.copy_to_device(staged[0]._low, room.ctypes.data, staged[0].size)
    copy_back(values, staged, [True, False, False])
    assert (values[0].x == 4).all()


def test_descriptions_of_cpu_arrays_are_brought(fake: FakeDriver) -> None:
    """Also of a part of their owner."""
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    row = describe(whole)._replace(pointer=whole.ctypes.data + 16, shape=(4,), strides=(1,), owner=(whole,))
    for given, array in ((describe(whole), whole), (row, whole[1])):
        (staged,) = to_device([given], cuda_device())
        assert isinstance(staged, DeviceArray) and np.array_equal(staged.to_host(), array)
        room, view = staged._host_span()
        view[...] = array + 1
        fake.copy_to_device(staged._low, room.ctypes.data, staged.size)
        wanted = array + 1
        copy_back([given], [staged], [True])
        assert np.array_equal(array, wanted)


def test_written_elements_come_back_and_gaps_stay(fake: FakeDriver) -> None:
    whole = np.zeros((4, 8), np.float32)
    part = whole[:, 2:5]
    (staged,) = to_device([part], cuda_device())
    room, view = staged._host_span()
    room[...] = 0xFF
    view[...] = 7.0
    fake.copy_to_device(staged._low, room.ctypes.data, staged.size)
    copy_back([part], [staged], [True])
    assert (whole[:, 2:5] == 7).all() and whole.sum() == 7 * 12


def test_a_warm_call_starts_what_was_prepared(fake: FakeDriver) -> None:
    launch, cache = plan(), CallCache(["a", "out", "x"], capacity=3)
    a, out = device_arrays()
    loaded = LoadedKernel(b"cubin", launch, cuda_device())
    assert not cache.run((a, out, 1.0))
    cache.put((a, out, 1.0), loaded.prepare(bind(launch, (a, out, 1.0))))
    assert cache.run((a, out, 1.0), stream=9) and fake.launches[-1]["stream"] == 9
    assert cache.run((a, out, 1.0)) and fake.launches[-1]["stream"] == 0
    for other in (1, True, -1.0, 2.0):
        assert not cache.run((a, out, other))
    assert not cache.run((a, out))
    cache.put((a, out, 0.0), loaded.prepare(bind(launch, (a, out, 0.0))))
    assert not cache.run((a, out, -0.0))
    for i in range(10):
        cache.put((a, out, i), loaded.prepare(bind(launch, (a, out, float(i)))))
        assert len(cache) <= 3


def test_arrays_at_other_addresses_have_their_arguments_packed_anew(fake: FakeDriver) -> None:
    launch, cache = plan(), CallCache(["a", "out", "x"])
    a, out = device_arrays()
    cache.put((a, out, 1.0), LoadedKernel(b"cubin", launch, cuda_device()).prepare(bind(launch, (a, out, 1.0))))
    b, other = device_arrays()
    assert cache.run((b, other, 1.0)) and len(cache) == 2
    assert argument(fake.launches[-1], 0) == struct.pack("<Q", other.pointer)
    maps = fake.count("tensor_map")
    assert [c[2] for c in fake.calls if c[0] == "tensor_map"][-1] == b.pointer
    assert cache.run((b, other, 1.0)) and fake.count("tensor_map") == maps
    with pytest.raises(OverlappingArrays):
        cache.run((a, a, 1.0))
    unnamed = CallCache()
    unnamed.put((a, out, 1.0), LoadedKernel(b"cubin", launch, cuda_device()).prepare(bind(launch, (a, out, 1.0))))
    assert unnamed.run((a, out, 1.0)) and not unnamed.run((b, other, 1.0))
    skewed = DeviceArray(cuda_device(), (200, 64), "f16", misalignment=8)
    assert not cache.run((skewed, out, 1.0))
    assert not cache.run((DeviceArray(cuda_device(), (100, 64), "f16"), out, 1.0))


def test_prepared_launches_keep_no_array_alive(fake: FakeDriver) -> None:
    a, out = device_arrays()
    prepared = start(plan(), a, out, 1.0)
    assert len(fake.memory) == 2
    del a, out
    assert not fake.memory
    prepared()


def test_calls_with_arrays_that_change_unseen_are_never_warm() -> None:
    cache = CallCache(["x"])
    x = np.zeros(3)
    cache.put((x,))
    assert len(cache) == 0 and not cache.run((x,))


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_memory_of_a_lost_context(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crashed kernel's error is not followed by tracebacks of the finalizers of arrays."""

    def refuse(pointer: int) -> None:
        raise DriverError(call="cuMemFree", name="CUDA_ERROR_LAUNCH_FAILED", text="launch failure", remedy="none")

    monkeypatch.setattr(fake, "free", refuse)
    array = DeviceArray(cuda_device(), (4,), "f16")
    del array
    gc.collect(1)
