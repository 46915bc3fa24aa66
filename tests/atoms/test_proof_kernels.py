"""The very PTX of the hardware proof, executed by the PTX machine: true records pass, false ones are caught."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilemma import machine
from tilemma.atoms import MmaAtom, catalogue
from tilemma.atoms.atom import Atom
from tilemma.machine.parser import parse

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
sys.path.insert(0, str(Path(__file__).parent))
import proof_wgmma as forms
import prove_atoms as proof
from test_proofs import SAMPLE, _swapped


class Machine:
    """Runs the entries of one record's module; hazards are failures."""

    def __init__(self, atom: Atom) -> None:
        (self.ptx,) = proof.modules([atom], "sm_90a").values()
        self.parameters = {
            e.name: [p.name for p in e.parameters] for e in parse(self.ptx, "proof").entries.values()
        }

    def run(self, module: str, entry: str, grid: int, threads: int, shared: int, arguments: Sequence[Any]) -> None:
        values = (x if isinstance(x, np.ndarray) else x[1] for x in arguments)
        args = dict(zip(self.parameters[entry], values, strict=True))
        launch = {"entry": entry, "grid": (grid, 1, 1), "block": (threads, 1, 1), "shared": shared}
        report = machine.run(self.ptx, launch, args, arch="sm_90a", strict=True)
        assert not report.hazards, str(report.hazards[0])


def _prove(atom: Atom, run: proof.Runner) -> proof.Finding:
    if atom.kind == "wgmma":
        every = proof.combinations(atom)
        # A swizzled and an unswizzled operand, each majorness.
        return proof.prove_wgmma(atom, run, limit=2, cases=[every[3], every[4], every[-1]])
    register = isinstance(atom, MmaAtom) and not atom.asynchronous
    return proof.prove_mma_sync(atom, run, limit=5) if register else proof.prove(atom, run)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_true_record_is_proven(name: str) -> None:
    atom = catalogue[name]
    assert _prove(atom, Machine(atom).run).differences == []


@pytest.mark.parametrize("name", SAMPLE)
def test_a_false_record_is_refuted(name: str) -> None:
    atom = catalogue[name]
    try:
        found = _prove(_swapped(atom), Machine(atom).run).differences
    except machine.HazardError:
        return  # a cp.async of the wrong size is not even aligned
    assert found != []


@pytest.mark.parametrize(
    "name",
    [
        "SM80_8x8x4_F64F64F64F64_TN",
        "SM80_16x8x64_S32S4U4S32_TN",
        "SM75_8x8x128_S32U1U1S32_TN_XORPOPC",
        "SM80_SPARSE_16x8x32_F32F16F16F32_TN",
        "SM80_SPARSE_16x8x16_F32TF32TF32F32_TN",
        "FMA_8x4x1_S32S32S32S32",
    ],
)
def test_a_record_of_every_width_is_proven(name: str) -> None:
    atom = catalogue[name]
    assert _prove(atom, Machine(atom).run).differences == []


ROWS = [
    "SM90_64x8x32_S32S8U8_SS_TN",
    "SM90_64x8x256_S32U1U1_RS_TN",
    "SM90_64x16x8_F32TF32TF32_SS_TN",
    "SM90_SPARSE_64x8x32_F16F16F16_SS",
    "SM90_SPARSE_64x8x64_F32E4M3E5M2_RS_TN",
]


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_one_element_prove_a_record_and_refute_a_false_one(name: str) -> None:
    atom = catalogue[name]
    run = Machine(atom).run
    every = forms.combinations(atom)
    few: dict[str, Any] = {"limit": 1, "cases": [every[0], every[-1]]}
    found = proof.prove_wgmma_rows(atom, run, **few)
    assert found.differences == [] and found.experiments > 0
    assert proof.prove_wgmma_rows(_swapped(atom), run, **few).differences != []


def test_a_whole_record_with_its_map() -> None:
    """The list kernels write, element by element: a warpgroup's narrowest instruction."""
    atom = catalogue["SM90_64x8x16_F16F16F16_RS"]
    machine_run = Machine(atom).run
    lists: list[Any] = []

    def run(*call: Any) -> None:
        machine_run(*call)
        lists.append(call[-1][5])

    found = proof._wgmma_case(atom, None, ("K", 128), run, 8, listed=True)
    assert found == []
    counts = lists[0][: 128 * atom.d.values]
    # Elements 0 to 7 of A are lane 0's: two rows, and in each row four products a column, two digits each.
    rows = (atom.d.coordinates_table % 64).reshape(-1)
    assert set(counts[(rows == 0) | (rows == 8)]) == {8} and counts.sum() == 2 * 8 * 8
