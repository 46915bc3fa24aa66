"""Tiles of `ops.mixed_matmul` with 4-bit weights, timed beside cuBLAS's product in bf16: which are the fastest.

    python bench/sweep_mixed.py --rows 1 16 32 64

For each number of rows: the choice of `ops.mixed`, then numbers of warpgroups, steps of K and parts of K.  The
weights are 8192 x 8192 in groups of 128.  Checks and times are those of `bench/ops_types.py`: medians of graph
replays over copies of the weights.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from ops_forms import mixed
from ops_types import measure

from tilemma.ops import forms
from tilemma.ops import mixed as module

SIZE, COPIES, ROUNDS = 8192, 3, 11
DEFAULT = module._tile, module._parts


def choices(rows: int) -> Iterator[tuple[str, Callable[..., dict[str, int]], Callable[..., int]]]:
    """Name, tile and parts of K of each way to compute a product."""
    yield "the choice of ops.mixed", *DEFAULT
    for groups, depth, parts in itertools.product((1, 2, 4), (128, 256), (1, 2, 4, 8)):
        tile = {"TILE_M": forms.padded(rows, 8, 64), "TILE_K": depth, "GROUPS": groups}
        blocks = SIZE // (groups * module.ROWS) * parts
        if 64 <= blocks <= 1024:
            name = f"{groups} warpgroups, steps of {depth}, {parts} parts"
            yield name, lambda *_, t=tile: t, lambda *_, n=parts: n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 32, 64])
    for rows in parser.parse_args().rows:
        contest = mixed(rows, SIZE, SIZE, COPIES)
        for name, tile, parts in choices(rows):
            changed: Any = module
            changed._tile, changed._parts = tile, parts
            # Launches of the same arrays are kept with their tile.
            forms._WARM.clear()
            try:
                print(measure(contest, ROUNDS), name, sep="  ", flush=True)
            except Exception as e:  # one tile's failure is reported, and the others are timed
                print(f"{name}: {type(e).__name__}: {str(e)[:300]}", flush=True)


if __name__ == "__main__":
    main()
