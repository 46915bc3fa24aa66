"""Extents of thousands of digits, which Python does not write."""

from __future__ import annotations

import pytest

import tilemma as tm
from tilemma import local, parallel, shared
from tilemma.errors import TilemmaError


@tm.kernel
def kernel(x: tm.Global["f16", "M"], *, N=1, WHERE="shared"):
    for _ in parallel(1, level="block"):
        if WHERE == "shared":
            room = shared("f32", N)
        else:
            room = local("f32", N)
        room[0] = 0.0
        x[0] = room[0].astype("f16")


@pytest.mark.parametrize("where", ["shared", "local"])
def test_an_enormous_extent_is_refused(where: str) -> None:
    with pytest.raises(TilemmaError) as raised:
        kernel.compile("sm_90a", N=10**5000, WHERE=where)
    assert raised.value.code == "wrong-value" and "bits" in str(raised.value)
