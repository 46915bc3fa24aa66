"""`CudaDriver` against recording bindings in this process: each call, each argument, each failure."""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tilemma.runtime import cudadriver
from tilemma.runtime.cudadriver import CudaDriver, DriverError, NoCudaPackage, NoGPU


class Handle(int):
    """A context, stream or device as the bindings have them."""


class Enumeration:
    """Members of any name; called, a value of it."""

    def __init__(self, numbers: dict[str, int] | None = None) -> None:
        self.numbers = numbers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return name if self.numbers is None else self.numbers[name]

    def __call__(self, status: int) -> str:
        return f"status {status}"


class Bindings(ModuleType):
    """`cuda.bindings.driver`: records each call, and fails in those that ``failing`` names."""

    CUdevice_attribute = CUfunction_attribute = CUpointer_attribute = CUstreamCaptureMode = Enumeration()
    CUtensorMapDataType = Enumeration({"CU_TENSOR_MAP_DATA_TYPE_BFLOAT16": 9})
    CUstream_flags = Enumeration({"CU_STREAM_NON_BLOCKING": 1})
    CUstreamCaptureStatus = Enumeration()
    CUresult = Enumeration()
    CUstream = Handle

    def __init__(self) -> None:
        super().__init__("cuda.bindings.driver")
        self.calls: list[tuple[Any, ...]] = []
        self.failing: dict[str, str] = {}
        self.results: dict[str, tuple[Any, ...]] = {
            "cuDeviceGetCount": (2,), "cuDeviceGetName": (b"A GPU\0\0\0",), "cuDeviceGetAttribute": (132,),
            "cuDevicePrimaryCtxRetain": (Handle(0x1000),), "cuCtxGetCurrent": (Handle(0x1000),),
            "cuThreadExchangeStreamCaptureMode": ("before",), "cuModuleLoadData": ("module",),
            "cuModuleGetFunction": (Handle(0x3000),), "cuFuncGetAttribute": (7,), "cuMemAlloc": (0x7000,),
            "cuEventCreate": ("event",), "cuEventElapsedTime": (250.0,), "cuPointerGetAttribute": (1,),
        }  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu") or name.startswith("cuda"):
            raise AttributeError(name)

        def call(*args: Any) -> tuple[Any, ...]:
            if name in ("cuGetErrorName", "cuGetErrorString"):
                text = f"{'CUDA_ERROR_' if name == 'cuGetErrorName' else 'words of '}{args[0]}"
                return 0, text.encode()
            self.calls.append((name, *args))
            if name in self.failing:
                return (self.failing[name], *(None for _ in self.results.get(name, ())))
            if name == "cuDeviceGet":
                return 0, Handle(100 + args[0])
            return 0, *self.results.get(name, ())

        return call

    def called(self, *names: str) -> list[tuple[Any, ...]]:
        return [x for x in self.calls if x[0] in names]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Bindings:
    bindings = Bindings()
    package = ModuleType("cuda.bindings")
    package.driver = bindings
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", package)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", bindings)
    return bindings


