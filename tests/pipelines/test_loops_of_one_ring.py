"""Loops one after the other that copy the same buffers of the program fill the stages of one ring in turn."""

from __future__ import annotations

import pytest

from tilemma import croqtile
from tilemma.kernels import Kernel

LOOP = """foreach k in cdiv(K, 64) {
        dma.copy x.subspan(128, 64).at(i, k) => a;
        dma.copy y.subspan(128, 64).at(j, k) => b;
        ma = mma.load a.chunkat(p, _);
        mb = mma.load b;
        mma.row.row mc, ma, mb;
      }"""


def shared_bytes(loops: int, *, apart: bool) -> tuple[int, dict[str, int]]:
    """Stages of the first ring, and the bytes of each buffer; ``apart``: each loop has buffers of its own."""
    names = [f"left{n}, right{n}" if apart else "left, right" for n in range(loops)]
    declared = "".join(f"shared f16 [128, 64] {x};\n" for pair in dict.fromkeys(names) for x in pair.split(", "))
    body = ""
    for pair in names:
        a, b = pair.split(", ")
        body += (
            LOOP.replace("=> a;", f"=> {a};")
            .replace("load a.", f"load {a}.")
            .replace("=> b;", f"=> {b};")
            .replace("load b;", f"load {b};")
        )
    text = f"""
__co__ void f(global f16 [M, K] x, global f16 [N, K] y, global f32 [M, N] o) {{
  parallel {{i, j}} by [cdiv(M, 128), cdiv(N, 128)] : block {{
    {declared}
    parallel p by 2 : group-4 {{
      mc = mma.fill.f32 0.0f;
      {body}
      mma.store mc, o.subspan(64, 128).at(i * 2 + p, j);
    }}
  }}
}}"""
    decisions = Kernel(croqtile.load(text, "rings.co").sources["f"]).compile("sm_90a").decisions
    stages = [d.data["stages"] for d in decisions if d.pass_name == "pipeline" and "stages" in d.data]
    sizes = {d.subject: d.data["bytes"] for d in decisions if d.pass_name == "shared" and "offset" in d.data}
    return stages[0], sizes


@pytest.mark.parametrize("loops", [2, 3])
def test_the_loops_share_all_stages(loops: int) -> None:
    alone = shared_bytes(1, apart=False)
    assert shared_bytes(loops, apart=False) == alone
    stages, sizes = shared_bytes(loops, apart=True)
    assert len(sizes) == 2 * loops and stages < alone[0]
