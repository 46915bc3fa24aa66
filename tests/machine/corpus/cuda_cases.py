"""The kernels of sources/*.cu: launch, arguments and expected arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np

from tilemma import machine

Built = tuple[dict[str, Any], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One kernel of a PTX file; ``build`` gives its arguments in order, and what arrays hold afterwards."""

    file: str
    entry: str
    build: Callable[[], Built]
    grid: Any = 1
    block: Any = 32
    launch: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-4

    @property
    def name(self) -> str:
        return f"{self.file}-{self.entry}"


CASES: list[Case] = []
F32, I32, U32 = np.float32, np.int32, np.uint32


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def case(
    file: str, grid: Any = 1, block: Any = 32, tolerance: float = 1e-4, into: list[Case] = CASES, **launch: Any
) -> Any:
    """Enter a builder into a list as the case of the kernel of its name."""

    def enter(build: Callable[[], Built]) -> Callable[[], Built]:
        into.append(Case(file, build.__name__, build, grid, block, launch, tolerance))
        return build

    return enter


def randoms(*shape: int, seed: int = 1) -> Any:
    return rng(seed).standard_normal(shape).astype(F32)


def small(*shape: int, seed: int = 1, low: int = -4, high: int = 9) -> Any:
    return rng(seed).integers(low, high, shape).astype(I32)


@case("basics", 4, 64)
def axpy() -> Built:
    y, x = randoms(500), randoms(500, seed=2)
    return {"y": y, "x": x, "a": 1.5, "n": 500}, {"y": y + F32(1.5) * x}


@case("basics", 2, 64, tolerance=1e-2)
def half_axpy() -> Built:
    y, x = (randoms(200, seed=i).astype(np.float16) for i in (1, 2))
    return {"y": y, "x": x, "a": 0.5, "n": 100}, {"y": y + np.float16(0.5) * x}


@case("basics", 2, 64)
def vector_copy() -> Built:
    x = randoms(400)
    return {"y": np.zeros_like(x), "x": x, "n": 100}, {"y": x}


@case("basics", (2, 2), (32, 8))
def transpose() -> Built:
    x = randoms(64, 64)
    return {"y": np.zeros_like(x), "x": x, "n": 64}, {"y": x.T}


@case("basics", 2, 256)
def block_sum() -> Built:
    x = randoms(1024)
    sums = x.reshape(2, 2, 256).sum((0, 2))
    return {"out": np.zeros(2, F32), "x": x, "n": 1024}, {"out": sums}


@case("basics", 2, 256)
def shuffle_sum() -> Built:
    x = randoms(512)
    return {"out": np.zeros(2, F32), "x": x}, {"out": x.reshape(2, 256).sum(1)}


@case("basics", 4, 256)
def last_block_sum() -> Built:
    x = randoms(1024)
    args = {"out": np.zeros(1, F32), "parts": np.zeros(4, F32), "count": np.zeros(1, U32), "x": x}
    return args, {"out": x.sum(keepdims=True), "count": np.zeros(1, U32)}


@case("basics", 3, 64)
def atomic_sum() -> Built:
    x = small(150)
    return {"out": np.zeros(1, I32), "x": x, "n": 150}, {"out": x.sum(keepdims=True)}


@case("basics", 2, 64)
def reduce_max() -> Built:
    x = small(128, high=1000)
    return {"out": np.full(1, -999, I32), "x": x}, {"out": x.max(keepdims=True)}


@case("basics", 2, 256)
def histogram() -> Built:
    x = rng().integers(0, 256, 1200).astype(np.uint8)
    return {"bins": np.zeros(256, U32), "x": x, "n": 1200}, {"bins": np.bincount(x, minlength=256)}


@case("basics", 1, 256)
def inclusive_scan() -> Built:
    x = small(256)
    return {"y": np.zeros(256, I32), "x": x}, {"y": np.cumsum(x)}


@case("basics", 1, 64)
def warp_scan() -> Built:
    x = small(64)
    return {"y": np.zeros(64, I32), "x": x}, {"y": np.cumsum(x.reshape(2, 32), 1).reshape(-1)}


