"""What users get: the files of the wheel and of the source distribution, settings, the cache and the examples."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tilemma as tm
from tilemma.assemble import DiskCache, cache
from tilemma.cli import main
from tilemma.tools import cache as report
from tilemma.tools import examples

# Errors whose advice a test here follows.
FOLLOWED = frozenset({"no-such-cache-kind"})
ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def call(*args: str) -> Result:
    return CliRunner().invoke(main, list(args), catch_exceptions=False)


def sources(folder: str) -> list[Path]:
    """The files below a folder of this tree that are not made by running it."""
    made = ("__pycache__", ".egg-info", ".pyc")
    return [p for p in (ROOT / folder).rglob("*") if p.is_file() and not any(m in str(p) for m in made)]


def test_every_file_of_the_package_is_in_the_wheel() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["tilemma"]
    data = [p.relative_to(ROOT / "src/tilemma").as_posix() for p in sources("src/tilemma") if p.suffix != ".py"]
    left_out = [f for f in data if not any(fnmatch.fnmatch(f, q.removeprefix("**/")) for q in patterns)]
    assert not left_out and "py.typed" in data


def test_every_example_that_the_command_writes_is_in_the_wheel() -> None:
    folders = PROJECT["tool"]["setuptools"]["data-files"]
    shipped = {f for globs in folders.values() for g in globs for f in ROOT.glob(g)}
    assert {ROOT / "examples" / n for n in examples.names()} == shipped
    assert all(Path(to).relative_to("share/tilemma") == Path(g[0]).parent for to, g in folders.items())


def test_the_version_is_one() -> None:
    assert tm.__version__ == PROJECT["project"]["version"]
    assert f"## {tm.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_all_settings_are_documented() -> None:
    page = (ROOT / "docs/installing.md").read_text()
    known = set(re.findall(r"`(TILEMMA_[A-Z_]+)`", page))
    read = {
        name
        for folder in ("src", "tests")
        for path in sources(folder)
        if path.suffix == ".py" and path != Path(__file__)
        for name in re.findall(r"[\"'](TILEMMA_[A-Z_]+)[\"']", path.read_text())
    }
    assert known == read


def test_all_kinds_of_entries_are_described() -> None:
    text = "".join(p.read_text() for p in sources("src/tilemma") if p.suffix == ".py")
    assert set(re.findall(r"DiskCache\(\"(\w+)\"\)", text)) == set(report.KINDS)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path / "cache"))
    for kind in ("ptx", "plans"):
        for i in range(3):
            DiskCache(kind).put(DiskCache.key(i), bytes(1000))
    return tmp_path / "cache"


def test_the_cache_is_shown_and_cleared(store: Path) -> None:
    shown = json.loads(call("cache", "--json").output)
    assert shown["folder"] == str(store) and shown["usable"] and shown["limit"] == cache.size_limit()
    assert {k["kind"]: k["entries"] for k in shown["kinds"]} == {"plans": 3, "ptx": 3}
    assert all(k["size"] > 3000 for k in shown["kinds"])
    one = json.loads(call("cache", "--clear", "--kind", "ptx", "--json").output)
    assert one["removed"] == {"ptx": 3} and one["kinds"] == []
    assert DiskCache("ptx").get(DiskCache.key(0)) is None and DiskCache("plans").get(DiskCache.key(0)) is not None
    assert "plans" in call("cache").output
    assert "removed 3 entries" in call("cache", "--clear").output
    assert "plans" not in call("cache").output


def test_an_unknown_kind_is_refused(store: Path) -> None:
    result = call("cache", "--clear", "--kind", "plan", "--json")
    error = json.loads(result.output)["error"]
    assert result.exit_code == 2 and error["code"] == "no-such-cache-kind"
    assert DiskCache("plans").get(DiskCache.key(0)) is not None
    named = re.search(r"did you mean `(\w+)`", error["fix"])
    assert named is not None and call("cache", "--clear", "--kind", named[1]).exit_code == 0
    assert DiskCache("plans").get(DiskCache.key(0)) is None


def test_a_folder_that_others_can_write_is_left_alone(store: Path) -> None:
    store.chmod(0o777)
    assert (
        not json.loads(call("cache", "--clear", "--json").stdout)["usable"]
        and len(list(store.rglob("*/??/*"))) == 6
    )


def test_files_of_others_in_the_folder_stay(store: Path) -> None:
    kept = [
        store / "photos" / "2024" / "a.jpg",
        store / "ptx" / "ab" / "notes.txt",
        store / "ptx" / "zz" / ("0" * 62),
    ]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"mine")
    cache.evict(store, 0)
    call("cache", "--clear")
    assert all(path.read_bytes() == b"mine" for path in kept)
    assert [p.parent.name for p in store.rglob("?" * 62)] == ["zz"]


def test_no_cache_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEMMA_CACHE", "")
    assert "no cache" in call("cache", "--clear").output


def test_examples_are_written_where_readme_finds_them(tmp_path: Path) -> None:
    result = call("examples", str(tmp_path / "examples"))
    assert result.exit_code == 0
    readme = set(re.findall(r"examples/[\w/]+\.(?:co|py|ptx)", (ROOT / "README.md").read_text()))
    assert readme and all((tmp_path / f).read_bytes() == (ROOT / f).read_bytes() for f in readme)
    assert call("examples", str(tmp_path / "examples")).exit_code == 0
    assert call("examples", "").exit_code == 2
    (tmp_path / "examples/co/plain.co").write_text("mine")
    assert call("examples", str(tmp_path / "examples")).exit_code == 2
    assert (tmp_path / "examples/co/plain.co").read_text() == "mine"


def test_missing_examples_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(examples, "__file__", str(tmp_path / "a/b/c/examples.py"))
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    result = call("examples")
    assert result.exit_code == 2 and "not installed" in result.stderr


@pytest.mark.slow
def test_the_source_distribution_is_whole_and_tests_itself(tmp_path: Path) -> None:
    """Also that its wheel brings the commands and the examples, in an environment of its own."""
    tree = tmp_path / "tree"
    made = (".git", ".carry", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*made))
    environment = tmp_path / "environment"

    def run(*command: str, at: Path = tree) -> None:
        ran = subprocess.run(command, cwd=at, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]

    run(sys.executable, "-m", "venv", str(environment))
    python = str(environment / "bin/python")
    run(python, "-m", "pip", "install", "-q", "build")
    run(python, "-m", "build", "-q", "--outdir", str(tmp_path / "dist"), str(tree))
    (archive,) = (tmp_path / "dist").glob("*.tar.gz")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    with zipfile.ZipFile(wheel) as z:
        assert not [n for n in z.namelist() if "/tests/" in n or n.startswith(("dev/", "bench/", "tests/"))]
    run(python, "-m", "pip", "install", "-q", f"{wheel}", "pytest", "pytest-xdist", "hypothesis", "lark")
    run(str(environment / "bin/tilemma"), "examples", "examples", at=tmp_path)
    run(str(environment / "bin/tilemma"), "explain", "examples/co/plain.co", at=tmp_path)
    run(python, "-m", "pytest", "-q", "tests/test_layers.py", "tests/layouts", "tests/ir", at=unpacked)
