"""Weights in 8 or 4 bits with scales for groups along K, as `tilemma.ops.mixed_matmul` takes them.

Arrays may be NumPy's or on a GPU (torch, CuPy); results are of the same library on the same device.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilemma.checked import is_integer
from tilemma.dtypes import BY_NAME, DType, dtype
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


@record(eq=False)
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
    scales and zeros, f32, f16 or bf16.  An integer times its scale is at most half a scale from the original.
    Raises WrongArgument, also for values that are not finite in f32, and where a scale does not fit its type.
    """
    kind = _named(type, TYPES, "type", "'s8', 's4' or 'f8_e4m3'")
    stored_scales = _named(scales, SCALES, "scales", "'f32', 'f16' or 'bf16'")
    values = host_copy(w)
    if values.ndim != 2 or not describe(w).dtype.is_float:
        got = f"shape {list(values.shape)} of {describe(w).dtype}"
        raise WrongArgument(function="quantize", name="w", got=got, wanted="floating-point numbers [K, N]")
    depth, columns = values.shape
    size = max(depth, 1) if group is None else group
    if not is_integer(size) or size < 1 or depth % size or (kind == "s4" and size % 2):
        even = ", even," if kind == "s4" else ""
        wanted = f"a number{even} that divides K = {depth}"
        raise WrongArgument(function="quantize", name="group", got=described(group), wanted=wanted)
    if not isinstance(zeros, bool):
        raise WrongArgument(function="quantize", name="zeros", got=described(zeros), wanted="True or False")
    if zeros and kind not in _LEVELS:
        raise WrongArgument(function="quantize", name="zeros", got="True with f8_e4m3", wanted="an integer type")
    size = int(size)
    kept = BY_NAME[stored_scales]
    steps = np.empty((depth // size, columns), kept.numpy)
    shifts = np.empty_like(steps) if zeros else None
    stored = np.empty((columns, depth), np.int8 if kind in _LEVELS else BY_NAME[kind].numpy)
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is refused below
        for g in range(depth // size):
            part = slice(g * size, (g + 1) * size)
            whole = values[part].astype(np.float32).astype(np.float64)
            step, shift = _range(whole, kind, kept, zeros)
            scaled = whole / step.astype(np.float64)
            if kind in _LEVELS:
                low = _LOWEST[kind]
                scaled = np.clip(np.rint(scaled) + shift, low, low + _LEVELS[kind])
            else:
                scaled = np.clip(scaled, -_LARGEST[kind], _LARGEST[kind]).astype(np.float32)
            steps[g], stored[:, part] = step, scaled.T
            if shifts is not None:
                shifts[g] = shift
    if kind == "s4":
        stored = ((stored[:, ::2] & 15) | (stored[:, 1::2] << 4)).astype(np.uint8)
    parts = [None if x is None else like(w, np.ascontiguousarray(x)) for x in (stored, steps, shifts)]
    return Quantized(parts[0], parts[1], parts[2], kind, size, (depth, columns))


def _range(whole: NDArray[Any], kind: str, kept: DType, zeros: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """The scales of one group's columns, in the type ``kept``, and the integers that stand for 0.

    Raises WrongArgument for values that are not finite, and for scales that are too large for ``kept``.
    """
    lowest, highest = whole.min(axis=0), whole.max(axis=0)
    largest = np.maximum(np.abs(lowest), np.abs(highest))
    if not np.isfinite(largest).all():
        got, wanted = "values that are NaN, infinite, or beyond f32", "finite numbers of f32"
        raise WrongArgument(function="quantize", name="w", got=got, wanted=wanted)
    step, start = largest / _LARGEST[kind], np.zeros_like(lowest)
    if zeros:
        # The integer that stands for 0 is exact in `kept`: groups far from 0 have longer steps, or a range that
        # contains 0.
        assert kept.format is not None
        most = 2.0 ** (kept.format.mantissa + 1) - _LEVELS[kind]
        spread = np.maximum((highest - lowest) / _LEVELS[kind], np.abs(lowest) / most)
        around = (np.maximum(highest, 0) - np.minimum(lowest, 0)) / _LEVELS[kind]
        start = np.where(spread < around, lowest, np.minimum(lowest, 0))
        step = np.where(highest > lowest, np.minimum(spread, around), np.abs(lowest))
        start = np.where(highest > lowest, start, lowest)
    step = _scales(np.where(largest == 0, 1, step), kept)
    low = _LOWEST[kind] if zeros else 0
    return step, low - np.rint(start / step.astype(np.float64))


def _scales(step: NDArray[Any], kept: DType) -> NDArray[Any]:
    """``step`` in the type ``kept``, rounded up: no value leaves the range."""
    found = step.astype(kept.numpy)
    if not np.isfinite(found).all():
        got, wanted = (
            f"a group whose scale {step.max():.3g} is too large for {kept}",
            "other scales, such as 'f32'",
        )
        raise WrongArgument(function="quantize", name="scales", got=got, wanted=wanted)
    above = np.nextafter(found, np.array(np.inf, kept.numpy))
    return np.where(found.astype(np.float64) < step, above, found)


def _named(given: Any, known: tuple[str, ...], name: str, wanted: str) -> str:
    with contextlib.suppress(KeyError):
        if (found := dtype(given).name) in known:
            return found
    raise WrongArgument(function="quantize", name=name, got=described(given), wanted=wanted)
