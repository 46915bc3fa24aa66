"""The catalogue against the forms that ptxas takes, both ways, and the file of its answers against ptxas."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from dev.pages.forms import read_forms
from tests.toolchain import tool
from tilemma.atoms import MmaAtom, catalogue

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import probe_forms as probe

FILE = read_forms()


def form(atom: MmaAtom) -> str:
    """The name of the record's form in the file."""
    opcode = atom.ptx.split(" ")[0]
    if atom.kind in ("mma.sync", "mma.sp", "mma.scaled"):
        return opcode
    # ptxas takes `.satfinite` before the types as well as behind them.
    opcode = re.sub(r"(k\d+)(\..*)\.satfinite", r"\1.satfinite\2", opcode)
    opcode = re.sub(r"m64n\d+k", "m64nNk", opcode)
    return f"{opcode} {'R' if atom.a.in_registers else 'S'}S"


# CuTe has names of sm_75 and of sm_80 for m16n8k8 of f16: some forms have two records.
RECORDS: dict[str, list[MmaAtom]] = {}
for _atom in catalogue.mma():
    if _atom.kind != "fma":
        RECORDS.setdefault(form(_atom), []).append(_atom)


def test_every_record_is_a_form_that_ptxas_takes_on_its_targets() -> None:
    for name, atoms in RECORDS.items():
        row = FILE["forms"][name]
        assert [t for t in FILE["candidates_for"] if any(a.runs_on(t) for a in atoms)] == row["targets"], name


def test_every_form_that_ptxas_takes_has_a_record() -> None:
    for name, row in FILE["forms"].items():
        if "widths" in row:
            assert sorted(atom.shape[1] for atom in RECORDS[name]) == row["widths"], name
        else:
            assert RECORDS[name], name


def asked(texts: Iterable[str], target: str, folder: Path) -> tuple[set[str], set[str]]:
    """The forms that ptxas takes, and those that the file has."""
    tool("ptxas")
    texts = list(texts)
    taken = {probe.named(text)[0] for text in probe.taken(texts, target, folder)}
    known = {name for name, row in FILE["forms"].items() if target in row["targets"]}
    return taken, known & {probe.named(text)[0] for text in texts}


@pytest.mark.parametrize("target", FILE["candidates_for"])
@pytest.mark.parametrize("family", [probe.dense, probe.sparse, probe.scaled])
def test_ptxas_agrees_on_some(family: Callable[[], Iterable[str]], target: str, tmp_path: Path) -> None:
    """A draw of candidates, half of them of forms that one of the targets takes."""
    texts = list(family())
    draw = random.Random(f"{family.__name__} {target}")
    known = [text for text in texts if probe.named(text)[0] in FILE["forms"]]
    taken, wanted = asked(draw.sample(texts, 300) + draw.sample(known, min(300, len(known))), target, tmp_path)
    assert taken == wanted


@pytest.mark.slow
@pytest.mark.parametrize("target", FILE["candidates_for"])
@pytest.mark.parametrize("family", [probe.dense, probe.sparse, probe.scaled])
def test_ptxas_agrees_on_all(family: Callable[[], Iterable[str]], target: str, tmp_path: Path) -> None:
    taken, wanted = asked(family(), target, tmp_path)
    assert taken == wanted


@pytest.mark.slow
def test_ptxas_agrees_on_every_width_of_wgmma(tmp_path: Path) -> None:
    wide = probe.taken(list(probe.warpgroup()), "sm_90a", tmp_path)
    found = {
        f"{opcode} {source}S": set(n)
        for (opcode, source), n in probe.every_width(wide, "sm_90a", tmp_path).items()
    }
    assert found == {name: set(row["widths"]) for name, row in FILE["forms"].items() if "widths" in row}
