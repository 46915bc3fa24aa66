"""`.target` names an architecture: the tables of instruction forms are asked for it."""

from __future__ import annotations

import numpy as np
import pytest

from tilemma import machine
from tilemma.errors import TilemmaError

TEXT = """.version 9.0
.target {target}
.address_size 64
.visible .entry f(.param .u64 out)
{{
    .reg .b64 %q<2>;
    ld.param.u64 %q1, [out];
    ret;
}}
"""


def run(target: str) -> None:
    launch = {"grid": (1, 1, 1), "block": (32, 1, 1)}
    machine.run(TEXT.format(target=target), launch, {"out": np.zeros(4, np.uint32)})


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100f", "sm_90a, debug"])
def test_architectures(target: str) -> None:
    run(target)


@pytest.mark.parametrize(
    "target", ["y", "%r1", "mov", "sm_", "sm_90ab", "sm_90ahistogram", "compute_80", "sm_12345"]
)
def test_other_words_are_named(target: str) -> None:
    with pytest.raises(TilemmaError, match=f"`{target}` behind `.target`") as caught:
        run(target)
    assert caught.value.code == "ptx-syntax"
