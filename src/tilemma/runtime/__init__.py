"""Running kernels: arrays described, calls checked against a launch plan, code loaded and started.

CUDA packages are imported only when a device is used.
"""

from __future__ import annotations

from .arrays import ArrayFacts, ArrayRef, describe, empty_like_first, facts, host_view, is_array
from .binding import Bound, bind
from .counters import zeroed
from .cudadriver import DriverError, NoCudaPackage, NoGPU, driver, gpu_unavailable_reason
from .device import Device, assembly_arch, cuda_device, runs_on
from .dispatch import CallCache, call_key
from .loading import LoadedKernel, PreparedLaunch
from .staging import DeviceArray, copy_back, to_device
from .streams import stream_handle

__all__ = [
    "ArrayFacts", "ArrayRef", "Bound", "CallCache", "Device", "DeviceArray", "DriverError", "LoadedKernel",
    "NoCudaPackage", "NoGPU", "PreparedLaunch", "assembly_arch", "bind", "call_key", "copy_back",
    "cuda_device", "describe", "driver", "empty_like_first", "facts", "gpu_unavailable_reason", "host_view",
    "is_array", "runs_on", "stream_handle", "to_device", "zeroed",
]  # fmt: skip
