"""The boxes of TMA stores: the widest that divide a row, and narrower ones for the columns that remain."""

from __future__ import annotations

import re

import pytest

from tilemma import croqtile
from tilemma.kernels import Kernel
from tilemma.targets.ptx.target import Target

TEXT = """__co__ void k(global f16 [M, K] a, global f16 [N, K] b, global f16 [M, N] c) {{
  parallel {{i, j}} by [cdiv(M, 64), cdiv(N, {n})] : block {{
    shared f16 [64, 64] s; shared f16 [{n}, 64] t; shared f16 [64, {n}] r;
    mc = mma.fill.f32 0.0f;
    foreach k in [cdiv(K, 64)] {{
      tma.copy a.subspan(64, 64).at(i, k) => s; tma.copy b.subspan({n}, 64).at(j, k) => t;
      parallel w by 1 : group-4 {{ ma = mma.load s; mb = mma.load t; mma.row.row mc, ma, mb; }}
    }}
    parallel w by 1 : group-4 {{ mma.store mc, r; tma.copy r => c.subspan(64, {n}).at(i, j); }}
  }}
}}"""


@pytest.mark.parametrize(
    ("columns", "boxes"),
    [
        (128, [64, 64]),
        (144, [64, 64, 16]),
        (112, [64, 32, 16]),
        (80, [64, 16]),
        (48, [32, 16]),
        (72, [64, 8]),
        (216, [64, 64, 64, 16, 8]),
    ],
)
def test_the_columns_that_remain_have_boxes_of_their_own(columns: int, boxes: list[int]) -> None:
    (source,) = croqtile.load(TEXT.format(n=columns), "stores.co", {}).sources.values()
    compiled = Kernel(source).compile("sm_90a")
    stores = re.findall(r"cp\.async\.bulk\.tensor\.2d\.global", compiled.ptx)
    staged = [d.data for d in compiled.decisions if d.pass_name == "staging"]
    if len(set(boxes)) > 1:
        assert staged == [{"pieces": len(boxes), "slots": boxes.count(boxes[0])}]
    assert len(stores) == len(boxes)


TWO = """__co__ void k(global f16 [M, K] a, global f16 [N, K] b, global f16 [M, N] c, global f16 [M, N] d) {{
  parallel {{i, j}} by [cdiv(M, 64), cdiv(N, 144)] : block {{
    shared f16 [64, 64] s; shared f16 [144, 64] t; shared f16 [64, 144] r; shared f16 [64, 144] u;
    shared f16 [{rows}, 64] more; dma.copy a.subspan({rows}, 64).at(0, 0) => more;
    mc = mma.fill.f32 0.0f;
    foreach k in [cdiv(K, 64)] {{
      tma.copy a.subspan(64, 64).at(i, k) => s; tma.copy b.subspan(144, 64).at(j, k) => t;
      parallel w by 1 : group-4 {{ ma = mma.load s; mb = mma.load t; mma.row.row mc, ma, mb; }}
    }}
    parallel w by 1 : group-4 {{
      mma.store mc, r; tma.copy r => c.subspan(64, 144).at(i, j);
      mma.store mc, u; tma.copy u => d.subspan(64, 144).at(i, j);
    }}
  }}
}}"""
LIMIT, GAPS = Target.of("sm_90a").shared_limit, 1024


@pytest.mark.parametrize("rows", range(1320, 1464, 32))
def test_two_tiles_have_as_many_slots_as_fit_beside_each_other(rows: int) -> None:
    """Alignment may take `GAPS` bytes where a tile is cut."""
    (source,) = croqtile.load(TWO.format(rows=rows), "two.co", {}).sources.values()
    compiled = Kernel(source).compile("sm_90a")
    assert compiled.launches[0].shared <= LIMIT
    others, tiles, missing = 64 + 144 + rows, {"r": 144, "u": 144}, []
    assert (others + 288) * 128 + GAPS < LIMIT or any(d.pass_name == "staging" for d in compiled.decisions)
    for d in (d for d in compiled.decisions if d.pass_name == "staging"):
        slots, _, width, *rest = map(int, re.findall(r"\d+", d.text.partition(":")[0]))
        tiles[d.subject] = slots * width + sum(rest[1::2])
        missing += [width] * (slots + len(rest) // 2 < d.data["pieces"])
    used = 128 * (others + sum(tiles.values()))
    assert used <= LIMIT and all(used + 128 * width > LIMIT - GAPS for width in missing)
