"""Errors of a user that type checkers find.  `make types` reads this file: an `ignore` without an error is one."""

import tilemma as tm
from tilemma import dma, foreach, mma, parallel


@tm.kernel(pipeline=tm.Pipeline(stages="two"))  # type: ignore[arg-type]
def product(lhs: tm.Global[tm.Tile, "f16", 16, "K"], output: tm.Global[tm.Tile, "f32", 16, 16]) -> None:
    for m in parallel(1, level="block"):
        for w in parallel(1, levl="group"):  # type: ignore[call-arg]
            mc = mma.fil(0.0, "f32")  # type: ignore[attr-defined]
            for k in foreach(2):
                s = dma.copy(lhs.subspam(16, 16).at(0, k), to="shared")  # type: ignore[attr-defined]
                mma.row.row(mc, mma.load(s), mma.load(s))
            mma.store(mc, output)
