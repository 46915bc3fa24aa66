"""The operands of a convolution as its kernel reads them.

Images of few channels are copied, with their padding, to rows of whole units of 16 bytes.  The columns of a filter
then contract one run of elements: the kernel gets an image whose "channels" are those of a window as wide as the
filter, which neighbouring pixels share for the most part, and filters of one column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.convolution_kernels import joined_filters, padded_images
from tilemma.ops.convolution_plan import Reach
from tilemma.ops.plan import hardware
from tilemma.ops.steps import Step, part
from tilemma.runtime.arrays import ArrayRef, describe, empty_like_first

Pair = tuple[int, int]
# Fewer channels than these do not fill a step's instructions.
_FEW = 16
# Elements of 16 bits in 16 bytes, by which TMA steps, and in a row of the widest swizzle.
_UNIT, _LINE = 8, 64
_READS = 32


@dataclass(frozen=True, slots=True)
class Operands:
    """Images and filters, with their names among a call's arrays; the kernel calls that compute them before, and
    the shape and type of each array of the workspace."""

    x: ArrayRef
    w: ArrayRef
    stride: Pair
    padding: Pair
    dilation: Pair
    sources: tuple[str, str] = ("a", "b")
    before: tuple[Step, ...] = ()
    work: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)

    @property
    def reach(self) -> tuple[Reach, Reach]:
        """The rows, and the elements of a row, that pixels of the result read."""
        _, height, width, channels = self.w.shape
        pitch = abs(self.x.strides[2]) if self.x.strides[3] == 1 else channels
        rows = Reach(self.dilation[0] * (height - 1) + 1, self.stride[0])
        return rows, Reach(self.dilation[1] * (width - 1) * pitch + channels, self.stride[1] * pitch)


def operands(x: ArrayRef, w: ArrayRef, stride: Pair, padding: Pair, dilation: Pair, result: ArrayRef) -> Operands:
    """The operands of a convolution to ``result``."""
    given = Operands(x, w, stride, padding, dilation)
    on_device = result.device[0] == "cuda" and hardware(result.device).pipelines
    return joined(given, result.shape) if on_device and joins(given) else given


def joins(given: Operands) -> bool:
    """Whether a row of the filter is better contracted as one run of elements."""
    return given.x.shape[3] < _FEW and given.w.shape[2] > 1 and given.dilation[1] == 1


def joined(given: Operands, result: tuple[int, ...]) -> Operands:
    """``given`` with rows of filters as runs of elements, and without padding."""
    x, w, (down, across) = given.x, given.w, given.stride
    images, high, wide, _ = result
    height, width = w.shape[1:3]
    channels = next(n for n in (1, 2, 4, 8, 16) if n >= x.shape[3] and across * n % _UNIT == 0)
    # The rows between two of the result become channels, where a window still fits into a line.
    fold = down if given.dilation[0] == 1 and width * down * channels <= _LINE else 1
    steps = (down // fold, given.dilation[0])
    pitch, filters = fold * channels, cdiv(height, fold)
    run = cdiv(width * pitch, 16) * 16
    rows = (high - 1) * steps[0] + steps[1] * (filters - 1) + 1
    columns = cdiv((wide - 1) * across + cdiv(run, pitch), _UNIT) * _UNIT
    work = {
        "x": ((images, rows, columns, pitch), x.dtype.name),
        "w": ((w.shape[0], filters, 1, run), w.dtype.name),
    }
    made = {n: describe(empty_like_first(x, *spec))._replace(writable=True) for n, spec in work.items()}
    values = {"T": x.dtype.name, "CHANNELS": channels, "FOLD": fold}
    padding = {"PITCH": pitch, "PADDING_H": given.padding[0], "PADDING_W": given.padding[1]}
    # Values that a thread reads before it writes the first.
    padding["EACH"] = max(1, _READS // pitch)
    before = (
        Step(padded_images, (part(x, 0), part(made["x"], 0)), {**values, **padding}, (("a", 0), ("work.x", 0))),
        Step(joined_filters, (part(w, 0), part(made["w"], 0)), values, (("b", 0), ("work.w", 0))),
    )
    image, row = made["x"].strides[0], made["x"].strides[1]
    windows = made["x"]._replace(shape=(images, rows, wide, run), strides=(image, row, across * pitch, 1))
    return Operands(windows, made["w"], (steps[0], 1), (0, 0), (steps[1], 1), ("work.x", "work.w"), before, work)
