"""A fixed sample of `bench/fuzz_api.py`: odd calls, command lines and PTX end well, or with an error of ours."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from pathlib import Path

import pytest

from dev.fuzz import api

COUNTS = {"calls": 300, "command lines": 60, "PTX": 60}


@pytest.mark.parametrize("kind", COUNTS)
def test_a_sample(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = api.KINDS[kind](tmp_path)
    found: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(COUNTS[kind]):
            outcome = api.outcome(source.case(random.Random(i)))
            found[outcome.kind] += 1
            assert outcome.kind in ("success", "refused"), f"{outcome.text}\n{outcome.detail}"
    assert found["success"] and (kind == "command lines" or found["refused"])


def test_every_public_name_is_called() -> None:
    import tilemma

    called = " ".join(f.name for f in api.functions())
    # Types, errors, and names that are no functions.
    others = [
        "Bool",
        "CompileError",
        "Double",
        "Float",
        "Int",
        "Int64",
        "LaunchError",
        "TilemmaError",
        "ToolError",
    ]
    others += ["full", "break_", "continue_", "else_", "sync", "targets"]
    missing = [name for name in tilemma.__all__ if name not in others and name not in called]
    assert missing == []


def test_what_is_wrong_is_seen() -> None:
    def broken() -> None:
        raise KeyError("x")

    def endless() -> None:
        while True:
            pass

    def ours() -> None:
        from tilemma.errors import FrontEndFailure

        raise FrontEndFailure(what="x")

    seconds = api.SECONDS
    api.SECONDS = 1
    try:
        kinds = [api.outcome(api.Case("", work)).kind for work in (broken, endless, ours, lambda: None)]
    finally:
        api.SECONDS = seconds
    assert kinds == ["raw", "hang", "internal", "success"]
