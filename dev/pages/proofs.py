"""The records of the catalogue that hardware has confirmed, as `bench/prove_atoms.py` wrote them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from tilemma.atoms.atom import Atom

Status = Literal["proven", "refuted", "changed", "unproven"]


def read_proofs(folder: Path) -> dict[str, dict[str, Any]]:
    """The proof files of ``folder`` by GPU.

    The folder also has surveys of kernels and of the PTX machine, which have no records.
    """
    found = {p.stem: json.loads(p.read_text()) for p in sorted(folder.glob("*.json"))}
    return {gpu: content for gpu, content in found.items() if "records" in content}


def proof_status(atom: Atom, proof: Mapping[str, Any]) -> Status:
    """The state of a record in one proof file.  A record that differs from the proved one is "changed"."""
    found = proof["records"].get(atom.name)
    if found is None:
        return "unproven"
    if found["fingerprint"] != atom.fingerprint:
        return "changed"
    return "proven" if found["result"] == "proven" else "refuted"


def proof_summary(proof: Mapping[str, Any], atoms: Iterable[Atom]) -> dict[Status, list[str]]:
    """Names of the records by their state in one proof file, without those that its GPU does not execute."""
    found: dict[Status, list[str]] = {"proven": [], "refuted": [], "changed": [], "unproven": []}
    for atom in atoms:
        if atom.runs_on(proof["arch"]):
            found[proof_status(atom, proof)].append(atom.name)
    return found
