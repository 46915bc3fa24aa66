"""Mutants of the package's source: each operator makes its change, and a mutant is run against its line's
tests."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dev.source_mutation.collect import Collector, import_package, spread_first
from dev.source_mutation.coverage import Parts, moved_lines, ranked
from dev.source_mutation.operators import OPERATORS, Mutant, mutants
from dev.source_mutation.probes import STORE, Probes, instrument
from dev.source_mutation.survey import Limits, all_mutants, chosen_tests, draw
from dev.source_mutation.warm import RunsAtImport, changed_functions

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
    if b[0] == b[-1]:
        raise AssertionError(b)
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
    expected |= {("off by one", "0", "1"), ("off by one", "1", "2")}
    assert expected <= found
    assert not any("AssertionError" in old or (old, text) == ("0", "(-1)") for _, old, text in found)
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
    found = all_mutants(ROOT, "runtime")
    assert draw(found, 20, 1) == draw(found, 20, 1) != draw(found, 20, 2)
    assert len({m.file for m in draw(found, 60, 1)}) > 2


def test_near_and_quick_tests_come_first() -> None:
    told = {
        "t/a.py::far": {"seconds": 0.1, "lines": {"x.py": [7], "other.py": list(range(1, 400))}},
        "t/a.py::slow": {"seconds": 9.0, "lines": {"x.py": [7]}},
        **{f"t/b.py::near[{n}]": {"seconds": 0.1, "lines": {"x.py": [7]}} for n in range(100)},
    }
    coverage = ranked(told)
    names = [n for n, _ in coverage.covering([("x.py", 7)], 20.0)]
    assert names[0].startswith("t/b.py::near")
    assert "t/a.py::far" in names and len(names) == 62
    much = ranked(told | {"t/c.py::much": {"seconds": 0.1, "lines": {"x.py": list(range(400))}}})
    assert much.covering([("x.py", 7)], 20.0)[0][0] == "t/c.py::much"
    assert coverage.covering([("x.py", 500)], 5.0) == [] == coverage.covering([("y.py", 1)], 5.0)
    assert "t/a.py::slow" not in [n for n, _ in coverage.covering([("x.py", 7)], 8.0)]


def test_tests_that_run_other_lines_come_early() -> None:
    """Many run the same lines; the one that goes another way through the function is among the first."""
    same = {f"t/a.py::f{n}": {"seconds": 0.1, "lines": {"x.py": [7, 8, 9, *range(20, 60)]}} for n in range(90)}
    rare = {"t/b.py::rare": {"seconds": 0.5, "lines": {"x.py": [7, 8, 10], "y.py": list(range(3000))}}}
    names = [n for n, _ in ranked(same | rare).covering([("x.py", 7)], 20.0, range(7, 11))]
    assert names.index("t/b.py::rare") < 5
    both = ranked({"a": {"seconds": 1.0, "lines": {"x.py": [7]}}, "b": {"seconds": 1.0, "lines": {"y.py": [3]}}})
    assert {n for n, _ in both.covering([("x.py", 7), ("y.py", 3)], 20.0)} == {"a", "b"}
    assert both.nearest("x.py", 400) == 7 and both.nearest("z.py", 400) is None
    assert both.covering([("x.py", 7), ("z.py", 3)], 20.0) == [("a", 1.0)]


def test_tests_of_the_module_come_first() -> None:
    """Those of a file that is named after it, among many that say less for their time."""
    told = {
        f"tests/t/test_a.py::f{n}": {"seconds": 0.1, "lines": {"x.py": [7, 8, *range(20, 60)]}} for n in range(300)
    }
    own = {f"tests/far/test_{name}.py::f": {"seconds": 0.1, "lines": {"x.py": [7], "y.py": list(range(500))}}
           for name in ("x", "x_of_y", "some_x", "xs", "max")}  # fmt: skip
    names = [n for n, _ in ranked(told | own).covering([("x.py", 7)], 10.0, stem="x")]
    first = {n.partition("::")[0].rpartition("/")[2] for n in names[:9]}
    assert first & {f"test_{name}.py" for name in ("x", "x_of_y", "some_x", "xs", "max")} == {
        "test_x.py", "test_x_of_y.py", "test_some_x.py"}  # fmt: skip


def test_a_survivor_meets_the_other_tests() -> None:
    """More than the first round has room for; none twice, none that is too long."""
    told = {f"t/a.py::f{n}": {"seconds": 0.1, "lines": {"x.py": [7, n]}} for n in range(10, 600)}
    told["t/a.py::long"] = {"seconds": 50.0, "lines": {"x.py": [7]}}
    coverage = ranked(told)
    first = coverage.covering([("x.py", 7)], 10.0)
    every = coverage.covering([("x.py", 7)], 10.0, more=49.5)
    assert len(first) == 100 - 1 or len(first) == 100
    assert every[: len(first)] == first and len(set(every)) == len(every) == len(told) - 1
    limits = Limits(10.0, rest=49.5)
    assert limits.first(every) == first
    assert len(coverage.covering([("x.py", 7)], 10.0, more=20.0)) in range(len(first) + 195, len(first) + 201)


def test_cases_that_were_not_run_have_the_lines_of_one_that_was(tmp_path: Path) -> None:
    (tmp_path / "src" / "tilemma" / "ir").mkdir(parents=True)
    (tmp_path / "src" / "tilemma" / "ir" / "m.py").write_text(SOURCE)
    (tmp_path / "test_x.py").write_text("")
    collector = Collector(Probes(tmp_path))
    cases = {"f[a]": 0.1, "f[b]": 0.3, "g": 0.2}
    collector.found = {f"test_x.py::{n}": {"seconds": s, "lines": {"ir/m.py": [5]}} for n, s in cases.items()}
    collector.ran = set(collector.found) - {"test_x.py::g"}
    collector.left_out = ["test_x.py::f[c]", "test_x.py::g[c]"]
    parts = Parts(tmp_path, tmp_path / "coverage")
    parts.save("test_x.py", collector.passed())
    told = parts.merged(["test_x.py"]).covering([("ir/m.py", 5)], 1.0)
    assert sorted(told) == [("test_x.py::f[a]", 0.1), ("test_x.py::f[b]", 0.3), ("test_x.py::f[c]", 0.3)]


def test_lines_that_run_at_import_meet_the_tests_of_their_uses() -> None:
    """A default value those that run the function, a constant those that run a line with its name."""
    source = (ROOT / "src" / "tilemma" / "runtime" / "binding.py").read_text(encoding="utf-8").splitlines()

    def tests_of(text: str, runs: str) -> list[str]:
        line, ran = (next(n for n, x in enumerate(source, 1) if t in x) for t in (text, runs))
        told = {"one": {"seconds": 0.1, "lines": {"runtime/binding.py": [ran]}},
                "two": {"seconds": 0.1, "lines": {"runtime/binding.py": [1 + ran]}}}  # fmt: skip
        mutant = Mutant("runtime/binding.py", line, "off by one", 0, 0, "", "")
        return [name for name, _ in chosen_tests(ranked(told), mutant, Limits())]

    assert tests_of("_GRID_LIMIT = ", "strict=True)):") == ["one"]
    assert tests_of("created: frozenset[str] = frozenset()", "kernel = kernel or launch.entry") == ["one"]
    assert tests_of('code = "wrong-call"', "signature = ") == ["one"]


def test_lines_that_run_only_at_import_meet_the_nearest_tests() -> None:
    """The body of a function that decorates others runs before any test."""
    source = (ROOT / "src" / "tilemma" / "croqtile" / "reader.py").read_text(encoding="utf-8").splitlines()
    line, ran = (next(n for n, x in enumerate(source, 1) if t in x) for t in ("_READERS[kind] =", "(_READERS)"))
    told = {"one": {"seconds": 0.1, "lines": {"croqtile/reader.py": [ran]}},
            "two": {"seconds": 0.1, "lines": {"croqtile/reader.py": [ran + 9]}}}  # fmt: skip
    mutant = Mutant("croqtile/reader.py", line, "dropped update", 0, 0, "", "")
    assert [name for name, _ in chosen_tests(ranked(told), mutant, Limits())] == ["one"]


def test_coverage_follows_the_source(tmp_path: Path) -> None:
    """Lines move with the text of a source; a test whose file, source or shared module changed is stale."""
    test, source = tmp_path / "test_x.py", tmp_path / "src" / "tilemma" / "ir" / "m.py"
    source.parent.mkdir(parents=True)
    told = {"test_x.py::a": {"seconds": 0.5, "lines": {"ir/m.py": [5, 6]}}}
    test.write_text("def test_a(): pass\n")
    source.write_text(SOURCE)
    parts = Parts(tmp_path, tmp_path / "coverage")
    assert parts.load("test_y.py") is None
    parts.save("test_x.py", told)
    assert parts.load("test_x.py") == told and parts.stale(["test_x.py"]) == []
    shared = tmp_path / "tests" / "shared.py"
    shared.parent.mkdir()
    shared.write_text("n = 1\n")
    assert parts.stale(["test_x.py"]) == ["test_x.py"]
    parts.save("test_x.py", told)
    assert parts.stale(["test_x.py"]) == []
    assert parts.merged(["test_x.py"]).covering([("ir/m.py", 6)], 1.0) == [("test_x.py::a", 0.5)]
    source.write_text("# One line more.\n" + SOURCE)
    assert Parts(tmp_path, tmp_path / "coverage").load("test_x.py")["test_x.py::a"]["lines"] == {"ir/m.py": [6, 7]}
    assert parts.stale(["test_x.py"]) == ["test_x.py"]
    source.write_text(SOURCE)
    assert parts.stale(["test_x.py", "test_y.py"]) == ["test_y.py"]
    test.write_text("def test_b(): pass\n")
    assert parts.stale(["test_x.py", "test_y.py"]) == ["test_x.py", "test_y.py"]
    assert parts.merged(["test_x.py"]).tests == [("test_x.py::a", 0.5)]


def test_lines_move_with_their_text() -> None:
    before = "a\nb\nc\nd\n"
    assert moved_lines(before, before) == {1: [1], 2: [2], 3: [3], 4: [4]}
    assert moved_lines(before, "a\nx\ny\nc\nd\n") == {1: [1], 2: [2, 3], 3: [4], 4: [5]}
    assert moved_lines(before, "a\nb\nnew\nd\n") == {1: [1], 2: [2], 3: [3], 4: [4]}
    assert moved_lines(before, "a\nd\nnew\n") == {1: [1], 2: [], 3: [], 4: [2, 3]}


def test_the_functions_that_a_mutant_changes() -> None:
    """A mutant of what a module executes is no mutant of a function."""

    def changed(old: str, new: str) -> set[str]:
        code = [compile(x, "m.py", "exec") for x in (TWO_FUNCTIONS, TWO_FUNCTIONS.replace(old, new))]
        return {c.co_qualname for c in changed_functions(*code)}

    assert changed("x < 1", "x <= 1") == {"A.f", "A.f.<locals>.<lambda>"}
    assert changed("return 2", "return 3") == {"g"}
    assert changed("", "") == set()
    for old, new in (("TOP = 5", "TOP = 6"), ("n=7", "n=8"), ("v > 3", "v > 4"), ("SIZE = 9", "SIZE = 8")):
        with pytest.raises(RunsAtImport):
            changed(old, new)


TWO_FUNCTIONS = """
TOP = 5
LONG = [v for v in (1, 9) if v > 3]
class A:
    SIZE = 9
    def f(self, n=7):
        return lambda x: x < 1
