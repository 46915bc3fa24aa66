"""Layout algebra that the tensor-layouts library lacks: `tile_to_shape` as CuTe has it, CuTe's spelling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensor_layouts import ComposedLayout, Layout, Swizzle, blocked_product, coalesce, size, split_outer_swizzle
from tensor_layouts.layout_utils import make_ordered_layout

from tilemma.checked import Condition, checked, instance, integer, integers, one_of, optional
from tilemma.errors import CompileError

LayoutLike = Any  # tensor_layouts.Layout or tensor_layouts.ComposedLayout; the library is untyped

# Elements of a layout along one dimension, and of a layout that is written out.
LARGEST = 1 << 28
RANKS = tuple(range(1, 33))


class NotTiled(CompileError, ValueError):
    code = "tile-to-shape"
    found = "`tile_to_shape`: {what}"
    expected = "an atom that divides the shape, and an order that names each mode of the shape once"
    fix = "{remedy}"


def _is_layout(value: object) -> bool:
    if isinstance(value, Layout):
        return True
    return isinstance(value, ComposedLayout) and split_outer_swizzle(value) is not None


LAYOUT = Condition("a layout of the tensor-layouts library with at most one swizzle, outermost", _is_layout)
# A layout whose offsets are computed.
SMALL_LAYOUT = Condition(f"{LAYOUT.wanted}, of up to {LARGEST} elements", _is_layout, lambda v: size(v) <= LARGEST)


def split(layout: LayoutLike) -> tuple[Any | None, Any]:
    """``layout`` as (swizzle or None, affine layout).

    Raises TypeError for any other composition: no caller needs one.
    """
    if isinstance(layout, Layout):
        return None, layout
    found = split_outer_swizzle(layout)
    if found is None:
        raise TypeError(f"not a layout with at most one outer swizzle: {layout}")
    swizzle, inner = found
    return swizzle, inner


def join(swizzle: Any | None, layout: Any) -> LayoutLike:
    """``swizzle o layout``, not simplified, so that it is printed as it was requested."""
    return layout if swizzle is None or swizzle.bits == 0 else ComposedLayout(swizzle, layout)


@checked(layout=instance("an affine layout of the tensor-layouts library", Layout))
def flat_modes(layout: Any) -> Iterator[tuple[int, int]]:
    """The (shape, stride) pairs of an affine layout, leftmost first: the leftmost counts fastest."""

    def walk(shape: Any, stride: Any) -> Iterator[tuple[int, int]]:
        if isinstance(shape, tuple):
            for s, d in zip(shape, stride, strict=True):
                yield from walk(s, d)
        else:
            yield shape, stride

    return walk(layout.shape, layout.stride)


@checked(layout=SMALL_LAYOUT)
def offsets(layout: LayoutLike) -> NDArray[np.int64]:
    """All offsets of ``layout`` as an array with one axis for each top-level mode.

    A nested mode is flattened with its leftmost part fastest, CuTe's order.  A layout of rank 1 gives one axis.
    """
    swizzle, affine = split(layout)
    shape = affine.shape if isinstance(affine.shape, tuple) else (affine.shape,)
    stride = affine.stride if isinstance(affine.stride, tuple) else (affine.stride,)
    total = np.zeros((1,) * len(shape), dtype=np.int64)
    for axis, (s, d) in enumerate(zip(shape, stride, strict=True)):
        along = np.zeros(1, dtype=np.int64)
        for extent, step in flat_modes(Layout(s, d)):
            along = (np.arange(extent, dtype=np.int64)[:, None] * step + along[None, :]).reshape(-1)
        total = total + along.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return total if swizzle is None else swizzled(swizzle, total)


def swizzled(swizzle: Any, x: NDArray[np.int64]) -> NDArray[np.int64]:
    """`Swizzle<B,M,S>` on an array: bits [M+S, M+S+B) are XORed onto bits [M, M+B)."""
    shift: int = swizzle.shift
    mask: int = ((1 << swizzle.bits) - 1) << (swizzle.base + shift)
    return x ^ ((x & mask) >> shift)


# Of `Sw<B,M,S>` on element offsets: M for the bits of an element, B for the bytes of the swizzle.
_SWIZZLE_BASE = {1: 7, 4: 5, 8: 4, 16: 3, 32: 2, 64: 1}
_SWIZZLE_BITS = {0: 0, 32: 1, 64: 2, 128: 3}
ELEMENT_BITS = tuple(_SWIZZLE_BASE)


@checked(bits=one_of(*_SWIZZLE_BASE), swizzle_bytes=one_of(*_SWIZZLE_BITS))
def element_swizzle(bits: int, swizzle_bytes: int) -> Any | None:
    """The swizzle of ``swizzle_bytes`` (0, 32, 64, 128) as it acts on offsets of ``bits``-bit elements.

    On byte addresses it is `Sw<B,4,3>` with B = 1, 2, 3 (PTX ISA, "Strides and swizzling modes"): 16-byte
    units within a row are permuted by the number of the 128-byte line.  None for no swizzle.
    """
    if swizzle_bytes == 0:
        return None
    return Swizzle(_SWIZZLE_BITS[swizzle_bytes], _SWIZZLE_BASE[bits], 3)


@checked(atom=LAYOUT, shape=integers(1, LARGEST, *RANKS), order=optional(integers(0, 31, *RANKS)))
def tile_to_shape(atom: LayoutLike, shape: Sequence[int], order: Sequence[int] | None = None) -> LayoutLike:
    """``atom`` repeated until it covers ``shape``, as `cute::tile_to_shape`: coalesced mode by mode.

    ``shape`` may have more modes than the atom; the extra ones (pipeline stages) repeat the whole.
    ``order`` lists the modes from the fastest tile counter to the slowest; by default in order.

    Raises NotTiled (a ValueError) where the atom does not divide ``shape`` or ``order`` is no permutation.
    """
    swizzle, affine = split(atom)
    rank = len(shape)
    block = affine.shape if isinstance(affine.shape, tuple) else (affine.shape,)
    strides = affine.stride if isinstance(affine.stride, tuple) else (affine.stride,)
    block = block + (1,) * (rank - len(block))
    strides = strides + (0,) * (rank - len(strides))
    extents = [int(np.prod([s for s, _ in flat_modes(Layout(b, d))])) for b, d in zip(block, strides, strict=True)]
    if len(extents) != rank or any(t % e for t, e in zip(shape, extents, strict=True)):
        raise NotTiled(
            what=f"{tuple(extents)} does not divide {tuple(shape)}",
            remedy="make each extent of the shape a multiple of the atom's",
        )
    if order is not None and sorted(order) != list(range(rank)):
        raise NotTiled(
            what=f"the order {tuple(order)} of {rank} modes", remedy=f"give each of 0 to {rank - 1} once"
        )
    counts = tuple(t // e for t, e in zip(shape, extents, strict=True))
    tiling = make_ordered_layout(counts, None if order is None else tuple(order))
    tiled = coalesce(blocked_product(Layout(block, strides), tiling), tuple(shape))
    return join(swizzle, tiled)


def _is_view(value: object) -> bool:
    """Whether ``value`` is a layout, or one thread's part of it: a layout that starts at an offset."""
    if _is_layout(value):
        return True
    return isinstance(value, ComposedLayout) and isinstance(value.inner, Layout) and bool(value.offset)


