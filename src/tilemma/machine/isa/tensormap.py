"""Tensor maps: the rules of their encoding, and the bytes that a box transfer moves.

Sources: CUDA driver API, ``cuTensorMapEncodeTiled``; PTX ISA, "Tensors" (tiled mode, bounding box, traversal
stride, out-of-bound access, swizzling modes) and ``cp.async.bulk.tensor``; CUDA programming guide, "TMA
Swizzle".

A box is stored densely, innermost dimension first.  With swizzling each innermost run takes a line of the
swizzle's width even when it is shorter (the guide: allocate the full width), and the 16-byte units of a line
are exchanged by the bits of the shared-memory address itself, as in ``descriptors.swizzle``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from ...dtypes import dtype
from ...launch import TensorMapArgument, evaluate
from .descriptors import swizzle

Ints = npt.NDArray[np.int64]

# PTX ISA, cp.async.bulk.tensor: the shared-memory address of any tensor copy.
DESTINATION_ALIGNMENT = 128


@dataclass(frozen=True, slots=True)
class TensorMapImage:
    """The fields of a tensor map, innermost dimension first.

    ``strides`` are in bytes, one for each dimension but the innermost; ``box`` and ``element_strides`` are in
    elements; ``swizzle`` is in bytes (0, 32, 64, 128); ``interleave`` is 0, 16 or 32 bytes.  What lies
    outside the tensor reads as zero, or as NaN with ``oob_nan``, and is not written.

    A map of the im2col mode has ``corners``, the offsets of the lower and the upper corner of its pixel box; its
    ``box`` is (channels per pixel, pixels per column).
    """

    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int = 0
    interleave: int = 0
    oob_nan: bool = False
    corners: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    # Bytes of the units that the swizzle exchanges.
    unit: int = 16

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def element_bytes(self) -> int:
        return dtype(self.dtype).bytes

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements moved along each dimension: the box over the traversal stride, rounded up."""
        if self.corners is not None:
            return self.box
        # The innermost stride is ignored where nothing is interleaved.
        steps = (1, *self.element_strides[1:])
        return tuple(-(-b // s) for b, s in zip(self.box, steps, strict=True))

    @property
    def line_bytes(self) -> int:
        """Bytes from one innermost run to the next in shared memory."""
        return self.swizzle or self.counts[0] * self.element_bytes

    @property
    def transaction_bytes(self) -> int:
        """Bytes that one transfer reports to its mbarrier: the whole box, in bounds or not."""
        return math.prod(self.counts) * self.element_bytes

    @property
    def footprint(self) -> int:
        """Bytes of shared memory from the destination to the end of the last line."""
        return math.prod(self.counts[1:]) * self.line_bytes


_INTERLEAVE = (0, 16, 32)


def from_launch(argument: TensorMapArgument, names: Mapping[str, int]) -> TensorMapImage:
    """The image of a launch plan's tensor map where its names have the values ``names``."""
    return TensorMapImage(
        dtype=argument.dtype,
        dims=tuple(evaluate(d, names) for d in argument.dims),
        strides=tuple(evaluate(s, names) for s in argument.strides),
        box=argument.box,
        element_strides=argument.element_strides,
        swizzle=argument.swizzle,
        interleave=_INTERLEAVE[argument.interleave],
        oob_nan=argument.oob_nan,
    )


def problems(image: TensorMapImage, base_address: int) -> list[str]:
    """Every documented limit of ``cuTensorMapEncodeTiled`` that the map breaks; none if it can be encoded."""
    rank, size = image.rank, image.element_bytes
    if not 1 <= rank <= 5:
        return [f"rank {rank} is not 1 to 5"]
    lengths = (len(image.strides) + 1, len(image.box), len(image.element_strides))
    if image.corners is not None:
        corners = im2col_problems(image)
        if corners:
            return corners
    elif any(n != rank for n in lengths):
        return [f"strides (less the innermost), box and element strides must have {rank} entries each"]
    out = []
    align = 32 if image.interleave == 32 else 16
    if base_address % align:
        out.append(f"the global address {base_address:#x} is not a multiple of {align} bytes")
    for i, extent in enumerate(image.dims):
        if not 1 <= extent <= 1 << 32:
            out.append(f"dimension {i} has {extent} elements, not 1 to 2**32")
    for i, stride in enumerate(image.strides, 1):
        if stride % align or not 0 <= stride < 1 << 40:
            out.append(f"the stride of dimension {i}, {stride} bytes, is not a multiple of {align} below 2**40")
    for i, extent in enumerate(image.box):
        most = 1024 if image.corners is not None and i == 1 else 256
        if not 1 <= extent <= most:
            out.append(f"the box has {extent} elements along dimension {i}, not 1 to {most}")
    for i, step in enumerate(image.element_strides):
        if not 1 <= step <= 8:
            out.append(f"the element stride of dimension {i} is {step}, not 1 to 8")
    if image.swizzle not in (0, 32, 64, 128):
        out.append(f"swizzle {image.swizzle} is none of 0, 32, 64, 128 bytes")
    if not image.unit:
        out.append("the atomicity of 32 bytes with halves of 16 exchanged is not modelled")
    elif image.unit != 16 and image.swizzle != 128:
        out.append(f"units of {image.unit} bytes are for the 128-byte swizzle, this is {image.swizzle}")
    inner = image.box[0] * size
    if image.interleave == 0:
        if inner % 16:
            out.append(f"the box's innermost run of {inner} bytes is not a multiple of 16")
        if image.swizzle and inner > image.swizzle:
            out.append(f"the box's innermost run of {inner} bytes is longer than the {image.swizzle}-byte swizzle")
    else:
        if rank < 3:
            out.append(f"interleaving needs rank 3 or more, this has {rank}")
        if image.interleave == 32 and image.swizzle != 32:
            out.append("interleaving by 32 bytes needs the 32-byte swizzle")
        out.append("interleaved layouts are not modelled")
    if image.oob_nan and not dtype(image.dtype).is_float:
        out.append(f"NaN fill is for floating-point types, this is {image.dtype}")
    return out


# The corners of a pixel box of a tensor of each rank (cuTensorMapEncodeIm2col): one number for each dimension but
# channels and batch.
_CORNERS = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}


def im2col_problems(image: TensorMapImage) -> list[str]:
    """Which limits of ``cuTensorMapEncodeIm2col`` the corners break."""
    assert image.corners is not None
    if image.rank not in _CORNERS:
        return [f"im2col needs rank 3 to 5, this has {image.rank}"]
    if len(image.box) != 2 or len(image.strides) + 1 != image.rank or len(image.element_strides) != image.rank:
        return ["an im2col map needs channels and pixels, and a stride for each dimension"]
    limit = _CORNERS[image.rank]
    for name, corner in zip(("lower", "upper"), image.corners, strict=True):
        if len(corner) != image.rank - 2 or not all(-limit <= x < limit for x in corner):
            return [f"the {name} corner {corner} is not {image.rank - 2} numbers from {-limit} to {limit - 1}"]
    return []


def destination_problems(
    image: TensorMapImage, shared_address: int, rank: int, *, im2col: bool = False
) -> list[str]:
    """Reasons why a tensor copy of ``rank`` dimensions may not use this map and shared-memory address."""
    out = []
    modes = ("tiled", "im2col")
    if im2col != (image.corners is not None):
        out.append(f"a copy in {modes[im2col]} mode uses a tensor map of the {modes[not im2col]} mode")
    if rank != image.rank:
        out.append(f"the instruction has {rank} dimensions, the tensor map {image.rank}")
    if shared_address % DESTINATION_ALIGNMENT:
        out.append(f"shared-memory address {shared_address:#x} is not a multiple of {DESTINATION_ALIGNMENT} bytes")
    return out


# Bytes that divide the place where a box starts in a row of the tensor.  Observed on an H200, as an illegal
# instruction; Triton's TMA tutorial states it too.
CORNER_ALIGNMENT = 16


def corner_problems(image: TensorMapImage, coords: Sequence[int]) -> list[str]:
    """Reasons why no box can start at ``coords``; none if one can."""
    first = coords[0] * image.element_bytes
    if first % CORNER_ALIGNMENT == 0:
        return []
    rule = f"not a multiple of {CORNER_ALIGNMENT}: the instruction is illegal"
    return [f"the box starts {first} bytes into a row of the tensor, {rule}"]


# A tensor store drops bytes outside the tensor in whole units of 16 bytes along the innermost dimension: of a row
# that ends inside a unit, the rest of the unit is written.  Observed on an H200; not in the manuals.
STORE_UNIT = 16


def store_problems(image: TensorMapImage, coords: Sequence[int]) -> list[str]:
    """Reasons why storing the box at ``coords`` would write past the end of a row of the tensor."""
    row = image.dims[0] * image.element_bytes
    first = coords[0] * image.element_bytes
    if row % STORE_UNIT and first < row < first + image.counts[0] * image.element_bytes:
        over = -row % STORE_UNIT
        return [f"rows of {row} bytes end inside a {STORE_UNIT}-byte unit: a store writes {over} bytes past each"]
    return []


@cache
def _steps(image: TensorMapImage) -> tuple[Ints, Ints]:
    """[rank, n] elements from the box's corner, and [n] unswizzled bytes from the destination."""
    index = np.indices(image.counts[::-1], dtype=np.int64)[::-1].reshape(image.rank, -1)
    line = np.zeros(index.shape[1], dtype=np.int64)
    for i in reversed(range(1, image.rank)):
        line = line * image.counts[i] + index[i]
    shared = line * image.line_bytes + index[0] * image.element_bytes
    steps = index * np.array((1, *image.element_strides[1:]), dtype=np.int64)[:, None]
    for a in (steps, shared):
        a.setflags(write=False)
    return steps, shared


def box_transfer(image: TensorMapImage, coords: Sequence[int], shared_address: int) -> tuple[Ints, Ints]:
    """The elements that one box transfer moves, in the order of the box, innermost first.

    ``coords`` name the box's corner in elements, innermost first, and may be negative.  Returns two [n]:
    byte offsets from the tensor's base address, -1 where the element lies outside the tensor, and
    shared-memory byte addresses after swizzling.
    """
    steps, shared = _steps(image)
    at = steps + np.array(coords, dtype=np.int64)[:, None]
    inside = ((at >= 0) & (at < np.array(image.dims, dtype=np.int64)[:, None])).all(axis=0)
    pitch = np.array((image.element_bytes, *image.strides), dtype=np.int64)
    offsets = np.where(inside, pitch @ at, -1)
    return offsets, swizzle(shared_address + shared, image.swizzle, unit=image.unit)


def column_transfer(
    image: TensorMapImage, coords: Sequence[int], offsets: Sequence[int], shared_address: int
) -> tuple[Ints, Ints]:
    """``box_transfer`` in im2col mode (PTX ISA, "Im2col mode"): a run of pixels, channels innermost.

    The pixel at ``coords`` (channel, then pixel and batch) is the first.  The next ones follow along the innermost
    pixel dimension in steps of the element stride.  Beyond the upper corner of the pixel box, the walk goes on at
    the lower corner of the next line, plane or image of the batch.  ``offsets``, one for each pixel dimension,
    are the position in the filter: they shift the bytes that are read, and not the walk.
    """
    assert image.corners is not None
    channels, pixels = image.box
    lower, upper = image.corners
    ends = [n - 1 + u for n, u in zip(image.dims[1:-1], upper, strict=True)]
    at = list(coords[1:])
    walk = []
    for _ in range(pixels):
        walk.append([x + o for x, o in zip(at, (*offsets, 0), strict=True)])
        for i, step in enumerate(image.element_strides[1:-1]):
            at[i] += step
            if at[i] <= ends[i]:
                break
            at[i] = lower[i]
        else:
            at[-1] += 1
    index = np.empty((image.rank, pixels, channels), np.int64)
    index[0] = coords[0] + np.arange(channels)
    index[1:] = np.array(walk, np.int64).T[:, :, None]
    places = index.reshape(image.rank, -1)
    inside = ((places >= 0) & (places < np.array(image.dims, np.int64)[:, None])).all(axis=0)
    pitch = np.array((image.element_bytes, *image.strides), np.int64)
    shared = np.arange(pixels)[:, None] * image.line_bytes + np.arange(channels) * image.element_bytes
    return np.where(inside, pitch @ places, -1), swizzle(
        shared_address + shared.reshape(-1), image.swizzle, unit=image.unit
    )


# -- tensor maps as bytes
# The ISA leaves the 1024 bits opaque; these are the machine's own.  Element types and modes have the numbers that
# `tensormap.replace` gives them (PTX ISA, "tensormap.replace").
BYTES = 128
_MAGIC = b"tensormp"
ELEMENT_TYPES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32", "f64", "bf16", "tf32", "tf32")
SWIZZLES = (0, 32, 64, 128)
# Bytes of the units that a swizzle exchanges, by the number of the atomicity; 0: those of 2, 32 bytes with halves
# of 16 that change places, of which the manuals do not say in which lines.
UNITS = (16, 32, 0, 64)
_HEAD = struct.Struct("<8sBBBBBBxxQ")
_RANK = 5


def encoded(image: TensorMapImage, address: int) -> bytes:
    """``image`` over the tensor at a global address as 128 bytes."""
    name = dtype(image.dtype).name
    code = ELEMENT_TYPES.index(name) if name in ELEMENT_TYPES else {1: 0, 2: 1, 4: 2, 8: 4}[image.element_bytes]
    head = _HEAD.pack(
        _MAGIC, code, image.rank - 1, SWIZZLES.index(image.swizzle), _INTERLEAVE.index(image.interleave),
        int(image.oob_nan), UNITS.index(image.unit), address,
    )  # fmt: skip

    def padded(values: Sequence[int], count: int) -> list[int]:
        return [*values, *[1] * (count - len(values))]

    body = struct.pack(
        "<5Q4Q5H5B", *padded(image.dims, _RANK), *padded(image.strides, _RANK - 1), *padded(image.box, _RANK),
        *padded(image.element_strides, _RANK),
    )  # fmt: skip
    corners = image.corners or ((), ())
    pixel_box = struct.pack("<B6h", image.corners is not None, *(x for c in corners for x in (*c, 0, 0, 0)[:3]))
    return (head + body + pixel_box).ljust(BYTES, b"\0")


def decoded(raw: bytes) -> tuple[TensorMapImage, int] | None:
    """The image and the address that 128 bytes hold; None where they are no tensor map."""
    magic, code, rank, swizzle_mode, interleave, fill, unit, address = _HEAD.unpack_from(raw)
    if code >= len(ELEMENT_TYPES) or rank >= _RANK or swizzle_mode > 3 or interleave > 2 or unit >= len(UNITS):
        return None
    numbers = struct.unpack_from("<5Q4Q5H5B", raw, _HEAD.size)
    rank += 1
    # Triton's kernels make maps themselves, out of zeros, by replacing all fields.
    whole = address and all(all(numbers[at : at + rank]) for at in (0, 9, 14))
    if magic != _MAGIC and (magic != bytes(len(_MAGIC)) or not whole):
        return None
    dims, strides, box, steps = numbers[:5], numbers[5:9], numbers[9:14], numbers[14:19]
    im2col, *corners = struct.unpack_from("<B6h", raw, _HEAD.size + struct.calcsize("<5Q4Q5H5B"))
    pixels = tuple(corners[: rank - 2]), tuple(corners[3 : rank + 1])
    image = TensorMapImage(
        ELEMENT_TYPES[code], dims[:rank], strides[: rank - 1], box[: 2 if im2col else rank], steps[:rank],
        SWIZZLES[swizzle_mode], _INTERLEAVE[interleave], bool(fill), pixels if im2col else None, UNITS[unit],
    )  # fmt: skip
    return image, address


# Where `tensormap.replace` puts a field: offset, bytes of one, how many there are.
FIELDS = {
    "elemtype": (8, 1, 1), "rank": (9, 1, 1), "swizzle_mode": (10, 1, 1), "interleave_layout": (11, 1, 1),
    "fill_mode": (12, 1, 1), "swizzle_atomicity": (13, 1, 1), "global_address": (16, 8, 1),
    "global_dim": (24, 8, 5), "global_stride": (64, 8, 4), "box_dim": (96, 2, 5), "element_stride": (106, 1, 5),
}  # fmt: skip
