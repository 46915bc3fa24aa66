"""Packing of elements narrower than a byte (sub-byte types): the first in the lowest bits, along the last
dimension."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilemma.dtypes import DType


def pack(values: NDArray[Any], t: DType) -> NDArray[np.uint8]:
    """Elements of ``t``, one in each element of ``values``, as bytes; the last extent is a multiple of
    `DType.per_byte`."""
    per = t.per_byte
    fields = values.astype(np.int8).view(np.uint8) & np.uint8((1 << t.bits) - 1)
    parts = fields.reshape(*values.shape[:-1], values.shape[-1] // per, per)
    found: NDArray[np.uint8] = np.bitwise_or.reduce(parts << _shifts(t), axis=-1, dtype=np.uint8)
    return np.ascontiguousarray(found)


def unpack(data: NDArray[np.uint8], t: DType) -> NDArray[Any]:
    """The inverse of `pack`, in the NumPy type of ``t``."""
    fields = (data[..., None] >> _shifts(t) & np.uint8((1 << t.bits) - 1)).astype(np.int8)
    if t.kind == "int":
        sign = np.int8(1 << t.bits - 1)
        fields = (fields ^ sign) - sign
    return fields.reshape(*data.shape[:-1], data.shape[-1] * t.per_byte).astype(t.numpy)


def _shifts(t: DType) -> NDArray[np.uint8]:
    return (np.arange(t.per_byte) * t.bits).astype(np.uint8)
