"""Reading DLPack capsules (DLPack 1.x, dlpack.h) without the library that made them."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from tilemma import dtypes


class Unreadable(Exception):
    """The object provides no capsule, or one of an unknown version."""


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned; the unversioned struct starts with the tensor itself."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 13: "cuda"}  # kDLCPU, kDLCUDA, kDLCUDAHost, kDLCUDAManaged


class Tensor(NamedTuple):
    """A capsule's content; ``capsule`` must live as long as the memory is used.  Strides in elements."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    device: tuple[str, int]
    read_only: bool
    capsule: Any


# Dimensions of an array: NumPy takes as many.
MAX_RANK = 64

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


def _capsule(x: Any) -> Any:
    """The capsule of ``x``, its data ready for work on the legacy default stream (stream=1 in DLPack's terms)."""
    try:
        kind = int(x.__dlpack_device__()[0])
        stream = 1 if _DEVICES.get(kind) == "cuda" else None
        try:
            return x.__dlpack__(stream=stream, max_version=(1, 1))
        except TypeError:  # written before DLPack 1.0
            return x.__dlpack__(stream=stream)
    except Exception as error:  # a foreign library may raise anything
        raise Unreadable(f"{type(error).__name__}: {error}") from None


def read(x: Any) -> Tensor:
    """The array that the capsule of ``x`` describes.  Raises Unreadable."""
    capsule = _capsule(x)
    if _is_valid(capsule, b"dltensor_versioned"):
        whole = _Versioned.from_address(_pointer_of(capsule, b"dltensor_versioned"))
        if whole.major != 1:
            raise Unreadable(f"DLPack version {whole.major}.{whole.minor}")
        tensor, read_only = whole.tensor, bool(whole.flags & _READ_ONLY)
    elif _is_valid(capsule, b"dltensor"):
        tensor, read_only = _Tensor.from_address(_pointer_of(capsule, b"dltensor")), False
    else:
        raise Unreadable("no DLPack capsule")
    kind = tensor.dtype
    if not 0 <= tensor.ndim <= MAX_RANK:
        raise Unreadable(f"a DLPack tensor of {tensor.ndim} dimensions")
    if tensor.ndim and not tensor.shape:
        raise Unreadable("a DLPack tensor without a shape")
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    if any(extent < 0 for extent in shape):
        raise Unreadable(f"a DLPack tensor of shape {shape}")
    if not tensor.data and 0 not in shape:
        raise Unreadable("a DLPack tensor with elements and no address")
    found = dtypes.from_dlpack(kind.code, kind.bits)
    unknown = f"code {kind.code}, {kind.bits} bits, {kind.lanes} lanes"
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.ndim and tensor.strides else None
    return Tensor(
        pointer=(tensor.data or 0) + tensor.byte_offset,
        shape=shape,
        strides=strides,
        dtype=found.name if found is not None and kind.lanes == 1 else unknown,
        device=(_DEVICES.get(tensor.device.type, f"device type {tensor.device.type}"), tensor.device.id),
        read_only=read_only,
        capsule=capsule,
    )


def strides_of(x: Any) -> tuple[int, ...] | None:
    """The strides of ``x`` in elements; None for row-major.  Raises Unreadable."""
    return read(x).strides
