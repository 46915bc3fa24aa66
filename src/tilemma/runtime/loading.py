"""Machine code on a device: loaded once, then started with arguments packed once for a set of arrays."""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from tilemma.forking import ForkSafeLock

from ..errors import LaunchError
from ..launch import Launch, PointerArgument, TensorMapArgument, ValueArgument
from .arrays import ArrayRef, stream_source
from .binding import Bound
from .cudadriver import Driver
from .device import Device, check_cubin_arch
from .streams import stream_handle
from .tensormap import encode

# Beyond this a kernel must ask for dynamic shared memory by attribute (CUDA programming guide).
_PLAIN_SHARED = 48 * 1024
# Clusters up to 8 CTAs work on every device that has them.
_PORTABLE_CLUSTER = 8


class SharedMemoryExceeded(LaunchError):
    code = "device-shared-memory"
    found = "{kernel} needs {needed} bytes of shared memory a block ({dynamic} dynamic, {static} static)"
    expected = "at most {limit} bytes on {device}"
    fix = "use smaller tiles or fewer pipeline stages"


_modules: dict[tuple[int, bytes], Any] = {}
_modules_lock = ForkSafeLock()


def _module(device: Device, image: bytes) -> Any:
    """``image`` loaded in the device's context, once for each context."""
    key = (device.context, hashlib.sha256(image).digest())
    with _modules_lock:
        if key not in _modules:
            with device.active():
                _modules[key] = device.driver.load_module(image)
        return _modules[key]


_FORMATS = {
    "u8": "B", "s8": "b", "b8": "B",
    "u16": "H", "s16": "h", "b16": "H",
    "u32": "I", "s32": "i", "b32": "I",
    "u64": "Q", "s64": "q", "b64": "Q",
    "f16": "e", "f32": "f", "f64": "d",
}  # fmt: skip


class ValueOutOfRange(LaunchError):
    code = "launch-value"
    found = "{kernel}: an argument computed for this call, {value}, is no {type}"
    expected = "sizes, strides and offsets that fit the type the kernel takes them in"
    fix = "use smaller arrays, or report it: the kernel should take this value in 64 bits"


def _value_bytes(kernel: str, argument: ValueArgument, bound: Bound) -> bytes:
    value = bound.size(argument.value)
    if argument.type == "bf16":
        return np.asarray(value).astype(ml_dtypes.bfloat16).tobytes()
    try:
        return struct.pack("<" + _FORMATS[argument.type], value)
    except (struct.error, OverflowError):
        raise ValueOutOfRange(kernel=kernel, value=value, type=argument.type) from None


def argument_bytes(driver: Driver, bound: Bound) -> list[bytes]:
    """Each kernel argument of a call as the bytes that its `.param` holds."""
    packed = []
    for argument in bound.launch.arguments:
        match argument:
            case PointerArgument():
                packed.append(struct.pack("<Q", bound.array(argument.array).pointer))
            case ValueArgument():
                packed.append(_value_bytes(bound.kernel, argument, bound))
            case TensorMapArgument():
                packed.append(encode(driver, bound.kernel, argument, bound))
    return packed


