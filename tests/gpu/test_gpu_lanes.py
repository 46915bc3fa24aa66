"""One lane's registers on a GPU: every instruction that it executes, by fragments; what lanes print, in order."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from test_advice import co, py
from test_lane_registers import (
    ATOMS,
    LOADED_CO,
    LOADED_PY,
    MATRICES,
    ONES_CO,
    ONES_PY,
    SPARSE,
    by_lanes,
    kinds_of,
    operands,
    sparse_by_lanes,
    sparse_operands,
)

from tilemma.atoms import MmaAtom
from tilemma.runtime import cuda_device, gpu_unavailable_reason, runs_on

pytestmark = pytest.mark.gpu
MISSING = gpu_unavailable_reason()
if MISSING:
    pytest.skip(MISSING, allow_module_level=True)

ARCHS = [a for a in ("sm_75", "sm_80", "sm_89", "sm_90a") if runs_on(a, cuda_device(0).compute_capability)]


@pytest.mark.parametrize("atom", [x for x in ATOMS if any(map(x.runs_on, ARCHS))], ids=lambda x: x.name)
def test_every_instruction_multiplies_its_fragments(atom: MmaAtom) -> None:
    a, b, c, want = operands(atom)
    arch = next(x for x in ARCHS if atom.runs_on(x))
    d = np.zeros_like(c)
    by_lanes.on("cuda", arch=arch)(a, b, c, d, SHAPE=atom.shape, NAME=atom.name, **kinds_of(atom))
    np.testing.assert_array_equal(d.astype(np.float64), want)


@pytest.mark.parametrize("words", ["u8", "u16", "u32"])
@pytest.mark.parametrize("atom", [x for x in SPARSE if any(map(x.runs_on, ARCHS))], ids=lambda x: x.name)
def test_every_sparse_instruction_multiplies_its_fragments(atom: MmaAtom, words: str) -> None:
    found = sparse_operands(atom, words)
    if found is None:
        pytest.skip("a word describes more columns than the instruction has")
    a, e, b, d, want = found
    arch = next(x for x in ARCHS if atom.runs_on(x))
    kinds = kinds_of(atom)
    sparse_by_lanes.on("cuda", arch=arch)(a, e, b, d, SHAPE=atom.shape, NAME=atom.name, TE=words, **kinds)
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