VIEW = Condition(f"{LAYOUT.wanted}, or a thread's part of one", _is_view)


@checked(layout=VIEW, bits=optional(integer(1, 128)))
def cute_str(layout: LayoutLike, bits: int | None = None) -> str:
    """``layout`` as CuTe prints a static layout: `((_64,_2),_8):((_1,_512),_64)`.

    With ``bits`` it is a shared-memory layout of elements of that width: a swizzle then shows as it acts on
    byte addresses, `Sw<3,4,3> o smem_ptr[16b](unset) o ...`.  A thread's part that starts at an offset is printed
    with it, `_32 o ((_2,_2),_1,_1):((_16,_8),_0,_0)`.
    """
    if isinstance(layout, ComposedLayout) and layout.offset:
        text = f"_{layout.offset} o {_static(layout.inner.shape)}:{_static(layout.inner.stride)}"
        swizzle = layout.outer if isinstance(layout.outer, Swizzle) else None
        if swizzle is None:
            return text
        return f"Sw<{swizzle.bits},{swizzle.base},{swizzle.shift}> o {text}"
    swizzle, affine = split(layout)
    text = f"{_static(affine.shape)}:{_static(affine.stride)}"
    if swizzle is None:
        return text
    if bits is None:
        return f"Sw<{swizzle.bits},{swizzle.base},{swizzle.shift}> o _0 o {text}"
    return f"Sw<{swizzle.bits},4,{swizzle.shift}> o smem_ptr[{bits}b](unset) o {text}"


def _static(x: Any) -> str:
    return "(" + ",".join(_static(e) for e in x) + ")" if isinstance(x, tuple) else f"_{x}"
