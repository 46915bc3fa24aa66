"""Advice of hazards that names an instruction and a line of PTX: inserted there, the hazard is gone."""

from __future__ import annotations

import re
from typing import Any

import pytest
from test_hazards import CASES, Case

from tilemma import machine

_AFTER = re.compile(r"add `([^`]+;)` (?:after|between) (?:the \w+ of )?PTX lines? (\d+)(?: and (\d+))?")
_BEFORE = re.compile(r"add `([^`]+;)` before PTX line (\d+)")


def repaired(ptx: str, remedy: str) -> str | None:
    """``ptx`` with the advised instruction; None where the advice is not of this form."""
    lines = ptx.split("\n")
    if found := _BEFORE.match(remedy):
        lines.insert(int(found[2]) - 1, f"  {found[1]}")
    elif found := _AFTER.match(remedy):
        lines.insert(min(int(n) for n in found.groups()[1:] if n), f"  {found[1]}")
    else:
        return None
    return "\n".join(lines)


def verdict(case: Case, ptx: str | None) -> Any:
    broken, launch, args = case.build(case.edit)
    launch = {**launch, **case.launch}
    return machine.check(ptx or broken, launch, args, schedules=case.schedules, strict=case.strict)


# Hazards whose advice has this form in the cases of `test_hazards`.
FOLLOWED = frozenset({
    "race", "missing-proxy-fence", "missing-proxy-fence-read", "race-lanes", "register-in-flight",
    "missing-wgmma-fence", "mbarrier-init-not-visible", "mbarrier-init-not-visible-cta",
})  # fmt: skip


@pytest.mark.parametrize("code", sorted(FOLLOWED))
def test_the_advised_instruction_cures(code: str) -> None:
    cured = 0
    for case in (c for c in CASES if c.code == code):
        ptx = case.build(case.edit)[0]
        # An advice for each place: they are followed one after the other.
        for _ in range(24):
            hazard = next((h for h in verdict(case, ptx).hazards if h.code == code), None)
            made = None if hazard is None else repaired(ptx, hazard.remedy)
            if made is None:
                break
            ptx, cured = made, cured + 1
        assert ptx == case.build(case.edit)[0] or hazard is None, hazard and hazard.render()
    assert cured
