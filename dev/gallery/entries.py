"""One record for each kernel of the gallery."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dev.gallery import problems
from dev.gallery.problems import Problem
from tilemma.kernels import Kernel
from tilemma.modules import load, load_python

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "gallery"


@dataclass(frozen=True)
class Entry:
    """``name`` is that of the files, the kernel and its problem.  ``title`` and ``lesson``: for its page.

    ``small`` and ``odd``: sizes of problems for every target; ``large`` for a GPU alone.  ``example``: sizes to
    compile for, of the dimensions that buffers have.  ``oldest``: the oldest target that runs it.
    """

    name: str
    title: str
    lesson: str
    small: Mapping[str, Any]
    odd: Mapping[str, Any]
    large: Mapping[str, Any]
    example: Mapping[str, int] = field(default_factory=dict)
    oldest: str = "sm_80"

    def problem(self, size: Literal["small", "odd", "large"]) -> Problem:
        make: Callable[..., Problem] = getattr(problems, self.name)
        return make(**getattr(self, size))


def kernel(name: str, language: Literal["py", "co"] = "py", **defines: Any) -> Kernel:
    """The kernel of an entry; ``defines``: compile-time values of the `.co` file."""
    path = FOLDER / f"{name}.{language}"
    return (load(path, defines) if language == "co" else load_python(path)).kernels[name]


_ROW_OF_THREADS = (
    '`dma.copy(..., to="shared")` makes a buffer as long as a row: the kernel is compiled for each length. The '
    "compiler puts the barriers between the steps of the tree."
)
ENTRIES = {
    e.name: e
    for e in (
        Entry(
            "softmax",
            "Softmax of rows",
            _ROW_OF_THREADS,
            {"m": 3, "n": 64},
            {"m": 5, "n": 333},
            {"m": 513, "n": 4099},
            {"N": 4096},
        ),
        Entry(
            "layer_norm",
            "Layer normalisation",
            _ROW_OF_THREADS + " The variance needs a second pass over the row, which is in shared memory by then.",
            {"m": 3, "n": 64},
            {"m": 5, "n": 333},
            {"m": 513, "n": 4099},
            {"N": 4096},
        ),
        Entry(
            "reduction",
            "Sum of a vector",
            "Two launches in one kernel: they run in order on one stream. No atomics: the result has "
            "the same bits in each run.",
            {"n": 600, "blocks": 2},
            {"n": 3001, "blocks": 3},
            {"n": 10_000_019, "blocks": 528},
        ),
        Entry(
            "scan",
            "Running sums",
            "Three launches, and an array between them. A loop over powers of two is unrolled, so "
            "that its shifts are constants.",
            {"n": 2 * 256 * 31},
            {"n": 20_001},
            {"n": 3_000_017},
        ),
        Entry(
            "transpose",
            "Transpose",
            "`transp=(1, 0)` turns a tile while it is copied; the edges need no code.",
            {"m": 32, "n": 64},
            {"m": 37, "n": 70},
            {"m": 4099, "n": 1027},
        ),
        Entry(
            "gemv",
            "Matrix times vector",
            "Levels inside levels: a block, a warp for each row, the lanes of the warp.",
            {"m": 8, "k": 64},
            {"m": 19, "k": 333},
            {"m": 4099, "k": 4099},
        ),
        Entry(
            "batched",
            "Batched products",
            "The grid has a third dimension. The loop is written without buffers, barriers or roles; "
            "for Hopper the compiler makes it a TMA ring with a producer.",
            {"b": 2, "m": 64, "n": 64, "k": 64},
            {"b": 2, "m": 70, "n": 33, "k": 40},
            {"b": 5, "m": 515, "n": 1021, "k": 264},
        ),
        Entry(
            "experts",
            "Grouped products",
            "Bounds read from an array: `view(..).from_(row, 0)` starts a tile at any row, and "
            "`rows=` stores a part of one.",
            {"rows": (64, 0), "n": 64, "k": 64},
            {"rows": (70, 0, 1, 4), "n": 40, "k": 24},
            {"rows": (300, 0, 1, 724), "n": 520, "k": 264},
        ),
        Entry(
            "gated_mlp",
            "Gated MLP",
            "Two accumulators of one loop, and arithmetic on whole register tiles: `silu(gated) * raised`.",
            {"m": 64, "n": 64, "k": 64},
            {"m": 70, "n": 40, "k": 72},
            {"m": 515, "n": 1021, "k": 264},
        ),
        Entry(
            "convolution",
            "Convolution (im2col)",
            "A view of a 4-dimensional array is the tile of a product: the matrix of windows never exists.",
            {"images": 1, "height": 4, "width": 66, "c": 16, "f": 32, "r": 3, "s": 3},
            {"images": 2, "height": 5, "width": 70, "c": 8, "f": 40, "r": 3, "s": 2},
            {"images": 4, "height": 58, "width": 58, "c": 72, "f": 136, "r": 3, "s": 3},
        ),
        Entry(
            "attention",
            "Flash attention",
            "Register tiles as values: a row's largest element and sum are vectors, the weights go "
            "into the second product from registers.",
            {"b": 1, "heads": 1, "groups": 1, "queries": 64, "keys": 64, "causal": False},
            {"b": 1, "heads": 2, "groups": 1, "queries": 33, "keys": 97, "causal": True},
            {"b": 2, "heads": 4, "groups": 2, "queries": 515, "keys": 1021, "causal": True},
        ),
        Entry(
            "dequantized",
            "8-bit floats with scales",
            "`mma.row.row.scale` scales each product before it is added. The tensor cores sum "
            "products of e4m3 in few bits; "
            "the compiler adds these sums to f32 in time.",
            {"m": 64, "n": 64, "k": 128},
            {"m": 70, "n": 72, "k": 200},
            {"m": 515, "n": 1021, "k": 1040},
            oldest="sm_89",
        ),
        Entry(
            "sparse",
            "2:4 sparsity",
            "Half of the operand and its metadata: `mma.row.row.sp`.",
            {"m": 64, "n": 64, "k": 64},
            {"m": 70, "n": 40, "k": 96},
            {"m": 515, "n": 1021, "k": 1040},
        ),
        Entry(
            "w4a16",
            "4-bit weights",
            "An operand that `mma.load` converts in registers; the product of each 128 numbers is summed apart "
            "and scaled.",
            {"m": 16, "n": 64, "k": 128},
            {"m": 33, "n": 70, "k": 202},
            {"m": 67, "n": 1021, "k": 1040},
        ),
        Entry(
            "histogram",
            "Histogram",
            "Atomics on shared memory, with a subscript that is read from data.",
            {"n": 4096},
            {"n": 9001},
            {"n": 10_000_019},
        ),
        Entry(
            "stencil",
            "Stencil",
            "`view(h, w).from_(r, c)` may start before the array: what is outside reads as zero.",
            {"m": 8, "n": 64},
            {"m": 21, "n": 150},
            {"m": 1027, "n": 4099},
        ),
        Entry(
            "triangular_solve",
            "Triangular solve",
            "A product of register tiles and a sequential loop of threads in one kernel. The block "
            "reads back what it has written; the compiler orders both.",
            {"n": 64, "r": 32},
            {"n": 75, "r": 40},
            {"n": 515, "r": 70},
        ),
    )
}
