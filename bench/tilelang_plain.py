"""TileLang's plain pipelined product, C[M, N] = A[M, K] x B[N, K]^T, as a peer for `bench/gemm.py`.

Written from TileLang's own documentation of `T.Pipelined` and `T.gemm`: one loop over K, two copies, one multiply;
the number of stages, the tile and the threads are parameters, all else is its compiler's choice.
Needs the `tilelang` package (measured with 0.1.15), which nothing else here does.
"""

from functools import cache
from typing import Any

NAMES = {"f16": "float16", "bf16": "bfloat16"}


@cache
def product(
    m: int, n: int, k: int, dtype: str, tile: tuple[int, int, int], stages: int, threads: int, panel: int
) -> Any:
    """TileLang's compiled kernel for one shape: called with (a, b, c)."""
    import tilelang
    import tilelang.language as T

    rows, columns, depth = tile
    name = NAMES[dtype]

    @T.prim_func
    def main(
        a: T.Tensor((m, k), name),
        b: T.Tensor((n, k), name),
        c: T.Tensor((m, n), name),
    ):
        with T.Kernel(T.ceildiv(n, columns), T.ceildiv(m, rows), threads=threads) as (bx, by):
            a_shared = T.alloc_shared((rows, depth), name)
            b_shared = T.alloc_shared((columns, depth), name)
            c_local = T.alloc_fragment((rows, columns), "float32")
            T.use_swizzle(panel_size=panel)
            T.clear(c_local)
            for ko in T.Pipelined(T.ceildiv(k, depth), num_stages=stages):
                T.copy(a[by * rows, ko * depth], a_shared)
                T.copy(b[bx * columns, ko * depth], b_shared)
                T.gemm(a_shared, b_shared, c_local, transpose_B=True)
            T.copy(c_local, c[by * rows, bx * columns])

    return tilelang.compile(main)


def run(settings: dict[str, str], dtype: str) -> Any:
    """A function of torch tensors (a, b, c); ``settings`` may hold tile (128x256x64), stages, threads, panel."""
    rows, columns, depth = (int(x) for x in settings.get("tile", "128x256x64").split("x"))
    stages, threads = int(settings.get("stages", 3)), int(settings.get("threads", 256))
    panel = int(settings.get("panel", 10))

    def call(a: Any, b: Any, c: Any) -> None:
        kernel = product(a.shape[0], b.shape[0], a.shape[1], dtype, (rows, columns, depth), stages, threads, panel)
        kernel(a, b, c)

    return call
