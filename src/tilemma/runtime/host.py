"""Host copies of arrays, and arrays of a library made from host values."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import describe, host_view, library_of


def host_copy(x: Any) -> NDArray[Any]:
    """A host copy of ``x``, in the NumPy type of its elements."""
    if library_of(x) == "torch":
        x = x.detach().cpu().contiguous()
    elif library_of(x) == "cupy":
        x = x.get()
    found: NDArray[Any] = np.array(host_view(describe(x)))
    return found


def like(x: Any, values: NDArray[Any]) -> Any:
    """``values`` in the library and on the device of ``x``."""
    library = library_of(x)
    if library == "cupy":
        return sys.modules["cupy"].asarray(values)
    if library != "torch":
        return values
    torch = sys.modules["torch"]
    bits = torch.from_numpy(np.ascontiguousarray(values).view(f"i{values.dtype.itemsize}"))
    own = {"float8_e4m3fn": "float8_e4m3fn", "bfloat16": "bfloat16"}.get(values.dtype.name, values.dtype.name)
    return bits.view(getattr(torch, own)).to(x.device)
