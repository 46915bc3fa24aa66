"""Values of other lanes, of every element type and of conditions."""

from __future__ import annotations

import numpy as np
import pytest
from differential import agree

from tilemma.dtypes import BY_NAME

LANES = np.arange(64)
WARP, LANE = LANES // 32 * 32, LANES % 32
SOURCES = {
    "__shfl_xor(v, 5)": WARP + (LANE ^ 5),
    "__shfl_up(v, 3)": WARP + np.where(LANE < 3, LANE, LANE - 3),
    "__shfl_down(v, 3)": WARP + np.where(LANE > 28, LANE, LANE + 3),
    "__shfl_idx(v, 7)": WARP + 7,
}
TYPES = ("f64", "s64", "u64", "f32", "s32", "u32", "f16", "bf16", "s16", "u16", "s8", "u8", "bool")


@pytest.mark.parametrize("name", TYPES)
def test_values_of_other_lanes(name: str) -> None:
    stored = "s32" if name == "bool" else name
    dtype = BY_NAME[stored].numpy
    draw = np.random.default_rng(3)
    x = draw.integers(0, 2, 64) if name == "bool" else draw.integers(0, 120, 64) * (1 << 33 if "64" in name else 1)
    x = x.astype(dtype)
    value = "x.at(t) > 0" if name == "bool" else "x.at(t)"
    lines = "\n".join(
        f"    y.at({i}, t) = {f'{call} ? 1 : 0' if name == 'bool' else call};" for i, call in enumerate(SOURCES)
    )
    co = f"""__co__ void f(global {stored} [64] x, global {stored} [4, 64] y) {{
  parallel p by 1 : block, t by 64 : thread {{
    v = {value};
{lines}
  }}
}}"""
    found = agree(co, None, {"x": x, "y": np.zeros((4, 64), dtype)}, ("sm_80", "sm_90a"))
    assert not isinstance(found, str), found
    for i, (call, source) in enumerate(SOURCES.items()):
        np.testing.assert_array_equal(found["y"][i], x[source], err_msg=call)