def g():
    return 2
"""


STATEMENTS = '''
x = __file__
def f(a):
    """Text."""
    for i in range(a):
        if i == 1 or (
            i == 3
        ):
            continue
        try:
            g = lambda: (
                i)
            1 // (2 - i)
        except ZeroDivisionError:
            return (
                g())
    else:
        with open(x):
            def inner():
                return 7
    match a:
        case 0:
            return None
    return 5
'''


@pytest.mark.parametrize(
    ("argument", "result", "lines"),
    [
        (0, None, "5 17 18 19 21 22 23"),
        (1, 5, "5 6 7 8 10 11 12 13 14 17 18 19 21 22 24"),
        (3, 2, "5 6 7 8 9 10 11 12 13 14 15 16 17"),
    ],
)
def test_lines_of_the_statements_that_ran(argument: int, result: int | None, lines: str) -> None:
    """Every line of a statement counts, without those of statements inside it."""
    tree = ast.parse(STATEMENTS)
    places = instrument(tree)
    ran = bytearray(len(places))
    names: dict[str, Any] = {STORE: ran, "__file__": __file__}
    exec(compile(tree, "statements", "exec"), names)
    assert not any(ran) and names["f"](argument) == result
    found = {line for n, hit in enumerate(ran) if hit for line in places[n]}
    assert found == set(map(int, lines.split()))


@pytest.mark.slow
def test_coverage_is_collected(tmp_path: Path) -> None:
    """In an interpreter of its own, which has not imported the package."""
    command = [sys.executable, "bench/mutate_source.py", "--collect", "--tests", "ir/test_program_points",
               "--coverage", str(tmp_path)]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    file = "tests/ir/test_program_points.py"
    told = Parts(ROOT, tmp_path).load(file)
    assert told is not None
    lines = (ROOT / "src" / "tilemma" / "ir" / "program_points.py").read_text(encoding="utf-8").splitlines()
    at = 1 + next(n for n, line in enumerate(lines) if "self.insertions.append" in line)
    covering = {
        name.partition("::")[2] for name, x in told.items() if at in x["lines"].get("ir/program_points.py", ())
    }
    assert covering == {
        "test_what_is_put_in_earlier_moves_what_follows_and_nothing_else",
        "test_a_point_behind_what_was_put_in_stays_where_it_is",
    }
    # Forks of a process with these tests find the functions that mutants change.
    log, options = tmp_path / "log", ["--only", "ir/program_points", "--count", "8", "--quick"]
    quick = [*command[:2], *command[3:], *options, "--log", str(log)]
    subprocess.run(quick, cwd=ROOT, check=True, capture_output=True, timeout=600)
    verdicts = [json.loads(x)["verdict"] for x in log.read_text().splitlines()]
    assert "killed" in verdicts and verdicts.count("at import") < 4


def test_the_module_that_runs_the_command_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("__init__", ""), ("__main__", "1 / 0"), ("ordinary", "")):
        (tmp_path / "imported_whole").mkdir(exist_ok=True)
        (tmp_path / "imported_whole" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    import_package(tmp_path / "imported_whole")
    assert "imported_whole.ordinary" in sys.modules


def test_cases_far_apart_come_first() -> None:
    assert spread_first(range(10), 3) == [0, 3, 6, 1, 2, 4, 5, 7, 8, 9]
    assert spread_first("ab", 3) == ["a", "b"] and spread_first("abc", 3) == ["a", "b", "c"]


# Tried in an interpreter of its own: a forked worker of pytest-xdist has threads and modules of other tests.
TRIALS = """
import json, sys
from pathlib import Path
from dev.source_mutation.operators import Mutant
from dev.source_mutation.probes import STORE, instrument
from dev.source_mutation.survey import Limits, Repository

