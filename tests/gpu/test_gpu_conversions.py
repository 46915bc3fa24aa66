"""Conversions between all types on a GPU, against the CPU reference: every bit pattern of 8- and 16-bit types, and
numbers at the edges of the wider ones."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tilemma.dtypes import DType
from tilemma.runtime import cuda_device, gpu_unavailable_reason, runs_on

sys.path.insert(0, str(Path(__file__).parents[1] / "arithmetic"))
from numbers_at_edges import Array, same
from test_convert import TYPES, convert_all, values

pytestmark = pytest.mark.gpu
MISSING = gpu_unavailable_reason()
if MISSING:
    pytest.skip(MISSING, allow_module_level=True)

ARCHS = [a for a in ("sm_80", "sm_90a") if runs_on(a, cuda_device(0).compute_capability)]


def patterns(t: DType) -> Array:
    """All values of ``t`` if it has at most 16 bits."""
    if t.kind == "bool" or t.bits > 16:
        return values(t)
    # Of the byte that holds a float of 6 or 4 bits, the upper bits are zero.
    used = 1 + t.format.exponent + t.format.mantissa if t.format else t.bits
    return np.arange(1 << used, dtype=f"u{t.bits // 8}").view(t.numpy)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("source", TYPES, ids=str)
def test_every_conversion(source: DType, arch: str) -> None:
    x = patterns(source)
    want, have = ({t.name: np.zeros(x.size, t.numpy) for t in TYPES} for _ in range(2))
    with np.errstate(all="ignore"):
        convert_all.on("cpu")(x, **want, S=source.name)
        convert_all.on("cuda", arch=arch)(x, **have, S=source.name)
        wrong = {t: int((~same(have[t], want[t])).sum()) for t in want}
    assert not any(wrong.values()), {t: n for t, n in wrong.items() if n}
