"""Arrays in device memory without an array library, and copies of NumPy arrays to a device and back."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import dtypes
from ..dtypes import DType
from .arrays import CPU, LARGEST_ALIGNMENT, ArrayRef, describe, host_view, is_array, row_major
from .cudadriver import DriverError
from .device import Device


def _release(device: Device, pointer: int) -> None:
    # After a kernel crashed the driver refuses every call, and the context's memory is freed with the process; an
    # exception in the finalizer would print a second traceback after the first error.
    with contextlib.suppress(DriverError), device.active():
        device.driver.free(pointer)


class DeviceArray:
    """Elements in the memory of a CUDA device, freed with the object.  Strides in elements."""

    def __init__(
        self,
        device: Device,
        shape: Sequence[int],
        dtype: DType | str,
        strides: Sequence[int] | None = None,
        misalignment: int = 0,
    ) -> None:
        """Uninitialised memory for ``shape``; its address is ``misalignment`` bytes past a multiple of 256."""
        self.device = device
        self.shape = tuple(shape)
        self.dtype = dtypes.dtype(dtype)
        self.strides = tuple(strides) if strides is not None else row_major(self.shape)
        probe = ArrayRef(0, self.shape, self.strides, self.dtype, CPU, None, "tilemma")
        low, high = probe.span()
        self.size = high - low
        with device.active():
            self._base = device.driver.allocate(self.size + misalignment + 256)
        weakref.finalize(self, _release, device, self._base)
        # Lowest element's address, then that of element (0, 0, ...).
        self._low = -(-self._base // 256) * 256 + misalignment
        self.pointer = self._low - low

    def __tilemma_array__(self) -> ArrayRef:
        return ArrayRef(
            pointer=self.pointer,
            shape=self.shape,
            strides=self.strides,
            dtype=self.dtype,
            device=("cuda", self.device.ordinal),
            owner=self,
            library="tilemma",
        )

    def empty_like(self, shape: Sequence[int], dtype: DType | str) -> DeviceArray:
        return DeviceArray(self.device, shape, dtype)

    def _host_span(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Host memory of the same layout: as bytes from the lowest address, and as the array."""
        room = np.zeros(self.size, np.uint8)
        itemsize = self.dtype.numpy.itemsize
        strides = tuple(s * itemsize for s in self.strides)
        view: np.ndarray[Any, Any] = np.ndarray(
            self.shape, self.dtype.numpy, buffer=room, offset=self.pointer - self._low, strides=strides
        )
        return room, view

    def to_host(self) -> np.ndarray[Any, Any]:
        """A NumPy copy, row-major.  Waits for the legacy default stream."""
        room, view = self._host_span()
        if self.size:
            with self.device.active():
                self.device.driver.copy_to_host(room.ctypes.data, self._low, self.size)
        return view.copy()

    @staticmethod
    def from_host(device: Device, array: Any) -> DeviceArray:
        """A copy of a CPU array on ``device`` with the same strides and the same alignment class.

        Its address is aligned beyond that.  NumPy's large arrays start 16 bytes into a page, and at such an
        address TMA cuts the 32-byte sectors of memory in two: `examples/py/persistent.py` at 4096 x 4096 x 4096
        takes 272 us on an H200 then, 188 us at 32 or 64 bytes into a page, 180 us at its start.
        """
        ref = describe(array)
        low, _ = ref.span()
        misalignment = low % LARGEST_ALIGNMENT
        made = DeviceArray(device, ref.shape, ref.dtype, ref.strides, misalignment)
        room, view = made._host_span()
        view[...] = host_view(ref)
        if made.size:
            with device.active():
                device.driver.copy_to_device(made._low, room.ctypes.data, made.size)
        return made


def to_device(values: Sequence[Any], device: Device) -> list[Any]:
    """``values`` with every CPU array replaced by a copy on ``device`` of the same layout; the rest as it is."""
    return [DeviceArray.from_host(device, v) if _is_host_array(v) else v for v in values]


def _is_host_array(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return is_array(value) and describe(value).device == CPU


def copy_back(originals: Sequence[Any], staged: Sequence[Any], written: Sequence[bool]) -> None:
    """Copy the elements of written arrays back to where `to_device` took them; gaps between rows stay."""
    for original, copy, changed in zip(originals, staged, written, strict=True):
        if changed and isinstance(copy, DeviceArray) and original is not copy:
            # Whether it may be written was decided when the call was bound.
            host_view(describe(original)._replace(writable=True))[...] = copy.to_host()
