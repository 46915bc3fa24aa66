"""Fills from a row or column: extents that do not fit are refused with one error in both languages."""

from __future__ import annotations

import pytest
from test_advice import co, py

from tilemma.errors import CompileError


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("b.subspan(1, 32).at(0, 0)", "a row of 64"),
        ("b.subspan(32, 1).at(0, 0)", "a column of 64"),
        ("b.subspan(32, 32).at(0, 0)", "a row [N] or [1, N]"),
    ],
)
def test_another_extent_is_refused(source: str, text: str) -> None:
    one = f"""parallel p by 1 : block, g by 1 : group {{ m = mma.fill.f32 {source}; x = mma.load b;
      mma.row.row m, x, x; mma.store m, c; }}"""
    other = f"""for p in parallel(1, level="block"):
    for g in parallel(1, level="group"):
        m = mma.fill({source}, "f32")
        x = mma.load(b)
        mma.row.row(m, x, x)
        mma.store(m, c)"""
    for make in (lambda: co(one), lambda: py(other)):
        with pytest.raises(CompileError) as e:
            make().compile("sm_80")
        assert e.value.code == "wrong-value" and text in e.value.render(), e.value.render()
