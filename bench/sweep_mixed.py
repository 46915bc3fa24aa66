"""Tiles of `ops.mixed_matmul` with 4-bit weights, timed beside cuBLAS's product in bf16: which are the fastest.

    python bench/sweep_mixed.py --rows 1 16 32 64 --most 8

For each number of rows: the choice of `ops.mixed_plan`, then the tiles that its model holds for the fastest.  The
weights are 8192 x 8192 in groups of 128.  Checks and times are those of `bench/ops_types.py`: medians of graph
replays over copies of the weights.
"""

from __future__ import annotations

import argparse
from typing import Any

from ops_forms import mixed
from ops_types import measure

from tilemma.ops import forms, mixed_plan
from tilemma.ops.mixed_plan import MixedShape, MixedTile
from tilemma.ops.plan import hardware

SIZE, GROUP, COPIES, ROUNDS = 8192, 128, 3, 11
DEFAULT = mixed_plan.tile


def shape(rows: int) -> MixedShape:
    return MixedShape(1, rows, SIZE, SIZE, 4, GROUP, plain=True)


def choices(rows: int) -> list[tuple[float, MixedTile]]:
    """Seconds by the model and tile of each way to compute a product, the fastest first."""
    on, s = hardware(("cuda", 0)), shape(rows)
    padded = forms.padded(rows, 8, 64)
    tiles = (*mixed_plan.candidates(s, on, padded), *mixed_plan.in_turns(s, on, padded))
    return sorted(((mixed_plan.seconds(t, s, on), t) for t in tiles), key=lambda x: x[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 32, 64])
    parser.add_argument("--most", type=int, default=12, help="tiles for each number of rows")
    options = parser.parse_args()
    changed: Any = mixed_plan
    for rows in options.rows:
        contest, found = mixed(rows, SIZE, SIZE, COPIES), choices(rows)
        chosen = DEFAULT(shape(rows), hardware(("cuda", 0)), on_cpu=False, streams=True)
        others = [x for x in found if x[1] != chosen][: options.most]
        for seconds, tile in [(mixed_plan.seconds(chosen, shape(rows), hardware(("cuda", 0))), chosen), *others]:
            changed.tile = lambda *_, t=tile, **__: t
            # Launches of the same arrays are kept with their tile.
            forms._WARM.clear()
            try:
                print(
                    measure(contest, ROUNDS), f"{tile}, {seconds * 1e6:.1f} us by the model", sep="  ", flush=True
                )
            except Exception as e:  # one tile's failure is reported, and the others are timed
                print(f"{tile}: {type(e).__name__}: {str(e)[:300]}", flush=True)


if __name__ == "__main__":
    main()
