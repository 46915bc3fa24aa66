"""Neighbouring blocks of a product by mma.sync that become one, and results that warps store in whole rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilemma import croqtile
from tilemma.kernels import Kernel
from tilemma.launch import APART, better_variant

LISTING = """#define TILE 32
{attribute} __co__ void f(global f16 [M, K] a, global f16 [N, K] b, global f32 [N] bias, global f16 [M, N] c) {{
  parallel {{i, j}} by [cdiv(M, TILE), cdiv(N, TILE)] : block {{
    shared f16 [TILE, TILE] c_s;
    parallel {{v, w}} by [2, 2] : group {{
      mc = mma.fill.f32 0.0;
      foreach k in cdiv(K, TILE) {{
        a_s = dma.copy a.subspan(TILE, TILE).at(i, k) => shared;
        b_s = dma.copy b.subspan(TILE, TILE).at(j, k) => shared;
        foreach s in TILE / 16 {{
          ma = mma.load a_s.chunkat(v, s);
          mb = mma.load b_s.chunkat(w, s);
          mma.row.row mc, ma, mb;
        }}
      }}
      apply {{x, y}} in mc.span {{ mc.at(x, y) = mc.at(x, y) + bias.at(j * TILE + w * 16 + y); }}
      mma.store mc, c_s.subspan(16, 16).at(v, w);
    }}
    dma.copy c_s => c.subspan(TILE, TILE).at(i, j);
  }}
}}
"""
PLAIN = LISTING.format(attribute="")
# B stored [K, N], and results that warps store themselves.
COLUMNS = (
    PLAIN.replace("global f16 [N, K] b", "global f16 [K, N] b")
    .replace("b.subspan(TILE, TILE).at(j, k)", "b.subspan(TILE, TILE).at(k, j)")
    .replace("mb = mma.load b_s.chunkat(w, s)", "mb = mma.load b_s.chunkat(s, w)")
    .replace("mma.row.row", "mma.row.col")
)
DIRECT = """#define TILE 64
#define WARP 32
__co__ void f(global f16 [M, K] a, global f16 [N, K] b, global f32 [N] bias, global f16 [M, N] c) {
  parallel {i, j} by [cdiv(M, TILE), cdiv(N, TILE)] : block {
    parallel {v, w} by [2, 2] : group {
      mc = mma.fill.f32 0.0;
      foreach k in cdiv(K, 32) {
        a_s = dma.copy a.subspan(TILE, 32).at(i, k) => shared;
        b_s = dma.copy b.subspan(TILE, 32).at(j, k) => shared;
        foreach s in 2 {
          ma = mma.load a_s.subspan(WARP, 16).at(v, s);
          mb = mma.load b_s.subspan(WARP, 16).at(w, s);
          mma.row.row mc, ma, mb;
        }
      }
      apply {x, y} in mc.span { mc.at(x, y) = mc.at(x, y) + bias.at(j * TILE + w * WARP + y); }
      mma.store mc, c.subspan(WARP, WARP).at(i # v, j # w);
    }
  }
}
"""
# Another register tile than the accumulator takes the results, of blocks of two warps.
CONVERTED = (
    PLAIN.replace("[2, 2] : group", "[2, 1] : group")
    .replace("cdiv(N, TILE)]", "cdiv(N, 16)]")
    .replace("b.subspan(TILE, TILE)", "b.subspan(16, TILE)")
    .replace("[TILE, TILE] c_s", "[TILE, 16] c_s")
    .replace("c.subspan(TILE, TILE)", "c.subspan(TILE, 16)")
    .replace("apply {x, y}", "frag f32[16, 16] r;\n      apply {x, y}")
    .replace("{ mc.at(x, y) = mc.at(x, y) + bias.at(j * TILE", "{ r.at(x, y) = mc.at(x, y) + bias.at(j * 16")
    .replace("mma.store mc,", "mma.store r,")
)
JOINED, STAGED = "two blocks that are neighbours along", "from where each warp writes whole rows"


def kernel(text: str) -> Kernel:
    return Kernel(croqtile.load(text, "f.co").sources["f"])


def said(text: str, arch: str = "sm_80", **options: Any) -> str:
    return " ".join(d.text for d in kernel(text).compile(arch, **options).decisions)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    "text", [PLAIN, COLUMNS, DIRECT, CONVERTED], ids=["rows", "columns", "direct", "converted"]
)
# An odd number of tiles along the joined index: the last block computes one that does not exist.
@pytest.mark.parametrize("shape", [(64, 128, 64), (40, 168, 72), (130, 64, 40), (8, 320, 8)])
def test_results(text: str, arch: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    found = said(text, arch)
    assert f"{JOINED} `j`" in found and (STAGED in found) == (text is DIRECT)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (rows, k)).astype(np.float16) for rows in (m, n))
    bias, c = rng.integers(-3, 4, n).astype(np.float32), np.full((m, n), np.nan, np.float16)
    stored = np.ascontiguousarray(b.T) if text is COLUMNS else b
    report = kernel(text).on("machine", arch=arch, strict=True)(a, stored, bias, c)
    assert report.ok
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.T.astype(np.float32) + bias)


def test_one_copy_of_the_shared_operand() -> None:
    """A block of twice the threads copies one tile of A and two of B, and the grid has half the blocks."""
    joined, apart = (kernel(DIRECT).compile("sm_80", variant=x) for x in ((), (APART,)))
    (one,), (other,) = joined.launches, apart.launches
    assert one.block[0] == 2 * other.block[0]
    sizes = {x.name: x.bytes for x in one.shared_names}
    assert sizes["b_s"] == 2 * sizes["a_s"]
    names = {"M": 640, "N": 640, "K": 64}
    assert one.grid[0] != other.grid[0] and one.joined is not None and other.joined is None
    assert better_variant([other], names) == ()


@pytest.mark.parametrize(
    ("shape", "apart"),
    [
        ((1024, 1024, 1024), True),  # a block for every other multiprocessor
        ((2048, 2048, 2048), False),
        ((2176, 2176, 2176), True),  # few tiles after one wave
        ((4096, 4096, 256), True),  # few steps
        ((8192, 28672, 8192), False),
    ],
)
def test_launches_that_keep_their_blocks(shape: tuple[int, int, int], apart: bool) -> None:
    wide = PLAIN.replace("TILE 32", "TILE 128").replace("(16, 16)", "(64, 64)").replace("w * 16", "w * 64")
    wide = wide.replace("a_s.chunkat(v, s)", "a_s.subspan(64, 16).at(v, s)")
    wide = wide.replace("b_s.chunkat(w, s)", "b_s.subspan(64, 16).at(w, s)").replace("K, TILE)", "K, 64)")
    wide = wide.replace("a.subspan(TILE, TILE)", "a.subspan(TILE, 64)").replace("TILE / 16", "4")
    wide = wide.replace("b.subspan(TILE, TILE)", "b.subspan(TILE, 64)")
    launches = kernel(wide).compile("sm_80").launches
    assert better_variant(launches, dict(zip("MNK", shape, strict=True))) == ((APART,) if apart else ())
    assert better_variant(launches, {"M": 1}) == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # The loop depends on the index.
        ("foreach k in cdiv(K, TILE)", "foreach k in j + 1"),
        # Tiles of neighbours that do not follow each other.
        ("b.subspan(TILE, TILE).at(j, k)", "b.view(TILE, TILE).from(j * 40, k * TILE)"),
        ("{{i, j}} by [cdiv(M, TILE), cdiv(N, TILE)]", "{{i, j, z}} by [cdiv(M, TILE), cdiv(N, TILE), 1]"),
        # Eight warps fill a block.
        ("parallel {{v, w}} by [2, 2]", "parallel {{u, v, w}} by [2, 2, 2]"),
    ],
)
def test_blocks_that_stay_as_they_are(old: str, new: str) -> None:
    assert old in LISTING
    assert f"{JOINED} `j`" not in said(LISTING.replace(old, new).format(attribute=""))


@pytest.mark.parametrize("attribute", ["[[pipeline(off)]]", "[[pipeline(stages=1)]]"])
def test_what_is_off_stays_as_written(attribute: str) -> None:
    assert JOINED not in said(LISTING.format(attribute=attribute))
    assert JOINED not in said(PLAIN, "sm_75")


def test_twice_the_tiles_have_to_fit() -> None:
    """Stages that the program asks for are not given up for it."""
    deep = LISTING.replace("TILE 32", "TILE 64").replace("w * 16", "w * 32").replace("(16, 16)", "(32, 32)")
    deep = deep.replace("chunkat(v, s)", "subspan(32, 16).at(v, s)").replace(
        "chunkat(w, s)", "subspan(32, 16).at(w, s)"
    )
    assert JOINED in said(deep.format(attribute=""))
    assert JOINED not in said(deep.format(attribute="[[pipeline(stages=8)]]"))
