"""The notebooks run, and are those of the Python files beside them."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dev.pages import notebooks

AGAIN = "rewrite them: python -m dev.pages.notebooks"


@pytest.fixture(scope="module", params=notebooks.sources(), ids=lambda p: p.stem)
def pair(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    """A notebook as its source gives it now, executed, and the file."""
    path: Path = request.param
    return notebooks.notebook(path), json.loads(path.with_suffix(".ipynb").read_text(encoding="utf-8"))


def test_cells_are_those_of_the_source(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    made, kept = pair
    assert kept["nbformat"] == 4 and len({c["id"] for c in kept["cells"]}) == len(kept["cells"])
    assert [(c["cell_type"], c["source"]) for c in made["cells"]] == [
        (c["cell_type"], c["source"]) for c in kept["cells"]
    ], AGAIN


def _kinds(notebook: dict[str, Any]) -> list[list[tuple[str, list[str]]]]:
    return [
        [(o["output_type"], sorted(o.get("data", {}))) for o in c["outputs"]]
        for c in notebook["cells"]
        if c["cell_type"] == "code"
    ]


def test_outputs_are_of_the_same_kinds(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    made, kept = pair
    assert _kinds(made) == _kinds(kept), AGAIN


def _text(notebook: dict[str, Any]) -> str:
    outputs = [o for c in notebook["cells"] if c["cell_type"] == "code" for o in c["outputs"]]
    return "\n".join("".join(o.get("text") or o["data"]["text/plain"]) for o in outputs)


def test_what_the_notebooks_show(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """The hazards that the text announces, in the file and in a run of today; no folder of the run."""
    for notebook in pair:
        text = _text(notebook)
        first = "".join(notebook["cells"][0]["source"])
        assert "/tmp/" not in json.dumps(notebook)
        if "Break it" in first:
            for code in ("race", "overwrite-in-flight", "read-before-arrival", "operand-layout"):
                assert code in text, code
        if "Write, check" in first:
            assert "no hazard in 5 schedules" in text and "copies into a[2]" in text and "False" not in text


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.depth = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.depth += tag not in ("img", "br", "meta", "input")

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        self.depth -= 1


def test_html_outputs_are_whole(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    found = [
        "".join(o["data"]["text/html"])
        for c in pair[0]["cells"]
        if c["cell_type"] == "code"
        for o in c["outputs"]
        if "text/html" in o.get("data", {})
    ]
    assert found and all(_Tags(text).depth == 0 for text in found)
