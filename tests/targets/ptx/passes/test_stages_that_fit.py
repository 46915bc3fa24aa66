"""The stages of a pipelined loop: as many as fit in shared memory, with a warning where the loop loses by it."""

from __future__ import annotations

import pytest

from tilemma import croqtile
from tilemma.kernels import Kernel
from tilemma.targets.ptx.target import Target

TEXT = """__co__ void k(global f16 [M, K] a, global f16 [N, K] b, global f32 [M, N] c) {{
  parallel {{i, j}} by [cdiv(M, 64), cdiv(N, 64)] : block {{
    shared f16 [64, {k}] s; shared f16 [64, {k}] t;
    mc = mma.fill.f32 0.0f;
    {asked}
    foreach k in [cdiv(K, {k})] {{
      dma.copy a.subspan(64, {k}).at(i, k) => s; dma.copy b.subspan(64, {k}).at(j, k) => t;
      parallel w by 1 : group-4 {{ ma = mma.load s; mb = mma.load t; mma.row.row mc, ma, mb; }}
    }}
    parallel w by 1 : group-4 mma.store mc, c.subspan(64, 64).at(i, j);
  }}
}}"""


@pytest.mark.parametrize("asked", [None, 2, 3])
@pytest.mark.parametrize("k", [192, 224, 256, 400])
def test_as_many_stages_as_fit(k: int, asked: int | None) -> None:
    """Two in place of three is no loss worth a warning, unless the program asked for three."""
    text = TEXT.format(k=k, asked=f"[[pipeline(stages={asked})]]" if asked else "")
    (source,) = croqtile.load(text, "stages.co", {}).sources.values()
    found = [d for d in Kernel(source).compile("sm_80").decisions if d.pass_name == "pipeline"]
    most, stage = asked or 3, 2 * 2 * 64 * k
    stages = min(most, Target.of("sm_80").shared_limit // stage)
    warned = stages < most and (asked is not None or stages < 2)
    told = [d for d in found if d.warning and d.data.get("asked") == most]
    assert bool(told) == warned
    assert all(d.data["stages"] == stages for d in told)
    issued = [d.data["stages"] for d in found if not d.warning and "stages" in d.data]
    assert issued == ([stages] if stages > 1 else [])
