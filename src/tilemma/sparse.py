"""Structured sparsity: pruning a matrix, and storing half of it with metadata, as `mma...sp` takes it.

Of 8- and 16-bit elements two of each four along a row are kept (2:4), of f32 and tf32 one of each two, of 4-bit
elements two pairs of each four. Arrays may be NumPy's or on a GPU (torch, CuPy); results are of the same
library on the same device.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilemma.arithmetic import sparsity
from tilemma.dtypes import BY_NAME, DType, dtype
from tilemma.errors import WrongArgument, described
from tilemma.records import record
from tilemma.runtime.arrays import describe
from tilemma.runtime.host import host_copy, like

_WORDS = ("u8", "u16", "u32")


@record(eq=False)
class Sparse:
    """``values`` [M, K/2] and ``metadata`` of a sparse matrix of ``shape`` [M, K]: four bits a chunk, lowest
    first."""

    values: Any
    metadata: Any
    shape: tuple[int, int]

    def decompress(self) -> Any:
        """The whole matrix, of the library of its values.

        Raises WrongArgument where values, metadata and shape do not belong together.
        """
        values, words, t = host_copy(self.values), host_copy(self.metadata), _type(self.values)
        bits = 8 * words.dtype.itemsize
        width = sparsity.pattern(t).width * bits // 4
        sizes = isinstance(self.shape, tuple) and all(isinstance(n, int) for n in self.shape)
        two = values.ndim == words.ndim == 2 and words.dtype.kind in "iu" and len(values) == len(words)
        if not (
            sizes
            and two
            and self.shape == (len(values), 2 * values.shape[1]) == (len(words), width * words.shape[1])
        ):
            raise WrongArgument(
                function="decompress",
                name="metadata",
                got=f"shape {list(words.shape)} of {words.dtype}",
                wanted=f"the metadata of values of shape {list(values.shape)}, as `compress` makes it",
            )
        fields = sparsity.fields_of(words, 8 * words.dtype.itemsize)
        columns = sparsity.columns_of(fields, _type(self.values))
        whole = sparsity.expand(values.astype(np.float64), columns).astype(values.dtype)
        return like(self.values, whole)


def prune(x: Any) -> Any:
    """``x`` [..., K] with the smaller half of each chunk set to 0.  Raises WrongArgument where chunks do not
    divide K."""
    t, values = _type(x), host_copy(x)
    width = _width("prune", t, values)
    rows = values.reshape(math.prod(values.shape[:-1]), values.shape[-1])
    assert rows.shape[1] % width == 0
    kept = np.where(sparsity.kept(rows, t), rows, np.zeros((), rows.dtype))
    return like(x, kept.reshape(values.shape))


def compress(x: Any, metadata: str = "u32") -> Sparse:
    """The stored half of ``x`` [M, K], and its metadata in words of u8, u16 or u32.

    Raises WrongArgument where ``x`` does not have the pattern (`prune` gives it), or K is no multiple of the
    elements that one word describes.
    """
    if not isinstance(metadata, str) or metadata not in _WORDS:
        raise WrongArgument(
            function="compress", name="metadata", got=described(metadata), wanted="'u8', 'u16' or 'u32'"
        )
    t, values = _type(x), host_copy(x)
    if values.ndim != 2:
        raise WrongArgument(function="compress", name="x", got=f"shape {list(values.shape)}", wanted="[M, K]")
    _width("compress", t, values, sparsity.unit(t, dtype(metadata)))
    mask = sparsity.kept(values, t)
    if (values[~mask] != 0).any():
        row, column = (int(i) for i in np.argwhere((values != 0) & ~mask)[0])
        pattern = sparsity.pattern(t).name
        raise WrongArgument(
            function="compress",
            name="x",
            got=f"more than half of a chunk in row {row}, at column {column}",
            wanted=f"a matrix with the pattern {pattern}, such as `tilemma.sparse.prune` makes",
        )
    fields = sparsity.fields_from(mask, t)
    stored = np.take_along_axis(values, sparsity.columns_of(fields, t), axis=1)
    words = sparsity.words_of(fields, dtype(metadata))
    return Sparse(like(x, stored), like(x, words), (values.shape[0], values.shape[1]))


def prepack(metadata: Any, order: str = "prepack") -> Any:
    """Metadata in words of u32 [M, K/32], as `compress` makes it, in an order of Croqtile's prepacked metadata.

    ``order`` is "prepack" or "prepack_v2" for elements of 16 bits, "prepack_v2_fp8" for floats of 8 bits.  Raises
    WrongArgument where it is another one, or the words do not fill it: M is a multiple of 16, and a row of 8-bit
    floats has an even number of words.
    """
    words, found = _ordered("prepack", metadata, order)
    return like(metadata, found.packed(words))


def unpack(metadata: Any, order: str = "prepack") -> Any:
    """The inverse of `prepack`: metadata that kernels take.  Raises WrongArgument as `prepack`."""
    words, found = _ordered("unpack", metadata, order)
    return like(metadata, found.unpacked(words))


def _ordered(function: str, metadata: Any, order: str) -> tuple[NDArray[Any], sparsity.Order]:
    if not isinstance(order, str) or order not in sparsity.ORDERS:
        wanted = ", ".join(map(repr, sparsity.ORDERS))
        raise WrongArgument(function=function, name="order", got=described(order), wanted=wanted)
    words, found = host_copy(metadata), sparsity.ORDERS[order]
    if words.dtype != np.uint32 or words.ndim != 2 or words.shape[0] % 16 or words.shape[1] % found.pairs:
        even = ", an even number in a row" if found.pairs == 2 else ""
        raise WrongArgument(
            function=function,
            name="metadata",
            got=f"shape {list(words.shape)} of {words.dtype}",
            wanted=f"words of u32 for a multiple of 16 rows{even}",
        )
    return words, found


def _width(function: str, t: DType, values: NDArray[Any], unit: int = 0) -> int:
    width = unit or sparsity.pattern(t).width
    if not values.ndim or values.shape[-1] % width:
        raise WrongArgument(
            function=function, name="x", got=f"shape {list(values.shape)}", wanted=f"a K that {width} divides"
        )
    return width


def _type(x: Any) -> DType:
    t = describe(x).dtype
    return BY_NAME["tf32"] if t.name == "f32" else t