class _Arguments:
    """Argument bytes in memory that stays where it is, and the array of their addresses (`kernelParams`)."""

    __slots__ = ("_addresses", "_memory", "address")

    def __init__(self, packed: list[bytes]) -> None:
        # 128 bytes apart: as aligned as a tensor map has to be.
        rooms = [-(-len(p) // 128) * 128 for p in packed]
        self._memory = ctypes.create_string_buffer(sum(rooms) + 128)
        at = -(-ctypes.addressof(self._memory) // 128) * 128
        places = []
        for room, data in zip(rooms, packed, strict=True):
            ctypes.memmove(at, data, len(data))
            places.append(at)
            at += room
        self._addresses = (ctypes.c_void_p * max(len(places), 1))(*places)
        self.address = ctypes.addressof(self._addresses)


class PreparedLaunch:
    """A kernel with arguments, ready to start any number of times, from any thread.

    Its arguments never change: other arrays make another PreparedLaunch.  Calling it starts the kernel on
    ``stream`` (default: the stream current now in the library of the first array); it neither allocates on
    the device nor waits, so that it can be captured in a CUDA graph, unless an array's library shares no
    streams (``synchronous``): then it returns when the kernel is done.
    """

    __slots__ = ("_arguments", "_bound", "_launch", "_loaded", "current_stream", "device", "synchronous")

    def __init__(
        self, loaded: LoadedKernel, bound: Bound, launch: Callable[[int, int], None] | None, arguments: _Arguments
    ) -> None:
        self.device = loaded.device
        self.current_stream = stream_source(bound.arrays[0]) if bound.arrays else int
        self.synchronous = any(a.synchronous for a in bound.arrays)
        self._loaded = loaded
        self._bound = bound.without_owners()
        self._launch = launch
        self._arguments = arguments

    def __call__(self, stream: Any = None) -> None:
        """Start the kernel on ``stream``: an int, or an object that `stream_handle` knows."""
        self.start(self.current_stream() if stream is None else stream_handle(stream))

    def start(self, stream: int) -> None:
        """`__call__` for a stream that is an int already."""
        launch, arguments, device = self._launch, self._arguments, self.device
        if launch is None:
            return
        driver = device.driver
        if driver.current_context() == device.context:
            launch(stream, arguments.address)
            if self.synchronous:
                driver.synchronize(stream)
            return
        with device.active():
            launch(stream, arguments.address)
            if self.synchronous:
                driver.synchronize(stream)

    def moved(self, pointers: Mapping[str, int]) -> PreparedLaunch:
        """The same launch on arrays at other addresses of the same alignment (up to 128 bytes).

        Raises what `Bound.moved` and `LoadedKernel.prepare` raise.
        """
        return self._loaded.prepare(self._bound.moved(pointers))

    def relocated(self, place: Callable[[ArrayRef], int]) -> PreparedLaunch:
        """`moved`, with each array at the address that ``place`` says."""
        arrays = self._loaded.launch.arrays
        return self.moved({p.name: place(self._bound.array(p.name)) for p in arrays})


class LoadedKernel:
    """One entry of a cubin on one device.

    ``image`` is the cubin (or PTX text with a final NUL, which the driver then assembles itself), ``arch``
    what it was assembled for.  Raises KernelArchMismatch, SharedMemoryExceeded, DriverError.
    """

    def __init__(
        self, image: bytes, launch: Launch, device: Device, *, arch: str | None = None, kernel: str | None = None
    ) -> None:
        self.launch = launch
        self.device = device
        self.kernel = kernel or launch.entry
        driver = device.driver
        if arch is not None:
            check_cubin_arch(arch, device, self.kernel)
        with device.active():
            self.function = driver.function(_module(device, image), launch.entry)
            static = driver.function_attribute(self.function, "SHARED_SIZE_BYTES")
            if static + launch.shared > device.shared_per_block:
                raise SharedMemoryExceeded(
                    kernel=self.kernel,
                    needed=static + launch.shared,
                    dynamic=launch.shared,
                    static=static,
                    limit=device.shared_per_block,
                    device=device,
                )
            if static + launch.shared > _PLAIN_SHARED:
                driver.set_function_attribute(self.function, "MAX_DYNAMIC_SHARED_SIZE_BYTES", launch.shared)
            self._cluster = self._cluster_at_launch()
            self.registers = driver.function_attribute(self.function, "NUM_REGS")

    def _cluster_at_launch(self) -> tuple[int, int, int] | None:
        """The cluster shape when the launch has to state it: the entry has no `.reqnctapercluster`."""
        cluster = self.launch.cluster
        if cluster is None or cluster == (1, 1, 1):
            return None
        driver = self.device.driver
        if cluster[0] * cluster[1] * cluster[2] > _PORTABLE_CLUSTER:
            driver.set_function_attribute(self.function, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)
        required = driver.function_attribute(self.function, "REQUIRED_CLUSTER_WIDTH")
        return None if required else cluster

    def prepare(self, bound: Bound) -> PreparedLaunch:
        """The kernel with the arguments of ``bound``.  Raises TensorMapRefused, ValueOutOfRange, DriverError."""
        if bound.is_empty:
            return PreparedLaunch(self, bound, None, _Arguments([]))
        driver, plan = self.device.driver, self.launch
        # Encoding a tensor map needs a current context, which a new thread does not have.
        with self.device.active():
            arguments = _Arguments(argument_bytes(driver, bound))
        launch = driver.launcher(self.function, bound.grid, plan.block, plan.shared, self._cluster, plan.overlap)
        return PreparedLaunch(self, bound, launch, arguments)
