"""Arrays of elements narrower than a byte: on the host NumPy has one element a byte, kernels for GPUs read packed
bytes, the first element in the lowest bits, along the last dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilemma import dtypes
from tilemma.arithmetic.packing import pack, unpack
from tilemma.dtypes import DType, dtype
from tilemma.errors import LaunchError
from tilemma.launch import ArrayParam, Launch
from tilemma.runtime.arrays import CPU, describe, host_view, is_array


class PackedExtent(LaunchError):
    code = "packed-extent"
    found = "`{name}`, of {type}, has {extent} elements along its last dimension"
    expected = "a multiple of {per}: a byte holds {per} elements (docs/language.md, Elements narrower than a byte)"
    fix = "pad the array with zeros"


class SubByteArray(LaunchError):
    code = "array-sub-byte"
    found = "`{name}` holds {type}, one element a byte, on a CUDA device"
    expected = "packed elements there: an array of u8, whose last dimension is shorter"
    fix = "pack them: `tilemma.arithmetic.packing.pack` does for NumPy arrays"


def is_packed(param: ArrayParam) -> bool:
    """Whether the elements of the parameter are packed in a kernel for GPUs."""
    return dtype(param.dtype).bits < 8


def stored(plan: Launch, order: Sequence[str], values: Sequence[Any], target: str) -> tuple[Launch, list[Any]]:
    """Plan and values of a call with such elements as ``target`` stores them ("auto": where the arrays are).

    Raises PackedExtent, SubByteArray.
    """
    on_gpu = any(is_array(v) and describe(v).device != CPU for v in values)
    if target in ("machine", "cuda") or (target == "auto" and on_gpu):
        return packed_plan(plan), for_gpu(plan.arrays, order, values)
    return plan, for_host(plan.arrays, order, values)


def packed_plan(plan: Launch) -> Launch:
    """``plan`` with arrays of bytes in place of those of packed elements."""
    arrays = []
    for a in plan.arrays:
        if is_packed(a):
            last = a.dims[-1]
            per = dtype(a.dtype).per_byte
            divided = last // per if isinstance(last, int) else ("floordiv", last, per)
            a = replace(a, dtype="u8", dims=(*a.dims[:-1], divided))
        arrays.append(a)
    return replace(plan, arrays=tuple(arrays))


def for_gpu(params: Sequence[ArrayParam], order: Sequence[str], values: Sequence[Any]) -> list[Any]:
    """``values`` with CPU arrays of elements in bytes replaced by packed ones; packed arrays stay.

    Raises PackedExtent, SubByteArray.
    """
    return _converted(params, order, values, _packed, packed=False)


def for_host(params: Sequence[ArrayParam], order: Sequence[str], values: Sequence[Any]) -> list[Any]:
    """``values`` with packed CPU arrays replaced by arrays of one element a byte."""
    return _converted(params, order, values, lambda view, t, name: unpack(view, t), packed=True)


def _packed(view: np.ndarray[Any, Any], t: DType, name: str) -> np.ndarray[Any, Any]:
    if view.shape[-1] % t.per_byte:
        raise PackedExtent(name=name, type=t, extent=view.shape[-1], per=t.per_byte)
    return pack(view, t)


def _converted(
    params: Sequence[ArrayParam], order: Sequence[str], values: Sequence[Any], change: Any, packed: bool
) -> list[Any]:
    types = {a.name: dtype(a.dtype) for a in params if is_packed(a)}
    found = list(values)
    for i, (name, value) in enumerate(zip(order, values, strict=False)):
        if name in types and is_array(value):
            ref, t = describe(value), types[name]
            if ref.device != CPU and ref.dtype.name in (t.name, t.stored):
                raise SubByteArray(name=name, type=t)
            if ref.device == CPU and ref.rank and (ref.dtype is dtypes.u8) == packed:
                found[i] = change(host_view(ref), t, name)
    return found


def copy_back(
    params: Sequence[ArrayParam], order: Sequence[str], originals: Sequence[Any], used: Sequence[Any]
) -> None:
    """Write what a kernel wrote to converted arrays to those that the caller passed."""
    by_name = {a.name: a for a in params}
    for name, original, copy in zip(order, originals, used, strict=False):
        if original is copy or name not in by_name or not by_name[name].written:
            continue
        t = dtype(by_name[name].dtype)
        target = host_view(describe(original))
        target[...] = unpack(copy, t) if target.dtype != np.uint8 else pack(copy, t)
