"""Weights in 8 or 4 bits with scales for groups along K, as `tilemma.ops.mixed_matmul` takes them.

Arrays may be NumPy's or on a GPU (torch, CuPy); results are of the same library on the same device.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilemma.dtypes import BY_NAME, dtype
from tilemma.errors import WrongArgument, described
from tilemma.records import record
from tilemma.runtime.arrays import describe
from tilemma.runtime.host import host_copy, like

TYPES = ("s8", "s4", "f8_e4m3")
# The types of scales and zeros.
SCALES = ("f32", "f16", "bf16")
# The largest magnitude of each type on both sides of zero, and the span of its integers.
_LARGEST = {"s8": 127.0, "s4": 7.0, "f8_e4m3": 448.0}
_LOWEST, _LEVELS = {"s8": -128, "s4": -8}, {"s8": 255, "s4": 15}


@record
class Quantized:
    """A matrix [K, N] in elements of ``type``: (values - zeros) * scales.

    ``values`` is [N, K] of ``type``, or for s4 [N, K/2] of u8 with even k in the low four bits; ``scales`` and
    ``zeros`` (or None) are [K/group, N].
    """

    values: Any
    scales: Any
    zeros: Any
    type: str
    group: int
    shape: tuple[int, int]

    def dequantize(self) -> Any:
        """The matrix in f32 [K, N], of the library of the values.

        Raises WrongArgument where the fields do not belong together.
        """
        check_fields("dequantize", self)
        whole = unpacked(host_copy(self.values), self.type)
        wide = np.repeat(host_copy(self.scales).astype(np.float32), self.group, axis=0)
        if self.zeros is not None:
            whole = whole - np.repeat(host_copy(self.zeros).astype(np.float32), self.group, axis=0).T
        return like(self.values, np.ascontiguousarray((whole * wide.T).T))


def check_fields(function: str, q: Quantized) -> None:
    """Raises WrongArgument where type, group, shape and arrays do not belong together."""
    if not isinstance(q.type, str) or q.type not in TYPES:
        raise WrongArgument(function=function, name="type", got=described(q.type), wanted=", ".join(TYPES))
    sizes = (q.group, *q.shape) if isinstance(q.shape, tuple) and len(q.shape) == 2 else (q.group, None)
    whole = all(isinstance(n, int) and not isinstance(n, bool) for n in sizes)
    if not whole or q.group < 1 or min(q.shape) < 0 or q.shape[0] % q.group or (q.type == "s4" and q.shape[0] % 2):
        got = f"{described(q.group)} and shape {described(q.shape)}"
        raise WrongArgument(function=function, name="group", got=got, wanted="a number that divides K of (K, N)")
    depth, columns = q.shape
    stored = {"s4": "u8"}.get(q.type, q.type)
    width = depth // 2 if q.type == "s4" else depth
    wanted = {"values": ((columns, width), (stored,)), "scales": ((depth // q.group, columns), SCALES)}
    wanted["zeros"] = wanted["scales"]
    for name, (shape, types) in wanted.items():
        x = getattr(q, name)
        if x is None and name == "zeros":
            continue
        found = describe(x)
        if found.shape != shape or found.dtype.name not in types:
            got = f"shape {list(found.shape)} of {found.dtype}"
            raise WrongArgument(
                function=function, name=name, got=got, wanted=f"{list(shape)} of {' or '.join(types)}"
            )


def unpacked(values: NDArray[Any], kind: str) -> NDArray[np.float32]:
    """Stored values as f32 [N, K]."""
    if kind != "s4":
        return values.astype(np.float32)
    nibbles = np.stack([values & 15, values >> 4], axis=-1).reshape(len(values), 2 * values.shape[1])
    return (nibbles.astype(np.int8) ^ 8).astype(np.float32) - 8


def quantize(
    w: Any, type: str = "s8", group: int | None = None, *, zeros: bool = False, scales: Any = "f32"
) -> Quantized:
    """``w`` [K, N] in elements of ``type`` ("s8", "s4" or "f8_e4m3"), rounded to nearest.

    Each column has a scale for every ``group`` rows (None: one).  With ``zeros``, integers use their whole range
    between the smallest and the largest value of a group; else scales are symmetric.  ``scales``: the type of the
    scales, f32, f16 or bf16.  Raises WrongArgument.
    """
    kind = _named(type, TYPES, "type", "'s8', 's4' or 'f8_e4m3'")
    stored_scales = _named(scales, SCALES, "scales", "'f32', 'f16' or 'bf16'")
    values = host_copy(w)
    if values.ndim != 2 or not describe(w).dtype.is_float:
        got = f"shape {list(values.shape)} of {describe(w).dtype}"
        raise WrongArgument(function="quantize", name="w", got=got, wanted="floating-point numbers [K, N]")
    depth, columns = values.shape
    size = depth if group is None else group
    if (
        isinstance(size, bool)
        or not isinstance(size, int)
        or size < 1
        or depth % size
        or (kind == "s4" and size % 2)
    ):
        even = ", even," if kind == "s4" else ""
        wanted = f"a number{even} that divides K = {depth}"
        raise WrongArgument(function="quantize", name="group", got=described(group), wanted=wanted)
    if not isinstance(zeros, bool):
        raise WrongArgument(function="quantize", name="zeros", got=described(zeros), wanted="True or False")
    if zeros and kind not in _LEVELS:
        raise WrongArgument(function="quantize", name="zeros", got="True with f8_e4m3", wanted="an integer type")
    whole = values.astype(np.float32).reshape(depth // size, size, columns)
    kept = BY_NAME[stored_scales].numpy
    lowest, shift = whole.min(axis=1), None
    step = np.abs(whole).max(axis=1) / _LARGEST[kind]
    if zeros:
        step = (whole.max(axis=1) - lowest) / _LEVELS[kind]
    step = np.where(step == 0, 1, step).astype(kept)
    scaled = whole / step.astype(np.float32)[:, None]
    if zeros:
        shift = (_LOWEST[kind] - np.rint(lowest / step.astype(np.float32))).astype(kept)
        scaled = scaled + shift.astype(np.float32)[:, None]
    scaled = scaled.reshape(depth, columns).T
    if kind in _LEVELS:
        low = _LOWEST[kind]
        scaled = np.clip(np.rint(scaled), low, low + _LEVELS[kind])
        stored: Any = scaled.astype(np.int8)
        if kind == "s4":
            stored = ((stored[:, ::2] & 15) | (stored[:, 1::2] << 4)).astype(np.uint8)
    else:
        stored = np.clip(scaled, -448, 448).astype(BY_NAME[kind].numpy)
    parts = [None if x is None else like(w, np.ascontiguousarray(x)) for x in (stored, step, shift)]
    return Quantized(parts[0], parts[1], parts[2], kind, size, (depth, columns))


def _named(given: Any, known: tuple[str, ...], name: str, wanted: str) -> str:
    found = ""
    if isinstance(given, str):
        with contextlib.suppress(KeyError):
            found = dtype(given).name
    if found not in known:
        raise WrongArgument(function="quantize", name=name, got=described(given), wanted=wanted)
    return found
