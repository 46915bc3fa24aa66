"""Tensor maps (TMA descriptors): checks of the hardware's rules, and the encoding by the driver."""

from __future__ import annotations

import functools

from .. import dtypes
from ..dtypes import DType
from ..errors import LaunchError
from ..launch import TensorMapArgument
from .binding import Bound
from .cudadriver import Driver


class TensorMapRefused(LaunchError):
    code = "tensor-map"
    found = "{kernel}: the copy engine (TMA) cannot reach `{name}`: {what}"
    expected = "{rule} (CUDA driver API, cuTensorMapEncodeTiled)"
    fix = "{remedy}"


# CUtensorMapSwizzle, by the width in bytes.
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_LARGEST_STRIDE = 2**40
_LARGEST_EXTENT = 2**32
_LARGEST_BOX = 256

_COPY = "pass an aligned copy of `{name}`, or use `dma.copy`, which takes any strides"


def swizzle_code(width: int) -> int:
    """CUtensorMapSwizzle for a swizzle of ``width`` bytes."""
    return _SWIZZLES[width]


def data_type(t: DType) -> str:
    """CUtensorMapDataType: copies move bytes, so that a type without a kind of its own travels as an unsigned
    integer of its width."""
    own = (t.is_float and t.bits >= 16) or (t.kind == "int" and t.bits >= 32)
    return t.library_name.upper() if own else f"UINT{t.bits}"


def check(kernel: str, argument: TensorMapArgument, address: int, bound: Bound) -> tuple[list[int], list[int]]:
    """Extents and strides (bytes) of a tensor map for this call.  Raises TensorMapRefused."""
    name = argument.array

    def refuse(what: str, rule: str, remedy: str = _COPY) -> TensorMapRefused:
        return TensorMapRefused(kernel=kernel, name=name, what=what, rule=rule, remedy=remedy.format(name=name))

    element = dtypes.dtype(argument.dtype)
    extents = [bound.size(d) for d in argument.dims]
    strides = [bound.size(s) for s in argument.strides]
    if address % 16:
        raise refuse(f"its address is {address:#x}", "an address that is a multiple of 16")
    for axis, stride in enumerate(strides, 1):
        if stride % 16 or not 0 <= stride < _LARGEST_STRIDE:
            rule = "outer strides that are multiples of 16 bytes, at least 0 and below 2^40"
            raise refuse(f"its stride in dimension {axis} (from the innermost) is {stride} bytes", rule)
    for axis, extent in enumerate(extents):
        if extent > _LARGEST_EXTENT:
            remedy = "split the array"
            raise refuse(f"its extent in dimension {axis} is {extent}", "extents up to 2^32", remedy)
    assert all(1 <= b <= _LARGEST_BOX for b in argument.box), argument
    assert argument.box[0] * element.bytes % 16 == 0 or argument.interleave, argument
    assert not argument.swizzle or argument.box[0] * element.bytes <= argument.swizzle, argument
    return extents, strides


@functools.lru_cache(maxsize=4096)
def _encode(
    driver: Driver, argument: TensorMapArgument, address: int, extents: tuple[int, ...], strides: tuple[int, ...]
) -> bytes:
    element = dtypes.dtype(argument.dtype)
    return driver.tensor_map(
        data_type(element),
        address,
        extents,
        strides,
        argument.box,
        argument.element_strides,
        argument.interleave,
        swizzle_code(argument.swizzle),
        argument.l2_promotion,
        int(argument.oob_nan and element.is_float),
    )


def encode(driver: Driver, kernel: str, argument: TensorMapArgument, bound: Bound) -> bytes:
    """The 128 bytes of a tensor map; recent ones are cached by (address, extents, strides).

    An array without elements has no address: its map describes one element, which no kernel reads,
    since the driver takes neither null nor an extent of 0.
    """
    address = bound.array(argument.array).pointer
    extents, strides = check(kernel, argument, address, bound)
    if 0 in extents:
        rank = len(extents)
        return _encode(driver, argument, 4096, (1,) * rank, (16,) * (rank - 1))
    return _encode(driver, argument, address, tuple(extents), tuple(strides))
