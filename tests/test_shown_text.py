"""Characters that a terminal would obey are shown as their numbers; those that change the direction are named."""

from __future__ import annotations

import ast
import warnings

import pytest

from tilemma.errors import SourceWarning, visible, warn_of_direction

OBEYED = [
    chr(n)
    for n in (0, 7, 27, 127, 128, 0x9B, 0x200F, 0x202E, 0x2066, 0xE0001, 0x10FFFF)
    if chr(n) != visible(chr(n))
]


def test_a_number_stands_for_the_character() -> None:
    assert {len(visible(c)) for c in OBEYED} == {4, 6, 10}
    for c in OBEYED:
        shown = visible(f"a{c}b")
        assert shown.isprintable() and ast.literal_eval(f'"{shown}"') == f"a{c}b"


@pytest.mark.parametrize("before", ["", "ab", "\n", "one\ntwo ", "\n\nx"])
def test_the_place_of_a_character_that_changes_the_direction(before: str) -> None:
    line, column = 1 + before.count("\n"), 1 + len(before.rpartition("\n")[2])
    with pytest.warns(SourceWarning, match=rf"file\.co:{line}:{column}: U\+202E"):
        warn_of_direction("file.co", before + "\u202e; \u202e")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_direction("file.co", before + "; plain")
