"""The interface to the CUDA driver: a protocol of a few calls, and its implementation.

The rest of the runtime calls `driver()` only.  The protocol is small so that tests can replace it by a recorder.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tilemma.forking import ForkSafeLock, cached_property

from ..errors import ToolError


class NoCudaPackage(ToolError):
    code = "no-cuda-package"
    found = "the package cuda-bindings, through which kernels are started, is not installed"
    expected = "cuda-bindings in this Python environment"
    fix = "pip install 'tilemma[cuda]'; the CPU reference and the PTX machine need no CUDA package"


class NoGPU(ToolError):
    code = "no-gpu"
    found = "no CUDA GPU can be used here: {reason}"
    expected = "an NVIDIA GPU with a working driver (nvidia-smi lists it)"
    fix = (
        "run on such a machine, or on the CPU: pass NumPy arrays, or kernel.on('machine')(...) for the PTX machine"
    )


class DriverError(ToolError):
    code = "driver-error"
    found = "{call}: {name}: {text}"
    expected = "CUDA_SUCCESS"
    fix = "{remedy}"


# The handle of the default stream of each thread.
PER_THREAD = 2

REMEDIES = {
    "CUDA_ERROR_OUT_OF_MEMORY": "free memory on the device, or use smaller arrays",
    "CUDA_ERROR_ILLEGAL_ADDRESS": (
        "a kernel left its arrays and this process's CUDA context is lost: start a new process; "
        "`tilemma check` finds the access on the PTX machine"
    ),
    "CUDA_ERROR_LAUNCH_FAILED": (
        "a kernel crashed and this process's CUDA context is lost: start a new process; `tilemma check` finds why"
    ),
    "CUDA_ERROR_MISALIGNED_ADDRESS": "a kernel was compiled for more alignment than an array has: report it",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "assemble the kernel for this device",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "use fewer threads, registers or less shared memory",
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": (
        "make the same call once before the graph is captured: a first call compiles, with `tune=True` it measures"
    ),
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "the driver was updated under a running system: restart the machine",
}


class Driver(Protocol):
    """The driver functions that the runtime uses.  Handles are opaque; contexts and streams are compared as ints.

    Every call raises DriverError with the driver's own name and text.
    """

    def __hash__(self) -> int: ...
    def device_count(self) -> int: ...
    def device_name(self, ordinal: int) -> str: ...
    def device_attribute(self, ordinal: int, name: str) -> int: ...
    def primary_context(self, ordinal: int) -> int: ...
    def current_context(self) -> int: ...
    def push_context(self, context: int) -> None: ...
    def pop_context(self) -> None: ...
    def load_module(self, image: bytes) -> Any: ...
    def function(self, module: Any, name: str) -> Any: ...
    def function_attribute(self, function: Any, name: str) -> int: ...
    def set_function_attribute(self, function: Any, name: str, value: int) -> None: ...
    def tensor_map(
        self,
        data_type: str,
        address: int,
        dims: tuple[int, ...],
        strides: tuple[int, ...],
        box: tuple[int, ...],
        element_strides: tuple[int, ...],
        interleave: int,
        swizzle: int,
        l2_promotion: int,
        oob_fill: int,
    ) -> bytes: ...
    def launcher(
        self,
        function: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        cluster: tuple[int, int, int] | None,
        overlap: bool = False,
    ) -> Callable[[int, int], None]:
        """A function of (stream, address of the array of argument addresses) that starts the kernel.

        ``overlap``: its blocks may start before the kernel ahead of it on the stream has ended.
        """
        ...

    def allocate(self, size: int) -> int: ...
    def allocate_zeroed(self, size: int) -> int: ...
    def free(self, pointer: int) -> None: ...
    def copy_to_device(self, target: int, source: int, size: int) -> None: ...
    def copy_to_host(self, target: int, source: int, size: int) -> None: ...
    def copy(self, target: int, source: int, size: int) -> None: ...
    def fill(self, pointer: int, value: int, size: int) -> None: ...
    def fill_async(self, pointer: int, value: int, size: int, stream: int) -> None: ...
    def event(self) -> Any: ...
    def record(self, event: Any, stream: int) -> None: ...
    def reached(self, event: Any) -> bool: ...
    def elapsed(self, start: Any, stop: Any) -> float: ...
    def synchronize(self, stream: int) -> None: ...
    def is_capturing(self, stream: int) -> bool: ...
    def graph(self, start: Callable[[int], None]) -> Any: ...
    def replay(self, graph: Any, stream: int) -> None: ...
    def forget(self, graph: Any) -> None: ...
    def stream_number(self, stream: int) -> int: ...
    def pointer_device(self, pointer: int) -> int: ...


# The tensor map has to lie on a multiple of 64 bytes.  cuda.bindings puts CUtensorMap into a Python object,
# which is aligned to 16 only (NVIDIA/cuda-python#1692), so this one function is called by its address.


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: which, and a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint32 * 16))


class _LaunchConfiguration(ctypes.Structure):
    """CUlaunchConfig: grid, block, shared memory, stream, attributes."""

    _fields_ = (
        *((f"size{i}", ctypes.c_uint32) for i in range(7)),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("count", ctypes.c_uint32),
    )


# CUlaunchAttributeID.
_CLUSTER_DIMENSION, _PROGRAMMATIC_STREAM_SERIALIZATION = 4, 6
_LAUNCH_EXTENDED = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
_ENCODE_TILED = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(ctypes.c_uint32),
    ctypes.POINTER(ctypes.c_uint32),
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
)


class CudaDriver:
    """`Driver` on cuda.bindings.driver (NVIDIA CUDA Python)."""

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver as cuda
        except ImportError:
            raise NoCudaPackage() from None
        self._cuda = cuda
        self._streams: dict[int, Any] = {}
        self._contexts: dict[int, Any] = {}
        try:
            (status,) = cuda.cuInit(0)
        except Exception as error:  # cuda-bindings reports a missing libcuda.so.1 by various classes
            raise NoGPU(reason=str(error).strip().split("\n")[0]) from None
        if status:
            raise NoGPU(reason=self._text("cuGetErrorName", status))
        if self.device_count() == 0:
            raise NoGPU(reason="the driver sees no device")

    def _text(self, call: str, status: Any) -> str:
        code, text = getattr(self._cuda, call)(status)
        return text.decode() if not code and text else str(status)

    def _failure(self, call: str, status: Any) -> DriverError:
        name = self._text("cuGetErrorName", status)
        remedy = REMEDIES.get(name, "see the CUDA driver API, Data types used by CUDA driver, CUresult")
        return DriverError(call=call, name=name, text=self._text("cuGetErrorString", status), remedy=remedy)

    def _call(self, name: str, *args: Any) -> Any:
        status, *results = getattr(self._cuda, name)(*args)
        if status:
            raise self._failure(name, status)
        return results[0] if results else None

    def device_count(self) -> int:
        return int(self._call("cuDeviceGetCount"))

    def device_name(self, ordinal: int) -> str:
        raw: bytes = self._call("cuDeviceGetName", 128, self._call("cuDeviceGet", ordinal))
        return raw.split(b"\0")[0].decode()

    def device_attribute(self, ordinal: int, name: str) -> int:
        attribute = getattr(self._cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._call("cuDeviceGetAttribute", attribute, self._call("cuDeviceGet", ordinal)))

    def primary_context(self, ordinal: int) -> int:
        # Never released: torch, cupy and jax use the same primary context.
        context = self._call("cuDevicePrimaryCtxRetain", self._call("cuDeviceGet", ordinal))
        self._contexts[int(context)] = context
        return int(context)

    def current_context(self) -> int:
        status, context = self._cuda.cuCtxGetCurrent()
        if status:
            raise self._failure("cuCtxGetCurrent", status)
        return int(context)

    def push_context(self, context: int) -> None:
        self._call("cuCtxPushCurrent", self._contexts[context])

    def pop_context(self) -> None:
        self._call("cuCtxPopCurrent")

    def load_module(self, image: bytes) -> Any:
        with self._beside_captures():
            return self._call("cuModuleLoadData", image)

    @contextlib.contextmanager
    def _beside_captures(self) -> Iterator[None]:
        """Allows allocations, which a CUDA graph being captured by this thread would otherwise forbid."""
        relaxed = self._cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = self._call("cuThreadExchangeStreamCaptureMode", relaxed)
        try:
            yield
        finally:
            self._call("cuThreadExchangeStreamCaptureMode", before)

    def function(self, module: Any, name: str) -> Any:
        return self._call("cuModuleGetFunction", module, name.encode())

    def function_attribute(self, function: Any, name: str) -> int:
        attribute = getattr(self._cuda.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(self._call("cuFuncGetAttribute", attribute, function))

    def set_function_attribute(self, function: Any, name: str, value: int) -> None:
        attribute = getattr(self._cuda.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        self._call("cuFuncSetAttribute", function, attribute, value)

    def tensor_map(
        self,
        data_type: str,
        address: int,
        dims: tuple[int, ...],
        strides: tuple[int, ...],
        box: tuple[int, ...],
        element_strides: tuple[int, ...],
        interleave: int,
        swizzle: int,
        l2_promotion: int,
        oob_fill: int,
    ) -> bytes:
        room = ctypes.create_string_buffer(128 + 64)
        start = -ctypes.addressof(room) % 64
        rank = len(dims)
        status = self._encode_tiled_function(
            ctypes.addressof(room) + start,
            int(getattr(self._cuda.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{data_type}")),
            rank,
            address,
            (ctypes.c_uint64 * rank)(*dims),
            (ctypes.c_uint64 * rank)(*strides),
            (ctypes.c_uint32 * rank)(*box),
            (ctypes.c_uint32 * rank)(*element_strides),
            interleave,
            swizzle,
            l2_promotion,
            oob_fill,
        )
        if status:
            raise self._failure("cuTensorMapEncodeTiled", self._cuda.CUresult(status))
        return room.raw[start : start + 128]

    @cached_property
    def _encode_tiled_function(self) -> Any:
        address = self._call("cuGetProcAddress", b"cuTensorMapEncodeTiled", 12000, 0)
        return _ENCODE_TILED(address)

    def _stream(self, stream: int) -> Any:
        handle = self._streams[stream] = self._cuda.CUstream(stream)
        return handle

    def launcher(
        self,
        function: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        cluster: tuple[int, int, int] | None,
        overlap: bool = False,
    ) -> Callable[[int, int], None]:
        if cluster is not None or overlap:
            return self._extended_launcher(function, (*grid, *block, shared), cluster, overlap)
        start, streams, new_stream, failure = self._cuda.cuLaunchKernel, self._streams, self._stream, self._failure
        (gx, gy, gz), (bx, by, bz) = grid, block

        def launch(stream: int, arguments: int) -> None:
            handle = streams.get(stream) or new_stream(stream)
            (status,) = start(function, gx, gy, gz, bx, by, bz, shared, handle, arguments, 0)
            if status:
                raise failure("cuLaunchKernel", status)

        return launch

    def _extended_launcher(
        self, function: Any, sizes: tuple[int, ...], cluster: tuple[int, int, int] | None, overlap: bool
    ) -> Callable[[int, int], None]:
        # By ctypes: cuda.bindings copies a configuration for every call, which takes longer than the launch.
        start, handle = self._launch_extended_function, int(function)
        attributes = (_LaunchAttribute * 2)()
        count = 0
        if cluster is not None:
            attributes[count].id, attributes[count].value[:3] = _CLUSTER_DIMENSION, cluster
            count += 1
        if overlap:
            attributes[count].id, attributes[count].value[0] = _PROGRAMMATIC_STREAM_SERIALIZATION, 1
            count += 1
        configurations: dict[int, Any] = {}

        def launch(stream: int, arguments: int) -> None:
            configuration = configurations.get(stream)
            if configuration is None:
                made = _LaunchConfiguration(*sizes, stream, attributes, count)
                configuration = configurations[stream] = ctypes.byref(made)
            status = start(configuration, handle, arguments, None)
            if status:
                raise self._failure("cuLaunchKernelEx", self._cuda.CUresult(status))

        return launch

    @cached_property
    def _launch_extended_function(self) -> Any:
        return _LAUNCH_EXTENDED(self._call("cuGetProcAddress", b"cuLaunchKernelEx", 12000, 0))

    def allocate(self, size: int) -> int:
        return int(self._call("cuMemAlloc", size))

    def allocate_zeroed(self, size: int) -> int:
        """Allowed while a graph is captured; zero for all streams when it returns."""
        with self._beside_captures():
            pointer = self.allocate(size)
            # The default stream of the thread: no graph is captured on it, or waits for it.
            self.fill_async(pointer, 0, size, PER_THREAD)
            self.synchronize(PER_THREAD)
            return pointer

    def free(self, pointer: int) -> None:
        self._call("cuMemFree", pointer)

    def copy_to_device(self, target: int, source: int, size: int) -> None:
        self._call("cuMemcpyHtoD", target, source, size)

    def copy_to_host(self, target: int, source: int, size: int) -> None:
        self._call("cuMemcpyDtoH", target, source, size)

    def copy(self, target: int, source: int, size: int) -> None:
        self._call("cuMemcpyDtoD", target, source, size)

    def fill(self, pointer: int, value: int, size: int) -> None:
        self._call("cuMemsetD8", pointer, value, size)

    def fill_async(self, pointer: int, value: int, size: int, stream: int) -> None:
        self._call("cuMemsetD8Async", pointer, value, size, self._streams.get(stream) or self._stream(stream))

    def event(self) -> Any:
        return self._call("cuEventCreate", 0)

    def record(self, event: Any, stream: int) -> None:
        self._call("cuEventRecord", event, self._streams.get(stream) or self._stream(stream))

    def reached(self, event: Any) -> bool:
        """Whether the device has come to a recorded event."""
        (status,) = self._cuda.cuEventQuery(event)
        if status and status != self._cuda.CUresult.CUDA_ERROR_NOT_READY:
            raise self._failure("cuEventQuery", status)
        return not status

    def elapsed(self, start: Any, stop: Any) -> float:
        """Seconds between two recorded events; waits for the second."""
        self._call("cuEventSynchronize", stop)
        return float(self._call("cuEventElapsedTime", start, stop)) * 1e-3

    def synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", self._streams.get(stream) or self._stream(stream))

    def is_capturing(self, stream: int) -> bool:
        status = self._call("cuStreamIsCapturing", self._streams.get(stream) or self._stream(stream))
        return bool(status != self._cuda.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    def graph(self, start: Callable[[int], None]) -> Any:
        """The launches that ``start(stream)`` enqueues, to be replayed."""
        stream = self._call("cuStreamCreate", int(self._cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))
        try:
            mode = self._cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
            self._call("cuStreamBeginCapture", stream, mode)
            try:
                start(int(stream))
            finally:
                captured = self._call("cuStreamEndCapture", stream)
            try:
                return self._call("cuGraphInstantiate", captured, 0)
            finally:
                self._call("cuGraphDestroy", captured)
        finally:
            self._streams.pop(int(stream), None)
            self._call("cuStreamDestroy", stream)

    def replay(self, graph: Any, stream: int) -> None:
        self._call("cuGraphLaunch", graph, self._streams.get(stream) or self._stream(stream))

    def forget(self, graph: Any) -> None:
        self._call("cuGraphExecDestroy", graph)

    def stream_number(self, stream: int) -> int:
        """A number that no other stream of the process has or had."""
        return int(self._call("cuStreamGetId", self._streams.get(stream) or self._stream(stream)))

    def pointer_device(self, pointer: int) -> int:
        attribute = self._cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(self._call("cuPointerGetAttribute", attribute, pointer))


_lock = ForkSafeLock()
_current: Driver | None = None


def driver() -> Driver:
    """The driver of this process.  Raises NoCudaPackage, NoGPU."""
    global _current
    if _current is None:
        with _lock:
            if _current is None:
                _current = CudaDriver()
    return _current


@contextlib.contextmanager
def using(replacement: Driver) -> Iterator[None]:
    """Run a block with another driver: for tests."""
    global _current
    from . import counters, device

    before, _current = _current, replacement
    device.forget()
    counters.forget()
    try:
        yield
    finally:
        _current = before
        device.forget()
        counters.forget()


def gpu_unavailable_reason() -> str | None:
    """The reason why no kernel can run on a GPU here, in a line; None when one can."""
    try:
        driver()
    except (NoCudaPackage, NoGPU) as error:
        return error.message
    return None
