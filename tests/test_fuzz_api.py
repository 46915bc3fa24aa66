"""A fixed sample of `bench/fuzz_api.py`: random calls, command lines and PTX give a result or an error of the
family."""

from __future__ import annotations

import importlib
import random
import re
import warnings
from collections import Counter
from pathlib import Path

import pytest

import tilemma
from dev.fuzz import api, ptx_texts

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


# Public names that are types without a constructor of their own use, results, errors, or no functions.
NOT_CALLED = {
    "tilemma": (
        "Bool", "Double", "Float", "Int", "Int64", "full", "break_", "continue_", "else_", "sync", "targets",
        "layouts", "sparse", "Tile", "Value",
    ),
    "tilemma.layouts": ("BankReport", "Major", "SWIZZLES", "SharedLayout"),
    "tilemma.cute": ("ThrMMA",),
    "tilemma.assemble": (
        "Ahead", "Assembly", "Cubin", "EntryUsage", "PtxasMessage", "Stored", "Tool", "cache_folder", "seek",
        "stated_options",
    ),
    "tilemma.machine": ("Advice", "PerformanceNote", "advise", "Report", "Verdict", "catalogue"),
    "tilemma.testing": ("Activation", "Guarded", "accumulation_bound", "epilogue_bound"),
    "tilemma.ops": ("Report",),
    "tilemma.targets": ("BUILT_IN", "Target"),
    "tilemma.atoms": ("Atom", "Catalogue", "DECLARED", "Family", "Immediate", "Rate", "Selection", "catalogue"),
}  # fmt: skip


@pytest.mark.parametrize("module", NOT_CALLED)
def test_every_public_name_is_called(module: str) -> None:
    called = {part for f in api.every_function() for part in re.split(r"\W+", f.name)}
    content = importlib.import_module(module)
    own = [n for n, v in vars(content).items() if n[0] != "_" and getattr(v, "__module__", "") == module]
    missing = []
    for name in getattr(content, "__all__", own):
        value = getattr(content, name)
        is_error = isinstance(value, type) and issubclass(value, BaseException)
        if not (is_error or name in NOT_CALLED[module] or name in called):
            missing.append(name)
    assert missing == []


def test_every_directive_of_the_parser_is_written() -> None:
    words = re.compile(r'"(\.[a-z_]+)"')
    folder = Path(tilemma.__file__).parent / "machine"
    known = {w for name in ("parser", "body") for w in words.findall((folder / f"{name}.py").read_text())}
    written = " ".join((*ptx_texts.MODULE, *ptx_texts.ENTRY, *ptx_texts.BODY))
    # Endings of file names, and parts of operands.
    others = {".ptx", ".txt", ".cubin", ".s"}
    assert sorted(w for w in known - others if not re.search(rf"\{w}\b", written)) == []


def test_what_is_wrong_is_seen() -> None:
    def broken() -> None:
        raise KeyError("x")

    def endless() -> None:
        while True:
            pass

    def ours() -> None:
        from tilemma.errors import FrontEndFailure

        raise FrontEndFailure(what="x")

    kinds = [api.outcome(api.Case("", work, 0.5)).kind for work in (broken, endless, ours, lambda: None)]
    assert kinds == ["raw", "hang", "internal", "success"]
