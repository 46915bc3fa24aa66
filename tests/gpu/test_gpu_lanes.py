"""One lane's registers on a GPU: every instruction that it executes, by fragments; what lanes print, in order."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from test_advice import co, py
from test_lane_registers import ATOMS, LOADED_CO, LOADED_PY, MATRICES, ONES_CO, ONES_PY, by_lanes

from tilemma.atoms import MmaAtom
from tilemma.runtime import cuda_device, gpu_unavailable_reason, runs_on
from tilemma.testing import random_array

pytestmark = pytest.mark.gpu
MISSING = gpu_unavailable_reason()
if MISSING:
    pytest.skip(MISSING, allow_module_level=True)

ARCHS = [a for a in ("sm_75", "sm_80", "sm_89", "sm_90a") if runs_on(a, cuda_device(0).compute_capability)]


@pytest.mark.parametrize("atom", [x for x in ATOMS if any(map(x.runs_on, ARCHS))], ids=lambda x: x.name)
def test_every_instruction_multiplies_its_fragments(atom: MmaAtom) -> None:
    m, n, k = atom.shape
    kinds = {"TA": atom.a.dtype.name, "TB": atom.b.dtype.name, "TC": atom.c.dtype.name}
    a = random_array((m, k), kinds["TA"], 0, "small_integers")
    b = random_array((k, n), kinds["TB"], 1, "small_integers")
    c = random_array((m, n), kinds["TC"], 2, "small_integers")
    want = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    arch = next(x for x in ARCHS if atom.runs_on(x))
    d = np.zeros_like(c)
    by_lanes.on("cuda", arch=arch)(a, b, c, d, SHAPE=atom.shape, NAME=atom.name, **kinds)
    np.testing.assert_array_equal(d.astype(np.float64), want)


@pytest.mark.parametrize("language", ["co", "py"])
def test_lanes_print_in_order(language: str, capfd: pytest.CaptureFixture[str]) -> None:
    a = np.arange(256).reshape(16, 16).astype(ml_dtypes.bfloat16)
    b = np.arange(128).reshape(16, 8).astype(ml_dtypes.bfloat16)
    texts = (ONES_CO, LOADED_CO) if language == "co" else (ONES_PY, LOADED_PY)
    for text in texts:
        kernel = co(text, MATRICES[0]) if language == "co" else py(text, MATRICES[1])
        capfd.readouterr()
        kernel.on("cuda", arch=ARCHS[-1])(a, b)
        printed = capfd.readouterr().out
        kernel(a, b)
        assert printed == capfd.readouterr().out and printed.startswith("thread 0 : ")
