"""Each pass on small blocks, as text: see `block_text`."""

from __future__ import annotations

import pytest
from block_text import FOLDER, OWN, Case, parse_cases, result

CASES = [(path.stem, case) for path in sorted(FOLDER.glob("*.ir")) for case in parse_cases(path.stem)]


@pytest.mark.parametrize(("name", "case"), [pytest.param(n, c, id=f"{n}: {c.name}") for n, c in CASES])
def test_a_pass_on_a_block(name: str, case: Case) -> None:
    assert result(name, case) == case.after


def test_a_block_alone_shows_what_its_pass_adds() -> None:
    """Elsewhere there would be nothing to put back."""
    for name, case in CASES:
        assert case.before or name in OWN, f"{name}: {case.name}"
