"""Mutants of our own source: the operators change what they say, and a mutant is judged by its line's tests."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dev.source_mutation.coverage import Coverage, digest, ranked
from dev.source_mutation.operators import OPERATORS, mutants
from dev.source_mutation.survey import Limits, all_mutants, chosen_tests, draw

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''
def f(a: int, b: list[int]) -> int:
    """Text with 1 < 2 is left alone."""
    assert a > 0, "so are assertions"
    if a < len(b):
        b.append(a - 1)
        b[0] = 3
    a += 1
    for x in (y for y in b if y in (1, 2)):
        if x is None:
            raise ValueError(f"{a}")
    return a // 2 if a == 1 else (a
        % 4)
'''


@pytest.fixture
def written(tmp_path: Path) -> Path:
    (tmp_path / "m.py").write_text(SOURCE)
    return tmp_path


def test_the_operators(written: Path) -> None:
    found = {(m.operator, m.old, m.text) for m in mutants(written, "m.py")}
    assert {operator for operator, _, _ in found} == set(OPERATORS)
    expected = {
        ("comparison", "a < len(b)", "(a <= len(b))"),
        ("swapped operands", "a < len(b)", "(len(b) < a)"),
        ("negated condition", "a < len(b)", "(not (a < len(b)))"),
        ("swapped operands", "a - 1", "(1 - a)"),
        ("removed statement", "b.append(a - 1)", "pass"),
        ("dropped update", "b[0] = 3", "pass"),
        ("dropped update", "a += 1", "pass"),
        ("comparison", "y in (1, 2)", "(y not in (1, 2))"),
        ("removed statement", 'raise ValueError(f"{a}")', "pass"),
        ("negated condition", "a == 1", "(not (a == 1))"),
    }
    assert expected <= found
    assert not any("assert" in old or "Text" in old or old == "a > 0" or old == "int" for _, old, _ in found)


def test_every_mutant_is_a_program_with_the_same_lines(written: Path) -> None:
    for m in mutants(written, "m.py"):
        changed = m.applied(SOURCE)
        ast.parse(changed)
        assert changed != SOURCE and changed.count("\n") == SOURCE.count("\n")
    package = ROOT / "src" / "tilemma"
    for file in ("ir/expr.py", "croqtile/parse.py"):
        text = (package / file).read_text(encoding="utf-8")
        for m in mutants(package, file)[::5]:
            ast.parse(m.applied(text))


def test_a_draw_follows_from_its_seed() -> None:
    found = all_mutants(ROOT, ("runtime",))
    assert draw(found, 20, 1) == draw(found, 20, 1) != draw(found, 20, 2)
    assert len({m.file for m in draw(found, 60, 1)}) > 2


def test_near_and_quick_tests_come_first() -> None:
    told = {
        "t/a.py::far": {"seconds": 0.1, "lines": {"x.py": list(range(1, 400))}},
        "t/a.py::slow": {"seconds": 9.0, "lines": {"x.py": [7]}},
        **{f"t/b.py::near[{n}]": {"seconds": 0.1, "lines": {"x.py": [7]}} for n in range(20)},
    }
    coverage = ranked(told)
    names = [n for n, _ in coverage.covering("x.py", 7, 5.0)]
    assert all(n.startswith("t/b.py::near") for n in names[:2])
    assert "t/a.py::far" in names and "t/a.py::slow" not in names and len(names) < 12
    assert coverage.covering("x.py", 500, 5.0) == [] == coverage.covering("y.py", 1, 5.0)


def test_coverage_of_a_changed_file_is_not_used(written: Path) -> None:
    coverage = Coverage([], {}, {"m.py": digest(written / "m.py")})
    coverage.save(written / "coverage.gz")
    assert Coverage.load(written / "coverage.gz") == coverage and coverage.stale(written) == []
    (written / "m.py").write_text(SOURCE + "\n")
    assert coverage.stale(written) == ["m.py"]


# Tried in an interpreter of its own: a forked worker of pytest-xdist has threads and modules of other tests.
TRIALS = """
import json, sys
from pathlib import Path
from dev.source_mutation.operators import Mutant
from dev.source_mutation.survey import Limits, Place

place = Place(Path(sys.argv[1]))
tests = [("tests/ir/test_canonical.py", 1.0)]
try:
    for mutant, quick in json.loads(sys.argv[2]):
        tried = place.attempt(Mutant(**mutant), tests, Limits(1, 1, 2) if quick else Limits())
        print(json.dumps([tried.verdict, tried.by]))
    print(json.dumps([place.attempt(Mutant(**mutant), [], Limits()).verdict, ""]))
finally:
    place.close()
"""


def test_a_mutant_dies_of_its_test() -> None:
    """In a copy of the repository; the source here stays as it is."""
    package = ROOT / "src" / "tilemma"
    file = package / "ir" / "expr.py"
    before = file.read_text(encoding="utf-8")
    target = next(m for m in mutants(package, "ir/expr.py") if m.operator == "comparison")
    coverage = Coverage([("tests/ir/test_canonical.py", 1.0)], {"ir/expr.py": {str(target.line): [0]}})
    assert chosen_tests(coverage, target, Limits()) == [("tests/ir/test_canonical.py", 1.0)]
    end = len(before)
    harmless = replace(target, text=f"({target.old})")
    fatal = replace(target, line=1, start=end, end=end, text="\n1 / 0\n")
    endless = replace(fatal, text="\nwhile True:\n    pass\n")
    trials = [(asdict(harmless), False), (asdict(fatal), False), (asdict(endless), True)]
    command = [sys.executable, "-c", TRIALS, str(ROOT), json.dumps(trials)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    (survived, _), (killed, by), (timed_out, _), (uncovered, _) = map(json.loads, ran.stdout.splitlines())
    assert (survived, killed, timed_out, uncovered) == ("survived", "killed", "timed out", "uncovered")
    assert "ZeroDivisionError" in by
    assert file.read_text(encoding="utf-8") == before


def test_the_equivalent_mutants_are_explained() -> None:
    listed = json.loads((ROOT / "dev" / "source_mutation" / "equivalent.json").read_text(encoding="utf-8"))
    known = {m.key for m in all_mutants(ROOT)}
    for entry in listed:
        assert entry["mutant"] in known, f"not a mutant (any more): {entry['mutant']}"
        assert len(entry["why"]) > 20