@case("basics", 1, 32)
def compact() -> Built:
    x = small(27)
    kept = x[x > 0]
    y = np.zeros(27, I32)
    want = np.concatenate([kept, np.zeros(27 - len(kept), I32)])
    return {"y": y, "count": np.zeros(1, I32), "x": x, "n": 27}, {"y": want, "count": np.array([len(kept)])}


@case("basics", 1, 256)
def bitonic_sort() -> Built:
    x = small(256, high=1000)
    return {"x": x}, {"x": np.sort(x)}


@case("basics", 3, 32)
def softmax_rows() -> Built:
    x = randoms(3, 70)
    e = np.exp(x - x.max(1, keepdims=True))
    return {"y": np.zeros_like(x), "x": x, "n": 70}, {"y": e / e.sum(1, keepdims=True)}


@case("basics", 2, 128, tolerance=1e-3)
def layer_norm() -> Built:
    x = randoms(2, 300)
    y = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    return {"y": np.zeros_like(x), "x": x, "n": 300}, {"y": y}


@case("basics", (2, 2), (16, 16))
def matmul_naive() -> Built:
    a, b = randoms(32, 32), randoms(32, 32, seed=2)
    return {"c": np.zeros_like(a), "a": a, "b": b, "n": 32}, {"c": a @ b}


@case("basics", (2, 2), (16, 16))
def matmul_tiled() -> Built:
    a, b = randoms(32, 32), randoms(32, 32, seed=2)
    return {"c": np.zeros_like(a), "a": a, "b": b, "n": 32}, {"c": a @ b}


@case("basics", 2, 64, shared=4 * 66)
def stencil() -> Built:
    x = randoms(100)
    padded = np.pad(x, 1)
    return {"y": np.zeros_like(x), "x": x, "n": 100}, {"y": padded[:-2] + padded[1:-1] + padded[2:]}


@case("basics", 1, 64)
def group_sum() -> Built:
    x = small(64)
    return {"out": np.zeros(4, I32), "x": x}, {"out": x.reshape(4, 16).sum(1)}


@case("basics", 1, 64)
def group_scan() -> Built:
    return warp_scan()


@case("basics", 1, 32)
def coalesced_count() -> Built:
    x = small(32)
    return {"count": np.zeros(1, I32), "x": x}, {"count": (x > 2).sum(keepdims=True)}


@case("basics", 1, 32)
def labelled() -> Built:
    x = small(32, low=0)
    label = x % 3
    out = [(label == v).sum() * 100 + (label[:i] == v).sum() for i, v in enumerate(label)]
    return {"out": np.zeros(32, I32), "x": x}, {"out": np.array(out)}


