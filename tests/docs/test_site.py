"""The site: every page is made, every link leads somewhere, and the snippets of the gallery's pages run."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from blocks import blocks, run_python

from dev import site
from dev.gallery import ENTRIES
from dev.pages import gallery

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ENTRIES)
def test_snippets_of_the_gallery_run(name: str) -> None:
    """A kernel is read from the text of the page, as a reader would copy it."""
    scope: dict[str, Any] = {"__name__": "page"}
    found = [b for b in blocks(gallery.page(ENTRIES[name])) if b.language == "python"]
    assert len(found) == 2
    for block in found:
        run_python(Path(f"gallery/{name}.md"), block, scope)


def test_the_table_of_the_gallery_is_current() -> None:
    text = gallery.PAGE.read_text(encoding="utf-8")
    assert gallery.document(text) == text, "rewrite it: python -m dev.pages.gallery"


def test_pictures_show_every_buffer_and_fragment() -> None:
    for name in ("softmax", "gated_mlp"):
        entry = ENTRIES[name]
        plan = gallery.kernel(name).compile("sm_90a", sizes=entry.example).explain().to_json()
        drawn = gallery.picture(entry)
        for part in (*plan["buffers"], *(f for f in plan["fragments"] if f["registers"])):
            assert f"{part['name']}: {part['dtype']} {part['shape']}" in drawn


def test_every_page_is_in_the_menu_and_every_link_leads_somewhere() -> None:
    texts, files = site.pages()
    menu = str(site.navigation(texts))
    for path, text in texts.items():
        assert not path.endswith(".md") or f"'{path}'" in menu
        assert text.strip(), path
    assert {p.stem for p in site.notebooks()} <= {Path(p).stem for p in texts if p.startswith("notebooks/")}
    assert all(p.is_file() for p in files.values())


def test_links_are_as_on_the_site(tmp_path: Path) -> None:
    files: dict[str, Path] = {}
    readme, ops = ROOT / "README.md", ROOT / "docs" / "ops.md"
    text = "[a](docs/ops.md#plans) ![b](docs/performance/ops.svg) `[c](d)` [e](https://x.org) [f](CONTRIBUTING.md)"
    wanted = "[a](ops.md#plans) ![b](performance/ops.svg) `[c](d)` [e](https://x.org) [f](contributing.md)"
    assert site.linked(text, readme, files) == wanted
    assert set(files) == {"performance/ops.svg"}
    kernel = "[s](../examples/gallery/softmax.py)"
    assert site.linked(kernel, ops, files) == "[s](gallery/softmax.md)"
    with pytest.raises(site.BrokenLink, match=r"nowhere\.md"):
        site.linked("[g](nowhere.md)", ops, files)


def test_what_a_page_would_fetch_is_found(tmp_path: Path) -> None:
    own = '<link rel="canonical" href="https://x.org/p.html"><img src="a.svg"><a href="https://x.org">x</a>'
    (tmp_path / "a.html").write_text(own, encoding="utf-8")
    assert site.fetched(tmp_path) == []
    (tmp_path / "b.html").write_text(f'{own}<script async src="//x.org/y.js"></script>', encoding="utf-8")
    assert len(site.fetched(tmp_path)) == 1


@pytest.mark.slow  # CI builds the site itself, by this command
def test_it_is_built_without_a_network(tmp_path: Path) -> None:
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material, the extra `site`, is not installed")
    command = [sys.executable, "-m", "dev.site", "--folder", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    built = tmp_path / "site" / "html"
    assert (built / "search" / "search_index.json").stat().st_size > 100_000


def test_pages_that_a_sentence_names_are_links() -> None:
    text = "See `docs/tuning.md` (docs/ops.md).\n\n```\ndocs/ops.md\n```\n`see docs/ops.md` and [it](docs/ops.md)."
    made = site.linked(text, site.ROOT / "README.md", {})
    assert made.startswith("See [Time and tune kernels](tuning.md) ([")
    assert "](ops.md)).\n\n```\ndocs/ops.md\n```\n`see docs/ops.md` and [it](ops.md)." in made
