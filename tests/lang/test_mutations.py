"""Mutated kernels are compiled, or refused with an error meant for users (`bench/fuzz_frontend.py` tries 10,000)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tilemma.compiler import ours
from tilemma.errors import CompileError
from tilemma.ir.tile import Kernel
from tilemma.lang import control
from tilemma.tools.fuzz_mutate import HEADER, kernels_of, mutate, outcome

ROOT = Path(__file__).resolve().parents[2]
SEEDS = kernels_of([*sorted((ROOT / "tests/language").glob("*.py")), *sorted((ROOT / "examples/py").glob("*.py"))])


def test_nothing_internal_reaches_the_user() -> None:
    kinds = set()
    for i in range(400):
        r = random.Random(i)
        found = outcome(mutate(r.choice(SEEDS), SEEDS, r), f"<mutated {i}>", "sm_80" if i % 4 == 0 else None)
        assert found.kind != "internal", f"seed {i}\n{found.text}\n{found.detail}"
        kinds.add(found.kind)
    assert kinds == {"compiled", "refused", "python"}


def test_the_kernels_that_are_mutated_are_right() -> None:
    assert len(SEEDS) > 50


def test_a_failure_of_ours_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the user's line, and without our traceback."""
    monkeypatch.setattr(control, "_condition", chr)
    text = HEADER + "@tm.kernel\ndef k(n: tm.Int):\n    with if_(n > 1):\n        pass\n"
    found = outcome(text, "<broken>")
    assert found.kind == "internal" and "front-end-failure" in found.detail and "TypeError: chr()" in found.detail


def test_a_failure_of_the_compiler_says_so() -> None:
    with pytest.raises(CompileError) as caught, ours(Kernel("empty", (), ()), "deciding"):
        raise KeyError("x")
    assert caught.value.code == "compiler-failure" and isinstance(caught.value.cause, KeyError)  # type: ignore[attr-defined]
    assert caught.value.__suppress_context__
