"""Runs entries of cubins on this machine's first GPU, through the driver, with arrays as arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def _ok(result: Any) -> Any:
    error, *values = result
    if int(error) != 0:
        raise SystemExit(f"CUDA driver: {error}")
    return values[0] if len(values) == 1 else values


class Cuda:
    """Runs entries of cubins on the first GPU through the driver."""

    def __init__(self, load: Callable[[str], bytes]) -> None:
        from cuda.bindings import driver

        self.driver, self.load = driver, load
        _ok(driver.cuInit(0))
        self.device = _ok(driver.cuDeviceGet(0))
        _ok(driver.cuCtxSetCurrent(_ok(driver.cuDevicePrimaryCtxRetain(self.device))))
        self.modules: dict[str, Any] = {}
        self.functions: dict[tuple[str, str], Any] = {}
        self.scratch: list[tuple[int, int]] = []

    def describe(self) -> dict[str, Any]:
        attribute = self.driver.CUdevice_attribute
        major, minor = (
            _ok(self.driver.cuDeviceGetAttribute(x, self.device))
            for x in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        name = _ok(self.driver.cuDeviceGetName(128, self.device))
        name = name.decode() if isinstance(name, bytes) else name
        return {
            "device": name.split("\0")[0],
            "capability": f"{major}.{minor}",
            "driver": _driver_version() or f"CUDA {_ok(self.driver.cuDriverGetVersion())}",
        }

    def function(self, module: str, entry: str, shared: int) -> Any:
        if (module, entry) not in self.functions:
            if module not in self.modules:
                self.modules[module] = _ok(self.driver.cuModuleLoadData(self.load(module)))
            found = _ok(self.driver.cuModuleGetFunction(self.modules[module], entry.encode()))
            if shared > 48 * 1024:
                limit = self.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                _ok(self.driver.cuFuncSetAttribute(found, limit, shared))
            self.functions[module, entry] = found
        return self.functions[module, entry]

    def buffer(self, slot: int, size: int) -> int:
        """Device memory of at least ``size`` bytes, kept for the slot's next use."""
        while len(self.scratch) <= slot:
            self.scratch.append((0, 0))
        pointer, have = self.scratch[slot]
        if have < size:
            if have:
                _ok(self.driver.cuMemFree(pointer))
            pointer = int(_ok(self.driver.cuMemAlloc(max(size, 1 << 16))))
            self.scratch[slot] = (pointer, max(size, 1 << 16))
        return self.scratch[slot][0]

    def run(self, module: str, entry: str, grid: int, threads: int, shared: int, arguments: Sequence[Any]) -> None:
        values: list[int] = []
        types: list[Any] = []
        arrays: list[tuple[int, NDArray[Any]]] = []
        for slot, argument in enumerate(arguments):
            if isinstance(argument, np.ndarray):
                assert argument.flags.c_contiguous
                pointer = self.buffer(slot, argument.nbytes)
                _ok(self.driver.cuMemcpyHtoD(pointer, argument.ctypes.data, argument.nbytes))
                arrays.append((pointer, argument))
                values.append(pointer)
                types.append(ctypes.c_uint64)
            else:
                values.append(argument[1])
                types.append({"u32": ctypes.c_uint32, "u64": ctypes.c_uint64}[argument[0]])
        function = self.function(module, entry, shared)
        _ok(
            self.driver.cuLaunchKernel(
                *(function, grid, 1, 1, threads, 1, 1, shared, 0, (tuple(values), tuple(types)), 0)
            )
        )
        for pointer, array in arrays:
            _ok(self.driver.cuMemcpyDtoH(array.ctypes.data, pointer, array.nbytes))


def _driver_version() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    words = text.split()
    return next((w for w in words if w.count(".") >= 1 and w.replace(".", "").isdigit()), "")