@case("basics", 1, 32)
def divide() -> Built:
    a, b = rng().integers(0, 1 << 62, 32).astype(np.uint64), rng(2).integers(1, 1 << 31, 32).astype(U32)
    return {"q": np.zeros(32, np.uint64), "a": a, "b": b}, {"q": a // b + a % b}


@case("basics", 1, 32)
def wide_multiply() -> Built:
    a, b = (rng(i).integers(0, 1 << 63, 32).astype(np.uint64) for i in (1, 2))
    c = [int(x) * int(y) for x, y in zip(a, b, strict=True)]
    want = np.array([[x & (1 << 64) - 1, x >> 64] for x in c], np.uint64)
    return {"c": np.zeros((32, 2), np.uint64), "a": a, "b": b}, {"c": want}


@case("basics", 1, 32, tolerance=1e-12)
def math() -> Built:
    x = rng().uniform(0.1, 5, 32)
    y = np.sin(x) + np.exp(-x) * np.sqrt(x) + np.log1p(x) + x**1.5 + np.arctan2(x, 2.0)
    return {"y": np.zeros(32), "x": x}, {"y": y}


@case("sync", 1, 256)
def pipelined_sum() -> Built:
    x = randoms(4, 256)
    return {"out": np.zeros(256, F32), "x": x, "n": 4}, {"out": x.sum(0)[::-1]}


@case("sync", 1, 128)
def block_pipeline() -> Built:
    x = randoms(5, 128)
    return {"out": np.zeros(128, F32), "x": x, "n": 5}, {"out": x.sum(0)[::-1]}


@case("sync", 1, 64)
def group_copy() -> Built:
    x = randoms(256)
    want = np.zeros(64, F32)
    want[:] = x[::-1][:64]
    return {"y": np.zeros(64, F32), "x": x}, {"y": want}


@case("sync", 1, 256)
def barrier_exchange() -> Built:
    x = randoms(256)
    return {"y": np.zeros(256, F32), "x": x, "n": 3}, {"y": np.roll(x, -3)}


@case("sync", 1, 128)
def split_barrier() -> Built:
    x = randoms(128)
    return {"y": np.zeros(128, F32), "x": x}, {"y": 2 * x + x[::-1]}


@case("sync", 1, 128)
def producer_consumer() -> Built:
    x = randoms(6, 64)
    return {"y": np.zeros(64, F32), "x": x, "n": 6}, {"y": x.sum(0)[::-1]}


@case("sync", 4, 64)
def grid_barrier() -> Built:
    """The launch is cooperative: `grid.sync` finds its counter through %envreg1 and 2."""
    data, start = np.arange(256, dtype=I32) + 1, np.arange(256) % 64 + np.arange(256) // 64
    sums = sum(data[(start + i) % 256] for i in range(0, 256, 64))
    return {"data": np.zeros(256, I32), "sums": np.zeros(256, I32)}, {"data": data, "sums": sums}


@case("sync", 4, 64)
def own_grid_barrier() -> Built:
    data = np.arange(256, dtype=I32) * 3
    args = {"data": np.zeros(256, I32), "sums": np.zeros(256, I32), "arrived": np.zeros(1, U32)}
    return args, {"data": data, "sums": np.roll(data, -64)}


@case("sync", 3, 64)
def spin_lock() -> Built:
    return {"counter": np.zeros(1, I32), "lock": np.zeros(1, I32)}, {"counter": np.array([6])}


@case("sync", 5, 32)
def ticket_lock() -> Built:
    args = {"counter": np.zeros(1, I32), "next": np.zeros(1, U32), "serving": np.zeros(1, U32)}
    return args, {"counter": np.array([31])}


@case("sync", 6, 32)
def flags_chain() -> Built:
    return {"data": np.zeros(6, I32), "flags": np.zeros(6, I32)}, {"data": 2 ** np.arange(6)}


@case("sync", 3, 64)
def work_queue() -> Built:
    want = np.arange(7)[:, None] * 1000 + np.arange(64)
    return {"out": np.zeros((7, 64), I32), "head": np.zeros(1, I32), "n": 7}, {"out": want}


@case("sync", 2, 64)
def cluster_exchange() -> Built:
    return {"out": np.zeros(128, I32)}, {"out": np.concatenate([100 + np.arange(64)[::-1], np.arange(64)[::-1]])}


@case("sync", 4, 128)
def cluster_histogram() -> Built:
    x = rng().integers(0, 256, 512).astype(np.uint8)
    return {"bins": np.zeros(256, U32), "x": x}, {"bins": np.bincount(x, minlength=256)}


@case("sync", 2, 256)
def bulk_copy() -> Built:
    x = randoms(512)
    return {"y": np.zeros(512, F32), "x": x}, {"y": 2 * x}


@case("sync", 1, 128)
def named_barriers() -> Built:
    x = randoms(64)
    return {"y": np.zeros(64, F32), "x": x}, {"y": x[::-1]}


@case("sync", 1, 64)
def votes() -> Built:
    x = small(64, low=0)
    value = (x > 3).sum() * 100 + (x >= 0).all() * 10 + (x == 5).any()
    return {"out": np.zeros(64, I32), "x": x}, {"out": np.full(64, value)}


@case("sync", 1, 64)
def warp_exchange() -> Built:
    x = small(64)
    return {"out": np.zeros(64, I32), "x": x}, {"out": x[np.arange(64) ^ 31]}


@case("sync", 1, 64)
def float_cas() -> Built:
    x = small(64).astype(F32)
    return {"out": np.zeros(1, F32), "x": x}, {"out": x.sum(keepdims=True)}


@case("matrix", (2, 2), 32, tolerance=1e-2)
def wmma_half() -> Built:
    a, b = (randoms(32, 32, seed=i).astype(np.float16) for i in (1, 2))
    return {"c": np.zeros((32, 32), F32), "a": a, "b": b, "n": 32}, {"c": a.astype(F32) @ b.astype(F32) / 2}


@case("matrix", (2, 2), 32, tolerance=1e-2)
def wmma_shared() -> Built:
    a, b = (randoms(32, 32, seed=i).astype(ml_dtypes.bfloat16) for i in (1, 2))
    return {"c": np.zeros((32, 32), F32), "a": a, "b": b, "n": 32}, {"c": a.astype(F32) @ b.astype(F32).T}


@case("matrix", 1, 32)
def wmma_int8() -> Built:
    a, b = (small(16, 16, seed=i).astype(np.int8) for i in (1, 2))
    return {"c": np.zeros((16, 16), I32), "a": a, "b": b}, {"c": a.astype(I32) @ b.astype(I32).T}


@case("matrix", 1, 32, tolerance=1e-2)
def mma_pipelined() -> Built:
    a, b = randoms(16, 64).astype(np.float16), randoms(8, 64, seed=2).astype(np.float16)
    return {"c": np.zeros((16, 8), F32), "a": a, "b": b, "n": 64}, {"c": a.astype(F32) @ b.astype(F32).T}


@case("language", 1, 64)
def funcs() -> Built:
    p = randoms(64)
    big = machine.Struct({0: np.arange(40, dtype=F32).tobytes(), 160: np.int32(3), 168: p})
    want = [F32(t % 40 + 1) * sum(range(t % 40 + 2)) + p[t] for t in range(64)]
    return {"o": np.zeros(64, F32), "b": big, "k": 2}, {"o": np.array(want)}


@case("language", 1, 32)
def indirect() -> Built:
    t = np.arange(32)
    return {"o": np.zeros(32, F32)}, {"o": np.choose(t % 3, [t + 1, t * 2, -t])}


@case("language", 1, 64)
def sw() -> Built:
    x = np.arange(64)
    reversed_bits = [int(f"{v:032b}"[::-1], 2) for v in x]
    cases = [
        x * 3,
        x ^ 77,
        x // 3,
        x % 5,
        ~x,
        x << 3,
        np.bitwise_count(x),
        np.array(reversed_bits),
        np.full(64, -1),
    ]
    want = np.array([cases[(v + 4) % 9][v] for v in x]).astype(np.int64).astype(U32).view(I32)
    return {"o": np.zeros(64, I32), "k": 4}, {"o": want}


@case("language", 1, 4)
def says() -> Built:
    return {"o": np.zeros(4, I32)}, {"o": np.ones(4)}


@case("language", 1, 32)
def constants() -> Built:
    return {"o": np.zeros(32, F32)}, {"o": np.arange(32) % 4 + 6}


@case("language", 1, 8)
def list() -> Built:
    nodes = np.array([[v, v - 3 if v >= 3 else -1] for v in range(8)], I32)
    want = [sum(range(i, -1, -3)) for i in range(8)]
    return {"o": np.zeros(8, I32), "n": nodes}, {"o": np.array(want)}


@case("language", 1, 32)
def callbacks() -> Built:
    t = np.arange(32)
    return {"o": np.zeros(32, I32)}, {"o": np.where(t % 2, t + 2, t * 4)}


@case("language", 1, 32)
def local_arrays() -> Built:
    want = [sum((i * 7 + t) % 16 * 3 * i for i in range(16)) for t in range(32)]
    return {"o": np.zeros(32, I32), "k": 3}, {"o": np.array(want)}


# The same kernels with line information, and without optimisation.
for _case in [c for c in CASES if c.file in ("basics", "matrix", "language")]:
    _file = _case.file + ("_debug" if _case.file == "language" else "_lines")
    CASES.append(replace(_case, file=_file))
