"""Kernels of several launches that the compiler pipelines, and blocks of a cluster that are beyond the grid."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tilemma.ir.effects import declared, name_of
from tilemma.ir.walk import walk
from tilemma.modules import loads

HEAD = "[[pipeline(stages=3, producer=true, cluster=CLUSTER, blocks=2)]]\n"
LAUNCH = """
  parallel {i, j} by [cdiv(M, 128), cdiv(ROWS, 128)] : block {
    shared f16 [128, 64] s;
    shared f16 [128, 64] t;
    acc = mma.fill.f32 0.0f;
    foreach k in cdiv(DEPTH, 64) {
      dma.copy A.subspan(128, 64).at(i, k) => s;
      dma.copy B.subspan(128, 64).at(j, k) => t;
      parallel g by 2 : group-4 mma.row.row acc, s.subspan(64, 64).at(g, 0), t;
    }
    parallel g by 2 : group-4 {
      EPILOGUE
      mma.store acc, OUT.subspan(64, 128).at(i # g, j);
    }
  }
"""


def launch(a: str, b: str, out: str, rows: str, depth: str, epilogue: str = "") -> str:
    words = {"A": a, "B": b, "OUT": out, "ROWS": rows, "DEPTH": depth, "EPILOGUE": epilogue}
    text = LAUNCH
    for word, by in words.items():
        text = text.replace(f"{word}.", f"{by}.").replace(f"({word},", f"({by},").replace(f"{word}\n", f"{by}\n")
    return text


CHAIN = (
    HEAD.replace("CLUSTER", "2")
    + "__co__ void chain(global f16 [M, K] a, global f16 [H, K] b, global f16 [N, H] c, global f16 [M, H] h, "
    + "global f32 [M, N] y) {"
    + launch("a", "b", "h", "H", "K")
    + launch("h", "c", "y", "N", "H")
    + "}"
)
ADDED = (
    HEAD.replace("CLUSTER", "4")
    + "__co__ void added(global f16 [M, K] a, global f16 [N, K] b, global f16 [M, N] y) {"
    + launch("a", "b", "y", "N", "K", """apply {r, c} in acc.span {
        row = __min((i * 2 + g) * 64 + r, M - 1);
        acc.at(r, c) = acc.at(r, c) + __to<f32>(y.at(row, __min(j * 128 + c, N - 1)));
      }""")
    + "}"
)  # fmt: skip


def integers(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float16)


def test_names_of_all_launches_are_different() -> None:
    """Both launches had events of one name: the first one used the places of the second one's."""
    decided = loads(CHAIN).kernels["chain"].compile("sm_90a").kernel
    names = Counter(name_of(x) for op in walk(decided.body) for x in declared(op))
    assert max(names.values()) == 1, names


def test_a_product_that_feeds_another_launch() -> None:
    kernel = loads(CHAIN).kernels["chain"]
    a, b, c = integers(136, 72, seed=0), integers(136, 72, seed=1), integers(264, 136, seed=2)
    for schedule in ("random", "starve"):
        h, y = np.zeros((136, 136), np.float16), np.zeros((136, 264), np.float32)
        kernel.on("machine", arch="sm_90a", schedule=schedule, seed=1, strict=True)(a, b, c, h, y)
        np.testing.assert_array_equal(h, (a.astype(np.float32) @ b.T).astype(np.float16))
        np.testing.assert_array_equal(y, h.astype(np.float32) @ c.T)


def test_blocks_beyond_the_grid_read_nothing_that_others_write() -> None:
    """The two blocks that a cluster of four adds to two read the last row, which another block stores."""
    kernel = loads(ADDED).kernels["added"]
    a, b, y = integers(136, 72, seed=0), integers(72, 72, seed=1), integers(136, 72, seed=2)
    wanted = (a.astype(np.float32) @ b.T + y).astype(np.float16)
    kernel.on("machine", arch="sm_90a", schedule="random", seed=0, strict=True)(a, b, y)
    np.testing.assert_array_equal(y, wanted)