def test_without_the_package_or_a_gpu(cuda: Bindings, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.results["cuDeviceGetCount"] = (0,)
    with pytest.raises(NoGPU, match="the driver sees no device"):
        CudaDriver()
    cuda.failing = {"cuInit": "NO_DEVICE"}
    with pytest.raises(NoGPU, match="CUDA_ERROR_NO_DEVICE"):
        CudaDriver()

    def missing(_: int) -> tuple[int]:
        raise RuntimeError(" libcuda.so.1 is missing\nsecond line")

    cuda.cuInit = missing
    with pytest.raises(NoGPU) as caught:
        CudaDriver()
    assert caught.value.facts["reason"] == "libcuda.so.1 is missing"
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(NoCudaPackage):
        CudaDriver()


def test_devices_and_contexts(cuda: Bindings) -> None:
    driver = CudaDriver()
    assert driver.device_count() == 2
    assert driver.device_name(1) == "A GPU" and cuda.calls[-1] == ("cuDeviceGetName", 128, 101)
    assert driver.device_attribute(1, "MULTIPROCESSOR_COUNT") == 132
    assert cuda.calls[-1] == ("cuDeviceGetAttribute", "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT", 101)
    context = driver.primary_context(1)
    assert type(context) is int and context == 0x1000 == driver.current_context()
    driver.push_context(context)
    assert cuda.calls[-1] == ("cuCtxPushCurrent", 0x1000) and type(cuda.calls[-1][1]) is Handle
    driver.pop_context()
    assert cuda.calls[-1] == ("cuCtxPopCurrent",)
    assert driver.pointer_device(0x7010) == 1
    assert cuda.calls[-1] == ("cuPointerGetAttribute", "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL", 0x7010)


def test_modules_and_functions(cuda: Bindings) -> None:
    driver = CudaDriver()
    del cuda.calls[:]
    assert driver.load_module(b"CUBIN") == "module"
    mode = "cuThreadExchangeStreamCaptureMode"
    assert cuda.calls == [
        (mode, "CU_STREAM_CAPTURE_MODE_RELAXED"), ("cuModuleLoadData", b"CUBIN"), (mode, "before"),
    ]  # fmt: skip
    cuda.failing = {"cuModuleLoadData": "INVALID_IMAGE"}
    with pytest.raises(DriverError, match="cuModuleLoadData: CUDA_ERROR_INVALID_IMAGE: words of INVALID_IMAGE"):
        driver.load_module(b"?")
    assert cuda.calls[-1] == (mode, "before")
    cuda.failing = {}
    assert driver.function("module", "scale") == 0x3000 and cuda.calls[-1][1:] == ("module", b"scale")
    assert driver.function_attribute("f", "NUM_REGS") == 7
    assert cuda.calls[-1] == ("cuFuncGetAttribute", "CU_FUNC_ATTRIBUTE_NUM_REGS", "f")
    driver.set_function_attribute("f", "MAX_DYNAMIC_SHARED_SIZE_BYTES", 102400)
    assert cuda.calls[-1] == (
        "cuFuncSetAttribute", "f", "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", 102400,
    )  # fmt: skip


def test_memory_events_and_streams(cuda: Bindings) -> None:
    driver = CudaDriver()
    del cuda.calls[:]
    assert driver.allocate(640) == 0x7000
    driver.free(0x7000)
    driver.copy_to_device(1, 2, 3)
    driver.copy_to_host(4, 5, 6)
    driver.copy(1, 4, 3)
    driver.fill(7, 8, 9)
    driver.fill_async(7, 8, 9, 0x77)
    assert driver.event() == "event"
    driver.record("event", 0x77)
    assert driver.elapsed("a", "b") == 0.25
    driver.synchronize(0x78)
    assert cuda.calls == [
        ("cuMemAlloc", 640), ("cuMemFree", 0x7000), ("cuMemcpyHtoD", 1, 2, 3), ("cuMemcpyDtoH", 4, 5, 6),
        ("cuMemcpyDtoD", 1, 4, 3), ("cuMemsetD8", 7, 8, 9), ("cuMemsetD8Async", 7, 8, 9, 0x77),
        ("cuEventCreate", 0),
        ("cuEventRecord", "event", 0x77), ("cuEventSynchronize", "b"), ("cuEventElapsedTime", "a", "b"),
        ("cuStreamSynchronize", 0x78),
    ]  # fmt: skip
    # One handle for each stream.
    assert cuda.calls[6][4] is cuda.calls[8][2] and type(cuda.calls[-1][1]) is Handle


def test_memory_is_zero_before_it_is_used_and_a_graph_may_be_captured_meanwhile(cuda: Bindings) -> None:
    driver = CudaDriver()
    del cuda.calls[:]
    assert driver.allocate_zeroed(640) == 0x7000
    mode = "cuThreadExchangeStreamCaptureMode"
    assert cuda.calls == [
        (mode, "CU_STREAM_CAPTURE_MODE_RELAXED"), ("cuMemAlloc", 640),
        ("cuMemsetD8Async", 0x7000, 0, 640, cudadriver.PER_THREAD),
        ("cuStreamSynchronize", cudadriver.PER_THREAD), (mode, "before"),
    ]  # fmt: skip


def test_a_graph_has_what_is_enqueued_while_it_is_captured(cuda: Bindings) -> None:
    cuda.results |= {"cuStreamCreate": (0x55,), "cuStreamEndCapture": ("captured",)}
    cuda.results["cuGraphInstantiate"] = ("graph",)
    driver = CudaDriver()
    del cuda.calls[:]
    graph = driver.graph(lambda stream: driver.fill_async(7, 8, 9, stream))
    driver.replay(graph, 0x77)
    driver.forget(graph)
    names = [x[0] for x in cuda.calls]
    assert names == [
        "cuStreamCreate", "cuStreamBeginCapture", "cuMemsetD8Async", "cuStreamEndCapture", "cuGraphInstantiate",
        "cuGraphDestroy", "cuStreamDestroy", "cuGraphLaunch", "cuGraphExecDestroy",
    ]  # fmt: skip
    assert {x[-1 if "Memset" in x[0] else 1] for x in cuda.calls[1:4]} == {0x55}
    assert cuda.calls[-2:] == [("cuGraphLaunch", "graph", 0x77), ("cuGraphExecDestroy", "graph")]


@pytest.mark.parametrize("status", ["NONE", "ACTIVE", "INVALIDATED"])
def test_streams_that_a_graph_is_captured_on(cuda: Bindings, status: str) -> None:
    cuda.results["cuStreamIsCapturing"] = (f"CU_STREAM_CAPTURE_STATUS_{status}",)
    assert CudaDriver().is_capturing(0x77) == (status != "NONE")


FAILURES = {
    "cuDeviceGetCount": lambda d: d.device_count(),
    "cuDeviceGetName": lambda d: d.device_name(0),
    "cuCtxGetCurrent": lambda d: d.current_context(),
    "cuMemAlloc": lambda d: d.allocate(1),
    "cuEventQuery": lambda d: d.reached("event"),
    "cuLaunchKernel": lambda d: d.launcher(Handle(3), (1, 1, 1), (32, 1, 1), 0, None)(0, 0),
}


@pytest.mark.parametrize("call", FAILURES)
def test_each_failure_has_the_call_and_the_drivers_words(cuda: Bindings, call: str) -> None:
    driver = CudaDriver()
    for status in ("OUT_OF_MEMORY", "LAUNCH_FAILED", "OTHER"):
        cuda.failing = {call: status}
        with pytest.raises(DriverError) as caught:
            FAILURES[call](driver)
        facts = caught.value.facts
        assert (facts["call"], facts["name"], facts["text"]) == (
            call,
            f"CUDA_ERROR_{status}",
            f"words of {status}",
        )
        other = "see the CUDA driver API, Data types used by CUDA driver, CUresult"
        assert facts["remedy"] == cudadriver.REMEDIES.get(f"CUDA_ERROR_{status}", other)


def test_events_that_the_device_has_not_reached_are_no_failures(cuda: Bindings) -> None:
    driver = CudaDriver()
    assert driver.reached("event")
    cuda.failing = {"cuEventQuery": "CUDA_ERROR_NOT_READY"}
    assert not driver.reached("event")


def test_what_no_graph_can_capture_is_done_before(cuda: Bindings) -> None:
    cuda.failing = {"cuMemAlloc": "STREAM_CAPTURE_UNSUPPORTED"}
    with pytest.raises(DriverError, match="before the graph is captured"):
        CudaDriver().allocate(1)


def test_a_tensor_map_is_encoded_on_64_bytes(cuda: Bindings) -> None:
    seen: list[Any] = []

    @cudadriver._ENCODE_TILED
    def encode(room: int, *args: Any) -> int:
        ctypes.memset(room, 0xAB, 128)
        kind, rank, address, dims, strides, box, step, *rest = args
        seen.append(
            (room % 64, kind, rank, address, dims[:rank], strides[: rank - 1], box[:rank], step[:rank], rest)
        )
        return 5 if address == 0xBAD0 else 0

    cuda.results["cuGetProcAddress"] = (ctypes.cast(encode, ctypes.c_void_p).value,)
    driver = CudaDriver()

    def made(address: int) -> bytes:
        return driver.tensor_map("BFLOAT16", address, (64, 200), (128,), (64, 128), (1, 1), 0, 3, 2, 1)

    assert made(0x7000) == made(0x7000) == b"\xab" * 128
    expected = (0, 9, 2, 0x7000, [64, 200], [128], [64, 128], [1, 1], [0, 3, 2, 1])
    assert seen == [expected, expected]
    with pytest.raises(DriverError, match="cuTensorMapEncodeTiled: CUDA_ERROR_status 5"):
        made(0xBAD0)
    assert cuda.called("cuGetProcAddress") == [("cuGetProcAddress", b"cuTensorMapEncodeTiled", 12000, 0)]


def test_a_launch(cuda: Bindings) -> None:
    start = CudaDriver().launcher(Handle(0x3000), (2, 3, 4), (128, 2, 1), 1024, None)
    start(0x77, 0x9000)
    start(0x77, 0x9100)
    first, second = cuda.called("cuLaunchKernel")
    assert first == ("cuLaunchKernel", 0x3000, 2, 3, 4, 128, 2, 1, 1024, 0x77, 0x9000, 0)
    assert second[9] is first[9] and second[10] == 0x9100
    assert not cuda.called("cuGetProcAddress")


@pytest.mark.parametrize("cluster", [None, (2, 1, 1)])
@pytest.mark.parametrize("overlap", [False, True])
def test_an_extended_launch_has_its_attributes(
    cuda: Bindings, cluster: tuple[int, int, int] | None, overlap: bool
) -> None:
    if cluster is None and not overlap:
        return
    seen: list[SimpleNamespace] = []

    @cudadriver._LAUNCH_EXTENDED
    def launch(configuration: int, function: int, arguments: int, extra: int | None) -> int:
        c = ctypes.cast(configuration, ctypes.POINTER(cudadriver._LaunchConfiguration)).contents
        sizes = [getattr(c, f"size{i}") for i in range(7)]
        attributes = [(c.attributes[i].id, list(c.attributes[i].value[:3])) for i in range(c.count)]
        seen.append(SimpleNamespace(sizes=sizes, stream=c.stream, attributes=attributes, function=function,
                                    arguments=arguments, extra=extra))  # fmt: skip
        return 7 if arguments == 0xBAD0 else 0

    cuda.results["cuGetProcAddress"] = (ctypes.cast(launch, ctypes.c_void_p).value,)
    driver = CudaDriver()
    start = driver.launcher(Handle(0x3000), (2, 3, 4), (128, 2, 1), 1024, cluster, overlap)
    for stream, arguments in ((0x77, 0x9000), (0x77, 0x9100), (0x78, 0x9200)):
        start(stream, arguments)
    wanted = [(4, [2, 1, 1])] * (cluster is not None) + [(6, [1, 0, 0])] * overlap
    for x, (stream, arguments) in zip(seen, ((0x77, 0x9000), (0x77, 0x9100), (0x78, 0x9200)), strict=True):
        assert x.sizes == [2, 3, 4, 128, 2, 1, 1024] and x.attributes == wanted
        assert (x.stream, x.function, x.arguments, x.extra) == (stream, 0x3000, arguments, None)
    with pytest.raises(DriverError, match="cuLaunchKernelEx: CUDA_ERROR_status 7"):
        start(0x77, 0xBAD0)
    assert cuda.called("cuGetProcAddress") == [("cuGetProcAddress", b"cuLaunchKernelEx", 12000, 0)]
    assert not cuda.called("cuLaunchKernel")
