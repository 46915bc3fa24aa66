"""docs/errors.md is the output of its generator, and has every error."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from dev.pages import errors as error_docs
from dev.pages import operands
from tilemma.errors import KINDS

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_current() -> None:
    assert error_docs.PATH.read_text(encoding="utf-8") == error_docs.text(), "run python -m dev.pages.errors"


def test_the_table_of_operands_is_current() -> None:
    page = operands.PATH.read_text(encoding="utf-8")
    assert page == operands.updated(page), "run python -m dev.pages.operands"


def test_every_class_is_known() -> None:
    """Codes written in the sources, against those that importing everything finds."""
    error_docs.import_everything()
    written = set()
    for path in (ROOT / "src" / "tilemma").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if re.search(r"^\s+found\s*=", text, re.MULTILINE) else ():
            if isinstance(node, ast.ClassDef) and any(
                isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == "found" for s in node.body
            ):
                assigns = (s for s in node.body if isinstance(s, ast.Assign))
                assigned = (s for s in assigns if ast.unparse(s.targets[0]) == "code")
                written |= {s.value.value for s in assigned if isinstance(s.value, ast.Constant)}
    assert written <= set(KINDS)
    page = error_docs.PATH.read_text(encoding="utf-8")
    assert all(f"### {code}\n" in page for code in KINDS)


def test_messages_read_well() -> None:
    error_docs.import_everything()
    for code, cls in KINDS.items():
        for template in (cls.found, cls.expected, cls.fix):
            assert template.strip() == template and not template.endswith("."), (code, template)
        assert code == code.lower() and " " not in code
