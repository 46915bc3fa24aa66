"""Loops over tiles of the grid that a program writes with `while`, and results that only some tiles store."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from configurations import EXAMPLES

from tilemma.kernels import Kernel
from tilemma.modules import loads

PERSISTENT = (EXAMPLES / "co" / "persistent.co").read_text()
PLAIN = """
__co__ void plain(global f16 [M, K] lhs, global f16 [N, K] rhs, global f16 [M, N] output) {
  parallel b by 3 : block {
    shared f16 [128, 64] s;
    shared f16 [128, 64] t;
    mutable int tile = b;
    while (tile < cdiv(M, 128) * cdiv(N, 128)) {
      acc = mma.fill.f32 0.0f;
      foreach k in cdiv(K, 64) {
        dma.copy lhs.subspan(128, 64).at(tile / cdiv(N, 128), k) => s;
        dma.copy rhs.subspan(128, 64).at(tile % cdiv(N, 128), k) => t;
        parallel g by 2 : group-4 mma.row.row acc, s.subspan(64, 64).at(g, 0), t;
      }
      parallel g by 2 : group-4
        if (tile % 3 != 1)
          mma.store acc, output.subspan(64, 128).at(tile / cdiv(N, 128) * 2 + g, tile % cdiv(N, 128));
      tile += 3;
    }
  }
}
"""


def by_while(text: str) -> str:
    """The persistent example with `while` over its tiles, of which every third is left out."""
    loop = "with t in TILES_M * TILES_N { foreach t(team::TEAMS) {"
    text = text.replace(loop, "mutable int t = team; while (t < TILES_M * TILES_N) {")
    text = re.sub(r"\} \}\n", "t = t + TEAMS; }\n", text)
    return text.replace("mma.store mc,", "if (t % 3 != 1) { mma.store mc,").replace("wg - 1, n);", "wg - 1, n); }")


def number_of_tile(rows: int, columns: int) -> Any:
    """The number of each tile in the example's order: pairs of rows, in bands of 8."""
    return np.array([[n * rows + m for n in range(columns)] for m in range(rows)])


@pytest.mark.parametrize("schedule", ["random", "starve"])
def test_results_in_pieces(schedule: str) -> None:
    """The number of the tile is the same in all threads of a role: what it decides keeps them together."""
    kernel = loads(by_while(PERSISTENT), {"GRID": 2}).kernels["persistent"]
    rows, columns = 2, 3
    check(kernel, (512, 768, 72), number_of_tile(rows, columns) % 3 != 1, (256, 256), schedule)


@pytest.mark.parametrize("columns", [264, 260])
def test_stored_from_registers_and_through_shared_memory(columns: int) -> None:
    """Rows of 260 elements leave by stores of the threads, which a barrier orders."""
    kernel = loads(PLAIN).kernels["plain"]
    keep = np.arange(9).reshape(3, 3) % 3 != 1
    for arch in ("sm_90a", "sm_80"):
        check(kernel, (264, columns, 72), keep, (128, 128), "random", arch)
    texts = [d.text for d in kernel.compile("sm_90a").decisions if d.pass_name == "pipeline"]
    assert any("copied ahead by TMA" in x for x in texts), texts


def check(
    kernel: Kernel,
    shape: tuple[int, int, int],
    keep: Any,
    tile: tuple[int, int],
    schedule: str,
    arch: str = "sm_90a",
) -> None:
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (size, k)).astype(np.float16) for size in (m, n))
    wanted = (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16)
    wanted = np.where(np.kron(keep, np.ones(tile))[:m, :n] == 1, wanted, np.float16(9))
    found = np.full((m, n), 9, np.float16)
    kernel.on("machine", arch=arch, seed=1, schedule=schedule, strict=True)(a, b, found)
    np.testing.assert_array_equal(found, wanted)
