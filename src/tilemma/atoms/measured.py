"""The measured latency and rate of each instruction: `measured.json`, which `bench/time_atoms.py` writes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tilemma.records import record


@record
class Measured:
    """``latency`` in clocks, ``rate`` in multiply-adds per SM and clock (None for copies), on ``device``.

    `bench/time_atoms.py` says what each is.
    """

    arch: str
    device: str
    date: str
    latency: float
    rate: float | None


@cache
def _file() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(__file__).parent / "measured.json").read_text())
    return content


def measured(name: str) -> Measured | None:
    """The measurement of the record of this name, None if it has none."""
    file = _file()
    found = file["records"].get(name)
    if found is None:
        return None
    return Measured(file["arch"], file["device"], file["date"], found["latency"], found.get("rate"))
