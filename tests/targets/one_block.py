"""Tile IR of one block, written down and run on the CPU reference."""

from __future__ import annotations

import numpy as np

from tilemma import dtypes
from tilemma.ir import tile as t
from tilemma.ir.builder import Builder
from tilemma.ir.types import BLOCK, THREAD, Level
from tilemma.targets.cpu import execute

f16, f32, s32 = dtypes.f16, dtypes.f32, dtypes.s32


def block(b: Builder):
    return b.parallel(["blk"], [1], BLOCK)


def kernel_of(body, level: Level | None = None, lanes: int = 0, **params) -> t.Kernel:
    """A kernel of one block (one instance of ``level``, ``lanes`` lanes); ``body(b, tiles.., index?)``."""
    b = Builder("f")
    tiles = [b.array_param(n, typed(a), list(a.shape)) for n, a in params.items()]
    with block(b):
        if lanes:
            with b.parallel(["t"], [lanes], THREAD) as (lane,):
                body(b, *tiles, lane)
        elif level is not None:
            with b.parallel(["p"], [1], level):
                body(b, *tiles)
        else:
            body(b, *tiles)
    return b.finish()


def typed(a: np.ndarray) -> dtypes.DType:
    found = dtypes.from_numpy(a.dtype)
    assert found is not None
    return found


def run(body, level: Level | None = None, lanes: int = 0, out=None, **params) -> dict[str, np.ndarray]:
    execute(kernel_of(body, level, lanes, **params), params, {}, dims={}, out=out)
    return params


def ramp(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(dtype)
