"""Each pass, the verifier and lowering on kernels with one place of their IR edited: see `edited_blocks`."""

from __future__ import annotations

import pytest
from edited_blocks import names, outcome, parse

EDITED = [(p, name) for p in names() for name in parse(p)]


@pytest.mark.parametrize(("pass_name", "name"), [pytest.param(p, n, id=f"{p}: {n}") for p, n in EDITED])
def test_edits(pass_name: str, name: str) -> None:
    for edit, told in parse(pass_name)[name]:
        assert outcome(f"{pass_name} {name}", edit) == told, f"{name} {edit}"