place = Repository(Path(sys.argv[1]))
tests = [("tests/ir/test_canonical.py", 1.0)]
try:
    for mutant, quick in json.loads(sys.argv[2]):
        tried = place.attempt(Mutant(**mutant), tests, Limits(1, 1, 2) if quick else Limits())
        print(json.dumps([tried.verdict, tried.by]))
    print(json.dumps([place.attempt(Mutant(**mutant), [], Limits()).verdict, ""]))
    (place.root / "tests" / "test_wrong.py").write_text("def test_it(): assert False")
    (place.root / "tests" / "test_endless.py").write_text("def test_it():\\n    while True: pass")
    endless = [("tests/test_endless.py::test_it", 0.1), ("tests/ir/test_canonical.py", 30.0)]
    print(json.dumps(place.run(endless, Limits(more=2))))
    harmless, _ = json.loads(sys.argv[2])[0]
    tried = place.attempt(Mutant(**harmless), [("tests/test_wrong.py::test_it", 1.0), *tests], Limits())
    print(json.dumps([tried.verdict, " ".join(place.unsound)]))
finally:
    place.close()
"""


@pytest.mark.slow
def test_a_mutant_dies_of_its_test() -> None:
    """In a copy of the repository; the source here stays as it is."""
    package = ROOT / "src" / "tilemma"
    file = package / "ir" / "expr.py"
    before = file.read_text(encoding="utf-8")
    target = next(m for m in mutants(package, "ir/expr.py") if m.operator == "comparison")
    coverage = ranked({"tests/ir/test_canonical.py": {"seconds": 1.0, "lines": {"ir/expr.py": [target.line]}}})
    assert chosen_tests(coverage, target, Limits()) == [("tests/ir/test_canonical.py", 1.0)]
    end = len(before)
    harmless = replace(target, text=f"({target.old})")
    fatal = replace(target, line=1, start=end, end=end, text="\n1 / 0\n")
    endless = replace(fatal, text="\nwhile True:\n    pass\n")
    trials = [(asdict(harmless), False), (asdict(fatal), False), (asdict(endless), True)]
    command = [sys.executable, "-c", TRIALS, str(ROOT), json.dumps(trials)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    (survived, _), (killed, by), (timed_out, _), (uncovered, _), endless_test, unsound = map(
        json.loads, ran.stdout.splitlines()
    )
    # Each test has its own time, so that one without an end does not take that of the others.
    assert endless_test == ["timed out", ""]
    assert (survived, killed, timed_out, uncovered) == ("survived", "killed", "timed out", "uncovered")
    assert "ZeroDivisionError" in by
    assert unsound == ["survived", "tests/test_wrong.py::test_it"]
    assert file.read_text(encoding="utf-8") == before


@pytest.mark.slow
def test_the_equivalent_mutants_are_explained() -> None:
    listed = json.loads((ROOT / "dev" / "source_mutation" / "equivalent.json").read_text(encoding="utf-8"))
    known = {m.key for m in all_mutants(ROOT)}
    for entry in listed:
        assert entry["mutant"] in known, f"not a mutant (any more): {entry['mutant']}"
        assert len(entry["why"]) > 20
