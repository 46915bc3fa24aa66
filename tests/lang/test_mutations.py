"""Mutated programs are compiled, or refused with an error meant for users (`bench/fuzz_frontend.py` tries 10,000)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dev.fuzz import mutate_croqtile
from dev.fuzz.mutate_python import HEADER, kernels_of, mutate, outcome
from tests.sampling import examples
from tilemma import croqtile
from tilemma.compiler import internal_error_guard
from tilemma.errors import CompileError
from tilemma.ir.tile import Kernel
from tilemma.lang import control

ROOT = Path(__file__).resolve().parents[2]
TESTS = sorted((ROOT / "tests/language").glob("*.py"))
SEEDS = kernels_of([*TESTS, *sorted((ROOT / "examples/py").glob("*.py"))])


def test_nothing_internal_reaches_the_user() -> None:
    kinds = set()
    for i in range(examples(600)):
        r = random.Random(i)
        found = outcome(mutate(r.choice(SEEDS), SEEDS, r), f"<mutated {i}>", "sm_80" if i % 4 == 0 else None)
        assert found.kind != "internal", f"seed {i}\n{found.text}\n{found.detail}"
        kinds.add(found.kind)
    assert kinds == {"compiled", "refused", "python"}


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return mutate_croqtile.texts_of([*TESTS, *sorted((ROOT / "examples/co").glob("*.co"))])


def test_nothing_internal_reaches_the_user_of_croqtile(texts: list[str]) -> None:
    kinds = set()
    for i in range(examples(600)):
        r = random.Random(i)
        arch = ("sm_80", "sm_90a")[i // 4 % 2] if i % 4 == 0 else None
        found = mutate_croqtile.outcome(mutate_croqtile.mutate(r.choice(texts), texts, r), f"mutated{i}.co", arch)
        assert found.kind != "internal", f"seed {i}\n{found.text}\n{found.detail}"
        kinds.add(found.kind)
    assert kinds == {"compiled", "refused"}


def test_the_kernels_that_are_mutated_are_right(texts: list[str]) -> None:
    assert len(SEEDS) > 50 and len(texts) > 50


def test_a_failure_of_ours_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the user's line, and without our traceback."""
    monkeypatch.setattr(control, "boolean", chr)
    text = HEADER + "@tm.kernel\ndef k(n: tm.Int):\n    with if_(n > 1):\n        pass\n"
    found = outcome(text, "<broken>")
    assert found.kind == "internal" and "front-end-failure" in found.detail and "TypeError: chr()" in found.detail


def test_a_failure_of_ours_in_croqtile_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the statement being read."""
    monkeypatch.setattr("tilemma.croqtile.control.branch_condition", lambda r, node, what: chr(node))
    text = "__co__ void f(global f32 [4] a, int n) {\n  parallel p by 1 : block {\n    if (n > 1) a.at(0) = 1;\n  }\n}"
    with pytest.raises(CompileError) as caught:
        croqtile.load(text, "broken.co").kernels["f"]
    e = caught.value
    assert e.code == "front-end-failure" and "TypeError" in e.message and e.span is not None and e.span.line == 3
    assert isinstance(e.cause, TypeError)
    assert mutate_croqtile.outcome(text, "broken.co").kind == "internal"


def test_a_failure_of_the_compiler_says_so() -> None:
    with pytest.raises(CompileError) as caught, internal_error_guard(Kernel("empty", (), ()), "deciding"):
        raise KeyError("x")
    assert caught.value.code == "compiler-failure" and isinstance(caught.value.cause, KeyError)
    assert caught.value.__suppress_context__
